"""Processes that recover the same execution at the same time: one runs it, the others are refused, and nothing runs twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.inspection import find_problems, read_result
from tests.durability.job import CONFLICT, ENDED
from tests.durability.trial import Trials, make_job, start_fork_server
from tests.durability.trial_folder import TrialFolder
from tests.durability.workloads import BLOCKED, MAINTENANCE
from tests.generated import examples, part_of

ROUNDS = 12


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    with start_fork_server() as server:
        yield Trials(server, tmp_path_factory.mktemp("races"))


def list_problems(trials: Trials, folder: Path, workload: str, kills: int) -> list[str]:
    return list(find_problems(read_result(folder), workload, trials.reference(workload), kills))


@pytest.mark.parametrize("count", [2, 3])
def test_concurrent_recoveries(trials: Trials, count: int) -> None:
    """Of several concurrent recoveries of a killed execution, one runs it; the others conflict or find it ended."""
    points = trials.reference("mixed").points
    conflicts = 0
    points = points[1 :: len(points) // ROUNDS]
    now = part_of(points)
    for point in [*now, *[point for point in points if point not in now]]:
        if conflicts and point not in now:
            break  # the rest is for a machine on which no two processes have met
        folder = trials.new_folder("mixed")
        trials.server.run(make_job("mixed", folder, kill_point=point))
        pids = trials.server.start(*[make_job("mixed", folder, recovers=True) for _ in range(count)])
        codes = [trials.server.wait(pid) for pid in pids]
        assert ENDED in codes
        assert set(codes) <= {ENDED, CONFLICT}, TrialFolder(folder).lines("errors")
        assert list_problems(trials, folder, "mixed", 1) == [], point
        assert len({effect["pid"] for effect in TrialFolder(folder).effects()} & set(pids)) <= 1
        conflicts += codes.count(CONFLICT)
    assert conflicts > 0


@pytest.mark.parametrize("workload", ["agent", "deletions"])
def test_deletions_during_a_recovery(trials: Trials, workload: str) -> None:
    """Processes that delete and purge executions while another one is recovered take nothing of it."""
    points = trials.reference(workload).points
    for point in points[5 :: len(points) // 4]:
        folder = trials.new_folder(workload)
        trials.server.run(make_job(workload, folder, kill_point=point))
        jobs = [make_job(workload, folder, recovers=True), *[make_job(MAINTENANCE, folder, recovers=True)] * 2]
        assert [trials.server.wait(pid) for pid in trials.server.start(*jobs)] == [ENDED] * 3
        assert list_problems(trials, folder, workload, 1) == [], point


def test_a_recovery_of_a_running_execution_is_refused(trials: Trials) -> None:
    """During a call, other processes are refused; after the end, they get the final state and run nothing."""
    folder = trials.new_folder(BLOCKED)
    os.mkfifo(folder / "gate")
    holder = trials.server.start(make_job(BLOCKED, folder))[0]
    gate = os.open(folder / "gate", os.O_WRONLY)  # returns when the call has started
    assert trials.server.run(make_job(BLOCKED, folder, recovers=True)) == CONFLICT
    assert trials.server.run(make_job(BLOCKED, folder, recovers=True)) == CONFLICT
    os.close(gate)
    assert trials.server.wait(holder) == ENDED
    final = (folder / "final.json").read_bytes()
    assert trials.server.run(make_job(BLOCKED, folder, recovers=True)) == ENDED
    assert (folder / "final.json").read_bytes() == final
    assert {effect["pid"] for effect in TrialFolder(folder).effects()} == {holder}


def test_a_recovery_succeeds_after_the_process_was_killed(trials: Trials) -> None:
    """A process that is refused while another one lives can recover after its kill, and reports the call in doubt."""
    folder = trials.new_folder(BLOCKED)
    os.mkfifo(folder / "gate")
    holder = trials.server.start(make_job(BLOCKED, folder))[0]
    gate = os.open(folder / "gate", os.O_WRONLY)
    assert trials.server.run(make_job(BLOCKED, folder, recovers=True)) == CONFLICT
    os.kill(holder, 9)
    assert trials.server.wait(holder) == -9
    os.close(gate)
    assert trials.server.run(make_job(BLOCKED, folder, recovers=True)) == ENDED
    result = read_result(folder)
    executions = result.final.steps[0].executions
    assert [execution.status.value for execution in executions] == ["in_doubt"]
    assert result.findings == ()
    assert result.folder.lines("recovered") == [f"in_doubt {executions[0].key}"]


def test_concurrent_decisions(trials: Trials) -> None:
    """Of two processes that approve the same calls at the same time, one runs them (law 16)."""
    for _ in range(examples(ROUNDS)):
        folder = trials.new_folder("approval")
        trials.server.run(make_job("approval", folder, kill_point="before decision"))
        pids = trials.server.start(*[make_job("approval", folder, recovers=True) for _ in range(2)])
        codes = [trials.server.wait(pid) for pid in pids]
        assert set(codes) <= {ENDED, CONFLICT}, TrialFolder(folder).lines("errors")
        if ENDED not in codes:  # each was refused at a different suspension
            assert trials.server.run(make_job("approval", folder, recovers=True)) == ENDED
        assert list_problems(trials, folder, "approval", 1) == []
