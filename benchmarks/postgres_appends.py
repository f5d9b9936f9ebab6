"""Measures a PostgreSQL journal beside a SQLite journal: one append after the other, fifty executions at once, whole steps, work.

python -m benchmarks.postgres_appends, in the folder of the sources; it starts a server of its own on a unix socket, with fsync
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parent))

from journal_appends import head_after, records_of

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable import Journal, PostgresJournal, SqliteJournal
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import InferenceRequest, InferenceResponse
from agentloop.values.steps import ExecutionStatus
from tests.postgres import PostgresServer, new_database, run_sql

APPENDS = 200
STEPS = 40
SUSPENDED = 100_000


@tool(effect="effect")
def book(number: int) -> str:  # noqa: ARG001  # it only counts
    """Book."""
    return "booked"


def model(request: InferenceRequest) -> InferenceResponse | str:
    calls = sum(len(message.exchanges) for message in request.messages)
    return "Done." if calls >= STEPS else InferenceResponse((ToolCall("1", "book", f'{{"number": {calls}}}'),))


async def milliseconds(work: Callable[[], Awaitable[object]], count: int) -> float:
    begin = time.perf_counter()
    await work()
    return (time.perf_counter() - begin) / count * 1e3


async def append_all(journal: Journal, execution_id: str, count: int) -> None:
    chain = records_of(execution_id, count)
    claim = await journal.claim(execution_id)
    for end in range(1, count + 1):
        await journal.append(head_after(chain[:end]), chain[end - 1 : end], claim)
    await claim.release()


async def measure(journal: Journal) -> tuple[float, float, float, float]:
    await append_all(journal, "warm", 20)
    alone = min([await milliseconds(lambda n=n: append_all(journal, f"alone {n}", APPENDS), APPENDS) for n in range(3)])  # type: ignore[misc]
    many = await milliseconds(
        lambda: asyncio.gather(*[append_all(journal, f"many {number}", 20) for number in range(50)]), 1000
    )
    claims = await milliseconds(lambda: claim_often(journal, 100), 100)
    loop = AgentLoop.for_model(ScriptedInference(*[model] * (STEPS + 1)), tools=[book], journal=journal)
    steps = await milliseconds(lambda: loop.execute("Book."), STEPS)
    return alone, many, claims, steps


async def claim_often(journal: Journal, count: int) -> None:
    for number in range(count):
        await (await journal.claim(f"claim {number}")).release()


async def find_work(journal: PostgresJournal, url: str) -> float:
    """Return the milliseconds that the query for work takes beside many suspended executions."""
    run_sql(
        url,
        "INSERT INTO agentloop.executions (execution_id, agent_id, number, status, step_count, record_count, last_hash, input, "
        "forked_from, started_at, updated_at, seal) SELECT 's' || n, 'a' || n, 1, 'suspended', 0, 0, '', '', '', n, n, '' "
        "FROM generate_series(1, %s) AS n",
        SUSPENDED,
    )
    run_sql(url, "ANALYZE")
    chain = records_of("work", 1)
    await append_claimed(journal, head_after(chain), chain)

    async def look() -> None:
        for _ in range(50):
            found = await journal.list(status=ExecutionStatus.IN_PROGRESS, unclaimed=True, limit=10)
            assert found

    return min([await milliseconds(look, 50) for _ in range(3)])


async def main() -> None:
    server = PostgresServer(fsync="on")
    try:
        with new_database(server.url) as url, TemporaryDirectory(dir=Path.cwd()) as folder:
            journal = PostgresJournal(url)
            journals: dict[str, Journal] = {
                "PostgreSQL": journal,
                "SQLite full": SqliteJournal(Path(folder) / "full.db"),
                "SQLite normal": SqliteJournal(Path(folder) / "normal.db", synchronous="normal"),
            }
            print(f"{'ms per':14} {'append':>8} {'50 at once':>10} {'claim':>8} {'step':>8}")
            for name, each in journals.items():
                figures = await measure(each)
                print(f"{name:14} {figures[0]:8.2f} {figures[1]:10.2f} {figures[2]:8.2f} {figures[3]:8.2f}")
            print(f"the next work beside {SUSPENDED} suspended executions: {await find_work(journal, url):.2f} ms")
            for each in journals.values():
                await each.aclose()
    finally:
        server.close()


if __name__ == "__main__":
    asyncio.run(main())
