"""Who says what of a tool: the strictest statement holds, and only code and persons loosen it."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ToolDefinitionError
from agentloop.values import Authority, Effect
from agentloop.values.authority import DECLARED, Declarations, Statement, is_looser, strictest
from agentloop.values.tool_calls import as_decides, as_egress, as_identifiers, as_own

EGRESS = st.booleans() | st.lists(st.sampled_from(["url", "mirror", "to"]), min_size=1).map(as_egress)
NAMES = st.lists(st.sampled_from(["id", "channel", "to", "*"]))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "effect": st.sampled_from(Effect),
    "egress": EGRESS,
    "own": NAMES.map(as_own),
    "identifiers": NAMES.map(as_identifiers),
    "decides": NAMES.map(as_decides),
    **dict.fromkeys(("runs_code", "strict", "sequential", "eager"), st.booleans()),
}
STRANGERS = st.sampled_from([by for by in Authority if not by.may_loosen])


@st.composite
def said(draw: st.DrawFn, by: st.SearchStrategy[Authority]) -> tuple[str, list[Statement]]:
    """Return a thing, and what is said about it."""
    about = draw(st.sampled_from(DECLARED))
    return about, [Statement(about, value, draw(by)) for value in draw(st.lists(VALUES[about], min_size=1, max_size=5))]


def test_every_thing_that_is_declared_has_values_here() -> None:
    """A further one is compared in each of these tests."""
    assert set(VALUES) == set(DECLARED)


@given(st.data(), st.sampled_from(DECLARED))
def test_joining_is_a_lattice(data: st.DataObject, about: str) -> None:
    """The strictest of some values does not depend on their order or number, and none of them is stricter."""
    one, two, three = (data.draw(VALUES[about]) for _ in range(3))
    joined = strictest(about, (one, two, three))
    assert all(strictest(about, order) == joined for order in permutations((one, two, three)))
    assert strictest(about, (strictest(about, (one, two)), three)) == joined
    assert strictest(about, (one, one)) == one
    assert strictest(about, (joined, one)) == joined
    assert not any(is_looser(about, joined, value) for value in (one, two, three))


@given(said(st.sampled_from(Authority)), st.data())
def test_what_holds_does_not_depend_on_the_order(case: tuple[str, list[Statement]], data: st.DataObject) -> None:
    """Statements in another order, or made twice, come to the same."""
    about, statements = case
    code = Statement(about, data.draw(VALUES[about]), Authority.CODE)
    holding = Declarations([code, *statements]).holding(about).value
    shuffled = data.draw(st.permutations([code, *statements, *statements]))
    assert Declarations(shuffled).holding(about).value == holding


@given(said(STRANGERS), st.data())
def test_strangers_never_loosen(case: tuple[str, list[Statement]], data: st.DataObject) -> None:
    """Whatever files, servers and rows say, the tool is at least as strict as code, or a person, says."""
    about, statements = case
    by = data.draw(st.sampled_from([Authority.CODE, Authority.PERSON]))
    word = Statement(about, data.draw(VALUES[about]), by)
    held = Declarations([word, *statements]).holding(about)
    assert not is_looser(about, held.value, word.value)
    assert held.value == strictest(about, [word.value, *[statement.value for statement in statements]])
    assert held.by is by or held.value != word.value


@given(st.data(), st.sampled_from(DECLARED))
def test_a_person_has_the_last_word(data: st.DataObject, about: str) -> None:
    """What a person says replaces what code says, in both directions, and what was said before."""
    code, file, person = (data.draw(VALUES[about]) for _ in range(3))
    said = Declarations.of_code(**{about: code}).plus(Statement(about, file, Authority.FILE))
    told = said.replaced_by(Statement(about, person, Authority.PERSON, "--trust"))
    assert told.holding(about) == Statement(about, person, Authority.PERSON, "--trust")
    assert told.about(about)[0].value == code  # still on record
    assert told.restated(**{about: code}).holding(about).value == code


def test_a_statement_says_whose_word_it_is() -> None:
    """Its place is named where it has one."""
    assert Statement("effect", Effect.PURE, Authority.CODE).speaker == "code"
    assert Statement("effect", Effect.PURE, Authority.FILE, "a.toml, line 3").speaker == "file (a.toml, line 3)"


def test_without_a_word_of_code_or_a_person_nothing_holds() -> None:
    """What a stranger alone says is no declaration."""
    with pytest.raises(KeyError):
        Declarations([Statement("effect", Effect.PURE, Authority.FILE)]).holding("effect")


@pytest.mark.parametrize("value", ["", " ", [], [""], ["url", 1], None, 3, {}])
def test_egress_names_arguments(value: Any) -> None:
    """Anything but a bool and names of arguments is an error that says how to write it."""
    with pytest.raises(ToolDefinitionError, match="egress='url'"):
        as_egress(value)


def test_egress_is_written_in_several_ways() -> None:
    """The names are sorted and occur once, so that equal declarations are equal."""
    assert as_egress("url mirror") == as_egress(["url", "mirror", "url"]) == ("mirror", "url")
    assert (as_egress(value=True), as_egress(value=False)) == (True, False)


def test_names_are_written_in_several_ways() -> None:
    """One text, a list, any order; `*` is all of them, whatever stands beside it."""
    assert as_own("id sent_at") == as_own(["sent_at", "id", "id"]) == ("id", "sent_at")
    assert as_decides("to *") == as_identifiers("*") == ("*",)
    assert as_own("") == as_decides(()) == ()


@pytest.mark.parametrize("read", [as_own, as_identifiers, as_decides])
@pytest.mark.parametrize("value", [3, [3], [""], None, True])
def test_what_has_no_names_is_refused(read: Any, value: Any) -> None:
    """The error shows what is meant."""
    with pytest.raises(ToolDefinitionError, match="as in"):
        read(value)


def test_fewer_own_fields_and_more_deciding_arguments_are_stricter() -> None:
    """A server that vouches for less, and an argument that decides beside others."""
    assert strictest("own", [("*",), ("id",)]) == ("id",)
    assert strictest("own", [("id", "sent"), ("sent", "to")]) == ("sent",)
    assert strictest("decides", [("to",), ("amount",)]) == ("amount", "to")
    assert is_looser("decides", ("to",), ("*",))
    assert is_looser("identifiers", ("channel",), ())
