"""Leases: what an execution starts draws on its budget."""

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
from tests.interception.budget_models import outcome

KINDS = ("steps", "tool_calls", "tokens", "cost")
TABLE = PriceTable({"*": Price(input=2, output=8)})


@frozen
class Work:
    """What an execution does: inferences, and executions that it starts side by side."""

    share: float
    tokens: int | None
    inferences: tuple[tuple[int, float], ...]
    started: tuple[Work, ...]


def works() -> st.SearchStrategy[Work]:
    """Return trees of executions."""

    def made(started: st.SearchStrategy[Any]) -> st.SearchStrategy[Work]:
        inferences = st.lists(st.tuples(st.integers(1, 60), st.sampled_from([0.0, 0.3, 1.0])), max_size=4).map(tuple)
        asked = st.none() | st.integers(0, 200)
        return st.builds(Work, st.floats(0, 1), asked, inferences, started)

    leaves = made(st.just(()))
    return st.recursive(leaves, lambda inner: made(st.lists(inner, max_size=3).map(tuple)), max_leaves=8)


class Watched:
    """Checks every account of a tree whenever anything has changed."""

    def __init__(self) -> None:
        self.accounts: list[BudgetAccount] = []
        self.checked = 0

    def check(self) -> None:
        for account in self.accounts:
            used = account.used + account.reserved
            for kind in KINDS:
                limit = getattr(account.limits, kind)
                assert limit is None or 0 <= getattr(used, kind) <= limit
            self.checked += 1


async def _does(work: Work, account: BudgetAccount, name: str, watched: Watched) -> Amounts:
    """Do the work on an account, and return what was really used."""
    state = AgentState.start("go", agent_id=name, clock=LoopClock()).with_execution_started(name, LoopClock().now())
    entry = account.entry(state, UsageMeter)
    used = NO_AMOUNTS
    for most, part in work.inferences:
        amounts = Amounts(tokens=most, cost=most * 7)
        entry.reservation = account.reserve(amounts)
        watched.check()
        if entry.reservation is None:
            continue
        await asyncio.sleep(part * 3)
        real = Amounts(tokens=int(most * part), cost=int(most * part) * 7)
        account.settle(entry, real)
        used += real
        watched.check()
    running = RunningBudget(account, entry, lambda: account.remaining, lambda: None, lambda lent, _: _Lent(lent))
    started = [_started(one, running, f"{name}.{number}", watched) for number, one in enumerate(work.started)]
    return sum(await asyncio.gather(*started), used)


@frozen
class _Lent(Interceptor):
    """Carries the account of a lease."""

    account: BudgetAccount


async def _started(work: Work, running: RunningBudget, name: str, watched: Watched) -> Amounts:
    with running.lease(work.share, tokens=work.tokens) as lease:
        assert isinstance(lease, _Lent)
        account = lease.account
        watched.accounts.append(account)
        watched.check()
        used = await _does(work, account, name, watched)
    watched.check()
    return used


@given(works(), st.integers(0, 400), st.none() | st.integers(0, 3000))
def test_spent_and_reserved_never_exceed_the_budget(work: Work, tokens: int, cost: int | None) -> None:
    """Whatever a tree of executions does side by side, no account of it goes over, and none of what was used is lost."""
    account, watched = BudgetAccount(Limits(tokens=tokens, cost=cost)), Watched()
    watched.accounts.append(account)
    used = run_in_virtual_time(_does(work, account, "root", watched))
    watched.check()
    assert account.used == used
    assert account.reserved == NO_AMOUNTS


def test_threads_never_overdraw_an_account() -> None:
    """Of many threads that set aside at the same time, no more than fit succeed."""
    account, held, ready = BudgetAccount(Limits(tokens=100)), list[object](), threading.Barrier(8)

    def take() -> None:
        ready.wait()
        for _ in range(10):
            held.append(account.reserve(Amounts(tokens=3)))

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one is not None for one in held) == 33
    assert account.remaining.tokens == 1


