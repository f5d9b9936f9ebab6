"""Tests of the encoding of requests for Chat Completions."""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.errors import BadRequest
from agentloop.models import HttpInference, LLMConfig, Quirks
from agentloop.models.http_client import in_process_client
from agentloop.models.wire_formats import fields
from agentloop.models.wire_formats.fields import wire_name
from agentloop.models.wire_formats.openai_chat import OpenAIChat, requests
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import (
    Audio,
    Document,
    ErrorInfo,
    Image,
    InferenceOptions,
    InferenceRequest,
    Message,
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
from agentloop.values.messages import Part
from agentloop.values.tool_calls import MALFORMED
from agentloop.values.value import encode_each as encode_values
from tests.models.generated_requests import (
    MALFORMED_ARGUMENTS,
    assistant_messages,
    conversations,
    execution_of,
    inference_requests,
    without_unsupported,
)
from tests.models.openai_types import check_request

CONFIG = LLMConfig.parse("openai:m", api_key="k")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
HELLO = Message.user("hello")
PNG = base64.b64encode(b"png").decode()


supported_requests = inference_requests.map(
    lambda request: without_unsupported(request, wire_format("openai-chat"), CONFIG)
)


def encode(request: InferenceRequest, config: LLMConfig = CONFIG) -> bytes:
    """Return the body of a request."""
    return wire_format("openai-chat").encode_request(request, config).body


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Return the parsed body of a request."""
    body: dict[str, Any] = json.loads(encode(request, config))
    return body


def encode_messages(*messages: Message, system_prompt: str = "") -> list[dict[str, Any]]:
    """Return the encoded messages of a conversation."""
    encoded: list[dict[str, Any]] = encode_json(InferenceRequest(messages, system_prompt))["messages"]
    return encoded


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def test_a_body_contains_model_tools_messages_and_options_in_this_order() -> None:
    """The body is compact JSON, whose stable parts come first."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), ToolChoice.required(), options=InferenceOptions(seed=7))
    assert encode(request) == (
        b'{"model":"m"'
        b',"tools":[{"type":"function","function":{"name":"add","description":"Add numbers.",'
        b'"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}]'
        b',"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hello"}]'
        b',"tool_choice":"required","seed":7}'
    )


def test_unset_options_are_not_sent() -> None:
    """The provider's defaults apply to unset options."""
    assert encode(InferenceRequest((HELLO,))) == b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'


def test_the_path_is_that_of_chat_completions() -> None:
    """Requests have the path of the endpoint and no additional headers."""
    request = wire_format("openai-chat").encode_request(InferenceRequest((HELLO,)), CONFIG)
    assert (request.path, dict(request.headers), dict(request.tool_names)) == ("/chat/completions", {}, {})
    assert f"<{len(request.body)} bytes>" in repr(request)


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
            id="image by URL",
        ),
        *[
            pytest.param(
                Audio(media_type=kind, data=b"png"),
                {"type": "input_audio", "input_audio": {"data": PNG, "format": name}},
                id=f"audio of type {kind}",
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
def test_user_messages_can_contain_every_kind_of_content(
    part: Text | Image | Audio | Document, sent: Mapping[str, object]
) -> None:
    """Text and media are encoded in their order."""
    image = Image(url="https://example.com/b.png")
    (message,) = encode_messages(Message.user(part, "?", image))
    assert message["role"] == "user"
    assert message["content"][:2] == [sent, {"type": "text", "text": "?"}]
    assert len(message["content"]) == 3


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Image(file_id="file-1"), "Image by file id"),
        (Audio(url="https://example.com/a.wav"), "Audio by URL"),
        (Audio(file_id="file-1"), "Audio by file id"),
        (Document(url="https://example.com/a.pdf"), "Document by URL"),
    ],
)
def test_unsupported_content_is_refused_by_name(part: Image | Audio | Document, message: str) -> None:
    """Content without an encoding is an error that names it, instead of being dropped."""
    with pytest.raises(BadRequest, match=message):
        encode_messages(Message.user("look", part))


@pytest.mark.parametrize(
    "part", [Image(media_type="image/png", data=b""), Audio(url="https://a/u"), Document(file_id="f")]
)
def test_media_of_the_assistant_are_refused_by_name(part: Image | Audio | Document) -> None:
    """Media in an assistant message are an error, instead of being dropped."""
    with pytest.raises(BadRequest, match=f"{type(part).__name__} in an assistant message"):
        encode_messages(Message.assistant("look", part))


