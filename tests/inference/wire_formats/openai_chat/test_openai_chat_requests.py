"""Requests of Chat Completions."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, get_type_hints

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.errors import BadRequest
from agentloop.inference import HttpInference, LLMConfig, Quirks
from agentloop.inference.http_client import in_process_client
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.inference.wire_formats.openai_chat import requests
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import (
    Audio,
    Document,
    ErrorInfo,
    Image,
    InferenceOptions,
    InferenceRequest,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    ResponseFormat,
    Text,
    ToolCall,
    ToolChoice,
    ToolExchange,
    ToolSpec,
    to_json,
)
from agentloop.values.json import format_json
from agentloop.values.tool_calls import MALFORMED
from tests.inference.generated_requests import (
    MALFORMED_ARGUMENTS,
    assistant_messages,
    conversations,
    execution_of,
    inference_requests,
)

CONFIG = LLMConfig.parse("openai:m", api_key="k")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
HELLO = Message.user("hello")
PNG = base64.b64encode(b"png").decode()


def encoded(request: InferenceRequest, config: LLMConfig = CONFIG) -> bytes:
    """Encode a request to its body."""
    return wire_format("openai-chat").encode_request(request, config).body


def spelled(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Encode a request and parse what came of it."""
    body: dict[str, Any] = json.loads(encoded(request, config))
    return body


def messages_of(*messages: Message, system_prompt: str = "") -> list[dict[str, Any]]:
    """Encode a conversation and return its messages."""
    found: list[dict[str, Any]] = spelled(InferenceRequest(messages, system_prompt))["messages"]
    return found


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Join a call to an outcome."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def test_a_request_is_the_model_the_tools_the_messages_and_the_rest_in_this_order() -> None:
    """The body is compact JSON whose stable parts come first, byte by byte."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), ToolChoice.required(), options=InferenceOptions(seed=7))
    assert encoded(request) == (
        b'{"model":"m"'
        b',"tools":[{"type":"function","function":{"name":"add","description":"Add numbers.",'
        b'"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}]'
        b',"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hello"}]'
        b',"tool_choice":"required","seed":7}'
    )


def test_what_is_not_asked_for_is_not_sent() -> None:
    """Defaults are left to the provider."""
    assert encoded(InferenceRequest((HELLO,))) == b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


def test_the_path_is_that_of_chat_completions() -> None:
    """Requests go to one endpoint, with no headers of the wire format's own."""
    made = wire_format("openai-chat").encode_request(InferenceRequest((HELLO,)), CONFIG)
    assert (made.path, dict(made.headers), dict(made.tool_names)) == ("/chat/completions", {}, {})
    assert f"<{len(made.body)} bytes>" in repr(made)


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        pytest.param(Text("so"), {"type": "text", "text": "so"}, id="text"),
        pytest.param(
            Image(media_type="image/png", data=b"png"),
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
            id="image by value",
        ),
        pytest.param(
            Image(url="https://example.com/a.png"),
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
            id="image by address",
        ),
        *[
            pytest.param(
                Audio(media_type=kind, data=b"png"),
                {"type": "input_audio", "input_audio": {"data": PNG, "format": name}},
                id=f"sound of type {kind}",
            )
            for kind, name in [
                ("audio/wav", "wav"),
                ("audio/x-wav", "wav"),
                ("audio/wave", "wav"),
                ("audio/vnd.wave", "wav"),
                ("audio/WAV; codecs=1", "wav"),
                ("audio/mpeg", "mp3"),
                ("audio/mp3", "mp3"),
                ("audio/flac", "flac"),
            ]
        ],
        pytest.param(
            Document(media_type="application/pdf", data=b"png", name="a.pdf"),
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "a.pdf"}},
            id="document by value",
        ),
        pytest.param(
            Document(media_type="application/pdf", data=b"png"),
            {"type": "file", "file": {"file_data": f"data:application/pdf;base64,{PNG}", "filename": "document.pdf"}},
            id="document without a name",
        ),
        pytest.param(
            Document(file_id="file-1", name="a.pdf"),
            {"type": "file", "file": {"file_id": "file-1"}},
            id="uploaded file",
        ),
    ],
)
def test_a_user_sends_every_kind_of_content(part: Text | Image | Audio | Document, sent: Mapping[str, object]) -> None:
    """Text and media stand in a message in the order they came."""
    picture = Image(url="https://example.com/b.png")
    (message,) = messages_of(Message.user(part, "?", picture))
    assert message["role"] == "user"
    assert message["content"][:2] == [sent, {"type": "text", "text": "?"}]
    assert len(message["content"]) == 3


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (Image(file_id="file-1"), "Image by file id"),
        (Audio(url="https://example.com/a.wav"), "Audio by URL"),
        (Audio(file_id="file-1"), "Audio by file id"),
        (Document(url="https://example.com/a.pdf"), "Document by URL"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(part: Image | Audio | Document, told: str) -> None:
    """A part that Chat Completions has no place for is an error that names it, not a part left out."""
    with pytest.raises(BadRequest, match=told):
        messages_of(Message.user("look", part))


@pytest.mark.parametrize("part", [Image(media_type="image/png", data=b""), Audio(url="u"), Document(file_id="f")])
def test_media_of_the_assistant_are_refused_by_name(part: Image | Audio | Document) -> None:
    """A picture that a model made cannot go back to it; it is not left out in silence."""
    with pytest.raises(BadRequest, match=f"{type(part).__name__} in an assistant message"):
        messages_of(Message.assistant("look", part))


@pytest.mark.parametrize("part", [Image(media_type="image/png", data=b""), Audio(url="u"), Document(file_id="f")])
def test_media_in_a_result_are_refused_by_the_name_of_the_tool(part: Image | Audio | Document) -> None:
    """A tool message holds text only; the error names the tool and the part."""
    call = ToolCall("c", "screenshot")
    shown = evolve(execution_of(call), content=(Text("look"), part))
    with pytest.raises(BadRequest, match=f"the tool 'screenshot' contains {type(part).__name__}"):
        messages_of(Message.assistant(ToolExchange(call, shown)))


def test_text_alone_is_sent_as_text() -> None:
    """Messages of nothing but text are spelled the way that every service understands."""
    sent = messages_of(Message.user("a", "b"), Message.system("c", "d"), Message.user(), system_prompt="s")
    assert sent == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab"},
        {"role": "system", "content": "cd"},
        {"role": "user", "content": ""},
    ]


