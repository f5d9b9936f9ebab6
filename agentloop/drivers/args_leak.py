"""Text in which a model repeats the arguments of its calls."""

from __future__ import annotations

from agentloop.errors import MalformedArguments
from agentloop.values.json_text import parse_json
from agentloop.values.message import ResponsePart
from agentloop.values.parts import Text
from agentloop.values.tool_call import ToolCall, parse_arguments

_FENCE = "```"


def without_leaked_arguments(parts: tuple[ResponsePart, ...]) -> tuple[ResponsePart, ...]:
    """Drop text parts that are nothing but the arguments of one of the calls, as JSON, bare or fenced."""
    calls = [part for part in parts if isinstance(part, ToolCall)]
    if not calls or not any(isinstance(part, Text) for part in parts):
        return parts
    leaked = [arguments for arguments in map(_arguments, calls) if arguments]
    return tuple([part for part in parts if not (isinstance(part, Text) and _repeats(part.text, leaked))])


def _repeats(text: str, leaked: list[dict[str, object]]) -> bool:
    bare = text.strip()
    if bare.startswith(_FENCE) and bare.endswith(_FENCE):
        bare = bare.strip("`").removeprefix("json").strip()
    if not bare.startswith("{"):
        return False
    try:
        return parse_json(bare) in leaked
    except ValueError:
        return False


def _arguments(call: ToolCall) -> dict[str, object]:
    try:
        return parse_arguments(call.arguments_json)
    except MalformedArguments:
        return {}
