"""Measures appends to a SQLite journal, in groups and alone, and the size of the records on disk.

python benchmarks/journal.py
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from attrs import frozen
from measuring import Row, micros, show

from agentloop.durable import SqliteJournal
from agentloop.durable.chain import chain_record
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.json import format_json
from agentloop.values.records import FIRST_HASH, ExecutionHead, JournalRecord, RecordKind
from agentloop.values.steps import ExecutionStatus

Synchronous = Literal["full", "normal"]

BUDGET = 150.0
"""Microseconds per record in groups of 4 to 100, without the time that the disk needs for a durable commit of the group."""
GROUPS = (4, 16, 100)
START = datetime(2026, 1, 1, tzinfo=UTC)
ROUNDS = 3


@frozen
class Cost:
    """The cost of appends.

    Attributes:
        wall: seconds per record.
        cpu: CPU seconds per record, of all threads.
        size: bytes on disk per record.
    """

    wall: float
    cpu: float
    size: float


def body_of(words: int) -> str:
    return format_json({"call": "book_table", "text": "a table by the river " * words}).decode()


BODY = body_of(45)
BODIES = [body_of(words) for words in range(10, 80)]
"""Of many lengths: a page of the file holds several records, and of some lengths hardly more than one."""


def records_of(execution_id: str, count: int, bodies: Sequence[str] = (BODY,)) -> list[JournalRecord]:
    records: list[JournalRecord] = []
    previous = FIRST_HASH
    for sequence, body in zip(range(1, count + 1), cycle(bodies), strict=False):
        at = START + timedelta(seconds=sequence)
        record = chain_record(execution_id, sequence, RecordKind.CALL_OUTCOME, body, at=at, previous_hash=previous)
        records.append(record)
        previous = record.hash
    return records


def head_after(records: Sequence[JournalRecord]) -> ExecutionHead:
    last = records[-1]
    return ExecutionHead(
        execution_id=last.execution_id,
        agent_id=f"agent of {last.execution_id}",
        number=1,
        status=ExecutionStatus.IN_PROGRESS,
        record_count=last.sequence,
        last_hash=last.hash,
        started_at=START,
        updated_at=last.at,
    )


async def append_cost(
    folder: str, synchronous: Synchronous, group: int, chains: Sequence[Sequence[JournalRecord]]
) -> Cost:
    """Append chains of records in groups, all executions concurrently, and return the best of several rounds."""
    total = sum(len(chain) for chain in chains)
    groups = [
        [(head_after(chain[: at + group]), chain[at : at + group]) for at in range(0, len(chain), group)]
        for chain in chains
    ]
    best = Cost(float("inf"), float("inf"), 0)
    for number in range(ROUNDS):
        name = f"{chains[0][0].execution_id} {synchronous} {group} {number}.db"
        journal = SqliteJournal(Path(folder) / name, synchronous=synchronous)
        await journal.head("nothing yet")
        wall, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[_append_groups(journal, of_execution) for of_execution in groups])
        wall, cpu = (time.perf_counter() - wall) / total, (time.process_time() - cpu) / total
        await journal.aclose()
        best = Cost(min(best.wall, wall), min(best.cpu, cpu), journal.path.stat().st_size / total)
    return best


async def _append_groups(
    journal: SqliteJournal, groups: Sequence[tuple[ExecutionHead, Sequence[JournalRecord]]]
) -> None:
    claim = await journal.claim(groups[0][0].execution_id)
    for head, records in groups:
        await journal.append(head, records, claim)
    await claim.release()


def disk_wait(folder: str, times: int = 50) -> float:
    """Return the median seconds of a durable write of 4 KiB."""
    waits = []
    file = os.open(Path(folder) / "wait", os.O_CREAT | os.O_WRONLY)
    for _ in range(times):
        os.write(file, b"x" * 4096)
        begin = time.perf_counter()
        os.fdatasync(file)
        waits.append(time.perf_counter() - begin)
    os.close(file)
    return sorted(waits)[times // 2]


def _row(what: str, cost: Cost, max_micros: float) -> Row:
    return Row(
        what,
        f"{cost.wall * 1e6:6.0f} µs wall, {cost.cpu * 1e6:4.0f} µs CPU",
        f"<= {max_micros:.0f} µs wall",
        cost.wall * 1e6 <= max_micros,
    )


async def appends(folder: str) -> list[Row]:
    """Measure appends of one execution, and of fifty at once."""
    rows = []
    policies: tuple[Synchronous, ...] = ("normal", "full")
    for synchronous in policies:
        wait = disk_wait(folder) * 1e6 if synchronous == "full" else 0.0
        waited = f", the disk takes {wait:.0f} µs" if wait else ""
        for group in (1, *GROUPS):
            chain = records_of("one", 2000 if synchronous == "normal" else 50 * max(group, 4))
            max_micros = (BUDGET if group > 1 else 3 * BUDGET) + 2 * wait / group
            cost = await append_cost(folder, synchronous, group, [chain])
            rows.append(_row(f"synchronous={synchronous}{waited}: groups of {group}", cost, max_micros))
        chains = [records_of(f"execution {number}", 40) for number in range(50)]
        cost = await append_cost(folder, synchronous, 4, chains)
        rows.append(_row(f"synchronous={synchronous}{waited}: groups of 4, 50 executions at once", cost, BUDGET))
    return rows


async def sizes(folder: str) -> list[Row]:
    """Measure the size on disk of short records, and of a long result that three records of each call contain."""
    short = await append_cost(folder, "normal", 16, [records_of("short", 2100, BODIES)])
    ratio = short.size / (sum(map(len, BODIES)) / len(BODIES))
    rows = [Row("size of a record", f"{short.size:.0f} bytes = {ratio:.2f} x its body", "<= 1.6 x", ratio <= 1.6)]
    result = os.urandom(32 * 1024).hex()
    body = format_json({"call": "read_file", "result": result}).decode()
    long = await append_cost(folder, "normal", 3, [records_of("long", 60, [body])])
    share = long.size / len(body)
    rows.append(Row("size of a 64 KB result in 60 records", f"{share:.3f} x its body", "<= 0.1 x", share <= 0.1))
    return rows


def hashing() -> list[Row]:
    """Measure the creation of a record before it is appended."""
    cost = micros(lambda: records_of("one", 1), times=2000)
    return [Row(f"creating and hashing a record ({len(BODY)} bytes)", f"{cost:.1f} µs", "<= 30 µs", cost <= 30)]


async def listing(folder: str, count: int = 100_000) -> list[Row]:
    """Measure listing the newest of many executions."""
    journal = SqliteJournal(Path(folder) / "many.db", synchronous="normal")
    for begin in range(0, count, 1000):
        chains = [records_of(f"execution {number}", 1, ["{}"]) for number in range(begin, begin + 1000)]
        await asyncio.gather(*[append_claimed(journal, head_after(chain), chain) for chain in chains])
    best = float("inf")
    for _ in range(ROUNDS):
        begin_at = time.perf_counter()
        assert len(await journal.list(status=ExecutionStatus.IN_PROGRESS, limit=50)) == 50
        best = min(best, time.perf_counter() - begin_at)
    await journal.aclose()
    return [Row(f"the newest 50 of {count} executions", f"{best * 1e3:.2f} ms", "<= 5 ms", best <= 5e-3)]


async def main() -> None:
    with TemporaryDirectory(prefix="journal-benchmark-", dir=Path.cwd()) as folder:
        show("Creating records", hashing())
        show("Appending records of 1 KB, per record", await appends(folder))
        show("Size on disk", await sizes(folder))
        show("Listing", await listing(folder))


if __name__ == "__main__":
    asyncio.run(main())
