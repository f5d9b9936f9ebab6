"""Requests of Ollama's own chat API: what is sent, by examples and held against the types of Ollama's package."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import BadRequest
from agentloop.inference import LLMConfig
from agentloop.inference.wire_formats.wire_format import EncodedRequest, wire_format
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
from tests.inference.generated_requests import assistant_messages, execution_of, inference_requests, system_messages

CONFIG = LLMConfig(model="m", base_url="http://localhost:11434", wire_format="ollama")
HELLO = Message.user("hello")
ADD = ToolSpec("add", "Add numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
PICTURE = Image(media_type="image/png", data=b"png")
PNG = "cG5n"
OWN = {"ollama": {"thinking": True}}


def made(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> EncodedRequest:
    """Encode a request."""
    return wire_format("ollama").encode_request(request, config, stream=stream)


def spelled(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Encode a request and parse what came of it."""
    body: dict[str, Any] = json.loads(made(request, config).body)
    return body


def messages_of(*messages: Message) -> list[dict[str, Any]]:
    """Encode a conversation and return its messages."""
    found: list[dict[str, Any]] = spelled(InferenceRequest(messages))["messages"]
    return found


def exchange(call: ToolCall, value: object = None, error: ErrorInfo | None = None) -> ToolExchange:
    """Join a call to an outcome."""
    return ToolExchange(call, execution_of(call, value=value, error=error))


def test_a_request_is_the_model_the_tools_the_messages_and_the_rest_in_this_order() -> None:
    """The body is compact JSON whose stable parts come first, byte by byte; it says whether to stream in any case."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), options=InferenceOptions(seed=7))
    for stream, word in ((False, b"false"), (True, b"true")):
        encoded = made(request, stream=stream)
        assert (encoded.path, dict(encoded.headers), dict(encoded.tool_names)) == ("/api/chat", {}, {})
        assert encoded.body == (
            b'{"model":"m"'
            b',"tools":[{"type":"function","function":{"name":"add","description":"Add numbers.",'
            b'"parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}]'
            b',"messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"hello"}]'
            b',"stream":' + word + b',"options":{"seed":7}}'
        )


def test_what_is_not_asked_for_is_not_sent() -> None:
    """Defaults are left to the model, but for streaming, which Ollama does when it is not told."""
    assert made(InferenceRequest((HELLO,))).body == (
        b'{"model":"m","messages":[{"role":"user","content":"hello"}],"stream":false}'
    )


def test_calls_are_followed_by_their_results() -> None:
    """Calls stand in one message, arguments as an object; each result names its tool, and the call if it has an id."""
    message = Message.assistant(
        "so",
        exchange(ToolCall("c", "add", '{"a": 1}'), {"sum": 1}),
        exchange(ToolCall("", "math.factorial", "broken"), error=ErrorInfo("ToolFailed", "no")),
    )
    assert messages_of(message) == [
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


def test_pictures_are_sent_by_value() -> None:
    """Pictures stand beside the text of a message, also of the model's and of a tool's."""
    call = ToolCall("", "draw")
    shown = execution_of(call).with_value(1, [Text("drawn"), PICTURE])
    assert messages_of(Message.user("a", PICTURE, "b"), Message.assistant(PICTURE, ToolExchange(call, shown))) == [
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
    ("part", "told"),
    [
        (Image(url="https://example.com/a.png"), "Image by URL"),
        (Image(file_id="f"), "Image by file id"),
        (Audio(media_type="audio/wav", data=b"x"), "Audio by value"),
        (Document(media_type="application/pdf", data=b"x"), "Document by value"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name(part: Image | Audio | Document, told: str) -> None:
    """Nothing is left out in silence, neither of a message nor of a result."""
    call = ToolCall("", "draw")
    result = ToolExchange(call, execution_of(call).with_value(1, [part]))
    for message in (Message.user(part), Message.assistant(part), Message.assistant(result)):
        with pytest.raises(BadRequest, match=told):
            made(InferenceRequest((message,)))
    with pytest.raises(BadRequest, match="the result of the tool 'draw'"):
        made(InferenceRequest((Message.assistant(result),)))


def test_own_thoughts_go_back_and_others_do_not() -> None:
    """A model sees what it thought; thoughts and parts of other providers are left out, and empty messages with them."""
    own = Message.assistant(Reasoning("h", provider_data=OWN), Reasoning("m", provider_data=OWN), "so")
    other = Message.assistant(Reasoning("hm"), ProviderPart("gemini", {}), "so")
    assert messages_of(own, other, Message.assistant(Reasoning("hm")), Message.assistant("")) == [
        {"role": "assistant", "content": "so", "thinking": "hm"},
        {"role": "assistant", "content": "so"},
    ]


def test_a_tool_choice_that_cannot_be_carried_is_refused() -> None:
    """No model of Ollama's can be made to call a tool; it can be kept from it by showing it none."""
    for choice in (ToolChoice.required(), ToolChoice.specific("add")):
        with pytest.raises(BadRequest, match="tool choice"):
            made(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice))
        assert "tools" not in spelled(InferenceRequest((HELLO,), tool_choice=choice))
    assert "tools" not in spelled(InferenceRequest((HELLO,), tools=(ADD,), tool_choice=ToolChoice.none()))


@pytest.mark.parametrize(
    ("wanted", "sent"), [(ResponseFormat(), "json"), (ResponseFormat({"type": "object"}), {"type": "object"})]
)
def test_the_response_format_is_sent(wanted: ResponseFormat, sent: object) -> None:
    """Any JSON, or what fits a schema."""
    assert spelled(InferenceRequest((HELLO,), response_format=wanted))["format"] == sent


