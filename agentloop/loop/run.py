"""One execution on its way: the loop itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from attrs import define, field

from agentloop._shielding import run_shielded
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import ExecutionLog, MessageLog
from agentloop.errors import InferenceNotRecorded, JournalError
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
    checked,
    settled_calls,
    state_of_error,
    status_of,
    tell_end,
    tell_interrupted,
    unsettled,
    with_error,
    with_interrupted,
    with_typed_output,
)
from agentloop.values.batches import close_open_turn
from agentloop.values.interruptions import ExecutionInterrupted, cause_of
from agentloop.values.messages import Message
from agentloop.values.points import AfterExecution, AfterStep, BeforeExecution, BeforeStep, OnError, OnStop, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.stop import NO_SIGNALS, AgentStop, Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolExecution


async def opened(log: ExecutionLog | None, state: AgentState, inboxes: Inboxes) -> None:
    """Take messages for the execution; where there is a log, write down the beginning, and from then on every message.

    Raises:
        JournalError: when it cannot be written, or somebody else drives the execution.
    """
    if log is None:
        inboxes.open(state.execution_id)
        return
    execution_id, loop = state.execution_id, asyncio.get_running_loop()
    try:
        await log.start(state)
    except asyncio.CancelledError:
        if log.has_started:  # then its end takes what waits
            _open(inboxes, log, execution_id)
        raise
    _open(inboxes, log, execution_id)

    def note(message: Message) -> None:
        if inboxes.note(execution_id, message):  # what a step has taken meanwhile is written down with the step
            log.record_sent(message)

    def note_soon(message: Message) -> None:
        loop.call_soon_threadsafe(note, message)

    inboxes.open(execution_id, note_soon)


def _open(inboxes: Inboxes, log: MessageLog, execution_id: str) -> None:
    inboxes.open(execution_id)
    inboxes.restore(execution_id, log.waiting_messages())


async def tell_begun(events: CanHandleEvents, state: AgentState, step_number: int, *, resumed: bool) -> None:
    """Emit the event that begins a run."""
    if events.due(AgentExecutionStarted):
        newest = state.messages[-1] if state.messages else None
        await events.emit(AgentExecutionStarted(events.head(state, step_number=step_number), newest, resumed))


def with_received(state: AgentState, messages: Sequence[Message]) -> AgentState:
    """Return the state with these messages at the end of its conversation."""
    for message in messages:
        state = state.with_message(message)
    return state


async def tell_received(
    state: AgentState, messages: Sequence[Message], events: CanHandleEvents, step_number: int
) -> None:
    """Emit an event for each of these messages.

    Args:
        state: the state with them.
        messages: the messages, in the order in which they were sent.
        events: where it is told.
        step_number: the step that takes them.
    """
    for message in messages:
        if events.due(MessageReceived):
            await events.emit(MessageReceived(events.head(state, step_number=step_number), message))


@define(eq=False)
class RunSignals:
    """What an execution on its way has come to.

    Attributes:
        state: the state, after everything that has happened so far.
        parts: the parts of the loop that the conversation is with, bound.
        handoffs: gives the parts of another loop when the conversation is handed over.
        step_number: the number of the step that is being taken, or was the last.
        signals_told: how many of the signals have been told.
    """

    state: AgentState = field(kw_only=True)
    parts: BoundParts = field(kw_only=True)
    handoffs: Handoffs = field(kw_only=True)
    events: CanHandleEvents = field(init=False)
    scope: ExecutionScope = field(init=False)
    step_number: int = field(default=0, init=False)
    signals_told: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.events, self.scope = self.handoffs.events, self.handoffs.scope

    def signal(self, reason: StopReason, message: str) -> None:
        """Note a reason to stop, in the driver's name."""
        signal = StopSignal(reason, message, type(self.parts.driver).__name__)
        self.state = self.state.with_stop_signal(signal)

    async def tell_signals(self) -> None:
        """Emit what speaks for stopping, each reason once."""
        signals = self.continuation.signals
        for signal in signals[self.signals_told :]:
            self.signals_told += 1
            if self.events.due(StopSignalReceived):
                head = self.events.head(self.state, step_number=self.step_number)
                await self.events.emit(StopSignalReceived(head, signal))

    @property
    def continuation(self) -> Continuation:
        """What speaks for stopping and for going on."""
        return self.state.execution.continuation if self.state.execution is not None else NO_SIGNALS

    @property
    def must_stop(self) -> bool:
        """Whether anything speaks for stopping that is not overridden; the last step's calls do not matter any more."""
        return self.continuation.should_stop(has_tool_executions=True)

    def close_open_turn(self, reason: str) -> None:
        """Settle the calls that wait, as cancelled."""
        self.state = close_open_turn(self.state, reason, self.scope.clock.now(), self.scope.ids)


