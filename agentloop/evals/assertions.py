"""Assertions about results, for tests: a candidate is no worse than a baseline, a gate does not fail."""

from __future__ import annotations

import warnings

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.comparison import EvalDifference, difference, pairs_of
from agentloop.evals.gates import Gate, GateReport
from agentloop.evals.quantities import Quantity
from agentloop.evals.results import EvalResult
from agentloop.evals.statistics import CONFIDENCE


class NotEnoughRepeats(UserWarning):
    """An eval is too small to tell. With `-W error::agentloop.evals.NotEnoughRepeats`, pytest fails such a test."""


def assert_no_worse(
    result: EvalResult,
    baseline: EvalResult | str | None = None,
    *,
    margin: float = 0.02,
    quantity: str = "pass@1",
    confidence: float = CONFIDENCE,
) -> tuple[EvalDifference, ...]:
    """Fail if a candidate is certainly worse than the baseline by more than a margin.

    It fails where the whole interval of the difference is beyond the margin. Where only a part of it is, nothing can be said: it warns
    with `NotEnoughRepeats`, which says how much more would settle it.

    Args:
        result: the result.
        baseline: another result, such as that of the main branch, or the name of a candidate; by default the first candidate.
        margin: how much worse is still accepted: of a share, 0.02 for two points; of a mean such as `cost`, 0.02 for 2 % of the baseline.
        quantity: what is compared, such as `pass^3` or `cost`.
        confidence: that the assertion is right about all candidates together, between 0 and 1.

    Returns:
        The differences of the candidates.

    Raises:
        AssertionError: a candidate is worse; the message has the interval.
        InvalidParameter: the margin is negative, there is nothing to compare, or no such number.
    """
    if margin < 0:
        raise InvalidParameter(f"a margin is 0 or more, not {margin}")
    measured, pairs = Quantity.parse(quantity), list(pairs_of(result, baseline))
    if not pairs:
        raise InvalidParameter("the result has one candidate only; give the result of another eval as the baseline")
    sign = -1.0 if measured.is_better_lower else 1.0
    found, problems = list[EvalDifference](), list[str]()
    for first, second in pairs:
        each = difference(first, second, measured, confidence=1 - (1 - confidence) / len(pairs), settle=-margin * sign)
        found.append(each)
        estimate = each.estimate if each.is_share or each.relative is None else each.relative
        ends = sorted([sign * estimate.low, sign * estimate.high])
        if ends[1] < -margin:
            problems.append(f"{each}, beyond the margin of {_margin(each, margin)}")
        elif ends[0] < -margin:
            warnings.warn(f"not enough repeats: {each}; {_more(each, margin)}", NotEnoughRepeats, stacklevel=2)
    if problems:
        raise AssertionError("\n".join(problems))
    return tuple(found)


def _margin(found: EvalDifference, margin: float) -> str:
    return f"{100 * margin:g} {'points' if found.is_share else '%'}"


def _more(found: EvalDifference, margin: float) -> str:
    ways = [f"{found.more_repeats:,} more repeats per case"] if found.more_repeats is not None else []
    ways += [f"{found.more_cases:,} more cases"] if found.more_cases is not None else []
    would = f"; {' or '.join(ways)} would probably tell" if ways else ""
    return f"it may be worse by more than {_margin(found, margin)}, or not{would}"


def assert_gate(
    result: EvalResult, fail_if: str, baseline: EvalResult | str | None = None, *, confidence: float = CONFIDENCE
) -> GateReport:
    """Fail if a condition certainly holds, such as `pass^3 < 0.9 or cost > +10 %`; arguments as of `Gate`.

    Returns:
        What the gate says. Where nothing can be said, it warns with `NotEnoughRepeats`.

    Raises:
        AssertionError: the condition holds for a candidate.
        InvalidParameter: the condition cannot be read, or the result has no such number.
    """
    report = Gate(fail_if).check(result, baseline, confidence=confidence)
    if report.outcome == "fails":
        raise AssertionError(str(report))
    if report.outcome == "open":
        warnings.warn(str(report), NotEnoughRepeats, stacklevel=2)
    return report