@pytest.mark.parametrize(
    ("part", "is_sent"),
    [
        *[(Image(media_type=f"image/{kind}", data=b"x"), True) for kind in ("png", "JPEG", "gif", "webp")],
        *[(Image(media_type=f"image/{kind}", data=b"x"), False) for kind in ("svg+xml", "heic", "bmp")],
        *[(Audio(media_type=f"audio/{kind}", data=b"x"), True) for kind in ("mpeg", "x-wav", "wave; codecs=1")],
        *[(Audio(media_type=f"audio/{kind}", data=b"x"), False) for kind in ("flac", "ogg")],
        (Document(media_type="application/pdf", data=b"x"), True),
        (Document(media_type="application/zip", data=b"x"), False),
        (Document(media_type="text/plain", data=b"\xff"), False),
    ],
)
def test_a_medium_of_a_type_that_openai_refuses_is_sent_for_a_user_only(
    part: Image | Audio | Document, *, is_sent: bool
) -> None:
    """Other services accept more types: a user knows the service, but a tool would end the run."""
    call = ToolCall("c", "look")
    result = ToolExchange(call, evolve(execution_of(call), content=(part,)))
    _, tool_message, *following = encode_messages(Message.assistant(result))
    assert bool(following) is is_sent
    assert ("cannot transmit it" in tool_message["content"]) is not is_sent
    (message,) = encode_messages(Message.user(part))
    assert len(message["content"]) == 1
    assert message["content"][0]["type"] in {"image_url", "input_audio", "file"}


def test_documents_that_contain_text_are_sent_as_text() -> None:
    """The texts of a message are one string, in which each document has a line with its type and name."""
    table = Document(media_type="text/csv", data=b"\xef\xbb\xbfa,b", name="t.csv")
    (message,) = encode_messages(Message.user("Sum up:", table))
    assert message["content"] == 'Sum up:\n[text/csv "t.csv"]\na,b\n'


@given(st.text(), st.sampled_from(["text/plain", "TEXT/X-Log; charset=utf-8", "application/json", "image/svg+xml"]))
def test_the_text_of_a_document_is_complete(text: str, media_type: str) -> None:
    """No character is lost, whether a user or a tool sends the document."""
    document = Document(media_type=media_type, data=b"\xef\xbb\xbf" + text.encode())
    call = ToolCall("c", "look")
    result = ToolExchange(call, evolve(execution_of(call), content=(document,)))
    (message,), (_, tool_message) = encode_messages(Message.user(document)), encode_messages(Message.assistant(result))
    assert message["content"] == tool_message["content"] == f"\n[{media_type}]\n{text}\n"


MISTRAL = LLMConfig.parse("mistral:mistral-large-latest", api_key="k")


@given(st.lists(st.lists(st.text(max_size=70), min_size=1, max_size=3), max_size=3))
def test_ids_have_the_form_that_the_service_requires(turns: list[list[str]]) -> None:
    """A call and its result have the same one, different ids stay different, and one of the service is unchanged."""
    native = "Ab3dE6gh9"
    messages = [
        Message.assistant(*[ToolExchange(call, execution_of(call)) for call in [ToolCall(id_, "add") for id_ in ids]])
        for ids in [*turns, [native]]
    ]
    sent = json.loads(encode(InferenceRequest(tuple(messages)), MISTRAL))["messages"]
    ids = [call["id"] for message in sent for call in message.get("tool_calls", ())]
    assert ids == [message["tool_call_id"] for message in sent if message["role"] == "tool"]
    assert all(len(id_) == 9 and id_.isascii() and id_.isalnum() for id_ in ids)
    assert ids[-1] == native
    elsewhere = json.loads(encode(InferenceRequest(tuple(messages)), CONFIG))["messages"]
    originals = [call["id"] for message in elsewhere for call in message.get("tool_calls", ())]
    assert len(set(ids)) == len(set(originals))


