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
from agentloop.interception.lending import Lease
from agentloop.policies import Price, PriceTable, current_budget
from agentloop.policies.budgets.account import AccountEntry, TreeAccount, UsageMeter
from agentloop.policies.budgets.amounts import NO_AMOUNTS, Amounts, Limits
from agentloop.policies.budgets.leases import RunningBudget
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
from tests.policies.budget_models import status_and_reason

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
        self.accounts: list[TreeAccount] = []

    def check(self) -> None:
        for account in self.accounts:
            used = account.used + account.reserved
            for kind in KINDS:
                limit = getattr(account.limits, kind)
                assert limit is None or 0 <= getattr(used, kind) <= limit


async def _execute(task: Task, account: TreeAccount, name: str, monitor: AccountMonitor) -> Amounts:
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
class _Lease(Interceptor, Lease):
    """The interceptor of a lease, with its account."""

    account: TreeAccount

    def count_ended(self, state: AgentState) -> None:
        raise NotImplementedError  # no agent ends under it


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
    account, monitor = TreeAccount(Limits(tokens=tokens, cost=cost)), AccountMonitor()
    monitor.accounts.append(account)
    used = run_in_virtual_time(_execute(task, account, "root", monitor))
    monitor.check()
    assert account.used == used
    assert account.reserved == NO_AMOUNTS


def test_threads_never_overdraw_an_account() -> None:
    """Of the concurrent reservations of several threads, no more than fit succeed."""
    account, reservations, ready = TreeAccount(Limits(tokens=100)), list[object](), threading.Barrier(8)

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

    @tool(repeatable=True)
    async def delegate(number: int) -> str:
        """Delegate to another agent."""
        budget = current_budget()
        assert budget is not None
        share, inner = plans[number]
        with budget.lease(share) as lease:
            state = await create_agent(inner, record).with_interceptors(lease).execute("do your part")
        return state.final_text or ""

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


def test_the_money_of_leases_is_stored_in_millionths_of_a_millionth_of_a_dollar() -> None:
    """States that were stored by an earlier version mean the same amounts."""
    record = UsageRecord()
    budget = Budget(cost=1.0, prices=TABLE, max_output_tokens=400)
    state = run_in_virtual_time(create_agent(((0.4, ()),), record).with_interceptors(budget).execute("go"))
    own = ((state.usage.input_tokens or 0) * 2 + (state.usage.output_tokens or 0) * 8) / 1e6
    delegated = Amounts(**state.extensions["agentloop.budget"]["Budget"])
    assert delegated.cost == round((record.dollars - own) * 1e12) > 0
    assert delegated.dollars == pytest.approx(record.dollars - own)


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
    """A lease may limit what its budget does not limit, is never larger than what is not used, and sets nothing aside."""
    account = TreeAccount(Limits(tokens=80))
    start = AgentState.start("go")
    state = start.with_execution_started("run", start.created_at)
    budget = Budget(tokens=80, prices=TABLE)
    running = RunningBudget(
        account, account.entry(state, UsageMeter), lambda: account.remaining, lambda: 10.0, budget._create_lease
    )
    with running.lease(**requested) as first, running.lease() as second:
        assert isinstance(first, Budget)
        assert isinstance(second, Budget)
        # Equal to a budget of these limits, and shown like it.
        assert second == Budget(tokens=80, seconds=10.0, prices=TABLE)
        assert repr(second) == "Budget(tokens=80, seconds=10.0)"
        name, amount = next(iter(requested.items()))
        assert getattr(first, name) == amount
        assert first.tokens == min(80, requested.get("tokens", 80))
        assert second.tokens == 80
        assert second.seconds == 10.0
    assert account.remaining.tokens == 80


def test_shares_round_down() -> None:
    """A larger share is never smaller, and the whole share is the limits themselves."""
    limits = Limits(1, 2, 3, 4)
    shares = [limits.share(number / 10) for number in range(11)]
    assert all((smaller.cost or 0) <= (larger.cost or 0) for smaller, larger in pairwise(shares))
    assert shares[-1] == limits


# --- fan-outs -----------------------------------------------------------------------------------------------------


