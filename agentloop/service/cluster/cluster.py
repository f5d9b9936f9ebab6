"""The client of a cluster: submits executions and follows them, from any process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Self

from attrs import field, frozen

from agentloop.contracts.can_queue import CanQueue
from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.durable.commands import check_in_time
from agentloop.durable.journal import Journal
from agentloop.durable.opening import open_journal
from agentloop.durable.recovery import stop_execution
from agentloop.durable.searching import doubts_of
from agentloop.durable.sessions import SessionQueue, find_waiting, session_of, waiting_state
from agentloop.errors import (
    DecisionError,
    InboxClosed,
    InvalidDocument,
    InvalidParameter,
    JournalConflict,
    UnknownExecution,
    WorkDamaged,
    WorkFailed,
    WorkRefused,
)
from agentloop.errors.hints import suggest
from agentloop.loop.agent_loop import Input
from agentloop.loop.parameters import as_principal
from agentloop.service.cluster.deletions import forget_if_deleted
from agentloop.service.cluster.executions import (
    ResumeRequest,
    StartRequest,
    check_agent,
    check_id,
    check_input,
    execution_of_job,
    read_request,
    resume_prefix,
    start_job_id,
)
from agentloop.service.cluster.opening import make_queues, place_of
from agentloop.service.cluster.sessions import queue_turn
from agentloop.values.batches import apply_decisions
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.decisions import Decision
from agentloop.values.jobs import Job, JobKind, JobState, JobStatus, WorkerNote, check_storable
from agentloop.values.json import thaw
from agentloop.values.messages import Message
from agentloop.values.records import ExecutionHead
from agentloop.values.run_requests import Identity, begin_request, read_principal
from agentloop.values.secrets import Secret
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock
from agentloop.values.value import Value

_SUBMISSION = "submission"
"""Names the submission in the payload of a job: which of several equal ones it was."""
_CHANGE_SECONDS = 0.5
"""How long a caller waits for a change in the journal before it looks at the queues again."""


@frozen(eq=False, repr=False)
class QueueStatus(Value):
    """A queue and its work.

    Attributes:
        kind: `execution` or `tool`.
        name: its name.
        waiting: how many jobs wait for a worker, delayed ones included.
        running: how many jobs run.
        oldest_waiting: for how long the oldest job has waited, in seconds; 0 without one.
    """

    kind: str
    name: str
    waiting: int = 0
    running: int = 0
    oldest_waiting: float = 0.0


@frozen(eq=False, repr=False)
class Doubt(Value):
    """A call of which nobody knows whether it ran: its worker died while it was under way.

    Attributes:
        execution_id: the execution.
        key: the idempotency key of the call.
        tool: the name of the tool.
    """

    execution_id: str
    key: str
    tool: str


@frozen(eq=False, repr=False)
class ClusterStatus(Value):
    """What a cluster is doing.

    Attributes:
        workers: the live workers, by name.
        queues: the queues that have work.
        unserved: versions and agents of waiting work that no live worker has, as `agent version`.
        doubts: calls in doubt of unfinished executions.
        damaged: what is wrong with jobs, schedules and queues whose rows in the database are not ones that agentloop wrote: such a
            job has failed and nothing of it ran, and such a schedule starts nothing.
    """

    workers: tuple[WorkerNote, ...] = field(converter=tuple[WorkerNote, ...])
    queues: tuple[QueueStatus, ...] = field(converter=tuple[QueueStatus, ...])
    unserved: tuple[str, ...] = field(converter=tuple[str, ...])
    doubts: tuple[Doubt, ...] = field(converter=tuple[Doubt, ...])
    damaged: tuple[str, ...] = field(default=(), converter=tuple[str, ...])


@frozen(eq=False, repr=False)
class Schedule(Value):
    """Executions that start at the times of a cron expression.

    Attributes:
        name: its name, unique in the cluster.
        cron: the cron expression, in UTC.
        agent: the agent.
        input: the input of each execution, as a text; a message or a state is shown as JSON data.
        problem: why it starts nothing: its row in the database is not one that agentloop wrote; empty for one that is.
        principal: who asks for each execution; None for nobody.
    """

    name: str
    cron: str
    agent: str
    input: str
    problem: str = ""
    principal: Identity | None = None


class Cluster:
    """Submits executions to the workers of a database, and follows them. Use it as an async context manager.

        async with Cluster("postgresql://host/agents") as cluster:
            execution_id = await cluster.submit("shop:agent", "Order a lamp.")
            state = await cluster.result(execution_id)

    Args:
        db: the path of a SQLite file, or a `postgresql://` URL; not needed with `journal` and `queues`.
        journal: the journal of the executions, which the cluster closes; by default that of the database.
        queues: the queues, which the cluster opens and closes; by default those of the database.
        version: the version of the program that runs what is submitted; by default the newest that a live worker has.
        secrets: texts, or keys, that are masked in what this client records.
        objects: stores long strings of records outside of the database, as in `SqliteJournal`; the same as that of the workers.
        clock: the source of times.
        ids: the source of ids.

    Attributes:
        journal: the journal of the executions.

    Raises:
        ConfigurationError: the database is invalid, or an extra is not installed.
    """

    def __init__(
        self,
        db: str | os.PathLike[str] = "",
        *,
        journal: Journal | None = None,
        queues: CanQueue | None = None,
        version: str = "",
        secrets: Iterable[str | Secret] = (),
        objects: CanStoreObjects | None = None,
        clock: Clock | None = None,
        ids: IdSource | None = None,
    ) -> None:
        location, self._place = place_of(db, journal, queues)
        self.journal: Journal = journal or open_journal(location, secrets=secrets, objects=objects)
        self._queues: CanQueue = queues or make_queues(location)
        self._version = version
        self._clock = clock or SystemClock()
        self._ids = ids or RandomIds()

    def __repr__(self) -> str:
        return f"Cluster({self._place!r})"

    async def __aenter__(self) -> Self:
        """Open the database.

        Raises:
            JournalError: the file is no journal, or the database cannot be reached.
            ClusterError: the file of the queues is damaged or cannot be opened.
        """
        try:
            # The journal says what is wrong with a file or a server; the engine would create its tables beside any file.
            await self.journal.list(limit=1)
            await self._queues.open()
        except BaseException:
            await self.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close files and connections. Idempotent."""
        await self._queues.aclose()
        await self.journal.aclose()

    # --- submitting ---------------------------------------------------------------------------------------------------

    async def submit(
        self,
        agent: str,
        input: Input,  # noqa: A002  # `input` is what an execution begins with, and the word for it
        *,
        execution_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
        delay: float = 0.0,
        needs_worker: bool = False,
        session: str | None = None,
        principal: Identity | None = None,
    ) -> str:
        """Queue an execution; it is durable when this returns.

        The same id again is the same execution, whatever the input and the principal. If its job failed before the execution was recorded, such as on a
        worker whose configuration had a mistake, it is queued again.

        Args:
            agent: the name under which workers know the agent, such as `module:attribute`.
            input: a text, a message, or a state to continue.
            execution_id: its id; a new one by default.
            queue: the queue in which it waits; see `limit_queue`.
            priority: of two executions of an agent in one queue, the one with the higher priority starts first.
            delay: how long it waits before it can start, in seconds.
            needs_worker: refuse it if no live worker can run it, instead of letting it wait for one.
            session: the session whose conversation the input, a text or a message, continues. Its messages start in their order, in
                the default queue.
            principal: who asks for it, as the application has authenticated them; recorded with the execution.

        Returns:
            The id of the execution.

        Raises:
            WorkRefused: with `needs_worker`, no live worker has the agent, or has it in this version.
            InvalidParameter: an argument has the wrong type or is out of range.
            ConfigurationError: the id is reserved for sub-agents.
        """
        execution_id = check_id(self._ids.new_id("execution") if execution_id is None else execution_id)
        check_agent(agent)
        request = StartRequest(execution_id, check_input(input), session or "", as_principal(principal))
        if session is not None:
            if queue != "default" or priority or delay:
                raise InvalidParameter(
                    "the messages of a session start in their order, without queue, priority and delay"
                )
            await self._submit_turn(agent, request, needs_worker=needs_worker)
            return execution_id
        await self._forget_failure(request)
        await self._queues.enqueue(
            Job(
                id=request.job_id,
                kind=JobKind.EXECUTION,
                agent=agent,
                payload=request.to_payload(),
                queue=queue,
                version=await self._version_for(agent, needs_worker=needs_worker),
                priority=priority,
                delay=delay,
            )
        )
        return execution_id

    async def _submit_turn(self, agent: str, request: StartRequest, *, needs_worker: bool) -> None:
        """Accept a message of a session, and queue it if no other one is before it."""
        queue = SessionQueue.of(self.journal, request.session)
        version = await self._version_for(agent, needs_worker=needs_worker)
        if isinstance(request.input, AgentState):
            raise InvalidParameter("a session has a conversation of its own, to which a text or a Message is added")
        message = Message.user(request.input) if isinstance(request.input, str) else request.input
        await self._forget_failure(request)
        if await self.journal.head(request.execution_id) is None:
            await queue.add(message, request.execution_id, self._clock, agent=agent, principal=request.principal)
            await queue_turn(self._queues, queue, {agent}, version)

    async def _forget_failure(self, request: StartRequest | ResumeRequest) -> None:
        """Delete the job of a request that has failed, unless its execution has ended itself; and those of a deleted execution."""
        job = await self._queues.find(request.job_id, JobKind.EXECUTION)
        if isinstance(request, StartRequest):
            await self._was_deleted(request.execution_id, job)
        if job is not None and job.state is JobState.FAILED:
            head = await self.journal.head(request.execution_id)
            if head is None or not head.status.is_terminal:
                await self._queues.delete_ended(JobKind.EXECUTION, [request.job_id], states={JobState.FAILED})

    async def _was_deleted(self, execution_id: str, job: JobStatus | None) -> bool:
        """Return whether the records of an execution that has begun were deleted; what the queues hold of it is deleted then."""
        return await forget_if_deleted(self._queues, self.journal, execution_id, job)

    async def _version_for(self, agent: str, *, needs_worker: bool) -> str | None:
        """Return the version for new work: the chosen one, or the newest that a live worker of the agent has, or None."""
        if self._version and not needs_worker:
            return self._version
        notes = [note for note in await self._workers() if not self._version or note.version == self._version]
        able = sorted((note for note in notes if agent in note.agents), key=lambda note: note.started)
        if not able and needs_worker:
            known = {name for note in notes for name in note.agents}
            version = f" in version {self._version}" if self._version else ""
            raise WorkRefused(f"no live worker runs the agent {agent!r}{version}{suggest(agent, known)}")
        return able[-1].version if able else (self._version or None)

    async def _workers(self) -> Sequence[WorkerNote]:
        return await self._queues.workers()

    async def limit_queue(
        self, queue: str = "default", *, concurrency: int | None = None, rate: tuple[int, float] | None = None
    ) -> None:
        """Set the limits of a queue of executions, for all workers together; None for no limit.

        Args:
            queue: its name.
            concurrency: how many of its executions run at a time; 0 pauses the queue: those that run go on, and none starts.
            rate: how many of its executions start within a number of seconds, as (count, seconds).

        Raises:
            InvalidParameter: the name cannot be stored, or a number is negative, or no execution may start within a time.
        """
        await self._queues.limit_queue(JobKind.EXECUTION, queue, concurrency=concurrency, rate=rate)

    # --- following ----------------------------------------------------------------------------------------------------

    async def result(self, execution_id: str, *, timeout: float | None = None) -> AgentState:  # noqa: ASYNC109  # seconds, as in the signature of `resume`
        """Wait until an execution has ended or is suspended, and return its state.

        Args:
            execution_id: the execution.
            timeout: the maximum time to wait, in seconds; None for no limit.

        Raises:
            TimeoutError: it took longer.
            UnknownExecution: no execution of this id was submitted or recorded.
            WorkFailed: it has not ended, and a worker could not carry it out, for example because the decisions were refused.
        """
        async with asyncio.timeout(timeout):
            while True:
                state = await self._settled_state(execution_id)
                if state is not None:
                    return state

    async def unrecorded_state(self, execution_id: str) -> AgentState | None:
        """Return the state of an execution of which nothing is recorded; None for one that is recorded, or was not submitted.

        Its status is in progress while it waits for a worker, stopped if it was stopped while it did, and failed if a worker could
        not start it.
        """
        waiting = await find_waiting(self.journal, execution_id)
        job = next(iter(await self._queues.find_all([start_job_id(execution_id)], JobKind.EXECUTION)), None)
        if job is None and waiting is not None and await self.journal.head(execution_id) is None:
            return waiting_state(waiting)
        # The head is read last: a worker may have started the execution meanwhile.
        if (
            job is None
            or await self.journal.head(execution_id) is not None
            or await self._was_deleted(execution_id, job)
        ):
            return None
        if job.state is JobState.CANCELLED:
            return await self._never_started(execution_id, job)
        state = await self._first_state(execution_id, job)
        return state.with_status(ExecutionStatus.FAILED, self._clock.now()) if job.state is JobState.FAILED else state

    async def _settled_state(self, execution_id: str) -> AgentState | None:
        """Return the state of an execution of which nothing is left to do; None after a wait for more."""
        head = await self.journal.head(execution_id)
        if head is not None and head.status.is_terminal:
            return await self.journal.state(execution_id)
        jobs = await self._jobs_of(execution_id)
        open_job = next((job for job in jobs if not job.state.is_terminal), None)
        if open_job is not None:
            await self._queues.wait(open_job.id, JobKind.EXECUTION)
            return None
        # The execution may have gone on between the two looks.
        current = await self.journal.head(execution_id)
        if current is not None and head is not None and current.record_count == head.record_count:
            return await self._state_without_job(current, jobs)
        if current is None:
            return await self._state_without_records(execution_id, jobs)
        return None

    async def _jobs_of(self, execution_id: str) -> Sequence[JobStatus]:
        found = await self._queues.find_all([start_job_id(execution_id)], JobKind.EXECUTION)
        # An execution is resumed after its first job has ended only; the search by a part of ids reads all jobs.
        if any(not job.state.is_terminal for job in found):
            return found
        resumed = await self._queues.list(prefix=resume_prefix(execution_id), kind=JobKind.EXECUTION)
        return [*found, *[job for job in resumed if execution_of_job(job.id) == execution_id]]

    async def _state_without_job(self, head: ExecutionHead, jobs: Sequence[JobStatus]) -> AgentState | None:
        failed = [job for job in jobs if job.state is JobState.FAILED]
        if failed and failed[-1] is jobs[-1]:
            raise _failure_of(head.execution_id, failed[-1])
        if head.status is ExecutionStatus.SUSPENDED:
            return await self.journal.state(head.execution_id)
        # Driven by a process outside of the cluster, or by nobody.
        await self.journal.wait_for_change(head.execution_id, timeout=_CHANGE_SECONDS)
        return None

    async def _state_without_records(self, execution_id: str, jobs: Sequence[JobStatus]) -> AgentState | None:
        if not jobs and await find_waiting(self.journal, execution_id) is not None:
            await self.journal.wait_for_change(timeout=_CHANGE_SECONDS)
            return None
        if not jobs or await self._was_deleted(execution_id, jobs[0]):
            raise UnknownExecution(f"no execution {execution_id!r} was submitted to {self._place}, or recorded in it")
        if jobs[0].state is JobState.CANCELLED:
            return await self._never_started(execution_id, jobs[0])
        raise _failure_of(execution_id, jobs[0])

    async def _never_started(self, execution_id: str, job: JobStatus) -> AgentState:
        """Return the state of an execution that was stopped while it waited in its queue, of which nothing is recorded."""
        state = await self._first_state(execution_id, job)
        signal = StopSignal(StopReason.USER_REQUESTED, "it was stopped before it started", "cluster")
        return state.with_stop_signal(signal).with_status(ExecutionStatus.STOPPED, self._clock.now())

    async def _first_state(self, execution_id: str, job: JobStatus) -> AgentState:
        request: StartRequest | ResumeRequest = StartRequest(execution_id, "")
        with suppress(WorkDamaged, InvalidDocument):  # its job has failed for that
            request = read_request(await self._queues.payload_of(job.id), job.id)
        value, principal = (request.input, request.principal) if isinstance(request, StartRequest) else ("", None)
        state = value if isinstance(value, AgentState) else AgentState.start(value, clock=self._clock, ids=self._ids)
        return begin_request(state.with_execution_started(execution_id, job.created_at), None, principal)

    # --- steering -----------------------------------------------------------------------------------------------------

    async def send(self, execution_id: str, message: Message | str, *, principal: str = "") -> None:
        """Send a user message to an execution that runs, is suspended, or waits in its queue.

        Args:
            execution_id: the execution.
            message: a text, or a message of the role `user`.
            principal: who sends it, for the record.

        Raises:
            UnknownExecution: no execution of this id was submitted or recorded.
            InboxClosed: it has ended; or it ended meanwhile, and the message, which is recorded, came too late.
        """
        head = await self._require(execution_id)
        if head is not None and head.status.is_terminal:
            raise InboxClosed(f"execution {execution_id!r} has ended: it is {head.status.value}")
        sent = Message.user(message) if isinstance(message, str) else message
        command = await self._post(execution_id, CommandKind.MESSAGE, message=sent, principal=principal)
        await check_in_time(self.journal, command)

    async def stop(self, execution_id: str, reason: str = "", *, principal: str = "") -> None:
        """Stop an execution: at once if it waits or is suspended, and within a second if it runs. No effect if it has ended.

        Args:
            execution_id: the execution.
            reason: why, for the record.
            principal: who stops it, for the record.

        Raises:
            UnknownExecution: no execution of this id was submitted or recorded.
        """
        head = await self._require(execution_id)
        if head is not None and head.status.is_terminal:
            return
        # Posted first: a worker that takes the execution meanwhile finds the command.
        await self._post(execution_id, CommandKind.STOP, reason=reason, principal=principal)
        if head is None:
            await self._queues.cancel_waiting([start_job_id(execution_id)], JobKind.EXECUTION)
            await self._forget_cancelled_turn(execution_id)
        elif head.status is ExecutionStatus.SUSPENDED:
            with suppress(JournalConflict):  # it was resumed meanwhile, and gets the command
                await stop_execution(self.journal, execution_id, reason, clock=self._clock, ids=self._ids)

    async def resume(self, execution_id: str, decisions: Mapping[str, Decision]) -> bool:
        """Queue the resumption of a suspended execution; the same decisions again are used once.

        Of different decisions about the same calls, the first ones that are submitted are used. Of decisions about different
        calls, of which some are the same, those are used with which a worker begins first; the job of the others fails.

        Args:
            execution_id: the execution.
            decisions: a decision for each key of a pending call, as in `AgentLoop.resume`.

        Returns:
            Whether this call has queued the resumption; False if the same decisions were submitted before.

        Raises:
            UnknownExecution: no execution of this id is recorded.
            DecisionError: it is not suspended, a key is not that of a pending call, or other decisions about the same calls were
                submitted before.
            WorkDamaged: the row of its job in the database is not one that agentloop wrote.
        """
        head = await self.journal.head(execution_id)
        if head is None:
            raise UnknownExecution(f"no execution {execution_id!r} is recorded in {self._place}")
        apply_decisions(await self.journal.state(execution_id), decisions)
        request = ResumeRequest(execution_id, head.record_count, decisions)
        start = await self._queues.find(start_job_id(execution_id), JobKind.EXECUTION)
        if start is None:
            raise UnknownExecution(
                f"execution {execution_id!r} was not submitted to a cluster; resume it with its agent"
            )
        if start.is_damaged:
            raise WorkDamaged(f"the row of the job of execution {execution_id!r} is damaged; resume it with its agent")
        await self._forget_failure(request)
        submission = self._ids.new_id("submission")
        await self._queues.enqueue(
            Job(
                id=request.job_id,
                kind=JobKind.EXECUTION,
                agent=start.agent,
                payload={**request.to_payload(), _SUBMISSION: submission},
                queue=start.queue,
                version=await self._version_for(start.agent, needs_worker=False),
            )
        )
        queued = await self._queues.payload_of(request.job_id)
        if queued is not None and not request.has_decisions_of(read_request(queued, request.job_id)):
            raise DecisionError(
                f"other decisions about the same calls of execution {execution_id!r} were submitted before, and are used"
            )
        # Of several submissions at once, the queue has taken that of one. A job that is gone has ended meanwhile.
        return queued is None or queued.get(_SUBMISSION) == submission

    async def _forget_cancelled_turn(self, execution_id: str) -> None:
        """Let the message of a cancelled job wait in its session no longer."""
        waiting = await find_waiting(self.journal, execution_id)
        if waiting is not None:
            queue = SessionQueue.of(self.journal, session_of(waiting.execution_id))
            await queue_turn(self._queues, queue, {waiting.agent}, self._version or None)

    async def _require(self, execution_id: str) -> ExecutionHead | None:
        head = await self.journal.head(execution_id)
        if head is None and await find_waiting(self.journal, execution_id) is not None:
            return None
        job = None if head is not None else await self._queues.find(start_job_id(execution_id), JobKind.EXECUTION)
        if head is None and (job is None or await self._was_deleted(execution_id, job)):
            raise UnknownExecution(f"no execution {execution_id!r} was submitted to {self._place}, or recorded in it")
        return head

    async def _post(
        self,
        execution_id: str,
        kind: CommandKind,
        *,
        message: Message | None = None,
        reason: str = "",
        principal: str = "",
    ) -> ExecutionCommand:
        command = ExecutionCommand(
            id=self._ids.new_id("command"),
            execution_id=execution_id,
            kind=kind,
            message=message,
            reason=reason,
            principal=principal,
            posted_at=self._clock.now(),
        )
        await self.journal.post(command)
        return command

    # --- schedules ----------------------------------------------------------------------------------------------------

    async def schedule(
        self,
        name: str,
        cron: str,
        agent: str,
        input: Input,  # noqa: A002  # as in `submit`
        *,
        principal: Identity | None = None,
    ) -> None:
        """Start an execution at each time of a cron expression; replaces the schedule of this name.

        The id of each execution is made of the name and the time, so each time starts one, however many workers there are.

        Args:
            name: the name of the schedule.
            cron: a cron expression of five fields, or of six with the seconds first, in UTC.
            agent: the name under which workers know the agent.
            input: a text, a message, or a state to continue.
            principal: who asks for each execution, as the application has authenticated them; recorded with it.

        Raises:
            InvalidParameter: the cron expression is invalid, or an argument has the wrong type, is empty or cannot be stored.
        """
        check_storable(name, "the name of a schedule")
        if not name.strip():
            raise InvalidParameter("the name of a schedule is a text without null characters, and not empty")
        check_agent(agent)
        payload = StartRequest("", check_input(input), principal=as_principal(principal)).to_payload()
        job = Job(
            id=start_job_id(""), kind=JobKind.EXECUTION, agent=agent, payload=payload, version=self._version or None
        )
        await self._queues.schedule(name, cron, job)

    async def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether it existed.

        Raises:
            InvalidParameter: it is no name that can be stored.
        """
        check_storable(name, "the name of a schedule")
        return await self._queues.unschedule(name)

    async def schedules(self) -> Sequence[Schedule]:
        """Return the schedules, by name."""
        found = [
            Schedule(each.name, each.cron, *_asked_by(each.job), each.problem, _asker_of(each.job))
            for each in await self._queues.schedules()
        ]
        return sorted(found, key=lambda schedule: schedule.name)

    # --- the state of the cluster -------------------------------------------------------------------------------------

    async def status(self) -> ClusterStatus:
        """Return the live workers, the queues, and the calls in doubt."""
        workers = await self._workers()
        states = {JobState.DELAYED, JobState.WAITING, JobState.RUNNING}
        jobs = [job for kind in JobKind for job in await self._queues.list(states=states, kind=kind)]
        served = {(agent, version) for note in workers for agent in note.agents for version in (note.version, None)}
        waiting = {(job.agent, job.version) for job in jobs if job.state is JobState.WAITING}
        # What no worker has taken yet has no calls; of these there may be very many.
        taken = dict.fromkeys(
            execution_of_job(job.id)
            for job in jobs
            if job.kind is JobKind.EXECUTION and (job.attempts or job.id != start_job_id(execution_of_job(job.id)))
        )
        return ClusterStatus(
            workers,
            _queues_of(jobs, self._clock.now()),
            sorted(f"{agent} {version or ''}".strip() for agent, version in waiting - served),
            [doubt for execution_id in taken for doubt in await self._doubts_of(execution_id)],
            await self._queues.list_damaged(),
        )

    async def _doubts_of(self, execution_id: str) -> Sequence[Doubt]:
        if await self.journal.head(execution_id) is None:
            return ()
        state = await self.journal.state(execution_id)
        return [Doubt(execution_id, execution.key, execution.name) for execution in doubts_of(state)]


def _queues_of(jobs: Iterable[JobStatus], now: datetime) -> Sequence[QueueStatus]:
    groups: dict[tuple[str, str], list[JobStatus]] = {}
    for job in jobs:
        groups.setdefault((job.kind.value, job.queue), []).append(job)
    return [_queue_of(kind, name, group, now) for (kind, name), group in sorted(groups.items())]


def _queue_of(kind: str, name: str, jobs: Sequence[JobStatus], now: datetime) -> QueueStatus:
    running = sum(job.state is JobState.RUNNING for job in jobs)
    waiting = [job.created_at for job in jobs if job.state is JobState.WAITING]
    oldest = (now - min(waiting, default=now)).total_seconds()
    return QueueStatus(kind, name, len(jobs) - running, running, max(0.0, round(oldest, 3)))


def _failure_of(execution_id: str, job: JobStatus) -> WorkFailed:
    error = job.error
    reason = f"{error.type}: {error.message}" if error is not None else job.state.value
    return WorkFailed(f"execution {execution_id!r} could not be carried out: {reason}")


def _asked_by(job: Job | None) -> tuple[str, str]:
    """Return the agent and the input of a scheduled job."""
    payload = job.payload if job is not None else None
    found = payload.get("input") if isinstance(payload, Mapping) else None
    text = str(thaw(found.get("text", found))) if isinstance(found, Mapping) else ""
    return ("" if job is None else job.agent), text


def _asker_of(job: Job | None) -> Identity | None:
    payload = job.payload if job is not None else None
    return read_principal(payload) if isinstance(payload, Mapping) else None