_GRACE_SECONDS = 5.0


@define(eq=False)
class Run(RunSignals):
    """One execution on its way. It lives as long as the execution and is seen by one loop only.

    Attributes:
        state: the state, after everything that has happened so far.
        parts: the parts of the loop that the conversation is with, bound.
        step_number: the number of the step that is being taken, or was the last.
        inboxes: messages that wait for this execution and others.
        resumed: whether the execution had begun before.
        at_start: whether the interceptor point `before_execution` is still to come.
        log: what the execution writes down; None without a journal.
    """

    state: AgentState = field(kw_only=True)
    parts: BoundParts = field(kw_only=True)
    step_number: int = field(default=0, init=False)
    inboxes: Inboxes = field(kw_only=True)
    resumed: bool = field(kw_only=True)
    at_start: bool = field(kw_only=True)
    log: ExecutionLog | None = field(default=None, kw_only=True)
    _begun: bool = field(default=False, init=False)
    _in_step: bool = field(default=False, init=False)
    _driving: bool = field(default=False, init=False)
    _ended: bool = field(default=False, init=False)
    _step_taken: bool = field(default=False, init=False)

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
        """Bind the parts of the loop that the conversation is with.

        Args:
            loop: the loop that is executed.
            state: the state with which the execution begins or continues.
            scope: what the execution runs with besides its state.
            events: the bus of the loop.
            inboxes: the inboxes of the loop.
            resumed: whether the execution had begun before.
            at_start: whether the interceptor point `before_execution` is still to come.
            log: records the execution; None without a journal.
        """
        handoffs = Handoffs(loop, events.for_execution(), scope)
        state, parts = handoffs.begun(state)
        return cls(
            state=state, parts=parts, handoffs=handoffs, inboxes=inboxes, resumed=resumed, at_start=at_start, log=log
        )

    async def states(self) -> AsyncGenerator[AgentState, None]:
        """Run: yield the state after each step, and the final one.

        Raises:
            JournalError: when the journal failed; `interrupted_state` returns the last state.
            asyncio.CancelledError: when cancelled; `interrupted_state` returns the last state.
        """
        try:
            await self._begin()
            goes_on = not self.must_stop
            while goes_on and await self._may_step():
                await self._step()
                await self._hand_over()
                if self.log is not None:
                    await self.log.record_step(self.state)
                yield self.state
                goes_on = self._goes_on()
            await self._end()
        except asyncio.CancelledError as cancelled:
            await run_shielded(self._cut_off("the execution was cancelled"), _GRACE_SECONDS)
            raise cancelled from ExecutionInterrupted(self.state)
        except JournalError as error:  # what cannot be written down is not done
            error.state = self.state
            raise
        finally:
            await self._leave()
        if self.parts.read_output is not None:
            self.state = with_typed_output(self.state, self.parts.read_output)
        yield self.state

    # --- the stages ---------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        self.step_number = self.state.step_count
        await opened(self.log, self.state, self.inboxes)
        self._begun = True
        await tell_begun(self.events, self.state, self.step_number, resumed=self.resumed)
        if self.log is not None and (self.log.taken_messages() or self.log.waiting_messages()):
            self.state = self.state.with_continuation_requested()  # a message is not left without an answer
        self.parts = await self.parts.hold_groups(self.scope)
        if self.at_start:
            await self._pass(BeforeExecution)

    async def _leave(self) -> None:
        """Let go of everything that the execution has opened."""
        try:
            await self.events.drain()
            await self.scope.local_resources.aclose()
        finally:
            if self.log is not None:
                if self._begun:
                    self.inboxes.leave(self.state.execution_id)
                await self.log.aclose()

    async def _may_step(self) -> bool:
        """Pass the point before a step, again where that has failed and the error was recovered from: it made a step of its own."""
        if self.log is not None and (taken := self.log.taken_messages()):
            self.state = with_received(self.state, taken)
            await tell_received(self.state, taken, self.events, self.state.step_count + 1)
        in_step = self.state.open_turn is not None or (self.log is not None and self.log.is_in_step)
        if self.inboxes.waiting and not in_step:
            await self._take(self.inboxes.take(self.state.execution_id), self.state.step_count + 1)
        while True:
            self.state = self.state.with_continuation_cleared()
            self.signals_told = 0
            steps = self.state.step_count
            await self._pass(BeforeStep)
            if self.must_stop or self.state.step_count == steps:
                return not self.must_stop

    def _goes_on(self) -> bool:
        """Say whether another step follows; a message that came meanwhile asks for one."""
        if not self.must_stop:
            return True
        if self.continuation.hard_signal is not None or self.inboxes.close_if_empty(self.state.execution_id):
            return False
        self.state = self.state.with_continuation_requested()
        return True

    async def _take(self, messages: list[Message], step_number: int) -> None:
        if messages and self.log is not None:
            self.log.record_taken(messages, step_number)
        self.state = with_received(self.state, messages)
        await tell_received(self.state, messages, self.events, step_number)

    async def _step(self) -> None:
        before = self.state
        await self._start_step()
        self._driving = True
        try:
            self.state = checked(before, await self.parts.driver.use_tools(before), self.parts.driver)
            self._step_taken = True
            self.parts.check_output(self.state, self.continuation)
        except asyncio.CancelledError as cancelled:
            self._rescue(cancelled, before)
            raise
        except Exception as error:  # noqa: BLE001  # whatever goes wrong in a driver ends the execution with its state
            await self._interrupt_step(error, before)
        if self._step_taken:
            await self._pass(AfterStep)
            await self._complete_step()
        else:  # stopped before it came to anything: there is no step to complete
            await self.tell_signals()
        self._driving = False

    async def _interrupt_step(self, error: Exception, before: AgentState) -> None:
        """Continue from the state that an error of the driver carries, as the cause of the error demands."""
        self._rescue(error, before)
        match cause_of(error):
            case AgentStop() as stop:
                self.state = self.state.with_stop_signal(stop.signal)
            case InferenceNotRecorded():
                self.state, self._step_taken = before, False
                await self._close_calls("the answer that it was made in is not at hand")
            case JournalError() as failure:
                raise failure from failure.__cause__  # the carrier has served, and does not leave the loop
            case Exception() as failure:
                await self._fail(failure, settled_calls(error))

    async def _hand_over(self) -> None:
        """Go on with the parts of another loop, if the step has handed the conversation over to it."""
        try:
            taken = self.handoffs.after(self.state, self.parts) if self._step_taken else None
        except Exception as error:  # noqa: BLE001  # a handoff that leads nowhere is an error of the execution
            await self._fail(error)
            return
        if taken is None:
            return
        self.state, parts, execution = taken
        self.parts = await parts.hold_groups(self.scope)
        if self.events.due(ConversationHandedOver):
            head = self.events.head(self.state, step_number=self.step_number)
            await self.events.emit(ConversationHandedOver(head, execution))

    async def _end(self) -> None:
        await self._pass(OnStop)
        if status_of(self.state.stop_signal).is_terminal:
            await self._close_calls("the execution has ended")
            await self._take(self.inboxes.close(self.state.execution_id), self.step_number)
            await self._pass(AfterExecution)
        await self._tell_end()

    async def _cut_off(self, reason: str) -> None:
        """End an execution whose task is being cancelled: no interceptor is asked any more."""
        if self._ended:
            return
        if not self._begun:
            await tell_begun(self.events, self.state, self.step_number, resumed=self.resumed)
        self.state = self.state.with_stop_signal(StopSignal(StopReason.USER_REQUESTED, reason, "asyncio"))
        await self._close_calls(reason)
        if self._in_step and self._step_taken:
            await self._complete_step()
        if self.log is None or self.log.has_started:
            await self._take(self.inboxes.close(self.state.execution_id), self.step_number)
        await self.tell_signals()
        await self._tell_end()

    async def _close_calls(self, reason: str) -> None:
        """Settle the calls that wait, and in a step those that had begun before an interruption and no step has come to since."""
        calls = unsettled(self.log.unsettled_calls(), self.state) if self.log is not None else ()
        if calls:
            if not self._in_step:
                await self._start_step()
            await tell_interrupted(calls, self.events, self.state, self.step_number)
            self.state = with_interrupted(self.state, calls, reason, self.scope)
            await self._complete_step()
        self.close_open_turn(reason)

    async def _tell_end(self) -> None:
        self._ended = True
        self.state = self.state.with_status(status_of(self.state.stop_signal), self.scope.clock.now())
        if self.log is not None:
            await self.log.end(self.state)
        await tell_end(self.events, self.state)

    # --- steps --------------------------------------------------------------------------------------------------

    async def _start_step(self) -> None:
        waits = self.state.open_turn is not None
        self.step_number = self.state.step_count + (0 if waits else 1)
        self._in_step, self._step_taken = True, False
        if self.events.due(AgentStepStarted):
            await self.events.emit(AgentStepStarted(self.events.head(self.state, step_number=self.step_number)))

    async def _complete_step(self) -> None:
        """Decide whether another step follows, and tell that the step is complete."""
        step = self.state.last_step
        assert step is not None  # noqa: S101  # a step was taken
        if step.pending:
            calls = ", ".join(call.call.name for call in step.pending)
            self.signal(StopReason.SUSPENDED, f"calls wait for a decision: {calls}")
        if self.inboxes.waiting and self.state.execution_id in self.inboxes.waiting and not step.pending:
            self.state = self.state.with_continuation_requested()
        stops = self.continuation.should_stop(has_tool_executions=bool(step.executions))
        if stops and not self.continuation.signals:
            self.signal(StopReason.COMPLETED, "the model has answered")
        await self.tell_signals()
        if self.events.due(ContinuationEvaluated):
            head = self.events.head(self.state, step_number=self.step_number)
            await self.events.emit(ContinuationEvaluated(head, not stops, self.continuation))
        if self.events.due(AgentStepCompleted):
            head = self.events.head(self.state, step_number=self.step_number)
            await self.events.emit(AgentStepCompleted(head, step))
        self._in_step = False

    def _rescue(self, error: BaseException, before: AgentState) -> None:
        """Go on from the state that an error carries."""
        self.state = state_of_error(error, before)
        self._step_taken = self.state.step_count > before.step_count or self.state.last_step is not before.last_step

    # --- points and signals -------------------------------------------------------------------------------------

    async def _pass(self, kind: type[StatePoint]) -> None:
        if not self.parts.interceptor.handles(kind):
            return
        passage = await self.parts.interceptor.pass_layers(kind(self.state))
        self.state = passage.point.state
        if isinstance(passage.error, AgentStop):
            self.state = self.state.with_stop_signal(passage.error.signal)
        elif passage.error is not None:
            await self._fail(passage.error)
        await self.tell_signals()

    async def _fail(self, error: Exception, executions: Sequence[ToolExecution] = ()) -> None:
        """Record an error: in the step that it happened in, or in a step of its own; then stop, unless one recovers."""
        raised, recovered = error, False
        if self.parts.interceptor.handles(OnError):
            try:
                point = await self.parts.interceptor.handle(OnError(self.state, error))
                self.state, error, recovered = point.state, point.error, point.recovered
            except AgentStop as stop:
                self.state = self.state.with_stop_signal(stop.signal)
            except Exception as failure:  # noqa: BLE001  # the handler failed: that is the error now, this one its cause
                error = failure
        if not self._in_step:
            await self._close_calls("the execution has failed")
            await self._start_step()
        self.state = with_error(
            self.state, raised, error, self.scope, step_taken=self._step_taken, executions=executions
        )
        self._step_taken = True
        if recovered:
            self.state = self.state.with_continuation_requested()
        else:
            self.signal(StopReason.ERROR, ErrorInfo.of(error).message)
        if not self._driving:
            await self._complete_step()
