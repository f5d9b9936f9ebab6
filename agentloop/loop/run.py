"""One execution from its start to its end: the loop itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Concatenate, ParamSpec

from attrs import define, field

from agentloop._shielding import is_task_cancelled, run_shielded
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_infer import CanInfer
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.run_log import ExecutionLog
from agentloop.drivers.inferring_driver import name_of
from agentloop.errors import ClaimLost, ForeignCancellation, InferenceNotRecorded, JournalError
from agentloop.events.bus import emit_at_step
from agentloop.events.execution import (
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
    ConversationHandedOver,
    ExecutionClaimLost,
    MessageReceived,
    StopSignalReceived,
)
from agentloop.events.operations import (
    QUEUE_SECONDS,
    EnteredOperation,
    current_carrier,
    end_execution,
    enter_operation,
)
from agentloop.loop.binding import BoundParts
from agentloop.loop.claim_watch import ClaimWatch
from agentloop.loop.in_charge import LoopInCharge, read_answer
from agentloop.loop.inbox import Deliver, Inboxes
from agentloop.loop.parts import LoopParts
from agentloop.loop.settlement import (
    emit_closed_calls,
    emit_end,
    rescue_state,
    status_of,
    unsettled_calls,
    validate_driver_result,
    with_error,
    with_interrupted_calls,
)
from agentloop.values.batches import ready_calls
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import PendingCall
from agentloop.values.event import Event, EventHead, OperationKind
from agentloop.values.interruptions import ExecutionInterrupted, cause_of
from agentloop.values.json import EMPTY_OBJECT, freeze_object
from agentloop.values.messages import Message
from agentloop.values.points import AfterExecution, AfterStep, BeforeExecution, BeforeStep, OnError, OnStop, StatePoint
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE
from agentloop.values.stop import NO_SIGNALS, AgentStop, Continuation, StopReason, StopSignal
from agentloop.values.tool_calls import ErrorInfo

P = ParamSpec("P")

_LOG = logging.getLogger("agentloop.loop")

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
        in_charge: binds the parts of the loop that the conversation is with.
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
    in_charge: LoopInCharge = field(kw_only=True)
    events: CanHandleEvents = field(kw_only=True)
    scope: ExecutionScope = field(kw_only=True)
    inboxes: Inboxes = field(kw_only=True)
    resumed: bool = field(kw_only=True)
    at_start: bool = field(kw_only=True)
    log: ExecutionLog | None = field(kw_only=True)
    step_number: int = field(default=0, init=False)

    _watch: ClaimWatch | None = field(init=False)  # None without a log
    _entered: EnteredOperation | None = field(default=None, init=False)  # while the run is in the hands of its task
    _is_open: bool = field(default=False, init=False)
    _is_interrupted: bool = field(default=False, init=False)
    _is_reported: bool = field(default=False, init=False)  # the last event was emitted
    _ended: AgentState | None = field(default=None, init=False)  # the final state, while it is recorded and reported
    _in_step: bool = field(default=False, init=False)  # a step was started and not completed
    _has_step: bool = field(default=False, init=False)  # the state contains the current step
    _is_evaluated: bool = field(default=False, init=False)  # `ContinuationEvaluated` was emitted for the step
    _in_take_step: bool = field(default=False, init=False)  # `_take_step` completes the step, also after an error
    _emitted_signals: int = field(default=0, init=False)  # how many of the step's stop signals were emitted
    _earlier: Continuation = field(default=NO_SIGNALS, init=False)  # that of the step before it was suspended

    def __attrs_post_init__(self) -> None:
        self._watch = None if self.log is None else ClaimWatch(self.log)

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
            log=log,
        )

    async def states(self) -> AsyncGenerator[AgentState, None]:
        """Run the execution; yield the state after each step, and the final state.

        Raises:
            ClaimLost: another process may drive the execution now; its `state` is the last one.
            JournalError: the journal failed; `interrupted_state` returns the last state.
            asyncio.CancelledError: the task was cancelled; `interrupted_state` returns the last state.
        """
        self.scope.ledger.watch_task()
        self._enter()
        try:
            try:
                if self._watch is not None:
                    self._watch.start()
                await self._open()
                continues = not self._must_stop
                while continues and await self._prepare_step():
                    await self._take_step()
                    if self._has_step and self.parts.has_handoffs:
                        await self._hand_over()
                    if self.log is not None:
                        await self.log.record_step(self.state)
                    self._leave_task()
                    self._leave()  # what is current here must not be current where the state is used
                    yield self.state
                    self._enter()
                    self.scope.ledger.watch_task()  # the next step can be requested by another task
                    if self._watch is not None:
                        self._watch.start()
                    continues = self._continues()
                await self._end()
            except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  # every run ends with a state
                await self._end_by_error(error if self._watch is None else self._watch.end(error) or error)
            finally:
                await self._close()
        except asyncio.CancelledError as cancelled:
            raise cancelled from ExecutionInterrupted(self.state)
        except JournalError as error:
            error.state = self.state
            raise
        self.state = read_answer(self.in_charge.root, self.state)
        yield self.state

    def _enter(self) -> None:
        self._entered = enter_operation(self.events, OperationKind.EXECUTION, self.state, self.step_number)
        self._entered.__enter__()

    def _leave(self) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:  # a run that is closed between two steps was left before
            entered.__exit__(None, None, None)

    def _leave_task(self) -> None:
        """End the watch over the task: what it does next is not the execution's.

        Raises:
            ClaimLost: the claim is lost, and some part has swallowed the cancellation that said so.
        """
        loss = None if self._watch is None else self._watch.end()
        if loss is not None:
            raise loss

    # --- the stages of an execution -----------------------------------------------------------------------------

    async def _open(self) -> None:
        self.step_number = self.state.step_count
        if self.log is not None:
            self.log.note_context(current_carrier(self.events))
        state = await open_execution(self.log, self.state, self.inboxes)
        if state is not self.state:  # the interrupted step is repeated, from its records
            self.state, self.parts = self.in_charge.bind_current(state)
            self.step_number, self.at_start = state.step_count, state.step_count == 0
        self._is_open = True
        if self.state.open_turn is not None:  # it takes effect when the calls of the step are settled
            self._earlier = self._continuation
            self.state = self.state.with_continuation_cleared()
        await self._emit_start()
        if self.log is not None and (self.log.taken_messages() or self.log.waiting_messages()):
            # Messages from before an interruption get an answer, even if the execution was about to stop.
            self.state = self.state.with_continuation_requested()
        self.parts = await self.in_charge.hold_groups(self.parts)
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
            await self._let_others_run()
            self.scope.ledger.check_cancelled()
            self.state = self.state.with_continuation_cleared()
            self._emitted_signals = 0
            step_count = self.state.step_count
            await self._pass(BeforeStep)
            # A failure at this point adds a step of its own. If on_error recovers from it, the point is passed again.
            if self._must_stop or self.state.step_count == step_count:
                return not self._must_stop

    async def _let_others_run(self) -> None:
        """Return to the event loop, unless the last step waited for its calls.

        Steps that never wait for anything must not keep it from its other tasks.
        """
        if not self.scope.ledger.has_waited:
            await asyncio.sleep(0)
        self.scope.ledger.has_waited = False

    async def _take_step(self) -> None:
        before = self.state
        if before.open_turn is not None and not len(ready_calls(before.open_turn)):
            self._add_earlier()
            self._suspend(before.pending)  # after an interruption, only calls without a decision are left
            return
        await self._start_step()
        self._in_take_step = True
        with enter_operation(self.events, OperationKind.STEP, self.state, self.step_number):
            await self._drive(before)
            if self._has_step:
                self._add_earlier()
                await self._pass(AfterStep)
                await self._complete_step()
            else:  # the driver stopped before there was a step
                await self._emit_signals()
        self._in_take_step = False

    async def _drive(self, before: AgentState) -> None:
        """Let the driver take the step."""
        driver, ledger = self.parts.driver, self.scope.ledger
        ledger.clear()
        try:
            self.state = validate_driver_result(before, await driver.use_tools(before), driver, ledger)
            self._has_step = True
            self._add_extra_usage()
            ledger.check_cancelled()  # the driver may have swallowed the cancellation
        except asyncio.CancelledError as cancelled:
            if not self._has_step:
                self._restore_state(cancelled, before)
            if is_task_cancelled():
                raise
            await self._fail(ForeignCancellation(f"the driver {type(driver).__name__}", cancelled))
        except Exception as error:  # noqa: BLE001  # any error of a driver ends the execution with a state
            await self._handle_driver_error(error, before)
        else:
            await self._check_output()

    async def _check_output(self) -> None:
        try:
            self.parts.check_output(self.state, self._continuation)
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
        await self._emit(ConversationHandedOver, execution)
        if not self._must_stop:
            await self._pass(BeforeExecution, self.parts.interceptor.joined_at(BeforeExecution))

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

    async def _end_by_error(self, error: BaseException) -> None:
        """End a run that an error has left; raise the error again if the execution stays in progress."""
        if isinstance(error, asyncio.CancelledError):
            if is_task_cancelled():
                with _logged("an interrupted execution could not be completed"):
                    await run_shielded(self._interrupt(), _GRACE_SECONDS)
                raise error
            error = ForeignCancellation("the loop", error)
        if isinstance(error, JournalError):  # nothing is done that cannot be recorded, so the run just ends here
            self._ended = None
            if self._is_open:
                if isinstance(error, ClaimLost):
                    with _logged("a listener failed"):
                        await self._emit(ExecutionClaimLost, error.reason, error.token)
                with suppress(JournalError), _logged("an interrupted execution could not be completed"):
                    await self._interrupt()
            raise error
        if not self._is_open:  # nothing has started that could fail
            raise error
        if isinstance(error, Exception):
            try:
                await self._end_failed(error)
            except JournalError as failure:  # the failure cannot be recorded
                await self._end_by_error(failure)

    async def _end_failed(self, error: Exception) -> None:
        """End an execution as failed because of an error outside of its parts, such as one of a listener of a strict bus.

        No interceptor runs any more. Further errors of listeners are logged, and prevent none of the events that follow.
        """
        with _logged("a listener failed while its execution ended"):
            if self._in_step and self._is_evaluated:  # the step is decided, so the error needs one of its own
                await self._complete_step()
        with _logged("a listener failed while its execution ended"):
            if self._ended is None and not self._in_step:
                await self._close_calls("the execution has failed")
        if self._ended is None:
            with _logged("a listener failed while its execution ended"):
                if not self._in_step:
                    await self._start_step()
            self.state = with_error(self.state, error, error, self.scope, has_step=self._has_step)
            self._has_step = True
            self._add_signal(StopReason.ERROR, ErrorInfo.of(error).message)
            # Each attempt emits at least one more event of the step.
            for _ in range(len(self._continuation.signals) + 2):
                with _logged("a listener failed while its execution ended"):
                    await self._complete_step()
        with _logged("a listener failed while its execution ended"):
            await self._finish()
        with _logged("a listener failed while its execution ended"):
            await self._report_end()  # if `_finish` has not come to it

    async def _interrupt(self) -> None:
        """Leave the execution in progress when its task is cancelled; no interceptor runs any more.

        With a journal, the records stay as after a crash: the interrupted step is not recorded, and messages that no step
        has received stay recorded as waiting. Without one, the state is all there is, so both become part of it.
        """
        self._is_interrupted = True
        try:
            if not self._is_open:
                await self._emit_start()
            if self._ended is None:
                self._add_earlier()  # of a step that was interrupted before they took effect
            if self.log is None and self._ended is None:
                if self._in_step and self._has_step:
                    await self._complete_step()
                if self.state.open_turn is None:
                    await self._receive(self.inboxes.take(self.state.execution_id), self.step_number)
            elif self.log is not None and self.log.has_started:
                await self.log.flush()
            if self._ended is None:
                await self._emit_signals()
            else:  # its end is recorded now
                self.state = self._ended
        finally:
            await self._report_end()

    async def _finish(self) -> None:
        """Set the final status, record it and report it."""
        if self._ended is None:
            self._ended = self.state.with_status(status_of(self.state.stop_signal), self.scope.clock.now())
            if self.log is not None:
                await self.log.end(self._ended)
                self._leave_task()
            self.state = self._ended
        await self._report_end()

    async def _report_end(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            await emit_end(self.events, self.state)

    async def _close(self) -> None:
        """Release what the execution holds open; what fails then is logged, since the execution has its result."""
        try:
            with _logged("a listener failed"):
                await self.events.drain()
        finally:
            try:
                with _logged("what an execution held open could not be closed"):
                    await self.scope.local_resources.aclose()
            finally:
                try:
                    await self._close_log()
                finally:
                    self._leave()
                    end_execution(self.events, self.state, self.step_number)

    async def _close_log(self) -> None:
        """Release the execution."""
        if self.log is not None:
            if self._is_open:
                self.inboxes.stop_recording(self.state.execution_id)
            await self.log.aclose()

    # --- the parts of a step ------------------------------------------------------------------------------------

    async def _start_step(self) -> None:
        continues_step = self.state.open_turn is not None
        self.step_number = self.state.step_count + (0 if continues_step else 1)
        self._in_step, self._has_step, self._is_evaluated = True, False, False
        await self._emit(AgentStepStarted)

    async def _complete_step(self) -> None:
        """Evaluate whether the execution stops after the step in the state, and report the step as completed."""
        step = self.state.last_step
        assert step is not None  # noqa: S101  # callers added it
        if self._is_interrupted:
            # An interrupted step suspends nothing, and without a message it holds tokens only: the model has not answered.
            if step.message is None:
                self.state = self.state.with_continuation_requested()
        elif step.pending:
            self._suspend(step.pending)
        elif self.state.execution_id in self.inboxes.waiting:
            self.state = self.state.with_continuation_requested()
        stops = self._continuation.should_stop(has_tool_executions=bool(step.executions))
        if stops and not self._continuation.signals:
            self._add_signal(StopReason.COMPLETED, "the model has answered")
        # What has been emitted is noted before a listener can be cancelled or fail: this method may be called again then.
        await self._emit_signals()
        if not self._is_evaluated:
            self._is_evaluated = True
            await self._emit(ContinuationEvaluated, not stops, self._continuation)
        if self._in_step:
            self._in_step = False
            await self._emit(AgentStepCompleted, step)

    def _suspend(self, pending: Sequence[PendingCall]) -> None:
        calls = ", ".join(call.call.name for call in pending)
        self._add_signal(StopReason.SUSPENDED, f"calls wait for a decision: {calls}")

    async def _close_calls(self, reason: str) -> None:
        """Settle the calls that nothing will run any more.

        These are the pending calls of a suspended turn, which are cancelled, and the calls that started before an
        interruption and that no step contains.
        """
        calls = unsettled_calls(self.log.unsettled_calls(), self.state) if self.log is not None else ()
        if not calls and self.state.open_turn is None:
            return
        if not self._in_step:
            await self._start_step()
        before = self.state
        self.state = with_interrupted_calls(before, calls, reason, self.scope)
        await emit_closed_calls(calls, self.events, before, self.state, self.step_number)
        await self._complete_step()

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
                if self.state.step_count > before.step_count and self.parts.has_handoffs:  # the step may hand over
                    await self._hand_over()
            case JournalError() as failure:
                raise failure from failure.__cause__  # without its carrier, whose state is restored
            case Exception() as failure:
                await self._fail(failure)

    def _restore_state(self, error: BaseException, before: AgentState) -> None:
        """Continue from the state that an error of the driver carries, or else from what the ledger holds of the step."""
        self.state = rescue_state(error, before, self.scope.ledger, self.scope)
        self._has_step = self.state.step_count > before.step_count or self.state.last_step is not before.last_step
        self._add_extra_usage()

    def _add_extra_usage(self) -> None:
        """Add the tokens of inferences that interceptors made in the step."""
        ledger = self.scope.ledger
        if ledger.extra_usage is not NO_USAGE:
            self.state = self.state.with_usage(ledger.extra_usage)
            ledger.extra_usage = NO_USAGE

    async def _pass(self, kind: type[StatePoint], layers: tuple[CanIntercept, ...] | None = None) -> None:
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
        await self._emit_signals()

    async def _pass_rest(self, layers: tuple[CanIntercept, ...]) -> None:
        """Let the layers inside of one that failed at `before_step`, and was recovered from, stop the execution.

        The limits among them hold for the failed steps, too (law 5). Their errors are handled when the point is passed again.
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
            is_ending: whether no step follows in any case; an error that an interceptor recovers from is then not recorded, since
                a step behind the last one would hide its answer or cancel its pending calls.
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
        if not self._in_step:
            await self._close_calls("the execution has failed")
            await self._start_step()
        self.state = with_error(self.state, raised, error, self.scope, has_step=self._has_step)
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
        continuation = self._continuation
        return bool(continuation.signals) and continuation.should_stop(has_tool_executions=True)

    def _add_signal(self, reason: StopReason, message: str) -> None:
        """Add a stop signal whose source is the driver."""
        self.state = self.state.with_stop_signal(StopSignal(reason, message, type(self.parts.driver).__name__))

    def _add_earlier(self) -> None:
        """Add the stop signals and the continuation request that the step had when it was suspended."""
        earlier, self._earlier = self._earlier, NO_SIGNALS
        for signal in earlier.signals:
            self.state = self.state.with_stop_signal(signal)
        if earlier.requested:
            self.state = self.state.with_continuation_requested()

    async def _emit_signals(self) -> None:
        """Report the stop signals of the step that were not reported yet."""
        signals = self._continuation.signals
        for signal in signals[self._emitted_signals :]:
            self._emitted_signals += 1
            await self._emit(StopSignalReceived, signal)

    async def _emit_start(self) -> None:
        newest = self.state.messages[-1] if self.state.messages else None
        inference = getattr(self.parts.driver, "inference", None)
        model = name_of(inference) if isinstance(inference, CanInfer) else ""
        earlier = EMPTY_OBJECT if self.log is None else freeze_object(self.log.earlier_context)
        # The agents below do not wait in the queue: their caller did.
        waited = QUEUE_SECONDS.get() if self.state.parent_agent_id is None else None
        await self._emit(AgentExecutionStarted, newest, self.resumed, model, earlier, waited)

    def _emit(
        self, kind: Callable[Concatenate[EventHead, P], Event], *args: P.args, **kwargs: P.kwargs
    ) -> Awaitable[Any]:
        """Emit an event of the current step."""
        return emit_at_step(self.events, kind, self.state, self.step_number, *args, **kwargs)


