"""The cost of hostile texts is linear: counted in steps and characters instead of seconds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from types import FrameType

import pytest

from agentloop.models.text_calls import (
    DEFAULT_FORMATS,
    AttemptResult,
    OfferedTools,
    ParseAttempt,
    StreamReader,
    TextBuffer,
    TextFormat,
    read_calls,
)
from agentloop.values import Bounds

from .offered import TOOLS

UNITS = [
    "[", "{", "(", "<", "`", "\\", '"', "a", " ", "\n", "some words, ", '{"a":', "[1,", "[[1],", '{"a": "', "{'a': \"",
    "book_table(", "book_table(place=", "book_table(place=[", "book_table(place='", 'book_table(place="""', "book_table(#",
    'book_table(place="\\', "(book_table(", "book_table\n{", "clock() ", "clock(", "[cook(a=1),", "<tool_call>",
    '<tool_call>{"', "<tool_call>{", "<function=f>", "<function=f><parameter=a>", '<invoke name="', "<think>", "</think>",
    "[TOOL_CALLS]", "[TOOL_CALLS]f[ARGS]{", "Action: clock\nAction Input: x", "```", "```json\n{", " to=functions.f",
    "<|channel|>analysis to=functions.f code",
    "Action 1", "**Action:** clock\n**Action Input:** ", "Action: sea.tides\nAction Input:```", "call:", "to=", "to=clock<|channel|>",
    "call:clock{", "<|tool_call:start|>f<|tool_arg:start|>a<|tool_arg:value|>", "function<｜tool▁sep｜>f", "✿FUNCTION✿:f",
    '<tool_call>{"name": "clock", "arguments": "', "commentary to=functions.f json", '<｜GCML｜invoke name="f">',
    "[{", ">>>f\n", "<|tool_call>call:f{", '<|tool_call>call:f{a:<|"|>', "<tool_call>f<arg_key>a</arg_key><arg_value>",
    ']<]minimax[>[<invoke name="f">', "<|", "book\\_", '["[\'', '{"name": "clock", "arguments": {}}\n',
]  # fmt: skip
PREFIXED_UNITS = [
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
    ("", "<function=f>\n<parameter=a>\nx\n</function>\n"),
    ("", "<function=f>\n<parameter=a>\n<parameter=b>\nx</parameter></function>"),
    ("<function=f>\n<parameter=a>", "\n</function>\n</x>"),
    ("<function=f>\n<parameter=a>", "\n</function>\n<function=f>"),
    ("<function=f>", "\n<parameter=a>"),
    ("", "<function=f><parameter=a></parameter>"),
    ("<function=f><parameter=a>", "</parameter><function=f>"),
    ("", "```print(book_table("),
    ("", "```print(clock() "),
    ("```", "print(clock())\n"),
]
UNBOUNDED = Bounds(text_characters=inf, text_steps_per_character=inf)
TEXTS = [("", unit) for unit in UNITS] + PREFIXED_UNITS


@contextmanager
def counted_steps() -> Iterator[list[int]]:
    """Count function calls, including built-in functions: a measure of work that is the same on every machine."""
    count = [0]

    def count_event(frame: FrameType, event: str, argument: object) -> None:
        count[0] += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count_event)
    try:
        yield count
    finally:
        sys.setprofile(before)


class CountingFormat(TextFormat):
    """A format that counts the characters which another format examines."""

    def __init__(self, inner: TextFormat, examined: list[int]) -> None:
        self.name = inner.name
        self.clarity = inner.clarity
        self.openings = inner.openings
        self.name_suffixes = inner.name_suffixes
        self.wrappers = inner.wrappers
        self.control_tokens = inner.control_tokens
        self._inner = inner
        self._examined = examined

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        result: AttemptResult = yield from self._inner.read(buffer, start, tools)
        self._examined[0] += max(result.end, result.reached) - start
        return result


def steps_of(text: str) -> int:
    with counted_steps() as steps:
        read_calls(text, TOOLS)
    return steps[0]


@pytest.mark.parametrize("size", [2_000, pytest.param(16_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(("prefix", "unit"), TEXTS)
def test_steps_are_linear_in_the_text(prefix: str, unit: str, size: int) -> None:
    """A text of twice the length takes about twice the steps, and the steps per character are bounded."""
    small, large = (prefix + unit * (size // len(unit)) for size in (size // 2, size))
    few, many = steps_of(small), steps_of(large)
    assert many <= 2.5 * few + 500
    assert many <= 120 * len(large) + 2_000


@pytest.mark.parametrize("size", [10_000, pytest.param(100_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(("prefix", "unit"), TEXTS)
def test_rereading_is_bounded(prefix: str, unit: str, size: int) -> None:
    """The characters that all formats examine are a small multiple of the text."""
    text = prefix + unit * (size // len(unit))
    examined = [0]
    read_calls(text, TOOLS, formats=[CountingFormat(text_format, examined) for text_format in DEFAULT_FORMATS])
    assert examined[0] <= 12 * len(text) + size


@pytest.mark.parametrize("size", [1_000, pytest.param(8_000, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(("prefix", "unit"), TEXTS)
def test_steps_are_linear_in_pieces(prefix: str, unit: str, size: int) -> None:
    """The steps are also linear if the text arrives in pieces."""
    few, many = (_steps_in_pieces(prefix + unit * (size // len(unit))) for size in (size // 2, size))
    assert many <= 2.5 * few + 500


def _steps_in_pieces(text: str) -> int:
    reader = StreamReader(TOOLS)
    with counted_steps() as steps:
        for start in range(0, len(text), 4):
            reader.feed(text[start : start + 4])
        reader.close()
    return steps[0]


@pytest.mark.parametrize("depth", [100, 10_000, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}", "()"])
def test_nesting_is_bounded(depth: int, brackets: str) -> None:
    """Values that are nested too deeply are rejected without recursion; others are parsed."""
    opener, closer = brackets[0], brackets[1]
    inner = opener * depth + closer * depth
    if brackets == "{}":
        inner = '{"a":' * depth + "1" + "}" * depth
    result = read_calls(f"book_table(place={inner})", TOOLS, bounds=UNBOUNDED)
    assert bool(result.calls) == (depth == 100)
    assert bool(result.rejected) == (depth > 100)


def test_a_large_argument_is_parsed() -> None:
    """A megabyte of code in an argument is parsed without change."""
    code = "def f(x):\n    return {'a': [x, \"</tool_call>\"]}  # `clock()`\n" * 16_000
    for text in (
        f"<function=book_table>\n<parameter=place>\n{code}\n</parameter>\n</function>",
        f"book_table(place={code!r})",
    ):
        result = read_calls(text, TOOLS, bounds=UNBOUNDED)
        assert [call.arguments for call in result.calls] == [{"place": code}]


def test_rejections_are_bounded() -> None:
    """At most 100 rejections are reported."""
    assert len(read_calls("book_table(! " * 1_000, TOOLS).rejected) == 100
