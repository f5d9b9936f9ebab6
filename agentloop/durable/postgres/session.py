"""The session of a journal: a connection whose lock keeps the claims of this process alive, and that hears of changes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Lock

from attrs import define, field

from agentloop.durable.changes import ChangeSignal
from agentloop.durable.held_claims import HeldClaim, HeldClaims
from agentloop.durable.postgres.connections import DatabaseConnection, DatabaseConnector, StatementFailed
from agentloop.durable.postgres.rows import encode_id
from agentloop.durable.postgres.schema import quote_name

RESTART_SECONDS = 2
"""How long after the start of the server nobody takes over claims: their holders are connecting again. A server whose clock was set
back to before its start says nothing about that, and is not waited for: tokens keep a holder that connects too late from writing."""
_MIN_PAUSE, _MAX_PAUSE = 0.05, 1.0
"""The time between attempts to connect again, in seconds."""
_LOOK_SECONDS = 1.0
"""The time between two looks for changes of which no notification has told, while somebody waits."""
_MAX_HEARD = 10_000
"""The number of executions whose latest changes are distinguished."""
_TAKEN = "the connection to the database was lost, and another process has claimed the execution meanwhile"


WITHOUT_SYNC = "set_config('synchronous_commit', 'off', true)"
"""The SQL that keeps a transaction from waiting for the disk, where a crash of the server undoes nothing that matters: a session
ends with the server, and the claims of an ended one are free as released ones are; notifications end, too."""


class Changes:
    """What this process knows of changes of executions: by notifications, and by looking, as these can be lost. Thread-safe.

    Args:
        read_marks: returns for each encoded id a value that differs after every change of the execution; for an empty one, of any.
    """

    def __init__(self, read_marks: Callable[[Collection[str]], Awaitable[Mapping[str, object]]]) -> None:
        self.signal: ChangeSignal = ChangeSignal(self._look, _LOOK_SECONDS)
        self.is_wanted: bool = False
        self._read_marks = read_marks
        self._lock = Lock()
        self._serial = self._floor = 0
        self._heard: dict[str, int] = {}
        self._marks: dict[str, object] = {}

    async def read_mark(self, execution_id: str) -> object:
        """Return a value that differs after every change of an execution, or of any for an empty id."""
        with self._lock:
            return self._heard.get(encode_id(execution_id), self._floor) if execution_id else self._serial

    def hear(self, stored_id: str) -> None:
        """Note that an execution has changed; for an empty id, that any may have changed.

        Args:
            stored_id: the encoded id of the execution.
        """
        with self._lock:
            self._serial += 1
            if not stored_id or len(self._heard) >= _MAX_HEARD:
                self._heard.clear()
                self._floor = self._serial
            self._heard[stored_id] = self._serial
        self.signal.fire()

    async def begin(self, execution_id: str) -> None:
        """Note how an execution is, before somebody waits for its changes."""
        stored_id = encode_id(execution_id)
        if stored_id not in self._marks:
            marks = await self._read_marks([stored_id])
            with self._lock:
                self._marks = {**marks, **self._marks}

    async def _look(self) -> None:
        """Hear of the changes of the executions for which somebody waits, as far as no notification told of them."""
        marks = await self._read_marks({encode_id(each) for each in self.signal.awaited_ids()})
        with self._lock:
            changed = [each for each, mark in marks.items() if each not in self._marks or self._marks[each] != mark]
            if len(self._marks) >= _MAX_HEARD:
                self._marks.clear()  # of the others, the next look counts as a change
            self._marks.update(marks)
            self._serial += 1 if changed else 0  # for those who wait for any execution; the others are told below
        for each in filter(None, changed):
            self.hear(each)
        self.signal.fire()


class SessionSql:
    """The statements of a session.

    Args:
        name: the name of the schema.
    """

    def __init__(self, name: str) -> None:
        schema = quote_name(name)
        self.channel: str = f"agentloop_{name}"
        self.key: str = f"hashtextextended('agentloop/session/{name}/' || ({{}})::text, 0)"
        self.draw: str = f"SELECT nextval('{schema}.sessions')"
        self.lock: str = f"SELECT pg_try_advisory_lock({self.key.format('%(session)s::bigint')})"
        self.unlock: str = f"SELECT pg_advisory_unlock({self.key.format('%(session)s::bigint')})"
        self.adopt: str = (
            f"UPDATE {schema}.claims AS c SET session = %(session)s "  # noqa: S608  # constants only
            "FROM unnest(%(ids)s::text[], %(tokens)s::bigint[]) AS mine (id, token) "
            "WHERE c.execution_id = mine.id AND c.token = mine.token RETURNING c.token"
        )
        self.release: str = (
            f"UPDATE {schema}.claims AS c SET session = NULL "  # noqa: S608  # constants only
            "FROM unnest(%(ids)s::text[], %(tokens)s::bigint[]) AS mine (id, token) "
            f"WHERE c.execution_id = mine.id AND c.token = mine.token RETURNING {WITHOUT_SYNC}"
        )
        # Of any execution: a snapshot differs as soon as any transaction has written.
        self.marks: str = (
            "SELECT wanted.id, CASE wanted.id WHEN '' THEN pg_current_snapshot()::text END, "  # noqa: S608  # constants only
            f"(SELECT last_hash FROM {schema}.executions AS e WHERE e.execution_id = wanted.id), "
            f"(SELECT max(sequence) FROM {schema}.commands AS c WHERE c.execution_id = wanted.id) "
            "FROM unnest(%(ids)s::text[]) AS wanted (id)"
        )
        # The holder of a claim is dead when the lock of its session is free. Shared, so that several can look at once.
        self.is_free: str = (
            "(c.session IS NULL OR "
            "(clock_timestamp() NOT BETWEEN pg_postmaster_start_time() "
            f"AND pg_postmaster_start_time() + interval '{RESTART_SECONDS} seconds' "
            f"AND pg_try_advisory_xact_lock_shared({self.key.format('c.session')})))"
        )


@define(eq=False)
class Session:
    """The session of one journal; it lives in the event loop of its thread.

    Its number stands in the claims that it holds. While its connection is open, the server holds a lock on that number, so that
    others see that the claims are alive. When the connection is lost, it draws a new number, and its claims get it, unless
    others have taken them over meanwhile.

    Attributes:
        connector: opens the connection, without a pooler in between.
        sql: the statements.
        held: the claims of this process.
        guard: the lock to hold while `held` is used.
        changes: what to tell about notifications.
        timeout: the time after which the server ends the session of a process that does not answer, in seconds.
    """

    connector: DatabaseConnector
    sql: SessionSql
    held: HeldClaims
    guard: Lock
    changes: Changes
    timeout: float
    number: int = field(default=0, init=False)
    numbers: set[int] = field(factory=set, init=False)
    """All numbers that it has had: a claim that names one of them, and that is not held, is one that nobody got or wants."""
    _is_outdated: bool = field(default=False, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)
    _outcome: asyncio.Future[StatementFailed | None] | None = field(default=None, init=False)
    _was_open: bool = field(default=False, init=False)
    _unreleased: list[HeldClaim] = field(factory=list, init=False)
    _wake: asyncio.Event = field(factory=asyncio.Event, init=False)
    _is_listening: bool = field(default=False, init=False)

    async def open(self) -> int:
        """Open the session unless it is open, and return its number.

        Raises:
            StatementFailed: the server cannot be reached.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.connector.timeout
        if self._task is None:
            self._task = loop.create_task(self._hold(), name="agentloop journal session")
        while not self.number:
            if self._outcome is None:
                self._outcome = loop.create_future()
            failure = await asyncio.shield(self._outcome)
            is_lasting = not self._was_open or loop.time() >= deadline
            if failure is not None and (is_lasting or not failure.is_disconnected):
                raise failure
        return self.number

    async def listen(self) -> None:
        """Hear of changes from now on."""
        await self.open()
        self._wake.set()

    async def adopt(self, connection: DatabaseConnection, claims: Iterable[HeldClaim]) -> None:
        """Let claims of this process name this session; those that others have taken over are lost.

        Raises:
            StatementFailed: the connection was lost.
        """
        held = list(claims)
        if not held:
            return
        rows = await connection.rows(self.sql.adopt, {"session": self.number, **_values_of(held)})
        kept = {token for (token,) in rows}
        for claim in held:
            if claim.token not in kept:
                with self.guard:
                    self.held.remove(claim)
                claim.lose(_TAKEN)

    def release_later(self, claim: HeldClaim) -> None:
        """Release a claim as soon as the server can be reached again."""
        self._unreleased.append(claim)
        self._wake.set()

    def renew(self) -> None:
        """Take a new number, with the claims that are held: a claim that is stored, and that nobody got, ends with the present one."""
        self._is_outdated = True
        self._wake.set()

    async def aclose(self) -> None:
        """End the session; its claims are free."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        self.number = 0

    async def _hold(self) -> None:
        """Keep a connection open; the body of the task."""
        pause = _MIN_PAUSE
        while True:
            try:
                connection = await self.connector.connect()
                try:
                    await self._enter(connection)
                    pause = _MIN_PAUSE
                    await self._watch(connection)
                finally:
                    self.number, self._is_listening = 0, False
                    await self._leave(connection)
            except StatementFailed as failure:
                self._report(failure)
            # What was announced meanwhile is not heard: who waits looks again, also while there is no connection.
            self.changes.hear("")
            await asyncio.sleep(pause)
            pause = min(pause * 2, _MAX_PAUSE)

    async def _enter(self, connection: DatabaseConnection) -> None:
        """Lock a new number, and move the claims to it."""
        await connection.rows(
            "SELECT set_config(name, value, false) FROM (VALUES ('tcp_keepalives_idle', '5'), ('tcp_keepalives_interval', '3'), "
            "('tcp_keepalives_count', '3'), ('idle_session_timeout', %(timeout)s)) AS settings (name, value)",
            {"timeout": f"{int(self.timeout * 1000)}ms"},
        )
        connection.on_notification(self._hear)
        await self._take_number(connection)
        self._was_open = True
        self._report(None)

    async def _take_number(self, connection: DatabaseConnection) -> None:
        """Lock a new number, move the claims to it, and free the number before it."""
        self._is_outdated = False
        number, is_locked = 0, False
        while (
            not is_locked
        ):  # a number that another session has is there only when a backup with an older sequence was restored
            ((number,),) = await connection.rows(self.sql.draw)
            ((is_locked,),) = await connection.rows(self.sql.lock, {"session": number})
        earlier, self.number = self.number, number
        self.numbers.add(number)
        with self.guard:
            held = self.held.all()
        await self.adopt(connection, held)
        if earlier:
            await connection.rows(self.sql.unlock, {"session": earlier})

    async def _watch(self, connection: DatabaseConnection) -> None:
        """Ask the server now and then whether it is there, and at once when it has sent something."""
        while True:
            if self.changes.is_wanted and not self._is_listening:
                await connection.rows(f'LISTEN "{self.sql.channel}"')
                self._is_listening = True
                self.changes.hear("")
            await connection.rows("SELECT 1")
            if self._is_outdated:
                await self._take_number(connection)
            if self._unreleased:
                released = tuple(self._unreleased)
                await connection.rows(self.sql.release, _values_of(released))
                del self._unreleased[: len(released)]
            await self._wait_for_input(connection)

    async def _wait_for_input(self, connection: DatabaseConnection) -> None:
        with connection.calling(self._wake.set):
            try:
                # `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with the input.
                async with asyncio.timeout(self.timeout / 3):
                    await self._wake.wait()
            except TimeoutError:
                return
        self._wake.clear()

    async def _leave(self, connection: DatabaseConnection) -> None:
        # So that the lock is free when the claims of a closed journal are, and not a moment later.
        with suppress(StatementFailed):
            if connection.is_open:
                await connection.rows("SELECT pg_advisory_unlock_all()")
        await connection.close()

    def _hear(self, payload: str) -> None:
        sender, _, stored_id = payload.partition(" ")
        if sender != str(self.number):
            self.changes.hear(stored_id)

    def _report(self, failure: StatementFailed | None) -> None:
        """Tell those who wait for the session whether it is open."""
        outcome, self._outcome = self._outcome, None
        if outcome is not None and not outcome.done():
            outcome.set_result(failure)


def _values_of(claims: Sequence[HeldClaim]) -> dict[str, object]:
    return {"ids": [encode_id(claim.execution_id) for claim in claims], "tokens": [claim.token for claim in claims]}
