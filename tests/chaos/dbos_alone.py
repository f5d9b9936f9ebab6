"""The same work on DBOS steps alone, for comparison: `python -m tests.chaos.dbos_alone [--kills 4] [--seeds 1 2 3]`.

Every request to the model and every tool call is a step of a workflow, as the documentation of DBOS recommends. Three workers run
24 workflows of 15 calls. Workers kill themselves at lines of the ledger that the seed chooses, and are replaced by workers of the
same executor id, which recover their workflows; where executor ids are left out, a new worker also takes the workflows of those that live. The table says how many effects were lost and how many happened more than once.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, field, frozen
from dbos import DBOS, DBOSClient, DBOSConfig

from tests.chaos.ledger import AFTER, BEFORE, EFFECT, Ledger, Plan, at_lines
from tests.postgres import PostgresServer, new_database

ROOT = Path(__file__).parents[2]
WORKERS, RUNS, STEPS, CALLS = 3, 24, 5, 3
SLOTS = 8
"""Workflows that a worker runs at once."""
LINES = RUNS * STEPS * CALLS * 3
"""Lines of the ledger without faults: before, at and after each effect."""
_PAUSE = 0.02
_LIMIT = 180.0
_QUEUE = "runs"
_ENDED = frozenset({"SUCCESS", "ERROR", "CANCELLED", "MAX_RECOVERY_ATTEMPTS_EXCEEDED"})


# --- a worker -----------------------------------------------------------------------------------------------------------


def work(folder: Path, database: str, executor: str) -> None:
    """Run workflows until the process is killed."""
    ledger = Ledger(folder, executor)

    async def decide(step: int) -> Sequence[int]:
        ledger.note("inferences", f"{DBOS.workflow_id} {step}")
        await asyncio.sleep(_PAUSE)
        return range(CALLS)

    async def call(key: str) -> str:
        ledger.write(BEFORE, key, tool="work", effect="effect")
        await asyncio.sleep(_PAUSE)
        ledger.write(EFFECT, key, tool="work", effect="effect")
        await asyncio.sleep(_PAUSE)
        ledger.write(AFTER, key, tool="work", effect="effect")
        return f"did {key}"

    @DBOS.workflow(name="run")
    async def run(run_id: str) -> list[str]:
        results: list[str] = []
        for step in range(STEPS):
            indices = await DBOS.run_step_async({"name": f"decide:{step}"}, decide, step)
            keys = [f"{run_id}/{step}/{index}" for index in indices]
            results += await asyncio.gather(*[DBOS.run_step_async({"name": f"call:{key}"}, call, key) for key in keys])
        return results

    DBOS(config=_configuration(database, executor))
    DBOS.launch()
    DBOS.register_queue(_QUEUE, worker_concurrency=SLOTS, polling_interval_sec=0.05, on_conflict="always_update")
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()  # ends with the process that started this one


def _configuration(database: str, executor: str) -> DBOSConfig:
    return {
        "name": "chaos",
        "system_database_url": database,
        "executor_id": executor,
        "application_version": "chaos-1",
        "log_level": "ERROR",
    }


# --- the run of the table -----------------------------------------------------------------------------------------------


@frozen
class Count:
    """What the ledger says about all effects.

    Attributes:
        calls: the number of calls of the plan.
        once: how many of them had their effect once.
        lost: how many had no effect, although their workflows ended.
        doubled: how many had their effect more than once.
        kills: the number of killed workers.
        seconds: how long it took.
    """

    calls: int
    once: int
    lost: int
    doubled: int
    kills: int
    seconds: float


@define
class Crew:
    """The processes of the workers, each with its executor id."""

    folder: Path
    database: str
    processes: list[tuple[str, subprocess.Popen[str]]] = field(factory=list)

    def start(self, executor: str) -> None:
        """Start a worker, and wait until it takes work."""
        command = [sys.executable, "-m", "tests.chaos.dbos_alone", "--work", str(self.folder), self.database, executor]
        process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append((executor, process))
        assert process.stdout is not None
        while process.stdout.readline() not in {"ready\n", ""}:
            pass

    def replace_dead(self) -> None:
        """Start a worker for each one that was killed."""
        for entry in [entry for entry in self.processes if entry[1].poll() is not None]:
            self.processes.remove(entry)
            entry[1].communicate()
            self.start(entry[0])

    def kill(self) -> None:
        """Kill all workers."""
        for _, process in self.processes:
            process.kill()
            process.communicate()


def choose_kills(seed: int, count: int) -> Plan:
    """Return lines of the ledger, away from its beginning and its end, at which a process kills itself."""
    lines = random.Random(seed).sample(range(LINES // 10, LINES * 3 // 4), count)
    return at_lines(lines, "SIGKILL")


def play(folder: Path, database: str, *, kills: int, seed: int, executors: Sequence[str]) -> Count:
    """Run all workflows while workers are killed, and count the effects."""
    ledger, crew, started = Ledger(folder), Crew(folder, database), time.monotonic()
    ledger.plan(choose_kills(seed, kills))
    try:
        for executor in executors:
            crew.start(executor)
        client = DBOSClient(system_database_url=database)
        ids = [f"run-{number:02}" for number in range(RUNS)]
        for run_id in ids:
            client.enqueue({"queue_name": _QUEUE, "workflow_name": "run", "workflow_id": run_id}, run_id)
        while not _is_over(client, ids):
            crew.replace_dead()
            if time.monotonic() - started > _LIMIT:
                break
            time.sleep(0.1)
        client.destroy()
    finally:
        crew.kill()
    effects = ledger.effects()
    keys = [f"{run_id}/{step}/{index}" for run_id in ids for step in range(STEPS) for index in range(CALLS)]
    return Count(
        calls=len(keys),
        once=sum(effects[key] == 1 for key in keys),
        lost=sum(effects[key] == 0 for key in keys),
        doubled=sum(effects[key] > 1 for key in keys),
        kills=len(ledger.signals()),
        seconds=time.monotonic() - started,
    )


def _is_over(client: DBOSClient, ids: Sequence[str]) -> bool:
    found = client.list_workflows(workflow_ids=list(ids), load_input=False, load_output=False)
    return len(found) == len(ids) and all(workflow.status in _ENDED for workflow in found)


SETUPS: Mapping[str, Sequence[str]] = {
    "an executor id for each worker": [f"worker-{number}" for number in range(WORKERS)],
    "executor ids left out": ["local"] * WORKERS,
}
"""The executor ids of the workers; `local` is what a process has that names none."""


HEAD = ("database", "workers", "seed", "kills", "calls", "once", "lost", "doubled", "seconds")


def rows(folder: Path, kills: int, seeds: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """Yield the lines of the table.

    Args:
        folder: an empty folder.
        kills: how many workers are killed in each run.
        seeds: the seeds of the runs.
    """
    with closing(PostgresServer()) as server:
        for number, (store, (label, executors), seed) in enumerate(
            product(("SQLite", "PostgreSQL"), SETUPS.items(), seeds)
        ):
            place = folder / f"alone-{number}"
            place.mkdir()
            with ExitStack() as stack:
                is_file = store == "SQLite"
                url = f"sqlite:///{place}/dbos.sqlite" if is_file else stack.enter_context(new_database(server.url))
                count = play(place, url, kills=kills, seed=seed, executors=executors)
            figures = (count.kills, count.calls, count.once, count.lost, count.doubled, f"{count.seconds:.1f}")
            yield store, label, seed, *figures


def main() -> None:
    """Print the table, or work."""
    parser = argparse.ArgumentParser(prog="tests.chaos.dbos_alone")
    parser.add_argument("--work", nargs=3, metavar=("FOLDER", "DATABASE", "EXECUTOR"))
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), options.work[1], options.work[2])
        return
    with TemporaryDirectory(prefix="agentloop-chaos-") as name:
        print_table(Path(name), options.kills, options.seeds)


def print_table(folder: Path, kills: int, seeds: Sequence[int]) -> None:
    """Print the table."""
    sys.stdout.write("The same work on DBOS steps alone:\n")
    print_row(HEAD)
    for row in rows(folder, kills, seeds):
        print_row(row)


def print_row(cells: Sequence[object]) -> None:
    """Print a line of the table."""
    sys.stdout.write("  ".join(str(cell).ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)) + "\n")
    sys.stdout.flush()


_WIDTHS = (10, 31, 4, 5, 5, 5, 5, 7, 7)


if __name__ == "__main__":
    main()
