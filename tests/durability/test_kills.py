"""Executions in processes that are killed, and that other processes recover."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agentloop.values.tool_calls import ToolStatus
from tests.durability.trial import Trials, start_fork_server
from tests.durability.workloads import WORKLOADS

STRIDES = pytest.mark.parametrize("stride", [56, pytest.param(14, marks=pytest.mark.heavy)])
"""Of the kill points, one of so many is tried here; `make kill-test` tries all of them."""
SLOW = {"program approval", "program approval suspend"}
"""Each of their processes starts an interpreter of programs several times; `program` is in every run."""


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    with start_fork_server() as server:
        yield Trials(server, tmp_path_factory.mktemp("trials"))


@STRIDES
@pytest.mark.parametrize(
    "workload", [pytest.param(name, marks=pytest.mark.heavy) if name in SLOW else name for name in WORKLOADS]
)
def test_a_killed_execution_is_recovered(trials: Trials, workload: str, stride: int) -> None:
    """At any kill point, no effect is lost or repeated, doubts are reported, and the folded state is the final one."""
    points = trials.reference(workload).points
    for point in points[stable_hash(workload) % min(stride, len(points)) :: stride]:
        verdict = trials.run(workload, point)
        assert verdict.problems == [], point
        assert verdict.kill_count == 1


@STRIDES
@pytest.mark.parametrize("workload", ["mixed", "agent approval suspend", "pools", "fork"])
def test_a_terminated_execution_is_recovered(trials: Trials, workload: str, stride: int) -> None:
    """The same holds for SIGTERM, with a handler that cancels the task."""
    points = trials.reference(workload).points
    for point in points[stable_hash(workload) % min(stride, len(points)) :: stride]:
        verdict = trials.run(workload, point, manner="terminate")
        assert verdict.problems == [], point
        assert verdict.kill_count == 1


@pytest.mark.parametrize("workload", ["mixed", "approval", "pools"])
def test_a_recovery_through_a_link(trials: Trials, workload: str) -> None:
    """The same holds when other processes open the journal through a symbolic link."""
    points = trials.reference(workload).points
    for point in points[3 :: len(points) // 2]:
        verdict = trials.run(workload, point, "after append 2", manner="symlink")
        assert verdict.problems == [], point
        assert verdict.kill_count == 2


@pytest.mark.parametrize(
    "workload",
    ["mixed", "suspend", pytest.param("agent approval", marks=pytest.mark.heavy), "agent approval suspend", "messages"],
)
def test_a_killed_recovery_is_recovered(trials: Trials, workload: str) -> None:
    """The same holds when two recoveries are killed as well."""
    points = trials.reference(workload).points
    for point in points[3 : len(points) // 2 : len(points) // 6]:
        verdict = trials.run(workload, point, "after append 2", "before append 2")
        assert verdict.problems == [], point
        assert verdict.kill_count == 3


def test_only_a_call_with_an_unknown_effect_is_in_doubt(trials: Trials) -> None:
    """After a kill between an effect and its record, only a call of an `effect` tool that cannot look it up is in doubt."""
    for workload, status in (
        ("pure", ToolStatus.SUCCEEDED),
        ("idempotent", ToolStatus.SUCCEEDED),
        ("effect", ToolStatus.IN_DOUBT),
        ("reconciled", ToolStatus.SUCCEEDED),
    ):
        verdict = trials.run(workload, "after effect run/2/1")
        assert verdict.problems == []
        assert verdict.result is not None
        assert verdict.result.outcomes["run/2/1"].status is status
        count = [key for key, _ in verdict.effects].count("run/2/1")
        assert count == (2 if workload in {"pure", "idempotent"} else 1)


def stable_hash(text: str) -> int:
    """Return a number that is the same in every process."""
    return sum(text.encode())
