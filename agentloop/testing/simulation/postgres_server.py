"""A PostgreSQL server in memory, for the statements of a journal: sessions, transactions, locks, time limits, restarts.

Transactions are those of READ COMMITTED: a statement sees what is committed when it runs, and what its own transaction has written. Rows that
are written stay locked until their transaction ends; a statement that needs one of them waits, and then runs again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

from attrs import define, field

from agentloop.durable.postgres.connections import StatementFailed

Row: TypeAlias = tuple[Any, ...]
Stored: TypeAlias = Mapping[str, Any]
"""A row of a table, by the names of its columns."""
Values: TypeAlias = Mapping[str, Any]
Lock: TypeAlias = tuple[Hashable, ...]

TABLES = ("meta", "executions", "records", "spills", "prefixes", "claims", "commands", "accounts", "grants")
_LOOK_SECONDS = 0.01
"""How often a statement that waits for a lock looks whether it is free."""
_DEADLOCK_SECONDS = 1.0
"""How long a statement waits before it looks whether others wait for it: the default of `deadlock_timeout`."""


class Blocked(Exception):
    """A statement needs a lock that other transactions hold.

    Args:
        holders: the backends that hold it.
        outcome: the SQLSTATE with which the statement fails when the lock is free; empty if it runs again then.
    """

    def __init__(self, holders: Collection[Backend], outcome: str = "") -> None:
        super().__init__("a lock is held")
        self.holders: frozenset[Backend] = frozenset(holders)
        self.outcome: str = outcome


@define(eq=False, repr=False)
class SimulatedPostgres:
    """The server.

    Attributes:
        clock: returns its time, in seconds.
        function_of: returns what runs the statements of an SQL text.
        on_deleted: called with the ids of the executions that a transaction has deleted, when it has ended.
        deliver: passes what a backend has to tell, to the connection of its client.
        tables: the rows that are committed, by table and key.
        started_at: when it has started.
        down_until: until when it takes no connections.
        read_only_until: until when it takes no writes, as a standby that is about to take over.
    """

    clock: Callable[[], float]
    function_of: Callable[[str], StatementFunction]
    on_deleted: Callable[[Collection[str]], None] = lambda _: None
    deliver: Callable[[Backend], None] = lambda _: None
    tables: dict[str, dict[Hashable, Stored]] = field(factory=lambda: {name: {} for name in TABLES}, init=False)
    started_at: float = field(default=-3600.0, init=False)
    down_until: float = field(default=-1.0, init=False)
    read_only_until: float = field(default=-1.0, init=False)
    _sequences: Counter[str] = field(factory=Counter, init=False)
    _backends: list[Backend] = field(factory=list, init=False)
    _locks: dict[Lock, dict[Backend, bool]] = field(factory=dict, init=False)

    def open(self, owner: object = None, *, transaction_seconds: float = 0.0) -> Backend:
        """Begin a session.

        Args:
            owner: whose it is; None for one that outlives restarts.
            transaction_seconds: how long it may be idle in a transaction; 0 for any time.

        Raises:
            StatementFailed: the server is not up.
        """
        if owner is not None and self.clock() < self.down_until:
            raise StatementFailed("the database system is starting up", "57P03")
        backend = Backend(self, owner, self.clock(), transaction_seconds)
        self._backends.append(backend)
        return backend

    def end_sessions(self, owner: object = None) -> list[Backend]:
        """End the sessions of an owner, or of all that have one, as the server does by itself; return them."""
        found = [each for each in self._backends if each.owner is not None and owner in {None, each.owner}]
        for backend in found:
            backend.end()
        return found

    def restart(self, seconds: float, read_only_seconds: float) -> list[Backend]:
        """Let the server fail, and come back; return the sessions that it had.

        Args:
            seconds: after how many seconds it takes connections again.
            read_only_seconds: for how many more it takes no writes.
        """
        ended = self.end_sessions()
        self.down_until = self.started_at = self.clock() + seconds
        self.read_only_until = self.down_until + read_only_seconds
        return ended

    def next_number(self, sequence: str) -> int:
        """Return the next number of a sequence; it is used up whatever becomes of the transaction."""
        self._sequences[sequence] += 1
        return self._sequences[sequence]

    def count_of(self, sequence: str) -> int:
        """Return the latest number of a sequence."""
        return self._sequences[sequence]

    # --- what backends do to it -------------------------------------------------------------------------------------

    def take(self, backend: Backend, lock: Lock, *, is_exclusive: bool) -> frozenset[Backend]:
        """Give a lock to a backend, or return those that hold it in a way that excludes that."""
        self.end_idle()
        holders = self._locks.setdefault(lock, {})
        others = frozenset(
            [each for each, exclusive in holders.items() if each is not backend and (is_exclusive or exclusive)]
        )
        if not others:
            holders[backend] = holders.get(backend, False) or is_exclusive
        return others

    def is_locked(self, lock: Lock) -> bool:
        """Return whether a session has a lock."""
        return bool(self._locks.get(lock))

    def give_back(self, backend: Backend, lock: Lock) -> bool:
        """Take a lock from a backend; return whether it had it."""
        holders = self._locks.get(lock, {})
        had = holders.pop(backend, None) is not None
        if not holders:
            self._locks.pop(lock, None)
        return had

    def end_idle(self) -> None:
        """End the sessions that have asked for nothing for too long."""
        now = self.clock()
        for backend in [each for each in self._backends if each.is_idle_for(now)]:
            backend.end()

    def transactions(self) -> list[Transaction]:
        """Return the transactions that have not ended."""
        return [each.transaction for each in self._backends if each.transaction is not None]

    def forget(self, backend: Backend) -> None:
        """Forget a session that has ended."""
        with suppress(ValueError):
            self._backends.remove(backend)

    def notify(self, messages: Collection[tuple[str, str]]) -> None:
        """Pass messages, each with its channel, to the sessions that listen."""
        for backend in list(self._backends):
            heard = [payload for channel, payload in messages if channel in backend.channels]
            if heard:
                backend.outbox += heard
                self.deliver(backend)


@define(eq=False, repr=False)
class Backend:
    """A session of the server.

    Attributes:
        server: the server.
        owner: whose it is.
        used_at: when a statement was run in it.
        transaction_seconds: how long it may be idle in a transaction; 0 for any time.
        is_live: whether it has not ended.
        idle_seconds: how long it may be idle; 0 for any time.
        channels: what it listens to.
        outbox: the messages that its client has not got.
        hear: called when there is something for its client, which waits; None if it does not.
        has_told: whether its client was told of its end.
        waits_for: the sessions that hold a lock which it needs.
        transaction: its transaction, if one has begun.
    """

    server: SimulatedPostgres
    owner: object
    used_at: float
    transaction_seconds: float
    is_live: bool = True
    idle_seconds: float = 0.0
    channels: set[str] = field(factory=set)
    outbox: list[str] = field(factory=list)
    hear: Callable[[], None] | None = None
    has_told: bool = False
    waits_for: frozenset[Backend] = frozenset()
    transaction: Transaction | None = None
    _is_begun: bool = False
    _is_failed: bool = False
    _session_locks: Counter[Lock] = field(factory=Counter)

    async def run(self, statement: str, values: Values, *, lock_seconds: float) -> list[Row]:
        """Run a statement, and wait for the locks that it needs.

        Args:
            statement: the SQL.
            values: its values.
            lock_seconds: how long it waits for locks.

        Raises:
            StatementFailed: it failed, and its transaction is undone.
        """
        began = self.server.clock()
        while True:
            try:
                return self.run_now(statement, values)
            except Blocked as blocked:
                self.waits_for = blocked.holders
                waited = self.server.clock() - began
                if waited > _DEADLOCK_SECONDS and self in _waiting_chain(blocked.holders):
                    self.fail("deadlock detected", "40P01")
                if waited > lock_seconds:
                    self.fail("canceling statement due to statement timeout", "57014")
                await asyncio.sleep(_LOOK_SECONDS)
                if blocked.outcome and not any(each.is_live and each.transaction for each in blocked.holders):
                    self.fail("what was waited for has changed", blocked.outcome)
            finally:
                self.waits_for = frozenset()

    def run_now(self, statement: str, values: Values) -> list[Row]:
        """Run a statement.

        Raises:
            Blocked: it needs a lock; nothing has happened.
            StatementFailed: it failed, and its transaction is undone.
        """
        self.server.end_idle()
        if not self.is_live:
            raise StatementFailed("terminating connection due to administrator command", "57P01")
        self.used_at = self.server.clock()
        if statement in {"BEGIN", "COMMIT", "ROLLBACK"}:
            return self._delimit(statement)
        if self._is_failed:
            raise StatementFailed("current transaction is aborted", "25P02")
        transaction = self.transaction = self.transaction or Transaction(self)
        before = transaction.save()
        try:
            rows = self.server.function_of(statement)(transaction, values)
        except Blocked:
            transaction.restore(before)
            raise
        except StatementFailed as failure:
            self.fail(str(failure), failure.state)
        if not self._is_begun:
            self._end_transaction(commits=True)
        return rows

    def is_idle_for(self, now: float) -> bool:
        """Return whether it has asked for nothing for longer than it may."""
        limit = self.transaction_seconds if self._is_begun else self.idle_seconds
        return bool(limit) and now > self.used_at + limit

    def fail(self, message: str, state: str) -> None:
        """Undo the transaction.

        Raises:
            StatementFailed: always.
        """
        self._end_transaction(commits=False)
        self._is_failed = self._is_begun
        raise StatementFailed(message, state)

    def _delimit(self, statement: str) -> list[Row]:
        if statement == "BEGIN":
            self._is_begun = True
            return []
        is_failed, self._is_begun, self._is_failed = self._is_failed, False, False
        # The commit of a failed transaction undoes it, without an error.
        self._end_transaction(commits=statement == "COMMIT" and not is_failed)
        return []

    def _end_transaction(self, *, commits: bool) -> None:
        transaction, self.transaction = self.transaction, None
        if transaction is not None:
            transaction.end(commits=commits)

    # --- the locks and channels of the session ----------------------------------------------------------------------

    def lock_session(self, lock: Lock) -> bool:
        """Hold a lock until the session ends; return False if another session has it."""
        is_taken = not self.server.take(self, lock, is_exclusive=True)
        self._session_locks[lock] += is_taken
        return is_taken

    def unlock_session(self, lock: Lock | None = None) -> bool:
        """Release a lock of the session, or all of them; return whether it had them."""
        locks = list(self._session_locks) if lock is None else [lock]
        held = [each for each in locks if self._session_locks.pop(each, 0) and self.server.give_back(self, each)]
        return len(held) == len(locks)

    def has_locked(self, lock: Lock) -> bool:
        """Return whether the session holds a lock."""
        return bool(self._session_locks[lock])

    def wake(self) -> None:
        """Let the client look at what the server has sent, if it waits for that."""
        if self.hear is not None:
            self.hear()

    def end(self) -> None:
        """End the session, its transaction and its locks. Idempotent."""
        self.is_live = False
        self._end_transaction(commits=False)
        self.unlock_session()
        self.channels.clear()
        self.server.forget(self)


@define(eq=False, repr=False)
class Transaction:
    """What one transaction has written, and which locks it holds.

    Attributes:
        backend: its session.
        notifications: the messages that are sent when it is committed, each with its channel.
    """

    backend: Backend
    notifications: list[tuple[str, str]] = field(factory=list)
    _written: dict[str, dict[Hashable, Stored | None]] = field(factory=dict)
    _locks: list[Lock] = field(factory=list)

    @property
    def server(self) -> SimulatedPostgres:
        """The server."""
        return self.backend.server

    def find(self, table: str, key: Hashable) -> Stored | None:
        """Return a row, or None."""
        written = self._written.get(table, {})
        return written[key] if key in written else self.server.tables[table].get(key)

    def rows(self, table: str) -> Iterator[tuple[Any, Stored]]:
        """Yield the keys and rows of a table."""
        written = self._written.get(table, {})
        for key, row in self.server.tables[table].items():
            if key not in written:
                yield key, row
        for key, changed in written.items():
            if changed is not None:
                yield key, changed

    def put(self, table: str, key: Hashable, row: Stored) -> None:
        """Write a row.

        Raises:
            Blocked: another transaction has written or locked it.
        """
        self._write(table, key, row)

    def remove(self, table: str, key: Hashable) -> None:
        """Delete a row.

        Raises:
            Blocked: another transaction has written or locked it.
        """
        self._write(table, key, None)

    def _write(self, table: str, key: Hashable, row: Stored | None) -> None:
        if self.server.clock() < self.server.read_only_until:
            raise StatementFailed("cannot execute this in a read-only transaction", "25006")
        self.lock((table, key))
        self._written.setdefault(table, {})[key] = row

    def lock(self, lock: Lock, *, is_exclusive: bool = True, outcome: str = "") -> None:
        """Take a lock until the end of the transaction.

        Args:
            lock: its name; that of a row consists of the table and the key.
            is_exclusive: whether nobody else may have it.
            outcome: see `Blocked`.

        Raises:
            Blocked: others have it.
        """
        if holders := self.server.take(self.backend, lock, is_exclusive=is_exclusive):
            raise Blocked(holders, outcome)
        self._locks.append(lock)

    def try_shared(self, lock: Lock) -> bool:
        """Take a lock that others may share; return False if one has it for itself."""
        try:
            self.lock(lock, is_exclusive=False)
        except Blocked:
            return False
        return True

    def wait_for_removal(self, table: str, key: Hashable) -> None:
        """Wait for a transaction that deletes a row.

        Raises:
            Blocked: another one does, and has not ended.
        """
        remover = next((each for each in self.server.transactions() if each.removes(table, key)), None)
        if remover is not None and remover is not self:
            raise Blocked([remover.backend])

    def removes(self, table: str, key: Hashable) -> bool:
        """Return whether this transaction has deleted a row."""
        return self._written.get(table, {}).get(key, ()) is None

    def save(self) -> object:
        """Return what is needed to undo the statements that follow."""
        return {name: dict(rows) for name, rows in self._written.items()}, len(self.notifications)

    def restore(self, saved: Any) -> None:
        """Undo what was written since `save`; locks are kept."""
        self._written, length = saved
        del self.notifications[length:]

    def end(self, *, commits: bool) -> None:
        """Commit or undo, and release the locks."""
        for lock in self._locks:
            if not self.backend.has_locked(lock):
                self.server.give_back(self.backend, lock)
        if not commits:
            return
        deleted = [str(key) for key, row in self._written.get("executions", {}).items() if row is None]
        if any(self._written.values()):
            self.server.next_number("transactions")
        for name, written in self._written.items():
            table = self.server.tables[name]
            for key, row in written.items():
                if row is None:
                    table.pop(key, None)
                else:
                    table[key] = row
        if deleted:
            self.server.on_deleted(deleted)
        self.server.notify(self.notifications)


StatementFunction: TypeAlias = Callable[[Transaction, Values], list[Row]]
"""Runs a statement in a transaction."""


def _waiting_chain(holders: Collection[Backend]) -> set[Backend]:
    """Return the sessions for which a statement waits, directly and over others."""
    found, following = set[Backend](), list(holders)
    while following:
        each = following.pop()
        if each not in found:
            found.add(each)
            following += each.waits_for
    return found
