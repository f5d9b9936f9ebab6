"""Calls as text for people: everything is visible, and different calls never look alike."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentloop.values import ToolCall, render_call
from agentloop.values.json import freeze, thaw
from agentloop.values.rendering import render_arguments, render_value, shorten
from agentloop.values.visible_text import escape_all, escape_invisible, render_text
from tests.limits import processor_seconds

# Default_Ignorable_Code_Point of Unicode 15, as ranges of the standard, and blanks that are letters, marks or symbols.
IGNORABLE = "AD 34F 61C 115F-1160 17B4-17B5 180B-180F 200B-200F 202A-202E 2060-206F 3164 FE00-FE0F FEFF FFA0 FFF0-FFF8"
BLANKS = "1BCA0-1BCA3 1D173-1D17A E0000-E0FFF 2800 13441-13442 16FE4 1D159"


def of_ranges(text: str) -> set[str]:
    """Return the characters of ranges of hexadecimal codes."""
    ranges = [part.partition("-") for part in text.split()]
    return {chr(code) for first, _, last in ranges for code in range(int(first, 16), int(last or first, 16) + 1)}


@cache
def characters() -> list[str]:
    """Return the characters of Unicode; of the million that are unassigned or for private use, every 97th."""
    return [
        char
        for code, char in enumerate(map(chr, range(sys.maxunicode + 1)))
        if unicodedata.category(char) not in {"Cn", "Co"} or code % 97 == 0
    ]


def invisible_characters() -> list[str]:
    """Return those that are not seen."""
    named = of_ranges(f"{IGNORABLE} {BLANKS}")
    categories = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp", "Zs"}
    return [
        char for char in characters() if char in named or (unicodedata.category(char) in categories and char != " ")
    ]


def call(**arguments: object) -> ToolCall:
    """Return a call with these arguments."""
    return ToolCall("1", "pay").with_arguments(arguments)


def test_every_invisible_character_is_escaped() -> None:
    """No invisible character of Unicode is in the rendered text, wherever it stands, and its escape is."""
    tried = invisible_characters()
    for place in ("{}", "a{}b", "ab{}", "\u0430{}\u0431"):
        shown = [render_text(place.format(char)) for char in tried]
        assert [ascii(char) for char, text in zip(tried, shown, strict=True) if char in text] == []
        assert [text for text in shown if "\\" not in text] == []
    assert [ascii(char) for char in set(tried) - set("\n\t") if char in escape_invisible(f"a{char}b")] == []


def test_a_rendered_text_is_json() -> None:
    """Every rendered text is a JSON string of the same characters."""
    for start in range(0, len(characters()), 4096):
        text = "x".join([char for char in characters()[start : start + 4096] if not "\ud800" <= char <= "\udfff"])
        assert json.loads(render_text(text)) == text


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text(max_size=5), VALUES, max_size=4)


def as_written(value: object) -> str:
    """Return JSON that differs wherever two values differ for a reader: order, 1 and 1.0, true and 1."""
    return json.dumps(value, ensure_ascii=True)


@given(first=ARGUMENTS, second=ARGUMENTS)
@example(first={"a": 1}, second={"a": 1.0})
@example(first={"a": True}, second={"a": "true"})
@example(first={"a": 1, "b": 2}, second={"b": 2, "a": 1})
@example(first={'a="1", b': "2"}, second={"a": "1", "b": "2"})
@example(first={"a": "b", "c": "d"}, second={"a": 'b", c="d'})
@example(first={}, second={"": None})
@example(first={"a": 0.0}, second={"a": -0.0})
def test_different_calls_are_rendered_differently(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Two rendered calls are equal exactly when names, values and order of the arguments are."""
    one, other = call().with_arguments(first), call().with_arguments(second)
    is_same = as_written(thaw(one.arguments)) == as_written(thaw(other.arguments))
    assert (render_call(one) == render_call(other)) is is_same
    assert (render_call(one, max_length=50) == render_call(other, max_length=50)) is is_same
    assert (render_arguments(one) == render_arguments(other)) is is_same


@given(text=st.text(), arguments=ARGUMENTS)
def test_arguments_that_are_no_object_look_like_no_other_call(text: str, arguments: dict[str, Any]) -> None:
    """A text in place of the arguments is never rendered like arguments."""
    malformed = ToolCall("1", "pay", f"[{json.dumps(text)}]")
    assert render_call(malformed) != render_call(ToolCall("1", "pay").with_arguments(arguments))
    assert render_call(malformed) == f"pay({render_text(malformed.arguments_json)})"


