"""Tests of the encoding of requests for the Responses API."""

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
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.fields import wire_name
from agentloop.models.wire_formats.wire_format import wire_format
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
from tests.models.generated_requests import (
    MALFORMED_ARGUMENTS,
    conversations,
    execution_of,
    inference_requests,
    without_unsupported,
)
from tests.models.openai_types import check_request
from tests.models.wire_formats.openai_responses.generated_items import Item, outputs, response

NAME = "openai-responses"
CONFIG = LLMConfig(model="some-model", base_url="http://localhost/v1", wire_format=NAME)
ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})


def encode(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> bytes:
    """Return the body of a request."""
    return wire_format(NAME).encode_request(request, config, stream=stream).body


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> dict[str, Any]:
    """Return the parsed body of a request."""
    body = json.loads(encode(request, config, stream=stream))
    assert isinstance(body, dict)
    return body


def encode_items(*messages: Message, is_stored: bool = False) -> list[dict[str, Any]]:
    """Return the input items of a conversation."""
    extra = {"store": True} if is_stored else {}
    items = encode_json(InferenceRequest(messages, options=InferenceOptions(extra=extra)))["input"]
    assert isinstance(items, list)
    return items


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def decode(output: list[Item]) -> InferenceResponse:
    """Decode a response with this output."""
    return wire_format(NAME).decode_response(200, {}, json.dumps(response(output)).encode())


def with_results(output: list[Item]) -> Message:
    """Return the message of a decoded output, with results for its calls."""
    response = decode(output)
    return Message.of_response(response.parts, [execution_of(call, value="done") for call in response.tool_calls])


def test_a_body_contains_model_instructions_tools_input_and_options_in_this_order() -> None:
    """The stable parts come first, as prompt caches require."""
    body = encode_json(InferenceRequest((Message.user("hi"),), "Be brief.", (ADD,)), stream=True)
    assert list(body) == ["model", "instructions", "tools", "input", "store", "stream"]
    assert (body["model"], body["instructions"], body["stream"]) == ("some-model", "Be brief.", True)
    assert body["tools"] == [
        {"type": "function", "name": "add", "description": "Add.", "parameters": ADD.parameters, "strict": False}
    ]
    assert body["input"] == [{"type": "message", "role": "user", "content": "hi"}]


def test_unset_options_are_not_sent_and_the_provider_stores_nothing() -> None:
    """The minimal body has three entries, one of which is `store: false`."""
    request = InferenceRequest((Message.user("hi"),))
    assert encode_json(request).keys() == {"model", "input", "store"}
    assert encode_json(request)["store"] is False
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
def test_messages_and_results_can_contain_every_kind_of_content(
    part: Image | Document, sent: Mapping[str, object]
) -> None:
    """Images and files are sent by value, by URL and by id."""
    content = [{"type": "input_text", "text": "look"}, sent]
    assert encode_items(Message.user("look", part))[0]["content"] == content
    call = ToolCall("c", "look")
    execution = execution_of(call).with_value(None, [Text("look"), part])
    assert encode_items(Message.assistant(ToolExchange(call, execution)))[1]["output"] == content


def test_unsupported_content_is_refused_by_name() -> None:
    """The error names the part and what contains it; a result of a tool has a note for the model instead."""
    audio = Audio(media_type="audio/wav", data=b"")
    call = ToolCall("c", "sing")
    with pytest.raises(BadRequest, match="a message contains Audio"):
        encode_items(Message.user(audio))
    items = encode_items(Message.assistant(ToolExchange(call, execution_of(call).with_value(None, [audio]))))
    assert items[1]["output"] == "[audio/wav: this API cannot transmit it]"
    with pytest.raises(BadRequest, match="does not support Image in an assistant message"):
        encode_items(Message.assistant(Image(url="https://a/b")))


def test_calls_are_followed_by_their_outputs() -> None:
    """All calls of a turn precede all of their outputs."""
    first, second = ToolCall("c", "a.b", ' {"x": 1} '), ToolCall("", "add")
    failed = ErrorInfo("ToolFailed", "no")
    turn = Message.assistant("so", exchange(first, {"y": 2}), exchange(second, error=failed))
    assert encode_items(turn) == [
        {"type": "message", "role": "assistant", "content": "so"},
        {"type": "function_call", "call_id": "c", "name": wire_name("a.b"), "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": '{"y":2}'},
        {"type": "function_call_output", "call_id": "call_1", "output": "ToolFailed: no"},
    ]


def test_ids_are_not_longer_than_the_provider_accepts() -> None:
    """Those of another service may be; a call and its output keep the same one."""
    ids = ["x" * 64, "y" * 65, "y" * 66]
    call_x, call_y, call_z, *outputs = encode_items(Message.assistant(*[exchange(ToolCall(id_, "add")) for id_ in ids]))
    sent = [call["call_id"] for call in (call_x, call_y, call_z)]
    assert sent == [output["call_id"] for output in outputs]
    assert (sent[0], [len(id_) for id_ in sent], len({*sent})) == (ids[0], [64, 64, 64], 3)


@pytest.mark.parametrize("arguments", MALFORMED_ARGUMENTS)
def test_malformed_arguments_are_sent_back_as_an_object(arguments: str) -> None:
    """A malformed call does not make the provider refuse the conversation."""
    call = encode_items(Message.assistant(exchange(ToolCall("c", "add", arguments))))[0]
    assert json.loads(call["arguments"]) == {MALFORMED: arguments}


def test_data_of_other_providers_is_not_sent() -> None:
    """Reasoning, opaque parts and provider data of other providers are dropped."""
    foreign_data = {"anthropic-messages": {"signature": "s"}}
    call = ToolCall("c", "add", provider_data=foreign_data)
    turn = Message.assistant(
        Reasoning("hm", provider_data=foreign_data),
        Text("so", provider_data=foreign_data),
        ProviderPart("anthropic-messages", {"type": "x"}),
        exchange(call, 1),
        Reasoning("hm"),
    )
    assert encode_items(turn) == encode_items(Message.assistant("so", exchange(ToolCall("c", "add"), 1)))


@given(outputs)
def test_a_response_is_sent_back_unchanged(output: list[Item]) -> None:
    """Ids, statuses, phases, annotations, encrypted reasoning and built-in items are encoded in order."""
    sent = encode_items(with_results(output))
    echoed = [item for item in sent if not item["type"].endswith("_call_output")]
    while output and output[-1]["type"] == "reasoning":
        output = output[:-1]
    assert echoed == output
    assert sent[: len(echoed)] == echoed
    call_ids = [item["call_id"] for item in output if "call_id" in item]
    assert [item["call_id"] for item in sent[len(echoed) :]] == call_ids


@given(outputs)
def test_provider_data_is_not_sent_to_other_providers(output: list[Item]) -> None:
    """Another wire format encodes the response as if it had no ids, encrypted reasoning and opaque items."""
    turn = with_results(output)
    plain = Message.assistant(*[neutral(part) for part in turn.parts if isinstance(part, Text | ToolExchange)])
    chat = LLMConfig(model="m", base_url="http://localhost/v1", wire_format="openai-chat")
    bodies = [
        wire_format("openai-chat").encode_request(InferenceRequest((message,)), chat).body for message in (turn, plain)
    ]
    assert bodies[0] == bodies[1]


def neutral(part: Text | ToolExchange) -> Text | ToolExchange:
    """Return a part without provider data."""
    if isinstance(part, Text):
        return Text(part.text)
    return evolve(part, call=evolve(part.call, provider_data={}))


def test_a_message_without_an_id_is_sent_back_as_text() -> None:
    """Not every service sends ids; an item without one has a simpler form."""
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "so"}]}
    assert encode_items(with_results([item])) == [{"type": "message", "role": "assistant", "content": "so"}]


