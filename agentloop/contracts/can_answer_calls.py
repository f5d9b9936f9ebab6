"""The contract of what answers calls in place of their tools."""

from __future__ import annotations

from abc import ABC, abstractmethod

from attrs import frozen

from agentloop.values.recorded import CallIntent
from agentloop.values.tool_execution import ToolExecution
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class CallAnswer(Value):
    """What comes of a call whose tool is not run.

    Attributes:
        execution: the outcome.
        how: `reused`, `simulated` or `forbidden`.
        source: the key of the call whose outcome it is, when it is that of another one; else empty.
    """

    execution: ToolExecution
    how: str
    source: str = ""


class CanAnswerCalls(ABC):
    """Answers calls in place of their tools.

    It answers for an execution and for the agents that serve its calls, at once.
    """

    @abstractmethod
    def answer(self, intent: CallIntent, *, delegates: bool) -> CallAnswer | None:
        """Return what is to come of a call; None when its tool is to run.

        Calls that come at the same time are answered in the order in which they come.

        Args:
            intent: the call.
            delegates: whether its tool is an agent, whose own calls are answered like this.
        """
