"""Requests of Messages."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from attrs import evolve

from agentloop.errors import BadRequest
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.inference.wire_formats.wire_format import wire_format
from agentloop.values import (
    Audio,
    Document,
    ErrorInfo,
    Image,
    InferenceRequest,
    Message,
    ProviderPart,
    Reasoning,
    Text,
    ToolCall,
    ToolChoice,
    ToolSpec,
)
from tests.inference.wire_formats.anthropic_messages.generated_messages import (
    ADD,
    CONFIG,
    FORMAT,
    HELLO,
    encoded,
    exchange,
    messages_of,
    own,
    shown,
    spelled,
)

PNG = base64.b64encode(b"png").decode()


def blocks_of(message: Message) -> Any:
    """Encode one message and return its blocks."""
    return messages_of(message)[0]["content"]


def test_a_request_is_the_model_the_tools_the_prompt_the_messages_and_the_rest_in_this_order() -> None:
    """The body is compact JSON whose stable parts come first, byte by byte, as prompt caches read them."""
    request = InferenceRequest((HELLO,), "Be kind.", (ADD,), ToolChoice.required())
    assert encoded(request) == (
        b'{"model":"m"'
        b',"tools":[{"name":"add","description":"Add numbers.",'
        b'"input_schema":{"type":"object","properties":{"a":{"type":"integer"}}}}]'
        b',"system":"Be kind."'
        b',"messages":[{"role":"user","content":[{"type":"text","text":"hello"}]}]'
        b',"max_tokens":16384,"tool_choice":{"type":"any"}}'
    )


def test_the_path_is_that_of_messages_in_the_version_that_is_spoken() -> None:
    """Requests go to one endpoint, with the version in a header, and tools that go by another name are listed."""
    tools = (ADD, ToolSpec("math.add", "", {}))
    made = wire_format(FORMAT).encode_request(InferenceRequest((HELLO,), tools=tools), CONFIG)
    assert (made.path, dict(made.headers)) == ("/messages", {"anthropic-version": "2023-06-01"})
    assert made.tool_names == {wire_name("math.add"): "math.add"}
    assert json.loads(made.body)["tools"][1] == {"name": wire_name("math.add"), "input_schema": {"type": "object"}}


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
            Document(file_id="f", provider_data=own(citations={"enabled": True})),
            {"type": "document", "source": {"type": "file", "file_id": "f"}, "citations": {"enabled": True}},
        ),
    ],
)
def test_users_and_tools_show_every_kind_of_content(part: Text | Image | Document, sent: dict[str, Any]) -> None:
    """By value, by address and by id, in a message of the user and in the result of a tool alike."""
    assert blocks_of(Message.user(part)) == [sent]
    assert messages_of(Message.assistant(shown(part)))[1]["content"][0]["content"] == [sent]


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (Audio(media_type="audio/wav", data=b""), "Audio"),
        (Image(media_type="image/tiff", data=b""), "image/tiff"),
        (Document(media_type="application/zip", data=b""), "application/zip"),
        (Document(media_type="text/plain", data=b"\xff"), "UTF-8"),
    ],
)
def test_what_cannot_be_carried_is_refused_by_name_and_place(part: Image | Audio | Document, named: str) -> None:
    """What the API has no place for never leaves."""
    with pytest.raises(BadRequest, match=f"{named}.*|.*{named}") as refused:
        messages_of(Message.user(part))
    assert "a message of the user" in str(refused.value)
    with pytest.raises(BadRequest, match="the result of the tool 'add'"):
        messages_of(Message.assistant(shown(part)))  # type: ignore[arg-type]  # sound, which it is about
    with pytest.raises(BadRequest, match=type(part).__name__):
        messages_of(Message.assistant(part))


def test_an_assistants_message_is_its_blocks_in_order_and_then_the_results() -> None:
    """Thoughts, text and calls stay where they were; results come first in the user's message that follows."""
    failure = ErrorInfo("ToolFailed", "no")
    first, second = ToolCall("a", "add", '{"a": 1}', provider_data=own(caller={"type": "direct"})), ToolCall("b", "x.y")
    message = Message.assistant(
        Reasoning("hm", provider_data=own(signature="s")),
        "so",
        exchange(first, 3),
        "and",
        exchange(second, error=failure),
    )
    said, results = messages_of(message)
    assert said == {
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


def test_what_the_provider_refuses_is_left_out() -> None:
    """Blank texts, thoughts of others or at the end, parts of others, and messages with nothing left in them."""
    signed = Reasoning("hm", provider_data=own(signature="s"))
    theirs = ProviderPart("gemini", {"type": "text", "text": "a"})
    assert messages_of(Message.user(" \n"), Message.system(""), Message.assistant(Reasoning("a"), theirs, signed)) == []
    assert blocks_of(Message.assistant(Reasoning("a"), "b", " ", signed)) == [{"type": "text", "text": "b"}]
    (result,) = messages_of(Message.assistant(shown(Text(" "))))[1]["content"]
    assert result == {"type": "tool_result", "tool_use_id": "c"}


def test_an_error_always_says_something() -> None:
    """The API refuses an error without content."""
    execution = evolve(exchange(ToolCall("c", "add"), error=ErrorInfo("E", " ")).execution, content=())
    message = Message.assistant(evolve(exchange(ToolCall("c", "add")), execution=execution))
    assert messages_of(message)[1]["content"][0]["content"] == "failed"


def test_ids_are_of_the_characters_that_are_taken_and_unique_in_the_conversation() -> None:
    """Ids of other providers are mapped, missing ones made, and those of earlier turns told apart by place."""
    turn = Message.assistant(
        *[exchange(ToolCall(call_id, "add"), 1) for call_id in ("call:1", "", "toolu_1", "toolu_1")]
    )
    found = messages_of(turn, HELLO, turn)
    ids = [[block["id"] for block in found[place]["content"]] for place in (0, 3)]
    assert ids[0] == [wire_name("call:1"), "call_1", "toolu_1", "toolu_1_3"]
    assert ids[1] == [f"{call_id}_2" for call_id in ids[0]]
    assert [block["tool_use_id"] for block in found[4]["content"]] == ids[1]


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
    """Whether several calls may come at once is part of it."""
    request = InferenceRequest((HELLO,), tools=(ADD,), tool_choice=choice, parallel_tool_calls=parallel)
    assert spelled(request).get("tool_choice") == sent
    assert "tool_choice" not in spelled(request.with_tools())


def test_tools_that_were_called_are_declared_where_none_are_offered() -> None:
    """The provider refuses a history with calls of tools it was not told of; they are forbidden then."""
    calls = [exchange(ToolCall("", name), 1) for name in ("b", "a.a", "b")]
    body = spelled(InferenceRequest((Message.assistant(*calls),)))
    assert [tool["name"] for tool in body["tools"]] == ["b", wire_name("a.a")]
    assert body["tool_choice"] == {"type": "none"}
