"""The end of a run: every execution ends with a state and with one event, whatever has ended it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec, Protocol

from agentloop._shielding import is_task_cancelled, run_shielded
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ClaimLost, ForeignCancellation
from agentloop.events.execution import ExecutionClaimLost
from agentloop.loop.inbox import Inboxes
from agentloop.loop.progress import StepProgress
from agentloop.loop.recording import RecordingError, Records
from agentloop.loop.settlement import emit_end, status_of, with_error
from agentloop.values.event import Event, EventHead
from agentloop.values.messages import Message
from agentloop.values.points import AfterExecution, OnStop, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.stop import Continuation, StopReason
from agentloop.values.tool_calls import ErrorInfo

P = ParamSpec("P")

_LOGGER = logging.getLogger("agentloop.loop")

_LISTENER_FAILED = "a listener failed while its execution ended"
_GRACE_SECONDS = 5.0
"""How long a cancelled execution may take to close its calls and to record its end."""

# A run ends in one of four ways. It stops, and its interceptors see that. Its task is cancelled: the execution stays in progress. It
# cannot be recorded any more: it ends as it is, and stays in progress, too. Or an error has left it that is not one of its parts, such
# as the error of a listener: the execution fails, and no interceptor runs any more.
#
# Any of these can happen at each `await` of another one. So each thing that is done is noted before it is reported, in the progress
# of the step and here, and the next way goes on from there.


class EventLoopWatch(Protocol):
    """What is closed before the end of a run is reported, so that its last event comes before the end."""

    def close(self) -> None:
        """Close it. May be called again."""


class Endable(Protocol):
    """A run, as its end sees it.

    Attributes:
        state: the current state.
        events: the bus of the execution.
        scope: what the execution runs with besides its state.
        inboxes: the inboxes of the loop.
        recording: the records of the execution.
        step_number: the number of the current or last step.
        progress: how far the current step has come.
        is_open: whether the execution was opened.
        is_interrupted: whether the execution stays in progress, so that a step that is completed now stops nothing.
        watch: watches over the event loop; None if nothing does.
    """

    state: AgentState
    events: CanHandleEvents
    scope: ExecutionScope
    inboxes: Inboxes
    recording: Records
    step_number: int
    progress: StepProgress
    is_open: bool
    is_interrupted: bool
    watch: EventLoopWatch | None

    @property
    def continuation(self) -> Continuation:
        """The stop signals and the continuation request of the current step."""

    async def pass_point(self, kind: type[StatePoint]) -> None:
        """Pass the state through the interceptors of a point."""

    async def start_step(self) -> None:
        """Start a step, and report it."""

    async def complete_step(self) -> None:
        """Complete the step in the state, and report it; called again, it goes on behind what was reported."""

    async def close_calls(self, reason: str) -> None:
        """Settle the calls that nothing will run any more."""

    async def receive(self, messages: Sequence[Message], step_number: int) -> None:
        """Add messages from the inbox to the conversation."""

    def add_signal(self, reason: StopReason, message: str) -> None:
        """Add a stop signal."""

    def add_earlier(self) -> None:
        """Add what the step had asked for when it was suspended."""

    async def emit_start(self) -> None:
        """Report the start of the execution."""

    async def emit_signals(self) -> None:
        """Report the stop signals that were not reported yet."""

    def emit(
        self, kind: Callable[Concatenate[EventHead, P], Event], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Any]:
        """Emit an event of the current step."""


class Ending:
    """Ends a run.

    Args:
        run: the run.
    """

    def __init__(self, run: Endable) -> None:
        self._run = run
        self._ended: AgentState | None = None  # the final state, while it is recorded and reported
        self._is_reported = False

    async def end(self) -> None:
        """End a run that has stopped.

        Raises:
            Exception: an error of a listener or of the records; `end_by_error` ends the run then.
            asyncio.CancelledError: if cancelled; `end_by_error` ends the run then, too.
        """
        run = self._run
        await run.pass_point(OnStop)
        if status_of(run.state.stop_signal).is_terminal:
            await run.close_calls("the execution has ended")
            await run.receive(run.inboxes.close(run.state.execution_id), run.step_number)
            await run.pass_point(AfterExecution)
        await self._finish()

    async def end_by_error(self, error: BaseException) -> None:
        """End a run that an error has left.

        Raises:
            BaseException: this error, if the execution stays in progress or has not begun.
        """
        run = self._run
        if isinstance(error, asyncio.CancelledError):
            if is_task_cancelled():
                with _logged("an interrupted execution could not be completed"):
                    await run_shielded(self._interrupt(), _GRACE_SECONDS)
                raise error
            error = ForeignCancellation("the loop", error)
        if isinstance(error, RecordingError):  # nothing is done that cannot be recorded, so the run just ends here
            self._ended = None
            if run.is_open:
                if isinstance(error, ClaimLost):
                    with _logged("a listener failed"):
                        await run.emit(ExecutionClaimLost, error.reason, error.token)
                with suppress(RecordingError), _logged("an interrupted execution could not be completed"):
                    await self._interrupt()
            raise error
        if not run.is_open:  # nothing has started that could fail
            raise error
        if isinstance(error, Exception):
            try:
                await self._fail(error)
            except RecordingError as failure:  # the failure cannot be recorded
                await self.end_by_error(failure)

    async def close(self) -> None:
        """Release what the execution holds open; what fails then is logged, since the execution has its result.

        Raises:
            RecordingError: the records cannot be released.
            asyncio.CancelledError: if cancelled; everything is released.
        """
        run = self._run
        try:
            with _logged("a listener failed"):
                await run.events.drain()
        finally:
            try:
                with _logged("what an execution held open could not be closed"):
                    await run.scope.local_resources.aclose()
            finally:
                await run.recording.aclose()

    async def _fail(self, error: Exception) -> None:
        """End an execution as failed because of an error outside of its parts, such as one of a listener of a strict bus.

        No interceptor runs any more. Further errors of listeners are logged, and prevent none of the events that follow.
        """
        run = self._run
        with _logged(_LISTENER_FAILED):
            if run.progress.in_step and run.progress.is_evaluated:
                await run.complete_step()  # it is decided whether the step stops, so the error gets a step of its own
        with _logged(_LISTENER_FAILED):
            if self._ended is None and not run.progress.in_step:
                await run.close_calls("the execution has failed")
        if self._ended is None:
            with _logged(_LISTENER_FAILED):
                if not run.progress.in_step:
                    await run.start_step()
            run.state = with_error(run.state, error, error, run.scope, has_step=run.progress.has_step)
            run.progress.has_step = True
            run.add_signal(StopReason.ERROR, ErrorInfo.of(error).message)
            # Each attempt emits at least one more event of the step.
            for _ in range(len(run.continuation.signals) + 2):
                with _logged(_LISTENER_FAILED):
                    await run.complete_step()
        with _logged(_LISTENER_FAILED):
            await self._finish()
        with _logged(_LISTENER_FAILED):
            await self._report_end()  # if `_finish` has not come to it

    async def _interrupt(self) -> None:
        """Leave the execution in progress; no interceptor runs any more."""
        run, keeps = self._run, self._run.recording.keeps_interrupted_steps
        run.is_interrupted = True
        try:
            if not run.is_open:
                await run.emit_start()
            if self._ended is None:
                run.add_earlier()
                if not keeps:
                    if run.progress.in_step and run.progress.has_step:
                        await run.complete_step()
                    if run.state.open_turn is None:
                        await run.receive(run.inboxes.take(run.state.execution_id), run.step_number)
            await run.recording.flush()
            if self._ended is None:
                await run.emit_signals()
            else:  # its end is recorded now
                run.state = self._ended
        finally:
            await self._report_end()

    async def _finish(self) -> None:
        """Set the final status, record it and report it."""
        run = self._run
        if self._ended is None:
            self._ended = run.state.with_status(status_of(run.state.stop_signal), run.scope.clock.now())
            await run.recording.end(self._ended)
            run.state = self._ended
        await self._report_end()

    async def _report_end(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            if self._run.watch is not None:
                self._run.watch.close()
            await emit_end(self._run.events, self._run.state)


@contextmanager
def _logged(problem: str) -> Iterator[None]:
    """Log an error that must not change how an execution ends; an error of the records passes."""
    try:
        yield
    except RecordingError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_task_cancelled():
            raise
        _LOGGER.exception(problem)
