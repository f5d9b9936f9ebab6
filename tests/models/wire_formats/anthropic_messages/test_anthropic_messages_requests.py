"""Tests of the encoding of requests for the Messages API."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given

from agentloop.errors import BadRequest
from agentloop.models.wire_formats.fields import wire_name
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
    Text,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from tests.models.wire_formats.anthropic_messages.generated_messages import (
    ADD,
    CONFIG,
    FORMAT,
    HELLO,
    anthropic_data,
    conversations,
    encode,
    encode_json,
    encode_messages,
    exchange,
    exchange_with_content,
)

PNG = base64.b64encode(b"png").decode()


def encode_blocks(message: Message) -> Any:
    """Return the blocks of an encoded message."""
    return encode_messages(message)[0]["content"]


def test_a_body_contains_model_tools_prompt_messages_and_options_in_this_order() -> None:
    """The body is compact JSON, whose stable parts come first, as prompt caches require."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), ToolChoice.required())
    assert encode(request) == (
        b'{"model":"m"'
        b',"tools":[{"name":"add","description":"Add numbers.",'
        b'"input_schema":{"type":"object","properties":{"a":{"type":"integer"}}}}]'
        b',"system":"Be kind."'
        b',"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]'
        b',"max_tokens":16384,"tool_choice":{"type":"any"}}'
    )


NOTE, ANSWER = Message.system("note"), Message.assistant("ok")
CALLED = Message.assistant(exchange(ToolCall("c", "add"), 3))


@pytest.mark.parametrize(
    ("messages", "roles"),
    [
        ((HELLO, NOTE), ["user", "system"]),
        ((HELLO, NOTE, ANSWER), ["user", "system", "assistant"]),
        ((CALLED, NOTE), ["assistant", "user", "system"]),
        ((NOTE, HELLO), ["user", "user"]),
        ((HELLO, NOTE, HELLO), ["user", "user", "user"]),
        ((HELLO, ANSWER, NOTE), ["user", "assistant", "user"]),
        ((HELLO, NOTE, NOTE), ["user", "user", "system"]),
        ((HELLO, NOTE, Message.user(" ")), ["user", "system"]),
    ],
)
def test_a_message_of_the_system_has_its_role_where_the_model_accepts_it(
    messages: tuple[Message, ...], roles: list[str]
) -> None:
    """It follows a message of the user and precedes one of the assistant; elsewhere, and for other models, it is the user's."""
    for model, expected in (
        ("claude-opus-4-8", roles),
        ("claude-fable-5", roles),
        ("claude-sonnet-4-5", [role.replace("system", "user") for role in roles]),
        ("some-model", [role.replace("system", "user") for role in roles]),
    ):
        sent = encode_json(InferenceRequest(messages, options=InferenceOptions(model=model)))["messages"]
        assert [message["role"] for message in sent] == expected
        notes = [message for message in sent if message["content"] == [{"type": "text", "text": "note"}]]
        assert len(notes) == messages.count(NOTE)


@given(conversations)
def test_the_roles_of_a_conversation_are_those_that_the_model_accepts(messages: list[Message]) -> None:
    """Only the roles change with the model, and no model gets a message of the system in another place."""
    bodies = [
        encode_json(InferenceRequest(messages, options=InferenceOptions(model=model)))["messages"]
        for model in ("claude-opus-5", "claude-sonnet-4")
    ]
    assert [message["content"] for message in bodies[0]] == [message["content"] for message in bodies[1]]
    assert all(message["role"] != "system" for message in bodies[1])
    roles = [message["role"] for message in bodies[0]]
    for index, role in enumerate(roles):
        if role == "system":
            assert roles[index - 1 : index] == ["user"]
            assert roles[index + 1 : index + 2] in ([], ["assistant"])


def test_a_request_has_the_path_and_the_version_of_the_api() -> None:
    """The version is sent in a header, and renamed tools are listed."""
    tools = (ADD, ToolSpec("math.add", "", {}))
    request = wire_format(FORMAT).encode_request(InferenceRequest((HELLO,), tools=tools), CONFIG)
    assert (request.path, dict(request.headers)) == ("/messages", {"anthropic-version": "2023-06-01"})
    assert request.tool_names == {wire_name("math.add"): "math.add"}
    assert json.loads(request.body)["tools"][1] == {"name": wire_name("math.add"), "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (Text("so"), {"type": "text", "text": "so"}),
        (
            Image(media_type="image/jpg", data=b"png"),
            {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}},
        ),
        (Image(url="https://a.b"), {"type": "image", "source": {"type": "url", "url": "https://a.b"}}),
        (Image(file_id="f"), {"type": "image", "source": {"type": "file", "file_id": "f"}}),
        (
            Document(media_type="application/pdf", data=b"png", name="a.pdf"),
            {
                "type": "document",
                "source": {"type": "base64", "media_type": "application/pdf", "data": PNG},
                "title": "a.pdf",
            },
        ),
        (
            Document(media_type="text/csv; charset=utf-8", data="ä".encode()),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "ä"}},
        ),
        (Document(url="https://a.b"), {"type": "document", "source": {"type": "url", "url": "https://a.b"}}),
        (
            Document(file_id="f", provider_data=anthropic_data(citations={"enabled": True})),
            {"type": "document", "source": {"type": "file", "file_id": "f"}, "citations": {"enabled": True}},
        ),
    ],
)
def test_messages_and_results_can_contain_every_kind_of_content(
    part: Text | Image | Document, sent: dict[str, Any]
) -> None:
    """Content by value, by URL and by id is encoded in user messages and in results."""
    assert encode_blocks(Message.user(part)) == [sent]
    assert encode_messages(Message.assistant(exchange_with_content(part)))[1]["content"][0]["content"] == [sent]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Audio(media_type="audio/wav", data=b""), "Audio"),
        (Image(media_type="image/tiff", data=b""), "image/tiff"),
        (Document(media_type="application/zip", data=b""), "application/zip"),
        (Document(media_type="text/plain", data=b"\xff"), "UTF-8"),
    ],
)
def test_unsupported_content_is_refused_by_name_and_place(part: Image | Audio | Document, message: str) -> None:
    """Content without an encoding is an error in a message, and a note for the model in a result."""
    with pytest.raises(BadRequest, match=f"{message}.*|.*{message}") as refused:
        encode_messages(Message.user(part))
    assert "a message of the user" in str(refused.value)
    _, results = encode_messages(Message.assistant(exchange_with_content(part)))  # type: ignore[arg-type]  # audio
    (note,) = results["content"][0]["content"]
    assert note["type"] == "text"
    assert note["text"].startswith(f"[{part.media_type}: ")
    with pytest.raises(BadRequest, match=type(part).__name__):
        encode_messages(Message.assistant(part))


