"""Records of a journal and their contents: recorded inferences, calls with their intents, and interrupted calls in doubt."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import TypeAlias

from attrs import evolve, field, frozen

from agentloop import errors
from agentloop.errors.kinds import ConfigurationError, InferenceError
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceResponse, Usage
from agentloop.values.json import EMPTY_OBJECT, JsonObject, JsonValue, freeze, freeze_object
from agentloop.values.labels import ArgumentOrigin, Label
from agentloop.values.steps import NO_USAGE, ExecutionStatus
from agentloop.values.stop import StopSignal
from agentloop.values.time_and_ids import to_microseconds
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolCall, ToolExecution, ToolStatus
from agentloop.values.value import Value

RECORD_SCHEMA_VERSION = 4
"""The current version of the bodies of records. Version 3 stores each fact once: the record of a step refers to the responses and
outcomes of its other records, a delta holds the fields that changed, and `DECISION_USED` names the suspension. In version 4, an intent
names the grant that it uses.

It is the default of `JournalRecord.schema_version`, and the JSON form of a value omits defaults. An increase must also raise
`SCHEMA_VERSION` in `agentloop.values.serialization`, with a migration that adds the former version to records without one.
"""

FAILURE = "failure"
"""The name of the attachment that describes the error of an interceptor or listener around a recorded call."""

PROVISIONAL = "provisional"
"""The name of the attachment to an outcome that interceptors saw afterwards, such as to mask it; what they left is in its step."""

TRACEBACK = "traceback"
"""The name of the attachment of a call whose tool raised an error: the traceback of the newest attempt that raised, as a text."""

AGENT = "agent"
"""The name of the attachment that names the execution of the agent which served a call."""

FIRST_HASH = ""
"""The `previous_hash` of the first record of an execution."""


# --- ids of executions --------------------------------------------------------------------------------------------------

MAX_ID_CHARACTERS = 1_000
"""The maximum length of an id that a user or a client chooses. Those of agents that serve calls are longer by the places of the calls."""

MAX_WHOLE_ID_CHARACTERS = 2 * MAX_ID_CHARACTERS
"""The maximum length of an id that a client asks for; one of an agent that serves a call has room for the places of 40 calls."""

_INNER_KEY = re.compile(r"(.+/[0-9]+/[0-9]+)/program/([0-9]+)", re.DOTALL)


def inner_key(key: str, number: int) -> str:
    """Return the idempotency key of a call that a program makes.

    Args:
        key: the key of the call that runs the program.
        number: the 0-based number of the call among those of the program.
    """
    return f"{key}/program/{number}"


def outer_key(key: str) -> str:
    """Return the key of the call whose program makes a call; empty for the key of a call that a model makes."""
    match = _INNER_KEY.fullmatch(key)
    return match[1] if match is not None else ""


def sub_agent_execution_id(key: str, attempt: int = 1) -> str:
    """Return the id of the execution of an agent that serves a call.

    Args:
        key: the idempotency key of the call.
        attempt: the 1-based number of the attempt to run the call.
    """
    return f"{key}/agent" if attempt == 1 else f"{key}/agent-{attempt}"


def caller_of(execution_id: str) -> str:
    """Return the id of the execution whose call an execution serves, which is a part of its id; empty if it serves none.

    Ids of this form are reserved for the executions of agents that serve calls.
    """
    return next(callers_of(execution_id), "")


def call_of(execution_id: str) -> tuple[str, int] | None:
    """Return the key of the call that an execution serves, and the 1-based attempt; None if it serves none."""
    if not caller_of(execution_id):
        return None
    key, _, suffix = execution_id.rpartition("/agent")
    return key, int(suffix[1:]) if suffix else 1


def check_execution_id(execution_id: str) -> str:
    """Return an id that a user chose for an execution, after checking that it is not reserved.

    Raises:
        ConfigurationError: it has the form of the ids of executions that serve calls, or more than 1,000 characters.
    """
    if len(execution_id) > MAX_ID_CHARACTERS:
        raise ConfigurationError(
            f"the execution id {execution_id!r:.100}… has {len(execution_id):,} characters; choose one of at most "
            f"{MAX_ID_CHARACTERS:,}"
        )
    caller = caller_of(execution_id)
    if caller:
        raise ConfigurationError(
            f"the execution id {execution_id!r} is reserved for an agent that serves a call of {caller!r}; choose an id that "
            "does not end with /<step>/<call>/agent"
        )
    return execution_id


def callers_of(execution_id: str) -> Iterator[str]:
    """Yield the ids of the executions above an execution: that of its caller, of the caller's caller, and so on."""
    for end in _ends_of_callers(execution_id):
        yield execution_id[:end]


