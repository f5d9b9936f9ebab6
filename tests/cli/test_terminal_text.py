"""Text of models and tools on a terminal."""

from __future__ import annotations

import pytest

from agentloop.cli.console import call_text, counted, duration, one_line, printable, tokens
from agentloop.values.inference import Usage
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
        ("naïve 日本 👩‍🚀", "naïve 日本 👩‍🚀"),
    ],
    ids=ascii,
)
def test_nothing_acts_on_the_terminal(text: str, shown: str) -> None:
    """Characters that a terminal would act on are spelled out; all others stay."""
    assert ascii(printable(text)) == ascii(shown)


def test_a_line_is_one_line() -> None:
    """Whatever breaks lines becomes a space, and a text far longer than a line is cut."""
    assert one_line(" a\n\tb\x1cc \u2028d ") == "a b c d"
    assert len(one_line("x" * 1_000_000)) < 10_000


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"name": "Ada", "limit": 3, "tags": ["a"]}', 'find(name="Ada", limit=3, tags=["a"])'),
        ("", "find()"),
        ('{"name": "A', 'find({"name": "A)'),
    ],
)
def test_a_call_is_shown_as_written_by_hand(arguments: str, shown: str) -> None:
    """Arguments are named; those that are no JSON object are shown as they came."""
    assert call_text(ToolCall("1", "find", arguments)) == shown


def test_figures_are_words() -> None:
    """Numbers of things, times and tokens are said in words that fit them."""
    assert [counted(1, "step"), counted(1200, "step")] == ["1 step", "1,200 steps"]
    assert [duration(0.0002), duration(0.25), duration(2.34), duration(125)] == [
        "<1 ms",
        "250 ms",
        "2.3 s",
        "2 min 5 s",
    ]
    assert tokens(Usage(1200, 5)) == "1,200 tokens in, 5 out"
    assert tokens(Usage(1200, None)) == "1,200 tokens in, unknown out"
    assert tokens(Usage(None, None)) == "tokens unknown"
