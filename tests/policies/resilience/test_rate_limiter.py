"""A limit on the rate of attempts."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallRateLimited
from agentloop.interception import AroundToolUse, ProceedToolUse, at
from agentloop.policies import MemoryStore, RateLimiter, Retry
from agentloop.testing import run_in_virtual_time
from agentloop.values import Effect, RateLimit, RetryPolicy, ToolExecution
from tests.policies.resilience.worker import Run, Worker, create_loop, observe, run_loop, work

LIMITS = st.builds(
    RateLimit,
    st.integers(1, 5),
    st.floats(0.1, 10),
    burst=st.none() | st.integers(1, 5),
    max_wait=st.none() | st.floats(0, 20),
)


def assert_within(limit: RateLimit, starts: list[float]) -> None:
    """Compare the number of attempts in every interval with the rate."""
    burst = limit.burst or limit.calls
    for first, begin in enumerate(starts):
        for last, end in enumerate(starts[first:], first):
            assert last - first + 1 <= burst + (end - begin) * limit.calls / limit.per + 1e-6


@given(LIMITS, st.lists(st.floats(0, 20), min_size=1, max_size=15), st.integers(1, 3))
def test_no_bucket_exceeds_its_rate_in_any_window(limit: RateLimit, arrivals: list[float], attempts: int) -> None:
    """Whenever calls arrive and however often they are retried, at most burst + n * rate attempts start in n seconds."""

    async def arrive(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await asyncio.sleep(float(point.arguments["value"]))
        return await proceed()

    def fail(run: Run) -> None:
        raise ConnectionError(str(run.attempt))

    worker = Worker(fail)
    layers = [at("around_tool_use", arrive), Retry(RetryPolicy(attempts, initial_wait=0.1)), RateLimiter(limit)]
    run = run_loop(worker, layers, [work(arrival) for arrival in arrivals])
    starts = sorted(attempt.at for attempt in worker.runs)
    assert_within(limit, starts)
    if limit.max_wait is None:
        assert "blocked" not in run.statuses
        assert len(starts) == len(arrivals) * attempts
    else:
        for event in run.events_of(ToolCallRateLimited):
            assert event.refused == (event.delay > limit.max_wait)


@given(LIMITS.filter(lambda limit: limit.max_wait is None), st.integers(1, 20))
def test_waiting_calls_are_served_in_order_and_without_delay(limit: RateLimit, calls: int) -> None:
    """A burst runs at once, then one call every per / calls seconds, in the order of arrival."""
    worker = Worker()
    run_loop(worker, [RateLimiter(limit)], [work(n) for n in range(calls)])
    assert [attempt.value for attempt in worker.runs] == list(range(calls))
    burst, interval = limit.burst or limit.calls, limit.per / limit.calls
    expected = [max(0, n - burst + 1) * interval for n in range(calls)]
    assert [attempt.at for attempt in worker.runs] == pytest.approx(expected)


def test_a_refused_call_is_blocked_with_the_time_to_call_again() -> None:
    """With `max_wait=0`, a call that exceeds the limit does not run, and the error says when to call again."""
    worker = Worker(declared_effect=Effect.EFFECT, declared_policy=ToolPolicy(rate_limit=RateLimit(2, 10, max_wait=0)))
    run = run_loop(worker, [RateLimiter()], [work(1), work(2), work(3)])
    assert run.statuses == ["succeeded", "succeeded", "blocked"]
    refused_call = run.outcomes[2]
    assert refused_call.was_blocked
    assert not refused_call.may_have_run
    assert "5.0 seconds" in refused_call.error_message
    (event,) = run.events_of(ToolCallRateLimited)
    assert (event.bucket, event.delay, event.refused) == ("tool work", 5.0, True)


def test_buckets_are_by_tool_by_key_or_shared_by_name() -> None:
    """A function of the arguments divides a tool's calls into buckets, a name is one bucket for several tools."""
    by_key = ToolPolicy(rate_limit=RateLimit(1, 10, by=lambda arguments: str(arguments["value"])))
    keyed = Worker(declared_policy=by_key)
    assert run_loop(keyed, [RateLimiter()], [work("a"), work("b"), work("a")]).seconds == 10
    shared = ToolPolicy(rate_limit=RateLimit(1, 10, by="crm"))
    tools = [Worker(tool_name=name, declared_policy=shared) for name in ("read", "write")]
    assert run_loop(tools, [RateLimiter()], [work(1, "read"), work(2, "write")]).seconds == 10
    separate = [
        Worker(tool_name=name, declared_policy=ToolPolicy(rate_limit=RateLimit(1, 10))) for name in ("read", "write")
    ]
    assert run_loop(separate, [RateLimiter()], [work(1, "read"), work(2, "write")]).seconds == 0


def test_a_bucket_serves_all_executions_that_share_its_store() -> None:
    """Executions of one loop, and other layers with the same store, take from the same bucket."""
    worker, store, limit = Worker(), MemoryStore(), RateLimit(1, 10)
    loops = [create_loop(worker, [RateLimiter(limit, store=store)], [work(n)]) for n in range(2)]

    async def together() -> None:
        await asyncio.gather(*[observe(loop) for loop in (*loops, loops[0])])

    run_in_virtual_time(together())
    assert [attempt.at for attempt in worker.runs] == [0, 10, 20]


def test_a_full_bucket_is_not_stored() -> None:
    """The size of the store does not grow with the number of keys."""
    store = MemoryStore()
    limit = RateLimit(1, 1, by=lambda arguments: str(arguments["value"]))
    batches = [[work(f"{batch}/{n}") for n in range(25)] for batch in range(16)]
    run_loop(Worker(seconds=2), [RateLimiter(limit, store=store)], *batches)
    assert len(store) < 150
