"""Patterns as automata: they match what `re` matches, in steps proportional to the text."""

from __future__ import annotations

import re
import warnings
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentloop.errors import ToolDefinitionError
from agentloop.tools import SchemaValidator
from agentloop.tools.patterns import LinearPattern, compile_pattern
from tests.generated import examples

PARTS = [
    *"abAB1_ éß\u017fKİ\u0131Z.^$",
    *(f"\\{letter}" for letter in "wWdDsSbBAZn"),
    *("[ab]", "[^a]", "[a-z]", "[A-Z]", "[^A-Z]", r"[^\w]", r"[\d_]", r"[\W\d]", "[]a]", "[ß-\u017f]"),
]
REPEATS = ["*", "+", "?", "{0}", "{2}", "{1,2}", "{,2}", "*?", "+?", "??", "{0,}", "{2,}", "{2,3}?"]
GROUPS = [
    "(?:{})",
    "({})",
    "(?P<name>{})",
    "(?i:{})",
    "(?s:{})",
    "(?m:{})",
    "(?a:{})",
    "(?x:{})",
    "(?-i:{})",
    "(?i-m:{})",
]
LOOKAHEADS = ["(?={})", "(?!{})"]
TEXTS = st.text(alphabet="aabbABZ1_ \n éß\u017fKkİi\u0131٣\x1c\x85", max_size=8)


def _larger(parts: st.SearchStrategy[str], groups: list[str] = GROUPS) -> st.SearchStrategy[str]:
    repeated = st.tuples(parts, st.sampled_from(REPEATS)).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    joined = st.lists(parts, min_size=1, max_size=3).map("".join)
    branches = st.lists(parts, max_size=3).map(lambda texts: f"(?:{'|'.join(texts)})")
    grouped = st.tuples(st.sampled_from(groups), parts).map(lambda pair: pair[0].format(pair[1]))
    return st.one_of(repeated, joined, branches, grouped)


PATTERNS = st.tuples(
    st.sampled_from(["", "", "", "(?i)", "(?s)", "(?m)", "(?a)", "(?x)", "(?im)"]),
    st.recursive(st.sampled_from(PARTS), lambda parts: _larger(parts, GROUPS + LOOKAHEADS), max_leaves=8),
).map("".join)


def _ignore(_: float) -> None:
    """Do not count."""


def _search(pattern: re.Pattern[str], text: str) -> bool:
    # `search` itself skips characters that `match` accepts when the flags of a group differ from those of the pattern.
    return any(pattern.match(text, index) for index in range(len(text) + 1))


@given(PATTERNS, st.lists(TEXTS, min_size=1, max_size=5))
@settings(max_examples=examples(500))
def test_patterns_match_what_re_matches(pattern: str, texts: list[str]) -> None:
    """A pattern is found in the same texts as with `re`, and is refused when `re` refuses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = re.compile(pattern)
        except re.error:
            with pytest.raises(ToolDefinitionError):
                LinearPattern(pattern)
            return
    found = LinearPattern(pattern)
    for text in texts:
        assert found.search(text, _ignore) is _search(expected, text), (pattern, text)


PLAIN_PATTERNS = st.recursive(
    st.sampled_from([part for part in PARTS if part not in {"^", "$", r"\b", r"\B", r"\A", r"\Z"}]),
    _larger,
    max_leaves=8,
)


@given(PLAIN_PATTERNS, st.lists(TEXTS, min_size=1, max_size=3))
@settings(max_examples=examples(300))
def test_places_have_every_character_that_is_in_a_match(pattern: str, texts: list[str]) -> None:
    """They are those that `re` finds when each part of the text is tried."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = re.compile(pattern)
    found = LinearPattern(pattern)
    for text in texts:
        covered = {
            index
            for start in range(len(text))
            for end in range(start + 1, len(text) + 1)
            if expected.fullmatch(text, start, end)
            for index in range(start, end)
        }
        places = found.places(text, _ignore)
        assert {index for start, end in places for index in range(start, end)} == covered, (pattern, text)
        assert all(before[1] < after[0] for before, after in pairwise(places))


def test_places_depend_on_what_is_around_them() -> None:
    """Boundaries and ends hold in places, too."""
    assert LinearPattern(r"\bab\b").places("ab cab ab-", _ignore) == [(0, 2), (7, 9)]
    assert LinearPattern(r"(?m)^a+$").places("aa\nab\na", _ignore) == [(0, 2), (6, 7)]
    assert LinearPattern(r"a(?=b)|b(?!a)").places("aab bab", _ignore) == [(1, 3), (5, 7)]
    assert LinearPattern(r"a*").places("", _ignore) == LinearPattern(r"b|$").places("aa", _ignore) == []


@pytest.mark.parametrize("pattern", ["a|a.*b", "(a+)+b", "(a|aa)*c", "a.{0,50}b"])
def test_steps_of_places_are_proportional_to_the_text(pattern: str) -> None:
    """Twice the text takes twice the steps, also where `re` would search to the end from each match."""
    counts = []
    for length in (20_000, 40_000):
        steps = list[float]()
        LinearPattern(pattern).places("a" * length, steps.append)
        counts.append(sum(steps))
    assert counts[1] <= 2.1 * counts[0] < 40_000


