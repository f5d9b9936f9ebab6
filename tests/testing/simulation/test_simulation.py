"""The simulation: equal seeds give equal runs, no fault of the package is found, and planted ones are."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from random import Random

import pytest
from attrs import evolve

from agentloop import AgentLoop, ScriptedInference, tool
from agentloop.errors import ConfigurationError
from agentloop.service.simulation import SCENARIO_NAMES, scenario_named
from agentloop.testing.simulation.event_loop import Machine, SimulatedLoop, Stuck
from agentloop.testing.simulation.faults import PlannedFault, SimulatedFault, plan_faults, shrink
from agentloop.testing.simulation.runs import shrink_run, simulate
from agentloop.testing.simulation.scenarios import scenario_of
from agentloop.testing.simulation.summary import SimulationSummary
from tests.testing.simulation.liars import LIARS


@tool(effect="pure")
def remind(what: str) -> str:
    """Remind."""
    return what


@tool
async def buy(count: int) -> str:
    """Buy."""
    await asyncio.sleep(0.5)
    return f"bought {count}"


pytestmark = pytest.mark.unmonitored  # of machines that crash, no event says so, and a deleted execution starts anew

DIGEST = """
from agentloop.testing import simulate
print(simulate(5, "agents").digest, simulate(5, "agents", storage="postgres").digest)
"""


def test_equal_seeds_give_equal_runs() -> None:
    """The logs of two runs are equal, also in another process with another seed of hashes; those of other seeds are not."""
    first = simulate(5, "agents")
    assert first.log
    assert first.hits
    assert simulate(5, "agents") == first
    assert simulate(6, "agents").digest != first.digest
    for name, storage in (("cluster", "memory"), ("server", "memory"), ("deletion", "postgres")):
        run = simulate(5, scenario_named(name), storage=storage)
        assert simulate(5, scenario_named(name), storage=storage).digest == run.digest
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    other = subprocess.run([sys.executable, "-c", DIGEST], env=environment, capture_output=True, text=True, check=True)
    assert other.stdout.split() == [first.digest, simulate(5, "agents", storage="postgres").digest]


@pytest.mark.parametrize(
    ("scenario", "storage"),
    [
        *[(name, "memory") for name in SCENARIO_NAMES],
        ("agents", "sqlite"),
        ("sessions", "sqlite"),
        ("cluster", "sqlite"),
        ("server", "sqlite"),
        *[(name, "postgres") for name in SCENARIO_NAMES],
    ],
)
def test_nothing_is_lost_doubled_or_untold(scenario: str, storage: str) -> None:
    """Whatever goes wrong, what is recorded agrees with the model and with what the tools did."""
    runs = [simulate(seed, scenario_named(scenario), storage=storage) for seed in range(10)]
    assert not [(run.seed, run.problems) for run in runs if run.problems]
    assert sum(run.executions for run in runs) >= 5
    assert any(run.hits for run in runs)


@pytest.mark.parametrize(
    ("scenario", "seed", "storage"),
    [
        (
            "sessions",
            100435,
            "memory",
        ),  # a turn was begun by another process while this one did not know of its lost claim
        ("cluster", 100757, "memory"),  # a worker that lost its place went on with a call that another one had got
        ("server", 100445, "memory"),  # a message came between the last look of an execution and its end
        ("cluster", 300021, "postgres"),  # a process received a message again that another one had received meanwhile
        ("deletion", 28, "postgres"),  # machines went on while their records were read at the end
    ],
)
def test_seeds_that_have_failed_do_not(scenario: str, seed: int, storage: str) -> None:
    """What each has found is mended, in the package or in the simulation."""
    assert not simulate(seed, scenario_named(scenario), storage=storage).problems


@pytest.mark.heavy
@pytest.mark.parametrize("scenario", SCENARIO_NAMES)
def test_nothing_is_wrong_in_many_seeds(scenario: str) -> None:
    """As above, with ten thousand seeds in all."""
    runs = (
        simulate(seed, scenario_named(scenario), storage=storage)
        for storage, count in (("memory", 1000), ("postgres", 250))
        for seed in range(count)
    )
    assert not [(run.seed, run.problems) for run in runs if run.problems]


SHY = 100
"""A defect that takes more seeds than this is looked for by `make test-heavy` alone."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.heavy) if liar.seeds > SHY else name for name, liar in LIARS.items()]
)
def test_planted_defects_are_found(name: str) -> None:
    """Each defect is found within its number of seeds, and not in the package without it."""
    liar = LIARS[name]
    with liar.lies():
        runs = (liar.run(seed) for seed in range(liar.seeds))
        found = next((run for run in runs if any(liar.finds in problem for problem in run.problems)), None)
    assert found is not None, f"not found in {liar.seeds} seeds"
    assert not liar.run(found.seed).problems


@pytest.mark.heavy
@pytest.mark.parametrize("name", LIARS)
def test_planted_defects_are_found_from_any_seed_on(name: str) -> None:
    """Other seeds find each defect, too, and the plan of faults shrinks to one that still does."""
    liar = LIARS[name]
    with liar.lies():
        runs = (liar.run(seed) for seed in range(10_000, 10_000 + 5 * liar.seeds))
        found = next((run for run in runs if any(liar.finds in problem for problem in run.problems)), None)
        assert found is not None
        smallest = shrink_run(found, liar.scenario)
    assert smallest.problems
    assert set(smallest.plan) <= set(found.plan)


