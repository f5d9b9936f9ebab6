"""Steps, and turns some of whose calls wait."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ContractViolation
from agentloop.testing.strategies import error_infos, tool_executions
from agentloop.values.decisions import PendingCall
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.serialization import to_json
from agentloop.values.steps import AgentStep, StepKind, SuspendedTurn
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolStatus
from tests.strategies import agent_steps, open_turns

NOW = datetime(2024, 1, 1, tzinfo=UTC)
CALLS = [ToolCall(str(number), "find") for number in range(3)]
KEYS = ["run/1/0", "run/1/1", "run/1/2"]


def execution(key: str) -> ToolExecution:
    """Return the execution of the call of this key."""
    call = CALLS[KEYS.index(key)]
    return ToolExecution(id="e", key=key, call=call, status=ToolStatus.SUCCEEDED, started_at=NOW, ended_at=NOW)


def pending(key: str) -> PendingCall:
    """Let the call of this key wait."""
    return PendingCall(key, CALLS[KEYS.index(key)])


def step(**fields: Any) -> AgentStep:
    """Return a step."""
    return AgentStep(**{"id": "s", "number": 1, "started_at": NOW, "ended_at": NOW, **fields})


def test_a_turn_has_a_slot_for_each_of_its_calls() -> None:
    """A turn without a slot for a call is refused (law 1)."""
    turn = SuspendedTurn([Text("x"), *CALLS], [execution(KEYS[0]), pending(KEYS[1]), execution(KEYS[2])])
    assert turn.executions == (execution(KEYS[0]), execution(KEYS[2]))
    assert turn.pending == (pending(KEYS[1]),)
    with pytest.raises(ContractViolation, match=r"^an open turn with 3 calls needs 3 slots, not 1 \(law 1\)$"):
        SuspendedTurn(CALLS, [pending(KEYS[0])])


def test_outcomes_and_waiting_calls_go_to_the_places_of_their_keys() -> None:
    """Each execution and pending call is in the slot of its call, whatever the order of the arguments."""
    turn = SuspendedTurn.of(
        [CALLS[0], Text("x"), CALLS[1], CALLS[2]], KEYS, [execution(KEYS[2]), execution(KEYS[0])], [pending(KEYS[1])]
    )
    assert turn.slots == (execution(KEYS[0]), pending(KEYS[1]), execution(KEYS[2]))
    assert turn.parts == (CALLS[0], Text("x"), CALLS[1], CALLS[2])


@pytest.mark.parametrize(
    ("settled", "waiting"),
    [
        (KEYS[:2], []),
        (KEYS, KEYS[:1]),
        ([KEYS[0], KEYS[0], KEYS[1]], [KEYS[2]]),
        ([], []),
        (KEYS[:1], [KEYS[1], KEYS[1]]),
    ],
    ids=["missing", "both", "twice", "none", "waits twice"],
)
def test_a_call_that_is_not_either_settled_or_pending_is_refused(settled: list[str], waiting: list[str]) -> None:
    """Each call is either settled or waits (law 1)."""
    with pytest.raises(ContractViolation, match=r"3 calls need as many executions and pending calls, .* \(law 1\)"):
        SuspendedTurn.of(CALLS, KEYS, [execution(key) for key in settled], [pending(key) for key in waiting])


def test_a_key_of_another_call_is_refused() -> None:
    """As many outcomes as calls are not enough."""
    with pytest.raises(ContractViolation, match="law 1"):
        SuspendedTurn.of(CALLS[:1], ["other/1/0"], [execution(KEYS[0])], [])


@given(st.data(), open_turns(prefix="run/1"))
def test_settling_every_call_makes_the_message(data: st.DataObject, turn: SuspendedTurn) -> None:
    """When all are settled, the turn is a message with every call joined to its outcome; before, it is none."""
    with pytest.raises(ContractViolation, match="laws 1 and 2"):
        turn.message()
    before = to_json(turn)
    outcomes = {slot.key: data.draw(tool_executions(call=slot.call, key=slot.key)) for slot in turn.pending}
    full = turn.with_settled(outcomes, {})
    exchanges = full.message().exchanges
    assert [exchange.call for exchange in exchanges] == [part for part in turn.parts if isinstance(part, ToolCall)]
    assert [exchange.execution for exchange in exchanges] == list(full.executions)
    for slot, outcome in zip(turn.slots, full.executions, strict=True):
        assert outcome == outcomes.get(slot.key, slot)
    assert to_json(turn) == before


def test_settling_a_call_leaves_the_others_pending() -> None:
    """Calls that are not named stay; those that still wait may do so for another reason."""
    turn = SuspendedTurn(CALLS, [pending(key) for key in KEYS])
    later = PendingCall(KEYS[2], CALLS[2], "ask the boss")
    assert turn.with_settled({KEYS[0]: execution(KEYS[0])}, {KEYS[2]: later}).slots == (
        execution(KEYS[0]),
        pending(KEYS[1]),
        later,
    )


def test_the_kind_of_a_step_is_its_result() -> None:
    """Errors come first, then calls, settled or waiting; all else is a final response."""
    exchange = ToolExchange(CALLS[0], execution(KEYS[0]))
    turn = SuspendedTurn(CALLS[:1], [pending(KEYS[0])])
    error = ErrorInfo("ValueError", "no")
    assert step(message=Message.assistant("done")).kind is StepKind.FINAL_RESPONSE
    assert step(message=Message.assistant()).kind is StepKind.FINAL_RESPONSE
    assert step(message=Message.assistant("x", exchange)).kind is StepKind.TOOL_EXECUTION
    assert step(open_turn=turn).kind is StepKind.TOOL_EXECUTION
    assert step(errors=[error]).kind is StepKind.ERROR
    assert step(message=Message.assistant(exchange), errors=[error]).kind is StepKind.ERROR


@given(agent_steps())
def test_executions_and_waiting_calls_are_those_of_the_message_or_the_turn(step: AgentStep) -> None:
    """A step derives them; it holds them nowhere else."""
    exchanges = step.message.exchanges if step.message is not None else ()
    turn = step.open_turn
    assert step.executions == (turn.executions if turn else tuple(exchange.execution for exchange in exchanges))
    assert step.pending == (turn.pending if turn else ())


@given(agent_steps(), error_infos())
def test_an_error_is_added_to_a_copy(step: AgentStep, error: ErrorInfo) -> None:
    """The copy has the kind `error`; the original is unchanged."""
    before = to_json(step)
    failed = step.with_error(error)
    assert failed.errors == (*step.errors, error)
    assert failed.kind is StepKind.ERROR
    assert to_json(step) == before
