"""The bodies of records: what each kind of record tells, as plain JSON data."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from attrs import evolve

from agentloop.contracts.run_log import RequestRenderer
from agentloop.journal.record_writer import REDACTED
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.records import CallIntent, RecordedCall, RecordedInference
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolStatus


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


def read_inference(body: dict[str, Any]) -> RecordedInference:
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


def read_intent(body: dict[str, Any]) -> RecordedCall:
    """Return a call as its intent tells it."""
    return RecordedCall(intent=from_plain(body["intent"], CallIntent), redacted=REDACTED in body)


def read_outcome(body: dict[str, Any], begun: RecordedCall | None) -> RecordedCall:
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
    redacted, attachments = begun.redacted or REDACTED in body, body.get("beside", EMPTY_OBJECT)
    return evolve(begun, execution=execution, stop=stop, redacted=redacted, attachments=attachments)


def read_suspension(body: dict[str, Any], begun: RecordedCall) -> RecordedCall:
    """Return a call that its tool has suspended."""
    pending = from_plain(body["pending"], PendingCall)
    return evolve(begun, pending=pending, attachments=body.get("beside", EMPTY_OBJECT))


_THEN = datetime(2026, 1, 1, tzinfo=UTC)


def rendered_form(render: RequestRenderer | None, request: InferenceRequest) -> dict[str, Any] | None:
    """Return, as plain JSON data, how a model gets requests like this one; None when it gets them as they are.

    In place of the conversation stands a short one that is always the same, so that the size does not grow with the run.

    Args:
        render: returns a request as the model receives it; None when it receives requests unchanged.
        request: the request.
    """
    if render is None:
        return None
    plain: dict[str, Any] = to_plain(render(evolve(request, messages=_sample(request))))
    return plain


def _sample(request: InferenceRequest) -> tuple[Message, ...]:
    """Return a conversation in which the first tool was called, if there is one."""
    asked = Message.user("A question.")
    if not request.tools:
        return (asked,)
    call = ToolCall("sample", request.tools[0].name, "{}")
    execution = ToolExecution.of(
        call, ToolStatus.SUCCEEDED, key="sample/1/0", id="sample", at=_THEN, value="An outcome."
    )
    return asked, Message.assistant(Text("A text."), ToolExchange(call, execution)), Message.user("Another question.")
