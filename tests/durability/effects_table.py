"""A table of effects whose processes are killed: `python -m tests.durability.effects_table`.

Executions call tools by `sql_effect`, on SQLite and on PostgreSQL, and by `http_effect`, at a service that breaks off some connections after it
has paid. Their processes are killed by SIGKILL at random times, several times for each execution, and other processes recover them. At
the end each call has to have had its effect once, and none may be in doubt. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
from attrs import define, frozen

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.contracts.tool import Tool
from agentloop.durable import open_journal
from agentloop.errors import ExecutionClaimed, UnknownExecution
from agentloop.events import ToolCallRecovered
from agentloop.toolkits import EFFECTS_TABLE, KeyedService, http_effect, sql_effect
from agentloop.values import ToolStatus
from tests.postgres import PostgresServer, run_sql, url_of_database

_STEPS, _CALLS = 4, 5
_KILLS = 3
"""How often the process of an execution is killed before one may end it."""
_LOST = 0.2
"""The share of requests whose connection breaks off after the payment."""


@frozen
class Place:
    """Where effects happen, and how many there were.

    Attributes:
        name: the name of the line.
        journal: the place of the journal.
        tool: the tool.
        payments: returns what was paid: each number once for each payment.
    """

    name: str
    journal: str
    tool: Tool
    payments: Callable[[], list[int]]


def sql_place(name: str, place: str, journal: str) -> Place:
    """Return a database in which a payment is a row."""
    is_file = name == "SQLite"
    mark = "?" if is_file else "%s"

    def connect() -> Any:
        return sqlite3.connect(place, timeout=60) if is_file else psycopg.connect(place)

    @sql_effect(connect, creates_table=False)
    def pay(connection: Any, number: int) -> int:
        """Pay."""
        connection.cursor().execute(f"INSERT INTO payments VALUES ({mark})", (number,))
        return number

    def payments() -> list[int]:
        with closing(connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT number FROM payments")
            return [number for (number,) in cursor.fetchall()]

    with closing(connect()) as connection:
        for statement in ("CREATE TABLE payments (number INTEGER)", EFFECTS_TABLE):
            connection.cursor().execute(statement)
        connection.commit()
    return Place(name, journal, pay, payments)


@contextmanager
def http_place(folder: Path) -> Iterator[Place]:
    """Start a service in a process of its own, which writes each payment to a file."""
    read, write = os.pipe()
    paid = folder / "paid"
    paid.touch()
    if (server := os.fork()) == 0:
        os.close(read)
        _end_with(_serve(paid, write))
    port = int(os.read(read, 20))

    @http_effect(f"http://127.0.0.1:{port}", allow_private=True)
    async def pay(service: KeyedService, number: int) -> int:
        """Pay."""
        await service.post("/payments", number)
        return number

    try:
        yield Place("HTTP", str(folder / "http.db"), pay, lambda: [int(line) for line in paid.read_text().split()])
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)


async def _serve(paid: Path, started: int) -> None:
    keys, chance = set[str](), random.Random(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            headers = dict(line.split(": ", 1) for line in head.strip().split("\r\n")[1:])
            number = await reader.readexactly(int(headers["content-length"]))
        except (asyncio.IncompleteReadError, ConnectionError):  # the client was killed
            writer.close()
            return
        if headers["idempotency-key"] not in keys:
            keys.add(headers["idempotency-key"])
            with paid.open("a") as file:
                file.write(f"{int(number)}\n")
        if chance.random() >= _LOST:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    os.write(started, str(server.sockets[0].getsockname()[1]).encode())
    await server.serve_forever()


def _end_with(work: Any) -> None:
    """Run a coroutine in a process that was forked, and end it."""
    try:
        asyncio.run(work)
    except BaseException:  # noqa: BLE001  # nothing may return to the code of the parent
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _numbers(execution: int) -> list[list[int]]:
    first = execution * _STEPS * _CALLS
    return [[first + step * _CALLS + place for place in range(_CALLS)] for step in range(_STEPS)]


async def _work(place: Place, execution: int, result: Path, again: Path) -> None:
    """Begin an execution, or go on with it; `again` gets a line for each call that had begun before."""

    def answer(request: Any) -> Any:
        done = sum(message.role == "assistant" for message in request.messages)
        steps = _numbers(execution)
        if done == len(steps):
            return "paid"
        return [ToolCall(f"c{number}", "pay", json.dumps({"number": number})) for number in steps[done]]

    journal = open_journal(place.journal)
    model = ScriptedInference(*[answer] * (_STEPS + 1))
    loop = AgentLoop.for_model(model, tools=[place.tool], journal=journal)
    loop.on(ToolCallRecovered, partial(_note, again))
    name = f"run-{execution}"
    while True:
        try:
            state = await loop.recover(name)
        except UnknownExecution:
            state = await loop.execute("Pay.", execution_id=name)
        except ExecutionClaimed:  # the database has not noticed the death of the last process yet
            await asyncio.sleep(0.01)
            continue
        break
    result.write_text(  # noqa: ASYNC240  # nothing else runs
        json.dumps([execution.status for step in state.steps for execution in step.executions])
    )
    await journal.aclose()


def _note(path: Path, event: ToolCallRecovered) -> None:
    with path.open("a") as file:
        file.write(f"{event.key}\n")


@define
class Row:
    """A line of the table.

    Attributes:
        name: where effects happen.
        effects: the number of effects.
        kills: the number of killed processes.
        begun: the number of calls that had begun in a killed process and had no outcome, so that they ran again.
        lost: the number of calls without an effect.
        repeated: the number of effects beyond one for each call.
        in_doubt: the number of calls that ended in doubt.
        failed: the number of calls that failed.
    """

    name: str
    effects: int = 0
    kills: int = 0
    begun: int = 0
    lost: int = 0
    repeated: int = 0
    in_doubt: int = 0
    failed: int = 0


def try_place(place: Place, executions: int, seed: int, folder: Path) -> Row:
    """Run executions whose processes are killed, and count."""
    row, chance, longest = Row(place.name), random.Random(seed), 0.0
    again = folder / f"{place.name}-again"
    again.touch()
    for execution in range(executions):
        result = folder / f"{place.name}-{execution}"
        for attempt in range(10 * _KILLS):
            began, worker = time.perf_counter(), os.fork()
            if worker == 0:
                _end_with(_work(place, execution, result, again))
            if execution and attempt < _KILLS:
                time.sleep(chance.uniform(0, longest))
                os.kill(worker, signal.SIGKILL)
            _, status = os.waitpid(worker, 0)
            longest = longest or time.perf_counter() - began  # of the first one, which is not killed
            row.kills += os.WIFSIGNALED(status)
            if result.exists():
                break
        statuses = json.loads(result.read_text())
        row.in_doubt += statuses.count(ToolStatus.IN_DOUBT)
        row.failed += sum(status not in {ToolStatus.IN_DOUBT, ToolStatus.SUCCEEDED} for status in statuses)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{place.name}: {execution + 1} of {executions}")
    paid = Counter(place.payments())
    expected = {number for execution in range(executions) for step in _numbers(execution) for number in step}
    row.begun = len(again.read_text().split())
    row.effects, row.lost = sum(paid.values()), len(expected - paid.keys())
    row.repeated = sum(count - 1 for count in paid.values())
    return row


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--executions", type=int, default=34, help="the executions of each line, of 20 effects each")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.stdout.write(
        f"{'':12}{'effects':>9}{'kills':>8}{'begun':>8}{'lost':>7}{'repeated':>10}{'in doubt':>10}{'failed':>8}\n"
    )
    has_failed = False
    with TemporaryDirectory() as name, closing(PostgresServer()) as server:
        folder = Path(name)
        run_sql(server.url, "CREATE DATABASE shop")
        run_sql(server.url, "CREATE DATABASE runs")
        shop, runs = (url_of_database(server.url, each) for each in ("shop", "runs"))
        with http_place(folder) as service:
            places = [
                sql_place("SQLite", str(folder / "shop.db"), str(folder / "runs.db")),
                sql_place("PostgreSQL", shop, runs),
                service,
            ]
            for place in places:
                row = try_place(place, given.executions, given.seed, folder)
                counts = (row.lost, row.repeated, row.in_doubt, row.failed)
                has_failed |= any(counts)
                numbers = f"{row.effects:9}{row.kills:8}{row.begun:8}{row.lost:7}{row.repeated:10}{row.in_doubt:10}{row.failed:8}"
                sys.stdout.write(f"{row.name:12}{numbers}\n")
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
