"""Binding: copies of a loop's parts for one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

from attrs import evolve, field, frozen

from agentloop._shielding import is_task_cancelled
from agentloop.contracts.can_accept import (
    CanAcceptExecutionScope,
    CanAcceptLifecycle,
    CanAcceptOutputCheck,
    CanAcceptToolRuntime,
    CanAcceptTools,
    CanAddTools,
    CanObserveReplay,
    OutputCheck,
)
from agentloop.contracts.can_compile_messages import CanAcceptMessageCompiler, CanCompileMessages
from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls, CanStartCallsEagerly, EagerCalls
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_use_tools import CanUseTools
from agentloop.contracts.execution_scope import ExecutionScope, StepLedger
from agentloop.contracts.tools import Tools
from agentloop.drivers.forwarding import innermost_driver
from agentloop.errors import ContractViolation, ForeignCancellation
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.handoff import HandoffTool
from agentloop.loop.parts import LoopParts, unwrapped
from agentloop.loop.resources import discover_tools, has_discovery, hold_groups
from agentloop.values.batches import ToolCalls, ToolExecutions, lost_outcome, match_outcomes
from agentloop.values.bounds import apply_bounds
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest
from agentloop.values.interruptions import BatchInterrupted, cause_of
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState, find_discontinuity
from agentloop.values.stop import Continuation
from agentloop.values.tool_calls import ToolCall, ToolExecution
from agentloop.values.visible_text import escape_invisible

T = TypeVar("T")


@frozen(eq=False, repr=False, kw_only=True)
class BoundParts(ShownByField):
    """The parts of a loop as one execution uses them.

    Attributes:
        loop: the loop whose parts they are.
        driver: the driver, bound.
        interceptor: the interceptor stack, bound.
        tools: the tools of the loop, with those that its groups have discovered.
        scope: what the driver and the executor run with besides the state.
        read_output: parses a final answer into the output type; None for text.
        bind_driver: returns the driver bound to other tools.
        has_handoffs: whether a tool hands the conversation over to another loop.
    """

    loop: LoopParts = field(repr=False)
    driver: CanUseTools
    interceptor: InterceptorStack
    tools: Tools
    scope: ExecutionScope
    read_output: OutputCheck | None
    bind_driver: Callable[[Tools], CanUseTools]
    has_handoffs: bool

    def check_output(self, state: AgentState, continuation: Continuation) -> None:
        """Check that a final answer matches the output type, whether or not the driver checked it.

        Only an answer that completes the execution has to: what stops it, such as an answer that was cut off, says more.

        Raises:
            InvalidOutput: if it does not.
        """
        if self.read_output is None or continuation.requested or continuation.signals:
            return
        text = state.final_text
        if text is not None:
            self.read_output(text)

    async def hold_groups(self) -> BoundParts:
        """Hold the tool groups until the execution ends; return the parts with the tools that the groups discovered.

        Raises:
            asyncio.CancelledError: if cancelled.
        """
        if not self.tools.groups:
            return self
        scope, log = self.scope, self.scope.log
        if log is not None and isinstance(log, CanObserveReplay):  # a replay starts no servers
            return evolve(self, driver=self.bind_driver(log.with_recorded_tools(self.tools)))
        with apply_bounds(scope.bounds):
            await hold_groups(self.tools.groups, scope.local_resources)
            if not has_discovery(self.tools):
                return self
            tools = await discover_tools(self.tools)
        # The driver was bound before its tools were known.
        return evolve(self, driver=self.bind_driver(tools), tools=tools)


@frozen(eq=False, repr=False)
class CheckedExecutor(ShownByField, CanExecuteToolCalls, CanStartCallsEagerly):
    """Runs batches by an executor, pairs its outcomes with the calls, and notes them in the ledger of the step.

    A driver gets every call settled or pending, in call order, whatever the executor returns or raises. A call without an
    outcome has failed, and may have run.
    """

    _executor: CanExecuteToolCalls
    _scope: ExecutionScope

    @property
    def strict(self) -> bool:
        """Whether the executor coerces no arguments."""
        return self._executor.strict

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch.

        Raises:
            BatchInterrupted: an error of the executor, or the executor broke its contract.
            ContractViolation: the driver has executed calls with these keys in this step; nothing runs.
            asyncio.CancelledError: the task was cancelled; raised from a `BatchInterrupted` if calls were handed over.
        """
        ledger = self._scope.ledger
        ledger.check_cancelled()  # a driver may have swallowed the cancellation, and nothing is to run any more
        if settled_keys := [key for key in tool_calls.keys if key in ledger.executions]:
            raise ContractViolation(
                f"the driver executes calls again that were settled in this step: {', '.join(settled_keys)}; each call of a step "
                "has a key of its own"
            )
        ledger.calls.update(zip(tool_calls.keys, tool_calls.calls, strict=True))
        try:
            outcome = await self._executor.execute_tools(tool_calls, state)
        except asyncio.CancelledError as cancelled:
            settled, _ = self._settle(tool_calls, state, cancelled, _carried(cancelled))
            if is_task_cancelled():
                raise cancelled from BatchInterrupted(settled)
            foreign = ForeignCancellation(f"the executor {type(self._executor).__name__}", cancelled)
            raise BatchInterrupted(settled, foreign) from cancelled
        except Exception as error:
            settled, _ = self._settle(tool_calls, state, error, _carried(error))
            cause = cause_of(error)
            raise BatchInterrupted(settled, cause if isinstance(cause, Exception) else error) from error
        settled, problem = self._settle(tool_calls, state, None, outcome)
        if problem:
            violation = ContractViolation(f"the executor {type(self._executor).__name__} broke its contract: {problem}")
            raise BatchInterrupted(settled, violation) from violation
        return settled

    def eager_calls(self, request: InferenceRequest, state: AgentState) -> EagerCalls | None:
        """Return what starts calls before their batch; None if the executor cannot, or none may start."""
        executor = self._executor
        return executor.eager_calls(request, state) if isinstance(executor, CanStartCallsEagerly) else None

    def _settle(
        self, calls: ToolCalls, state: AgentState, error: BaseException | None, outcome: object
    ) -> tuple[ToolExecutions, str]:
        """Return the outcomes in call order, noted in the ledger, and what breaks the executor's contract."""
        ledger = self._scope.ledger
        slots, problem = match_outcomes(calls, outcome)
        after = outcome.state if isinstance(outcome, ToolExecutions) else state
        if after is state and not problem and isinstance(outcome, ToolExecutions) and _is_noted(calls, outcome, ledger):
            ledger.state = state
            return outcome, ""
        if after is not state and (discontinuity := find_discontinuity(state, after)):
            after, problem = state, "; ".join(filter(None, [problem, discontinuity]))
        executions: list[ToolExecution] = []
        pending: list[PendingCall] = []
        for call, key in zip(calls.calls, calls.keys, strict=True):
            noted = ledger.executions.get(key)
            slot = slots.get(key) or noted or self._lost(call, key, error)
            if noted is not None and slot is not noted and isinstance(slot, ToolExecution) and slot.call != noted.call:
                slot, problem = noted, problem or f"the outcome under the key {key!r} is that of another call"
            if isinstance(slot, ToolExecution):
                executions.append(slot)
                if slot is not noted:
                    ledger.settle(slot)
            else:
                pending.append(slot)
                ledger.pending[key] = slot
        ledger.state = after
        return ToolExecutions(tuple(executions), tuple(pending), after), problem

    def _lost(self, call: ToolCall, key: str, error: BaseException | None) -> ToolExecution:
        """Return the outcome of a call whose outcome the executor did not return."""
        scope = self._scope
        return lost_outcome(call, key, error, id=scope.ids.new_id("tool_execution"), at=scope.clock.now())


