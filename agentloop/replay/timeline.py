"""A recorded execution, turn by turn."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from attrs import define, field

from agentloop.errors import AgentLoopError, InterceptorFailed, ToolInDoubt
from agentloop.journal import bodies
from agentloop.journal.fold import FoldedExecution
from agentloop.journal.record_writer import REDACTED
from agentloop.values.decisions import Decision
from agentloop.values.inference import InferenceRequest
from agentloop.values.json import parse_json
from agentloop.values.messages import Message
from agentloop.values.records import JournalRecord, RecordedCall, RecordedInference, RecordKind
from agentloop.values.secrets import MASK
from agentloop.values.serialization import from_plain
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, StopReason, StopSignal


@define(eq=False, kw_only=True)
class Asked:
    """An inference as it was recorded.

    Attributes:
        request: what was asked.
        recorded: what came of it.
        offered: how the model got it, as plain JSON data; None when as it is.
        at: when it was written down.
        redacted: whether something secret was masked in it.
        is_reused: whether it was used again after an interruption for a request that has messages more, and was not recorded.
    """

    request: InferenceRequest
    recorded: RecordedInference
    offered: dict[str, Any] | None
    at: datetime
    redacted: bool = False
    is_reused: bool = False

    @property
    def has_masked_calls(self) -> bool:
        """Whether something secret was masked in a call that was made, so that it is not the call that was made."""
        response = self.recorded.response
        return self.redacted and response is not None and any(MASK in one.arguments_json for one in response.tool_calls)


@define(eq=False)
class RecordedStep:
    """What was recorded between two states: a step, what came before the end, or the decisions before it went on.

    Attributes:
        before: the state before it.
        closing: what the record tells that closes it; None when there is none, because the execution was interrupted or
            has not come further.
        state: the state after it; None when there is none.
        at: when it was closed, or its last record was made, without the time that its program was down.
        down: how long its program was down until then.
        inferences: those that count, in order: of what was repeated after an interruption, the last.
        calls: the calls, by key.
        taken: the messages that were taken when it began.
        taken_late: those that were taken when it was cut off.
        decisions: what was decided about calls that waited, by key.
    """

    before: AgentState
    closing: RecordKind | None = None
    state: AgentState | None = None
    at: datetime | None = None
    down: timedelta = timedelta()
    inferences: list[Asked] = field(factory=list)
    calls: dict[str, RecordedCall] = field(factory=dict)
    taken: list[Message] = field(factory=list)
    taken_late: list[Message] = field(factory=list)
    decisions: dict[str, Decision] = field(factory=dict)

    @property
    def step(self) -> int:
        """The number of the step that it is of."""
        return self.before.step_count + (0 if self.before.open_turn is not None else 1)

    @property
    def takes_step(self) -> bool:
        """Whether a step was taken in it, or one that waited was settled."""
        after = self.state
        return after is not None and (
            after.step_count > self.before.step_count or after.last_step != self.before.last_step
        )


class Timeline:
    """Reads a recorded execution turn by turn.

    Attributes:
        start: the state with which it began.
        origin: what its first record tells besides.
        started_at: when it began to be recorded.
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
        self._down = timedelta()
        self._begun_anew = True

    @property
    def _state(self) -> AgentState:
        state = self._execution.state
        assert state is not None  # noqa: S101  # the first record tells one
        return state

    def next_turn(self) -> RecordedStep:
        """Return what was recorded next; a turn that nothing closes is the last.

        Raises:
            JournalCorrupt: when a record cannot be read.
        """
        turn = RecordedStep(self._state)
        for record in self._records:
            body = parse_json(record.body)
            self._note_time(record, turn)
            if "delta" in body:
                self._execution.apply(record)
                turn.closing, turn.state = record.kind, self._state
                break
            self._execution.apply(record)
            self._read(turn, record, body)
        return turn

    def _note_time(self, record: JournalRecord, turn: RecordedStep) -> None:
        """Note when a record was made; between its last one and its recovery, an execution stood still."""
        if record.kind is RecordKind.EXECUTION_RECOVERED:
            self._down += max(record.at - self._last_at, timedelta())
            self._begun_anew = True
        elif record.kind not in {RecordKind.MESSAGES_TAKEN, RecordKind.MESSAGES_SENT}:
            self._begun_anew = False
        self._last_at = record.at
        turn.at, turn.down = record.at - self._down, self._down

    def _read(self, turn: RecordedStep, record: JournalRecord, body: dict[str, Any]) -> None:
        match record.kind:
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                request = self._execution.request
                assert request is not None  # noqa: S101  # the record tells one
                del turn.inferences[body["index"] :]
                turn.inferences.append(
                    Asked(
                        request=request,
                        recorded=bodies.read_inference(body),
                        offered=self._execution.rendering,
                        at=record.at - self._down,
                        redacted=REDACTED in body,
                    )
                )
            case RecordKind.CALL_INTENT | RecordKind.CALL_OUTCOME | RecordKind.CALL_SUSPENDED:
                turn.calls = dict(self._execution.calls)
            case RecordKind.MESSAGES_TAKEN:
                taken = [from_plain(data, Message) for data in body["messages"]]
                if (turn.inferences or turn.calls) and not self._begun_anew:
                    turn.taken_late += taken
                    return
                turn.taken += taken
                for asked in turn.inferences:
                    asked.is_reused = True
            case RecordKind.DECISION_USED:
                turn.decisions[body["key"]] = from_plain(body["decision"], Decision)  # type: ignore[arg-type]  # a union
            case _:
                pass  # what was sent is told again when it is taken