def test_an_assistant_message_contains_its_blocks_in_order_followed_by_the_results() -> None:
    """Thinking, text and calls keep their order; the results come first in the user message that follows."""
    failure = ErrorInfo("ToolFailed", "no")
    first, second = (
        ToolCall("a", "add", '{"a": 1}', provider_data=anthropic_data(caller={"type": "direct"})),
        ToolCall("b", "x.y"),
    )
    message = Message.assistant(
        Reasoning("hm", provider_data=anthropic_data(signature="s")),
        "so",
        exchange(first, 3),
        "and",
        exchange(second, error=failure),
    )
    assistant, results = encode_messages(message)
    assert assistant == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1}, "caller": {"type": "direct"}},
            {"type": "text", "text": "and"},
            {"type": "tool_use", "id": "b", "name": wire_name("x.y"), "input": {}},
        ],
    }
    assert results == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "3"}]},
            {
                "type": "tool_result",
                "tool_use_id": "b",
                "content": [{"type": "text", "text": "ToolFailed: no"}],
                "is_error": True,
            },
        ],
    }


def test_content_that_the_provider_refuses_is_dropped() -> None:
    """Blank texts, unsigned or trailing thinking, parts of other providers, and empty messages are not sent."""
    signed = Reasoning("hm", provider_data=anthropic_data(signature="s"))
    foreign = ProviderPart("gemini", {"type": "text", "text": "a"})
    assert (
        encode_messages(Message.user(" \n"), Message.system(""), Message.assistant(Reasoning("a"), foreign, signed))
        == []
    )
    assert encode_blocks(Message.assistant(Reasoning("a"), "b", " ", signed)) == [{"type": "text", "text": "b"}]
    (result,) = encode_messages(Message.assistant(exchange_with_content(Text(" "))))[1]["content"]
    assert result == {"type": "tool_result", "tool_use_id": "c"}


def test_an_error_is_never_empty() -> None:
    """The API refuses an error without content."""
    execution = evolve(exchange(ToolCall("c", "add"), error=ErrorInfo("E", " ")).execution, content=())
    message = Message.assistant(evolve(exchange(ToolCall("c", "add")), execution=execution))
    assert encode_messages(message)[1]["content"][0]["content"] == "failed"


def test_ids_are_valid_and_unique_in_the_conversation() -> None:
    """Invalid ids are encoded, missing ones derived, and repeated ones get the position of their message."""
    turn = Message.assistant(
        *[exchange(ToolCall(call_id, "add"), 1) for call_id in ("call:1", "", "toolu_1", "toolu_1")]
    )
    messages = encode_messages(turn, HELLO, turn)
    ids = [[block["id"] for block in messages[index]["content"]] for index in (0, 3)]
    assert ids[0] == [wire_name("call:1"), "call_1", "toolu_1", "toolu_1_3"]
    assert ids[1] == [f"{call_id}_2" for call_id in ids[0]]
    assert [block["tool_use_id"] for block in messages[4]["content"]] == ids[1]


@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (ToolChoice.auto(), None, None),
        (ToolChoice.auto(), True, None),
        (ToolChoice.auto(), False, {"type": "auto", "disable_parallel_tool_use": True}),
        (ToolChoice.required(), None, {"type": "any"}),
        (ToolChoice.required(), False, {"type": "any", "disable_parallel_tool_use": True}),
        (ToolChoice.none(), False, {"type": "none"}),
        (ToolChoice.specific("a.b"), None, {"type": "tool", "name": wire_name("a.b")}),
    ],
)
def test_the_tool_choice_is_sent_with_tools_only(choice: ToolChoice, parallel: bool | None, sent: object) -> None:  # noqa: FBT001  # a case
    """The tool choice includes whether parallel calls are allowed."""
    request = InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice, parallel_tool_calls=parallel)
    assert encode_json(request).get("tool_choice") == sent
    assert "tool_choice" not in encode_json(request.with_tools(()))


def test_called_tools_are_declared_if_no_tools_are_offered() -> None:
    """The provider refuses calls of undeclared tools; the tool choice forbids calls."""
    calls = [exchange(ToolCall("", name), 1) for name in ("b", "a.a", "b")]
    body = encode_json(InferenceRequest((Message.assistant(*calls),)))
    assert [tool["name"] for tool in body["tools"]] == ["b", wire_name("a.a")]
    assert body["tool_choice"] == {"type": "none"}
