"""Measures journaled executions: recovery, CPU per turn against no journal, size on disk, and time to the first record.

python benchmarks/journal_runs.py [--peers]

With `--peers`, the CPU and the bytes of a step and of a short run beside LangGraph's SQLite saver, DBOS steps and pydantic-ai's DBOS agents
on SQLite; `BENCHMARK_PEERS` names the Python that has them.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from attrs import frozen
from measuring import Peer, Row, cpu_each, show

from agentloop import AgentLoop, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.testing.journal_bench import append_claimed
from agentloop.values import ExecutionHead, InferenceRequest, InferenceResponse, JournalRecord, RecordKind, Text, Usage

RECOVERY_SECONDS = 0.5
GROWTH = 1.1
MAX_RATIO = {"memory": 2.75, "sqlite": 4.75}
FIRST_RECORD_MS = 60
NUMBERS = count()
USAGE = Usage(input_tokens=1_000, output_tokens=20)


@frozen
class CountingModel(CanInfer):
    """Calls the tool for a number of turns, and then answers.

    Attributes:
        turns: the number of calls.
    """

    turns: int

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        """Count the previous turns, and call the tool or answer."""
        number = sum(message.role == "assistant" for message in request.messages)
        if number >= self.turns:
            return InferenceResponse((Text("done"),), usage=USAGE)
        call = ToolCall(f"call_{number}", "look_up", f'{{"number": {number}}}')
        return InferenceResponse((Text("Let me look that up."), call), usage=USAGE)


class SignalingJournal(SqliteJournal):
    """A journal that signals when a record is on disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.appended = asyncio.Event()

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append, and set the event."""
        await super().append(head, records, claim)
        self.appended.set()


@tool(effect="pure")
async def look_up(number: int) -> dict[str, object]:
    """Look something up."""
    return {"number": number, "found": "a text of some length, as results of tools have it, " * 6}


def loop_of(turns: int, journal: CanJournal | None) -> AgentLoop:
    """Return a loop whose agent calls a tool this many times."""
    return AgentLoop(ToolCallingDriver(inference=CountingModel(turns)), [look_up], journal=journal, max_steps=None)


async def run(turns: int, journal: CanJournal | None) -> str:
    """Run an execution, and return its id."""
    execution_id = f"run_{next(NUMBERS)}"
    state = await loop_of(turns, journal).execute("go", execution_id=execution_id)
    assert state.tool_call_count == turns
    return execution_id


async def copy_interrupted(journal: CanJournal, execution_id: str, to: CanJournal) -> None:
    """Copy an execution as if its process had crashed before its last step was complete."""
    head, records = await journal.head(execution_id), list(await journal.read(execution_id))
    assert head is not None
    while records[-1].kind is not RecordKind.CALL_INTENT:
        records.pop()
    interrupted = ExecutionHead(
        execution_id=execution_id,
        agent_id=head.agent_id,
        number=head.number,
        status="in_progress",
        record_count=len(records),
        last_hash=records[-1].hash,
        started_at=head.started_at,
        updated_at=records[-1].at,
    )
    await append_claimed(to, interrupted, records)


async def recovery(folder: Path, steps: int) -> float:
    """Return the seconds of the recovery of an execution with this many steps from a file, the best of several rounds."""
    complete = MemoryJournal()
    execution_id = await run(steps, complete)
    best = float("inf")
    for at in range(5):
        journal = SqliteJournal(folder / f"recovery_{at}.db")
        await copy_interrupted(complete, execution_id, journal)
        before = time.perf_counter()
        state = await loop_of(steps, journal).recover(execution_id)
        best = min(best, time.perf_counter() - before)
        assert state.tool_call_count == steps
        await journal.aclose()
    return best


async def recovery_row(folder: Path) -> Row:
    """Measure recovery."""
    elapsed = await recovery(folder, 1_000)
    return Row(
        "recovery of an execution of 1,000 steps",
        f"{elapsed:.3f} s",
        f"<= {RECOVERY_SECONDS} s",
        elapsed <= RECOVERY_SECONDS,
    )


async def ratio_rows(folder: Path, turns: int) -> list[Row]:
    """Measure the CPU per turn with a journal against no journal."""
    journals: dict[str, Callable[[], CanJournal]] = {
        "memory": MemoryJournal,
        "sqlite": lambda: SqliteJournal(folder / f"ratio_{turns}.db", synchronous="normal"),
    }
    rows = []
    for name, create in journals.items():
        journal = create()
        without, with_journal = await cpu_each([lambda: run(turns, None), lambda: run(turns, journal)], turns, 15)  # noqa: B023  # awaited here
        await journal.aclose()
        ratio = with_journal / without
        formatted = f"{with_journal * 1e6:6.0f} µs = {ratio:.2f} x without ({without * 1e6:.0f} µs)"
        rows.append(
            Row(
                f"CPU per turn, {turns} turns, {name}",
                formatted,
                f"<= {MAX_RATIO[name]:.2f} x",
                ratio <= MAX_RATIO[name],
            )
        )
    return rows


async def size_of(folder: Path, steps: int) -> tuple[float, float]:
    """Return the bytes per step on disk, and of the record bodies alone."""
    path = folder / f"size_{steps}.db"
    journal = SqliteJournal(path)
    execution_id = await run(steps, journal)
    records = await journal.read(execution_id)
    await journal.aclose()
    return path.stat().st_size / steps, sum(len(record.body) for record in records) / steps


async def size_rows(folder: Path) -> list[Row]:
    """Measure the size per step, which does not grow with the length of the execution."""
    first, rows = 0.0, []
    for steps in (50, 200, 1_000):
        on_disk, bodies = await size_of(folder, steps)
        first = first or bodies
        growth = bodies / first
        formatted = f"{bodies:6.0f} bytes of records, {on_disk:.0f} on disk"
        rows.append(Row(f"size per step, {steps} steps", formatted, f"<= {GROWTH} x of 50 steps", growth <= GROWTH))
    return rows


async def first_record_row(folder: Path) -> Row:
    """Measure the time until the first record of an execution is on disk, in a new file."""
    best = float("inf")
    for at in range(10):
        journal = SignalingJournal(folder / f"first_{at}.db")
        before = time.perf_counter()
        running = asyncio.create_task(run(1, journal))
        await journal.appended.wait()
        best = min(best, time.perf_counter() - before)
        await running
        await journal.aclose()
    elapsed = best * 1000
    return Row(
        "the first record on disk, new file",
        f"{elapsed:.1f} ms",
        f"<= {FIRST_RECORD_MS} ms",
        elapsed <= FIRST_RECORD_MS,
    )


# --- peers --------------------------------------------------------------------------------------------------------------

PEER_ROUNDS = 7
PEER_CASES: Mapping[str, tuple[int, int]] = {"step": (3, 20), "run": (15, 1)}
"""What a row is about, with the number of executions in a round, and of steps in each of them."""
Runner = Callable[[int, int], Awaitable[tuple[float, float]]]


def own_runner(journal: CanJournal | None) -> Runner:
    """Return what runs executions in this process, and returns the wall and CPU seconds that they took."""

    async def run_executions(executions: int, turns: int) -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(executions):
            await run(turns, journal)
        return time.perf_counter() - wall, time.process_time() - cpu

    return run_executions


async def open_runners(folder: Path, stack: AsyncExitStack) -> dict[str, tuple[Path, Runner]]:
    """Return the file, which a subject without a store does not make, and the runner of each subject."""
    runners: dict[str, tuple[Path, Runner]] = {"agentloop, no journal": (folder / "none", own_runner(None))}
    levels: tuple[Literal["normal", "full"], ...] = ("normal", "full")
    for synchronous in levels:
        journal = SqliteJournal(folder / f"{synchronous}.db", synchronous=synchronous)
        stack.push_async_callback(journal.aclose)
        runners[f"agentloop, SqliteJournal {synchronous}"] = (journal.path, own_runner(journal))
    for name, subject, file in (
        ("LangGraph, no saver", "langgraph", ""),
        ("LangGraph, AsyncSqliteSaver", "langgraph", "langgraph.db"),
        ("DBOS steps", "dbos", "dbos.db"),
        ("pydantic-ai, not durable", "pydantic-ai", ""),
        ("pydantic-ai, DBOSDurability", "pydantic-ai", "pydantic.db"),
    ):
        peer = Peer(subject, f"sqlite:///{folder / file}" if file else "")
        stack.callback(peer.close)
        runners[name] = (folder / (file or "none"), peer.run)
    return runners


def bytes_at(path: Path) -> int:
    """Return the size of a SQLite file after its log was copied into it."""
    if not path.exists():
        return 0
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


async def print_peers(folder: Path) -> None:
    """Print the CPU and the bytes of each subject. A step is an inference and a call; the model takes no time."""
    async with AsyncExitStack() as stack:
        runners = await open_runners(folder, stack)
        for unit, (executions, turns) in PEER_CASES.items():
            costs: dict[str, list[tuple[float, float]]] = {name: [] for name in runners}
            for _, runner in runners.values():
                await runner(1, turns)
            before = {name: bytes_at(path) for name, (path, _) in runners.items()}
            for _ in range(PEER_ROUNDS):
                for name, (_, runner) in runners.items():
                    costs[name].append(await runner(executions, turns))
            sizes = {name: bytes_at(path) - before[name] for name, (path, _) in runners.items()}
            _print_case(unit, costs, sizes)


def _print_case(unit: str, costs: Mapping[str, Sequence[tuple[float, float]]], sizes: Mapping[str, int]) -> None:
    executions, turns = PEER_CASES[unit]
    count = executions * turns
    print(f"\nExecutions of {turns} steps; median of {PEER_ROUNDS} rounds (lowest to highest)\n")
    print(f"| | CPU per {unit} | x SqliteJournal normal | wall per {unit} | bytes per {unit} |")
    print("| --- | ---: | ---: | ---: | ---: |")
    ours = [cpu for _, cpu in costs["agentloop, SqliteJournal normal"]]
    for name, rounds in costs.items():
        wall, cpu = ([each[index] / count * 1e6 for each in rounds] for index in (0, 1))
        ratios = [each / base for (_, each), base in zip(rounds, ours, strict=True)]
        cells = [f"{_range_of(cpu, 0)} µs", _range_of(ratios, 2), f"{_range_of(wall, 0)} µs"]
        print(f"| {name} | {' | '.join(cells)} | {sizes[name] / count / PEER_ROUNDS:.0f} |")


def _range_of(values: Sequence[float], digits: int) -> str:
    """Return the median, and the lowest and the highest value."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


async def main() -> None:
    """Run all measurements."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if "--peers" in sys.argv:
            await print_peers(folder)
            return
        rows = [await recovery_row(folder)]
        for turns in (10, 200):
            rows += await ratio_rows(folder, turns)
        rows += await size_rows(folder)
        rows.append(await first_record_row(folder))
    show("journaled executions", rows)


if __name__ == "__main__":
    asyncio.run(main())
