"""What becomes of runs that are killed, as a table: `python -m tests.durability.kill_table`.

Every run is a process, killed by SIGKILL at a moment, and gone on with by another one. The moments are all at which the run does
something that outlives it: before and after each append to its journal, before and after each effect of a tool. A ledger outside counts
the effects. The program ends with 1 when an effect was lost or doubled, or a doubt not told.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, field

from agentloop.values.tool_calls import ToolStatus
from tests.durability.trial import Trials, Verdict, nursery
from tests.durability.workloads import WORKLOADS

_WORDS = {
    "before append": "before a record",
    "after append": "after a record",
    "told of": "after its outcome was told",
}
_PAIRED = ("mixed", "effect", "probed", "suspend", "agent", "approved inside", "steered")
_PAIRS = 6
"""Of how many moments all pairs are tried."""


@define
class Row:
    """A line of the table.

    Attributes:
        run: the workload.
        moment: where its process was killed.
        trials: how many trials.
        kills: how many processes were killed.
        calls: how many calls had an effect, by the ledger.
        repeated: how many of them have had it more than once.
        in_doubt: how many calls ended in doubt.
        problems: what must not be.
    """

    run: str
    moment: str
    trials: int = 0
    kills: int = 0
    calls: int = 0
    repeated: int = 0
    in_doubt: int = 0
    problems: list[str] = field(factory=list)

    def add(self, verdict: Verdict, moments: Sequence[str]) -> None:
        """Count a trial."""
        self.trials += 1
        self.kills += verdict.killed
        told = f"{self.run}, killed {' and then '.join(moments)}"
        self.problems += [f"{told}: {problem}" for problem in verdict.problems]
        if not verdict.killed:
            self.problems.append(f"{told}: the moment was not reached")
        if verdict.found is None:
            return
        counts = Counter(key for key, _ in verdict.effects)
        self.calls += len(counts)
        self.repeated += sum(count > 1 for count in counts.values())
        outcomes = verdict.found.outcomes.values()
        self.in_doubt += sum(outcome.status is ToolStatus.IN_DOUBT for outcome in outcomes)

    def cells(self) -> tuple[str, ...]:
        """Return the line, cell by cell."""
        numbers = (self.trials, self.kills, self.calls, self.repeated, self.in_doubt, len(self.problems))
        return (self.run, self.moment, *[str(number) for number in numbers])


HEAD = ("run", "killed", "trials", "kills", "calls with an effect", "repeated", "in doubt", "wrong")


def plans(trials: Trials) -> Iterator[tuple[str, str, Sequence[str]]]:
    """Name every trial: its workload, its line of the table, and its moments."""
    for workload in WORKLOADS:
        for moment in trials.reference(workload).moments:
            words = moment.rsplit(" ", 1)[0] if workload in _BY_MOMENT else ""
            yield workload, _WORDS.get(words, words.replace(" e", " the e")) or "at each moment", [moment]
    for workload in _PAIRED:
        moments = trials.reference(workload).moments
        some = moments[len(moments) // 12 :: max(len(moments) // _PAIRS, 1)][:_PAIRS]
        for one in some:
            yield from [(workload, "twice in a row", [one, other]) for other in some]


_BY_MOMENT = frozenset({"pure", "idempotent", "effect", "probed"})


def table(folder: Path) -> list[Row]:
    """Try everything, on two processors, and return the lines."""
    rows: dict[tuple[str, str], Row] = {}
    with nursery() as one, nursery() as other, ThreadPoolExecutor(2) as pool:
        both = [Trials(one, folder / "one"), Trials(other, folder / "other")]
        todo = list(plans(both[0]))

        def work(at: int) -> list[tuple[str, str, Sequence[str], Verdict]]:
            return [
                (workload, line, at_moments, both[at].killed(workload, *at_moments))
                for workload, line, at_moments in todo[at::2]
            ]

        for workload, line, moments, verdict in [done for some in pool.map(work, range(2)) for done in some]:
            rows.setdefault((workload, line), Row(workload, line)).add(verdict, moments)
    order = {(workload, line): at for at, (workload, line, _) in reversed(list(enumerate(todo)))}
    return sorted(rows.values(), key=lambda row: order[row.run, row.moment])


def show(rows: Sequence[Row]) -> None:
    """Print the table, and what is wrong."""
    total = Row("all", "")
    for row in rows:
        for name in ("trials", "kills", "calls", "repeated", "in_doubt"):
            setattr(total, name, getattr(total, name) + getattr(row, name))
        total.problems += row.problems
    lines = [HEAD, *[row.cells() for row in (*rows, total)]]
    widths = [max(len(line[at]) for line in lines) for at in range(len(HEAD))]
    for line in lines:
        left = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        right = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        say("  ".join((*left, *right)))
    for problem in total.problems:
        say(f"WRONG: {problem}")


def say(line: str) -> None:
    """Print a line."""
    sys.stdout.write(f"{line}\n")


def main() -> int:
    """Print the table; return 1 when something is wrong."""
    begun = time.perf_counter()
    with TemporaryDirectory() as folder:
        rows = table(Path(folder))
    show(rows)
    say(f"{time.perf_counter() - begun:.0f} seconds")
    return 1 if any(row.problems for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
