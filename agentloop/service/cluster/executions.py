"""The jobs of executions: what one asks for, as JSON in the queue, and how a worker carries it out with the journal."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from attrs import frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.can_queue import CanQueue
from agentloop.durable.commands import CommandListener
from agentloop.durable.journal import Journal
from agentloop.durable.recovery import fail_execution
from agentloop.durable.redaction import decisions_as_recorded, used_decisions
from agentloop.durable.trees import list_below
from agentloop.errors import (
    ConfigurationError,
    ContractViolation,
    DecisionError,
    ExecutionClaimed,
    InvalidDocument,
    InvalidParameter,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    SchemaTooNew,
    TooManyRecoveries,
    UnknownExecution,
)
from agentloop.events.execution import AgentStepCompleted
from agentloop.events.operations import QUEUE_SECONDS
from agentloop.events.tool_calls import (
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallRejected,
    ToolCallSettled,
    ToolCallStarted,
    ToolCallSuspended,
)
from agentloop.events.trace_context import continue_trace, trace_headers
from agentloop.loop.agent_loop import AgentLoop, Input
from agentloop.service.cluster.jobs import LastAttempts
from agentloop.values.decisions import Decision
from agentloop.values.event import Event
from agentloop.values.jobs import JobKind, RunningJob, check_storable
from agentloop.values.json import canonical_json, freeze_object, thaw
from agentloop.values.messages import Message
from agentloop.values.records import ExecutionHead, RecordKind, callers_of, check_execution_id, outer_key
from agentloop.values.run_requests import Identity, RunRequest, read_principal, stored_request
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock
from agentloop.values.value import Value

Decisions: TypeAlias = dict[str, Decision]

_START_PREFIX = "start:"
_RESUME_PREFIX = "resume:"
_CALL_JOB = re.compile(r"(?P<key>.+)#[0-9a-f]{16}(?:\+[0-9]+)?(?:\?.*)?", re.DOTALL)
"""The id of a queued call's job: the key of the call, the hash in its `run_id`, and what tells several jobs of it apart."""


@frozen(eq=False, repr=False)
class StartRequest(Value):
    """Start an execution, or continue it when it was interrupted.

    Attributes:
        execution_id: its id.
        input: a text, a message, or a state to continue.
        session: the session whose next turn the execution is; empty for none.
        principal: who asks for it; None for who does so in the state, or for nobody.
    """

    execution_id: str
    input: Input
    session: str = ""
    principal: Identity | None = None

    @property
    def job_id(self) -> str:
        """The id of its job: an execution starts once."""
        return f"{_START_PREFIX}{self.execution_id}"

    def to_payload(self) -> dict[str, Any]:
        """Return the request as JSON data, with the current trace."""
        kind, data = _plain_input(self.input)
        session = {"session": self.session} if self.session else {}
        asked = thaw(stored_request(RunRequest(execution_id=self.execution_id, principal=self.principal)))
        start = {"action": "start", "execution_id": self.execution_id, "input": {kind: data}}
        return {**start, **session, **asked, **_trace()}


@frozen(eq=False, repr=False)
class ResumeRequest(Value):
    """Resume a suspended execution with decisions.

    Attributes:
        execution_id: its id.
        record_count: the number of its records when it was suspended, which names the suspension.
        decisions: the decisions, by the keys of pending calls.
    """

    execution_id: str
    record_count: int
    decisions: Mapping[str, Decision]

    @property
    def job_id(self) -> str:
        """The id of its job: in one suspension, only the first decisions about a set of calls get a job."""
        text = canonical_json(freeze_object(dict.fromkeys(self.decisions)))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{resume_prefix(self.execution_id)}{self.record_count}:{digest[:16]}"

    def has_decisions_of(self, other: StartRequest | ResumeRequest) -> bool:
        """Return whether another request is one with the same decisions."""
        return isinstance(other, ResumeRequest) and _as_text(self.decisions) == _as_text(other.decisions)

    def to_payload(self) -> dict[str, Any]:
        """Return the request as JSON data, with the current trace."""
        return {
            "action": "resume",
            "execution_id": self.execution_id,
            "record_count": self.record_count,
            "decisions": to_plain(dict(self.decisions), Decisions),
            **_trace(),
        }


