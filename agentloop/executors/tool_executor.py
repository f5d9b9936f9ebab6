"""The executor that runs tools in this process."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Self

from attrs import define, evolve, field, frozen
from attrs.validators import ge, gt, optional

from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptTools,
    CanObserveReplay,
)
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls, CanStartCallsEagerly, EagerCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.events.bus import EventBus
from agentloop.executors.toolbox import Toolbox
from agentloop.interception.stack import InterceptorStack
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.inference import InferenceRequest
from agentloop.values.interruptions import BatchFailed, BatchInterrupted
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolStatus
from agentloop.values.value import Value, instance_of

if TYPE_CHECKING:
    from agentloop.executors.batch import Batch
    from agentloop.executors.invocation import CallRuntime
    from agentloop.executors.standard_layers import Features


# Rejected and blocked calls are not failures of a tool: the model can correct the former, a rule or a person decided the latter.
_FAILURES = frozenset({ToolStatus.FAILED, ToolStatus.TIMED_OUT, ToolStatus.IN_DOUBT})
_GRACE_FACTOR = 4.0
_NO_INTERCEPTORS = InterceptorStack.of(())


@frozen(eq=False, repr=False)
class ToolExecutor(
    Value, CanExecuteToolCalls, CanStartCallsEagerly, CanAcceptTools, CanAcceptLifecycle, CanAcceptExecutionScope
):
    """Runs a batch of calls in three phases, so that the order of outcomes and events does not depend on which call ends first.

    Calls are admitted in call order: looked up, validated, and passed through `before_tool_use`. Admitted calls run
    concurrently; plain functions run in threads. Calls are settled in call order: each passes `after_tool_use`, and then the
    event with its final outcome is emitted. A call of a `sequential` tool runs alone; calls with the same ordering key run one
    after the other.

    Attributes:
        raise_on_tool_failure: whether a failed or timed out tool interrupts the step with a `BatchFailed`, after the whole batch
            is settled.
        strict: whether arguments that do not satisfy the schema are never coerced, whatever the tool.
        stop_on_tool_block: whether the calls after a blocked call are cancelled; calls that were admitted before it run.
        max_concurrency: the maximum number of calls that run at once; None for all.
        default_timeout: timeout in seconds for tools without one; None for no limit.
        max_result_bytes: the maximum size of a result in a request, in bytes, for tools without a limit. The execution keeps the
            whole result, and the tool `read_result` reads it.
        cancel_grace: the time in seconds that calls have to end when the execution is cancelled, and then their interceptors
            to see the outcomes. An outcome that they have not seen is dropped. A sub-agent has a quarter of its own time for
            each level of nesting, so that it ends before its caller stops waiting for it.
    """

    raise_on_tool_failure: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    stop_on_tool_block: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    strict: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    max_concurrency: int | None = field(default=None, kw_only=True, validator=optional(ge(1)))
    default_timeout: float | None = field(default=None, kw_only=True, validator=optional(gt(0)))
    max_result_bytes: int = field(default=100_000, kw_only=True, validator=ge(1))
    cancel_grace: float = field(default=5.0, kw_only=True, validator=ge(0))
    _toolbox: Toolbox | None = field(default=None, kw_only=True, repr=False, eq=False)
    _interceptor: InterceptorStack = field(default=_NO_INTERCEPTORS, kw_only=True, repr=False, eq=False)
    _events: CanHandleEvents = field(factory=EventBus, kw_only=True, repr=False, eq=False)
    _scope: ExecutionScope | None = field(default=None, kw_only=True, repr=False, eq=False)
    _bound: _Bound | None = field(default=None, init=False, repr=False, eq=False)

    def with_tools(self, tools: Tools) -> Self:
        """Return a copy that runs these tools.

        Raises:
            ToolDefinitionError: the parameters of a tool are not a valid JSON Schema.
        """
        toolbox = Toolbox(tools.as_strict if self.strict else tools)
        toolbox.check_schemas()
        return evolve(self, toolbox=toolbox)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy with these interceptors and this bus."""
        return evolve(self, interceptor=InterceptorStack.of(interceptor), events=events)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy with this clock, these ids and these dependencies; its threads end with the scope."""
        return evolve(self, scope=scope)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch.

        Raises:
            BatchInterrupted: an interceptor, the journal or a listener of a strict bus failed or, with `raise_on_tool_failure`, a
                tool did. Every call is settled before.
            asyncio.CancelledError: the task was cancelled; raised from a `BatchInterrupted`. Every call is settled before.
            BaseException: what an interceptor or a listener raises that is no `Exception`. Every call is settled before.
        """
        if self._scope is not None:
            return await self._execute(tool_calls, state, self._scope)
        scope = ExecutionScope()
        try:
            return await self._execute(tool_calls, state, scope)
        finally:
            await scope.local_resources.aclose()

    async def _execute(self, tool_calls: ToolCalls, state: AgentState, scope: ExecutionScope) -> ToolExecutions:
        batch = self._batch(tool_calls, state, scope)
        try:
            await batch.complete()
        except asyncio.CancelledError as cancelled:
            raise cancelled from BatchInterrupted(batch.executions())
        executions = batch.executions()
        if batch.failure is not None:
            raise BatchInterrupted(executions, batch.failure) from batch.failure
        if self.raise_on_tool_failure:
            failed = next((execution for execution in executions if execution.status in _FAILURES), None)
            if failed is not None:
                error = BatchFailed(failed)
                error.__cause__ = batch.exception_of(failed)
                raise BatchInterrupted(executions, error) from error
        return executions

    def eager_calls(self, request: InferenceRequest, state: AgentState) -> EagerCalls | None:
        """Return what starts calls of pure tools before their batch.

        None may start outside of a loop, in a replay, in a fork that answers calls, where calls are labeled by the whole answer, and
        under an interceptor that has to see a call, or the answer, before any tool runs (`Interceptor.allows_eager_start`).
        """
        scope, toolbox = self._scope, self._toolbox
        if scope is None or toolbox is None or not self._interceptor.allows_eager_start or _answers_calls(scope):
            return None
        if scope.labels:
            return None
        # A subclass that decides in `execute_tools` which calls run has to see them before.
        if type(self).execute_tools is not ToolExecutor.execute_tools:
            return None
        from agentloop.executors.eager import EagerBatch, EagerRuns
        from agentloop.executors.early_start import EarlyStart

        bound, grace = self._bound_to(scope), self._grace(scope)
        runs = scope.local_resources.open(_EARLY_RUNS, lambda: EagerRuns(grace), EagerRuns.close)
        if not bound.uses_early_runs:
            inside = (*bound.features.inside, EarlyStart(runs))
            bound.features, bound.uses_early_runs = evolve(bound.features, inside=inside), True
        max_calls = min(scope.bounds.calls_per_answer, self.max_concurrency or math.inf)
        runs.latest = EagerBatch(request, state, bound.runtime, runs=runs, max_calls=max_calls)
        return runs.latest

    def _grace(self, scope: ExecutionScope) -> float:
        return self.cancel_grace / _GRACE_FACTOR**scope.depth

    def _batch(self, tool_calls: ToolCalls, state: AgentState, scope: ExecutionScope) -> Batch:
        # Loaded with the first batch: what runs calls is not needed to define an agent.
        from agentloop.executors.batch import Batch, calls_of

        bound, turn = self._bound or self._bound_to(scope), state.open_turn
        return Batch(
            state=state,
            asked=tool_calls,
            calls=calls_of(tool_calls, state, scope),
            runtime=bound.runtime,
            # A call that goes on may have made calls about which somebody has decided.
            features=bound.features.decided if tool_calls.decisions or tool_calls.begun else bound.features.plain,
            nested_count=0 if turn is None else sum([len(execution.inner) for execution in turn.executions]),
        )

    def _bound_to(self, scope: ExecutionScope) -> _Bound:
        """Return what the batches of an execution have in common; without a scope of its own, the executor keeps nothing."""
        if self._bound is not None:
            return self._bound
        from agentloop.executors.invocation import CallRuntime
        from agentloop.executors.standard_layers import standard_features

        toolbox = self._toolbox or Toolbox(NO_TOOLS)
        runtime = CallRuntime(
            events=self._events,
            scope=scope,
            toolbox=toolbox,
            default_timeout=self.default_timeout,
            max_result_bytes=self.max_result_bytes,
            cancel_grace=self._grace(scope),
            max_concurrency=self.max_concurrency,
            stop_on_block=self.stop_on_tool_block,
        )
        bound = _Bound(runtime, standard_features(toolbox, scope, self._interceptor))
        if self._scope is not None:
            object.__setattr__(self, "_bound", bound)  # a copy with other parts starts without it
        return bound


@define(eq=False)
class _Bound:
    """What the batches of one execution have in common.

    Attributes:
        runtime: what their calls have in common.
        features: the features over their calls.
        uses_early_runs: whether one of them uses runs of tools that began before their batch.
    """

    runtime: CallRuntime
    features: Features
    uses_early_runs: bool = False


_EARLY_RUNS = "agentloop.executors.eager"
"""The key of the early runs among the resources of an execution; a text, so that the class is loaded only when it is used."""


def _answers_calls(scope: ExecutionScope) -> bool:
    """Return whether calls are answered in place of their tools, which must not run then."""
    log = scope.log
    return log is not None and (isinstance(log, CanObserveReplay) or log.settings.answers is not None)
