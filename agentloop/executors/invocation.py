"""Runs the tool of one call: context, thread or coroutine, timeout, size limit of the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanUseThread, Tool, ToolContext
from agentloop.errors import NotJson, ToolError, ToolFailed, ToolInDoubt
from agentloop.events.bus import emit_at_step, emit_soon
from agentloop.events.tool_calls import ToolCallAbandoned, ToolCallProgressed, ToolCallStarted
from agentloop.executors.thread_pool import ThreadAbandoned, ThreadPool
from agentloop.executors.toolbox import ReadyTool
from agentloop.interception.stack import InterceptorStack
from agentloop.values.decisions import CallSuspended, Decision, PendingCall
from agentloop.values.json import format_json, freeze
from agentloop.values.parts import Text
from agentloop.values.points import AroundToolUse
from agentloop.values.records import RecordedCall
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, StopSignal
from agentloop.values.tool_calls import (
    ContentPart,
    Effect,
    ErrorInfo,
    ToolCall,
    ToolExecution,
    ToolResult,
    ToolStatus,
)

# --- the values of one call -------------------------------------------------------------------------------------


@frozen(eq=False, kw_only=True)
class CallOutcome:
    """The outcome of a call so far. At the end, exactly one of `execution` and `pending` is set.

    Attributes:
        execution: the execution, once the call is settled.
        pending: the call as it waits for a decision, if it is suspended.
        stop: the stop that the call requested.
        started: whether the tool was started.
        started_at: when the call started; None before, and for a call that is settled without running.
        must_record: whether the journal holds the start of the call and does not yet hold its end.
        failure: an error that interrupts the batch after this call.
    """

    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    stop: StopSignal | None = None
    started: bool = False
    started_at: datetime | None = None
    must_record: bool = False
    failure: Exception | None = None


OPEN = CallOutcome()
"""The outcome of a call that has not started."""

_UNCERTAIN = frozenset({ToolStatus.TIMED_OUT, ToolStatus.CANCELLED, ToolStatus.IN_DOUBT})


@frozen(eq=False, kw_only=True)
class AdmittedCall:
    """A call of a batch. Admission adds its tool, its arguments and its ordering key.

    Attributes:
        step_number: the 1-based number of the step that it belongs to.
        index: its 0-based index among the calls of its step.
        key: its idempotency key.
        id: the id of its execution.
        call: the call; decisions and interceptors may replace it during admission.
        decision: the decision about it, if it was pending.
        resumed: the pending call that its tool left when it suspended the call; None if the tool was not started before.
        recorded: what the journal holds of it, if it started before its execution was interrupted.
        tool: its tool; None if there is no tool of this name.
        arguments: its arguments as the tool accepts them; None if they are invalid.
        ordering_key: calls with the same key run one after the other; empty for none.
    """

    step_number: int
    index: int
    key: str
    id: str
    call: ToolCall
    decision: Decision | None = None
    resumed: PendingCall | None = None
    recorded: RecordedCall | None = None
    tool: ReadyTool | None = None
    arguments: Mapping[str, Any] | None = None
    ordering_key: str = ""

    @property
    def was_started(self) -> bool:
        """Whether it started before this batch. It resumes with the call that it started with."""
        return self.resumed is not None or self.recorded is not None

    @property
    def effect(self) -> Effect:
        """The effect of its tool; that of an unknown tool is assumed to be the worst."""
        return self.tool.spec.effect if self.tool is not None else Effect.EFFECT

    def execution(
        self,
        so_far: CallOutcome,
        status: ToolStatus,
        at: datetime,
        *,
        result: ToolResult | None = None,
        error: ErrorInfo | None = None,
        may_have_run: bool | None = None,
    ) -> ToolExecution:
        """Return its execution.

        Args:
            so_far: the outcome so far, which says whether and when the tool was started.
            status: how the call ended.
            at: when it ended.
            result: the result of a success.
            error: the error of any other status.
            may_have_run: overrides what status and effect imply.
        """
        return ToolExecution(
            id=self.id,
            key=self.key,
            call=self.call,
            status=status,
            value=result.value if result is not None else None,
            content=result.content if result is not None else None,
            error=error,
            may_have_run=self.may_have_run(so_far, status) if may_have_run is None else may_have_run,
            started_at=so_far.started_at or at,
            ended_at=at,
        )

    def settle(
        self,
        so_far: CallOutcome,
        status: ToolStatus,
        at: datetime,
        *,
        result: ToolResult | None = None,
        error: ErrorInfo | None = None,
        may_have_run: bool | None = None,
    ) -> CallOutcome:
        """Return the outcome so far, settled with an execution; arguments are those of `execution`."""
        execution = self.execution(so_far, status, at, result=result, error=error, may_have_run=may_have_run)
        return evolve(so_far, execution=execution, pending=None)

    def may_have_run(self, so_far: CallOutcome, status: ToolStatus) -> bool:
        """Return whether an effect cannot be excluded although the call ended with this status."""
        if status is ToolStatus.SUCCEEDED or self.tool is None or self.tool.spec.effect is Effect.PURE:
            return False
        # A tool that was not started now may have had an effect before it suspended the call.
        return status in _UNCERTAIN if so_far.started else self.resumed is not None


@frozen
class BatchSettings:
    """What the calls of one batch have in common.

    Attributes:
        interceptor: the interceptors of the execution.
        points: the names of the points that the interceptors handle.
        events: the bus of the execution.
        scope: its clock, ids and resources.
        default_timeout: timeout in seconds for tools without one; None for no limit.
        max_result_bytes: the maximum size in bytes of a result in a request, for tools without a limit.
    """

    interceptor: InterceptorStack
    points: frozenset[str]
    events: CanHandleEvents
    scope: ExecutionScope
    default_timeout: float | None
    max_result_bytes: int


# --- running the tool -------------------------------------------------------------------------------------------

_CANCEL_SECONDS = 1.0


class ToolInvocation:
    """Runs the tool of one call inside the interceptors.

    Attributes:
        outcome: the outcome so far, also when `run` raises or is cancelled.
    """

    __slots__ = ("_attempts", "_call", "_is_closed", "_loop", "_settings", "_state", "_tool", "outcome")

    def __init__(self, call: AdmittedCall, tool: ReadyTool, state: AgentState, settings: BatchSettings) -> None:
        self.outcome: CallOutcome = OPEN
        self._call = call
        self._tool = tool
        self._state = state
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._attempts = 0
        self._is_closed = False

    async def run(self) -> CallOutcome:
        """Run the tool, as often as the interceptors ask for, and return the outcome.

        Raises:
            AgentStop: an interceptor stops the execution.
            InterceptorFailed: an interceptor failed.
            asyncio.CancelledError: the task was cancelled.
        """
        call, settings = self._call, self._settings
        started_at = settings.scope.clock.now()
        self.outcome = CallOutcome(started_at=started_at)
        # Emitted outside of the interceptors: a call starts once, however often they repeat its tool.
        await emit_at_step(settings.events, ToolCallStarted, self._state, call.step_number, call.key, call.call)
        if AroundToolUse.point_name in settings.points:
            point = AroundToolUse(
                self._state, call.call, self._tool.spec, call.key, call.id, started_at, self._tool.policy
            )
            execution = self._stamp(await settings.interceptor.around(point, self._attempt))
        else:
            execution = await self._attempt()
        if self.outcome.pending is None:
            self.outcome = evolve(self.outcome, execution=execution)
        self.close()
        return self.outcome

    def close(self) -> None:
        """Emit no more progress: the call is settled, even if its tool is still running."""
        self._is_closed = True

    def bind_tool(self) -> Tool:
        """Return the tool with the state, the call and the context that it accepts."""
        call, scope = self._call, self._settings.scope
        context = ToolContext(
            execution_id=self._state.execution_id,
            agent_id=self._state.agent_id,
            idempotency_key=call.key,
            dependencies=scope.dependencies,
            attempt=self._attempts,
            resumed=call.resumed,
            scope=scope,
            events=self._settings.events,
            id=call.id,
            report=self._report,
        )
        return self._tool.bind(self._state, call.call, context)

    async def _attempt(self) -> ToolExecution:
        call, clock = self._call, self._settings.scope.clock
        self._attempts += 1
        # A new attempt voids the suspension of an earlier one; a stop that an earlier one requested still counts.
        self.outcome = evolve(self.outcome, started=True, pending=None)
        try:
            result = self._limit(self._tool.present(await self._use_tool()))
            return call.execution(self.outcome, ToolStatus.SUCCEEDED, clock.now(), result=result)
        except AgentStop as stop:
            stop.set_default_source(call.call.name)
            self.outcome = evolve(self.outcome, stop=stop.signal)
            status, error = ToolStatus.CANCELLED, ErrorInfo.of(stop)
        except CallSuspended as suspended:
            self.outcome = evolve(self.outcome, pending=self._pending_call(suspended))
            status, error = ToolStatus.CANCELLED, ErrorInfo.of(suspended)
        except _TimedOut as timeout:
            status, error = ToolStatus.TIMED_OUT, ErrorInfo("ToolTimedOut", str(timeout))
        except asyncio.CancelledError:
            # The tool may have cancelled itself; a cancellation of this task is not the tool's outcome.
            if _is_task_cancelled():
                raise
            status, error = ToolStatus.CANCELLED, ErrorInfo("Cancelled", "the tool cancelled itself")
        except (KeyboardInterrupt, GeneratorExit):  # of the program or of the event loop, not of the tool
            raise
        except BaseException as failure:  # noqa: BLE001  # whatever a tool raises is its outcome
            status = ToolStatus.IN_DOUBT if isinstance(failure, ToolInDoubt) else ToolStatus.FAILED
            error = tool_error(failure)
        return call.execution(self.outcome, status, clock.now(), error=error)

    def _stamp(self, execution: ToolExecution) -> ToolExecution:
        """Return what the interceptors made of the execution, with the id and key of this call and the time of its end."""
        call = self._call
        return evolve(
            execution,
            id=call.id,
            key=call.key,
            may_have_run=execution.may_have_run or call.may_have_run(self.outcome, execution.status),
            ended_at=self._settings.scope.clock.now(),
        )

    def _pending_call(self, suspended: CallSuspended) -> PendingCall:
        call = self._call
        waits_for = next((inner.key for inner in suspended.inner if not inner.waits_for), "")
        return PendingCall(
            call.key,
            call.call,
            suspended.reason,
            waits_for,
            begun=True,
            inner=suspended.inner,
            progress=suspended.progress,
        )

    def _limit(self, result: ToolResult) -> ToolResult:
        return limit_result(result, self._tool.policy.max_result_bytes or self._settings.max_result_bytes)

    async def _use_tool(self) -> Any:
        tool = self.bind_tool()
        # A tool that accepts the state or the call may return a copy with a policy of its own.
        policy = self._tool.policy if tool is self._tool.tool else tool.policy
        timeout = policy.timeout or self._settings.default_timeout
        work = self._use_in_thread(tool) if isinstance(tool, CanUseThread) else tool.use(**self._arguments())
        return await work if timeout is None else await self._wait_for(work, timeout)

    def _arguments(self) -> Mapping[str, Any]:
        """Return arguments that no other attempt has used, because a tool may change what it gets."""
        if self._attempts == 1 and self._call.arguments is not None:
            return self._call.arguments
        return self._tool.prepare(self._call.call)

    async def _use_in_thread(self, tool: CanUseThread) -> Any:
        call = partial(_call_in_thread, partial(tool.use_in_thread, **self._arguments()))
        pool = self._settings.scope.local_resources.open(ThreadPool, ThreadPool, ThreadPool.close)
        try:
            return await pool.run(call)
        except ThreadAbandoned as abandoned:
            # Raised only if the function had started; outside of this module it is an ordinary cancellation.
            await self._emit_abandoned()
            raise asyncio.CancelledError from abandoned

    async def _wait_for(self, work: Awaitable[Any], seconds: float) -> Any:
        """Await the work until the timeout. A coroutine that ignores its cancellation is left behind."""
        # `asyncio.timeout` would wait for such a coroutine forever; a task of its own can be left.
        task = asyncio.ensure_future(_await_tool(work))
        try:
            await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError:
            await self._cancel(task)
            raise
        if task.done():
            return task.result()
        await self._cancel(task)
        raise _TimedOut(f"the tool {self._call.call.name!r} did not end within {seconds:g} seconds")

    async def _cancel(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        await asyncio.wait((task,), timeout=_CANCEL_SECONDS)
        if not task.done():
            await self._emit_abandoned()
        elif not task.cancelled():
            task.exception()  # mark it as retrieved, so that asyncio does not log what a cancelled tool still raises

    async def _emit_abandoned(self) -> None:
        call = self._call
        await emit_at_step(self._settings.events, ToolCallAbandoned, self._state, call.step_number, call.key, call.call)

    def _report(self, update: object) -> None:
        """Emit progress. Tools call it in the event loop or in a thread."""
        frozen_update = freeze(update)
        # Only the thread of the event loop may emit; other threads schedule the emission there.
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._emit_progress(frozen_update)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._emit_progress, frozen_update)

    def _emit_progress(self, update: object) -> None:
        call = self._call
        if not self._is_closed:
            emit_soon(
                self._settings.events,
                ToolCallProgressed,
                self._state,
                call.step_number,
                call.key,
                call.call.name,
                update,
            )


class _TimedOut(Exception):  # internal to this module; becomes an outcome
    """The timeout of the tool has passed."""


class _Escaping(Exception):  # internal to this module; becomes an outcome
    """The tool raised an error that a task would raise out of the event loop, which would end the program."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException = error


