"""Measuring: CPU time per turn of two subjects in one run, as a ratio; and a table of what came of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

HERE = Path(__file__).parent


@frozen
class Row:
    """One line of the table.

    Attributes:
        what: what was measured.
        measured: what came of it, in words.
        budget: what it may be, in words.
        within: whether it is.
    """

    what: str
    measured: str
    budget: str
    within: bool


@contextmanager
def loopback() -> Iterator[str]:
    """Start the server of the benchmarks, and give its address."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "loopback_server.py")], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


async def cpu_each(subjects: list[Callable[[], Awaitable[object]]], units: int, rounds: int) -> list[float]:
    """Return the CPU seconds per unit of each subject: the best of some rounds, taken in turn, so that noise hits all."""
    best = [float("inf")] * len(subjects)
    for subject in subjects:
        await subject()
    for _ in range(rounds):
        for place, subject in enumerate(subjects):
            before = time.process_time()
            await subject()
            best[place] = min(best[place], (time.process_time() - before) / units)
    return best


async def wall(subject: Callable[[], Awaitable[object]], rounds: int) -> float:
    """Return the wall seconds of a subject: the best of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        before = time.perf_counter()
        await subject()
        best = min(best, time.perf_counter() - before)
    return best


def micros(action: Callable[[], object], times: int = 20_000, rounds: int = 5) -> float:
    """Return the microseconds that one action takes, without the loop around it."""
    best, empty = float("inf"), float("inf")
    for _ in range(rounds):
        before = time.perf_counter()
        for _ in range(times):
            action()
        best = min(best, time.perf_counter() - before)
        before = time.perf_counter()
        for _ in range(times):
            _nothing()
        empty = min(empty, time.perf_counter() - before)
    return max(best - empty, 0.0) / times * 1e6


def _nothing() -> None:
    """Be called."""


def ratio_row(what: str, subject: float, floor: float, most: float) -> Row:
    """Make the row of a ratio of CPU times."""
    ratio = subject / floor
    shown = f"{subject * 1e6:7.0f} µs = {ratio:.2f} x floor ({floor * 1e6:.0f} µs)"
    return Row(what, shown, f"<= {most:.2f} x", ratio <= most)


def show(title: str, rows: list[Row]) -> None:
    """Print the table."""
    print(f"\n{title}")
    width = max(len(row.what) for row in rows)
    for row in rows:
        mark = "ok  " if row.within else "OVER"
        print(f"  {mark}  {row.what:<{width}}  {row.measured:<42}  budget {row.budget}")
