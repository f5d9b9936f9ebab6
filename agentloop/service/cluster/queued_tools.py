"""Tool calls over the workers of a cluster: the executor that queues them, and what a worker does with one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from attrs import evolve, field, frozen
from attrs.validators import ge

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_queue import CanQueue
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.errors import (
    AgentLoopError,
    ClusterError,
    ConfigurationError,
    ContractViolation,
    InvalidDocument,
    ToolFailed,
    ToolInDoubt,
    ToolUnavailable,
)
from agentloop.executors.forwarding import ForwardingExecutor
from agentloop.executors.remote import FoundResult, RemoteToolExecutor
from agentloop.executors.remote_calls import ProgressReport, RemoteCall, RemoteResult, run_remote_call
from agentloop.loop.agent_loop import AgentLoop
from agentloop.loop.dependencies import make_dependencies
from agentloop.service.cluster.jobs import LastAttempts
from agentloop.service.cluster.opening import make_queues
from agentloop.values.jobs import Job, JobKind, JobState, JobStatus, RunningJob
from agentloop.values.json import thaw
from agentloop.values.records import CannotTell, DidNotHappen, Happened
from agentloop.values.run_requests import read_request
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.tool_calls import Effect, ToolResult, ToolStatus

T = TypeVar("T")

_RETRY_SECONDS = 0.25
_MAX_DEATHS = 3
"""How many workers may die of one call before it is not tried again."""
DATABASE_VARIABLE = "AGENTLOOP_DB"


@frozen(eq=False, repr=False)
class QueuedToolExecutor(RemoteToolExecutor):
    """Runs the calls of a batch on all workers of a cluster, whichever has a free slot.

    Each call is a job in a queue of the database, and its idempotency key is in the id of the job: a call that is sent again, also
    by a process that recovers the execution, is the same job and has the same result. Jobs of tools have slots of their own on
    each worker, so that executions which wait for calls cannot take their place.

    When a worker dies in the middle of a call, another one runs a pure or idempotent call again, with the same key, and asks the
    tool of any other call whether it happened. If the tool cannot tell, the call is in doubt. Progress of a tool arrives with its
    result. The time in the queue counts for timeouts. A call that is cancelled while it waits does not run; one that runs is left
    to end, and its result waits for a process that recovers the execution.

    In a worker, an agent with `QueuedToolExecutor()` uses the database, the name and the version of the worker. In any other
    process, give the database, or set `AGENTLOOP_DB`.

    Attributes:
        db: the path of a SQLite file, or a `postgresql://` URL, which can hold a password and is not in the repr.
        agent: the name by which the workers know the agent whose tools run.
        version: the version of the program whose workers take the calls.
        queues: queues of another engine, open, in place of those of the database.
        queue: the name of the queue.
        priority: of two waiting calls, the one with the higher priority starts first.
        patience: how long the database may be unreachable before a call fails or is in doubt, in seconds.
    """

    db: str = field(default="", kw_only=True, repr=False, converter=os.fspath)
    agent: str = field(default="", kw_only=True)
    version: str = field(default="", kw_only=True)
    queues: CanQueue | None = field(default=None, kw_only=True, repr=False)
    queue: str = field(default="default", kw_only=True)
    priority: int = field(default=0, kw_only=True)
    patience: float = field(default=30.0, kw_only=True, validator=ge(0))

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:  # noqa: ARG002  # it comes with the result
        """Queue a call, and wait for its result.

        Raises:
            ToolInDoubt: the job was cancelled while a worker ran it, or the file of the queues is damaged.
            ConfigurationError: it is not known which database.
        """
        generation = 0
        while True:
            job = self._job(call, generation)
            engine = await self._engine()
            try:
                await self._patiently(partial(engine.enqueue, job))
                status = await self._wait(engine, job.id)
            except ClusterError as error:  # not the outcome of the call, which may be in the queue
                raise ToolInDoubt(str(error)) from error
            if not _never_ran(status):
                return _result_of(status)
            # It was cancelled while it waited, by a process that was interrupted: this is not the same wish.
            generation += 1

    async def find_result(self, call: RemoteCall) -> FoundResult:
        """Wait for the result of a call that is in the queue.

        One that is not there may have run: its job may have been deleted since, and nothing is recorded between the intent of a
        call and its job. It did not run if an earlier job of the call is there, because no job is deleted before an earlier one.
        """
        engine, generation = await self._engine(), 0
        while True:
            job_id = self._job(call, generation).id
            status = await self._patiently(partial(engine.find, job_id))
            if status is None:
                is_first = not generation and not await self._has_earlier_attempt(engine, call)
                return CannotTell("its job is not in the queue") if is_first else DidNotHappen()
            status = status if status.state.is_terminal else await self._wait(engine, job_id)
            if not _never_ran(status):
                return _result_of(status)
            generation += 1

    async def _has_earlier_attempt(self, engine: CanQueue, call: RemoteCall) -> bool:
        """Return whether the job of the attempt before this one is in the queue."""
        if call.attempt <= 1:
            return False
        earlier = self._job(evolve(call, attempt=call.attempt - 1), 0)
        return await self._patiently(partial(engine.find, earlier.id)) is not None

    async def _wait(self, engine: CanQueue, job_id: str) -> JobStatus:
        try:
            return await self._patiently(partial(engine.wait, job_id))
        except asyncio.CancelledError:
            # What a worker has begun may have had its effect, and goes on; what waits must not begin any more.
            with suppress(Exception):
                await engine.cancel_waiting([job_id])
            raise

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return an answer of the database, which may be unreachable for a while; every question can be asked again."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self.patience
        while True:
            try:
                return await ask()
            except AgentLoopError:
                raise
            except Exception:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(_RETRY_SECONDS)

    def _job(self, call: RemoteCall, generation: int) -> Job:
        number = f"+{generation}" if generation else ""
        if call.is_inquiry:
            number += f"?{self._bound_scope.ids.new_id('inquiry')}"
        return Job(
            id=f"{call.run_id}{number}",
            kind=JobKind.TOOL,
            agent=self.agent or "default",
            payload=to_plain(call),
            queue=self.queue,
            version=self.version,
            priority=self.priority,
        )

    @property
    def _bound_scope(self) -> ExecutionScope:
        if self._scope is None:
            raise ToolUnavailable("calls are queued only for an execution: run the executor by an AgentLoop")
        return self._scope

    async def _engine(self) -> CanQueue:
        if self.queues is not None:
            return self.queues
        location = self.db or os.environ.get(DATABASE_VARIABLE, "")
        if not location:
            raise ConfigurationError(
                f"it is not known where calls are queued: give QueuedToolExecutor(db=…) a path or URL, set {DATABASE_VARIABLE}, or "
                "run the agent in a worker"
            )
        key = ("agentloop.service.cluster.engine", location)
        connection: _Connection = self._bound_scope.shared_resources.open(
            key, lambda: _Connection(location), _Connection.aclose
        )
        return await connection.queues()


class _Connection:
    """The queues of the executions of one loop, opened by the first call."""

    def __init__(self, location: str) -> None:
        self._queues = make_queues(location)
        self._opening: asyncio.Task[None] | None = None

    async def queues(self) -> CanQueue:
        """Return the open queues."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._queues.open())
        # Several calls wait for it, of which one may be cancelled.
        await asyncio.shield(self._opening)
        return self._queues

    async def aclose(self) -> None:
        """Close the queues."""
        if self._opening is not None:
            with suppress(Exception):
                await self._opening
        await self._queues.aclose()


