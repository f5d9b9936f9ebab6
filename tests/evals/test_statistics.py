"""Estimates and tests give the numbers of published examples, and refuse what has no answer."""

from __future__ import annotations

from itertools import combinations
from math import inf, isnan, log2, sqrt

import pytest

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.sample_sizes import Spread, cases_needed, detectable, power, repeats_needed, spread
from agentloop.evals.sequences import ConfidenceSequence, always_valid
from agentloop.evals.statistics import (
    bonett_price,
    clustered_mean,
    clustered_share,
    cohens_kappa,
    holm,
    mcnemar,
    paired_bootstrap,
    paired_share_difference,
    pass_all_k,
    pass_at_k,
    permutation_p,
    share,
)

_DARWIN = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]
"""How much the crossed plant of each of Darwin's 15 pairs was higher, in eighths of an inch: Fisher, "The Design of Experiments"."""


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("passed", range(6))
def test_pass_at_k_and_pass_all_k_are_the_means_over_all_ways_to_choose_k_trials(passed: int, k: int) -> None:
    """Both estimators equal the mean over all subsets, which is what makes them unbiased."""
    trials = [True] * passed + [False] * (5 - passed)
    chosen = list(combinations(trials, k))
    assert pass_at_k(passed, 5, k) == pytest.approx(sum(map(any, chosen)) / len(chosen))
    assert pass_all_k(passed, 5, k) == pytest.approx(sum(map(all, chosen)) / len(chosen))


@pytest.mark.parametrize("counts", [(6, 5, 1), (-1, 5, 1), (2, 5, 6), (2, 5, 0)])
def test_counts_that_contradict_each_other_are_refused(counts: tuple[int, int, int]) -> None:
    """An estimator refuses counts that no eval can have."""
    for estimator in (pass_at_k, pass_all_k):
        with pytest.raises(InvalidParameter):
            estimator(*counts)


# Newcombe, "Two-sided confidence intervals for the single proportion" (1998), table I.
_NEWCOMBE = [
    (81, 263, (0.2553, 0.3662), (0.2527, 0.3676)),
    (15, 148, (0.0624, 0.1605), (0.0578, 0.1617)),
    (0, 20, (0.0, 0.1611), (0.0, 0.1684)),
    (1, 29, (0.0061, 0.1718), (0.0009, 0.1776)),
]


@pytest.mark.parametrize(("passed", "trials", "wilson", "exact"), _NEWCOMBE)
def test_intervals_of_a_share_are_those_of_newcombe(
    passed: int, trials: int, wilson: tuple[float, float], exact: tuple[float, float]
) -> None:
    """Wilson's and Clopper and Pearson's intervals are those that Newcombe has printed."""
    found = share(passed, trials)
    assert (found.low, found.high) == pytest.approx(wilson, abs=5e-5)
    found = share(passed, trials, method="exact")
    assert (found.low, found.high) == pytest.approx(exact, abs=5e-5)
    assert found.value in found


def test_wilsons_interval_with_an_effective_number_of_trials_is_that_of_saha() -> None:
    """With the design effect of their example, Wilson's interval is the one that Saha, Miller and Wang have printed.

    Source: "A Comparison of Some Approximate Confidence Intervals for a Single Proportion for Clustered Binary Outcome Data" (2016),
    with the data of Liang; the numbers are those that the R package ratesci gives for `clusterpci(x, n, skew = FALSE)`.
    """
    from statsmodels.stats.proportion import proportion_confint  # noqa: PLC0415

    design_effect = 1.349133
    interval = proportion_confint(60 / design_effect, 203 / design_effect, method="wilson")
    assert interval == pytest.approx((0.2284814, 0.3728302), abs=1e-6)


def test_the_cluster_robust_error_is_that_of_the_ratio_estimator() -> None:
    """The variance of a mean over clusters is G/(G-1) times the sum of squared residual totals over the squared number of trials.

    Source: Cameron and Miller, "A Practitioner's Guide to Cluster-Robust Inference" (2015), equations 10 and 12 for a constant. The data
    are the example of Bennett et al., "A simplified general method for cluster-sample surveys of health in developing countries" (1991).
    """
    successes, sizes = [2, 5, 3, 3, 1, 0], [2, 7, 4, 6, 4, 3]
    cases = [[1.0] * one + [0.0] * (size - one) for one, size in zip(successes, sizes, strict=True)]
    mean = 14 / 26
    residuals = sum((one - mean * size) ** 2 for one, size in zip(successes, sizes, strict=True))
    error = sqrt(6 / 5 * residuals) / 26
    found = clustered_mean(cases)
    assert found.value == pytest.approx(mean)
    student = 2.570582  # the 97.5 % quantile with 5 degrees of freedom
    assert (found.low, found.high) == pytest.approx((mean - student * error, mean + student * error), abs=1e-6)


