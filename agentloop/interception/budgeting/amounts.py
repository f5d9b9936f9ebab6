"""What executions use up, in whole numbers, so that sums are exact."""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

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