def _never_ran(status: JobStatus) -> bool:
    """Return whether a job was cancelled before a worker took it."""
    return status.state is JobState.CANCELLED and status.attempts == 0


def _result_of(status: JobStatus) -> RemoteResult:
    if status.is_damaged and status.error is not None:
        raise ToolInDoubt(f"the row of the job of the call is damaged: {status.error.message}")
    if status.state is JobState.FINISHED:
        try:
            return from_plain(thaw(status.result), RemoteResult)
        except (InvalidDocument, ContractViolation) as error:
            raise ToolInDoubt(f"the result of the call cannot be read: {error}") from error
    if status.state is JobState.CANCELLED:
        raise ToolInDoubt("the job of the call was cancelled while a worker ran it")
    return RemoteResult(status=ToolStatus.FAILED, error=status.error)


def bind_queue(
    loop: AgentLoop[Any], db: str, agent: str, version: str, queues: CanQueue | None = None
) -> AgentLoop[Any]:
    """Return a loop whose queued calls go to the workers that run it too; settings of its own stay.

    Args:
        loop: the loop; one without a `QueuedToolExecutor` is returned as it is.
        db: the database of the worker.
        agent: the name of the loop in the worker.
        version: the version of the worker.
        queues: the queues of the worker; None for those of the database.
    """
    bound = _bound_to(loop.executor, evolve(_BLANK, db=db, agent=agent, version=version, queues=queues))
    return loop if bound is loop.executor else loop.replace(executor=bound)


