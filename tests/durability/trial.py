"""Trials: executions whose processes are killed and that other processes recover, inspected from outside."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any

from attrs import define, field, frozen

from tests.durability.inspection import ReferenceRun, TrialResult, find_problems, read_result, reference_of
from tests.durability.job import ENDED, Job, Manner
from tests.durability.trial_folder import TrialFolder

_MAX_ATTEMPTS = 9
"""How often a trial is repeated when its kill point is not reached; records of concurrent threads are grouped differently."""

ROOT = Path(__file__).parents[2]


@define
class ForkServer:
    """The process that forks the processes of trials.

    Attributes:
        process: the process.
    """

    process: subprocess.Popen[str]

    def start(self, *jobs: Job) -> Sequence[int]:
        """Start a process for each job, all at the same time, and return their ids."""
        pids: Sequence[int] = self._request(jobs)
        return pids

    def wait(self, pid: int) -> int:
        """Wait for a process and return its exit code, or minus the number of the signal that killed it."""
        code: int = self._request(pid)
        return code

    def run(self, job: Job) -> int:
        """Start a process, wait for it, and return its exit code."""
        return self.wait(self.start(job)[0])

    def _request(self, command: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{json.dumps(command)}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def start_fork_server() -> Iterator[ForkServer]:
    """Start a fork server; it ends with the block."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.durability.fork_server"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield ForkServer(process)
        finally:
            process.kill()


@frozen
class Verdict:
    """The outcome of a trial.

    Attributes:
        kill_count: the number of processes that were killed.
        result: the files of the trial; None when the last process did not end.
        effects: the key and the tool of each line of the ledger.
        problems: violations of the durability guarantees, in words; empty when there are none.
    """

    kill_count: int
    result: TrialResult | None
    effects: Sequence[tuple[str, str]]
    problems: Sequence[str]


@define
class Trials:
    """Runs trials, each in a folder of its own.

    Attributes:
        server: forks the processes.
        folder: the parent of the folders.
        references: the workloads without kills, by name.
    """

    server: ForkServer
    folder: Path
    references: dict[str, ReferenceRun] = field(factory=dict)
    _count: int = 0

    def new_folder(self, workload: str) -> Path:
        """Create an empty folder."""
        self._count += 1
        folder = self.folder / f"{workload.replace(' ', '_')}_{self._count}"
        folder.mkdir(parents=True)
        return folder

    def reference(self, workload: str) -> ReferenceRun:
        """Return a workload without kills; it runs at the first call."""
        if workload not in self.references:
            folder = self.new_folder(workload)
            code = self.server.run(make_job(workload, folder))
            assert code == ENDED, TrialFolder(folder).lines("errors")
            self.references[workload] = reference_of(read_result(folder))
        return self.references[workload]

    def run(self, workload: str, *kill_points: str, manner: Manner = "kill") -> Verdict:
        """Run a workload in processes that are killed, one after the other, and in a last one that ends it.

        Args:
            workload: the name of the workload.
            kill_points: the kill point of each process; the first one starts the execution, the others recover it.
            manner: how the processes are killed.
        """
        reference = self.reference(workload)
        for _ in range(_MAX_ATTEMPTS):
            verdict = self._attempt(workload, reference, kill_points, manner)
            if verdict.kill_count:
                break
        return verdict

    def _attempt(self, workload: str, reference: ReferenceRun, kill_points: Sequence[str], manner: Manner) -> Verdict:
        folder = self.new_folder(workload)
        for index, kill_point in enumerate((*kill_points, "")):
            job = make_job(workload, folder, recovers=index > 0, kill_point=kill_point, manner=manner)
            code = self.server.run(job)
            if code == ENDED:
                break
        else:
            kills, errors = len(TrialFolder(folder).lines("killed")), TrialFolder(folder).lines("errors")
            return Verdict(kills, None, (), [f"the last process ended with {code}", *errors])
        result = read_result(folder)
        kills = len(result.folder.lines("killed"))
        effects = [(effect["key"], effect["tool"]) for effect in result.folder.effects()]
        problems = list(find_problems(result, workload, reference, kills))
        if not problems:
            rmtree(folder)
        return Verdict(kills, result, effects, problems)


def make_job(
    workload: str, folder: Path, *, recovers: bool = False, kill_point: str = "", manner: Manner = "kill"
) -> Job:
    """Return a job."""
    return Job(workload=workload, folder=str(folder), recovers=recovers, kill_point=kill_point, manner=manner)
