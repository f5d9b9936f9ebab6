"""What a journal stores: each fact once, and of each turn of a conversation what it adds."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import aclosing, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.contracts.can_journal import CanJournal
from agentloop.durable import MemoryJournal, SqliteJournal, verify_records
from agentloop.durable.bodies import inference_body, read_inference
from agentloop.durable.deltas import MessageIndex, apply_request_delta, apply_state_delta, request_delta, state_delta
from agentloop.durable.fold import FoldedExecution, fold_records
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import (
    InferenceRequest,
    InferenceResponse,
    JournalRecord,
    Message,
    RecordKind,
    Text,
    ToolExchange,
    approve,
)
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import RecordedAttempt, RecordedInference
from agentloop.values.serialization import from_json, to_json, to_plain
from agentloop.values.tool_calls import ErrorInfo
from tests.durable.records import START, make_records

SECOND = timedelta(seconds=1)
WORDS = "As many words as people write when they chat, a line or so, and no more. "


@tool(effect="pure")
def look_up(number: int) -> str:
    """Look something up."""
    return f"{number}: 3 in stock"


def calling_model(request: InferenceRequest) -> InferenceResponse:
    """Call the tool."""
    number = sum(message.role == "assistant" for message in request.messages)
    return InferenceResponse((Text("Looking."), ToolCall(f"call_{number}", "look_up", f'{{"number": {number}}}')))


async def converse(journal: CanJournal, turns: int, *, start: AgentState | None = None, first: int = 0) -> AgentState:
    """Run some turns of a conversation, and return the last state."""
    loop, state = AgentLoop.for_model(ScriptedInference(*[WORDS] * turns), journal=journal), start
    for turn in range(first, first + turns):
        given: AgentState | str = WORDS if state is None else state.with_message(f"{WORDS} {turn}")
        state = await loop.execute(given, execution_id=f"turn {turn}")
    assert state is not None
    return state


def count_rows(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # a name of this file
        return int(count)


# --- steps ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution_id", ["run", None], ids=["short id", "default id"])
async def test_a_step_of_one_small_call_is_small(tmp_path: Path, execution_id: str | None) -> None:
    """With a result of some 330 characters, it takes no more than 2,500 bytes on disk."""
    path, steps = tmp_path / "j.db", 500

    @tool(effect="pure")
    def look_up(number: int) -> str:
        """Look something up."""
        return f"{number}: {'a text as the results of tools have it, ' * 8}"

    async with aclosing(SqliteJournal(path, synchronous="normal")) as journal:
        model = ScriptedInference(*[calling_model] * steps, "done")
        loop = AgentLoop.for_model(model, tools=[look_up], journal=journal, max_steps=None)
        state = await loop.execute("go", execution_id=execution_id)
        assert await journal.state(state.execution_id) == state
    assert state.tool_call_count == steps
    assert path.stat().st_size / steps <= 2_500


async def test_a_result_is_recorded_once() -> None:
    """The record of a step refers to the response and the outcomes, and the state is read back as it was."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(calling_model, "done"), tools=[look_up], journal=journal)
    state = await loop.execute("go", execution_id="run")
    records = await journal.read("run")
    assert sum("3 in stock" in record.body for record in records) == 1
    assert sum("Looking." in record.body for record in records) == 1
    assert to_json(await journal.state("run")) == to_json(state)


async def test_a_masked_result_is_read_back_masked() -> None:
    """A step with a masked outcome holds it masked, as a reference to it could not be read back."""

    @tool(effect="pure")
    def fetch() -> str:
        """Fetch."""
        return "the key is sk-very-secret"

    journal = MemoryJournal(secrets=["sk-very-secret"])
    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "fetch", "{}"), "done"), tools=[fetch], journal=journal)
    await loop.execute("go", execution_id="run")
    recorded = await journal.state("run")
    assert not any("sk-very-secret" in record.body for record in await journal.read("run"))
    assert "the key is" in recorded.steps[0].executions[0].text
    assert recorded.final_text == "done"


