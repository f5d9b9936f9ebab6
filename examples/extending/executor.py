"""An executor of your own, around another one: it counts how calls end, and keeps every law of the one inside."""

from __future__ import annotations

from collections import Counter

from attrs import field, frozen

from agentloop import AgentState, ToolExecutor
from agentloop.executors import ForwardingExecutor
from agentloop.testing import ExecutorKit, check_laws
from agentloop.values import ToolCalls, ToolExecutions


@frozen
class CountingExecutor(ForwardingExecutor):
    """Counts the outcomes of all batches by status."""

    counts: Counter[str] = field(factory=Counter)

    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        outcome = await self.inner.execute_tools(tool_calls, state)  # what it raises carries the outcomes
        self.counts.update(execution.status for execution in outcome.executions)
        return outcome


if __name__ == "__main__":
    print(check_laws(ExecutorKit(lambda: CountingExecutor(ToolExecutor()), examples=10)))
