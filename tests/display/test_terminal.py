"""In a terminal: nothing is decided before all of a call was on the screen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agentloop.values import PendingCall
from tests.display.calls import CALLS, HOSTILE, as_written, pending, read_call, truth
from tests.display.terminal import PAGER, QUESTION, Person, asked, at_terminal
from tests.generated import examples
from tests.loaded import loaded_agentloop

if TYPE_CHECKING:
    from tests.service.cli.conftest import ModelServer

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")


def decide_hastily(person: Person, call: PendingCall, answer: str = "y", shown: str = "") -> None:
    """Answer whatever is asked at once, and check that a decision comes only after all of the call was seen.

    Args:
        person: the person.
        call: the call.
        answer: the answer.
        shown: what is on the screen if the program has begun to show the call.
    """
    before = len(person.decisions())
    while True:
        shown = shown or person.wait()
        assert shown, "the program has ended"
        assert len(person.decisions()) == before, "it was decided without a question"
        if QUESTION.search(shown):
            break
        assert PAGER.search(shown)
        person.type(f"{answer}\n")
        shown = ""
    # The person decides now, by what was seen.
    assert as_written(read_call(person.read())) == as_written(truth(call))
    seen = shown.replace("\n", "")
    assert call.digest[:12] in seen
    person.type(f"{answer}\n")
    person.wait_for_decisions(before + 1)


def require_display(
    approver: str, calls: Sequence[PendingCall], folder: Path, size: tuple[int, int], *, wide: bool
) -> None:
    """Check that a program shows each of the calls whole before it can be decided, in a terminal of this size."""
    with asked(approver, calls, folder, size=size, wide=wide) as person:
        for number, call in enumerate(calls):
            decide_hastily(person, call, "y" if number % 2 == 0 else "n")
    assert person.decisions() == [
        ("Approve" if number % 2 == 0 else "Deny", call.digest) for number, call in enumerate(calls)
    ]


@pytest.mark.parametrize(("size", "wide"), [((80, 24), False), ((37, 9), True), ((200, 60), True)])
def test_hostile_calls_are_seen_whole(tmp_path: Path, size: tuple[int, int], *, wide: bool) -> None:
    """Each of them is paged if it has to be, and what a person reads on the screen is what the call is."""
    require_display(
        "TerminalApprover", [pending(arguments) for arguments in HOSTILE.values()], tmp_path, size, wide=wide
    )


@pytest.mark.generated
@settings(max_examples=examples(12, share=4), phases=[Phase.explicit, Phase.generate])
@given(
    calls=st.lists(CALLS, min_size=3, max_size=8),
    size=st.tuples(st.integers(24, 120), st.integers(6, 40)),
    wide=st.booleans(),
)
def test_generated_calls_are_seen_whole(
    tmp_path_factory: pytest.TempPathFactory, calls: list[PendingCall], size: tuple[int, int], *, wide: bool
) -> None:
    """On a screen of any size, and whatever width it gives to characters."""
    require_display("TerminalApprover", calls, tmp_path_factory.mktemp("asked"), size, wide=wide)


LONG = pending({"cents": 100_000_000, **{f"n{n}": "all is well " * 20 for n in range(20)}, "iban": "EVIL"})
SHORT = pending({"cents": 1})


def decide_typed_ahead(approver: str, folder: Path) -> None:
    """Check that what is typed while the program is busy decides nothing: the person denies what they are asked about."""
    with asked(approver, [SHORT, LONG], folder) as person:
        person.type("y\n" * 40)
        assert QUESTION.search(person.wait())
        person.type("n\n" + "y\n" * 40)
        person.wait_for_decisions(1)
        decide_hastily(person, LONG, "n", person.wait())
    assert [kind for kind, _ in person.decisions()] == ["Deny", "Deny"]


def test_what_was_typed_ahead_decides_nothing(tmp_path: Path) -> None:
    """Neither about the first call, nor with the answer to a call about the next one."""
    decide_typed_ahead("TerminalApprover", tmp_path)


def decide_resized(approver: str, folder: Path) -> None:
    """Check that a terminal that becomes smaller shows the call again."""
    call = pending({f"n{n}": n for n in range(12)})
    with asked(approver, [call], folder) as person:
        assert QUESTION.search(person.wait())
        person.resize(60, 8)
        person.type("y\n")
        shown = person.wait()
        assert PAGER.search(shown)
        decide_hastily(person, call, "n", shown)
    assert [kind for kind, _ in person.decisions()] == ["Deny"]


def test_a_terminal_of_another_size_shows_the_call_again(tmp_path: Path) -> None:
    """An answer to what was shown in the larger one does not count."""
    decide_resized("TerminalApprover", tmp_path)


TOOL = '''
from pathlib import Path
from agentloop import tool

@tool
def pay(note: str, cents: int, currency: str = "EUR") -> str:
    """Pay."""
    Path(__file__).with_suffix(".paid").write_text(f"{cents} {currency}")
    return "paid"
'''


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_command_pays_nothing_before_all_of_a_call_was_seen(
    server: ModelServer, tmp_path: Path, command: str
) -> None:
    """`run` and `chat` show each screen of a call, with the defaults that it runs with, whatever is typed meanwhile."""
    tools = tmp_path / "bank.py"
    tools.write_text(TOOL, encoding="utf-8")
    note = "all is well " * 400
    server.calls(("pay", {"note": note, "cents": 7}))
    server.says("Done.")
    options = ["--model", "ollama:m", "--base-url", server.base_url, "--tools", str(tools), "--no-live"]
    options += ["--approve", "ask"]
    question = ["Pay."] if command == "run" else []
    with at_terminal(loaded_agentloop(command, *question, *options), tmp_path) as person:
        if command == "chat":
            person.type("Pay.\n")
        while PAGER.search(person.wait()):
            assert not tools.with_suffix(".paid").exists()
            person.type("y\n")
        read = read_call(person.read())
        assert read == ("pay", {"note": note, "cents": 7}, {"currency": "EUR"})
        assert not tools.with_suffix(".paid").exists()
        person.type("y\n")
        person.wait_for("Done.")
    assert tools.with_suffix(".paid").read_text() == "7 EUR"


@pytest.mark.parametrize("approver", ["AsksAtOnce", "ShowsHalf"])
def test_a_terminal_that_hides_a_part_is_found(tmp_path: Path, approver: str) -> None:
    """Rows that were never on the screen while the program waited are missed, and so are those that were not printed."""
    with pytest.raises(AssertionError):
        require_display(approver, [SHORT, LONG], tmp_path, (80, 24), wide=False)


def test_a_terminal_that_takes_what_was_typed_ahead_is_found(tmp_path: Path) -> None:
    """The check fails for an approver that keeps it."""
    with pytest.raises(AssertionError):
        decide_typed_ahead("KeepsTypedAhead", tmp_path)


def test_a_terminal_that_forgets_its_size_is_found(tmp_path: Path) -> None:
    """The check fails for an approver that looks at the size once."""
    with pytest.raises(AssertionError):
        decide_resized("ForgetsTheSize", tmp_path)