@pytest.mark.parametrize(
    ("pattern", "accepted", "refused"),
    [
        (r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$", ["1", "-1.50", ".5", "5."], ["", "-", "+.", "1e5"]),
        (
            r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$",
            ["ada@example.com", "a.b+c@x.co"],
            [".ada@example.com", "a..b@x.co", "ada@example"],
        ),
        (r"^(?=.*[a-z])(?=.*\d).{4,}$", ["abc1", "1abc"], ["abcd", "1234", "a1"]),
        (r"^P(?!$)(\d+D)?(T(?=\d)(\d+H)?(\d+M)?)?$", ["P1D", "PT2H", "P1DT2M"], ["P", "PT", "P1DT"]),
    ],
)
def test_texts_are_checked_by_patterns_with_lookahead(pattern: str, accepted: list[str], refused: list[str]) -> None:
    """The patterns that libraries of schemas write are checked, and not refused."""
    validator = SchemaValidator({"type": "string", "pattern": pattern})
    assert all(map(validator.accepts, accepted))
    assert not any(map(validator.accepts, refused))


@pytest.mark.parametrize("pattern", ["(?=a*b)", "(?:(?!a+b)a)*c", "(?=(?!.*c).*b)", "a(?=.{0,20}b)"])
def test_steps_of_lookahead_are_proportional_to_the_text(pattern: str) -> None:
    """Twice the text takes twice the steps, wherever the content of a lookahead is tried."""
    counts = []
    for length in (5_000, 10_000):
        steps = list[float]()
        LinearPattern(pattern).search("a" * length, steps.append)
        counts.append(sum(steps))
    assert counts[1] <= 2.1 * counts[0] < 60_000


@given(st.characters())
@settings(max_examples=examples(300))
def test_every_character_has_the_class_and_case_of_re(character: str) -> None:
    """Classes, boundaries and letters without case are those of `re` for every character."""
    for pattern in (
        r"\w",
        r"\d",
        r"\s",
        r"(?a)\w",
        r"(?a)\s",
        r"\b",
        r"(?a)\b",
        r"a\B",
        "(?i)[a-zß-ÿ\u017fK]",
        "(?i)[^k-s]",
    ):
        for text in (character, f"a{character}"):
            assert compile_pattern(pattern).search(text, _ignore) is _search(re.compile(pattern), text), (pattern, text)
    same = f"(?i){re.escape(character)}"
    for text in (character.lower(), character.upper(), character.swapcase()):
        assert compile_pattern(same).search(text, _ignore) is _search(re.compile(same), text)


@pytest.mark.parametrize(
    "pattern",
    [
        r"(a)\1",
        "(?<=a)b",
        "(?<!a)b",
        "(?>a+)",
        "a++",
        "(a)?(?(1)b|c)",
        "(",
        "[",
        "a{50}" * 50,
        "(a{60}){60}",
    ],
)
def test_patterns_that_an_automaton_cannot_match_are_refused(pattern: str) -> None:
    """References to groups, lookbehind, conditional, atomic and possessive parts, invalid patterns and huge ones are refused."""
    with pytest.raises(ToolDefinitionError, match="pattern"):
        LinearPattern(pattern)
    with pytest.raises(ToolDefinitionError, match="pattern"):
        SchemaValidator({"properties": {"a": {"pattern": pattern}}})


HOSTILE = [
    "^(a+)+$",
    "^(a|a)*$",
    "(a*)*b",
    r"(\w+\s?)+!",
    r"(?i)(a|A|aa)+$",
    r"\b(\w\B)+\b!",
    "(.*)*x",
    "((a?){30}){9}b",
    "(x+x+)+y",
]


@pytest.mark.parametrize("pattern", HOSTILE)
@pytest.mark.parametrize(("unit", "end"), [("a", "!"), ("ab ", ""), ("x", ""), ("aA", "\n"), ("a\n", "!")])
def test_steps_are_proportional_to_the_text(pattern: str, unit: str, end: str) -> None:
    """Twice the text takes at most about twice the steps, and few steps per character."""

    def steps(count: int) -> float:
        spent = 0.0

        def spend(number: float) -> None:
            nonlocal spent
            spent += number

        LinearPattern(pattern).search(unit * count + end, spend)
        return spent

    small, large = steps(2_000), steps(4_000)
    assert large <= 2.1 * small + 10
    assert large <= 4_000 * len(unit) + 10_000


def test_what_is_stored_of_an_automaton_is_bounded() -> None:
    """An automaton whose sets of states all differ is forgotten in part and goes on."""
    pattern = LinearPattern("a.{600}b")
    text = "".join("ab"[(number * number // 7 + number // 3) % 2] for number in range(3_000))
    assert pattern.search(text, _ignore) is bool(re.search("a.{600}b", text))
    assert pattern.search("c" * 3_000, _ignore) is False


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        (r"^\p{L}+$", "Müller", "a1"),
        (r"^[\p{L}\p{Nd}_-]+$", "ab_1-ü", "½"),
        (r"^[^\p{L}]+$", "12", "1a"),
        (r"^\P{Lu}+$", "ab", "aB"),
        (r"^\p{Lowercase_Letter}\p{gc=Nd}$", "a1", "A1"),
        (r"^\p{LC}\p{ASCII}\p{Any}$", "aa\n", "ªaa"),
        (r"^\\p{2}$", "\\pp", "a"),
    ],
)
def test_categories_of_characters_are_those_of_unicode(pattern: str, matching: str, other: str) -> None:
    r"""`\p{…}` matches the characters of a general category, in classes and outside of them."""
    assert LinearPattern(pattern).search(matching, lambda _: None)
    assert not LinearPattern(pattern).search(other, lambda _: None)


@pytest.mark.parametrize("pattern", [r"\p{Script=Latin}", r"(?i)\p{L}", r"[a-\p{L}]", r"\pL"])
def test_other_properties_of_characters_are_refused(pattern: str) -> None:
    """What cannot be matched exactly is an error."""
    with pytest.raises(ToolDefinitionError):
        LinearPattern(pattern)