class Ledger:
    """What really was used, by all executions."""

    def __init__(self) -> None:
        self.usages: list[tuple[int, int]] = []

    @property
    def tokens(self) -> int:
        return sum(read + wrote for read, wrote in self.usages)

    @property
    def dollars(self) -> float:
        return sum(read * 2 + wrote * 8 for read, wrote in self.usages) / 1e6


class Delegating(CanInfer):
    """Starts executions as a plan says, then answers; it writes as much as it may."""

    def __init__(self, plan: tuple[Any, ...], ledger: Ledger) -> None:
        self.plan = plan
        self.ledger = ledger
        self.asked = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self.asked += 1
        read = sum(len(message.text) for message in request.messages) // 4 + 20
        most = request.options.max_tokens
        wrote = 400 if most is None else min(400, most)
        self.ledger.usages.append((read, wrote))
        await asyncio.sleep(1)
        usage = Usage(read, wrote, 0, 0, 0)
        if request.tools and self.asked <= 3:
            calls = tuple([ToolCall("", "delegate", f'{{"number": {n}}}') for n in range(len(self.plan))])
            if calls:
                return InferenceResponse(calls, FinishReason.TOOL_CALLS, usage, "any")
        return InferenceResponse((Text("done"),), FinishReason.STOP, usage, "any")


def agent(plan: tuple[Any, ...], ledger: Ledger) -> AgentLoop:
    """Make an agent whose tool starts the agents of its plan, each with a share of what is left."""

    @tool
    async def delegate(number: int) -> str:
        """Let another agent do it."""
        budget = current_budget()
        assert budget is not None
        share, inner = plan[number]
        with budget.lease(share) as lease:
            state = await agent(inner, ledger).with_interceptors(lease).execute("do your part")
        return state.final_text

    return AgentLoop(ToolCallingDriver(Delegating(plan, ledger)), [delegate], clock=LoopClock(), ids=CountingIds())


PLANS = st.recursive(
    st.just(()),
    lambda inner: st.lists(st.tuples(st.floats(0.05, 1), inner), max_size=3).map(tuple),
    max_leaves=5,
)


@given(PLANS, st.integers(500, 20_000), st.none() | st.floats(0.005, 0.1))
def test_an_execution_and_all_that_it_starts_stay_within_the_budget(
    plan: tuple[Any, ...], tokens: int, cost: float | None
) -> None:
    """Trees of agents that run side by side use no more tokens and money together than the budget of the first one."""
    ledger = Ledger()
    budget = Budget(tokens=tokens, cost=cost, prices=TABLE, max_output_tokens=400)
    state = run_in_virtual_time(agent(plan, ledger).with_interceptors(budget).execute("go"))
    assert state.status.value in {"completed", "stopped"}
    assert ledger.tokens <= tokens
    assert cost is None or ledger.dollars <= cost


def test_what_leases_used_is_kept_in_the_state() -> None:
    """A stored execution that is gone on with knows what the agents that it had started have used."""
    ledger, again = Ledger(), Ledger()
    plan = ((0.4, ()), (0.4, ()))
    budget = Budget(tokens=3_000, steps=20, max_output_tokens=400)

    async def run() -> tuple[AgentState, AgentState]:
        loop = agent(plan, ledger).with_interceptors(budget)
        whole = await loop.execute("go")
        stored = None
        async for state in agent(plan, again).with_interceptors(budget).iterate("go"):
            if state.step_count == 1:
                stored = from_json(to_json(state), AgentState)
                break
        assert stored is not None
        return whole, await agent(plan, again).with_interceptors(budget).execute(stored)

    whole, resumed = run_in_virtual_time(run())
    assert outcome(whole) == ("stopped", "token_limit")
    assert outcome(resumed) == ("stopped", "token_limit")
    assert again.tokens <= 3_000
    kept = whole.extensions["agentloop.budget"]["Budget"]
    assert kept["tokens"] == ledger.tokens - (whole.usage.total_tokens or 0)