def test_calls_are_followed_by_their_results() -> None:
    """An assistant's message with calls becomes one message with all calls, then one per result in call order."""
    first, second = ToolCall("c1", "add", '{"a": 1,  "b": 2}'), ToolCall("c2", "math.add", "")
    failed = ErrorInfo("ToolFailed", "no")
    message = Message.assistant(Reasoning("hm"), "So: ", exchange(first, 3), "then", exchange(second, error=failed))
    assert messages_of(message, HELLO) == [
        {
            "role": "assistant",
            "content": "So: then",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1,  "b": 2}'}},
                {"id": "c2", "type": "function", "function": {"name": wire_name("math.add"), "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
        {"role": "tool", "tool_call_id": "c2", "content": "ToolFailed: no"},
        {"role": "user", "content": "hello"},
    ]


def test_the_model_sees_the_call_that_it_made() -> None:
    """Where an interceptor changed a call, the history still holds what the model wrote, and what came of the change."""
    made, ran = ToolCall("c", "add", '{"a": 1}'), ToolCall("c", "add", '{"a": 2}')
    call, result = messages_of(Message.assistant(ToolExchange(made, execution_of(ran, value=2))))
    assert (call["tool_calls"][0]["function"]["arguments"], result["content"]) == ('{"a": 1}', "2")


def test_results_are_shown_as_text() -> None:
    """Text is shown as it is, other values as JSON, and content in place of the value."""
    call = ToolCall("c", "look")
    shown = evolve(execution_of(call, value={"long": 1}), content=(Text("short"), Text("er")))
    turns = [exchange(call, "plain"), exchange(call, {"a": [1, None]}), exchange(call), ToolExchange(call, shown)]
    assert [message["content"] for message in messages_of(Message.assistant(*turns))[1:]] == [
        "plain",
        '{"a":[1,null]}',
        "null",
        "shorter",
    ]


def test_thoughts_and_parts_of_other_providers_are_not_sent() -> None:
    """What Chat Completions has no place for and means nothing to it is left out; so is a message of nothing else."""
    foreign = ProviderPart("anthropic-messages", {"type": "redacted_thinking"})
    assert messages_of(Message.assistant(Reasoning("hm"), foreign), HELLO) == [{"role": "user", "content": "hello"}]
    assert messages_of(Message.assistant(Reasoning("hm"), "so", foreign)) == [{"role": "assistant", "content": "so"}]


@pytest.mark.parametrize("arguments", MALFORMED_ARGUMENTS)
def test_malformed_arguments_are_sent_back_as_an_object(arguments: str) -> None:
    """One malformed call does not make the provider refuse the rest of the conversation."""
    call, _ = messages_of(Message.assistant(exchange(ToolCall("c", "add", arguments))))
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {MALFORMED: arguments}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice.auto(), {}),
        (ToolChoice.required(), {"tool_choice": "required"}),
        (ToolChoice.none(), {"tool_choice": "none"}),
        (ToolChoice.specific("add"), {"tool_choice": {"type": "function", "function": {"name": "add"}}}),
        (
            ToolChoice.specific("math.add"),
            {"tool_choice": {"type": "function", "function": {"name": wire_name("math.add")}}},
        ),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, sent: dict[str, object]) -> None:
    """What tool to call is said where tools are offered; a choice among none would be refused."""
    body = spelled(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice))
    assert {name: value for name, value in body.items() if name == "tool_choice"} == sent
    assert "tool_choice" not in spelled(InferenceRequest((HELLO,), tool_choice=choice))


