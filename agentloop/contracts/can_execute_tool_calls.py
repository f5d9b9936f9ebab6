"""The contracts of executors: running a batch of tool calls, and starting calls before their batch."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.contracts.tools import Tools
from agentloop.values.batches import ToolCalls, ToolExecutions
from agentloop.values.inference import InferenceRequest
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolCall


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

    def local_tools(self, tools: Tools) -> Tools:
        """Return those of the tools that run in this process, and need the dependencies of the execution; by default all."""
        return tools

    @abstractmethod
    async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
        """Execute a batch.

        Args:
            tool_calls: the calls, their keys, and the decisions about pending calls.
            state: the state to which the batch belongs.

        Returns:
            One execution per settled call, the pending calls, and the state after the batch's interceptors.

        Raises:
            BatchInterrupted: after every call was settled; carries the outcomes. The cause is the error of an interceptor, of
                the journal or of a listener, an `AgentStop`, or a `BatchFailed` if the executor raises when a tool fails.
            asyncio.CancelledError: after every call was settled; raised from a `BatchInterrupted`.
        """


class EagerCalls(ABC):
    """The calls of one answer that start while the model still writes it.

    They are speculative: an outcome is used when the batch reaches the identical call, and until then nothing shows that the
    call runs. An implementation keeps these laws:

    - With it and without it, a batch has the same outcomes, events and records, in the same order (laws 7, 8 and 12).
    - Only calls of pure tools start, with valid arguments, in call order, and none that the batch would let wait (law 17).
    - What is neither used nor discarded ends with the execution (law 19).
    """

    @abstractmethod
    def start(self, call: ToolCall) -> bool:
        """Start the next call of the answer, unless it has to wait for its batch; after one that has to, no other starts.

        Args:
            call: the call, complete.

        Returns:
            Whether it was started.
        """

    @abstractmethod
    def discard(self) -> None:
        """Cancel the calls whose outcomes were not used, as when the answer failed. Idempotent; the answer may begin anew."""

    @property
    @abstractmethod
    def discarded(self) -> tuple[ToolCall, ...]:
        """The calls that had begun to run and whose outcomes were discarded, in order."""


class CanStartCallsEagerly(ABC):
    """An executor that can start calls before their batch is complete."""

    @abstractmethod
    def eager_calls(self, request: InferenceRequest, state: AgentState) -> EagerCalls | None:
        """Return what starts the calls of the answer to a request; None if none may start, as under some interceptors.

        Args:
            request: the request, as it is sent.
            state: the state to which the batch will belong.
        """