@pytest.mark.parametrize("provider", ["openai", "azure", "github"])
def test_ids_are_not_longer_than_the_service_accepts(provider: str) -> None:
    """The conversation may come from a service with longer ones; any other service gets those as they are."""
    config = LLMConfig.parse(f"{provider}:m", api_key="k", base_url="https://a/v1")
    ids = [f"chatcmpl-tool-{letter * 32}" for letter in "ab"]
    turn = [ToolExchange(call, execution_of(call)) for call in (ToolCall(id_, "add") for id_ in [*ids, "c" * 40])]
    request = InferenceRequest([Message.assistant(*turn)])
    message, *results = json.loads(encode(request, config))["messages"]
    sent = [call["id"] for call in message["tool_calls"]]
    assert sent == [result["tool_call_id"] for result in results]
    assert (sent[2], [len(id_) for id_ in sent], len({*sent})) == ("c" * 40, [40, 40, 40], 3)
    elsewhere = json.loads(encode(request, LLMConfig.parse("litellm:m")))["messages"][0]
    assert [call["id"] for call in elsewhere["tool_calls"]] == [*ids, "c" * 40]


@pytest.mark.parametrize(("config", "expects_answer"), [(MISTRAL, True), (CONFIG, False)])
def test_the_assistant_answers_between_results_and_the_user_where_it_must(
    config: LLMConfig, *, expects_answer: bool
) -> None:
    """Some services refuse a message of the user that follows results, also one with the media of the results."""
    call = ToolCall("Ab3dE6gh9", "draw")
    drawn = ToolExchange(call, evolve(execution_of(call), content=(Image(media_type="image/png", data=b"png"),)))
    said = ToolExchange(call, execution_of(call))
    messages = (
        Message.user("a"),
        Message.assistant(drawn),
        Message.assistant(said),
        Message.user("b"),
        Message.user("c"),
    )
    wire, roles = OpenAIChat().for_execution(), []
    for length in range(1, len(messages) + 1):
        body = json.loads(wire.encode_request(InferenceRequest(messages[:length]), config).body)
        alone = json.loads(encode(InferenceRequest(messages[:length]), config))
        assert body == alone
        roles = [message["role"] for message in body["messages"]]
        assert roles[-1] != "assistant"
    between = ["assistant"] if expects_answer else []
    assert roles == ["user", *["assistant", "tool", *between, "user"] * 2, "user"]


def test_media_in_results_follow_all_results_in_a_user_message() -> None:
    """A tool message contains text only, and names the media that follow, or that cannot be sent."""
    png, pdf = Image(media_type="image/png", data=b"png"), Document(file_id="f", name="a.pdf")
    exchanges = [
        ToolExchange(call, evolve(execution_of(call), content=content))
        for call, content in (
            (ToolCall("c", "screenshot"), (Text("look "), png)),
            (ToolCall("d", "add"), (Text("3"),)),
            (ToolCall("e", "read"), (pdf, Audio(url="https://a/u", media_type="audio/wav"))),
        )
    ]
    _, *results, media = encode_messages(Message.assistant(*exchanges))
    assert [(result["role"], result["content"]) for result in results] == [
        ("tool", "look [image/png: in the next message of the user]"),
        ("tool", "3"),
        ("tool", '[document "a.pdf": in the next message of the user][audio/wav: this API cannot transmit it]'),
    ]
    assert (media["role"], [part["type"] for part in media["content"]]) == (
        "user",
        ["text", "image_url", "text", "file"],
    )


def test_messages_of_text_are_sent_as_strings() -> None:
    """The content of a message without media is a string, which every service supports."""
    sent = encode_messages(Message.user("a", "b"), Message.system("c", "d"), Message.user(), system_prompt="s")
    assert sent == [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "ab"},
        {"role": "system", "content": "cd"},
        {"role": "user", "content": ""},
    ]


