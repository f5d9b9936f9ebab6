"""Estimates with intervals, and tests, for evals; on scipy and statsmodels.

A case is run several times, and repeats of one case resemble each other. So cases are what is counted: all intervals of more than one
case treat a case as a cluster of its repeats. Where scipy or statsmodels has a method, it does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, fsum, isfinite, sqrt
from typing import Final, Literal

from attrs import frozen

from agentloop.errors import ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.errors.kinds import InvalidParameter
from agentloop.values.value import Value

try:
    import numpy as np
    from scipy import stats
except ImportError:
    raise ConfigurationError(f"the numbers of evals need the extra `evals`: {install_hint('evals')}") from None

CONFIDENCE: Final = 0.95
"""The confidence of intervals, unless another one is asked for."""
_FEW_CASES: Final = 6
"""With fewer cases that differ from the rest, the spread between cases cannot be estimated."""
_RESAMPLES: Final = 9_999
_PERMUTATIONS: Final = 49_999


@frozen(eq=False, repr=False)
class Estimate(Value):
    """A number that was measured, and how far from the truth it may be.

    Attributes:
        value: what was measured: a share from 0 to 1, a difference of shares, a mean, or a relative change.
        low: the lower end of the interval.
        high: the upper end of the interval.
        count: the number of cases, or of trials where there is one case only.
        method: how the interval was made.
        confidence: how often such an interval contains the truth, from 0 to 1.
    """

    value: float
    low: float
    high: float
    count: int
    method: str
    confidence: float = CONFIDENCE

    def __contains__(self, number: float) -> bool:
        """Tell whether the interval contains a number."""
        return self.low <= number <= self.high


# --- shares of one sample ---------------------------------------------------------------------------------------------


def pass_at_k(passed: int, trials: int, k: int) -> float:
    """Estimate the probability that at least one of k trials of a case passes, without bias.

    Args:
        passed: how many of the trials passed.
        trials: how many trials were run; at least k.
        k: how many of them somebody would run.

    Raises:
        InvalidParameter: the counts contradict each other.

    Source: Chen et al., "Evaluating Large Language Models Trained on Code" (2021), equation 1.
    """
    _check_counts(passed, trials, k)
    return 1.0 - comb(trials - passed, k) / comb(trials, k)


def pass_all_k(passed: int, trials: int, k: int) -> float:
    """Estimate the probability that all of k trials of a case pass (pass^k), without bias.

    Args:
        passed: how many of the trials passed.
        trials: how many trials were run; at least k.
        k: how many of them have to pass.

    Raises:
        InvalidParameter: the counts contradict each other.

    Source: Yao et al., "τ-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains" (2024), section 3.
    """
    _check_counts(passed, trials, k)
    return comb(passed, k) / comb(trials, k)


def _check_counts(passed: int, trials: int, k: int) -> None:
    if not 0 <= passed <= trials:
        raise InvalidParameter(f"{passed} of {trials} trials cannot have passed")
    if not 1 <= k <= trials:
        raise InvalidParameter(f"k has to be from 1 to the number of trials, {trials}, not {k}; run more repeats")


def share(
    passed: int, trials: int, *, method: Literal["wilson", "exact"] = "wilson", confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate a share from independent trials, such as the repeats of one case.

    Args:
        passed: how many of the trials passed.
        trials: how many trials were run; at least 1.
        method: `wilson`, whose intervals have the stated confidence on average; or `exact` (Clopper and Pearson), whose intervals
            have at least that, always, and are wider.
        confidence: of the interval, between 0 and 1.

    Raises:
        InvalidParameter: the counts contradict each other, or the confidence is not between 0 and 1.
    """
    _check_counts(passed, trials, 1)
    check_confidence(confidence)
    interval = stats.binomtest(passed, trials).proportion_ci(confidence, method=method)
    return Estimate(passed / trials, float(interval.low), float(interval.high), trials, method, confidence)


