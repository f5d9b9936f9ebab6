"""What every event carries."""

from __future__ import annotations

from datetime import datetime

from attrs import frozen

from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class EventHead(Value):
    """Where and when an event happened.

    Attributes:
        agent_id: the agent.
        execution_id: the execution.
        parent_agent_id: the agent that the agent serves; None for one of its own.
        step_number: the step it belongs to, from 1; 0 before the first.
        sequence: its place among the events of this run of the execution, from 1; counted whether or not anybody
            listens, so a gap is an event that nobody listened for.
        time: when it happened, by the clock of the event bus.
    """

    agent_id: str
    execution_id: str
    parent_agent_id: str | None
    step_number: int
    sequence: int
    time: datetime


@frozen(eq=False, repr=False)
class Event(Value):
    """Something that happened. Its classes are named for what happened and stand in `agentloop.events`.

    Attributes:
        head: where and when.
    """

    head: EventHead

    @property
    def agent_id(self) -> str:
        """The agent."""
        return self.head.agent_id

    @property
    def execution_id(self) -> str:
        """The execution."""
        return self.head.execution_id

    @property
    def parent_agent_id(self) -> str | None:
        """The agent that the agent serves; None for one of its own."""
        return self.head.parent_agent_id

    @property
    def step_number(self) -> int:
        """The step it belongs to, from 1; 0 before the first."""
        return self.head.step_number

    @property
    def sequence(self) -> int:
        """Its place among the events of this run of the execution, from 1."""
        return self.head.sequence

    @property
    def time(self) -> datetime:
        """When it happened."""
        return self.head.time
