"""The option `--leaks`: names the test after which a transport, task, thread, process or file descriptor is left.

Without it, Python warns when the garbage collector finds what was left, which may be many tests later and fails one that has nothing to
do with it. What fixtures of a module or of the session open is theirs: it is dropped if it is closed with the last test of the module.
"""

from __future__ import annotations

import asyncio
import os
import threading
from asyncio import base_subprocess, selector_events
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakSet

import pytest
from attrs import define, field

_OUTPUT = "leaks"
_DESCRIPTORS = Path("/proc/self/fd")

Left = dict[tuple[str, object], str]
"""What is open, as text, by its kind and identity."""


class _Worker(Protocol):
    """A worker of pytest-xdist that has ended."""

    workeroutput: dict[str, object]


def open_descriptors() -> dict[int, str]:
    """Return what the file descriptors of this process lead to, such as `socket:[1234]`; empty where /proc is not there."""
    found = {}
    if _DESCRIPTORS.is_dir():
        for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208  # only the names
            try:
                found[int(name)] = str((_DESCRIPTORS / name).readlink())
            except FileNotFoundError:  # that of the folder itself, or closed just now by a thread
                continue
    return found


def new_descriptors(before: dict[int, str]) -> dict[int, str]:
    """Return the file descriptors that lead to something else than before."""
    return {number: place for number, place in open_descriptors().items() if before.get(number) != place}


def _children() -> Iterator[int]:
    """Yield the processes that this process has started and not waited for."""
    for thread in Path("/proc/self/task").glob("*/children"):
        try:
            yield from map(int, thread.read_text(encoding="ascii").split())
        except FileNotFoundError:  # the thread has ended just now
            continue


def _command_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ").strip()[:200]
    except (FileNotFoundError, ProcessLookupError):
        return "ended"


class OpenTransports:
    """The transports of asyncio that were opened; those of uvloop are only seen by their file descriptors."""

    def __init__(self) -> None:
        self._opened: WeakSet[Any] = WeakSet()

    def note_all(self) -> None:
        """Note every transport that is opened from now on in this process."""
        for kind in (selector_events._SelectorTransport, base_subprocess.BaseSubprocessTransport):  # type: ignore[attr-defined]
            self._note(kind)

    def _note(self, kind: Any) -> None:
        opened, begin = self._opened, kind.__init__

        def noted(transport: Any, *args: Any, **kwargs: Any) -> None:
            opened.add(transport)
            begin(transport, *args, **kwargs)

        kind.__init__ = noted

    def left(self) -> Iterator[Any]:
        """Yield those that are open although their event loop is closed, so that nothing can close them any more."""
        for transport in [*self._opened]:
            loop = getattr(transport, "_loop", None)
            is_open = transport._sock is not None if hasattr(transport, "_sock") else not transport._closed
            if loop is not None and loop.is_closed() and is_open:
                yield transport


@define(eq=False)
class Leaks:
    """What tests have left.

    Attributes:
        found: the lines of the report.
    """

    found: list[str] = field(factory=list)
    _before: Left = field(factory=dict)
    _born: dict[tuple[str, object], str] = field(factory=dict)

    def begin(self, left: Left) -> None:
        """Take what is open before the first test."""
        self._before = left

    def end_test(self, test: str, left: Left, *, is_last: bool) -> None:
        """Note what a test has left, and report what an earlier one had left and somebody has closed now.

        Args:
            test: the name of the test.
            left: what is open after it.
            is_last: whether it is the last one of its module, with which the fixtures of the module end.
        """
        for key in [each for each in self._born if each not in left]:
            born = self._born.pop(key)
            if not is_last and born != test:
                self._report(born, key, self._before[key], f", until {test}")
        for key, text in left.items():
            if key not in self._before:
                self._born[key] = test
                if key[0] in {"transport", "task"}:
                    self._report(test, key, text, "")
        self._before = left

    def end(self) -> None:
        """Report what is still open."""
        for key, born in self._born.items():
            if key[0] not in {"transport", "task"}:
                self._report(born, key, self._before[key], ", until the end")

    def _report(self, test: str, key: tuple[str, object], text: str, until: str) -> None:
        self.found.append(f"{test} left a {key[0]}: {text}{until}")


class LeakFinder:
    """The pytest plugin of the option, in the workers of pytest-xdist as well."""

    def __init__(self, config: pytest.Config) -> None:
        self._output: dict[str, object] | None = getattr(config, "workeroutput", None)
        self._transports = OpenTransports()
        self._transports.note_all()
        self._leaks = Leaks()
        self._has_begun = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """Look at what is open before and after a test with its fixtures."""
        if not self._has_begun:
            self._has_begun = True
            self._leaks.begin(self._look())
        try:
            return (yield)
        finally:
            is_last = nextitem is None or nextitem.path != item.path
            self._leaks.end_test(item.nodeid, self._look(), is_last=is_last)

    def _look(self) -> Left:
        left: Left = {("file descriptor", each): f"{each[0]} of {each[1]}" for each in open_descriptors().items()}
        left |= {("process", each): f"{each}, {_command_of(each)}" for each in _children()}
        left |= {("thread", each.ident): each.name for each in threading.enumerate()}
        left |= {("transport", id(each)): repr(each)[:200] for each in self._transports.left()}
        for task in [*asyncio.tasks._all_tasks]:  # type: ignore[attr-defined]  # also those of other threads and closed loops
            if not task.done() and task.get_loop().is_closed():
                left["task", id(task)] = repr(task)[:200]
        return left

    def pytest_sessionfinish(self) -> None:
        """Send what a worker has found to the main process."""
        self._leaks.end()
        if self._output is not None:
            self._output[_OUTPUT] = self._leaks.found

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: _Worker) -> None:
        """Take what a worker has found."""
        found = getattr(node, "workeroutput", {}).get(_OUTPUT, [])
        self._leaks.found += found

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was found."""
        terminalreporter.section("what tests have left")
        _print(terminalreporter, sorted(self._leaks.found) or ["nothing"])


def _print(terminal: pytest.TerminalReporter, lines: Iterable[str]) -> None:
    for line in lines:
        terminal.write_line(line)