@pytest.mark.parametrize("parallel", [True, False, None])
def test_parallel_calls_are_asked_for_or_not_with_tools_only(parallel: bool | None) -> None:  # noqa: FBT001  # a value
    """Whether calls may come together is sent when it is said, and tools are offered."""
    body = spelled(InferenceRequest((HELLO,), tools=(ADD,), parallel_tool_calls=parallel))
    assert body.get("parallel_tool_calls") is parallel
    assert "parallel_tool_calls" not in spelled(InferenceRequest((HELLO,), parallel_tool_calls=parallel))


def test_tools_that_go_by_another_name_are_listed() -> None:
    """The names that were changed come with the request, to be changed back in its answer."""
    tools = (ADD, ToolSpec("math.add", "Add.", {"type": "object"}))
    made = wire_format("openai-chat").encode_request(InferenceRequest((HELLO,), tools=tools), CONFIG)
    assert made.tool_names == {wire_name("math.add"): "math.add"}
    names = [offered["function"]["name"] for offered in json.loads(made.body)["tools"]]
    assert names == ["add", wire_name("math.add")]


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        (ResponseFormat(), {"type": "json_object"}),
        (
            ResponseFormat({"type": "object"}),
            {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}, "strict": True}},
        ),
        (
            ResponseFormat({"type": "object"}, "my answer", strict=False),
            {
                "type": "json_schema",
                "json_schema": {"name": wire_name("my answer"), "schema": {"type": "object"}, "strict": False},
            },
        ),
    ],
)
def test_the_response_format_is_sent(wanted: ResponseFormat, sent: dict[str, object]) -> None:
    """JSON of any shape, or of a schema under a name that the provider takes."""
    assert spelled(InferenceRequest((HELLO,), response_format=wanted))["response_format"] == sent


def test_options_are_spelled_as_the_service_wants_them() -> None:
    """Every option has its name, and the limit of tokens the one that the service gives it."""
    options = InferenceOptions(
        model="other",
        temperature=0.0,
        top_p=0.5,
        max_tokens=9,
        stop=("a", "b"),
        seed=0,
        reasoning_effort="low",
        extra={"user": "me"},
    )
    expected = {
        "model": "other",
        "temperature": 0.0,
        "top_p": 0.5,
        "stop": ["a", "b"],
        "seed": 0,
        "reasoning_effort": "low",
        "user": "me",
    }
    request = InferenceRequest((HELLO,), options=options)
    for config, limit in ((CONFIG, "max_completion_tokens"), (LLMConfig.parse("vllm:m"), "max_tokens")):
        body = spelled(request, config)
        assert {name: body[name] for name in body if name != "messages"} == {**expected, limit: 9}


