"""The contract of drivers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from agentloop.values.state import AgentState


class CanUseTools(ABC):
    """A driver: decides what to do next, has it done, and returns the state one step further.

    An implementer keeps these laws:

    - The returned state has exactly one more step than the given one; or, when the given state's last step waits for
      decisions, the same steps with that one further settled.
    - A message that it adds holds every call with its execution (law 2).
    - The given state is not changed (law 3); the driver keeps nothing of it, so that one driver serves any number of
      executions at once (law 9).
    - It consults the model no more often per step than it says in its documentation, and the step's usage is the sum
      of all of these inferences (laws 5 and 6).
    - Given the same responses, outcomes, clock and ids it returns an equal state (law 8).
    """

    @abstractmethod
    async def use_tools(self, state: AgentState) -> AgentState:
        """Take one step.

        Args:
            state: a state whose execution is in progress.

        Returns:
            The state after the step.

        Raises:
            StepInterrupted: with the state so far and the cause. The loop continues from that state, so that nothing done
                is lost; the cause is handled as if it had been raised itself.
            AgentStop: to stop the execution for a reason.
            Exception: anything else becomes a step of kind `error`.
            asyncio.CancelledError: when cancelled; raised from a `StepInterrupted` where there is a state to carry.
        """
