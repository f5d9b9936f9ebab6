"""A process with all imports that forks the processes of trials: `python -m tests.durability.fork_server`.

It reads a list of jobs from each line, forks a process for each job, and answers with the list of their ids. A line with a single
id waits for that process, and the answer is its exit code. All processes of one line start at the same time.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import aclosing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from agentloop import AgentLoop
from agentloop.contracts.can_journal import Claim
from agentloop.durable import SqliteJournal
from agentloop.errors import JournalConflict, UnknownExecution
from agentloop.events import ProtocolMonitor, ToolCallCompleted, ToolCallRecovered
from agentloop.values import AgentState, ExecutionHead, JournalRecord, PendingCall, answer, approve, to_json
from agentloop.values.decisions import Answer, Approve
from agentloop.values.tool_calls import ToolStatus
from tests.durability.job import CONFLICT, CRASHED, ENDED, TERMINATED, Job
from tests.durability.trial_folder import TrialFolder
from tests.durability.workloads import (
    BLOCKED,
    MAINTENANCE,
    OLD,
    RUN,
    SOURCE,
    WORKLOADS,
    Workload,
    build_blocked,
    build_old,
)


class MortalJournal(SqliteJournal):
    """A journal whose process can be killed before and after each append.

    Args:
        folder: the folder of the trial.
        deletes: whether old executions are deleted between appends.
    """

    def __init__(self, folder: TrialFolder, *, deletes: bool = False) -> None:
        super().__init__(folder.journal, synchronous="normal")
        self.folder = folder
        self._append_count = 0
        self._deletes = deletes

    async def append(self, head: ExecutionHead, records: list[JournalRecord], claim: Claim) -> None:  # type: ignore[override]  # as it is called
        """Append records, unless this is the kill point."""
        self._append_count += 1
        number = self._append_count
        self.folder.note("appends", f"{number} {' '.join([record.kind.value for record in records])}")
        self.folder.reach(f"before append {number}")
        await super().append(head, records, claim)
        self.folder.reach(f"after append {number}")
        if self._deletes and number % 2 == 0:
            with suppress(JournalConflict):  # another append deletes it at this moment
                await self.delete(OLD[number // 2 % len(OLD)])
            self.folder.reach(f"after deletion {number}")
        if self._deletes and number % 5 == 0:
            await self.purge(datetime.now(UTC) + timedelta(days=1))
            self.folder.reach(f"after purge {number}")


async def drive(job: Job, folder: TrialFolder) -> None:
    """Start or recover the execution, and run it to its end; make the decisions that it waits for."""
    workload = Workload(build_blocked) if job["workload"] == BLOCKED else WORKLOADS[job["workload"]]
    if workload.deletes and not job["recovers"]:
        await record_old(folder)
    async with aclosing(MortalJournal(folder, deletes=workload.deletes)) as journal:
        await drive_with(journal, workload, job, folder)


async def record_old(folder: TrialFolder) -> None:
    """Record the executions that are deleted later."""
    async with aclosing(SqliteJournal(folder.journal, synchronous="normal")) as journal:
        for execution_id in OLD:
            await build_old(folder, journal).execute("go", execution_id=execution_id)


async def drive_with(journal: MortalJournal, workload: Workload, job: Job, folder: TrialFolder) -> None:
    """Start or recover the execution in a journal, and run it to its end."""
    loop = workload.build(folder, journal)
    source = workload.source(folder, journal) if workload.source is not None else None
    monitors = [observe(each, folder) for each in (loop, source) if each is not None]
    if source is not None and await journal.head(RUN) is None:
        await recover_or_start(source, SOURCE)
        await journal.fork(SOURCE, 1, fork_id=RUN)
    if job["recovers"] or source is not None:
        state = await recover_or_start(loop, RUN)
    else:
        state = await loop.execute("go", execution_id=RUN)
    while state.pending:
        decisions = {call.key: decide(call, folder) for call in state.pending if not call.waits_for}
        folder.reach("before decision")
        state = await loop.resume(RUN, decisions)
    for violation in [violation for monitor in monitors for violation in monitor.violations]:
        folder.note("errors", violation)
    (folder.folder / "final.json").write_bytes(to_json(state))


def observe(loop: AgentLoop, folder: TrialFolder) -> ProtocolMonitor:
    """Note the events of a loop that the inspection needs, and return a monitor of all of them."""
    monitor = ProtocolMonitor()
    loop.wiretap(monitor)

    def note_recovery(event: ToolCallRecovered) -> None:
        folder.note("recovered", f"{event.recovery.value} {event.key}")

    def note_outcome(event: ToolCallCompleted) -> None:
        # A call that is cancelled because the process was terminated is not recorded: its recovery is reported.
        if not (folder.is_dying and event.execution.status is ToolStatus.CANCELLED):
            folder.note("completed", f"{event.execution.status.value} {event.execution.key}")
        folder.reach(f"after event {event.execution.key}")

    loop.on(ToolCallRecovered, note_recovery)
    loop.on(ToolCallCompleted, note_outcome)
    return monitor


async def recover_or_start(loop: AgentLoop, execution_id: str) -> AgentState:
    """Recover an execution, or start it if it is not recorded."""
    try:
        return await loop.recover(execution_id)
    except UnknownExecution:
        return await loop.execute("go", execution_id=execution_id)


_MAINTENANCE_ROUNDS = 20


async def maintain(folder: TrialFolder) -> None:
    """Delete and purge what was recorded until now, while other processes recover an execution."""
    now = datetime.now(UTC)
    async with aclosing(SqliteJournal(folder.journal, synchronous="normal")) as journal:
        for _ in range(_MAINTENANCE_ROUNDS):
            await journal.purge(now)
            for execution_id in OLD:
                with suppress(JournalConflict):  # another process deletes it at this moment
                    await journal.delete(execution_id)


async def drive_until_terminated(job: Job, folder: TrialFolder) -> None:
    """Drive the execution; SIGTERM cancels it, as in a service."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await (maintain(folder) if job["workload"] == MAINTENANCE else drive(job, folder))


def decide(call: PendingCall, folder: TrialFolder) -> Approve | Answer:
    """Return the decision of a person who looks up the effects of a call in doubt."""
    folder.note("decided", call.key)
    if "it is not known whether" in call.reason:
        has_happened = any(effect["key"] == call.key for effect in folder.effects())
        return answer("it had happened") if has_happened else approve(call.digest)
    return approve(call.digest)


def run(job: Job) -> int:
    """Run a job in this process, and return its exit code if it is not killed."""
    folder = TrialFolder(Path(job["folder"]), job["kill_point"], job["manner"], job["recovers"])
    try:
        asyncio.run(drive_until_terminated(job, folder))
    except JournalConflict:
        return CONFLICT
    except asyncio.CancelledError:
        return TERMINATED
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
            run(Job(workload="mixed", folder=folder, recovers=recovers, kill_point="", manner="kill"))
    gc.collect()
    gc.freeze()


def main() -> None:
    """Answer each line of the standard input."""
    logging.disable()  # failed attempts and abandoned tools are intended
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
