"""Measures a cluster on SQLite and PostgreSQL beside DBOS steps alone and LangGraph's Postgres saver, which do the same work.

    python -m benchmarks.cluster [steps] [workers] [recovery] [idle], in the folder of the sources

It starts a PostgreSQL server of its own on a unix socket, with fsync. Subjects take turns, and the figures are the median of all
rounds with the lowest and the highest. `BENCHMARK_PEERS` names the Python that has the peers (`make bench-cluster` makes one).
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

sys.path.insert(0, str(Path(__file__).parent))

from cluster_agents import LEDGER, SLOW_TURNS, TURNS
from cluster_store import bytes_of, copy_suspended, processes_of, run_all
from journal_runs import copy_interrupted, loop_of, run
from measuring import Peer

from agentloop.durable import MemoryJournal, SqliteJournal, open_journal
from agentloop.service.cluster import Cluster
from agentloop.service.cluster.database import ClusterDatabase
from agentloop.service.cluster.engine import Engine
from agentloop.service.cluster.executions import StartRequest
from agentloop.values.jobs import Job, JobKind
from agentloop.values.steps import ExecutionStatus
from tests.postgres import PostgresServer, new_database

HERE = Path(__file__).parent
STORES = ("SQLite", "PostgreSQL")
ROUNDS = 5
STEPS, LONG = 20, 100
WORKERS, RUNS = (1, 2, 4), 40
WORKER_ROUNDS = 3
KILLS = 3
SUSPENDED = 100_000
SETTLE, WATCH, WATCHES = 5.0, 30.0, 6
FINDS = 20
IDLE_RATIO, FIND_MS = 1.1, 20.0
LIMIT = 300.0
"""How long a measurement may take, in seconds."""
START = 60.0
"""How long a worker may take to start, in seconds."""


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the median, and the lowest and the highest value."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


@contextmanager
def database(store: str, server: PostgresServer) -> Iterator[str]:
    """Yield the location of a new database."""
    if store == "PostgreSQL":
        with new_database(server.url) as url:
            yield url
    else:
        with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            yield str(Path(folder) / "agentloop.db")


# --- steps --------------------------------------------------------------------------------------------------------------


Runner = Callable[[int, int], Awaitable[float]]


def own_runner(location: str, stack: AsyncExitStack, **options: str) -> Runner:
    """Return what runs executions on our journal in this process."""
    journal = SqliteJournal(location, synchronous="normal") if options else open_journal(location)
    stack.push_async_callback(journal.aclose)

    async def run_executions(executions: int, turns: int) -> float:
        begin = time.perf_counter()
        for _ in range(executions):
            await loop_of(turns, journal).execute("go", execution_id=uuid.uuid4().hex)
        return time.perf_counter() - begin

    return run_executions


def wall_runner(peer: Peer) -> Runner:
    """Return what runs executions in the process of a peer."""

    async def run_executions(executions: int, turns: int) -> float:
        wall, _ = await peer.run(executions, turns)
        return wall

    return run_executions


async def open_subjects(server: PostgresServer, stack: AsyncExitStack) -> dict[str, tuple[str, Runner]]:
    """Return the location of the database and the runner of each subject."""
    subjects: dict[str, tuple[str, Runner]] = {}
    for name, store, subject in (
        ("agentloop, PostgreSQL", "PostgreSQL", ""),
        ("DBOS alone, PostgreSQL", "PostgreSQL", "dbos"),
        ("LangGraph, PostgreSQL", "PostgreSQL", "langgraph"),
        ("agentloop, SQLite", "SQLite", ""),
        ("agentloop, SQLite normal", "SQLite", "normal"),
        ("DBOS alone, SQLite as shipped", "SQLite", "dbos"),
    ):
        location = stack.enter_context(database(store, server))
        if subject in {"", "normal"}:
            options = {"synchronous": subject} if subject else {}
            subjects[name] = (location, own_runner(location, stack, **options))
        else:
            peer = Peer(subject, location if store == "PostgreSQL" else f"sqlite:///{location}")
            stack.callback(peer.close)
            subjects[name] = (location, wall_runner(peer))
    return subjects


async def measure_steps(server: PostgresServer) -> None:
    """Print the milliseconds and the bytes per step of each subject. A step is an inference and a call."""
    async with AsyncExitStack() as stack:
        subjects = await open_subjects(server, stack)
        times: dict[str, list[float]] = {name: [] for name in subjects}
        for _, runner in subjects.values():
            await runner(1, STEPS)
        for _ in range(ROUNDS):
            for name, (_, runner) in subjects.items():
                times[name].append(await runner(1, STEPS) / STEPS * 1e3)
        sizes = {name: await size_per_step(*subject) for name, subject in subjects.items()}
    first = times["agentloop, PostgreSQL"]
    print(f"\n{'':30} {'ms per step':>24} {'x agentloop, PostgreSQL':>26} {'bytes/step':>11} {'of ' + str(LONG):>8}")
    for name, values in times.items():
        ratios = [value / ours for value, ours in zip(values, first, strict=True)]
        short, long = sizes[name]
        print(f"{name:30} {spread(values):>24} {spread(ratios):>26} {short:11.0f} {long:8.0f}")


async def size_per_step(location: str, runner: Runner) -> tuple[float, float]:
    """Return the bytes per step on disk of short executions, and of a long one."""
    sizes = []
    for executions, turns in ((5, STEPS), (1, LONG)):
        before = bytes_of(location)
        await runner(executions, turns)
        sizes.append((bytes_of(location) - before) / (executions * turns))
    return sizes[0], sizes[1]


# --- workers ------------------------------------------------------------------------------------------------------------


class WorkerProcess:
    """`agentloop worker` as a process, which is killed at the end.

    Args:
        location: its database.
        name: its name.
        agent: the agent of `cluster_agents.py` that it runs.
        environment: further variables of its environment.

    Attributes:
        pid: the id of the process.
        begun: when it began its jobs, in seconds since 1970, by their ids.
    """

    def __init__(self, location: str, name: str, agent: str, **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentloop.service.cli.main", "worker", f"cluster_agents:{agent}", "--name", name],
            env={**os.environ, "AGENTLOOP_DB": location, "PYTHONPATH": f"{HERE}:{HERE.parent}", **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.pid: int = self._process.pid
        self.begun: dict[str, float] = {}
        self._is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            now = time.time()
            if (begins := re.search(r": (\S+) begins", line)) is not None:
                self.begun[begins[1]] = now
            elif "runs" in line:
                self._is_ready.set()

    def __enter__(self) -> Self:
        return self

    def wait_until_ready(self) -> None:
        """Wait until the worker takes work."""
        assert self._is_ready.wait(START), "the worker does not take work"

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()


async def until(is_over: Callable[[], Awaitable[bool]], interval: float = 0.05) -> None:
    """Wait for something that other processes bring about."""
    async with asyncio.timeout(LIMIT):
        while not await is_over():  # noqa: ASYNC110  # it happens in other processes
            await asyncio.sleep(interval)


async def runs_per_second(location: str, workers: int) -> float:
    """Return how many executions of three turns end in a second, from the first start to the last end."""
    with ExitStack() as stack:
        for worker in [stack.enter_context(WorkerProcess(location, f"w{n}", "small")) for n in range(workers)]:
            worker.wait_until_ready()
        async with Cluster(location) as cluster:
            submit = partial(cluster.submit, "cluster_agents:small", "go")
            ids = set(await asyncio.gather(*[submit() for _ in range(RUNS)]))

            async def have_ended() -> bool:
                return len(await cluster.journal.list(status=ExecutionStatus.COMPLETED)) >= RUNS

            await until(have_ended, 0.25)
            heads = [head for head in await cluster.journal.list() if head.execution_id in ids]
    assert len(heads) == RUNS
    begin, end = min(head.started_at for head in heads), max(head.updated_at for head in heads)
    return RUNS / (end - begin).total_seconds()


async def dbos_runs_per_second(url: str, workers: int) -> float:
    """Return how many workflows of the same work end in a second, from the first start to the last end."""
    peers = [Peer("dbos-worker", url) for _ in range(workers)]
    try:
        return await asyncio.to_thread(run_all, url, RUNS, TURNS)
    finally:
        for peer in peers:
            peer.close()


async def measure_workers(server: PostgresServer) -> None:
    """Print the executions per second of one, two and four workers."""
    subjects: dict[str, tuple[str, Callable[[str, int], Awaitable[float]]]] = {
        "agentloop, SQLite": ("SQLite", runs_per_second),
        "agentloop, PostgreSQL": ("PostgreSQL", runs_per_second),
        "DBOS alone, PostgreSQL": ("PostgreSQL", dbos_runs_per_second),
    }
    rates: dict[tuple[str, int], list[float]] = {(name, count): [] for name in subjects for count in WORKERS}
    for _ in range(WORKER_ROUNDS):
        for name, count in product(subjects, WORKERS):
            store, measure = subjects[name]
            with database(store, server) as location:
                rates[name, count].append(await measure(location, count))
    print(f"\nruns per second, {RUNS} executions of {TURNS} turns")
    for name, count in product(subjects, WORKERS):
        values, alone = rates[name, count], rates[name, WORKERS[0]]
        ratios = [value / one for value, one in zip(values, alone, strict=True)]
        print(f"{name:30} {count} workers {spread(values, 1):>24} {spread(ratios):>22} x 1 worker")


# --- recovery -----------------------------------------------------------------------------------------------------------


def calls_in(ledger: Path) -> list[tuple[int, float]]:
    """Return the process and the time of each call."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [(int(line.split()[0]), float(line.split()[1])) for line in lines if len(line.split()) == 3]


