"""Comparisons of candidates on the same cases: estimates, differences, tests, and how much more would settle them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from typing import Final, Literal, TypeAlias

from attrs import evolve, field, frozen

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.quantities import Quantity, format_change, format_points
from agentloop.evals.results import MEASURES, PASSED, EvalResult, Trial
from agentloop.evals.sample_sizes import Spread, cases_needed, detectable, power, repeats_needed, spread
from agentloop.evals.statistics import (
    CONFIDENCE,
    Estimate,
    bonett_price,
    holm,
    mcnemar,
    mean_of,
    paired_bootstrap,
    paired_share_difference,
    permutation_p,
)
from agentloop.values.json import as_frozen_dict
from agentloop.values.value import Value

MARGIN: Final = 0.05
"""The difference that the power of an eval is stated for: five points of a share, or 5 % of a mean."""

Verdict: TypeAlias = Literal["better", "worse", "equal", "open"]


@frozen(eq=False, repr=False, kw_only=True)
class Side(Value):
    """One side of a comparison.

    Attributes:
        result: the result that has the trials.
        candidate: the candidate.
        name: what to call it in reports.
    """

    result: EvalResult
    candidate: str
    name: str


@frozen(eq=False, repr=False, kw_only=True)
class EvalDifference(Value):
    """How a candidate differs from the baseline in one quantity, over the cases that both have run.

    Attributes:
        candidate: the name of the candidate.
        baseline: the name of the baseline.
        quantity: what is compared.
        is_share: whether it is a share, whose difference is in points; otherwise a mean.
        estimate: the difference, candidate minus baseline.
        relative: the change relative to the baseline's mean; None for shares, and where that mean is 0.
        p: the p-value of the paired test: McNemar's exact one for single trials, a permutation test otherwise.
        corrected_p: the same, corrected by Holm's method for all comparisons of a report; equal to `p` outside of one.
        power: how probably a true difference of `MARGIN` would be seen with what was run; None with fewer than two cases.
        detectable: the smallest true difference that would be seen with a power of 80 %.
        more_repeats: how many more repeats per case would settle it; None where no number of repeats would, or nothing is open.
        more_cases: how many more cases would settle it; None above a million, or where nothing is open.
        left_out: the cases that are not compared: those that only one side has run, and those that have changed in between.
    """

    candidate: str
    baseline: str
    quantity: Quantity
    is_share: bool
    estimate: Estimate
    relative: Estimate | None = None
    p: float
    corrected_p: float
    power: float | None = None
    detectable: float
    more_repeats: int | None = None
    more_cases: int | None = None
    left_out: tuple[str, ...] = field(default=(), converter=tuple[str, ...])

    @property
    def verdict(self) -> Verdict:
        """What the interval says: `open` while it contains 0; `equal` where no case differs at all and it has no width."""
        low, high = self.estimate.low, self.estimate.high
        if low == high == 0:
            return "equal"
        if low <= 0 <= high:
            return "open"
        return "better" if (low > 0) != self.quantity.is_better_lower else "worse"

    def format(self, number: float) -> str:
        """Write a number of this difference, such as `-3.2 points` or `+$0.01`."""
        if self.is_share:
            return format_points(number)
        text = self.quantity.format(number, is_share=False)
        return text if number < 0 else f"+{text}"

    def __str__(self) -> str:
        found = self.estimate
        text = f"{self.format(found.value)} ({self.format(found.low)} to {self.format(found.high)})"
        if self.relative is not None:
            text += f", {format_change(self.relative.value)}"
        return f"{self.quantity} of {self.candidate} against {self.baseline}: {text}: {self.verdict}"


@frozen(eq=False, repr=False, kw_only=True)
class CaseDifference(Value):
    """How often the baseline and a candidate pass one case.

    Attributes:
        case: the name of the case.
        candidate: the name of the candidate.
        difference: the candidate's share of trials that pass, minus the baseline's.
        trials: the trials of the candidate.
        baseline_trials: the trials of the baseline.
    """

    case: str
    candidate: str
    difference: float
    trials: tuple[Trial, ...] = field(converter=tuple[Trial, ...])
    baseline_trials: tuple[Trial, ...] = field(converter=tuple[Trial, ...])

    @property
    def shown(self) -> tuple[Trial, Trial]:
        """A trial of the baseline and one of the candidate: the first pair with the same seed whose verdicts differ, if there is one."""
        own = {trial.repeat: trial for trial in self.trials}
        pairs = [(each, own[each.repeat]) for each in self.baseline_trials if each.repeat in own]
        unequal = [pair for pair in pairs if pair[0].passed != pair[1].passed]
        return (unequal or pairs or [(self.baseline_trials[0], self.trials[0])])[0]


@frozen(eq=False, repr=False, kw_only=True)
class EvalComparison(Value):
    """What is known about the candidates of an eval.

    Attributes:
        baseline: the name of the baseline, against which the others are compared.
        candidates: the names of all candidates, the baseline first.
        estimates: for each candidate, the estimate of each quantity that it has.
        differences: the differences of all other candidates from the baseline, by candidate and quantity.
        cases: the cases with both, by candidate; those that lost most first.
        confidence: of all intervals.
    """

    baseline: str
    candidates: tuple[str, ...] = field(converter=tuple[str, ...])
    estimates: Mapping[str, Mapping[str, Estimate]] = field(converter=as_frozen_dict)
    differences: tuple[EvalDifference, ...] = field(converter=tuple[EvalDifference, ...])
    cases: tuple[CaseDifference, ...] = field(converter=tuple[CaseDifference, ...])
    confidence: float = CONFIDENCE

    @property
    def quantities(self) -> tuple[str, ...]:
        """The names of the quantities that some candidate has, in the order of reports."""
        return tuple(dict.fromkeys(name for each in self.estimates.values() for name in each))

    def difference(self, candidate: str, quantity: str = "pass@1") -> EvalDifference:
        """Return one difference.

        Raises:
            InvalidParameter: there is none of this candidate in this quantity.
        """
        name = str(Quantity.parse(quantity))
        for each in self.differences:
            if each.candidate == candidate and str(each.quantity) == name:
                return each
        raise InvalidParameter(f"{candidate!r} is not compared with {self.baseline!r} in {quantity}")


def compare(
    result: EvalResult,
    baseline: EvalResult | str | None = None,
    *,
    k: int | None = None,
    confidence: float = CONFIDENCE,
) -> EvalComparison:
    """Compare the candidates of an eval.

    Args:
        result: the result.
        baseline: the candidate that the others are compared with, by default the first one; or another result, such as that of the
            main branch, whose candidate of the same name each candidate is compared with, or its only one.
        k: the number of trials of pass@k and pass^k beside pass@1; by default 3, or the number of repeats if that is smaller.
        confidence: of all intervals, between 0 and 1.

    Raises:
        InvalidParameter: there is no such baseline, no trial, or no case that both have run.
    """
    sides = list(pairs_of(result, baseline))
    names = dict.fromkeys([*[first.name for first, _ in sides], *[second.name for _, second in sides]])
    if not sides:
        names = dict.fromkeys(result.candidates)
    quantities = list(quantities_of(result, k))
    of_name = {side.name: side for pair in sides for side in pair}
    for candidate in result.candidates if not sides else ():
        of_name[candidate] = Side(result=result, candidate=candidate, name=candidate)
    estimates = {
        name: dict(_estimates(of_name[name], quantities, confidence)) for name in names if of_name[name].result.trials
    }
    differences = [
        each for first, second in sides for each in _differences(first, second, quantities, confidence=confidence)
    ]
    corrected = holm([each.p for each in differences])
    return EvalComparison(
        baseline=sides[0][0].name if sides else result.candidates[0],
        candidates=tuple(names),
        estimates=estimates,
        differences=[evolve(each, corrected_p=p) for each, p in zip(differences, corrected, strict=True)],
        cases=[each for first, second in sides for each in case_differences(first, second)],
        confidence=confidence,
    )


def pairs_of(result: EvalResult, baseline: EvalResult | str | None = None) -> Iterator[tuple[Side, Side]]:
    """Yield each candidate of a result behind what it is compared with; arguments as of `compare`.

    Raises:
        InvalidParameter: there is no such baseline.
    """
    if isinstance(baseline, EvalResult):
        for candidate in result.candidates:
            other = candidate if candidate in baseline.candidates else baseline.candidates[0]
            if other != candidate and len(baseline.candidates) > 1:
                raise InvalidParameter(
                    f"the baseline has no candidate {candidate!r}; it has {', '.join(baseline.candidates)}"
                )
            yield (
                Side(result=baseline, candidate=other, name=f"{other} (baseline)"),
                Side(result=result, candidate=candidate, name=candidate),
            )
        return
    first = result.candidates[0] if baseline is None else baseline
    result.of(first)
    for candidate in result.candidates:
        if candidate != first:
            yield (
                Side(result=result, candidate=first, name=first),
                Side(result=result, candidate=candidate, name=candidate),
            )


def quantities_of(result: EvalResult, k: int | None = None) -> Iterator[Quantity]:
    """Yield what a report estimates: pass@1, pass@k, pass^k, what is measured of every trial, and the scorers."""
    yield Quantity("pass", "@")
    trials = min(3, result.repeats) if k is None else k
    if trials > 1:
        yield Quantity("pass", "@", trials)
        yield Quantity("pass", "^", trials)
    names = [name for name in result.measure_names if name != PASSED and not _is_verdict(result, name)]
    # Scorers first, in the order of the suite; they say why a trial has passed.
    yield from map(Quantity, [name for name in names if name not in MEASURES])
    yield from map(Quantity, [name for name in names if name in MEASURES])


def _is_verdict(result: EvalResult, name: str) -> bool:
    """Whether a scorer says the same of every trial as whether it passes, as the only one of a suite does."""
    return all(trial.measure(name) == float(trial.passed) for trial in result.trials)


def _estimates(side: Side, quantities: Sequence[Quantity], confidence: float) -> Iterator[tuple[str, Estimate]]:
    for quantity in quantities:
        try:
            found = quantity.estimate(side.result, side.candidate, confidence=confidence)
        except InvalidParameter:
            continue  # another candidate has it
        yield str(quantity), found


def _differences(
    baseline: Side, candidate: Side, quantities: Sequence[Quantity], *, confidence: float
) -> Iterator[EvalDifference]:
    for quantity in quantities:
        try:
            quantity.numbers(baseline.result, baseline.candidate)
            quantity.numbers(candidate.result, candidate.candidate)
        except InvalidParameter:
            continue  # only one of them has it
        yield difference(baseline, candidate, quantity, confidence=confidence)


def difference(
    baseline: Side,
    candidate: Side,
    quantity: Quantity,
    *,
    confidence: float = CONFIDENCE,
    settle: float = 0.0,
) -> EvalDifference:
    """Estimate how a candidate differs from the baseline in one quantity.

    Args:
        baseline: the one side.
        candidate: the other side.
        quantity: what to compare.
        confidence: of the interval, between 0 and 1.
        settle: the value that `more_repeats` and `more_cases` would tell the difference from, while the interval contains it: a
            difference of shares, or a relative change of means.

    Raises:
        InvalidParameter: a side has no such number, or no case with one has been run by both, unchanged.
    """
    first = quantity.numbers(baseline.result, baseline.candidate)
    second = quantity.numbers(candidate.result, candidate.candidate)
    is_share = quantity.is_share(first) and quantity.is_share(second)
    common = _unchanged(baseline.result, candidate.result, [case for case in first if case in second])
    left_out = [case for case in dict.fromkeys([*first, *second]) if case not in common]
    if not common:
        raise InvalidParameter(
            f"{baseline.name} and {candidate.name} have no case in common that is unchanged; run both on the same cases"
        )
    means = [(mean_of(first[case]), mean_of(second[case])) for case in common]
    each = [two - one for one, two in means]
    seed = candidate.result.seed
    relative = None
    if is_share:
        estimate = paired_share_difference(each, confidence=confidence)
    else:
        ones, twos = [one for one, _ in means], [two for _, two in means]
        estimate = paired_bootstrap(ones, twos, seed=seed, confidence=confidence)
        if mean_of(ones) > 0:
            relative = paired_bootstrap(ones, twos, seed=seed, relative=True, confidence=confidence)
    p = _test([first[case] for case in common], [second[case] for case in common], each, seed)
    found = EvalDifference(
        candidate=candidate.name,
        baseline=baseline.name,
        quantity=quantity,
        is_share=is_share,
        estimate=estimate,
        relative=relative,
        p=p,
        corrected_p=p,
        detectable=float("inf"),
        left_out=left_out,
    )
    # A relative change is measured by the mean of the baseline.
    scale = 1.0 if is_share else mean_of([one for one, _ in means])
    paired = [[two - one for one, two in zip(first[case], second[case], strict=False)] for case in common]
    return _sized(found, paired, margin=MARGIN * scale, settle=settle * scale)


def _sized(found: EvalDifference, paired: Sequence[Sequence[float]], *, margin: float, settle: float) -> EvalDifference:
    """Add what the power is, and how much more would tell the difference from a value."""
    if len(paired) < 2:  # noqa: PLR2004  # a variance needs two
        return found
    measured, confidence = measured_spread(paired, is_share=found.is_share), found.estimate.confidence
    deviation, count = sqrt(measured.variance(measured.repeats)), len(paired)
    found = evolve(
        found,
        power=power(deviation, count, margin, confidence=confidence) if margin else None,
        detectable=detectable(deviation, count, confidence=confidence),
    )
    if settle not in found.estimate or found.estimate.low == found.estimate.high:
        return found
    distance = abs(found.estimate.value - settle)
    if not settle:
        distance = max(distance, margin)
    more_repeats, more_cases = more_needed(measured, distance, confidence)
    return evolve(found, more_repeats=more_repeats, more_cases=more_cases)


def measured_spread(cases: Sequence[Sequence[float]], *, is_share: bool) -> Spread:
    """Split the variance of cases, for shares not below that of Bonett and Price, which cases that all agree have, too."""
    measured = spread(cases)
    if not is_share:
        return measured
    _, error = bonett_price([mean_of(values) for values in cases])
    missing = error**2 * len(cases) - measured.variance(measured.repeats)
    return evolve(measured, between=measured.between + missing) if missing > 0 else measured


def more_needed(measured: Spread, distance: float, confidence: float = CONFIDENCE) -> tuple[int | None, int | None]:
    """Return how many more repeats per case, and how many more cases, would show a distance with a power of 80 %."""
    repeats = repeats_needed(measured, distance, confidence=confidence) if measured.within else None
    cases = cases_needed(measured, distance, confidence=confidence)
    return (
        None if repeats is None else max(repeats - round(measured.repeats), 1),
        None if cases is None else max(cases - measured.cases, 1),
    )


def _unchanged(first: EvalResult, second: EvalResult, cases: Sequence[str]) -> list[str]:
    """Return the cases that have the same version in both results."""
    versions = [{note.name: note.version for note in result.cases} for result in (first, second)]
    return [case for case in cases if versions[0].get(case) == versions[1].get(case)]


def _test(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], each: Sequence[float], seed: int
) -> float:
    """Return the p-value of the paired test that fits."""
    if all(len(values) == 1 and values[0] in {0.0, 1.0} for values in [*first, *second]):
        return mcnemar(sum(value < 0 for value in each), sum(value > 0 for value in each))
    return permutation_p(each, seed=seed)


def case_differences(baseline: Side, candidate: Side) -> list[CaseDifference]:
    """Return how each case differs between two sides that have both run it unchanged; those that lost most first."""
    trials = [_by_case(side) for side in (baseline, candidate)]
    found = list[CaseDifference]()
    for case in _unchanged(baseline.result, candidate.result, [name for name in trials[0] if name in trials[1]]):
        shares = [mean_of([float(trial.passed) for trial in side[case]]) for side in trials]
        found.append(
            CaseDifference(
                case=case,
                candidate=candidate.name,
                difference=shares[1] - shares[0],
                trials=trials[1][case],
                baseline_trials=trials[0][case],
            )
        )
    return sorted(found, key=lambda each: each.difference)


def _by_case(side: Side) -> dict[str, list[Trial]]:
    found: dict[str, list[Trial]] = {}
    for trial in side.result.of(side.candidate):
        found.setdefault(trial.case, []).append(trial)
    return found
