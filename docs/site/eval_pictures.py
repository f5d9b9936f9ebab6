"""Draws the pictures of the page about how sure one can be, from the code that draws reports: `make pictures`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random

from agentloop.evals.comparison import compare
from agentloop.evals.drawing import Axis, IntervalRow, draw_intervals
from agentloop.evals.report import describe_verdict
from agentloop.evals.results import CaseNote, EvalResult, Trial
from agentloop.evals.sequences import ConfidenceSequence
from agentloop.evals.statistics import Estimate, clustered_share

PICTURES = Path(__file__).parents[1] / "pictures"
TRUTH = 0.8
LOOKS = {20, 50, 100, 200}


def main() -> None:
    """Write all pictures."""
    for name, picture in pictures().items():
        (PICTURES / name).write_text(picture, encoding="utf-8")


def pictures() -> Mapping[str, str]:
    """Return the pictures by their names; the same in each run."""
    return {
        "evals-twenty.svg": draw_twenty(),
        "evals-cases.svg": draw_cases(),
        "evals-repeats.svg": draw_repeats(),
        "evals-differences.svg": draw_differences(),
        "evals-looking.svg": draw_looking(),
    }


def percent(value: float) -> str:
    """Write a share."""
    return f"{100 * value:.0f} %"


def describe(found: Estimate) -> str:
    """Write a share with its interval."""
    return f"{percent(found.value)} ({percent(found.low)} to {percent(found.high)})"


def draw_twenty() -> str:
    """Draw twenty evals of one agent that passes 80 % of the time, and mark those whose interval misses that."""
    luck = Random(23)  # noqa: S311  # luck of a picture
    found = [clustered_share([[float(luck.random() < TRUTH)] for _ in range(60)]) for _ in range(20)]
    rows = [
        IntervalRow(f"eval {number}", each, describe(each), "" if TRUTH in each else "worse")
        for number, each in enumerate(found, 1)
    ]
    axis = Axis.around(found, percent, line=TRUTH, highest=1.0)
    return draw_intervals(rows, axis, title="Twenty evals of the same agent, with 60 cases each", has_style=True)


def draw_cases() -> str:
    """Draw what 80 % say with more and more cases."""
    found = {
        count: clustered_share([[float(number % 5 > 0)] for number in range(count)])
        for count in (10, 30, 100, 300, 1000)
    }
    rows = [IntervalRow(f"{count:,} cases", each, describe(each)) for count, each in found.items()]
    axis = Axis.around([*found.values()], percent, highest=1.0)
    return draw_intervals(rows, axis, title="80 % of 10, 30, 100, 300 and 1,000 cases", has_style=True)


def draw_repeats() -> str:
    """Draw what more repeats add, where the repeats of a case are alike, and where each is a new throw of the dice."""
    luck = Random(4)  # noqa: S311  # luck of a picture
    alike = {repeats: [[float(number % 5 > 0)] * repeats for number in range(40)] for repeats in (1, 3, 10)}
    varied = {
        repeats: [[float(luck.random() < TRUTH) for _ in range(repeats)] for _ in range(40)] for repeats in (1, 3, 10)
    }
    rows = [
        IntervalRow(f"{repeats} of each, alike", found, describe(found), "open")
        for repeats, cases in alike.items()
        for found in [clustered_share(cases)]
    ]
    rows += [
        IntervalRow(f"{repeats} of each, varied", found, describe(found))
        for repeats, cases in varied.items()
        for found in [clustered_share(cases)]
    ]
    axis = Axis.around([row.estimate for row in rows], percent, highest=1.0)
    return draw_intervals(rows, axis, title="40 cases with 1, 3 and 10 repeats each", has_style=True)


def draw_differences() -> str:
    """Draw a candidate that is better, one that is worse, and one of which nothing can be said."""
    passing = {"main": 70, "careful": 90, "short": 50, "other words": 73}
    comparison = compare(_result({name: [number < count for number in range(100)] for name, count in passing.items()}))
    found = [each for each in comparison.differences if str(each.quantity) == "pass@1"]
    rows = [
        IntervalRow(
            each.candidate, each.estimate, f"{each.format(each.estimate.value)}: {describe_verdict(each)}", each.verdict
        )
        for each in found
    ]
    axis = Axis.around(
        [each.estimate for each in found], lambda value: f"{100 * value:+.0f}" if value else "0", line=0.0
    )
    return draw_intervals(rows, axis, title="Differences from main, in points", has_style=True)


def _result(passes: Mapping[str, Sequence[bool]]) -> EvalResult:
    trials = [
        Trial(candidate=name, case=f"case {number}", repeat=0, seed=number, error="" if passed else "wrong")
        for name, each in passes.items()
        for number, passed in enumerate(each)
    ]
    count = len(next(iter(passes.values())))
    cases = [CaseNote(f"case {number}") for number in range(count)]
    return EvalResult(suite="desk", candidates=tuple(passes), cases=cases, trials=trials)


def draw_looking() -> str:
    """Draw what an ordinary interval and one for people who look says after 20, 50, 100 and 200 cases."""
    luck = Random(8)  # noqa: S311  # luck of a picture
    sequence, values, rows = ConfidenceSequence(), list[float](), list[IntervalRow]()
    for count in range(1, max(LOOKS) + 1):
        values.append(float(luck.random() < TRUTH))
        sequence.add(values[-1])
        if count in LOOKS:
            rows += _looks(count, values, sequence)
    axis = Axis.around([row.estimate for row in rows], percent, line=TRUTH, highest=1.0)
    return draw_intervals(rows, axis, title="An interval for one look, and one for many", has_style=True)


def _looks(count: int, values: Sequence[float], sequence: ConfidenceSequence) -> Iterator[IntervalRow]:
    ordinary, honest = clustered_share([[value] for value in values]), sequence.estimate
    yield IntervalRow(f"{count} cases, one look", ordinary, describe(ordinary), "open")
    yield IntervalRow(f"{count} cases, many looks", honest, describe(honest))


if __name__ == "__main__":
    main()
