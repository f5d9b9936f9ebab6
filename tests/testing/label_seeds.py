"""Tries labels and planned programs for a range of seeds: `make labels SEEDS=0:100000`.

Each seed is one model under one driver, mode, compiler or wrapper of the package, with three foreign texts, and one planned program. What
is done is kept in `build/labels.json`, so that another call with a higher end goes on where the last one ended, also after it was
interrupted. A seed that breaks a law is printed, and ends the run.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path

from attrs import asdict, define

from agentloop.models import RunProgram
from agentloop.testing import PlanKit
from agentloop.testing.kit import LawViolation
from tests.testing.test_label_kit import KITS, differing_texts

_BATCH = 50
"""How many seeds are done between two writes of the results; the programs of a batch share one process."""


@define
class Results:
    """What was done.

    Attributes:
        ranges: the ranges of seeds that are done, each with its first seed and the seed after its last one.
        runs: the executions of models.
        effects: the effects that ran unasked in them.
        programs: the planned programs.
        seconds: the time that all that took.
    """

    ranges: list[list[int]]
    runs: int = 0
    effects: int = 0
    programs: int = 0
    seconds: float = 0.0

    def add(self, first: int, last: int) -> None:
        """Add a range, joined with its neighbors."""
        joined: list[list[int]] = []
        for begin, end in sorted([*self.ranges, [first, last]]):
            if joined and begin <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([begin, end])
        self.ranges = joined

    def next_seed(self, first: int) -> int:
        """Return the first seed from this one on that is not done."""
        return next((end for begin, end in self.ranges if begin <= first < end), first)


def run_batch(first: int, last: int, results: Results) -> None:
    """Run the seeds of a batch.

    Raises:
        LawViolation: a law does not hold.
    """
    began = time.perf_counter()
    for seed in range(first, last):
        done = differing_texts(KITS[seed % len(KITS)], seed)
        if len(done) > 1:
            raise LawViolation(53, f"a model gets done unasked what a foreign text says: {done}", seed)
        results.runs += 3
        results.effects += str(list(done)).count("('")
    PlanKit(lambda: RunProgram(planned=True)).run_seeds(first, last)
    results.programs += last - first
    results.seconds += time.perf_counter() - began
    results.add(first, last)


def main() -> None:
    """Run a range of seeds, and print what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000", help="the first seed, and the one after the last")
    parser.add_argument("--results", type=Path, default=Path("build/labels.json"), help="what was done before, and now")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this time")
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    logging.disable(logging.CRITICAL)
    path: Path = options.results
    results = Results(**json.loads(path.read_text())) if path.exists() else Results([])
    ends = time.monotonic() + options.seconds
    while (begin := results.next_seed(first)) < last and time.monotonic() < ends:
        others = [start for start, _ in results.ranges if start > begin]
        run_batch(begin, min([last, begin + _BATCH, *others]), results)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(results)) + "\n")
    sys.stdout.write(
        f"{sum(end - begin for begin, end in results.ranges):,} seeds {results.ranges} in {results.seconds:,.0f} s: {results.runs:,} runs of models "
        f"with {results.effects:,} effects unasked, {results.programs:,} planned programs, over {len(KITS)} kits; every law holds\n"
    )


if __name__ == "__main__":
    main()
