"""Fixtures: recorded executions in a form that can be played again, with the model's answers and the outcome of every call."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from attrs import define, evolve, field, frozen
from attrs.converters import optional

from agentloop.durable.fold import FoldedExecution, RecordedChange
from agentloop.durable.record_writer import REDACTED
from agentloop.errors import CallNotAllowed, JournalCorrupt, ToolBlocked, ToolDefinitionError, UnknownExecution
from agentloop.tools.validation import validator_of
from agentloop.values.decisions import Decision, PendingCall
from agentloop.values.inference import FinishReason, InferenceResponse
from agentloop.values.json import JsonValue, as_frozen_dict, freeze, freeze_object
from agentloop.values.messages import Message, ResponsePart
from agentloop.values.records import JournalRecord, RecordedInference, RecordKind
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
"""The start of a step: the model's answer, or the error that replaced it."""


@frozen(eq=False, repr=False, kw_only=True)
class Fixture(Value):
    """An execution that `agentloop.testing.play` can play again without its model, its tools and its journal.

    Attributes:
        execution_id: the id of the execution.
        state: the initial state.
        script: the start of each step, in order.
        tools: the tools that the model could call.
        outcomes: the outcome of each call, by key.
        decisions: the decisions, by key of the call, of each time that the execution was resumed.
        messages: the messages that were sent to it, by the number of the step that took them.
        step_errors: the errors of the steps that failed after the model had answered, by number of the step.
        recovered_steps: the numbers of the steps that failed and after which the execution continued.
        continued_steps: the numbers of the steps with a final answer after which the execution continued.
        stop_signals: the reasons why it stopped that do not follow from the above.
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


@frozen(eq=False, repr=False, kw_only=True)
class FixtureOutcome(Value):
    """The outcome of a call.

    Attributes:
        value: the value that the tool returned.
        status: how the call ended.
        content: what the model was shown in place of the value; None for the value.
        error: the error; None when there was none.
        may_have_run: whether the call may have had its effect although it did not succeed.
        executed_call: the call as it ran, where that does not follow from the model's call and the decisions; else None.
        suspensions: the states in which it waited for decisions, in order.
        forced: whether neither a tool nor a rule can produce this outcome, so that the player replaces another one by it.
    """

    value: JsonValue = field(default=None, converter=freeze)
    status: ToolStatus = field(default=ToolStatus.SUCCEEDED, converter=ToolStatus)
    content: tuple[ContentPart, ...] | None = field(default=None, converter=optional(tuple[ContentPart, ...]))
    error: ErrorInfo | None = None
    may_have_run: bool = False
    executed_call: ToolCall | None = None
    suspensions: tuple[PendingCall, ...] = field(default=(), converter=tuple[PendingCall, ...])
    forced: bool = False


def build_fixture(records: Iterable[JournalRecord], execution_id: str) -> Fixture:
    """Return a recorded execution in a form that can be played again.

    Args:
        records: all records of the execution.
        execution_id: the execution.

    Raises:
        UnknownExecution: there are no records.
        JournalCorrupt: a record cannot be read.
    """
    return read_fixture(records, execution_id)[0]


def read_fixture(records: Iterable[JournalRecord], execution_id: str) -> tuple[Fixture, AgentState]:
    """Return a recorded execution as `build_fixture` does, and the state after its last record.

    Raises:
        UnknownExecution: there are no records.
        JournalCorrupt: a record cannot be read.
    """
    execution, history = FoldedExecution(), _History()
    for record in records:
        change = execution.apply(record)
        try:
            _collect(record.kind, change, execution, history)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise JournalCorrupt(
                f"record {record.sequence} of execution {execution_id} cannot be exported: {error}",
                execution_id=execution_id,
                sequence=record.sequence,
            ) from error
    if history.initial is None or execution.state is None:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded here")
    if history.decisions and execution.calls:
        history.rounds.append(history.decisions)  # the execution was resumed, and interrupted before its next state
    return _build(execution_id, history.initial, execution.state, history), execution.state


# --- reading the records ----------------------------------------------------------------------------------------------


@define(eq=False)
class _History:
    """What a fixture needs of the records and the final state does not hold.

    Attributes:
        initial: the initial state.
        inferences: the last inference of each step, by number of the step.
        tools: the tools of all requests, by name.
        started_keys: the keys of the calls whose tools started.
        masked_tools: the names of the tools with a masked call.
        suspensions: the states in which calls waited for decisions, by key.
        decisions: the decisions since the execution was last resumed, by key.
        rounds: the decisions of each time that the execution was resumed.
        messages: the messages that steps took, by number of the step.
    """

    initial: AgentState | None = None
    inferences: dict[int, RecordedInference] = field(factory=dict)
    tools: dict[str, ToolSpec] = field(factory=dict)
    started_keys: set[str] = field(factory=set)
    masked_tools: set[str] = field(factory=set)
    suspensions: dict[str, list[PendingCall]] = field(factory=dict)
    decisions: dict[str, Decision] = field(factory=dict)
    rounds: list[dict[str, Decision]] = field(factory=list)
    messages: dict[int, list[Message]] = field(factory=dict)


def _collect(kind: RecordKind, change: RecordedChange, execution: FoldedExecution, history: _History) -> None:
    """Add a record, which was just applied to the execution, to the history."""
    body = change.body
    match kind:
        case RecordKind.EXECUTION_STARTED:
            history.initial = execution.state
        case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
            inference = change.inference()
            # The script is that of the driver's model; interceptors have models of their own.
            if not inference.purpose:
                history.inferences[body["step"]] = inference
            if execution.request is not None:
                history.tools.update({tool.name: tool for tool in execution.request.tools})
        case RecordKind.CALL_INTENT:
            history.started_keys.add(body["intent"]["key"])
            history.masked_tools |= {body["intent"]["call"]["name"]} if REDACTED in body else set()
        case RecordKind.MESSAGES_TAKEN:
            history.messages.setdefault(body["step"], []).extend(change.messages)
        case _:
            _collect_decisions(kind, change, execution, history)


def _collect_decisions(kind: RecordKind, change: RecordedChange, execution: FoldedExecution, history: _History) -> None:
    match kind:
        case RecordKind.DECISION_USED:
            history.decisions[change.body["key"]] = change.decision()
        case RecordKind.EXECUTION_RESUMED:
            history.rounds.append(history.decisions)
            history.decisions = {}
        case RecordKind.EXECUTION_SUSPENDED if execution.state is not None and execution.state.last_step is not None:
            for call in execution.state.last_step.pending:
                # Without the progress, which may be large and is not played again.
                history.suspensions.setdefault(call.key, []).append(evolve(call, progress=None, settled=()))
        case _:
            pass


# --- building the fixture ---------------------------------------------------------------------------------------------

_ANY_OBJECT = freeze_object({"type": "object"})
_CUT_OFF = (StopSignal(StopReason.USER_REQUESTED, "the record ends here"),)
"""The reason why the player stops an execution that had not ended."""
_IMPLIED_REASONS = {StopReason.COMPLETED, StopReason.SUSPENDED, StopReason.ERROR}
"""The reasons for stopping that the loop adds by itself."""


def _build(execution_id: str, initial: AgentState, final: AgentState, history: _History) -> Fixture:
    # An execution that starts with pending calls, such as a fork, settles them in its last inherited step.
    steps = final.steps[initial.step_count - (1 if initial.open_turn is not None else 0) :]
    tools = _usable_tools(steps, history)
    facts = CallFacts(
        tool_names={tool.name for tool in tools},
        started_keys=history.started_keys,
        decided_keys={key for decisions in history.rounds for key in decisions},
        suspensions=history.suspensions,
    )
    signals = _CUT_OFF if final.status is ExecutionStatus.IN_PROGRESS else _signals_of(final)
    return Fixture(
        execution_id=execution_id,
        state=_before_start(initial),
        script=[
            _script_entry(step, history.inferences.get(step.number))
            for step in steps
            if step.number > initial.step_count
        ],
        tools=tools,
        outcomes=_outcomes_of(steps, facts),
        decisions=history.rounds,
        messages={step: tuple(messages) for step, messages in history.messages.items()},
        step_errors={step.number: step.errors[-1] for step in steps if step.errors and _has_answer(step)},
        recovered_steps=[step.number for step in steps if step.errors and not _has_failed(final, step, signals)],
        # A step without calls has a final answer; another step follows it only on request.
        continued_steps=[step.number for step in steps[:-1] if not step.errors and not step.executions],
        stop_signals=[signal for signal in signals if signal.reason not in _IMPLIED_REASONS or not steps],
    )


def _before_start(initial: AgentState) -> AgentState:
    """Return the state before the execution started; that of a fork, which continues other steps, unchanged."""
    if initial.step_count:
        return initial
    return evolve(initial, execution=None, execution_count=initial.execution_count - 1)


def _signals_of(state: AgentState) -> Sequence[StopSignal]:
    return () if state.execution is None else state.execution.continuation.signals


def _has_failed(state: AgentState, step: AgentStep, signals: Sequence[StopSignal]) -> bool:
    """Return whether an execution failed with the error of a step."""
    return step is state.last_step and any(signal.reason is StopReason.ERROR for signal in signals)


def _usable_tools(steps: Sequence[AgentStep], history: _History) -> Sequence[ToolSpec]:
    """Return the tools of all requests, and those of calls that no request offered."""
    tools = dict(history.tools)
    for step in steps:
        for execution in step.executions:
            if execution.status is not ToolStatus.REJECTED:
                tools.setdefault(execution.name, ToolSpec(execution.name, "", _ANY_OBJECT))
    return [_usable_tool(tool, is_masked=tool.name in history.masked_tools) for tool in tools.values()]


def _usable_tool(tool: ToolSpec, *, is_masked: bool) -> ToolSpec:
    """Return a tool whose schema accepts its recorded calls: a mask in a call, or in the schema, breaks the schema."""
    try:
        validator_of(tool)
    except ToolDefinitionError:
        is_masked = True
    return evolve(tool, parameters=_ANY_OBJECT) if is_masked else tool


# --- the script -------------------------------------------------------------------------------------------------------


def _script_entry(step: AgentStep, recorded: RecordedInference | None) -> ScriptEntry:
    """Return the start of a step: the recorded answer, with the parts that the step used."""
    if step.errors and not _has_answer(step):
        error = step.errors[-1]
        return recorded.error if recorded is not None and recorded.error is not None else error
    parts = _answer_parts(step)
    response = None if recorded is None else recorded.response
    if response is None:
        finish_reason = step.finish_reason or FinishReason.STOP
        return InferenceResponse(parts, finish_reason, step.usage, model=step.model, id=step.response_id)
    return response if response.parts == parts else evolve(response, parts=parts)


def _has_answer(step: AgentStep) -> bool:
    """Return whether a step that failed has an answer of the model with calls, which is played again."""
    if step.open_turn is not None:
        return True
    exchanges = () if step.message is None else step.message.exchanges
    return any(not is_decision(exchange.call, step) for exchange in exchanges)


def _answer_parts(step: AgentStep) -> tuple[ResponsePart, ...]:
    if step.open_turn is not None:
        return step.open_turn.parts
    if step.message is None:
        return ()
    return tuple([part.call if isinstance(part, ToolExchange) else part for part in step.message.parts])  # type: ignore[misc]  # an assistant's message has these parts


def is_decision(call: ToolCall, step: AgentStep) -> bool:
    """Return whether a call of a failed step was not made by the model, but holds a decision that could not be used."""
    return bool(step.errors) and not call.id and call.name in {EXTRACTION, VALIDATION}


# --- the outcomes of calls --------------------------------------------------------------------------------------------

_TOOL_STATUSES = {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.IN_DOUBT}
"""The statuses that a tool can produce."""


@frozen(kw_only=True)
class CallFacts:
    """What is known of the calls of an execution in addition to their outcomes.

    Attributes:
        tool_names: the names of the tools that can be called.
        started_keys: the keys of the calls whose tools started.
        decided_keys: the keys of the calls with a decision.
        suspensions: the states in which calls waited for decisions, by key.
    """

    tool_names: Collection[str]
    started_keys: Collection[str]
    decided_keys: Collection[str]
    suspensions: Mapping[str, Sequence[PendingCall]]


def _outcomes_of(steps: Sequence[AgentStep], facts: CallFacts) -> Mapping[str, FixtureOutcome]:
    """Return the outcome of each call of these steps, by key; of a call that still waits, its suspensions."""
    outcomes = {
        execution.key: _outcome_of(execution, call, facts) for step in steps for call, execution in _settled_calls(step)
    }
    for key, suspensions in facts.suspensions.items():
        if key not in outcomes:
            outcomes[key] = FixtureOutcome(suspensions=suspensions, status=ToolStatus.CANCELLED)
    return outcomes


def _settled_calls(step: AgentStep) -> Sequence[tuple[ToolCall, ToolExecution]]:
    """Return the calls that the model made in a step, with their executions."""
    if step.message is not None:
        return [(exchange.call, exchange.execution) for exchange in step.message.exchanges]
    if step.open_turn is None:
        return []
    calls = [part for part in step.open_turn.parts if isinstance(part, ToolCall)]
    return [
        (call, slot) for call, slot in zip(calls, step.open_turn.slots, strict=True) if isinstance(slot, ToolExecution)
    ]


def _outcome_of(execution: ToolExecution, call: ToolCall, facts: CallFacts) -> FixtureOutcome:
    is_decided, forced = execution.key in facts.decided_keys, not _can_recur(execution, facts)
    # The arguments of a decided call follow from the decision; other changes were made by an interceptor.
    needs_call = forced if is_decided else execution.call != call
    return FixtureOutcome(
        value=execution.value,
        status=execution.status,
        content=execution.content,
        error=execution.error,
        may_have_run=execution.may_have_run,
        executed_call=execution.call if needs_call else None,
        suspensions=facts.suspensions.get(execution.key, ()),
        forced=forced,
    )


def _can_recur(execution: ToolExecution, facts: CallFacts) -> bool:
    """Return whether a repeated call has the same outcome: by its tool, by the validation of its arguments, or by a rule."""
    status, error = execution.status, execution.error
    is_decided = execution.key in facts.decided_keys
    if is_decided and any(call.begun for call in facts.suspensions.get(execution.key, ())):
        return False
    if execution.key in facts.started_keys:
        # A tool raises an error of the recorded class; it cannot raise one with a path or with a name that is no class name.
        can_be_raised = error is None or (not error.path and error.type.isidentifier())
        return status in _TOOL_STATUSES and can_be_raised
    if is_decided or error is None:
        return False
    if status is ToolStatus.REJECTED:
        # Whether a call was allowed depended on the request, which an interceptor may have changed.
        return execution.name in facts.tool_names and error.type != CallNotAllowed.__name__
    return status is ToolStatus.BLOCKED and error.type == ToolBlocked.__name__
