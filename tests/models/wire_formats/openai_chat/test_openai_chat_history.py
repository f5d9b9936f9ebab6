"""Tests of importing and exporting conversations in the format of Chat Completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.errors import InvalidDocument
from agentloop.models.wire_formats.openai_chat.history import export_messages, import_messages
from agentloop.values import Audio, Document, Image, Message, Reasoning, Text, ToolStatus
from tests.models.generated_requests import conversations, json_values
from tests.models.openai_types import check_request
from tests.models.wire_formats.recorded_streams import load_exchanges

ChatMessage = dict[str, Any]


def call(call_id: str, name: str = "add", arguments: str = "{}") -> ChatMessage:
    """Return a call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(*calls: ChatMessage, content: str | None = None) -> ChatMessage:
    """Return an assistant message with these calls."""
    return {"role": "assistant", "content": content, "tool_calls": [*calls]}


def result(call_id: str, content: object = "done") -> ChatMessage:
    """Return a tool message."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def imported(*messages: ChatMessage) -> tuple[Message, ...]:
    """Return the imported messages."""
    return import_messages(messages)[1]


def test_each_call_is_paired_with_its_result() -> None:
    """Calls and results are paired by id, whatever the order of the results."""
    (turn,) = imported(assistant(call("a"), call("b"), content="so"), result("b", "2"), result("a", "1"))
    assert turn.text == "so"
    assert [(exchange.call.id, exchange.execution.value, exchange.execution.status) for exchange in turn.exchanges] == [
        ("a", "1", ToolStatus.SUCCEEDED),
        ("b", "2", ToolStatus.SUCCEEDED),
    ]


def test_a_repeated_id_belongs_to_its_own_turn() -> None:
    """An id may repeat in later turns, and within a turn, where the order decides."""
    turns = imported(
        assistant(call("a")), result("a", "1"), assistant(call("a"), call("a")), result("a", "2"), result("a", "3")
    )
    assert [[exchange.execution.value for exchange in turn.exchanges] for turn in turns] == [["1"], ["2", "3"]]


def test_a_system_message_at_the_start_is_the_system_prompt() -> None:
    """The same applies to developer messages; later ones remain in the conversation."""
    for role in ("system", "developer"):
        messages = [
            {"role": role, "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"role": role, "content": "!"},
        ]
        assert import_messages(messages) == ("Be brief.", (Message.user("hi"), Message.system("!")))
    assert import_messages([{"role": "user", "content": "hi"}])[0] == ""


PNG = "data:image/png;base64,aGk="


@pytest.mark.parametrize(
    ("item", "part"),
    [
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, Text("a")),
        ({"type": "image_url", "image_url": {"url": "https://a/b"}}, Image(url="https://a/b")),
        ({"type": "image_url", "image_url": {"url": PNG}}, Image(media_type="image/png", data=b"hi")),
        (
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "mp3"}},
            Audio(media_type="audio/mpeg", data=b"hi"),
        ),
        ({"type": "file", "file": {"file_id": "f"}}, Document(file_id="f")),
        (
            {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk=", "filename": "a.pdf"}},
            Document(media_type="application/pdf", data=b"hi", name="a.pdf"),
        ),
    ],
)
def test_every_kind_of_content_is_imported(item: ChatMessage, part: Text | Image | Audio | Document) -> None:
    """Text, images, audio and files have neutral forms."""
    assert imported({"role": "user", "content": [item]}) == (Message.user(part),)


def test_an_image_that_is_a_file_is_not_imported() -> None:
    """A conversation of another library names no file of this machine; the error has the place."""
    item = {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}
    with pytest.raises(InvalidDocument, match=r"\[0\].*begins with one of https://"):
        import_messages([{"role": "user", "content": [item]}])


def test_reasoning_and_deprecated_function_calls_are_imported() -> None:
    """Extensions of services and the deprecated form of calls are supported."""
    deprecated = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}}
    (turn,) = imported(deprecated, {"role": "function", "name": "add", "content": "3"})
    assert [(exchange.call.name, exchange.execution.value) for exchange in turn.exchanges] == [("add", "3")]
    with_reasoning = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    assert imported(with_reasoning) == (Message.assistant(Reasoning("hm"), "so"),)


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([assistant(call("a"))], r"messages\[0\].tool_calls\[0\] calls 'add', and no result for 'a'"),
        ([assistant(call("a")), {"role": "user", "content": "?"}, result("a")], r"messages\[0\].tool_calls\[0\]"),
        ([assistant(call("a")), result("a"), result("b")], r"messages\[2\] is the result of 'b'"),
        ([assistant(call("a")), result("a"), result("a")], r"messages\[2\] is the result of 'a'"),
        ([{"role": "user", "content": "?"}, result("a")], r"messages\[1\] is a result"),
        ([{"role": "robot", "content": "?"}], r"messages\[0\] is not a message"),
        (["hi"], r"messages\[0\] is not a message"),
        ([{"role": "user", "content": 5}], r"messages\[0\] has no content"),
        ([{"role": "user", "content": ["hi"]}], r"messages\[0\].content\[0\] is not a part"),
        ([{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "u"}}]}], "'video_url'"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,hi"}}]}], "not Base64"),
        ([{"role": "user", "content": [{"type": "file", "file": {"file_data": "%"}}]}], "not Base64"),
        ([{"role": "user", "content": [{"type": "file", "file": {}}]}], "without file_id"),
        ([{"role": "system", "content": [{"type": "image_url", "image_url": {"url": PNG}}]}], "text only"),
        ([{"role": "assistant", "tool_calls": 5}], r"messages\[0\] does not have the structure"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "add", "input": {}}]}],
            "'tool_use'",
        ),
    ],
)
def test_invalid_messages_are_refused_by_their_place(messages: list[Any], error: str) -> None:
    """The error names the message and suggests a fix."""
    with pytest.raises(InvalidDocument, match=error):
        import_messages(messages)


def test_a_call_without_a_result_is_cancelled_on_request() -> None:
    """With `unanswered="cancel"` the call becomes a cancelled execution; a result without a call is still refused."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    _, (turn, question) = import_messages(
        [assistant(call("a"), call("b")), result("b"), {"role": "user", "content": "?"}], unanswered="cancel", at=at
    )
    first, second = [exchange.execution for exchange in turn.exchanges]
    assert (first.status, first.may_have_run, first.started_at) == (ToolStatus.CANCELLED, True, at)
    assert (second.status, second.value) == (ToolStatus.SUCCEEDED, "done")
    assert question == Message.user("?")
    assert export_messages([turn])[1]["content"].startswith("Cancelled: ")
    with pytest.raises(InvalidDocument, match=r"messages\[0\] is a result"):
        import_messages([result("a")], unanswered="cancel")