def root_of(execution_id: str) -> str:
    """Return the id of the outermost execution above an execution, or its own; the time is linear in the length of the id."""
    end = len(execution_id)
    for end in _ends_of_callers(execution_id):  # noqa: B007  # the last one counts
        pass
    return execution_id[:end]


def _ends_of_callers(execution_id: str) -> Iterator[int]:
    """Yield where the ids of the callers end in an id, the innermost caller first."""
    segments, end = execution_id.split("/"), len(execution_id)
    while count := _place_length(segments):
        end -= sum(map(len, segments[-count:])) + count
        del segments[-count:]
        if not end:
            return
        yield end


def _place_length(segments: Sequence[str]) -> int:
    """Return how many segments at the end of an id are the place of a call and the agent that serves it; 0 for none."""
    agent, dash, attempt = segments[-1].partition("-")
    if agent != "agent" or (dash and not _is_number(attempt)):
        return 0
    count = 5 if segments[-3:-2] == ["program"] else 3
    numbers = [segments[-2], *segments[-5:-3]] if count > 3 else segments[-3:-1]  # noqa: PLR2004  # see above
    return count if len(segments) > count and all(map(_is_number, numbers)) else 0


def _is_number(text: str) -> bool:
    return len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit()


_MAX_DIGITS = 18


# --- records and heads --------------------------------------------------------------------------------------------------


class RecordKind(StrEnum):
    """The kind of a record."""

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
    CALL_ATTACHED = "call_attached"
    CALL_OUTCOME = "call_outcome"
    CALL_SUSPENDED = "call_suspended"
    DECISION_USED = "decision_used"
    STEP_COMPLETED = "step_completed"


@frozen(eq=False, repr=False, kw_only=True)
class JournalRecord(Value):
    """One record of a journal.

    Attributes:
        execution_id: the execution.
        sequence: the 1-based position among the records of the execution, without gaps.
        kind: the kind of the record.
        at: when it was written, by the clock of the loop.
        schema_version: the version of `body`; the JSON form leaves out the current one.
        body: the content, as the text of a JSON object.
        previous_hash: the hash of the preceding record; empty for the first.
        hash: SHA-256 over all of the above, in hexadecimal; computed by `agentloop.durable.chain.record_hash`.
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
    """The summary of an execution that a journal returns without reading its records.

    Attributes:
        execution_id: the id of the execution.
        agent_id: its agent.
        parent_agent_id: the agent whose tool call it serves; None for a top-level agent.
        number: 1-based index of this execution among its agent's executions.
        status: its status; `in_progress` also if the process that drove it has died.
        step_count: the number of complete steps.
        record_count: the number of records, which is the sequence number of the last one.
        last_hash: the hash of the last record.
        input: the beginning of its input text, for people.
        forked_from: the execution from which it was forked; empty for others.
        started_at: when it started.
        updated_at: when the last record was written.
        agent_name: the name of its agent when it started; empty without one.
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
    agent_name: str = ""

    @property
    def cursor(self) -> str:
        """The position of the execution in the order in which journals list executions, for the parameter `after` of `list`."""
        started = to_microseconds(self.started_at)
        return f"{started}/{self.number}/{self.execution_id}"


def parse_cursor(cursor: str) -> tuple[int, int, str]:
    """Return the start of an execution in microseconds since 1970, its number and its id, from the cursor of its head.

    Journals list executions in the descending order of these three.

    Raises:
        ConfigurationError: the text is not a cursor.
    """
    match = _CURSOR.fullmatch(cursor) if len(cursor) <= _MAX_CURSOR_CHARACTERS else None
    if match is None:
        raise ConfigurationError(f"{cursor!r:.100} is not a cursor; pass the cursor of the last execution of a list")
    return int(match[1]), int(match[2]), match[3]


