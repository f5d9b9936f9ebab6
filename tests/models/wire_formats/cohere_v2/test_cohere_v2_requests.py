"""Tests of the encoding of requests for Cohere's chat API, checked by the types of its package."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import BadRequest, ConfigurationError, UnsupportedOption
from agentloop.models import LLMConfig
from agentloop.models.wire_formats.wire_format import EncodedRequest, wire_format
from agentloop.values import (
    Audio,
    Document,
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
from tests.models.generated_requests import assistant_messages, execution_of, system_messages, tool_choices, tool_specs
from tests.models.wire_formats.cohere_v2.cohere_types import problems

CONFIG = LLMConfig(model="command-a", base_url="https://cohere", wire_format="cohere-v2")
ADD = ToolSpec("add", "Add numbers.", {"properties": {"a": {"type": "integer"}}})
CALL = ToolCall("add_1", "add", '{"a": 1}')
PNG = Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
CITATION = {"start": 0, "end": 2, "text": "so", "sources": [{"type": "tool", "id": "add_1:0"}], "type": "TEXT_CONTENT"}
ENCODED_CALL = {"id": "add_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
ENCODED_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add numbers.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def encode(request: InferenceRequest, config: LLMConfig = CONFIG, *, stream: bool = False) -> EncodedRequest:
    """Encode a request."""
    return wire_format("cohere-v2").encode_request(request, config, stream=stream)


def encode_json(request: InferenceRequest, config: LLMConfig = CONFIG) -> dict[str, Any]:
    """Return the parsed body of a request, which has the types of Cohere's package."""
    body: dict[str, Any] = json.loads(encode(request, config).body)
    assert not problems(body)
    return body


def encode_messages(*messages: Message) -> list[dict[str, Any]]:
    """Return the encoded messages of a conversation."""
    encoded: list[dict[str, Any]] = encode_json(InferenceRequest(messages))["messages"]
    return encoded


def own(text: str, **data: Any) -> Reasoning:
    """Return reasoning of Cohere."""
    return Reasoning(text, provider_data={"cohere-v2": data})


def exchange(call: ToolCall = CALL, value: object = 2, **execution: Any) -> ToolExchange:
    """Return a call with its execution."""
    return ToolExchange(call, evolve(execution_of(call, value=value), **execution))


def test_a_body_contains_model_tools_messages_and_options_in_this_order() -> None:
    """The stable parts come first; the body always says whether to stream."""
    options = InferenceOptions(temperature=0.5, top_p=0.9, max_tokens=10, stop=("end",), seed=7, cache_prompt=True)
    request = InferenceRequest((Message.user("hello"),), "Be brief.", (ADD,), ToolChoice.required(), options=options)
    encoded = encode(request, stream=True)
    body = json.loads(encoded.body)
    assert body == {
        "model": "command-a",
        "tools": [ENCODED_TOOL],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}],
        "stream": True,
        "tool_choice": "REQUIRED",
        "temperature": 0.5,
        "p": 0.9,
        "max_tokens": 10,
        "stop_sequences": ["end"],
        "seed": 7,
    }
    assert (list(body)[:4], encoded.path) == (["model", "tools", "messages", "stream"], "/v2/chat")


@pytest.mark.parametrize(
    ("choice", "sent", "tools"),
    [
        (ToolChoice.auto(), None, ["add", "look"]),
        (ToolChoice.required(), "REQUIRED", ["add", "look"]),
        (ToolChoice.none(), "NONE", ["add", "look"]),
        (ToolChoice.specific("look"), "REQUIRED", ["look"]),
    ],
)
def test_a_specific_tool_is_required_by_offering_it_alone(choice: ToolChoice, sent: object, tools: list[str]) -> None:
    """Cohere can require any call only; without tools there is no choice."""
    body = encode_json(InferenceRequest((), tools=(ADD, ToolSpec("look", "", {})), tool_choice=choice))
    assert (body.get("tool_choice"), [tool["function"]["name"] for tool in body["tools"]]) == (sent, tools)
    assert encode_json(InferenceRequest((), tool_choice=choice)) == {
        "model": "command-a",
        "messages": [],
        "stream": False,
    }