@pytest.mark.parametrize("is_other", [False, True])
def test_an_inference_is_read_back_with_the_model_that_it_was_sent_to(*, is_other: bool) -> None:
    """Whether it was another model than the driver's own is stored only where it was."""
    recorded = RecordedInference(response=InferenceResponse((Text("Looking."),)), is_other=is_other)
    body = inference_body(recorded, {}, step=1, index=0)
    assert ("is_other" in body) is is_other
    assert read_inference(body) == recorded


async def test_every_beginning_of_the_records_can_be_read() -> None:
    """After each record of an execution with several steps, the state is the one that was recorded until then."""
    journal = MemoryJournal()
    model = ScriptedInference(*[calling_model] * 4, "done")
    loop = AgentLoop.for_model(model, tools=[look_up], journal=journal)
    state = await loop.execute("go", execution_id="run")
    records = await journal.read("run")
    for count in range(1, len(records) + 1):
        folded = fold_records(records[:count], "run").state
        assert folded is not None
        assert folded.steps == state.steps[: folded.step_count]


async def test_what_is_recorded_of_a_step_is_forgotten_with_its_end() -> None:
    """The next step starts without responses, outcomes and messages of the one before, also where that was only suspended."""

    def interrupted_model(request: InferenceRequest) -> InferenceResponse:
        """Call the tool while somebody sends a message."""
        loop.inbox("run").send("and more?")
        return calling_model(request)

    journal = MemoryJournal()
    model = ScriptedInference(*[interrupted_model] * 2, "done")
    loop = AgentLoop.for_model(model, tools=[look_up], interceptors=[RequireApproval()], journal=journal)
    state = await loop.execute("go", execution_id="run")
    while state.pending:
        state = await loop.resume("run", {call.key: approve() for call in state.pending})
    folded, seen = FoldedExecution(), set[RecordKind]()
    for record in await journal.read("run"):
        folded.apply(record)
        messages, calls = folded.taken_messages, folded.calls
        kept = [*folded.inferences, *folded.parts.responses, *folded.parts.executions, *messages, *calls]
        if "delta" in parse_json(record.body):
            assert not kept
        elif kept:
            seen.add(record.kind)
    assert seen >= {
        RecordKind.MESSAGES_TAKEN,
        RecordKind.INFERENCE_RECORDED,
        RecordKind.CALL_INTENT,
        RecordKind.CALL_OUTCOME,
    }
    assert not folded.waiting_messages


async def test_each_inference_is_recorded_with_the_number_of_its_step() -> None:
    """The first step has the number 1."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(*[calling_model] * 2, "done"), tools=[look_up], journal=journal)
    await loop.execute("go", execution_id="run")
    bodies = [
        parse_json(record.body) for record in await journal.read("run") if record.kind is RecordKind.INFERENCE_RECORDED
    ]
    assert [body["step"] for body in bodies] == [1, 2, 3]


# --- differences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 2])
def test_an_inference_is_read_as_it_was_recorded(count: int) -> None:
    """With the attempts that failed; without any, the body does not mention them."""
    error = ErrorInfo(type="TimeoutError", message="away")
    failed = [RecordedAttempt(error=error, failed_at=START, delay=number) for number in range(count)]
    recorded = RecordedInference(response=InferenceResponse((Text(WORDS),)), started_at=START, failed_attempts=failed)
    body = inference_body(recorded, {}, step=1, index=0)
    assert read_inference(body) == recorded
    assert ("failed_attempts" in body) is (count > 0)


async def test_a_further_step_is_stored_without_what_follows_from_it() -> None:
    """The delta holds the step, and its message once; the totals with its tokens are counted when it is read."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(*[calling_model] * 2, "done"), tools=[look_up], journal=journal)
    await loop.execute("go", execution_id="run")
    before, after = await journal.state("run", 1), await journal.state("run", 2)
    delta = state_delta(before, after)
    assert delta.keys() == {"messages", "next_step"}
    assert delta["next_step"]["message"] == 2
    assert apply_state_delta(before, delta) == after