def test_replaced_text_is_sent() -> None:
    """An interceptor may replace the text of a response."""
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]}
    replaced = decode([item]).with_text("b")
    message = Message.of_response(replaced.parts, [])
    assert encode_items(message) == [{"type": "message", "role": "assistant", "content": "b"}]


BARE_REASONING = {"type": "reasoning", "id": "rs_1", "summary": []}
MESSAGE = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "a", "annotations": []}],
}


def test_reasoning_with_an_id_only_is_sent_if_the_provider_stored_it() -> None:
    """Without stored responses, the provider refuses an unknown id."""
    turn = with_results([BARE_REASONING, MESSAGE])
    assert encode_items(turn) == [MESSAGE]
    assert encode_items(turn, is_stored=True) == [BARE_REASONING, MESSAGE]


def test_trailing_reasoning_is_not_sent() -> None:
    """The provider refuses reasoning without the item that it led to."""
    reasoning = {**BARE_REASONING, "encrypted_content": "x"}
    shell = {"type": "local_shell_call", "id": "lsh_1", "call_id": "c", "status": "completed", "action": {}}
    assert encode_items(with_results([reasoning])) == []
    assert encode_items(with_results([MESSAGE, reasoning, shell])) == [MESSAGE]
    assert encode_items(with_results([reasoning, reasoning, MESSAGE])) == [reasoning, reasoning, MESSAGE]


