"""The journal and the queues of a simulation, as one machine sees them: each request takes time, can fail, and can lose its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, TypeVar

from agentloop.contracts.can_journal import Claim
from agentloop.contracts.can_queue import CanQueue, CanTakeJobs
from agentloop.durable.held_claims import HeldClaim
from agentloop.durable.journal import Journal
from agentloop.errors import ConfigurationError, DatabaseUnavailable, JournalError
from agentloop.testing.simulation.memory_queue import MemoryQueue
from agentloop.values.commands import ExecutionCommand
from agentloop.values.jobs import Job, JobKind, JobSchedule, JobState, JobStatus, RunningJob, WorkerNote
from agentloop.values.json import JsonValue
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ErrorInfo

T = TypeVar("T")


class Network(Protocol):
    """What lies between a machine and the storage."""

    async def request(self, place: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a request; `place` names it."""

    async def way(self, place: str) -> None:
        """Take the time of a request that asks for nothing."""

    def claimed(self, claim: MachineClaim) -> None:
        """Note a claim of the machine."""

    def give_up(self, claim: Claim) -> None:
        """Let the storage end a claim after some time, since its release has not arrived."""

    def deleted(self, execution_id: str, left: Sequence[str]) -> None:
        """Note that an execution is deleted now, and which executions below it are left."""


