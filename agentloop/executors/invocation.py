"""Running one call: context, thread or coroutine, timeout, result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from attrs import frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanUseThread, Tool, ToolContext
from agentloop.errors import ToolInDoubt
from agentloop.events.tool_calls import ToolCallAbandoned, ToolCallProgressed, ToolCallStarted
from agentloop.executors.call_state import CallState, Escaping, limited_error
from agentloop.executors.thread_pool import ThreadAbandoned, ThreadPool
from agentloop.executors.toolbox import ReadyTool
from agentloop.interception.stack import InterceptorStack
from agentloop.values.decisions import CallSuspended
from agentloop.values.json import format_json, freeze
from agentloop.values.parts import Text
from agentloop.values.points import AroundToolUse
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import ContentPart, ErrorInfo, ToolExecution, ToolResult, ToolStatus


def limited(result: ToolResult, most: int) -> ToolResult:
    """Return the result with what the model is shown cut to this many bytes of text; the value is kept whole.

    Args:
        result: the result.
        most: bytes of UTF-8.
    """
    if result.content is not None:
        return ToolResult(result.value, _limited_parts(result.content, most))
    if isinstance(result.value, str):
        shown = cut(result.value, most)
        return result if shown is result.value else ToolResult(result.value, (Text(shown),))
    if isinstance(result.value, dict | tuple):
        written = format_json(result.value)
        return result if len(written) <= most else ToolResult(result.value, (Text(_cut(written, len(written), most)),))
    return result


def _limited_parts(parts: tuple[ContentPart, ...], most: int) -> tuple[ContentPart, ...]:
    return tuple([Text(cut(part.text, most)) if isinstance(part, Text) else part for part in parts])


def cut(text: str, most: int) -> str:
    """Return the text, or as much of it as fits into this many bytes, with a notice of what is missing."""
    if len(text) * 4 <= most:
        return text
    size = sum(len(_encoded(text[place : place + _PIECE])) for place in range(0, len(text), _PIECE))
    return text if size <= most else _cut(_encoded(text[:most]), size, most)


def _cut(data: bytes, size: int, most: int) -> str:
    shown = data[:most].decode("utf-8", "ignore")
    return f"{shown}\n[cut here: {most:,} of {size:,} bytes are shown]"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_PIECE = 1_000_000  # characters that are encoded at once, so that a large text is not held twice


_STUBBORN_SECONDS = 1.0


@frozen
class RunSettings:
    """What the calls of one batch have in common.

    Attributes:
        interceptor: what stands around each call.
        events: where events go.
        scope: clock and resources.
        default_timeout: seconds for tools that name no timeout; None for no limit.
        max_result_bytes: the most bytes of a result that the model is shown, for tools that name no limit.
    """

    interceptor: InterceptorStack
    events: CanHandleEvents
    scope: ExecutionScope
    default_timeout: float | None
    max_result_bytes: int


class ToolInvocation:
    """Runs one call and leaves the outcome in its slot."""

    __slots__ = ("_loop", "_settings", "_slot", "_state", "_tool", "stop", "suspended")

    def __init__(self, slot: CallState, tool: ReadyTool, state: AgentState, settings: RunSettings) -> None:
        self._slot = slot
        self._tool = tool
        self._state = state
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self.stop: AgentStop | None = None
        self.suspended: CallSuspended | None = None

    async def run(self) -> None:
        """Emit the start, run the tool inside of the layers around it, and note the outcome.

        Raises:
            AgentStop: when a layer around the call asks to stop.
            InterceptorFailed: when a layer around the call fails.
            asyncio.CancelledError: when the run is cancelled.
        """
        slot, settings = self._slot, self._settings
        slot.started_at = started_at = settings.scope.clock.now()
        if settings.events.due(ToolCallStarted):
            head = settings.events.head(self._state, step_number=slot.step)
            await settings.events.emit(ToolCallStarted(head, slot.key, slot.call))
        if not settings.interceptor.handles(AroundToolUse):
            slot.execution = await self._attempt()
            return
        point = AroundToolUse(
            self._state, slot.call, self._tool.spec, slot.key, slot.id, started_at, self._tool.tool.policy
        )
        execution = await settings.interceptor.around(point, self._attempt)
        slot.execution = slot.finished(execution, settings.scope.clock.now())

    async def _attempt(self) -> ToolExecution:
        slot, clock = self._slot, self._settings.scope.clock
        slot.started, self.suspended = True, None
        slot.attempts += 1
        try:
            result = self._tool.presented(await self._used())
            limit = self._tool.tool.policy.max_result_bytes or self._settings.max_result_bytes
            return slot.succeed(limited(result, limit), clock.now())
        except (AgentStop, CallSuspended) as control:  # an outcome for the layers around the call
            self._note(control)
            return slot.end(ToolStatus.CANCELLED, ErrorInfo.of(control), clock.now())
        except _TimedOut as error:
            return slot.end(ToolStatus.TIMED_OUT, ErrorInfo("ToolTimedOut", str(error)), clock.now())
        except asyncio.CancelledError:
            if _cancelled_from_outside():
                raise
            message = "the tool cancelled itself"
            return slot.end(ToolStatus.CANCELLED, ErrorInfo("Cancelled", message), clock.now())
        except (KeyboardInterrupt, GeneratorExit):  # of the program, or of the event loop: no tool can answer for them
            raise
        except BaseException as error:  # noqa: BLE001  # whatever a tool raises is its outcome
            status = ToolStatus.IN_DOUBT if isinstance(error, ToolInDoubt) else ToolStatus.FAILED
            return slot.end(status, limited_error(error), clock.now())

    def _note(self, control: AgentStop | CallSuspended) -> None:
        if isinstance(control, CallSuspended):
            self.suspended = control
        else:
            control.sign(self._slot.call.name)
            self.stop = control

    def bound(self) -> Tool:
        """Return the tool with what it wants to know about this call."""
        slot = self._slot
        context = ToolContext(
            execution_id=self._state.execution_id,
            agent_id=self._state.agent_id,
            idempotency_key=slot.key,
            dependencies=self._settings.scope.dependencies,
            attempt=slot.attempts,
            resumed=slot.begun,
            scope=self._settings.scope,
            events=self._settings.events,
            id=slot.id,
            report=self._report,
        )
        return self._tool.bound(self._state, slot.call, context)

    async def _used(self) -> Any:
        slot, tool = self._slot, self.bound()
        timeout = tool.policy.timeout or self._settings.default_timeout
        work = self._threaded(tool) if isinstance(tool, CanUseThread) else tool.use(**slot.take_arguments())
        return await work if timeout is None else await self._within(timeout, work)

    async def _threaded(self, tool: CanUseThread) -> Any:
        pool = self._settings.scope.own.open(ThreadPool, ThreadPool, ThreadPool.close)
        try:
            return await pool.run(partial(_called, partial(tool.use_in_thread, **self._slot.take_arguments())))
        except ThreadAbandoned as abandoned:
            await self._tell_abandoned()
            raise asyncio.CancelledError from abandoned

    async def _within(self, seconds: float, work: Awaitable[Any]) -> Any:
        """Await the work, but no longer than this; a coroutine that does not let itself be cancelled is left behind."""
        task = asyncio.ensure_future(_awaited(work))
        try:
            await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError:
            await self._cancelled(task)
            raise
        if task.done():
            return task.result()
        await self._cancelled(task)
        raise _TimedOut(f"the tool {self._slot.call.name!r} did not end within {seconds:g} seconds")

    async def _cancelled(self, task: asyncio.Future[Any]) -> None:
        task.cancel()
        await asyncio.wait((task,), timeout=_STUBBORN_SECONDS)
        if not task.done():
            await self._tell_abandoned()
        elif not task.cancelled():
            task.exception()  # retrieved: what a cancelled tool still raises is of no use

    async def _tell_abandoned(self) -> None:
        events = self._settings.events
        if events.due(ToolCallAbandoned):
            head = events.head(self._state, step_number=self._slot.step)
            await events.emit(ToolCallAbandoned(head, self._slot.key, self._slot.call))

    def _report(self, update: object) -> None:
        frozen = freeze(update)
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            self._tell_progress(frozen)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._tell_progress, frozen)

    def _tell_progress(self, update: object) -> None:
        events = self._settings.events
        if self._slot.execution is None and not self._slot.settled and events.due(ToolCallProgressed):
            head = events.head(self._state, step_number=self._slot.step)
            events.emit_soon(ToolCallProgressed(head, self._slot.key, self._slot.call.name, update))


class _TimedOut(Exception):  # internal to this file; becomes an outcome
    """The tool's time is up."""


def _called(call: Callable[[], Any]) -> Any:
    """Call a function in a thread, where nothing that it raises is meant for the program."""
    try:
        return call()
    except (SystemExit, KeyboardInterrupt, GeneratorExit) as error:
        raise Escaping(error) from None


async def _awaited(work: Awaitable[Any]) -> Any:
    """Await a tool in a task of its own."""
    try:
        return await work
    except SystemExit as error:
        raise Escaping(error) from None


def _cancelled_from_outside() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
