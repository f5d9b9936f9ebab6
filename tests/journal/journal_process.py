"""A process that uses a journal: `journal_process.py path what …`; it says a line for each thing that it has done.

append ID N: append records one by one, for ever, N to an append.
race ID COUNT: append records wherever the execution ends, until that many are there; say which are its own.
claim ID: claim an execution and keep it, until a line comes.
lock: begin to write, and go no further until a line comes.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys

from agentloop.errors import JournalConflict
from agentloop.journal import SqliteJournal
from tests.journal.records import head_after, records_of


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def append(journal: SqliteJournal, execution_id: str, group: int) -> None:
    records = list(await journal.read(execution_id))
    say("ready")
    while True:
        at = len(records)
        bodies = [f'{{"text": "{"é" * (number % 7) * 50}{number}"}}' for number in range(at + 1, at + 1 + group)]
        new = records_of(execution_id, *bodies, after=records)
        await journal.append(head_after(new), new)
        records += new
        say(len(records))


async def race(journal: SqliteJournal, execution_id: str, count: int, name: str) -> None:
    say("ready")
    sys.stdin.readline()
    while len(records := list(await journal.read(execution_id))) < count:
        new = records_of(execution_id, f'{{"by": "{name}"}}', after=records)
        try:
            await journal.append(head_after(new), new)
        except JournalConflict:
            continue
        say(new[0].sequence)
    await journal.aclose()


async def claim(journal: SqliteJournal, execution_id: str) -> None:
    try:
        await journal.claim(execution_id)
    except JournalConflict as error:
        say(error)
        return
    say("claimed")
    sys.stdin.readline()


def lock(path: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    say("locked")
    sys.stdin.readline()
    connection.close()


def main(path: str, what: str, *given: str) -> None:
    if what == "lock":
        lock(path)
        return
    journal = SqliteJournal(path, synchronous="normal")
    if what == "append":
        asyncio.run(append(journal, given[0], int(given[1])))
    elif what == "race":
        asyncio.run(race(journal, given[0], int(given[1]), given[2]))
    else:
        asyncio.run(claim(journal, given[0]))


if __name__ == "__main__":
    main(*sys.argv[1:])
