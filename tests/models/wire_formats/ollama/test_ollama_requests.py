"""Tests of the encoding of requests for Ollama's native chat API."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import BadRequest, ConfigurationError
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import EncodedRequest, wire_format
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
from tests.models.generated_requests import (
    assistant_messages,
    execution_of,
    inference_requests,
    system_messages,
    without_unsupported,
)

CONFIG = LLMConfig(model="m", base_url="http://localhost:11434", wire_format="ollama")
HELLO = Message.user("hello")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
IMAGE = Image(media_type="image/png", data=b"png")
PNG = "cG5n"
THINKING_DATA = {"ollama": {"thinking": True}}


def encode(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> EncodedRequest:
    """Encode a request."""
    return wire_format("ollama").encode_request(request, config, stream=stream)


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Return the parsed body of a request."""
    body: dict[str, Any] = json.loads(encode(request, config).body)
    return body


def encode_messages(*messages: Message) -> list[dict[str, Any]]:
    """Return the encoded messages of a conversation."""
    encoded: list[dict[str, Any]] = encode_json(InferenceRequest(messages))["messages"]
    return encoded


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def test_a_body_contains_model_tools_messages_and_options_in_this_order() -> None:
    """The body is compact JSON, whose stable parts come first; it always contains `stream`."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), options=InferenceOptions(seed=7))
    for stream, word in ((False, b"false"), (True, b"true")):
        encoded = encode(request, stream=stream)
        assert (encoded.path, dict(encoded.headers), dict(encoded.tool_names)) == ("/api/chat", {}, {})
        assert encoded.body == (
            b'{"model":"m"'
            b',"tools":[{"type":"function","function":{"name":"add","description":"Add numbers.",'
            b'"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}]'
            b',"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hello"}]'
            b',"stream":' + word + b',"options":{"seed":7}}'
        )


def test_unset_options_are_not_sent() -> None:
    """The model's defaults apply, except for streaming, which Ollama enables by default."""
    assert encode(InferenceRequest((HELLO,))).body == (
        b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":false}'
    )


def test_calls_are_followed_by_their_results() -> None:
    """Arguments are sent as objects; each result names its tool, and the call if it has an id."""
    message = Message.assistant(
        "so",
        exchange(ToolCall("c", "add", '{"a": 1}'), {"sum": 1}),
        exchange(ToolCall("", "math.factorial", "broken"), error=ErrorInfo("ToolFailed", "no")),
    )
    assert encode_messages(message) == [
        {
            "role": "assistant",
            "content": "so",
            "tool_calls": [
                {"id": "c", "function": {"name": "add", "arguments": {"a": 1}}},
                {"function": {"name": "math.factorial", "arguments": {"malformed_arguments": "broken"}}},
            ],
        },
        {"role": "tool", "content": '{"sum":1}', "tool_name": "add", "tool_call_id": "c"},
        {"role": "tool", "content": "ToolFailed: no", "tool_name": "math.factorial"},
    ]


def test_images_are_sent_by_value() -> None:
    """Images of users, models and tools are sent in an entry next to the text."""
    call = ToolCall("", "draw")
    execution = execution_of(call).with_value(1, [Text("drawn"), IMAGE])
    assert encode_messages(Message.user("a", IMAGE, "b"), Message.assistant(IMAGE, ToolExchange(call, execution))) == [
        {"role": "user", "content": "ab", "images": [PNG]},
        {
            "role": "assistant",
            "content": "",
            "images": [PNG],
            "tool_calls": [{"function": {"name": "draw", "arguments": {}}}],
        },
        {"role": "tool", "content": "drawn", "tool_name": "draw", "images": [PNG]},
    ]


@pytest.mark.parametrize(
    ("part", "error"),
    [
        (Image(url="https://example.com/a.png"), "Image by URL"),
        (Image(file_id="f"), "Image by file id"),
        (Audio(media_type="audio/wav", data=b"x"), "Audio by value"),
        (Document(media_type="application/pdf", data=b"x"), "Document by value"),
    ],
)
def test_unsupported_content_is_refused_by_name(part: Image | Audio | Document, error: str) -> None:
    """Content without an encoding is an error in a message, and a note for the model in a result."""
    call = ToolCall("", "draw")
    result = ToolExchange(call, execution_of(call).with_value(1, [part]))
    for message in (Message.user(part), Message.assistant(part)):
        with pytest.raises(BadRequest, match=error):
            encode(InferenceRequest((message,)))
    sent = json.loads(encode(InferenceRequest((Message.assistant(result),))).body)["messages"][-1]
    assert sent["content"].endswith(": this API cannot transmit it]")
    assert "images" not in sent


def test_reasoning_of_ollama_is_sent_back_and_other_reasoning_is_not() -> None:
    """Reasoning and parts of other providers are dropped, and so are empty messages."""
    with_thinking = Message.assistant(
        Reasoning("h", provider_data=THINKING_DATA), Reasoning("m", provider_data=THINKING_DATA), "so"
    )
    foreign = Message.assistant(Reasoning("hm"), ProviderPart("gemini", {}), "so")
    assert encode_messages(with_thinking, foreign, Message.assistant(Reasoning("hm")), Message.assistant("")) == [
        {"role": "assistant", "content": "so", "thinking": "hm"},
        {"role": "assistant", "content": "so"},
    ]


def test_an_unsupported_tool_choice_is_refused() -> None:
    """Ollama cannot force a call; for the choice `none`, no tools are sent."""
    for choice in (ToolChoice.required(), ToolChoice.specific("add")):
        with pytest.raises(BadRequest, match="tool_choice="):
            encode(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice))
        assert "tools" not in encode_json(InferenceRequest((HELLO,), tool_choice=choice))
    assert "tools" not in encode_json(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=ToolChoice.none()))


