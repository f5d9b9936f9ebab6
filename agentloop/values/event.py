"""The base class of events, the head that every event carries, and the operations in which code of an execution runs."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from attrs import frozen

from agentloop.values.tool_calls import ToolCall
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class EventHead(Value):
    """Where and when an event happened.

    Attributes:
        agent_id: the agent.
        execution_id: the execution.
        parent_agent_id: the agent whose tool call this agent serves; None for a top-level agent.
        step_number: the 1-based step; 0 before the first.
        sequence: the 1-based position among the events of this run of the execution. Unobserved events are counted too, so
            a gap means an event without listeners.
        time: the time by the clock of the event bus.
        agent_name: the name of the agent, as in `AgentLoop(name=…)`; empty without one.
    """

    agent_id: str
    execution_id: str
    parent_agent_id: str | None
    step_number: int
    sequence: int
    time: datetime
    agent_name: str = ""


@frozen(eq=False, repr=False)
class Event(Value):
    """The base class of events; the classes in `agentloop.events` are named for what happened.

    Attributes:
        is_base: true in the body of a class of which only subclasses are emitted, so that nobody listens to it alone; not
            inherited.
        head: where and when it happened.
    """

    is_base: ClassVar[bool] = True

    head: EventHead

    @property
    def agent_id(self) -> str:
        """The agent."""
        return self.head.agent_id

    @property
    def agent_name(self) -> str:
        """The name of the agent; empty without one."""
        return self.head.agent_name

    @property
    def execution_id(self) -> str:
        """The execution."""
        return self.head.execution_id

    @property
    def parent_agent_id(self) -> str | None:
        """The agent whose tool call this agent serves; None for a top-level agent."""
        return self.head.parent_agent_id

    @property
    def step_number(self) -> int:
        """The 1-based step; 0 before the first."""
        return self.head.step_number

    @property
    def sequence(self) -> int:
        """The 1-based position among the events of this run of the execution."""
        return self.head.sequence

    @property
    def time(self) -> datetime:
        """The time by the clock of the event bus."""
        return self.head.time


class OperationKind(StrEnum):
    """What an execution does while a piece of code runs."""

    EXECUTION = "execution"
    STEP = "step"
    INFERENCE = "inference"
    TOOL_CALL = "tool_call"


@frozen(eq=False, repr=False)
class Operation(Value):
    """A part of an execution in which code runs: the execution itself, one of its steps, an inference or a tool call.

    Attributes:
        kind: which of them.
        agent_id: the agent.
        execution_id: the execution.
        parent_agent_id: the agent whose tool call this agent serves; None for a top-level agent.
        step_number: the 1-based step; 0 before the first.
        key: the idempotency key of the tool call; empty for anything else.
        call: the tool call; None for anything else.
        agent_name: the name of the agent; empty without one.
    """

    kind: OperationKind
    agent_id: str
    execution_id: str
    parent_agent_id: str | None
    step_number: int
    key: str = ""
    call: ToolCall | None = None
    agent_name: str = ""