def test_a_turn_has_plan_thinking_text_calls_and_citations() -> None:
    """What Cohere wrote goes back to where it came from; what others thought is left out."""
    turn = Message.assistant(
        own("I add.", entry="tool_plan"),
        own("hm", entry="thinking"),
        Reasoning("of another provider"),
        Text("so", provider_data={"cohere-v2": {"citations": [CITATION]}}),
        ProviderPart("gemini", {"type": "text", "text": "no"}),
        exchange(value={"sum": 2}),
    )
    assert encode_messages(turn) == [
        {
            "role": "assistant",
            "tool_plan": "I add.",
            "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}],
            "tool_calls": [ENCODED_CALL],
            "citations": [CITATION],
        },
        {"role": "tool", "tool_call_id": "add_1", "content": '{"sum":2}'},
    ]
    # A plan without calls, and an empty turn, are not sent.
    assert encode_messages(Message.assistant(own("I add.", entry="tool_plan"), Text(""))) == []


def test_pictures_of_a_tool_follow_in_a_message_of_the_user() -> None:
    """Results contain text only; other media are described, and a result without content has its status."""
    content = (Text("see"), PNG, Audio(media_type="audio/wav", data=b"RIFF"))
    turn = Message.assistant(exchange(content=content), exchange(ToolCall("", "add"), content=(Text(""),)))
    _, first, second, shown = encode_messages(turn)
    assert first["content"] == "see[image/png: in the next message of the user][audio/wav: this API cannot transmit it]"
    assert (second["content"], second["tool_call_id"]) == ("succeeded", "call_1")
    assert [item["type"] for item in shown["content"]] == ["text", "image_url"]
    assert shown["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")


def test_pictures_of_a_user_are_sent_by_value_or_by_url() -> None:
    """A message of texts is a text."""
    assert encode_messages(Message.user("look", Image(url="https://host/a.png")), Message.user("a", "b")) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
            ],
        },
        {"role": "user", "content": "ab"},
    ]


@pytest.mark.parametrize(
    ("part", "how"),
    [
        (Image(file_id="f"), "Image by file id"),
        (Audio(media_type="audio/wav", data=b"RIFF"), "Audio by value"),
        (Document(url="https://host/a.pdf"), "Document by URL"),
    ],
)
def test_other_media_are_refused(part: Any, how: str) -> None:
    """The error names the part and what to do."""
    with pytest.raises(BadRequest, match=f"a message contains {how}, which Cohere does not support"):
        encode(InferenceRequest((Message.user("look", part),)))
    with pytest.raises(BadRequest, match="in an assistant message"):
        encode(InferenceRequest((Message.assistant(part),)))


@pytest.mark.parametrize("name", ["get-weather", "2nd", "math.factorial", "", "x" * 65])
def test_tool_names_are_identifiers(name: str) -> None:
    """A name that Cohere refuses is encoded, and decoded in answers."""
    encoded = encode(
        InferenceRequest((Message.assistant(exchange(ToolCall("c", name))),), tools=(ToolSpec(name, "", {}),))
    )
    body = json.loads(encoded.body)
    sent = body["tools"][0]["function"]["name"]
    assert sent.isidentifier()
    assert sent.isascii()
    assert body["messages"][0]["tool_calls"][0]["function"]["name"] == sent
    assert encoded.tool_names == {sent: name}


@pytest.mark.parametrize(
    ("effort", "thinking"),
    [
        (None, None),
        ("none", {"type": "disabled"}),
        ("minimal", {"type": "enabled", "token_budget": 512}),
        ("low", {"type": "enabled", "token_budget": 1024}),
        ("medium", {"type": "enabled", "token_budget": 4096}),
        ("high", {"type": "enabled"}),
        ("max", {"type": "enabled"}),
    ],
)
def test_an_effort_is_a_budget_of_tokens(effort: Any, thinking: object) -> None:
    """The efforts without a budget leave the limit to the model."""
    body = encode_json(InferenceRequest((), options=InferenceOptions(reasoning_effort=effort)))
    assert body.get("thinking") == thinking


