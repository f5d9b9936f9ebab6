"""A toolkit for probability and statistics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Annotated, Any, Literal, TypeAlias

from agentloop.contracts.tool import Tool
from agentloop.errors import ToolFailed
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool

_MAX_ITEMS = 10_000
_MAX_TRIALS = 1_000_000

Numbers: TypeAlias = Annotated[list[float], "the numbers", Range(min_length=1, max_length=_MAX_ITEMS)]
Seed: TypeAlias = Annotated[int, "the same seed gives the same draw"]
Count: TypeAlias = Annotated[int, "how many to draw", Range(ge=1, le=_MAX_ITEMS)]
Size: TypeAlias = Annotated[int, Range(ge=0, le=_MAX_TRIALS)]


@tool(effect="pure")
def describe_numbers(
    numbers: Numbers,
    percentiles: Annotated[
        list[Annotated[float, Range(ge=0, le=100)]], "which percentiles to compute", Range(max_length=100)
    ] = (25, 50, 75),  # type: ignore[assignment]  # JSON knows no tuples; a default has to be immutable
) -> dict[str, Any]:
    """Compute count, sum, mean, median, standard deviation of the sample and of the population, range and percentiles.

    Percentiles are interpolated between the two nearest numbers; the 50th is the median.
    """
    ordered = sorted(numbers)
    return {
        "count": len(ordered),
        "sum": math.fsum(ordered),
        "mean": statistics.fmean(ordered),
        "median": statistics.median(ordered),
        "stdev": statistics.stdev(ordered) if len(ordered) > 1 else None,
        "population_stdev": statistics.pstdev(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "percentiles": {f"{percent:g}": _percentile(ordered, percent) for percent in percentiles},
    }


@tool(effect="pure")
def draw_numbers(
    distribution: Literal["uniform", "normal", "integer", "exponential", "binomial"],
    seed: Seed,
    count: Count = 1,
    a: Annotated[float, "lower end, mean, rate, or number of trials"] = 0.0,
    b: Annotated[float, "upper end, standard deviation, or probability of success; not used by exponential"] = 1.0,
) -> list[float]:
    """Draw random numbers: uniform(a, b), normal(mean a, deviation b), integer(a to b), exponential(rate a), binomial(a, b).

    The draw is determined by the seed: choose one, and another for another draw.
    """
    draw = _DISTRIBUTIONS[distribution](Random(seed), a, b)  # noqa: S311  # simulation, not secrecy
    return [draw() for _ in range(count)]


@tool(effect="pure")
def draw_items(
    items: Annotated[list[str], "what to draw from", Range(min_length=1, max_length=_MAX_ITEMS)],
    seed: Seed,
    count: Count = 1,
    weights: Annotated[list[Annotated[float, Range(ge=0)]] | None, "how likely each item is, in their order"] = None,
    replace: Annotated[bool, "whether an item may be drawn again; without, there are no weights"] = False,  # noqa: FBT002  # a model passes it by name
) -> list[str]:
    """Draw items at random, the same for the same seed."""
    # The model chooses the seed, so that the tool is pure: a replay or a repeated call draws the same items.
    random = Random(seed)  # noqa: S311  # simulation, not secrecy
    if not replace:
        if weights is not None:
            raise ToolFailed("weights need replace=true")
        if count > len(items):
            raise ToolFailed(f"{count} cannot be drawn from {len(items)} items without replace=true")
        return random.sample(items, count)
    if weights is not None and (len(weights) != len(items) or not sum(weights)):
        raise ToolFailed(f"there have to be {len(items)} weights, one for each item, and one of them above 0")
    return random.choices(items, weights, k=count)


@tool(effect="pure")
def count_selections(
    n: Annotated[int, "how many things there are", Range(ge=0, le=1_000)],
    k: Annotated[int, "how many are chosen", Range(ge=0, le=1_000)],
) -> dict[str, int]:
    """Count the ways to choose k of n things: combinations (order does not matter) and permutations (order matters)."""
    return {"combinations": math.comb(n, k), "permutations": math.perm(n, k)}


@tool(effect="pure")
def binomial_probability(
    trials: Size,
    successes: Size,
    probability: Annotated[float, "of one success", Range(ge=0, le=1)],
) -> dict[str, float]:
    """Compute how likely it is to have exactly, at most and at least so many successes in independent trials."""
    if successes > trials:
        raise ToolFailed(f"{trials} trials cannot have {successes} successes")
    # Rounding may push a sum above 1, or a difference below one of its parts; both are clamped below.
    below = math.fsum(_binomial_mass(trials, k, probability) for k in range(successes))
    exactly = _binomial_mass(trials, successes, probability)
    return {
        "exactly": exactly,
        "at_most": min(1.0, below + exactly),
        "at_least": max(exactly, 1.0 - below),
        "mean": trials * probability,
        "stdev": math.sqrt(trials * probability * (1 - probability)),
    }


@tool(effect="pure")
def normal_probability(
    mean: float,
    deviation: Annotated[float, "the standard deviation, above 0"],
    lower: Annotated[float | None, "none when left out"] = None,
    upper: Annotated[float | None, "none when left out"] = None,
) -> float:
    """Compute how likely a normally distributed number lies between two bounds."""
    if deviation <= 0:
        raise ToolFailed("the deviation has to be above 0")
    normal = statistics.NormalDist(mean, deviation)
    above = 1.0 if upper is None else normal.cdf(upper)
    return max(0.0, above - (0.0 if lower is None else normal.cdf(lower)))


@ensemble_factory
def probability() -> Ensemble:
    """Create an ensemble for probability and statistics."""
    tools: list[Tool] = [
        describe_numbers,
        draw_numbers,
        draw_items,
        count_selections,
        binomial_probability,
        normal_probability,
    ]
    return Ensemble("probability", tools, description="Chance and statistics, computed instead of guessed.")


def _percentile(ordered: Sequence[float], percent: float) -> float:
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _binomial_mass(n: int, k: int, p: float) -> float:
    if p in {0.0, 1.0}:
        return float(k == n * p)
    # Factorials of large numbers do not fit into floats, their logarithms do.
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) + k * math.log(p) + (n - k) * math.log1p(-p)
    return math.exp(log)


def _uniform(random: Random, a: float, b: float) -> Callable[[], float]:
    return lambda: random.uniform(a, b)


def _normal(random: Random, a: float, b: float) -> Callable[[], float]:
    if b < 0:
        raise ToolFailed("the deviation b cannot be below 0")
    return lambda: random.gauss(a, b)


def _integer(random: Random, a: float, b: float) -> Callable[[], float]:
    if not (float(a).is_integer() and float(b).is_integer() and a <= b):
        raise ToolFailed("an integer is drawn from whole numbers a to b, where a is not above b")
    return lambda: random.randint(int(a), int(b))


def _exponential(random: Random, a: float, _: float) -> Callable[[], float]:
    if a <= 0:
        raise ToolFailed("the rate a has to be above 0")
    return lambda: random.expovariate(a)


def _binomial_draw(random: Random, a: float, b: float) -> Callable[[], float]:
    if not (float(a).is_integer() and 0 <= a <= 1_000 and 0 <= b <= 1):  # noqa: PLR2004  # a draw runs every trial
        raise ToolFailed("binomial takes 0 to 1000 trials as a, and a probability from 0 to 1 as b")
    return lambda: sum(random.random() < b for _ in range(int(a)))


_DISTRIBUTIONS: Mapping[str, Callable[[Random, float, float], Callable[[], float]]] = {
    "uniform": _uniform,
    "normal": _normal,
    "integer": _integer,
    "exponential": _exponential,
    "binomial": _binomial_draw,
}
