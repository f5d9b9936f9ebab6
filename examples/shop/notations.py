"""The notations in which a model can be offered tools: calls and results read from a request, and turns written in it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from attrs import frozen

JsonMessage: TypeAlias = dict[str, Any]
"""A message of a Chat Completions conversation."""
Arguments: TypeAlias = dict[str, Any]


@frozen
class Turn:
    """What the model says next, before it is written in a notation. Without calls, the text is the answer.

    Attributes:
        text: the text.
        calls: the calls: pairs of a tool's name and arguments.
    """

    text: str
    calls: tuple[tuple[str, Arguments], ...] = ()


# --- reading --------------------------------------------------------------------------------------------------------

_TAGGED_CALL = re.compile(r"<tool_call>\n(.*?)\n</tool_call>", re.DOTALL)
_TAGGED_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_ACTION = re.compile(r"^Action: *(\S+)", re.MULTILINE)
_OBSERVATION = re.compile(r"^Observation(?: \d+ \(.*?\))?: ", re.MULTILINE)
_RESULT_LINE = '{"tool":'


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message, whether its content is a string or a list of parts."""
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def called_tools(message: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that an assistant message calls, in order."""
    if message.get("tool_calls"):
        return [call["function"]["name"] for call in message["tool_calls"]]
    text = text_of(message)
    document = parse_json_or_none(text)
    if isinstance(document, dict) and "next" in document:
        return [item["tool"] for item in document["next"] if "tool" in item]
    if isinstance(document, dict) and document.get("type") == "tool":
        return [call["tool"] for call in document.get("calls") or [document]]
    return [json.loads(call)["name"] for call in _TAGGED_CALL.findall(text)] or _ACTION.findall(text)


def results_in(message: Mapping[str, Any]) -> list[str]:
    """Return the tool results that a message contains, in order."""
    text = text_of(message)
    if message["role"] == "tool":
        return [text]
    tagged = _TAGGED_RESULT.findall(text)
    if tagged:
        return [json.loads(result)["content"] for result in tagged]
    if text.startswith(_RESULT_LINE):
        return [json.loads(line)["result"] for line in text.splitlines()]
    return [result.removesuffix("\n") for result in _OBSERVATION.split(text)[1:]]


def parse_json_or_none(text: str) -> Any:
    """Return the JSON document in a text; None when the text is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return None


# --- writing --------------------------------------------------------------------------------------------------------

Writer: TypeAlias = Callable[[Turn], JsonMessage]
"""Writes a turn as an assistant message."""

_FINAL_THOUGHT = "I have what I need."


def writer_for(request: Mapping[str, Any]) -> Writer | None:
    """Return the writer for the notation that a request asks for; None when the request offers no tools.

    The request shows the notation: native tools, a schema for the response, or instructions in the system prompt.
    """
    if request.get("tools"):
        return write_native_calls
    response_format = request.get("response_format") or {}
    properties = response_format.get("json_schema", {}).get("schema", {}).get("properties", {})
    prompt = "\n".join(text_of(message) for message in request["messages"] if message["role"] == "system")
    if "next" in properties or '{"next":' in prompt:
        return write_next_items
    if "thought" in properties or '"type": "final"' in prompt:
        return write_json_decision
    if "Final Answer:" in prompt:
        return write_labeled_lines
    return write_tagged_calls if "<tool_call>" in prompt else None


def offer_text(request: Mapping[str, Any]) -> str:
    """Return the text in which a request offers its tools."""
    system = [message for message in request["messages"] if message["role"] == "system"]
    return json.dumps([system, request.get("tools"), request.get("response_format")])


def write_plain_text(turn: Turn) -> JsonMessage:
    """Write the text alone."""
    return _text_message(turn.text)


def write_native_calls(turn: Turn) -> JsonMessage:
    """Write calls for the provider's tool API."""
    message: JsonMessage = {"role": "assistant", "content": turn.text or None}
    if turn.calls:
        message["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for index, (name, arguments) in enumerate(turn.calls)
        ]
    return message


def write_next_items(turn: Turn) -> JsonMessage:
    """Write a JSON list of thoughts and calls, or of the answer."""
    if not turn.calls:
        return _text_message(json.dumps({"next": [{"answer": turn.text}]}))
    thought = [{"scratchpad": turn.text}] if turn.text else []
    calls = [{"tool": name, "arguments": arguments} for name, arguments in turn.calls]
    return _text_message(json.dumps({"next": [*thought, *calls]}))


def write_tagged_calls(turn: Turn) -> JsonMessage:
    """Write the text as reasoning, then each call in tags: calls beside other text are not run."""
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in turn.calls]
    tagged = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    text = f"<think>{turn.text}</think>" if turn.text and tagged else turn.text
    return _text_message("\n".join(filter(None, [text, *tagged])))


def write_json_decision(turn: Turn) -> JsonMessage:
    """Write a thought with calls or with the answer, as one JSON object with every key of the schema."""
    decision: dict[str, Any] = dict.fromkeys(("thought", "type", "tool", "args", "calls", "answer"))
    calls = [{"tool": name, "args": arguments} for name, arguments in turn.calls]
    if not calls:
        decision |= {"thought": _FINAL_THOUGHT, "type": "final", "answer": turn.text}
    elif len(calls) == 1:
        decision |= {"thought": turn.text, "type": "tool", **calls[0]}
    else:
        decision |= {"thought": turn.text, "type": "tool", "calls": calls}
    return _text_message(json.dumps(decision))


def write_labeled_lines(turn: Turn) -> JsonMessage:
    """Write Thought, Action and Action Input, or Final Answer."""
    if not turn.calls:
        return _text_message(f"Thought: {_FINAL_THOUGHT}\nFinal Answer: {turn.text}")
    lines = [f"Thought: {turn.text}"] if turn.text else []
    for name, arguments in turn.calls:
        lines += [f"Action: {name}", f"Action Input: {json.dumps(arguments)}"]
    return _text_message("\n".join(lines))


def _text_message(text: str) -> JsonMessage:
    return {"role": "assistant", "content": text}
