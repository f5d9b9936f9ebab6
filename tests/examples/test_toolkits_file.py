"""The TOML file beside the toolkits, and the toolkits as scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from agentloop.toolkits import load_ensembles
from tests.loaded import loaded_python

TOOLKITS = Path(__file__).parents[2] / "examples" / "toolkits"


def test_the_file_loads_both_toolkits() -> None:
    """The TOML file offers the tools of both toolkits, without the tool that it disables."""
    ensembles = load_ensembles(TOOLKITS / "tools.toml", allow=["toolkits"])
    assert {ensemble.name: [tool.name for tool in ensemble.offered] for ensemble in ensembles} == {
        "calculator": ["calculate"],
        "todo": ["add_todos", "update_todo", "list_todos"],
    }


@pytest.mark.parametrize(
    ("script", "arguments", "output"),
    [
        ("calculator.py", ["2 ^ 10 / 4"], "256\n"),
        ("todo.py", [], "1. [done] plan\n2. [open] build\n3. [open] test\n"),
    ],
)
def test_a_toolkit_runs_as_a_script(script: str, arguments: list[str], output: str) -> None:
    """Each toolkit can be tried from a shell."""
    process = subprocess.run(
        loaded_python(str(TOOLKITS / script), *arguments), capture_output=True, text=True, timeout=60, check=True
    )
    assert process.stdout == output
