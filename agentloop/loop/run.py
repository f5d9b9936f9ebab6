"""One execution from its start to its end: the loop itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec

from attrs import define, field

from agentloop._shielding import run_shielded
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import ExecutionLog
from agentloop.errors import InferenceNotRecorded, JournalError
from agentloop.events.bus import emit_at_step
from agentloop.events.execution import (
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    ConversationHandedOver,
    MessageReceived,
    StopSignalReceived,
)
from agentloop.loop.binding import BoundParts
from agentloop.loop.handoff import Handoffs
from agentloop.loop.inbox import Inboxes
from agentloop.loop.parts import LoopParts
from agentloop.loop.settlement import (
    emit_end,
    emit_interrupted_calls,
    executions_of_error,
    state_of_error,
    status_of,
    unsettled_calls,
    validate_driver_result,
    with_error,
    with_interrupted_calls,
    with_typed_output,
)
from agentloop.values.batches import close_open_turn
from agentloop.values.event import Event, EventHead
from agentloop.values.interruptions import ExecutionInterrupted, cause_of
from agentloop.values.messages import Message
from agentloop.values.points import AfterExecution, AfterStep, BeforeExecution, BeforeStep, OnError, OnStop, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.stop import NO_SIGNALS, AgentStop, Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolExecution

P = ParamSpec("P")

_GRACE_SECONDS = 5.0
"""How long a cancelled execution may take to close its calls and to record its end."""


@define(eq=False)
class Run:
    """One running execution, driven by one task.

    `states` is the loop: it opens the execution, takes steps until a stop signal is in effect, and ends the execution. All
    that happens is applied to `state` at once, so that the execution has a complete state whichever way it ends.

    Attributes:
        state: the current state.
        parts: the bound parts of the loop that the conversation is with.
        handoffs: binds the parts of another loop after a handoff.
        events: the bus of the execution.
        scope: what the execution runs with besides its state.
        inboxes: the inboxes of the loop.
        resumed: whether the execution started before this run.
        at_start: whether the interceptors of `before_execution` still have to run.
        log: records the execution; None without a journal.
        step_number: the number of the current or last step, from 1; 0 before the first.
    """

    state: AgentState = field(kw_only=True)
    parts: BoundParts = field(kw_only=True)
    handoffs: Handoffs = field(kw_only=True)
    events: CanHandleEvents = field(kw_only=True)
    scope: ExecutionScope = field(kw_only=True)
    inboxes: Inboxes = field(kw_only=True)
    resumed: bool = field(kw_only=True)
    at_start: bool = field(kw_only=True)
    log: ExecutionLog | None = field(kw_only=True)
    step_number: int = field(default=0, init=False)

    _is_open: bool = field(default=False, init=False)
    _is_ended: bool = field(default=False, init=False)
    _in_step: bool = field(default=False, init=False)  # a step was started and not completed
    _has_step: bool = field(default=False, init=False)  # the state contains the current step
    _in_take_step: bool = field(default=False, init=False)  # `_take_step` completes the step, also after an error
    _emitted_signals: int = field(default=0, init=False)  # how many of the step's stop signals were emitted

    @classmethod
    def of(
        cls,
        loop: LoopParts,
        state: AgentState,
        scope: ExecutionScope,
        *,
        events: CanHandleEvents,
        inboxes: Inboxes,
        resumed: bool,
        at_start: bool,
        log: ExecutionLog | None,
    ) -> Run:
        """Return a run of the state's execution, with the parts of the loop that the conversation is with.

        Args:
            loop: the loop that is executed.
            state: the state with which the execution starts or resumes.
            scope: what the execution runs with besides its state.
            events: the bus of the loop.
            inboxes: the inboxes of the loop.
            resumed: whether the execution started before this run.
            at_start: whether the interceptors of `before_execution` still have to run.
            log: records the execution; None without a journal.
        """
        handoffs = Handoffs(loop, events.for_execution(), scope)
        state, parts = handoffs.bind_current(state)
        return cls(
            state=state,
            parts=parts,
            handoffs=handoffs,
            events=handoffs.events,
            scope=scope,
            inboxes=inboxes,
            resumed=resumed,
            at_start=at_start,
            log=log,
        )

    async def states(self) -> AsyncGenerator[AgentState, None]:
        """Run the execution; yield the state after each step, and the final state.

        Raises:
            JournalError: the journal failed; `interrupted_state` returns the last state.
            asyncio.CancelledError: the task was cancelled; `interrupted_state` returns the last state.
        """
        try:
            await self._open()
            continues = not self._must_stop
            while continues and await self._prepare_step():
                await self._take_step()
                await self._hand_over()
                if self.log is not None:
                    await self.log.record_step(self.state)
                yield self.state
                continues = self._continues()
            await self._end()
        except asyncio.CancelledError as cancelled:
            await run_shielded(self._end_cancelled(), _GRACE_SECONDS)
            raise cancelled from ExecutionInterrupted(self.state)
        except JournalError as error:  # nothing is done that cannot be recorded, so the execution just ends here
            error.state = self.state
            raise
        finally:
            await self._close()
        if self.parts.read_output is not None:
            self.state = with_typed_output(self.state, self.parts.read_output)
        yield self.state

    # --- the stages of an execution -----------------------------------------------------------------------------

    async def _open(self) -> None:
        self.step_number = self.state.step_count
        await open_execution(self.log, self.state, self.inboxes)
        self._is_open = True
        await self._emit_start()
        if self.log is not None and (self.log.taken_messages() or self.log.waiting_messages()):
            # Messages from before an interruption get an answer, even if the execution was about to stop.
            self.state = self.state.with_continuation_requested()
        self.parts = await self.parts.hold_groups(self.scope)
        if self.at_start:
            await self._pass(BeforeExecution)

    async def _prepare_step(self) -> bool:
        """Receive messages and run the interceptors of `before_step`; return whether the step is to be taken."""
        if self.log is not None and (taken := self.log.taken_messages()):
            await self._add_messages(taken, self.state.step_count + 1)  # recorded before an interruption
        # New messages are not inserted into a step that was suspended or interrupted: they follow its tool calls.
        continues_step = self.state.open_turn is not None or (self.log is not None and self.log.is_in_step)
        if self.inboxes.waiting and not continues_step:
            await self._receive(self.inboxes.take(self.state.execution_id), self.state.step_count + 1)
        while True:
            self.state = self.state.with_continuation_cleared()
            self._emitted_signals = 0
            step_count = self.state.step_count
            await self._pass(BeforeStep)
            # A failure at this point adds a step of its own. If on_error recovers from it, the point is passed again.
            if self._must_stop or self.state.step_count == step_count:
                return not self._must_stop

    async def _take_step(self) -> None:
        before = self.state
        await self._start_step()
        self._in_take_step = True
        try:
            self.state = validate_driver_result(before, await self.parts.driver.use_tools(before), self.parts.driver)
            self._has_step = True
            self.parts.check_output(self.state, self._continuation)
        except asyncio.CancelledError as cancelled:
            self._restore_state(cancelled, before)
            raise
        except Exception as error:  # noqa: BLE001  # any error of a driver ends the execution with a state
            await self._handle_driver_error(error, before)
        if self._has_step:
            await self._pass(AfterStep)
            await self._complete_step()
        else:  # the driver stopped before there was a step
            await self._emit_signals()
        self._in_take_step = False

    async def _hand_over(self) -> None:
        """Switch to the parts of another loop if a call of the step handed the conversation over."""
        if not self._has_step:
            return
        try:
            handoff = self.handoffs.bind_next(self.state, self.parts)
        except Exception as error:  # noqa: BLE001  # a handoff without a target is an error of the execution
            await self._fail(error)
            return
        if handoff is None:
            return
        self.state, parts, execution = handoff
        self.parts = await parts.hold_groups(self.scope)
        await self._emit(ConversationHandedOver, execution)

    def _continues(self) -> bool:
        """Return whether another step follows; a waiting message requests one."""
        if not self._must_stop:
            return True
        if self._continuation.hard_signal is not None or self.inboxes.close_if_empty(self.state.execution_id):
            return False
        self.state = self.state.with_continuation_requested()
        return True

    async def _end(self) -> None:
        await self._pass(OnStop)
        if status_of(self.state.stop_signal).is_terminal:
            await self._close_calls("the execution has ended")
            await self._receive(self.inboxes.close(self.state.execution_id), self.step_number)
            await self._pass(AfterExecution)
        await self._finish()

    async def _end_cancelled(self) -> None:
        """End an execution whose task is being cancelled; no interceptor runs any more."""
        if self._is_ended:
            return
        if not self._is_open:
            await self._emit_start()
        reason = "the execution was cancelled"
        self.state = self.state.with_stop_signal(StopSignal(StopReason.USER_REQUESTED, reason, "asyncio"))
        await self._close_calls(reason)
        if self._in_step and self._has_step:
            await self._complete_step()
        if self.log is None or self.log.has_started:
            await self._receive(self.inboxes.close(self.state.execution_id), self.step_number)
        await self._emit_signals()
        await self._finish()

    async def _finish(self) -> None:
        """Set the final status, record it and report it."""
        self._is_ended = True
        self.state = self.state.with_status(status_of(self.state.stop_signal), self.scope.clock.now())
        if self.log is not None:
            await self.log.end(self.state)
        await emit_end(self.events, self.state)

    async def _close(self) -> None:
        """Release what the execution holds open."""
        try:
            await self.events.drain()
            await self.scope.local_resources.aclose()
        finally:
            if self.log is not None:
                if self._is_open:
                    self.inboxes.stop_recording(self.state.execution_id)
                await self.log.aclose()

    # --- the parts of a step ------------------------------------------------------------------------------------

    async def _start_step(self) -> None:
        continues_step = self.state.open_turn is not None
        self.step_number = self.state.step_count + (0 if continues_step else 1)
        self._in_step, self._has_step = True, False
        await self._emit(AgentStepStarted)

    async def _complete_step(self) -> None:
        """Evaluate whether the execution stops after the step in the state, and report the step as completed."""
        step = self.state.last_step
        assert step is not None  # noqa: S101  # callers added it
        if step.pending:
            calls = ", ".join(call.call.name for call in step.pending)
            self._add_signal(StopReason.SUSPENDED, f"calls wait for a decision: {calls}")
        elif self.state.execution_id in self.inboxes.waiting:
            self.state = self.state.with_continuation_requested()
        stops = self._continuation.should_stop(has_tool_executions=bool(step.executions))
        if stops and not self._continuation.signals:
            self._add_signal(StopReason.COMPLETED, "the model has answered")
        await self._emit_signals()
        await self._emit(ContinuationEvaluated, not stops, self._continuation)
        await self._emit(AgentStepCompleted, step)
        self._in_step = False

    async def _close_calls(self, reason: str) -> None:
        """Settle the calls that nothing will run any more.

        These are the pending calls of a suspended turn, which are cancelled, and the calls that started before an
        interruption and that no step contains.
        """
        calls = unsettled_calls(self.log.unsettled_calls(), self.state) if self.log is not None else ()
        if calls:
            if not self._in_step:
                await self._start_step()
            await emit_interrupted_calls(calls, self.events, self.state, self.step_number)
            self.state = with_interrupted_calls(self.state, calls, reason, self.scope)
            await self._complete_step()
        self.state = close_open_turn(self.state, reason, self.scope.clock.now(), self.scope.ids)

    async def _receive(self, messages: Sequence[Message], step_number: int) -> None:
        """Add messages from the inbox to the conversation, as messages that this step received."""
        if messages and self.log is not None:
            self.log.record_taken(messages, step_number)
        await self._add_messages(messages, step_number)

    async def _add_messages(self, messages: Sequence[Message], step_number: int) -> None:
        for message in messages:
            self.state = self.state.with_message(message)
        for message in messages:
            await emit_at_step(self.events, MessageReceived, self.state, step_number, message)

    # --- errors -------------------------------------------------------------------------------------------------

    async def _handle_driver_error(self, error: Exception, before: AgentState) -> None:
        self._restore_state(error, before)
        match cause_of(error):
            case AgentStop() as stop:
                self.state = self.state.with_stop_signal(stop.signal)
            case InferenceNotRecorded():  # after an interruption, the response that made these calls is not recorded
                self.state, self._has_step = before, False
                await self._close_calls("the response that made this call is not available any more")
            case JournalError() as failure:
                raise failure from failure.__cause__  # without its carrier, whose state is restored
            case Exception() as failure:
                await self._fail(failure, executions_of_error(error))

    def _restore_state(self, error: BaseException, before: AgentState) -> None:
        """Continue from the state that an error of the driver carries, or else from the state before the step."""
        self.state = state_of_error(error, before)
        self._has_step = self.state.step_count > before.step_count or self.state.last_step is not before.last_step

    async def _pass(self, kind: type[StatePoint]) -> None:
        """Pass the state through the interceptors of a point."""
        if not self.parts.interceptor.handles(kind):
            return
        passage = await self.parts.interceptor.pass_layers(kind(self.state))
        self.state = passage.point.state
        if isinstance(passage.error, AgentStop):
            self.state = self.state.with_stop_signal(passage.error.signal)
        elif passage.error is not None:
            await self._fail(passage.error)
        await self._emit_signals()

    async def _fail(self, error: Exception, executions: Sequence[ToolExecution] = ()) -> None:
        """Record an error, in the current step or in a step of its own, and stop unless an interceptor recovers.

        Args:
            error: the error.
            executions: the calls that were settled before the error and that the current step does not contain.
        """
        raised, recovered = error, False
        if self.parts.interceptor.handles(OnError):
            try:
                point = await self.parts.interceptor.handle(OnError(self.state, error))
                self.state, error, recovered = point.state, point.error, point.recovered
            except AgentStop as stop:
                self.state = self.state.with_stop_signal(stop.signal)
            except Exception as failure:  # noqa: BLE001  # the handler's error replaces the one that it handled
                error = failure
        if not self._in_step:
            await self._close_calls("the execution has failed")
            await self._start_step()
        self.state = with_error(self.state, raised, error, self.scope, has_step=self._has_step, executions=executions)
        self._has_step = True
        if recovered:
            self.state = self.state.with_continuation_requested()
        else:
            self._add_signal(StopReason.ERROR, ErrorInfo.of(error).message)
        if not self._in_take_step:
            await self._complete_step()

    # --- stop signals and events --------------------------------------------------------------------------------

    @property
    def _continuation(self) -> Continuation:
        return self.state.execution.continuation if self.state.execution is not None else NO_SIGNALS

    @property
    def _must_stop(self) -> bool:
        """Whether a stop signal is in effect; that a response without calls stops is decided in `_complete_step`."""
        return self._continuation.should_stop(has_tool_executions=True)

    def _add_signal(self, reason: StopReason, message: str) -> None:
        """Add a stop signal whose source is the driver."""
        self.state = self.state.with_stop_signal(StopSignal(reason, message, type(self.parts.driver).__name__))

    async def _emit_signals(self) -> None:
        """Report the stop signals of the step that were not reported yet."""
        signals = self._continuation.signals
        for signal in signals[self._emitted_signals :]:
            self._emitted_signals += 1
            await self._emit(StopSignalReceived, signal)

    async def _emit_start(self) -> None:
        newest = self.state.messages[-1] if self.state.messages else None
        await self._emit(AgentExecutionStarted, newest, self.resumed)

    def _emit(
        self, kind: Callable[Concatenate[EventHead, P], Event], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Any]:
        """Emit an event of the current step."""
        return emit_at_step(self.events, kind, self.state, self.step_number, *args, **kwargs)


async def open_execution(log: ExecutionLog | None, state: AgentState, inboxes: Inboxes) -> None:
    """Open the inbox of an execution; with a log, record the start of the execution and each message from then on.

    Raises:
        JournalError: the start cannot be recorded, or another writer drives the execution.
    """
    if log is None:
        inboxes.open(state.execution_id)
        return
    execution_id, event_loop = state.execution_id, asyncio.get_running_loop()

    def restore() -> None:
        inboxes.open(execution_id)
        inboxes.restore(execution_id, log.waiting_messages())

    def record(message: Message) -> None:
        if inboxes.mark_recorded(execution_id, message):  # else a step received it, which was recorded with the step
            log.record_sent(message)

    try:
        await log.start(state)
    except asyncio.CancelledError:
        if log.has_started:  # the cancelled execution receives the waiting messages when it ends
            restore()
        raise
    restore()
    # Messages arrive from any thread; the log belongs to this one.
    inboxes.open(execution_id, lambda message: event_loop.call_soon_threadsafe(record, message))
