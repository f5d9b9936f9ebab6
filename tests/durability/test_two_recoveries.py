"""Processes that go on with the same execution at once: one does, the others are refused, and nothing runs twice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability.job import CONFLICT, ENDED
from tests.durability.judging import found_in, problems_of
from tests.durability.place import Place
from tests.durability.trial import Trials, job, nursery
from tests.durability.workloads import HELD

ROUNDS = 12


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trials]:
    with nursery() as one:
        yield Trials(one, tmp_path_factory.mktemp("races"))


def problems(trials: Trials, folder: Path, workload: str, kills: int) -> list[str]:
    return list(problems_of(found_in(folder), workload, trials.reference(workload), kills))


@pytest.mark.parametrize("count", [2, 3])
def test_processes_recover_at_once(trials: Trials, count: int) -> None:
    """Of those that recover a run whose process was killed, all at once, one goes on with it; the others conflict, or find it over."""
    moments = trials.reference("mixed").moments
    conflicts = 0
    for moment in moments[1 :: len(moments) // ROUNDS]:
        folder = trials.new_folder("mixed")
        trials.nursery.run(job("mixed", folder, dies_at=moment))
        pids = trials.nursery.begin(*[job("mixed", folder, recovers=True) for _ in range(count)])
        codes = [trials.nursery.end(pid) for pid in pids]
        assert ENDED in codes
        assert set(codes) <= {ENDED, CONFLICT}, Place(folder).lines("errors")
        assert problems(trials, folder, "mixed", 1) == [], moment
        assert len({one["pid"] for one in Place(folder).effects()} & set(pids)) <= 1
        conflicts += codes.count(CONFLICT)
    assert conflicts > 0


def test_one_that_comes_while_another_goes_on(trials: Trials) -> None:
    """While a process is in the middle of a call, others are refused; when it has ended, they get its state and run nothing."""
    folder = trials.new_folder(HELD)
    os.mkfifo(folder / "gate")
    holder = trials.nursery.begin(job(HELD, folder))[0]
    gate = os.open(folder / "gate", os.O_WRONLY)  # it opens when the call has begun
    assert trials.nursery.run(job(HELD, folder, recovers=True)) == CONFLICT
    assert trials.nursery.run(job(HELD, folder, recovers=True)) == CONFLICT
    os.close(gate)
    assert trials.nursery.end(holder) == ENDED
    final = (folder / "final.json").read_bytes()
    assert trials.nursery.run(job(HELD, folder, recovers=True)) == ENDED
    assert (folder / "final.json").read_bytes() == final
    assert {one["pid"] for one in Place(folder).effects()} == {holder}


def test_one_that_comes_after_another_was_killed(trials: Trials) -> None:
    """Refused while the process lives, another one goes on when it was killed, and tells the doubt that it has left."""
    folder = trials.new_folder(HELD)
    os.mkfifo(folder / "gate")
    holder = trials.nursery.begin(job(HELD, folder))[0]
    gate = os.open(folder / "gate", os.O_WRONLY)
    assert trials.nursery.run(job(HELD, folder, recovers=True)) == CONFLICT
    os.kill(holder, 9)
    assert trials.nursery.end(holder) == -9
    os.close(gate)
    assert trials.nursery.run(job(HELD, folder, recovers=True)) == ENDED
    found = found_in(folder)
    assert [one.status.value for one in found.final.steps[0].executions] == ["in_doubt"]
    assert found.findings == ()
    assert found.place.lines("recovered") == [f"in_doubt {found.final.steps[0].executions[0].key}"]


def test_decisions_of_two_processes(trials: Trials) -> None:
    """Of two processes that approve the same calls at once, one runs them (law 16)."""
    reference = trials.reference("approved")
    for _ in range(ROUNDS):
        folder = trials.new_folder("approved")
        trials.nursery.run(job("approved", folder, dies_at="before decision"))
        pids = trials.nursery.begin(*[job("approved", folder, recovers=True) for _ in range(2)])
        codes = [trials.nursery.end(pid) for pid in pids]
        assert set(codes) <= {ENDED, CONFLICT}, Place(folder).lines("errors")
        if ENDED not in codes:  # both were refused in turn, at different suspensions
            assert trials.nursery.run(job("approved", folder, recovers=True)) == ENDED
        assert list(problems_of(found_in(folder), "approved", reference, 1)) == []
