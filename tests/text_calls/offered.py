"""The tools that the models of these tests were offered, and short ways to read."""

from __future__ import annotations

from agentloop.text_calls import ParseResult, StreamReader, read_calls
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


def calls_of(reading: ParseResult) -> Calls:
    """Return names and arguments."""
    return [(call.name, call.arguments) for call in reading.calls]


def calls_in(text: str, *, only_offered: bool = False) -> Calls:
    """Read a text."""
    return calls_of(read_calls(text, TOOLS, only_offered=only_offered))


def in_pieces(text: str, size: int, tools: tuple[ToolSpec, ...] = TOOLS) -> ParseResult:
    """Read a text that arrives in pieces, and check that what was told on the way is true."""
    reader = StreamReader(tools)
    pieces = [reader.feed(text[at : at + size]) for at in range(0, len(text), size)]
    reading = reader.close()
    told = tuple(call for piece in pieces for call in piece.calls)
    shown = "".join(piece.text for piece in pieces)
    if not any(tag in text for tag in ("</think", "[/THINK]", "◁/think▷", "</seed:think>", "</mm:think>")):
        assert reading.text.startswith(shown)
        assert reading.calls[: len(told)] == told
    return reading