def _as_text(decisions: Mapping[str, Decision]) -> str:
    """Return decisions as a text that is the same for equal ones; in Python, the answers 1 and True are equal."""
    return canonical_json(freeze_object(to_plain(dict(decisions), Decisions)))


def start_job_id(execution_id: str) -> str:
    """Return the id of the job that starts an execution."""
    return f"{_START_PREFIX}{execution_id}"


def resume_prefix(execution_id: str) -> str:
    """Return how the ids of the jobs that resume an execution start; those of an execution whose id has a colon may, too."""
    return f"{_RESUME_PREFIX}{execution_id}:"


def execution_of_job(job_id: str) -> str:
    """Return the execution of a job that starts or resumes one."""
    if job_id.startswith(_START_PREFIX):
        return job_id.removeprefix(_START_PREFIX)
    return job_id.removeprefix(_RESUME_PREFIX).rsplit(":", 2)[0]


def executions_of_call(job_id: str) -> Sequence[str]:
    """Return the execution of a queued call's job, and those above it: of its caller, of the caller's caller, and so on.

    Args:
        job_id: the id, which begins with `RemoteCall.run_id`.
    """
    match = _CALL_JOB.fullmatch(job_id)
    if match is None:
        return ()
    execution_id = (outer_key(match["key"]) or match["key"]).rsplit("/", 2)[0]
    return (execution_id, *callers_of(execution_id))


def read_request(payload: Any, job_id: str) -> StartRequest | ResumeRequest:
    """Return the request of a job; that of a schedule names its execution by the id of the job alone.

    Raises:
        InvalidDocument: it is not the payload of an execution's job.
    """
    try:
        execution_id = str(payload["execution_id"]) or execution_of_job(job_id)
        if payload["action"] == "resume":
            count = int(payload["record_count"])
            return ResumeRequest(execution_id, count, from_plain(payload["decisions"], Decisions))
        session = str(payload.get("session", ""))
        return StartRequest(execution_id, _read_input(payload["input"]), session, read_principal(payload))
    except (LookupError, TypeError, ValueError, AttributeError, ContractViolation) as error:
        problem = f"this is not the payload of an execution's job: {type(error).__name__}: {error}"
        raise InvalidDocument(problem[:_LONGEST_PROBLEM]) from error


_LONGEST_PROBLEM = 500


def request_of(job: RunningJob) -> StartRequest | ResumeRequest:
    """Return the request of a job.

    Raises:
        InvalidDocument: its payload is not that of an execution's job, or it is about another execution than its id.
    """
    request = read_request(thaw(job.payload), job.id)
    if request.execution_id != execution_of_job(job.id):
        raise InvalidDocument(f"the job {job.id} is about another execution, {request.execution_id[:200]!r}")
    return request


def _trace() -> dict[str, Any]:
    headers = trace_headers()
    return {"trace": headers} if headers else {}


def trace_of(payload: Any) -> dict[str, str]:
    """Return the trace in which a job was queued, as headers; empty if there was none."""
    trace = payload.get("trace") if isinstance(payload, Mapping) else None
    return {str(name): str(text) for name, text in trace.items()} if isinstance(trace, Mapping) else {}


def check_agent(name: str) -> None:
    """Check the name of an agent.

    Raises:
        InvalidParameter: it is empty or cannot be stored.
    """
    if not name.strip():
        raise InvalidParameter(
            "the name of the agent is empty; write the one that its workers have, such as shop:agent"
        )
    check_storable(name, "the name of the agent")


def check_input(value: object) -> Input:
    """Return the input of an execution.

    Raises:
        InvalidParameter: it is not a text, a message or a state, or an empty text.
    """
    if isinstance(value, str) and not value.strip():
        raise InvalidParameter("the text that the execution starts with is empty")
    if not isinstance(value, str | Message | AgentState):
        raise InvalidParameter(f"an execution starts with a text, a Message or an AgentState, not {value!r:.100}")
    return value


