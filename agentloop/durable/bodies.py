"""The bodies of records about inferences and calls, as plain JSON data, and the texts of commands."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from attrs import evolve

from agentloop.contracts.run_log import RequestRenderer
from agentloop.durable.record_writer import REDACTED
from agentloop.errors import JournalCorrupt
from agentloop.values.commands import ExecutionCommand
from agentloop.values.decisions import PendingCall
from agentloop.values.inference import InferenceRequest, InferenceResponse, Usage
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.messages import Message
from agentloop.values.parts import Text
from agentloop.values.records import CallIntent, RecordedAttempt, RecordedCall, RecordedInference
from agentloop.values.serialization import from_json, from_plain, to_plain
from agentloop.values.stop import StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution, ToolStatus

# --- inferences -------------------------------------------------------------------------------------------------------


def inference_body(recorded: RecordedInference, request: dict[str, Any], *, step: int, index: int) -> dict[str, Any]:
    """Return the body of a record about an inference.

    Args:
        recorded: the result of the inference.
        request: the delta of its request.
        step: the number of its step.
        index: its index among the inferences of the step, from 0.
    """
    body: dict[str, Any] = {"step": step, "index": index, "request": request}
    if recorded.response is not None:
        body["response"] = to_plain(recorded.response)
    if recorded.error is not None:
        body["error"] = to_plain(recorded.error)
    # The usage differs from that of the response when layers around the inference sent the request more than once.
    if recorded.response is None or recorded.usage != recorded.response.usage:
        body["usage"] = to_plain(recorded.usage)
    if recorded.requests != 1:
        body["requests"] = recorded.requests
    flags = {"is_other": recorded.is_other, "is_provisional": recorded.is_provisional}
    body |= {name: True for name, is_set in flags.items() if is_set}
    if recorded.stop is not None:
        body["stop"] = to_plain(recorded.stop)
    if recorded.purpose:
        body["purpose"] = recorded.purpose
    if recorded.started_at is not None:
        body["started_at"] = recorded.started_at.isoformat()
    if recorded.failed_attempts:
        body["failed_attempts"] = [to_plain(attempt) for attempt in recorded.failed_attempts]
    return body


def read_inference(body: dict[str, Any]) -> RecordedInference:
    """Return the result of an inference from the body of its record."""
    response = from_plain(body["response"], InferenceResponse) if "response" in body else None
    usage = from_plain(body["usage"], Usage) if "usage" in body else None
    if usage is None:
        assert response is not None  # noqa: S101  # only a response implies a usage
        usage = response.usage
    return RecordedInference(
        response=response,
        error=from_plain(body["error"], ErrorInfo) if "error" in body else None,
        usage=usage,
        requests=body.get("requests", 1),
        is_other=body.get("is_other", False),
        stop=from_plain(body["stop"], StopSignal) if "stop" in body else None,
        purpose=body.get("purpose", ""),
        started_at=datetime.fromisoformat(body["started_at"]) if "started_at" in body else None,
        is_provisional=body.get("is_provisional", False),
        failed_attempts=[from_plain(attempt, RecordedAttempt) for attempt in body.get("failed_attempts", ())],
    )


_SAMPLE_TIME = datetime(2026, 1, 1, tzinfo=UTC)


def rendered_form(render: RequestRenderer | None, request: InferenceRequest) -> dict[str, Any] | None:
    """Return a request like this one as the model receives it, as plain JSON data; None when the model receives it unchanged.

    A short sample conversation replaces the real one, so that the size does not grow with the execution.

    Args:
        render: returns a request as the model receives it; None when the model receives requests unchanged.
        request: the request.
    """
    if render is None:
        return None
    plain: dict[str, Any] = to_plain(render(evolve(request, messages=_sample_messages(request))))
    return plain


def _sample_messages(request: InferenceRequest) -> tuple[Message, ...]:
    """Return a conversation that calls the first tool of a request, if it has tools."""
    question = Message.user("A question.")
    if not request.tools:
        return (question,)
    call = ToolCall("sample", request.tools[0].name, "{}")
    execution = ToolExecution.of(
        call, ToolStatus.SUCCEEDED, key="sample/1/0", id="sample", at=_SAMPLE_TIME, value="An outcome."
    )
    answer = Message.assistant(Text("A text."), ToolExchange(call, execution))
    return question, answer, Message.user("Another question.")


# --- calls ------------------------------------------------------------------------------------------------------------


def intent_body(intent: CallIntent) -> dict[str, Any]:
    """Return the body of a record about a call that is about to run."""
    return {"intent": to_plain(intent)}


def read_intent(body: dict[str, Any]) -> RecordedCall:
    """Return a call from the body of its intent."""
    return RecordedCall(intent=from_plain(body["intent"], CallIntent), redacted=REDACTED in body)


def read_attachments(body: dict[str, Any], started: RecordedCall) -> RecordedCall:
    """Return a running call with what is attached to its newest attempt.

    Args:
        body: the body of the record about the attachments.
        started: the call from its intent.
    """
    # An attachment may name something, such as the execution of an agent, and a name that is masked in part finds nothing.
    return evolve(started, attachments=EMPTY_OBJECT if REDACTED in body else body["beside"])


def outcome_body(execution: ToolExecution, stop: StopSignal | None, intent: CallIntent | None) -> dict[str, Any]:
    """Return the body of a record about the outcome of a call.

    Args:
        execution: the outcome.
        stop: the stop that the tool requested.
        intent: the recorded intent, whose call and id are not stored again; None without an intent.
    """
    body: dict[str, Any] = {"execution": to_plain(execution)}
    # The intent precedes the outcome in the chain, so what is unchanged is stored once.
    if intent is not None and execution.call == intent.call:
        del body["execution"]["call"]
    if intent is not None and execution.id == intent.id:
        del body["execution"]["id"]
    if stop is not None:
        body["stop"] = to_plain(stop)
    return body


def read_outcome(body: dict[str, Any], started: RecordedCall | None) -> RecordedCall:
    """Return a call with its outcome.

    Args:
        body: the body of the record about the outcome.
        started: the call from its intent; None without an intent, when the call was answered without running.
    """
    data = dict(body["execution"])
    if started is not None:
        data = {"id": started.intent.id, "call": to_plain(started.intent.call)} | data
    execution = from_plain(data, ToolExecution)
    if started is None:
        # Without an intent, the effect of the tool is not recorded; a call with `effect` is never repeated unasked.
        intent = CallIntent(
            key=execution.key, id=execution.id, call=execution.call, effect="effect", at=execution.started_at
        )
        started = RecordedCall(intent=intent)
    return evolve(
        started,
        execution=execution,
        stop=from_plain(body["stop"], StopSignal) if "stop" in body else None,
        redacted=started.redacted or REDACTED in body,
        attachments=body.get("beside", EMPTY_OBJECT),
        is_answered="answered" in body,
    )


def read_suspension(body: dict[str, Any], started: RecordedCall) -> RecordedCall:
    """Return a call that its tool suspended.

    Args:
        body: the body of the record about the suspension.
        started: the call from its intent.
    """
    pending = from_plain(body["pending"], PendingCall)
    return evolve(started, pending=pending, attachments=body.get("beside", EMPTY_OBJECT))


# --- commands ---------------------------------------------------------------------------------------------------------


def read_command(stored: object, execution_id: str) -> ExecutionCommand:
    """Return a command from its stored JSON form.

    Args:
        stored: the JSON form, as text or in UTF-8; a damaged row can hold anything.
        execution_id: the execution, for the error.

    Raises:
        JournalCorrupt: it is not a command.
        SchemaTooNew: a newer version of agentloop wrote it.
    """
    try:
        text = stored.decode("utf-8", "surrogatepass") if isinstance(stored, bytes) else stored
        if not isinstance(text, str):
            raise ValueError("it is not stored as text")  # noqa: TRY301, TRY004  # reported with the other errors below
        return from_json(text, ExecutionCommand)
    except ValueError as error:
        raise JournalCorrupt(
            f"a command for execution {execution_id} cannot be read: {error}", execution_id=execution_id
        ) from error
