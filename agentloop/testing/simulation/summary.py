"""What many simulated runs have shown together: their numbers, the faults that occurred and where, and the seeds that failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, field

from agentloop.testing.simulation.faults import ALL_FAULTS
from agentloop.testing.simulation.runs import SimulatedRun

PLACES: Sequence[str] = (
    "inference",
    "tool",
    "reconcile",
    "journal.append",
    "journal.read",
    "journal.claim",
    "journal.release",
    "idle",
)
"""The places of the table, in its order; further ones follow."""
_ANYWHERE = frozenset({"crash", "pause", "expire", "lose", "cut", "cancel", "clock"})
"""The faults that can occur at every place."""


@define
class SimulationSummary:
    """The sum of many runs.

    Attributes:
        runs: the number of runs.
        executions: the number of executions that they recorded.
        records: the number of records.
        effects: how often tools had their effect.
        cpu_seconds: the processor time that they took.
        hits: how often each fault occurred, by kind and place.
        failures: the problems of each seed that failed.
        ranges: the seeds that have run, each range with its first seed and the one behind its last; in order, and apart.
    """

    runs: int = 0
    executions: int = 0
    records: int = 0
    effects: int = 0
    cpu_seconds: float = 0.0
    hits: Counter[tuple[str, str]] = field(factory=Counter)
    failures: dict[int, list[str]] = field(factory=dict)
    ranges: list[tuple[int, int]] = field(factory=list)

    def add(self, run: SimulatedRun, cpu_seconds: float) -> None:
        """Add a run, and the processor time that it took; of a seed that has failed before, only whether it fails still."""
        was_there = self.failures.pop(run.seed, None) is not None
        if run.problems:
            self.failures[run.seed] = list(run.problems)
        if was_there:
            return
        self._note(run.seed)
        self.runs += 1
        self.executions += run.executions
        self.records += run.records
        self.effects += run.effects
        self.cpu_seconds += cpu_seconds
        for (kind, place), count in run.hits.items():
            self.hits[kind, place.partition(".")[0] if place.startswith("tool") else place] += count

    def _note(self, seed: int) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*self.ranges, (seed, seed + 1)]):
            if merged and start <= merged[-1][1]:
                start, end = merged[-1][0], max(end, merged.pop()[1])  # noqa: PLW2901  # the two are one range
            merged.append((start, end))
        self.ranges = merged

    def left(self, seeds: Iterable[int]) -> Iterator[int]:
        """Yield the seeds that have not run, and those that have failed."""
        for seed in seeds:
            if seed in self.failures or not any(start <= seed < end for start, end in self.ranges):
                yield seed

    @classmethod
    def total(cls, summaries: Iterable[SimulationSummary]) -> SimulationSummary:
        """Return the sum of the numbers and faults of several summaries, without their seeds."""
        total = cls()
        for each in summaries:
            total.runs += each.runs
            total.executions += each.executions
            total.records += each.records
            total.effects += each.effects
            total.cpu_seconds += each.cpu_seconds
            total.hits += each.hits
        return total

    @property
    def rate(self) -> float:
        """The number of executions for each second of processor time."""
        return self.executions / self.cpu_seconds if self.cpu_seconds else 0.0

    def table(self) -> list[list[str]]:
        """Return the table of faults and places: the names of the places, then a row for each kind of fault."""
        others = sorted({place for _, place in self.hits} - set(PLACES))
        places = [*PLACES, *others]
        rows = [[kind.value, *[f"{self.hits[kind.value, place] or ''}" for place in places]] for kind in ALL_FAULTS]
        return [["", *places], *rows]

    def never_hit(self) -> list[str]:
        """Return the faults that never occurred, and those that can occur everywhere with the places where they never did."""
        known = {kind for kind, _ in self.hits}
        missing = [kind.value for kind in ALL_FAULTS if kind.value not in known]
        return missing + [
            f"{kind} at {place}" for kind in sorted(_ANYWHERE & known) for place in PLACES if not self.hits[kind, place]
        ]

    def to_plain(self) -> dict[str, Any]:
        """Return the summary as plain JSON data."""
        return {
            "runs": self.runs,
            "executions": self.executions,
            "records": self.records,
            "effects": self.effects,
            "cpu_seconds": round(self.cpu_seconds, 3),
            "hits": [[*place, count] for place, count in sorted(self.hits.items())],
            "failures": {str(seed): problems for seed, problems in self.failures.items()},
            "ranges": [list(each) for each in self.ranges],
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> SimulationSummary:
        """Return a summary from plain JSON data.

        Raises:
            KeyError, TypeError, ValueError: the data are no summary.
        """
        numbers = {name: data[name] for name in ("runs", "executions", "records", "effects", "cpu_seconds")}
        hits = Counter({(str(kind), str(place)): int(count) for kind, place, count in data["hits"]})
        failures = {int(seed): list(problems) for seed, problems in data["failures"].items()}
        ranges = [(int(start), int(end)) for start, end in data["ranges"]]
        return cls(**numbers, hits=hits, failures=failures, ranges=ranges)
