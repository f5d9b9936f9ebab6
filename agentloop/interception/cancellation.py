"""Cancelling an execution from outside, so that it ends with a state."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentloop.interception.interceptor import Interceptor
from agentloop.values.inference import InferenceResponse
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
from agentloop.values.stop import AgentStop, StopReason
from agentloop.values.tool_calls import ToolExecution, ToolStatus

T = TypeVar("T")
S = TypeVar("S", bound=StatePoint)


class CancellationToken(Interceptor):
    """A token that stops every execution it is given to, and lets each end with its state.

        token = Cancellation()
        run = asyncio.create_task(loop.with_interceptors(token).execute("…"))
        token.cancel("the user closed the window")
        state = await run       # status stopped, reason user_requested

    Running calls are cancelled, calls not yet begun are not begun, the inference under way is given up.

    Args:
        priority: where it stands among the interceptors.
    """

    def __init__(self, *, priority: int = 3000) -> None:
        self.priority = priority
        self.reason: str | None = None
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[None], asyncio.AbstractEventLoop] = {}

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self.reason is not None

    def cancel(self, reason: str = "cancelled") -> None:
        """Stop what carries this token; from any thread, and any number of times: the first reason counts."""
        with self._lock:
            if self.reason is not None:
                return
            self.reason = reason
            waiting = dict(self._waiting)
        for future, loop in waiting.items():
            loop.call_soon_threadsafe(_wake, future)

    def before_step(self, point: BeforeStep) -> BeforeStep:
        """Stop before the step."""
        return self._stopped(point)

    async def around_inference(self, _point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        """Give the inference up when cancelled."""
        response = await self._race(proceed)
        if response is None:
            raise AgentStop(self.reason or "", reason=StopReason.USER_REQUESTED)
        return response

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Do not begin a call."""
        if self.reason is None:
            return point
        return self._stopped(point).block(f"cancelled before it ran: {self.reason}")

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Cancel the call."""
        execution = await self._race(proceed)
        if execution is None:
            return point.fail(f"cancelled: {self.reason}", type="Cancelled", status=ToolStatus.CANCELLED)
        return execution

    def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        """Stop after the call."""
        return self._stopped(point)

    def _stopped(self, point: S) -> S:
        if self.reason is None or _has_stopped(point):
            return point
        return point.stop(self.reason, reason=StopReason.USER_REQUESTED)

    async def _race(self, proceed: Callable[[], Awaitable[T]]) -> T | None:
        """Await `proceed()`, or return None when the token is cancelled first."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        with self._lock:
            if self.reason is not None:
                return None
            self._waiting[woken] = loop
        work = asyncio.ensure_future(proceed())
        try:
            await asyncio.wait((work, woken), return_when=asyncio.FIRST_COMPLETED)
            if work.done() or not woken.done():
                return await work
            work.cancel()
            await asyncio.wait((work,))
            finished = not work.cancelled() and work.exception() is None
            return work.result() if finished else None
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.wait((work,))
            raise
        finally:
            with self._lock:
                self._waiting.pop(woken, None)
            woken.cancel()

    def __repr__(self) -> str:
        return f"CancellationToken(cancelled={self.reason!r})" if self.cancelled else "CancellationToken()"


def _has_stopped(point: StatePoint) -> bool:
    execution = point.state.execution
    if execution is None:
        return True
    return any(signal.reason is StopReason.USER_REQUESTED for signal in execution.continuation.signals)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