def test_options_of_a_request_go_before_those_of_the_configuration() -> None:
    """The configuration's options are what a request does not say otherwise."""
    standing = InferenceOptions(model="standing", temperature=1, seed=1, extra={"user": "me", "store": True})
    asked = InferenceOptions(temperature=0, max_tokens=5, extra={"user": "you"})
    body = spelled(InferenceRequest((HELLO,), options=asked), CONFIG.with_settings(options=standing))
    assert (body["model"], body["temperature"], body["seed"], body["max_completion_tokens"]) == ("standing", 0, 1, 5)
    assert (body["user"], body["store"]) == ("you", True)


def test_an_extra_entry_goes_before_an_option_of_the_same_name() -> None:
    """What is put in as it is wins over what is spelled from an option."""
    options = InferenceOptions(temperature=1, extra={"temperature": 0.3, "tool_choice": "none"})
    body = spelled(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=ToolChoice.required(), options=options))
    assert (body["temperature"], body["tool_choice"]) == (0.3, "none")


@pytest.mark.parametrize("name", ["model", "messages", "tools"])
def test_an_extra_entry_never_stands_beside_the_one_of_the_request(name: str) -> None:
    """What would stand in the body twice is refused, as which of the two counts cannot be known."""
    options = InferenceOptions(extra={name: []})
    for request, config in (
        (InferenceRequest((HELLO,), tools=(ADD,), options=options), CONFIG),
        (InferenceRequest((HELLO,), tools=(ADD,)), CONFIG.with_settings(options=options)),
    ):
        with pytest.raises(BadRequest, match=rf"options\.extra contains {name}"):
            encoded(request, config)


def test_tools_of_the_provider_can_be_put_in_where_the_request_has_none() -> None:
    """Tools that run at the provider are one of its own entries, and fit where no others are."""
    options = InferenceOptions(extra={"tools": [{"type": "web_search"}]})
    assert spelled(InferenceRequest((HELLO,), options=options))["tools"] == [{"type": "web_search"}]


def test_text_of_any_kind_can_be_sent() -> None:
    """Whatever a text holds, half a surrogate pair of a broken emoji included, the body is JSON that says it."""
    for text in ("é\x00\u2028\U0001f600", "cut \ud83d", '"\\\n'):
        (user, system, call, result) = messages_of(
            Message.user(text), Message.system(text), Message.assistant(text, exchange(ToolCall("c", "add"), text))
        )
        assert user["content"] == system["content"] == call["content"] == result["content"] == text


@given(inference_requests)
def test_no_encoded_request_holds_a_call_without_its_result(request: InferenceRequest) -> None:
    """Law 2: each turn's calls are followed by exactly their results, in order, under ids of their own."""
    before = to_json(request)
    turns = iter(spelled(request)["messages"])
    if request.system_prompt:
        assert next(turns) == {"role": "system", "content": request.system_prompt}
    for message in request.messages:
        if message.role != "assistant":
            assert next(turns)["role"] == message.role
        elif message.exchanges or message.text:
            check_turn(message, next(turns), turns)
    assert next(turns, None) is None
    assert to_json(request) == before


def check_turn(message: Message, told: Mapping[str, Any], turns: Iterator[Mapping[str, Any]]) -> None:
    """Compare a message of the assistant with what was sent for it."""
    assert (told["role"], told["content"] or "") == ("assistant", message.text)
    calls = told.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls) == len(message.exchanges)
    for call, made in zip(calls, message.exchanges, strict=True):
        assert call["function"]["name"] == wire_name(made.call.name)
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        result = next(turns)
        assert result == {"role": "tool", "tool_call_id": call["id"], "content": made.execution.text}


@given(st.lists(assistant_messages, min_size=1, max_size=4))
def test_ids_that_come_again_in_a_later_turn_belong_to_their_own_turn(messages: list[Message]) -> None:
    """Real models use the same ids in later turns: what a turn is sent as does not depend on other turns."""
    alone = [turn for message in messages for turn in messages_of(message)]
    assert messages_of(*messages) == alone


