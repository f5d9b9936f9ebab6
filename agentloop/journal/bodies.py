"""The bodies of records: what each kind of record tells, as plain JSON data."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from agentloop.journal.record_writer import REDACTED
from agentloop.values.inference_response import InferenceResponse
from agentloop.values.json_value import EMPTY_OBJECT
from agentloop.values.pending_call import PendingCall
from agentloop.values.recorded import CallIntent, RecordedCall, RecordedInference
from agentloop.values.serialisation import from_plain, to_plain
from agentloop.values.stop import StopSignal
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ErrorInfo, ToolExecution
from agentloop.values.usage import Usage


def inference_body(recorded: RecordedInference, request: dict[str, Any], *, step: int, index: int) -> dict[str, Any]:
    """Tell what came of an inference.

    Args:
        recorded: what came of it.
        request: what is new in its request.
        step: the number of its step.
        index: its place among the inferences of the step, from 0.
    """
    body: dict[str, Any] = {"step": step, "index": index, "request": request}
    if recorded.response is not None:
        body["response"] = to_plain(recorded.response)
    if recorded.error is not None:
        body["error"] = to_plain(recorded.error)
    if recorded.response is None or recorded.usage != recorded.response.usage:
        body["usage"] = to_plain(recorded.usage)
    return body


def inference_of(body: dict[str, Any]) -> RecordedInference:
    """Return what came of an inference, as its record tells it."""
    response = from_plain(body["response"], InferenceResponse) if "response" in body else None
    error = from_plain(body["error"], ErrorInfo) if "error" in body else None
    if "usage" in body:
        return RecordedInference(response=response, error=error, usage=from_plain(body["usage"], Usage))
    assert response is not None  # noqa: S101  # only of a response the usage is not told apart
    return RecordedInference(response=response, error=error, usage=response.usage)


def intent_body(intent: CallIntent) -> dict[str, Any]:
    """Tell that a call is about to run."""
    return {"intent": to_plain(intent)}


def outcome_body(execution: ToolExecution, stop: StopSignal | None, intended: ToolCall | None) -> dict[str, Any]:
    """Tell what came of a call.

    Args:
        execution: what came of it.
        stop: the stop that its tool asked for.
        intended: the call as its intent tells it, which is not told again.
    """
    body: dict[str, Any] = {"execution": to_plain(execution)}
    if execution.call == intended:
        body["execution"].pop("call")
    if stop is not None:
        body["stop"] = to_plain(stop)
    return body


def call_begun(body: dict[str, Any]) -> RecordedCall:
    """Return a call as its intent tells it."""
    return RecordedCall(intent=from_plain(body["intent"], CallIntent), redacted=REDACTED in body)


def call_ended(body: dict[str, Any], begun: RecordedCall | None) -> RecordedCall:
    """Return a call with its outcome.

    Args:
        body: what the record of the outcome tells.
        begun: the call as its intent tells it; None when there was none.
    """
    data = dict(body["execution"])
    if begun is not None:
        data.setdefault("call", to_plain(begun.intent.call))
    execution = from_plain(data, ToolExecution)
    if begun is None:
        intent = CallIntent(
            key=execution.key, id=execution.id, call=execution.call, effect="effect", at=execution.started_at
        )
        begun = RecordedCall(intent=intent)
    stop = from_plain(body["stop"], StopSignal) if "stop" in body else None
    redacted, beside = begun.redacted or REDACTED in body, body.get("beside", EMPTY_OBJECT)
    return evolve(begun, execution=execution, stop=stop, redacted=redacted, beside=beside)


def call_suspended(body: dict[str, Any], begun: RecordedCall) -> RecordedCall:
    """Return a call that its tool has suspended."""
    pending = from_plain(body["pending"], PendingCall)
    return evolve(begun, pending=pending, beside=body.get("beside", EMPTY_OBJECT))