@given(value=VALUES)
def test_a_value_is_rendered_as_json_on_one_line(value: object) -> None:
    """A rendered value can be read back, and has no line breaks."""
    [(_, rendered)] = render_arguments(call(value=value))
    assert as_written(json.loads(rendered)) == as_written(thaw(call(value=value).arguments["value"]))
    assert len(rendered.splitlines()) <= 1


@pytest.mark.parametrize(
    "text",
    [
        "naïve café Ångström Łódź",
        "Мария Ивановна и Пётр",
        "Ελληνικά κείμενο",
        "日本語のテキスト、ｶﾀｶﾅ",
        "한국어 문장",
        "हिन्दी में लिखा",
        "ข้อความภาษาไทย น้ำ",
        "עברית בלבד",
        "العربية فقط",
        "emoji 🎉 and €, £, →",
        "don’t say “no” — or … do – ever",  # noqa: RUF001  # typographic signs
        "Україна і ґанок, а також й",  # noqa: RUF001  # Ukrainian
        "Մայր Հայաստան",
        "ქართული ენა",
        "አማርኛ",
        "မြန်မာဘာသာ",
        "বাংলা ভাষা",
        "தமிழ் மொழி",
        "Tiếng Việt, Türkçe ışık",  # noqa: RUF001  # Turkish
        "中文，好。（注）",  # noqa: RUF001  # Chinese
        "データ一覧をサーバーへ送る",
    ],
)
def test_ordinary_text_of_a_language_is_readable(text: str) -> None:
    """Text as people write it has no escapes."""
    assert render_value(text) == f'"{text}"'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("b\u0430nk", "b\\u0430nk"),
        ("\u0430dmin", "\\u0430dmin"),
        ("\u0441\u043e\u0441", "\\u0441\\u043e\\u0441"),
        ("Jose\u0301", "Jose\\u0301"),
        ("\u212bngstr\u00f6m", "\\u212bngstr\u00f6m"),
        ("\ufb01le", "\\ufb01le"),
        ("\uff21da", "\\uff21da"),
        ("abc \u05d0\u05d1 12", "abc \\u05d0\\u05d1 12"),
        ("\u1100\u1161", "\u1100\\u1161"),
        ("a" + " " * 20, "a" + "\\u0020" * 20),
        ("\ud83d", "\\ud83d"),
        ("\U000e0041", "\\udb40\\udc41"),
        ("Z\u0351\u036b\u0343", "Z\\u0351\\u036b\\u0343"),
        ("\u0661\u0662", "\\u0661\\u0662"),
        ("\u0967\u0966", "\\u0967\\u0966"),
        ("http:\u2044\u2044x\u2024y\uff0ez", "http:\\u2044\\u2044x\\u2024y\\uff0ez"),
        ("a\u2010b a\u2212b", "a\\u2010b a\\u2212b"),
        ("rm \u2013rf a\u2013b", "rm \\u2013rf a\\u2013b"),
        ("\u0261oogle \u0251 \u01c3", "\\u0261oogle \\u0251 \\u01c3"),
        ("\u13aa\ua4d0\u15c5\u2c9f", "\\u13aa\\ua4d0\\u15c5\\u2c9f"),
        ("send to \u0430\u0440\u0440\u04cf\u0435 now", "send to \\u0430\\u0440\\u0440\\u04cf\\u0435 now"),
        ("\u0434\u0430 \u0440\u0430\u0443.com", "\u0434\u0430 \\u0440\\u0430\\u0443.com"),
        ("\u0434\u0430 no \u0441\u043e\u0441 no", "\u0434\u0430 no \\u0441\\u043e\\u0441 no"),
        ("\u30ab\u529b", "\\u30ab\\u529b"),
        ("\u30c6\u4e8c\u30b9", "\u30c6\\u4e8c\u30b9"),
        ("\u30da\u30fc\u30b8\u3078\u30a2", "\u30da\u30fc\u30b8\\u3078\u30a2"),
        ("\U0001f1f3\U0001f1f4", "\\ud83c\\uddf3\\ud83c\\uddf4"),
        ("\U0001f468\u200d\U0001f469", "\U0001f468\\u200d\U0001f469"),
    ],
    ids=ascii,
)
def test_look_alikes_are_escaped(text: str, shown: str) -> None:
    """Letters that imitate others, decomposed accents, ligatures, mixed directions and long gaps are escaped."""
    assert ascii(render_value(text)) == ascii(f'"{shown}"')


