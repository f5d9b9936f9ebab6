"""What type checkers know of the public surface: mypy and pyright agree with the files of this folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PYTHON = "3.11"
"""The oldest version that is supported: what it knows, later ones know, too."""
CHECKERS = {
    "mypy": ["mypy", "--python-version", PYTHON, str(HERE)],
    "pyright": ["pyright", "-p", str(HERE / "pyrightconfig.json"), "--pythonpath", sys.executable],
}


@pytest.mark.parametrize("checker", CHECKERS)
def test_the_types_are_those_of_the_files(checker: str) -> None:
    """Every `assert_type` holds, and every line of `mistakes.py` is an error: a directive without one is refused."""
    ended = subprocess.run(
        [sys.executable, "-m", *CHECKERS[checker]], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_files_have_something_to_prove() -> None:
    """The files contain assertions, and mistakes for both checkers."""
    texts = {path.name: path.read_text() for path in HERE.glob("*.py")}
    assert texts["loops.py"].count("assert_type(") > 40
    assert texts["tools.py"].count("assert_type(") > 5
    mistakes = [line for line in texts["mistakes.py"].splitlines() if "# type: ignore[" in line]
    assert texts["program.py"].count("assert_type(") > 15
    assert len(mistakes) >= 20
    assert all("# pyright: ignore[" in line for line in mistakes)