def test_a_loop_of_ones_own_is_simulated() -> None:
    """The tools of a loop run on the machines, with another model."""
    kind = scenario_of(AgentLoop.for_model(ScriptedInference("never asked"), tools=[remind, buy]))
    runs = [simulate(seed, kind) for seed in range(6)]
    assert not [run.problems for run in runs if run.problems]
    assert sum(run.records for run in runs) > 50


def test_summaries_add_up() -> None:
    """The sum of runs has their numbers, says what never occurred, and is read again as it was written."""
    summary = SimulationSummary()
    for seed in range(3):
        summary.add(simulate(seed), 0.5)
    assert (summary.runs, summary.ranges, summary.cpu_seconds) == (3, [(0, 3)], 1.5)
    assert summary.rate == summary.executions / 1.5
    assert SimulationSummary.from_plain(summary.to_plain()) == summary
    head, *rows = summary.table()
    assert [row[0] for row in rows] == [kind.value for kind in SimulatedFault]
    assert sum(int(cell) for row in rows for cell in row[1:] if cell) == summary.hits.total()
    assert head[1] == "inference"
    assert "pause" in summary.never_hit() or any(kind == "pause" for kind, _ in summary.hits)


def test_a_summary_knows_which_seeds_are_left() -> None:
    """Those that have not run, in whichever order the others did, and those that have failed; these count once."""
    run, summary = simulate(0), SimulationSummary()
    for seed in (5, 3, 4, 8):
        summary.add(evolve(run, seed=seed), 0.5)
    assert summary.ranges == [(3, 6), (8, 9)]
    assert list(summary.left(range(2, 10))) == [2, 6, 7, 9]
    summary.add(evolve(run, seed=7, problems=("lost",)), 0.5)
    assert list(summary.left(range(2, 10))) == [2, 6, 7, 9]
    summary.add(evolve(run, seed=7), 0.5)
    assert (summary.runs, summary.failures, summary.ranges) == (5, {}, [(3, 6), (7, 9)])
    total = SimulationSummary.total([summary, summary])
    assert (total.runs, total.hits.total()) == (10, 2 * summary.hits.total())


def test_a_fault_is_written_and_read() -> None:
    """The text of a fault is that of a command line."""
    fault = PlannedFault(62, SimulatedFault.CRASH, 40.0)
    assert str(fault) == "crash@62:40"
    assert PlannedFault.parse("crash@62:40") == fault
    with pytest.raises(ConfigurationError, match="is not a fault"):
        PlannedFault.parse("boom@1:2")


def test_a_crash_runs_no_finally() -> None:
    """A dead machine takes no further step, and its `finally` blocks do not reach the world; another machine goes on."""
    loop, happened = SimulatedLoop(Random(1)), list[str]()

    async def work(name: str) -> None:
        try:
            for _ in range(5):
                await asyncio.sleep(1)
                happened.append(name)
        finally:
            if not is_over:
                happened.append(f"{name} ends")

    async def main() -> None:
        first, second = Machine("a", loop), Machine("b", loop)
        tasks = [first.start(work("a")), second.start(work("b"))]
        await asyncio.sleep(2.5)
        first.crash()
        await tasks[1]

    is_over = False
    loop.run_until_complete(main())
    is_over = True
    loop.discard()
    loop.close()
    assert sorted(happened) == ["a", "a", "b", "b", "b", "b", "b", "b ends"]


def test_a_machine_that_pauses_goes_on_later() -> None:
    """While a machine pauses, its tasks take no step; then they take those that they have missed."""
    loop, times = SimulatedLoop(Random(1)), list[float]()

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(1)
            times.append(loop.time())

    async def main() -> None:
        machine = Machine("a", loop)
        task = machine.start(work())
        await asyncio.sleep(1.5)
        machine.pause(10)
        await task

    loop.run_until_complete(main())
    loop.close()
    assert times == [1.0, 11.5, 12.5]


def test_nothing_left_to_happen_is_an_error() -> None:
    """A program that waits for what never comes does not hang."""
    loop = SimulatedLoop(Random(1))
    with pytest.raises(Stuck, match="nothing is left to happen"):
        loop.run_until_complete(loop.create_future())
    loop.discard()
    loop.close()


def test_plans_come_from_seeds_and_shrink() -> None:
    """A seed has one plan, and a plan shrinks to the faults that a problem needs."""
    assert plan_faults(3) == plan_faults(3)
    assert len({plan_faults(seed) for seed in range(20)}) > 10
    plan = tuple(PlannedFault(number, SimulatedFault.SLOW) for number in range(1, 9))
    needed = {plan[2], plan[6]}
    assert set(shrink(plan, lambda smaller: needed <= set(smaller))) == needed
    assert shrink(plan, lambda _: True) == ()


def test_unknown_scenarios_and_storages_are_refused() -> None:
    """The error names those that there are."""
    with pytest.raises(ConfigurationError, match="did you mean 'recovery'"):
        simulate(1, "recover")
    with pytest.raises(ConfigurationError, match="the storage is memory, sqlite, postgres, not"):
        simulate(1, storage="disk")
