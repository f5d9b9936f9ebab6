"""The notations in which models write calls and answers: what a scripted model writes under each driver and mode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentloop.testing.scenario import Turn, Write
from agentloop.values.inference_response import FinishReason, InferenceResponse
from agentloop.values.json_text import format_json
from agentloop.values.json_value import thaw
from agentloop.values.parts import Text
from agentloop.values.tool_call import ToolCall


def as_tags(turn: Turn, number: int) -> InferenceResponse:
    """Write a turn as text with calls in tags, for the modes `validated` and `parsed`."""
    calls = [f"<tool_call>\n{_json(name=call.name, arguments=_arguments(call))}\n</tool_call>" for call in turn.calls]
    return _written(turn, number, "\n".join([*([turn.text] if turn.text else []), *calls]))


def as_structured(turn: Turn, number: int) -> InferenceResponse:
    """Write a turn as the JSON of the mode `structured`; what is said beside calls is a thought."""
    items: list[dict[str, Any]] = [{"tool": call.name, "arguments": _arguments(call)} for call in turn.calls]
    if turn.text:
        items.insert(0, {"scratchpad" if turn.calls else "answer": turn.text})
    return _written(turn, number, _json(next=items))


def as_react_json(turn: Turn, number: int) -> InferenceResponse:
    """Write a turn as a decision in JSON; what is said beside calls is a thought."""
    if not turn.calls:
        return _written(turn, number, _json(thought="", type="final", answer=turn.text))
    calls = [{"tool": call.name, "args": _arguments(call)} for call in turn.calls]
    made = {"calls": calls} if len(calls) > 1 else calls[0]
    return _written(turn, number, _json(thought=turn.text, type="tool", **made))


def as_react_text(turn: Turn, number: int) -> InferenceResponse:
    """Write a turn as a decision in labelled lines; what is said beside calls is a thought."""
    if not turn.calls:
        return _written(turn, number, f"Thought: I know.\nFinal Answer: {turn.text}")
    lines = [f"Thought: {turn.text}"]
    for call in turn.calls:
        lines += [f"Action: {call.name}", f"Action Input: {call.arguments_json}"]
    return _written(turn, number, "\n".join(lines))


NOTATIONS: Final[Mapping[str, Write]] = {
    "native": Turn.response,
    "structured": as_structured,
    "validated": as_tags,
    "parsed": as_tags,
    "react-json": as_react_json,
    "react-text": as_react_text,
}
"""How a turn is written under each mode, by the name of the mode."""


def _arguments(call: ToolCall) -> Any:
    return thaw(call.arguments)


def _json(**entries: Any) -> str:
    return format_json(entries).decode()


def _written(turn: Turn, number: int, text: str) -> InferenceResponse:
    return InferenceResponse((Text(text),), FinishReason.STOP, turn.usage, "scripted", f"response_{number}")
