"""The measure of readers: what it takes for a miss, by a clock that each reader moves itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz import slopes
from tests.fuzz.readers import READERS
from tests.fuzz.shapes import Reader
from tests.fuzz.slopes import Measured, measure, row

PAGE = Path(__file__).parents[2] / "docs" / "bounds.md"


def measured(monkeypatch: pytest.MonkeyPatch, longest: int, seconds_of: Callable[[int], float]) -> Measured:
    """Return the measurement of a reader that takes some seconds for each size."""
    now = 0.0

    def read(size: int) -> None:
        nonlocal now
        now += seconds_of(size)

    monkeypatch.setattr(time, "thread_time", lambda: now)
    return measure(Reader(read, longest=longest), "a shape", lambda size: size)


@pytest.mark.parametrize(
    ("longest", "seconds_of", "slope", "misses"),
    [
        (10_000, lambda size: 1e-6 * size, 1.0, ""),
        (10_000, lambda size: 1e-10 * size**2, 2.0, "slope"),
        (1_000_000, lambda size: 2e-7 * size, 1.0, "hold"),
        (1_000, lambda size: 6e-5 * size, 1.0, "time"),
        (10_000, lambda _size: 1e-3, 0.0, ""),  # too short for a slope
        (10_000, lambda size: 1e-10 * size**2 if gc.isenabled() else 1e-6 * size, 1.0, ""),
    ],
    ids=["linear", "quadratic", "held", "slow", "short", "the collector"],
)
def test_a_miss_is_named(
    monkeypatch: pytest.MonkeyPatch, longest: int, seconds_of: Callable[[int], float], slope: float, misses: str
) -> None:
    """A slope, a hold and a time per character that exceed their limit are misses; a slope of the collector is none."""
    found = measured(monkeypatch, longest, seconds_of)
    assert found.misses == misses
    assert found.slope == pytest.approx(slope)
    assert gc.isenabled()


def test_a_function_in_c_in_a_thread_is_a_hold() -> None:
    """A thread that keeps the interpreter keeps the event loop, too; one that runs Python does not.

    Each is measured again, since a busy machine may stop the thread that measures.
    """
    numbers = [*range(3_000_000)]
    in_c, in_python = (
        Reader(lambda _text: sorted(numbers, key=float)),
        Reader(lambda _text: [n for n in numbers if n % 2]),
    )
    kept = max(slopes.in_thread(in_c, "")[1] for _ in range(6))
    shared = min(slopes.in_thread(in_python, "")[1] for _ in range(6))
    assert kept > 3 * shared


def test_the_page_has_a_row_for_each_reader() -> None:
    """`make fuzz` prints the table of the page; each reader that it measures is in it."""
    page = PAGE.read_text()
    assert [name for name in READERS if f"\n| {name} | " not in page] == []


def test_a_row_is_markdown() -> None:
    """A shape may have the characters that end cells and code."""
    each = Measured("'|' and '`' repeated", 1.04, 0.5, 0.012, "")
    assert row("a reader", [each]) == "| a reader | 1 | 1.04 | 0.50 | 12 | `'\\|' and ''' repeated` |"
