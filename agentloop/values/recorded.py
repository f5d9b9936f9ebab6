"""What a journal holds of an inference and of a tool call, as those who make them see it."""

from __future__ import annotations

from datetime import datetime

from attrs import field, frozen

from agentloop.values.agent_step import NO_USAGE
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, JsonValue, freeze_object
from agentloop.values.pending_call import PendingCall
from agentloop.values.stop import StopSignal
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ErrorInfo, ToolExecution, ToolStatus
from agentloop.values.tool_spec import Effect
from agentloop.values.usage import Usage
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class RecordedInference(Value):
    """What came of an inference.

    Attributes:
        response: the response, as the layers around the inference let it through; None when it failed.
        error: why it failed; None when it did not.
        usage: tokens of all the times that the model was asked for it.
    """

    response: InferenceResponse | None = None
    error: ErrorInfo | None = None
    usage: Usage = NO_USAGE


@frozen(eq=False, repr=False, kw_only=True)
class CallIntent(Value):
    """A call that is about to run.

    Attributes:
        key: its idempotency key.
        id: the id of its execution.
        call: the call as it runs.
        effect: what it does to the world, as its tool said.
        at: when it began.
    """

    key: str
    id: str
    call: ToolCall
    effect: Effect = field(converter=Effect)
    at: datetime

    def ended(
        self, status: ToolStatus, *, value: JsonValue = None, error: ErrorInfo | None = None, may_have_run: bool = False
    ) -> ToolExecution:
        """Return an outcome that the call has without being run; it ends when it was to begin."""
        return ToolExecution(
            id=self.id,
            key=self.key,
            call=self.call,
            status=status,
            value=value,
            error=error,
            may_have_run=may_have_run,
            started_at=self.at,
            ended_at=self.at,
        )


@frozen(eq=False, repr=False, kw_only=True)
class RecordedCall(Value):
    """A call that has begun, and what is known of its end.

    Attributes:
        intent: the call as it began.
        execution: its outcome; None when there is none, so that nobody knows whether it ran.
        pending: how it waits, when its tool has suspended it; else None.
        stop: the stop that its tool asked for; None when it did not.
        redacted: whether something secret was masked in it, so that it cannot be run again.
        beside: what those around it keep with its end, by their names.
    """

    intent: CallIntent
    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    stop: StopSignal | None = None
    redacted: bool = False
    beside: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
