"""The contract of message compilers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from agentloop.values.epochs import Epoch
from agentloop.values.messages import Message
from agentloop.values.state import AgentState


class CanCompileMessages(ABC):
    """Decides which messages of a state a model sees.

    An implementer keeps these laws:

    - Compiling is pure: equal states give equal messages, and the state is not changed (laws 3 and 8).
    - Whole messages are kept or dropped, so that a call is never parted from its result or its reasoning (law 2).
    - Within an execution, what is compiled after a step begins with what was compiled before it, unless the compiler's
      documentation names the point at which a new epoch begins (law 13).
    """

    @abstractmethod
    def compile(self, state: AgentState) -> Sequence[Message]:
        """Return the messages for the next inference, without the system prompt."""


class CanMarkEpoch(ABC):
    """A compiler that knows where its epochs begin, so that a driver can tell.

    An implementer keeps this law: while the epochs of two states of an execution are equal, what is compiled of the later
    begins with what is compiled of the earlier (law 13); another epoch is unequal to every one before it.
    """

    @abstractmethod
    def epoch(self, state: AgentState) -> Epoch:
        """Return the epoch that this state stands in."""
