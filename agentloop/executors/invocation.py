"""Runs the tool of one call: context, thread or coroutine, timeout, size limit of the result."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import copy_context
from datetime import datetime
from functools import cached_property, partial
from typing import Any, cast

from attrs import define, evolve, field, frozen

from agentloop._event_loops import running_loop
from agentloop._shielding import is_task_cancelled, wait_through
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanUseInline, CanUseThread, Tool, ToolContext
from agentloop.errors import (
    AgentsTooDeep,
    AskAgain,
    ContractViolation,
    InvalidArguments,
    MalformedArguments,
    NotJson,
    ToolBlocked,
    ToolError,
    ToolFailed,
    ToolInDoubt,
    ToolUnavailable,
    UnknownTool,
)
from agentloop.events.bus import emit_at_step, emit_soon
from agentloop.events.operations import EnteredOperation, enter_operation
from agentloop.events.tool_calls import (
    AbandonedToolCallEnded,
    ToolCallAbandoned,
    ToolCallProgressed,
    ToolCallSlow,
    ToolCallStarted,
)
from agentloop.executors.call import Call
from agentloop.executors.call_layers import OPEN, CallOutcome, EndedByLayer
from agentloop.executors.result_limits import fit_result
from agentloop.executors.thread_pool import ThreadAbandoned, ThreadPool
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.decisions import CallSuspended, PendingCall
from agentloop.values.event import OperationKind
from agentloop.values.json import freeze
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import (
    Effect,
    ErrorInfo,
    ToolExecution,
    ToolStatus,
)
from agentloop.values.value import copier

# --- what the calls of an execution have in common --------------------------------------------------------------


@define(eq=False)
class HeldReports:
    """What is reported of calls when they are settled.

    Attributes:
        held: the reports, by the keys of their calls.
    """

    held: dict[str, list[Callable[[], object]]] = field(factory=dict, init=False)

    def hold(self, key: str, report: Callable[[], object]) -> None:
        """Call this when the call of this key is settled."""
        self.held.setdefault(key, []).append(report)

    def release(self, key: str) -> None:
        """Call now what is held for the call of this key; the first error is raised after all of it."""
        failed: Exception | None = None
        for report in self.held.pop(key, ()):
            try:
                report()
            except Exception as error:  # noqa: BLE001  # of a listener; raised below
                failed = failed or error
        if failed is not None:
            raise failed


class SlowCalls:
    """Reports the running calls that are slow, with one timer for all calls of an execution.

    Args:
        seconds: how long a call may take before it is slow; infinity for any time.
    """

    __slots__ = ("_due", "_loop", "_seconds", "_timer")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._due: dict[Callable[[], None], float] = {}  # in the order in which they are due
        self._timer: asyncio.TimerHandle | None = None

    def add(self, report: Callable[[], None]) -> None:
        """Call this when the time has passed, counted from now."""
        if self._seconds == math.inf:
            return
        self._due[report] = self._loop.time() + self._seconds
        if self._timer is None:
            self._start_timer(self._seconds)

    def remove(self, report: Callable[[], None]) -> None:
        """Do not call this any more."""
        self._due.pop(report, None)

    def close(self) -> None:
        """Report nothing more."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _start_timer(self, seconds: float) -> None:
        # A virtual clock must not jump to this timer while it waits for something else.
        call_later = getattr(self._loop, "call_later_passively", self._loop.call_later)
        self._timer = call_later(seconds, self._report)

    def _report(self) -> None:
        self._timer, now = None, self._loop.time()
        for report, due in list(self._due.items()):
            if due > now + _TIMER_TOLERANCE:
                # The calls for which the timer was started before have ended; it was left to run for the later ones.
                self._start_timer(due - now)
                return
            del self._due[report]
            report()


_TIMER_TOLERANCE = 0.001
"""Timers of an event loop may come too soon by the resolution of its clock."""