def test_calls_are_followed_by_their_results() -> None:
    """An assistant message with calls becomes one message with all calls, followed by one message per result."""
    first, second = ToolCall("c1", "add", '{"a": 1,  "b": 2}'), ToolCall("c2", "math.add", "")
    failed = ErrorInfo("ToolFailed", "no")
    message = Message.assistant(Reasoning("hm"), "So: ", exchange(first, 3), "then", exchange(second, error=failed))
    assert encode_messages(message, HELLO) == [
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
    """If an interceptor changed a call, the history contains the original call and the result of the changed one."""
    original, changed = ToolCall("c", "add", '{"a": 1}'), ToolCall("c", "add", '{"a": 2}')
    call, result = encode_messages(Message.assistant(ToolExchange(original, execution_of(changed, value=2))))
    assert (call["tool_calls"][0]["function"]["arguments"], result["content"]) == ('{"a": 1}', "2")


def test_results_are_sent_as_text() -> None:
    """Text is sent unchanged, other values as JSON, and `content` replaces the value."""
    call = ToolCall("c", "look")
    execution = evolve(execution_of(call, value={"long": 1}), content=(Text("short"), Text("er")))
    turns = [exchange(call, "plain"), exchange(call, {"a": [1, None]}), exchange(call), ToolExchange(call, execution)]
    assert [message["content"] for message in encode_messages(Message.assistant(*turns))[1:]] == [
        "plain",
        '{"a":[1,null]}',
        "null",
        "shorter",
    ]


def test_reasoning_and_parts_of_other_providers_are_not_sent() -> None:
    """They are dropped, and so is a message that contains nothing else."""
    foreign = ProviderPart("anthropic-messages", {"type": "redacted_thinking"})
    assert encode_messages(Message.assistant(Reasoning("hm"), foreign), HELLO) == [{"role": "user", "content": "hello"}]
    assert encode_messages(Message.assistant(Reasoning("hm"), "so", foreign)) == [
        {"role": "assistant", "content": "so"}
    ]


@pytest.mark.parametrize("arguments", MALFORMED_ARGUMENTS)
def test_malformed_arguments_are_sent_back_as_an_object(arguments: str) -> None:
    """A malformed call does not make the provider refuse the conversation."""
    call, _ = encode_messages(Message.assistant(exchange(ToolCall("c", "add", arguments))))
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
    """Providers refuse a tool choice without tools."""
    body = encode_json(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice))
    assert {name: value for name, value in body.items() if name == "tool_choice"} == sent
    assert "tool_choice" not in encode_json(InferenceRequest((HELLO,), tool_choice=choice))


@pytest.mark.parametrize("parallel", [True, False, None])
def test_parallel_tool_calls_is_sent_with_tools_only(parallel: bool | None) -> None:  # noqa: FBT001  # a value
    """`parallel_tool_calls` is sent if it is set and there are tools."""
    body = encode_json(InferenceRequest((HELLO,), tools=(ADD,), parallel_tool_calls=parallel))
    assert body.get("parallel_tool_calls") is parallel
    assert "parallel_tool_calls" not in encode_json(InferenceRequest((HELLO,), parallel_tool_calls=parallel))


def test_the_encoded_request_lists_renamed_tools() -> None:
    """`tool_names` maps wire names to the original names."""
    tools = (ADD, ToolSpec("math.add", "Add.", {"type": "object"}))
    request = wire_format("openai-chat").encode_request(InferenceRequest((HELLO,), tools=tools), CONFIG)
    assert request.tool_names == {wire_name("math.add"): "math.add"}
    names = [offered["function"]["name"] for offered in json.loads(request.body)["tools"]]
    assert names == ["add", wire_name("math.add")]


@pytest.mark.parametrize(
    ("response_format", "sent"),
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
def test_the_response_format_is_sent(response_format: ResponseFormat, sent: dict[str, object]) -> None:
    """A response format is any JSON object, or a schema with a valid name."""
    assert encode_json(InferenceRequest((HELLO,), response_format=response_format))["response_format"] == sent


def test_options_are_sent_under_the_names_of_the_service() -> None:
    """The limit of tokens has the name that the service uses."""
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
        body = encode_json(request, config)
        assert {name: body[name] for name in body if name != "messages"} == {**expected, limit: 9}


def test_options_of_a_request_override_those_of_the_configuration() -> None:
    """The options of the configuration are defaults."""
    defaults = InferenceOptions(model="default", temperature=1, seed=1, extra={"user": "me", "store": True})
    options = InferenceOptions(temperature=0, max_tokens=5, extra={"user": "you"})
    body = encode_json(InferenceRequest((HELLO,), options=options), CONFIG.with_settings(options=defaults))
    assert (body["model"], body["temperature"], body["seed"], body["max_completion_tokens"]) == ("default", 0, 1, 5)
    assert (body["user"], body["store"]) == ("you", True)


def test_an_extra_entry_overrides_an_option_of_the_same_name() -> None:
    """`options.extra` overrides the encoded options."""
    options = InferenceOptions(temperature=1, extra={"temperature": 0.3, "tool_choice": "none"})
    body = encode_json(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=ToolChoice.required(), options=options))
    assert (body["temperature"], body["tool_choice"]) == (0.3, "none")


