"""The workflow of the examples refuses a worse agent, and lets an equal one pass; the pictures are what the code draws."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import eval_pictures
import pytest
import yaml

from tests.limits import LONGEST
from tests.loaded import loaded_agentloop

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / "examples" / "pull_request_evals.yml").read_text(encoding="utf-8"))
STEPS = WORKFLOW["jobs"]["evals"]["steps"]


def run_commands(folder: Path) -> list[int]:
    """Run the commands of the workflow in a folder, but for the installation, and return their exit codes."""
    (folder / "agentloop").write_text(f'#!/bin/sh\nexec {shlex.join(loaded_agentloop())} "$@"\n')
    (folder / "agentloop").chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    commands = [step["run"] for step in STEPS if "run" in step and not step["run"].startswith("pip install")]
    runs = [
        subprocess.run(
            ["sh", "-c", command], cwd=folder, env=environment, capture_output=True, check=False, timeout=LONGEST
        )
        for command in commands
    ]
    return [run.returncode for run in runs]


@pytest.mark.parametrize(("change", "codes"), [(" exactly what it cost", [0, 1]), ("", [0, 0])])
def test_the_workflow_refuses_what_is_worse(tmp_path: Path, change: str, codes: list[int]) -> None:
    """A prompt that loses a word is refused, with a page and JUnit XML; the same prompt passes."""
    program = (ROOT / "examples" / "refund_evals.py").read_text(encoding="utf-8")
    for name, text in {
        "main": program,
        "change": program.replace(change, " what it cost") if change else program,
    }.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "refund_evals.py").write_text(text, encoding="utf-8")
    assert run_commands(tmp_path) == codes
    assert "They part in" in (tmp_path / "report.html").read_text(encoding="utf-8") or not change
    assert f'testsuite name="gate" tests="1" failures="{codes[1]}"' in (tmp_path / "junit.xml").read_text(
        encoding="utf-8"
    )


def test_its_actions_are_those_of_the_project() -> None:
    """Each action is named by the commit that the workflows of the project use."""
    ours = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    used = [step["uses"] for step in STEPS if "uses" in step]
    assert used
    assert all(re.search(rf"uses: {re.escape(action)}", ours) for action in used)


def test_the_pictures_are_what_the_code_draws() -> None:
    """`make pictures` would change nothing."""
    for name, picture in eval_pictures.pictures().items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == picture, name
