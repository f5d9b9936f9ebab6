"""A loop as a tool of other loops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Self

from attrs import evolve, frozen

from agentloop.contracts.can_answer_calls import CanAnswerCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool
from agentloop.contracts.tool_context import ToolContext
from agentloop.contracts.tool_policy import DEFAULT_POLICY, ToolPolicy
from agentloop.loop.loop_surroundings import LoopSurroundings
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Decision
from agentloop.values.in_doubt import InDoubt
from agentloop.values.tool_spec import Effect


@frozen(eq=False)
class LoopAsTool(LoopSurroundings):
    """What a loop can do for other loops."""

    @abstractmethod
    async def execute(
        self, state: AgentState, /, *, execution_id: str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Run to the end."""

    @abstractmethod
    async def resume(
        self, state: AgentState | str, decisions: Mapping[str, Decision], *, dependencies: Any = None
    ) -> AgentState:
        """Go on with a suspended execution."""

    @abstractmethod
    async def recover(
        self, execution_id: str, *, in_doubt: InDoubt | str | None = None, dependencies: Any = None
    ) -> AgentState:
        """Go on with an execution that was interrupted."""

    def as_tool(
        self,
        name: str,
        description: str,
        *,
        input_type: Any = None,
        parameters: Mapping[str, Any] | None = None,
        tools_allowed: Iterable[str] | None = None,
        tools_denied: Iterable[str] = (),
        max_depth: int = 3,
        budget_share: float = 0.5,
        effect: Effect = Effect.EFFECT,
        policy: ToolPolicy = DEFAULT_POLICY,
    ) -> Tool:
        """Return a tool of other loops that has this one do what a call asks for; its answer is the result.

        Args:
            name: the name by which a model calls it.
            description: what the agent does and when to call it, for the model.
            input_type: a class whose fields are the parameters; the agent gets them as JSON. When left out, a text `task`.
            parameters: the same as a JSON Schema of type object.
            tools_allowed: the names, or patterns as in `read_*`, of the tools that it may use; None for all.
            tools_denied: those that it may not.
            max_depth: how many agents may stand below each other, this one included.
            budget_share: how much of what is left in the calling agent's `Budget` is lent to each call.
            effect: what it does to the world, with all that it calls.
            policy: timeout, order and whatever else a tool may ask for.

        Raises:
            ToolDefinitionError: when the parameters are no object, or a tool named is none of this loop.
        """
        from agentloop.loop.agent_tool import AgentTool
        from agentloop.loop.agent_tool_parts import limits_on_tools, parameters_of

        return AgentTool(
            name=name,
            description=description,
            loop=self.with_interceptors(*limits_on_tools(self.tools, tools_allowed, tools_denied)),
            parameters=parameters_of(input_type, parameters),
            max_depth=max_depth,
            budget_share=budget_share,
            effect=Effect(effect),
            policy=policy,
        )

    def serving(self, context: ToolContext, *interceptors: CanIntercept) -> Self:
        """Return a copy that runs within the execution whose tool has this context.

        It has the clock of that execution and ids that are derived from the call, shares what it has open, and tells its
        events to the listeners of both loops. What that execution is written down in, it is too.
        """
        from agentloop.events.joined_bus import joined

        log = context.scope.log
        return evolve(
            self,
            journal=log.journal if log is not None else self.journal,
            in_doubt=log.in_doubt if log is not None else self.in_doubt,
            events=self.events if context.events is None else joined(context.events, self.events),
            clock=context.scope.clock,
            ids=context.ids(),
            interceptors=(*self.interceptors, *interceptors),
            above=context.scope,
        )

    @property
    def _answers(self) -> CanAnswerCalls | None:
        """What answers calls in place of their tools, in the execution whose call this loop serves."""
        log = self._above.log if self._above is not None else None
        return log.answers if log is not None else None