@pytest.mark.parametrize("name", ["tools"])  # `InferenceOptions` refuses those that every request has
def test_an_extra_entry_must_not_repeat_an_entry_of_the_body(name: str) -> None:
    """A duplicate key is refused, since it is undefined which one a service reads."""
    options = InferenceOptions(extra={name: []})
    for request, config in (
        (InferenceRequest((HELLO,), tools=(ADD,), options=options), CONFIG),
        (InferenceRequest((HELLO,), tools=(ADD,)), CONFIG.with_settings(options=options)),
    ):
        with pytest.raises(BadRequest, match=rf"options\.extra contains {name}"):
            encode(request, config)


def test_provider_tools_can_be_added_to_a_request_without_tools() -> None:
    """`options.extra` may contain `tools` if the request has none."""
    options = InferenceOptions(extra={"tools": [{"type": "web_search"}]})
    assert encode_json(InferenceRequest((HELLO,), options=options))["tools"] == [{"type": "web_search"}]


def test_any_text_can_be_encoded() -> None:
    """Any text is encoded as strict JSON; an unpaired surrogate, which no UTF-8 can contain, becomes U+FFFD."""
    for text in ("é\x00\u2028\U0001f600", "cut \ud83d", '"\\\n'):
        (user, system, call, result) = encode_messages(
            Message.user(text), Message.system(text), Message.assistant(text, exchange(ToolCall("c", "add"), text))
        )
        assert (
            user["content"]
            == system["content"]
            == call["content"]
            == result["content"]
            == text.replace("\ud83d", "\ufffd")
        )


@given(supported_requests)
def test_no_encoded_request_contains_a_call_without_its_result(request: InferenceRequest) -> None:
    """Law 2: the calls of each turn have unique ids and are followed by exactly their results, in order."""
    before = to_json(request)
    turns = iter(encode_json(request)["messages"])
    if request.system_prompt:
        assert next(turns) == {"role": "system", "content": request.system_prompt}
    for message in request.messages:
        if message.role != "assistant":
            assert next(turns)["role"] == message.role
        elif message.exchanges or message.text:
            check_turn(message, next(turns), turns)
    assert next(turns, None) is None
    assert to_json(request) == before


def check_turn(message: Message, assistant: Mapping[str, Any], turns: Iterator[Mapping[str, Any]]) -> None:
    """Compare an assistant message with its encoding."""
    assert (assistant["role"], assistant["content"] or "") == ("assistant", message.text)
    calls = assistant.get("tool_calls", [])
    assert len({call["id"] for call in calls}) == len(calls) == len(message.exchanges)
    for call, exchange in zip(calls, message.exchanges, strict=True):
        assert call["function"]["name"] == wire_name(exchange.call.name)
        assert isinstance(json.loads(call["function"]["arguments"]), dict)
        result = next(turns)
        assert result == {"role": "tool", "tool_call_id": call["id"], "content": exchange.execution.text}


@given(st.lists(assistant_messages, min_size=1, max_size=4))
def test_repeated_ids_in_later_turns_belong_to_their_own_turn(messages: list[Message]) -> None:
    """The encoding of a turn does not depend on other turns."""
    separate = [turn for message in messages for turn in encode_messages(message)]
    assert encode_messages(*messages) == separate