def _is_noted(calls: ToolCalls, outcome: ToolExecutions, ledger: StepLedger) -> bool:
    """Return whether the ledger holds exactly these outcomes, of which each call has one, already and in call order."""
    if outcome.pending:
        return False
    noted = map(ledger.executions.get, calls.keys)
    return not any(execution is not known for execution, known in zip(outcome.executions, noted, strict=True))


def _carried(error: BaseException) -> ToolExecutions | None:
    carrier = BatchInterrupted.find_in(error)
    return carrier.executions if carrier is not None else None


def bind(loop: LoopParts, stack: InterceptorStack, events: CanHandleEvents, scope: ExecutionScope) -> BoundParts:
    """Bind the parts of a loop to an execution.

    Args:
        loop: the loop.
        stack: the interceptors of the execution, bound.
        events: the bus of the execution.
        scope: the surroundings of the execution.
    """
    check = None if loop.output_form is None else loop.output_form.read

    def bind_driver_to(tools: Tools) -> CanUseTools:
        tools = loop.driver.add_tools(tools) if isinstance(loop.driver, CanAddTools) else tools
        executor = CheckedExecutor(bind_executor(loop.executor, tools, stack, events, scope), scope)
        driver = bind_driver(loop.driver, tools, executor, loop.compiler, interceptor=stack, events=events, scope=scope)
        if check is not None and isinstance(driver, CanAcceptOutputCheck):
            driver = driver.with_output_check(check)
        return driver

    return BoundParts(
        loop=loop,
        driver=bind_driver_to(loop.tools),
        interceptor=stack,
        tools=loop.tools,
        scope=scope,
        read_output=check,
        bind_driver=bind_driver_to,
        has_handoffs=any(isinstance(unwrapped(tool), HandoffTool) for tool in loop.tools),
    )


