"""Values of executions as entries of a trace."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime

from agentloop.service.trace.document import (
    CallPart,
    MediaPart,
    Range,
    TraceAttempt,
    TraceDecision,
    TraceError,
    TraceInnerCall,
    TraceOutcome,
    TracePart,
    TracePending,
    TraceRequestSettings,
    TraceStop,
    TraceUsage,
)
from agentloop.values.decisions import Answer, Approve, Decision, Deny, Edit, PendingCall
from agentloop.values.inference import InferenceOptions, InferenceRequest, Usage
from agentloop.values.json import JsonValue, freeze_object
from agentloop.values.messages import Part, ResponsePart
from agentloop.values.parts import Audio, Image, Media, ProviderPart, Reasoning, Text
from agentloop.values.records import RecordedAttempt
from agentloop.values.serialization import to_plain
from agentloop.values.stop import StopSignal
from agentloop.values.time_and_ids import to_microseconds
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExchange, ToolExecution

_MAX_IMAGE_BYTES = 1_000_000
"""Larger images are named, not embedded."""


# --- times, tokens, errors ----------------------------------------------------------------------------------------------


def milliseconds(moment: datetime) -> float:
    """Return a time as milliseconds since 1970."""
    return to_microseconds(moment) / 1000


def usage_entry(usage: Usage) -> TraceUsage:
    """Return token counts as an entry."""
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "requests": usage.requests,
    }


def error_entry(error: ErrorInfo | None) -> TraceError | None:
    """Return an error as an entry; None for None."""
    return None if error is None else {"type": error.type, "message": error.message, "path": error.path}


def stop_entry(signal: StopSignal | None) -> TraceStop | None:
    """Return a stop signal as an entry; None for None."""
    if signal is None:
        return None
    principal = signal.context.get("principal", "")
    return {
        "reason": signal.reason.value,
        "message": signal.message,
        "source": signal.source,
        "principal": principal if isinstance(principal, str) else "",
    }


def attempt_entry(attempt: RecordedAttempt) -> TraceAttempt:
    """Return a failed attempt as an entry."""
    error = attempt.error
    return {
        "ended_at": milliseconds(attempt.failed_at),
        "delay": 1000 * attempt.delay,
        "error": {"type": error.type, "message": error.message, "path": error.path},
        "instead": attempt.instead,
    }


# --- messages and requests ----------------------------------------------------------------------------------------------


def part_entries(parts: Iterable[Part | ResponsePart], known_calls: Collection[str] = ()) -> list[TracePart]:
    """Return parts of a message or a response as entries.

    Args:
        parts: the parts.
        known_calls: the keys of the calls that have entries of their own, to which parts refer.
    """
    return [_part_entry(part, known_calls) for part in parts]


def _part_entry(part: Part | ResponsePart, known_calls: Collection[str]) -> TracePart:
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            return {"type": "reasoning", "text": text}
        case ToolExchange():
            return _exchange_entry(part, known_calls)
        case ToolCall():
            return _call_part("", part.name, part.arguments_json)
        case ProviderPart():
            return {"type": "provider", "wire_format": part.wire_format, "payload": part.payload}
        case _:
            return _media_entry(part)


def _exchange_entry(exchange: ToolExchange, known_calls: Collection[str]) -> CallPart:
    execution = exchange.execution
    if execution.key in known_calls:
        return _call_part(execution.key, "", "")
    call = execution.call
    return _call_part("", call.name, call.arguments_json, status=execution.status.value, text=execution.text)


def _call_part(key: str, name: str, arguments: str, *, status: str = "", text: str = "") -> CallPart:
    return {"type": "call", "key": key, "name": name, "arguments": arguments, "status": status, "text": text}


def _media_entry(media: Media) -> MediaPart:
    data = media.data or b""
    is_shown = isinstance(media, Image) and 0 < len(data) <= _MAX_IMAGE_BYTES
    return {
        "type": "media",
        "kind": "image" if isinstance(media, Image) else "audio" if isinstance(media, Audio) else "document",
        "media_type": media.media_type,
        "name": media.name or media.file_id or "",
        "url": media.url or "",
        "bytes": len(data),
        "data": b64encode(data).decode() if is_shown else None,
    }


def settings_entry(request: InferenceRequest, index: int, sequence: int) -> TraceRequestSettings:
    """Return all of a request but its messages as an entry."""
    choice = request.tool_choice
    form = request.response_format
    options: JsonValue = to_plain(request.options, InferenceOptions)
    return {
        "index": index,
        "sequence": sequence,
        "system_prompt": request.system_prompt,
        "tools": [
            {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
                "effect": tool.effect.value,
            }
            for tool in request.tools
        ],
        "tool_choice": choice.name if choice.kind == "specific" else choice.kind,
        "parallel_tool_calls": request.parallel_tool_calls,
        "response_format": None if form is None else to_plain(form),
        "options": options,
    }


# --- calls --------------------------------------------------------------------------------------------------------------


def pending_entry(call: PendingCall) -> TracePending:
    """Return what a pending call waits for as an entry."""
    return {
        "reason": call.reason,
        "rendering": call.rendering,
        "digest": call.digest,
        "waits_for": call.waits_for,
        "suspension": call.suspension,
        "inner": [_inner_entry(inner) for inner in _leaves(call.inner)],
    }


def _leaves(calls: Sequence[PendingCall]) -> list[PendingCall]:
    """Return the calls about which decisions can be made: those without pending calls inside."""
    return [leaf for call in calls for leaf in (_leaves(call.inner) if call.inner else [call])]


def _inner_entry(call: PendingCall) -> TraceInnerCall:
    return {
        "key": call.key,
        "name": call.call.name,
        "arguments": call.call.arguments_json,
        "reason": call.reason,
        "rendering": call.rendering,
        "digest": call.digest,
        "waits_for": call.waits_for,
    }


def decision_entry(decision: Decision, at: float) -> TraceDecision:
    """Return a decision as an entry."""
    kind, detail = _decision_content(decision)
    return {"at": at, "kind": kind, "principal": decision.principal, "detail": detail}


def _decision_content(decision: Decision) -> tuple[str, JsonValue]:
    match decision:
        case Approve(grant=grant, endorse=endorse):
            said = [] if grant is None else [f"from now on: {grant}"]
            said += [f"endorsed: {', '.join(endorse)}"] if endorse else []
            return "approve", "; ".join(said) or None
        case Deny(reason):
            return "deny", reason
        case Answer(value):
            return "answer", exact(value)
        case Edit(arguments):
            return "edit", exact(arguments)


def outcome_entry(execution: ToolExecution) -> TraceOutcome:
    """Return an outcome as an entry."""
    return {
        "status": execution.status.value,
        "value": exact(execution.value),
        "content": None if execution.content is None else part_entries(execution.content),
        "error": error_entry(execution.error),
    }


_MAX_EXACT = 2**53 - 1
"""The largest integer that JavaScript reads with all its digits."""


def exact(value: JsonValue) -> JsonValue:
    """Return a value with integers that JavaScript would round as texts."""
    if isinstance(value, dict):
        return (
            freeze_object({name: exact(item) for name, item in value.items()}) if _has_large(value.values()) else value
        )
    if isinstance(value, tuple):
        return tuple([exact(item) for item in value]) if _has_large(value) else value
    return str(value) if type(value) is int and abs(value) > _MAX_EXACT else value


def _has_large(values: Iterable[JsonValue]) -> bool:
    for value in values:
        if isinstance(value, dict | tuple):
            if _has_large(value.values() if isinstance(value, dict) else value):
                return True
        elif type(value) is int and abs(value) > _MAX_EXACT:
            return True
    return False


# --- ranges -------------------------------------------------------------------------------------------------------------


def extend_ranges(ranges: Sequence[Range], indexes: Iterable[int]) -> list[Range]:
    """Return ranges followed by further indexes."""
    extended = [list(each) for each in ranges]
    for index in indexes:
        if extended and extended[-1][1] == index - 1:
            extended[-1][1] = index
        else:
            extended.append([index, index])
    return extended


def cut_ranges(ranges: Sequence[Range], length: int) -> list[Range]:
    """Return the beginning of ranges that has this number of indexes."""
    kept: list[Range] = []
    for first, last in ranges:
        if length <= 0:
            break
        kept.append([first, min(last, first + length - 1)])
        length -= last - first + 1
    return kept


def range_indexes(ranges: Iterable[Range]) -> Iterator[int]:
    """Yield the indexes in ranges, in order."""
    for first, last in ranges:
        yield from range(first, last + 1)
