"""How much is enough: the power of an eval, and how many repeats or cases would settle a question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, isfinite, sqrt
from typing import Final

from attrs import frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.statistics import CONFIDENCE, check_cases, mean_of, variance_of
from agentloop.values.value import Value

_MOST_REPEATS: Final = 10_000
_MOST_CASES: Final = 1_000_000


@frozen(eq=False, repr=False)
class Spread(Value):
    """How much the differences of cases vary, by cause.

    Attributes:
        between: the variance of what cases truly differ by; more repeats do not reduce it.
        within: the variance of one repeat of a case; its mean over R repeats has an R-th of it.
        cases: the number of cases.
        repeats: the mean number of repeats per case.
    """

    between: float
    within: float
    cases: int
    repeats: float

    def variance(self, repeats: float) -> float:
        """Return the variance of a case's mean difference with this number of repeats."""
        return self.between + self.within / repeats


def spread(cases: Sequence[Sequence[float]]) -> Spread:
    """Split the variance of differences into that between cases and that of repeats.

    Args:
        cases: for each case, the differences of its repeats, which both candidates ran with the same seed. Where all have a single
            one, the split is unknown, and everything counts as variance between cases.

    Raises:
        InvalidParameter: there are fewer than two cases, or a case has no difference.
    """
    check_cases(cases)
    if len(cases) < 2:  # noqa: PLR2004  # a variance needs two
        raise InvalidParameter("how much cases vary is known from two cases on")
    repeats = len(cases) / sum(1 / len(values) for values in cases)
    total = variance_of([mean_of(values) for values in cases])
    repeated = [values for values in cases if len(values) > 1]
    within = mean_of([variance_of(values) for values in repeated]) if repeated else 0.0
    return Spread(max(total - within / repeats, 0.0), within, len(cases), repeats)


def power(deviation: float, cases: int, difference: float, *, confidence: float = CONFIDENCE) -> float:
    """Return how probably an eval shows a difference that is there.

    Args:
        deviation: the standard deviation of the differences of cases.
        cases: the number of cases.
        difference: the true mean difference.
        confidence: of the interval that has to exclude 0.

    Returns:
        The power of a paired t-test, from 0 to 1.
    """
    from statsmodels.stats.power import TTestPower  # noqa: PLC0415  # takes a second

    if cases < 2:  # noqa: PLR2004  # a variance needs two
        return 0.0
    if deviation <= 0:
        return float(difference != 0)
    found = TTestPower().power(abs(difference) / deviation, cases, 1 - confidence)
    return float(found) if isfinite(found) else 1.0


def detectable(deviation: float, cases: int, *, at_power: float = 0.8, confidence: float = CONFIDENCE) -> float:
    """Return the smallest true difference that an eval would show with this power; infinite with fewer than two cases."""
    if cases < 2:  # noqa: PLR2004  # a variance needs two
        return inf
    if deviation <= 0:
        return 0.0
    from statsmodels.stats.power import TTestPower  # noqa: PLC0415  # takes a second

    found = TTestPower().solve_power(nobs=cases, alpha=1 - confidence, power=at_power)
    return float(found) * deviation


def repeats_needed(
    measured: Spread, distance: float, *, at_power: float = 0.8, confidence: float = CONFIDENCE
) -> int | None:
    """Return how many repeats per case would show this distance, with the cases there are.

    Args:
        measured: how much the differences vary.
        distance: how far the truth is from the value that it is compared with, such as 0.03 for three points.
        at_power: how probably it is to be shown.
        confidence: of the interval.

    Returns:
        The total number of repeats per case; None where no number of repeats is enough, so that more cases are needed.
    """

    def is_enough(repeats: int) -> bool:
        deviation = sqrt(measured.variance(repeats))
        return power(deviation, measured.cases, distance, confidence=confidence) >= at_power

    return _smallest(is_enough, _MOST_REPEATS) if distance else None


def cases_needed(
    measured: Spread, distance: float, *, at_power: float = 0.8, confidence: float = CONFIDENCE
) -> int | None:
    """Return how many cases would show this distance, with the repeats per case that were run; None above a million."""

    def is_enough(cases: int) -> bool:
        deviation = sqrt(measured.variance(measured.repeats))
        return power(deviation, cases, distance, confidence=confidence) >= at_power

    return _smallest(is_enough, _MOST_CASES) if distance else None


def _smallest(is_enough: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number that is enough, when all larger ones are, too; None if even the largest is not."""
    low, high = 0, 1
    while not is_enough(high):
        if high >= most:
            return None
        low, high = high, min(high * 2, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