def with_other_execution(message: Message, **changes: Any) -> Message:
    """Return a message whose first call has another outcome."""
    parts = list(message.parts)
    place = next(place for place, part in enumerate(parts) if isinstance(part, ToolExchange))
    exchange = message.exchanges[0]
    parts[place] = evolve(exchange, execution=evolve(exchange.execution, **changes))
    return evolve(message, parts=parts)


@pytest.mark.parametrize(
    "change",
    [
        lambda message: with_other_execution(message, value={"unit": {"b": 2, "a": 0}, "count": 3}),
        lambda message: with_other_execution(message, value={"count": 3, "unit": {"a": 0, "b": 2}}),
        lambda message: with_other_execution(message, value={"count": 3.0, "unit": {"b": 2, "a": 0}}),
        lambda message: with_other_execution(message, value="another"),
        lambda message: with_other_execution(message, ended_at=message.exchanges[0].execution.ended_at + SECOND),
        lambda message: evolve(message, parts=[Text("Rewritten."), *message.parts[1:]]),
        lambda message: evolve(message, parts=message.parts[1:]),
        lambda message: evolve(message, parts=[*message.parts, Text("More.")]),
        lambda message: evolve(message, metadata={"by": "an interceptor"}),
        lambda message: message,
    ],
    ids=["order", "inner order", "number", "value", "time", "text", "fewer", "more", "metadata", "nothing"],
)
async def test_a_message_that_is_not_what_was_recorded_of_its_step_is_stored_as_it_is(
    change: Callable[[Message], Message],
) -> None:
    """It refers to the recorded response and outcomes only where their JSON is the same, with the order of keys."""

    @tool(effect="pure")
    def look_up(number: int) -> dict[str, object]:
        """Look something up."""
        return {"count": 3, "unit": {"b": 2, "a": number}}

    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference(calling_model, "done"), tools=[look_up], journal=journal)
    await loop.execute("go", execution_id="run")
    before, after = await journal.state("run", 0), await journal.state("run", 1)
    records = await journal.read("run")
    end = [record.kind for record in records].index(RecordKind.STEP_COMPLETED)
    parts = fold_records(records[:end], "run").parts
    changed = after.with_messages([*after.messages[:-1], change(after.messages[-1])])
    delta = parse_json(format_json(state_delta(before, changed, parts)).decode())
    assert to_json(apply_state_delta(before, delta, parts)) == to_json(changed)
    is_same = changed.messages == after.messages and to_json(changed) == to_json(after)
    assert (delta["messages"]["add"] == [{"response": 0, "executions": ["run/1/0"]}]) is is_same


async def test_a_first_execution_is_a_difference() -> None:
    """A state without an execution and a later one with steps are read back as they were."""
    loop = AgentLoop.for_model(ScriptedInference(calling_model, "done"), tools=[look_up])
    before = AgentState.start("go")
    after = await loop.execute(before)
    for earlier, later in ((before, after), (after, before)):
        assert to_json(apply_state_delta(earlier, state_delta(earlier, later))) == to_json(later)


async def test_a_state_is_stored_with_each_message_once() -> None:
    """The steps refer to the conversation by position, wherever their messages are in it."""
    loop = AgentLoop.for_model(ScriptedInference(*[calling_model] * 3, "done"), tools=[look_up])
    state = (await loop.execute("go")).with_message("more")
    delta = state_delta(None, state)
    assert [step["message"] for step in delta["steps"]["add"]] == [1, 2, 3, 4]
    assert apply_state_delta(None, delta) == state


