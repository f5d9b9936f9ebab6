"""A bench for executors: batches of calls outside of any loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_log import ExecutionLog
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.tool import Tool
from agentloop.contracts.tools import Tools
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.binding import bound_executor
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock
from agentloop.values.decision import Decision
from agentloop.values.event import Event
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_executions import ToolCalls, ToolExecutions


@frozen
class ExecutorBench:
    """An executor at work outside of any loop, bound to tools, interceptors, a bus and a scope.

    Attributes:
        tools: the tools.
        executor: the executor.
        interceptors: what its calls pass.
        dependencies: what the program gives to tools.
        clock: where times come from.
        events: what it emitted.
        log: where the calls are written down; None for nowhere.
    """

    tools: Iterable[Tool]
    executor: CanExecuteToolCalls = field(factory=ToolExecutor)
    interceptors: Sequence[CanIntercept] = ()
    dependencies: Any = None
    clock: Clock = field(factory=LoopClock)
    events: list[Event] = field(factory=list)
    log: ExecutionLog | None = None

    async def run(
        self,
        *calls: ToolCall,
        state: AgentState | None = None,
        keys: Sequence[str] | None = None,
        decisions: Mapping[str, Decision] | None = None,
    ) -> ToolExecutions:
        """Execute a batch, and close what it opened.

        Args:
            *calls: the calls.
            state: the state they belong to; one at the beginning of an execution named `run` when left out.
            keys: the keys of the calls; made from the state when left out.
            decisions: what was decided about calls that waited, by key.

        Raises:
            Exception: whatever the executor raises.
        """
        own = Resources()
        scope = ExecutionScope(
            clock=self.clock, ids=CountingIds(), dependencies=self.dependencies, own=own, shared=own, log=self.log
        )
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        tools = Tools.of(self.tools)
        executor = bound_executor(self.executor, tools, InterceptorStack.of(self.interceptors), bus, scope)
        begun = state or begun_state("agent", "run")
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


def begun_state(agent_id: str, execution_id: str) -> AgentState:
    """Return the state of an agent whose execution has just begun."""
    clock = ManualClock()
    return AgentState.start("go", agent_id=agent_id, clock=clock).with_execution_begun(execution_id, clock.now())
