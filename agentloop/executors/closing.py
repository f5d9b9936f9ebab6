"""The closing of a batch that was interrupted: every call gets an outcome, whatever its tool and its interceptors do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from agentloop._shielding import run_shielded, wait_through
from agentloop.events.bus import emit_soon
from agentloop.executors.call import EXITS, Call, execution_of
from agentloop.executors.invocation import CallRuntime, report_abandoned, report_late
from agentloop.values.state import AgentState

# An error or a cancellation has left the run of the batch, and some of its calls still run. Nothing may be lost now: a tool that has
# begun may have had its effect, so that the state needs an outcome for each call, and the events need to tell the same story.
#
# What can be waited for is limited. A tool gets the grace time to end after its cancellation. One that ignores it, such as a function
# in a thread, is left behind: its call is settled without it, from then on `is_closed` keeps what it returns away from the outcome,
# and its end is reported when it comes. Then the calls are settled in call order as always, and the layers get the same time again.
# Both run shielded, since a further cancellation would otherwise leave calls open that the execution cannot carry on without.
#
# The shield has a limit of its own. What has not been settled in this time is settled without awaiting anything: neither a layer nor
# a listener can stop this part. Each layer then drops what it has not completed, such as a value that not all interceptors have seen:
# an unredacted value must not get into the state. At last the layers' own tasks are interrupted, and have a second to clean up.
#
# The error that interrupted the batch is the one that is raised. What fails on the way is logged, except for what ends the program.


class Closable(Protocol):
    """A batch, as its closing sees it.

    Attributes:
        state: the agent's state.
        runtime: what the calls of the execution have in common.
        failure: the error that interrupts the batch; None without one.
        is_final: whether the execution ends with the batch; otherwise it may be resumed, as after a crash.
        grace: the time in seconds that layers have to complete an outcome; None for any time.
    """

    state: AgentState
    runtime: CallRuntime
    failure: Exception | None
    is_final: bool
    grace: float | None

    @property
    def calls(self) -> Sequence[Call]:
        """The calls, in call order."""

    def cancel(self, call: Call, reason: str, *, is_final: bool = True) -> None:
        """Settle an open call as cancelled, even if it still runs."""

    async def settle(self, call: Call) -> None:
        """Settle a call, once."""


class Closing:
    """Settles every call of a batch although an error has left it.

    Args:
        batch: the batch.
    """

    def __init__(self, batch: Closable) -> None:
        self._batch = batch
        self._left: list[asyncio.Task[Any]] = []

    async def close(self, error: BaseException, *, is_cancelled: bool) -> None:
        """Settle every call; further errors are logged, and do not take the place of this one.

        Args:
            error: what has interrupted the batch.
            is_cancelled: whether the task of the batch is cancelled.
        """
        batch, reason = self._batch, "the execution was cancelled"
        if not is_cancelled and not isinstance(error, asyncio.CancelledError):
            reason = f"the calls were interrupted by {type(error).__name__}"
        if isinstance(error, Exception):
            batch.is_final = not is_cancelled
            if is_cancelled or batch.failure is not None:
                _LOG.error("a batch of tool calls was interrupted", exc_info=error)
            else:
                batch.failure = error
        for call in batch.calls:
            escaped = None if call.task is None else call.task.escaped
            if escaped is not None and escaped is not error:
                _LOG.error(_UNSETTLED, call.key, exc_info=escaped)
        # Shielded from further cancellations: every call has to be settled before the batch can be carried on.
        grace = batch.runtime.cancel_grace
        try:
            await run_shielded(self._abandon(reason, grace), 2 * grace + _CLOSING_SECONDS)
        finally:
            self._settle_at_once(reason)  # calls that did not end in time get an outcome nevertheless
            await self._interrupt_layers()

    async def _abandon(self, reason: str, grace: float) -> None:
        """Cancel what runs, and settle every open call as cancelled.

        Args:
            reason: why, in words.
            grace: the time in seconds that the tools have to end, and then the layers to complete the outcomes. What takes
                longer is left behind, and reported.
        """
        calls = self._batch.calls
        running = [call.task.task for call in calls if call.task is not None and call.task.is_running]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=grace)
        self._batch.grace = grace
        for call in calls:
            if call.task is not None and call.task.is_running:
                with _logged(call):
                    await self._leave_behind(call, call.task.task, reason)
        self._cancel_open(reason)
        for call in calls:
            with _logged(call):
                await self._batch.settle(call)

    async def _leave_behind(self, call: Call, task: asyncio.Task[None], reason: str) -> None:
        """Settle and report a call whose task ignores its cancellation, and report the end of the task when it comes."""
        self._cancel(call, reason)  # before listeners are awaited: what the tool does meanwhile does not count
        state, events = self._batch.state, self._batch.runtime.events

        def report_end(late: asyncio.Task[None]) -> None:
            error = None if late.cancelled() else late.exception()
            # What the tool raises is made an outcome in the task, and comes out of it only if it ends the program.
            raised = error or (None if call.runner is None else call.so_far().exception)
            report_late(call, state, events, raised)

        task.add_done_callback(report_end)
        await report_abandoned(call, state, events)

    def _settle_at_once(self, reason: str) -> None:
        """Settle what was not settled in time, without waiting for any code of others."""
        batch = self._batch
        self._cancel_open(reason)
        for call in batch.calls:
            if call.is_settled:
                continue
            call.is_settled = call.is_closed = True
            if call.outcome.execution is None:
                continue
            self._left += call.drop()
            execution = execution_of(call)
            batch.runtime.scope.ledger.settle(execution)
            with _logged(call):
                batch.runtime.reports.release(call.key)
            with _logged(call):
                number, exception = call.step_number, call.outcome.exception
                emit_soon(batch.runtime.events, call.event, batch.state, number, execution, exception)

    def _cancel_open(self, reason: str) -> None:
        """Settle every open call as cancelled."""
        for call in self._batch.calls:
            self._cancel(call, reason)

    def _cancel(self, call: Call, reason: str) -> None:
        """Settle a call as cancelled if it is open; what still runs of it does not count."""
        if call.is_open:
            self._batch.cancel(call, reason, is_final=self._batch.is_final)
        call.is_closed = True

    async def _interrupt_layers(self) -> None:
        """Interrupt the layers that did not complete an outcome in time, and let them clean up."""
        unaware = [task for task in self._left if not task.done() and not task.cancelling()]
        for task in unaware:
            task.cancel()
        if unaware:
            await wait_through(asyncio.gather(*unaware, return_exceptions=True), _CANCEL_SECONDS)


_CANCEL_SECONDS = 1.0
_CLOSING_SECONDS = 5.0
"""The time that layers and async listeners have to note and handle the end of cancelled calls."""
_LOG = logging.getLogger("agentloop.tools")
_UNSETTLED = "an error in an interrupted batch of tool calls, at the call %s"


@contextmanager
def _logged(call: Call) -> Iterator[None]:
    """Log an error that must not keep the calls of an interrupted batch from being settled."""
    try:
        yield
    except (asyncio.CancelledError, *EXITS):
        raise
    except BaseException:  # noqa: BLE001  # also a failed assertion of a test; the error that interrupted the batch is raised
        _LOG.exception(_UNSETTLED, call.key)
