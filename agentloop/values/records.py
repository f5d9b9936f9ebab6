"""One entry of a journal, and what a list of executions shows of each."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from attrs import field, frozen

from agentloop import errors
from agentloop.errors import InferenceError
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceResponse, Usage
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.steps import NO_USAGE, ExecutionStatus
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExecution, ToolStatus
from agentloop.values.value import Value

RECORD_SCHEMA_VERSION = 2
"""The version of the bodies of records that are written now."""

FAILURE = "failure"
"""The name of the attachment that describes the error of an interceptor or listener around a recorded call."""

FIRST_HASH = ""
"""What stands in the first record of an execution in place of the hash of the one before."""


class RecordKind(StrEnum):
    """What a record tells."""

    EXECUTION_STARTED = "execution_started"
    EXECUTION_RECOVERED = "execution_recovered"
    EXECUTION_RESUMED = "execution_resumed"
    EXECUTION_SUSPENDED = "execution_suspended"
    EXECUTION_ENDED = "execution_ended"
    MESSAGES_SENT = "messages_sent"
    MESSAGES_TAKEN = "messages_taken"
    INFERENCE_RECORDED = "inference_recorded"
    INFERENCE_FAILED = "inference_failed"
    CALL_INTENT = "call_intent"
    CALL_OUTCOME = "call_outcome"
    CALL_SUSPENDED = "call_suspended"
    DECISION_USED = "decision_used"
    STEP_COMPLETED = "step_completed"


@frozen(eq=False, repr=False, kw_only=True)
class JournalRecord(Value):
    """One entry of a journal.

    Attributes:
        execution_id: the execution that it is of.
        sequence: its place among the records of the execution, from 1, without gaps.
        kind: what it tells.
        at: when it was made, by the clock of the loop.
        schema_version: the version of the form of `body`.
        body: what it tells, as the text of a JSON object.
        previous_hash: the hash of the record before it; empty for the first.
        hash: SHA-256 over all of the above, in hexadecimal; `agentloop.journal.chain_record` makes it.
    """

    execution_id: str
    sequence: int
    kind: RecordKind = field(converter=RecordKind)
    at: datetime
    schema_version: int = RECORD_SCHEMA_VERSION
    body: str
    previous_hash: str
    hash: str


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionHead(Value):
    """What a journal knows of an execution without reading its records.

    Attributes:
        execution_id: the id of the execution.
        agent_id: the agent that it is of.
        parent_agent_id: the agent whose tool call it serves; None for one of its own.
        number: the how manieth execution of its agent it is, from 1.
        status: where it stands; `in_progress` also when the process that drove it has died.
        step_count: how many steps are complete.
        record_count: how many records there are; the sequence number of the last.
        last_hash: the hash of the last record.
        input: the beginning of the text that it began with, for people to know it by.
        forked_from: the execution that it was forked from; empty for others.
        started_at: when it began.
        updated_at: when the last record was made.
    """

    execution_id: str
    agent_id: str
    parent_agent_id: str | None = None
    number: int
    status: ExecutionStatus = field(converter=ExecutionStatus)
    step_count: int = 0
    record_count: int = 0
    last_hash: str = FIRST_HASH
    input: str = ""
    forked_from: str = ""
    started_at: datetime
    updated_at: datetime


@frozen(eq=False, repr=False, kw_only=True)
class RecordedInference(Value):
    """What came of an inference.

    Attributes:
        response: the response, as the layers around the inference let it through; None when it failed.
        error: why it failed; None when it did not.
        usage: tokens of all the times that the model was asked for it.
        stop: the stop with which a layer around the inference ended it; None otherwise.
    """

    response: InferenceResponse | None = None
    error: ErrorInfo | None = None
    usage: Usage = NO_USAGE
    stop: StopSignal | None = None


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

    def to_execution(
        self, status: ToolStatus, *, value: JsonValue = None, error: ErrorInfo | None = None, may_have_run: bool = False
    ) -> ToolExecution:
        """Return an outcome that the call has without being run; it ends when it was to begin."""
        return ToolExecution.of(
            self.call,
            status,
            key=self.key,
            id=self.id,
            at=self.at,
            value=value,
            error=error,
            may_have_run=may_have_run,
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
        attachments: extra JSON stored with its outcome, by name.
    """

    intent: CallIntent
    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    stop: StopSignal | None = None
    redacted: bool = False
    attachments: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)


class InDoubt(StrEnum):
    """What becomes of a call with an effect that was interrupted, when nobody can be asked whether it has run.

    `TELL` settles it as `in_doubt`: the model is told, and so are listeners. `SUSPEND` lets it wait for a person: to approve
    is to run it again, to answer says what came of it, to deny leaves it. `FAIL` ends the execution as failed.
    """

    TELL = "tell"
    SUSPEND = "suspend"
    FAIL = "fail"


@frozen(eq=False, repr=False)
class Happened(Value):
    """The call has run.

    Attributes:
        value: what the tool would have returned.
    """

    value: JsonValue = field(default=None, converter=freeze)


@frozen(eq=False, repr=False)
class DidNotHappen(Value):
    """The call has not run, and will not unless it is run again."""


@frozen(eq=False, repr=False)
class CannotTell(Value):
    """It cannot be found out whether the call has run.

    Attributes:
        reason: why not, for the model and for people.
    """

    reason: str = ""


Reconciliation: TypeAlias = Happened | DidNotHappen | CannotTell
"""What a tool reports about an interrupted call of its own."""


def happened(value: object = None) -> Happened:
    """Say that the call has run, and what came of it."""
    return Happened(value)


def did_not_happen() -> DidNotHappen:
    """Say that the call has not run: it is run now."""
    return DidNotHappen()


def cannot_tell(reason: str = "") -> CannotTell:
    """Say that it cannot be found out."""
    return CannotTell(reason)


def rebuild_error(recorded: ErrorInfo | None) -> Exception:
    """Return an error of the recorded class with the recorded message: one of agentloop's where it is one, else one like it."""
    if recorded is None:
        return InferenceError("the recorded inference failed")
    known: object = getattr(errors, recorded.type, None)
    if isinstance(known, type) and issubclass(known, InferenceError):
        return known(recorded.message)
    like_it: type[InferenceError] = type(recorded.type, (InferenceError,), {})
    return like_it(recorded.message)