@frozen(eq=False, kw_only=True)
class CallRuntime:
    """What the calls of one execution have in common.

    Attributes:
        events: the bus of the execution.
        scope: its clock, ids and resources.
        toolbox: its tools, prepared.
        default_timeout: timeout in seconds for tools without one; None for no limit.
        max_result_bytes: the maximum size in bytes of a result in a request, for tools without a limit.
        cancel_grace: the time in seconds that calls have to end when the execution is cancelled.
        max_concurrency: the maximum number of calls that run at once; None for all.
        stop_on_block: whether the calls after a blocked one are cancelled.
        reports: what is reported of calls when they are settled.
    """

    events: CanHandleEvents
    scope: ExecutionScope
    toolbox: Toolbox
    default_timeout: float | None = None
    max_result_bytes: int = 100_000
    cancel_grace: float = 5.0
    max_concurrency: int | None = None
    stop_on_block: bool = False
    reports: HeldReports = field(factory=HeldReports)

    @cached_property
    def threads(self) -> ThreadPool:
        """The threads of the execution."""
        return self.scope.local_resources.open(
            ThreadPool, lambda: ThreadPool(self.scope.bounds.threads), ThreadPool.close
        )

    @cached_property
    def slow_calls(self) -> SlowCalls:
        """What reports the slow calls of the execution."""
        return self.scope.local_resources.open(
            SlowCalls, lambda: SlowCalls(self.scope.bounds.slow_tool_seconds), SlowCalls.close
        )


# --- running the tool -------------------------------------------------------------------------------------------

_CANCEL_SECONDS = 1.0
_copy_ended = copier(CallOutcome, "execution", "exception", "inner")
_DID_NOT_RUN = (
    AgentsTooDeep,
    AskAgain,
    InvalidArguments,
    MalformedArguments,
    ToolBlocked,
    ToolUnavailable,
    UnknownTool,
)
"""The errors with which a tool reports that it had no effect; after any other one, an effect cannot be excluded."""
REFUSALS = (AskAgain, InvalidArguments)
"""The errors with which a tool refuses what the model asked for: the message explains it, and the tool has not failed."""