class Worker(CanInfer):
    """Makes calls for so many steps, then answers; each inference takes a second and uses the same tokens, if it may."""

    def __init__(self, steps: int, output_tokens: int, record: list[int]) -> None:
        self.steps = steps
        self.output_tokens = output_tokens
        self.record = record

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(1)
        usage = Usage(20, min(self.output_tokens, request.options.max_tokens or 10**6), 0, 0, 0)
        self.record.append(usage.total_tokens or 0)
        made = sum(len(message.exchanges) for message in request.messages)
        if made < self.steps and request.tools:
            return InferenceResponse((ToolCall(str(made), "look"),), FinishReason.TOOL_CALLS, usage, "any")
        return InferenceResponse((Text("done"),), FinishReason.STOP, usage, "any")


class Delegating(CanInfer):
    """Makes one call of the first tool, then answers."""

    def __init__(self, record: list[int]) -> None:
        self.record = record

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        await asyncio.sleep(1)
        self.record.append(30)
        usage = Usage(20, 10, 0, 0, 0)
        if request.tools and not any(message.exchanges for message in request.messages):
            call = ToolCall("0", request.tools[0].name, '{"task": "go"}')
            return InferenceResponse((call,), FinishReason.TOOL_CALLS, usage, "any")
        return InferenceResponse((Text("done"),), FinishReason.STOP, usage, "any")


@tool(repeatable=True)
async def look() -> str:
    """Look."""
    return "seen"


def fan_out(
    count: int, steps: int, budget: Budget, *, output_tokens: int = 10, depth: int = 1
) -> tuple[AgentState, list[int]]:
    """Run concurrent agents with so many calls each, in so many levels; return the state and the tokens of each inference."""
    record: list[int] = []
    ids = CountingIds()
    child = AgentLoop(ToolCallingDriver(Worker(steps, output_tokens, record)), [look], clock=LoopClock(), ids=ids)
    for _ in range(depth - 1):
        model = Delegating(record)
        child = AgentLoop(ToolCallingDriver(model), [child.as_tool("ask", "Ask.", budget_share=1.0)], ids=ids)
    calls = [ToolCall(str(number), "ask", '{"task": "go"}') for number in range(count)]
    caller = AgentLoop(
        ToolCallingDriver(ScriptedInference(calls, "over")),
        [child.as_tool("ask", "Ask.", budget_share=1.0)],
        interceptors=[budget],
        clock=LoopClock(),
        ids=ids,
        max_steps=None,
    )
    return run_in_virtual_time(caller.execute("go", execution_id="run")), record


def statuses_of(state: AgentState) -> set[str]:
    """Return the statuses of the calls of the first step."""
    return {execution.status.value for execution in state.steps[0].executions}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("limit", [{"tokens": 40_000}, {"cost": 0.5, "prices": TABLE}])
def test_a_fan_out_that_fits_completes_although_its_reservations_do_not(limit: dict[str, Any], depth: int) -> None:
    """Thirty agents that could use a multiple of the budget together, and use little of it, all complete."""
    state, record = fan_out(30, 1, Budget(**limit, wrap_up=0), depth=depth)
    assert statuses_of(state) == {"succeeded"}
    assert state.status.value == "completed"
    assert {execution.error_message for execution in state.steps[0].executions} == {""}
    assert len(record) == 60 * depth


@given(
    count=st.integers(1, 12),
    steps=st.integers(0, 3),
    per_inference=st.integers(20, 400),
    slack=st.integers(-4_000, 4_000),
    max_output_tokens=st.sampled_from([400, 16_384]),
)
def test_a_fan_out_completes_if_and_only_if_it_fits(
    count: int, steps: int, per_inference: int, slack: int, max_output_tokens: int
) -> None:
    """A fan-out that fits completes; of one that does not, the rest stops with the limit; neither exceeds the budget."""
    needed = count * (steps + 1) * (20 + per_inference)
    budget = Budget(tokens=max(needed + slack, 0), wrap_up=0, max_output_tokens=max_output_tokens)
    state, record = fan_out(count, steps, budget, output_tokens=per_inference)
    own = state.usage.total_tokens or 0
    assert sum(record) + own <= max(needed + slack, 0)
    # More than what is used has to fit, because the input of a request is estimated, rather too high than too low.
    if slack >= own + 1_500:
        assert statuses_of(state) == {"succeeded"}
        assert sum(record) == needed
    elif slack < 0:
        assert status_and_reason(state) == ("stopped", "token_limit")
        messages = [execution.error_message for execution in state.steps[0].executions] if state.steps else []
        assert all("token_limit" in message for message in messages if message)


