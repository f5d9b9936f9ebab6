"""The simulated PostgreSQL server answers the statements of a journal as a real one does, and its sessions end as those do."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from copy import copy
from datetime import timedelta
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from attrs import define, field

from agentloop.contracts.can_journal import CanJournal, Claim
from agentloop.durable import FolderObjects, Journal, PostgresJournal, postgres_schema
from agentloop.durable.postgres.connections import (
    DatabaseConnection,
    DatabaseConnector,
    PsycopgConnector,
    Row,
    StatementFailed,
    Values,
    read_url,
)
from agentloop.durable.postgres.session import SessionSql
from agentloop.durable.postgres.statements import RecordAppend, Statements
from agentloop.errors import JournalBusy, JournalError
from agentloop.testing import AccountKit, GrantKit, JournalKit
from agentloop.testing.simulation.postgres_network import SimulatedConnector
from agentloop.testing.simulation.postgres_server import Backend, SimulatedPostgres
from agentloop.testing.simulation.postgres_statements import KNOWN, function_of, known_statement
from agentloop.testing.simulation.world import SimulatedWorker, SimulatedWorld
from agentloop.values.json import format_json
from agentloop.values.records import JournalRecord
from agentloop.values.time_and_ids import SystemClock
from tests.durable.records import append_records, make_head, make_records
from tests.durable.test_stored_form import converse
from tests.postgres import run_sql

UNSORTED = "ORDER BY"
UNLIKE = ("SELECT set_config(name", "SELECT wanted.id", "SELECT pg_notify", "WITH locked AS")
"""Statements whose rows have values that nobody uses, or that are opaque: snapshots."""


@define
class Comparison:
    """A real server and a simulated one, which get the same statements in the same order.

    Attributes:
        simulated: the simulated one.
        differences: the statements that they have answered differently.
        seen: how the statements start that both have answered.
    """

    simulated: SimulatedPostgres = field(factory=lambda: SimulatedPostgres(time.monotonic, function_of))
    differences: list[str] = field(factory=list)
    seen: set[tuple[str, str]] = field(factory=set)
    _lock: threading.Lock = field(factory=threading.Lock)

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Keep the statements of others away while the block runs."""
        while not self._lock.acquire(blocking=False):  # noqa: ASYNC110  # the journals have threads of their own
            await asyncio.sleep(0.001)
        try:
            yield
        finally:
            self._lock.release()

    def compare(self, statement: str, real: object, simulated: object) -> None:
        """Note what both have answered."""
        if statement in {"BEGIN", "COMMIT", "ROLLBACK"}:
            return
        known = known_statement(statement)
        self.seen.add((known.start, known.part))
        if known.start in UNLIKE:
            is_equal = isinstance(real, list) and isinstance(simulated, list) and len(real) == len(simulated)
        elif isinstance(real, list) and isinstance(simulated, list) and UNSORTED not in statement:
            is_equal = sorted(real, key=repr) == sorted(simulated, key=repr)
        else:
            is_equal = real == simulated
        if not is_equal:
            self.differences.append(f"{statement}: {real} {simulated}")


@define(eq=False)
class ComparedConnector(DatabaseConnector):
    """Opens a connection to both."""

    comparison: Comparison
    real: PsycopgConnector

    @property
    def name(self) -> str:
        """The name of the real one."""
        return self.real.name

    @property
    def timeout(self) -> float:
        """The time limit of the real one."""
        return self.real.timeout

    async def connect(self) -> DatabaseConnection:
        """Open a connection to both."""
        return ComparedConnection(self.comparison, await self.real.connect(), self.comparison.simulated.open(self))


@define(eq=False)
class ComparedConnection(DatabaseConnection):
    """Runs each statement on both servers; a transaction is alone, so that none of them waits for another one."""

    comparison: Comparison
    real: DatabaseConnection
    simulated: Backend
    is_alone: bool = False

    async def rows(self, statement: str, values: Values | None = None) -> list[Row]:
        """Run a statement on both."""
        if self.is_alone:
            return await self._both(statement, values)
        async with self.comparison.alone():
            return await self._both(statement, values)

    async def _both(self, statement: str, values: Values | None) -> list[Row]:
        simulated: object
        real: list[Row] | StatementFailed
        try:
            real = await self.real.rows(statement, values)
        except StatementFailed as failure:
            real = failure
        try:
            simulated = self.simulated.run_now(statement, dict(values or {}))
        except StatementFailed as failure:
            simulated = failure.state
        if isinstance(real, StatementFailed):
            self.comparison.compare(statement, real.state, simulated)
            raise real
        self.comparison.compare(statement, real, simulated)
        return real

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """Keep others away until it has ended."""
        async with self.comparison.alone():
            self.is_alone = True
            try:
                async with DatabaseConnection.transaction(self):
                    yield
            finally:
                self.is_alone = False

    @property
    def is_open(self) -> bool:
        """Whether the real one is."""
        return self.real.is_open

    def calling(self, hear: Callable[[], object]) -> AbstractContextManager[None]:
        """Wait for the real one."""
        return self.real.calling(hear)

    def on_notification(self, handle: Callable[[str], None]) -> None:
        """Listen to the real one."""
        self.real.on_notification(handle)

    async def close(self) -> None:
        """Close both."""
        async with self.comparison.alone():
            await self.real.close()
            self.simulated.end()