def bind_executor(
    executor: CanExecuteToolCalls,
    tools: Tools,
    interceptor: InterceptorStack,
    events: CanHandleEvents,
    scope: ExecutionScope,
) -> CanExecuteToolCalls:
    """Return a copy of the executor for one execution, with each of the other arguments that it accepts."""
    bound = executor
    if isinstance(bound, CanAcceptTools):
        bound = bound.with_tools(tools)
    return _bind_lifecycle(bound, interceptor, events, scope)


def bind_driver(
    driver: CanUseTools,
    tools: Tools,
    executor: CanExecuteToolCalls,
    compiler: CanCompileMessages | None,
    *,
    interceptor: InterceptorStack,
    events: CanHandleEvents,
    scope: ExecutionScope,
) -> CanUseTools:
    """Return a copy of the driver for one execution, with each of the other arguments that it accepts."""
    bound = driver
    # The executor is bound already: whatever the driver keeps of the tool runtime is of this execution.
    if isinstance(bound, CanAcceptToolRuntime):
        bound = bound.with_tool_runtime(tools, executor)
    if compiler is not None and isinstance(bound, CanAcceptMessageCompiler):
        bound = bound.with_compiler(compiler)
    return _bind_lifecycle(bound, interceptor, events, scope)


def _bind_lifecycle(part: T, interceptor: InterceptorStack, events: CanHandleEvents, scope: ExecutionScope) -> T:
    bound: Any = part
    if isinstance(bound, CanAcceptLifecycle):
        bound = bound.with_lifecycle(interceptor, events)
    if isinstance(bound, CanAcceptExecutionScope):
        bound = bound.with_execution_scope(scope)
    return cast("T", bound)


def composition_of(loop: LoopParts, state: AgentState) -> dict[str, Any]:
    """Return the composition of a loop as plain JSON data, which a journal records with an execution.

    It consists of names only, so that no secret gets into a journal.

    Args:
        loop: the loop.
        state: the state at the beginning of the execution; shows whether its system prompt is the loop's.
    """
    driver = loop.driver
    deciding = innermost_driver(driver)
    # Drivers of the package have their mode in one of these attributes; drivers of users may have neither.
    mode = getattr(deciding, "mode", None) or getattr(deciding, "output", None)
    mode_name = mode if isinstance(mode, str) else getattr(mode, "name", None)
    return {
        "driver": type(driver).__name__,
        **({"mode": mode_name} if isinstance(mode_name, str) else {}),
        "compiler": type(loop.compiler or getattr(deciding, "compiler", None)).__name__,
        "executor": type(loop.executor).__name__,
        "tools": list(loop.tools.names),
        "interceptors": [layer.name for layer in loop.stack.layers],
        "own_prompt": state.execution_count == 1 and state.context.system_prompt == loop.system_prompt,
        "typed": loop.output_form is not None,
    }


_NAMED_TOOLS = 30
"""A diagram with more tools cannot be read."""


def diagram_of(loop: LoopParts) -> str:
    """Return a loop, with those of its sub-agents, as a Mermaid flowchart; a call passes the interceptors in their order."""
    return "\n".join(["flowchart LR", *_diagram_lines(loop, "loop")])


def _diagram_lines(loop: LoopParts, prefix: str) -> list[str]:
    layers = [f"{layer.name} ({layer.priority})" for layer in loop.stack.layers]
    named = [f"{prefix}_{index}" for index in range(len(layers))]
    driver, executor = f"{prefix}_driver", f"{prefix}_executor"
    lines = [f'{driver}["{_label(type(loop.driver).__name__)}"]']
    lines += [f'{node}["{_label(text)}"]' for node, text in zip(named, layers, strict=True)]
    lines.append(f'{executor}["{_label(type(loop.executor).__name__)}"]')
    lines.append(" --> ".join([driver, *named, executor]))
    return [f"  {line}" for line in lines] + _tool_lines(loop, prefix)


def _tool_lines(loop: LoopParts, prefix: str) -> list[str]:
    executor, lines = f"{prefix}_executor", list[str]()
    for index, tool in enumerate(list(loop.tools)[:_NAMED_TOOLS]):
        node = f"{prefix}_tool_{index}"
        lines.append(f'  {executor} --> {node}(["{_label(f"{tool.spec.name}: {tool.spec.effect.value}")}"])')
        inner = getattr(tool, "loop", None)  # an agent, whose class imports this module
        if isinstance(inner, LoopParts):
            lines += [f'  subgraph {node}_agent["{_label(tool.spec.name)}"]', *_diagram_lines(inner, node), "  end"]
            lines.append(f"  {node} --> {node}_driver")
    missing = len(loop.tools) - _NAMED_TOOLS
    return lines + ([f'  {executor} --> {prefix}_more(["{missing} more"])'] if missing > 0 else [])


def _label(text: str) -> str:
    """Return a text as a label in quotes: nothing in it is markup."""
    escaped = escape_invisible(text).replace("#", "#35;").replace("&", "#amp;").replace('"', "#quot;")
    return escaped.replace("<", "#lt;").replace(">", "#gt;").replace("`", "#96;")
