"""Results that are too large for a model."""

from __future__ import annotations

from agentloop.values.json_text import format_json
from agentloop.values.parts import Text
from agentloop.values.tool_execution import ContentPart
from agentloop.values.tool_result import ToolResult


def limited(result: ToolResult, most: int) -> ToolResult:
    """Return the result with what the model is shown cut to this many bytes of text; the value is kept whole.

    Args:
        result: the result.
        most: bytes of UTF-8.
    """
    if result.content is not None:
        return ToolResult(result.value, _limited_parts(result.content, most))
    if isinstance(result.value, str):
        if len(result.value) * 4 <= most:
            return result
        text = result.value
    elif isinstance(result.value, dict | tuple):
        text = format_json(result.value).decode()
    else:
        return result
    shown = cut(text, most)
    return result if shown is text else ToolResult(result.value, (Text(shown),))


def _limited_parts(parts: tuple[ContentPart, ...], most: int) -> tuple[ContentPart, ...]:
    return tuple([Text(cut(part.text, most)) if isinstance(part, Text) else part for part in parts])


def cut(text: str, most: int) -> str:
    """Return the text, or as much of it as fits into this many bytes, with a notice of what is missing."""
    if len(text) * 4 <= most:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return text
    shown = data[:most].decode("utf-8", "ignore")
    return f"{shown}\n[cut here: {most:,} of {len(data):,} bytes are shown]"
