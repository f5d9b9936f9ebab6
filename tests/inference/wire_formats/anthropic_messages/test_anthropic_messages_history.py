"""Histories of Messages, from elsewhere and for elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from agentloop.errors import InvalidDocument
from agentloop.inference.wire_formats.anthropic_messages.history import export_messages, import_messages
from agentloop.inference.wire_formats.fields import wire_name
from agentloop.values import Document, Image, Message, Text, ToolStatus
from tests.inference.wire_formats.anthropic_messages.generated_messages import conversations, messages_of, own, unpaired

CALLS = {
    "role": "assistant",
    "content": [
        {"type": "text", "text": "so"},
        {"type": "tool_use", "id": "a", "name": "add", "input": {"a": 1}},
        {"type": "tool_use", "id": "b", "name": "add", "input": {}},
    ],
}


def result(call_id: str, content: object, **more: object) -> dict[str, Any]:
    """Spell a result."""
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


def user(*content: object) -> dict[str, Any]:
    """Spell a message of the user."""
    return {"role": "user", "content": list(content)}


def test_calls_are_joined_to_the_results_that_follow_by_id() -> None:
    """Also when these come in another order and in several messages; what the user said with them stands after."""
    when = datetime(2026, 1, 1, tzinfo=UTC)
    said = user(result("b", "no", is_error=True), {"type": "text", "text": "Go on."})
    prompt, (answered, asked) = import_messages([CALLS, said, user(result("a", "3"))], system="Be kind.", at=when)
    first, second = (exchange.execution for exchange in answered.exchanges)
    assert (prompt, answered.text, asked) == ("Be kind.", "so", Message.user("Go on."))
    assert (first.status, first.value, first.text, first.arguments, first.started_at) == (
        "succeeded",
        "3",
        "3",
        {"a": 1},
        when,
    )
    assert (second.status, second.error_message, second.text) == (ToolStatus.FAILED, "no", "no")
    assert first.id != second.id


def test_a_call_without_a_result_is_refused_or_cancelled() -> None:
    """An unanswered call cannot be part of a conversation (law 2)."""
    history = [CALLS, user(result("a", "3"))]
    with pytest.raises(InvalidDocument, match=r"messages\[0\]\.content\[2\] calls 'add'.*'b'.*unanswered='cancel'"):
        import_messages(history)
    _, (message,) = import_messages(history, unanswered="cancel")
    execution = message.exchanges[1].execution
    assert (execution.status, execution.may_have_run) == (ToolStatus.CANCELLED, True)
    assert not unpaired(export_messages([message]))


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
def test_what_is_no_history_is_refused_with_its_place(messages: list[Any], place: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(InvalidDocument) as refused:
        import_messages(messages)
    assert str(refused.value).startswith(f"{place} ")


def test_content_becomes_parts_and_the_rest_is_kept_whole() -> None:
    """What has no neutral form is shown to others as its JSON, and goes back as it was; cache marks are left out."""
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
        Document(file_id="f", provider_data=own(context="c")),
    )
    assert isinstance(message.parts[3], Text)
    assert message.parts[3].text.startswith('{"type":"search_result"')
    assert export_messages([message]) == [user(*content)]


def test_a_prompt_of_blocks_is_their_texts() -> None:
    """Each in a paragraph of its own."""
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "b"},
    ]
    assert import_messages([], system=blocks) == ("a\n\nb", ())
    with pytest.raises(InvalidDocument, match=r"system\.content\[0\]"):
        import_messages([], system=[{"type": "image"}])


@given(conversations)
def test_export_and_import_and_export_is_export(conversation: list[Message]) -> None:
    """What was exported can be imported, and says the same when it is exported again; made names are made again."""
    exported = export_messages(conversation)
    assert exported == messages_of(*conversation)
    _, imported = import_messages(exported)
    for block in (block for message in exported for block in message["content"] if block["type"] == "tool_use"):
        block["name"] = wire_name(block["name"])
    assert joined(export_messages(imported)) == joined(exported)


def joined(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join messages of one role that follow each other, as the provider does; texts of results to text."""
    found: list[dict[str, Any]] = []
    for message in messages:
        content = [
            {**block, "content": listed(block["content"])}
            if "content" in block and block["type"] == "tool_result"
            else block
            for block in message["content"]
        ]
        if found and found[-1]["role"] == message["role"]:
            found[-1]["content"] += content
        else:
            found.append({"role": message["role"], "content": content})
    return found


def listed(content: Any) -> list[Any]:
    """Spell content as blocks."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content
