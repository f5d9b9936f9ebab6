"""A process that uses a journal: `journal_process.py PATH COMMAND …`; it prints a line after each operation.

append ID N: append records forever, N at a time.
race ID COUNT NAME: append records at the end of an execution until it has COUNT records; print the numbers of the own ones.
claim ID: claim an execution and hold the claim until a line is read.
hold ID SECONDS: the same on PostgreSQL with this session_timeout, until the claim is lost; print why.
lock: start writing, and hold the lock until a line is read.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from agentloop.durable import Journal, SqliteJournal, open_journal
from agentloop.errors import JournalConflict
from agentloop.testing.journal_bench import append_claimed
from tests.durable.records import make_head, make_records


def print_line(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def append(journal: Journal, execution_id: str, group_size: int) -> None:
    records = list(await journal.read(execution_id))
    print_line("ready")
    while True:
        first = len(records) + 1
        bodies = [f'{{"text": "{"é" * (number % 7) * 50}{number}"}}' for number in range(first, first + group_size)]
        group = make_records(execution_id, *bodies, after=records)
        await append_claimed(journal, make_head(group), group)
        records += group
        print_line(len(records))


async def race(journal: Journal, execution_id: str, count: int, name: str) -> None:
    print_line("ready")
    sys.stdin.readline()
    while len(records := list(await journal.read(execution_id))) < count:
        group = make_records(execution_id, f'{{"by": "{name}"}}', after=records)
        try:
            await append_claimed(journal, make_head(group), group)
        except JournalConflict:
            continue
        print_line(group[0].sequence)
    await journal.aclose()


async def claim(journal: Journal, execution_id: str) -> None:
    try:
        await journal.claim(execution_id)
    except JournalConflict as error:
        print_line(error)
        return
    print_line("claimed")
    sys.stdin.readline()


async def hold(path: str, execution_id: str, session_timeout: float) -> None:
    held = await open_journal(path, session_timeout=session_timeout).claim(execution_id)
    print_line("claimed")
    print_line(await held.lost())


def lock(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print_line("locked")
    sys.stdin.readline()
    connection.close()


def main(path: str, command: str, *arguments: str) -> None:
    if command == "lock":
        lock(path)
        return
    if command == "hold":
        asyncio.run(hold(path, arguments[0], float(arguments[1])))
        return
    journal = open_journal(path) if "://" in path else SqliteJournal(path, synchronous="normal")
    if command == "append":
        asyncio.run(append(journal, arguments[0], int(arguments[1])))
    elif command == "race":
        asyncio.run(race(journal, arguments[0], int(arguments[1]), arguments[2]))
    else:
        asyncio.run(claim(journal, arguments[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
