"""Measures CPU and wall time of several subjects, and prints a table of the results."""

from __future__ import annotations

import asyncio
import json
import os
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
        what: the name of the measurement.
        measured: the result, formatted.
        budget: the limit, formatted.
        within: whether the result is within the limit.
    """

    what: str
    measured: str
    budget: str
    within: bool


@contextmanager
def loopback() -> Iterator[str]:
    """Start the loopback server, and yield its URL."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "loopback_server.py")], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


class Cost(float):
    """The CPU seconds of the best round, with those of all rounds."""

    rounds: tuple[float, ...] = ()

    @classmethod
    def of(cls, rounds: list[float]) -> Cost:
        best = cls(min(rounds))
        best.rounds = tuple(rounds)
        return best


async def cpu_each(subjects: list[Callable[[], Awaitable[object]]], units: int, rounds: int) -> list[Cost]:
    """Return the CPU seconds per unit of each subject, the best of several rounds. Subjects alternate, so that noise affects all."""
    measured: list[list[float]] = [[] for _ in subjects]
    for subject in subjects:
        await subject()
    for _ in range(rounds):
        for costs, subject in zip(measured, subjects, strict=True):
            before = time.process_time()
            await subject()
            costs.append((time.process_time() - before) / units)
    return [Cost.of(costs) for costs in measured]


class Peer:
    """A subject of `cluster_peers.py`, in a process and an environment of its own, which `BENCHMARK_PEERS` names.

    Args:
        subject: its name.
        url: its database.
    """

    def __init__(self, subject: str, url: str) -> None:
        self._process = subprocess.Popen(
            [os.environ.get("BENCHMARK_PEERS", sys.executable), str(HERE / "cluster_peers.py"), subject, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._read() == "ready"

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    async def run(self, executions: int, turns: int) -> tuple[float, float]:
        """Run executions one after the other; return the seconds that they took, and those of CPU."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps([executions, turns])}\n")
        self._process.stdin.flush()
        wall, cpu = json.loads(await asyncio.to_thread(self._read))
        return wall, cpu

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def micros(action: Callable[[], object], times: int = 20_000, rounds: int = 5) -> float:
    """Return the microseconds of one call, without the overhead of the loop around it."""
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
    """The empty call that measures the overhead of the loop."""


def ratio_row(what: str, subject: float, floor: float, max_ratio: float) -> Row:
    """Return the row of a ratio of CPU times."""
    ratio = subject / floor
    formatted = f"{subject * 1e6:7.0f} µs = {ratio:.2f} x floor ({floor * 1e6:.0f} µs){_spread(subject, floor)}"
    return Row(what, formatted, f"<= {max_ratio:.2f} x", ratio <= max_ratio)


def _spread(subject: float, floor: float) -> str:
    """Return the middle half of the ratios of the rounds."""
    if not (isinstance(subject, Cost) and isinstance(floor, Cost)):
        return ""
    ratios = sorted(one / other for one, other in zip(subject.rounds, floor.rounds, strict=True))
    return f", rounds {ratios[len(ratios) // 4]:.2f} to {ratios[-1 - len(ratios) // 4]:.2f}"


def show(title: str, rows: list[Row]) -> None:
    """Print the table."""
    print(f"\n{title}")
    width = max(len(row.what) for row in rows)
    for row in rows:
        mark = "ok  " if row.within else "OVER"
        print(f"  {mark}  {row.what:<{width}}  {row.measured:<62}  budget {row.budget}")