def test_a_call_that_the_provider_answered_is_sent_back_with_its_output() -> None:
    """The response contains both the call and the output of a hosted shell."""
    call = {"type": "shell_call", "id": "sh_1", "call_id": "c", "status": "completed", "action": {"commands": ["ls"]}}
    output = {"type": "shell_call_output", "id": "sho_1", "call_id": "c", "output": []}
    assert encode_items(with_results([call, output])) == [call, output]
    assert encode_items(with_results([call])) == []


def test_a_custom_call_gets_a_custom_output() -> None:
    """The input of a custom tool is text that need not be JSON."""
    call = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c", "name": "sql", "input": "SELECT 1"}
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    assert encode_items(with_results([call])) == [call, output]


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
    body = encode_json(request)
    assert {name: body[name] for name in body if name == "tool_choice"} == sent
    assert body["parallel_tool_calls"] is False
    assert encode_json(request.with_tools(())).keys() == {"model", "input", "store"}


def test_the_response_format_is_sent() -> None:
    """A schema is sent with its name, in the entry `text`."""
    request = InferenceRequest((Message.user("hi"),))
    body = encode_json(request.with_response_format(ResponseFormat()))
    assert body["text"] == {"format": {"type": "json_object"}}
    response_format = ResponseFormat({"type": "object"}, "my answer", strict=False)
    schema = {"type": "json_schema", "name": wire_name("my answer"), "schema": {"type": "object"}, "strict": False}
    extra = InferenceOptions(extra={"text": {"verbosity": "low"}})
    assert encode_json(request.with_response_format(response_format).with_options(extra))["text"] == {
        "format": schema,
        "verbosity": "low",
    }


def test_options_are_sent_under_the_names_of_the_api() -> None:
    """The reasoning options are merged, and encrypted reasoning is requested with them."""
    options = InferenceOptions(
        temperature=0.5, top_p=0.9, max_tokens=7, reasoning_effort="low", extra={"reasoning": {"summary": "auto"}}
    )
    body = encode_json(InferenceRequest((Message.user("hi"),), options=options))
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
def test_encrypted_reasoning_is_requested_with_reasoning_only(options: InferenceOptions, included: object) -> None:
    """Models without reasoning refuse the request, and a provider that stores responses does not need it."""
    assert encode_json(InferenceRequest((Message.user("hi"),), options=options)).get("include") == included


def test_provider_tools_follow_ours() -> None:
    """`options.extra` may contain built-in tools."""
    search = {"type": "web_search"}
    config = CONFIG.with_settings(options=InferenceOptions(extra={"tools": [search]}))
    assert encode_json(InferenceRequest((Message.user("hi"),), tools=(ADD,)), config)["tools"][1:] == [search]
    assert encode_json(InferenceRequest((Message.user("hi"),)), config)["tools"] == [search]


