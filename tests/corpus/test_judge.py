"""The judge of the corpus of real exchanges, on what it has to judge here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import LONGEST

ADAPTER = Path(__file__).with_name("adapter.py")


@pytest.mark.parametrize(
    ("what", "step"),
    [("decode", 997), ("decode", 5), ("decode", 1), ("loop", 997), ("loop", 5), ("loop", 1), ("schema", 997)],
)
def test_the_judge_finds_nothing_wrong(corpus: Path, what: str, step: int) -> None:
    """Every row passes, also with streams that are cut every few bytes."""
    judge = corpus.parent / "judge" / "judge.py"
    if not judge.exists():
        pytest.skip("the judge is not beside the corpus")
    ended = subprocess.run(
        [sys.executable, str(judge), str(corpus), str(ADAPTER), what],
        env={**os.environ, "JUDGE_STEP": str(step), "PYTHONPATH": str(ADAPTER.parents[2])},
        capture_output=True,
        text=True,
        timeout=5 * LONGEST,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    assert "passed, 0 failed" in ended.stdout