async def hand_over_seconds(location: str, ledger: Path) -> list[float]:
    """Return the seconds from the death of a worker to the next call of its execution, for several deaths."""
    seconds = []
    with ExitStack() as stack:

        def start_worker(name: str) -> None:
            worker = stack.enter_context(WorkerProcess(location, name, "slow", **{LEDGER: str(ledger)}))
            worker.wait_until_ready()

        start_worker("w0")
        start_worker("w1")
        async with Cluster(location) as cluster:
            await cluster.submit("cluster_agents:slow", "go")
            for kill in range(KILLS):
                count = len(calls_in(ledger))

                async def has_gone_on(count: int = count) -> bool:
                    return len(calls_in(ledger)) > count + 5

                await until(has_gone_on)
                dead = calls_in(ledger)[-1][0]
                os.kill(dead, signal.SIGKILL)
                killed = time.time()

                async def is_elsewhere(dead: int = dead) -> bool:
                    return calls_in(ledger)[-1][0] != dead

                await until(is_elsewhere, 0.02)
                seconds.append(next(at for pid, at in calls_in(ledger) if at > killed and pid != dead) - killed)
                start_worker(f"w{2 + kill}")
        assert len(calls_in(ledger)) < SLOW_TURNS
    return seconds


async def resume_seconds(location: str) -> float:
    """Return the seconds of the recovery of an execution of 1,000 steps."""
    complete = MemoryJournal()
    execution_id = await run(1_000, complete)
    journal = open_journal(location)
    try:
        await copy_interrupted(complete, execution_id, journal)
        begin = time.perf_counter()
        state = await loop_of(1_000, journal).recover(execution_id)
        assert state.tool_call_count == 1_000
        return time.perf_counter() - begin
    finally:
        await journal.aclose()


