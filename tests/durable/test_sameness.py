"""Values that are equal in Python and different in JSON are different to the journal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from attrs import evolve

from agentloop import AgentLoop
from agentloop.durable import MemoryJournal, replay
from agentloop.durable.deltas import is_same_json
from agentloop.durable.fold import fold_records
from agentloop.durable.fork_effects import is_same_call
from agentloop.interception import at
from agentloop.values import ToolCall, freeze, to_json
from agentloop.values.points import AfterStep
from tests.durable.replaying.bench import loop_of

EQUAL_VALUES = [(1, True), (True, 1), (1, 1.0), (1.0, 1), (False, 0), (0, 0.0), (0.0, -0.0)]


@pytest.mark.parametrize(("value", "other"), EQUAL_VALUES)
def test_equal_values_with_different_json_are_not_the_same(value: object, other: object) -> None:
    """They differ at any depth of plain data and of values."""
    assert value == other
    assert not is_same_json(value, other)
    assert not is_same_json({"a": [1, {"b": value}]}, {"a": [1, {"b": other}]})
    assert not is_same_json(freeze({"a": [value]}), freeze({"a": [other]}))
    assert is_same_json({"a": [1, {"b": value}]}, {"a": [1, {"b": value}]})


def test_time_zones_always_and_key_order_on_request_make_a_difference() -> None:
    """Equal times in different zones are not the same; the order of keys matters only with `ordered`."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert is_same_json(noon, datetime(2026, 1, 1, 12, tzinfo=UTC))
    assert not is_same_json(noon, noon.astimezone(timezone(timedelta(hours=1))))
    value, other = {"a": 1, "b": {"c": 1, "d": 2}}, {"a": 1, "b": {"d": 2, "c": 1}}
    assert is_same_json(value, other)
    assert not is_same_json(value, other, ordered=True)
    assert not is_same_json(value, {"a": 1})


@pytest.mark.parametrize(("value", "other"), EQUAL_VALUES)
def test_calls_with_different_json_arguments_are_different_calls(value: object, other: object) -> None:
    """A fork reuses the outcome of a call only for arguments with the same JSON, however it is formatted."""
    calls = [ToolCall("id", "look").with_arguments({"a": item}) for item in (value, other)]
    assert not is_same_call(calls[0], calls[1])
    assert is_same_call(calls[0], evolve(calls[0], arguments_json=calls[0].arguments_json.replace(":", " : ")))


def loop_with_flag(first: object, later: object, journal: MemoryJournal | None = None) -> AgentLoop:
    """Return a loop that sets a metadata flag to one value in its first step and to another value later."""

    async def flag(point: AfterStep) -> AfterStep:
        state = point.state
        metadata = state.context.metadata.plus(flag=first if state.step_count == 1 else later)
        return point.with_state(evolve(state, context=evolve(state.context, metadata=metadata)))

    return loop_of(journal=journal, interceptors=[at("after_step", flag)])


@pytest.mark.parametrize(("value", "other"), EQUAL_VALUES)
async def test_a_change_to_an_equal_value_is_recorded_and_detected_by_a_replay(value: object, other: object) -> None:
    """The folded state has the same JSON as the final one, and a replay with the other value diverges."""
    journal = MemoryJournal()
    state = await loop_with_flag(value, other, journal).execute("What about my orders?", execution_id="run")
    folded = fold_records(await journal.read("run"), "run").state
    assert folded is not None
    assert to_json(folded) == to_json(state)
    assert (await replay(journal, "run", loop_with_flag(value, other))).is_equal
    result = await replay(journal, "run", loop_with_flag(value, value))
    assert not result.is_equal
    assert "state.context.metadata.flag" in result.explain()


@pytest.mark.parametrize("malformed", ["{", "[1]", '{"a": 1} 2'])
def test_calls_with_malformed_arguments_are_the_same_only_as_they_are_written(malformed: str) -> None:
    """A fork does not reuse the outcome of a call whose arguments cannot be read."""
    call = ToolCall("id", "look", malformed)
    assert is_same_call(call, evolve(call, id="other"))
    assert not is_same_call(call, evolve(call, arguments_json=f" {malformed}"))
    assert not is_same_call(call, ToolCall("id", "look", "{}"))