def test_recorded_conversations_of_tau_bench_are_exported_unchanged(corpus: Path) -> None:
    """Complete conversations with failing calls and repeated ids."""
    with (corpus / "executor" / "tau_conversations.jsonl").open() as lines:
        recorded = [json.loads(line)["messages"] for line in lines]
    assert len(recorded) > 50
    total = 0
    for messages in recorded:
        system_prompt, imported_messages = import_messages(messages)
        count = sum(len(message.get("tool_calls") or ()) for message in messages)
        assert sum(len(message.exchanges) for message in imported_messages) == count
        total += count
        assert list(map(normalized, export_messages(imported_messages, system_prompt))) == list(
            map(normalized, messages)
        )
    assert total > 300


def test_recorded_requests_are_exported_unchanged(corpus: Path) -> None:
    """Real requests, except for kinds of content without a neutral form."""
    accepted = refused = 0
    for messages in recorded_requests(corpus):
        try:
            system_prompt, imported_messages = import_messages(messages, unanswered="cancel")
        except InvalidDocument:
            refused += 1
            continue
        accepted += 1
        expected = [
            message for message in map(normalized, messages) if message[1:] != ("", ()) or message[0] != "assistant"
        ]
        if not any(
            message.get("role") == "assistant" and not is_answered(messages, index)
            for index, message in enumerate(messages)
        ):
            assert list(map(normalized, export_messages(imported_messages, system_prompt))) == expected
    assert accepted > 100 * max(refused, 1)


def recorded_requests(corpus: Path) -> Iterator[list[ChatMessage]]:
    """Yield the messages of recorded requests that were accepted."""
    for exchange in load_exchanges(corpus, "openai_chat.json.jsonl", "openai_chat.stream.jsonl"):
        body = (exchange["request"] or {}).get("body") or {}
        if exchange["response"]["status"] == 200 and body.get("messages"):
            yield body["messages"]


def is_answered(messages: list[ChatMessage], index: int) -> bool:
    """Return whether the calls of a message have results."""
    call_ids = {call["id"] for call in messages[index].get("tool_calls") or ()}
    return call_ids <= {message.get("tool_call_id") for message in messages[index:]}


def normalized(message: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the content of a message independent of how it is represented."""
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content") or ""
    if isinstance(content, list):
        kinds = {part["type"] for part in content}
        texts = "".join(part.get("text", "") for part in content if part["type"] == "text")
        content = texts if kinds <= {"text"} else (texts, tuple(sorted(kinds)))
    calls = [
        (call.get("id"), call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
    ]
    return role, content, tuple(calls), *([message["tool_call_id"]] if role == "tool" else [])


@given(conversations, st.text())
def test_an_exported_conversation_can_be_imported_again(messages: list[Message], system_prompt: str) -> None:
    """Import and export are inverse, up to what the format does not represent; exports have the published type."""
    exported = export_messages(messages, system_prompt)
    check_request("openai-chat", {"model": "m", "messages": exported})
    if messages and not system_prompt and exported and exported[0]["role"] == "system":
        exported = [{"role": "user", "content": "before"}, *exported]
    imported_prompt, imported_messages = import_messages(exported)
    assert imported_prompt == system_prompt
    assert without_tool_names(export_messages(imported_messages, imported_prompt)) == without_tool_names(exported)


def without_tool_names(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Return messages without tool names, since names that OpenAI refuses are encoded."""
    for call in (call for message in messages for call in message.get("tool_calls", ())):
        del call["function"]["name"]
    return messages


odd_parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "file", "image_url", "input_audio"]) | json_values},
    optional=dict.fromkeys(("text", "file", "image_url", "input_audio"), json_values),
)
odd_calls = st.fixed_dictionaries({"id": json_values, "function": json_values})
odd_messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "function", "system"])},
    optional={
        "content": json_values | st.lists(odd_parts, max_size=2),
        "tool_calls": json_values | st.lists(odd_calls, max_size=2),
        "tool_call_id": json_values,
        "function_call": json_values,
        "name": json_values,
    },
)


@given(st.lists(odd_messages | json_values, max_size=4))
@example([{"role": "assistant"}, {"role": "function", "name": ["add"]}])
def test_any_message_is_imported_or_refused(messages: list[Any]) -> None:
    """No message raises another error than `InvalidDocument`."""
    try:
        _, imported_messages = import_messages(messages)
    except InvalidDocument:
        return
    assert all(isinstance(message, Message) for message in imported_messages)