class MachineJournal(Journal):
    """A journal in the storage of a simulation, for the loops of one machine.

    Args:
        store: the storage.
        network: the way to it.
    """

    def __init__(self, store: Journal, network: Network) -> None:
        super().__init__()
        self._store, self._network = store, network

    def __repr__(self) -> str:
        return f"MachineJournal({self._store!r})"

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution."""
        held = claim.storage_claim if isinstance(claim, MachineClaim) else claim
        await self._network.request("journal.append", lambda: self._store.append(head, records, held))

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        return await self._network.request("journal.read", lambda: self._store.read(execution_id, after=after))

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution."""
        return await self._network.request("journal.read", lambda: self._store.head(execution_id))

    async def list(
        self,
        *,
        agent_id: str | None = None,
        status: ExecutionStatus | Collection[ExecutionStatus] | None = None,
        prefix: str = "",
        unclaimed: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first."""

        def ask() -> Coroutine[Any, Any, Sequence[ExecutionHead]]:
            return self._store.list(
                agent_id=agent_id, status=status, prefix=prefix, unclaimed=unclaimed, after=after, limit=limit
            )

        return await self._network.request("journal.read", ask)

    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution."""
        made: list[MachineClaim] = []

        async def ask() -> MachineClaim:
            stored = await self._store.claim(execution_id)
            made.append(MachineClaim(stored, self._network))
            self._network.claimed(made[0])
            return made[0]

        try:
            return await self._network.request("journal.claim", ask)
        except BaseException:
            # The answer did not come, or nobody waits for it any more: nobody would release the claim.
            for claim in made:
                await claim.storage_claim.release()
            raise

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it."""

        async def ask() -> bool:
            was_there = await self._store.delete(execution_id)
            if was_there:
                left = await self._store.list(prefix=f"{execution_id}/")
                is_gone = await self._store.head(execution_id) is None
                self._network.deleted(execution_id, [head.execution_id for head in left] if is_gone else [])
            return was_there

        return await self._network.request("journal.delete", ask)

    async def purge(self, before: datetime) -> int:
        """Delete executions that have ended and were last updated before a time."""
        return await self._network.request("journal.delete", lambda: self._store.purge(before))

    async def post(self, command: ExecutionCommand) -> None:
        """Store a command, unless one of this id was posted before."""
        await self._network.request("journal.post", lambda: self._store.post(command))

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for these executions that are not finished."""
        return await self._network.request("journal.read", lambda: self._store.commands(execution_ids))

    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids of executions that start with a text."""
        return await self._network.request("journal.read", lambda: self._store.unfinished(prefix))

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Mark commands as finished."""
        await self._network.request("journal.post", lambda: self._store.finish(command_ids, forget=forget))

    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # a result, not an error
        """Wait until an execution has changed since the previous wait of the same caller."""
        await self._network.way("journal.wait")
        return await self._store.wait_for_change(execution_id, timeout=timeout, caller=caller)

    async def aclose(self) -> None:
        """Leave the storage open: other machines use it."""


class MachineClaim(HeldClaim):
    """A claim of a machine; one whose release is cancelled, or does not arrive, ends nevertheless, some time later.

    Args:
        storage_claim: the claim that the storage has given.
        network: the way to the storage.
    """

    def __init__(self, storage_claim: Claim, network: Network) -> None:
        super().__init__(storage_claim.execution_id, storage_claim.token)
        self.storage_claim: Claim = storage_claim
        self._network = network

    async def release(self) -> None:
        """Release the claim, unless it is lost: then the storage has given it up."""
        if self.is_lost:
            return
        try:
            await self._network.way("journal.release")
        except BaseException:
            self._network.give_up(self.storage_claim)
            raise
        await self.storage_claim.release()


def run_now(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing to its end.

    Raises:
        JournalError: it waits.
    """
    try:
        call.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    call.close()
    raise JournalError("the storage of this simulation has to answer at once")


# --- queues -----------------------------------------------------------------------------------------------------------

_IDLE_SECONDS = 1.0
"""How often a worker looks for work of which nothing has told it, and whether it still has its place."""
_RETRY_SECONDS = 0.25


class QueueNetwork(Protocol):
    """What lies between a machine and the server of the queues."""

    @property
    def clock(self) -> Clock:
        """The clock of the machine."""

    async def request(self, place: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Make a request; `place` names it."""

    def took_place(self, bury: Callable[[], None]) -> None:
        """Note how the server ends a place of the machine, which it does when the machine has died or cannot be reached."""

    def end_place(self, bury: Callable[[], None]) -> None:
        """Let the server end a place after some time, since its end has not arrived."""


class MachineQueue(CanQueue):
    """Queues on the server of a simulation, for a program of one machine.

    Args:
        store: the queues of the server.
        network: the way to it.
    """

    def __init__(self, store: MemoryQueue, network: QueueNetwork) -> None:
        self._store, self._network = store, network

    def __repr__(self) -> str:
        return "MachineQueue()"

    async def _ask(self, place: str, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._network.request(f"queue.{place}", call)
        except JournalError as error:
            raise DatabaseUnavailable(str(error)) from error

    async def open(self) -> None:
        """Connect."""
        await self._ask("read", self._store.open)

    async def aclose(self) -> None:
        """Do nothing: a connection of this simulation is not kept."""

    async def enqueue(self, job: Job) -> None:
        """Queue a job."""
        await self._ask("enqueue", lambda: self._store.enqueue(job))

    async def limit_queue(
        self, kind: JobKind, queue: str, *, concurrency: int | None = None, rate: tuple[int, float] | None = None
    ) -> None:
        """Set the limits of a queue."""
        await self._ask("limit", lambda: self._store.limit_queue(kind, queue, concurrency=concurrency, rate=rate))

    async def find(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus | None:
        """Return how far a job is."""
        return await self._ask("read", lambda: self._store.find(job_id, kind))

    async def find_all(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> Sequence[JobStatus]:
        """Return how far jobs are."""
        return await self._ask("read", lambda: self._store.find_all(job_ids, kind))

    async def payload_of(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> Any:
        """Return the payload of a job."""
        return await self._ask("read", lambda: self._store.payload_of(job_id, kind))

    async def list(
        self, *, kind: JobKind = JobKind.TOOL, prefix: str = "", states: Collection[JobState] | None = None
    ) -> Sequence[JobStatus]:
        """Return jobs of a kind."""
        return await self._ask("read", lambda: self._store.list(kind=kind, prefix=prefix, states=states))

    async def list_damaged(self) -> Sequence[str]:
        """Return nothing."""
        return await self._ask("read", self._store.list_damaged)

    async def wait(self, job_id: str, kind: JobKind = JobKind.TOOL) -> JobStatus:
        """Wait until a job has ended."""
        while True:
            found = await self.find(job_id, kind)
            if found is not None and found.state.is_terminal:
                return found
            await self._store.wait_for_change(_IDLE_SECONDS)

    async def cancel_waiting(self, job_ids: Collection[str], kind: JobKind = JobKind.TOOL) -> None:
        """End jobs that no worker has."""
        await self._ask("cancel", lambda: self._store.cancel_waiting(job_ids, kind))

    async def list_ended(
        self, kind: JobKind, *, prefix: str = "", after: datetime | None = None, before: datetime | None = None
    ) -> Sequence[str]:
        """Return the ids of jobs that have ended."""
        return await self._ask("read", lambda: self._store.list_ended(kind, prefix=prefix, after=after, before=before))

    async def delete_ended(
        self, kind: JobKind, job_ids: Sequence[str], *, states: Collection[JobState] | None = None
    ) -> None:
        """Delete jobs that have ended."""
        await self._ask("delete", lambda: self._store.delete_ended(kind, job_ids, states=states))

    async def forget_deaths(self, job_id: str, kind: JobKind = JobKind.EXECUTION) -> None:
        """Count deaths from 0 again."""
        await self._ask("spare", lambda: self._store.forget_deaths(job_id, kind))

    async def spare(self, kind: JobKind, job_id: str, is_spared: bool) -> None:  # noqa: FBT001  # of the contract
        """Say whether a death is not counted."""
        await self._ask("spare", lambda: self._store.spare(kind, job_id, is_spared))

    async def schedule(self, name: str, cron: str, job: Job) -> None:
        """Queue a copy of a job at times."""
        await self._ask("enqueue", lambda: self._store.schedule(name, cron, job))

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule."""
        return await self._ask("delete", lambda: self._store.unschedule(name))

    async def schedules(self) -> Sequence[JobSchedule]:
        """Return the schedules."""
        return await self._ask("read", self._store.schedules)

    async def workers(self) -> Sequence[WorkerNote]:
        """Return the notes of the live workers."""
        return await self._ask("read", self._store.workers)

    async def join(self, note: WorkerNote, *, lost_after: float) -> CanTakeJobs:
        """Take a place for a worker."""
        place = MachinePlace(self._store, self._network, note, lost_after)
        await self._ask("join", place.enter)
        return place


class MachinePlace(CanTakeJobs):
    """The place of a worker on a machine.

    A place that the server has ended is taken again when the machine can reach the server, as a lock is on a new connection.

    Args:
        store: the queues of the server.
        network: the way to it.
        note: what the worker tells about itself.
        lost_after: how long the server may be away, in seconds.
    """

    def __init__(self, store: MemoryQueue, network: QueueNetwork, note: WorkerNote, lost_after: float) -> None:
        self._store, self._network, self._note, self._lost_after = store, network, note, lost_after
        self._is_taking = True
        self._has_left = False
        self._requests = 0

    async def enter(self) -> None:
        """Take the place; if the answer is lost, the server finds out that nobody has it."""
        self._store.enter(self._note)
        self._network.took_place(self._bury)

    def _bury(self) -> None:
        self._store.bury(self._note.name)

    @property
    def _request(self) -> str:
        """The name of the `take` that is still to be answered."""
        return f"{self._note.name}/{self._requests}"

    async def take(self) -> RunningJob:
        """Take a job; one whose answer was lost is asked for again."""
        while True:
            if self._is_taking:
                with suppress(JournalError):
                    job = await self._network.request(
                        "queue.take", lambda: self._store.take_now(self._note.name, self._request)
                    )
                    if job is not None and self._is_taking:
                        self._requests += 1
                        return job
            await self._store.wait_for_change(_IDLE_SECONDS)

    async def stop_taking(self) -> None:
        """Take no more jobs, and put back what nobody has got."""
        self._is_taking = False
        request = self._request
        with_errors = self._network.request("queue.put_back", lambda: self._store.give_back(self._note.name, request))
        try:
            await with_errors
        except JournalError as error:
            raise DatabaseUnavailable(str(error)) from error

    async def end(self, job: RunningJob, result: JsonValue = None, error: ErrorInfo | None = None) -> None:
        """End a job, again and again while the server is away."""
        while True:
            try:
                await self._network.request("queue.end", lambda: self._store.end(self._note.name, job, result, error))
            except JournalError:
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    async def put_back(self, jobs: Collection[RunningJob]) -> int:
        """Put jobs back."""
        try:
            return await self._network.request("queue.put_back", lambda: self._store.put_back(self._note.name, jobs))
        except JournalError as error:
            raise DatabaseUnavailable(str(error)) from error

    async def lost(self) -> str:
        """Look whether the place is still there, and take it again if not, until another worker has it or the server is away too long."""
        clock = self._network.clock
        contact = clock.monotonic()
        while True:
            await asyncio.sleep(_IDLE_SECONDS)
            try:
                await self._network.request("queue.look", self._keep)
                contact = clock.monotonic()
            except ConfigurationError:
                return "another worker has the name of this one"
            except JournalError:
                away = clock.monotonic() - contact
                if away > self._lost_after:
                    return f"the queues could not be reached for {away:.0f} seconds"

    async def _keep(self) -> None:
        if not self._has_left and not self._store.is_live(self._note.name):
            await self.enter()

    async def leave(self) -> None:
        """Give the place up."""
        if self._has_left:
            return
        self._has_left = True
        try:
            await self._network.request("queue.leave", self._go)
        except BaseException as error:
            self._network.end_place(self._bury)
            if not isinstance(error, JournalError):
                raise

    async def _go(self) -> None:
        self._store.leave(self._note.name)
