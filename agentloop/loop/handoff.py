"""Tools that hand a conversation over to another loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.contracts.tool import CanAccessAgentState, CanAccessToolContext, Tool, ToolContext, ToolPolicy
from agentloop.contracts.tools import Tools
from agentloop.errors import AgentsTooDeep, ConfigurationError, ContractViolation, ToolFailed
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.binding import BoundParts, bind
from agentloop.loop.parts import LoopParts
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolExecution, ToolStatus

Target: TypeAlias = LoopParts | Callable[[], LoopParts]
"""A loop, or a function that gives it, for loops that hand over to each other."""

_OWNER = "agentloop.handoff"
_PARAMETERS: JsonObject = freeze_object(
    {
        "type": "object",
        "properties": {"reason": {"type": "string", "description": "Why, for whoever takes over."}},
        "additionalProperties": False,
    }
)
_POLICY = ToolPolicy(key="agentloop.handoff")


def handoff_to(loop: Target, *, name: str, description: str, max_handoffs: int = 10) -> Tool:
    """Return a tool by which a model hands the conversation over: after the step, the other loop goes on with it.

    The other loop's driver, tools, executor, compiler, system prompt and output type take the place of those before, in the
    same execution and on the same state. The interceptors of the loop that was executed stay, and those of the loop that
    answers stand inside of them; limits go on counting. The conversation stays with the other loop, also in later
    executions, until that one hands it over.

    Args:
        loop: the loop that takes over, or a function that gives it, where loops hand over to each other.
        name: the name by which a model calls the tool.
        description: when to hand over, for the model.
        max_handoffs: how often a conversation may be handed over in one execution.
    """
    return HandoffTool(name=name, description=description, target=loop, max_handoffs=max_handoffs)


@frozen(kw_only=True)
class HandoffTool(Tool, CanAccessAgentState, CanAccessToolContext):
    """Hands the conversation over to another loop; made by `handoff_to`.

    Attributes:
        name: the name by which a model calls it.
        description: when to hand over, for the model.
        target: the loop that takes over, or a function that gives it.
        max_handoffs: how often a conversation may be handed over in one execution.
    """

    name: str = ""
    description: str = ""
    target: Target = field(repr=False)
    max_handoffs: int = 10
    parameters: JsonObject = field(default=_PARAMETERS, init=False, repr=False)
    effect: Effect = field(default=Effect.PURE, init=False, repr=False)
    policy: ToolPolicy = field(default=_POLICY, init=False, repr=False)
    _state: AgentState | None = field(default=None, repr=False, eq=False)
    _context: ToolContext | None = field(default=None, repr=False, eq=False)

    @property
    def loop(self) -> LoopParts:
        """The loop that takes over.

        Raises:
            ConfigurationError: when the function that should give it does not.
        """
        loop: object = self.target() if callable(self.target) else self.target
        if not isinstance(loop, LoopParts):
            raise ConfigurationError(f"the handoff {self.name!r} has to lead to an AgentLoop, not to {loop!r:.100}")
        return loop

    def with_agent_state(self, state: AgentState) -> Self:
        """Return a copy that may read this state."""
        return evolve(self, state=state)

    def with_tool_context(self, context: ToolContext) -> Self:
        """Return a copy that serves this context."""
        return evolve(self, context=context)

    async def use(self, *_: Any, **arguments: Any) -> str:  # noqa: ARG002  # the reason stands in the call, for who takes over
        """Say that the conversation is handed over; it is when the step has ended.

        Raises:
            AgentsTooDeep: when it was handed over too often.
            ToolFailed: when another call of the same step hands it over.
        """
        state, context = self._state, self._context
        if state is None or context is None:
            raise ContractViolation(f"the handoff {self.name!r} needs the state of its call: run it by an executor")
        if handoff_count(state) >= self.max_handoffs:
            raise AgentsTooDeep(
                f"the conversation was handed over {handoff_count(state)} times in this execution, which is the most; "
                "answer yourself"
            )
        taken = context.scope.local_resources.open(
            (_OWNER, state.execution_id, state.step_count), lambda: self.name, _nothing
        )
        if taken != self.name:
            raise ToolFailed(f"the conversation is handed over by {taken!r} already")
        return "the conversation is handed over"


def handoff_count(state: AgentState) -> int:
    """Return how often the conversation was handed over in the current execution."""
    stored: Any = state.extension(_OWNER)
    return int(stored["count"]) if stored is not None and stored["execution"] == state.execution_id else 0


def handed_over_by(state: AgentState) -> str:
    """Return the name of the handoff by which the conversation came to the loop it is with; empty for the first loop."""
    path = _path(state)
    return path[-1] if path else ""


def answering(loop: LoopParts, state: AgentState) -> LoopParts:
    """Return the loop that the conversation is with, seen from the loop that is executed.

    A loop that does not know the way that the conversation went answers itself.
    """
    path = _path(state)
    loops = list(_loops(loop, path)) if path else []
    return loops[-1] if len(loops) == len(path) + 1 else loop


def accepted(tools: Tools, executions: tuple[ToolExecution, ...]) -> tuple[HandoffTool, ToolExecution] | None:
    """Return the first of these calls that hands over, with its tool."""
    for execution in executions:
        found = _handoff(tools, execution.name)
        if found is not None and execution.status is ToolStatus.SUCCEEDED:
            return found, execution
    return None


def handed_over(root: LoopParts, state: AgentState, handoff: HandoffTool) -> AgentState:
    """Return the state with the other loop's prompt and form of answers, and with the way that the conversation went.

    Args:
        root: the loop that is executed.
        state: the state after the step.
        handoff: the tool that was called.
    """
    to, path = handoff.loop, (*_path(state), handoff.name)
    passed = list(_loops(root, path[:-1]))
    if any(loop is to for loop in passed):  # back to one that had it before: by the way that it first came
        path = path[: next(place for place, loop in enumerate(passed) if loop is to)]
    noted = {"path": path, "execution": state.execution_id, "count": handoff_count(state) + 1}
    return in_form_of(to, state.with_system_prompt(to.system_prompt)).with_extension(_OWNER, noted)


def in_form_of(loop: LoopParts, state: AgentState) -> AgentState:
    """Return the state with the form that the loop's final answers have."""
    return state.with_response_format(None if loop.output_form is None else loop.output_form.response_format)