async def measure_recovery(server: PostgresServer) -> None:
    """Print how long it takes until an execution goes on."""
    print()
    for store in STORES:
        with database(store, server) as location, TemporaryDirectory() as folder:
            seconds = await hand_over_seconds(location, Path(folder) / "ledger")
        print(f"{store:12} a worker killed, until the next call elsewhere: {spread(seconds)} s")
        resumed = []
        for _ in range(5):
            with database(store, server) as location:
                resumed.append(await resume_seconds(location))
        print(f"{store:12} recovery of an execution of 1,000 steps: {spread(resumed)} s")


# --- idle workers -------------------------------------------------------------------------------------------------------


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    files = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def megabytes(pid: int) -> float:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def add_suspended(location: str, count: int) -> None:
    """Run an execution until it is suspended, and add copies of it."""
    async with Cluster(location) as cluster:
        with WorkerProcess(location, "first", "careful"):
            execution_id = await cluster.submit("cluster_agents:careful", "go")
            state = await cluster.result(execution_id)
            assert state.status.value == "suspended", state.status
        if count:
            copy_suspended(location, execution_id, count)


async def find_milliseconds(location: str, worker: WorkerProcess) -> tuple[list[float], list[float]]:
    """Return the milliseconds from the call that queues an execution to its start by a worker, and to its first record."""
    taken, recorded = [], []
    async with Cluster(location) as cluster, Engine(ClusterDatabase.parse(location)) as engine:
        for number in range(FINDS + 1):
            # Not at a fixed distance from what the worker does once per second.
            await asyncio.sleep(0.3 + 0.037 * (number % 7))
            request = StartRequest(uuid.uuid4().hex, "go")
            job = Job(
                id=request.job_id, kind=JobKind.EXECUTION, agent="cluster_agents:small", payload=request.to_payload()
            )
            begin = time.time()
            await engine.enqueue(job)
            await cluster.result(request.execution_id)
            head = await cluster.journal.head(request.execution_id)
            assert head is not None
            if number:  # the first one opens connections
                taken.append((worker.begun[job.id] - begin) * 1e3)
                recorded.append((head.started_at.timestamp() - begin) * 1e3)
    return taken, recorded


