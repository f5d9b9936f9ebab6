"""The probability toolkit, compared with the standard library and with sums."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ToolFailed
from agentloop.toolkits.probability import (
    binomial_probability,
    count_selections,
    describe_numbers,
    draw_items,
    draw_numbers,
    normal_probability,
    probability,
)
from agentloop.values import ToolStatus
from tests.toolkits.running import executions, run_call, run_calls

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40)


@given(NUMBERS)
def test_numbers_are_described_as_the_standard_library_does(numbers: list[float]) -> None:
    """Mean, median, deviations and quartiles agree with `statistics`."""
    description = describe_numbers(numbers, [0, 25, 50, 75, 100])
    quartiles = statistics.quantiles(numbers, n=4, method="inclusive")
    assert description["count"] == len(numbers)
    assert description["mean"] == pytest.approx(statistics.fmean(numbers))
    assert description["median"] == statistics.median(numbers)
    assert description["stdev"] == pytest.approx(statistics.stdev(numbers))
    assert description["population_stdev"] == pytest.approx(statistics.pstdev(numbers))
    expected = [min(numbers), *quartiles, max(numbers)]
    assert list(description["percentiles"].values()) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_a_single_number_has_no_sample_deviation() -> None:
    """The standard deviation of a sample needs two numbers."""
    assert describe_numbers([4.0])["stdev"] is None


@pytest.mark.parametrize("distribution", ["uniform", "normal", "integer", "exponential", "binomial"])
def test_a_seed_determines_a_draw(distribution: Any) -> None:
    """The same seed gives the same numbers, another one gives others."""
    options: dict[str, Any] = {"a": 10.0, "b": 20.0 if distribution != "binomial" else 0.5, "count": 20}
    first = draw_numbers(distribution, 1, **options)
    assert draw_numbers(distribution, 1, **options) == first
    assert draw_numbers(distribution, 2, **options) != first
    assert len(first) == 20


def test_draws_come_from_their_distribution() -> None:
    """Draws stay within their bounds, and their means are near the expected ones."""
    assert set(draw_numbers("integer", 1, 500, 1, 6)) == {1, 2, 3, 4, 5, 6}
    assert all(2 <= number <= 3 for number in draw_numbers("uniform", 1, 500, 2, 3))
    assert statistics.fmean(draw_numbers("normal", 1, 5_000, 10, 2)) == pytest.approx(10, abs=0.2)
    assert statistics.fmean(draw_numbers("exponential", 1, 5_000, 4)) == pytest.approx(0.25, abs=0.02)
    assert statistics.fmean(draw_numbers("binomial", 1, 2_000, 10, 0.3)) == pytest.approx(3, abs=0.15)


def test_items_are_drawn() -> None:
    """Without replacement each item is drawn at most once; with replacement, by its weight."""
    items = ["a", "b", "c"]
    assert sorted(draw_items(items, 5, 3)) == items
    assert draw_items(items, 5, 3) == draw_items(items, 5, 3)
    assert set(draw_items(items, 5, 50, [0, 1, 0], replace=True)) == {"b"}


@given(st.integers(0, 60), st.integers(0, 60))
def test_selections_are_counted(n: int, k: int) -> None:
    """The counts are those of `math.comb` and `math.perm`."""
    assert count_selections(n, k) == {"combinations": math.comb(n, k), "permutations": math.perm(n, k)}


@given(st.integers(0, 60), st.floats(0, 1), st.data())
def test_binomial_probabilities_add_up(trials: int, p: float, data: st.DataObject) -> None:
    """Exactly, at most and at least agree with the sum over all outcomes."""
    k = data.draw(st.integers(0, trials))
    mass = [math.comb(trials, i) * p**i * (1 - p) ** (trials - i) for i in range(trials + 1)]
    result = binomial_probability(trials, k, p)
    assert result["exactly"] == pytest.approx(mass[k], abs=1e-9)
    assert result["at_most"] == pytest.approx(math.fsum(mass[: k + 1]), abs=1e-9)
    assert result["at_least"] == pytest.approx(math.fsum(mass[k:]), abs=1e-9)


def test_normal_probabilities_are_the_known_values() -> None:
    """The results are the known values of the normal distribution."""
    assert normal_probability(0, 1, -1.96, 1.96) == pytest.approx(0.95, abs=1e-4)
    assert normal_probability(100, 15, 130) == pytest.approx(0.02275, abs=1e-5)
    assert normal_probability(0, 1) == 1
    assert normal_probability(0, 1, 2, 1) == 0


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("draw_numbers", {"distribution": "integer", "seed": 1, "a": 1.5}, "whole numbers"),
        ("draw_numbers", {"distribution": "integer", "seed": 1, "a": 3, "b": 2}, "not above b"),
        ("draw_numbers", {"distribution": "normal", "seed": 1, "b": -1}, "below 0"),
        ("draw_numbers", {"distribution": "exponential", "seed": 1, "a": 0}, "above 0"),
        ("draw_numbers", {"distribution": "binomial", "seed": 1, "a": 10**9, "b": 0.5}, "0 to 1000 trials"),
        ("draw_items", {"items": ["a"], "seed": 1, "count": 2}, "cannot be drawn"),
        ("draw_items", {"items": ["a"], "seed": 1, "weights": [1]}, "weights need replace"),
        ("draw_items", {"items": ["a", "b"], "seed": 1, "weights": [0, 0], "replace": True}, "2 weights"),
        ("binomial_probability", {"trials": 2, "successes": 3, "probability": 0.5}, "cannot have 3"),
        ("normal_probability", {"mean": 0, "deviation": 0}, "above 0"),
    ],
)
async def test_invalid_arguments_fail_the_call(name: str, arguments: dict[str, Any], message: str) -> None:
    """The error tells the model which argument to change."""
    execution = await run_call([probability()], name, **arguments)
    assert execution.status is ToolStatus.FAILED
    assert message in execution.error_message
    assert execution.error is not None
    assert execution.error.type == ToolFailed.__name__


async def test_sizes_are_bounded_by_the_schema() -> None:
    """A request beyond the bounds is rejected before anything is computed."""
    state = await run_calls(
        [probability()],
        ("draw_numbers", {"distribution": "uniform", "seed": 1, "count": 10**9}),
        ("count_selections", {"n": 10**9, "k": 3}),
        ("describe_numbers", {"numbers": []}),
        ("describe_numbers", {"numbers": [1, 2], "percentiles": [101]}),
        ("describe_numbers", {"numbers": [1, 2, 3]}),
    )
    assert [execution.status.value for execution in executions(state)] == ["rejected"] * 4 + ["succeeded"]
