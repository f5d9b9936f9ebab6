"""Effects in a database: one for each call, on SQLite and on PostgreSQL, whatever is interrupted."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg
import pytest
from attrs import evolve, frozen

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext
from agentloop.contracts.tool import Tool
from agentloop.errors import ToolDefinitionError
from agentloop.testing.journal_bench import CrashableJournal
from agentloop.toolkits import EFFECTS_TABLE, sql_effect
from agentloop.values import Effect, ToolStatus
from agentloop.values.records import RecordKind
from tests.postgres import TcpProxy
from tests.toolkits.running import run_call, run_calls


@frozen
class Shop:
    """A database with a table of payments."""

    place: str
    opened: Callable[[], Any] | None = None

    def connect(self) -> Any:
        if self.opened is not None:
            return self.opened()
        if self.place.startswith("postgres"):
            return psycopg.connect(self.place)
        return sqlite3.connect(self.place)

    def run(self, statement: str) -> list[Any]:
        with closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return rows

    @property
    def payments(self) -> list[int]:
        return [row[0] for row in self.run("SELECT cents FROM payments ORDER BY cents")]

    @property
    def keys(self) -> list[str]:
        return [row[0] for row in self.run("SELECT effect_key FROM agentloop_effects ORDER BY effect_key")]

    def insert(self, connection: Any, cents: int) -> None:
        mark = "%s" if self.place.startswith("postgres") else "?"
        connection.cursor().execute(f"INSERT INTO payments VALUES ({mark})", (cents,))

    def tool(self, then: Callable[[Any, int], None] = lambda *_: None, **options: Any) -> Tool:
        @sql_effect(self.connect, **options)
        def pay(connection: Any, cents: int) -> dict[str, int]:
            """Pay."""
            self.insert(connection, cents)
            then(connection, cents)
            return {"paid": cents}

        return pay


@pytest.fixture
def shop(db: str) -> Shop:
    shop = Shop(db)
    shop.run("CREATE TABLE payments (cents INTEGER)")
    return shop


async def test_a_call_changes_the_database_with_its_key(shop: Shop) -> None:
    execution = await run_call([shop.tool()], "pay", cents=5)
    assert execution.status is ToolStatus.SUCCEEDED
    assert execution.value == {"paid": 5}
    assert shop.payments == [5]
    assert shop.keys == [execution.key]


async def test_two_calls_with_equal_arguments_are_two_changes(shop: Shop) -> None:
    await run_calls([shop.tool()], [("pay", {"cents": 5}), ("pay", {"cents": 5})])
    assert shop.payments == [5, 5]


async def test_the_model_sees_neither_the_connection_nor_the_call(shop: Shop) -> None:
    spec = shop.tool().spec
    assert list(spec.parameters["properties"]) == ["cents"]
    assert (spec.name, spec.description, spec.effect) == ("pay", "Pay.", Effect.IDEMPOTENT)


async def test_a_call_that_ran_before_a_crash_returns_the_recorded_result(shop: Shop) -> None:
    """The outcome is lost with the process: the recovery finds the key, and changes nothing."""
    journal = CrashableJournal()
    model = ScriptedInference(ToolCall("1", "pay", '{"cents": 5}'), "paid")
    await AgentLoop.for_model(model, tools=[shop.tool()], journal=journal).execute("Pay.", execution_id="run")
    kinds = [record.kind for record in journal.appended]
    survived = await journal.after_crash(kinds.index(RecordKind.CALL_OUTCOME))
    again = AgentLoop.for_model(ScriptedInference("paid"), tools=[shop.tool(_fail)], journal=survived)
    state = await again.recover("run")
    assert state.steps[0].executions[0].value == {"paid": 5}
    assert state.steps[0].executions[0].status is ToolStatus.SUCCEEDED
    assert shop.payments == [5]


def _fail(*_: object) -> None:
    raise AssertionError("the function runs a second time")


async def test_an_error_of_the_function_changes_nothing(shop: Shop) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no money")

    execution = await run_call([shop.tool(fail)], "pay", cents=5)
    assert execution.status is ToolStatus.FAILED
    assert "no money" in execution.error_message
    assert (shop.payments, shop.keys) == ([], [])


async def test_a_result_of_another_type_changes_nothing(shop: Shop) -> None:
    @sql_effect(shop.connect)
    def pay(connection: Any, cents: int) -> int:
        """Pay."""
        shop.insert(connection, cents)
        return "5"  # type: ignore[return-value]

    execution = await run_call([pay], "pay", cents=5)
    assert execution.status is ToolStatus.FAILED
    assert "nothing was changed" in execution.error_message
    assert (shop.payments, shop.keys) == ([], [])


async def test_a_call_that_has_timed_out_changes_nothing(shop: Shop) -> None:
    """A thread cannot be interrupted, but it looks whether somebody waits before it commits."""
    go_on, ended = threading.Event(), threading.Event()

    def wait(*_: object) -> None:
        go_on.wait(30)
        ended.set()

    execution = await run_call([shop.tool(wait, timeout=0.05)], "pay", cents=5)
    assert execution.status is ToolStatus.TIMED_OUT
    go_on.set()
    assert await asyncio.to_thread(ended.wait, 30)
    await asyncio.to_thread(_wait_until_unlocked, shop)
    assert (shop.payments, shop.keys) == ([], [])


def _wait_until_unlocked(shop: Shop) -> None:
    """Wait for the transaction: a new one on the table needs the lock that it has."""
    shop.run("DROP TABLE payments")
    shop.run("CREATE TABLE payments (cents INTEGER)")


async def test_a_zombie_and_its_successor_make_one_change(shop: Shop) -> None:
    """A process that was taken for dead runs a call while its successor runs it, too."""
    entered, go_on = threading.Event(), threading.Event()

    def stay(*_: object) -> None:
        entered.set()
        go_on.wait(30)

    def use(tool: Tool) -> Any:
        context = ToolContext[None](execution_id="run", agent_id="agent", idempotency_key="run/1/0")
        bound: Any = tool
        return (
            bound.with_tool_context(context).with_tool_call(ToolCall("1", "pay", '{"cents": 5}')).use_in_thread(cents=5)
        )

    zombie = asyncio.create_task(asyncio.to_thread(use, shop.tool(stay)))
    await asyncio.to_thread(entered.wait, 30)
    successor = asyncio.create_task(asyncio.to_thread(use, shop.tool(_fail)))
    go_on.set()
    first, second = await asyncio.gather(zombie, successor)
    assert first == second
    assert shop.payments == [5]


async def test_a_key_is_not_used_for_another_call(shop: Shop) -> None:
    context = ToolContext[None](execution_id="run", agent_id="agent", idempotency_key="run/1/0")
    pay: Any = shop.tool()
    for cents, said in ((5, ""), (6, "the key run/1/0 was used before")):
        bound = pay.with_tool_context(context).with_tool_call(ToolCall("1", "pay", f'{{"cents": {cents}}}'))
        if not said:
            bound.use_in_thread(cents=cents)
            continue
        with pytest.raises(Exception, match=said):
            bound.use_in_thread(cents=cents)
    assert shop.payments == [5]


async def test_a_function_that_commits_is_told_so(shop: Shop) -> None:
    execution = await run_call([shop.tool(lambda connection, _: connection.commit())], "pay", cents=5)
    assert "leave commit and rollback to @sql_effect" in execution.error_message


async def test_a_missing_table_is_named(shop: Shop) -> None:
    execution = await run_call([shop.tool(creates_table=False)], "pay", cents=5)
    assert "has no table agentloop_effects" in execution.error_message
    shop.run(EFFECTS_TABLE)
    execution = await run_call([shop.tool(creates_table=False)], "pay", cents=5)
    assert execution.status is ToolStatus.SUCCEEDED


@pytest.mark.parametrize("is_sent", [True, False], ids=["committed", "not committed"])
async def test_a_connection_that_is_lost_at_the_commit(
    postgres_proxy: TcpProxy, postgres_url: str, *, is_sent: bool
) -> None:
    """Whether the server has committed is not known then: the next attempt finds out."""
    direct = Shop(postgres_url)
    direct.run("CREATE TABLE payments (cents INTEGER)")
    direct.run(EFFECTS_TABLE)
    lost = iter([True])

    class Losing(psycopg.Connection[Any]):
        def commit(self) -> None:
            if not next(lost, False):
                super().commit()
                return
            if is_sent:
                self.pgconn.send_query(b"COMMIT")
                self.pgconn.flush()
                while not direct.payments:
                    pass
            postgres_proxy.cut()
            raise psycopg.OperationalError("the connection was reset")

    url = postgres_proxy.url(postgres_url)
    execution = await run_call([evolve(direct, opened=lambda: Losing.connect(url)).tool()], "pay", cents=5)
    assert execution.status is ToolStatus.SUCCEEDED, execution
    assert direct.payments == [5]
    assert next(lost, None) is None


@pytest.mark.parametrize("function", ["async", "method", "no parameter"])
def test_what_cannot_be_decorated_is_refused(function: str) -> None:
    async def wait(connection: Any) -> int:
        """Wait."""
        return 1

    def none() -> int:
        """Do nothing."""
        return 1

    class Store:
        def method(self, connection: Any) -> int:
            """Do nothing."""
            return 1

    given: Any = {"async": wait, "method": Store.method, "no parameter": none}[function]
    with pytest.raises(ToolDefinitionError, match="sql_effect"):
        sql_effect(lambda: sqlite3.connect(":memory:"))(given)
