"""The contract of message compilers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentloop.values.epochs import Epoch
from agentloop.values.messages import Message
from agentloop.values.state import AgentState


class CanCompileMessages(ABC):
    """Selects the messages of a state that a model sees.

    An implementation keeps these laws:

    - Compiling is pure: equal states give equal messages, and the state is not changed (laws 3 and 8).
    - Messages are kept or dropped as a whole, so that a call is never separated from its result or its reasoning (law 2).
    - Within an execution, the messages after a step extend those before it, except where a new epoch starts; the
      documentation of the compiler says when that is (law 13).
    """

    @abstractmethod
    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the messages for the next inference, without the system prompt.

        Raises:
            Exception: any error fails the step.
        """


class CanMarkEpoch(ABC):
    """A compiler that reports its epochs, so that a driver can announce a new one.

    An implementation keeps these laws:

    - While the epochs of two states of an execution are equal, the messages of the later state extend those of the earlier
      one (law 13).
    - A new epoch differs from all earlier epochs of the execution.
    """

    @abstractmethod
    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch of a state."""