def _call_in_thread(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise _Escaping(error) from None


async def _await_tool(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except SystemExit as error:
        raise _Escaping(error) from None


def _is_task_cancelled() -> bool:
    """Return whether the current task is being cancelled, in contrast to a tool that raises `CancelledError` itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


# --- errors and results -----------------------------------------------------------------------------------------

_MAX_ERROR_CHARACTERS = 10_000
_CHUNK_CHARACTERS = 1_000_000


def tool_error(error: BaseException) -> ErrorInfo:
    """Return the error of a tool as data; a very long message is truncated."""
    if isinstance(error, _Escaping):
        error = error.error
    # A value without a JSON form is a mistake of the tool, like any other result that does not match its type.
    if isinstance(error, NotJson):
        error = ToolFailed(str(error))
    message = ErrorInfo.of(error).message
    if len(message) > _MAX_ERROR_CHARACTERS:
        message = f"{message[:_MAX_ERROR_CHARACTERS]}… ({len(message)} characters)"
    return ErrorInfo(type(error).__name__, message, error.path if isinstance(error, ToolError) else "")


def limit_result(result: ToolResult, max_bytes: int) -> ToolResult:
    """Return the result with its text for the model truncated; its value is kept whole.

    Args:
        result: the result.
        max_bytes: the maximum size of each text in bytes of UTF-8.
    """
    # The program reads the value, the model the content: only the content is truncated.
    if result.content is not None:
        return ToolResult(result.value, tuple([_limit_part(part, max_bytes) for part in result.content]))
    if isinstance(result.value, str):
        text = truncate(result.value, max_bytes)
        return result if text is result.value else ToolResult(result.value, (Text(text),))
    if isinstance(result.value, dict | tuple):
        data = format_json(result.value)
        if len(data) > max_bytes:
            return ToolResult(result.value, (Text(_truncate_bytes(data, len(data), max_bytes)),))
    return result


def _limit_part(part: ContentPart, max_bytes: int) -> ContentPart:
    return Text(truncate(part.text, max_bytes)) if isinstance(part, Text) else part


def truncate(text: str, max_bytes: int) -> str:
    """Return the text, or the part of it that fits into this many bytes of UTF-8 followed by a notice."""
    if len(text) * 4 <= max_bytes:
        return text
    # The size is computed chunk by chunk, so that a large text is not held in memory twice.
    chunks = range(0, len(text), _CHUNK_CHARACTERS)
    size = sum(len(_encode(text[start : start + _CHUNK_CHARACTERS])) for start in chunks)
    return text if size <= max_bytes else _truncate_bytes(_encode(text[:max_bytes]), size, max_bytes)


def _truncate_bytes(data: bytes, size: int, max_bytes: int) -> str:
    text = data[:max_bytes].decode("utf-8", "ignore")
    return f"{text}\n[cut here: {max_bytes:,} of {size:,} bytes are shown]"


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
