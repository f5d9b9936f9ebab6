"""Requests of the Responses API."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import BadRequest
from agentloop.inference import LLMConfig
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import (
    Audio,
    Document,
    ErrorInfo,
    Image,
    InferenceOptions,
    InferenceRequest,
    InferenceResponse,
    Message,
    ProviderPart,
    Reasoning,
    ResponseFormat,
    Text,
    ToolCall,
    ToolChoice,
    ToolExchange,
    ToolSpec,
)
from agentloop.values.tool_calls import MALFORMED
from tests.inference.generated_requests import MALFORMED_ARGUMENTS, conversations, execution_of, inference_requests
from tests.inference.openai_types import check_request
from tests.inference.wire_formats.openai_responses.generated_items import Item, outputs, response

NAME = "openai-responses"
CONFIG = LLMConfig(model="some-model", base_url="http://localhost/v1", wire_format=NAME)
ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def encoded(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> bytes:
    """Encode a request."""
    return wire_format(NAME).encode_request(request, config, stream=stream).body


def spelled(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> dict[str, Any]:
    """Encode a request, and parse the body."""
    body = json.loads(encoded(request, config, stream=stream))
    assert isinstance(body, dict)
    return body


def items_of(*messages: Message, stored: bool = False) -> list[dict[str, Any]]:
    """Return the input items of a conversation."""
    extra = {"store": True} if stored else {}
    found = spelled(InferenceRequest(messages, options=InferenceOptions(extra=extra)))["input"]
    assert isinstance(found, list)
    return found


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Join a call to its outcome."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def decoded(output: list[Item]) -> InferenceResponse:
    """Decode a response with this output."""
    return wire_format(NAME).decode_response(200, {}, json.dumps(response(output)).encode())


def answered(output: list[Item]) -> Message:
    """Decode an output, and join its calls to results."""
    found = decoded(output)
    return Message.of_response(found.parts, [execution_of(call, value="done") for call in found.tool_calls])


def test_a_request_is_the_model_the_instructions_the_tools_the_input_and_the_rest_in_this_order() -> None:
    """The order of the segments is that in which a provider caches them."""
    body = spelled(InferenceRequest((Message.user("hi"),), "Be brief.", (ADD,)), stream=True)
    assert list(body) == ["model", "instructions", "tools", "input", "store", "stream"]
    assert (body["model"], body["instructions"], body["stream"]) == ("some-model", "Be brief.", True)
    assert body["tools"] == [
        {"type": "function", "name": "add", "description": "Add.", "parameters": ADD.parameters, "strict": False}
    ]
    assert body["input"] == [{"type": "message", "role": "user", "content": "hi"}]


def test_what_is_not_asked_for_is_not_sent_and_nothing_is_kept_by_the_provider() -> None:
    """The plainest request has four entries."""
    request = InferenceRequest((Message.user("hi"),))
    assert spelled(request).keys() == {"model", "input", "store"}
    assert spelled(request)["store"] is False
    assert wire_format(NAME).encode_request(request, CONFIG).path == "/responses"


PNG = "data:image/png;base64,aGk="
MEDIA: list[tuple[Image | Document, dict[str, object]]] = [
    (Image(media_type="image/png", data=b"hi"), {"type": "input_image", "detail": "auto", "image_url": PNG}),
    (Image(url="https://a/b"), {"type": "input_image", "detail": "auto", "image_url": "https://a/b"}),
    (Image(file_id="f"), {"type": "input_image", "detail": "auto", "file_id": "f"}),
    (Document(url="https://a/b"), {"type": "input_file", "file_url": "https://a/b"}),
    (Document(file_id="f"), {"type": "input_file", "file_id": "f"}),
    (
        Document(media_type="application/pdf", data=b"hi"),
        {"type": "input_file", "filename": "document.pdf", "file_data": "data:application/pdf;base64,aGk="},
    ),
    (
        Document(media_type="text/plain; charset=utf-8", data=b"hi", name="a.txt"),
        {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain; charset=utf-8;base64,aGk="},
    ),
]


@pytest.mark.parametrize(("part", "sent"), MEDIA)
def test_a_user_and_a_tool_send_every_kind_of_content(part: Image | Document, sent: Mapping[str, object]) -> None:
    """Pictures and files go by value, by URL and by id."""
    content = [{"type": "input_text", "text": "look"}, sent]
    assert items_of(Message.user("look", part))[0]["content"] == content
    call = ToolCall("c", "look")
    execution = execution_of(call).with_value(None, [Text("look"), part])
    assert items_of(Message.assistant(ToolExchange(call, execution)))[1]["output"] == content


def test_what_cannot_be_carried_is_refused_by_name() -> None:
    """The error names the part and where it stands."""
    sound = Audio(media_type="audio/wav", data=b"")
    call = ToolCall("c", "sing")
    with pytest.raises(BadRequest, match="a message contains Audio"):
        items_of(Message.user(sound))
    with pytest.raises(BadRequest, match="the result of the tool 'sing' contains Audio"):
        items_of(Message.assistant(ToolExchange(call, execution_of(call).with_value(None, [sound]))))
    with pytest.raises(BadRequest, match="does not support Image in an assistant message"):
        items_of(Message.assistant(Image(url="https://a/b")))


def test_calls_are_followed_by_their_outputs() -> None:
    """All calls of a turn stand before all their outputs, so that each output belongs to the calls just before it."""
    first, second = ToolCall("c", "a.b", ' {"x": 1} '), ToolCall("", "add")
    failed = ErrorInfo("ToolFailed", "no")
    turn = Message.assistant("so", exchange(first, {"y": 2}), exchange(second, error=failed))
    assert items_of(turn) == [
        {"type": "message", "role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "c", "name": wire_name("a.b"), "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": '{"y":2}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "ToolFailed: no"},
    ]


@pytest.mark.parametrize("arguments", MALFORMED_ARGUMENTS)
def test_malformed_arguments_are_sent_back_as_an_object(arguments: str) -> None:
    """A service that parses the history is not given what it cannot parse."""
    call = items_of(Message.assistant(exchange(ToolCall("c", "add", arguments))))[0]
    assert json.loads(call["arguments"]) == {MALFORMED: arguments}


def test_what_other_formats_noted_is_not_sent() -> None:
    """Thoughts, opaque parts and notes of another provider are left out."""
    theirs = {"anthropic-messages": {"signature": "s"}}
    call = ToolCall("c", "add", provider_data=theirs)
    turn = Message.assistant(
        Reasoning("hm", provider_data=theirs),
        Text("so", provider_data=theirs),
        ProviderPart("anthropic-messages", {"type": "x"}),
        exchange(call, 1),
        Reasoning("hm"),
    )
    assert items_of(turn) == items_of(Message.assistant("so", exchange(ToolCall("c", "add"), 1)))


@given(outputs)
def test_an_answer_goes_back_as_it_came(output: list[Item]) -> None:
    """Ids, statuses, phases, annotations, encrypted thoughts and the provider's own items come back to it, in order."""
    sent = items_of(answered(output))
    echoed = [item for item in sent if not item["type"].endswith("_call_output")]
    while output and output[-1]["type"] == "reasoning":
        output = output[:-1]
    assert echoed == output
    assert sent[: len(echoed)] == echoed
    called = [item["call_id"] for item in output if "call_id" in item]
    assert [item["call_id"] for item in sent[len(echoed) :]] == called


