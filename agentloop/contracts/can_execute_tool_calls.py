"""The contract of executors."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.state import AgentState


class CanExecuteToolCalls(ABC):
    """An executor: runs a batch of tool calls and returns what came of each.

    An implementer keeps these laws:

    - Totality: every call of the batch has either an execution or is pending, under the key the batch gives it, and
      both lists are in call order, whatever fails, blocks, times out or is cancelled (law 1).
    - The given state is not changed; what interceptors made of it is in the answer (law 3).
    - What an event says of a call's outcome is what the answer says (law 10).
    - A call whose interceptor raised does not run (law 11).
    - A call whose tool raises `CallSuspended` is pending, begun, with what the tool left; when it comes again among the
      `begun` of a batch, the tool gets that as `ToolContext.resumed`.
    - With an `ExecutionScope.log`, a call's intent is noted before its tool runs and its outcome before the batch ends; what
      is recorded of a call is not done again (law 14).
    - Arguments that reach a tool satisfy its schema (law 17).
    - Its own tasks and threads end with the batch or with the execution (law 19).
    """

    @abstractmethod
    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch.

        Args:
            tool_calls: the calls, their keys, and decisions about calls that waited.
            state: the state the batch belongs to.

        Returns:
            One execution per settled call, the calls that wait, and the state after the batch's interceptors.

        Raises:
            BatchInterrupted: after every call was settled, with the batch. Its cause is the error of an interceptor or of
                the journal, an `AgentStop`, or a `BatchFailed` of an executor that raises when a tool fails.
            asyncio.CancelledError: after the open calls were settled; raised from a `BatchInterrupted`.
        """
