"""Accounts of money that many executions share: one sum for a batch, a day, a tenant, and sub-agents."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCallingDriver, handoff_to, tool
from agentloop.contracts import CanInfer, CanKeepAccounts
from agentloop.durable import MemoryJournal, PostgresJournal, SqliteJournal, open_journal, replay
from agentloop.errors import BadRequest, ConfigurationError, InvalidResponse
from agentloop.events import BudgetShareUsed
from agentloop.loop import Identity
from agentloop.policies import BudgetAccount, Price, PriceTable
from agentloop.policies.budgets.memory_accounts import MemoryAccounts
from agentloop.testing import AccountKit, LoopClock, run_in_virtual_time
from agentloop.testing.journal_network import UnreliableJournal
from agentloop.values import (
    AccountBalance,
    AccountHold,
    AccountKey,
    AccountState,
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Spending,
    SpendingLimit,
    Text,
    ToolCall,
    Usage,
)
from agentloop.values.run_requests import with_request
from tests.policies.budget_models import status_and_reason

TABLE = PriceTable({"big-*": Price(input=10, output=50)})
TICKET = 0.014  # 900 input tokens and 100 output tokens


class TicketModel(CanInfer):
    """Answers each request after a second, and counts what that costs."""

    def __init__(self, usage: Usage | None = None, *, seconds: float = 1.0) -> None:
        self.usage = usage or Usage(900, 100)
        self.seconds = seconds
        self.answers = 0

    async def infer(self, _: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(self.seconds)
        self.answers += 1
        return InferenceResponse((Text("done"),), FinishReason.STOP, self.usage, "big-1")


def account_of(cost: float, **options: object) -> BudgetAccount:
    """Return an account whose requests reserve 300 output tokens."""
    settings = {"prices": TABLE, "model": "big-1", "max_output_tokens": 300, **options}
    return BudgetAccount("tickets", cost=cost, **settings)  # type: ignore[arg-type]  # of the tests


def test_a_batch_stops_at_its_sum() -> None:
    """Of 500 tickets under a sum for 100 of them, about 100 are answered, and the sum is not exceeded."""
    model, account = TicketModel(), account_of(1.4)
    loop = AgentLoop(ToolCallingDriver(model), interceptors=[account], clock=LoopClock())
    reached: list[int] = []
    loop.on(BudgetShareUsed, lambda event: reached.append(event.percent))

    async def run() -> list[AgentState]:
        slots = asyncio.Semaphore(20)

        async def one(number: int) -> AgentState:
            async with slots:
                return await loop.execute(f"ticket {number}")

        return await asyncio.gather(*[one(number) for number in range(500)])

    states = run_in_virtual_time(run())
    answered = sum(state.status.value == "completed" for state in states)
    stopped = [state for state in states if status_and_reason(state) == ("stopped", "cost_limit")]
    assert answered == model.answers
    assert answered + len(stopped) == 500
    assert 98 <= answered <= 100
    balance = asyncio.run(account.balance())
    assert balance.spent.dollars == pytest.approx(answered * TICKET)
    assert balance.spent.dollars <= 1.4
    assert balance.reserved == Spending()
    assert reached == [50, 80, 100]
    signal = stopped[-1].stop_signal
    assert signal is not None
    assert "the budget account 'tickets' has $" in signal.message
    assert signal.context["account"] == "tickets"


class CallerModel(CanInfer):
    """Calls a helper, and then answers."""

    def __init__(self) -> None:
        self.answers = 0

    async def infer(self, _: InferenceRequest) -> InferenceResponse:
        self.answers += 1
        part = ToolCall("1", "helper", '{"task": "count"}') if self.answers == 1 else Text("done")
        reason = FinishReason.TOOL_CALLS if self.answers == 1 else FinishReason.STOP
        return InferenceResponse((part,), reason, Usage(900, 100), "big-1")


@pytest.mark.parametrize("has_account", [False, True])
def test_sub_agents_use_the_account_of_their_caller_once(*, has_account: bool) -> None:
    """What a sub-agent uses is charged to its caller's account, also where it has the account itself, and never twice."""
    account, model = account_of(10.0, by=lambda state: state.context.system_prompt), TicketModel()
    own = [account] if has_account else []
    child = AgentLoop(ToolCallingDriver(model), interceptors=own, clock=LoopClock())
    loop = AgentLoop(
        ToolCallingDriver(CallerModel()),
        tools=[child.as_tool("helper", "Helps.")],
        interceptors=[account],
        system_prompt="ada",
        clock=LoopClock(),
    )
    state = run_in_virtual_time(loop.execute("go"))
    assert state.status.value == "completed", state.errors
    assert model.answers == 1
    balance = asyncio.run(account.balance("ada"))
    assert balance.requests == 3
    assert balance.spent == Spending(3_000, 3 * 14 * 10**9)