@given(conversation=conversations, system_prompt=st.text(), with_tools=st.booleans(), length=st.integers(0, 6))
def test_the_segments_of_a_longer_request_extend_those_of_the_shorter(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: to go on with a conversation leaves the bytes before as they were, so that prompt caches serve them."""
    tools = (ADD,) if with_tools else ()
    shorter = encoded(InferenceRequest(tuple(conversation[:length]), system_prompt, tools))
    longer = encoded(InferenceRequest(tuple(conversation), system_prompt, tools))
    end = b"]}"
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    going_on = longer[len(shorter) - len(end) :]
    assert going_on.startswith((end, b",")) or shorter.endswith(b'"messages":[]}')


class CountedParts(tuple[Part, ...]):
    """Parts of a message that count how often somebody goes through them."""

    looked_at: ClassVar[Counter[str]] = Counter()

    __slots__ = ()

    def __iter__(self) -> Iterator[Part]:
        self.looked_at[self[0].text if isinstance(self[0], Text) else ""] += 1
        return super().__iter__()


def test_each_message_is_encoded_once_over_growing_requests() -> None:
    """Law 20: over a run of n requests, a message is gone through for the first of them and never again."""
    CountedParts.looked_at.clear()
    messages = tuple([Message("user", CountedParts([Text(f"message {number}")])) for number in range(40)])
    made = Counter(CountedParts.looked_at)
    encoded(InferenceRequest(messages[:1]))
    once = CountedParts.looked_at["message 0"] - made["message 0"]
    assert once > 0
    for length in range(1, 41):
        encoded(InferenceRequest(messages[:length], "a system prompt", (ADD,)))
    assert {CountedParts.looked_at[name] - made[name] for name in made} == {once}


def test_tools_and_messages_are_encoded_once_per_way_to_spell_them() -> None:
    """A service with other quirks has encodings of its own; one with the same quirks shares them."""
    spec, message = ToolSpec("add", "Add.", {"type": "object"}), Message.user("hello")
    request = InferenceRequest((message,), tools=(spec,))
    for config in (CONFIG, LLMConfig.parse("openai:other", api_key="k"), CONFIG.with_settings(timeout=1)):
        encoded(request, config)
        assert (len(message._encodings), len(spec._encodings)) == (1, 1)
    encoded(request, CONFIG.with_settings(quirks=Quirks(max_tokens_field="other")))
    assert (len(message._encodings), len(spec._encodings)) == (2, 2)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_what_a_run_writes_adds_up_to_one_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a whole execution, the JSON that is written is about that of the last request, not the sum of all."""
    written: list[int] = []
    bodies: list[bytes] = []
    plain = format_json

    def counted(value: Any) -> bytes:
        made = plain(value)
        written.append(len(made))
        return made

    def provider(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        bodies.append(body)
        call = {"id": "c", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
        message = {"content": "done"} if len(bodies) > 40 else {"tool_calls": [call]}
        return 200, {}, json.dumps({"choices": [{"message": message}]}).encode()

    monkeypatch.setattr(requests, "format_json", counted)
    inference = HttpInference(CONFIG, client=in_process_client(provider))
    state = await AgentLoop(ToolCallingDriver(inference), [add]).execute("add")
    assert (state.final_text, len(bodies)) == ("done", 41)
    assert sum(written) < 1.5 * len(bodies[-1]) < 0.1 * sum(map(len, bodies))


@given(inference_requests)
def test_a_request_is_what_the_providers_own_package_says_a_request_is(request: InferenceRequest) -> None:
    """Requests satisfy the types that OpenAI publishes for them, without an entry that these do not know."""
    params = pytest.importorskip("openai.types.chat.completion_create_params", reason="openai is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    kind = params.CompletionCreateParamsNonStreaming
    body = spelled(request)
    assert body.keys() <= get_type_hints(kind).keys()
    walk(adapter(pydantic, kind).validate_python(body))


ADAPTERS: dict[Any, Any] = {}


def adapter(pydantic: Any, kind: Any) -> Any:
    """Return what validates a type, made once."""
    if kind not in ADAPTERS:
        ADAPTERS[kind] = pydantic.TypeAdapter(kind)
    return ADAPTERS[kind]


def walk(value: Any) -> None:
    """Go through what pydantic validates as it is gone through."""
    if isinstance(value, Mapping):
        for item in value.values():
            walk(item)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for item in value:
            walk(item)


def test_a_request_that_openai_would_refuse_does_not_satisfy_its_types() -> None:
    """The judge of the test above can say no."""
    params = pytest.importorskip("openai.types.chat.completion_create_params", reason="openai is not installed")
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    body = spelled(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    body["messages"][1].pop("tool_call_id")
    with pytest.raises(pydantic.ValidationError):
        walk(adapter(pydantic, params.CompletionCreateParamsNonStreaming).validate_python(body))
