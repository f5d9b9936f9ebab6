"""Which workers live, with PostgreSQL: advisory locks and notifications."""

from __future__ import annotations

import hashlib
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from attrs import evolve

from agentloop.service.cluster.worker_locks import WORK_CHANNEL, WorkerLocks, WorkSignal
from agentloop.values.jobs import WorkerNote

_CREATE = """
SELECT pg_advisory_xact_lock(hashtextextended('agentloop_cluster', 0));
CREATE SCHEMA IF NOT EXISTS agentloop_cluster;
CREATE TABLE IF NOT EXISTS agentloop_cluster.workers (name text PRIMARY KEY, lock bigint NOT NULL, note text NOT NULL)
"""
# The two halves of the number of a lock are columns of their own.
_LIVE = """
SELECT note FROM agentloop_cluster.workers JOIN pg_locks
ON locktype = 'advisory' AND objsubid = 1 AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND classid::bigint = (lock >> 32) & 4294967295 AND objid::bigint = lock & 4294967295
ORDER BY name
"""
_KEEPALIVE: Any = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class PostgresLocks(WorkerLocks):
    """An advisory lock for each worker on a connection of its own; the server releases it when the connection ends.

    Args:
        url: the URL of the database. It must not lead through a pooler in transaction mode.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def connect(self) -> bool:
        """Check the connection, or connect again."""
        if self._connection is not None:
            try:
                self._connection.execute("SELECT 1")
            except psycopg.Error:
                self.close()
                raise
            return False
        connection = _connect(self._url)
        try:
            with connection.transaction():
                connection.execute(_CREATE)
        except psycopg.Error:
            connection.close()
            raise
        self._connection = connection
        return True

    @property
    def _open(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise psycopg.OperationalError("the connection to the database is closed")
        return self._connection

    def take(self, name: str) -> bool:
        """Take the advisory lock of a worker."""
        row = self._open.execute("SELECT pg_try_advisory_lock(%s)", (_number_of(name),)).fetchone()
        return row is not None and bool(row[0])

    def drop(self, name: str) -> None:
        """Release the advisory lock of a worker."""
        self._open.execute("SELECT pg_advisory_unlock(%s)", (_number_of(name),))

    def write_note(self, note: WorkerNote) -> None:
        """Store the note in the table of workers, with the start of the server."""
        note = evolve(note, server=self._start_of_server())
        self._open.execute(
            "INSERT INTO agentloop_cluster.workers VALUES (%s, %s, %s) "
            "ON CONFLICT (name) DO UPDATE SET note = excluded.note",
            (note.name, _number_of(note.name), note.to_text()),
        )

    def erase_note(self, name: str) -> None:
        """Remove the note from the table of workers."""
        self._open.execute("DELETE FROM agentloop_cluster.workers WHERE name = %s", (name,))

    def has_missed_restart(self, name: str) -> bool:
        """Compare the start of the server in the note with the present one: both are of one clock, whatever the workers' show."""
        rows = self._open.execute("SELECT note FROM agentloop_cluster.workers WHERE name = %s", (name,)).fetchall()
        notes = [note for (text,) in rows for note in [WorkerNote.from_text(text)] if note is not None]
        return any(note.server != self._start_of_server() for note in notes)

    def _start_of_server(self) -> str:
        row = self._open.execute("SELECT extract(epoch FROM pg_postmaster_start_time())::text").fetchone()
        return "" if row is None else str(row[0])

    def live_notes(self) -> Sequence[WorkerNote]:
        """Return the notes of the workers whose advisory locks are held."""
        found = [WorkerNote.from_text(note) for (note,) in self._open.execute(_LIVE)]
        return [note for note in found if note is not None]

    def close(self) -> None:
        """End the connection, and with it the locks."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class NotifySignal(WorkSignal):
    """Listens for notifications of PostgreSQL. Without a connection, it only waits.

    Args:
        url: the URL of the database. It must not lead through a pooler in transaction mode.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._receiver, self._sender = socket.socketpair()
        self._sender.settimeout(0)

    def wait(self, timeout: float) -> None:
        """Wait for a notification."""
        try:
            connection = self._connection or self._listen()
            ready, _, _ = select.select([self._receiver.fileno(), connection.fileno()], [], [], timeout)
            if connection.fileno() in ready:
                for _ in connection.notifies(timeout=0):
                    pass
        except psycopg.Error:
            self._disconnect()
            ready, _, _ = select.select([self._receiver.fileno()], [], [], timeout)
        if self._receiver.fileno() in ready:
            self._receiver.recv(_MAX_WAKES)

    def _listen(self) -> psycopg.Connection[tuple[Any, ...]]:
        self._connection = _connect(self._url)
        self._connection.execute(f"LISTEN {WORK_CHANNEL}")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def wake(self) -> None:
        """End a wait."""
        with suppress(BlockingIOError):  # thousands of wakes are waiting already
            self._sender.send(b".")

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()
        self._receiver.close()
        self._sender.close()


_MAX_WAKES = 4096


def _connect(url: str) -> psycopg.Connection[tuple[Any, ...]]:
    """Open a connection that notices within seconds when the network is cut."""
    return psycopg.connect(url, autocommit=True, connect_timeout=5, application_name="agentloop worker", **_KEEPALIVE)


def _number_of(name: str) -> int:
    """Return the number of the advisory lock of a worker."""
    digest = hashlib.sha256(f"agentloop worker {name}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