def check_id(execution_id: str) -> str:
    """Return the id of an execution that can be queued.

    Raises:
        InvalidParameter: it is empty or cannot be stored.
        ConfigurationError: it is reserved for sub-agents.
    """
    check_storable(execution_id, "the id of an execution")
    if not execution_id.strip():
        raise InvalidParameter("the id of an execution is a text without null characters, and not empty")
    return check_execution_id(execution_id)


def _plain_input(value: Input) -> tuple[str, object]:
    if isinstance(value, str):
        return "text", value
    return ("message", to_plain(value)) if isinstance(value, Message) else ("state", to_plain(value))


def _read_input(data: Mapping[str, Any]) -> Input:
    if "text" in data:
        return str(data["text"])
    if "message" in data:
        return from_plain(data["message"], Message)
    return from_plain(data["state"], AgentState)


# --- carrying them out ---------------------------------------------------------------------------------------------------

logger: logging.Logger = logging.getLogger("agentloop.cluster")

_RETRY_SECONDS = 0.25
"""How long a job waits for a change of an execution that another writer drives, before it tries again."""
_MAX_UNKNOWN_TRIES = 40
"""How often a job tries to start an execution of which nothing is recorded while the journal reports a conflict."""


class ExecutionJobs:
    """Runs the jobs of executions.

    Args:
        agents: the agents by name, each with the journal of the cluster.
        journal: the journal.
        max_recoveries: how often an execution is recovered without progress between, before it ends as failed.
        forget_deaths: tells the engine that a job has made progress, so that deaths of its workers are counted anew.
        last_attempts: the turns of executions that are on their last attempt.
    """

    def __init__(
        self,
        agents: Mapping[str, AgentLoop],
        journal: Journal,
        *,
        max_recoveries: int,
        forget_deaths: Callable[[str], Awaitable[None]],
        last_attempts: LastAttempts,
    ) -> None:
        self._agents = dict(agents)
        self._journal = journal
        self._max_recoveries = max_recoveries
        self._forget_deaths = forget_deaths
        self._last_attempts = last_attempts
        self._calls: dict[str, set[str]] = {}  # the keys of the calls that run, by executions
        self._idle: dict[str, asyncio.Event] = {}
        for loop in self._agents.values():
            loop.on(ToolCallStarted, self._note_call)
            loop.on(ToolCallSuspended, self._note_call_end)
            for kind in _SETTLED:
                loop.on(kind, self._note_call_end)
        self._commands = CommandListener(journal)
        self._driven: set[str] = set()

    async def run(self, job: RunningJob) -> object:
        """Drive an execution until it ends or is suspended; return its id and status as JSON data.

        Nothing that happens here fails an execution: a journal that another writer uses, or that cannot be reached, is tried
        again.

        Raises:
            ConfigurationError: this worker does not have the agent.
            DecisionError: decisions do not match, or other ones about the same calls were used before.
            AgentLoopError: the request cannot be carried out for another reason.
        """
        loop = self._agents.get(job.agent)
        if loop is None:
            raise ConfigurationError(f"this worker has no agent {job.agent!r}")
        request = request_of(job)
        token = QUEUE_SECONDS.set(job.queue_seconds)
        try:
            with continue_trace(trace_of(job.payload)):
                state = await self._run(loop, request, job)
        finally:
            QUEUE_SECONDS.reset(token)
        return {"execution_id": request.execution_id, "status": state.status.value}

    async def _run(self, loop: AgentLoop, request: StartRequest | ResumeRequest, job: RunningJob) -> AgentState:
        """Carry a request out, again while the journal cannot be reached: a job that failed for that would leave its execution."""
        while True:
            try:
                return await self._try(loop, request, job)
            except (JournalConflict, JournalCorrupt, SchemaTooNew, UnknownExecution):
                raise
            except JournalError as error:
                logger.warning("execution %s is tried again: %s", request.execution_id, error)
            await self._wait(request.execution_id)

    async def _try(self, loop: AgentLoop, request: StartRequest | ResumeRequest, job: RunningJob) -> AgentState:
        if job.deaths > self._max_recoveries and await self._is_in_progress(request.execution_id):
            return await self._give_up(loop, request.execution_id)
        if job.deaths:
            return await self._drive_after_death(loop, request, job)
        return await self._drive_to_end(loop, request)

    def _note_call(self, event: ToolCallStarted) -> None:
        if event.execution_id is not None:
            self._calls.setdefault(event.execution_id, set()).add(event.key)

    def _note_call_end(self, event: ToolCallSettled | ToolCallSuspended) -> None:
        calls = self._calls.get(event.execution_id or "", set())
        calls.discard(event.key)
        if not calls:
            self._calls.pop(event.execution_id or "", None)
            self._idle.pop(event.execution_id or "", asyncio.Event()).set()

    async def until_idle(self, job: RunningJob) -> None:
        """Wait until no tool call of a job's execution runs in it; an inference may be interrupted at any time."""
        execution_id = request_of(job).execution_id
        if execution_id in self._calls:
            # The first idle moment counts: the next call may start soon after it.
            await self._idle.setdefault(execution_id, asyncio.Event()).wait()

    async def _drive_to_end(self, loop: AgentLoop, request: StartRequest | ResumeRequest) -> AgentState:
        unknown = 0
        while True:
            try:
                return await self._drive(loop, request)
            except ExecutionClaimed as error:
                # A live writer drives it or an agent below it, here or elsewhere. The wait is for the one in the way: the attempt
                # has added to the records of its callers.
                await self._wait(error.execution_id)
                continue
            except JournalConflict:
                # A live writer drives it, here or elsewhere. Without a record, the conflict can be about something else.
                unknown += await self._journal.head(request.execution_id) is None
                if unknown > _MAX_UNKNOWN_TRIES:
                    raise
            await self._wait(request.execution_id)

    async def _drive(self, loop: AgentLoop, request: StartRequest | ResumeRequest) -> AgentState:
        execution_id = request.execution_id
        if execution_id in self._driven:
            raise JournalConflict(f"another job of this worker drives execution {execution_id}")
        self._driven.add(execution_id)
        try:
            async with self._commands.listen(loop, execution_id) as listening:
                if isinstance(request, StartRequest):
                    return await listening.get_or_start(
                        request.input, execution_id, session=request.session or None, principal=request.principal
                    )
                return await self._resume(listening, request)
        finally:
            self._driven.remove(execution_id)

    async def _resume(self, loop: AgentLoop, request: ResumeRequest) -> AgentState:
        try:
            return await loop.resume(request.execution_id, request.decisions)
        except DecisionError as error:
            # An earlier attempt may have used the decisions before its worker died.
            wanted = decisions_as_recorded(request.decisions, self._journal)
            used = await used_decisions(self._journal, request.execution_id, request.record_count)
            if not wanted.keys() <= used.keys():
                raise
            if any(used[key] != decision for key, decision in wanted.items()):
                raise DecisionError(
                    f"other decisions about the same calls of execution {request.execution_id!r} were used before"
                ) from error
            return await loop.recover(request.execution_id)

    async def _wait(self, execution_id: str) -> None:
        try:
            await self._journal.wait_for_change(execution_id, timeout=_RETRY_SECONDS)
        except JournalError:
            await asyncio.sleep(_RETRY_SECONDS)

    # --- executions that end their workers ----------------------------------------------------------------------------

    async def _is_in_progress(self, execution_id: str) -> bool:
        """Return whether an execution is in progress.

        Raises:
            TooManyRecoveries: nothing of it is recorded, so that the job has to fail instead.
        """
        head = await self._journal.head(execution_id)
        if head is None:
            raise self._too_many(execution_id)
        return head.status is ExecutionStatus.IN_PROGRESS

    async def _drive_after_death(
        self, loop: AgentLoop, request: StartRequest | ResumeRequest, job: RunningJob
    ) -> AgentState:
        """Drive an execution whose worker died; deaths are counted anew as soon as it has made progress.

        Those on their last attempt run one at a time until then.
        """
        progress = ProgressWatch(self._journal, request.execution_id)
        async with self._last_attempts.turn(job) if job.deaths == self._max_recoveries else nullcontext():
            with suppress(JournalError):  # then deaths are not counted anew this time
                await progress.begin()
            driving = asyncio.create_task(self._drive_to_end(loop, request))
            try:
                if await progress.wait(loop, driving):
                    await self._forget(job)
            except BaseException:
                driving.cancel()
                await asyncio.wait((driving,))
                raise
        return await driving

    async def _forget(self, job: RunningJob) -> None:
        try:
            await self._forget_deaths(job.id)
        except Exception as error:  # noqa: BLE001  # the execution goes on; one death too many is counted
            logger.warning("the deaths of workers are not forgotten for job %s: %s", job.id, type(error).__name__)

    def _too_many(self, execution_id: str) -> TooManyRecoveries:
        return TooManyRecoveries(
            f"execution {execution_id} was recovered {self._max_recoveries} times without any progress: its worker died "
            "each time; it is not tried again"
        )

    async def _give_up(self, loop: AgentLoop, execution_id: str) -> AgentState:
        """End an execution as failed, with the event, without running anything of it."""
        error = self._too_many(execution_id)
        while True:
            try:
                return await fail_execution(self._journal, execution_id, error, events=loop.events)
            except JournalConflict:
                head = await self._journal.head(execution_id)
                if head is not None and head.status.is_terminal:
                    return await self._journal.state(execution_id)
                await self._wait(execution_id)


