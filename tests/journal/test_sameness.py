"""What Python calls equal and JSON tells apart is told apart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from attrs import evolve

from agentloop import AgentLoop
from agentloop.interception import after_step
from agentloop.journal import MemoryJournal
from agentloop.journal.deltas import is_same_json
from agentloop.journal.fold import fold_records
from agentloop.journal.fork_effects import is_same_call
from agentloop.replay import replay
from agentloop.values import ToolCall, freeze, to_json
from agentloop.values.points import AfterStep
from tests.replay.bench import loop_of

TWINS = [(1, True), (True, 1), (1, 1.0), (1.0, 1), (False, 0), (0, 0.0), (0.0, -0.0)]


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_twins_are_not_the_same(one: object, other: object) -> None:
    """Wherever they stand in plain data and in values."""
    assert one == other
    assert not is_same_json(one, other)
    assert not is_same_json({"a": [1, {"b": one}]}, {"a": [1, {"b": other}]})
    assert not is_same_json(freeze({"a": [one]}), freeze({"a": [other]}))
    assert is_same_json({"a": [1, {"b": one}]}, {"a": [1, {"b": one}]})


def test_what_is_written_otherwise_is_not_the_same() -> None:
    """Times of other zones are not; the order of keys tells only who asks for it."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert is_same_json(noon, datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert not is_same_json(noon, noon.astimezone(timezone(timedelta(hours=1))))
    one, other = {"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"d": 2, "c": 1}}
    assert is_same_json(one, other)
    assert not is_same_json(one, other, ordered=True)
    assert not is_same_json(one, {"a": 1})


@pytest.mark.parametrize(("one", "other"), TWINS)
def test_calls_with_twins_are_two_calls(one: object, other: object) -> None:
    """A fork gives the outcome of one to the other only when they are written alike."""
    calls = [ToolCall("id", "look").with_arguments({"a": value}) for value in (one, other)]
    assert not is_same_call(calls[0], calls[1])
    assert is_same_call(calls[0], evolve(calls[0], arguments_json=calls[0].arguments_json.replace(":", " : ")))


def flagging(first: object, then: object, journal: MemoryJournal | None = None) -> AgentLoop:
    """Return a loop that flags its state with one value in its first step and with the other one later."""

    async def flag(point: AfterStep) -> AfterStep:
        state = point.state
        metadata = state.context.metadata.plus(flag=first if state.step_count == 1 else then)
        return point.with_state(evolve(state, context=evolve(state.context, metadata=metadata)))

    return loop_of(journal=journal, interceptors=[after_step(flag)])


@pytest.mark.parametrize(("one", "other"), TWINS)
async def test_a_state_that_becomes_its_twin_is_recorded_and_compared(one: object, other: object) -> None:
    """The fold of the records is the state to the letter, and a replay tells which of the two was written."""
    journal = MemoryJournal()
    state = await flagging(one, other, journal).execute("What about my orders?", execution_id="run")
    known = fold_records(await journal.read("run"), "run").state
    assert known is not None
    assert to_json(known) == to_json(state)
    assert (await replay(journal, "run", flagging(one, other))).is_equal
    result = await replay(journal, "run", flagging(one, one))
    assert not result.is_equal
    assert "state.context.metadata.flag" in result.explain()