def test_two_objects_for_one_database_charge_a_request_once(tmp_path: Path) -> None:
    """A caller and its sub-agent, each with a journal object of its own on one file, charge each request once, to one owner."""
    journals = [SqliteJournal(tmp_path / "runs.db", synchronous="normal") for _ in range(2)]
    accounts = [account_of(10.0, by=lambda state: state.context.system_prompt, store=journal) for journal in journals]
    child = AgentLoop(ToolCallingDriver(TicketModel(seconds=0)), interceptors=[accounts[1]])
    tools = [child.as_tool("helper", "Helps.")]
    loop = AgentLoop(ToolCallingDriver(CallerModel()), tools=tools, interceptors=[accounts[0]], system_prompt="ada")

    async def run() -> list[tuple[str, int, int]]:
        assert (await loop.execute("go")).status.value == "completed"
        found = await journals[0].accounts()
        for journal in journals:
            await journal.aclose()
        return [(key.owner, state.requests, len(state.holds)) for key, state in found]

    assert asyncio.run(run()) == [("ada", 3, 0)]


def test_accounts_of_one_name_in_two_stores_are_two() -> None:
    """A caller and its sub-agent whose accounts of one name are in different stores charge each store."""
    accounts = [account_of(10.0), account_of(10.0)]
    child = AgentLoop(ToolCallingDriver(TicketModel(seconds=0)), interceptors=[accounts[1]])
    tools = [child.as_tool("helper", "Helps.")]
    loop = AgentLoop(ToolCallingDriver(CallerModel()), tools=tools, interceptors=[accounts[0]])
    asyncio.run(loop.execute("go"))
    assert [asyncio.run(account.balance()).requests for account in accounts] == [3, 1]


def test_days_and_tenants_have_sums_of_their_own() -> None:
    """A new day in the time zone of the account begins a new sum, and each owner has one."""
    clock = LoopClock()
    account = account_of(0.04, per="day", zone="Asia/Tokyo", by=lambda state: state.context.system_prompt)
    assert account.key(datetime(2026, 11, 29, 20, tzinfo=UTC)).period == "2026-11-30"
    loop = AgentLoop(ToolCallingDriver(TicketModel()), interceptors=[account], clock=clock)

    async def run() -> list[str]:
        found = []
        for owner in ("a", "a", "a", "a", "b"):
            state = await loop.replace(system_prompt=owner).execute("ticket")
            found.append(status_and_reason(state)[0])
        await asyncio.sleep(24 * 3600)
        found.append(status_and_reason(await loop.replace(system_prompt="a").execute("ticket"))[0])
        return found

    assert run_in_virtual_time(run()) == ["completed"] * 2 + ["stopped"] * 2 + ["completed"] * 2


ADA, ANN = Identity("ada", tenant="acme"), Identity("ann", tenant="acme")
OTHER_ADA, NOBODY_S = Identity("ada", tenant="bell/co"), Identity("ada")


@pytest.mark.parametrize(
    ("by", "owners"),
    [("tenant", ["acme", "acme", "bell/co"]), ("principal", ["acme/ada", "acme/ann", "bell%2Fco/ada", "ada"])],
)
async def test_who_asks_or_the_tenant_has_a_sum(by: Literal["tenant", "principal"], owners: list[str]) -> None:
    """Each principal, or each tenant, has a sum of its own; two tenants may have principals of one name."""
    account = account_of(10.0, by=by)
    loop = AgentLoop(ToolCallingDriver(TicketModel(seconds=0)), interceptors=[account])
    for number, principal in enumerate([ADA, ANN, OTHER_ADA, NOBODY_S][: len(owners)]):
        state = with_request(AgentState.start("ticket"), f"run-{number}", principal)
        assert (await loop.execute(state, execution_id=f"run-{number}")).status.value == "completed"
    assert {owner: (await account.balance(owner)).requests for owner in owners} == Counter(owners)


async def test_an_account_is_kept_in_the_journal_of_the_execution() -> None:
    """Without a store of its own, loops with one journal share the sum; its balance is read there."""
    journal = MemoryJournal()
    accounts = [account_of(10.0), account_of(10.0)]
    for account in accounts:
        loop = AgentLoop(ToolCallingDriver(TicketModel(seconds=0)), interceptors=[account], journal=journal)
        await loop.execute("ticket")
    ((key, state),) = await journal.accounts()
    assert (key, state.requests) == (AccountKey("tickets"), 2)
    assert [(await account.balance()).requests for account in accounts] == [2, 2]


