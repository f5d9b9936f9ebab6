"""Events of a step."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.agent_step import AgentStep
from agentloop.values.event import Event


class AgentStepStarted(Event):
    """A step began."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class AgentStepCompleted(Event):
    """A step was taken; what it says is final.

    Attributes:
        step: the step.
    """

    step: AgentStep
