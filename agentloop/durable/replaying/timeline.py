"""Reads a recorded execution step by step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from attrs import define, field

from agentloop.durable.fold import FoldedExecution, RecordedChange
from agentloop.durable.record_writer import REDACTED
from agentloop.errors import AgentLoopError, InterceptorFailed, ToolInDoubt
from agentloop.values.decisions import Decision
from agentloop.values.inference import InferenceRequest
from agentloop.values.messages import Message
from agentloop.values.records import FAILURE, JournalRecord, RecordedCall, RecordedInference, RecordKind
from agentloop.values.secrets import MASK
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, StopReason


@define(eq=False, kw_only=True)
class RecordedRequest:
    """A recorded inference with its request.

    Attributes:
        request: the request.
        inference: the result.
        rendering: the form in which the model received it, as plain JSON data; None when it received it unchanged.
        at: when it was recorded.
        redacted: whether a secret in it is masked.
        is_reused: whether an interrupted execution reused the result for a request with further messages, which is not recorded.
    """

    request: InferenceRequest
    inference: RecordedInference
    rendering: dict[str, Any] | None
    at: datetime
    redacted: bool = False
    is_reused: bool = False

    @property
    def has_masked_calls(self) -> bool:
        """Whether a tool call of the response is masked, so that it is not the call that the model made."""
        response = self.inference.response
        calls = response.tool_calls if self.redacted and response is not None else ()
        return any(MASK in call.arguments_json for call in calls)

    @property
    def stop(self) -> AgentStop | None:
        """The stop with which a layer around the inference ended it."""
        signal = self.inference.stop
        if signal is None:
            return None
        return AgentStop(signal.message, reason=signal.reason, source=signal.source, context=signal.context)


@define(eq=False)
class RecordedStep:
    """Everything recorded between two states: a step, the end of the execution, or the decisions that resumed it.

    Attributes:
        before: the state before it.
        closing: the kind of the record that closes it; None when the execution was interrupted or is still running.
        state: the state after it; None when no record closes it.
        at: when it was closed, or when its last record was made, less the downtime.
        downtime: how long the program was down until then.
        requests: the inferences in order; of those repeated after an interruption, the last.
        calls: the calls, by key.
        messages: the messages that the step took.
        late_messages: the messages that were taken when the execution ended in the middle of the step.
        decisions: the decisions about suspended calls, by key.
    """

    before: AgentState
    closing: RecordKind | None = None
    state: AgentState | None = None
    at: datetime | None = None
    downtime: timedelta = timedelta()
    requests: list[RecordedRequest] = field(factory=list)
    calls: dict[str, RecordedCall] = field(factory=dict)
    messages: list[Message] = field(factory=list)
    late_messages: list[Message] = field(factory=list)
    decisions: dict[str, Decision] = field(factory=dict)

    @property
    def number(self) -> int:
        """The 1-based number of the step."""
        return self.before.step_count + (0 if self.before.open_turn is not None else 1)

    @property
    def has_step(self) -> bool:
        """Whether it adds a step to the state or settles a suspended one."""
        after = self.state
        return after is not None and (
            after.step_count > self.before.step_count or after.last_step != self.before.last_step
        )

    @property
    def external_stop(self) -> str:
        """Why its user, a time limit or a call in doubt cut it short, which a replay cannot repeat; empty when nothing did."""
        state = self.state
        if state is None or state.execution is None:
            return ""
        known = self.before.execution.continuation.signals if self.before.execution is not None else ()
        for signal in state.execution.continuation.signals:
            if signal.reason in _EXTERNAL and signal not in known:
                return f"{signal.reason.value}: {signal.message}"
        errors = state.last_step.errors if state.last_step is not None else ()
        return next((error.message for error in errors if error.type == ToolInDoubt.__name__), "")


_EXTERNAL = frozenset({StopReason.USER_REQUESTED, StopReason.TIME_LIMIT})


class Timeline:
    """The steps of a recorded execution.

    Attributes:
        start: the state with which it started.
        origin: the other data of its first record, such as the composition of its loop.
        started_at: when its first record was made.

    Raises:
        JournalCorrupt: a record cannot be read.
    """

    def __init__(self, records: Iterable[JournalRecord]) -> None:
        self._records = iter(records)
        self._execution = FoldedExecution()
        first = next(self._records)
        self._execution.apply(first)
        self.start: AgentState = self._state
        self.origin: Mapping[str, Any] = self._execution.origin
        self.started_at: datetime = first.at
        self._last_at: datetime = first.at
        self._downtime = timedelta()
        self._is_restarting = True

    @property
    def _state(self) -> AgentState:
        state = self._execution.state
        assert state is not None  # noqa: S101  # the first record holds a state
        return state

    def next_step(self) -> RecordedStep:
        """Return the next step; one without a closing record is the last.

        Raises:
            JournalCorrupt: a record cannot be read.
        """
        step = RecordedStep(self._state)
        for record in self._records:
            self._note_time(record, step)
            change = self._execution.apply(record)
            if change.has_state:
                step.closing, step.state = record.kind, self._state
                break
            self._add(step, record, change)
        return step

    def _note_time(self, record: JournalRecord, step: RecordedStep) -> None:
        """Count the time between the last record and a recovery as downtime: the run did not see it pass."""
        if record.kind is RecordKind.EXECUTION_RECOVERED:
            self._downtime += max(record.at - self._last_at, timedelta())
            self._is_restarting = True
        elif record.kind not in {RecordKind.MESSAGES_TAKEN, RecordKind.MESSAGES_SENT}:
            self._is_restarting = False
        self._last_at = record.at
        step.at, step.downtime = record.at - self._downtime, self._downtime

    def _add(self, step: RecordedStep, record: JournalRecord, change: RecordedChange) -> None:
        match record.kind:
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                # A recovery sends a request again when calls of its response had not started: the last result counts.
                del step.requests[change.body["index"] :]
                step.requests.append(self._request(record, change))
            case RecordKind.CALL_INTENT | RecordKind.CALL_OUTCOME | RecordKind.CALL_SUSPENDED:
                step.calls = dict(self._execution.calls)
            case RecordKind.MESSAGES_TAKEN:
                self._take(step, change.messages)
            case RecordKind.DECISION_USED:
                step.decisions[change.body["key"]] = change.decision()
            case _:
                pass  # a sent message occurs again in the record of the step that takes it

    def _request(self, record: JournalRecord, change: RecordedChange) -> RecordedRequest:
        request = self._execution.request
        assert request is not None  # noqa: S101  # the record holds one
        return RecordedRequest(
            request=request,
            inference=change.inference(),
            rendering=self._execution.rendering,
            at=record.at - self._downtime,
            redacted=REDACTED in change.body,
        )

    def _take(self, step: RecordedStep, messages: Sequence[Message]) -> None:
        if (step.requests or step.calls) and not self._is_restarting:
            step.late_messages += messages
            return
        step.messages += messages
        for request in step.requests:
            request.is_reused = True


def layer_failure(call: RecordedCall) -> Exception | None:
    """Return the error of an interceptor or listener around a recorded call; None when only the tool can have failed."""
    failure = call.attachments.get(FAILURE)
    if not isinstance(failure, Mapping):
        return None
    if failure["type"] == InterceptorFailed.__name__:
        return InterceptorFailed.from_record(
            str(failure["message"]), str(failure["interceptor"]), str(failure["point"])
        )
    # The class may belong to a program that is not installed here; a class with the same name replaces it.
    error_type: type[AgentLoopError] = type(str(failure["type"]), (AgentLoopError,), {})
    return error_type(str(failure["message"]))
