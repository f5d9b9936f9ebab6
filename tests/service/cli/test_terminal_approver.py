"""The questions about calls that wait: what is shown before an answer counts, on screens of any size."""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from agentloop.service.cli.execution import TerminalApprover
from agentloop.service.cli.rows import rows_of, screens_of
from agentloop.values import Decision, PendingCall, ToolCall
from agentloop.values.decisions import Approve, Deny, Edit

PAGER, QUESTION = "Enter", "Run it?"


class Asked(TerminalApprover):
    """An approver whose person gives these answers, on a screen whose size the test sets; `screens` are what was printed before each.

    Args:
        answers: the answers; an integer is a new height of the screen, before the next answer.
    """

    def __init__(self, answers: Sequence[str | int], width: int = 60, height: int = 20) -> None:
        self._out = io.StringIO()
        self.screen = Console(file=self._out, width=width, height=height)
        super().__init__(self.screen)
        self._answers = iter(answers)
        self.prompts: list[str] = []
        self.screens: list[str] = []

    def _read_line(self, prompt: str) -> str:
        self.prompts.append(prompt)
        self.screens.append(self._out.getvalue())
        self._out.seek(0)
        self._out.truncate()
        for answer in self._answers:
            if isinstance(answer, str):
                return answer
            self.screen.height = answer
        raise EOFError


def waiting(arguments: dict[str, Any], defaults: dict[str, Any] | None = None, name: str = "pay") -> PendingCall:
    return PendingCall("k", ToolCall("1", name).with_arguments(arguments), "it asks", defaults=defaults or {})


LONG = waiting(
    {"cents": 1_000_000, "note": "all is well " * 100, "iban": "EVIL", **{f"n{n}": "x" * 40 for n in range(20)}}
)


def test_a_call_that_fits_is_asked_about_at_once() -> None:
    """The call, its defaults, and the tool and the digest beside the question are on one screen."""
    asked = Asked(["y"])
    call = waiting({"to": "Ada"}, {"cents": 5})
    assert asked(call) == Approve(call.digest)
    assert asked.screens == [
        f'pay waits: it asks\n  to = "Ada"\n  cents = 5 (default)\npay, digest {call.digest[:12]}\n',
    ]
    assert asked.prompts[0].startswith(QUESTION)


@pytest.mark.parametrize("answer", ["y", "n", "e", "r", "a", ""])
def test_nothing_is_decided_before_the_last_screen(answer: str) -> None:
    """Whatever is typed while a part is shown only shows the next one."""
    asked = Asked([*[answer] * 60])
    pages = sum(prompt.startswith(PAGER) for prompt in asked_all(asked, LONG))
    assert pages >= 3
    assert [prompt for prompt in asked.prompts[:pages] if not prompt.startswith(PAGER)] == []
    assert asked.prompts[pages].startswith(QUESTION)
    shown = "".join(asked.screens[:pages])
    assert "iban" in shown
    assert '  n19 = "' in shown


def asked_all(asked: Asked, call: PendingCall) -> list[str]:
    asked(call)
    return asked.prompts


def test_beside_the_question_of_a_long_call_are_its_shortest_arguments() -> None:
    """An amount that has scrolled away is repeated, with the tool and the digest, and so are the names at the beginning."""
    asked = Asked([""] * 9 + ["n"])
    assert isinstance(asked(LONG), Deny)
    question = next(number for number, prompt in enumerate(asked.prompts) if prompt.startswith(QUESTION))
    beside = asked.screens[question].replace("\n", "")
    assert beside.startswith(f'pay, digest {LONG.digest[:12]}, iban = "EVIL", cents = 1000000, ')
    assert "more above" in beside
    assert "23 arguments in " in asked.screens[0]
    assert "cents, note, iban, n0" in asked.screens[0]


def test_a_screen_of_another_size_shows_the_call_again() -> None:
    """An answer in a terminal that became smaller does not count, nor does a part that was shown before it did."""
    call = waiting({f"n{n}": n for n in range(10)})
    asked = Asked([8, "y", "", "", "y"])
    assert asked(call) == Approve(call.digest)
    kinds = [prompt.partition(" ")[0] for prompt in asked.prompts]
    assert kinds == ["Run", "Enter", "Enter", "Run"]
    assert "another size" in asked.screens[1]
    during = Asked(["", 10, "", *[""] * 9, "y"])
    during(LONG)
    assert "cents = 1000000" in during.screens[0]
    assert "cents = 1000000" in during.screens[2]


