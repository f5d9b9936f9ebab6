"""The tools offered in these tests, and shortcuts for parsing."""

from __future__ import annotations

from agentloop.models.text_calls import StreamReader, read_calls
from agentloop.models.text_calls.results import ParseResult
from agentloop.values.tool_calls import ToolSpec

BOOK = ToolSpec(
    "book_table",
    "Book a table",
    {
        "type": "object",
        "properties": {
            "place": {"type": "string"},
            "guests": {"type": "integer"},
            "budget": {"type": "number"},
            "outside": {"type": "boolean"},
            "dishes": {"type": "array", "items": {"type": "string"}},
            "host": {"type": "object", "properties": {"first": {"type": "string"}, "age": {"type": "integer"}}},
        },
        "required": ["place"],
    },
)
CLOCK = ToolSpec("clock", "Tell the time", {"type": "object", "properties": {}})
TIDES = ToolSpec(
    "sea.tides", "Tell the tides", {"type": "object", "properties": {"port": {"type": "string"}}, "required": ["port"]}
)
TOOLS = (BOOK, CLOCK, TIDES)

Calls = list[tuple[str, dict[str, object]]]


def calls_of(result: ParseResult) -> Calls:
    """Return the names and arguments of the calls."""
    return [(call.name, call.arguments) for call in result.calls]


def calls_in(text: str, *, only_offered: bool = False) -> Calls:
    """Return the calls in a text."""
    return calls_of(read_calls(text, TOOLS, only_offered=only_offered))


def read_in_pieces(text: str, size: int, tools: tuple[ToolSpec, ...] = TOOLS) -> ParseResult:
    """Parse a text that arrives in pieces, and check that everything emitted on the way is part of the result."""
    reader = StreamReader(tools)
    chunks = [reader.feed(text[start : start + size]) for start in range(0, len(text), size)]
    result = reader.close()
    emitted_calls = tuple(call for chunk in chunks for call in chunk.calls)
    emitted_text = "".join(chunk.text for chunk in chunks)
    # An unpaired closing tag of reasoning revokes what was emitted before it.
    if not any(tag in text for tag in ("</think", "[/THINK]", "◁/think▷", "</seed:think>", "</mm:think>")):
        assert result.text.startswith(emitted_text)
        assert result.calls[: len(emitted_calls)] == emitted_calls
    return result
