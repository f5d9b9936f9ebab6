"""The pairing rule of all providers: in a request, calls are followed by exactly their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Mark: TypeAlias = tuple[str, str, Any]
"""`call`, `result` or `other`; the id that joins a call with its result; the arguments or the result."""

OTHER: Mark = ("other", "", None)


def marks(wire_format: str, body: Mapping[str, Any]) -> list[Mark]:
    """Return the calls, the results and the other items of a request, in order."""
    match wire_format:
        case "openai-chat" | "ollama":
            return list(_of_chat(body["messages"]))
        case "anthropic-messages":
            return list(_of_anthropic(body["messages"]))
        case "gemini":
            return list(_of_gemini(body["contents"]))
        case "openai-responses":
            return list(_of_responses(body["input"]))
    raise ValueError(wire_format)


def pairing_error(items: Sequence[Mark]) -> str:
    """Return what violates the pairing rule, or an empty string."""
    pending: list[str] = []
    in_results = False
    for kind, call_id, _ in items:
        if kind == "call":
            if in_results and pending:
                return f"the call {call_id} is between results"
            pending, in_results = [*pending, call_id], False
        elif kind == "result":
            if call_id not in pending:
                return f"the result {call_id} has no call before it"
            pending.remove(call_id)
            in_results = True
        elif pending:
            return f"{pending} have no results before the next message"
    return f"{pending} have no results at the end" if pending else ""


def _of_chat(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mark]:
    for message in messages:
        if message["role"] == "tool":
            yield "result", message.get("tool_call_id") or message["tool_name"], message["content"]
            continue
        yield OTHER
        for call in message.get("tool_calls") or ():
            arguments = call["function"]["arguments"]
            yield "call", call["id"], json.loads(arguments) if isinstance(arguments, str) else arguments


def _of_anthropic(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mark]:
    for message in messages:
        is_user = message["role"] == "user"
        for block in message["content"] if isinstance(message["content"], list) else ():
            match block["type"]:
                case "tool_use":
                    yield "call", block["id"], block["input"]
                case "tool_result":
                    yield "result", block["tool_use_id"], _text(block.get("content", ""))
                case _ if is_user:
                    yield OTHER
        if is_user:
            yield OTHER


def _of_gemini(contents: Sequence[Mapping[str, Any]]) -> Iterator[Mark]:
    for content in contents:
        for part in content["parts"]:
            if "functionCall" in part:
                yield "call", part["functionCall"]["name"], part["functionCall"].get("args", {})
            elif "functionResponse" in part:
                response = part["functionResponse"]["response"]
                yield "result", part["functionResponse"]["name"], response.get("result", response.get("error"))
        if content["role"] == "user":
            yield OTHER


def _of_responses(items: Sequence[Mapping[str, Any]]) -> Iterator[Mark]:
    for item in items:
        match item.get("type"):
            case "function_call":
                yield "call", item["call_id"], json.loads(item["arguments"])
            case "function_call_output":
                yield "result", item["call_id"], _text(item["output"])
            case _:
                yield OTHER


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
