"""The time of an execution."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from attrs import frozen

from agentloop.interception.budgeting.signals import reached
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock
from agentloop.values.stop import StopReason, StopSignal

T = TypeVar("T")


class TimeIsUp(Exception):  # internal to budgets; becomes an outcome or a reason to stop
    """What ran was cut off."""


@frozen
class TimeSpan:
    """The time of an execution, from its beginning; what it was suspended for does not count.

    Attributes:
        seconds: how long it is; None for no end.
        share: the share of it that is kept back for the last answer.
        clock: tells the time.
    """

    seconds: float | None
    share: float
    clock: Clock

    def left(self, state: AgentState) -> float | None:
        """Return the seconds left, below zero when it is over; None for no end."""
        execution = state.execution
        if self.seconds is None or execution is None:
            return self.seconds
        passed = (self.clock.now() - execution.started_at).total_seconds()
        return self.seconds - (passed - execution.waited_seconds)

    def left_for_tools(self, state: AgentState) -> float | None:
        """Return the seconds left without those that are kept back."""
        left = self.left(state)
        return None if left is None or self.seconds is None else left - self.seconds * self.share

    def is_over(self, state: AgentState) -> bool:
        """Say whether no time is left."""
        left = self.left(state)
        return left is not None and left <= 0

    def is_over_for_tools(self, state: AgentState) -> bool:
        """Say whether only the time that is kept back is left."""
        left = self.left_for_tools(state)
        return left is not None and left <= 0

    @property
    def signal(self) -> StopSignal:
        """The reason to stop when the time is up."""
        return reached(StopReason.TIME_LIMIT, self.seconds or 0.0)


def seconds_run(state: AgentState) -> float:
    """Return how long the execution ran until its state last changed, without what it was suspended for."""
    execution = state.execution
    if execution is None:
        return 0.0
    return (state.updated_at - execution.started_at).total_seconds() - execution.waited_seconds


async def within(seconds: float | None, work: Callable[[], Awaitable[T]]) -> T:
    """Await the work, for this many seconds at the most; None for no end.

    Raises:
        TimeIsUp: when it was cut off.
    """
    if seconds is None:
        return await work()
    try:
        async with asyncio.timeout(max(seconds, 0)) as limit:
            return await work()
    except TimeoutError:
        if not limit.expired():
            raise
        raise TimeIsUp from None