def clustered_share(
    cases: Sequence[Sequence[float]], *, per_trial: bool = True, confidence: float = CONFIDENCE
) -> Estimate:
    """Estimate a share over cases with repeats, such as the share of trials that pass.

    The variance is robust to whatever makes repeats of one case alike: the cluster-robust one of statsmodels, with its correction for
    few clusters. From it comes the number of independent trials that would say as much, which goes into Wilson's interval with the
    degrees of freedom of the cases. Where fewer than six cases differ from the rest, their spread says little, and each
    case counts as one trial. Wilson's interval never has the width 0, as the usual one has when all trials pass.

    Args:
        cases: for each case, the values of its trials, from 0 to 1.
        per_trial: whether the values are of trials. If False, each case has one value that was estimated from its trials, as pass^k is.
        confidence: of the interval, between 0 and 1.

    Raises:
        InvalidParameter: there is no case, a case has no value, a value is not from 0 to 1, or the confidence is not between 0 and 1.

    Source: Korn and Graubard, "Confidence Intervals for Proportions With Small Expected Number of Positive Counts Estimated From
    Survey Data" (1998), for the effective number of trials; Dean and Pagano, "Evaluating Confidence Interval Methods for Binomial
    Proportions in Clustered Surveys" (2015), for Wilson's interval with it.
    """
    check_confidence(confidence)
    check_cases(cases)
    if any(not 0 <= value <= 1 for values in cases for value in values):
        raise InvalidParameter("the values of a share have to be from 0 to 1")
    if len(cases) == 1:
        return _share_of_one(cases[0], confidence)
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415  # takes a second

    mean, error = _clustered_error(cases)
    trials = sum(map(len, cases))
    effective = min(mean * (1 - mean) / error**2 if error > 0 else float(trials), float(trials))
    means = [mean_of(values) for values in cases]
    if min(sum(value < 1 for value in means), sum(value > 0 for value in means)) < _FEW_CASES or not per_trial:
        effective = min(effective, float(len(cases)))
    effective *= (_normal(confidence) / student(confidence, len(cases) - 1)) ** 2
    low, high = proportion_confint(mean * effective, effective, alpha=1 - confidence, method="wilson")
    return Estimate(mean, min(float(low), mean), max(float(high), mean), len(cases), "clustered wilson", confidence)


def _share_of_one(values: Sequence[float], confidence: float) -> Estimate:
    """Return the estimate of a single case. With a share that is no count, nothing is known about other values."""
    passed = sum(values)
    if all(value in {0, 1} for value in values):
        return share(round(passed), len(values), confidence=confidence)
    return Estimate(passed / len(values), 0.0, 1.0, 1, "one case", confidence)


# --- means ------------------------------------------------------------------------------------------------------------


