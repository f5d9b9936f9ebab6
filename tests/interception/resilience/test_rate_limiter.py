"""No more attempts than a rate allows."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallRateLimited
from agentloop.interception import AroundToolUse, ProceedToolUse, around_tool_use
from agentloop.interception.resilience import MemoryStore, RateLimiter, Retry
from agentloop.testing import run_in_virtual_time
from agentloop.values import Effect, RateLimit, RetryPolicy, ToolExecution
from tests.interception.resilience.at_work import Run, Worker, looped, seen, use, watched

LIMITS = st.builds(
    RateLimit,
    st.integers(1, 5),
    st.floats(0.1, 10),
    burst=st.none() | st.integers(1, 5),
    max_wait=st.none() | st.floats(0, 20),
)


def assert_within(limit: RateLimit, times: list[float]) -> None:
    """Hold every window between two attempts against the rate."""
    burst = limit.burst or limit.calls
    for first, begin in enumerate(times):
        for last, end in enumerate(times[first:], first):
            assert last - first + 1 <= burst + (end - begin) * limit.calls / limit.per + 1e-6


@given(LIMITS, st.lists(st.floats(0, 20), min_size=1, max_size=15), st.integers(1, 3))
def test_no_bucket_exceeds_its_rate_in_any_window(limit: RateLimit, arrivals: list[float], attempts: int) -> None:
    """However calls come and however often they are repeated: in n seconds at most burst + n * rate attempts begin."""

    async def arrive(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await asyncio.sleep(float(point.arguments["value"]))
        return await proceed()

    def fail(run: Run) -> None:
        raise ConnectionError(str(run.attempt))

    tool = Worker(fail)
    layers = [around_tool_use(arrive), Retry(RetryPolicy(attempts, initial_wait=0.1)), RateLimiter(limit)]
    run = seen(tool, layers, [use(arrival) for arrival in arrivals])
    times = sorted(one.at for one in tool.runs)
    assert_within(limit, times)
    refused = run.statuses.count("blocked")
    if limit.max_wait is None:
        assert not refused
        assert len(times) == len(arrivals) * attempts
    assert all(one.refused == (one.delay > (limit.max_wait or 0)) for one in run.told(ToolCallRateLimited)) or (
        limit.max_wait is None
    )


@given(LIMITS.filter(lambda limit: limit.max_wait is None), st.integers(1, 20))
def test_who_waits_is_served_in_order_and_no_later_than_must_be(limit: RateLimit, calls: int) -> None:
    """A burst is served at once, then one call each per / calls seconds, first come first served."""
    tool = Worker()
    seen(tool, [RateLimiter(limit)], [use(n) for n in range(calls)])
    assert [one.value for one in tool.runs] == list(range(calls))
    burst, each = limit.burst or limit.calls, limit.per / limit.calls
    expected = [max(0, n - burst + 1) * each for n in range(calls)]
    assert [one.at for one in tool.runs] == pytest.approx(expected)


def test_a_refused_call_is_blocked_and_told_when_to_come_again() -> None:
    """Where nobody may wait, the call too many does not run, and the model learns what it can do."""
    tool = Worker(kind=Effect.EFFECT, wants=ToolPolicy(rate_limit=RateLimit(2, 10, max_wait=0)))
    run = seen(tool, [RateLimiter()], [use(1), use(2), use(3)])
    assert run.statuses == ["succeeded", "succeeded", "blocked"]
    refused = run.outcomes[2]
    assert refused.was_blocked
    assert not refused.may_have_run
    assert "5.0 seconds" in refused.error_message
    (told,) = run.told(ToolCallRateLimited)
    assert (told.bucket, told.delay, told.refused) == ("tool work", 5.0, True)


def test_buckets_are_by_tool_by_key_or_shared_by_name() -> None:
    """A function of the arguments makes buckets of one tool, a name makes one bucket of several tools."""
    by_key = ToolPolicy(rate_limit=RateLimit(1, 10, by=lambda arguments: str(arguments["value"])))
    keyed = Worker(wants=by_key)
    assert seen(keyed, [RateLimiter()], [use("a"), use("b"), use("a")]).seconds == 10
    shared = ToolPolicy(rate_limit=RateLimit(1, 10, by="crm"))
    tools = [Worker(tool_name=name, wants=shared) for name in ("read", "write")]
    assert seen(tools, [RateLimiter()], [use(1, "read"), use(2, "write")]).seconds == 10
    apart = [Worker(tool_name=name, wants=ToolPolicy(rate_limit=RateLimit(1, 10))) for name in ("read", "write")]
    assert seen(apart, [RateLimiter()], [use(1, "read"), use(2, "write")]).seconds == 0


def test_a_bucket_serves_all_executions_that_share_its_store() -> None:
    """Executions of one loop, and other layers with the same store, take from the same bucket."""
    tool, store, limit = Worker(), MemoryStore(), RateLimit(1, 10)
    loops = [looped(tool, [RateLimiter(limit, store=store)], [use(n)]) for n in range(2)]

    async def together() -> None:
        await asyncio.gather(*[watched(one) for one in (*loops, loops[0])])

    run_in_virtual_time(together())
    assert [one.at for one in tool.runs] == [0, 10, 20]


def test_a_full_bucket_is_not_kept() -> None:
    """What a store holds does not grow with the keys that were ever used."""
    store = MemoryStore()
    limit = RateLimit(1, 1, by=lambda arguments: str(arguments["value"]))
    batches = [[use(f"{batch}/{n}") for n in range(25)] for batch in range(16)]
    seen(Worker(seconds=2), [RateLimiter(limit, store=store)], *batches)
    assert len(store) < 150
