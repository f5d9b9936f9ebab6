"""The database of a journal: its connections, its session and the claims of this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import TypeVar

from attrs import define, field

from agentloop.durable.chain import claim_conflict
from agentloop.durable.held_claims import HeldClaim, HeldClaims
from agentloop.durable.postgres.background import BackgroundLoop
from agentloop.durable.postgres.connections import (
    DatabaseConnection,
    DatabaseConnector,
    Pool,
    StatementFailed,
    translate_failure,
)
from agentloop.durable.postgres.rows import encode_id
from agentloop.durable.postgres.schema import describe_missing_rights, prepare_schema, quote_name
from agentloop.durable.postgres.session import WITHOUT_SYNC, Changes, Session, SessionSql
from agentloop.errors import AgentLoopError, JournalError

T = TypeVar("T")

Action = Callable[[DatabaseConnection], Awaitable[T]]

_MAX_REPETITIONS = 20
"""How often a transaction is repeated that the server undid because of concurrent ones."""
_PAUSE_SECONDS = 0.1
_ANNOUNCE_SECONDS = 0.02
"""How long changes are collected before others are told about them: each message costs the server a lock."""
_SAME_PROCESS = "another writer of this process"
_CLOSED = "the journal was closed while the execution was running; close it after its executions"
_FORKED = "this process was forked from the one that has claimed the execution"


class PostgresClaim(HeldClaim):
    """A claim on an execution in a database.

    Attributes:
        journal: the journal that made it, which is not collected, and does not end its session, while the claim is held.
    """

    journal: object = None

    def __init__(self, database: JournalDatabase, execution_id: str, token: int) -> None:
        super().__init__(execution_id, token)
        self._database = database

    async def release(self) -> None:
        """Release the claim. Idempotent."""
        await self._database.release(self)


@define(eq=False)
class _Request:
    """A claim that a caller waits for.

    Attributes:
        execution_id: the execution.
        earlier: the request for the same execution whose caller was cancelled, which ends first.
        claim: the claim, once it is made for a caller who waits.
        is_abandoned: whether the caller was cancelled.
        ended: set in the thread when nothing more is done for the request.
    """

    execution_id: str
    earlier: _Request | None
    claim: PostgresClaim | None = None
    is_abandoned: bool = False
    ended: asyncio.Event = field(factory=asyncio.Event)


@define(eq=False)
class _Runtime:
    """What belongs to one life of the thread."""

    pool: Pool
    session: Session
    preparing: asyncio.Lock = field(factory=asyncio.Lock)
    is_prepared: bool = False
    announced: set[str] = field(factory=set)
    is_announcing: bool = False


class JournalDatabase:
    """Runs actions on connections, from any event loop, and keeps the claims of this process.

    Connections live in an event loop of their own, in a thread: the claims of a process depend on a connection that answers,
    also while its own event loops are blocked or change.

    Args:
        pooled: opens the connections for everything but the session.
        direct: opens the connection of the session.
        schema: the name of the schema.
        pool_size: the maximum number of connections, without that of the session.
        session_timeout: the time after which the server ends the session of a process that does not answer, in seconds.
        reconnect_timeout: how long an action tries to reach a server that was there before, in seconds.
    """

    def __init__(
        self,
        pooled: DatabaseConnector,
        direct: DatabaseConnector,
        *,
        schema: str,
        pool_size: int,
        session_timeout: float,
        reconnect_timeout: float,
    ) -> None:
        self.name: str = pooled.name
        self.schema: str = quote_name(schema)
        self.sql: SessionSql = SessionSql(schema)
        self.changes: Changes = Changes(self._read_marks)
        self._schema_name = schema
        self._pooled, self._direct = pooled, direct
        self._pool_size, self._session_timeout = pool_size, session_timeout
        self._reconnect_timeout = reconnect_timeout
        self._guard = Lock()
        self._held = HeldClaims()
        self._pending: dict[str, _Request] = {}
        self._runtime: _Runtime | None = None
        self._background = BackgroundLoop("agentloop journal", self._forget)

    async def run(self, action: Action[T]) -> T:
        """Run an action on a connection and return its result. It may be run again, and has to expect that.

        Cancelling the caller does not stop the action.

        Raises:
            JournalBusy: the server cannot be reached, or did not answer in time.
            JournalError: the action failed.
        """
        return await self._background.run(partial(self._run, action))

    # --- claims ---

    async def claim(self, execution_id: str) -> PostgresClaim:
        """Claim an execution.

        Raises:
            JournalConflict: a live writer has claimed it.
            JournalError: the database cannot be used.
        """
        with self._guard:
            earlier = self._pending.get(execution_id)
            if execution_id in self._held or (earlier is not None and not earlier.is_abandoned):
                raise claim_conflict(execution_id, _SAME_PROCESS)
            request = self._pending[execution_id] = _Request(execution_id, earlier)
        try:
            return await self._background.run(partial(self._claim, request))
        except asyncio.CancelledError:
            with self._guard:
                request.is_abandoned = True
                is_held = request.claim is not None and self._held.remove(request.claim)
            if request.claim is not None and is_held:
                self._background.start_soon(partial(self._release_quietly, request.claim))
            raise

    def check(self, claim: HeldClaim) -> None:
        """Check that a claim permits to append, as far as this process knows.

        Raises:
            ClaimLost: it does not.
        """
        with self._guard:
            self._held.check(claim)

    def lose(self, claim: HeldClaim, reason: str) -> None:
        """Mark a claim as lost, because the database says so.

        Args:
            claim: the claim.
            reason: why.
        """
        with self._guard:
            self._held.remove(claim)
        claim.lose(reason)

    async def release(self, claim: HeldClaim) -> None:
        """Release a claim, unless it was released or lost.

        Raises:
            JournalError: the server cannot be reached; the claim is released as soon as it can be.
        """
        with self._guard:
            if not self._held.remove(claim):
                return
        await self._background.run(partial(self._release, claim))

    # --- changes ---

    async def listen(self) -> None:
        """Hear of changes by other processes from now on; it goes on by itself when the connection is lost."""
        if self.changes.is_wanted:
            return
        self.changes.is_wanted = True
        try:
            await self._background.run(self._listen)
        except JournalError:
            self.changes.is_wanted = False
            raise

    def announce(self, execution_id: str) -> None:
        """Tell those who wait, in all processes, that an execution has changed."""
        stored_id = encode_id(execution_id)
        self.changes.hear(stored_id)
        self._background.start_soon(partial(self._announce, stored_id))

    async def _read_marks(self, stored_ids: Collection[str]) -> Mapping[str, object]:
        rows = await self.run(lambda connection: connection.rows(self.sql.marks, {"ids": sorted(stored_ids)}))
        return {row[0]: row[1:] for row in rows}

    # --- the end ---

    async def aclose(self) -> None:
        """End the claims, the connections and the thread. Idempotent; a later action opens everything again."""
        with self._guard:
            held = self._held.all()
            self._held.end_all(_CLOSED)
        await self._background.aclose(partial(self._close, held))

    def end_soon(self) -> None:
        """Let the thread and the connections end, without waiting for that."""
        self._background.end_soon(partial(self._close, ()))

    def _forget(self) -> None:
        """Begin anew in a forked process: thread and claims stay with the parent."""
        self._guard = Lock()
        self._runtime = None
        self._pending.clear()
        self._held.end_all(_FORKED)

    # --- in the thread ---

    def _open(self) -> _Runtime:
        if self._runtime is None:
            session = Session(self._direct, self.sql, self._held, self._guard, self.changes, self._session_timeout)
            self._runtime = _Runtime(Pool(self._pooled, self._pool_size), session)
        return self._runtime

    async def _run(self, action: Action[T]) -> T:
        """Run an action; again when the server undid it or was not to be reached."""
        loop = asyncio.get_running_loop()
        runtime = self._open()
        deadline = loop.time() + self._reconnect_timeout
        repetitions = 0
        while True:
            try:
                await self._prepare(runtime)
                async with runtime.pool.connection() as connection:
                    return await action(connection)
            except StatementFailed as failure:
                repetitions += 1
                if failure.is_disconnected and runtime.is_prepared and loop.time() < deadline:
                    await runtime.pool.close_idle()
                    await asyncio.sleep(_PAUSE_SECONDS if repetitions > 1 else 0)
                elif not failure.is_transient or repetitions > _MAX_REPETITIONS:
                    raise translate_failure(failure, self.name) from None

    async def _prepare(self, runtime: _Runtime) -> None:
        """Create the tables with the first action."""
        async with runtime.preparing:
            if runtime.is_prepared:
                return
            async with runtime.pool.connection() as connection:
                try:
                    await prepare_schema(connection, self._schema_name)
                except StatementFailed as failure:
                    missing = describe_missing_rights(failure, self._schema_name)
                    if missing is not None:
                        raise missing from None
                    raise
            runtime.is_prepared = True

    async def _claim(self, request: _Request) -> PostgresClaim:
        try:
            if request.earlier is not None:
                await request.earlier.ended.wait()
                request.earlier = None
            await self._run(_no_action)  # the tables have to be there before the session draws its number
            return await self._claim_in_session(request)
        finally:
            with self._guard:
                if self._pending.get(request.execution_id) is request:
                    del self._pending[request.execution_id]
            request.ended.set()

    async def _claim_in_session(self, request: _Request) -> PostgresClaim:
        session = self._open().session
        try:
            number = await session.open()
        except StatementFailed as failure:
            raise translate_failure(failure, self.name) from None
        values = {"id": encode_id(request.execution_id), "session": number, "own": list(session.numbers)}
        try:
            rows = await self._run(lambda connection: connection.rows(self._claim_statement, values))
        except JournalError:
            session.renew()  # the claim may be stored: it ends with the number that it names
            raise
        if not rows:
            raise claim_conflict(request.execution_id, "another process or journal")
        claim = PostgresClaim(self, request.execution_id, rows[0][0])
        with self._guard:
            if not request.is_abandoned:
                request.claim = claim
                self._held.add(claim)
        if request.claim is None:
            await self._release_quietly(claim)
            return claim
        # The session was lost meanwhile, and did not know this claim when it began anew.
        if session.number not in {0, number}:
            await self._adopt(session, claim)
        return claim

    async def _adopt(self, session: Session, claim: PostgresClaim) -> None:
        try:
            await self._run(lambda connection: session.adopt(connection, [claim]))
        except JournalError:
            with self._guard:
                self._held.remove(claim)
            session.release_later(claim)
            raise
        if claim.is_lost:
            raise claim_conflict(claim.execution_id)

    @property
    def _claim_statement(self) -> str:
        return (
            f"INSERT INTO {self.schema}.claims AS c (execution_id, token, session) "  # noqa: S608  # constants only
            f"VALUES (%(id)s, nextval('{self.schema}.tokens'), %(session)s) "
            "ON CONFLICT (execution_id) DO UPDATE "
            "SET token = greatest(c.token + 1, excluded.token), session = excluded.session "
            f"WHERE c.session = ANY(%(own)s::bigint[]) OR {self.sql.is_free} RETURNING c.token"
        )

    async def _release(self, claim: HeldClaim) -> None:
        values = {"ids": [encode_id(claim.execution_id)], "tokens": [claim.token]}
        try:
            await self._run(lambda connection: connection.rows(self.sql.release, values))
        except JournalError:
            self._open().session.release_later(claim)
            raise

    async def _release_quietly(self, claim: PostgresClaim) -> None:
        with suppress(JournalError):  # it is released later
            await self._release(claim)

    async def _listen(self) -> None:
        await self._run(_no_action)
        try:
            await self._open().session.listen()
        except StatementFailed as failure:
            raise translate_failure(failure, self.name) from None

    async def _announce(self, stored_id: str) -> None:
        runtime = self._open()
        runtime.announced.add(stored_id)
        if runtime.is_announcing:
            return
        runtime.is_announcing = True
        await asyncio.sleep(_ANNOUNCE_SECONDS)
        runtime.is_announcing = False
        ids, runtime.announced = runtime.announced, set()
        payloads = [f"{runtime.session.number} {stored_id}" for stored_id in sorted(ids)]
        statement = (
            f"SELECT pg_notify(%(channel)s, payload), {WITHOUT_SYNC} FROM unnest(%(payloads)s::text[]) AS payload"  # noqa: S608  # constants only
        )
        with suppress(StatementFailed):  # those who wait look now and then by themselves
            async with runtime.pool.connection() as connection:
                await connection.rows(statement, {"channel": self.sql.channel, "payloads": payloads})

    async def _close(self, held: Sequence[HeldClaim]) -> None:
        runtime, self._runtime = self._runtime, None
        if runtime is None:
            return
        if held:
            values = {
                "ids": [encode_id(claim.execution_id) for claim in held],
                "tokens": [claim.token for claim in held],
            }
            with suppress(StatementFailed, AgentLoopError):  # they end with the session as well
                async with runtime.pool.connection() as connection:
                    await connection.rows(self.sql.release, values)
        await runtime.session.aclose()
        await runtime.pool.close_idle()


async def _no_action(_: DatabaseConnection) -> None:
    """Do nothing, on a database that has its tables."""