def test_agents_that_are_started_count_steps_and_calls() -> None:
    """A lease of steps is part of the steps of the one who gave it."""
    ledger = Ledger()
    plan = ((1.0, ((1.0, ()),)), (1.0, ()))
    state = run_in_virtual_time(agent(plan, ledger).with_interceptors(Budget(steps=9, tool_calls=6)).execute("go"))
    assert state.status.value in {"completed", "stopped"}
    assert len(ledger.usages) <= 9


def test_time_is_lent_until_the_end() -> None:
    """What is started ends before the time of the one who started it is up, and both come to an answer."""
    ledger = Ledger()
    state = run_in_virtual_time(
        agent(((1.0, ((1.0, ()),)),), ledger).with_interceptors(Budget(seconds=20)).execute("go")
    )
    assert state.execution is not None
    assert state.execution.ended_at is not None
    assert (state.execution.ended_at - state.execution.started_at).total_seconds() <= 20
    assert outcome(state) == ("stopped", "time_limit")
    assert state.final_text == "done"


def test_what_was_set_aside_for_a_failed_inference_comes_back_with_the_lease() -> None:
    """An agent that was started and whose model fails has used nothing of the budget."""
    seen: list[Amounts] = []

    class Failing(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            raise RateLimited("slow down")

    @tool
    async def start() -> str:
        """Start an agent that fails."""
        budget = current_budget()
        assert budget is not None
        with budget.lease(tokens=2_000) as lease:
            failed = await AgentLoop(ToolCallingDriver(Failing()), interceptors=[lease]).execute("go")
        seen.append(budget.entry.delegated)
        return failed.status.value

    model = ScriptedInference([ToolCall("", "start")], "done")
    budget = Budget(tokens=40_000)
    state = run_in_virtual_time(AgentLoop(ToolCallingDriver(model), [start], interceptors=[budget]).execute("go"))
    assert state.steps[0].executions[0].value == "failed"
    assert [one.tokens for one in seen] == [0]


async def test_there_is_no_budget_outside_of_tools() -> None:
    """The running budget is found where a tool runs, and nowhere else."""
    seen: list[bool] = []

    @tool
    def look() -> str:
        """Look for a budget."""
        seen.append(current_budget() is not None)
        return "looked"

    class Looks(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            seen.append(current_budget() is not None)
            return InferenceResponse((Text("ok"),) if len(seen) > 1 else (ToolCall("", "look"),))

    await AgentLoop(ToolCallingDriver(Looks()), [look], interceptors=[Budget(steps=5)]).execute("go")
    assert seen == [False, True, False]
    assert current_budget() is None


@pytest.mark.parametrize("asked", [{"steps": 2}, {"tool_calls": 2}, {"tokens": 50}, {"cost": 0.5}, {"seconds": 3.0}])
def test_a_lease_may_ask_for_amounts(asked: dict[str, Any]) -> None:
    """A lease limits what its giver does not limit, and never gives more than is left."""
    account = BudgetAccount(Limits(tokens=80))
    state = AgentState.start("go").with_execution_started("one", LoopClockless.now())
    budget = Budget(tokens=80, prices=TABLE)
    running = RunningBudget(
        account, account.entry(state, UsageMeter), lambda: account.remaining, lambda: 10.0, budget._create_lease
    )
    with running.lease(**asked) as first, running.lease() as second:
        assert isinstance(first, Budget)
        assert isinstance(second, Budget)
        name, amount = next(iter(asked.items()))
        assert getattr(first, name) == amount
        assert (first.tokens or 0) + (second.tokens or 0) == 80
        assert second.seconds == 10.0
    assert account.remaining.tokens == 80


class LoopClockless:
    """A moment for states that no clock is needed for."""

    @staticmethod
    def now() -> Any:
        return AgentState.start("go").created_at


def test_amounts_round_down() -> None:
    """Shares that are taken one after the other never add up to more than there was."""
    limits = Limits(1, 2, 3, 4)
    shares = [limits.share(number / 10) for number in range(11)]
    assert all((one.cost or 0) <= (two.cost or 0) for one, two in pairwise(shares))
    assert shares[-1] == limits