def test_options_of_a_request_override_those_of_the_configuration() -> None:
    """The options of the configuration are defaults."""
    config = CONFIG.with_settings(options=InferenceOptions(model="a", temperature=1, max_tokens=5, extra={"user": "x"}))
    options = InferenceOptions(model="b", temperature=0, extra={"user": "y"})
    body = encode_json(InferenceRequest((Message.user("hi"),), options=options), config)
    assert (body["model"], body["temperature"], body["max_output_tokens"], body["user"]) == ("b", 0, 5, "y")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (InferenceOptions(stop=("END",)), "the option stop"),
        (InferenceOptions(seed=0), "the option seed"),
        (InferenceOptions(extra={"input": []}), "input"),
        (InferenceOptions(extra={"instructions": "i"}), "instructions"),
        (InferenceOptions(extra={"tools": {"type": "web_search"}}), "tools"),
        (InferenceOptions(extra={"include": "all"}), "include"),
    ],
)
def test_an_unsupported_option_is_refused_by_name(options: InferenceOptions, message: str) -> None:
    """The API has neither stop nor seed, and `options.extra` must not repeat entries of the body."""
    request = InferenceRequest((Message.user("hi"),), "a system prompt", options=options)
    with pytest.raises(BadRequest, match=message):
        encode_json(request)


@st.composite
def requests(draw: st.DrawFn) -> InferenceRequest:
    """Generate requests whose history contains responses of this API and of others."""
    request = draw(inference_requests)
    turns = [with_results(output) for output in draw(st.lists(outputs, max_size=2))]
    messages = draw(st.permutations([*request.messages, *turns]))
    request = request.with_messages([message for message in messages if not contains_audio(message)])
    return without_unsupported(request, wire_format(NAME), CONFIG)


def contains_audio(message: Message) -> bool:
    """Return whether a message contains audio, which the API does not support."""
    return any(isinstance(part, Audio) for part in message.parts)


@given(requests(), st.booleans())
def test_requests_have_the_types_of_the_openai_package(
    request: InferenceRequest,
    stream: bool,  # noqa: FBT001  # a generated value
) -> None:
    """Requests satisfy the types that OpenAI publishes and have no unknown entries."""
    check_request(NAME, encode_json(request, stream=stream))


def test_an_invalid_request_does_not_have_the_types_of_the_openai_package() -> None:
    """The validation detects a missing entry."""
    body = encode_json(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    body["input"][0].pop("call_id")
    with pytest.raises(pydantic.ValidationError):
        check_request(NAME, body)


@given(requests())
def test_no_encoded_request_contains_a_call_without_its_output(request: InferenceRequest) -> None:
    """Law 2: the calls of a turn are followed by exactly their outputs, in order."""
    check_pairing(encode_json(request)["input"])


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
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply."""
    messages = [message for message in conversation if not contains_audio(message)]
    tools = (ADD,) if with_tools else ()
    end = b'],"store":false}'
    shorter = encode(InferenceRequest(tuple(messages[:length]), system_prompt, tools))
    longer = encode(InferenceRequest(tuple(messages), system_prompt, tools))
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    continuation = longer[len(shorter) - len(end) :]
    assert continuation.startswith((end, b",")) or shorter.endswith(b'"input":[' + end)


def test_messages_and_tools_are_encoded_once() -> None:
    """Law 20: configurations of the same format share encodings."""
    message = Message.user("hello")
    request = InferenceRequest((message,), tools=(ADD,))
    for config in (CONFIG, CONFIG.with_settings(timeout=1)):
        encode(request, config)
        assert (len(message._encodings), len(ADD._encodings)) == (1, 1)


def test_the_encoded_request_lists_renamed_tools() -> None:
    """`tool_names` maps wire names to the original names."""
    request = InferenceRequest((Message.user("hi"),), tools=(ADD, ToolSpec("a.b", "", {"type": "object"})))
    assert wire_format(NAME).encode_request(request, CONFIG).tool_names == {wire_name("a.b"): "a.b"}
