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
        shown = cut(result.value, most)
        return result if shown is result.value else ToolResult(result.value, (Text(shown),))
    if isinstance(result.value, dict | tuple):
        written = format_json(result.value)
        return result if len(written) <= most else ToolResult(result.value, (Text(_cut(written, len(written), most)),))
    return result


def _limited_parts(parts: tuple[ContentPart, ...], most: int) -> tuple[ContentPart, ...]:
    return tuple([Text(cut(part.text, most)) if isinstance(part, Text) else part for part in parts])


def cut(text: str, most: int) -> str:
    """Return the text, or as much of it as fits into this many bytes, with a notice of what is missing."""
    if len(text) * 4 <= most:
        return text
    size = sum(len(_encoded(text[place : place + _PIECE])) for place in range(0, len(text), _PIECE))
    return text if size <= most else _cut(_encoded(text[:most]), size, most)


def _cut(data: bytes, size: int, most: int) -> str:
    shown = data[:most].decode("utf-8", "ignore")
    return f"{shown}\n[cut here: {most:,} of {size:,} bytes are shown]"


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


_PIECE = 1_000_000  # characters that are encoded at once, so that a large text is not held twice
