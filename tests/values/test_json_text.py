"""JSON text, read and written by orjson and by the standard library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.testing.strategies import json_values
from agentloop.values import json as json_text
from agentloop.values.json import (
    JsonValue,
    TooManyEntries,
    format_json,
    freeze,
    parse_json,
    replace_lone_surrogates,
    text_has_more_entries,
    thaw,
)

IMPLEMENTATIONS = ["orjson", "standard library"]


@pytest.fixture(params=IMPLEMENTATIONS, autouse=True)
def _implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run every test with orjson and without."""
    if request.param == "orjson":
        pytest.importorskip("orjson")
        assert json_text._fast_loads is not None
    else:
        monkeypatch.setattr(json_text, "_fast_dumps", None)
        monkeypatch.setattr(json_text, "_fast_loads", None)


@dataclass
class Point:
    """A class that orjson would write."""

    x: int


def nested(levels: int) -> list[Any]:
    """Return nested lists."""
    data: list[Any] = []
    for _ in range(levels - 1):
        data = [data]
    return data


@given(json_values())
def test_a_written_value_is_read_as_an_equal_value(value: JsonValue) -> None:
    """Writing and reading gives the same data with the same JSON types, from bytes and from text."""
    written = format_json(value)
    assert freeze(parse_json(written)) == value
    assert parse_json(written.decode()) == parse_json(written)
    assert format_json(parse_json(written)) == written


@given(json_values())
def test_both_implementations_write_the_same_data(value: JsonValue) -> None:
    """The standard library reads the output of both implementations as an equal value, and plain data is written like immutable data."""
    assert json.loads(format_json(value)) == thaw(value)
    assert format_json(thaw(value)) == format_json(value)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ({"b": 1, "a": [True, None, "é"]}, b'{"b":1,"a":[true,null,"\xc3\xa9"]}'),
        ([], b"[]"),
        ({}, b"{}"),
        ("a\u2028\u0000", b'"a\xe2\x80\xa8\\u0000"'),
        (1.0, b"1.0"),
        (-0.0, b"-0.0"),
    ],
)
def test_writing_is_compact_utf8_in_the_order_of_the_keys(data: Any, text: bytes) -> None:
    """No spaces, no escapes that are not needed, nothing sorted."""
    assert format_json(data) == text
    assert format_json(freeze(data)) == text


@pytest.mark.parametrize("number", [2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**30, -(10**4000)])
def test_integers_keep_all_their_digits(number: int) -> None:
    """An integer of any size is read as the integer it is, alone and inside of other data."""
    assert format_json([number]) == f"[{number}]".encode()
    for text in (f"[{number}]", f'{{"a":[0,{number}]}}', f" [ {number} ] "):
        parsed = parse_json(text)
        assert number in (parsed["a"] if isinstance(parsed, dict) else parsed)
    assert type(parse_json(str(number))) is int


def test_digits_in_text_are_text() -> None:
    """Long runs of digits that are not integers, such as text, are unchanged."""
    digits = "1" * 30
    assert parse_json(f'{{"{digits}":"{digits}"}}') == {digits: digits}
    assert parse_json("0.1234567890123456789012345") == 0.1234567890123456789012345


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "\udc00\ud800"])
def test_lone_surrogates_are_written_as_escapes_and_read_again(text: str) -> None:
    """Half of a character, as a cut stream may leave it, survives."""
    written = format_json({"a": text, "é": "é"})
    assert written.isascii()
    assert parse_json(written) == {"a": text, "é": "é"}
    assert parse_json(f'"{text}"') == text


@pytest.mark.parametrize(
    "text",
    [
        *["NaN", "Infinity", "-Infinity", "[NaN]", '{"a":-Infinity}'],
        *["1e999", "-1e999", "[1e400]"],
        *["", " ", "{", "[1,]", "{'a':1}", '{"a":1}}', "1 2", "nul", "True", '"\n"', "01", ".5", "1.", "+1"],
        *["\ufeff{}", '{"a"}', "[", '"abc', "//", "{a:1}"],
    ],
)
def test_text_that_is_not_a_json_document_is_refused(text: str) -> None:
    """Constants of other languages, numbers beyond floats, truncated documents and trailing text are errors."""
    for given_text in (text, text.encode() if text != "\ufeff{}" else b"\xff{}"):
        with pytest.raises(ValueError):  # noqa: PT011  # the words are the parser's
            parse_json(given_text)


@pytest.mark.parametrize("data", [b"\xff", b'"\xc3"', b'"\xed\xa0\x80"', b"\x00", b'\xff\xfe"\x00a\x00"\x00'])
def test_bytes_that_are_not_utf8_are_refused(data: bytes) -> None:
    """Other encodings are not guessed."""
    with pytest.raises(ValueError):  # noqa: PT011  # the words are the parser's
        parse_json(data)


def test_a_byte_order_mark_is_skipped() -> None:
    """Bytes that a Windows program wrote are read."""
    assert parse_json(b'\xef\xbb\xbf{"a":1}') == {"a": 1}


def test_the_last_of_equal_keys_counts() -> None:
    """Both implementations agree where JSON leaves a choice."""
    assert parse_json('{"a":1,"b":2,"a":3}') == {"a": 3, "b": 2}


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_numbers_without_a_json_form_are_not_written(number: float) -> None:
    """NaN and infinities are errors, never a silent null."""
    for data in (number, [number], {"a": [None, {"b": number}]}):
        with pytest.raises(ValueError, match="not JSON compliant"):
            format_json(data)


