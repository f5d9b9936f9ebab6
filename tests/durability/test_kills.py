"""Runs in real processes that are killed by SIGKILL, and gone on with by others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentloop.values.tool_calls import ToolStatus
from tests.durability.trial import Trials, nursery
from tests.durability.workloads import WORKLOADS

EACH = 6
"""Every how manieth moment is tried here; all of them by `make kill-test`."""


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    with nursery() as one:
        yield Trials(one, tmp_path_factory.mktemp("trials"))


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_run_that_is_killed_is_gone_on_with(trials: Trials, workload: str) -> None:
    """Wherever a process is killed, no effect is lost unnoticed or doubled, doubts are told, and the fold is the state."""
    moments = trials.reference(workload).moments
    for moment in moments[hash_of(workload) % EACH :: EACH]:
        verdict = trials.killed(workload, moment)
        assert verdict.problems == [], moment
        assert verdict.killed == 1


@pytest.mark.parametrize("workload", ["mixed", "suspend", "approved inside", "steered"])
def test_a_recovery_that_is_killed_is_gone_on_with(trials: Trials, workload: str) -> None:
    """The same when the process that recovers is killed, too, and the one that recovers then."""
    moments = trials.reference(workload).moments
    for moment in moments[3 : len(moments) // 2 : len(moments) // 8]:
        verdict = trials.killed(workload, moment, "after append 2", "before append 2")
        assert verdict.problems == [], moment
        assert verdict.killed == 3


def test_a_doubt_is_the_price_of_an_effect_alone(trials: Trials) -> None:
    """Killed between an effect and its record, a call of an `effect` tool is in doubt, and others come to their outcome."""
    for workload, status in (
        ("pure", ToolStatus.SUCCEEDED),
        ("idempotent", ToolStatus.SUCCEEDED),
        ("effect", ToolStatus.IN_DOUBT),
        ("probed", ToolStatus.SUCCEEDED),
    ):
        verdict = trials.killed(workload, "after effect run/2/1")
        assert verdict.problems == []
        assert verdict.found is not None
        assert verdict.found.outcomes["run/2/1"].status is status
        times = [key for key, _ in verdict.effects].count("run/2/1")
        assert times == (2 if workload in {"pure", "idempotent"} else 1)


def hash_of(text: str) -> int:
    """Return a number that is the same in every process."""
    return sum(text.encode())
