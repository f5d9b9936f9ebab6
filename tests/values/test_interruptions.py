"""Carriers of interrupted batches, steps and executions."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from agentloop.errors import AgentLoopError, JournalFull
from agentloop.testing.executor_bench import started_state
from agentloop.values.batches import ToolExecutions
from agentloop.values.interruptions import (
    BatchInterrupted,
    ExecutionInterrupted,
    StepInterrupted,
    cause_of,
    interrupted_state,
)

STATE = started_state("agent", "run")
EXECUTIONS = ToolExecutions((), (), STATE)


def chain(*errors: BaseException) -> BaseException:
    """Return the last error, with each as the cause of the next."""
    for error, following in pairwise(errors):
        following.__cause__ = error
    return errors[-1]


def wrapping_error(*, forgets: bool) -> RuntimeError:
    """Return an error that was raised while a carrier was handled."""

    def interrupt() -> None:
        raise StepInterrupted(STATE)

    with pytest.raises(RuntimeError) as raised:  # noqa: PT012  # the handler is what is tested
        try:
            interrupt()
        except StepInterrupted:
            if forgets:
                raise RuntimeError("forgets") from None
            raise RuntimeError("wraps")  # noqa: B904  # as it happens by accident
    return raised.value


def test_a_carrier_names_its_cause() -> None:
    """The message of a carrier contains that of its cause, so that an unhandled carrier explains the error."""
    assert str(StepInterrupted(STATE, ValueError("no model"))) == "ValueError: no model"
    assert str(ExecutionInterrupted(STATE)) == "cancelled"
    assert isinstance(StepInterrupted(STATE), AgentLoopError)


def test_the_cause_of_nested_carriers_is_the_innermost_error() -> None:
    """Carriers are unwrapped; any other error is its own cause."""
    error = ValueError("no model")
    assert cause_of(StepInterrupted(STATE, BatchInterrupted(EXECUTIONS, error))) is error
    assert cause_of(error) is error
    alone = StepInterrupted(STATE)
    assert cause_of(alone) is alone


@pytest.mark.parametrize(
    "errors",
    [
        [BatchInterrupted(EXECUTIONS)],
        [BatchInterrupted(EXECUTIONS), asyncio.CancelledError()],
        [BatchInterrupted(EXECUTIONS), asyncio.CancelledError(), TimeoutError(), RuntimeError("wrapped")],
    ],
)
def test_find_in_searches_the_chain_of_causes(errors: list[BaseException]) -> None:
    """An error that was wrapped any number of times still leads to its batch."""
    carrier = BatchInterrupted.find_in(chain(*errors))
    assert carrier is errors[0]


def test_find_in_searches_the_context_of_an_error() -> None:
    """An error raised while a carrier is handled leads to it, unless it is raised `from None`."""

    assert StepInterrupted.find_in(wrapping_error(forgets=False)) is not None
    assert StepInterrupted.find_in(wrapping_error(forgets=True)) is None


def test_each_class_of_carriers_finds_its_own() -> None:
    """Carriers of other classes are skipped, and a cyclic chain of causes ends the search."""
    error = chain(BatchInterrupted(EXECUTIONS), StepInterrupted(STATE))
    assert BatchInterrupted.find_in(error) is error.__cause__
    assert ExecutionInterrupted.find_in(error) is None
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert StepInterrupted.find_in(first) is None


def test_the_last_state_is_returned_for_errors_of_the_loop() -> None:
    """Cancellations, journal errors and errors raised from them carry the last state; others carry none."""
    assert interrupted_state(chain(ExecutionInterrupted(STATE), asyncio.CancelledError(), TimeoutError())) is STATE
    full = JournalFull("no room")
    assert interrupted_state(full) is None
    full.state = STATE
    assert interrupted_state(chain(full, RuntimeError("wrapped"))) is STATE
    assert interrupted_state(asyncio.CancelledError()) is None
