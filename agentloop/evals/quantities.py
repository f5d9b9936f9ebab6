"""What is estimated of a candidate, by the names that gates, reports and tests use: `pass^3`, `cost`, the name of a scorer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isinf, isnan
from typing import Final, Literal

from attrs import field, frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.results import COST, MEASURES, PASSED, SECONDS, EvalResult
from agentloop.evals.statistics import (
    CONFIDENCE,
    Estimate,
    clustered_mean,
    clustered_share,
    pass_all_k,
    pass_at_k,
)
from agentloop.values.value import Value

_PASS: Final = re.compile(r"pass([@^])([1-9]\d{0,5})")
_SMALL: Final = 0.01


@frozen(eq=False, repr=False)
class Quantity(Value):
    """Something that is estimated of a candidate.

    Attributes:
        name: `pass` for the share of trials that pass; `cost`, `tokens`, `steps` or `seconds`; or the name of a scorer.
        sign: for `pass`, `@` if one of k trials has to pass, `^` if all of them have to; otherwise empty.
        k: for `pass`, the number of trials.
    """

    name: str
    sign: Literal["", "@", "^"] = ""
    k: int = field(default=1)

    @classmethod
    def parse(cls, text: str) -> Quantity:
        """Read the name of a quantity; `passed` means `pass@1`.

        Raises:
            InvalidParameter: it begins like `pass@`, and no number follows.
        """
        if text in {PASSED, "pass"}:
            return cls("pass", "@")
        if (match := _PASS.fullmatch(text)) is not None:
            return cls("pass", "@" if match[1] == "@" else "^", int(match[2]))
        if text.startswith(("pass@", "pass^")):
            raise InvalidParameter(f"{text!r} needs the number of trials, such as pass@1 or pass^3")
        return cls(text)

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{self.k}" if self.sign else self.name

    @property
    def is_pass(self) -> bool:
        """Whether the quantity is a share of trials that pass."""
        return bool(self.sign)

    @property
    def is_better_lower(self) -> bool:
        """Whether less of it is better, as of costs."""
        return self.name in MEASURES

    def numbers(self, result: EvalResult, candidate: str) -> dict[str, list[float]]:
        """Return the numbers of a candidate by case: of its trials, or the one estimate of pass@k and pass^k for k above 1.

        A case with fewer than k trials has none.

        Raises:
            InvalidParameter: the result has no such candidate, or no number of this kind.
        """
        found = result.measures(candidate, PASSED if self.is_pass else self.name)
        if self.is_pass and self.k > 1:
            estimator = pass_at_k if self.sign == "@" else pass_all_k
            counts = {case: (round(sum(values)), len(values)) for case, values in found.items()}
            found = {case: [estimator(*count, self.k)] for case, count in counts.items() if count[1] >= self.k}
        if not found:
            raise InvalidParameter(self._missing(result, candidate))
        return found

    def _missing(self, result: EvalResult, candidate: str) -> str:
        if not result.of(candidate):
            return f"the candidate {candidate!r} has no trials"
        if self.is_pass:
            return f"{self} needs {self.k} repeats of a case; the result has {result.repeats}"
        known = ", ".join(["pass@1", "pass^2", *[name for name in result.measure_names if name != PASSED]])
        if self.name in MEASURES:
            return f"the trials of {candidate!r} have no {self.name}; known are {known}"
        return f"no trial of {candidate!r} has a number {self.name!r}; known are {known}"

    def is_share(self, numbers: Mapping[str, list[float]]) -> bool:
        """Whether these numbers are verdicts or shares, which have intervals between 0 and 1."""
        if self.name in MEASURES:
            return False  # one step in each trial is no verdict
        return self.is_pass or all(value in {0.0, 1.0} for values in numbers.values() for value in values)

    def estimate(self, result: EvalResult, candidate: str, *, confidence: float = CONFIDENCE) -> Estimate:
        """Estimate the quantity of a candidate.

        Raises:
            InvalidParameter: the result has no such candidate, or no number of this kind.
        """
        numbers = self.numbers(result, candidate)
        cases = list(numbers.values())
        if self.is_share(numbers):
            return clustered_share(cases, per_trial=self.k == 1, confidence=confidence)
        return clustered_mean(cases, confidence=confidence)

    def format(self, number: float, *, is_share: bool | None = None) -> str:
        """Write a number as people read it: `88.2 %`, `$0.0123`, `1.5 s`, `1,204`.

        Args:
            number: the number.
            is_share: whether to write it as a percentage; by default, for shares of trials that pass.
        """
        if isnan(number):
            return "unknown"
        if isinf(number):
            return "∞" if number > 0 else "-∞"
        if self.is_pass if is_share is None else is_share:
            return f"{100 * number:.1f} %"
        if self.name == COST:
            return format_cost(number)
        return f"{number:,.2f} s" if self.name == SECONDS else format_plain(number)


def format_cost(dollars: float) -> str:
    """Write US dollars with as many digits as small amounts need."""
    sign, amount = "-" if dollars < 0 else "", abs(dollars)
    if not amount or amount >= 1:
        return f"{sign}${amount:,.2f}"
    return f"{sign}${amount:.4f}" if amount >= _SMALL else f"{sign}${amount:.2g}"


def format_plain(number: float) -> str:
    """Write a number with thousands separated, and decimals where they say something."""
    return f"{number:,.0f}" if number == round(number) or abs(number) >= 1_000 else f"{number:,.2f}"  # noqa: PLR2004


def format_change(number: float) -> str:
    """Write a relative change, such as `+10.0 %`."""
    if isinf(number):
        return "∞" if number > 0 else "-∞"
    return f"{100 * number:+.1f} %"


def format_points(number: float) -> str:
    """Write a difference of shares in percentage points, such as `-3.2 points`."""
    return f"{100 * number:+.1f} points"
