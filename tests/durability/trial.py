"""Trials: a run in a process that is killed, gone on with in others, and judged from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

from attrs import define, field, frozen

from tests.durability.job import ENDED, Job
from tests.durability.judging import Found, Reference, found_in, problems_of, reference_of
from tests.durability.place import Place

_TRIES = 9
"""How often a trial is begun anew because its moment was not reached: what threads do together differs in how it is appended."""

ROOT = Path(__file__).parents[2]


@define
class Nursery:
    """The process that forks the others.

    Attributes:
        process: the process.
    """

    process: subprocess.Popen[str]

    def begin(self, *jobs: Job) -> Sequence[int]:
        """Start processes, all at once, and return their ids."""
        pids: Sequence[int] = self._ask(jobs)
        return pids

    def end(self, pid: int) -> int:
        """Wait for a process and return how it ended: its code, or minus the signal that killed it."""
        code: int = self._ask(pid)
        return code

    def run(self, job: Job) -> int:
        """Start a process and wait for it."""
        return self.end(self.begin(job)[0])

    def _ask(self, what: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(what)}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def nursery() -> Iterator[Nursery]:
    """Start a nursery; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.durability.nursery"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Nursery(process)
        finally:
            process.kill()


@frozen
class Verdict:
    """What a trial has come to.

    Attributes:
        killed: how many of its processes were killed.
        found: what is there; None when the last process did not end.
        effects: the key and the tool of each line of the ledger.
        problems: what must not be, in words; empty when all is well.
    """

    killed: int
    found: Found | None
    effects: Sequence[tuple[str, str]]
    problems: Sequence[str]


@define
class Trials:
    """Trials in folders of their own.

    Attributes:
        nursery: forks the processes.
        folder: where the folders are made.
        references: what becomes of the workloads that nobody kills.
    """

    nursery: Nursery
    folder: Path
    references: dict[str, Reference] = field(factory=dict)
    _count: int = 0

    def new_folder(self, workload: str) -> Path:
        """Make an empty folder."""
        self._count += 1
        folder = self.folder / f"{workload.replace(' ', '_')}_{self._count}"
        folder.mkdir(parents=True)
        return folder

    def reference(self, workload: str) -> Reference:
        """Return what becomes of a workload that nobody kills."""
        if workload not in self.references:
            folder = self.new_folder(workload)
            code = self.nursery.run(job(workload, folder))
            assert code == ENDED, Place(folder).lines("errors")
            self.references[workload] = reference_of(found_in(folder))
        return self.references[workload]

    def killed(self, workload: str, *dies_at: str) -> Verdict:
        """Run a workload in processes that die at these moments, one after the other, and in one that ends it; judge it.

        Args:
            workload: the name of the run.
            dies_at: the moment of each process that dies; the first begins the run, the others go on with it.
        """
        reference = self.reference(workload)
        for _ in range(_TRIES):
            verdict = self._tried(workload, reference, dies_at)
            if verdict.killed:
                break
        return verdict

    def _tried(self, workload: str, reference: Reference, dies_at: Sequence[str]) -> Verdict:
        folder, kills = self.new_folder(workload), 0
        for at, moment in enumerate((*dies_at, "")):
            code = self.nursery.run(job(workload, folder, recovers=at > 0, dies_at=moment))
            kills += code == -signal.SIGKILL
            if code == ENDED:
                break
        else:
            return Verdict(kills, None, (), [f"the last process ended with {code}", *Place(folder).lines("errors")])
        found = found_in(folder)
        effects = [(one["key"], one["tool"]) for one in found.place.effects()]
        problems = list(problems_of(found, workload, reference, kills))
        if not problems:
            rmtree(folder)
        return Verdict(kills, found, effects, problems)


def job(workload: str, folder: Path, *, recovers: bool = False, dies_at: str = "") -> Job:
    """Make a job."""
    return Job(workload=workload, folder=str(folder), recovers=recovers, dies_at=dies_at)
