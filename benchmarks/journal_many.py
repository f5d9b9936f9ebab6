"""What a journal with many suspended executions, and one execution of many steps, cost: time to find work, bytes, and the log of the database.

python -m benchmarks.journal_many [--executions 100000] [--steps 10000] [--stores sqlite,postgres]

PostgreSQL is a server of its own on a unix socket, with fsync; SQLite has `synchronous="normal"`.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from attrs import define, evolve, field

sys.path.insert(0, str(Path(__file__).parent))

from journal_runs import USAGE, look_up

from agentloop import AgentLoop, RequireApproval, ToolCall, ToolCallingDriver
from agentloop.contracts import CanInfer
from agentloop.durable import Journal, MemoryJournal, PostgresJournal, SqliteJournal
from agentloop.durable.chain import chain_record
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import ExecutionHead, InferenceRequest, InferenceResponse, JournalRecord, Text
from agentloop.values.records import FIRST_HASH
from agentloop.values.steps import ExecutionStatus
from tests.postgres import PostgresServer, new_database, run_sql

_START = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH = 250
_TEMPLATE = "execution-000000"
_REPETITIONS = 20
_MEGABYTE = 1e6


@define
class NumberedModel(CanInfer):
    """Calls the tool for a number of turns, and then answers.

    Attributes:
        turns: the number of calls.
        asked: how often it was asked.
        seconds: the processor time at each of these times.
    """

    turns: int
    asked: int = 0
    seconds: list[float] = field(factory=list)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:  # noqa: ARG002  # it counts by itself
        """Call the tool or answer."""
        number, self.asked = self.asked, self.asked + 1
        self.seconds.append(time.process_time())
        if number >= self.turns:
            return InferenceResponse((Text("done"),), usage=USAGE)
        call = ToolCall(f"call_{number}", "look_up", f'{{"number": {number}}}')
        return InferenceResponse((Text("Let me look that up."), call), usage=USAGE)


# --- the databases ------------------------------------------------------------------------------------------------------


@define
class Store:
    """A database.

    Attributes:
        name: its name.
        location: the path of the file, or the URL.
    """

    name: str
    location: str

    def open(self) -> Journal:
        """Open a journal."""
        if self.name == "postgres":
            return PostgresJournal(self.location)
        return SqliteJournal(self.location, synchronous="normal")

    def log_bytes(self) -> int:
        """Return the bytes of the log: of SQLite those on disk now, of PostgreSQL those that were ever written."""
        if self.name == "postgres":
            return int(str(run_sql(self.location, "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")[0][0]))
        path = Path(f"{self.location}-wal")
        return path.stat().st_size if path.exists() else 0

    def bytes(self) -> int:
        """Return the bytes of the tables and indexes, once the log is in them."""
        if self.name == "postgres":
            run_sql(self.location, "CHECKPOINT")
            sizes = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'agentloop'::regnamespace"
            return int(str(run_sql(self.location, sizes)[0][0] or 0))
        with closing(sqlite3.connect(self.location, timeout=30)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(self.location).stat().st_size

    def describe_free(self) -> str:
        """Return what is free for new rows; PostgreSQL is vacuumed for that, which autovacuum does by itself."""
        if self.name == "postgres":
            run_sql(self.location, "VACUUM")
            return f"{self.bytes() / _MEGABYTE:.0f} MB after a VACUUM"
        with closing(sqlite3.connect(self.location, timeout=30)) as connection:
            (pages,), (size,) = (
                connection.execute(f"PRAGMA {name}").fetchone() for name in ("freelist_count", "page_size")
            )
        return f"{pages * size / _MEGABYTE:.0f} MB of these free"


@contextmanager
def open_store(name: str) -> Iterator[Store]:
    """Make an empty database."""
    if name == "postgres":
        server = PostgresServer(fsync="on")
        try:
            with new_database(server.url) as url:
                yield Store(name, url)
        finally:
            server.close()
        return
    with TemporaryDirectory() as folder:
        yield Store(name, str(Path(folder) / "runs.db"))


# --- many executions ----------------------------------------------------------------------------------------------------


async def suspended_template() -> tuple[ExecutionHead, Sequence[JournalRecord]]:
    """Return the head and the records of an execution that waits for the approval of a call."""
    journal = MemoryJournal()
    loop = AgentLoop(
        ToolCallingDriver(inference=NumberedModel(1)),
        [look_up],
        journal=journal,
        interceptors=[RequireApproval(["look_up"])],
    )
    state = await loop.execute("Look it up, please.", execution_id=_TEMPLATE)
    assert state.status is ExecutionStatus.SUSPENDED
    head = await journal.head(_TEMPLATE)
    assert head is not None
    return head, await journal.read(_TEMPLATE)


async def append_copy(journal: Journal, head: ExecutionHead, records: Sequence[JournalRecord], index: int) -> None:
    """Append a copy of an execution under another id."""
    execution_id, previous = f"execution-{index:06}", FIRST_HASH
    copies = list[JournalRecord]()
    for record in records:
        body = record.body.replace(_TEMPLATE, execution_id)
        at = _START + timedelta(seconds=index)
        copies.append(chain_record(execution_id, record.sequence, record.kind, body, at=at, previous_hash=previous))
        previous = copies[-1].hash
    own = evolve(
        head,
        execution_id=execution_id,
        agent_id=f"agent-{index:06}",
        last_hash=previous,
        started_at=_START + timedelta(seconds=index),
        updated_at=_START + timedelta(seconds=index),
    )
    await append_claimed(journal, own, copies)


async def measure(name: str, work: Callable[[], Awaitable[object]]) -> None:
    """Print the median and the longest time of some repetitions."""
    times = list[float]()
    for _ in range(_REPETITIONS):
        started = time.perf_counter()
        await work()
        times.append((time.perf_counter() - started) * 1000)
    print(f"  {name:34} median {statistics.median(times):8.2f} ms   max {max(times):8.2f} ms", flush=True)


async def measure_executions(store: Store, count: int) -> None:
    """Print what many suspended executions cost."""
    head, records = await suspended_template()
    journal = store.open()
    before, cpu, log = time.perf_counter(), time.process_time(), store.log_bytes()
    most_log = 0
    for first in range(0, count, _BATCH):
        await asyncio.gather(
            *[append_copy(journal, head, records, index) for index in range(first, min(first + _BATCH, count))]
        )
        most_log = max(most_log, store.log_bytes() - log)
    seconds, cpu = time.perf_counter() - before, time.process_time() - cpu
    size = store.bytes()
    print(f"{store.name}: {count:,} suspended executions of {len(records)} records")
    print(f"  written in {seconds:.0f} s, {cpu / count * 1e6:.0f} µs of processor time each")
    print(f"  {size / _MEGABYTE:.0f} MB, {size / count:.0f} bytes each; log {most_log / _MEGABYTE:.0f} MB", flush=True)
    cursor = (await journal.list(limit=count // 2))[-1].cursor
    suspended, progress = ExecutionStatus.SUSPENDED, ExecutionStatus.IN_PROGRESS
    middle, deleted = f"execution-{count // 2:06}", iter(range(count))
    await measure("unclaimed work", lambda: journal.list(status=progress, unclaimed=True))
    await measure("suspended, limit=20", lambda: journal.list(status=suspended, limit=20))
    await measure("list(limit=20)", lambda: journal.list(limit=20))
    await measure("list(limit=20, after=middle)", lambda: journal.list(limit=20, after=cursor))
    await measure("list(prefix=…), 10 executions", lambda: journal.list(prefix=middle[:-1]))
    await measure("head of one", lambda: journal.head(middle))
    await measure("state of one", lambda: journal.state(middle))
    await measure("delete one", lambda: journal.delete(f"execution-{next(deleted):06}"))
    await measure("purge, nothing has ended", lambda: journal.purge(_START + timedelta(days=1000)))
    half, before = count // 2, time.perf_counter()
    for first in range(_REPETITIONS, half, _BATCH):
        await asyncio.gather(
            *[journal.delete(f"execution-{index:06}") for index in range(first, min(first + _BATCH, half))]
        )
    each = (time.perf_counter() - before) / (half - _REPETITIONS)
    rate, size = f"{each * 1000:.2f} ms each", store.bytes()
    print(f"  half of them deleted, {rate}: {size / _MEGABYTE:.0f} MB, {store.describe_free()}", flush=True)
    await journal.aclose()


# --- many steps ---------------------------------------------------------------------------------------------------------


async def measure_steps(store: Store, steps: int) -> None:
    """Print what an execution of many steps costs. A step is an inference and a call."""
    journal, model = store.open(), NumberedModel(steps)
    log = store.log_bytes()
    loop = AgentLoop(ToolCallingDriver(inference=model), [look_up], journal=journal, max_steps=None)
    before = time.perf_counter()
    state = await loop.execute("go", execution_id="long")
    seconds = time.perf_counter() - before
    assert state.tool_call_count == steps
    grown = store.log_bytes() - log
    tenth = steps // 10
    early, late = (
        statistics.median([model.seconds[at + 1] - model.seconds[at] for at in places]) * 1e6
        for places in (range(tenth), range(steps - tenth, steps))
    )
    size = store.bytes()
    print(f"{store.name}: an execution of {steps:,} steps")
    print(f"  {seconds:.1f} s; processor time of a step {early:.0f} µs in the first tenth, {late:.0f} µs in the last")
    print(f"  {size / _MEGABYTE:.1f} MB, {size / steps:.0f} bytes a step; log {grown / _MEGABYTE:.1f} MB")
    for name, work in (
        ("its state is read", lambda: journal.state("long")),
        ("it is verified", lambda: journal.verify("long")),
        ("it is recovered, having ended", lambda: loop.recover("long")),
    ):
        before, cpu = time.perf_counter(), time.process_time()
        await work()
        print(
            f"  {name} in {time.process_time() - cpu:.2f} s of processor time, {time.perf_counter() - before:.2f} s",
            flush=True,
        )
    await journal.aclose()


async def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executions", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--stores", default="sqlite,postgres")
    given = parser.parse_args()
    for name in given.stores.split(","):
        for work, count in ((measure_steps, given.steps), (measure_executions, given.executions)):
            if count:
                with open_store(name) as store:
                    await work(store, count)


if __name__ == "__main__":
    asyncio.run(main())
