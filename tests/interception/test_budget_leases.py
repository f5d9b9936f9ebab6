"""Leases: executions that an execution starts use its budget."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, Budget, Interceptor, ScriptedInference, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.errors import RateLimited
from agentloop.interception import Amounts, BudgetAccount, Limits, Price, PriceTable, RunningBudget, current_budget
from agentloop.interception.budgets.account import UsageMeter
from agentloop.interception.budgets.amounts import NO_AMOUNTS
from agentloop.testing import CountingIds, LoopClock, run_in_virtual_time
from agentloop.values import (
    FinishReason,
    InferenceRequest,
    InferenceResponse,
    Text,
    ToolCall,
    Usage,
    from_json,
    to_json,
)
from tests.interception.budget_models import status_and_reason

KINDS = ("steps", "tool_calls", "tokens", "cost")
TABLE = PriceTable({"*": Price(input=2, output=8)})


@frozen
class Task:
    """What an execution does: inferences, given as reserved tokens and the share that they use, and concurrent subtasks."""

    share: float
    tokens: int | None
    inferences: tuple[tuple[int, float], ...]
    subtasks: tuple[Task, ...]


def task_trees() -> st.SearchStrategy[Task]:
    """Return a strategy for trees of executions."""

    def tasks(subtasks: st.SearchStrategy[Any]) -> st.SearchStrategy[Task]:
        inferences = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.0, 0.3, 1.0])), max_size=4).map(tuple)
        tokens = st.none() | st.integers(0, 200)
        return st.builds(Task, st.floats(0, 1), tokens, inferences, subtasks)

    leaves = tasks(st.just(()))
    return st.recursive(leaves, lambda inner: tasks(st.lists(inner, max_size=3).map(tuple)), max_leaves=8)


class AccountMonitor:
    """Checks every account of a tree after each change."""

    def __init__(self) -> None:
        self.accounts: list[BudgetAccount] = []

    def check(self) -> None:
        for account in self.accounts:
            used = account.used + account.reserved
            for kind in KINDS:
                limit = getattr(account.limits, kind)
                assert limit is None or 0 <= getattr(used, kind) <= limit


async def _execute(task: Task, account: BudgetAccount, name: str, monitor: AccountMonitor) -> Amounts:
    """Execute a task with an account, and return what it has used."""
    state = AgentState.start("go", agent_id=name, clock=LoopClock()).with_execution_started(name, LoopClock().now())
    entry = account.entry(state, UsageMeter)
    used = NO_AMOUNTS
    for tokens, share in task.inferences:
        amounts = Amounts(tokens=tokens, cost=tokens * 7)
        entry.reservation = account.reserve(amounts)
        monitor.check()
        if entry.reservation is None:
            continue
        await asyncio.sleep(share * 3)
        actual = Amounts(tokens=int(tokens * share), cost=int(tokens * share) * 7)
        account.settle(entry, actual)
        used += actual
        monitor.check()
    running = RunningBudget(account, entry, lambda: account.remaining, lambda: None, lambda lent, _: _Lease(lent))
    leased = [
        _execute_leased(subtask, running, f"{name}.{number}", monitor) for number, subtask in enumerate(task.subtasks)
    ]
    return sum(await asyncio.gather(*leased), used)


@frozen
class _Lease(Interceptor):
    """The interceptor of a lease, with its account."""

    account: BudgetAccount


async def _execute_leased(task: Task, running: RunningBudget, name: str, monitor: AccountMonitor) -> Amounts:
    with running.lease(task.share, tokens=task.tokens) as lease:
        assert isinstance(lease, _Lease)
        account = lease.account
        monitor.accounts.append(account)
        monitor.check()
        used = await _execute(task, account, name, monitor)
    monitor.check()
    return used


@given(task_trees(), st.integers(0, 400), st.none() | st.integers(0, 3000))
def test_used_and_reserved_amounts_never_exceed_the_budget(task: Task, tokens: int, cost: int | None) -> None:
    """No account of a tree of concurrent executions exceeds its limits, and all usage is counted."""
    account, monitor = BudgetAccount(Limits(tokens=tokens, cost=cost)), AccountMonitor()
    monitor.accounts.append(account)
    used = run_in_virtual_time(_execute(task, account, "root", monitor))
    monitor.check()
    assert account.used == used
    assert account.reserved == NO_AMOUNTS


def test_threads_never_overdraw_an_account() -> None:
    """Of the concurrent reservations of several threads, no more than fit succeed."""
    account, reservations, ready = BudgetAccount(Limits(tokens=100)), list[object](), threading.Barrier(8)

    def reserve() -> None:
        ready.wait()
        for _ in range(10):
            reservations.append(account.reserve(Amounts(tokens=3)))

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(reservation is not None for reservation in reservations) == 33
    assert account.remaining.tokens == 1


class UsageRecord:
    """The usage of all executions, as their models see it."""

    def __init__(self) -> None:
        self.usages: list[tuple[int, int]] = []

    @property
    def tokens(self) -> int:
        return sum(input_tokens + output_tokens for input_tokens, output_tokens in self.usages)

    @property
    def dollars(self) -> float:
        return sum(input_tokens * 2 + output_tokens * 8 for input_tokens, output_tokens in self.usages) / 1e6


class DelegatingModel(CanInfer):
    """A model that starts executions according to a plan, then answers; its responses are as long as allowed."""

    def __init__(self, plans: tuple[Any, ...], record: UsageRecord) -> None:
        self.plan = plans
        self.ledger = record
        self.asked = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self.asked += 1
        input_tokens = sum(len(message.text) for message in request.messages) // 4 + 20
        max_tokens = request.options.max_tokens
        output_tokens = 400 if max_tokens is None else min(400, max_tokens)
        self.ledger.usages.append((input_tokens, output_tokens))
        await asyncio.sleep(1)
        usage = Usage(input_tokens, output_tokens, 0, 0, 0)
        if request.tools and self.asked <= 3:
            calls = tuple([ToolCall("", "delegate", f'{{"number": {n}}}') for n in range(len(self.plan))])
            if calls:
                return InferenceResponse(calls, FinishReason.TOOL_CALLS, usage, "any")
        return InferenceResponse((Text("done"),), FinishReason.STOP, usage, "any")


def create_agent(plans: tuple[Any, ...], record: UsageRecord) -> AgentLoop:
    """Return an agent whose tool starts the agents of its plan, each with a share of what remains."""

    @tool
    async def delegate(number: int) -> str:
        """Delegate to another agent."""
        budget = current_budget()
        assert budget is not None
        share, inner = plans[number]
        with budget.lease(share) as lease:
            state = await create_agent(inner, record).with_interceptors(lease).execute("do your part")
        return state.final_text

    return AgentLoop(
        ToolCallingDriver(DelegatingModel(plans, record)), [delegate], clock=LoopClock(), ids=CountingIds()
    )


PLAN_TREES = st.recursive(
    st.just(()),
    lambda inner: st.lists(st.tuples(st.floats(0.05, 1), inner), max_size=3).map(tuple),
    max_leaves=5,
)


@given(PLAN_TREES, st.integers(500, 20_000), st.none() | st.floats(0.005, 0.1))
def test_an_execution_and_those_it_starts_stay_within_the_budget(
    plans: tuple[Any, ...], tokens: int, cost: float | None
) -> None:
    """A tree of concurrent agents uses no more tokens and money in total than the budget of the first one."""
    record = UsageRecord()
    budget = Budget(tokens=tokens, cost=cost, prices=TABLE, max_output_tokens=400)
    state = run_in_virtual_time(create_agent(plans, record).with_interceptors(budget).execute("go"))
    assert state.status.value in {"completed", "stopped"}
    assert record.tokens <= tokens
    assert cost is None or record.dollars <= cost


def test_the_usage_of_leases_is_stored_in_the_state() -> None:
    """A stored execution that is resumed counts what the agents that it has started have used."""
    record, resumed_record = UsageRecord(), UsageRecord()
    plans = ((0.4, ()), (0.4, ()))
    budget = Budget(tokens=3_000, steps=20, max_output_tokens=400)

    async def run() -> tuple[AgentState, AgentState]:
        loop = create_agent(plans, record).with_interceptors(budget)
        uninterrupted = await loop.execute("go")
        stored = None
        async for state in create_agent(plans, resumed_record).with_interceptors(budget).iterate("go"):
            if state.step_count == 1:
                stored = from_json(to_json(state), AgentState)
                break
        assert stored is not None
        return uninterrupted, await create_agent(plans, resumed_record).with_interceptors(budget).execute(stored)

    uninterrupted, resumed = run_in_virtual_time(run())
    assert status_and_reason(uninterrupted) == ("stopped", "token_limit")
    assert status_and_reason(resumed) == ("stopped", "token_limit")
    assert resumed_record.tokens <= 3_000
    delegated = uninterrupted.extensions["agentloop.budget"]["Budget"]
    assert delegated["tokens"] == record.tokens - (uninterrupted.usage.total_tokens or 0)


def test_leases_limit_steps_and_calls() -> None:
    """The steps of a lease count as steps of the budget that gave it."""
    record = UsageRecord()
    plans = ((1.0, ((1.0, ()),)), (1.0, ()))
    state = run_in_virtual_time(
        create_agent(plans, record).with_interceptors(Budget(steps=9, tool_calls=6)).execute("go")
    )
    assert state.status.value in {"completed", "stopped"}
    assert len(record.usages) <= 9


def test_a_lease_ends_before_the_time_of_its_budget() -> None:
    """A nested execution ends early enough for the outer one to give its last answer in time."""
    record = UsageRecord()
    state = run_in_virtual_time(
        create_agent(((1.0, ((1.0, ()),)),), record).with_interceptors(Budget(seconds=20)).execute("go")
    )
    assert state.execution is not None
    assert state.execution.ended_at is not None
    assert (state.execution.ended_at - state.execution.started_at).total_seconds() <= 20
    assert status_and_reason(state) == ("stopped", "time_limit")
    assert state.final_text == "done"


def test_the_reservation_of_a_failed_inference_is_returned_with_the_lease() -> None:
    """A nested execution whose model fails has used nothing of the budget."""
    used: list[Amounts] = []

    class FailingModel(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            raise RateLimited("slow down")

    @tool
    async def start() -> str:
        """Start an agent that fails."""
        budget = current_budget()
        assert budget is not None
        with budget.lease(tokens=2_000) as lease:
            failed = await AgentLoop(ToolCallingDriver(FailingModel()), interceptors=[lease]).execute("go")
        used.append(budget.entry.delegated)
        return failed.status.value

    model = ScriptedInference([ToolCall("", "start")], "done")
    budget = Budget(tokens=40_000)
    state = run_in_virtual_time(AgentLoop(ToolCallingDriver(model), [start], interceptors=[budget]).execute("go"))
    assert state.steps[0].executions[0].value == "failed"
    assert [amounts.tokens for amounts in used] == [0]


async def test_there_is_no_budget_outside_of_tools() -> None:
    """`current_budget` returns the budget while a tool runs, and None otherwise."""
    has_budget: list[bool] = []

    @tool
    def look() -> str:
        """Look for a budget."""
        has_budget.append(current_budget() is not None)
        return "looked"

    class LookingModel(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            has_budget.append(current_budget() is not None)
            return InferenceResponse((Text("ok"),) if len(has_budget) > 1 else (ToolCall("", "look"),))

    await AgentLoop(ToolCallingDriver(LookingModel()), [look], interceptors=[Budget(steps=5)]).execute("go")
    assert has_budget == [False, True, False]
    assert current_budget() is None


@pytest.mark.parametrize(
    "requested", [{"steps": 2}, {"tool_calls": 2}, {"tokens": 50}, {"cost": 0.5}, {"seconds": 3.0}]
)
def test_a_lease_may_have_limits_of_its_own(requested: dict[str, Any]) -> None:
    """A lease may limit what its budget does not limit, and is never larger than what remains."""
    account = BudgetAccount(Limits(tokens=80))
    start = AgentState.start("go")
    state = start.with_execution_started("run", start.created_at)
    budget = Budget(tokens=80, prices=TABLE)
    running = RunningBudget(
        account, account.entry(state, UsageMeter), lambda: account.remaining, lambda: 10.0, budget._create_lease
    )
    with running.lease(**requested) as first, running.lease() as second:
        assert isinstance(first, Budget)
        assert isinstance(second, Budget)
        name, amount = next(iter(requested.items()))
        assert getattr(first, name) == amount
        assert (first.tokens or 0) + (second.tokens or 0) == 80
        assert second.seconds == 10.0
    assert account.remaining.tokens == 80


def test_shares_round_down() -> None:
    """A larger share is never smaller, and the whole share is the limits themselves."""
    limits = Limits(1, 2, 3, 4)
    shares = [limits.share(number / 10) for number in range(11)]
    assert all((smaller.cost or 0) <= (larger.cost or 0) for smaller, larger in pairwise(shares))
    assert shares[-1] == limits
