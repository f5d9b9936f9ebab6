"""The base of drivers: one step, from the compiled messages to the settled calls."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Self

from attrs import define, evolve, field, frozen

from agentloop import events as event_classes
from agentloop.compilers.history import WholeConversation
from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptToolRuntime,
    CanAcceptTools,
)
from agentloop.contracts.can_compile_messages import CanAcceptMessageCompiler, CanCompileMessages, CanMarkEpoch
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls, EagerCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept, CanWatchRequests
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope, StepLedger
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.errors import ContractViolation
from agentloop.events.bus import EventBus, emit, emit_soon
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.values.batches import ToolCalls, ToolExecutions, apply_outcomes, lost_outcome, ready_calls
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.interruptions import BatchInterrupted, StepInterrupted, cause_of
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, SuspendedTurn
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import ErrorInfo, ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class InferenceExchange(ShownByField):
    """A request of a step that was answered.

    Attributes:
        request: the request, as it was sent.
        response: the response after the interceptors.
        is_other: whether the model is another one than the driver's own.
    """

    request: InferenceRequest
    response: InferenceResponse
    is_other: bool


@define(eq=False, repr=False)
class StepDraft(ShownByField):
    """A step while it is taken. It lives as long as one `use_tools` and belongs to one driver.

    Attributes:
        state: the state, with the changes that interceptors have made so far.
        id: the id of the step.
        number: the 1-based number of the step.
        started_at: when the step started.
        parts: the decision of the model, in order; None before it has decided.
        calls: the calls among the parts, with their keys.
        outcome: the outcome of the calls; None before they are settled.
        exchanges: the requests that were answered so far, each with its response.
        errors: the errors so far.
        eager_calls: the calls of the latest answer that start while it is written; None if none may.
        discarded_calls: the calls of the step that ran early and whose outcomes were not used.
        ledger: counts requests and tokens, and keeps the latest response; in a run, that is the ledger of the execution's scope, so
            that nothing of it is lost with the driver.
    """

    state: AgentState
    id: str
    number: int
    started_at: datetime
    parts: tuple[ResponsePart, ...] | None = None
    calls: ToolCalls | None = None
    outcome: ToolExecutions | None = None
    exchanges: list[InferenceExchange] = field(factory=list)
    errors: tuple[ErrorInfo, ...] = ()
    eager_calls: EagerCalls | None = None
    discarded_calls: tuple[ToolCall, ...] = ()
    ledger: StepLedger = field(factory=StepLedger)

    @property
    def usage(self) -> Usage:
        """The tokens of all inferences so far."""
        return self.ledger.usage

    @property
    def inferences(self) -> int:
        """The number of requests that were sent so far, with failed ones."""
        return self.ledger.inferences

    @property
    def other_inferences(self) -> int:
        """How many of these were sent to models other than the driver's own."""
        return self.ledger.other_inferences

    @property
    def response(self) -> InferenceResponse | None:
        """The latest response; None before."""
        return self.ledger.response

    def add_response(self, response: InferenceResponse, usage: Usage | None = None) -> None:
        """Add the tokens of a response, whether or not it can be used, and keep it as the latest one.

        Args:
            response: the response.
            usage: the tokens in place of those that the response reports, such as those of several attempts.
        """
        self.ledger.response = response
        self.ledger.add_usage(response.usage if usage is None else usage)

    def add_requests(self, count: int, *, is_other: bool = False) -> None:
        """Count requests that were sent to a model, whether or not it answers.

        Args:
            count: the number of requests.
            is_other: whether the model is another one than the driver's own.
        """
        self.ledger.inferences += count
        if is_other:
            self.ledger.other_inferences += count

    def replace_eager_calls(self, calls: EagerCalls | None, events: CanHandleEvents) -> None:
        """Start the calls of another answer, or none, and report those of the former answer that were not used."""
        former, self.eager_calls = self.eager_calls, calls
        if former is None:
            return
        former.discard()
        if former.discarded:
            self.discarded_calls += former.discarded
            emit_soon(events, event_classes.EagerCallsDiscarded, self.state, None, former.discarded)

    def complete(self, outcome: ToolExecutions | None, at: datetime) -> AgentState:
        """Return the state after the step, with each call joined to its outcome.

        Args:
            outcome: the outcome of the calls; None if there are no calls, or none was executed.
            at: when the step ended.
        """
        state, message, turn = self.state, None, None
        if self.parts is None or self.calls is None or outcome is None:
            message = Message.of_response(self.parts, (), self.ledger.label) if self.parts is not None else None
        elif outcome.pending:
            state = outcome.state
            turn = SuspendedTurn.of(self.parts, self.calls.keys, outcome.executions, outcome.pending, self.ledger.label)
        else:
            state, message = outcome.state, Message.of_response(self.parts, outcome.executions, self.ledger.label)
        ledger, response = self.ledger, self.ledger.response
        step = AgentStep(
            id=self.id,
            number=self.number,
            message=message,
            open_turn=turn,
            response_id=response.id if response is not None else "",
            model=response.model if response is not None else "",
            finish_reason=response.finish_reason if response is not None else None,
            usage=ledger.usage,
            inferences=ledger.inferences,
            other_inferences=ledger.other_inferences,
            errors=self.errors,
            discarded_calls=self.discarded_calls,
            started_at=self.started_at,
            ended_at=at,
        )
        return state.with_step(step)


