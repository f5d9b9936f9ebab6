"""How long it takes to find work among many suspended executions in one SQLite file, in milliseconds."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from agentloop.durable.chain import chain_record
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.records import FIRST_HASH, ExecutionHead, RecordKind
from agentloop.values.steps import ExecutionStatus

_START = datetime(2026, 1, 1, tzinfo=UTC)
_BATCH = 250


async def _append(journal: SqliteJournal, execution_id: str, index: int, status: ExecutionStatus) -> None:
    at = _START + timedelta(seconds=index)
    record = chain_record(execution_id, 1, RecordKind.EXECUTION_STARTED, "{}", at=at, previous_hash=FIRST_HASH)
    head = ExecutionHead(
        execution_id=execution_id,
        agent_id=f"agent-{index}",
        number=1,
        status=status,
        record_count=1,
        last_hash=record.hash,
        started_at=at,
        updated_at=at,
    )
    await append_claimed(journal, head, [record])


async def _measure(name: str, work: Callable[[], Awaitable[object]], repetitions: int = 20) -> None:
    times = list[float]()
    for _ in range(repetitions):
        started = time.perf_counter()
        await work()
        times.append((time.perf_counter() - started) * 1000)
    print(f"{name:32} median {statistics.median(times):7.2f} ms   max {max(times):7.2f} ms")


async def _main(count: int) -> None:
    with TemporaryDirectory() as folder:
        journal = SqliteJournal(Path(folder) / "runs.db", synchronous="normal")
        for first in range(0, count, _BATCH):
            batch = range(first, min(first + _BATCH, count))
            await asyncio.gather(
                *[_append(journal, f"execution-{index}", index, ExecutionStatus.SUSPENDED) for index in batch]
            )
        for index in range(40):
            status = ExecutionStatus.COMPLETED if index % 2 else ExecutionStatus.IN_PROGRESS
            await _append(journal, f"other-{index}", count + index, status)
        cursor = (await journal.list(limit=count // 2))[-1].cursor
        deleted = iter(range(count))
        print(f"{count:,} suspended executions")
        progress = ExecutionStatus.IN_PROGRESS
        await _measure("unclaimed work", lambda: journal.list(status=progress, unclaimed=True))
        await _measure("list(limit=20)", lambda: journal.list(limit=20))
        await _measure("list(limit=20, after=middle)", lambda: journal.list(limit=20, after=cursor))
        await _measure("conversations(limit=20)", lambda: journal.conversations(limit=20))
        await _measure("delete", lambda: journal.delete(f"execution-{next(deleted)}"))
        await _measure("purge", lambda: journal.purge(_START + timedelta(days=1000)))
        await journal.aclose()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000))