@contextmanager
def _logged(problem: str) -> Iterator[None]:
    """Log an error that must not change how an execution ends; errors of the journal pass."""
    try:
        yield
    except JournalError:
        raise
    except (Exception, asyncio.CancelledError) as error:
        if isinstance(error, asyncio.CancelledError) and is_task_cancelled():
            raise
        _LOG.exception(problem)


async def open_execution(log: ExecutionLog | None, state: AgentState, inboxes: Inboxes) -> AgentState:
    """Open the inbox of an execution; with a log, record the start of the execution and each message from then on.

    Returns:
        The state with which the execution continues; see `LifecycleLog.start`.

    Raises:
        JournalError: the start cannot be recorded, or another writer drives the execution.
    """
    if log is None:
        inboxes.open(state.execution_id)
        return state
    execution_id, event_loop = state.execution_id, asyncio.get_running_loop()

    def record(message: Message) -> None:
        if inboxes.mark_recorded(execution_id, message):  # else a step received it, which was recorded with the step
            log.record_sent(message)

    state = await log.start(state)
    # Messages arrive from any thread; the log belongs to this one.
    inboxes.open(execution_id, lambda message: event_loop.call_soon_threadsafe(record, message))
    inboxes.restore(execution_id, log.waiting_messages())
    if (source := inboxes.sources.get(execution_id)) is not None:
        await source(_delivery(log, execution_id, inboxes))
    return state


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
        await log.flush()  # also of a message that another call has delivered, and that may not be durable yet
        return True

    return deliver