_EXTERNAL = frozenset({StopReason.USER_REQUESTED, StopReason.TIME_LIMIT})


def stopped_from_outside(turn: RecordedStep) -> str:
    """Say why a turn was cut short by its user, by the time, or by a crash that left a call in doubt; empty when it was not."""
    state = turn.state
    if state is None or state.execution is None:
        return ""
    known = turn.before.execution.continuation.signals if turn.before.execution is not None else ()
    signal = next(
        (one for one in state.execution.continuation.signals if one.reason in _EXTERNAL and one not in known), None
    )
    if signal is not None:
        return f"{signal.reason.value}: {signal.message}"
    errors = state.last_step.errors if state.last_step is not None else ()
    doubt = next((one for one in errors if one.type == ToolInDoubt.__name__), None)
    return "" if doubt is None else doubt.message


def recorded_stop(asked: Asked, turn: RecordedStep) -> AgentStop | None:
    """Return the wish to stop with which an inference ended; None when it ended otherwise.

    What is recorded of an inference tells its error alone; the signal stands in the state after it.
    """
    error, state = asked.recorded.error, turn.state
    if error is None or state is None or state.execution is None:
        return None
    signals = [one for one in state.execution.continuation.signals if one.reason is not StopReason.ERROR]
    signal = next((one for one in signals if _tells(one, error.message)), None)
    if signal is None:
        return None
    return AgentStop(signal.message, reason=signal.reason, source=signal.source, context=signal.context)


def recorded_failure(recorded: RecordedCall, turn: RecordedStep) -> Exception | None:
    """Return the error of what stood around a call, with which its step failed; None when nothing around it failed.

    A tool's own error is an outcome; one that the step has too is that of an interceptor or a listener.
    """
    error = recorded.execution.error if recorded.execution is not None else None
    step = turn.state.last_step if turn.state is not None else None
    if error is None or step is None or error not in step.errors:
        return None
    found = _FAILED.match(error.message)
    if error.type == InterceptorFailed.__name__ and found is not None:
        failed = InterceptorFailed.__new__(InterceptorFailed, error.message)
        failed.interceptor, failed.point = found["interceptor"], found["point"]
        failed.args = (error.message,)
        return failed
    like_it: type[AgentLoopError] = type(error.type, (AgentLoopError,), {})
    return like_it(error.message)


_FAILED = re.compile(r"the interceptor (?P<interceptor>.+?) failed at (?P<point>\w+): ", re.DOTALL)


def _tells(signal: StopSignal, message: str) -> bool:
    return message in {signal.message, f"stop: {signal.reason.value}"}
