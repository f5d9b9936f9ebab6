"""What executions use up, in whole numbers, so that sums are exact."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from attrs import frozen

from agentloop.values.json import JsonObject
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, StopReason, StopSignal
from agentloop.values.time_and_ids import Clock

DOLLAR = 10**12
"""Money is counted in parts of a dollar so small that the price of every token is a whole number of them."""


def parts_of_dollar(dollars: float) -> int:
    """Return an amount of money in whole parts."""
    return round(dollars * DOLLAR)


@frozen
class Amounts:
    """How much was used, or is set aside.

    Attributes:
        steps: steps of the loop.
        tool_calls: calls that were allowed to run.
        tokens: input and output together.
        cost: money, in parts of a dollar; see `DOLLAR`.
    """

    steps: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.steps + other.steps,
            self.tool_calls + other.tool_calls,
            self.tokens + other.tokens,
            self.cost + other.cost,
        )

    def without(self, other: Amounts) -> Amounts:
        """Return what is left without these, never below zero."""
        return Amounts(
            max(self.steps - other.steps, 0),
            max(self.tool_calls - other.tool_calls, 0),
            max(self.tokens - other.tokens, 0),
            max(self.cost - other.cost, 0),
        )

    @property
    def dollars(self) -> float:
        """The money in dollars."""
        return self.cost / DOLLAR


NOTHING = Amounts()


@frozen
class Limits:
    """How much may be used; None is no limit. What is left of limits has the same form.

    Attributes:
        steps: steps of the loop.
        tool_calls: calls that run.
        tokens: input and output together.
        cost: money, in parts of a dollar.
    """

    steps: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost: int | None = None

    def minus(self, amounts: Amounts) -> Limits:
        """Return what is left after these amounts; below zero when they were too much."""
        return self._with(amounts, lambda limit, amount: limit - amount)

    def plus(self, amounts: Amounts) -> Limits:
        """Return the limits raised by these amounts."""
        return self._with(amounts, lambda limit, amount: limit + amount)

    def tightened(self, other: Limits) -> Limits:
        """Return the lower of two limits of each kind, never below zero."""
        return Limits(
            _lower(self.steps, other.steps),
            _lower(self.tool_calls, other.tool_calls),
            _lower(self.tokens, other.tokens),
            _lower(self.cost, other.cost),
        )

    def share(self, share: float) -> Limits:
        """Return this share of each limit, rounded down."""
        return self._with(NOTHING, lambda limit, _: int(limit * share))

    def allow(self, amounts: Amounts) -> bool:
        """Say whether these amounts keep every limit; what is not asked for is not held against its limit."""
        left = self.minus(amounts)
        return not (
            (amounts.steps and _below_zero(left.steps))
            or (amounts.tool_calls and _below_zero(left.tool_calls))
            or (amounts.tokens and _below_zero(left.tokens))
            or (amounts.cost and _below_zero(left.cost))
        )

    @property
    def amounts(self) -> Amounts:
        """The limits as amounts, nothing where there is no limit."""
        return Amounts(self.steps or 0, self.tool_calls or 0, self.tokens or 0, self.cost or 0)

    def _with(self, amounts: Amounts, change: Callable[[int, int], int]) -> Limits:
        return Limits(
            None if self.steps is None else change(self.steps, amounts.steps),
            None if self.tool_calls is None else change(self.tool_calls, amounts.tool_calls),
            None if self.tokens is None else change(self.tokens, amounts.tokens),
            None if self.cost is None else change(self.cost, amounts.cost),
        )


def _lower(left: int | None, right: int | None) -> int | None:
    given = [limit for limit in (left, right) if limit is not None]
    return max(min(given), 0) if given else None


def _below_zero(left: int | None) -> bool:
    return left is not None and left < 0


def reached(
    reason: StopReason, limit: float, *, last: bool = False, estimated: bool = False, **counts: int
) -> StopSignal:
    """Return the signal for a limit.

    Args:
        reason: which limit.
        limit: how much it allows; money in dollars, time in seconds.
        last: whether it is so near that the last answer is due.
        estimated: whether the counts are estimates.
        **counts: how far the execution has come, by name.
    """
    number = str(limit) if isinstance(limit, int) else f"{limit:g}"
    amount = f"{number} {_UNITS[reason]}{'' if limit == 1 else 's'}"
    used = _used(reason, counts, estimated=estimated)
    message = f"the limit of {amount} is {'nearly ' if last else ''}reached{used}"
    known: dict[str, object] = {"estimated": estimated} if reason in _MEASURED else {}
    if "cost" in counts:
        return StopSignal(reason, message, context=JsonObject(limit=limit, cost=counts["cost"] / DOLLAR, **known))
    return StopSignal(reason, message, context=JsonObject(limit=limit, **counts, **known))


def refused(reason: StopReason, missing: str) -> StopSignal:
    """Return the signal for what cannot be counted and may not be estimated."""
    return StopSignal(reason, f"{missing}, so the limit cannot be kept", context=JsonObject(missing=missing))


def stop_by(signal: StopSignal) -> AgentStop:
    """Return the exception that stops an execution by this signal."""
    return AgentStop(signal.message, reason=signal.reason, context=signal.context)


def _used(reason: StopReason, counts: dict[str, int], *, estimated: bool) -> str:
    about = "about " if estimated else ""
    if reason is StopReason.TOKEN_LIMIT:
        return f": {about}{counts['tokens']} used"
    if reason is StopReason.COST_LIMIT:
        return f": {about}{counts['cost'] / DOLLAR:.4g} used"
    return ""


_UNITS = {
    StopReason.STEP_LIMIT: "step",
    StopReason.TOOL_CALL_LIMIT: "tool call",
    StopReason.TOKEN_LIMIT: "token",
    StopReason.COST_LIMIT: "dollar",
    StopReason.TIME_LIMIT: "second",
}
_MEASURED = frozenset({StopReason.TOKEN_LIMIT, StopReason.COST_LIMIT})


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
