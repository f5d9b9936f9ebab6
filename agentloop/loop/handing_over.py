"""Which loop's parts an execution uses, while the conversation is handed from one to another."""

from __future__ import annotations

from attrs import frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.bound_parts import BoundParts, bind
from agentloop.loop.handoff import accepted, answering, handed_over, in_form_of
from agentloop.loop.loop_parts import LoopParts
from agentloop.values.agent_state import AgentState
from agentloop.values.tool_execution import ToolExecution


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
