"""Reading an execution's records as something that can be played again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import define, evolve, field

from agentloop.errors import JournalCorrupt, ToolDefinitionError
from agentloop.journal import bodies
from agentloop.journal.exporting_outcomes import Known, is_decision, outcomes_of
from agentloop.journal.exporting_recording import RecordedLine, Recording
from agentloop.journal.fold import RecordedExecution, folded
from agentloop.journal.record_writer import REDACTED
from agentloop.tools.validation import validator_of
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import AgentStep
from agentloop.values.decision import Decision
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.journal_record import JournalRecord, RecordKind
from agentloop.values.json_text import parse_json
from agentloop.values.json_value import freeze_object
from agentloop.values.message import Message, ResponsePart
from agentloop.values.pending_call import PendingCall
from agentloop.values.recorded import RecordedInference
from agentloop.values.serialisation import from_plain
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_execution import ToolExchange, ToolStatus
from agentloop.values.tool_spec import ToolSpec

_ANYTHING = freeze_object({"type": "object"})
_CUT_OFF = (StopSignal(StopReason.USER_REQUESTED, "the record ends here"),)
"""Why an execution is stopped that had not ended."""
_FOLLOW = {StopReason.COMPLETED, StopReason.SUSPENDED, StopReason.ERROR}
"""Signals that the loop gives of itself."""


@define(eq=False)
class _Read:
    """What is gathered while the records pass by."""

    began: AgentState | None = None
    inferences: dict[int, RecordedInference] = field(factory=dict)
    tools: dict[str, ToolSpec] = field(factory=dict)
    begun: set[str] = field(factory=set)
    masked: set[str] = field(factory=set)
    waited: dict[str, list[PendingCall]] = field(factory=dict)
    decided: dict[str, Decision] = field(factory=dict)
    rounds: list[dict[str, Decision]] = field(factory=list)
    messages: dict[int, list[Message]] = field(factory=dict)


def recording_of(records: Iterable[JournalRecord], execution_id: str) -> Recording:
    """Return an execution, as its records tell it, in a form that can be played again.

    Raises:
        UnknownExecution: when there are no records.
        JournalCorrupt: when one cannot be read.
    """
    known, read = RecordedExecution(), _Read()
    for record in records:
        known.feed(record)
        try:
            _take(record, known, read)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise JournalCorrupt(
                f"record {record.sequence} of execution {execution_id} cannot be exported: {error}",
                execution_id=execution_id,
                sequence=record.sequence,
            ) from error
    if read.began is None or known.state is None:
        return _nothing(execution_id)
    if read.decided and known.calls:
        read.rounds.append(read.decided)  # the execution was resumed, and interrupted before it came further
    return _recording(execution_id, known.state, read)


def _nothing(execution_id: str) -> Recording:
    folded((), execution_id)
    raise AssertionError("there is always an error")


def _take(record: JournalRecord, known: RecordedExecution, read: _Read) -> None:
    body: dict[str, Any] = parse_json(record.body)
    match record.kind:
        case RecordKind.EXECUTION_STARTED:
            read.began = known.state
        case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
            read.inferences[body["step"]] = bodies.inference_of(body)
            if known.request is not None:
                read.tools.update({tool.name: tool for tool in known.request.tools})
        case RecordKind.CALL_INTENT:
            read.begun.add(body["intent"]["key"])
            read.masked |= {body["intent"]["call"]["name"]} if REDACTED in body else set()
        case RecordKind.MESSAGES_TAKEN:
            messages = [from_plain(data, Message) for data in body["messages"]]
            read.messages.setdefault(body["step"], []).extend(messages)
        case _:
            _take_waiting(record.kind, body, known, read)


def _take_waiting(kind: RecordKind, body: dict[str, Any], known: RecordedExecution, read: _Read) -> None:
    """Take what is told of calls that wait, and of decisions."""
    match kind:
        case RecordKind.DECISION_USED:
            read.decided[body["key"]] = from_plain(body["decision"], Decision)  # type: ignore[arg-type]  # a union
        case RecordKind.EXECUTION_RESUMED:
            read.rounds.append(read.decided)
            read.decided = {}
        case RecordKind.EXECUTION_SUSPENDED if known.state is not None and known.state.last_step is not None:
            for call in known.state.last_step.pending:
                read.waited.setdefault(call.key, []).append(evolve(call, progress=None))
        case _:
            pass


def _recording(execution_id: str, state: AgentState, read: _Read) -> Recording:
    began = read.began
    assert began is not None  # noqa: S101  # checked by the caller
    steps = state.steps[began.step_count - (1 if began.open_turn is not None else 0) :]
    for step in steps:
        for execution in step.executions:
            if execution.status is not ToolStatus.REJECTED:
                read.tools.setdefault(execution.name, ToolSpec(execution.name, "", _ANYTHING))
    specs = [_usable(spec, masked=spec.name in read.masked) for spec in read.tools.values()]
    decided = {key for one in read.rounds for key in one}
    offered = {spec.name for spec in specs}
    known = Known(offered=offered, begun=read.begun, decided=decided, waited=read.waited)
    signals = _CUT_OFF if state.status is ExecutionStatus.IN_PROGRESS else _signals(state)
    return Recording(
        execution_id=execution_id,
        state=_beginning(began),
        script=[_line(step, read.inferences.get(step.number)) for step in steps if step.number > began.step_count],
        tools=specs,
        outcomes=outcomes_of(steps, known),
        decisions=read.rounds,
        messages={step: tuple(messages) for step, messages in read.messages.items()},
        failed={step.number: step.errors[-1] for step in steps if step.errors and _has_answered(step)},
        recovered=[step.number for step in steps if step.errors and not _ended_by(step, state, signals)],
        continued=[step.number for step in steps[:-1] if not step.errors and not step.executions],
        stops=[signal for signal in signals if _is_told(signal, steps)],
    )


def _usable(spec: ToolSpec, *, masked: bool) -> ToolSpec:
    """Return a tool as it can be offered: what was masked in its calls, or in its schema, fits no schema any more."""
    try:
        validator_of(spec)
    except ToolDefinitionError:
        masked = True
    return evolve(spec, parameters=_ANYTHING) if masked else spec


def _beginning(began: AgentState) -> AgentState:
    """Return the state before the execution began; a fork goes on in the middle."""
    if began.step_count:
        return began
    return evolve(began, execution=None, execution_count=began.execution_count - 1)


def _signals(state: AgentState) -> Sequence[StopSignal]:
    return () if state.execution is None else state.execution.continuation.signals


def _ended_by(step: AgentStep, state: AgentState, signals: Sequence[StopSignal]) -> bool:
    """Whether an execution failed by the error of a step."""
    return step is state.last_step and any(signal.reason is StopReason.ERROR for signal in signals)


def _is_told(signal: StopSignal, steps: Sequence[AgentStep]) -> bool:
    return signal.reason not in _FOLLOW or not steps


def _has_answered(step: AgentStep) -> bool:
    """Whether a step that went wrong had begun with an answer of the model that is played again."""
    return step.open_turn is not None or bool(_exchanges(step))


def _exchanges(step: AgentStep) -> Sequence[ToolExchange]:
    """Return the calls of a step that the model made."""
    made = () if step.message is None else step.message.exchanges
    return [one for one in made if not is_decision(one.call, step)]


def _line(step: AgentStep, recorded: RecordedInference | None) -> RecordedLine:
    """Return what a step began with: the recorded answer, with what was really made of it."""
    if step.errors and not _has_answered(step):
        error = step.errors[-1]
        return recorded.error if recorded is not None and recorded.error is not None else error
    parts = _parts(step)
    response = None if recorded is None else recorded.response
    if response is None:
        finish = step.finish_reason or FinishReason.STOP
        return InferenceResponse(parts, finish, step.usage, model=step.model, id=step.response_id)
    return response if response.parts == parts else evolve(response, parts=parts)


def _parts(step: AgentStep) -> tuple[ResponsePart, ...]:
    if step.open_turn is not None:
        return step.open_turn.parts
    if step.message is None:
        return ()
    return tuple([part.call if isinstance(part, ToolExchange) else part for part in step.message.parts])  # type: ignore[misc]  # an assistant's message has these parts
