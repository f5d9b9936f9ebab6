"""Events of a tool call."""

from __future__ import annotations

from enum import StrEnum

from attrs import field, frozen

from agentloop.events.resilience import ToolCallDecided
from agentloop.values.decisions import PendingCall
from agentloop.values.event import Event
from agentloop.values.inference import InferenceResponse
from agentloop.values.json import JsonValue, freeze
from agentloop.values.tool_calls import ToolCall, ToolExecution


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


@frozen(eq=False, repr=False)
class PermissionDecided(Event):
    """A call was let through or kept from running, before it began.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
        allowed: what was decided.
        rule: the rule that decided, in words; empty when no rule spoke of the call.
        reason: what the model is told; empty when the call was let through.
    """

    key: str
    name: str
    allowed: bool
    rule: str = ""
    reason: str = ""


class Recovery(StrEnum):
    """What becomes of a call that had begun when its execution was interrupted.

    `REUSED`: its recorded outcome is used. `REPEATED`: it is run again with the same key, as its effect allows, or since its
    tool says that it has not run. `CONTINUED`: its tool goes on from a record of its own. `RECONCILED`: its tool says that it has
    run, and what came of it. `IN_DOUBT`: nobody knows whether it has run.
    """

    REUSED = "reused"
    REPEATED = "repeated"
    CONTINUED = "continued"
    RECONCILED = "reconciled"
    IN_DOUBT = "in_doubt"


@frozen(eq=False, repr=False)
class InferenceReused(Event):
    """A recorded response was used, and the model not asked.

    Attributes:
        response: the response.
    """

    response: InferenceResponse


@frozen(eq=False, repr=False)
class ToolCallRecovered(ToolCallDecided):
    """It was decided what becomes of a call that had begun when its execution was interrupted.

    Attributes:
        recovery: what becomes of it.
        reason: why, where that is not said by `recovery`.
    """

    recovery: Recovery = field(converter=Recovery)
    reason: str = ""


@frozen(eq=False, repr=False)
class ToolCallIntentKept(ToolCallDecided):
    """A call that had begun was to be changed or kept from running; what was recorded of it holds.

    Attributes:
        recorded: the call as it had begun.
        refused: what was to become of it now.
    """

    recorded: ToolCall
    refused: str
