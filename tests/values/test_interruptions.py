"""Carriers of interrupted work, and how they are found again."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from agentloop.errors import AgentLoopError, JournalFull
from agentloop.testing.executor_bench import begun_state
from agentloop.values.batches import ToolExecutions
from agentloop.values.interruptions import (
    BatchInterrupted,
    ExecutionInterrupted,
    StepInterrupted,
    cause_of,
    interrupted_state,
)

STATE = begun_state("agent", "run")
EXECUTIONS = ToolExecutions((), (), STATE)


def chained(*errors: BaseException) -> BaseException:
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
    """The message of a carrier is that of its cause, so that a carrier that is never unwrapped says what was wrong."""
    assert str(StepInterrupted(STATE, ValueError("no model"))) == "ValueError: no model"
    assert str(ExecutionInterrupted(STATE)) == "cancelled"
    assert isinstance(StepInterrupted(STATE), AgentLoopError)


def test_the_cause_is_reached_through_every_carrier() -> None:
    """A carrier in a carrier stands for the innermost cause; other errors stand for themselves."""
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
def test_a_carrier_is_found_behind_what_was_raised_from_it(errors: list[BaseException]) -> None:
    """Wrapping an error, however often, does not lose the batch that it carries."""
    carrier = BatchInterrupted.find_in(chained(*errors))
    assert carrier is errors[0]


def test_a_carrier_is_found_behind_an_error_raised_while_it_was_handled() -> None:
    """An error raised without `from` keeps the carrier as its context; `from None` gives the carrier up on purpose."""

    assert StepInterrupted.find_in(wrapping_error(forgets=False)) is not None
    assert StepInterrupted.find_in(wrapping_error(forgets=True)) is None


def test_carriers_are_not_confused() -> None:
    """Each class finds its own carriers only, also in a chain of errors that leads back to its beginning."""
    error = chained(BatchInterrupted(EXECUTIONS), StepInterrupted(STATE))
    assert BatchInterrupted.find_in(error) is error.__cause__
    assert ExecutionInterrupted.find_in(error) is None
    first, second = ValueError(), ValueError()
    first.__cause__, second.__cause__ = second, first
    assert StepInterrupted.find_in(first) is None


def test_the_last_state_is_read_from_what_left_the_loop() -> None:
    """Cancellations, journal errors and errors raised from them give the last state; others give none."""
    assert interrupted_state(chained(ExecutionInterrupted(STATE), asyncio.CancelledError(), TimeoutError())) is STATE
    full = JournalFull("no room")
    assert interrupted_state(full) is None
    full.state = STATE
    assert interrupted_state(chained(full, RuntimeError("wrapped"))) is STATE
    assert interrupted_state(asyncio.CancelledError()) is None
