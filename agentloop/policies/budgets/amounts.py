"""Amounts that executions use, their limits, and the signals for a limit; whole numbers, so that sums are exact."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from agentloop.values.accounts import COST_UNITS_PER_DOLLAR
from agentloop.values.json import JsonObject
from agentloop.values.stop import AgentStop, StopReason, StopSignal


def cost_units(dollars: float) -> int:
    """Return an amount of money in whole cost units."""
    return round(dollars * COST_UNITS_PER_DOLLAR)


# --- amounts and limits -----------------------------------------------------------------------------------------


@frozen
class Amounts:
    """How much was used, or is reserved.

    Attributes:
        steps: steps of the loop.
        tool_calls: calls that were allowed to run.
        tokens: input and output together.
        cost: money in cost units; see `COST_UNITS_PER_DOLLAR`.
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

    def minus(self, other: Amounts) -> Amounts:
        """Return the difference, at least zero of each kind."""
        return Amounts(
            max(self.steps - other.steps, 0),
            max(self.tool_calls - other.tool_calls, 0),
            max(self.tokens - other.tokens, 0),
            max(self.cost - other.cost, 0),
        )

    @property
    def dollars(self) -> float:
        """The money in dollars."""
        return self.cost / COST_UNITS_PER_DOLLAR


NO_AMOUNTS = Amounts()


@frozen
class Limits:
    """How much may be used, or how much of it is left; None is no limit.

    Attributes:
        steps: steps of the loop.
        tool_calls: calls that run.
        tokens: input and output together.
        cost: money in cost units; see `COST_UNITS_PER_DOLLAR`.
    """

    steps: int | None = None
    tool_calls: int | None = None
    tokens: int | None = None
    cost: int | None = None

    def minus(self, amounts: Amounts) -> Limits:
        """Return what remains after these amounts; negative if they exceed a limit."""
        return self._combined(amounts, lambda limit, amount: limit - amount)

    def plus(self, amounts: Amounts) -> Limits:
        """Return the limits raised by these amounts."""
        return self._combined(amounts, lambda limit, amount: limit + amount)

    def tightened(self, other: Limits) -> Limits:
        """Return the lower of both limits of each kind, at least zero."""
        return Limits(
            _lower(self.steps, other.steps),
            _lower(self.tool_calls, other.tool_calls),
            _lower(self.tokens, other.tokens),
            _lower(self.cost, other.cost),
        )

    def share(self, share: float) -> Limits:
        """Return this share of each limit, rounded down."""
        # Shares that are rounded up could add up to more than the limit.
        return self._combined(NO_AMOUNTS, lambda limit, _: int(limit * share))

    def allows(self, amounts: Amounts) -> bool:
        """Return whether these amounts fit; a limit that is exceeded already refuses only amounts of its own kind."""
        # A call must not be refused because the tokens are exceeded: each limit has a point at which it is enforced.
        rest = self.minus(amounts)
        return not (
            (amounts.steps and _is_negative(rest.steps))
            or (amounts.tool_calls and _is_negative(rest.tool_calls))
            or (amounts.tokens and _is_negative(rest.tokens))
            or (amounts.cost and _is_negative(rest.cost))
        )

    def of(self, reason: StopReason) -> int | None:
        """Return the limit on steps, tool calls, tokens or cost that is the reason of a stop; money in cost units."""
        match reason:
            case StopReason.COST_LIMIT:
                return self.cost
            case StopReason.TOKEN_LIMIT:
                return self.tokens
            case StopReason.STEP_LIMIT:
                return self.steps
            case _:
                return self.tool_calls

    def _combined(self, amounts: Amounts, combine: Callable[[int, int], int]) -> Limits:
        return Limits(
            None if self.steps is None else combine(self.steps, amounts.steps),
            None if self.tool_calls is None else combine(self.tool_calls, amounts.tool_calls),
            None if self.tokens is None else combine(self.tokens, amounts.tokens),
            None if self.cost is None else combine(self.cost, amounts.cost),
        )


def _lower(first: int | None, second: int | None) -> int | None:
    limits = [limit for limit in (first, second) if limit is not None]
    return max(min(limits), 0) if limits else None


def _is_negative(rest: int | None) -> bool:
    return rest is not None and rest < 0


# --- signals ----------------------------------------------------------------------------------------------------

_UNITS = {
    StopReason.STEP_LIMIT: "step",
    StopReason.TOOL_CALL_LIMIT: "tool call",
    StopReason.TOKEN_LIMIT: "token",
    StopReason.COST_LIMIT: "dollar",
    StopReason.TIME_LIMIT: "second",
}
_ESTIMABLE = frozenset({StopReason.TOKEN_LIMIT, StopReason.COST_LIMIT})


def limit_signal(
    reason: StopReason, limit: float, *, is_near: bool = False, is_estimated: bool = False, **counts: int
) -> StopSignal:
    """Return the signal for a limit that is reached.

    Args:
        reason: which limit.
        limit: how much it allows; money in dollars, time in seconds.
        is_near: whether the limit is not reached yet, and the next answer has to be the last one.
        is_estimated: whether the counts are estimates.
        **counts: how much was used, by name; `cost` in cost units.
    """
    # `g` would print a limit of a million tokens as 1e+06.
    number = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
    amount = f"{number} {_UNITS[reason]}{'' if limit == 1 else 's'}"
    usage = _format_usage(reason, counts, is_near=is_near, is_estimated=is_estimated)
    if is_near and not any(counts.values()):
        message = f"the limit of {amount} is too low for a step before the last answer"
    else:
        message = f"the limit of {amount} is {'nearly ' if is_near else ''}reached{usage}"
    estimated: dict[str, object] = {"estimated": is_estimated} if reason in _ESTIMABLE else {}
    if "cost" in counts:
        dollars = counts["cost"] / COST_UNITS_PER_DOLLAR
        return StopSignal(reason, message, context=JsonObject(limit=limit, cost=dollars, **estimated))
    return StopSignal(reason, message, context=JsonObject(limit=limit, **counts, **estimated))


def unknown_usage_signal(reason: StopReason, missing: str) -> StopSignal:
    """Return the signal for a limit that cannot be enforced, because usage is unknown and may not be estimated."""
    return StopSignal(reason, f"{missing}, so the limit cannot be enforced", context=JsonObject(missing=missing))


def agent_stop(signal: StopSignal) -> AgentStop:
    """Return the exception that stops an execution with this signal."""
    return AgentStop(signal.message, reason=signal.reason, context=signal.context)


def _format_usage(reason: StopReason, counts: dict[str, int], *, is_near: bool, is_estimated: bool) -> str:
    about = "about " if is_estimated else ""
    if reason is StopReason.TOKEN_LIMIT:
        return f": {about}{counts['tokens']:,} used"
    if reason is StopReason.COST_LIMIT:
        return f": {about}{counts['cost'] / COST_UNITS_PER_DOLLAR:.4g} used"
    # Steps and calls are counted one by one. When their limit is reached, exactly so many were used as it allows.
    return f": {next(iter(counts.values())):,} used" if is_near and counts else ""