def test_messages_of_a_request_are_stored_as_ranges_of_positions() -> None:
    """A run of messages of the conversation is a range, a single one a number; another message is stored in full."""
    conversation = [Message.user(f"message {number}") for number in range(6)]
    other, index = Message.user("of an interceptor"), MessageIndex()
    index.update(conversation)
    request = InferenceRequest([*conversation[:3], other, conversation[5]])
    delta = request_delta(None, request, index)
    assert delta["messages"] == {"keep": 0, "add": [[0, 2], to_plain(other), 5]}
    assert apply_request_delta(None, delta, conversation) == request


def test_positions_are_those_of_the_newest_conversation() -> None:
    """A message that a conversation lost has no position any more, and one that moved has another."""
    first, second, third, fourth = [Message.user(f"message {number}") for number in range(4)]
    index = MessageIndex()
    for messages in ([first, second], [first], [third, second, first], [third, second, first, fourth]):
        index.update(messages)
        expected = [messages.index(each) if each in messages else None for each in (first, second, third, fourth)]
        assert [index.position_of(each) for each in (first, second, third, fourth)] == expected


# --- conversations ----------------------------------------------------------------------------------------------------


async def test_a_turn_stores_what_it_adds(tmp_path: Path) -> None:
    """150 short turns stay below 10 kB each, and every turn is read as it was."""
    path, turns = tmp_path / "j.db", 150
    async with aclosing(SqliteJournal(path, synchronous="normal")) as journal:
        state = await converse(journal, turns)
        assert (await journal.state(f"turn {turns - 1}")).messages == state.messages
        assert (await journal.state("turn 70")).messages == state.messages[:142]
        assert await journal.verify() == ()
    assert path.stat().st_size <= turns * 10_000


async def test_records_of_turns_are_those_of_other_journals(tmp_path: Path) -> None:
    """The records of a turn do not depend on how they are stored: their hashes cover the whole text."""
    async with aclosing(SqliteJournal(tmp_path / "j.db")) as journal:
        await converse(journal, 5)
        records = verify_records(await journal.read("turn 4"), "turn 4")
        assert await journal.read("turn 4", after=1) == tuple(records[1:])
        head, copy = await journal.head("turn 4"), MemoryJournal()
        assert head is not None
        assert len(fold_records(records, "turn 4").state.messages) == 10  # type: ignore[union-attr]  # it has started
        await append_claimed(copy, head, records)
    assert await copy.verify() == ()


@pytest.mark.parametrize("deleted", [(0,), (2,), (3,), (0, 1, 2), (4, 3), (1, 3)])
async def test_a_deleted_turn_leaves_the_others_whole(tmp_path: Path, deleted: tuple[int, ...]) -> None:
    """Turns after and before it are read as before; with the last turn, nothing of the conversation remains."""
    path = tmp_path / "j.db"
    async with aclosing(SqliteJournal(path)) as journal:
        state = await converse(journal, 5)
        before = {turn: await journal.read(f"turn {turn}") for turn in range(5) if turn not in deleted}
        for turn in deleted:
            assert await journal.delete(f"turn {turn}")
        assert {turn: await journal.read(f"turn {turn}") for turn in before} == before
        assert await journal.verify() == ()
        if 4 in before:
            await converse(journal, 2, start=state, first=5)
            assert len((await journal.state("turn 6")).messages) == 14
        for turn in {*before, 5, 6}:
            await journal.delete(f"turn {turn}")
    assert count_rows(path, "prefixes") == 0


async def test_purged_turns_leave_the_newest_whole(tmp_path: Path) -> None:
    """A purge of the older turns of a conversation takes nothing from the newer ones."""
    path = tmp_path / "j.db"
    async with aclosing(SqliteJournal(path)) as journal:
        await converse(journal, 6)
        last = await journal.head("turn 3")
        assert last is not None
        before = await journal.read("turn 5")
        assert await journal.purge(last.updated_at) >= 3
        assert await journal.read("turn 5") == before
        assert await journal.verify() == ()