class ComparedJournals:
    """Journals that use a real server and a simulated one.

    Args:
        url: the real one.
    """

    def __init__(self, url: str) -> None:
        self.comparisons: list[Comparison] = []
        self._url = url
        self._made: dict[int, tuple[object, str, Comparison]] = {}

    def make(self, **options: object) -> PostgresJournal:
        """Return a journal on empty tables."""
        schema, comparison = f"s{len(self.comparisons)}", Comparison()
        self.comparisons.append(comparison)
        run_sql(self._url, postgres_schema(schema))
        return self._open(schema, comparison, **options)

    def reopen(self, journal: CanJournal) -> PostgresJournal:
        """Return another journal on the same tables."""
        _, schema, comparison = self._made[id(journal)]
        return self._open(schema, comparison)

    def _open(self, schema: str, comparison: Comparison, **options: object) -> PostgresJournal:
        connectors = [
            ComparedConnector(comparison, PsycopgConnector(read_url(self._url), seconds)) for seconds in (30.0, 5.0)
        ]
        given: dict[str, Any] = {"spill_bytes": 40, **options}
        journal = PostgresJournal(self._url, schema=schema, connectors=(connectors[0], connectors[1]), **given)
        self._made[id(journal)] = (journal, schema, comparison)
        return journal


def test_both_servers_give_the_same_rows(postgres_url: str) -> None:
    """Whatever the kits and a conversation let a journal do: the rows of all statements, and the codes of those that fail."""
    journals = ComparedJournals(postgres_url)
    for law in JournalKit.laws:
        JournalKit(journals.make, reopen=journals.reopen, examples=2).check(law)
    AccountKit(journals.make, examples=2).check_all()
    GrantKit(journals.make, examples=2).check_all()
    asyncio.run(use_the_rest(journals))
    assert not [difference for each in journals.comparisons for difference in each.differences]
    seen = set[tuple[str, str]]().union(*[each.seen for each in journals.comparisons])
    assert not [(known.start, known.part) for known in KNOWN if (known.start, known.part) not in seen]


async def use_the_rest(journals: ComparedJournals) -> None:
    """Run the statements that the kits do not need: those of shared beginnings, of lost claims, of purges and of checks."""
    with TemporaryDirectory() as folder:
        journal = journals.make(objects=FolderObjects(folder), spill_bytes=4000)
        state = await converse(journal, 1)
        for turn in range(1, 4):
            state = await converse(journal, 1, start=state, first=turn)
        assert await journal.verify() == ()
        later = SystemClock().now() + timedelta(days=1)
        claim = await journal.claim("held")
        journal._database._open().session.renew()  # as after a claim whose answer was lost
        while journal._database._open().session.number in {0, 1}:  # noqa: ASYNC110  # it is in another thread
            await asyncio.sleep(0.01)
        await append_records(journal, "long", format_json({"text": "a" * 5000}).decode())
        await journal.expired_trees(later)
        assert await journal.purge(later) == 4
        await claim.release()
        await journal.aclose()


def test_a_process_that_is_cut_off_in_a_deletion_blocks_nobody_for_long() -> None:
    """The server ends its transaction, and others can claim what it was about to delete."""
    world = SimulatedWorld(3, [], storage="postgres")
    waited = list[float]()

    async def claim(journal: Journal) -> Claim:
        while True:
            try:
                return await journal.claim("x")
            except JournalError:
                await asyncio.sleep(1)

    async def main() -> None:
        lost, other = SimulatedWorker(world, "lost"), SimulatedWorker(world, "other")
        await other.machine.start(append_records(other.journal, "x", "{}"))
        deletion = lost.machine.start(lost.journal.delete("x"))
        while not world.server.is_locked(("claims", "x")):  # noqa: ASYNC110  # in virtual time
            await asyncio.sleep(0.0001)
        lost.is_cut, began = True, world.loop.time()
        await other.machine.start(claim(other.journal))
        waited.append(world.loop.time() - began)
        with pytest.raises(JournalBusy):
            await deletion

    world.run(main())
    assert waited[0] < 35


# --- transactions that meet -------------------------------------------------------------------------------------------

Action = Callable[[DatabaseConnection], Awaitable[object]]


def say(statement: str, **values: object) -> Action:
    """Return what runs a statement of the journal `agentloop`."""
    return lambda connection: connection.rows(statement, values or None)