def clustered_mean(cases: Sequence[Sequence[float]], *, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate a mean over cases with repeats, such as of costs.

    The interval is that of a regression on a constant with cluster-robust errors and Student's quantiles, as statsmodels has it. One
    case says nothing about others, so its interval is infinite.

    Args:
        cases: for each case, the numbers of its trials.
        confidence: of the interval, between 0 and 1.

    Raises:
        InvalidParameter: there is no case, a case has no number, or the confidence is not between 0 and 1.
    """
    check_confidence(confidence)
    check_cases(cases)
    if len(cases) == 1:
        mean = mean_of(cases[0])
        return Estimate(mean, -np.inf, np.inf, 1, "one case", confidence)
    mean, error = _clustered_error(cases)
    half = student(confidence, len(cases) - 1) * error
    return Estimate(mean, mean - half, mean + half, len(cases), "clustered t", confidence)


def _clustered_error(cases: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the mean over all trials, and its standard error with cases as clusters."""
    from statsmodels.regression.linear_model import OLS  # noqa: PLC0415  # takes a second

    values = np.concatenate([np.asarray(values, dtype=float) for values in cases])
    groups = np.repeat(np.arange(len(cases)), [len(values) for values in cases])
    fit = OLS(values, np.ones_like(values)).fit(cov_type="cluster", cov_kwds={"groups": groups}, use_t=True)
    variance = float(fit.cov_params()[0, 0])
    # Rounding errors of equal values are no spread.
    error = sqrt(variance) if variance > 1e-24 * max(1.0, float(np.max(np.abs(values))) ** 2) else 0.0
    return mean_of(values.tolist()), error


# --- differences of two candidates on the same cases ------------------------------------------------------------------


def paired_share_difference(differences: Sequence[float], *, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate a difference of shares from the differences of cases, each of one candidate's share and the other's.

    Two cases are added, one that each candidate wins, as Bonett and Price do for pairs of single trials. So the interval of a few
    cases without any difference has a width. Quantiles are Student's.

    Args:
        differences: for each case, the share of the candidate minus the share of the baseline, from -1 to 1.
        confidence: of the interval, between 0 and 1.

    Raises:
        InvalidParameter: there is no case, a difference is not from -1 to 1, or the confidence is not between 0 and 1.

    Source: Bonett and Price, "Adjusted Wald Confidence Interval for a Difference of Binomial Proportions Based on Paired Data"
    (2012), recommended by Fagerland, Lydersen and Laake (2014).
    """
    check_confidence(confidence)
    if not differences or any(not -1 <= value <= 1 for value in differences):
        raise InvalidParameter("a difference of shares needs a case, and values from -1 to 1")
    middle, error = bonett_price(differences)
    half = student(confidence, len(differences) + 1) * error
    value = mean_of(differences)
    low, high = max(middle - half, -1.0), min(middle + half, 1.0)
    return Estimate(value, min(low, value), max(high, value), len(differences), "paired t (Bonett-Price)", confidence)


def bonett_price(differences: Sequence[float]) -> tuple[float, float]:
    """Return the middle and the standard error of the interval of a difference of shares, with a case won and a case lost added."""
    values = np.asarray([*differences, 1.0, -1.0])
    return float(values.mean()), sqrt(float(values.var()) / len(values))


def paired_bootstrap(
    baseline: Sequence[float],
    candidate: Sequence[float],
    *,
    seed: int = 0,
    relative: bool = False,
    confidence: float = CONFIDENCE,
) -> Estimate:
    """Estimate how much a mean differs between two candidates, by drawing cases anew; scipy's BCa interval.

    Args:
        baseline: for each case, the mean of the baseline.
        candidate: for each of the same cases, the mean of the candidate.
        seed: of the draws; equal seeds and numbers give equal intervals.
        relative: whether to estimate the change of the mean relative to that of the baseline, such as 0.1 for 10 % more.
        confidence: of the interval, between 0 and 1.

    Returns:
        The difference, or the relative change. With fewer than two cases, the interval is infinite. Where all cases differ by the
        same, it has the width 0.

    Raises:
        InvalidParameter: there is no case, the numbers of cases differ, or a change is relative to a mean of 0.
    """
    check_confidence(confidence)
    if not baseline or len(baseline) != len(candidate):
        raise InvalidParameter("a comparison needs the same cases of both candidates, at least one")
    first, second = np.asarray(baseline, dtype=float), np.asarray(candidate, dtype=float)
    if relative and not first.mean():
        raise InvalidParameter("a change cannot be relative to a mean of 0; compare the difference")

    def change(one: np.ndarray, two: np.ndarray, axis: int = -1) -> np.ndarray:
        difference = two.mean(axis=axis) - one.mean(axis=axis)
        return np.asarray(difference / one.mean(axis=axis) if relative else difference)

    value, name = float(change(first, second)), "paired bootstrap (BCa)"
    if len(first) == 1:
        return Estimate(value, -np.inf, np.inf, 1, "one case", confidence)
    # What is the same in every case is the same in every draw, which BCa cannot correct.
    each = second - first * (1 + value) if relative else second - first
    if np.ptp(each) <= 1e-12 * max(1.0, float(np.abs(first).max())):
        return Estimate(value, value, value, len(first), name, confidence)
    drawn = stats.bootstrap(
        (first, second),
        change,
        paired=True,
        vectorized=True,
        n_resamples=_RESAMPLES,
        confidence_level=confidence,
        random_state=np.random.default_rng(seed),
    ).confidence_interval
    low, high = float(drawn.low), float(drawn.high)
    if not (isfinite(low) and isfinite(high)):
        return Estimate(value, -np.inf, np.inf, len(first), "too few cases", confidence)
    return Estimate(value, low, high, len(first), name, confidence)


def mcnemar(only_baseline: int, only_candidate: int) -> float:
    """Return the p-value of McNemar's exact test, of cases with one trial per candidate.

    Args:
        only_baseline: the number of cases that only the baseline passes.
        only_candidate: the number of cases that only the candidate passes.

    Returns:
        How probable a split at least as uneven is, if the candidates are equally good; from 0 to 1.
    """
    from statsmodels.stats.contingency_tables import mcnemar as test  # noqa: PLC0415  # takes a second

    if not only_baseline + only_candidate:
        return 1.0
    return float(min(test([[0, only_baseline], [only_candidate, 0]], exact=True).pvalue, 1.0))


def permutation_p(differences: Sequence[float], *, seed: int = 0) -> float:
    """Return the p-value of a permutation test, of cases with several trials per candidate.

    If the candidates are equally good, each case could as well have differed the other way round. Scipy tries all ways where they are
    fewer than 50,000 (up to 15 cases that differ), and draws that many otherwise.

    Args:
        differences: for each case, the mean of the candidate minus that of the baseline.
        seed: of the draws.

    Returns:
        How probable a mean difference at least as large, in either direction, is; from 0 to 1.
    """
    values = np.asarray([value for value in differences if value], dtype=float)
    if values.size <= 1:
        return 1.0  # one case is as far from 0 either way
    result = stats.permutation_test(
        (values,),
        lambda each, axis=-1: each.mean(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=_PERMUTATIONS,
        batch=5_000,
        random_state=np.random.default_rng(seed),
    )
    return float(result.pvalue)


def holm(p_values: Sequence[float]) -> tuple[float, ...]:
    """Return p-values that are corrected for their number, in the same order, by the method of Holm (1979).

    Calling those below 0.05 real is wrong about any of them in at most 5 % of evals.
    """
    if not p_values:
        return ()
    from statsmodels.stats.multitest import multipletests  # noqa: PLC0415  # takes a second

    return tuple([float(value) for value in multipletests(p_values, method="holm")[1]])


# --- agreement --------------------------------------------------------------------------------------------------------


def cohens_kappa(first: Sequence[object], second: Sequence[object], *, confidence: float = CONFIDENCE) -> Estimate:
    """Estimate how far two judges agree beyond chance: 1 for always, 0 for as often as by chance.

    Args:
        first: the labels that the first judge gives, such as a model; anything with `==` and a hash.
        second: the labels that the second judge gives to the same things, such as a person.
        confidence: of the interval, between 0 and 1.

    Raises:
        InvalidParameter: there are no labels, or the numbers of labels differ.

    Source: Fleiss, Cohen and Everitt (1969) for the standard error, as statsmodels has it.
    """
    from statsmodels.stats.inter_rater import cohens_kappa as kappa  # noqa: PLC0415  # takes a second

    check_confidence(confidence)
    if not first or len(first) != len(second):
        raise InvalidParameter(f"kappa compares labels of the same things, not {len(first)} with {len(second)}")
    labels = list(dict.fromkeys([*first, *second]))
    if len(labels) == 1:
        # Chance alone would agree always, so that nothing is known.
        return Estimate(float("nan"), -1.0, 1.0, len(first), "one label only", confidence)
    table = np.zeros((len(labels), len(labels)))
    for one, two in zip(first, second, strict=True):
        table[labels.index(one), labels.index(two)] += 1
    found = kappa(table)
    value, half = float(found.kappa), _normal(confidence) * float(found.std_kappa)
    return Estimate(value, max(value - half, -1.0), min(value + half, 1.0), len(first), "Cohen's kappa", confidence)


# --- means, quantiles and checks ----------------------------------------------------------------------------------------


def mean_of(values: Sequence[float]) -> float:
    """Return the mean, exactly rounded."""
    return fsum(values) / len(values)


def variance_of(values: Sequence[float]) -> float:
    """Return the unbiased variance of at least two numbers."""
    return float(np.var(values, ddof=1))


def _normal(confidence: float) -> float:
    return float(stats.norm.isf((1 - confidence) / 2))


def student(confidence: float, degrees: int) -> float:
    """Return Student's quantile of a two-sided interval."""
    return float(stats.t.isf((1 - confidence) / 2, degrees))


def check_confidence(confidence: float) -> None:
    """Refuse what is no confidence.

    Raises:
        InvalidParameter: it is not between 0 and 1.
    """
    if not 0 < confidence < 1:
        raise InvalidParameter(f"a confidence is between 0 and 1, such as 0.95, not {confidence}")


def check_cases(cases: Sequence[Sequence[float]]) -> None:
    """Refuse numbers by case with nothing in them.

    Raises:
        InvalidParameter: there is no case, or a case has no number.
    """
    if not cases or not all(cases):
        raise InvalidParameter("an estimate needs at least one case, and a number of each")
