"""Over 1,000 repetitions with a planted truth, intervals contain it as often as they say."""

from __future__ import annotations

import numpy as np
import pytest

from agentloop.evals.sequences import always_valid
from agentloop.evals.statistics import (
    clustered_mean,
    clustered_share,
    paired_bootstrap,
    paired_share_difference,
    pass_all_k,
    share,
)

_REPETITIONS = 1_000


@pytest.mark.parametrize("truth", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("trials", [30, 100])
def test_exact_intervals_contain_the_truth_in_94_percent_at_least(truth: float, trials: int) -> None:
    """Clopper and Pearson's intervals contain the planted share in at least 94 %, and Wilson's in 92 to 98 %."""
    counts = np.random.default_rng(trials).binomial(trials, truth, _REPETITIONS).tolist()
    exact = {count: truth in share(count, trials, method="exact") for count in set(counts)}
    wilson = {count: truth in share(count, trials) for count in set(counts)}
    assert sum(exact[count] for count in counts) >= 0.94 * _REPETITIONS
    assert 0.92 * _REPETITIONS <= sum(wilson[count] for count in counts) <= 0.98 * _REPETITIONS


def _passes(seed: int, *, cases: int, repeats: int, truth: float, alike: float) -> np.ndarray:
    """Return passes by repetition, case and repeat; cases differ by a beta distribution with this correlation of repeats."""
    random, scale = np.random.default_rng(seed), 1 / alike - 1
    shares = random.beta(truth * scale, (1 - truth) * scale, (_REPETITIONS, cases, 1))
    return (random.random((_REPETITIONS, cases, repeats)) < shares).astype(float)


@pytest.mark.parametrize(
    ("cases", "repeats", "truth", "alike"),
    [(30, 3, 0.7, 0.2), (30, 5, 0.9, 0.6), (30, 5, 0.5, 0.02), (60, 3, 0.95, 0.6), (100, 4, 0.8, 0.3)],
)
def test_clustered_intervals_contain_the_share_in_92_to_98_percent(
    cases: int, repeats: int, truth: float, alike: float
) -> None:
    """Intervals over cases with repeats contain the planted share, however alike the repeats of a case are."""
    found = [
        truth in clustered_share(each)
        for each in _passes(7, cases=cases, repeats=repeats, truth=truth, alike=alike).tolist()
    ]
    assert 0.92 * _REPETITIONS <= sum(found) <= 0.98 * _REPETITIONS


def test_intervals_of_pass_all_k_contain_it() -> None:
    """The interval of pass^3, from one estimate per case, contains the planted one."""
    truth, alike, scale = 0.8, 0.3, 1 / 0.3 - 1
    # The third moment of the beta distribution that cases are drawn from.
    planted = float(np.prod([(truth * scale + more) / (scale + more) for more in range(3)]))
    passes = _passes(8, cases=40, repeats=5, truth=truth, alike=alike).sum(axis=2).astype(int).tolist()
    found = [
        planted in clustered_share([[pass_all_k(count, 5, 3)] for count in each], per_trial=False) for each in passes
    ]
    assert 0.92 * _REPETITIONS <= sum(found) <= 0.99 * _REPETITIONS


def test_clustered_means_contain_the_truth() -> None:
    """Intervals of means over cases with repeats contain the planted mean in 92 to 98 %."""
    random = np.random.default_rng(9)
    costs = 5 + random.normal(0, 2, (_REPETITIONS, 30, 1)) + random.normal(0, 1, (_REPETITIONS, 30, 3))
    found = [5.0 in clustered_mean(each) for each in costs.tolist()]
    assert 0.92 * _REPETITIONS <= sum(found) <= 0.98 * _REPETITIONS


def test_paired_differences_contain_the_truth() -> None:
    """Intervals of differences contain the planted difference in at least 92 %, whether candidates mostly agree or not."""
    random = np.random.default_rng(10)
    shares = random.beta(3, 1, (_REPETITIONS, 40, 1))
    worse = shares * 0.8
    draws = random.random((2, _REPETITIONS, 40, 3))
    differences = (draws[0] < worse).mean(axis=2) - (draws[1] < shares).mean(axis=2)
    truth = -0.2 * 3 / 4
    found = [truth in paired_share_difference(each) for each in differences.tolist()]
    assert sum(found) >= 0.92 * _REPETITIONS


def test_paired_bootstraps_contain_the_truth() -> None:
    """Bootstrap intervals of skewed costs contain the planted change in about 95 %; of 200 repetitions, in 180 at least."""
    random = np.random.default_rng(11)
    costs = random.lognormal(0, 0.7, (200, 40))
    changed = costs * 1.1 * random.lognormal(-0.02, 0.2, (200, 40))
    found = [
        0.1 in paired_bootstrap(one, two, relative=True)
        for one, two in zip(costs.tolist(), changed.tolist(), strict=True)
    ]
    assert sum(found) >= 180


def test_a_sequence_contains_the_truth_at_every_look() -> None:
    """Looking after each of 150 values, the interval has missed the planted mean in at most 6 % of 400 repetitions."""
    values = (np.random.default_rng(12).random((400, 150)) < 0.8).astype(float)
    # Intervals only narrow, so that the last one has missed the truth if any has.
    found = [0.8 in always_valid(each) for each in values.tolist()]
    assert sum(found) >= 0.94 * len(found)