@pytest.mark.parametrize(
    "data", [{1, 2}, b"a", object(), Point(1), datetime(2020, 1, 1, tzinfo=UTC), date(2020, 1, 1), Decimal(1), [1, {2}]]
)
def test_other_classes_are_not_written(data: object) -> None:
    """Data that is not JSON raises a TypeError, even if orjson could write it."""
    with pytest.raises(TypeError):
        format_json(data)


def test_nesting_of_two_hundred_levels_is_read_and_written() -> None:
    """Every valid value can be written."""
    deep = nested(200)
    assert parse_json(format_json(deep)) == deep
    assert format_json(freeze(deep)) == b"[" * 200 + b"]" * 200


def test_nesting_without_end_is_an_error() -> None:
    """Ten thousand levels and cycles are ValueErrors, not the end of the program."""
    with pytest.raises(ValueError, match="nested too deeply to be read"):
        parse_json("[" * 10_000 + "]" * 10_000)
    cycle: list[Any] = []
    cycle.append(cycle)
    for data in (nested(10_000), cycle):
        with pytest.raises(ValueError, match=r"nested too deeply to be written|Circular reference"):
            format_json(data)


@given(st.binary(max_size=20) | st.text(max_size=20).map(str.encode))
def test_reading_anything_gives_data_or_a_value_error(data: bytes) -> None:
    """No input raises anything but a ValueError, and the result is JSON."""
    try:
        parsed = parse_json(data)
    except ValueError:
        return
    freeze(parsed)


_HOSTILE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**4000])
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.builds(nested, st.integers(1, 1100)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=12,
)
"""Everything that has a JSON form, and some of what has none."""


def outcome(work: Callable[[Any], object], data: object, *, is_fast: bool) -> object:
    """Return what a function returns, or the class of its error, with orjson or without."""
    with pytest.MonkeyPatch.context() as patch:
        if not is_fast:
            patch.setattr(json_text, "_fast_dumps", None)
            patch.setattr(json_text, "_fast_loads", None)
        try:
            return work(data)
        except (ValueError, TypeError) as error:
            return TypeError if isinstance(error, TypeError) else ValueError


@given(_HOSTILE)
def test_what_is_written_is_the_same_with_orjson_and_without(data: Any) -> None:
    """The same bytes, apart from the notation of floats, and errors for the same data."""
    fast, plain = (outcome(format_json, data, is_fast=is_fast) for is_fast in (True, False))
    if isinstance(fast, bytes) and isinstance(plain, bytes) and fast != plain:
        assert repr(json.loads(fast)) == repr(json.loads(plain))
        fast, plain = (_FLOAT.sub(b"0", each) for each in (fast, plain))
    assert fast == plain


_FLOAT = re.compile(rb"-?\d+(\.\d+)?[eE][+-]?\d+|-?\d+\.\d+")


@given(_HOSTILE, st.data())
def test_what_is_read_is_the_same_with_orjson_and_without(data: Any, draw: st.DataObject) -> None:
    """Equal values of the same types, and errors for the same texts, also for those that were damaged."""
    text = json.dumps(data, ensure_ascii=draw.draw(st.booleans()))
    if draw.draw(st.booleans()):
        at = draw.draw(st.integers(0, len(text)))
        text = (
            text[:at] + draw.draw(st.sampled_from(["", "e5", "-", '"', "\\", "[", "\ud800", "0" * 20])) + text[at + 1 :]
        )
    fast, plain = (outcome(parse_json, text, is_fast=is_fast) for is_fast in (True, False))
    assert repr(fast) == repr(plain)


_PIECES = st.lists(
    st.sampled_from(["\\\\", "\\ud800", "\\uDC00", "\\ud83d\\ude00", "\\u00e9", "\\n", "ud800", "d8", "é", "a"])
)


@given(pieces=_PIECES)
def test_lone_surrogates_become_the_replacement_character(pieces: list[str]) -> None:
    """Pairs, other escapes and escaped backslashes stay; what is written has no lone surrogate."""
    document = f'"{"".join(pieces)}"'
    expected = re.sub("[\ud800-\udfff]", "\ufffd", json.loads(document))
    assert json.loads(replace_lone_surrogates(document.encode())) == expected


@pytest.mark.parametrize("filling", ["\\", "\\n", "\\ud83d\\ude00", "a"])
def test_what_is_not_a_lone_surrogate_is_passed_over_at_once(filling: str) -> None:
    """A long document with one lone surrogate takes one match, however many other escapes it has."""
    document = filling.encode() * 1000 + b"\\ud800"
    found = [each.end() for each in json_text._UP_TO_LONE_SURROGATE.finditer(document)]
    assert found == [len(document)]


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("[1,2,3]", 3),
        ('{"a": [], "b": {"c": 1}}', 4),
        ('["[,,{", "\\",[", 1]', 3),
        ("[" * 10, 10),
        ('"' + "," * 50, 0),
    ],
)
def test_entries_are_counted_without_a_parser(text: str, count: int) -> None:
    """Commas and opening brackets outside of texts count, also in a document that is cut off."""
    for document in (text, text.encode()):
        assert not text_has_more_entries(document, count)
        assert count == 0 or text_has_more_entries(document, count - 1)
    with pytest.raises(TooManyEntries, match="has more than 2 entries in its lists and objects"):
        parse_json("[1,2,3]", 2)
    assert parse_json("[1,2,3]", 3) == [1, 2, 3]
