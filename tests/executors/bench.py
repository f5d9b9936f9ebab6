"""An executor at work on calls, outside of any loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop import ToolExecutor
from agentloop.contracts import CanIntercept, ExecutionScope, Resources, Tool, Tools
from agentloop.events import EventBus
from agentloop.interception import InterceptorStack
from agentloop.loop.binding import bound_executor
from agentloop.testing import CountingIds, LoopClock
from agentloop.values import AgentState, Clock, Decision, Event, ToolCall, ToolCalls, ToolExecutions


@frozen
class Bench:
    """An executor, bound to tools and interceptors, and what it tells.

    Attributes:
        tools: the tools.
        executor: the executor.
        interceptors: what its calls pass.
        dependencies: what the program gives to tools.
        events: what it emitted.
    """

    tools: Iterable[Tool]
    executor: ToolExecutor = field(factory=ToolExecutor)
    interceptors: Sequence[CanIntercept] = ()
    dependencies: Any = None
    clock: Clock = field(factory=LoopClock)
    events: list[Event] = field(factory=list)

    async def run(
        self,
        *calls: ToolCall,
        state: AgentState | None = None,
        keys: Sequence[str] | None = None,
        decisions: Mapping[str, Decision] | None = None,
    ) -> ToolExecutions:
        """Execute a batch, and close what it opened."""
        own = Resources()
        scope = ExecutionScope(clock=self.clock, ids=CountingIds(), dependencies=self.dependencies, own=own, shared=own)
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        tools = Tools.of(self.tools)
        executor = bound_executor(self.executor, tools, InterceptorStack.of(self.interceptors), bus, scope)
        begun = state or AgentState.start("go", agent_id="agent", clock=self.clock).with_execution_begun(
            "run", self.clock.now()
        )
        batch = ToolCalls.of(calls, begun)
        if keys is not None:
            batch = ToolCalls(tuple(calls), tuple(keys), decisions or {})
        try:
            return await executor.execute_tools(batch, begun)
        finally:
            await own.aclose()

    def told(self) -> list[str]:
        """Return the classes of the events, in order."""
        return [type(event).__name__ for event in self.events]
