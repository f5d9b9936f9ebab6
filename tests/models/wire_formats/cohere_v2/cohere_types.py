"""The types and the client of Cohere's package: which requests are valid, and how answers and streams are read."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import cohere
import httpx
from cohere import (
    AssistantChatMessageV2,
    JsonObjectResponseFormatV2,
    SystemChatMessageV2,
    Thinking,
    ToolChatMessageV2,
    ToolV2,
    UserChatMessageV2,
)
from pydantic import BaseModel, ValidationError

_MESSAGES: Mapping[str, type[BaseModel]] = {
    "user": UserChatMessageV2,
    "assistant": AssistantChatMessageV2,
    "system": SystemChatMessageV2,
    "tool": ToolChatMessageV2,
}
_PARAMETERS = {*inspect.signature(cohere.ClientV2.chat).parameters, "stream"} - {"self", "request_options"}


def problems(body: Mapping[str, Any]) -> list[str]:
    """Return what Cohere's package does not know or accept in a request."""
    found = [f"unknown parameter {name}" for name in body.keys() - _PARAMETERS]
    parts: list[tuple[type[BaseModel], Any]] = [
        (_MESSAGES.get(message.get("role"), BaseModel), message) for message in body["messages"]
    ]
    parts += [(ToolV2, tool) for tool in body.get("tools", ())]
    parts += [(kind, body[name]) for name, kind in _ENTRIES.items() if name in body]
    for kind, data in parts:
        try:
            found += _unknown(kind.model_validate(data), kind.__name__)
        except ValidationError as error:
            found.append(str(error))
    if body.get("tool_choice", "NONE") not in {"REQUIRED", "NONE"}:
        found.append("unknown tool choice")
    return found


_ENTRIES: Mapping[str, type[BaseModel]] = {"thinking": Thinking, "response_format": JsonObjectResponseFormatV2}


def _unknown(value: object, path: str) -> Iterator[str]:
    """Yield the entries that the types do not have."""
    if isinstance(value, BaseModel):
        yield from (f"{path} has no {name}" for name in value.model_extra or ())
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _unknown(item, path)


def _client(status: int, headers: Mapping[str, str], body: bytes) -> cohere.ClientV2:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, headers=headers, content=body))
    return cohere.ClientV2(
        api_key="k", httpx_client=httpx.Client(transport=transport), log_warning_experimental_features=False
    )


def read_answer(body: bytes) -> dict[str, Any]:
    """Return text, reasoning, calls, finish reason and tokens of a complete answer as Cohere's package reads it."""
    answer = _client(200, {}, body).chat(model="m", messages=[])
    content: list[tuple[str, Any]] = [(item.type, item) for item in answer.message.content or ()]
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in answer.message.tool_calls or ()
        if call.function
    ]
    thoughts = [item.thinking for kind, item in content if kind == "thinking"]
    return {
        "text": "".join(item.text for kind, item in content if kind == "text"),
        "reasoning": "".join([answer.message.tool_plan or "", *thoughts]),
        "calls": calls,
        "finish": answer.finish_reason,
        "tokens": answer.usage.tokens.input_tokens if answer.usage and answer.usage.tokens else None,
    }


def read_stream(body: bytes) -> dict[str, Any]:
    """Return the same of a stream."""
    read: dict[str, Any] = {"text": "", "reasoning": "", "calls": [], "finish": None, "tokens": None}
    client = _client(200, {"content-type": "text/event-stream"}, body)
    for event in client.chat_stream(model="m", messages=[]):
        delta: Any = event.delta if hasattr(event, "delta") else None
        if event.type in {"content-start", "content-delta"}:
            read["text"] += delta.message.content.text or ""
            read["reasoning"] += delta.message.content.thinking or ""
        elif event.type == "tool-plan-delta":
            read["reasoning"] += delta.message.tool_plan
        elif event.type == "tool-call-start":
            call = delta.message.tool_calls
            read["calls"].append([call.id, call.function.name, call.function.arguments])
        elif event.type == "tool-call-delta":
            read["calls"][-1][2] += delta.message.tool_calls.function.arguments
        elif event.type == "message-end":
            read["finish"], read["tokens"] = delta.finish_reason, delta.usage.tokens.input_tokens
    return {**read, "calls": [tuple(call) for call in read["calls"]]}


def events(*data: Mapping[str, Any]) -> bytes:
    """Encode a stream, whose events have names."""
    return b"".join(f"event: {item.get('type', '')}\ndata: {json.dumps(item)}\n\n".encode() for item in data)


def stream_events(
    items: Iterable[Mapping[str, str]] = (),
    calls: Iterable[tuple[str, str, str]] = (),
    *,
    plan: str = "",
    citations: Iterable[Any] = (),
    finish: str = "COMPLETE",
) -> list[dict[str, Any]]:
    """Return the events that Cohere sends for a message with these items and calls."""
    sent: list[dict[str, Any]] = [{"type": "message-start", "id": "r", "delta": {"message": {"role": "assistant"}}}]
    sent += [{"type": "tool-plan-delta", "delta": {"message": {"tool_plan": word}}} for word in plan]
    for index, item in enumerate(items):
        kind = item["type"]
        contents: list[dict[str, str]] = [{"type": kind, kind: ""}, *[{kind: character} for character in item[kind]]]
        for number, content in enumerate(contents):
            name = "content-delta" if number else "content-start"
            sent.append({"type": name, "index": index, "delta": {"message": {"content": content}}})
        sent.append({"type": "content-end", "index": index})
    for index, (call_id, name, arguments) in enumerate(calls):
        call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
        sent.append({"type": "tool-call-start", "index": index, "delta": {"message": {"tool_calls": call}}})
        for start in range(0, len(arguments), 3):
            fragment = {"function": {"arguments": arguments[start : start + 3]}}
            sent.append({"type": "tool-call-delta", "index": index, "delta": {"message": {"tool_calls": fragment}}})
        sent.append({"type": "tool-call-end", "index": index})
    for index, citation in enumerate(citations):
        sent.append({"type": "citation-start", "index": index, "delta": {"message": {"citations": citation}}})
        sent.append({"type": "citation-end", "index": index})
    return [*sent, {"type": "message-end", "id": "r", "delta": {"finish_reason": finish, "usage": USAGE}}]


USAGE = {"billed_units": {"input_tokens": 1, "output_tokens": 2}, "tokens": {"input_tokens": 9.0, "output_tokens": 2.0}}