class ToolInvocation:
    """Runs the tool of one call inside its layers.

    Attributes:
        call: the call.
        state: the state that the tool accesses.
    """

    __slots__ = (
        "_attempts",
        "_begun",
        "_is_announcing",
        "_is_closed",
        "_is_pure",
        "_is_resumed",
        "_loop",
        "_open_attempt",
        "_outcome",
        "_runtime",
        "_tool",
        "call",
        "state",
    )

    def __init__(
        self,
        call: Call,
        tool: ReadyTool,
        state: AgentState,
        runtime: CallRuntime,
        *,
        attempts: int = 0,
    ) -> None:
        self._outcome: CallOutcome = OPEN
        self.call: Call = call
        self._tool = tool
        self.state: AgentState = state
        self._runtime = runtime
        self._loop = asyncio.get_running_loop()
        self._attempts = attempts  # those that were made elsewhere count
        self._open_attempt: int | None = attempts  # None between two attempts
        self._begun = 0
        self._is_pure = tool.spec.effect is Effect.PURE
        self._is_closed = False
        self._is_resumed = False
        self._is_announcing = False

    @property
    def outcome(self) -> CallOutcome:
        """The outcome so far, also when `run` raises or is cancelled."""
        so_far, may_have_run = self._outcome, (self._is_resumed or self._begun > 0) and not self._is_pure
        if so_far.may_have_run is not may_have_run:
            so_far = evolve(so_far, may_have_run=may_have_run)
        return self.call.with_facts(so_far) if self.call.layers else so_far

    @property
    def raised(self) -> BaseException | None:
        """What the tool raised in the last attempt; None if it has not raised, or not yet."""
        return self._outcome.exception

    def resume(self) -> None:
        """Take into account that the tool may have run before an interruption, whether or not it begins now."""
        self._is_resumed = True

    async def run(self) -> CallOutcome:
        """Run the tool, as often as the layers around it ask for, and return the outcome.

        Raises:
            AgentStop: a layer stops the execution.
            Exception: a layer failed.
            asyncio.CancelledError: the task was cancelled.
        """
        call, runtime = self.call, self._runtime
        started_at = runtime.scope.clock.now()
        self._outcome = CallOutcome(started_at=started_at)
        # Emitted outside of the layers around it: a call starts once, however often they repeat its tool.
        await emit_at_step(runtime.events, ToolCallStarted, self.state, call.step_number, call.key, call.call)
        report_slow = self.report_slow
        runtime.slow_calls.add(report_slow)
        try:
            with self.enter():
                execution = await self._run_attempts(started_at)
        finally:
            runtime.slow_calls.remove(report_slow)
            self.close()
        so_far = ended = self.outcome
        if so_far.pending is None:
            # Outside of the layers around it: what they cache or share has no reference to this call in it.
            execution = fit_result(execution, self._tool.policy, runtime.max_result_bytes, runtime.toolbox.tools)
            exception = so_far.exception if execution.has_error else None
            self._outcome = ended = _copy_ended(so_far, execution, exception, execution.inner)
        return ended

    def enter(self) -> EnteredOperation:
        """Return what makes the call the current operation of the code inside."""
        call, kind = self.call, OperationKind.TOOL_CALL
        return enter_operation(self._runtime.events, kind, self.state, call.step_number, key=call.key, call=call.call)

    async def _run_attempts(self, started_at: datetime) -> ToolExecution:
        attempt = self._attempt
        for layer in reversed(self.call.layers):
            if "around" in layer.hooks:
                attempt = partial(layer.around, started_at, attempt)
        return await attempt()

    def report_slow(self) -> None:
        """Report that the call takes long."""
        call, seconds = self.call, self._runtime.scope.bounds.slow_tool_seconds
        emit_soon(self._runtime.events, ToolCallSlow, self.state, call.step_number, call.key, call.call, float(seconds))

    def close(self) -> None:
        """Report nothing more: the call is settled, even if its tool is still running."""
        self._is_closed = True

    def bind_tool(self) -> Tool:
        """Return the tool with the state, the call and the context that it accepts."""
        tool = self._tool.bind(self.state, self.call.call, self.create_context)
        for layer in self.call.layers:
            if "bind" in layer.hooks:
                tool = layer.bind(tool)
        return tool

    def create_context(self) -> ToolContext:
        """Return the context of the call, for tools that accept one."""
        call, scope = self.call, self._runtime.scope
        return ToolContext(
            execution_id=self.state.execution_id,
            agent_id=self.state.agent_id,
            idempotency_key=call.key,
            dependencies=scope.dependencies,
            attempt=self._attempts,
            resumed=call.resumed,
            scope=scope,
            events=self._runtime.events,
            id=call.id,
            report=partial(self._report, self._attempts),
            has_closed=partial(self._has_closed, self._attempts),
            label=call.layers[0].input_label if call.layers else None,
        )

    def _has_closed(self, attempt: int) -> bool:
        """Return whether the result of an attempt is no longer of use; called by tools, also in threads."""
        return self._is_closed or attempt != self._open_attempt

    async def _attempt(self) -> ToolExecution:
        self._check_open()
        self._attempts += 1
        self._open_attempt = self._attempts
        attempt = self._run_attempt
        for layer in reversed(self.call.layers):
            if "attempt" in layer.hooks:
                attempt = partial(layer.attempt, attempt)
        try:
            return await attempt()
        finally:
            self._open_attempt = None

    async def _run_attempt(self) -> ToolExecution:
        call, clock = self.call, self._runtime.scope.clock
        self._check_open()
        # A new attempt voids the suspension of an earlier one; a stop that an earlier one requested still counts.
        before = self._outcome
        self._outcome = CallOutcome(started=True, started_at=before.started_at, stop=before.stop)
        try:
            result = self._tool.present(await self._use())
            so_far = self.outcome if call.layers else self._outcome
            return call.execution(so_far, ToolStatus.SUCCEEDED, clock.now(), result=result)
        except AgentStop as stop:
            stop.set_default_source(call.call.name)
            self._outcome = evolve(self._outcome, stop=stop.signal)
            status, error = ToolStatus.CANCELLED, tool_error(stop)
        except (CallSuspended, EndedByLayer) as ended:
            self._outcome = self._ended(ended)
            status, error = ToolStatus.CANCELLED, tool_error(ended)
        except ToolTimeout as timeout:
            status, error = ToolStatus.TIMED_OUT, ErrorInfo("ToolTimedOut", str(timeout))
        except CancelledItself:
            status, error = ToolStatus.CANCELLED, ErrorInfo("Cancelled", "the tool cancelled itself")
        except asyncio.CancelledError as cancelled:
            # The tool awaited something that was cancelled; a cancellation of this task is not the tool's outcome.
            if is_task_cancelled():
                raise
            status, error = self._fail(cancelled), tool_error(cancelled)
        except (KeyboardInterrupt, GeneratorExit):  # of the process or of the event loop, not of the tool
            raise
        except BaseException as failure:  # noqa: BLE001  # whatever a tool raises is its outcome
            status, error = self._fail(failure), tool_error(failure)
        return call.execution(self.outcome, status, clock.now(), error=error)

    def _check_open(self) -> None:
        """Raise if the call is settled: a layer may have left `proceed()` behind in a task."""
        if self._is_closed:
            raise ContractViolation(f"proceed() of the call {self.call.key} was awaited after the call was settled")

    def _fail(self, error: BaseException) -> ToolStatus:
        """Report what the tool raised to the logger, keep it for this process, and return the status of the call.

        Raises:
            BaseException: the error, if a layer says that it is no outcome of the call.
        """
        error = _raised_by_tool(error)
        if any("disowns" in layer.hooks and layer.disowns(error) for layer in self.call.layers):
            raise error
        self._outcome = evolve(self._outcome, exception=error)
        if isinstance(error, REFUSALS):  # what only the tool could check; the model can correct it
            return ToolStatus.REJECTED
        log_failure(self.call, self.state.execution_id, error)
        return ToolStatus.IN_DOUBT if isinstance(error, ToolInDoubt) else ToolStatus.FAILED

    def _ended(self, ended: CallSuspended | EndedByLayer) -> CallOutcome:
        if isinstance(ended, CallSuspended):
            return evolve(self._outcome, pending=_pending_call(self.call, ended))
        # The reason of a stop is in the state already; a failure interrupts the batch of this call, too.
        return evolve(self._outcome, failure=ended.failure)

    async def _use(self) -> Any:
        use = self.use_tool
        for layer in reversed(self.call.layers):
            if "use" in layer.hooks:
                use = partial(layer.use, use)
        return await use()

    @property
    def is_first_attempt(self) -> bool:
        """Whether no attempt was made before."""
        return self._attempts == 1

    def count_use(self, change: int) -> None:
        """Count a use of the tool that began elsewhere, or with -1 one that is not used: then the tool has not run."""
        self._begun += change

    async def use_tool(self) -> Any:
        """Run the tool once, in a thread or as a coroutine, within its timeout.

        Raises:
            BaseException: whatever the tool raises.
        """
        tool = self.bind_tool()
        # A tool that accepts the state or the call may return a copy with a policy of its own.
        policy = self._tool.policy if tool is self._tool.tool else tool.policy
        timeout = policy.timeout or self._runtime.default_timeout
        arguments = self._arguments()
        self._begun += 1
        try:
            # A tool that is not bound to calls is of the class that was looked at before.
            is_same = tool is self._tool.tool
            if self._tool.is_inline if is_same else isinstance(tool, CanUseInline):
                # In a context of its own, as in a thread: what the function sets does not reach the loop.
                return copy_context().run(_call_tool, partial(cast("CanUseInline", tool).use_inline, **arguments))
            in_thread = self._tool.uses_thread if is_same else isinstance(tool, CanUseThread)
            work = self._use_in_thread(cast("CanUseThread", tool), arguments) if in_thread else tool.use(**arguments)
            return await work if timeout is None else await self._wait_for(work, timeout)
        except _DID_NOT_RUN:
            self._begun -= 1
            raise

    def _arguments(self) -> Mapping[str, Any]:
        """Return arguments that no other attempt has used, because a tool may change what it gets."""
        if self._attempts == 1 and self.call.arguments is not None:
            return self.call.arguments
        return self._tool.prepare(self.call.call, self._runtime.scope.bounds)

    async def _use_in_thread(self, tool: CanUseThread, arguments: Mapping[str, Any]) -> Any:
        call = partial(_call_tool, partial(tool.use_in_thread, **arguments))
        try:
            result = await self._runtime.threads.run(call, self.report_late)
        except ThreadAbandoned as abandoned:
            # Raised only if the function had started; outside of this module it is an ordinary cancellation.
            await self._announce_abandoned()
            raise asyncio.CancelledError from abandoned
        except asyncio.CancelledError:
            self._begun -= 1  # it was waiting for a thread
            raise
        # Nothing shows that a plain function, such as a decorator makes, returns a coroutine.
        return await result if isinstance(result, Coroutine) else result

    async def _wait_for(self, work: Awaitable[Any], seconds: float) -> Any:
        """Await the work until the timeout. A coroutine that ignores its cancellation is left behind."""
        # `asyncio.timeout` would wait for such a coroutine forever; a task of its own can be left.
        task = asyncio.create_task(_await_tool(work))
        try:
            await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError:
            await self._cancel(task)
            if task.done() and not task.cancelled():
                # As if the tool was awaited here: it may still end in another way than by its cancellation.
                return task.result()
            raise
        if task.done():
            if task.cancelled() and task.cancelling():
                raise CancelledItself
            return task.result()
        if (cancelled := await self._cancel(task)) is not None:
            raise cancelled
        raise ToolTimeout(f"the tool {self.call.call.name!r} did not end within {seconds:g} seconds")

    async def _cancel(self, task: asyncio.Future[Any]) -> asyncio.CancelledError | None:
        """Cancel the task of the tool and wait for its end; return a cancellation of the call that came meanwhile."""
        task.cancel()
        # A further cancellation, as by a deadline around the call, must not leave the tool behind before its time is over.
        cancelled = await wait_through(task, _CANCEL_SECONDS)
        if not task.done() and self._is_announcing:
            # Its function was left behind in its thread, and listeners are still told: the task ends with them.
            await asyncio.wait((task,))
        if not task.done():
            await self._announce_abandoned()
            task.add_done_callback(lambda late: self.report_late(_exception_of(late)))
        else:
            _exception_of(
                task
            )  # mark it as retrieved, so that asyncio does not report what a cancelled tool still raises
        return cancelled

    async def _announce_abandoned(self) -> None:
        """Report that the tool continues; the error of a listener ends the batch, and takes the place of no outcome."""
        self._is_announcing = True
        try:
            await self.report_abandoned()
        except Exception as error:
            _logger.exception("a listener failed when the call %s was abandoned", self.call.key)
            self._outcome = evolve(self._outcome, failure=self._outcome.failure or error)
        finally:
            self._is_announcing = False

    def report_abandoned(self) -> Awaitable[None]:
        """Report that the tool continues although its call is about to be settled; await the result."""
        return report_abandoned(self.call, self.state, self._runtime.events)

    def report_late(self, error: BaseException | None) -> None:
        """Report that an abandoned tool has ended."""
        report_late(self.call, self.state, self._runtime.events, error)

    def _report(self, attempt: int, update: object) -> None:
        """Emit progress of an attempt. Tools call it in the event loop or in a thread."""
        frozen_update = freeze(update)
        # Only the thread of the event loop may emit; other threads schedule the emission there.
        if running_loop() is self._loop:
            self.emit_progress(attempt, frozen_update)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.emit_progress, attempt, frozen_update)

    def emit_progress(self, attempt: int, update: object) -> None:
        """Emit progress of an attempt, until it has ended."""
        call = self.call
        if not self._has_closed(attempt):
            emit_soon(
                self._runtime.events,
                ToolCallProgressed,
                self.state,
                call.step_number,
                call.key,
                call.call.name,
                update,
            )


