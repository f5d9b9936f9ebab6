"""Tools that hand a conversation over to another loop, and what a state holds of its handoffs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen

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
from agentloop.errors import AgentsTooDeep, ConfigurationError, ContractViolation, ToolFailed
from agentloop.loop.parts import LoopParts
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolCall
from agentloop.values.value import Value

Target: TypeAlias = LoopParts | Callable[[], LoopParts]
"""The loop that a handoff leads to, or a function that returns it, for loops that hand over to each other."""

OWNER = "agentloop.handoff"
"""The owner of the extension of a state that holds the path of handoffs, and the ordering key of handoff calls."""

_PARAMETERS: JsonObject = freeze_object(
    {
        "type": "object",
        "properties": {"reason": {"type": "string", "description": "The reason, for the agent that takes over."}},
        "additionalProperties": False,
    }
)
_POLICY = ToolPolicy(key=OWNER)
ACCEPTED = "the conversation is handed over"


def handoff_to(loop: Target, *, name: str, description: str, max_handoffs: int = 10) -> Tool:
    """Return a tool with which the model hands the conversation over to another loop when the step has ended.

    The other loop's driver, tools, executor, compiler, system prompt and output type replace the current ones, in the same
    execution and on the same state. The interceptors of the executed loop stay, so its limits keep counting; those of the
    other loop join them by their priorities, inside of those with the same one, and pass `before_execution` then. The conversation
    stays with the other loop, also in later executions, until that loop hands it over.

    Args:
        loop: the other loop, or a function that returns it, for loops that hand over to each other.
        name: the name by which the model calls the tool.
        description: when to hand over, for the model.
        max_handoffs: the maximum number of handoffs in one execution.
    """
    return HandoffTool(name=name, description=description, target=loop, max_handoffs=max_handoffs)


def handed_over_by(state: AgentState) -> str:
    """Return the name of the handoff tool that led to the loop that the conversation is with; empty for the first loop."""
    path = path_of(state)
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
        own: all of its result, which says that the conversation was handed over.
        policy: runs handoff calls of a step one after the other, so that the first of them wins.
    """

    name: str = ""
    description: str = ""
    target: Target = field(repr=False)
    max_handoffs: int = 10
    parameters: JsonObject = field(default=_PARAMETERS, init=False, repr=False)
    effect: Effect = field(default=Effect.PURE, init=False, repr=False)
    own: str = field(default="*", init=False, repr=False)
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
        first = note_first(context.scope, state, call.name)
        if first != call.name:
            raise ToolFailed(f"the conversation is handed over by {first!r} already")
        return ACCEPTED


# --- the path of handoffs, in an extension of the state -------------------------------------------------------------


def handoff_count(state: AgentState) -> int:
    """Return the number of handoffs in the current execution."""
    stored: Any = state.extension(OWNER)
    return int(stored["count"]) if stored is not None and stored["execution"] == state.execution_id else 0


def inferences_before_handoff(state: AgentState) -> tuple[int, int]:
    """Return how many requests drivers sent in the current execution before its last handoff: to their own, and to other models."""
    stored: Any = state.extension(OWNER)
    if stored is None or stored["execution"] != state.execution_id:
        return 0, 0
    others = stored.get("other_inferences", 0)
    return stored["inferences"] - others, others


def steps_before_handoff(state: AgentState) -> int:
    """Return how many steps the current execution had at its last handoff; 0 if there was none."""
    stored: Any = state.extension(OWNER)
    return int(stored.get("steps", 0)) if stored is not None and stored["execution"] == state.execution_id else 0


def path_of(state: AgentState) -> tuple[str, ...]:
    """Return the names of the handoff tools from the executed loop to the loop that the conversation is with."""
    stored: Any = state.extension(OWNER)
    return stored["path"] if stored is not None else ()


def note_first(scope: ExecutionScope, state: AgentState, name: str) -> str:
    """Return the name by which the first handoff of a step was called, which is this one if there was none before.

    The resources of the execution serve as the shared note.
    """
    key = (OWNER, state.execution_id, state.step_count)
    return scope.local_resources.open(key, lambda: name, _close_nothing)


def _close_nothing(_: str) -> None:
    pass