@given(outputs)
def test_what_this_format_notes_reaches_no_other(output: list[Item]) -> None:
    """The same answer without ids, encrypted thoughts and opaque items is the same to another provider."""
    turn = answered(output)
    plain = Message.assistant(*[neutral(part) for part in turn.parts if isinstance(part, Text | ToolExchange)])
    chat = LLMConfig(model="m", base_url="http://localhost/v1", wire_format="openai-chat")
    bodies = [wire_format("openai-chat").encode_request(InferenceRequest((made,)), chat).body for made in (turn, plain)]
    assert bodies[0] == bodies[1]


def neutral(part: Text | ToolExchange) -> Text | ToolExchange:
    """Return a part without what a provider noted."""
    if isinstance(part, Text):
        return Text(part.text)
    return evolve(part, call=evolve(part.call, provider_data={}))


def test_an_answer_without_an_id_of_its_own_goes_back_as_text() -> None:
    """Not every service gives ids; an item without one has a simpler form."""
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    assert items_of(answered([item])) == [{"type": "message", "role": "assistant", "content": "so"}]


def test_changed_text_is_sent_as_it_is_now() -> None:
    """An interceptor may replace what the model said; the model then sees that."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    found = decoded([item]).with_text("b")
    assert items_of(Message.assistant(*found.parts)) == [{"type": "message", "role": "assistant", "content": "b"}]  # type: ignore[arg-type]


BARE = {"type": "reasoning", "id": "rs_1", "summary": []}
SAID = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "a", "annotations": []}],
}


def test_thoughts_that_only_an_id_stands_for_go_to_a_provider_that_kept_them_only() -> None:
    """A provider that stored nothing refuses an id that it does not know."""
    turn = answered([BARE, SAID])
    assert items_of(turn) == [SAID]
    assert items_of(turn, stored=True) == [BARE, SAID]


def test_thoughts_that_nothing_follows_are_not_sent() -> None:
    """A provider refuses thoughts without what they led to: an answer that was cut off, or a call that nobody answered."""
    thought = {**BARE, "encrypted_content": "x"}
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed", "action": {}}
    assert items_of(answered([thought])) == []
    assert items_of(answered([SAID, thought, shell])) == [SAID]
    assert items_of(answered([thought, thought, SAID])) == [thought, thought, SAID]


def test_a_call_that_the_provider_answered_itself_goes_back_with_its_answer() -> None:
    """A hosted shell runs at the provider, which tells the call and its output."""
    call = {"type": "shell_call", "id": "sh_1", "call_id": "c", "status": "completed", "action": {"commands": ["ls"]}}
    output = {"type": "shell_call_output", "id": "sho_1", "call_id": "c", "output": []}
    assert items_of(answered([call, output])) == [call, output]
    assert items_of(answered([call])) == []


def test_a_call_with_free_text_is_answered_in_kind() -> None:
    """A custom tool is given text that is no JSON, and gets its output by the type of its own."""
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "sql", "input": "SELECT 1"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    assert items_of(answered([call])) == [call, output]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        (ToolChoice.auto(), {}),
        (ToolChoice.required(), {"tool_choice": "required"}),
        (ToolChoice.none(), {"tool_choice": "none"}),
        (ToolChoice.specific("a.b"), {"tool_choice": {"type": "function", "name": wire_name("a.b")}}),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, sent: dict[str, object]) -> None:
    """Without tools there is nothing to choose."""
    request = InferenceRequest((Message.user("hi"),), tools=(ADD,), tool_choice=choice, parallel_tool_calls=False)
    body = spelled(request)
    assert {name: body[name] for name in body if name == "tool_choice"} == sent
    assert body["parallel_tool_calls"] is False
    assert spelled(request.with_tools()).keys() == {"model", "input", "store"}


def test_the_response_format_is_sent() -> None:
    """A schema goes with its name, under `text`."""
    request = InferenceRequest((Message.user("hi"),))
    plain = spelled(request.with_response_format(ResponseFormat()))
    assert plain["text"] == {"format": {"type": "json_object"}}
    wanted = ResponseFormat({"type": "object"}, "my answer", strict=False)
    described = {"type": "json_schema", "name": wire_name("my answer"), "schema": {"type": "object"}, "strict": False}
    extra = InferenceOptions(extra={"text": {"verbosity": "low"}})
    assert spelled(request.with_response_format(wanted).with_options(extra))["text"] == {
        "format": described,
        "verbosity": "low",
    }


def test_options_are_spelled_as_the_api_wants_them() -> None:
    """Thinking and what is shown of it stand together, and encrypted thoughts are asked for with them."""
    options = InferenceOptions(
        temperature=0.5, top_p=0.9, max_tokens=7, reasoning_effort="low", extra={"reasoning": {"summary": "auto"}}
    )
    body = spelled(InferenceRequest((Message.user("hi"),), options=options))
    for name in ("model", "input", "store"):
        del body[name]
    assert body == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 7,
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
    }


@pytest.mark.parametrize(
    ("options", "included"),
    [
        (InferenceOptions(), None),
        (InferenceOptions(reasoning_effort="none"), None),
        (InferenceOptions(reasoning_effort="high", extra={"store": True}), None),
        (InferenceOptions(extra={"include": ["web_search_call.results"]}), ["web_search_call.results"]),
        (
            InferenceOptions(reasoning_effort="high", extra={"include": ["web_search_call.results"]}),
            ["reasoning.encrypted_content", "web_search_call.results"],
        ),
    ],
)
def test_encrypted_thoughts_are_asked_for_where_thoughts_are(options: InferenceOptions, included: object) -> None:
    """Models that do not reason refuse the question; a provider that stores needs not be asked."""
    assert spelled(InferenceRequest((Message.user("hi"),), options=options)).get("include") == included


def test_tools_of_the_provider_stand_after_ours() -> None:
    """Built-in tools are put in by `extra`, beside functions."""
    search = {"type": "web_search"}
    config = CONFIG.with_settings(options=InferenceOptions(extra={"tools": [search]}))
    assert spelled(InferenceRequest((Message.user("hi"),), tools=(ADD,)), config)["tools"][1:] == [search]
    assert spelled(InferenceRequest((Message.user("hi"),)), config)["tools"] == [search]


def test_options_of_a_request_go_before_those_of_the_configuration() -> None:
    """What a request sets wins, and what it leaves open stays."""
    config = CONFIG.with_settings(options=InferenceOptions(model="a", temperature=1, max_tokens=5, extra={"user": "x"}))
    options = InferenceOptions(model="b", temperature=0, extra={"user": "y"})
    body = spelled(InferenceRequest((Message.user("hi"),), options=options), config)
    assert (body["model"], body["temperature"], body["max_output_tokens"], body["user"]) == ("b", 0, 5, "y")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (InferenceOptions(stop=("END",)), "'stop'"),
        (InferenceOptions(seed=0), "'seed'"),
        (InferenceOptions(extra={"input": []}), "input"),
        (InferenceOptions(extra={"model": "m"}), "model"),
        (InferenceOptions(extra={"instructions": "i"}), "instructions"),
        (InferenceOptions(extra={"stream": True}), "stream"),
        (InferenceOptions(extra={"tools": {"type": "web_search"}}), "tools"),
        (InferenceOptions(extra={"include": "all"}), "include"),
    ],
)
def test_an_option_that_has_no_place_is_refused_by_name(options: InferenceOptions, told: str) -> None:
    """The API has neither stop nor seed, and nothing stands twice in a body."""
    request = InferenceRequest((Message.user("hi"),), "a system prompt", options=options)
    with pytest.raises(BadRequest, match=told):
        spelled(request)


def without_options_it_lacks(request: InferenceRequest) -> InferenceRequest:
    """Leave out what the API does not have."""
    return request.with_options(evolve(request.options, stop=(), seed=None))


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    """Requests whose history holds answers of this API and of others."""
    request = without_options_it_lacks(draw(inference_requests))
    turns = [answered(output) for output in draw(st.lists(outputs, max_size=2))]
    messages = draw(st.permutations([*request.messages, *turns]))
    return request.with_messages(*[message for message in messages if not holds_audio(message)])


def holds_audio(message: Message) -> bool:
    """Say whether a message holds what the API cannot carry."""
    return any(isinstance(part, Audio) for part in message.parts)


@given(requests(), st.booleans())
def test_a_request_is_what_the_providers_own_package_says_a_request_is(
    request: InferenceRequest,
    stream: bool,  # noqa: FBT001  # a value
) -> None:
    """Requests satisfy the types that OpenAI publishes for them, without an entry that these do not know."""
    check_request(NAME, spelled(request, stream=stream))


def test_a_request_that_openai_would_refuse_does_not_satisfy_its_types() -> None:
    """The judge of the test above can say no."""
    body = spelled(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    body["input"][0].pop("call_id")
    with pytest.raises(pydantic.ValidationError):
        check_request(NAME, body)


@given(requests())
def test_no_encoded_request_holds_a_call_without_its_output(request: InferenceRequest) -> None:
    """Law 2: after the calls of a turn come their outputs, one each in order, before anything else."""
    check_pairing(spelled(request)["input"])


def check_pairing(items: list[dict[str, Any]]) -> None:
    """Check that each run of calls is followed by its outputs, whatever ids earlier turns had."""
    turns: Iterator[dict[str, Any]] = iter([*items, {"type": "end"}])
    open_calls: list[str] = []
    for item in turns:
        if item["type"] in {"function_call", "custom_tool_call"}:
            assert item["call_id"] not in open_calls
            open_calls.append(item["call_id"])
        elif item["type"] in {"function_call_output", "custom_tool_call_output"}:
            assert item["call_id"] == open_calls.pop(0)
        elif item.get("role") != "assistant" and item["type"] in {"message", "end"}:
            assert not open_calls
    assert not open_calls


@given(conversation=conversations, system_prompt=st.text(), with_tools=st.booleans(), length=st.integers(0, 6))
def test_the_segments_of_a_longer_request_extend_those_of_the_shorter(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: to go on with a conversation leaves the bytes before as they were, so that prompt caches serve them."""
    messages = [message for message in conversation if not holds_audio(message)]
    tools = (ADD,) if with_tools else ()
    end = b'],"store":false}'
    shorter = encoded(InferenceRequest(tuple(messages[:length]), system_prompt, tools))
    longer = encoded(InferenceRequest(tuple(messages), system_prompt, tools))
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    going_on = longer[len(shorter) - len(end) :]
    assert going_on.startswith((end, b",")) or shorter.endswith(b'"input":[' + end)


def test_messages_and_tools_are_encoded_once() -> None:
    """Law 20: another configuration of the same format shares what was encoded."""
    message = Message.user("hello")
    request = InferenceRequest((message,), tools=(ADD,))
    for config in (CONFIG, CONFIG.with_settings(timeout=1)):
        encoded(request, config)
        assert (len(message._encodings), len(ADD._encodings)) == (1, 1)


def test_tools_that_go_by_another_name_are_listed() -> None:
    """The names that a provider refuses can be told back."""
    request = InferenceRequest((Message.user("hi"),), tools=(ADD, ToolSpec("a.b", "", {"type": "object"})))
    assert wire_format(NAME).encode_request(request, CONFIG).tool_names == {wire_name("a.b"): "a.b"}
