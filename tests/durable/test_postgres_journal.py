"""PostgreSQL journals: the laws of journals, claims, restarts, cut connections, processes, listing and the schema."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing, nullcontext
from datetime import timedelta
from functools import partial

import psycopg
import pytest
import pytest_asyncio
from attrs import evolve

from agentloop.durable import Journal, PostgresJournal, SqliteJournal, open_journal, postgres_schema
from agentloop.durable.migrations import Migration
from agentloop.durable.postgres import schema, statements
from agentloop.durable.postgres.connections import PsycopgConnector, StatementFailed, read_url
from agentloop.errors import (
    ClaimLost,
    ConfigurationError,
    JournalBusy,
    JournalConflict,
    JournalCorrupt,
    JournalError,
    SchemaTooNew,
)
from agentloop.testing import JournalKit
from agentloop.testing.journal_bench import append_claimed
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.json import format_json
from agentloop.values.steps import ExecutionStatus
from tests.durable.processes import read_line, send_line, start_process
from tests.durable.records import START, append_head, append_records, make_head, make_records
from tests.durable.test_stored_form import converse
from tests.generated import examples
from tests.limits import LONGEST
from tests.postgres import PostgresServer, TcpProxy, cut_connections, run_sql


@pytest_asyncio.fixture
async def journal(postgres_url: str) -> AsyncIterator[PostgresJournal]:
    """A journal on an empty database."""
    journal = PostgresJournal(postgres_url)
    yield journal
    await journal.aclose()


async def until(is_done: Callable[[], Awaitable[object]]) -> None:
    """Repeat a look until it succeeds."""
    deadline = time.monotonic() + LONGEST
    while not await is_done():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def is_waiting(url: str) -> bool:
    """Return whether one connection waits for a lock of another one."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return run_sql(url, waiting) == [(1,)]


async def claim_when_free(journal: Journal, execution_id: str) -> object:
    """Claim an execution as soon as nobody holds it."""
    claims: list[object] = []

    async def is_claimed() -> bool:
        try:
            claims.append(await journal.claim(execution_id))
        except (JournalConflict, JournalBusy):
            return False
        return True

    await until(is_claimed)
    return claims[0]


# --- the laws ---------------------------------------------------------------------------------------------------------


class Schemas:
    """Journals on new schemas of a database, and on the same ones again."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._schemas: dict[int, tuple[object, str]] = {}

    def create(self, **options: object) -> PostgresJournal:
        return self._open(f"schema_{len(self._schemas)}", **options)

    def reopen(self, journal: object) -> PostgresJournal:
        return self._open(self._schemas[id(journal)][1])

    def _open(self, schema: str, **options: object) -> PostgresJournal:
        journal = PostgresJournal(self._url, schema=schema, pool_size=2, **options)  # type: ignore[arg-type]  # the kit passes secrets
        self._schemas[id(journal)] = (journal, schema)
        return journal


@pytest.mark.parametrize("law", JournalKit.laws)
def test_the_journal_satisfies_the_laws(postgres_url: str, law: int) -> None:
    """A PostgreSQL journal keeps every law of journals."""
    schemas = Schemas(postgres_url)
    kit = JournalKit(schemas.create, reopen=schemas.reopen, examples=examples(4))
    getattr(kit, f"law_{law}")()


async def test_a_transaction_whose_client_says_nothing_more_ends(postgres_url: str) -> None:
    """Its locks are free after the time of a statement: a process that is cut off in the middle of one blocks nobody for longer."""
    connector = PsycopgConnector(read_url(postgres_url), 1.0)
    lost, other = await connector.connect(), await connector.connect()
    await lost.rows("BEGIN")
    await lost.rows("SELECT pg_advisory_xact_lock(7)")

    async def is_free() -> bool:
        try:
            await other.rows("SELECT pg_advisory_xact_lock(7)")
        except StatementFailed as failure:
            if failure.state not in {"55P03", "57014"}:
                raise
            return False
        return True

    await until(is_free)
    with pytest.raises(StatementFailed) as raised:
        await lost.rows("COMMIT")
    assert raised.value.is_disconnected
    await lost.close()
    await other.close()


# --- records ----------------------------------------------------------------------------------------------------------


async def test_any_text_can_be_stored(postgres_url: str) -> None:
    """Bodies and ids are read back as they were, also with NUL and, in bodies, with lone surrogates."""
    journal = PostgresJournal(postgres_url, spill_bytes=64)
    bodies = [
        '{"a":"\\u0000\x00"}',
        '{"a":"\ud800"}',
        format_json({"b": "é😀" * 500}).decode(),
        '{"c":"%s"}' % ('"' * 90),
    ]
    for execution_id in ("e", "with\x00nul", "\x01", "long" * 2000, "é" * 5000, "a/b'\"%s{}"):
        records = await append_records(journal, execution_id, *bodies)
        assert list(await journal.read(execution_id)) == records
        assert list(await journal.read(execution_id, after=3)) == records[3:]
        head = await journal.head(execution_id)
        assert head == make_head(records)
        below = f"{execution_id}/1/0/agent"
        await append_records(journal, below, "{}")
        assert await journal.delete(execution_id)
        assert await journal.head(below) is None
        await append_records(journal, execution_id, "{}")
    assert len(await journal.list()) == 6
    assert await journal.verify() == ()
    await journal.aclose()


async def test_a_long_value_is_stored_once_per_execution(journal: PostgresJournal, postgres_url: str) -> None:
    """A long text in many records takes one row, and is deleted with its execution."""
    text = "long" * 10_000
    for execution_id in ("e", "f"):
        await append_records(
            journal, execution_id, *[format_json({"number": number, "result": text}).decode() for number in range(20)]
        )
    assert run_sql(postgres_url, "SELECT count(*) FROM agentloop.spills") == [(2,)]
    await journal.delete("e")
    assert run_sql(postgres_url, "SELECT count(*) FROM agentloop.spills") == [(1,)]
    assert len(await journal.read("f")) == 20


async def test_a_turn_of_a_conversation_stores_what_it_adds(journal: PostgresJournal, postgres_url: str) -> None:
    """Turns grow by what they add, are read as they were, also after others were deleted, and leave nothing behind."""
    state = await converse(journal, 30)
    assert (await journal.state("turn 29")).messages == state.messages
    ((length,),) = run_sql(postgres_url, "SELECT max(length(body)) FROM agentloop.records")
    assert isinstance(length, int)
    assert length < 3_000
    before = {turn: await journal.read(f"turn {turn}") for turn in range(30)}
    for turn in (0, 7, 8, 28):
        assert await journal.delete(f"turn {turn}")
        del before[turn]
    assert {turn: await journal.read(f"turn {turn}") for turn in before} == before
    await converse(journal, 2, start=state, first=30)
    assert (await journal.state("turn 31")).messages[: len(state.messages)] == state.messages
    assert await journal.verify() == ()
    for turn in (*before, 30, 31):
        await journal.delete(f"turn {turn}")
    assert run_sql(postgres_url, "SELECT count(*) FROM agentloop.prefixes") == [(0,)]


async def test_turns_can_be_appended_while_the_turns_before_are_deleted(postgres_url: str) -> None:
    """A turn that shares text with one that is deleted at the same time is stored whole."""
    writer, cleaner = PostgresJournal(postgres_url), PostgresJournal(postgres_url)
    state = await converse(writer, 2)
    for turn in range(2, 12):
        deleting = asyncio.ensure_future(cleaner.delete(f"turn {turn - 1}"))
        state = await converse(writer, 1, start=state, first=turn)
        await deleting
        assert (await writer.state(f"turn {turn}")).messages == state.messages
    assert await writer.verify() == ()
    await writer.aclose()
    await cleaner.aclose()


async def test_a_changed_beginning_of_a_conversation_is_found(journal: PostgresJournal, postgres_url: str) -> None:
    """A part of a beginning that was changed is found in every turn that starts with it."""
    await converse(journal, 4)
    run_sql(postgres_url, "UPDATE agentloop.prefixes SET data = data || 'x' WHERE parent IS NULL")
    assert {finding.execution_id for finding in await journal.verify()} >= {"turn 2", "turn 3"}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE agentloop.records SET body = '{}' WHERE sequence = 2",
        "UPDATE agentloop.records SET kind = 'nonsense' WHERE sequence = 2",
        "DELETE FROM agentloop.records WHERE sequence = 3",
        "DELETE FROM agentloop.records WHERE sequence = 2",
        "UPDATE agentloop.executions SET status = 'completed'",
        "UPDATE agentloop.spills SET data = 'x'",
        "DELETE FROM agentloop.spills",
    ],
)
async def test_damage_is_found(postgres_url: str, damage: str) -> None:
    """What was changed, dropped or lost behind the journal's back is a finding."""
    journal = PostgresJournal(postgres_url, spill_bytes=64)
    await append_records(journal, "e", '{"a":1}', format_json({"a": "x" * 200}).decode(), '{"a":3}')
    assert await journal.verify() == ()
    run_sql(postgres_url, damage)
    findings = await journal.verify()
    assert findings
    assert {finding.execution_id for finding in findings} == {"e"}
    await journal.aclose()


