"""A test bench for executors: batches of calls outside a loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from agentloop.contracts.can_execute_tool_calls import CanExecuteToolCalls
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import ToolLike
from agentloop.events.bus import EventBus
from agentloop.executors.tool_executor import ToolExecutor
from agentloop.interception.stack import InterceptorStack
from agentloop.loop.binding import bind_executor
from agentloop.testing.clocks import CountingIds, LoopClock, ManualClock
from agentloop.tools.decorator import collect_tools
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.decisions import Decision
from agentloop.values.event import Event
from agentloop.values.state import AgentState
from agentloop.values.time_and_ids import Clock
from agentloop.values.tool_calls import ToolCall


@frozen
class ExecutorBench:
    """Runs an executor outside a loop, bound to tools, interceptors, an event bus and a scope.

    Attributes:
        tools: the tools.
        executor: the executor.
        interceptors: the interceptors of the calls.
        dependencies: the program's dependencies, which tools can access.
        clock: the source of times.
        events: the events that were emitted so far.
        log: records the calls; None to record nothing.
        bounds: the bounds of the execution.
    """

    tools: Iterable[ToolLike]
    executor: CanExecuteToolCalls = field(factory=ToolExecutor)
    interceptors: Sequence[CanIntercept] = ()
    dependencies: Any = None
    clock: Clock = field(factory=LoopClock)
    events: list[Event] = field(factory=list)
    log: CallLog | None = None
    bounds: Bounds = DEFAULT_BOUNDS

    async def run(
        self,
        *calls: ToolCall,
        state: AgentState | None = None,
        keys: Sequence[str] | None = None,
        decisions: Mapping[str, Decision] | None = None,
        rejections: Mapping[int, str] | None = None,
    ) -> ToolExecutions:
        """Execute a batch, and close the resources that it opened.

        Args:
            *calls: the calls.
            state: the state that the calls belong to; by default, the initial state of an execution with the id `run`.
            keys: the keys of the calls; derived from the state by default.
            decisions: the decisions about pending calls, by key. They take effect only together with `keys`.
            rejections: why the driver rejects calls, by their positions in the batch.

        Raises:
            Exception: whatever the executor raises.
        """
        state = state or started_state("agent", "run")
        batch = ToolCalls.of(calls, state)
        if keys is not None:
            batch = ToolCalls(tuple(calls), tuple(keys), decisions or {})
        if rejections:
            batch = evolve(batch, rejections={batch.keys[place]: reason for place, reason in rejections.items()})
        return await self.run_batch(batch, state)

    async def run_batch(self, batch: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch as it is, such as the calls of a suspended turn, and close the resources that it opened.

        Raises:
            Exception: whatever the executor raises.
        """
        resources = Resources()
        scope = ExecutionScope(
            clock=self.clock,
            ids=CountingIds(),
            dependencies=self.dependencies,
            local_resources=resources,
            shared_resources=resources,
            log=self.log,
            bounds=self.bounds,
        )
        bus = EventBus(clock=self.clock)
        bus.wiretap(self.events.append)
        tools = collect_tools(self.tools)
        executor = bind_executor(self.executor, tools, InterceptorStack.of(self.interceptors), bus, scope)
        try:
            return await executor.execute_tools(batch, state)
        finally:
            await resources.aclose()

    def event_names(self) -> list[str]:
        """Return the class names of the emitted events, in order."""
        return [type(event).__name__ for event in self.events]


def started_state(agent_id: str, execution_id: str) -> AgentState:
    """Return the state of an agent at the start of an execution."""
    clock = ManualClock()
    return AgentState.start("go", agent_id=agent_id, clock=clock).with_execution_started(execution_id, clock.now())
