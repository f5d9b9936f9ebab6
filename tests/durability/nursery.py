"""A process that has everything imported and forks the processes that are to die: `python -m tests.durability.nursery`.

It reads a list of jobs from each line, starts a process for each, and answers with the list of their ids; an id alone is waited
for, and answered with how the process ended. All processes of one line go off together.
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
from tests.durability.place import Place
from tests.durability.workloads import HELD, RUN, WORKLOADS, held


class MortalJournal(SqliteJournal):
    """A journal whose process may die before each append, and after."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.journal, synchronous="normal")
        self.place = place
        self._appends = 0

    async def append(self, head: ExecutionHead, records: list[JournalRecord]) -> None:  # type: ignore[override]  # as it is called
        """Append, unless this is the moment to die."""
        self._appends += 1
        number = self._appends
        self.place.note("appends", f"{number} {' '.join([record.kind.value for record in records])}")
        self.place.reach(f"before append {number}")
        await super().append(head, records)
        self.place.reach(f"after append {number}")


async def drive(job: Job, place: Place) -> None:
    """Begin the run or go on with it, to its end; make the decisions that it waits for."""
    journal = MortalJournal(place)
    build = held if job["workload"] == HELD else WORKLOADS[job["workload"]].build
    loop = build(place, journal)
    monitor = ProtocolMonitor()
    loop.wiretap(monitor)

    def note(event: ToolCallRecovered) -> None:
        place.note("recovered", f"{event.recovery.value} {event.key}")

    def note_outcome(event: ToolCallCompleted) -> None:
        place.note("completed", f"{event.execution.status.value} {event.execution.key}")
        place.reach(f"told of {event.execution.key}")

    loop.on(ToolCallRecovered, note)
    loop.on(ToolCallCompleted, note_outcome)
    state = await (begun_or_recovered(loop) if job["recovers"] else loop.execute("go", execution_id=RUN))
    while state.pending:
        decisions = {call.key: decided(call, place) for call in state.pending if not call.waits_for}
        place.reach("before decision")
        state = await loop.resume(RUN, decisions)
    for violation in monitor.violations:
        place.note("errors", violation)
    (place.folder / "final.json").write_bytes(to_json(state))
    await journal.aclose()


async def begun_or_recovered(loop: AgentLoop) -> AgentState:
    """Go on with the run, or begin it if nothing is recorded of it."""
    try:
        return await loop.recover(RUN)
    except UnknownExecution:
        return await loop.execute("go", execution_id=RUN)


def decided(call: PendingCall, place: Place) -> Approve | Answer:
    """Decide as a person would who looks up what has happened when a call is in doubt."""
    place.note("decided", call.key)
    if "it is not known whether" in call.reason:
        found = [one for one in place.effects() if one["key"] == call.key]
        return answer("it had happened") if found else approve(call.digest)
    return approve(call.digest)


def live(job: Job) -> int:
    """Be the process of a job, and return how it ends if it is not killed."""
    place = Place(Path(job["folder"]), job["dies_at"])
    try:
        asyncio.run(drive(job, place))
    except JournalConflict:
        return CONFLICT
    except BaseException:  # noqa: BLE001  # whatever it is, the trial shows it
        place.note("errors", traceback.format_exc())
        return CRASHED
    return ENDED


def born_together(jobs: Sequence[Job]) -> Sequence[int]:
    """Fork a process for each job and let them go off at once."""
    gate, key = os.pipe()
    pids = []
    for job in jobs:
        pid = os.fork()
        if pid == 0:
            os.close(key)
            os.read(gate, 1)  # it ends when nobody holds the key any more
            os._exit(live(job))
        pids.append(pid)
    os.close(key)
    os.close(gate)
    return pids


def warm() -> None:
    """Have everything imported and compiled that a run needs, so that the processes that are forked start fast."""
    with TemporaryDirectory() as folder:
        for recovers in (False, True):
            live(Job(workload="mixed", folder=folder, recovers=recovers, dies_at=""))
    gc.collect()
    gc.freeze()


def main() -> None:
    """Answer what comes, line by line."""
    warm()
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            answered: object = os.waitstatus_to_exitcode(os.waitpid(asked, 0)[1])
        else:
            answered = born_together(asked)
        sys.stdout.write(f"{json.dumps(answered)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
