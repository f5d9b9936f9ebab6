"""One execution from its start to its end: the loop itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from math import inf
from typing import Any, Concatenate, ParamSpec

from attrs import define, field

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.inferring_driver import name_of
from agentloop.errors import ForeignCancellation, InferenceNotRecorded
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
from agentloop.events.operations import (
    QUEUE_SECONDS,
    EnteredOperation,
    end_execution,
    enter_operation,
)
from agentloop.loop.binding import BoundParts
from agentloop.loop.ending import Ending, EventLoopWatch
from agentloop.loop.in_charge import LoopInCharge, read_answer
from agentloop.loop.inbox import Inboxes
from agentloop.loop.parts import LoopParts
from agentloop.loop.progress import StepProgress
from agentloop.loop.recording import RecordingError, Records
from agentloop.loop.settlement import (
    emit_closed_calls,
    rescue_state,
    unsettled_calls,
    validate_driver_result,
    with_error,
    with_interrupted_calls,
)
from agentloop.values.batches import ready_calls
from agentloop.values.decisions import PendingCall
from agentloop.values.event import Event, EventHead, OperationKind
from agentloop.values.interruptions import ExecutionInterrupted, cause_of
from agentloop.values.json import freeze_object
from agentloop.values.messages import Message
from agentloop.values.points import AfterExecution, AfterStep, BeforeExecution, BeforeStep, OnError, OnStop, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.stop import NO_SIGNALS, AgentStop, Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo

P = ParamSpec("P")


@define(eq=False)
class Run:
    """One running execution, driven by one task.

    `states` is the loop: it opens the execution, takes steps until a stop signal is in effect, and ends the execution. All
    that happens is applied to `state` at once, so that the execution has a complete state whichever way it ends.

    Attributes:
        state: the current state.
        parts: the bound parts of the loop that the conversation is with.
        in_charge: binds the parts of the loop that the conversation is with.
        events: the bus of the execution.
        scope: what the execution runs with besides its state.
        inboxes: the inboxes of the loop.
        resumed: whether the execution started before this run.
        at_start: whether the interceptors of `before_execution` still have to run.
        recording: the records of the execution.
        step_number: the number of the current or last step, from 1; 0 before the first.
        progress: how far the current step has come.
        is_open: whether the execution was opened.
        is_interrupted: whether the task of the run is cancelled, or the run cannot be recorded any more.
        watch: watches over the event loop; None if the bounds do not ask for that.
    """

    state: AgentState = field(kw_only=True)
    parts: BoundParts = field(kw_only=True)
    in_charge: LoopInCharge = field(kw_only=True)
    events: CanHandleEvents = field(kw_only=True)
    scope: ExecutionScope = field(kw_only=True)
    inboxes: Inboxes = field(kw_only=True)
    resumed: bool = field(kw_only=True)
    at_start: bool = field(kw_only=True)
    recording: Records = field(kw_only=True)
    step_number: int = field(default=0, init=False)
    progress: StepProgress = field(factory=StepProgress, init=False)
    is_open: bool = field(default=False, init=False)
    is_interrupted: bool = field(default=False, init=False)
    watch: EventLoopWatch | None = field(default=None, init=False)

    _entered: EnteredOperation | None = field(default=None, init=False)  # None whenever the caller has the control
    _earlier: Continuation = field(default=NO_SIGNALS, init=False)  # what the step had asked for when it was suspended

    @classmethod
    def of(
        cls,
        loop: LoopParts,
        state: AgentState,
        scope: ExecutionScope,
        events: CanHandleEvents,
        inboxes: Inboxes,
        *,
        resumed: bool,
        at_start: bool,
        recording: Records,
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
            recording: the records of the execution.
        """
        in_charge = LoopInCharge(loop, events.for_execution(), scope)
        state, parts = in_charge.bind_current(state)
        return cls(
            state=state,
            parts=parts,
            in_charge=in_charge,
            events=in_charge.events,
            scope=scope,
            inboxes=inboxes,
            resumed=resumed,
            at_start=at_start,
            recording=recording,
        )

    async def states(self) -> AsyncGenerator[AgentState, None]:
        """Run the execution; yield the state after each step, and the final state.

        Raises:
            RecordingError: something cannot be recorded; the `state` of the error is the last one.
            asyncio.CancelledError: the task was cancelled; `interrupted_state` returns the last state.
        """
        ending = Ending(self)
        self._begin_turn()
        try:
            try:
                self.recording.watch_task()
                await self._open()
                continues = not self._must_stop
                while continues and await self._prepare_step():
                    await self._take_step()
                    if self.progress.has_step and self.parts.has_handoffs:
                        await self._hand_over()
                    await self.recording.end_step(self.state)
                    self._leave()  # what is current here must not be current where the state is used
                    yield self.state
                    self._begin_turn()  # the next step can be requested by another task
                    self.recording.watch_task()
                    continues = self._continues()
                await ending.end()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # every run ends with a state
                await ending.end_by_error(self.recording.leave_task(error))
            finally:
                try:
                    await ending.close()
                finally:
                    self._leave()
                    end_execution(self.events, self.state, self.step_number)
        except asyncio.CancelledError as cancelled:
            raise cancelled from ExecutionInterrupted(self.state)
        except RecordingError as error:
            error.state = self.state
            raise
        self.state = read_answer(self.in_charge.root, self.state)
        yield self.state

    def _begin_turn(self) -> None:
        """Let the execution be current in this task, and watch over the task."""
        self.scope.ledger.watch_task()
        self._entered = enter_operation(self.events, OperationKind.EXECUTION, self.state, self.step_number)
        self._entered.__enter__()

    def _leave(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:  # a run that is closed between two steps was left before
            entered.__exit__(None, None, None)

    # --- the stages of an execution -----------------------------------------------------------------------------

    async def _open(self) -> None:
        self.step_number = self.state.step_count
        state = await self.recording.open(self.state, self.events, self.inboxes)
        if state is not self.state:  # the interrupted step is repeated, from its records
            self.state, self.parts = self.in_charge.bind_current(state)
            self.step_number, self.at_start = state.step_count, state.step_count == 0
        self.is_open = True
        if self.state.open_turn is not None:  # what the step asked for takes effect when its calls are settled
            self._earlier = self.continuation
            self.state = self.state.with_continuation_cleared()
        await self.emit_start()
        if self.scope.bounds.blocked_seconds != inf:
            from agentloop.loop.stopwatch import watch_run  # loaded by the executions that are watched

            self.watch = watch_run(self)
        if self.recording.has_messages:
            # Messages from before an interruption get an answer, even if the execution was about to stop.
            self.state = self.state.with_continuation_requested()
        self.parts = await self.in_charge.hold_groups(self.parts)
        if self.at_start:
            await self.pass_point(BeforeExecution)

    async def _prepare_step(self) -> bool:
        """Receive messages and run the interceptors of `before_step`; return whether the step is to be taken."""
        if taken := self.recording.taken_messages():
            await self._add_messages(taken, self.state.step_count + 1)
        # New messages are not inserted into a step that was suspended or interrupted: they follow its tool calls.
        if self.inboxes.waiting and self.state.open_turn is None and not self.recording.is_in_step:
            await self.receive(self.inboxes.take(self.state.execution_id), self.state.step_count + 1)
        while True:
            await self._let_others_run()
            self.scope.ledger.check_cancelled()
            self.state = self.state.with_continuation_cleared()
            self.progress = StepProgress()
            step_count = self.state.step_count
            await self.pass_point(BeforeStep)
            # A failure at this point adds a step of its own. If on_error recovers from it, the point is passed again.
            stops = self._must_stop
            if stops or self.state.step_count == step_count:
                return not stops

    async def _let_others_run(self) -> None:
        """Return to the event loop, unless the last step waited for its calls.

        Steps that never wait for anything must not keep the event loop from its other tasks.
        """
        if not self.scope.ledger.has_waited:
            await asyncio.sleep(0)
        self.scope.ledger.has_waited = False

    async def _take_step(self) -> None:
        before = self.state
        if before.open_turn is not None and not len(ready_calls(before.open_turn)):
            self.add_earlier()
            self._suspend(before.pending)  # after an interruption, only calls without a decision are left
            return
        await self.start_step()
        self.progress.in_take_step = True
        with enter_operation(self.events, OperationKind.STEP, self.state, self.step_number):
            await self._drive(before)
            if self.progress.has_step:
                self.add_earlier()
                await self.pass_point(AfterStep)
                await self.complete_step()
            else:  # the driver stopped before there was a step
                await self.emit_signals()
        self.progress.in_take_step = False

    async def _drive(self, before: AgentState) -> None:
        """Let the driver take the step."""
        driver, ledger = self.parts.driver, self.scope.ledger
        ledger.clear()
        try:
            self.state = validate_driver_result(before, await driver.use_tools(before), driver, ledger)
            self.progress.has_step = True
            self._add_extra_usage()
            ledger.check_cancelled()  # the driver may have swallowed the cancellation
        except asyncio.CancelledError as cancelled:
            if not self.progress.has_step:
                self._restore_state(cancelled, before)
            if is_task_cancelled():
                raise
            await self._fail(ForeignCancellation(f"the driver {type(driver).__name__}", cancelled))
        except Exception as error:  # noqa: BLE001  # any error of a driver ends the execution with a state
            await self._handle_driver_error(error, before)
        else:
            try:
                self.parts.check_output(self.state, self.continuation)
            except Exception as error:  # noqa: BLE001  # the refused answer stays in the state, with what it cost
                await self._fail(error)

    async def _hand_over(self) -> None:
        """Switch to the parts of another loop if a call of the last step handed the conversation over."""
        try:
            handoff = self.in_charge.bind_next(self.state, self.parts)
        except Exception as error:  # noqa: BLE001  # a handoff without a target is an error of the execution
            await self._fail(error)
            return
        if handoff is None:
            return
        self.state, parts, execution = handoff
        self.parts = await self.in_charge.hold_groups(parts)
        await self.emit(ConversationHandedOver, execution)
        if not self._must_stop:
            await self.pass_point(BeforeExecution, self.parts.interceptor.joined_at(BeforeExecution))

    def _continues(self) -> bool:
        """Return whether another step follows; a waiting message requests one."""
        if not self._must_stop:
            return True
        if self.continuation.hard_signal is not None or self.inboxes.close_if_empty(self.state.execution_id):
            return False
        self.state = self.state.with_continuation_requested()
        return True

    # --- the parts of a step ------------------------------------------------------------------------------------

    async def start_step(self) -> None:
        """Start a step, or go on with the one that was suspended, and report it."""
        continues_step = self.state.open_turn is not None
        self.step_number = self.state.step_count + (0 if continues_step else 1)
        progress = self.progress
        progress.in_step, progress.has_step, progress.is_evaluated = True, False, False
        await self.emit(AgentStepStarted)

    async def complete_step(self) -> None:
        """Evaluate whether the execution stops after the step in the state, and report the step as completed."""
        step = self.state.last_step
        assert step is not None  # noqa: S101  # callers added it
        if self.is_interrupted:
            # An interrupted step suspends nothing. Without a message it holds tokens only, and the model has still to answer.
            if step.message is None:
                self.state = self.state.with_continuation_requested()
        elif step.open_turn is not None and step.pending:
            self._suspend(step.pending)
        elif self.inboxes.waiting and self.state.execution_id in self.inboxes.waiting:
            self.state = self.state.with_continuation_requested()
        stops = self.continuation.should_stop(has_tool_executions=bool(step.executions))
        if stops and not self.continuation.signals:
            self.add_signal(StopReason.COMPLETED, "the model has answered")
        # Each event is noted before it is emitted: if a listener fails or is cancelled, this method may be called again.
        await self.emit_signals()
        progress = self.progress
        if not progress.is_evaluated:
            progress.is_evaluated = True
            await self.emit(ContinuationEvaluated, not stops, self.continuation)
        if progress.in_step:
            progress.in_step = False
            await self.emit(AgentStepCompleted, step)

    def _suspend(self, pending: Sequence[PendingCall]) -> None:
        calls = ", ".join(call.call.name for call in pending)
        self.add_signal(StopReason.SUSPENDED, f"calls wait for a decision: {calls}")

    async def close_calls(self, reason: str) -> None:
        """Settle the calls that nothing will run any more.

        These are the pending calls of a suspended turn, which are cancelled, and the calls that started before an
        interruption and that no step contains.
        """
        calls = unsettled_calls(self.recording.unsettled_calls(), self.state)
        if not calls and self.state.open_turn is None:
            return
        if not self.progress.in_step:
            await self.start_step()
        before = self.state
        self.state = with_interrupted_calls(before, calls, reason, self.scope)
        await emit_closed_calls(calls, self.events, before, self.state, self.step_number)
        await self.complete_step()

    async def receive(self, messages: Sequence[Message], step_number: int) -> None:
        """Add messages from the inbox to the conversation, as messages that this step received."""
        self.recording.record_taken(messages, step_number)
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
                self.state, self.progress.has_step = before, False
                await self.close_calls("the response that made this call is not available any more")
                if self.state.step_count > before.step_count and self.parts.has_handoffs:  # the step may hand over
                    await self._hand_over()
            case RecordingError() as failure:
                raise failure from failure.__cause__  # without the error that carried it, whose state is restored
            case Exception() as failure:
                await self._fail(failure)

    def _restore_state(self, error: BaseException, before: AgentState) -> None:
        """Continue from the state that an error of the driver carries, or else from what the ledger holds of the step."""
        self.state = rescue_state(error, before, self.scope.ledger, self.scope)
        self.progress.has_step = (
            self.state.step_count > before.step_count or self.state.last_step is not before.last_step
        )
        self._add_extra_usage()

    def _add_extra_usage(self) -> None:
        """Add the tokens of inferences that interceptors made in the step."""
        ledger = self.scope.ledger
        if ledger.extra_usage is not NO_USAGE:
            self.state = self.state.with_usage(ledger.extra_usage)
            ledger.extra_usage = NO_USAGE

    async def pass_point(self, kind: type[StatePoint], layers: tuple[CanIntercept, ...] | None = None) -> None:
        """Pass the state through the interceptors of a point, or through some of them."""
        if kind.point_name not in self.parts.interceptor.points:
            return
        passage = await self.parts.interceptor.pass_layers(kind(self.state), layers)
        self.state = passage.point.state
        if isinstance(passage.error, AgentStop):
            self.state = self.state.with_stop_signal(passage.error.signal)
        elif passage.error is not None:
            await self._fail(passage.error, is_ending=kind in {OnStop, AfterExecution})
            if kind is BeforeStep and not self._must_stop:
                await self._pass_rest(passage.rest)
        await self.emit_signals()

    async def _pass_rest(self, layers: tuple[CanIntercept, ...]) -> None:
        """Let the inner layers stop the execution after an outer one failed at `before_step` and `on_error` recovered from that.

        The limits among the layers hold for failed steps, too (law 5). Errors of the layers are handled when the point is passed again.
        """
        self.state = self.state.with_continuation_cleared()
        while layers and not self._must_stop:
            passage = await self.parts.interceptor.pass_layers(BeforeStep(self.state), layers)
            self.state, layers = passage.point.state, passage.rest
            if isinstance(passage.error, AgentStop):
                self.state = self.state.with_stop_signal(passage.error.signal)

    async def _fail(self, error: Exception, *, is_ending: bool = False) -> None:
        """Record an error, in the current step or in a step of its own, and stop unless an interceptor recovers.

        Args:
            error: the error.
            is_ending: whether no step follows in any case. An error that an interceptor recovers from is then not recorded: a
                further step would hide the answer of the last one, or cancel its pending calls.
        """
        raised, recovered = error, False
        if self.parts.interceptor.handles(OnError):
            try:
                passage = await self.parts.interceptor.pass_layers(OnError(self.state, error))
                self.state = passage.point.state
                point = passage.take()
                error, recovered = point.error, point.recovered
            except AgentStop as stop:
                self.state = self.state.with_stop_signal(stop.signal)
            except Exception as failure:  # noqa: BLE001  # the handler's error replaces the one that it handled
                error = failure
        if recovered and is_ending:
            return
        if not self.progress.in_step:
            await self.close_calls("the execution has failed")
            await self.start_step()
        self.state = with_error(self.state, raised, error, self.scope, has_step=self.progress.has_step)
        self.progress.has_step = True
        if recovered:
            self.state = self.state.with_continuation_requested()
        else:
            self.add_signal(StopReason.ERROR, ErrorInfo.of(error).message)
        if not self.progress.in_take_step:
            await self.complete_step()

    # --- stop signals and events --------------------------------------------------------------------------------

    @property
    def continuation(self) -> Continuation:
        """The stop signals and the continuation request of the current step."""
        return self.state.execution.continuation if self.state.execution is not None else NO_SIGNALS

    @property
    def _must_stop(self) -> bool:
        """Whether a stop signal is in effect; that a response without calls stops is decided in `complete_step`."""
        continuation = self.continuation
        return bool(continuation.signals) and continuation.should_stop(has_tool_executions=True)

    def add_signal(self, reason: StopReason, message: str) -> None:
        """Add a stop signal whose source is the driver."""
        self.state = self.state.with_stop_signal(StopSignal(reason, message, type(self.parts.driver).__name__))

    def add_earlier(self) -> None:
        """Add the stop signals and the continuation request that the step had when it was suspended."""
        earlier, self._earlier = self._earlier, NO_SIGNALS
        for signal in earlier.signals:
            self.state = self.state.with_stop_signal(signal)
        if earlier.requested:
            self.state = self.state.with_continuation_requested()

    async def emit_signals(self) -> None:
        """Report the stop signals of the step that were not reported yet."""
        signals = self.continuation.signals
        for signal in signals[self.progress.emitted_signals :]:
            self.progress.emitted_signals += 1
            await self.emit(StopSignalReceived, signal)

    async def emit_start(self) -> None:
        """Report the start of the execution."""
        newest = self.state.messages[-1] if self.state.messages else None
        inference = getattr(self.parts.driver, "inference", None)
        model = name_of(inference) if isinstance(inference, CanInfer) else ""
        earlier = freeze_object(self.recording.earlier_context)
        # Only the outermost execution waits in the queue.
        waited = QUEUE_SECONDS.get() if self.state.parent_agent_id is None else None
        await self.emit(AgentExecutionStarted, newest, self.resumed, model, earlier, waited)

    def emit(
        self, kind: Callable[Concatenate[EventHead, P], Event], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Any]:
        """Emit an event of the current step."""
        return emit_at_step(self.events, kind, self.state, self.step_number, *args, **kwargs)