def test_repeats_of_a_case_that_are_alike_say_no_more_than_one() -> None:
    """The interval of cases whose repeats all agree is as wide as that of single trials."""
    once = clustered_share([[1.0]] * 20 + [[0.0]] * 10)
    often = clustered_share([[1.0] * 5] * 20 + [[0.0] * 5] * 10)
    assert (often.low, often.high) == pytest.approx((once.low, once.high))


def test_repeats_that_differ_within_cases_narrow_the_interval() -> None:
    """Where repeats vary as much as trials of different cases, each counts."""
    once = clustered_share([[1.0]] * 20 + [[0.0]] * 10)
    often = clustered_share([[1.0, 1.0, 0.0]] * 30)
    assert often.high - often.low < 0.7 * (once.high - once.low)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_interval_of_cases_that_all_agree_has_a_width(value: float) -> None:
    """Thirty cases that pass three times each do not say that every case passes."""
    found = clustered_share([[value] * 3] * 30)
    assert found.value == value
    assert 0.1 < found.high - found.low < 0.15


def test_one_case_gets_the_interval_of_its_trials_and_a_mean_of_one_case_says_nothing_about_others() -> None:
    """A single case has Wilson's interval for its share, and an infinite one for its mean."""
    assert clustered_share([[1.0, 1.0, 0.0]]) == share(2, 3)
    assert clustered_share([[0.3]], per_trial=False).high == 1.0
    assert clustered_mean([[2.0, 4.0]]).high == inf


def test_the_interval_of_a_paired_difference_is_that_of_bonett_and_price() -> None:
    """With normal quantiles, the interval is the one that Fagerland, Lydersen and Laake have printed: -0.508 to -0.013.

    Source: "Recommended tests and confidence intervals for paired binomial proportions" (2014), the example of airway hyper-responsiveness
    before and after a transplantation: 1 pair only before, 7 only after, 13 with no change.
    """
    differences = [1.0] + [-1.0] * 7 + [0.0] * 13
    middle, error = bonett_price(differences)
    assert (middle - 1.959964 * error, middle + 1.959964 * error) == pytest.approx((-0.508, -0.013), abs=5e-4)
    found = paired_share_difference(differences)
    assert found.value == pytest.approx(-6 / 21)
    assert found.low < -0.508  # Student's quantiles are wider


def test_mcnemars_exact_test_is_that_of_the_same_example() -> None:
    """The exact conditional test of the same pairs has the published p-value of 0.0703."""
    assert mcnemar(1, 7) == pytest.approx(0.0703, abs=5e-5)
    assert mcnemar(0, 0) == 1.0


def test_the_permutation_test_is_fishers_of_darwins_plants() -> None:
    """Of the 32,768 ways to sign Darwin's differences, 1,726 are as large; Fisher counted them by hand."""
    assert permutation_p([float(value) for value in _DARWIN]) == pytest.approx(1726 / 32768)
    assert permutation_p([0.0, 0.0]) == 1.0


def test_holm_corrects_the_smallest_p_value_most() -> None:
    """The corrected p-values are those of the method's usual example."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx((0.03, 0.06, 0.06, 0.02))
    assert holm([]) == ()


def test_kappa_and_its_interval_are_those_of_fleiss() -> None:
    """The example of Fleiss, "Statistical Methods for Rates and Proportions", table 18.1, has a kappa of 0.68 with an error of 0.087."""
    counts = {("psychotic", "psychotic"): 75, ("psychotic", "neurotic"): 1, ("psychotic", "organic"): 4}
    counts |= {("neurotic", "psychotic"): 5, ("neurotic", "neurotic"): 4, ("neurotic", "organic"): 1}
    counts |= {("organic", "organic"): 10}
    pairs = [pair for pair, count in counts.items() for _ in range(count)]
    found = cohens_kappa([one for one, _ in pairs], [two for _, two in pairs])
    assert found.value == pytest.approx(0.676, abs=1e-3)
    assert (found.high - found.low) / (2 * 1.96) == pytest.approx(0.088, abs=1.5e-3)


def test_kappa_of_one_label_is_unknown() -> None:
    """Judges who only ever give one label have shown nothing, however often they agree."""
    found = cohens_kappa(["yes"] * 9, ["yes"] * 9)
    assert isnan(found.value)
    assert (found.low, found.high) == (-1.0, 1.0)
    with pytest.raises(InvalidParameter):
        cohens_kappa(["yes"], [])


def test_power_is_that_of_the_usual_example() -> None:
    """A paired t-test shows half a standard deviation with 34 pairs and a power of 80 %, as G*Power says."""
    assert power(1.0, 34, 0.5) == pytest.approx(0.8078, abs=1e-4)
    assert detectable(1.0, 34) == pytest.approx(0.4953, abs=1e-3)
    assert cases_needed(Spread(1.0, 0.0, 10, 1), 0.5) == 34
    assert power(0.0, 34, 0.5) == 1.0
    assert power(1.0, 1, 0.5) == 0.0


def test_more_repeats_help_against_what_repeats_vary_by_alone() -> None:
    """Where repeats vary, more of them settle a difference; where cases do, only more cases."""
    assert repeats_needed(Spread(0.0, 1.0, 34, 1), 0.25) == 4
    assert repeats_needed(Spread(1.0, 0.0, 34, 1), 0.25) is None
    assert cases_needed(Spread(1.0, 0.0, 34, 1), 0.25) == 128
    assert repeats_needed(Spread(0.0, 1.0, 34, 1), 0.0) is None


def test_spread_finds_the_planted_variances() -> None:
    """The variance of cases and that of repeats are told apart."""
    found = spread([[1.0, 3.0], [2.0, 4.0], [-1.0, 1.0], [0.0, 2.0]])
    assert found.within == pytest.approx(2.0)
    assert found.between == pytest.approx(5 / 3 - 1.0)
    assert spread([[1.0], [3.0]]).within == 0.0
    with pytest.raises(InvalidParameter):
        spread([[1.0, 2.0]])


def test_a_bootstrap_of_darwins_plants_contains_the_interval_that_fisher_gave() -> None:
    """The mean of 2.617 inches is as uncertain as Student's interval (0.00 to 5.23 inches) says, about."""
    heights = [value / 8 for value in _DARWIN]
    found = paired_bootstrap([0.0] * 15, heights)
    assert found.value == pytest.approx(2.617, abs=1e-3)
    assert (found.low, found.high) == pytest.approx((0.0, 5.23), abs=0.8)
    assert found == paired_bootstrap([0.0] * 15, heights)


