"""Text of models and tools, made fit for a terminal: it is data, and must not move a cursor or change a colour."""

from __future__ import annotations

import re

from agentloop.errors import MalformedArguments
from agentloop.values.json_text import format_json
from agentloop.values.tool_call import ToolCall

_LONGEST_LINE = 2_000
_ACTED_ON = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed, among them those that begin a sequence
    "\u2028\u2029\u202a-\u202e\u2066-\u2069"  # separators of lines, and what turns the direction of writing around
    "\ud800-\udfff]"  # halves of characters, which no encoding can write
)


def printable(text: str) -> str:
    """Return the text with every character that a terminal would act on spelled out; tabs and line feeds stay."""
    return _ACTED_ON.sub(_spelled, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return the text on one line, printable, and cut where it is far longer than any line."""
    return printable(" ".join(text[:_LONGEST_LINE].split()))


def call_text(call: ToolCall) -> str:
    """Return a call as a person would write it: `find(name="Ada", limit=3)`."""
    try:
        arguments = call.arguments
    except MalformedArguments:
        return one_line(f"{call.name}({call.arguments_json})")
    listed = ", ".join([f"{name}={format_json(value).decode()}" for name, value in arguments.items()])
    return one_line(f"{call.name}({listed})")


def _spelled(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()