@pytest.mark.parametrize("wrap_up", [0, 0.1])
@pytest.mark.parametrize("limit", [{"steps": 41}, {"tool_calls": 20}, {"tokens": 2_000}])
def test_a_fan_out_that_does_not_fit_stops_at_the_limit(limit: dict[str, Any], wrap_up: float) -> None:
    """Agents that together need more than the budget use no more than it, and end with its reason."""
    state, record = fan_out(10, 9, Budget(**limit, wrap_up=wrap_up, max_output_tokens=400))
    delegated = state.extensions["agentloop.budget"]["Budget"]
    kind, amount = next(iter(limit.items()))
    assert 0 < delegated[kind] <= amount
    assert sum(record) == delegated["tokens"] or kind != "tokens"
    contents = [str(execution.content) + execution.error_message for execution in state.steps[0].executions]
    reason = {"steps": "step_limit", "tool_calls": "tool_call_limit", "tokens": "token_limit"}[kind]
    assert any(reason in text for text in contents)
    # Calls up to the limit do not stop an execution that makes no more.
    assert status_and_reason(state) == (("stopped", reason) if kind != "tool_calls" else ("completed", "completed"))


def test_a_waiting_agent_stops_when_its_time_is_up() -> None:
    """An inference that waits for the reservations of others is interrupted by the limit of time."""
    state, record = fan_out(4, 0, Budget(tokens=20_000, seconds=2.5, wrap_up=0))
    messages = [execution.error_message for execution in state.steps[0].executions]
    assert len(record) == 2
    assert sum("time_limit" in message or "2.5 seconds" in message for message in messages) == 2


def test_usage_without_reservations_is_counted_when_a_lease_ends() -> None:
    """A budget that finishes the inference that crosses the limit counts it, also if it was the last of its agent."""
    state, record = fan_out(5, 0, Budget(tokens=10_000, strict=False))
    assert len(record) == 5
    assert state.extensions["agentloop.budget"]["Budget"]["tokens"] == sum(record)


def test_nobody_waits_for_a_call_that_was_abandoned() -> None:
    """What a thread reserved that outlives its call counts as used, and the next inference of the caller runs."""
    account = TreeAccount(Limits(tokens=1_000))
    start = AgentState.start("go")
    caller = account.entry(start.with_execution_started("run", start.created_at), UsageMeter)
    inner = account.entry(start.with_execution_started("inner", start.created_at), UsageMeter)

    async def run() -> None:
        with account.lend(caller, Limits(tokens=900), call_key="call") as lent:
            assert lent.reserve(Amounts(tokens=800)) is not None
            waiting = asyncio.create_task(account.wait_for(inner, Amounts(tokens=400)))
            await asyncio.sleep(1)
            assert account.remaining.tokens == 200
            account.stop_awaiting("call")
            await waiting
            assert inner.reservation is None
            assert account.unused.tokens == 200
            # What it reserves from now on counts as used at once.
            assert lent.reserve(Amounts(tokens=50)) is not None
            assert (account.unused.tokens, account.reserved) == (150, NO_AMOUNTS)
        assert caller.delegated.tokens == 850

    run_in_virtual_time(run())


def test_a_cancelled_wait_reserves_nothing() -> None:
    """An execution that is cancelled while it waits, or just after it was served, leaves no reservation behind."""
    account = TreeAccount(Limits(tokens=100))
    start = AgentState.start("go")
    entries = [
        account.entry(start.with_execution_started(name, start.created_at), UsageMeter) for name in ("a", "b", "c")
    ]

    async def run() -> None:
        first, second, third = entries
        assert account.reserve_for(first, Amounts(tokens=80))
        waits = [asyncio.create_task(account.wait_for(entry, Amounts(tokens=60))) for entry in (second, third)]
        await asyncio.sleep(1)
        account.release(first)
        assert [entry.reservation is not None for entry in entries] == [False, True, False]
        waits[0].cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert [entry.reservation is not None for entry in entries] == [False, False, True]
        account.release(third)
        assert account.reserved == NO_AMOUNTS

    run_in_virtual_time(run())


def create_entries(account: TreeAccount, *names: str) -> list[AccountEntry]:
    """Return the entries of executions in an account."""
    start = AgentState.start("go")
    return [account.entry(start.with_execution_started(name, start.created_at), UsageMeter) for name in names]


