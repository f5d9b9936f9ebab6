"""Cancellation of an execution from outside, which ends with a state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from agentloop._shielding import CUT_OFF_SECONDS, has_result
from agentloop.contracts.can_intercept import CanStopAtOnce
from agentloop.interception.interceptor import Interceptor
from agentloop.values.inference import InferenceResponse
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.points import (
    AfterToolUse,
    AroundInference,
    AroundToolUse,
    BeforeStep,
    BeforeToolUse,
    ProceedInference,
    ProceedToolUse,
    StatePoint,
)
from agentloop.values.stop import AgentStop, StopReason, StopSignal
from agentloop.values.tool_calls import ToolExecution, ToolStatus

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)


class CancellationToken(Interceptor, CanStopAtOnce):
    """Stops every execution that it is an interceptor of; each of them ends with its state.

        token = CancellationToken()
        run = asyncio.create_task(loop.with_interceptors(token).execute("…"))
        token.cancel("the user closed the window")
        state = await run       # status stopped, reason user_requested

    Running calls, the running inference and slow async interceptors are cancelled, and no further call starts.

    Args:
        priority: the position among other interceptors.
    """

    allows_eager_start = True  # a call whose answer is cancelled is cancelled with it
    writes: Collection[str] | None = ("state.execution.continuation", "verdict", "outcome")

    def __init__(self, *, priority: int = 3000) -> None:
        self.priority = priority
        self.reason: str | None = None
        self._context: JsonObject = EMPTY_OBJECT
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.reason is not None

    def cancel(self, reason: str = "cancelled", *, principal: str = "") -> None:
        """Stop the executions. Thread-safe and idempotent: the first reason counts.

        Args:
            reason: why, for the stop signal.
            principal: who requests it, in the context of the stop signal; empty when that is unknown.
        """
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            self._context = freeze_object({"principal": principal} if principal else {})
            waiting = dict(self._waiting)
        # Futures are not thread-safe: each is resolved on its own event loop.
        for future, loop in waiting.items():
            with suppress(RuntimeError):  # an event loop that was closed: nothing in it waits any more
                loop.call_soon_threadsafe(_wake, future)

    def current_stop(self) -> StopSignal | None:
        """Return the signal with which executions stop; None before `cancel`."""
        return (
            None
            if self.reason is None
            else StopSignal(StopReason.USER_REQUESTED, self.reason, self.name, self._context)
        )

    def notify_at_stop(self, notify: Callable[[], None]) -> Callable[[], None]:
        """Call a function in the running event loop when `cancel` is called."""
        cancelled = self._watch()
        cancelled.add_done_callback(lambda done: None if done.cancelled() else notify())
        return partial(self._forget, cancelled)

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop before the step."""
        return self._stop(point)

    async def around_inference(self, _point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Cancel the inference."""
        response = await self._race(proceed)
        if response is None:
            raise AgentStop(self.reason or "", reason=StopReason.USER_REQUESTED, context=self._context)
        return response

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block the call."""
        if self.reason is None:
            return point
        # Blocked as well as stopped: the signal takes effect after the step, and the call must not start.
        return self._stop(point).block(f"cancelled before it ran: {self.reason}")

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cancel the call."""
        execution = await self._race(proceed, keeps_result=True)
        if execution is None:
            return point.fail(f"cancelled: {self.reason}", type="Cancelled", status=ToolStatus.CANCELLED)
        return execution

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Stop after the call."""
        return self._stop(point)

    def _stop(self, point: S) -> S:
        # Every point after the cancellation would add another signal otherwise.
        if self.reason is None or _is_stopped_by_user(point):
            return point
        return point.stop(self.reason, reason=StopReason.USER_REQUESTED, context=self._context)

    async def _race(self, proceed: Callable[[], Awaitable[T]], *, keeps_result: bool = False) -> T | None:
        """Await `proceed()`; return None if the token is cancelled first.

        Args:
            proceed: the operation.
            keeps_result: whether what it returns nevertheless, when the task of the execution is cancelled, is returned.
        """
        cancelled = self._watch()
        if cancelled.done():
            return None
        task = asyncio.ensure_future(proceed())
        try:
            await asyncio.wait((task, cancelled), return_when=asyncio.FIRST_COMPLETED)
            if task.done() or not cancelled.done():
                return await task
            task.cancel()
            await asyncio.wait((task,), timeout=CUT_OFF_SECONDS)
            # The operation may have ended at the same moment, or have refused to be cancelled: its result counts.
            return task.result() if has_result(task) else None
        except asyncio.CancelledError:
            # The execution's own task is cancelled: the operation must not outlive it.
            task.cancel()
            await asyncio.wait((task,), timeout=CUT_OFF_SECONDS)
            if keeps_result and has_result(task):
                return task.result()
            raise
        finally:
            self._forget(cancelled)

    def _watch(self) -> asyncio.Future[None]:
        """Return a future of the running event loop that is done when the executions are stopped."""
        loop = asyncio.get_running_loop()
        cancelled = loop.create_future()
        # Registered under the lock of `cancel`, so that a concurrent cancellation is never missed.
        with self._lock:
            if self.reason is None:
                self._waiting[cancelled] = loop
                return cancelled
        cancelled.set_result(None)
        return cancelled

    def _forget(self, cancelled: asyncio.Future[None]) -> None:
        with self._lock:
            self._waiting.pop(cancelled, None)
        cancelled.cancel()

    def __repr__(self) -> str:
        return f"CancellationToken(cancelled={self.reason!r})" if self.cancelled else "CancellationToken()"


def _is_stopped_by_user(point: StatePoint) -> bool:
    execution = point.state.execution
    if execution is None:
        return True  # there is no execution to stop
    return any(signal.reason is StopReason.USER_REQUESTED for signal in execution.continuation.signals)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