def test_a_response_format_may_have_a_schema() -> None:
    """Without one it is any object."""
    schema = {"type": "object", "required": ["a"]}
    sent = [
        encode_json(InferenceRequest((), response_format=ResponseFormat(s)))["response_format"] for s in (None, schema)
    ]
    assert sent == [{"type": "json_object"}, {"type": "json_object", "json_schema": schema}]


def test_calls_one_at_a_time_are_refused() -> None:
    """Cohere has no such option; allowing several calls is its default."""
    with pytest.raises(UnsupportedOption, match="Cohere has no equivalent of the option parallel_tool_calls=False; "):
        encode(InferenceRequest((), tools=(ADD,), parallel_tool_calls=False))
    assert encode_json(InferenceRequest((), tools=(ADD,), parallel_tool_calls=True))["tools"]


def test_extra_entries_are_merged_and_override_options() -> None:
    """Those of the request come last; the entries of the request itself cannot be repeated."""
    configured = InferenceOptions(temperature=1.0, reasoning_effort="low", extra={"k": 3})
    options = InferenceOptions(extra={"thinking": {"token_budget": 9}, "safety_mode": "OFF"})
    body = encode_json(InferenceRequest((), options=options), evolve(CONFIG, options=configured))
    assert body["thinking"] == {"type": "enabled", "token_budget": 9}
    assert (body["temperature"], body["k"], body["safety_mode"]) == (1.0, 3, "OFF")
    for name in ("model", "messages", "stream", "tools"):
        with pytest.raises((BadRequest, ConfigurationError), match=f"options.extra contains {name}"):
            encode(InferenceRequest((), tools=(ADD,), options=InferenceOptions(extra={name: 1})))


# --- laws ------------------------------------------------------------------------------------------------------------

users = st.lists(st.text() | st.just(PNG), max_size=3).map(lambda parts: Message.user(*parts))
conversations = st.lists(users | system_messages | assistant_messages, max_size=6)
requests = st.builds(
    InferenceRequest,
    conversations,
    st.text(),
    tool_specs,
    tool_choices,
    st.none() | st.just(value=True),
    st.none() | st.builds(ResponseFormat, st.none() | st.just({"type": "object"})),
    st.builds(
        InferenceOptions,
        seed=st.none() | st.integers(0, 2**63 - 1),
        reasoning_effort=st.none() | st.sampled_from(["none", "low", "high"]),
        stop=st.lists(st.text(min_size=1), max_size=3).map(tuple),
    ),
)


@given(requests)
def test_requests_have_the_types_of_the_package(request: InferenceRequest) -> None:
    """Every request satisfies the types that Cohere publishes, and encoding does not change it."""
    before = to_json(request)
    encode_json(request)
    assert to_json(request) == before


def test_the_check_of_requests_detects_violations() -> None:
    """Unknown entries, wrong values and missing parts are found."""
    for body in (
        {"messages": [{"role": "user", "content": 5}]},
        {"messages": [{"role": "user", "content": "a", "name": "b"}]},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "assistant", "content": [{"type": "text", "text": "a", "b": 1}]}]},
        {"messages": [], "tool_choice": "AUTO"},
        {"messages": [], "top_p": 1},
    ):
        assert problems(body)


@given(requests)
def test_calls_and_results_are_paired(request: InferenceRequest) -> None:
    """Law 2: the results of each turn follow it directly, in the order of its calls."""
    messages = encode_json(request)["messages"]
    for position, message in enumerate(messages):
        ids = [call["id"] for call in message.get("tool_calls", ())]
        results = messages[position + 1 : position + 1 + len(ids)]
        assert [result.get("tool_call_id") for result in results] == ids
        assert len(set(ids)) == len(ids)


@given(conversation=conversations, length=st.integers(0, 6))
def test_a_longer_conversation_extends_the_bytes_of_a_shorter_one(conversation: list[Message], length: int) -> None:
    """Law 13: continuing a conversation does not change the bytes before, so that prompt caches apply."""
    shorter, longer = (
        encode(InferenceRequest(tuple(part), "Be brief.", (ADD,))).body
        for part in (conversation[:length], conversation)
    )
    assert longer.startswith(shorter.removesuffix(b'],"stream":false}'))