def test_what_a_settled_inference_leaves_is_for_those_that_wait() -> None:
    """They do not wait for a later change of the account."""
    account = TreeAccount(Limits(tokens=100))
    first, second = create_entries(account, "a", "b")

    async def run() -> None:
        assert account.reserve_for(first, Amounts(tokens=80))
        waiting = asyncio.create_task(account.wait_for(second, Amounts(tokens=60)))
        await asyncio.sleep(1)
        account.settle(first, Amounts(tokens=30))
        assert second.reservation is not None
        await waiting

    run_in_virtual_time(run())


def test_those_that_wait_are_told_when_others_have_used_what_they_need() -> None:
    """What they wait for would not fit any more, even if all reservations returned."""
    account = TreeAccount(Limits(tokens=100))
    first, second = create_entries(account, "a", "b")

    async def run() -> None:
        account.set_used(first, Amounts(tokens=30))
        assert account.reserve_for(first, Amounts(tokens=40))
        waiting = asyncio.create_task(account.wait_for(second, Amounts(tokens=60)))
        await asyncio.sleep(1)
        assert not waiting.done()
        account.set_used(first, Amounts(tokens=50))
        await asyncio.sleep(1)
        assert waiting.done()
        assert second.reservation is None

    run_in_virtual_time(run())


def test_a_reservation_takes_the_place_of_an_earlier_one_of_its_execution() -> None:
    """What was reserved before is room for it."""
    account = TreeAccount(Limits(tokens=100))
    (entry,) = create_entries(account, "a")
    assert account.reserve_for(entry, Amounts(tokens=80))
    assert account.reserve_for(entry, Amounts(tokens=90))
    assert account.reserved == Amounts(tokens=90)


def test_the_account_of_a_lease_is_charged_while_it_is_open() -> None:
    """With what an inference without a reservation has used, and with nothing after the end of the lease."""
    account = TreeAccount(Limits(tokens=1_000))
    (caller,) = create_entries(account, "caller")
    with account.lend(caller, Limits(tokens=500)) as lent:
        (inner,) = create_entries(lent, "inner")
        lent.settle(inner, Amounts(tokens=40))
        assert account.used == Amounts(tokens=40)
        lent.set_used(inner, Amounts(tokens=60))
        assert account.used == Amounts(tokens=60)
    lent.set_used(inner, Amounts(tokens=300))
    assert account.used == caller.delegated == Amounts(tokens=60)


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_several_open_leases_is_charged_for_itself(kind: str) -> None:
    """What one of them is charged with anew, or returns, changes nothing of the others."""
    account = TreeAccount(Limits(**{kind: 1_000}))
    (caller,) = create_entries(account, "caller")
    with account.lend(caller, account.limits) as first, account.lend(caller, account.limits) as second:
        for lent, amount in ((first, 300), (second, 200), (first, 350)):
            (entry,) = create_entries(lent, "inner")
            lent.set_used(entry, Amounts(**{kind: amount}))
        assert account.used == Amounts(**{kind: 550})
        assert account.remaining == first.remaining == Limits(**{kind: 450})
    assert account.used == caller.delegated == Amounts(**{kind: 550})


def test_agents_in_threads_wait_for_each_other() -> None:
    """Agents that synchronous tools run in threads, each with an event loop of its own, share one budget."""
    record: list[int] = []

    @tool(effect="pure")
    def delegate(number: int) -> str:
        """Delegate to another agent, from a thread."""
        budget = current_budget()
        assert budget is not None
        with budget.lease() as lease:
            loop = AgentLoop(ToolCallingDriver(Answering(record)), interceptors=[lease])
            return loop.execute_sync("go").final_text or ""

    calls = [ToolCall(str(number), "delegate", f'{{"number": {number}}}') for number in range(8)]
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(calls, "over")), [delegate], interceptors=[Budget(tokens=20_000, wrap_up=0)]
    )
    state = asyncio.run(loop.execute("go"))
    assert statuses_of(state) == {"succeeded"}
    assert len(record) == 8


class Answering(CanInfer):
    """Answers at once."""

    def __init__(self, record: list[int]) -> None:
        self.record = record

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        self.record.append(110)
        return InferenceResponse((Text("done"),), FinishReason.STOP, Usage(100, 10, 0, 0, 0), "any")