@pytest.mark.parametrize(
    ("response_format", "sent"), [(ResponseFormat(), "json"), (ResponseFormat({"type": "object"}), {"type": "object"})]
)
def test_the_response_format_is_sent(response_format: ResponseFormat, sent: object) -> None:
    """A response format is any JSON, or a schema."""
    assert encode_json(InferenceRequest((HELLO,), response_format=response_format))["format"] == sent


@pytest.mark.parametrize(("effort", "sent"), [("none", False), ("minimal", "low"), ("high", "high"), ("max", "max")])
def test_a_reasoning_effort_is_a_level_of_thinking(effort: Any, sent: object) -> None:
    """The effort `none` disables thinking; unknown levels are mapped to the closest one."""
    assert encode_json(InferenceRequest((HELLO,), options=InferenceOptions(reasoning_effort=effort)))["think"] == sent


def test_options_of_a_request_override_those_of_the_configuration() -> None:
    """Options are merged individually, also with those in `options.extra`."""
    config = CONFIG.with_settings(
        options=InferenceOptions(
            temperature=0.5, max_tokens=5, stop="END", extra={"keep_alive": "5m", "options": {"num_ctx": 4096}}
        )
    )
    options = InferenceOptions(temperature=0.0, top_p=0.9, extra={"options": {"num_predict": -1}})
    body = encode_json(InferenceRequest((HELLO,), options=options), config)
    assert body["options"] == {"temperature": 0.0, "num_predict": -1, "stop": ["END"], "num_ctx": 4096, "top_p": 0.9}
    assert body["keep_alive"] == "5m"
    assert encode_json(InferenceRequest((HELLO,), options=InferenceOptions(model="other")), config)["model"] == "other"


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream"])
def test_an_extra_entry_must_not_repeat_an_entry_of_the_body(name: str) -> None:
    """Duplicate keys are refused."""
    with pytest.raises((BadRequest, ConfigurationError), match=f"options.extra contains {name}"):
        encode(InferenceRequest((HELLO,), tools=(ADD,), options=InferenceOptions(extra={name: []})))


user_messages = st.lists(st.text() | st.builds(Image, media_type=st.just("image/png"), data=st.binary()), max_size=3)
conversations = st.lists(
    user_messages.map(lambda parts: Message.user(*parts))
    | system_messages
    | assistant_messages
    | assistant_messages.map(
        lambda message: message.with_parts([Reasoning("hm", provider_data=THINKING_DATA), *message.parts]),
    ),
    max_size=6,
)
requests = st.builds(
    lambda request, messages: without_unsupported(
        evolve(request, messages=messages, options=evolve(request.options, extra={"keep_alive": "5m"})),
        wire_format("ollama"),
        CONFIG,
    ),
    inference_requests,
    conversations,
)


@given(requests)
def test_no_encoded_request_contains_a_call_without_its_result(request: InferenceRequest) -> None:
    """Law 2: the calls of each turn are followed by exactly their results, in order."""
    before = to_json(request)
    sent = encode_json(request)["messages"]
    check_pairs(sent)
    calls = [call["function"]["name"] for message in sent for call in message.get("tool_calls", [])]
    assert calls == [exchange.call.name for message in request.messages for exchange in message.exchanges]
    assert to_json(request) == before


def check_pairs(messages: list[Mapping[str, Any]]) -> None:
    """Check that calls and results are paired."""
    open_calls: list[tuple[str, str | None]] = []
    for message in messages:
        if message["role"] == "tool":
            assert (message["tool_name"], message.get("tool_call_id")) == open_calls.pop(0)
        else:
            assert not open_calls
            open_calls = [(call["function"]["name"], call.get("id")) for call in message.get("tool_calls", [])]
    assert not open_calls


@given(conversation=conversations, system_prompt=st.text(), with_tools=st.booleans(), length=st.integers(0, 6))
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply."""
    tools = (ADD,) if with_tools else ()
    shorter = encode(InferenceRequest(tuple(conversation[:length]), system_prompt, tools)).body
    longer = encode(InferenceRequest(tuple(conversation), system_prompt, tools)).body
    end = b'],"stream":false}'
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    continuation = longer[len(shorter) - len(end) :]
    assert continuation.startswith((end, b",")) or shorter.endswith(b'"messages":[' + end)
    assert all(len(message._encodings) <= 1 for message in conversation)


@given(requests)
def test_requests_have_the_types_of_the_ollama_package(request: InferenceRequest) -> None:
    """Requests satisfy the types of Ollama's package and have no unknown entries."""
    check_request(encode_json(request))


def check_request(body: dict[str, Any]) -> None:
    """Validate a request and its messages against the types of Ollama's package."""
    types = pytest.importorskip("ollama._types", reason="ollama is not installed")
    assert body.keys() <= types.ChatRequest.model_fields.keys()
    assert body.get("options", {}).keys() <= types.Options.model_fields.keys()
    assert body.get("think") in {None, False, "low", "medium", "high", "max"}
    types.ChatRequest.model_validate(body)
    types.Options.model_validate(body.get("options", {}))
    for message in body["messages"]:
        assert message.keys() <= {
            *types.Message.model_fields,
            "tool_call_id",
        }  # only the types of the server contain the id
        images = [types.Image(value=base64.b64decode(data, validate=True)) for data in message.get("images", [])]
        types.Message.model_validate({**message, "images": images})


def test_an_invalid_request_is_detected() -> None:
    """The checks of the tests above detect violations."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    body = encode_json(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    check_request(body)
    with pytest.raises(AssertionError):
        check_pairs(body["messages"][:1])
    body["messages"][0]["tool_calls"][0]["function"]["arguments"] = "{}"
    with pytest.raises(pydantic.ValidationError):
        check_request(body)
