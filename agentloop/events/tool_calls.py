"""Events of tool calls, permissions and recovery."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from attrs import field, frozen

from agentloop.events.resilience import ToolCallDecided
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.event import Event
from agentloop.values.grants import GrantState
from agentloop.values.inference import InferenceResponse
from agentloop.values.json import JsonValue, freeze
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution


@frozen(eq=False, repr=False)
class ToolCallStarted(Event):
    """A tool started. A call that is rejected, blocked or answered without running has no such event.

    Attributes:
        key: the idempotency key of the call.
        call: the call as it runs.
    """

    key: str
    call: ToolCall


@frozen(eq=False, repr=False)
class ToolCallProgressed(Event):
    """A running tool reported progress.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
        update: the progress as JSON.
    """

    key: str
    name: str
    update: JsonValue = field(converter=freeze)


@frozen(eq=False, repr=False)
class ToolCallSettled(Event):
    """The base of the events at the end of a call.

    Attributes:
        execution: the outcome after the interceptors, the same as in the state (law 10).
        exception: what the tool, or an interceptor around it, raised in this process; None if the call succeeded or its
            outcome was recorded. It is neither compared nor stored.
    """

    is_base: ClassVar[bool] = True

    execution: ToolExecution
    exception: BaseException | None = field(default=None, eq=False, repr=False)

    @property
    def key(self) -> str:
        """The idempotency key of the call."""
        return self.execution.key


class ToolCallCompleted(ToolCallSettled):
    """A call ended: it succeeded, failed, timed out, was cancelled, or was answered without running."""

    __slots__ = ()


class ToolCallBlocked(ToolCallSettled):
    """An interceptor or an ordering rule prevented a call."""

    __slots__ = ()


class ToolCallRejected(ToolCallSettled):
    """A call could not run: unknown tool, malformed arguments, or arguments that do not satisfy the schema."""

    __slots__ = ()


@frozen(eq=False, repr=False)
class ToolCallSuspended(Event):
    """A running tool suspended its call; an agent as a tool does so when one of its own calls is pending.

    Attributes:
        pending: the pending call.
    """

    pending: PendingCall

    @property
    def key(self) -> str:
        """The idempotency key of the call."""
        return self.pending.key


@frozen(eq=False, repr=False)
class ToolsUnavailable(Event):
    """A request is about to be sent without the tools of a server that is not required and cannot be reached; the model is told.

    Attributes:
        server: the name of the server.
        reason: why it cannot be reached.
    """

    server: str
    reason: str


@frozen(eq=False, repr=False)
class ToolCallSlow(Event):
    """A call has been running for `Bounds.slow_tool_seconds`; it continues. Reported once per call.

    Attributes:
        key: the idempotency key of the call.
        call: the call.
        seconds: the seconds since the call started.
    """

    key: str
    call: ToolCall
    seconds: float


@frozen(eq=False, repr=False)
class ToolCallAbandoned(Event):
    """A tool continues although its call is about to be settled: a function in its thread, or a task that ignores cancellation.

    Its result will be dropped.

    Attributes:
        key: the idempotency key of the call.
        call: the call.
    """

    key: str
    call: ToolCall


@frozen(eq=False, repr=False)
class AbandonedToolCallEnded(Event):
    """An abandoned tool has ended, and its result was dropped. This event may come after the end of the execution.

    Attributes:
        key: the idempotency key of the call.
        call: the call.
        error: what the tool raised; None if it returned.
    """

    key: str
    call: ToolCall
    error: ErrorInfo | None = None


@frozen(eq=False, repr=False)
class PermissionDecided(Event):
    """A call was allowed or denied before it started.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
        allowed: whether the call may run.
        rule: the rule that decided, in words; empty if no rule matched.
        reason: the reason for the model; empty if the call was allowed.
    """

    key: str
    name: str
    allowed: bool
    rule: str = ""
    reason: str = ""


@frozen(eq=False, repr=False)
class ToolDefinitionChanged(ToolCallDecided):
    """A call was suspended, since the server of its tool has changed the definition of the tool.

    Attributes:
        known: the hash of the definition that was first listed, or under which the call was approved.
        current: the hash of the current definition.
    """

    known: str
    current: str


@frozen(eq=False, repr=False)
class ToolCallReviewed(ToolCallDecided):
    """The decision about a call that waited for one is applied.

    Attributes:
        decision: the decision.
    """

    decision: Decision


@frozen(eq=False, repr=False)
class ToolCallGranted(ToolCallDecided):
    """A call runs without a question, since a grant covers it.

    Attributes:
        grant_id: the grant.
        by: who gave it; empty when that is unknown.
        limits: its limits, in words.
    """

    grant_id: str
    by: str
    limits: str


@frozen(eq=False, repr=False)
class GrantGiven(ToolCallDecided):
    """A person has allowed later calls of a tool together with the approval of a call.

    Attributes:
        grant: the grant, and for which calls it holds.
    """

    grant: GrantState


class Recovery(StrEnum):
    """What happens to a call that had started when its execution was interrupted.

    `REUSED`: its recorded outcome is used. `REPEATED`: it runs again with the same key, because its effect allows it or its tool
    reported that it has not run. `CONTINUED`: its tool continues from its own record. `RECONCILED`: its tool reported that it
    has run, with its result. `IN_DOUBT`: it is unknown whether it has run.
    """

    REUSED = "reused"
    REPEATED = "repeated"
    CONTINUED = "continued"
    RECONCILED = "reconciled"
    IN_DOUBT = "in_doubt"


@frozen(eq=False, repr=False)
class InferenceReused(Event):
    """A recorded response was used instead of a request to the model.

    Attributes:
        response: the recorded response, as it was before `after_inference`, at which interceptors may replace it or hold it back.
    """

    response: InferenceResponse


@frozen(eq=False, repr=False)
class ToolCallRecovered(ToolCallDecided):
    """The recovery of a call that had started when its execution was interrupted was decided.

    Attributes:
        recovery: what happens to the call.
        reason: the reason, if `recovery` does not imply it; else empty.
    """

    recovery: Recovery = field(converter=Recovery)
    reason: str = ""


@frozen(eq=False, repr=False)
class ToolCallIntentKept(ToolCallDecided):
    """An interceptor tried to change or prevent a call that had started before an interruption; its recorded intent is kept.

    Attributes:
        recorded: the call as it had started.
        refused: the refused change, in words.
    """

    recorded: ToolCall
    refused: str
