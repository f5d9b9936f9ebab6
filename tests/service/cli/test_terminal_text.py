"""Text of models and tools on a terminal, and the formats of numbers."""

from __future__ import annotations

import pytest

from agentloop.service.cli.console import as_one_line, as_printable, format_call, format_duration, format_tokens
from agentloop.values.inference import Usage
from agentloop.values.reprs import format_count
from agentloop.values.tool_calls import ToolCall


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("a\x07\x9b1m", "a\\x07\\x9b1m"),
        ("left\u202eright", "left\\u202eright"),
        ("half \ud83d", "half \\ud83d"),
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
        ("one\rtwo", "one\\rtwo"),
        ("a\u200bb\u200fc\U000e0041", "a\\u200bb\\u200fc\\U000e0041"),
        ("naïve 日本 👩‍🚀", "naïve 日本 👩‍🚀"),
    ],
    ids=ascii,
)
def test_unsafe_characters_are_escaped(text: str, shown: str) -> None:
    """Characters that a terminal would interpret are escaped; all others stay."""
    assert ascii(as_printable(text)) == ascii(shown)


def test_one_line_has_no_breaks() -> None:
    """White space becomes a space, other breaks are escaped, and a text far longer than a line is cut, with a mark."""
    assert as_one_line(" a\n\tb\x1cc \u2028d ") == "a b\\u001cc \\u2028d"
    assert as_one_line("x" * 1_000_000).endswith("x… [cut: 1,000,000 characters in all]")
    assert len(as_one_line("x" * 1_000_000)) < 10_000


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"name": "Ada", "limit": 3, "tags": ["a"]}', 'find(name="Ada", limit=3, tags=["a"])'),
        ("", "find()"),
        ('{"name": "A', 'find("{\\"name\\": \\"A")'),
    ],
)
def test_a_call_is_formatted_as_written_by_hand(arguments: str, shown: str) -> None:
    """Arguments are formatted by name; malformed arguments are one text."""
    assert format_call(ToolCall("1", "find", arguments)) == shown


def test_numbers_have_units() -> None:
    """Counts, durations and tokens are formatted with suitable units."""
    assert [format_count(1, "step"), format_count(1200, "step")] == ["1 step", "1,200 steps"]
    assert [format_duration(0.0002), format_duration(0.25), format_duration(2.34), format_duration(125)] == [
        "<1 ms",
        "250 ms",
        "2.3 s",
        "2 min 5 s",
    ]
    assert format_tokens(Usage(1200, 5)) == "1,200 tokens in, 5 out"
    assert format_tokens(Usage(1200, None)) == "1,200 tokens in, unknown out"
    assert format_tokens(Usage(None, None)) == "tokens unknown"