def test_a_relative_change_is_relative_to_the_mean_of_the_baseline() -> None:
    """Costs of 2 and 4 that become 3 and 5 are a third higher."""
    assert paired_bootstrap([2.0, 4.0, 3.0], [3.0, 5.0, 4.0], relative=True).value == pytest.approx(1 / 3)
    same = paired_bootstrap([2.0, 4.0], [2.2, 4.4], relative=True)
    assert (same.low, same.value, same.high) == pytest.approx((0.1, 0.1, 0.1))
    with pytest.raises(InvalidParameter):
        paired_bootstrap([0.0, 0.0], [1.0, 2.0], relative=True)
    assert paired_bootstrap([1.0], [2.0]).high == inf


def test_a_confidence_sequence_narrows_only() -> None:
    """Each interval lies in the one before it, and says more than at the beginning."""
    sequence = ConfidenceSequence()
    assert (sequence.low, sequence.high) == (0.0, 1.0)
    ends = [(0.0, 1.0)]
    for value in [1.0, 1.0, 0.0, 1.0] * 50:
        sequence.add(value)
        assert ends[-1][0] <= sequence.low
        assert sequence.high <= ends[-1][1]
        ends.append((sequence.low, sequence.high))
    assert 0.6 < sequence.low < 0.75 < sequence.high < 0.9
    with pytest.raises(InvalidParameter):
        sequence.add(1.5)


def test_the_first_bets_of_a_confidence_sequence_are_those_of_the_paper() -> None:
    """A mean is excluded as soon as the product of the bets against it, halved, has reached 1 / 0.05.

    The bets are computed here as Waudby-Smith and Ramdas write them: equation 26 for the bet, and 1/2 of its largest size.
    """
    capital, mean, count = 0.5, 0.2, 0
    squares, total = 0.25, 0.5
    sequence = ConfidenceSequence()
    while capital < 20:
        count += 1
        variance = squares / count
        bet = sqrt(2 * 3.6888794541139363 / (variance * count * 0.6931471805599453 * log2(count + 1)))
        capital *= 1 + min(bet, 0.5 / mean) * (1.0 - mean)
        total += 1.0
        squares += (1.0 - total / (count + 1)) ** 2
        sequence.add(1.0)
        assert (sequence.low > mean - 0.002) == (capital >= 20)


def test_an_interval_that_is_always_valid_has_the_scale_of_its_values() -> None:
    """Differences from -1 to 1 get an interval on their own scale."""
    found = always_valid([0.0] * 100, lowest=-1.0)
    assert found.value == 0.0
    assert -0.2 < found.low < 0 < found.high < 0.2


def test_what_has_no_answer_is_refused() -> None:
    """No cases, empty cases, shares out of range and confidences that are none are refused."""
    with pytest.raises(InvalidParameter):
        clustered_share([])
    with pytest.raises(InvalidParameter):
        clustered_mean([[1.0], []])
    with pytest.raises(InvalidParameter):
        clustered_share([[1.5]])
    with pytest.raises(InvalidParameter):
        share(1, 2, confidence=95)
    with pytest.raises(InvalidParameter):
        paired_share_difference([1.5])
    with pytest.raises(InvalidParameter):
        paired_bootstrap([1.0], [1.0, 2.0])
