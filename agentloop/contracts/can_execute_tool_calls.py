"""The contract of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.state import AgentState


class CanExecuteToolCalls(ABC):
    """An executor: runs a batch of tool calls and returns the outcome of each.

    An implementation keeps these laws:

    - Every call of the batch has an execution or is pending, never both, under its key in the batch; both lists are in call
      order. This holds whatever fails, is blocked, times out or is cancelled (law 1).
    - The state is not changed; changes by interceptors are in the returned state (law 3).
    - Events and the returned executions agree about the outcome of a call (law 10).
    - If an interceptor raises before a call, the call does not run (law 11).
    - A call whose tool raises `CallSuspended` is pending, with `begun` set and the progress of the tool. When it is among the
      `begun` calls of a later batch, the tool gets it as `ToolContext.resumed`.
    - With an `ExecutionScope.log`, the intent of a call is recorded before its tool runs, and its outcome before the batch
      ends. A recorded outcome is reused (law 14).
    - Arguments that reach a tool satisfy its schema, and calls in `ToolCalls.rejections` do not run (law 17).
    - Tasks and threads of the executor end with the batch or with the execution (law 19).
    """

    @property
    def strict(self) -> bool:
        """Whether arguments that do not satisfy the schema are never coerced; a driver reads and checks calls accordingly."""
        return False

    @abstractmethod
    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch.

        Args:
            tool_calls: the calls, their keys, and the decisions about pending calls.
            state: the state to which the batch belongs.

        Returns:
            One execution per settled call, the pending calls, and the state after the batch's interceptors.

        Raises:
            BatchInterrupted: after every call was settled; carries the outcomes. The cause is the error of an interceptor or of
                the journal, an `AgentStop`, or a `BatchFailed` if the executor raises when a tool fails.
            asyncio.CancelledError: after every call was settled; raised from a `BatchInterrupted`.
        """
