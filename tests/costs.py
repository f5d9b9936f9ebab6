"""The processor time of each test, and the list of slow tests, which `make test` leaves to `make test-all`.

`make test-times` measures all tests, prints a table by file and writes the list.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import pytest

SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")
"""The names of the slow tests, one per line and without parameters."""

_SLOW_SECONDS = 0.06
"""The processor time, in seconds, of one case of a test above which the test is slow."""
_STILL_SLOW = 0.5
"""The share of this time above which a test stays slow, so that the list does not change with each measurement."""
_OUTPUT = "costs"


class Cost(NamedTuple):
    """What the cases of a test, or the tests of a file, cost together; processes that a test waits for are included.

    Attributes:
        cpu: the processor time, in seconds.
        wall: the time from their begin to their end, in seconds.
        cases: how many they are.
    """

    cpu: float = 0.0
    wall: float = 0.0
    cases: int = 0

    def plus(self, other: Iterable[float]) -> Cost:
        """Return both together."""
        cpu, wall, cases = other
        return Cost(self.cpu + cpu, self.wall + wall, self.cases + int(cases))


class _Worker(Protocol):
    """A worker of pytest-xdist that has ended."""

    workeroutput: dict[str, object]


def read_slow_tests() -> frozenset[str]:
    """Return the names of the slow tests."""
    return frozenset(SLOW_TESTS.read_text(encoding="utf-8").split())


def name_of(item: pytest.Item) -> str:
    """Return the name of a test without its parameters."""
    return item.nodeid.partition("[")[0]


def find_slow_tests(costs: Mapping[str, Cost], slow_before: Iterable[str]) -> list[str]:
    """Return the names of the tests one of whose cases takes long on average, in order."""
    before = frozenset(slow_before)
    return sorted(
        name
        for name, cost in costs.items()
        if cost.cpu / cost.cases > _SLOW_SECONDS * (_STILL_SLOW if name in before else 1)
    )


def format_costs(costs: Mapping[str, Cost], slow: Iterable[str]) -> Iterable[str]:
    """Yield the lines of a table of the costs by file, the dearest file first.

    Args:
        costs: the costs by the names of tests.
        slow: the names of the slow tests.
    """
    slow = frozenset(slow)
    files: dict[str, tuple[Cost, Cost]] = defaultdict(lambda: (Cost(), Cost()))
    for name, cost in costs.items():
        file = name.partition("::")[0]
        every, others = files[file]
        files[file] = every.plus(cost), others if name in slow else others.plus(cost)
    yield f"{'CPU s':>8}{'wall s':>8}{'tests':>7}{'CPU s of fast':>15}{'fast tests':>12}  file"
    total, fast = Cost(), Cost()
    for file, (every, others) in sorted(files.items(), key=lambda entry: -entry[1][0].cpu):
        yield _row(every, others, file)
        total, fast = total.plus(every), fast.plus(others)
    yield _row(total, fast, "all")


def _row(every: Cost, fast: Cost, name: str) -> str:
    return f"{every.cpu:8.1f}{every.wall:8.1f}{every.cases:7}{fast.cpu:15.1f}{fast.cases:12}  {name}"


class CostMeter:
    """A pytest plugin that measures tests, in the workers of pytest-xdist as well, and writes the list of the slow ones."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, object] | None = getattr(config, "workeroutput", None)
        self._costs: dict[str, Cost] = defaultdict(Cost)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Measure a test with its fixtures."""
        cpu, wall = _cpu_seconds(), time.perf_counter()
        try:
            return (yield)
        finally:
            name = name_of(item)
            self._costs[name] = self._costs[name].plus((_cpu_seconds() - cpu, time.perf_counter() - wall, 1))

    def pytest_sessionfinish(self) -> None:
        """Send what a worker has measured to the main process."""
        if self._output is not None:
            self._output[_OUTPUT] = {name: list(cost) for name, cost in self._costs.items()}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: _Worker) -> None:
        """Take what a worker has measured."""
        measured = getattr(node, "workeroutput", {}).get(_OUTPUT, {})
        for name, cost in measured.items():
            self._costs[name] = self._costs[name].plus(cost)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table, and write the list: of tests that were not measured, it keeps what it says."""
        before = read_slow_tests()
        slow = find_slow_tests(self._costs, before)
        terminalreporter.section("processor time")
        for line in format_costs(self._costs, slow):
            terminalreporter.write_line(line)
        names = sorted({*slow, *(before - self._costs.keys())})
        SLOW_TESTS.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")


def _cpu_seconds() -> float:
    """Return the processor time of this process and of the processes that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system
