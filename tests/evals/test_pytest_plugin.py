"""The plugin skips evals until they are asked for, and its assertions fail only where the interval says so."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from agentloop.errors.kinds import InvalidParameter
from agentloop.evals.assertions import NotEnoughRepeats, assert_gate, assert_no_worse
from agentloop.evals.pytest_plugin import Evals
from agentloop.evals.results import EvalResult
from tests.evals.made_results import make_result, mostly

_TESTS = """
import pytest
from agentloop.evals import EvalResult

@pytest.mark.evals
def test_no_worse(evals):
    result = EvalResult.from_json(open("result.json", "rb").read())
    baseline = evals.baseline("refunds")
    evals.keep(result, baseline)
    evals.assert_no_worse(result, baseline, margin=0.05)

def test_other():
    pass
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a test that compares a result with its baseline."""
    tmp_path.joinpath("test_it.py").write_text(_TESTS, encoding="utf-8")
    tmp_path.joinpath("result.json").write_bytes(make_result({"agent": mostly(20, 40)}).to_json())
    tmp_path.joinpath("main.json").write_bytes(make_result({"agent": mostly(38, 40)}).to_json())
    return tmp_path


def _pytest(folder: Path, *arguments: str) -> str:
    """Return the output of a test session in a folder."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def test_evals_are_skipped_until_they_are_asked_for(folder: Path) -> None:
    """Without --evals, an eval is skipped and the rest runs."""
    output = _pytest(folder, "-rs")
    assert "1 passed, 1 skipped" in output
    assert "an eval; --evals runs it" in output


@pytest.mark.parametrize("asked", [["--evals"], ["-m", "evals"]])
def test_a_worse_candidate_fails_its_test(folder: Path, asked: list[str]) -> None:
    """With a baseline, a loss of almost half of the cases fails, with the interval in the message; the report is kept."""
    output = _pytest(folder, *asked, "--evals-baseline", "main.json", "--evals-results", "out")
    assert "1 failed" in output
    assert "pass@1 of agent against agent (baseline): -45.0 points" in output
    assert "beyond the margin of 5 points" in output
    kept = folder / "out"
    assert EvalResult.from_json((kept / "refunds.json").read_bytes()).suite == "refunds"
    assert "agent (baseline)" in (kept / "refunds.html").read_text(encoding="utf-8")


def test_a_baseline_of_another_suite_is_refused(folder: Path) -> None:
    """A result is not compared with that of other cases."""
    folder.joinpath("main.json").write_bytes(make_result({"agent": mostly(3, 4)}, suite="returns").to_json())
    output = _pytest(folder, "--evals", "--evals-baseline", "main.json")
    assert "main.json is of the suite 'returns', not of 'refunds'" in output


def test_a_folder_of_baselines_has_one_per_suite(tmp_path: Path) -> None:
    """A suite without a file has no baseline, which is no error: its first eval makes one."""
    tmp_path.joinpath("refunds.json").write_bytes(make_result({"agent": mostly(3, 4)}).to_json())
    fixture = Evals(str(tmp_path))
    assert fixture.baseline("refunds") is not None
    assert fixture.baseline("returns") is None
    assert Evals().keep(make_result({"agent": mostly(3, 4)})) == {}


def test_what_is_certainly_worse_fails() -> None:
    """The whole interval is beyond the margin."""
    result = make_result({"main": mostly(38, 40), "short": mostly(20, 40)})
    with pytest.raises(AssertionError, match=r"-45\.0 points .* worse, beyond the margin of 2 points"):
        assert_no_worse(result)


def test_what_may_be_worse_warns_with_what_would_tell() -> None:
    """A part of the interval is beyond the margin: the assertion does not fail, and says that nothing can be said."""
    result = make_result({"main": mostly(9, 10), "short": mostly(8, 10)})
    with pytest.warns(NotEnoughRepeats, match=r"not enough repeats: .* more cases would probably tell"):
        assert_no_worse(result)


def test_what_is_certainly_no_worse_is_silent() -> None:
    """The whole interval is within the margin, or better."""
    result = make_result({"main": mostly(300, 400, 1), "same": mostly(300, 400, 1), "better": mostly(390, 400, 1)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = assert_no_worse(result, margin=0.02)
    assert [each.candidate for each in found] == ["same", "better"]


def test_costs_are_worse_when_they_rise() -> None:
    """The margin of a mean is relative, and more is worse."""
    passes = mostly(20, 20, 1)
    result = make_result({"main": passes, "long": passes}, cost=lambda name, _, __: 0.012 if name == "long" else 0.01)
    with pytest.raises(AssertionError, match="beyond the margin of 10 %"):
        assert_no_worse(result, margin=0.1, quantity="cost")
    assert_no_worse(result, margin=0.25, quantity="cost")


def test_a_gate_is_asserted_like_that() -> None:
    """A condition that holds fails, one that is open warns, one that does not hold is silent."""
    result = make_result({"agent": mostly(9, 10)})
    with pytest.raises(AssertionError, match="The gate fails"):
        assert_gate(result, "pass@1 < 0.999 and cost > 0.001 or steps > 1")
    with pytest.warns(NotEnoughRepeats, match="The gate is open"):
        assert_gate(result, "pass@1 < 0.9")
    assert assert_gate(result, "cost > 1").outcome == "passes"


def test_what_cannot_be_compared_is_refused() -> None:
    """One candidate without a baseline, and a margin below 0, are errors of the test."""
    with pytest.raises(InvalidParameter, match="one candidate only"):
        assert_no_worse(make_result({"agent": mostly(3, 4)}))
    with pytest.raises(InvalidParameter, match="0 or more"):
        assert_no_worse(make_result({"a": mostly(3, 4), "b": mostly(3, 4)}), margin=-0.1)