class ToolTimeout(Exception):  # internal to this room; becomes an outcome
    """The timeout of the tool has passed."""


class CancelledItself(Exception):  # internal to this room; becomes an outcome
    """The tool, or someone else, has cancelled the task of the tool, but not that of the call."""


class _Escaping(Exception):  # internal to this module; becomes an outcome
    """The tool raised an error that would be taken for another one: for the end of the process, or a cancellation of its call."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error: BaseException = error


def _pending_call(call: Call, suspended: CallSuspended) -> PendingCall:
    waits_for = next((inner.key for inner in suspended.inner if not inner.waits_for), "")
    pending = call.suspended(suspended.reason, waits_for=waits_for, begun=True)
    return evolve(pending, inner=suspended.inner, progress=suspended.progress, settled=suspended.settled)


def _raised_by_tool(error: BaseException) -> BaseException:
    return error.error if isinstance(error, _Escaping) else error


def _call_tool(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError) as error:
        raise _Escaping(error) from None


async def _await_tool(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except SystemExit as error:
        raise _Escaping(error) from None


def _exception_of(task: asyncio.Future[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


# --- reports --------------------------------------------------------------------------------------------------------

_logger = logging.getLogger("agentloop.tools")
_AWAITED_CANCELLED = "the tool awaited something that was cancelled"


def log_failure(call: Call, execution_id: str, error: BaseException) -> None:
    """Report what a tool raised to the logger, with its traceback, the call and the execution, but without the arguments."""
    fields = _log_fields(call, execution_id)
    _logger.error("the tool %r failed in call %s", call.call.name, call.key, exc_info=error, extra=fields)


def report_unsuccessful(call: Call, execution: ToolExecution, execution_id: str) -> None:
    """Report a call that timed out or was rejected to the logger: the kind of its error and the place, without the arguments.

    An `AskAgain` is an answer of the tool, and is not reported.
    """
    error, fields = execution.error or ErrorInfo("", ""), _log_fields(call, execution_id)
    # The tool has said what it wanted to say. An outcome from elsewhere has the name of the error alone.
    if isinstance(call.outcome.exception, AskAgain) or error.type == AskAgain.__name__:
        return
    # A model may have chosen the names in the path.
    kind = f"{error.type} at {error.path[:_MAX_PATH]!r}" if error.path else error.type
    if execution.status is ToolStatus.TIMED_OUT:
        _logger.error("the tool %r timed out in call %s: %s", call.call.name, call.key, kind, extra=fields)
    else:
        _logger.error("the call %s of the tool %r was rejected: %s", call.key, call.call.name, kind, extra=fields)


_MAX_PATH = 200
UNSUCCESSFUL = frozenset({ToolStatus.TIMED_OUT, ToolStatus.REJECTED})
"""How calls end whose tools have raised nothing that could be reported when it was raised."""


def report_abandoned(call: Call, state: AgentState, events: CanHandleEvents) -> Awaitable[None]:
    """Report that a tool continues although its call is about to be settled; await the result."""
    fields, message = _log_fields(call, state.execution_id), "the tool %r continues although its call %s has ended"
    _logger.warning(message, call.call.name, call.key, extra=fields)
    return emit_at_step(events, ToolCallAbandoned, state, call.step_number, call.key, call.call)


def report_late(call: Call, state: AgentState, events: CanHandleEvents, error: BaseException | None) -> None:
    """Report that an abandoned tool has ended; it has raised the error, if there is one."""
    fields = _log_fields(call, state.execution_id)
    error = _raised_by_tool(error) if error is not None else None
    _logger.warning("the abandoned call %s of %r has ended", call.key, call.call.name, exc_info=error, extra=fields)
    info = tool_error(error) if error is not None else None
    emit_soon(events, AbandonedToolCallEnded, state, call.step_number, call.key, call.call, info)


def _log_fields(call: Call, execution_id: str) -> dict[str, str]:
    return {"execution_id": execution_id, "call_key": call.key, "tool": call.call.name}


# --- errors -----------------------------------------------------------------------------------------

_MAX_ERROR_CHARACTERS = 10_000


def tool_error(error: BaseException) -> ErrorInfo:
    """Return the error of a tool as data; a very long message is truncated."""
    error = _raised_by_tool(error)
    # A value without a JSON form is a mistake of the tool, like any other result that does not match its type.
    if isinstance(error, NotJson):
        error = ToolFailed(str(error))
    is_cancellation = isinstance(error, asyncio.CancelledError)
    message = _AWAITED_CANCELLED if is_cancellation else ErrorInfo.of(error).message
    if len(message) > _MAX_ERROR_CHARACTERS:
        message = f"{message[:_MAX_ERROR_CHARACTERS]}… ({len(message)} characters)"
    # Without the exception: its traceback would live as long as the conversation.
    return ErrorInfo(type(error).__name__, message, error.path if isinstance(error, ToolError) else "")
