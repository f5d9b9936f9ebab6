"""The judge of the corpus of real exchanges accepts every row."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import LONGEST

ADAPTER = Path(__file__).with_name("adapter.py")


@pytest.mark.parametrize(
    ("subject", "step"),
    [
        ("decode", 997),
        pytest.param("decode", 5, marks=pytest.mark.heavy),
        pytest.param("decode", 1, marks=pytest.mark.heavy),
        ("loop", 997),
        pytest.param("loop", 1, marks=pytest.mark.heavy),
        pytest.param("loop", 5, marks=pytest.mark.heavy),
        ("schema", 997),
    ],
)
def test_the_judge_accepts_every_row(corpus: Path, subject: str, step: int) -> None:
    """Every row passes, also with streams that are split every few bytes."""
    check(corpus, corpus, subject, step)


@pytest.mark.parametrize("step", [997, 1])
def test_the_judge_accepts_every_row_of_bedrock_and_cohere(corpus: Path, more_corpus: Path, step: int) -> None:
    """Every answer, stream and error is decoded as the packages of AWS and Cohere do."""
    check(corpus, more_corpus, "decode", step)


def check(corpus: Path, rows: Path, subject: str, step: int) -> None:
    """Run the judge on the rows of a folder."""
    judge = corpus.parent / "judge" / "judge.py"
    if not judge.exists():
        pytest.skip("there is no judge next to the corpus")
    completed = subprocess.run(
        [sys.executable, str(judge), str(rows), str(ADAPTER), subject],
        env={**os.environ, "JUDGE_STEP": str(step), "PYTHONPATH": str(ADAPTER.parents[2])},
        capture_output=True,
        text=True,
        timeout=5 * LONGEST,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout[-4000:] + completed.stderr[-2000:]
    assert "passed, 0 failed" in completed.stdout
