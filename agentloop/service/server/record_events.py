"""The events that clients see: records of a journal, and states, as JSON with stable names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import field, frozen

from agentloop.durable.fold import FoldedExecution, RecordedChange
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import Usage
from agentloop.values.json import thaw
from agentloop.values.messages import Message
from agentloop.values.parts import Reasoning, Text
from agentloop.values.records import (
    PROVISIONAL,
    ExecutionHead,
    JournalRecord,
    RecordedCall,
    RecordedInference,
    RecordKind,
)
from agentloop.values.run_requests import principal_of
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution

JsonDict = dict[str, Any]

_NAMES: Mapping[RecordKind, str] = {
    RecordKind.EXECUTION_STARTED: "execution_started",
    RecordKind.EXECUTION_RECOVERED: "execution_recovered",
    RecordKind.EXECUTION_RESUMED: "execution_resumed",
    RecordKind.EXECUTION_SUSPENDED: "execution_suspended",
    RecordKind.EXECUTION_ENDED: "execution_ended",
    RecordKind.MESSAGES_SENT: "messages_sent",
    RecordKind.MESSAGES_TAKEN: "messages_taken",
    RecordKind.INFERENCE_RECORDED: "inference_completed",
    RecordKind.INFERENCE_FAILED: "inference_failed",
    RecordKind.CALL_INTENT: "call_started",
    RecordKind.CALL_OUTCOME: "call_ended",
    RecordKind.CALL_SUSPENDED: "call_suspended",
    RecordKind.DECISION_USED: "decision_used",
    RecordKind.STEP_COMPLETED: "step_completed",
}
"""The event of each kind of record; a record of another kind is no event."""

EVENT_TYPES = (*_NAMES.values(), "text_delta", "reasoning_delta")
"""The types of all events."""


@frozen
class ServerEvent:
    """What a client is told about an execution.

    Attributes:
        type: the type, one of `EVENT_TYPES`.
        data: the event as plain JSON data, with its type.
        sequence: the sequence number of its record; 0 without one, as for a delta.
        cursor: the position after it, for streams whose events have no sequence number of one execution; empty for others.
        is_whole: whether a delta holds all that was written before it, too.
        offset: the number of characters that the inference had written before a delta.
    """

    type: str
    data: JsonDict = field(repr=False)
    sequence: int = 0
    cursor: str = ""
    is_whole: bool = False
    offset: int = 0

    @property
    def is_end(self) -> bool:
        """Whether nothing follows."""
        return self.type == "execution_ended"


class RecordReader:
    """Translates the records of one execution, from the first, to events."""

    def __init__(self) -> None:
        self._folded = FoldedExecution()

    def read(self, record: JournalRecord) -> ServerEvent | None:
        """Return the event of the next record; None for a record that is none.

        Raises:
            JournalCorrupt: the record cannot be read.
        """
        before = self._last_step
        change = self._folded.apply(record)
        name = _NAMES.get(record.kind)
        is_step = record.kind is RecordKind.STEP_COMPLETED
        # A limit may stop an execution before the model is asked: then the record of the step adds none.
        if name is None or (is_step and (self._is_suspended or self._last_step in (None, before))):
            return None
        head = {
            "type": name,
            "execution_id": record.execution_id,
            "sequence": record.sequence,
            "at": record.at.isoformat(),
        }
        return ServerEvent(name, {**head, **self._content(record.kind, change)}, record.sequence)

    @property
    def _last_step(self) -> AgentStep | None:
        return None if self._folded.state is None else self._folded.state.last_step

    @property
    def _is_suspended(self) -> bool:
        """Whether the step that the last record ends has pending calls; `execution_suspended` follows, with what there is of it."""
        state = self._folded.state
        return state is not None and state.open_turn is not None

    def _content(self, kind: RecordKind, change: RecordedChange) -> JsonDict:
        folded, state = self._folded, self._folded.state
        assert state is not None  # noqa: S101  # the first record holds a state
        content: JsonDict = {}
        match kind:
            case RecordKind.EXECUTION_STARTED:
                text = state.messages[-1].text if state.messages else ""
                name = {"agent_name": state.agent_name} if state.agent_name else {}
                content = {"agent_id": state.agent_id, **name, "step": folded.step_number, "input": text}
            case RecordKind.MESSAGES_SENT:
                content = {"messages": _messages(change.messages)}
            case RecordKind.MESSAGES_TAKEN:
                content = {"step": folded.step_number, "messages": _messages(change.messages)}
            case RecordKind.INFERENCE_RECORDED | RecordKind.INFERENCE_FAILED:
                content = {"step": folded.step_number, **_inference(folded.inferences[-1])}
            case RecordKind.CALL_INTENT | RecordKind.CALL_OUTCOME | RecordKind.CALL_SUSPENDED:
                assert change.call is not None  # noqa: S101  # the record is about one
                content = {"step": folded.step_number, **_call(change.call)}
            case RecordKind.DECISION_USED:
                content = _decision(change.body)
            case RecordKind.STEP_COMPLETED:
                content = _step(state)
            case RecordKind.EXECUTION_SUSPENDED:
                content = _suspended_step(state)
            case RecordKind.EXECUTION_ENDED:
                content = outcome(state)
        return content


# --- parts of events --------------------------------------------------------------------------------------------------


def _messages(messages: Sequence[Message]) -> list[JsonDict]:
    return [{"role": message.role, "text": message.text} for message in messages]


def _inference(recorded: RecordedInference | None) -> JsonDict:
    if recorded is None:  # a part of it was masked
        return {"text": "", "reasoning": "", "calls": [], "is_masked": True}
    content: JsonDict = {"usage": _usage(recorded.usage)}
    if recorded.error is not None:
        content["error"] = _error(recorded.error)
    if recorded.purpose:
        content["purpose"] = recorded.purpose
    if recorded.response is not None:
        parts = recorded.response.parts
        content["model"] = recorded.response.model
        content |= _written(parts)
        content["calls"] = [_tool_call(part) for part in parts if isinstance(part, ToolCall)]
        if recorded.is_provisional:
            content["is_provisional"] = True
    return content


def _written(parts: Iterable[object]) -> JsonDict:
    """Return what a model has written, as texts."""
    found = list(parts)
    return {
        "text": "".join([part.text for part in found if isinstance(part, Text)]),
        "reasoning": "".join([part.text for part in found if isinstance(part, Reasoning)]),
    }


def _tool_call(call: ToolCall) -> JsonDict:
    return {"id": call.id, "name": call.name, "arguments": call.arguments_json}


def _call(recorded: RecordedCall) -> JsonDict:
    if recorded.execution is not None:
        mark = {"is_provisional": True} if PROVISIONAL in recorded.attachments else {}
        return {**_execution(recorded.execution), **mark}
    if recorded.pending is not None:
        return _pending_call(recorded.pending)
    return {"key": recorded.intent.key, **_tool_call(recorded.intent.call), "effect": recorded.intent.effect.value}


def _execution(execution: ToolExecution) -> JsonDict:
    return {
        "key": execution.key,
        **_tool_call(execution.call),
        "status": execution.status.value,
        "value": thaw(execution.value),
        "text": execution.text,
        "error": None if execution.error is None else _error(execution.error),
        "may_have_run": execution.may_have_run,
    }


def _error(error: ErrorInfo) -> JsonDict:
    return {"type": error.type, "message": error.message}


def _usage(usage: Usage) -> JsonDict:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "requests": usage.requests,
    }


def _decision(body: Any) -> JsonDict:
    decision = body.get("decision")
    plain = decision if isinstance(decision, dict) else {}
    return {
        "key": body.get("key", ""),
        "kind": plain.get("type") or plain.get("kind", ""),
        "principal": plain.get("principal", ""),
    }


def _step(state: AgentState) -> JsonDict:
    step = state.last_step
    assert step is not None  # noqa: S101  # it was completed
    return {
        "step": step.number,
        **_written(() if step.message is None else step.message.parts),
        "calls": [_execution(execution) for execution in step.executions],
    }


def _suspended_step(state: AgentState) -> JsonDict:
    turn = state.open_turn
    return {
        "step": state.step_count,
        **_written(() if turn is None else turn.parts),
        "calls": [] if turn is None else [_execution(execution) for execution in turn.executions],
        "pending": pending_calls(state.pending),
    }


def _pending_call(call: PendingCall) -> JsonDict:
    return {
        "key": call.key,
        **_tool_call(call.call),
        "reason": call.reason,
        "rendering": call.rendering,
        "digest": call.digest,
        "decided_after": None if call.label is None else list(map(str, call.label.sources)),
        "origins": [
            {"argument": each.argument, "writer": each.writer.value, "sources": list(map(str, each.label.sources))}
            for each in call.origins
        ],
        "waits_for": call.waits_for,
        "is_decided": call.is_decided,
        "grantable": call.grantable,
        "endorsable": list(call.endorsable),
        "inner": pending_calls(call.inner),
    }


def pending_calls(calls: Sequence[PendingCall]) -> list[JsonDict]:
    """Return pending calls as plain JSON data."""
    return [_pending_call(call) for call in calls]


def outcome(state: AgentState) -> JsonDict:
    """Return how an execution stands, or ended, as plain JSON data."""
    signal = state.stop_signal
    return {
        "status": state.status.value,
        "text": state.final_text,
        "step_count": state.step_count,
        "usage": _usage(state.usage),
        "stop": None if signal is None else _stop(signal),
        "error": _error(state.errors[-1]) if state.status.value == "failed" and state.errors else None,
    }


def _stop(signal: StopSignal) -> JsonDict:
    principal = signal.context.get("principal", "")
    return {"reason": signal.reason.value, "message": signal.message, "principal": principal}


# --- documents --------------------------------------------------------------------------------------------------------

EXTENSION = "agentloop.server"
"""The owner under which a state has who started its execution, and with which request."""


QUEUED = "queued"
"""The status of an execution that waits for a worker, and of which nothing is recorded."""
_INPUT_CHARS = 200


def summary(head: ExecutionHead) -> JsonDict:
    """Return the summary of an execution as plain JSON data."""
    return {
        "id": head.execution_id,
        "agent_id": head.agent_id,
        "agent_name": head.agent_name,
        "status": head.status.value,
        "step_count": head.step_count,
        "input": head.input,
        "sequence": head.record_count,
        "started_at": head.started_at.isoformat(),
        "updated_at": head.updated_at.isoformat(),
    }


def unrecorded_head(execution_id: str, state: AgentState) -> ExecutionHead:
    """Return a summary of an execution of which nothing is recorded."""
    execution = state.execution
    assert execution is not None  # noqa: S101  # it was submitted
    texts = [message.text for message in state.messages if message.role == "user"]
    return ExecutionHead(
        execution_id=execution_id,
        agent_id=state.agent_id,
        number=state.execution_count,
        status=state.status,
        input=texts[-1][:_INPUT_CHARS] if texts else "",
        started_at=execution.started_at,
        updated_at=execution.started_at,
        agent_name=state.agent_name,
    )


def unrecorded_end(execution_id: str, state: AgentState) -> ServerEvent:
    """Return the end of an execution that has ended before anything of it was recorded; the event has no number."""
    name = _NAMES[RecordKind.EXECUTION_ENDED]
    head = {"type": name, "execution_id": execution_id, "sequence": 0, "at": state.updated_at.isoformat()}
    return ServerEvent(name, {**head, **outcome(state)})


def details(head: ExecutionHead, state: AgentState) -> JsonDict:
    """Return an execution as plain JSON data: its summary, how it stands, and what waits for decisions."""
    started, principal = thaw(state.extension(EXTENSION)), principal_of(state)
    known = "" if principal is None else principal.name
    return {
        **summary(head),
        **outcome(state),
        "pending": pending_calls(state.pending),
        "started_by": started.get("principal", "") if isinstance(started, dict) else known,
        **({"status": QUEUED} if not head.record_count and not head.status.is_terminal else {}),
    }
