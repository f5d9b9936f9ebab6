"""Reasons to stop, and the verdict about going on."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import AgentLoopError, NotJson
from agentloop.values.serialization import to_json
from agentloop.values.stop import LIMITS, NO_SIGNALS, AgentStop, Continuation, StopReason, StopSignal
from tests.strategies import continuations, stop_signals

SOFT = {StopReason.COMPLETED, StopReason.FINISH_REASON, StopReason.STOP_REQUESTED}
HARD = set(StopReason) - SOFT


def test_the_reasons_stand_in_the_order_of_their_weight() -> None:
    """An error has the highest weight, completion the lowest, and no two weights are equal."""
    assert sorted(StopReason, key=lambda reason: reason.weight, reverse=True) == list(StopReason)
    assert len({reason.weight for reason in StopReason}) == len(StopReason)
    assert [reason.value for reason in StopReason] == [
        "error",
        "user_requested",
        "suspended",
        "cost_limit",
        "token_limit",
        "time_limit",
        "step_limit",
        "tool_call_limit",
        "retry_limit",
        "no_progress",
        "stop_requested",
        "finish_reason",
        "completed",
    ]


def test_soft_reasons_are_those_that_a_continuation_overrides() -> None:
    """Completed, finish reason and stop requested are soft; every other reason is hard and outweighs them."""
    assert {reason for reason in StopReason if not reason.is_hard} == SOFT
    assert max(reason.weight for reason in SOFT) < min(reason.weight for reason in HARD)


def test_limits_are_the_hard_reasons_that_are_no_failure() -> None:
    """An error, the user and a suspension are no limits."""
    assert HARD - {StopReason.ERROR, StopReason.USER_REQUESTED, StopReason.SUSPENDED} == LIMITS


@pytest.mark.parametrize(
    ("soft", "hard", "requested", "after_tools", "after_none"),
    [
        (0, 0, False, False, True),
        (0, 0, True, False, False),
        (1, 0, False, True, True),
        (1, 0, True, False, False),
        (0, 1, False, True, True),
        (0, 1, True, True, True),
        (1, 1, False, True, True),
        (1, 1, True, True, True),
    ],
)
def test_the_verdict_after_a_step(
    *, soft: int, hard: int, requested: bool, after_tools: bool, after_none: bool
) -> None:
    """Hard signals stop; else a request continues; else soft signals stop, and so does a step without tools."""
    signals = [StopSignal(StopReason.COMPLETED)] * soft + [StopSignal(StopReason.STEP_LIMIT)] * hard
    state = Continuation(signals, requested)
    assert state.should_stop(has_tool_executions=True) is after_tools
    assert state.should_stop(has_tool_executions=False) is after_none


@given(continuations())
def test_against_a_request_exactly_the_hard_reasons_stop(state: Continuation) -> None:
    """A hard reason stops despite a request; a soft reason does not."""
    requested = state.with_request()
    hard = any(signal.reason in HARD for signal in state.signals)
    assert requested.should_stop(has_tool_executions=True) is hard
    assert requested.should_stop(has_tool_executions=False) is hard
    assert (requested.hard_signal is not None) is hard


@given(st.lists(stop_signals(), min_size=1, max_size=4))
def test_the_weightiest_signal_wins(signals: list[StopSignal]) -> None:
    """Whatever the order, the signal of the greatest weight is the reason; of equals the first."""
    most = max(signal.reason.weight for signal in signals)
    for order in permutations(signals):
        first = next(signal for signal in order if signal.reason.weight == most)
        assert Continuation(order).signal is first
        assert Continuation(order).hard_signal is (first if first.reason.is_hard else None)


def test_without_signals_there_is_no_reason() -> None:
    """Without signals there is no signal."""
    assert NO_SIGNALS.signal is None
    assert NO_SIGNALS.hard_signal is None
    assert Continuation() == NO_SIGNALS


@given(continuations(), stop_signals())
def test_signals_and_requests_are_added_to_a_copy(before: Continuation, signal: StopSignal) -> None:
    """A signal is appended, a request remains, and the original is unchanged."""
    written = to_json(before)
    assert before.with_signal(signal).signals == (*before.signals, signal)
    assert before.with_signal(signal).requested is before.requested
    assert before.with_request() == Continuation(before.signals, True)  # noqa: FBT003  # the field is named `requested`
    assert to_json(before) == written


def test_a_list_of_signals_is_copied() -> None:
    """Changing the list changes nothing."""
    signals = [StopSignal(StopReason.ERROR)]
    state = Continuation(signals)
    signals.clear()
    assert state.signals == (StopSignal(StopReason.ERROR),)


def test_the_reason_of_a_signal_can_be_passed_by_name() -> None:
    """Names become members, unknown names are refused, and the context is immutable JSON."""
    context = {"limit": [1]}
    signal = StopSignal("step_limit", context=context)
    context["limit"].append(2)
    assert signal == StopSignal(StopReason.STEP_LIMIT, "", "", {"limit": (1,)})
    with pytest.raises(ValueError, match="'boredom' is not a valid StopReason"):
        StopSignal("boredom")
    with pytest.raises(NotJson):
        StopSignal(StopReason.ERROR, context={"a": {1}})


def test_a_stop_can_be_raised_with_its_reason() -> None:
    """The error carries the signal, and has a message by default."""
    stop = AgentStop("enough", reason=StopReason.USER_REQUESTED, source="me", context={"a": 1})  # type: ignore[arg-type]  # converted
    assert stop.signal == StopSignal(StopReason.USER_REQUESTED, "enough", "me", {"a": 1})
    assert str(stop) == "enough"
    assert str(AgentStop()) == "stop: stop_requested"
    assert AgentStop().signal == StopSignal(StopReason.STOP_REQUESTED)
    assert isinstance(stop, AgentLoopError)


@pytest.mark.parametrize(("source", "expected"), [("", "the tool"), ("me", "me")])
def test_the_source_of_a_stop_is_set_by_default(source: str, expected: str) -> None:
    """An empty source is set; an existing source is not replaced."""
    stop: Any = AgentStop("enough", source=source)
    stop.set_default_source("the tool")
    stop.set_default_source("another")
    assert stop.signal == StopSignal(StopReason.STOP_REQUESTED, "enough", expected)
