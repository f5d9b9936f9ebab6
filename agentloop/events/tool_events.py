"""Events of a tool call."""

from __future__ import annotations

from attrs import field, frozen

from agentloop.values.event import Event
from agentloop.values.json_value import JsonValue, freeze
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExecution


@frozen(eq=False, repr=False)
class ToolCallStarted(Event):
    """A tool began to run. A call that is rejected, blocked or answered without running has no such event.

    Attributes:
        key: the idempotency key of the call.
        call: the call as it runs.
    """

    key: str
    call: ToolCall


@frozen(eq=False, repr=False)
class ToolCallProgressed(Event):
    """A running tool told how far it is.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
        update: what the tool said.
    """

    key: str
    name: str
    update: JsonValue = field(converter=freeze)


@frozen(eq=False, repr=False)
class ToolCallSettled(Event):
    """What the events at the end of a call have in common; what they say is what the state and the model get.

    Attributes:
        execution: the outcome, after the interceptors.
    """

    execution: ToolExecution

    @property
    def key(self) -> str:
        """The idempotency key of the call."""
        return self.execution.key


class ToolCallCompleted(ToolCallSettled):
    """A call ended: it succeeded, failed, timed out, was cancelled, or was answered without running."""

    __slots__ = ()


class ToolCallBlocked(ToolCallSettled):
    """A call was kept from running."""

    __slots__ = ()


class ToolCallRejected(ToolCallSettled):
    """A call could not be run: unknown tool, malformed arguments, arguments against the schema."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class ToolCallSuspended(Event):
    """A running tool let its call wait for a decision; an agent does when a call of its own waits.

    Attributes:
        pending: the call as it waits.
    """

    pending: PendingCall

    @property
    def key(self) -> str:
        """The idempotency key of the call."""
        return self.pending.key


@frozen(eq=False, repr=False)
class ToolCallAbandoned(Event):
    """A plain function goes on in its thread although its call has ended; what it will return is dropped.

    Attributes:
        key: the idempotency key of the call.
        call: the call.
    """

    key: str
    call: ToolCall