async def test_listing_with_a_hundred_thousand_executions_reads_few_rows(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """The next work, and each page of a list, is found by an index, however many executions are suspended."""
    await append_records(journal, "mine", "{}")
    claim = await journal.claim("claimed")
    await append_records(journal, "claimed", "{}", claim=claim)
    run_sql(
        postgres_url,
        "INSERT INTO agentloop.executions (execution_id, agent_id, number, status, step_count, record_count, last_hash, input, "
        "forked_from, started_at, updated_at, seal) SELECT 's' || n, 'a' || n, 1, 'suspended', 0, 0, '', '', '', n, n, '' "
        "FROM generate_series(1, 100000) AS n",
    )
    run_sql(postgres_url, "ANALYZE agentloop.executions")
    ids = await seconds_of(lambda: journal.list(status=ExecutionStatus.IN_PROGRESS, unclaimed=True, limit=10))
    assert ids == ["mine"]
    statuses = (ExecutionStatus.IN_PROGRESS, ExecutionStatus.SUSPENDED)
    first = await journal.list(status=statuses, limit=5)
    assert [head.execution_id for head in first] == ["mine", "claimed", "s100000", "s99999", "s99998"]
    second = await journal.list(status=statuses, limit=2, after=first[-1].cursor)
    assert [head.execution_id for head in second] == ["s99997", "s99996"]
    assert len(await journal.list(status=ExecutionStatus.SUSPENDED, unclaimed=True, limit=3)) == 3
    await claim.release()


async def seconds_of(list_heads: Callable[[], Awaitable[object]]) -> list[str]:
    heads = await list_heads()
    return [head.execution_id for head in heads]  # type: ignore[attr-defined]


async def test_purge_deletes_ended_and_unclaimed_executions(journal: PostgresJournal, postgres_url: str) -> None:
    """Running, recently updated and claimed executions remain; all others are deleted."""
    ended = [make_records(f"ended {number}", "{}") for number in range(20)]
    for records in ended:
        await append_claimed(journal, make_head(records, status=ExecutionStatus.FAILED), records)
    await append_records(journal, "running", "{}")
    late = make_records("late", "{}")
    cutoff = late[0].at + timedelta(hours=1)
    await append_claimed(journal, evolve(make_head(late, status=ExecutionStatus.STOPPED), updated_at=cutoff), late)
    claim = await journal.claim("ended 7")
    assert await journal.purge(cutoff) == 19
    assert {head.execution_id for head in await journal.list()} == {"running", "late", "ended 7"}
    await claim.release()
    assert await journal.purge(cutoff) == 1
    assert run_sql(postgres_url, "SELECT execution_id FROM agentloop.claims ORDER BY 1") == [("late",), ("running",)]


async def test_an_old_execution_is_purged(journal: PostgresJournal) -> None:
    """Also one that started before 1970."""
    await append_head(journal, "old", status=ExecutionStatus.FAILED, started_at=START.replace(year=1950))
    assert await journal.purge(START + timedelta(hours=1)) == 1


async def test_expired_trees_are_listed_newest_first(journal: PostgresJournal) -> None:
    """In the order in which their roots started."""
    for number in (2, 1, 3):
        started_at = START + timedelta(minutes=number)
        await append_head(journal, f"e{number}", status=ExecutionStatus.FAILED, started_at=started_at)
    trees = await journal.expired_trees(START + timedelta(hours=1))
    assert [tree.root.execution_id for tree in trees] == ["e3", "e2", "e1"]


async def test_a_purge_removes_the_claims_on_executions_that_never_started(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """Such a claim leaves a row; one that is held remains."""
    await (await journal.claim("never started")).release()
    claim = await journal.claim("about to start")
    assert await journal.purge(START) == 0
    assert run_sql(postgres_url, "SELECT execution_id FROM agentloop.claims") == [("about to start",)]
    await claim.release()


async def test_a_deleted_execution_leaves_no_command_and_no_claim(journal: PostgresJournal, postgres_url: str) -> None:
    """A later execution of the same id does not get what was posted for the deleted one."""
    await append_records(journal, "e", "{}")
    await journal.post(ExecutionCommand(id="c", execution_id="e", kind=CommandKind.STOP, posted_at=START))
    assert await journal.delete("e")
    assert run_sql(postgres_url, "SELECT count(*) FROM agentloop.claims") == [(0,)]
    await append_records(journal, "e", "{}")
    assert await journal.commands(["e"]) == ()


async def test_an_execution_that_is_deleted_twice_at_once_is_gone(journal: PostgresJournal, postgres_url: str) -> None:
    """A deletion that waits for another one of the same execution finds nothing and raises nothing."""
    await append_records(journal, "e", "{}")
    with psycopg.connect(postgres_url) as other:
        other.execute("UPDATE agentloop.claims SET token = token")
        other.execute("DELETE FROM agentloop.executions")
        deleting = asyncio.ensure_future(journal.delete("e"))
        await until(partial(is_waiting, postgres_url))
    await asyncio.wait_for(deleting, LONGEST)
    assert await journal.head("e") is None


async def test_a_tree_in_which_another_execution_starts_meanwhile_is_not_deleted(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """A deletion that waits for the claims of the tree, as it found it, leaves no execution without its caller."""
    for execution_id in ("e", "e/1/0/agent"):
        await append_records(journal, execution_id, "{}")
    with psycopg.connect(postgres_url) as other:
        other.execute("UPDATE agentloop.claims SET token = token")
        deleting = asyncio.ensure_future(journal.delete("e"))
        await until(partial(is_waiting, postgres_url))
        await append_records(journal, "e/1/1/agent", "{}")
    with pytest.raises(JournalConflict, match="e/1/1/agent"):
        await asyncio.wait_for(deleting, LONGEST)
    assert {head.execution_id for head in await journal.list()} == {"e", "e/1/0/agent", "e/1/1/agent"}
    assert await journal.delete("e")
    assert await journal.list() == ()


async def test_a_limited_page_below_a_long_prefix_is_full(journal: PostgresJournal) -> None:
    """The beginning of a long id is stored with a digest, which others share that do not have the prefix."""
    long = "x" * 2_000
    for number, execution_id in enumerate((f"{long} mine", f"{long} other", f"{long} last")):
        await append_head(journal, execution_id, started_at=START + timedelta(seconds=number))
    for limit in (1, None):
        heads = await journal.list(prefix=f"{long} mine", limit=limit)
        assert [head.execution_id for head in heads] == [f"{long} mine"]


async def test_an_id_with_a_control_character_is_found_by_its_beginning(journal: PostgresJournal) -> None:
    """The character with which encoded ids are marked is one of an id as others."""
    await append_head(journal, "a\x01b")
    assert [head.execution_id for head in await journal.list(prefix="a")] == ["a\x01b"]
    assert await journal.list(prefix="b") == ()


@pytest.mark.parametrize(
    "damage", ["status = 'nonsense'", """long_ids = '{"nonsense": "x"}'""", f"updated_at = {2**62}"]
)
async def test_a_damaged_head_is_named_by_its_execution(
    journal: PostgresJournal, postgres_url: str, damage: str
) -> None:
    """A head that cannot be read is damage, whatever is wrong with it."""
    await append_records(journal, "e", "{}")
    run_sql(postgres_url, f"UPDATE agentloop.executions SET {damage}")
    with pytest.raises(JournalCorrupt, match="the head of execution e cannot be read") as raised:
        await journal.head("e")
    assert raised.value.execution_id == "e"


async def test_a_transaction_that_the_server_undid_is_repeated(journal: PostgresJournal, postgres_url: str) -> None:
    """An append that a concurrent transaction was in the way of is stored, without an error."""
    await journal.list()
    function = (
        "CREATE FUNCTION undo() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN IF nextval('tries') <= 2 THEN "
        "RAISE EXCEPTION 'in the way' USING ERRCODE = '40001'; END IF; RETURN NEW; END $$"
    )
    trigger = "CREATE TRIGGER undo BEFORE INSERT ON agentloop.records FOR EACH ROW EXECUTE FUNCTION undo()"
    for statement in ("CREATE SEQUENCE tries", function, trigger):
        run_sql(postgres_url, statement)
    records = await append_records(journal, "e", "{}")
    assert list(await journal.read("e")) == records
    assert run_sql(postgres_url, "SELECT last_value FROM tries") == [(3,)]


async def test_an_agent_has_one_execution_of_each_number(journal: PostgresJournal) -> None:
    """A second one is refused, also one that gets the number later, and nothing of it is stored."""
    await append_head(journal, "first", agent_id="a", number=1)
    with pytest.raises(JournalConflict, match="cannot be number 1 of agent a"):
        await append_head(journal, "second", agent_id="a", number=1)
    assert await journal.head("second") is None
    head = await append_head(journal, "second", agent_id="a", number=2)
    more = make_records("second", "{}", after=await journal.read("second"))
    with pytest.raises(JournalConflict, match="cannot be number 1 of agent a"):
        await append_claimed(journal, make_head(more, agent_id="a", number=1), more)
    assert await journal.head("second") == head


async def test_a_connection_with_an_unexpected_error_is_not_used_again(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its state is then is not known."""
    journal = PostgresJournal(postgres_url, pool_size=1)
    await journal.post(ExecutionCommand(id="c", execution_id="e", kind=CommandKind.STOP, posted_at=START))

    def newest_process() -> object:
        return run_sql(
            postgres_url,
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'agentloop' ORDER BY backend_start DESC LIMIT 1",
        )

    processes = [newest_process()]
    assert len(await journal.commands(["e"])) == 1
    processes.append(newest_process())
    monkeypatch.setattr(statements, "read_command", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await journal.commands(["e"])
    await journal.list()
    processes.append(newest_process())
    assert processes[0] == processes[1] != processes[2]
    await journal.aclose()


# --- event loops and threads ------------------------------------------------------------------------------------------


def test_a_journal_serves_several_event_loops(postgres_url: str) -> None:
    """A journal serves a new event loop per call, and event loops in several threads."""
    journal = PostgresJournal(postgres_url)
    records = asyncio.run(append_records(journal, "e", "{}"))
    claim = asyncio.run(_claim(journal, "e"))
    assert asyncio.run(append_records(journal, "e", "{}", after=records, claim=claim))

    def work(name: str) -> None:
        for number in range(5):
            asyncio.run(append_records(journal, f"{name} {number}", "{}", "{}"))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("ada", "bob")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(journal.verify()) == ()
    asyncio.run(claim.release())
    asyncio.run(journal.aclose())


async def _claim(journal: PostgresJournal, execution_id: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    return await journal.claim(execution_id)


async def test_aclose_ends_the_thread_and_the_connections(postgres_url: str) -> None:
    """`aclose` leaves no thread and no connection, and the journal can be used again."""
    before = set(threading.enumerate())
    journal = PostgresJournal(postgres_url)
    for number in range(2):
        await append_records(journal, f"e{number}", "{}")
        assert {thread.name for thread in set(threading.enumerate()) - before} == {"agentloop journal"}
        await journal.aclose()
        assert set(threading.enumerate()) == before
        await journal.aclose()

    async def is_alone() -> bool:
        return run_sql(postgres_url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") == [
            (1,)
        ]

    await until(is_alone)


async def test_a_collected_journal_ends_its_thread(postgres_url: str) -> None:
    """Without `aclose`, the thread ends when the journal is garbage-collected."""
    before = set(threading.enumerate())
    journal = PostgresJournal(postgres_url)
    await append_records(journal, "e", "{}")
    threads = set(threading.enumerate()) - before
    assert threads
    del journal
    gc.collect()
    for thread in threads:
        thread.join(LONGEST)
        assert not thread.is_alive()


async def test_two_hundred_executions_share_eight_connections(postgres_url: str) -> None:
    """Many executions at once claim and append through a small pool; no more connections are open than are allowed."""
    journal = PostgresJournal(postgres_url, pool_size=8)

    async def run(number: int) -> None:
        claim = await journal.claim(f"e{number}")
        records = await append_records(journal, f"e{number}", "{}", claim=claim)
        await append_records(journal, f"e{number}", "{}", after=records, claim=claim)
        await claim.release()

    await asyncio.gather(*[run(number) for number in range(200)])
    assert len(await journal.list()) == 200
    ((connections,),) = run_sql(
        postgres_url,
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'agentloop' AND datname = current_database()",
    )
    assert isinstance(connections, int)
    assert connections <= 9
    assert await journal.verify() == ()
    await journal.aclose()


# --- claims and lost connections --------------------------------------------------------------------------------------


async def test_claims_survive_a_restart_of_the_server(own_postgres: PostgresServer) -> None:
    """After a crash of the server, an execution goes on under the claim that it had; others cannot take it over."""
    journal, other = PostgresJournal(own_postgres.url), PostgresJournal(own_postgres.url)
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    own_postgres.stop("immediate")
    appending = asyncio.ensure_future(append_records(journal, "e", "{}", after=records, claim=claim))
    own_postgres.start()
    await appending
    assert not claim.is_lost
    with pytest.raises(JournalConflict):
        await other.claim("e")
    assert len(await other.read("e")) == 2
    await claim.release()
    second = await other.claim("e")
    assert second.token > claim.token
    await journal.aclose()
    await other.aclose()


async def test_terminated_connections_cost_no_claim(journal: PostgresJournal, postgres_url: str) -> None:
    """When all connections are cut, the next append opens new ones, and the claim is the same."""
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    for _ in range(3):
        assert cut_connections(postgres_url)
        records = await append_records(journal, "e", "{}", after=records, claim=claim)
    assert list(await journal.read("e")) == records
    assert not claim.is_lost
    await claim.release()


async def test_a_claim_that_another_took_over_is_lost(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """While one journal is cut off, another takes over; the first one learns that its claim is lost, and appends nothing."""
    cut_off = PostgresJournal(postgres_proxy.url(postgres_url), session_timeout=1.0, statement_timeout=1.0)
    other = PostgresJournal(postgres_url)
    claim = await cut_off.claim("e")
    records = await append_records(cut_off, "e", "{}", claim=claim)
    postgres_proxy.refuse()
    second = await claim_when_free(other, "e")
    more = await append_records(other, "e", "{}", after=records, claim=second)  # type: ignore[arg-type]
    assert not claim.is_lost
    postgres_proxy.heal()
    assert "has claimed the execution" in await asyncio.wait_for(claim.lost(), LONGEST)
    with pytest.raises(ClaimLost):
        await append_records(cut_off, "e", '{"late":1}', after=records, claim=claim)
    assert list(await other.read("e")) == more
    await second.release()  # type: ignore[attr-defined]
    # What was lost is not in the way, although nobody has released it.
    third = await cut_off.claim("e")
    await append_records(cut_off, "e", "{}", after=more, claim=third)
    await claim.release()
    with pytest.raises(JournalConflict):
        await other.claim("e")
    await cut_off.aclose()
    await other.aclose()


async def test_a_late_append_with_an_old_token_is_refused(journal: PostgresJournal, postgres_url: str) -> None:
    """The token is compared in the transaction of the append, whatever the process believes about its claim."""
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    run_sql(postgres_url, "UPDATE agentloop.claims SET token = token + 1, session = NULL")
    with pytest.raises(ClaimLost, match="another writer has claimed"):
        await append_records(journal, "e", "{}", after=records, claim=claim)
    assert claim.is_lost
    assert len(await journal.read("e")) == 1
    renewed = await journal.claim("e")
    await append_records(journal, "e", "{}", after=records, claim=renewed)


async def test_an_append_that_was_refused_is_not_taken_for_one_without_an_answer(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """If another writer stores the same records, a later append of them conflicts, as these are no own ones."""
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    run_sql(postgres_url, "UPDATE agentloop.claims SET token = token + 1, session = NULL")
    with pytest.raises(ClaimLost):
        await append_records(journal, "e", "{}", after=records, claim=claim)
    other = PostgresJournal(postgres_url)
    await append_records(other, "e", "{}", after=records)
    await other.aclose()
    renewed = await journal.claim("e")
    with pytest.raises(JournalConflict):
        await append_records(journal, "e", "{}", after=records, claim=renewed)


async def test_an_append_whose_answer_was_lost_is_stored_once(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """The answer of the server is lost; repeating the append, also with more records, finds what is stored."""
    journal = PostgresJournal(postgres_proxy.url(postgres_url), statement_timeout=0.5)
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    # An announcement may be using one of them; to open another one takes answers.
    await asyncio.gather(*[journal.head("e") for _ in range(8)])
    postgres_proxy.hang_answers()
    more = make_records("e", '{"a":1}', '{"a":2}', after=records)
    appending = asyncio.ensure_future(journal.append(make_head(more[:1]), more[:1], claim))
    await until(lambda: _is_stored(postgres_url, 2))
    postgres_proxy.heal()
    await appending
    with pytest.raises(JournalConflict):
        await journal.append(make_head(more[:1]), more[:1], claim)
    await journal.append(make_head(more), more[1:], claim)
    assert list(await journal.read("e")) == [*records, *more]
    assert await journal.verify() == ()
    await journal.aclose()


async def _is_stored(url: str, count: int) -> bool:
    return run_sql(url, "SELECT count(*) FROM agentloop.records") == [(count,)]


async def test_an_append_over_a_hanging_network_raises_in_time_and_can_be_repeated(
    postgres_url: str, postgres_proxy: TcpProxy
) -> None:
    """A network that swallows everything ends in `JournalBusy`; afterwards the same records, and more, can be appended."""
    journal = PostgresJournal(postgres_proxy.url(postgres_url), statement_timeout=0.5, reconnect_timeout=0.5)
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    more = make_records("e", '{"a":1}', '{"a":2}', after=records)
    postgres_proxy.hang()
    with pytest.raises(JournalBusy, match="cannot be reached"):
        await journal.append(make_head(more[:1]), more[:1], claim)
    postgres_proxy.heal()
    await journal.append(make_head(more), more, claim)
    assert list(await journal.read("e")) == [*records, *more]
    await journal.aclose()


async def test_a_half_closed_connection_is_replaced(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """When the server hears that nothing more comes, it ends the connections, and the journal opens others."""
    journal = PostgresJournal(postgres_proxy.url(postgres_url))
    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    postgres_proxy.close_half()
    await append_records(journal, "e", "{}", after=records, claim=claim)
    assert not claim.is_lost
    await journal.aclose()


async def test_a_server_that_is_not_there_raises_an_error(own_postgres: PostgresServer) -> None:
    """Without a server, the first use raises at once and names host and database, never the password."""
    own_postgres.stop("fast")
    url = own_postgres.url.replace("postgres@", "postgres:hidden-word@")
    journal = PostgresJournal(url)
    for use in (journal.head("e"), journal.claim("e")):
        with pytest.raises(JournalBusy, match="cannot be reached") as raised:
            await use
        assert "hidden-word" not in str(raised.value)
        assert "hidden-word" not in repr(raised.value.__cause__)
    assert "hidden-word" not in repr(journal)
    await journal.aclose()


async def test_an_append_without_its_claim_in_the_database_is_refused(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """A claim that is not there any more is lost, as if another one had replaced it."""
    claim = await journal.claim("e")
    run_sql(postgres_url, "DELETE FROM agentloop.claims")
    with pytest.raises(ClaimLost, match=f"with token 0, after {claim.token}"):
        await append_records(journal, "e", "{}", claim=claim)
    assert await journal.read("e") == ()


async def test_a_claim_that_is_cancelled_while_it_is_made_is_released(journal: PostgresJournal) -> None:
    """Nobody holds what nobody got."""
    claiming = asyncio.ensure_future(journal.claim("e"))
    await asyncio.sleep(0)
    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming
    await claim_when_free(journal, "e")


async def test_a_claim_that_could_not_be_released_is_released_later(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """The release fails in time, and the session makes up for it as soon as it is used again."""
    holder = PostgresJournal(postgres_url, statement_timeout=0.5, session_timeout=LONGEST)
    claim = await holder.claim("e")
    with psycopg.connect(postgres_url) as locker:
        locker.execute("LOCK TABLE agentloop.claims IN EXCLUSIVE MODE")
        with pytest.raises(JournalBusy):
            await claim.release()
    await holder.wait_for_change("e", timeout=0)
    await claim_when_free(journal, "e")
    await holder.aclose()


async def test_a_claim_waits_for_a_session_that_was_lost(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """While only the session cannot be reached, a claim does not fail at once."""
    journal = PostgresJournal(postgres_url, direct_url=postgres_proxy.url(postgres_url), session_timeout=LONGEST)
    claims = [await journal.claim("e")]
    postgres_proxy.refuse()

    async def has_noticed() -> bool:
        return postgres_proxy.refused_count > 0

    await until(has_noticed)
    claiming = asyncio.ensure_future(journal.claim("f"))
    assert not (await asyncio.wait({claiming}, timeout=0.5))[0]
    postgres_proxy.heal()
    claims.append(await claiming)
    assert [claim.is_lost for claim in claims] == [False, False]
    await journal.aclose()


async def test_a_claim_fails_when_the_session_stays_lost(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """It waits for a third of the time after which a session ends, and not for many attempts to connect."""
    journal = PostgresJournal(postgres_url, direct_url=postgres_proxy.url(postgres_url), session_timeout=0.3)
    await journal.claim("e")
    postgres_proxy.refuse()

    async def has_noticed() -> bool:
        return postgres_proxy.refused_count > 0

    await until(has_noticed)
    attempts = postgres_proxy.refused_count
    with pytest.raises(JournalBusy, match="cannot be reached"):
        await journal.claim("f")
    assert postgres_proxy.refused_count - attempts <= 4
    postgres_proxy.heal()
    await journal.aclose()


@pytest.mark.parametrize(("uptime", "is_free"), [("1.9 seconds", False), ("2.1 seconds", True), ("-1 hour", True)])
async def test_nobody_takes_over_claims_for_two_seconds_after_a_start_of_the_server(
    journal: PostgresJournal, postgres_url: str, uptime: str, *, is_free: bool
) -> None:
    """Whoever held them is connecting again."""
    await append_records(journal, "e", "{}")
    run_sql(postgres_url, "UPDATE agentloop.claims SET session = 1000000")
    run_sql(postgres_url, "CREATE SCHEMA uptime")
    run_sql(
        postgres_url,
        "CREATE FUNCTION uptime.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql "
        f"AS $$ SELECT clock_timestamp() - interval '{uptime}' $$",
    )
    mark = "&" if "?" in postgres_url else "?"
    other = PostgresJournal(f"{postgres_url}{mark}options=-csearch_path%3Duptime,pg_catalog")
    with nullcontext() if is_free else pytest.raises(JournalConflict):
        await other.claim("e")
    await other.aclose()


# --- processes --------------------------------------------------------------------------------------------------------


async def test_a_claim_ends_with_its_process(journal: PostgresJournal, postgres_url: str) -> None:
    """Another process cannot claim a claimed execution, and can as soon as its holder was killed."""
    with start_process(postgres_url, "claim", "e") as holder:
        assert read_line(holder) == "claimed"
        with start_process(postgres_url, "claim", "e") as other:
            assert "is claimed by" in read_line(other)
        with pytest.raises(JournalConflict):
            await journal.claim("e")
        holder.send_signal(signal.SIGKILL)
        holder.wait(LONGEST)
        await claim_when_free(journal, "e")


async def test_a_stopped_process_loses_its_claim_in_time(postgres_url: str) -> None:
    """The server ends the session of a process that does not answer, and its claim can be taken over."""
    journal = PostgresJournal(postgres_url)
    with start_process(postgres_url, "hold", "e", 1.0) as holder:
        assert read_line(holder) == "claimed"
        holder.send_signal(signal.SIGSTOP)
        await claim_when_free(journal, "e")
        holder.send_signal(signal.SIGCONT)
        assert "has claimed the execution" in read_line(holder)
    await journal.aclose()


async def test_two_processes_can_append_to_one_execution(journal: PostgresJournal, postgres_url: str) -> None:
    """Two processes that append to one execution build one chain, each record by exactly one of them."""
    await append_records(journal, "e", "{}")
    with ExitStack() as stack:
        children = [stack.enter_context(start_process(postgres_url, "race", "e", 20, name)) for name in ("ada", "bob")]
        assert [read_line(child) for child in children] == ["ready", "ready"]
        for child in children:
            send_line(child)
        numbers: list[int] = []
        for child in children:
            while line := read_line(child):
                numbers.append(int(line))
    assert sorted(numbers) == list(range(2, max(numbers) + 1))
    assert max(numbers) >= 20
    assert await journal.verify() == ()


async def test_acknowledged_appends_survive_kill_9(journal: PostgresJournal, postgres_url: str) -> None:
    """What an append has acknowledged is there after the process was killed, and the chain is intact."""
    with start_process(postgres_url, "append", "e", 3) as child:
        assert read_line(child) == "ready"
        acknowledged = [int(read_line(child)) for _ in range(5)][-1]
        child.kill()
    assert len(await journal.read("e")) >= acknowledged
    assert await journal.verify() == ()


async def test_a_forked_process_has_connections_of_its_own(journal: PostgresJournal) -> None:
    """A child process reads through the journal of its parent, without its claims, and leaves those alone when it ends."""
    import os  # noqa: PLC0415

    claim = await journal.claim("e")
    records = await append_records(journal, "e", "{}", claim=claim)
    child = await asyncio.to_thread(_fork, journal, claim)
    _, status = await asyncio.to_thread(os.waitpid, child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await append_records(journal, "e", "{}", after=records, claim=claim)
    assert not claim.is_lost
    await claim.release()


def _fork(journal: PostgresJournal, claim: object) -> int:
    import os  # noqa: PLC0415
    import warnings  # noqa: PLC0415

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 warns of forks in a process with threads
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        loop = asyncio.new_event_loop()
        count = len(loop.run_until_complete(journal.read("e")))
        loop.run_until_complete(journal.aclose())
        code = 0 if count == 1 and claim.is_lost else 2  # type: ignore[attr-defined]
    finally:
        os._exit(code)


# --- the schema -------------------------------------------------------------------------------------------------------


async def test_ten_journals_that_start_at_once_create_the_tables_once(postgres_url: str) -> None:
    """Concurrent first uses of an empty database create one set of tables, and none of them fails."""
    journals = [PostgresJournal(postgres_url) for _ in range(10)]
    await asyncio.gather(*[append_records(each, f"e{number}", "{}") for number, each in enumerate(journals)])
    assert len(await journals[0].list()) == 10
    for each in journals:
        await each.aclose()


async def test_journals_in_two_schemas_are_two_journals(postgres_url: str) -> None:
    """Executions and claims of one schema are unknown in another one of the same database."""
    first, second = PostgresJournal(postgres_url), PostgresJournal(postgres_url, schema="other")
    claims = [await each.claim("e") for each in (first, second)]
    await append_records(first, "e", "{}", claim=claims[0])
    assert await second.list() == ()
    for each in (first, second):
        await each.aclose()


async def test_a_newer_version_is_refused_below_its_min_reader(postgres_url: str) -> None:
    """A later version of the tables is used when it allows that, and refused otherwise."""
    journal = PostgresJournal(postgres_url)
    await append_records(journal, "e", "{}")
    await journal.aclose()
    run_sql(postgres_url, "UPDATE agentloop.meta SET value = '99' WHERE name = 'schema_version'")
    assert len(await journal.read("e")) == 1
    await journal.aclose()
    run_sql(postgres_url, "UPDATE agentloop.meta SET value = '98' WHERE name = 'min_reader'")
    with pytest.raises(SchemaTooNew):
        await journal.read("e")
    await journal.aclose()


async def test_tables_of_an_earlier_version_are_upgraded(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later program adds what is new, all or nothing, keeps what is there, and says which programs can use the result."""

    async def use(*statements: str, min_reader: int = schema.MIGRATIONS[-1].min_reader) -> int:
        """Use the journal with the program whose tables have one version more; return the number of executions."""
        later = Migration(version=schema.VERSION + 1, min_reader=min_reader, statements=statements)
        with monkeypatch.context() as patch:
            patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, later))
            patch.setattr(schema, "VERSION", later.version)
            async with aclosing(PostgresJournal(postgres_url)) as journal:
                return len(await journal.list())

    def meta() -> dict[str, str]:
        return {
            str(name): str(value) for name, value in run_sql(postgres_url, "SELECT name, value FROM agentloop.meta")
        }

    async with aclosing(PostgresJournal(postgres_url)) as journal:
        records = await append_records(journal, "e", "{}")
        former = meta()
        extra = "ALTER TABLE {schema}.executions ADD COLUMN extra text NOT NULL DEFAULT ''"
        with pytest.raises(JournalError):
            await use(extra, "not a statement")
        assert meta() == former
        assert await use(extra) == await use(extra) == 1
        assert meta() == {**former, "schema_version": str(schema.VERSION + 1)}
        records = await append_records(journal, "e", "{}", after=records)
        assert await journal.verify() == ()
    run_sql(postgres_url, f"UPDATE agentloop.meta SET value = '{schema.VERSION}' WHERE name = 'schema_version'")
    assert await use("CREATE TABLE {schema}.more (a text)", min_reader=schema.VERSION + 1) == 1
    assert set(meta().values()) == {str(schema.VERSION + 1)}
    with pytest.raises(SchemaTooNew):
        await journal.read("e")
    await journal.aclose()


async def test_a_role_without_rights_gets_the_statements_to_run(postgres_url: str) -> None:
    """A role that may not create tables is told what to run; afterwards it works with the rights on them alone."""
    run_sql(postgres_url, "DROP ROLE IF EXISTS agentloop_plain")
    run_sql(postgres_url, "CREATE ROLE agentloop_plain LOGIN")
    try:
        journal = PostgresJournal(postgres_url.replace("postgres@", "agentloop_plain@"))
        with pytest.raises(JournalError, match=r"may not create the tables.*postgres_schema"):
            await journal.head("e")
        for statement in postgres_schema().split(";\n"):
            if statement.strip():
                run_sql(postgres_url, statement)
        for grant in (
            "USAGE ON SCHEMA agentloop",
            "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA agentloop",
            "USAGE ON ALL SEQUENCES IN SCHEMA agentloop",
        ):
            run_sql(postgres_url, f"GRANT {grant} TO agentloop_plain")
        await append_records(journal, "e", "{}")
        assert await journal.delete("e")
        await journal.aclose()
    finally:
        run_sql(postgres_url, "DROP OWNED BY agentloop_plain")
        run_sql(postgres_url, "DROP ROLE agentloop_plain")


async def test_a_server_that_cannot_be_written_is_no_matter_of_rights(postgres_url: str) -> None:
    """The tables cannot be created on a standby, whoever tries."""
    ((name,),) = run_sql(postgres_url, "SELECT current_database()")
    run_sql(postgres_url, f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    journal = PostgresJournal(postgres_url)
    with pytest.raises(JournalBusy, match="the server is read-only"):
        await journal.head("e")
    await journal.aclose()


async def test_a_schema_of_something_else_is_refused(postgres_url: str) -> None:
    """A schema with a table `meta` of another program is not changed."""
    run_sql(postgres_url, "CREATE SCHEMA agentloop")
    run_sql(postgres_url, "CREATE TABLE agentloop.meta (name text, value text)")
    journal = PostgresJournal(postgres_url)
    with pytest.raises(JournalError, match="not one of a journal"):
        await journal.list()
    await journal.aclose()


async def test_an_unknown_database_raises_an_error(postgres_url: str) -> None:
    """A database that does not exist is a plain error, not one to wait for."""
    journal = PostgresJournal(f"{postgres_url.replace('/test_', '/absent_')}")
    with pytest.raises(JournalError, match="no such database") as raised:
        await journal.list()
    assert not isinstance(raised.value, JournalBusy | JournalCorrupt)
    await journal.aclose()


# --- changes ----------------------------------------------------------------------------------------------------------


async def test_a_change_by_another_journal_wakes_those_who_wait(postgres_url: str) -> None:
    """An append through one journal wakes the waiter of another; a wait without a change ends after its timeout."""
    first, second = PostgresJournal(postgres_url), PostgresJournal(postgres_url)
    for execution_id in ("e", ""):
        assert await second.wait_for_change(execution_id, timeout=LONGEST)
        while await second.wait_for_change(execution_id, timeout=0.05):
            pass
        waiting = asyncio.ensure_future(second.wait_for_change(execution_id, timeout=LONGEST, caller=first))
        assert await waiting
        waiting = asyncio.ensure_future(second.wait_for_change(execution_id, timeout=LONGEST, caller=first))
        await append_records(first, "e", "{}", after=await first.read("e"))
        assert await waiting
    await first.aclose()
    await second.aclose()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE agentloop.executions SET last_hash = decode('01', 'hex') WHERE execution_id = 'e'",
        "INSERT INTO agentloop.commands (id, execution_id, body) VALUES ('c', 'e', '')",
        "DELETE FROM agentloop.executions WHERE execution_id = 'e'",
    ],
)
async def test_changes_are_found_when_notifications_are_lost(
    journal: PostgresJournal, postgres_url: str, change: str
) -> None:
    """Who waits for an execution, or for any, wakes after a change of which nobody has told."""
    await append_records(journal, "e", "{}")
    await append_records(journal, "f", "{}")
    for execution_id in ("e", "", "f"):
        while await journal.wait_for_change(execution_id, timeout=0.05):
            pass
    started = time.monotonic()
    waiting = [asyncio.create_task(woken_by(journal, each)) for each in ("e", "")]
    run_sql(postgres_url, change)
    await asyncio.gather(*waiting)
    assert time.monotonic() - started < LONGEST
    assert not await journal.wait_for_change("f", timeout=1.5)


async def woken_by(journal: PostgresJournal, execution_id: str) -> None:
    """Wait for one change, as a caller of its own that has seen what there is."""
    await journal.wait_for_change(execution_id, timeout=0)
    assert await journal.wait_for_change(execution_id, timeout=LONGEST)


async def test_an_append_is_announced_to_other_processes(journal: PostgresJournal, postgres_url: str) -> None:
    """Whoever listens hears which execution has changed, and by which session; each time that one changes."""
    await journal.list()
    with psycopg.connect(postgres_url, autocommit=True) as listener:
        listener.execute("LISTEN agentloop_agentloop")
        for execution_id in "ef":
            await append_records(journal, execution_id, "{}")
            heard = await asyncio.to_thread(lambda: next(listener.notifies(timeout=LONGEST), None))
            assert heard is not None
            assert heard.payload.endswith(f" {execution_id}")


async def test_those_who_wait_hear_what_others_tell(journal: PostgresJournal, postgres_url: str) -> None:
    """A notification wakes who waits, though no look would find a change; also after the connection was lost."""

    async def tell(waiting: asyncio.Future[bool]) -> bool:
        run_sql(postgres_url, "SELECT pg_notify('agentloop_agentloop', '0 e')")
        return waiting.done()

    async def has_a_session() -> bool:
        return run_sql(postgres_url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(1,)]

    for _ in range(2):
        await journal.wait_for_change("e", timeout=0, caller=journal)
        await until(has_a_session)
        while await journal.wait_for_change("e", timeout=0.05, caller=journal):
            pass
        waiting = asyncio.ensure_future(journal.wait_for_change("e", timeout=LONGEST, caller=journal))
        await until(partial(tell, waiting))
        assert await waiting
        cut_connections(postgres_url)


async def test_those_who_wait_look_again_when_the_connection_is_lost(
    journal: PostgresJournal, postgres_url: str
) -> None:
    """What others have told meanwhile was not heard."""
    await journal.wait_for_change("e", timeout=0, caller=journal)
    while await journal.wait_for_change("e", timeout=0.05, caller=journal):
        pass
    waiting = asyncio.ensure_future(journal.wait_for_change("e", timeout=LONGEST, caller=journal))
    await asyncio.sleep(0)
    cut_connections(postgres_url)
    assert await waiting


async def test_a_journal_listens_once_the_server_can_be_reached(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """A first wait that fails is repeated by the next one."""
    journal = PostgresJournal(postgres_proxy.url(postgres_url), reconnect_timeout=0.2)
    postgres_proxy.refuse()
    with pytest.raises(JournalBusy):
        await journal.wait_for_change("e", timeout=0)
    postgres_proxy.heal()
    await journal.wait_for_change("e", timeout=0)
    sessions = run_sql(postgres_url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
    await journal.aclose()
    assert sessions == [(1,)]


async def test_every_wait_without_a_session_raises(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """Nothing would be heard, so that a first failed wait does not let later ones wait in vain."""
    journal = PostgresJournal(postgres_url, direct_url=postgres_proxy.url(postgres_url))
    postgres_proxy.refuse()
    for _ in range(2):
        with pytest.raises(JournalBusy, match="cannot be reached"):
            await journal.wait_for_change("e", timeout=LONGEST)
    postgres_proxy.heal()
    await journal.aclose()


# --- opening ----------------------------------------------------------------------------------------------------------


def test_journals_are_opened_by_path_or_url(tmp_path: object) -> None:
    """A path or sqlite:/// is a file, postgresql:// is a database, and anything else is refused without showing it."""
    assert isinstance(open_journal(f"{tmp_path}/a.db"), SqliteJournal)
    sqlite = open_journal(f"sqlite:///{tmp_path}/a.db")
    assert isinstance(sqlite, SqliteJournal)
    assert str(sqlite.path) == f"{tmp_path}/a.db"
    journal = open_journal("postgres://me:hidden-word@example.com/runs", secrets=["abcdefgh"])
    assert isinstance(journal, PostgresJournal)
    assert repr(journal) == "PostgresJournal('example.com/runs', schema='agentloop')"
    for url in ("mysql://me:hidden-word@host/db", "postgresql://me:hidden-word%zz@host/db"):
        with pytest.raises(ConfigurationError) as raised:
            open_journal(url)
        assert "hidden-word" not in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [{"pool_size": 0}, {"spill_bytes": 0}, {"statement_timeout": 0}, {"session_timeout": -1}, {"schema": 'a"b'}],
)
def test_invalid_options_are_refused(options: dict[str, object]) -> None:
    """Options that make no sense raise when the journal is made."""
    with pytest.raises(ConfigurationError):
        open_journal("postgresql://localhost/runs", **options)


def test_one_connection_and_any_length_are_enough() -> None:
    """The smallest options that make sense are accepted."""
    assert isinstance(open_journal("postgresql://localhost/runs", pool_size=1, spill_bytes=1), PostgresJournal)


async def test_a_pooler_without_sessions_is_told_from_a_server_that_cannot_be_reached() -> None:
    """The answer is that of PgBouncer, which refuses settings of a session."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big") - 4)
        fields = b"SFATAL\0C08P01\0Munsupported startup parameter: options\0\0"
        writer.write(b"E" + (len(fields) + 4).to_bytes(4, "big") + fields)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as pooler:
        port = pooler.sockets[0].getsockname()[1]
        journal = PostgresJournal(f"postgresql://agents@127.0.0.1:{port}/runs?sslmode=disable&gssencmode=disable")
        with pytest.raises(JournalError, match="direct_url"):
            await journal.head("a")
        await journal.aclose()
