"""The template of drivers."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from datetime import datetime
from typing import Self

from attrs import define, evolve, field, frozen

from agentloop.compilers.history import ConversationWithCurrentToolTrace
from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptMessageCompiler,
    CanAcceptToolRuntime,
    CanAcceptTools,
)
from agentloop.contracts.can_compile_messages import CanCompileMessages, CanMarkEpoch
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.errors import ContractViolation
from agentloop.events.bus import EventBus, emit
from agentloop.events.execution import ContextEpochBegan
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.epochs import NO_EPOCH, Epoch
from agentloop.values.inference import InferenceResponse, Usage
from agentloop.values.interruptions import BatchInterrupted, StepInterrupted, cause_of
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.state import AgentState
from agentloop.values.steps import NO_USAGE, AgentStep, SuspendedTurn
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolStatus


@define(eq=False)
class EpochAnnouncer:
    """Knows in which epoch a driver asked last; it lives as long as the bound driver."""

    _latest: Epoch = NO_EPOCH

    async def tell(self, compiler: CanCompileMessages, state: AgentState, events: CanHandleEvents) -> None:
        """Emit `ContextEpochBegan` if this state stands in another epoch than the one before."""
        if not isinstance(compiler, CanMarkEpoch):
            return
        epoch = compiler.epoch(state)
        if epoch == self._latest:
            return
        self._latest = epoch
        await emit(events, ContextEpochBegan, state, epoch.reason, epoch.dropped, epoch.kept, epoch.superseded)


@define(eq=False)
class StepDraft:
    """What is known of a step so far. It lives as long as one `use_tools` and is seen by one driver only.

    Attributes:
        state: the state, as the interceptors have made it so far.
        id: the id of the step.
        number: its number, from 1.
        started_at: when it began.
        parts: what the model decided, in order; None until it has.
        calls: the calls among the parts, with their keys.
        usage: tokens of all inferences so far.
        response: the latest response.
        errors: what went wrong so far.
        outcome: what came of the calls; None before they are settled.
    """

    state: AgentState
    id: str
    number: int
    started_at: datetime
    parts: tuple[ResponsePart, ...] | None = None
    calls: ToolCalls | None = None
    usage: Usage = NO_USAGE
    response: InferenceResponse | None = None
    errors: tuple[ErrorInfo, ...] = ()
    outcome: ToolExecutions | None = None

    @classmethod
    def begin(cls, state: AgentState, scope: ExecutionScope) -> StepDraft:
        """Begin the step after the last one of this state."""
        return cls(state, scope.ids.new_id("step"), state.step_count + 1, scope.clock.now())

    def count(self, response: InferenceResponse) -> None:
        """Take a response: its tokens count, whatever becomes of it."""
        self.usage = response.usage if self.usage is NO_USAGE else self.usage + response.usage
        self.response = response

    def finished(self, outcome: ToolExecutions | None, at: datetime) -> AgentState:
        """Return the state after the step, with its calls joined to their outcomes.

        Args:
            outcome: what came of the calls; None when there were none, or none was executed.
            at: when the step ended.
        """
        if self.parts is None:
            return self.state.with_step(self._step(None, None, at))
        if outcome is None or self.calls is None:
            return self.state.with_step(self._step(Message.of_response(self.parts, ()), None, at))
        state = outcome.state
        if not outcome.pending:
            return state.with_step(self._step(Message.of_response(self.parts, outcome.executions), None, at))
        turn = SuspendedTurn.of(self.parts, self.calls.keys, outcome.executions, outcome.pending)
        return state.with_step(self._step(None, turn, at))

    def _step(self, message: Message | None, turn: SuspendedTurn | None, at: datetime) -> AgentStep:
        response = self.response
        return AgentStep(
            id=self.id,
            number=self.number,
            message=message,
            open_turn=turn,
            response_id=response.id if response is not None else "",
            model=response.model if response is not None else "",
            finish_reason=response.finish_reason if response is not None else None,
            usage=self.usage,
            errors=self.errors,
            started_at=self.started_at,
            ended_at=at,
        )


def unknown(calls: ToolCalls, state: AgentState, error: BaseException, scope: ExecutionScope) -> ToolExecutions:
    """Make the outcome of calls whose executor failed without saying what came of them: nobody knows."""
    now = scope.clock.now()
    executions = tuple(
        [
            ToolExecution.of(
                call,
                ToolStatus.FAILED,
                key=key,
                id=scope.ids.new_id("tool_execution"),
                at=now,
                error=ErrorInfo(type(error).__name__, f"the executor failed: {error}"),
                may_have_run=True,
            )
            for call, key in zip(calls.calls, calls.keys, strict=True)
        ]
    )
    return ToolExecutions(executions, (), state)


_NO_INTERCEPTORS = InterceptorStack.of(())


@frozen(kw_only=True)
class Driver(CanUseTools, CanAcceptToolRuntime, CanAcceptMessageCompiler, CanAcceptLifecycle, CanAcceptExecutionScope):
    """Takes a step in small stages, each a method that a subclass may override: compile, decide, execute, finish.

    A subclass writes `decide`; decorate it with `attrs.frozen` when it has attributes of its own. Bound by a loop or by its
    `with_…` methods, a driver works; unbound it has no tools and its own bus.

    Attributes:
        compiler: decides what a model sees of the state.
        tools: the tools on offer.
        executor: runs their calls.
        interceptor: the points of the execution.
        events: the bus of the execution.
        scope: clock, ids and resources of the execution.
    """

    compiler: CanCompileMessages = field(factory=ConversationWithCurrentToolTrace, repr=False)
    tools: Tools = field(default=NO_TOOLS, repr=False)
    executor: CanExecuteToolCalls = field(factory=ToolExecutor, repr=False)
    interceptor: InterceptorStack = field(default=_NO_INTERCEPTORS, repr=False)
    events: CanHandleEvents = field(factory=EventBus, repr=False)
    scope: ExecutionScope = field(factory=ExecutionScope, repr=False)
    _epochs: EpochAnnouncer = field(factory=EpochAnnouncer, repr=False, init=False, eq=False)

    def with_tool_runtime(self, tools: Tools, executor: CanExecuteToolCalls) -> Self:
        """Return a copy that offers these tools and has their calls run by this executor."""
        return evolve(self, tools=tools, executor=executor)

    def with_compiler(self, compiler: CanCompileMessages) -> Self:
        """Return a copy whose model sees what this compiler makes of the state."""
        return evolve(self, compiler=compiler)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy that passes these points and emits to this bus."""
        return evolve(self, interceptor=InterceptorStack.of(interceptor), events=events)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses this clock, these ids and these resources."""
        compiler = self.compiler
        if isinstance(compiler, CanAcceptTools):
            compiler = compiler.with_tools(self.tools)
        if isinstance(compiler, CanAcceptExecutionScope):
            compiler = compiler.with_execution_scope(scope)
        return evolve(self, scope=scope, compiler=compiler)

    async def use_tools(self, state: AgentState) -> AgentState:
        """Take one step: settle calls that waited and are decided, or decide anew and have the calls executed.

        Raises:
            StepInterrupted: with the state so far; its cause is what the inference, the executor or an interceptor raised.
            asyncio.CancelledError: when cancelled; raised from a `StepInterrupted`.
        """
        last = state.last_step
        if last is not None and last.open_turn is not None:
            return await self._settle(state, last.open_turn)
        draft = StepDraft.begin(state, self.scope)
        try:
            messages = self.compile(draft.state)
            await self._epochs.tell(self.compiler, draft.state, self.events)
            draft.parts = await self.decide(draft, messages)
            calls = [part for part in draft.parts if isinstance(part, ToolCall)]
            if calls:
                draft.calls = ToolCalls.of(calls, draft.state)
                draft.outcome = await self.execute(draft.calls, draft)
        except asyncio.CancelledError as cancelled:
            raise cancelled from StepInterrupted(self._rescued(draft, cancelled))
        except Exception as error:
            raise _interrupted(self._rescued(draft, error), error) from error
        return self.finish(draft, draft.outcome)

    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the messages that the model shall see."""
        return self.compiler.compile(state)

    @abstractmethod
    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        """Consult the model, and return what it decided: reasoning, text, calls, in order.

        Args:
            draft: the step so far. Its `state` may be replaced by what interceptors made of it, and each response must be
                given to its `count`.
            messages: what the model shall see.
        """

    async def execute(self, calls: ToolCalls, draft: StepDraft) -> ToolExecutions:
        """Have the calls of a step executed."""
        return await self.executor.execute_tools(calls, draft.state)

    def finish(self, draft: StepDraft, outcome: ToolExecutions | None) -> AgentState:
        """Return the state after the step.

        Args:
            draft: the step, decided.
            outcome: what came of its calls; None when there were none.
        """
        return draft.finished(outcome, self.scope.clock.now())

    def _rescued(self, draft: StepDraft, error: BaseException) -> AgentState:
        """Return the state with the step as far as it came."""
        outcome = draft.outcome
        if outcome is None and draft.calls is not None:
            outcome = self._outcome(draft.calls, draft.state, error)
        cause = cause_of(error)
        if isinstance(cause, Exception) and not isinstance(cause, AgentStop):
            draft.errors = (*draft.errors, ErrorInfo.of(cause))
        if outcome is None and draft.response is None and not draft.errors:
            return draft.state
        return draft.finished(outcome, self.scope.clock.now())

    async def _settle(self, state: AgentState, turn: SuspendedTurn) -> AgentState:
        """Execute the calls of an open turn that are decided, and put the outcomes in their places."""
        from agentloop.values.batches import apply_outcomes, ready_calls

        calls = ready_calls(turn)
        if not len(calls):
            raise ContractViolation("the step waits for decisions and none was made; pass them to AgentLoop.resume")
        try:
            outcome = await self.executor.execute_tools(calls, state)
        except asyncio.CancelledError as cancelled:
            outcome = self._outcome(calls, state, cancelled)
            raise cancelled from StepInterrupted(apply_outcomes(outcome, self.scope.clock.now()))
        except Exception as error:
            outcome = self._outcome(calls, state, error)
            raise _interrupted(apply_outcomes(outcome, self.scope.clock.now()), error) from error
        return apply_outcomes(outcome, self.scope.clock.now())

    def _outcome(self, calls: ToolCalls, state: AgentState, error: BaseException) -> ToolExecutions:
        """Return the outcome of the calls that an error carries, or one that says that it is unknown."""
        carrier = BatchInterrupted.find_in(error)
        return carrier.executions if carrier is not None else unknown(calls, state, error, self.scope)


def _interrupted(state: AgentState, error: Exception) -> StepInterrupted:
    cause = cause_of(error)
    return StepInterrupted(state, cause if isinstance(cause, Exception) else error)
