"""`agentloop simulate`: seeds run once, results add up, and a failing seed is shown and tried again."""

from __future__ import annotations

import importlib
import json
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from agentloop.durable import MemoryJournal
from agentloop.service.simulation import SCENARIO_NAMES
from tests.testing.simulation.liars import lose_tail

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.cli.conftest import CommandLine

pytestmark = pytest.mark.unmonitored  # machines crash in it


def _ranges(file: Path) -> dict[str, Any]:
    return {name: each["ranges"] for name, each in json.loads(file.read_text(encoding="utf-8")).items()}


def test_a_call_runs_the_seeds_that_its_file_does_not_have(command_line: CommandLine, tmp_path: Path) -> None:
    """Ranges that overlap run each seed once, and the numbers are those of all calls."""
    file = tmp_path / "results.json"
    shown = [command_line(*f"simulate --seeds {seeds} --results {file}".split()) for seeds in ("0:2", "4:6", "0:6")]
    assert [each.code for each in shown] == [0, 0, 0]
    assert [line.split(",")[0] for each in shown for line in each.out.splitlines() if " per second" in line] == [
        "2 runs",
        "4 runs",
        "6 runs",
    ]
    assert _ranges(file) == {"recovery/memory": [[0, 6]]}


def test_all_scenarios_are_run(command_line: CommandLine, tmp_path: Path) -> None:
    """Each seed in each of them, with a table of what they found."""
    shown = command_line(*f"simulate --scenario all --seeds 3 --results {tmp_path / 'results.json'}".split())
    assert shown.code == 0
    assert _ranges(tmp_path / "results.json") == {f"{name}/memory": [[3, 4]] for name in SCENARIO_NAMES}
    assert all(f"{name}/memory" in shown.out for name in SCENARIO_NAMES)


def test_what_was_run_is_kept_when_a_call_is_interrupted(command_line: CommandLine, tmp_path: Path) -> None:
    """The file has the seeds before the one at which the call ended."""
    module = importlib.import_module("agentloop.service.cli.simulate")
    run_seed, file = module.run_seed, tmp_path / "results.json"

    def interrupt(seed: int, *args: Any, **options: Any) -> Any:
        if seed == 2:
            raise KeyboardInterrupt
        return run_seed(seed, *args, **options)

    with patch.object(module, "run_seed", interrupt):
        assert command_line(*f"simulate --seeds 0:4 --results {file}".split()).code != 0
    assert _ranges(file) == {"recovery/memory": [[0, 2]]}


def test_a_seed_that_fails_is_shown_and_tried_again(command_line: CommandLine, tmp_path: Path) -> None:
    """With its problem and the command that repeats it; a later call says whether it still fails."""
    file = tmp_path / "results.json"
    with patch.object(MemoryJournal, "append_using", lose_tail):
        failed = command_line(*f"simulate --seeds 0:2 --results {file}".split())
    assert failed.code == 1
    assert "again: agentloop simulate --scenario recovery --storage memory --seeds 0 --faults" in failed.out
    mended = command_line(*f"simulate --seeds 0:2 --results {file}".split())
    assert mended.code == 0
    assert "2 runs" in mended.out
    assert "nothing is wrong" in mended.out