async def test_a_journal_that_keeps_no_accounts_needs_a_store() -> None:
    """An execution in such a journal does not begin with an account in memory, which other processes would not see."""
    model, journal = TicketModel(seconds=0), UnreliableJournal(MemoryJournal())
    loop = AgentLoop(ToolCallingDriver(model), interceptors=[account_of(10.0)], journal=journal)
    with pytest.raises(ConfigurationError, match="the journal of the execution, keeps no accounts; give store="):
        await loop.execute("ticket")
    assert model.answers == 0
    stored = account_of(10.0, store=MemoryJournal())
    await loop.replace(interceptors=[stored]).execute("ticket")
    assert (await stored.balance()).requests == 1


async def test_recorded_answers_are_not_charged_again() -> None:
    """The process that continues an execution is charged for what it sends, and a replay for nothing."""
    journal, account, has_begun = MemoryJournal(), account_of(10.0), asyncio.Event()

    @tool(effect="idempotent")
    async def helper(task: str) -> str:
        """Help."""
        if not has_begun.is_set():
            has_begun.set()
            await asyncio.sleep(3600)
        return task

    loop = AgentLoop(ToolCallingDriver(CallerModel()), tools=[helper], interceptors=[account], journal=journal)
    task = asyncio.create_task(loop.execute("go", execution_id="one"))
    await has_begun.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert (await account.balance()).requests == 1
    assert (await loop.recover("one")).status.value == "completed"
    assert (await account.balance()).requests == 2
    assert (await replay(journal, "one", loop)).is_equal
    balance = await account.balance()
    assert (balance.requests, balance.reserved, balance.unsettled) == (2, Spending(), Spending())


@pytest.mark.parametrize("has_account", [False, True])
async def test_a_loop_that_takes_the_conversation_over_is_charged_once(*, has_account: bool) -> None:
    """After a handoff the account of the first loop is charged, also where the other loop has the account itself."""
    account = account_of(10.0)
    other = AgentLoop(ToolCallingDriver(TicketModel(seconds=0)), interceptors=[account] if has_account else [])

    def to_other(request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((ToolCall("1", "to_other", "{}"),), FinishReason.TOOL_CALLS, Usage(900, 100), "big-1")

    tools = [handoff_to(other, name="to_other", description="Anything.")]
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(to_other)), tools=tools, interceptors=[account])
    assert (await loop.execute("go")).final_text == "done"
    assert (await account.balance()).requests == 2


def test_an_answer_that_cannot_be_read_counts_as_spent() -> None:
    """The provider has charged for it; a request that it refused costs nothing."""

    def fail(error: Exception) -> AccountBalance:
        class FailingModel(CanInfer):
            async def infer(self, _: InferenceRequest) -> InferenceResponse:
                raise error

        account = account_of(10.0)
        asyncio.run(AgentLoop(ToolCallingDriver(FailingModel()), interceptors=[account]).execute("ticket"))
        return asyncio.run(account.balance())

    assert fail(InvalidResponse("truncated")).unsettled.cost > 0
    refused = fail(BadRequest("no such model", status=404))
    assert (refused.reserved, refused.unsettled, refused.spent) == (Spending(), Spending(), Spending())


def test_an_account_by_tenant_refuses_nobody() -> None:
    """Without a known tenant the execution fails with what to do, and nothing is sent."""
    model = TicketModel(seconds=0)
    loop = AgentLoop(ToolCallingDriver(model), interceptors=[account_of(1.0, by="tenant")])
    state = asyncio.run(loop.execute("ticket"))
    assert state.status.value == "failed"
    assert "does not know whose request this is" in str(state.errors)
    assert model.answers == 0


