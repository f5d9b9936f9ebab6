"""The turns of a conversation: what a turn costs does not grow with the conversation, and its record is that of the whole state."""

from __future__ import annotations

import sys
from collections.abc import Callable
from operator import is_
from pathlib import Path
from types import FrameType
from typing import Self

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference
from agentloop.durable import Journal, MemoryJournal, SqliteJournal, verify_records
from agentloop.durable.conversation_texts import ConversationTexts, KeptText
from agentloop.durable.deltas import state_delta
from agentloop.durable.fold import fold_records, state_at
from agentloop.values.json import format_json, parse_json
from agentloop.values.messages import Message


def journal_of(kind: str, folder: Path, **options: object) -> Journal:
    """Return a journal in memory, or in a file."""
    if kind == "memory":
        return MemoryJournal(**options)  # type: ignore[arg-type]  # secrets
    return SqliteJournal(folder / "a.db", synchronous="normal", **options)  # type: ignore[arg-type]  # secrets


async def take_turn(loop: AgentLoop, state: AgentState | None, number: int, session: str | None = None) -> AgentState:
    """Return the state after one more turn, from the state of the turn before or from a session."""
    text = f"turn {number}, how are you?"
    given = text if state is None or session is not None else state.with_message(text)
    return await loop.execute(given, execution_id=f"t{number}", session=session)


@pytest.mark.parametrize("session", [None, "ada"])
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_turn_costs_the_same_however_long_the_conversation_is(
    kind: str, session: str | None, tmp_path: Path
) -> None:
    """The functions that are called in a turn are as many after 300 turns as after 10: none of them is called for each message."""
    journal = journal_of(kind, tmp_path)
    loop = AgentLoop.for_model(ScriptedInference(*[lambda _: "I am fine."] * 320), journal=journal)
    state: AgentState | None = None
    counts: dict[int, int] = {}
    for number in range(320):
        if 5 <= number < 15 or number >= 310:
            with Calls() as calls:
                state = await take_turn(loop, state, number, session)
            counts[number] = calls.count
        else:
            state = await take_turn(loop, state, number, session)
    early, late = (sorted([counts[number] for number in numbers])[5] for numbers in (range(5, 15), range(310, 320)))
    assert late <= early * 1.1
    await journal.aclose()


class Calls:
    """Counts the calls of functions, of Python and of C, in this thread."""

    count = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: object) -> None:
        del frame, argument
        self.count += event in {"call", "c_call"}


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("secrets", [(), ("how are you",), ("not in any message",)])
async def test_the_record_of_a_turn_holds_the_whole_state(kind: str, tmp_path: Path, secrets: tuple[str, ...]) -> None:
    """Its body is the text that the state has without any turn before it, also where texts hold what no UTF-8 can, or secrets."""
    journal = journal_of(kind, tmp_path, secrets=secrets)
    answers = ['{"add":[', "lone \ud800", "é😀", "null", "fine"]
    loop = AgentLoop.for_model(ScriptedInference(*[lambda _, text=text: text for text in answers]), journal=journal)
    state: AgentState | None = None
    for number in range(len(answers)):
        before, state = state, await take_turn(loop, state, number)
        records = verify_records(await journal.read(f"t{number}"), f"t{number}")
        assert fold_records(records, f"t{number}").state == (
            state if "how are you" not in secrets else await journal.state(f"t{number}")
        )
        recorded = parse_json(records[0].body)["state"]
        started = before.with_message(f"turn {number}, how are you?") if before is not None else None
        if started is not None and "how are you" not in secrets:
            assert recorded["messages"] == parse_json(format_json(state_delta(None, started)))["messages"]
        assert ("how are you" in records[0].body) is ("how are you" not in secrets)
    assert await journal.verify() == ()
    await journal.aclose()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@pytest.mark.parametrize("secrets", [(), ("how are you",), ("not in any message",)])
async def test_what_was_recorded_here_need_not_be_read_again(
    kind: str, tmp_path: Path, secrets: tuple[str, ...]
) -> None:
    """The state is the same as if its first record were read whole, and its messages are those that were recorded."""
    journal = journal_of(kind, tmp_path, secrets=secrets)
    answers = ['{"add":[', '"add":[{"role":"user"}],', "lone \ud800", "é😀", "null", "fine"]
    loop = AgentLoop.for_model(ScriptedInference(*[lambda _, text=text: text for text in answers]), journal=journal)
    for number in range(len(answers)):
        recorded = await take_turn(loop, None, number, "ada")
        state = await state_at(journal, f"t{number}", agent_id=recorded.agent_id)
        assert state == await state_at(journal, f"t{number}")
        if "how are you" not in secrets:
            assert state == recorded
            assert all(map(is_, state.messages[: 2 * number + 1], recorded.messages))
    await journal.aclose()


async def test_another_conversation_is_read_whole() -> None:
    """What is kept of an agent's conversation says nothing about one that begins in another way."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(*[lambda _: "fine"] * 9), journal=journal)
    second = await take_turn(loop, await take_turn(loop, None, 0), 1)
    changed = second.with_messages((Message.user("another"), *second.messages[1:]))
    third = await loop.execute(changed.with_message("go on"), execution_id="changed")
    assert await state_at(journal, "changed", agent_id=third.agent_id) == third
    assert await state_at(journal, "t1", agent_id=second.agent_id) == second


async def test_a_changed_conversation_is_recorded_as_it_is() -> None:
    """A message that was replaced, or a turn that is taken again, finds no kept text that is not its own."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(*[lambda _: "fine"] * 9), journal=journal)
    first = await take_turn(loop, None, 0)
    second = await take_turn(loop, first, 1)
    changed = second.with_messages((Message.user("another"), *second.messages[1:]))
    third = await loop.execute(changed.with_message("go on"), execution_id="changed")
    assert await journal.state("changed") == third
    assert third.messages[0].text == "another"


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (lambda messages: (*messages, Message.user("c")), True),
        (lambda messages: messages, True),
        (lambda messages: messages[:1], False),
        (lambda messages: (Message.user("a"), *messages[1:]), False),
    ],
)
def test_only_the_same_messages_have_the_kept_text(
    change: Callable[[tuple[Message, ...]], tuple[Message, ...]], *, begins: bool
) -> None:
    """Equal messages that are other objects are formatted anew."""
    texts, messages = ConversationTexts(), (Message.user("a"), Message.user("b"))
    texts.keep("ada", KeptText(messages, "…"))
    assert texts.beginning("ada", change(messages)).text == ("…" if begins else "")
    assert texts.beginning("bob", messages).text == ""


def test_the_texts_of_conversations_that_are_not_used_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept texts of a journal have a bound together; the conversation that was recorded first goes first."""
    monkeypatch.setattr("agentloop.durable.conversation_texts._MAX_CHARACTERS", 10)
    texts, messages = ConversationTexts(), (Message.user("a"),)
    for name in ("ada", "bob", "ada", "cleo"):
        texts.keep(name, KeptText(messages, "1234"))
    assert [texts.beginning(name, messages).text for name in ("ada", "bob", "cleo")] == ["1234", "", "1234"]
    texts.keep("cleo", KeptText(messages, "12345678901"))
    assert [texts.beginning(name, messages).text for name in ("ada", "cleo")] == ["", ""]
