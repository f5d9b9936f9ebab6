"""Damaged calls: what was meant runs, or the model is asked again, or the text is a quotation of which an event tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloop.models import TextMode
from agentloop.models.text_calls import DEFAULT_FORMATS, read_calls
from agentloop.models.text_calls.text_format import CallPattern

from .mutations import (
    CALLS,
    DAMAGES,
    NAMES,
    TOOLS,
    Call,
    Mutant,
    is_exempt,
    judge,
    mutants_of,
    outcomes,
    parts_of,
    patterns,
    table_row,
)
from .offered import read_in_pieces

PAGE = Path(__file__).parents[3] / "docs" / "text-calls.md"
PARSED = TextMode(reprompts=False)


PATTERNS = [pytest.param(each, id=f"{name}-{index}") for name in NAMES for index, each in enumerate(patterns(name))]
COUNTS = [pytest.param(CALLS[:1], id="one"), pytest.param(CALLS, id="two")]
MODES = [pytest.param(TextMode(), id="validated"), pytest.param(PARSED, id="parsed")]


def all_mutants(name: str, *, has_two: bool) -> Iterator[Mutant]:
    """Yield the mutants of all patterns of a notation."""
    for pattern in patterns(name):
        yield from mutants_of(pattern, CALLS, *DAMAGES) if has_two else mutants_of(pattern, CALLS[:1], *DAMAGES)


@pytest.mark.parametrize("text_format", DEFAULT_FORMATS)
def test_every_notation_says_how_it_writes_calls(text_format: object) -> None:
    """Otherwise nothing would be damaged, and nothing tested."""
    name = getattr(text_format, "name", "")
    assert patterns(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_damage_is_what_was_meant(name: str) -> None:
    """The patterns are calls."""
    for pattern in patterns(name):
        for calls in (CALLS[:1], CALLS):
            text = "".join(part for part, _ in parts_of(pattern, calls))
            assert judge(text, calls) == judge(text, calls, PARSED) == "meant", text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("calls", COUNTS)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_call_that_lacks_a_part_is_neither_another_one_nor_an_answer(
    pattern: CallPattern, calls: tuple[Call, ...], mode: TextMode
) -> None:
    """It is the call that was meant; or it is asked for again, or rejected; or it is a quotation with an event. So is one with a part twice."""
    for mutant in mutants_of(pattern, calls, "removed", "doubled"):
        assert judge(mutant.text, mutant.expected, mode) not in {"wrong", "silent"} or is_exempt(mutant), mutant


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_call_that_lacks_a_part_is_read_alike_as_a_stream(pattern: CallPattern) -> None:
    """In pieces of one character, each place is a cut."""
    for mutant in mutants_of(pattern, CALLS[:1], "removed"):
        assert read_in_pieces(mutant.text, 1, TOOLS) == read_calls(mutant.text, TOOLS), mutant


@pytest.mark.parametrize("name", NAMES)
def test_the_page_counts_the_outcomes_of_damaged_calls(name: str) -> None:
    """A part that moves makes no other call and no answer either."""
    counted, bad = outcomes(name)
    assert not bad, bad[:5]
    assert table_row(name, counted) in PAGE.read_text()


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_every_damage_to_two_calls_is_noticed(name: str) -> None:
    """A part that moves between two calls makes no third one, and hides none."""
    for mutant in all_mutants(name, has_two=True):
        for mode in (TextMode(), PARSED):
            assert judge(mutant.text, mutant.expected, mode) not in {"wrong", "silent"} or is_exempt(mutant), mutant


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_call_is_read_alike_in_every_cut(name: str) -> None:
    """A stream may end a piece at any place."""
    for mutant in all_mutants(name, has_two=False):
        whole = read_calls(mutant.text, TOOLS)
        for size in range(1, len(mutant.text)):
            assert read_in_pieces(mutant.text, size, TOOLS) == whole, (size, mutant)
