"""Hostile texts cost no more than their length: steps and characters are counted, not seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

from agentloop.text_calls import (
    DEFAULT_FORMATS,
    AttemptResult,
    OfferedTools,
    ParseAttempt,
    StreamReader,
    TextBuffer,
    TextFormat,
    read_calls,
)

from .offered import TOOLS

UNITS = [
    "[", "{", "(", "<", "`", "\\", '"', "a", " ", "\n", "some words, ", '{"a":', "[1,", "[[1],", '{"a": "', "{'a': \"",
    "book_table(", "book_table(place=", "book_table(place=[", "book_table(place='", 'book_table(place="""', "book_table(#",
    'book_table(place="\\', "(book_table(", "book_table\n{", "clock() ", "clock(", "[cook(a=1),", "<tool_call>",
    '<tool_call>{"', "<tool_call>{", "<function=f>", "<function=f><parameter=a>", '<invoke name="', "<think>", "</think>",
    "[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{", "Action: clock\nAction Input: x", "```", "```json\n{", " to=functions.f",
    ">>>f\n", "<|tool_call>call:f{", '<|tool_call>call:f{a:<|"|>', "<tool_call>f<arg_key>a</arg_key><arg_value>",
    ']<]minimax[>[<invoke name="f">', "<|", "book\\_", '["[\'', '{"name": "clock", "arguments": {}}\n',
]  # fmt: skip
OPENED = [
    ("book_table(place=", "'a' "),
    ("book_table(dishes=", "["),
    ('{"name": "clock", "arguments": ', '{"a":'),
    ("<function=f><parameter=a>", "</parameter> x"),
    ("<function=f>", "<parameter=a></parameter>"),
    (']<]minimax[>[<invoke name="f">', "]<]minimax[>[<a>"),
    ("", '{"a":1,'),
    ("[", "clock(),"),
    ('{"tool_calls": [', "[{"),
    ('{"a": "', '\\"'),
]
TEXTS = [("", unit) for unit in UNITS] + OPENED


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count the calls of functions, Python's own among them: a measure of work that is the same on every machine."""
    count = [0]

    def count_event(frame: FrameType, event: str, argument: object) -> None:
        count[0] += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count_event)
    try:
        yield count
    finally:
        sys.setprofile(before)


class Watched(TextFormat):
    """A format that notes how far another one looks."""

    def __init__(self, inner: TextFormat, looked: list[int]) -> None:
        self.name = inner.name
        self.clarity = inner.clarity
        self.openings = inner.openings
        self.name_suffixes = inner.name_suffixes
        self.wrappers = inner.wrappers
        self.control_tokens = inner.control_tokens
        self._inner = inner
        self._looked = looked

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        outcome: AttemptResult = yield from self._inner.read(buffer, start, tools)
        self._looked[0] += max(outcome.end, outcome.reached) - start
        return outcome


def steps_of(text: str) -> int:
    with counted_steps() as steps:
        read_calls(text, TOOLS)
    return steps[0]


@pytest.mark.parametrize(("opened", "unit"), TEXTS)
def test_twice_the_text_is_twice_the_work(opened: str, unit: str) -> None:
    """The steps grow with the text and no faster, and no text makes more than some steps for each character."""
    small, large = (opened + unit * (size // len(unit)) for size in (8_000, 16_000))
    few, many = steps_of(small), steps_of(large)
    assert many <= 2.5 * few + 500
    assert many <= 120 * len(large) + 2_000


@pytest.mark.parametrize(("opened", "unit"), TEXTS)
def test_characters_are_not_read_again_and_again(opened: str, unit: str) -> None:
    """All that the notations look at is a small multiple of the text."""
    text = opened + unit * (100_000 // len(unit))
    looked = [0]
    read_calls(text, TOOLS, formats=[Watched(text_format, looked) for text_format in DEFAULT_FORMATS])
    assert looked[0] <= 12 * len(text) + 100_000


@pytest.mark.parametrize(("opened", "unit"), TEXTS)
def test_pieces_are_not_read_again(opened: str, unit: str) -> None:
    """In pieces, the steps grow with the text too."""
    few, many = (_steps_in_pieces(opened + unit * (size // len(unit))) for size in (4_000, 8_000))
    assert many <= 2.5 * few + 500


def _steps_in_pieces(text: str) -> int:
    reader = StreamReader(TOOLS)
    with counted_steps() as steps:
        for at in range(0, len(text), 4):
            reader.feed(text[at : at + 4])
        reader.close()
    return steps[0]


@pytest.mark.parametrize("depth", [100, 10_000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}", "()"])
def test_depth_is_bounded(depth: int, brackets: str) -> None:
    """Values nested too deeply are refused, without recursion, and those that are not are read."""
    opener, closer = brackets[0], brackets[1]
    inner = opener * depth + closer * depth
    if brackets == "{}":
        inner = '{"a":' * depth + "1" + "}" * depth
    reading = read_calls(f"book_table(place={inner})", TOOLS)
    assert bool(reading.calls) == (depth == 100)
    assert bool(reading.rejected) == (depth > 100)


def test_a_large_argument_is_read() -> None:
    """A megabyte of code in an argument comes out as it went in."""
    code = "def f(x):\n    return {'a': [x, \"</tool_call>\"]}  # `clock()`\n" * 16_000
    for text in (
        f"<function=book_table>\n<parameter=place>\n{code}\n</parameter>\n</function>",
        f"book_table(place={code!r})",
    ):
        reading = read_calls(text, TOOLS)
        assert [call.arguments for call in reading.calls] == [{"place": code}]


def test_refusals_are_bounded() -> None:
    """A text full of broken calls is not answered with as many reasons."""
    assert len(read_calls("book_table(! " * 1_000, TOOLS).rejected) == 100