def _path(state: AgentState) -> tuple[str, ...]:
    stored: Any = state.extension(_OWNER)
    return stored["path"] if stored is not None else ()


def _loops(loop: LoopParts, path: tuple[str, ...]) -> Iterator[LoopParts]:
    """Yield the loops along a way, the first included, as far as it leads."""
    yield loop
    for name in path:
        handoff = _handoff(loop.tools, name)
        if handoff is None:
            return
        loop = handoff.loop
        yield loop


def _handoff(tools: Tools, name: str) -> HandoffTool | None:
    tool: object = tools.get(name)
    if tool is not None and not isinstance(tool, HandoffTool):
        tool = getattr(tool, "tool", None)  # what an ensemble may have put around it
    return tool if isinstance(tool, HandoffTool) else None


def _nothing(_: str) -> None:
    """Close nothing."""


@frozen(eq=False)
class Handoffs:
    """Binds, for one execution, the parts of the loop that the conversation is with.

    Attributes:
        root: the loop that is executed.
        events: the bus of the execution.
        scope: what the execution runs with.
    """

    root: LoopParts
    events: CanHandleEvents
    scope: ExecutionScope

    def begun(self, state: AgentState) -> tuple[AgentState, BoundParts]:
        """Return the state and the parts with which the execution begins, or goes on."""
        loop = answering(self.root, state)
        if loop is self.root:
            return state, self._bound(loop)
        return in_form_of(loop, state), self._bound(loop)

    def after(self, state: AgentState, parts: BoundParts) -> tuple[AgentState, BoundParts, ToolExecution] | None:
        """Return what the execution goes on with if the last step has handed the conversation over, and the call that did.

        Args:
            state: the state after the step.
            parts: what the step was taken with.

        Raises:
            ConfigurationError: when the handoff leads to no loop.
        """
        step = state.last_step
        if step is None or step.errors or step.message is None:
            return None
        taken = accepted(parts.tools, step.executions)
        if taken is None:
            return None
        handoff, execution = taken
        state = handed_over(self.root, state, handoff)
        return state, self._bound(handoff.loop), execution

    def _bound(self, loop: LoopParts) -> BoundParts:
        return bind(loop, self._stack(loop).bound(self.events, self.scope), self.events, self.scope)

    def _stack(self, loop: LoopParts) -> InterceptorStack:
        """Return the interceptors of the first loop around those of the one that answers, each once."""
        outer = self.root.stack
        if loop is self.root:
            return outer
        known = {id(layer) for layer in outer.layers}
        return InterceptorStack.of((*outer.layers, *[one for one in loop.stack.layers if id(one) not in known]))