_CURSOR = re.compile(r"(-?[0-9]{1,18})/([0-9]{1,18})/(.+)", re.DOTALL)
_MAX_CURSOR_CHARACTERS = 20_000  # journals also keep ids that are longer than those of clients


# --- inferences and calls -----------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False, kw_only=True)
class RecordedAttempt(Value):
    """An attempt of an inference that failed and was followed by another one.

    Attributes:
        error: the error.
        failed_at: when it failed.
        delay: the seconds that were waited before the next attempt.
        instead: the name of the model that was asked next, if it is another one; else empty.
    """

    error: ErrorInfo
    failed_at: datetime
    delay: float = 0.0
    instead: str = ""


@frozen(eq=False, repr=False, kw_only=True)
class RecordedInference(Value):
    """The result of an inference.

    Attributes:
        response: the response after the interceptors around the inference; None if the inference failed.
        error: the error; None if it succeeded.
        usage: the tokens of all requests that were sent for it.
        requests: the number of these requests, with failed ones.
        is_other: whether they were sent to another model than the driver's own.
        stop: the stop signal with which an interceptor around the inference ended it; else None.
        purpose: what an interceptor made it for, `guardrail` or `summary`; empty for one of the driver.
        started_at: when it started; None if that is not recorded.
        failed_attempts: the attempts that failed before the last one, in order.
        is_provisional: whether interceptors, such as guardrails, saw the response afterwards. They may have replaced it, or ended the
            execution because of it; what they made of it is in the record of the step.
    """

    response: InferenceResponse | None = None
    error: ErrorInfo | None = None
    usage: Usage = NO_USAGE
    requests: int = 1
    is_other: bool = False
    stop: StopSignal | None = None
    purpose: str = ""
    started_at: datetime | None = None
    failed_attempts: tuple[RecordedAttempt, ...] = field(default=(), converter=tuple[RecordedAttempt, ...])
    is_provisional: bool = False


@frozen(eq=False, repr=False, kw_only=True)
class CallIntent(Value):
    """A call that is about to run; it is recorded before the tool starts.

    Attributes:
        key: the idempotency key.
        id: the id of the tool execution.
        call: the call as it runs.
        effect: the declared effect of the tool.
        at: when the call started.
        requested: the call as a program made it, if an interceptor or a reviewer changed it; else None.
        grant: the id of the grant that it uses, so that nobody was asked; empty for none.
        label: who had a part in the decision to make it; None where that is not tracked.
        origins: who had a part in each argument, if the program that makes the call has said so.
    """

    key: str
    id: str
    call: ToolCall
    effect: Effect = field(converter=Effect)
    at: datetime
    requested: ToolCall | None = None
    grant: str = ""
    label: Label | None = None
    origins: tuple[ArgumentOrigin, ...] = ()

    def to_execution(
        self, status: ToolStatus, *, value: JsonValue = None, error: ErrorInfo | None = None, may_have_run: bool = False
    ) -> ToolExecution:
        """Return an outcome of the call that does not come from running it; it starts and ends at the time of the intent."""
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
    """A call that has started, and its outcome if there is one.

    Attributes:
        intent: the call as it started.
        execution: its outcome; None if none is recorded, so that it is unknown whether the tool ran to its end.
        pending: the suspended call, if its tool has suspended it; else None.
        stop: the stop that its tool requested; None if it requested none.
        redacted: whether a secret in it was masked, so that it cannot run again.
        attachments: extra JSON stored with its outcome, by name; without one, with its newest attempt.
        is_answered: whether the policy of a fork answered it, so that its tool did not run.
    """

    intent: CallIntent
    execution: ToolExecution | None = None
    pending: PendingCall | None = None
    stop: StopSignal | None = None
    redacted: bool = False
    attachments: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    is_answered: bool = False

    @property
    def traceback(self) -> str:
        """The traceback of its tool if the call failed because the tool raised an error; empty otherwise."""
        attached = self.attachments.get(TRACEBACK)
        has_failed = self.execution is not None and self.execution.has_error
        return str(attached.get("text", "")) if has_failed and isinstance(attached, JsonObject) else ""

    def to_execution(self) -> ToolExecution:
        """Return its recorded outcome; without one, it is cancelled, or in doubt if it has an effect."""
        if self.execution is not None:
            return self.execution
        intent = self.intent
        if intent.effect is Effect.EFFECT:
            status, error = ToolStatus.IN_DOUBT, ErrorInfo(errors.ToolInDoubt.__name__, _NOT_RESUMED)
        else:
            status, error = ToolStatus.CANCELLED, ErrorInfo("Cancelled", _NOT_RESUMED)
        return intent.to_execution(status, error=error, may_have_run=intent.effect is not Effect.PURE)

    def to_closed_execution(self) -> ToolExecution:
        """Return its outcome in an execution that ends before it settles the call.

        An outcome that interceptors were to see afterwards, such as to mask it, is dropped.
        """
        execution, intent = self.to_execution(), self.intent
        if self.execution is None or PROVISIONAL not in self.attachments:
            return execution
        may_have_run = intent.effect is not Effect.PURE and (execution.succeeded or execution.may_have_run)
        dropped = intent.to_execution(
            ToolStatus.CANCELLED, error=ErrorInfo("Cancelled", _NOT_SEEN), may_have_run=may_have_run
        )
        return evolve(dropped, inner=execution.inner)


