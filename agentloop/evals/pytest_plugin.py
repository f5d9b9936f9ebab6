"""The pytest plugin of evals: the marker `evals`, its options, and the fixture `evals`; loaded by pytest if agentloop is installed.

It imports little, because every test session of a program that has agentloop installed loads it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agentloop.evals.comparison import EvalDifference
    from agentloop.evals.gates import GateReport
    from agentloop.evals.results import EvalResult


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("agentloop-evals", "agentloop: evals")
    group.addoption("--evals", action="store_true", help="run the tests with the marker `evals`, which call models")
    group.addoption(
        "--evals-baseline",
        metavar="PATH",
        help="what evals.baseline(…) returns: the JSON of a result, or a folder with SUITE.json of several",
    )
    group.addoption(
        "--evals-results",
        metavar="FOLDER",
        help="write the results that evals.keep(…) gets into this folder, each as JSON and as a page",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line("markers", "evals: the test runs an eval, and is skipped without --evals or -m evals")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip evals, unless they are asked for: they take minutes and may cost money."""
    if config.getoption("--evals") or re.search(r"\bevals\b", config.option.markexpr or ""):
        return
    skip = pytest.mark.skip(reason="an eval; --evals runs it")
    for item in items:
        if item.get_closest_marker("evals") is not None:
            item.add_marker(skip)


@pytest.fixture(scope="session")
def evals(pytestconfig: pytest.Config) -> Evals:
    """Return what tests of evals need: baselines, results that are kept, and assertions."""
    return Evals(pytestconfig.getoption("--evals-baseline"), pytestconfig.getoption("--evals-results"))


class Evals:
    """The fixture `evals`.

    Args:
        baseline: the JSON of a result, or a folder with the results of suites; None without a baseline.
        results: the folder for results that are kept; None keeps none.
    """

    def __init__(self, baseline: str | None = None, results: str | None = None) -> None:
        self._baseline = Path(baseline) if baseline is not None else None
        self._results = Path(results) if results is not None else None

    def baseline(self, suite: str) -> EvalResult | None:
        """Return the result that --evals-baseline has for a suite; None without one.

        Raises:
            pytest.UsageError: the file is damaged, or of another suite.
        """
        from agentloop.errors import AgentLoopError
        from agentloop.evals.results import EvalResult

        path = self._baseline
        if path is not None and path.is_dir():
            path /= f"{_file_name(suite)}.json"
            path = path if path.exists() else None
        if path is None:
            return None
        try:
            found = EvalResult.from_json(path.read_bytes())
        except (OSError, AgentLoopError) as error:
            raise pytest.UsageError(f"--evals-baseline: {path} cannot be read: {error}") from None
        if found.suite != suite:
            raise pytest.UsageError(f"--evals-baseline: {path} is of the suite {found.suite!r}, not of {suite!r}")
        return found

    def keep(self, result: EvalResult, baseline: EvalResult | str | None = None) -> Mapping[str, Path]:
        """Write a result, and its page, into the folder of --evals-results.

        Args:
            result: the result.
            baseline: what the page compares it with, as of `agentloop.evals.compare`.

        Returns:
            The files, `json` and `html`; empty without the option.
        """
        if self._results is None:
            return {}
        from agentloop.evals.comparison import compare
        from agentloop.evals.report_page import html_report
        from agentloop.values.secrets import open_private

        self._results.mkdir(parents=True, exist_ok=True)
        stem = self._results / _file_name(result.suite)
        files = {"json": stem.with_suffix(".json"), "html": stem.with_suffix(".html")}
        texts = {"json": result.to_json().decode(), "html": html_report(result, compare(result, baseline))}
        for name, text in texts.items():
            with open(files[name], "w", encoding="utf-8", opener=open_private) as file:
                file.write(text)
        return files

    def assert_no_worse(
        self,
        result: EvalResult,
        baseline: EvalResult | str | None = None,
        *,
        margin: float = 0.02,
        quantity: str = "pass@1",
    ) -> tuple[EvalDifference, ...]:
        """Fail if a candidate is certainly worse than the baseline; see `agentloop.evals.assert_no_worse`."""
        from agentloop.evals.assertions import assert_no_worse

        return assert_no_worse(result, baseline, margin=margin, quantity=quantity)

    def assert_gate(self, result: EvalResult, fail_if: str, baseline: EvalResult | str | None = None) -> GateReport:
        """Fail if a condition certainly holds; see `agentloop.evals.assert_gate`."""
        from agentloop.evals.assertions import assert_gate

        return assert_gate(result, fail_if, baseline)


def _file_name(suite: str) -> str:
    """Return a name for files of a suite."""
    return re.sub(r"[^\w.-]+", "-", suite).strip("-.") or "eval"
