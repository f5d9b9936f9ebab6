"""Writing a move in the notation that a request asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from agentloop.cli.demo.move import Called, Move
from agentloop.cli.demo.reading import text_of

Notation: TypeAlias = Callable[[Move], dict[str, Any]]
"""Writes a move as a message of the assistant."""

_FINAL_THOUGHT = "I have what I need."


def notation_of(request: Mapping[str, Any]) -> Notation | None:
    """Return the notation in which a request asks for calls; None when no tool can be called.

    A model tells by what it is given: tools, a schema for its answer, or what the system prompt asks it to write.
    """
    if request.get("tools"):
        return as_native_calls
    wanted = request.get("response_format") or {}
    properties = wanted.get("json_schema", {}).get("schema", {}).get("properties", {})
    prompt = "\n".join(text_of(message) for message in request["messages"] if message["role"] == "system")
    if "next" in properties or '{"next":' in prompt:
        return as_next_steps
    if "thought" in properties or '"type": "final"' in prompt:
        return as_json_decision
    if "Final Answer:" in prompt:
        return as_labeled_lines
    return as_tagged_text if "<tool_call>" in prompt else None


def offered(request: Mapping[str, Any]) -> str:
    """Return the text in which a request offers its tools."""
    told = [message for message in request["messages"] if message["role"] == "system"]
    return json.dumps([told, request.get("tools"), request.get("response_format")])


def as_plain_text(move: Move) -> dict[str, Any]:
    """Write the words."""
    return _said(move.text)


def as_native_calls(move: Move) -> dict[str, Any]:
    """Write calls for the tool API."""
    message: dict[str, Any] = {"role": "assistant", "content": move.text or None}
    if move.calls:
        message["tool_calls"] = [
            {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for index, (name, arguments) in enumerate(move.calls)
        ]
    return message


def as_next_steps(move: Move) -> dict[str, Any]:
    """Write a list of calls and thoughts, or of the answer, as JSON."""
    if not move.calls:
        return _said(json.dumps({"next": [{"answer": move.text}]}))
    thought = [{"scratchpad": move.text}] if move.text else []
    calls = [{"tool": name, "arguments": arguments} for name, arguments in move.calls]
    return _said(json.dumps({"next": [*thought, *calls]}))


def as_tagged_text(move: Move) -> dict[str, Any]:
    """Write the words, then each call in tags."""
    calls = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in move.calls]
    tagged = [f"<tool_call>\n{call}\n</tool_call>" for call in calls]
    return _said("\n".join(filter(None, [move.text, *tagged])))


def as_json_decision(move: Move) -> dict[str, Any]:
    """Write a thought with calls or with the answer, as one JSON object that has every key of the schema."""
    decision: dict[str, Any] = dict.fromkeys(("thought", "type", "tool", "args", "calls", "answer"))
    if not move.calls:
        decision |= {"thought": _FINAL_THOUGHT, "type": "final", "answer": move.text}
    elif len(move.calls) == 1:
        decision |= {"thought": move.text, "type": "tool", **_decided(move.calls[0])}
    else:
        decision |= {"thought": move.text, "type": "tool", "calls": list(map(_decided, move.calls))}
    return _said(json.dumps(decision))


def as_labeled_lines(move: Move) -> dict[str, Any]:
    """Write Thought, Action and Action Input, or Final Answer."""
    if not move.calls:
        return _said(f"Thought: {_FINAL_THOUGHT}\nFinal Answer: {move.text}")
    lines = [f"Thought: {move.text}"] if move.text else []
    for name, arguments in move.calls:
        lines += [f"Action: {name}", f"Action Input: {json.dumps(arguments)}"]
    return _said("\n".join(lines))


def _decided(call: Called) -> dict[str, Any]:
    return {"tool": call[0], "args": call[1]}


def _said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}