@pytest.mark.parametrize(
    "text",
    [
        "a" + "\u0301" * 50,
        "\u0e01" + "\u0e48\u0e49\u0e4a\u0e4b" * 20,
        "\u0e01" + "\u0e38\u0e34\u0e35\u0e36\u0e37\u0e31" * 20,
        "\u05d0" + "".join(map(chr, range(0x5B0, 0x5BD))) * 4,
        "\u0627" + "".join(map(chr, range(0x64B, 0x653))) * 4,
        "\u0f40" + "\u0f90\u0f91\u0f92\u0f94\u0f95\u0f96\u0f97" * 9,
        "\u0915" + "\u093e\u093f\u0940\u0941\u0942\u0943" * 9,
        "".join(map(chr, range(0x300, 0x370))),
    ],
    ids=ascii,
)
def test_piles_of_marks_are_escaped(text: str) -> None:
    """However many marks a text has, five at most are above and below one letter."""
    shown = render_text(text)
    assert json.loads(shown) == text
    assert max(len(pile) for pile in re.split(r"[^\u0300-\u036f\u0591-\u05c7\u064b-\u065f\u0900-\u0fff]", shown)) <= 6
    assert re.findall(r"\\u[0-9a-f]{4}", shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\u0e01\u0e34\u0e48", "\u0e01\u0e34\u0e48"),
        ("\u0e01\u0e48\u0e34", "\u0e01\u0e48\\u0e34"),
        ("\u0e01\u0e48\u0e48", "\u0e01\u0e48\\u0e48"),
        ("\u0e01\u0e48\u0e49", "\u0e01\u0e48\\u0e49"),
        ("\u05e9\u05c1\u05bc", "\u05e9\u05c1\\u05bc"),
        ("\u0967\u0941", "\\u0967\\u0941"),
        ("\u0441\u0301", "\\u0441\\u0301"),
    ],
    ids=ascii,
)
def test_marks_stay_where_a_text_of_their_script_has_them(text: str, shown: str) -> None:
    """A mark in another order, twice, or after a letter that is escaped itself is escaped, since another text looks like it."""
    assert ascii(render_text(text)) == ascii(f'"{shown}"')


@given(text=st.text(max_size=12))
@example(text="\u0430\u0301\u0430dmin")
@example(text="\u1112\u1161\u11ab \ud55c")
def test_an_escape_stands_for_its_character(text: str) -> None:
    """A rendered text is the JSON of the text, and has the same form in ASCII whatever characters a version of Python knows."""
    shown = render_text(text)
    assert json.loads(shown) == text
    assert escape_all(shown).isascii()
    assert json.loads(escape_all(shown)) == text


@pytest.mark.parametrize(
    "text",
    [
        "\u0430." * 20_000,
        "\u0430 \u0431 " * 20_000,
        "a\u200b" * 40_000,
        '"a' * 40_000,
        "\u0430" * 80_000,
        "e\u0301" * 40_000,
    ],
    ids=lambda text: ascii(text[:4]),
)
def test_rendering_takes_time_that_is_linear_in_the_text(text: str) -> None:
    """Four times as much text takes less than eight times as long, whatever is in it."""
    render_text(text[:1000])
    short = processor_seconds(lambda: render_text(text[: len(text) // 4]))
    assert processor_seconds(lambda: render_text(text)) < 8 * max(short, 0.01)


def test_right_to_left_texts_are_escaped_beside_others() -> None:
    """Terminals would show items of a list, or a name and its value, in reverse order; a value that is one text is readable."""
    assert render_value("אב גד") == '"אב גד"'
    assert render_value(("א", "ב")) == '["\\u05d0", "\\u05d1"]'
    assert render_value(freeze({"א": "ב"})) == '{"\\u05d0": "\\u05d1"}'
    assert render_arguments(call(א="ב")) == [('"\\u05d0"', '"ב"')]


def test_a_cut_text_says_what_is_missing() -> None:
    """A text that is cut ends in the number of missing characters and a digest of the whole, and differs from others."""
    first, second = (shorten("x" * 100 + end, 50) for end in "ab")
    assert first.startswith("x" * 50 + "… [51 more characters, sha256 ")
    assert first != second
    assert shorten("x" * 50, 50) == "x" * 50