async def idle_store(store: str, server: PostgresServer) -> None:
    with ExitStack() as stack:
        locations = [stack.enter_context(database(store, server)) for _ in range(2)]
        for location, count in zip(locations, (0, SUSPENDED), strict=True):
            await add_suspended(location, count)
        # Both start at the same time: what a worker does less often when it has run for a while must not differ.
        workers = [stack.enter_context(WorkerProcess(location, "idle", "small")) for location in locations]
        for worker in workers:
            worker.wait_until_ready()
        await asyncio.sleep(SETTLE)
        processes = [
            (each.pid, *processes_of(location, server.url)) for each, location in zip(workers, locations, strict=True)
        ]
        shares: list[list[float]] = [[], []]
        for _ in range(WATCHES):
            before = [sum(map(cpu_seconds, pids)) for pids in processes]
            await asyncio.sleep(WATCH / WATCHES)
            for each, pids, cpu in zip(shares, processes, before, strict=True):
                each.append((sum(map(cpu_seconds, pids)) - cpu) / (WATCH / WATCHES) * 100)
        memory = [megabytes(each.pid) for each in workers]
        finds = [await find_milliseconds(*each) for each in zip(locations, workers, strict=True)]
    print_idle(store, shares, memory, finds)


def print_idle(
    store: str, shares: list[list[float]], memory: list[float], finds: list[tuple[list[float], list[float]]]
) -> None:
    ratios = [many / none for none, many in zip(*shares, strict=True)]
    cpu = statistics.fmean(shares[1]) / statistics.fmean(shares[0])
    print(f"\n{store}: an idle worker with {SUSPENDED:,} suspended executions, beside one without")
    print(f"  CPU     {spread(shares[1])} % to {spread(shares[0])} %: x {cpu:.2f}, {spread(ratios)}   <= {IDLE_RATIO}")
    print(f"  memory  {memory[1]:.1f} MiB to {memory[0]:.1f} MiB: x {memory[1] / memory[0]:.2f}   <= {IDLE_RATIO}")
    for name, (taken, recorded) in zip(("without", "with"), finds, strict=True):
        print(
            f"  {name:8} the next work begins after {spread(taken, 1)} ms   <= {FIND_MS:.0f} ms, its first record is of "
            f"{spread(recorded, 1)} ms"
        )


async def measure_idle(server: PostgresServer) -> None:
    """Print what a worker without work costs, and how fast it finds work."""
    for store in STORES:
        await idle_store(store, server)


PARTS: Mapping[str, Callable[[PostgresServer], Awaitable[None]]] = {
    "steps": measure_steps,
    "workers": measure_workers,
    "recovery": measure_recovery,
    "idle": measure_idle,
}


async def main() -> None:
    """Run the parts that the arguments name, or all."""
    # As an exception, so that the workers and the servers end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    server = PostgresServer(fsync="on")
    try:
        for name in sys.argv[1:] or PARTS:
            await PARTS[name](server)
            sys.stdout.flush()
    finally:
        server.close()


if __name__ == "__main__":
    asyncio.run(main())