def _bound_to(executor: CanExecuteToolCalls, worker: QueuedToolExecutor) -> CanExecuteToolCalls:
    """Return an executor whose queued calls go to a worker, also inside of wrappers."""
    if isinstance(executor, ForwardingExecutor):
        inner = _bound_to(executor.inner, worker)
        return executor if inner is executor.inner else evolve(executor, inner=inner)
    if not isinstance(executor, QueuedToolExecutor) or executor.db or executor.queues is not None:
        return executor
    agent, version = executor.agent or worker.agent, executor.version or worker.version
    return evolve(executor, db=worker.db, queues=worker.queues, agent=agent, version=version)


_BLANK = QueuedToolExecutor()


# --- on the worker ------------------------------------------------------------------------------------------------------


async def run_tool_job(loop: AgentLoop[Any], job: RunningJob, last_attempts: LastAttempts) -> object:
    """Run a queued call with the tools of an agent, and return its result as JSON data; errors of the tool are in it.

    Args:
        loop: the agent, entered by `async with`.
        job: the job.
        last_attempts: the turns of calls that are on their last attempt.
    """
    return to_plain(await _ToolJob(loop, job, last_attempts).run())


class _ToolJob:
    """A job that runs a call; from the second attempt on, it is not known how far the first one came."""

    def __init__(self, loop: AgentLoop[Any], job: RunningJob, last_attempts: LastAttempts) -> None:
        self._loop = loop
        self._job = job
        self._last_attempts = last_attempts
        self._call = from_plain(thaw(job.payload), RemoteCall)

    async def run(self) -> RemoteResult:
        if self._job.attempt <= 1 or self._call.is_inquiry:
            return await self._run(self._call)
        tool = self._loop.tools.get(self._call.call.name)
        if tool is not None and tool.effect is Effect.EFFECT:
            return await self._reconcile()
        return await self._run_again(self._call)

    async def _run(self, call: RemoteCall) -> RemoteResult:
        resources, loop = Resources(), self._loop
        try:
            try:
                request = read_request(call.execution_id, call.request)
                dependencies = await make_dependencies(loop.dependencies, request, resources)
            except Exception as error:  # noqa: BLE001  # the tool has not run, which its caller has to know
                return RemoteResult.of_error(error)
            return await run_remote_call(loop.tools, call, dependencies=dependencies, bounds=loop.bounds)
        finally:
            await resources.aclose()

    async def _run_again(self, call: RemoteCall) -> RemoteResult:
        """Run a call whose worker has ended, unless workers die of it; one more death ends it after the last attempt."""
        if self._job.deaths >= _MAX_DEATHS:
            problem = f"{self._job.deaths} workers have died while they ran this call; it is not tried again"
            return RemoteResult.of_error(ToolFailed(problem))
        if self._job.deaths < _MAX_DEATHS - 1:
            return await self._run(call)
        async with self._last_attempts.turn(self._job):
            return await self._run(call)

    async def _reconcile(self) -> RemoteResult:
        """Settle a call with an effect that another worker began: by its tool if that can tell, else in doubt."""
        inquiry = await self._run_again(evolve(self._call, is_inquiry=True))
        match inquiry.reconciliation or CannotTell():
            case Happened(value):
                return RemoteResult(result=ToolResult(value))
            case DidNotHappen():
                return await self._run_again(self._call)
            case CannotTell(reason):
                why = "; ".join(
                    filter(
                        None, ["the worker that ran the call has ended, and it is not known how far it came", reason]
                    )
                )
                return RemoteResult.of_error(ToolInDoubt(why), ToolStatus.IN_DOUBT)
