"""The records of a run: what an execution records from its start to its end, and what an interrupted one left."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import ClassVar, TypeAlias

from attrs import define, field

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.run_log import ExecutionLog, LifecycleLog
from agentloop.errors import ClaimLost, JournalError
from agentloop.events.operations import current_carrier
from agentloop.loop.inbox import Deliver, Inboxes
from agentloop.values.commands import ExecutionCommand
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import Message
from agentloop.values.records import RecordedCall
from agentloop.values.state import AgentState

RecordingError: TypeAlias = JournalError
"""Raised when something cannot be recorded. The run ends there, since nothing may happen that no record would show. That is so
for a run without records, too: a tool of its loop may run an execution with records."""


class Unrecorded:
    """The records of a run without a journal, which keeps its state only. The docstrings say what a run expects of any records.

    Attributes:
        keeps_interrupted_steps: whether the records keep a step that is interrupted, and the messages that no step has received.
            If they do, the state stays as it was before the step, which is taken again. Otherwise, both are put into the state.
    """

    keeps_interrupted_steps: ClassVar[bool] = False

    @property
    def is_in_step(self) -> bool:
        """Whether inferences or calls of an incomplete step are recorded; what happens now happens after them."""
        return False

    @property
    def has_messages(self) -> bool:
        """Whether messages are recorded that have no answer yet."""
        return False

    @property
    def earlier_context(self) -> Mapping[str, str]:
        """What was current when an earlier run recorded the start of the execution, as texts by name."""
        return EMPTY_OBJECT

    def watch_task(self) -> None:
        """Begin to watch: the current task drives the execution until it is left.

        Raises:
            ClaimLost: another process may drive the execution now.
        """

    def leave_task(self, error: BaseException) -> BaseException:
        """Watch the task no more, after an error has left the run; return the error with which the run ends."""
        return error

    async def open(self, state: AgentState, events: CanHandleEvents, inboxes: Inboxes) -> AgentState:  # noqa: ARG002  # `Recording` uses it
        """Record the start of the execution and open its inbox, whose messages are recorded from then on.

        Args:
            state: the state with which the execution starts or resumes.
            events: the bus of the execution.
            inboxes: the inboxes of the loop.

        Returns:
            The state with which the execution continues; see `LifecycleLog.start`.

        Raises:
            JournalError: the start cannot be recorded, or another writer drives the execution.
        """
        inboxes.open(state.execution_id)
        return state

    def taken_messages(self) -> Sequence[Message]:
        """Return the messages that an interrupted step had received, in order."""
        return ()

    def record_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Record the messages that a step receives."""

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that started before an interruption and that no step had settled then, in order."""
        return ()

    async def end_step(self, state: AgentState) -> None:
        """Record the state after a step, and watch the task no more: the task belongs to the caller until the next step.

        Raises:
            ClaimLost: another process may drive the execution now, and some part has swallowed the cancellation that said so.
        """

    async def end(self, state: AgentState) -> None:
        """Record the state with which the execution ends or is suspended, and watch the task no more.

        Raises:
            ClaimLost: as for `end_step`.
            JournalError: the state cannot be written.
        """

    async def flush(self) -> None:
        """Wait until all records of an execution that has started are durable.

        Raises:
            JournalError: they cannot be written.
        """

    async def aclose(self) -> None:
        """Release the execution, so that another writer can drive it. Idempotent."""


@define(eq=False)
class ClaimWatch:
    """Interrupts what an execution waits for when its claim is lost: an inference, or the tools that run.

    It cancels the task of the execution, as `asyncio.timeout` does, and `end` returns the loss in place of that cancellation. A tool
    is cancelled before it does beside another process what that one may do, too; how its call ends is for that process to find out.

    Attributes:
        log: the log of the execution.
    """

    log: LifecycleLog
    _task: asyncio.Task[object] | None = field(default=None, init=False)
    _cancellations: int = field(default=0, init=False)
    _loss: ClaimLost | None = field(default=None, init=False)
    _has_cancelled: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.log.on_claim_lost(self._interrupt)

    def start(self) -> None:
        """Begin to watch: the current task drives the execution until `end`.

        Raises:
            ClaimLost: the claim was lost while nothing drove the execution.
        """
        self._task = asyncio.current_task()
        self._cancellations = 0 if self._task is None else self._task.cancelling()
        if self._loss is not None:
            raise self._loss

    def end(self, error: BaseException | None = None) -> BaseException | None:
        """Watch no more; return the error with which the run ends.

        Args:
            error: the error that has left the run; None if there is none.
        """
        task, self._task = self._task, None
        if not self._has_cancelled or task is None:
            return error
        self._has_cancelled = False
        is_cancelled_by_others = task.uncancel() > self._cancellations
        if isinstance(error, asyncio.CancelledError) and is_cancelled_by_others:
            return error
        return self._loss

    def _interrupt(self, loss: ClaimLost) -> None:
        self._loss = loss
        task = self._task
        # A task that finds the loss itself gets it as an error. It is not cancelled: it waits for nothing, and before Python 3.13,
        # `uncancel` does not take back the cancellation of a task that runs.
        if task is None or task is asyncio.current_task():
            return
        self._has_cancelled = True
        task.cancel(f"the claim is lost: {loss.reason}")


class Recording:
    """The records of an execution with a journal, or of one that is replayed.

    Args:
        log: records the execution.
    """

    keeps_interrupted_steps: ClassVar[bool] = True

    def __init__(self, log: ExecutionLog) -> None:
        self._log = log
        self._watch = ClaimWatch(log)
        self._inbox: tuple[Inboxes, str] | None = None  # with the id of the execution; None before it is open

    @property
    def is_in_step(self) -> bool:
        """Whether inferences or calls of an incomplete step are recorded; what happens now happens after them."""
        return self._log.is_in_step

    @property
    def has_messages(self) -> bool:
        """Whether messages are recorded that have no answer yet."""
        return bool(self._log.taken_messages() or self._log.waiting_messages())

    @property
    def earlier_context(self) -> Mapping[str, str]:
        """What was current when an earlier run recorded the start of the execution, as texts by name."""
        return self._log.earlier_context

    def watch_task(self) -> None:
        """Begin to watch over the claim of the execution.

        Raises:
            ClaimLost: the claim was lost while nothing drove the execution.
        """
        self._watch.start()

    def leave_task(self, error: BaseException) -> BaseException:
        """Watch no more; return the loss of the claim in place of the cancellation that said so."""
        return self._watch.end(error) or error

    async def open(self, state: AgentState, events: CanHandleEvents, inboxes: Inboxes) -> AgentState:
        """Record the start of the execution, with what is current, and each message from then on."""
        log, execution_id, event_loop = self._log, state.execution_id, asyncio.get_running_loop()

        def record(message: Message) -> None:
            # A message that a step has received was recorded with the step.
            if self._inbox is not None and inboxes.mark_recorded(execution_id, message):
                log.record_sent(message)

        log.note_context(current_carrier(events))
        state = await log.start(state)
        # Messages arrive from any thread; the log belongs to this one.
        inboxes.open(execution_id, lambda message: event_loop.call_soon_threadsafe(record, message))
        self._inbox = inboxes, execution_id
        inboxes.restore(execution_id, log.waiting_messages())
        if (source := inboxes.sources.get(execution_id)) is not None:
            await source(_delivery(log, execution_id, inboxes))
        return state

    def taken_messages(self) -> Sequence[Message]:
        """Return the messages that the interrupted step had received, which are recorded before the interruption."""
        return self._log.taken_messages()

    def record_taken(self, messages: Sequence[Message], step_number: int) -> None:
        """Record the messages that a step receives, if there are any."""
        if messages:
            self._log.record_taken(messages, step_number)

    def unsettled_calls(self) -> Sequence[RecordedCall]:
        """Return the calls that started before an interruption, in order."""
        return self._log.unsettled_calls()

    async def end_step(self, state: AgentState) -> None:
        """Record the state after a step, and end the watch."""
        await self._log.record_step(state)
        self._check_claim()

    async def end(self, state: AgentState) -> None:
        """Record the final state, and end the watch."""
        if self._inbox is not None and not state.status.is_terminal:
            inboxes, execution_id = self._inbox
            for message in inboxes.mark_all_recorded(execution_id):
                self._log.record_sent(message)
        self._close_inbox()  # a message behind the last record of a suspension would be one of no run
        await self._log.end(state)
        self._check_claim()

    async def flush(self) -> None:
        """Wait until all records are durable, if the start is recorded."""
        if self._log.has_started:
            await self._log.flush()

    async def aclose(self) -> None:
        """Release the execution; its inbox records no messages any more."""
        self._close_inbox()
        await self._log.aclose()

    def _close_inbox(self) -> None:
        """Let messages wait in the inbox, or in their commands, for the next run."""
        if self._inbox is not None:
            inboxes, execution_id = self._inbox
            self._inbox = None
            inboxes.stop_recording(execution_id)

    def _check_claim(self) -> None:
        if (loss := self._watch.end()) is not None:
            raise loss


Records: TypeAlias = Recording | Unrecorded
"""The records of a run, with or without a journal."""


def recording_of(log: ExecutionLog | None) -> Records:
    """Return the records of a run.

    Args:
        log: records the execution; None without a journal.
    """
    return Unrecorded() if log is None else Recording(log)


def _delivery(log: ExecutionLog, execution_id: str, inboxes: Inboxes) -> Deliver:
    """Return a function that delivers the messages of commands to a run; it belongs to the event loop of the run."""
    delivered = set(log.delivered_commands())

    async def deliver(command: ExecutionCommand) -> bool:
        if command.id not in delivered and command.message is not None:
            if not inboxes.put_recorded(execution_id, command.message):
                return False
            delivered.add(command.id)
            # The message and the id of its command are one record: after a crash, both are there or neither is.
            log.record_sent(command.message, command)
        await log.flush()  # another call may have delivered the message, and not have flushed it yet
        return True

    return deliver