def test_a_loop_without_an_account_loads_nothing_of_it() -> None:
    """An execution without an account loads no module of budgets, of their stores, or of their event."""
    program = """
import sys
from agentloop import AgentLoop, ScriptedInference
AgentLoop.for_model(ScriptedInference("Done.")).run_sync("Go.")
print(*[name for name in sys.modules if "account" in name or "budget" in name])
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize(
    "options", [{}, {"cost": 1, "per": "week"}, {"cost": 1, "zone": "Mars/Crater"}, {"cost": 1, "by": "team"}]
)
def test_wrong_options_are_refused(options: dict[str, object]) -> None:
    """An account that limits nothing, or has an unknown period, time zone or owner, cannot be made."""
    with pytest.raises(ConfigurationError):
        BudgetAccount("a", **options)  # type: ignore[arg-type]  # wrong on purpose


def test_a_cancelled_request_counts_as_spent() -> None:
    """The reservation of a cancelled request ends at once and counts: the provider may have charged it."""
    account = account_of(1.0)
    loop = AgentLoop(ToolCallingDriver(TicketModel(seconds=60)), interceptors=[account], clock=LoopClock())

    async def run() -> None:
        task = asyncio.create_task(loop.execute("ticket"))
        await asyncio.sleep(1)
        assert (await account.balance(at=LoopClock().now())).reserved.cost > 0
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        balance = await account.balance(at=LoopClock().now())
        assert balance.reserved == Spending()
        assert balance.unsettled.cost > 0

    run_in_virtual_time(run())


def test_a_process_that_takes_over_ends_the_reservations_of_the_former_one() -> None:
    """A reservation by a later claim on the same execution ends the earlier one before its time; the amount still counts."""
    limit = SpendingLimit(cost=100)
    first = AccountHold("1", Spending(0, 60), 1_000, "e", 1)
    state = AccountState().reserve(first, limit, 0)
    assert (state.reserved(10).cost, state.unsettled(10).cost) == (60, 0)
    state = state.reserve(AccountHold("2", Spending(0, 30), 1_000, "e", 2), limit, 10)
    assert (state.reserved(10).cost, state.unsettled(10).cost) == (30, 60)
    assert state.remaining.cost == 10


AMOUNTS = st.builds(Spending, st.integers(0, 50), st.integers(0, 50))
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("reserve"), st.integers(0, 5), AMOUNTS),
        st.tuples(st.just("settle"), st.integers(0, 5), AMOUNTS),
        st.tuples(st.just("release"), st.integers(0, 5), AMOUNTS),
        st.tuples(st.just("wait"), st.integers(0, 40), AMOUNTS),
    ),
    max_size=40,
)


@given(OPERATIONS, st.integers(0, 120), st.integers(0, 120))
def test_states_keep_the_sum(operations: list[tuple[str, int, Spending]], tokens: int, cost: int) -> None:
    """A state agrees with a plain sum: nothing is lost, nothing reserved for ever, over only by what answers exceed."""
    limit, state, now = SpendingLimit(tokens, cost), AccountState(), 0
    held: dict[str, tuple[Spending, int]] = {}
    spent, excess = Spending(), Spending()
    for name, number, amount in operations:
        key = str(number)
        if name == "wait":
            now += number
        elif name == "reserve":
            hold = AccountHold(key, amount, now + 20)
            fits = limit.allows(sum([each for each, _ in held.values()], spent) + amount)
            state = state.reserve(hold, limit, now)
            assert state.reserve(hold, limit, now) == state or not fits
            if key not in held and fits:
                held[key] = (amount, now + 20)
        elif name == "settle":
            state = state.settle(key, amount)
            if key in held:
                reserved, _ = held.pop(key)
                spent += amount
                excess += Spending(max(amount.tokens - reserved.tokens, 0), max(amount.cost - reserved.cost, 0))
        else:
            state = state.release(key)
            held.pop(key, None)
        state = AccountState.parse(state.to_text())
        assert state.spent == spent
        assert state.reserved(now) == sum([each for each, until in held.values() if until > now], Spending())
        assert state.unsettled(now) == sum([each for each, until in held.values() if until <= now], Spending())
        assert spent.tokens <= tokens + excess.tokens
        assert spent.cost <= cost + excess.cost
    assert state.reserved(now + 20) == Spending()


async def test_stores_serialize_updates(db: str) -> None:
    """Of many concurrent reservations through two stores on one database, exactly those that fit are there."""
    key, limit = AccountKey("tickets", "tenant \ud800'", "2026-11"), SpendingLimit(cost=100)
    first, second = open_journal(db), open_journal(db)
    assert isinstance(first, CanKeepAccounts)
    assert isinstance(second, CanKeepAccounts)
    stores: list[CanKeepAccounts] = [first, second]
    try:

        async def reserve(number: int) -> bool:
            hold = AccountHold(str(number), Spending(0, 7), 10)
            update = await stores[number % 2].update_account(key, lambda state: state.reserve(hold, limit, 0))
            return update.after.holds_for(hold.id)

        granted = await asyncio.gather(*[reserve(number) for number in range(40)])
        assert sum(granted) == 14
        ((found, state),) = await stores[1].accounts()
        assert found == key
        assert len(state.holds) == 14
    finally:
        await first.aclose()
        await second.aclose()


STORES: Mapping[str, Callable[[Path], CanKeepAccounts]] = {
    "memory": lambda _: MemoryAccounts(),
    "memory journal": lambda _: MemoryJournal(),
    "sqlite": lambda path: SqliteJournal(path, synchronous="normal"),
}


@pytest.mark.parametrize("name", STORES)
def test_stores_keep_their_laws(name: str, tmp_path: Path) -> None:
    """The stores of the package pass the kit of their contract."""
    numbers = count()
    AccountKit(lambda: STORES[name](tmp_path / f"{next(numbers)}.db"), examples=3).check_all()


def test_postgres_keeps_the_laws_of_stores(postgres_url: str) -> None:
    """A journal in PostgreSQL passes the kit; each store has a schema of its own."""
    numbers = count()
    AccountKit(lambda: PostgresJournal(postgres_url, schema=f"store_{next(numbers)}"), examples=3).check_all()