@given(conversation=conversations, system_prompt=st.text(), with_tools=st.booleans(), length=st.integers(0, 6))
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply."""
    tools = (ADD,) if with_tools else ()
    shorter = encode(InferenceRequest(tuple(conversation[:length]), system_prompt, tools))
    longer = encode(InferenceRequest(tuple(conversation), system_prompt, tools))
    end = b"]}"
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    continuation = longer[len(shorter) - len(end) :]
    assert continuation.startswith((end, b",")) or shorter.endswith(b'"messages":[]}')


class CountedParts(tuple[Part, ...]):
    """Message parts that count how often they are iterated."""

    iterations: ClassVar[Counter[str]] = Counter()

    __slots__ = ()

    def __iter__(self) -> Iterator[Part]:
        self.iterations[self[0].text if isinstance(self[0], Text) else ""] += 1
        return super().__iter__()


def test_each_message_is_encoded_once_over_growing_requests() -> None:
    """Law 20: over n growing requests, each message is encoded once."""
    CountedParts.iterations.clear()
    messages = tuple([Message("user", CountedParts([Text(f"message {number}")])) for number in range(40)])
    before = Counter(CountedParts.iterations)
    encode(InferenceRequest(messages[:1]))
    once = CountedParts.iterations["message 0"] - before["message 0"]
    assert once > 0
    for length in range(1, 41):
        encode(InferenceRequest(messages[:length], "a system prompt", (ADD,)))
    assert {CountedParts.iterations[name] - before[name] for name in before} == {once}


def test_tools_and_messages_are_encoded_once_per_set_of_quirks() -> None:
    """Services with equal quirks share encodings."""
    spec, message = ToolSpec("add", "Add.", {"type": "object"}), Message.user("hello")
    request = InferenceRequest((message,), tools=(spec,))
    for config in (CONFIG, LLMConfig.parse("openai:other", api_key="k"), CONFIG.with_settings(timeout=1)):
        encode(request, config)
        assert (len(message._encodings), len(spec._encodings)) == (1, 1)
    encode(request, CONFIG.with_settings(quirks=Quirks(max_tokens_field="other")))
    assert (len(message._encodings), len(spec._encodings)) == (2, 2)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_an_execution_encodes_its_history_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over an execution, the amount of encoded JSON is about that of the last request."""
    written: list[int] = []
    bodies: list[bytes] = []
    original = format_json

    def counted(value: Any) -> bytes:
        encoded = original(value)
        written.append(len(encoded))
        return encoded

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


@given(supported_requests)
def test_requests_have_the_types_of_the_openai_package(request: InferenceRequest) -> None:
    """Requests satisfy the types that OpenAI publishes and have no unknown entries."""
    check_request("openai-chat", encode_json(request))


