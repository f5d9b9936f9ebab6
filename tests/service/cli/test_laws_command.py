"""`agentloop laws`: the laws, and an implementation that breaks each."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING

import pytest

from agentloop.service.cli.laws import DOCUMENT
from agentloop.testing.kit import LAWS
from agentloop.testing.law_reasons import REASONS
from tests.testing.laws_page import kits, law_document, shown_liar
from tests.testing.zoo import MEMBERS

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine

SHOWN = json.loads(DOCUMENT.read_text(encoding="utf-8"))


def test_the_document_is_what_the_kits_and_the_zoo_have() -> None:
    """`python -m tests.testing.laws_page` writes it."""
    assert law_document() == SHOWN


@pytest.mark.parametrize("entry", SHOWN, ids=lambda entry: str(entry["number"]))
def test_each_shown_implementation_is_one_that_a_test_finds_to_break_its_law(entry: dict[str, object]) -> None:
    """`test_zoo` checks each member of the zoo; a law that a kit checks has one, and the others say which tests check them."""
    liar = shown_liar(int(str(entry["number"])))
    if liar is None:
        assert not entry["kits"]
        assert entry["tests"]
        return
    assert liar in MEMBERS
    assert liar.works
    assert entry["source"] == inspect.getsource(liar.subject)
    assert entry["liar_kit"] in {kit.__name__ for kit in kits()}


def test_each_reason_is_that_of_a_law() -> None:
    """A law that is renamed does not lose its reason unseen."""
    assert {*REASONS} - {text.partition(":")[0] for text in LAWS.values()} == set()


def test_all_laws_are_listed(command_line: CommandLine) -> None:
    """Each has its number and its name."""
    out = command_line("laws").out
    assert all(text.partition(":")[0] in out for text in LAWS.values())
    assert json.loads(command_line("laws", "--json").out) == SHOWN


@pytest.mark.parametrize("wanted", ["34", "cancellation", "CANCELLATION"])
def test_a_law_is_shown_with_an_implementation_that_breaks_it(command_line: CommandLine, wanted: str) -> None:
    """It says what the law says, why, which kits check it, and shows the source."""
    out = command_line("laws", wanted).out
    assert out.startswith("Law 34: Cancellation\n\nA component that is cancelled starts nothing more")
    assert "Without it: a run that was stopped goes on" in out
    assert "Checked by: AgentToolKit, " in out
    assert "DriverKit, " in out
    assert "breaks it, and " in out
    liar = next(entry["liar"] for entry in SHOWN if entry["number"] == 34)
    assert f"\n\nclass {liar}(" in out


def test_a_word_lists_the_laws_that_have_it(command_line: CommandLine) -> None:
    """A law that no kit checks names the tests of the package."""
    out = command_line("laws", "journal").out
    assert "Fold" in out
    assert "Interruption" in out
    assert "Totality" not in out
    assert "tests/durability" in command_line("laws", "26").out
    assert [each["number"] for each in json.loads(command_line("laws", "fold", "--json").out)] == [15]
