"""Tools that hand a conversation over to another loop, and the binding of the loop that the conversation is with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import (
    CanAccessAgentState,
    CanAccessToolCall,
    CanAccessToolContext,
    CanRequireDependencies,
    Tool,
    ToolContext,
    ToolPolicy,
)
from agentloop.contracts.tools import Tools
from agentloop.errors import AgentsTooDeep, ConfigurationError, ContractViolation, ToolFailed
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.binding import BoundParts, bind
from agentloop.loop.parts import LoopParts
from agentloop.values.batches import settled_calls
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.reprs import ShownByField
from agentloop.values.state import AgentState, render_system_prompt
from agentloop.values.steps import AgentStep
from agentloop.values.tool_calls import Effect, ToolCall, ToolExecution, ToolStatus
from agentloop.values.value import Value

Target: TypeAlias = LoopParts | Callable[[], LoopParts]
"""The loop that a handoff leads to, or a function that returns it, for loops that hand over to each other."""

_OWNER = "agentloop.handoff"
"""The owner of the extension of a state that holds the path of handoffs, and the ordering key of handoff calls."""

_PARAMETERS: JsonObject = freeze_object(
    {
        "type": "object",
        "properties": {"reason": {"type": "string", "description": "The reason, for the agent that takes over."}},
        "additionalProperties": False,
    }
)
_POLICY = ToolPolicy(key=_OWNER)
_ACCEPTED = "the conversation is handed over"


def handoff_to(loop: Target, *, name: str, description: str, max_handoffs: int = 10) -> Tool:
    """Return a tool with which the model hands the conversation over to another loop when the step has ended.

    The other loop's driver, tools, executor, compiler, system prompt and output type replace the current ones, in the same
    execution and on the same state. The interceptors of the executed loop stay, so its limits keep counting; those of the
    other loop join them by their priorities, inside of those with the same one. The conversation stays with the other loop,
    also in later executions, until that loop hands it over.

    Args:
        loop: the other loop, or a function that returns it, for loops that hand over to each other.
        name: the name by which the model calls the tool.
        description: when to hand over, for the model.
        max_handoffs: the maximum number of handoffs in one execution.
    """
    return HandoffTool(name=name, description=description, target=loop, max_handoffs=max_handoffs)


def handed_over_by(state: AgentState) -> str:
    """Return the name of the handoff tool that led to the loop that the conversation is with; empty for the first loop."""
    path = _path_of(state)
    return path[-1] if path else ""


@frozen(eq=False, repr=False, kw_only=True)
class HandoffTool(Value, Tool, CanAccessAgentState, CanAccessToolCall, CanAccessToolContext, CanRequireDependencies):
    """Hands the conversation over to another loop; created by `handoff_to`.

    Attributes:
        name: the name by which the model calls it.
        description: when to hand over, for the model.
        target: the other loop, or a function that returns it.
        max_handoffs: the maximum number of handoffs in one execution.
        parameters: one optional text, `reason`.
        effect: `pure`: the call itself changes nothing.
        policy: runs handoff calls of a step one after the other, so that the first of them wins.
    """

    name: str = ""
    description: str = ""
    target: Target = field(repr=False)
    max_handoffs: int = 10
    parameters: JsonObject = field(default=_PARAMETERS, init=False, repr=False)
    effect: Effect = field(default=Effect.PURE, init=False, repr=False)
    policy: ToolPolicy = field(default=_POLICY, init=False, repr=False)
    _state: AgentState | None = field(default=None, repr=False, eq=False)
    _call: ToolCall | None = field(default=None, repr=False, eq=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)

    @property
    def is_local(self) -> bool:
        """True: the handoff takes place in the execution."""
        return True

    @property
    def loop(self) -> LoopParts:
        """The loop that the handoff leads to.

        Raises:
            ConfigurationError: the target is not a loop and does not return one.
        """
        loop: object = self.target() if callable(self.target) else self.target
        if not isinstance(loop, LoopParts):
            raise ConfigurationError(f"the target of the handoff {self.name!r} is not an AgentLoop but {loop!r:.100}")
        return loop

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that reads this state."""
        return evolve(self, state=state)

    def with_tool_call(self, call: ToolCall) -> Self:
        """Return a copy that serves this call."""
        return evolve(self, call=call)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy for this call."""
        return evolve(self, context=context)

    def check_dependencies(self, dependencies: object) -> None:
        """Check the dependencies by the tools of the other loop.

        Raises:
            InvalidDependencies: if a tool declares another type.
        """
        # Loops that hand over to each other refer to each other by functions: only a loop itself cannot lead back here.
        if isinstance(self.target, LoopParts):
            self.target.executor.local_tools(self.target.tools).check_dependencies(dependencies)

    async def use(self, *_: Any, **arguments: Any) -> str:  # noqa: ARG002  # the other agent reads the reason in the call
        """Accept the handoff, which takes place when the step has ended.

        Raises:
            AgentsTooDeep: the execution has reached the maximum number of handoffs.
            ToolFailed: another call of the same step hands the conversation over.
        """
        state, call, context = self._state, self._call, self._context
        if state is None or call is None or context is None:
            raise ContractViolation(f"the handoff {self.name!r} needs the state of its call: run it by an executor")
        count = handoff_count(state)
        if count >= self.max_handoffs:
            raise AgentsTooDeep(
                f"the conversation was handed over {count} times in this execution, which is the maximum; answer yourself"
            )
        # The name in the call, by which an ensemble offers the handoff: those of two ensembles can have the same name of their own.
        first = _note_first(context.scope, state, call.name)
        if first != call.name:
            raise ToolFailed(f"the conversation is handed over by {first!r} already")
        return _ACCEPTED


@frozen(eq=False, repr=False)
class Handoffs(ShownByField):
    """Binds the parts of the loop that the conversation is with, for one execution.

    Attributes:
        root: the executed loop.
        events: the bus of the execution.
        scope: what the execution runs with besides its state.
    """

    root: LoopParts
    events: CanHandleEvents
    scope: ExecutionScope

    def bind_current(self, state: AgentState) -> tuple[AgentState, BoundParts]:
        """Return the state and the bound parts with which the execution starts or resumes."""
        loop = find_current_loop(self.root, state)
        # Each loop has models of its own, which have received the requests since the handoff.
        own, others = _inferences_before_handoff(state)
        counts = max(self.scope.inference_count - own, 0), max(self.scope.other_inference_count - others, 0)
        if loop is not self.root:
            state = _with_response_format_of(loop, state)
        parts, step = self._bind(loop, counts), state.last_step
        accepted = None if step is None or step.open_turn is None else _find_accepted(step, parts.tools)
        if accepted is not None:  # the pending handoffs of a resumed step come too late
            _note_first(self.scope, state, accepted[1].name)
        return state, parts

    def bind_next(self, state: AgentState, parts: BoundParts) -> tuple[AgentState, BoundParts, ToolExecution] | None:
        """Return the state and the bound parts after a handoff, with its call; None if the last step has none.

        Args:
            state: the state after the step.
            parts: the parts that took the step.

        Raises:
            ConfigurationError: the target of the handoff is not a loop.
        """
        step = state.last_step
        if step is None or step.errors or step.message is None:  # a failed or suspended step hands nothing over
            return None
        accepted = _find_accepted(step, parts.tools)
        if accepted is None:
            return None
        handoff, execution = accepted
        target = handoff.loop
        return _with_handoff(self.root, state, target, execution.name), self._bind(target), execution

    async def hold_groups(self, parts: BoundParts) -> BoundParts:
        """Hold the tool groups of a loop until the execution ends; return the parts with the tools that they discovered.

        Raises:
            ConfigurationError: a group has discovered a handoff.
            asyncio.CancelledError: if cancelled.
        """
        held = await parts.hold_groups(self.scope)
        # The path to the current loop is followed before groups are held, and in replays, which hold none.
        name = next((name for name in held.tools.origins if _find_handoff(held.tools, name) is not None), None)
        if name is not None:
            raise ConfigurationError(
                f"the group {held.tools.origins[name]!r} has discovered the handoff {name!r}: a loop has to know its handoffs "
                "before an execution begins, so pass it in the list of tools, or in an Ensemble"
            )
        return held

    def _bind(self, loop: LoopParts, counts: tuple[int, int] = (0, 0)) -> BoundParts:
        scope, (own, others) = self.scope.without_inferences(), counts
        stack = self._stack_for(loop).bind(self.events, scope)
        if own or others:
            scope = evolve(scope, inference_count=own, other_inference_count=others)
        return bind(loop, stack, self.events, scope)

    def _stack_for(self, loop: LoopParts) -> InterceptorStack:
        """Return the interceptors of the executed loop and, inside of those with the same priority, of another loop, each once."""
        outer = self.root.stack
        if loop is self.root:
            return outer
        # A loop made with `with_…` from the executed one has the same interceptors, which must not act twice.
        known = {id(layer) for layer in outer.layers}
        return outer.with_layers([layer for layer in loop.stack.layers if id(layer) not in known])


# --- the path of handoffs, in an extension of the state -------------------------------------------------------------


def handoff_count(state: AgentState) -> int:
    """Return the number of handoffs in the current execution."""
    stored: Any = state.extension(_OWNER)
    return int(stored["count"]) if stored is not None and stored["execution"] == state.execution_id else 0


def _inferences_before_handoff(state: AgentState) -> tuple[int, int]:
    """Return how many requests drivers sent in the current execution before its last handoff: to their own, and to other models."""
    stored: Any = state.extension(_OWNER)
    if stored is None or stored["execution"] != state.execution_id:
        return 0, 0
    others = stored.get("other_inferences", 0)
    return stored["inferences"] - others, others


def find_current_loop(root: LoopParts, state: AgentState) -> LoopParts:
    """Return the loop that the conversation is with; `root` if its handoffs do not lead along the path of the state."""
    path = _path_of(state)
    loops = list(_loops_along(path, root)) if path else []
    return loops[-1] if len(loops) == len(path) + 1 else root


def _with_handoff(root: LoopParts, state: AgentState, target: LoopParts, name: str) -> AgentState:
    """Return the state with the prompt and the response format of another loop, and with the path to it.

    Args:
        root: the executed loop.
        state: the state.
        target: the other loop.
        name: the name by which the tool that leads to it was called, which is the one that it is offered by.
    """
    path = (*_path_of(state), name)
    for index, loop in enumerate(_loops_along(path[:-1], root)):
        if loop is target:  # back to a loop on the path: keep the path short
            path = path[:index]
            break
    extension = {
        "path": path,
        "execution": state.execution_id,
        "count": handoff_count(state) + 1,
        "inferences": state.inference_count,
    }
    if state.other_inference_count:
        extension["other_inferences"] = state.other_inference_count
    state = _with_response_format_of(
        target, state.with_system_prompt(render_system_prompt(target.system_prompt, state))
    )
    return state.with_extension(_OWNER, extension)


def _with_response_format_of(loop: LoopParts, state: AgentState) -> AgentState:
    form = loop.output_form
    return state.with_response_format(None).with_output_type_format(None if form is None else form.response_format)


def _path_of(state: AgentState) -> tuple[str, ...]:
    """Return the names of the handoff tools from the executed loop to the loop that the conversation is with."""
    stored: Any = state.extension(_OWNER)
    return stored["path"] if stored is not None else ()


def _loops_along(path: tuple[str, ...], root: LoopParts) -> Iterator[LoopParts]:
    """Yield the loops along a path of handoffs, beginning with `root`, up to the first handoff that does not exist."""
    loop = root
    yield loop
    for name in path:
        handoff = _find_handoff(loop.tools, name)
        if handoff is None:
            return
        loop = handoff.loop
        yield loop


def _find_handoff(tools: Tools, name: str) -> HandoffTool | None:
    tool: object = tools.get(name)
    if tool is not None and not isinstance(tool, HandoffTool):
        tool = getattr(tool, "tool", None)  # an ensemble wraps its tools
    return tool if isinstance(tool, HandoffTool) else None


def _find_accepted(step: AgentStep, tools: Tools) -> tuple[HandoffTool, ToolExecution] | None:
    """Return the first handoff of a step that succeeded, with its call; None if there is none."""
    for execution in settled_calls(step):
        handoff = _find_handoff(tools, execution.name)
        # A person or an interceptor may have answered the call in place of the tool.
        if handoff is not None and execution.status is ToolStatus.SUCCEEDED and execution.value == _ACCEPTED:
            return handoff, execution
    return None


def _note_first(scope: ExecutionScope, state: AgentState, name: str) -> str:
    """Return the name by which the first handoff of a step was called, which is this one if there was none before.

    The resources of the execution serve as the shared note.
    """
    key = (_OWNER, state.execution_id, state.step_count)
    return scope.local_resources.open(key, lambda: name, _close_nothing)


def _close_nothing(_: str) -> None:
    pass