@define(eq=False, repr=False)
class EpochAnnouncer(ShownByField):
    """Announces the epochs of a compiler. It lives as long as the bound driver."""

    _latest: Epoch = NO_EPOCH

    async def announce(
        self,
        compiler: CanCompileMessages,
        state: AgentState,
        events: CanHandleEvents,
        watchers: Sequence[CanWatchRequests] = (),
    ) -> None:
        """Emit `ContextEpochBegan` if the epoch of this state is not the one announced last, and tell those who watch requests."""
        if not isinstance(compiler, CanMarkEpoch):
            return
        epoch = compiler.epoch(state)
        if epoch is self._latest or epoch == self._latest:
            return
        self._latest = epoch
        for watcher in watchers:
            watcher.begin_epoch(epoch)
        # A part of a composed compiler does not know how many messages the others leave.
        kept = len(compiler.compile(state))
        await emit(
            events,
            event_classes.ContextEpochBegan,
            state,
            epoch.reason,
            epoch.dropped,
            kept,
            epoch.superseded,
            epoch.cleared,
        )


_NO_INTERCEPTORS = InterceptorStack.of(())


@frozen(eq=False, repr=False, kw_only=True)
class Driver(
    Value, CanUseTools, CanAcceptToolRuntime, CanAcceptMessageCompiler, CanAcceptLifecycle, CanAcceptExecutionScope
):
    """Takes a step in stages, each a method that a subclass may override: `compile`, `decide`, `execute`, `finish`.

    A subclass implements `decide`. Decorate it with `attrs.frozen` if it adds attributes. A loop binds the driver to its parts;
    outside of a loop, the `with_…` methods do. An unbound driver has no tools and its own bus.

    Attributes:
        compiler: selects the messages that the model receives.
        tools: the tools on offer.
        executor: runs their calls.
        interceptor: the interceptors of the execution.
        events: the bus of the execution.
        scope: its clock, ids and resources.
    """

    compiler: CanCompileMessages = field(factory=WholeConversation, repr=False)
    tools: Tools = field(default=NO_TOOLS, repr=False)
    executor: CanExecuteToolCalls = field(factory=ToolExecutor, repr=False)
    interceptor: InterceptorStack = field(default=_NO_INTERCEPTORS, repr=False)
    events: CanHandleEvents = field(factory=EventBus, repr=False)
    scope: ExecutionScope = field(factory=ExecutionScope, repr=False)
    # Created anew for each copy, so that executions do not share what was announced.
    _epochs: EpochAnnouncer = field(factory=EpochAnnouncer, repr=False, init=False, eq=False)

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        """Return a copy that offers these tools and has their calls run by this executor."""
        # Calls are read and checked by the rules of the executor that runs them.
        return evolve(self, tools=tools.as_strict if executor.strict else tools, executor=executor)

    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy that compiles messages with this compiler."""
        return evolve(self, compiler=compiler)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy with these interceptors and this bus."""
        return evolve(self, interceptor=InterceptorStack.of(interceptor), events=events)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy with this clock, these ids and these resources."""
        # The scope is bound last, so that the compiler can be given the tools that were bound before.
        compiler = self.compiler
        if isinstance(compiler, CanAcceptTools):
            compiler = compiler.with_tools(self.tools)
        if isinstance(compiler, CanAcceptExecutionScope):
            compiler = compiler.with_execution_scope(scope)
        return evolve(self, scope=scope, compiler=compiler)

    # --- the step -----------------------------------------------------------------------------------------------

    async def use_tools(self, state: AgentState) -> AgentState:
        """Take one step: settle the pending calls that are decided, or get a new decision and execute its calls.

        Raises:
            StepInterrupted: an error of the inference, of the executor or of an interceptor, with the state so far.
            asyncio.CancelledError: the task was cancelled; raised from a `StepInterrupted`.
        """
        ledger = self.scope.ledger.begin_step()  # a subclass may have swallowed a cancellation and call this again
        last = state.last_step
        if last is not None and last.open_turn is not None:
            return await self._settle_pending(state, last.open_turn)
        number, ids, clock = state.step_count + 1, self.scope.ids, self.scope.clock
        draft = StepDraft(state, ids.new_id("step"), number, clock.now(), ledger=ledger)
        try:
            messages = self.compile(draft.state)
            # Announced before the model is called, so that the event precedes the first request of the epoch.
            await self._epochs.announce(self.compiler, draft.state, self.events, self.interceptor.watchers)
            draft.parts = await self.decide(draft, messages)
            calls = [part for part in draft.parts if isinstance(part, ToolCall)]
            if calls:
                draft.calls = ToolCalls.of(calls, draft.state)
                draft.outcome = await self.execute(draft.calls, draft)
            draft.replace_eager_calls(None, self.events)
            return self.finish(draft, draft.outcome)
        except asyncio.CancelledError as cancelled:
            # A cancellation stays a CancelledError, which asyncio compares by class, and is raised from the carrier.
            raise cancelled from StepInterrupted(self._interrupted_state(draft, cancelled))
        except Exception as error:
            raise _step_interrupted(self._interrupted_state(draft, error), error) from error

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the messages that the model receives."""
        return self.compiler.compile(state)

    @abstractmethod
    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Call the model and return its decision: reasoning, text and calls, in order.

        Args:
            draft: the step so far. Replace its `state` when interceptors change the state, and pass each response to its
                `add_response`.
            messages: the messages that the model receives.
        """

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        """Execute the calls of a step."""
        return await self.executor.execute_tools(calls, draft.state)

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        """Return the state after the step.

        Args:
            draft: the step, decided.
            outcome: the outcome of its calls; None if there are no calls.
        """
        return draft.complete(outcome, self.scope.clock.now())

    async def _settle_pending(self, state: AgentState, turn: SuspendedTurn) -> AgentState:
        """Execute the calls of a suspended turn that are decided, and put their outcomes into the turn."""
        # The calls without a decision stay pending in the turn.
        calls = ready_calls(turn)
        self.scope.ledger.label = turn.label
        if not len(calls):
            raise ContractViolation(
                "the step is suspended and no call of it is decided; pass decisions to AgentLoop.resume"
            )
        try:
            outcome = await self.executor.execute_tools(calls, state)
        except asyncio.CancelledError as cancelled:
            outcome = self._outcome_of(cancelled, calls, state)
            raise cancelled from StepInterrupted(apply_outcomes(outcome, self.scope.clock.now()))
        except Exception as error:
            outcome = self._outcome_of(error, calls, state)
            raise _step_interrupted(apply_outcomes(outcome, self.scope.clock.now()), error) from error
        return apply_outcomes(outcome, self.scope.clock.now())

    # --- interrupted steps --------------------------------------------------------------------------------------

    def _interrupted_state(self, draft: StepDraft, error: BaseException) -> AgentState:
        """Return the state with the step as far as it was taken; without it if nothing was."""
        draft.replace_eager_calls(None, self.events)
        outcome = draft.outcome
        if outcome is None and draft.calls is not None:
            outcome = self._outcome_of(error, draft.calls, draft.state)
        # A stop is not an error, and neither is a cancellation; both leave a step without one.
        cause = cause_of(error)
        if isinstance(cause, Exception) and not isinstance(cause, AgentStop):
            draft.errors = (*draft.errors, ErrorInfo.of(cause))
        if outcome is None and draft.response is None and not draft.errors:
            return draft.state
        return draft.complete(outcome, self.scope.clock.now())

    def _outcome_of(self, error: BaseException, calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Return the outcome of the calls that an error carries; if it carries none, the calls failed and may have run."""
        carrier = BatchInterrupted.find_in(error)
        if carrier is not None:
            return carrier.executions
        # The executor broke its contract.
        now, ids = self.scope.clock.now(), self.scope.ids
        executions = [
            lost_outcome(call, key, error, id=ids.new_id("tool_execution"), at=now)
            for call, key in zip(calls.calls, calls.keys, strict=True)
        ]
        return ToolExecutions(tuple(executions), (), state)


def _step_interrupted(state: AgentState, error: Exception) -> StepInterrupted:
    cause = cause_of(error)
    return StepInterrupted(state, cause if isinstance(cause, Exception) else error)
