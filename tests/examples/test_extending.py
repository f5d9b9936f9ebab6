"""Parts against public names alone keep the laws, as pytest collects them and as a script prints them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from extending.test_extending import (
    TestCountingExecutor,
    TestJsonLinesJournal,
    TestMaskCards,
    TestPlanningDriver,
)

import agentloop

__all__ = ["TestCountingExecutor", "TestJsonLinesJournal", "TestMaskCards", "TestPlanningDriver"]  # collected here

FOLDER = Path(__file__).parents[2] / "examples" / "extending"
PACKAGES = re.compile(r"agentloop(\.(contracts|drivers|durable|executors|interception|testing|values))?")


def test_the_script_says_which_laws_hold() -> None:
    """One call prints the laws of a kit."""
    command = [sys.executable, str(FOLDER / "interceptor.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("InterceptorKit: 11 of 11 laws hold (3, 8, 9, 13, 14, 19, 22, 25, 34, 38, 45)")


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_only_public_names_are_used(path: Path) -> None:
    """What is imported is exported by its room, and listed by it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentloop"):
            assert PACKAGES.fullmatch(str(node.module))
            room = agentloop if node.module == "agentloop" else sys.modules[str(node.module)]
            assert [alias.name for alias in node.names if alias.name not in dir(room)] == []