def test_edited_arguments_are_shown_and_asked_about() -> None:
    """What was pasted is shown with its escapes and the defaults that are known, and runs after another answer."""
    call = waiting({"to": "Ada", "cents": 5, "box": {"a": 1}}, {"note": "hi", "cents/x": 1, "box/b": 2})
    asked = Asked(["e", '{"to": "Ad\u200ba", "box": {"a": 1}}', "y"])
    assert asked(call) == Edit({"to": "Ad\u200ba", "box": {"a": 1}}, call.digest)
    assert asked.screens[2].splitlines()[:5] == [
        "pay runs with:",
        '  to = "Ad\\u200ba"',
        '  box = {"a": 1}',
        '  note = "hi" (default)',
        "  box/b = 2 (default)",
    ]
    long = Asked(["e", '{"note": "' + "x" * 5000 + '"}', *["y"] * 9])
    assert isinstance(long(call), Edit)
    assert sum(prompt.startswith(PAGER) for prompt in long.prompts) >= 4


@pytest.mark.parametrize("answers", [[], ["e"], ["v"], ["what"]])
def test_the_end_of_the_input_decides_nothing(answers: list[str]) -> None:
    """Neither in a question nor while a call is shown."""
    assert Asked(answers)(waiting({"to": "Ada"})) is None
    assert Asked(answers)(LONG) is None


TEXTS = st.text(st.sampled_from('ab ="\\/\n\u4e2d\U0001f389\u0301\u0430\u2003\u00a1\uac00\u0e01\u0e34'), max_size=60)


@given(
    arguments=st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=3), max_size=8),
    width=st.integers(20, 90),
    height=st.integers(2, 30),
)
@example(arguments={"a": "  b = 1 " * 30}, width=20, height=5)
def test_all_of_a_call_is_shown_on_any_screen(arguments: dict[str, Any], width: int, height: int) -> None:
    """Rows that fit the width have together the whole text, in order, and no screen holds more of them than it can."""
    call = waiting(arguments)
    asked = Asked(["y"] * 2000, width, height)
    decision: Decision | None = asked(call)
    assert decision == Approve(call.digest)
    pages = asked.screens[: next(n for n, prompt in enumerate(asked.prompts) if prompt.startswith(QUESTION)) + 1]
    shown = [row for page in pages for row in page.splitlines()]
    assert unwrapped(shown, call) == call.rendering.split("\n")[1:]
    *before, last = [len(page.splitlines()) for page in pages]
    assert max(before or [last]) < max(height, 2)
    assert max(map(cells, shown)) < width


def unwrapped(rows: Sequence[str], call: PendingCall) -> list[str]:
    """Return the arguments of a call from the rows that a person saw."""
    lines: list[str] = []
    for row in rows:
        if row.startswith("    ") and lines:
            lines[-1] += row[4:]
        elif row.startswith("  "):
            lines.append(row)
    assert call.call.name in rows[0]
    return lines


def cells(row: str) -> int:
    """Return the columns of a row on a terminal with the widest characters."""
    return sum(1 + (unicodedata.east_asian_width(char) in {"W", "F", "A"} or char > "\U0001f000") for char in row)


@given(line=TEXTS, width=st.integers(8, 40))
def test_rows_hold_a_line_without_loss(line: str, width: int) -> None:
    """Without their indentation, the rows are the line."""
    first, *others = rows_of(line, width, "    ")
    assert first + "".join(row[4:] for row in others) == line
    assert all(row.startswith("    ") for row in others)


@given(rows=st.lists(st.text(max_size=2), max_size=30), height=st.integers(-1, 9))
def test_screens_hold_all_rows(rows: list[str], height: int) -> None:
    """Each screen but the last is full, and none is empty."""
    screens = list(screens_of(rows, height))
    assert [row for screen in screens for row in screen] == rows
    assert {len(screen) for screen in screens[:-1]} <= {max(height, 1)}
