"""The rule that every provider holds requests against: calls are followed by exactly their results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

Mark: TypeAlias = tuple[str, str, Any]
"""`call`, `result` or `other`; what joins the two; the arguments or what was told."""

OTHER: Mark = ("other", "", None)


def marks(wire_format: str, body: Mapping[str, Any]) -> list[Mark]:
    """Tell what stands in a request, one after the other."""
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


def unpaired(found: Sequence[Mark]) -> str:
    """Say what is wrong with the order of calls and results; empty for nothing."""
    waiting: list[str] = []
    answering = False
    for kind, joined, _ in found:
        if kind == "call":
            if answering and waiting:
                return f"the call {joined} stands between results"
            waiting, answering = [*waiting, joined], False
        elif kind == "result":
            if joined not in waiting:
                return f"the result {joined} answers no call before it"
            waiting.remove(joined)
            answering = True
        elif waiting:
            return f"{waiting} have no results where they belong"
    return f"{waiting} have no results at the end" if waiting else ""


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
                told = part["functionResponse"]["response"]
                yield "result", part["functionResponse"]["name"], told.get("result", told.get("error"))
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
