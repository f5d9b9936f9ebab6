"""Runs pytest again and again without loading what does not change: each run is a fork of a process that has it loaded.

Reads lines of JSON from its input, `{"tests": […], "seconds": …}`, and answers each with `{"result": "killed", "last": …}`, `"survived"`
or `"timeout"`, and the last test that ran. Started without arguments, it imports neither the package nor its tests itself, so each fork sees them as they are then.

Started with files and folders of tests, it loads these tests and what they import. Then `{"module": …, "source": …}` in a request is a module
whose functions the fork runs as they are in this source, without loading anything anew. It answers `"unsupported"` if the source
differs in more than functions. A result of `"killed"` or `"timeout"` is certain: the test passes without the change, in the same time. What a changed
function does while modules are loaded is not seen, so that a mutant may survive that a test would find.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypeAlias

import pytest
from hypothesis import Phase

from tests.generated import load_settings

PRELOADED = (
    "attrs",
    "cattrs",
    "httpx",
    "jsonschema",
    "orjson",
    "pytest_asyncio",
    "xdist",
    "pydantic",
    "docstring_parser",
)
PATHS = ("benchmarks", "docs/site", "examples")
"""From where tests import, besides the repository; as in pyproject.toml."""
_IGNORED = "ignore::pytest.PytestAssertRewriteWarning"
_POLL_SECONDS = 0.02
_PIPE_SIZE = 65_536
_PHASES = (Phase.explicit, Phase.generate)
_WALL_FACTOR = 2.0
"""What runs has so much more time than its processor time: it may wait, and the machine may be busy."""
_OUTCOMES = {0: "survived", 5: "survived"}  # 5: no test was collected

Changes: TypeAlias = Sequence[tuple[FunctionType, CodeType]]
"""Functions, and the code that they are to have."""


class Functions:
    """The functions of the package that are loaded, by their place in its source."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if type(each) is FunctionType:
                code = each.__code__
                self._found[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)

    def changes(self, module: Path, source: str) -> Changes | None:
        """Return what makes the functions of a module those of another source; None if more than functions differ."""
        before = compile(module.read_text(encoding="utf-8"), str(module), "exec")
        pairs = _differences(before, compile(source, str(module), "exec"))
        if pairs is None:
            return None
        changes = []
        for old, new in pairs:
            place = (old.co_filename, old.co_qualname, old.co_firstlineno)
            changes += [(function, new) for function in self._found[place] if old.co_freevars == new.co_freevars]
        return changes or None


def _differences(before: CodeType, after: CodeType) -> list[tuple[CodeType, CodeType]] | None:
    """Return the functions that differ, with those inside of them; None if the bodies of modules or classes differ."""
    if before == after:
        return []
    inner_before, inner_after = _inner(before), _inner(after)
    is_function = bool(before.co_flags & inspect.CO_OPTIMIZED)
    if len(inner_before) != len(inner_after):
        return [(before, after)] if is_function else None
    if not is_function and _body(before) != _body(after):
        return None
    found = [(before, after)] if is_function else []
    for old, new in zip(inner_before, inner_after, strict=True):
        differences = _differences(old, new)
        if differences is None and not is_function:
            return None
        found += differences or []
    return found


def _inner(code: CodeType) -> list[CodeType]:
    return [each for each in code.co_consts if isinstance(each, CodeType)]


def _body(code: CodeType) -> tuple[object, ...]:
    constants = [each for each in code.co_consts if not isinstance(each, CodeType)]
    return code.co_code, code.co_names, [(type(each), each) for each in constants]