@pytest.mark.parametrize(("effort", "sent"), [("none", False), ("minimal", "low"), ("high", "high"), ("max", "max")])
def test_effort_is_a_level_of_thinking(effort: Any, sent: object) -> None:
    """No thinking is a no; levels that Ollama does not have go to the closest."""
    assert spelled(InferenceRequest((HELLO,), options=InferenceOptions(reasoning_effort=effort)))["think"] == sent


def test_options_of_a_request_go_before_those_of_the_configuration() -> None:
    """Each option by itself, under Ollama's names; entries passed on are put in among ours."""
    config = CONFIG.with_settings(
        options=InferenceOptions(
            temperature=0.5, max_tokens=5, stop="END", extra={"keep_alive": "5m", "options": {"num_ctx": 4096}}
        )
    )
    options = InferenceOptions(temperature=0.0, top_p=0.9, extra={"options": {"num_predict": -1}})
    body = spelled(InferenceRequest((HELLO,), options=options), config)
    assert body["options"] == {"temperature": 0.0, "num_predict": -1, "stop": ["END"], "num_ctx": 4096, "top_p": 0.9}
    assert body["keep_alive"] == "5m"
    assert spelled(InferenceRequest((HELLO,), options=InferenceOptions(model="other")), config)["model"] == "other"


@pytest.mark.parametrize("name", ["model", "messages", "tools", "stream"])
def test_an_extra_entry_never_stands_beside_the_one_of_the_request(name: str) -> None:
    """What the request spells cannot be passed on as well."""
    with pytest.raises(BadRequest, match=name):
        made(InferenceRequest((HELLO,), tools=(ADD,), options=InferenceOptions(extra={name: []})))


user_messages = st.lists(st.text() | st.builds(Image, media_type=st.just("image/png"), data=st.binary()), max_size=3)
conversations = st.lists(
    user_messages.map(lambda parts: Message.user(*parts))
    | system_messages
    | assistant_messages
    | assistant_messages.map(
        lambda message: message.with_parts([Reasoning("hm", provider_data=OWN), *message.parts]),
    ),
    max_size=6,
)
requests = st.builds(
    lambda request, messages, choice: evolve(
        request, messages=messages, tool_choice=choice, options=evolve(request.options, extra={"keep_alive": "5m"})
    ),
    inference_requests,
    conversations,
    st.sampled_from([ToolChoice.auto(), ToolChoice.none()]),
)


@given(requests)
def test_no_encoded_request_holds_a_call_without_its_result(request: InferenceRequest) -> None:
    """Law 2: each turn's calls are followed by exactly their results, in order."""
    before = to_json(request)
    sent = spelled(request)["messages"]
    check_pairs(sent)
    calls = [call["function"]["name"] for message in sent for call in message.get("tool_calls", [])]
    assert calls == [made.call.name for message in request.messages for made in message.exchanges]
    assert to_json(request) == before


def check_pairs(messages: list[Mapping[str, Any]]) -> None:
    """Check that calls and results belong together."""
    open_calls: list[tuple[str, str | None]] = []
    for message in messages:
        if message["role"] == "tool":
            assert (message["tool_name"], message.get("tool_call_id")) == open_calls.pop(0)
        else:
            assert not open_calls
            open_calls = [(call["function"]["name"], call.get("id")) for call in message.get("tool_calls", [])]
    assert not open_calls


@given(conversation=conversations, system_prompt=st.text(), with_tools=st.booleans(), length=st.integers(0, 6))
def test_the_segments_of_a_longer_request_extend_those_of_the_shorter(
    conversation: list[Message], system_prompt: str, *, with_tools: bool, length: int
) -> None:
    """Law 13: to go on with a conversation leaves the bytes before as they were, so that prompt caches serve them."""
    tools = (ADD,) if with_tools else ()
    shorter = made(InferenceRequest(tuple(conversation[:length]), system_prompt, tools)).body
    longer = made(InferenceRequest(tuple(conversation), system_prompt, tools)).body
    end = b'],"stream":false}'
    assert shorter.endswith(end)
    assert longer.startswith(shorter.removesuffix(end))
    going_on = longer[len(shorter) - len(end) :]
    assert going_on.startswith((end, b",")) or shorter.endswith(b'"messages":[' + end)
    assert all(len(message._encodings) <= 1 for message in conversation)


@given(requests)
def test_a_request_is_what_ollamas_own_package_says_a_request_is(request: InferenceRequest) -> None:
    """Requests satisfy the types of Ollama's package, without an entry that these do not know."""
    judge(spelled(request))


def judge(body: dict[str, Any]) -> None:
    """Validate a request and each of its messages by their types."""
    types = pytest.importorskip("ollama._types", reason="ollama is not installed")
    assert body.keys() <= types.ChatRequest.model_fields.keys()
    assert body.get("options", {}).keys() <= types.Options.model_fields.keys()
    assert body.get("think") in {None, False, "low", "medium", "high", "max"}
    types.ChatRequest.model_validate(body)
    types.Options.model_validate(body.get("options", {}))
    for message in body["messages"]:
        assert message.keys() <= {*types.Message.model_fields, "tool_call_id"}  # the server's own types know the id
        images = [types.Image(value=base64.b64decode(data, validate=True)) for data in message.get("images", [])]
        types.Message.model_validate({**message, "images": images})


def test_a_request_that_ollama_would_refuse_does_not_satisfy_its_types() -> None:
    """The judges of the tests above can say no."""
    pydantic = pytest.importorskip("pydantic", reason="pydantic is not installed")
    body = spelled(InferenceRequest((Message.assistant(exchange(ToolCall("c", "add"), 1)),)))
    judge(body)
    with pytest.raises(AssertionError):
        check_pairs(body["messages"][:1])
    body["messages"][0]["tool_calls"][0]["function"]["arguments"] = "{}"
    with pytest.raises(pydantic.ValidationError):
        judge(body)
