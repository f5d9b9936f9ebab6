"""The example about AgentDojo as an eval: its checks pass for whoever makes all calls, and fail for whoever leaves out the last."""

from __future__ import annotations

import pytest

pytest.importorskip("agentdojo", reason="agentdojo, one of the packages of requirements-dev.txt, is not installed")

from agentdojo_evals import suite_of  # needs agentdojo
from dojo.evals import dojo_cases

from agentloop.durable import MemoryJournal

TASKS = [f"banking/user_task_{number}" for number in (0, 3, 4, 12, 13)]
"""Tasks whose last call changes something, which AgentDojo checks."""


def test_every_task_is_a_case() -> None:
    """All 97 tasks, under their suites."""
    cases = dojo_cases()
    assert len(cases) == 97
    assert len(cases.tagged("banking")) == 16


async def test_the_checks_of_agentdojo_score() -> None:
    """Each trial has data of its own; one that is scored again has the same score."""
    suite = suite_of("banking", repeats=2).with_cases(case for case in dojo_cases("banking") if case.name in TASKS)
    journal = MemoryJournal()
    result = await suite.run(journal=journal)
    assert [trial.error for trial in result.trials if trial.error] == []
    assert all(trial.passed for trial in result.of("thorough"))
    assert {world for trial in result.trials for world in trial.answered} == {"simulated"}
    made = {(trial.case, trial.repeat): trial.steps for trial in result.of("thorough")}
    left_out = {place for trial in result.of("hasty") if trial.steps < made[place := (trial.case, trial.repeat)]}
    assert left_out
    assert {(trial.case, trial.repeat) for trial in result.of("hasty") if not trial.passed} == left_out
    assert await suite.run(journal=journal) == result
