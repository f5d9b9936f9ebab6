"""Conversations in the form of Chat Completions, taken over and given away."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import InvalidDocument
from agentloop.inference.wire_formats.openai_chat.history import export_messages, import_messages
from agentloop.values import Audio, Document, Image, Message, Reasoning, Text, ToolStatus
from tests.inference.generated_requests import conversations, json_values
from tests.inference.openai_types import check_request
from tests.inference.wire_formats.recorded_streams import load_exchanges

Theirs = dict[str, Any]


def call(call_id: str, name: str = "add", arguments: str = "{}") -> Theirs:
    """Make a call."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calls(*made: Theirs, content: str | None = None) -> Theirs:
    """Make a message with calls."""
    return {"role": "assistant", "content": content, "tool_calls": [*made]}


def result(call_id: str, content: object = "done") -> Theirs:
    """Make a result."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def imported(*messages: Theirs) -> tuple[Message, ...]:
    """Import messages."""
    return import_messages(messages)[1]


def test_each_call_is_joined_to_its_result() -> None:
    """By id, whatever the order of the results."""
    (turn,) = imported(calls(call("a"), call("b"), content="so"), result("b", "2"), result("a", "1"))
    assert turn.text == "so"
    assert [(made.call.id, made.execution.value, made.execution.status) for made in turn.exchanges] == [
        ("a", "1", ToolStatus.SUCCEEDED),
        ("b", "2", ToolStatus.SUCCEEDED),
    ]


def test_an_id_that_comes_again_in_a_later_turn_belongs_to_that_turn() -> None:
    """Real models use ids again; also twice in one turn, where the order tells."""
    found = imported(
        calls(call("a")), result("a", "1"), calls(call("a"), call("a")), result("a", "2"), result("a", "3")
    )
    assert [[made.execution.value for made in turn.exchanges] for turn in found] == [["1"], ["2", "3"]]


def test_the_first_message_of_the_system_is_the_system_prompt() -> None:
    """Also the developer's; later ones stand in the conversation."""
    for role in ("system", "developer"):
        told = [
            {"role": role, "content": "Be brief."},
            {"role": "user", "content": "hi"},
            {"role": role, "content": "!"},
        ]
        assert import_messages(told) == ("Be brief.", (Message.user("hi"), Message.system("!")))
    assert import_messages([{"role": "user", "content": "hi"}])[0] == ""


PNG = "data:image/png;base64,aGk="