BEGIN, COMMIT, ROLLBACK = say("BEGIN"), say("COMMIT"), say("ROLLBACK")
STATEMENTS = Statements('"agentloop"', SessionSql("agentloop").is_free)


def claim(execution_id: str) -> Action:
    """Return what claims an execution, and gives the claim up."""
    return lambda connection: STATEMENTS._lock_claims(connection, [execution_id])


def append(execution_id: str, token: int, *bodies: str, after: Sequence[JournalRecord] = ()) -> Action:
    """Return what appends records."""
    records = make_records(execution_id, *bodies, after=after)
    return RecordAppend(STATEMENTS, make_head(records), records, token, 1000)


def lock_account(name: str) -> Action:
    """Return what locks an account."""
    return say('SELECT body FROM "agentloop".accounts WHERE id = %(id)s FOR UPDATE', id=name)


def add_account(name: str) -> Action:
    """Return what adds an account."""
    return say(
        "INSERT INTO \"agentloop\".accounts (id, body) VALUES (%(id)s, '') ON CONFLICT (id) DO NOTHING",
        id=name,
    )


MEETINGS: Mapping[str, Sequence[tuple[int, Action]]] = {
    "an append waits for a deletion, and finds its claim gone": [
        (0, claim("x")),
        (0, append("x", 1, "{}")),
        (0, BEGIN),
        (0, claim("x")),
        (1, append("x", 1, "{}", after=make_records("x", "{}"))),
        (0, COMMIT),
    ],
    "a deletion waits for an append": [
        (0, claim("x")),
        (0, BEGIN),
        (0, append("x", 1, "{}")),
        (1, partial(STATEMENTS.delete_tree, execution_id="x")),
        (0, COMMIT),
        (1, partial(STATEMENTS.read_head, execution_id="x")),
    ],
    "what is not committed is not seen": [
        (0, claim("x")),
        (0, BEGIN),
        (0, append("x", 1, "{}")),
        (1, partial(STATEMENTS.read_head, execution_id="x")),
        (0, ROLLBACK),
        (1, partial(STATEMENTS.read_head, execution_id="x")),
    ],
    "the second of two first records waits for the first": [
        (0, claim("x")),
        (0, BEGIN),
        (0, append("x", 1, "{}")),
        (1, append("x", 1, '{"other":1}')),
        (0, ROLLBACK),
        (1, partial(STATEMENTS.read_head, execution_id="x")),
    ],
    "two transactions wait for each other": [
        (0, add_account("a")),
        (0, add_account("b")),
        (0, BEGIN),
        (1, BEGIN),
        (0, lock_account("a")),
        (1, lock_account("b")),
        (0, lock_account("b")),
        (1, lock_account("a")),
        (0, ROLLBACK),
        (1, ROLLBACK),
    ],
    "a lock is held for too long": [
        (0, add_account("a")),
        (0, BEGIN),
        (0, lock_account("a")),
        (1, lock_account("a")),
        (0, lock_account("a")),  # so that its own transaction is not the first one to be ended, for being idle
    ],
    "a failed transaction answers nothing more": [
        (0, BEGIN),
        (0, lock_account("a")),
        (0, append("x", 7, "{}")),
        (0, COMMIT),
    ],
}


@pytest.mark.parametrize("name", MEETINGS)
async def test_transactions_that_meet_wait_and_fail_alike(postgres_url: str, name: str) -> None:
    """Which statements wait, what they return then, and the codes of those that fail, on both servers."""
    run_sql(postgres_url, postgres_schema())
    server = SimulatedPostgres(time.monotonic, function_of)
    real = PsycopgConnector(read_url(postgres_url), 1.5)
    connectors: Sequence[DatabaseConnector] = (real, SimulatedConnector(server, None, 1.5))
    outcomes = [await meet(connector, MEETINGS[name]) for connector in connectors]
    assert outcomes[0] == outcomes[1]


async def meet(connector: DatabaseConnector, actions: Sequence[tuple[int, Action]]) -> list[object]:
    """Run the actions of two connections in order; one that waits goes on while the next ones begin. Return what came of them."""
    connections = [await connector.connect() for _ in range(2)]
    tasks, waited = list[asyncio.Task[object]](), list[bool]()
    last: dict[int, asyncio.Task[object]] = {}
    for who, action in actions:
        task = asyncio.create_task(_outcome_of(action, connections[who], last.get(who)))
        last[who] = task
        tasks.append(task)
        done, _ = await asyncio.wait([task], timeout=0.3)
        waited.append(not done)
    outcomes: list[object] = [*waited, *await asyncio.gather(*tasks)]
    for connection in connections:
        await connection.close()
    return outcomes


async def _outcome_of(action: Action, connection: DatabaseConnection, before: asyncio.Task[object] | None) -> object:
    if before is not None:
        await before
    try:
        return await copy(action)(connection)  # an append notes that it has run
    except StatementFailed as failure:
        return failure.state
    except JournalError as error:
        return repr(error)