def test_an_invalid_request_does_not_have_the_types_of_the_openai_package() -> None:
    """The validation detects a missing entry."""
    body = encode_json(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    body["messages"][1].pop("tool_call_id")
    with pytest.raises(ValidationError):
        check_request("openai-chat", body)


def returned(provider: str, message: dict[str, Any]) -> dict[str, Any]:
    """Decode a message with a call, and return it as the next request to the provider contains it."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "tool_calls"}
    response = wire_format("openai-chat").decode_response(200, {}, json.dumps({"choices": [choice]}).encode())
    executions = [execution_of(call, value=1) for call in response.tool_calls]
    request = InferenceRequest([HELLO, Message.of_response(response.parts, executions)])
    encoded: dict[str, Any] = encode_json(request, LLMConfig.parse(f"{provider}:m", api_key="k"))["messages"][1]
    return encoded


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {"content": None, "tool_calls": [CALL]}


@pytest.mark.parametrize("provider", ["deepseek", "moonshot", "zai"])
def test_services_that_think_between_calls_get_their_reasoning_back(provider: str) -> None:
    """They refuse a call without its reasoning; a message without a call goes back without it."""
    assert returned(provider, {**CALLED, "reasoning_content": "hm"})["reasoning_content"] == "hm"
    assert returned(provider, CALLED)["reasoning_content"] == ""
    assert "reasoning_content" not in returned(provider, {"content": "so", "reasoning_content": "hm"})


def test_other_services_get_no_reasoning() -> None:
    """Most services refuse entries that they do not know."""
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}]
    sent = returned("openai", {**CALLED, "reasoning_content": "hm", "reasoning_details": details})
    assert sent.keys() == {"role", "content", "tool_calls"}


def test_a_router_gets_the_details_of_its_reasoning_back() -> None:
    """They contain the signatures of the models behind it, and are sent unchanged; there is nothing for other reasoning."""
    details = [{"type": "reasoning.text", "text": "hm", "signature": "s"}, {"type": "reasoning.encrypted", "data": "g"}]
    assert (
        returned("openrouter", {**CALLED, "reasoning": "hm", "reasoning_details": details})["reasoning_details"]
        == details
    )
    assert returned("openrouter", {**CALLED, "reasoning_details": details[1:]})["reasoning_details"] == details[1:]
    assert returned("openrouter", {**CALLED, "reasoning": "hm"}).keys() == {"role", "content", "tool_calls"}


def test_the_data_of_the_model_go_back_with_its_call() -> None:
    """Gemini refuses a call without its signature."""
    extra = {"google": {"thought_signature": "sig"}}
    sent = {**CALLED, "tool_calls": [{**CALL, "extra_content": extra}]}
    assert returned("openai", sent)["tool_calls"] == sent["tool_calls"]


# --- the requests of one execution ------------------------------------------------------------------------------------


@given(st.lists(supported_requests, max_size=4), supported_requests, st.integers(0, 5))
def test_a_request_of_an_execution_has_the_bytes_of_one_of_its_own(
    earlier: list[InferenceRequest], request: InferenceRequest, count: int
) -> None:
    """What was encoded of other requests of the execution, also of the beginning of this one, does not change a request."""
    bound = wire_format("openai-chat").for_execution()
    for each in (*earlier, evolve(request, messages=request.messages[:count]), request, request):
        assert bound.encode_request(each, CONFIG).body == encode(each)


def test_only_the_end_of_a_conversation_that_grows_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that extends the last one of its execution looks only at its new messages."""
    looked_at: list[int] = []

    def encode_each(messages: tuple[Message, ...], *others: Any) -> list[Any]:
        looked_at.append(len(messages))
        return encode_values(messages, *others)

    monkeypatch.setattr(fields, "encode_each", encode_each)
    bound, messages = wire_format("openai-chat").for_execution(), tuple([Message.user(str(i)) for i in range(9)])
    for count in (5, 7, 9):
        bound.encode_request(InferenceRequest(messages[:count]), CONFIG)
    assert looked_at == [5, 2, 2]


def test_a_replaced_message_is_encoded_although_the_last_one_is_the_same() -> None:
    """Messages that are masked between two requests of an execution are sent as they are now, also equal ones."""
    bound = wire_format("openai-chat").for_execution()
    call = ToolCall("1", "add")
    one, true = (Message.assistant(exchange(call, value)) for value in ([1], [True]))
    assert one == true
    for first in (Message.user("secret"), Message.user("masked"), one, true):
        request = InferenceRequest((first, HELLO))
        assert bound.encode_request(request, CONFIG).body == encode(request)


def test_a_message_without_an_encoding_leaves_the_execution_as_it_was() -> None:
    """After a request that cannot be encoded, the next one of the execution is complete."""
    bound = wire_format("openai-chat").for_execution()
    bound.encode_request(InferenceRequest((HELLO,)), CONFIG)
    refused = Message.user(Image(file_id="f"))
    with pytest.raises(BadRequest):
        bound.encode_request(InferenceRequest((HELLO, Message.user("x"), refused)), CONFIG)
    request = InferenceRequest((HELLO, Message.user("x")))
    assert bound.encode_request(request, CONFIG).body == encode(request)


def test_a_subclass_keeps_its_attributes_in_an_execution() -> None:
    """The format of an execution is of the class of the format, and has its attributes."""

    class Renamed(OpenAIChat):
        def __init__(self, suffix: str) -> None:
            self.suffix = suffix

        @property
        def name(self) -> str:
            return f"openai-chat-{self.suffix}"

    first = Renamed("x")
    bound, other = first.for_execution(), first.for_execution()
    assert bound.name == "openai-chat-x"
    request = InferenceRequest((HELLO,), "Be kind.")
    bodies = {each.encode_request(request, CONFIG).body for each in (first, bound, other, bound)}
    assert bodies == {encode(request)}


def test_lone_surrogates_are_replaced_in_every_part_of_a_request() -> None:
    """The prompt, the tools, the messages and the options of a request are strict JSON."""
    tool_spec = ToolSpec("add", "\ud83d", {"type": "object"})
    request = InferenceRequest(
        (Message.user("\udc80"),), "\ud800", (tool_spec,), options=InferenceOptions(stop=("\udfff",))
    )
    body = encode(request)
    assert b"\\u" not in body
    assert body.decode().count("\ufffd") == 4