async def test_a_rewritten_conversation_is_stored_anew(tmp_path: Path) -> None:
    """A turn whose state does not begin with that of the turn before, as after a summary, is read as it was, and so are its
    successors and a turn that returns to an earlier state."""
    async with aclosing(SqliteJournal(tmp_path / "j.db")) as journal:
        state = await converse(journal, 4)
        changed = evolve(
            state, context=state.context.with_messages([Message.user("A summary. " * 40), *state.messages[5:]])
        )
        later = await converse(journal, 3, start=changed, first=4)
        assert (await journal.state("turn 6")).messages == later.messages
        fewer = evolve(later, context=later.context.with_messages(later.messages[:6]))
        last = await converse(journal, 2, start=fewer, first=7)
        assert (await journal.state("turn 8")).messages == last.messages
        assert await journal.verify() == ()


async def test_a_changed_beginning_is_found(tmp_path: Path) -> None:
    """A part that was changed or removed is found in every turn that starts with it."""
    path = tmp_path / "j.db"
    for statement in (
        "UPDATE prefixes SET data = replace(data, 'people', 'nobody')",
        "DELETE FROM prefixes WHERE id = 1",
    ):
        path.unlink(missing_ok=True)
        path.with_name("j.db-ends").unlink(missing_ok=True)
        async with aclosing(SqliteJournal(path)) as journal:
            await converse(journal, 4)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)
        async with aclosing(SqliteJournal(path)) as journal:
            findings = await journal.verify()
        assert {finding.execution_id for finding in findings} >= {"turn 2", "turn 3"}


async def test_a_conversation_with_long_texts_is_read_as_it_was(tmp_path: Path) -> None:
    """Long strings, which are cut out of a row, and shared beginnings do not disturb each other."""
    async with aclosing(SqliteJournal(tmp_path / "j.db", spill_bytes=400)) as journal:
        loop = AgentLoop.for_model(ScriptedInference(*["long " * 200] * 6), journal=journal)
        state = await loop.execute("more " * 300, execution_id="turn 0")
        for turn in range(1, 6):
            state = await loop.execute(state.with_message(f"short {turn} \ud83d"), execution_id=f"turn {turn}")
        assert (await journal.state("turn 5")).messages == state.messages
        assert await journal.verify() == ()


# --- documents --------------------------------------------------------------------------------------------------------


async def test_a_state_has_each_message_once_in_its_json() -> None:
    """Steps refer to the conversation by position; the document is read back as the same state and written the same way."""
    loop = AgentLoop.for_model(ScriptedInference(calling_model, "The answer is 42."), tools=[look_up])
    state = await loop.execute("go")
    document = to_json(state)
    assert document.count(b"The answer is 42.") == document.count(b"3 in stock") == 1
    assert [step["message"] for step in json.loads(document)["value"]["execution"]["steps"]] == [1, 2]
    again = from_json(document, AgentState)
    assert again == state
    assert to_json(again) == document
    assert again.steps[0].message is again.messages[1]


async def test_a_document_of_the_form_before_is_read() -> None:
    """Version 2 wrote the message of a step in full."""
    state = await AgentLoop.for_model(ScriptedInference("The answer is 42.")).execute("go")
    document = json.loads(to_json(state))
    document["schema_version"] = 2
    steps, messages = document["value"]["execution"]["steps"], document["value"]["context"]["messages"]
    steps[0]["message"] = messages[steps[0]["message"]]
    assert from_json(json.dumps(document), AgentState) == state


@pytest.mark.parametrize("version", [1, 2])
def test_a_record_of_an_older_document_has_the_version_of_that_document(version: int) -> None:
    """Documents leave out the version of a record that was current when they were written."""
    record = make_records("e", "{}")[0]
    document = json.loads(to_json(record))
    assert "schema_version" not in document["value"]
    document["schema_version"] = version
    assert from_json(json.dumps(document), JournalRecord).schema_version == version
