"""A process with all imports that forks the processes of trials: `python -m tests.durability.fork_server`.

It reads a list of jobs from each line, forks a process for each job, and answers with the list of their ids. A line with a single
id waits for that process, and the answer is its exit code. All processes of one line start at the same time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from agentloop import AgentLoop
from agentloop.errors import JournalConflict, UnknownExecution
from agentloop.events import ProtocolMonitor, ToolCallCompleted, ToolCallRecovered
from agentloop.journal import SqliteJournal
from agentloop.values import AgentState, Approve, ExecutionHead, JournalRecord, PendingCall, answer, approve, to_json
from agentloop.values.decisions import Answer
from tests.durability.job import CONFLICT, CRASHED, ENDED, Job
from tests.durability.trial_folder import TrialFolder
from tests.durability.workloads import BLOCKED, RUN, WORKLOADS, build_blocked


class MortalJournal(SqliteJournal):
    """A journal whose process can be killed before and after each append."""

    def __init__(self, folder: TrialFolder) -> None:
        super().__init__(folder.journal, synchronous="normal")
        self.folder = folder
        self._append_count = 0

    async def append(self, head: ExecutionHead, records: list[JournalRecord]) -> None:  # type: ignore[override]  # as it is called
        """Append records, unless this is the kill point."""
        self._append_count += 1
        number = self._append_count
        self.folder.note("appends", f"{number} {' '.join([record.kind.value for record in records])}")
        self.folder.reach(f"before append {number}")
        await super().append(head, records)
        self.folder.reach(f"after append {number}")


async def drive(job: Job, folder: TrialFolder) -> None:
    """Start or recover the execution, and run it to its end; make the decisions that it waits for."""
    journal = MortalJournal(folder)
    build = build_blocked if job["workload"] == BLOCKED else WORKLOADS[job["workload"]].build
    loop = build(folder, journal)
    monitor = ProtocolMonitor()
    loop.wiretap(monitor)

    def note_recovery(event: ToolCallRecovered) -> None:
        folder.note("recovered", f"{event.recovery.value} {event.key}")

    def note_outcome(event: ToolCallCompleted) -> None:
        folder.note("completed", f"{event.execution.status.value} {event.execution.key}")
        folder.reach(f"after event {event.execution.key}")

    loop.on(ToolCallRecovered, note_recovery)
    loop.on(ToolCallCompleted, note_outcome)
    state = await (recover_or_start(loop) if job["recovers"] else loop.execute("go", execution_id=RUN))
    while state.pending:
        decisions = {call.key: decide(call, folder) for call in state.pending if not call.waits_for}
        folder.reach("before decision")
        state = await loop.resume(RUN, decisions)
    for violation in monitor.violations:
        folder.note("errors", violation)
    (folder.folder / "final.json").write_bytes(to_json(state))
    await journal.aclose()


async def recover_or_start(loop: AgentLoop) -> AgentState:
    """Recover the execution, or start it if it is not recorded."""
    try:
        return await loop.recover(RUN)
    except UnknownExecution:
        return await loop.execute("go", execution_id=RUN)


def decide(call: PendingCall, folder: TrialFolder) -> Approve | Answer:
    """Return the decision of a person who looks up the effects of a call in doubt."""
    folder.note("decided", call.key)
    if "it is not known whether" in call.reason:
        has_happened = any(effect["key"] == call.key for effect in folder.effects())
        return answer("it had happened") if has_happened else approve(call.digest)
    return approve(call.digest)


def run(job: Job) -> int:
    """Run a job in this process, and return its exit code if it is not killed."""
    folder = TrialFolder(Path(job["folder"]), job["kill_point"])
    try:
        asyncio.run(drive(job, folder))
    except JournalConflict:
        return CONFLICT
    except BaseException:  # noqa: BLE001  # the trial reports any error
        folder.note("errors", traceback.format_exc())
        return CRASHED
    return ENDED


def fork_all(jobs: Sequence[Job]) -> Sequence[int]:
    """Fork a process for each job, start all of them at the same time, and return their ids."""
    read_end, write_end = os.pipe()
    pids = []
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            os.close(write_end)
            os.read(read_end, 1)  # returns when all write ends are closed
            os._exit(run(job))
        pids.append(pid)
    os.close(write_end)
    os.close(read_end)
    return pids


def warm() -> None:
    """Import and compile everything that a run needs, so that forked processes start fast."""
    with TemporaryDirectory() as folder:
        for recovers in (False, True):
            run(Job(workload="mixed", folder=folder, recovers=recovers, kill_point=""))
    gc.collect()
    gc.freeze()


def main() -> None:
    """Answer each line of the standard input."""
    warm()
    for line in sys.stdin:
        command = json.loads(line)
        if isinstance(command, int):
            response: object = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        else:
            response = fork_all(command)
        sys.stdout.write(f"{json.dumps(response)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