class RunningTest:
    """A pytest plugin that writes the names of the tests that run, until one fails.

    Args:
        file: a descriptor of a file.
    """

    def __init__(self, file: int) -> None:
        self._file = file

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Do not search for a smaller case where a generated one fails."""
        load_settings(phases=_PHASES)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Note a test that begins."""
        if self._file:
            os.write(self._file, f"{nodeid}\n".encode())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note nothing more once a test has failed."""
        if report.failed:
            self._file = 0


def run(tests: Sequence[str], seconds: float, changes: Changes = ()) -> tuple[str, str]:
    """Run tests in a fork until one fails.

    Args:
        tests: their names.
        seconds: the processor time that they have, without what is loaded.
        changes: changes of functions.

    Returns:
        What came of them, and the name of the last test that ran, if one did.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
        for function, code in changes:
            function.__code__ = code
        _run_tests(tests, writing)
    os.close(writing)
    try:
        result = _await(child, seconds * _WALL_FACTOR)
        names = os.read(reading, _PIPE_SIZE).decode() if select.select([reading], [], [], 0)[0] else ""
        return result, names.removesuffix("\n").rpartition("\n")[2]
    finally:
        os.close(reading)


def _await(child: int, seconds: float) -> str:
    ends_at = time.monotonic() + seconds
    ended, status = 0, 0
    while not ended and time.monotonic() < ends_at:
        time.sleep(_POLL_SECONDS)
        ended, status = os.waitpid(child, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # with everything that the tests have started
    if not ended:
        os.waitpid(child, 0)
        return "timeout"
    code = os.waitstatus_to_exitcode(status)
    return "timeout" if code in {-signal.SIGXCPU, -signal.SIGKILL} else _OUTCOMES.get(code, "killed")


def _run_tests(tests: Sequence[str], names: int) -> None:
    os.setsid()
    sys.dont_write_bytecode = False  # what is compiled once is compiled for all forks
    sys.path.insert(0, str(Path.cwd()))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    code = 1
    try:
        # What is loaded before the fork cannot be rewritten for its assertions any more, and does not have to be.
        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-W", _IGNORED]
        code = int(pytest.main([*options, *tests], [RunningTest(names)]))
    finally:
        os._exit(code)


class LoadedTests:
    """Tests that are loaded, and whose package is changed in forks.

    Args:
        folders: files and folders of the tests.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        sys.path[:0] = [str(Path.cwd()), *[str(Path.cwd() / path) for path in PATHS]]
        load_settings(phases=_PHASES)
        for name in _modules(folders):
            importlib.import_module(name)
        self._functions = Functions()
        self._trusted: dict[str, bool] = {}
        gc.collect()
        gc.freeze()

    def judge(self, tests: Sequence[str], seconds: float, module: str, source: str) -> tuple[str, str]:
        """Run tests with changed functions; return what came of them, and the last one that ran."""
        changes = self._functions.changes(Path.cwd() / module, source)
        if changes is None:
            return "unsupported", ""
        while True:
            left = [test for test in tests if self._trusted.get(test, True)]
            result, last = run(left, seconds, changes) if left else ("survived", "")
            if result == "survived" or (last and self._passes(last, seconds)):
                return result, last
            if not last:
                return "unsupported", ""

    def _passes(self, test: str, seconds: float) -> bool:
        """Return whether a test passes without a change, in time; one that does not is not run again."""
        if test not in self._trusted:
            self._trusted[test] = run([test], seconds)[0] == "survived"
        return self._trusted[test]


def _modules(folders: Sequence[str]) -> Iterator[str]:
    for place in map(Path, folders):
        for path in [place] if place.is_file() else sorted(place.rglob("test_*.py")):
            yield ".".join(path.with_suffix("").parts)


def main(folders: Sequence[str]) -> None:
    """Serve requests until the input ends."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    loaded = LoadedTests(folders) if folders else None
    for line in sys.stdin:
        request = json.loads(line)
        tests, seconds = request["tests"], request["seconds"]
        if loaded is not None:
            result, last = loaded.judge(tests, seconds, request["module"], request["source"])
        else:
            result, last = run(tests, seconds)
        print(json.dumps({"result": result, "last": last}), flush=True)  # noqa: T201  # the answer


if __name__ == "__main__":
    main(sys.argv[1:])
