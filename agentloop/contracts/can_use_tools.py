"""The contract of drivers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.values.state import AgentState


class CanUseTools(ABC):
    """A driver: takes one step of an execution, usually one inference and the tool calls that follow from it.

    An implementation keeps these laws:

    - The returned state has exactly one more step than the argument. If the last step of the argument has pending calls, the
      returned state has the same number of steps, and that step is further settled.
    - Every call in an added message has its execution (law 2).
    - The argument is not changed (law 3). The driver keeps no state of an execution, so one driver can serve any number of
      executions at once (law 9).
    - It calls the model no more often per step than its documentation says, and the step's usage is the sum of all these
      inferences (laws 5 and 6).
    - With equal responses, outcomes, clock and ids it returns an equal state (law 8).
    """

    @abstractmethod
    async def use_tools(self, state: AgentState) -> AgentState:
        """Take one step.

        Args:
            state: a state with an execution in progress.

        Returns:
            The state after the step.

        Raises:
            StepInterrupted: carries the state so far and the cause. The loop continues from that state, so no work is lost,
                and handles the cause as if it had been raised.
            AgentStop: to stop the execution.
            Exception: any other error becomes a step of kind `error`.
            asyncio.CancelledError: the task was cancelled; raised from a `StepInterrupted` if there is a state to carry.
        """