def with_inner_calls(call: RecordedCall, inner: Sequence[RecordedCall]) -> RecordedCall:
    """Return a call that is not resumed with the recorded outcomes of the calls that its program made."""
    if not inner or call.execution is not None:
        return call
    made = tuple([each.to_closed_execution() for each in inner])
    return evolve(call, execution=evolve(call.to_execution(), inner=made))


_NOT_RESUMED = "the program was interrupted while this call ran, and the call was not resumed"
_NOT_SEEN = "the program was interrupted before the interceptors had seen the outcome of the call, which was dropped"


class InDoubt(StrEnum):
    """What happens to an interrupted call with an effect, if it cannot be determined whether it ran.

    `TELL` settles it with the status `in_doubt`, which the model and the listeners see. `SUSPEND` suspends it until a person
    decides: `approve` runs it again, `answer` provides its result, `deny` settles it without a result. `FAIL` ends the
    execution as failed.
    """

    TELL = "tell"
    SUSPEND = "suspend"
    FAIL = "fail"


@frozen(eq=False, repr=False)
class Happened(Value):
    """The interrupted call has run.

    Attributes:
        value: its result, as the tool would have returned it.
    """

    value: JsonValue = field(default=None, converter=freeze)


@frozen(eq=False, repr=False)
class DidNotHappen(Value):
    """The interrupted call has not run, and will have no effect unless it is run again."""


@frozen(eq=False, repr=False)
class CannotTell(Value):
    """It cannot be determined whether the interrupted call has run.

    Attributes:
        reason: the reason, for the model and for people.
    """

    reason: str = ""


Reconciliation: TypeAlias = Happened | DidNotHappen | CannotTell
"""What a tool returns about one of its interrupted calls."""


def happened(value: object = None) -> Happened:
    """Report that the call has run, with its result."""
    return Happened(value)


def did_not_happen() -> DidNotHappen:
    """Report that the call has not run and cannot run later, such as in a process that was only stopped; it runs now."""
    return DidNotHappen()


def cannot_tell(reason: str = "") -> CannotTell:
    """Report that it cannot be determined whether the call has run."""
    return CannotTell(reason)


def rebuild_error(recorded: ErrorInfo | None) -> Exception:
    """Return an error for a recorded failure of an inference.

    Its class is the recorded one if that is an error of agentloop, else a new subclass of `InferenceError` with that name.
    """
    if recorded is None:
        return InferenceError("the recorded inference failed")
    known: object = getattr(errors, recorded.type, None)
    if isinstance(known, type) and issubclass(known, InferenceError):
        return known(recorded.message)
    # Retry policies and state compare the names of error classes, so the name must survive.
    unknown: type[InferenceError] = type(recorded.type, (InferenceError,), {})
    return unknown(recorded.message)
