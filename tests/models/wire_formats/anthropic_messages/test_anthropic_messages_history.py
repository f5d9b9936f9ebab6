"""Tests of importing and exporting conversations in the format of the Messages API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from agentloop.errors import InvalidDocument
from agentloop.models.wire_formats.anthropic_messages.history import export_messages, import_messages
from agentloop.models.wire_formats.fields import wire_name
from agentloop.values import Document, Image, Message, Text, ToolStatus
from tests.models.wire_formats.anthropic_messages.generated_messages import (
    anthropic_data,
    conversations,
    encode_messages,
    find_unpaired,
)

CALLS = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "b", "name": "add", "input": {}},
    ],
}


def result(call_id: str, content: object, **more: object) -> dict[str, Any]:
    """Return a result block."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*content: object) -> dict[str, Any]:
    """Return a user message."""
    return {"role": "user", "content": list(content)}


def test_calls_are_paired_with_the_results_that_follow_by_id() -> None:
    """Results may have another order and be spread over several messages; other content of these messages follows the turn."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    results = user(result("b", "no", is_error=True), {"type": "text", "text": "Go on."})
    prompt, (turn, question) = import_messages([CALLS, results, user(result("a", "3"))], system="Be kind.", at=at)
    first, second = (exchange.execution for exchange in turn.exchanges)
    assert (prompt, turn.text, question) == ("Be kind.", "so", Message.user("Go on."))
    assert (first.status, first.value, first.text, first.arguments, first.started_at) == (
        "succeeded",
        "3",
        "3",
        {"a": 1},
        at,
    )
    assert (second.status, second.error_message, second.text) == (ToolStatus.FAILED, "no", "no")
    assert first.id != second.id


def test_a_call_without_a_result_is_refused_or_cancelled() -> None:
    """A conversation must not contain an unanswered call (law 2)."""
    history = [CALLS, user(result("a", "3"))]
    with pytest.raises(InvalidDocument, match=r"messages\[0\]\.content\[2\] calls 'add'.*'b'.*unanswered='cancel'"):
        import_messages(history)
    _, (message,) = import_messages(history, unanswered="cancel")
    execution = message.exchanges[1].execution
    assert (execution.status, execution.may_have_run) == (ToolStatus.CANCELLED, True)
    assert not find_unpaired(export_messages([message]))


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([user(result("a", "3"))], "messages[0].content[0]"),
        ([CALLS, user(result("a", "3"), result("b", "3"), result("a", "4"))], "messages[1].content[2]"),
        ([CALLS, user(result("a", ""), result("b", "")), CALLS, user(result("a", ""))], "messages[2].content[2]"),
        ([{"role": "assistant", "content": [result("a", "3")]}], "messages[0].content[0]"),
        ([{"role": "tool", "content": ""}], "messages[0]"),
        ([user(), "hello"], "messages[1]"),
        ([{"role": "user"}], "messages[0]"),
        ([{"role": "user", "content": {"type": "text"}}], "messages[0]"),
        ([user({"type": "text", "text": 5})], "messages[0].content[0].text"),
        ([user("hello")], "messages[0].content[0]"),
        ([user({"type": "tool_result"})], "messages[0].content[0].tool_use_id"),
        ([{"role": "assistant", "content": [{"type": "tool_use", "name": "add"}]}], "messages[0].content[0].id"),
        (
            [user({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "a"}})],
            "messages[0].content[0].source.data",
        ),
        ([user({"type": "image", "source": {"type": "url"}})], "messages[0].content[0].source.url"),
    ],
)
def test_an_invalid_conversation_is_refused_with_its_place(messages: list[Any], place: str) -> None:
    """The error names the place of the problem."""
    with pytest.raises(InvalidDocument) as refused:
        import_messages(messages)
    assert str(refused.value).startswith(f"{place} ")


def test_blocks_become_parts_or_are_kept_unchanged() -> None:
    """A block without a neutral form is JSON text for other providers, and is exported unchanged; cache marks are removed."""
    content: list[dict[str, Any]] = [
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "cG5n"}},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "ä"}, "title": "a"},
        {"type": "document", "source": {"type": "file", "file_id": "f"}, "context": "c"},
        {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": "u"}]},
    ]
    marked = [{**block, "cache_control": {"type": "ephemeral"}} for block in content]
    _, (message,) = import_messages([user(*marked)])
    assert message.parts[:3] == (
        Image(media_type="image/png", data=b"png"),
        Document(media_type="text/plain", data="ä".encode(), name="a"),
        Document(file_id="f", provider_data=anthropic_data(context="c")),
    )
    assert isinstance(message.parts[3], Text)
    assert message.parts[3].text.startswith('{"type":"search_result"')
    assert export_messages([message]) == [user(*content)]


def test_the_texts_of_a_prompt_of_blocks_are_joined() -> None:
    """Each text is a paragraph."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b"},
    ]
    assert import_messages([], system=blocks) == ("a\n\nb", ())
    with pytest.raises(InvalidDocument, match=r"system\.content\[0\]"):
        import_messages([], system=[{"type": "image"}])


@given(conversations)
def test_an_exported_conversation_can_be_imported_and_exported_again(conversation: list[Message]) -> None:
    """The second export equals the first, except for the encoded tool names."""
    exported = export_messages(conversation)
    # What is exported says which messages are the system's; not every model accepts their role.
    sent = [{**message, "role": message["role"].replace("system", "user")} for message in exported]
    assert sent == encode_messages(*conversation)
    _, imported = import_messages(exported)
    for block in (block for message in exported for block in message["content"] if block["type"] == "tool_use"):
        block["name"] = wire_name(block["name"])
    assert normalized(export_messages(imported)) == normalized(exported)


def normalized(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with consecutive ones of a role merged, and results as blocks."""
    merged: list[dict[str, Any]] = []
    for message in messages:
        content = [
            {**block, "content": as_blocks(block["content"])}
            if "content" in block and block["type"] == "tool_result"
            else block
            for block in message["content"]
        ]
        if merged and merged[-1]["role"] == message["role"]:
            merged[-1]["content"] += content
        else:
            merged.append({"role": message["role"], "content": content})
    return merged


def as_blocks(content: Any) -> list[Any]:
    """Return content as blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
