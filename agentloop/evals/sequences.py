"""Looking before the end: intervals that stay right however often one looks."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
from attrs import define, evolve, field

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.statistics import CONFIDENCE, Estimate, check_confidence


@define(eq=False)
class ConfidenceSequence:
    """An interval for a mean that stays right however often one looks, so that an eval may stop as soon as it says enough.

    An ordinary interval is right at one look that was planned. Whoever looks after every case, and stops when the interval looks good,
    is wrong far more often than in 5 % of evals. All intervals of this sequence together contain the mean with the stated confidence.
    The values have to come in an order that does not depend on them, such as that of the suite, or one by chance.

    It bets against each mean that is possible, with bets that depend on earlier values only; a mean that has lost by a factor of
    1 / (1 - confidence) is excluded for good. The means are those of a grid of 1,001 points, and the ends lie a point outside.

    Attributes:
        confidence: how probable it is that all intervals contain the mean, between 0 and 1.
        count: the number of values so far.
        low: the lower end of the interval so far.
        high: the upper end of the interval so far.

    Source: Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", Journal of the Royal Statistical
    Society B 86 (2024), theorem 3 and section 4.2: the hedged capital process, with θ = 1/2 and c = 1/2.
    """

    confidence: float = field(default=CONFIDENCE)
    count: int = field(default=0, init=False)
    low: float = field(default=0.0, init=False)
    high: float = field(default=1.0, init=False)
    _means: np.ndarray = field(init=False, repr=False, factory=lambda: np.linspace(0.0, 1.0, 1_001))
    _above: np.ndarray = field(init=False, repr=False, factory=lambda: np.zeros(1_001))
    _below: np.ndarray = field(init=False, repr=False, factory=lambda: np.zeros(1_001))
    _sum: float = field(default=0.5, init=False, repr=False)
    _squares: float = field(default=0.25, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        check_confidence(self.confidence)

    def add(self, value: float) -> None:
        """Add the next value, from 0 to 1, such as the share of a case's trials that passed.

        Raises:
            InvalidParameter: the value is not from 0 to 1.
        """
        if not 0 <= value <= 1:
            raise InvalidParameter(f"values of a confidence sequence are from 0 to 1, not {value}")
        count = self.count + 1
        bet = sqrt(2 * log(2 / (1 - self.confidence)) / (self._squares * log(1 + count)))
        with np.errstate(divide="ignore"):
            self._above += np.log1p(np.minimum(bet, 0.5 / self._means) * (value - self._means))
            self._below += np.log1p(-np.minimum(bet, 0.5 / (1 - self._means)) * (value - self._means))
        self.count = count
        self._sum += value
        self._squares += (value - self._sum / (count + 1)) ** 2
        self._narrow()

    @property
    def estimate(self) -> Estimate:
        """The mean so far, with the interval."""
        mean = (self._sum - 0.5) / self.count if self.count else 0.5
        return Estimate(mean, self.low, self.high, self.count, "confidence sequence (betting)", self.confidence)

    def _narrow(self) -> None:
        # Either half of the capital has to stay below 1 / alpha.
        possible = np.maximum(self._above, self._below) + log(0.5) < -log(1 - self.confidence)
        kept = np.flatnonzero(possible)
        step = 1 / (len(self._means) - 1)
        if kept.size:
            self.low = max(self.low, float(self._means[kept[0]]) - step)
            self.high = min(self.high, float(self._means[kept[-1]]) + step)


def always_valid(
    values: Sequence[float], *, lowest: float = 0.0, highest: float = 1.0, confidence: float = CONFIDENCE
) -> Estimate:
    """Return the interval of a `ConfidenceSequence` after these values, which may be looked at after every one of them.

    Args:
        values: the values in their order, such as the difference of each case.
        lowest: the lowest value that is possible; -1 for differences of shares.
        highest: the highest value that is possible.
        confidence: of the whole sequence, between 0 and 1.

    Raises:
        InvalidParameter: a value is not from the lowest to the highest.
    """
    width = highest - lowest
    sequence = ConfidenceSequence(confidence)
    for value in values:
        sequence.add((value - lowest) / width)
    found = sequence.estimate
    ends = [max(lowest, lowest + width * found.low), min(highest, lowest + width * found.high)]
    return evolve(found, value=lowest + width * found.value, low=ends[0], high=ends[1])
