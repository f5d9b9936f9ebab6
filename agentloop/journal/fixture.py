"""An execution as something that can be played again: what was answered, and what came of every call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from attrs import define, evolve, field, frozen
from attrs.converters import optional

from agentloop.errors import JournalCorrupt, ToolBlocked, ToolDefinitionError
from agentloop.journal import bodies
from agentloop.journal.fold import FoldedExecution, fold_records
from agentloop.journal.record_writer import REDACTED
from agentloop.tools.validation import validator_of
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.inference import FinishReason, InferenceResponse
from agentloop.values.json import JsonValue, as_frozen_dict, freeze, freeze_object, parse_json
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.records import JournalRecord, RecordedInference, RecordKind
from agentloop.values.serialization import from_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.tool_calls import (
    EXTRACTION,
    VALIDATION,
    ContentPart,
    ErrorInfo,
    ToolCall,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
)
from agentloop.values.value import Value

ScriptEntry: TypeAlias = InferenceResponse | ErrorInfo
"""What a step began with: the model's answer, or why there was none."""


@frozen(eq=False, repr=False, kw_only=True)
class FixtureOutcome(Value):
    """What came of a call.

    Attributes:
        value: what the tool returned.
        status: how it ended.
        content: what the model was shown instead of the value; None for the value.
        error: what went wrong; None when nothing did.
        may_have_run: whether an effect could not be excluded although it did not succeed.
        executed_call: the call as it ran, where that does not follow from the model's call and the decisions; else None.
        suspensions: how it waited for decisions, one after the other.
        forced: whether neither a tool nor a rule can bring about this end, so that it is put in place of another.
    """

    value: JsonValue = field(default=None, converter=freeze)
    status: ToolStatus = field(default=ToolStatus.SUCCEEDED, converter=ToolStatus)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=optional(tuple[ContentPart, ...]))
    error: ErrorInfo | None = None
    may_have_run: bool = False
    executed_call: ToolCall | None = None
    suspensions: tuple[PendingCall, ...] = field(default=(), converter=tuple[PendingCall, ...])
    forced: bool = False


@frozen(eq=False, repr=False, kw_only=True)
class Fixture(Value):
    """An execution that can be played again, by `agentloop.testing.play`, without its model, its tools and its journal.

    Attributes:
        execution_id: the execution.
        state: what it began with.
        script: what each step began with, in order.
        tools: what the model could call.
        outcomes: what came of each call, by key.
        decisions: what was decided, each time that it was resumed, by key.
        messages: what was sent to it, by the number of the step that took it.
        step_errors: the steps that went wrong after the model had answered, and why.
        recovered_steps: the steps that went wrong, and after which it went on.
        continued_steps: the steps after which it went on although the model had answered.
        stop_signals: why it stopped, where that does not follow from the above.
    """

    execution_id: str
    state: AgentState
    script: tuple[ScriptEntry, ...] = field(converter=tuple[ScriptEntry, ...])
    tools: tuple[ToolSpec, ...] = field(default=(), converter=tuple[ToolSpec, ...])
    outcomes: Mapping[str, FixtureOutcome] = field(factory=dict, converter=as_frozen_dict)
    decisions: tuple[Mapping[str, Decision], ...] = field(default=(), converter=tuple[Mapping[str, Decision], ...])
    messages: Mapping[int, tuple[Message, ...]] = field(factory=dict, converter=as_frozen_dict)
    step_errors: Mapping[int, ErrorInfo] = field(factory=dict, converter=as_frozen_dict)
    recovered_steps: tuple[int, ...] = field(default=(), converter=tuple[int, ...])
    continued_steps: tuple[int, ...] = field(default=(), converter=tuple[int, ...])
    stop_signals: tuple[StopSignal, ...] = field(default=(), converter=tuple[StopSignal, ...])


_OF_TOOLS = {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.IN_DOUBT}
"""The ends that a tool can bring about."""


@frozen(kw_only=True)
class CallFacts:
    """What is known of the calls of an execution beside their ends.

    Attributes:
        offered: the names of the tools that can be called.
        begun: the keys of the calls whose tools have begun.
        decided: the keys of the calls that were decided about.
        waited: how calls waited for decisions, by key.
    """

    offered: Collection[str]
    begun: Collection[str]
    decided: Collection[str]
    waited: Mapping[str, Sequence[PendingCall]]


