"""A pytest plugin that writes which tests run which lines of the package, and how long they take.

`pytest -p tests.mutation.covering` with `COVERING_FILE` naming the file, and `COVERING_PLACES` the modules and packages inside of
`agentloop` that are measured, separated by spaces; tests that fail are left out.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Generator
from itertools import groupby
from pathlib import Path

import coverage
import pytest

_PLACES = os.environ["COVERING_PLACES"].split()
_MAX_CASES = 30
# Only these: what is not measured runs at its usual speed.
_COVERAGE = coverage.Coverage(
    include=[str(Path.cwd() / "agentloop" / each) + ("" if each.endswith(".py") else "/*") for each in _PLACES],
    data_file=None,
    config_file=False,
)
# Their packages are loaded before the first test, or by no test; pytest would take a warning about that for an error.
_COVERAGE.set_option("run:disable_warnings", ["module-not-measured", "module-not-imported", "no-data-collected"])
_SECONDS: dict[str, float] = {}
_FAILED: set[str] = set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep some cases of each test outside of the folders of these places: what one of them runs, most of the others run, too."""
    kept: list[pytest.Item] = []
    rooms = {place.partition("/")[0] for place in _PLACES}
    for (name, room), each in groupby(items, lambda item: (item.nodeid.partition("[")[0], item.nodeid.split("/")[1])):
        cases = list(each)
        kept += cases if room in rooms else random.Random(name).sample(cases, min(len(cases), _MAX_CASES))
    items[:] = kept


def pytest_sessionstart() -> None:
    """Begin to measure."""
    _COVERAGE.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Attribute what runs to the test."""
    _COVERAGE.switch_context(item.nodeid)
    start = time.perf_counter()
    try:
        return (yield)
    finally:
        _SECONDS[item.nodeid] = time.perf_counter() - start
        _COVERAGE.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test that fails without a mutant."""
    if report.failed:
        _FAILED.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write what was measured: the seconds of each test, and for each line of each module the numbers of its tests."""
    _COVERAGE.stop()
    names = sorted(_SECONDS.keys() - _FAILED)
    numbers = {name: number for number, name in enumerate(names)}
    data, root = _COVERAGE.get_data(), Path.cwd()
    lines: dict[str, dict[int, list[int]]] = {}
    for file in data.measured_files():
        path = Path(file)
        if path.is_relative_to(root):
            contexts = data.contexts_by_lineno(file)
            lines[str(path.relative_to(root))] = {
                line: sorted(numbers[name] for name in found if name in numbers) for line, found in contexts.items()
            }
    document = {"tests": [[name, round(_SECONDS[name], 4)] for name in names], "lines": lines}
    Path(os.environ["COVERING_FILE"]).write_text(json.dumps(document), encoding="utf-8")
