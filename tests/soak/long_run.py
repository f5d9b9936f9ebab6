"""A long run of hostile histories in several processes: `python -m tests.soak.long_run --steps 1000000`."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from random import Random

from attrs import frozen

from tests.soak.world import History

_RUNS = 12
_HISTORIES_PER_PART = 200


@frozen
class SeededChooser:
    """Chooses by a seed."""

    random: Random

    def number(self, most: int) -> int:
        """Return a number from 0 to `most`, inclusive."""
        return self.random.randint(0, most)

    def happens(self, percent: int) -> bool:
        """Return whether something with this probability happens."""
        return self.random.random() * 100 < percent


def run_history(seed: int) -> tuple[int, list[str]]:
    """Return the steps and the broken promises of the history of a seed; the history ends with the first broken one."""
    history = History.begin(SeededChooser(Random(seed)))  # no secret
    for _ in range(_RUNS):
        history.run()
        if history.world.problems:
            break
    return history.world.steps, [f"seed {seed}: {problem}" for problem in history.world.problems]


def run_part(first_seed: int) -> tuple[int, list[str]]:
    """Run the histories of many seeds; return the sums."""
    logging.disable()  # every failure of a part is logged
    results = [run_history(seed) for seed in range(first_seed, first_seed + _HISTORIES_PER_PART)]
    return sum(steps for steps, _ in results), [problem for _, problems in results for problem in problems]


def main() -> None:
    """Run until so many steps are taken, and print what was broken, by kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000, help="the number of agent steps")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="the number of processes")
    options = parser.parse_args()
    began, steps, runs, seed = time.monotonic(), 0, 0, options.seed
    kinds: Counter[str] = Counter()
    with ProcessPoolExecutor(options.workers) as pool:
        while steps < options.steps:
            seeds = range(seed, seed + _HISTORIES_PER_PART * (options.workers or 1) * 4, _HISTORIES_PER_PART)
            seed, runs = seeds.stop, runs + len(seeds) * _HISTORIES_PER_PART
            for taken, problems in pool.map(run_part, seeds):
                steps += taken
                for problem in problems:
                    kinds[problem.split(": ")[1]] += 1
                    sys.stdout.write(f"{problem}\n")
                    sys.stdout.flush()
            sys.stderr.write(f"\r{steps:,} steps, {runs:,} histories, {time.monotonic() - began:.0f} s")
    broken = ", ".join([f"{kind}: {count}" for kind, count in kinds.items()]) or "nothing broken"
    sys.stdout.write(f"\n{steps:,} steps of {runs:,} histories in {time.monotonic() - began:.0f} s; {broken}\n")
    sys.exit(bool(kinds))


if __name__ == "__main__":
    main()