def outcomes_of(steps: Sequence[AgentStep], known: CallFacts) -> Mapping[str, FixtureOutcome]:
    """Return what came of each call of these steps, by key."""
    made = {execution.key: _outcome(execution, call, known) for step in steps for call, execution in _settled(step)}
    for key, calls in known.waited.items():
        if key not in made:
            made[key] = FixtureOutcome(suspensions=calls, status=ToolStatus.CANCELLED)
    return made


def is_decision(call: ToolCall, step: AgentStep) -> bool:
    """Whether a call of a step was not made by the model, but holds what it wrote and nobody could use."""
    return bool(step.errors) and not call.id and call.name in {EXTRACTION, VALIDATION}


def _settled(step: AgentStep) -> Sequence[tuple[ToolCall, ToolExecution]]:
    if step.message is not None:
        return [(exchange.call, exchange.execution) for exchange in step.message.exchanges]
    if step.open_turn is None:
        return []
    calls = [part for part in step.open_turn.parts if isinstance(part, ToolCall)]
    return [
        (call, slot) for call, slot in zip(calls, step.open_turn.slots, strict=True) if isinstance(slot, ToolExecution)
    ]


def _outcome(execution: ToolExecution, call: ToolCall, known: CallFacts) -> FixtureOutcome:
    decided, forced = execution.key in known.decided, not _comes_about(execution, known)
    told = forced if decided else execution.call != call
    return FixtureOutcome(
        value=execution.value,
        status=execution.status,
        content=execution.content,
        error=execution.error,
        may_have_run=execution.may_have_run,
        executed_call=execution.call if told else None,
        suspensions=known.waited.get(execution.key, ()),
        forced=forced,
    )


def _comes_about(execution: ToolExecution, known: CallFacts) -> bool:
    """Whether the end comes about when the call is made again: by its tool, by the check of its arguments, or by a rule."""
    status, error = execution.status, execution.error
    if execution.key in known.decided and any(call.begun for call in known.waited.get(execution.key, ())):
        return False
    if execution.key in known.begun:
        plain = error is None or (not error.path and error.type.isidentifier())
        return status in _OF_TOOLS and plain
    if execution.key in known.decided or error is None:
        return False
    if status is ToolStatus.REJECTED:
        return execution.name in known.offered
    return status is ToolStatus.BLOCKED and error.type == ToolBlocked.__name__


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


def build_fixture(records: Iterable[JournalRecord], execution_id: str) -> Fixture:
    """Return an execution, as its records tell it, in a form that can be played again.

    Raises:
        UnknownExecution: when there are no records.
        JournalCorrupt: when one cannot be read.
    """
    known, read = FoldedExecution(), _Read()
    for record in records:
        known.apply(record)
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


def _nothing(execution_id: str) -> Fixture:
    fold_records((), execution_id)
    raise AssertionError("there is always an error")


def _take(record: JournalRecord, known: FoldedExecution, read: _Read) -> None:
    body: dict[str, Any] = parse_json(record.body)
    match record.kind:
        case RecordKind.EXECUTION_STARTED:
            read.began = known.state
        case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
            read.inferences[body["step"]] = bodies.read_inference(body)
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


def _take_waiting(kind: RecordKind, body: dict[str, Any], known: FoldedExecution, read: _Read) -> None:
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


def _recording(execution_id: str, state: AgentState, read: _Read) -> Fixture:
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
    known = CallFacts(offered=offered, begun=read.begun, decided=decided, waited=read.waited)
    signals = _CUT_OFF if state.status is ExecutionStatus.IN_PROGRESS else _signals(state)
    return Fixture(
        execution_id=execution_id,
        state=_beginning(began),
        script=[_line(step, read.inferences.get(step.number)) for step in steps if step.number > began.step_count],
        tools=specs,
        outcomes=outcomes_of(steps, known),
        decisions=read.rounds,
        messages={step: tuple(messages) for step, messages in read.messages.items()},
        step_errors={step.number: step.errors[-1] for step in steps if step.errors and _has_answered(step)},
        recovered_steps=[step.number for step in steps if step.errors and not _ended_by(step, state, signals)],
        continued_steps=[step.number for step in steps[:-1] if not step.errors and not step.executions],
        stop_signals=[signal for signal in signals if _is_told(signal, steps)],
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


def _line(step: AgentStep, recorded: RecordedInference | None) -> ScriptEntry:
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