class ProgressWatch:
    """What is recorded of an execution and its agents, from now on, that a recovery need not do again.

    Args:
        journal: holds the records.
        execution_id: the execution.
    """

    def __init__(self, journal: Journal, execution_id: str) -> None:
        self._journal = journal
        self._execution_id = execution_id
        self._counts: Mapping[str, int] | None = None

    async def begin(self) -> None:
        """Note what is recorded now."""
        self._counts = {head.execution_id: head.record_count for head in await self._heads()}

    async def is_made(self) -> bool:
        """Return whether a response, the end of a call or a step has been recorded since; False if `begin` has failed."""
        if self._counts is None:
            return False
        for head in await self._heads():
            after = self._counts.get(head.execution_id, 0)
            if head.record_count > after and any(
                record.kind in _DURABLE for record in await self._journal.read(head.execution_id, after=after)
            ):
                return True
        return False

    async def _heads(self) -> Sequence[ExecutionHead]:
        head = await self._journal.head(self._execution_id)
        return () if head is None else (head, *await list_below(self._journal, self._execution_id))

    async def wait(self, loop: AgentLoop, driving: asyncio.Task[AgentState]) -> bool:
        """Wait until there is progress, or the task of the execution is done; return whether there is progress."""
        changed = asyncio.Event()

        def note(event: Event) -> None:
            own = event.execution_id or ""
            if self._execution_id in {own, *callers_of(own)}:
                changed.set()

        subscriptions = [loop.on(kind, note) for kind in _SIGNS]
        try:
            while not driving.done():
                waiting = asyncio.create_task(changed.wait())
                await asyncio.wait((driving, waiting), return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                changed.clear()
                with suppress(JournalError):  # whatever is wrong with the journal concerns the task
                    if await self.is_made():
                        return True
            return False
        finally:
            for subscription in subscriptions:
                subscription.cancel()


_DURABLE = frozenset({RecordKind.INFERENCE_RECORDED, RecordKind.CALL_OUTCOME, RecordKind.STEP_COMPLETED})
_SETTLED: Sequence[type[ToolCallSettled]] = (ToolCallCompleted, ToolCallBlocked, ToolCallRejected)
# A response may be written with the start of its calls only.
_SIGNS: Sequence[type[Event]] = (ToolCallStarted, *_SETTLED, AgentStepCompleted)


# --- jobs that have ended -------------------------------------------------------------------------------------------

_RETENTION_INTERVAL = 600.0
"""How often jobs are deleted, in seconds."""


async def keep_sweeping(sweep: Callable[[], Awaitable[None]], seconds: float, what: str) -> None:
    """Delete jobs again and again, until the task is cancelled.

    Args:
        sweep: deletes those that may be deleted now.
        seconds: the time between two sweeps.
        what: the jobs, for the log.
    """
    while True:
        try:
            await sweep()
        except Exception as error:  # noqa: BLE001  # the database may be away; the next time is soon enough
            logger.warning("%s could not be deleted: %s", what, type(error).__name__)
        await asyncio.sleep(seconds)


class Retention:
    """Deletes the jobs of executions that have ended or were deleted, some time after the jobs themselves ended.

    The jobs of a suspended execution stay, because it is resumed on their queue.

    Args:
        queues: the queues.
        journal: the journal.
        clock: the source of times.
        seconds: how long jobs stay after their end.
    """

    def __init__(self, queues: CanQueue, journal: CanJournal, clock: Clock, seconds: float) -> None:
        self._queues = queues
        self._journal = journal
        self._clock = clock
        self._age = timedelta(seconds=seconds)
        self._done_until: datetime | None = None

    async def run(self) -> None:
        """Delete jobs again and again, until the task is cancelled."""
        await keep_sweeping(self.apply, _RETENTION_INTERVAL, "jobs that have ended")

    async def apply(self) -> None:
        """Delete what is old enough now."""
        before = self._clock.now() - self._age
        # Those that were seen before belong to executions that have not ended; these have another job when they end.
        job_ids = await self._queues.list_ended(JobKind.EXECUTION, after=self._done_until, before=before)
        for execution_id in dict.fromkeys(map(execution_of_job, job_ids)):
            if await self._has_ended(execution_id):
                await forget_execution(self._queues, execution_id)
        # All of them each time: executions outside of the cluster have no job that tells of their end.
        for execution_id, calls in _by_execution(await self._queues.list_ended(JobKind.TOOL, before=before)).items():
            if await self._has_ended(execution_id):
                await self._queues.delete_ended(JobKind.TOOL, calls)
        self._done_until = before

    async def _has_ended(self, execution_id: str) -> bool:
        head = await self._journal.head(execution_id)
        return head is None or head.status.is_terminal


def _by_execution(calls: Sequence[str]) -> Mapping[str, Sequence[str]]:
    """Return the jobs of calls by the executions at the top of theirs; those of an unknown form are left out."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for job_id in calls:
        if executions := executions_of_call(job_id):
            found[executions[-1]].append(job_id)
    return found


async def forget_execution(queues: CanQueue, execution_id: str) -> None:
    """Delete the jobs of an execution that have ended, without those of its tool calls."""
    resumed = await queues.list_ended(JobKind.EXECUTION, prefix=resume_prefix(execution_id))
    own = [job_id for job_id in resumed if execution_of_job(job_id) == execution_id]
    await queues.delete_ended(JobKind.EXECUTION, [start_job_id(execution_id), *own])


async def forget_calls(queues: CanQueue, journal: CanJournal, execution_id: str) -> None:
    """Delete the jobs of an execution's tool calls that have ended, unless it is in progress; their outcomes are recorded."""
    ended = await queues.list_ended(JobKind.TOOL, prefix=f"{execution_id}/")
    # Not every id that begins so: that of another execution may, such as the id of a fork.
    own = [job_id for job_id in ended if execution_id in executions_of_call(job_id)]
    if not own:
        return
    # Only now: one that was resumed before the jobs were listed may still wait for the result of one of them.
    head = await journal.head(execution_id)
    if head is None or head.status is not ExecutionStatus.IN_PROGRESS:
        await queues.delete_ended(JobKind.TOOL, own)
