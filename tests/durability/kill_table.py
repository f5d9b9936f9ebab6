"""A table of executions whose processes are killed: `python -m tests.durability.kill_table`.

Every execution runs in a process that is killed, by SIGKILL or by SIGTERM, and another process recovers it. The kill points are all points at
which the execution does something that outlives its process: before and after each append to its journal, and before and after each
effect of a tool. A ledger outside of the process counts the effects. The exit code is 1 when an effect was lost or repeated, or a
doubt was not reported.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from attrs import define, field

from agentloop.values.tool_calls import ToolStatus
from tests.durability.job import Manner
from tests.durability.trial import Trials, Verdict, start_fork_server
from tests.durability.workloads import WORKLOADS

_LABELS = {
    "before append": "before a record",
    "after append": "after a record",
    "after event": "after the event of its outcome",
}
_BY_POINT = frozenset({"pure", "idempotent", "effect", "reconciled"})
"""The workloads with a line for each kind of kill point; the others have a single line."""
_PAIRED = ("mixed", "effect", "reconciled", "suspend", "agent", "agent approval", "agent approval suspend", "messages")
"""The workloads that are killed twice."""
_PAIRED_POINTS = 6
"""The number of kill points of which all pairs are tried."""
_LINKED = ("mixed", "agent suspend", "approval", "pools", "fork")
"""The workloads whose recoveries open the journal through a symbolic link."""
Plan: TypeAlias = tuple[str, str, Manner, Sequence[str]]
"""A trial: its workload, the label of its line, how its processes are killed, and its kill points."""


@define
class Row:
    """A line of the table.

    Attributes:
        workload: the name of the workload.
        label: where its process was killed.
        trials: the number of trials.
        kills: the number of killed processes.
        calls: the number of calls with an effect, according to the ledger.
        repeated: the number of calls that had their effect more than once.
        in_doubt: the number of calls that ended in doubt.
        problems: violations of the durability guarantees.
    """

    workload: str
    label: str
    trials: int = 0
    kills: int = 0
    calls: int = 0
    repeated: int = 0
    in_doubt: int = 0
    problems: list[str] = field(factory=list)

    def add(self, verdict: Verdict, kill_points: Sequence[str]) -> None:
        """Count a trial."""
        self.trials += 1
        self.kills += verdict.kill_count
        trial = f"{self.workload}, killed {' and then '.join(kill_points)}"
        self.problems += [f"{trial}: {problem}" for problem in verdict.problems]
        if not verdict.kill_count:
            self.problems.append(f"{trial}: the kill point was not reached")
        if verdict.result is None:
            return
        counts = Counter(key for key, _ in verdict.effects)
        self.calls += len(counts)
        self.repeated += sum(count > 1 for count in counts.values())
        outcomes = verdict.result.outcomes.values()
        self.in_doubt += sum(outcome.status is ToolStatus.IN_DOUBT for outcome in outcomes)

    def cells(self) -> tuple[str, ...]:
        """Return the cells of the line."""
        numbers = (self.trials, self.kills, self.calls, self.repeated, self.in_doubt, len(self.problems))
        return (self.workload, self.label, *[str(number) for number in numbers])


HEAD = ("run", "killed", "trials", "kills", "calls with an effect", "repeated", "in doubt", "wrong")


def plan_trials(trials: Trials) -> Iterator[Plan]:
    """Yield every trial."""
    for workload in WORKLOADS:
        for point in trials.reference(workload).points:
            kind = point.rsplit(" ", 1)[0] if workload in _BY_POINT else ""
            yield workload, _LABELS.get(kind, kind.replace(" e", " the e")) or "at each point", "kill", [point]
            yield workload, "by SIGTERM", "terminate", [point]
            if workload in _LINKED:
                yield workload, "and found through a link", "symlink", [point]
    for workload in _PAIRED:
        points = trials.reference(workload).points
        selected = points[len(points) // 12 :: max(len(points) // _PAIRED_POINTS, 1)][:_PAIRED_POINTS]
        for first in selected:
            yield from [(workload, "twice in a row", "kill", [first, second]) for second in selected]


def run_trials(folder: Path) -> list[Row]:
    """Run all trials on two processors, and return the lines of the table."""
    rows: dict[tuple[str, str], Row] = {}
    with start_fork_server() as first, start_fork_server() as second, ThreadPoolExecutor(2) as pool:
        runners = [Trials(first, folder / "first"), Trials(second, folder / "second")]
        plan = list(plan_trials(runners[0]))

        def run_half(index: int) -> list[tuple[str, str, Sequence[str], Verdict]]:
            return [
                (workload, label, points, runners[index].run(workload, *points, manner=manner))
                for workload, label, manner, points in plan[index::2]
            ]

        for workload, label, points, verdict in [trial for half in pool.map(run_half, range(2)) for trial in half]:
            rows.setdefault((workload, label), Row(workload, label)).add(verdict, points)
    order = {(workload, label): index for index, (workload, label, *_) in reversed(list(enumerate(plan)))}
    return sorted(rows.values(), key=lambda row: order[row.workload, row.label])


def print_table(rows: Sequence[Row]) -> None:
    """Print the table and all problems."""
    total = Row("all", "")
    for row in rows:
        for name in ("trials", "kills", "calls", "repeated", "in_doubt"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.problems += row.problems
    lines = [HEAD, *[row.cells() for row in (*rows, total)]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    for line in lines:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        print_line("  ".join((*left, *right)))
    for problem in total.problems:
        print_line(f"WRONG: {problem}")


def print_line(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> int:
    """Print the table; return 1 when there are problems."""
    start = time.perf_counter()
    with TemporaryDirectory() as folder:
        rows = run_trials(Path(folder))
    print_table(rows)
    print_line(f"{time.perf_counter() - start:.0f} seconds")
    return 1 if any(row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