@pytest.mark.parametrize(
    ("part", "ours"),
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
def test_content_of_every_kind_is_taken_over(part: Theirs, ours: Text | Image | Audio | Document) -> None:
    """Text, pictures, sound and files."""
    assert imported({"role": "user", "content": [part]}) == (Message.user(ours),)


def test_thoughts_and_older_calls_are_taken_over() -> None:
    """What services add beside the standard, and what the standard was before."""
    older = {"role": "assistant", "content": None, "function_call": {"name": "add", "arguments": "{}"}}
    (turn,) = imported(older, {"role": "function", "name": "add", "content": "3"})
    assert [(made.call.name, made.execution.value) for made in turn.exchanges] == [("add", "3")]
    thinking = {"role": "assistant", "content": "so", "reasoning_content": "hm"}
    assert imported(thinking) == (Message.assistant(Reasoning("hm"), "so"),)


@pytest.mark.parametrize(
    ("messages", "told"),
    [
        ([calls(call("a"))], r"messages\[0\].tool_calls\[0\] calls 'add', and no result for 'a'"),
        ([calls(call("a")), {"role": "user", "content": "?"}, result("a")], r"messages\[0\].tool_calls\[0\]"),
        ([calls(call("a")), result("a"), result("b")], r"messages\[2\] is the result of 'b'"),
        ([calls(call("a")), result("a"), result("a")], r"messages\[2\] is the result of 'a'"),
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
def test_what_cannot_be_taken_over_is_refused_by_its_place(messages: list[Any], told: str) -> None:
    """The error says which message it is, and what to do."""
    with pytest.raises(InvalidDocument, match=told):
        import_messages(messages)


def test_a_call_without_a_result_is_cancelled_on_request() -> None:
    """The model is told that it was not answered; a result without a call is refused all the same."""
    at = datetime(2026, 1, 2, tzinfo=UTC)
    _, (turn, asked) = import_messages(
        [calls(call("a"), call("b")), result("b"), {"role": "user", "content": "?"}], unanswered="cancel", at=at
    )
    first, second = [made.execution for made in turn.exchanges]
    assert (first.status, first.may_have_run, first.started_at) == (ToolStatus.CANCELLED, True, at)
    assert (second.status, second.value) == (ToolStatus.SUCCEEDED, "done")
    assert asked == Message.user("?")
    assert export_messages([turn])[1]["content"].startswith("Cancelled: ")
    with pytest.raises(InvalidDocument, match=r"messages\[0\] is a result"):
        import_messages([result("a")], unanswered="cancel")


def test_recorded_conversations_of_tau_bench_come_back_as_they_were(corpus: Path) -> None:
    """Whole conversations with failing calls, and with ids that come again."""
    with (corpus / "executor" / "tau_conversations.jsonl").open() as lines:
        recorded = [json.loads(line)["messages"] for line in lines]
    assert len(recorded) > 50
    total = 0
    for messages in recorded:
        system_prompt, ours = import_messages(messages)
        made = sum(len(message.get("tool_calls") or ()) for message in messages)
        assert sum(len(message.exchanges) for message in ours) == made
        total += made
        assert list(map(essence, export_messages(ours, system_prompt))) == list(map(essence, messages))
    assert total > 300


def test_recorded_requests_come_back_as_they_were(corpus: Path) -> None:
    """What programs really sent, except for kinds of content that have no neutral form."""
    taken = refused = 0
    for messages in recorded_requests(corpus):
        try:
            system_prompt, ours = import_messages(messages, unanswered="cancel")
        except InvalidDocument:
            refused += 1
            continue
        taken += 1
        wanted = [told for told in map(essence, messages) if told[1:] != ("", ()) or told[0] != "assistant"]
        if not any(
            message.get("role") == "assistant" and not answered(messages, at) for at, message in enumerate(messages)
        ):
            assert list(map(essence, export_messages(ours, system_prompt))) == wanted
    assert taken > 100 * max(refused, 1)


def recorded_requests(corpus: Path) -> Iterator[list[Theirs]]:
    """Go through the messages of recorded requests that were accepted."""
    for exchange in load_exchanges(corpus, "openai_chat.json.jsonl", "openai_chat.stream.jsonl"):
        body = (exchange["request"] or {}).get("body") or {}
        if exchange["response"]["status"] == 200 and body.get("messages"):
            yield body["messages"]


def answered(messages: list[Theirs], at: int) -> bool:
    """Say whether the calls of a message have results."""
    wanted = {made["id"] for made in messages[at].get("tool_calls") or ()}
    return wanted <= {message.get("tool_call_id") for message in messages[at:]}


def essence(message: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what a message means, without the freedom that the form gives."""
    role = "system" if message["role"] == "developer" else message["role"]
    content = message.get("content") or ""
    if isinstance(content, list):
        kinds = {part["type"] for part in content}
        texts = "".join(part.get("text", "") for part in content if part["type"] == "text")
        content = texts if kinds <= {"text"} else (texts, tuple(sorted(kinds)))
    made = [
        (told.get("id"), told["function"]["name"], told["function"]["arguments"])
        for told in message.get("tool_calls") or ()
    ]
    return role, content, tuple(made), *([message["tool_call_id"]] if role == "tool" else [])


@given(conversations, st.text())
def test_what_is_given_away_can_be_taken_over_again(messages: list[Message], system_prompt: str) -> None:
    """Export and import are each other's inverse, up to what the form cannot tell; what is exported has its type."""
    exported = export_messages(messages, system_prompt)
    check_request("openai-chat", {"model": "m", "messages": exported})
    if messages and not system_prompt and exported and exported[0]["role"] == "system":
        exported = [{"role": "user", "content": "before"}, *exported]
    again, ours = import_messages(exported)
    assert again == system_prompt
    assert unnamed(export_messages(ours, again)) == unnamed(exported)


def unnamed(messages: list[Theirs]) -> list[Theirs]:
    """Leave out names of tools: those that OpenAI refuses go by others."""
    for made in (made for message in messages for made in message.get("tool_calls", ())):
        del made["function"]["name"]
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
    },
)


@given(st.lists(odd_messages | json_values, max_size=4))
def test_anything_is_taken_over_or_refused(messages: list[Any]) -> None:
    """No message with something odd in any of its places raises another error."""
    try:
        _, ours = import_messages(messages)
    except InvalidDocument:
        return
    assert all(isinstance(message, Message) for message in ours)
