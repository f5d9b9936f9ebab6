"""All layers around a tool as one interceptor, in a fixed order."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, tool
from agentloop.contracts import CanIntercept, CanKeepState, Namespace, ToolPolicy
from agentloop.contracts.can_keep_state import R, S, Transition
from agentloop.events import EventBus, ProtocolMonitor
from agentloop.events.resilience import (
    CircuitOpened,
    ToolAttemptTimedOut,
    ToolCallCached,
    ToolCallDeadlineExceeded,
    ToolCallDecided,
    ToolCallDeduplicated,
    ToolCallRateLimited,
    ToolCallRetried,
    ToolCallShortCircuited,
)
from agentloop.interception import InterceptorStack
from agentloop.policies import (
    AttemptTimeout,
    Cache,
    CircuitBreaker,
    Deadline,
    Deduplicate,
    ExactCalls,
    MemoryStore,
    RateLimiter,
    Resilience,
    Retry,
)
from agentloop.testing import InterceptorKit, ManualClock, run_in_virtual_time
from agentloop.values import CachePolicy, CallPolicy, CircuitPolicy, Effect, RateLimit, RetryPolicy
from tests.generated import examples
from tests.policies.resilience.worker import Run, Worker, create_loop, fail_first, observe, run_loop, work

ORDER = [Deduplicate, Cache, Deadline, Retry, CircuitBreaker, RateLimiter, AttemptTimeout]


def test_the_order_of_the_layers_is_fixed() -> None:
    """`Resilience` has its layers in the documented order, and single layers get the same order in a stack."""
    assert [type(layer) for layer in Resilience().layers] == ORDER
    stack = InterceptorStack.of([kind() for kind in reversed(ORDER)])
    assert [type(layer) for layer in stack.layers] == ORDER
    assert [type(layer) for layer in Resilience(cache=None, retry=None).layers] == [
        kind for kind in ORDER if kind not in {Cache, Retry}
    ]


def test_a_changed_copy_has_the_layers_of_its_own_policies() -> None:
    """So `evolve` changes what a stack does; the original stays as it is."""
    plain = Resilience(cache=None, circuit_breaker=None, rate_limiter=None)  # their stores are never equal
    changed = evolve(plain, retry=None)
    assert changed == Resilience(retry=None, cache=None, circuit_breaker=None, rate_limiter=None)
    assert [type(layer) for layer in changed.layers] == [Deduplicate, Deadline, AttemptTimeout]
    assert Retry in map(type, plain.layers)


FULL_POLICY = ToolPolicy(
    timeout=2,
    retry=RetryPolicy(3, initial_wait=1),
    cache=CachePolicy(1000),
    rate_limit=RateLimit(1, 10),
    circuit=CircuitPolicy(4, 60),
    deadline=100,
)


def test_each_layer_works_in_its_place() -> None:
    """Duplicates and cached calls take no token, each attempt takes one, and waiting for it is not part of the attempt."""
    worker = Worker(fail_first(1), declared_policy=FULL_POLICY)
    run = run_loop(worker, [Resilience(retry=Retry(jitter=lambda: 1.0))], [work(1), work(1)], [work(1), work(1)])
    assert run.statuses == ["succeeded"] * 4
    assert [attempt.at for attempt in worker.runs] == [0, 10]
    decisions = Counter(type(event) for event in run.events_of(ToolCallDecided))
    assert decisions == {ToolCallRetried: 1, ToolCallRateLimited: 1, ToolCallDeduplicated: 2, ToolCallCached: 1}


def test_the_deadline_includes_every_wait() -> None:
    """Waiting for a token counts; a call that never started has not run."""
    worker = Worker(declared_effect=Effect.EFFECT, declared_policy=ToolPolicy(rate_limit=RateLimit(1, 50), deadline=30))
    run = run_loop(worker, [Resilience()], [work(1), work(2)])
    assert run.statuses == ["succeeded", "timed_out"]
    assert not run.outcomes[1].may_have_run
    assert run.seconds == 30
    (event,) = run.events_of(ToolCallDeadlineExceeded)
    assert (event.key, event.seconds) == (run.outcomes[1].key, 30)
    assert "30 seconds" in run.outcomes[1].error_message


@pytest.mark.parametrize(
    ("effect", "may_have_run"), [(Effect.PURE, False), (Effect.IDEMPOTENT, True), (Effect.EFFECT, True)]
)
@pytest.mark.parametrize("layer", [Deadline(5), AttemptTimeout(5)], ids=repr)
def test_whether_a_cancelled_call_may_have_run_depends_on_its_effect(
    effect: Effect,
    may_have_run: bool,  # noqa: FBT001  # a row of the table
    layer: CanIntercept,
) -> None:
    """The call ends as timed out at its limit, and the other calls of its batch keep their outcomes."""
    slow, quick = Worker(seconds=60, declared_effect=effect), Worker(tool_name="quick")
    run = run_loop([slow, quick], [layer], [work(1), work(2, "quick")])
    assert run.statuses == ["timed_out", "succeeded"]
    assert run.outcomes[0].may_have_run is may_have_run
    assert run.outcomes[0].error is not None
    assert run.outcomes[0].error.type == "ToolTimedOut"
    assert run.seconds == 5


def test_an_attempt_that_the_executor_cancels_is_an_event_too() -> None:
    """The timeout that a tool declares applies to each attempt, which is cancelled, reported and retried."""
    worker = Worker(seconds=60, declared_policy=ToolPolicy(timeout=2, retry=RetryPolicy(3)))
    run = run_loop(worker, [Resilience()], [work(1)])
    assert len(worker.runs) == 3
    assert len(run.events_of(ToolAttemptTimedOut)) == 3
    assert run.statuses == ["timed_out"]


def test_each_attempt_counts_for_the_circuit() -> None:
    """Failed attempts of one call open the circuit, and other calls are refused at once."""
    worker = Worker(fail_first(99), declared_policy=ToolPolicy(retry=RetryPolicy(3), circuit=CircuitPolicy(3, 60)))
    run = run_loop(worker, [Resilience()], [work(1)], [work(2)])
    assert len(worker.runs) == 3
    assert run.statuses == ["failed", "blocked"]
    assert len(run.events_of(CircuitOpened)) == len(run.events_of(ToolCallShortCircuited)) == 1
    assert "or do without it" in run.outcomes[1].error_message


LAYER_STACKS = st.builds(
    Resilience,
    deduplicate=st.none()
    | st.builds(Deduplicate)
    | st.builds(Deduplicate, st.builds(ExactCalls), across_executions=st.booleans()),
    cache=st.none() | st.builds(Cache, st.builds(CachePolicy)),
    deadline=st.none() | st.builds(Deadline, st.floats(5, 50)),
    retry=st.none() | st.builds(Retry, st.builds(RetryPolicy, st.integers(1, 5))),
    circuit_breaker=st.none() | st.builds(CircuitBreaker, st.just(CircuitPolicy(1000))),
    rate_limiter=st.none() | st.builds(RateLimiter, st.just(RateLimit(1000))),
    attempt_timeout=st.none() | st.builds(AttemptTimeout, st.floats(1, 50)),
)


@given(LAYER_STACKS, st.lists(st.tuples(st.integers(0, 1), st.floats(0, 60), st.booleans()), min_size=1, max_size=8))
def test_an_effect_runs_exactly_once_whatever_the_stack(
    stack: Resilience, calls: list[tuple[int, float, bool]]
) -> None:
    """Each call of a tool with an effect starts exactly once, equal or not, and whether it fails, is slow or succeeds."""

    def behavior(run: Run) -> Any:
        if run.value["fails"]:
            raise ConnectionError("down")
        return run.value["what"]

    worker = Worker(
        behavior,
        lambda run: run.value["seconds"],
        declared_effect=Effect.EFFECT,
        declared_policy=ToolPolicy(repeatable=True),
    )
    batch = [work({"what": what, "seconds": seconds, "fails": fails}) for what, seconds, fails in calls]
    run = run_loop(worker, [stack], batch, batch)
    assert sorted(attempt.key for attempt in worker.runs) == sorted(outcome.key for outcome in run.outcomes)
    assert not run.events_of(ToolCallDeduplicated, ToolCallCached, ToolCallRetried)


@given(
    LAYER_STACKS, st.lists(st.tuples(st.integers(0, 1), st.floats(0, 60), st.integers(0, 3)), min_size=1, max_size=8)
)
def test_the_events_of_every_run_follow_the_grammar(stack: Resilience, calls: list[tuple[int, float, int]]) -> None:
    """Whatever the layers decide, the sequence of events is valid, and each decision belongs to a call of the run."""
    worker = Worker(lambda run: fail_first(run.value["fails"])(run), lambda run: run.value["seconds"])
    batch = [work({"what": what, "seconds": seconds, "fails": fails}) for what, seconds, fails in calls]
    run = run_loop(worker, [stack], batch, batch)
    monitor = ProtocolMonitor()
    for event in run.events:
        monitor(event)
    monitor.check()
    assert {(event.key, event.step_number) for event in run.events_of(ToolCallDecided)} <= {
        (outcome.key, int(outcome.key.split("/")[1])) for outcome in run.outcomes
    }


def test_a_decision_after_the_call_has_ended_violates_the_grammar() -> None:
    """The monitor reports the event of a decision about a settled call."""
    worker = Worker(fail_first(1), declared_policy=FULL_POLICY)
    run = run_loop(worker, [Resilience()], [work(1)])
    (retried,) = run.events_of(ToolCallRetried)
    monitor = ProtocolMonitor()
    for event in [*run.events[:-3], retried]:
        monitor(event)
    assert [text for text in monitor.violations if "ToolCallRetried" in text and "settled" in text]


def test_policies_can_be_set_by_the_names_of_tools() -> None:
    """A policy for a name or pattern takes precedence over what the tool declares."""
    tools = [
        Worker(
            fail_first(9),
            tool_name="crm_read",
            declared_effect=Effect.EFFECT,
            declared_policy=ToolPolicy(retry=RetryPolicy(5)),
        ),
        Worker(fail_first(9), tool_name="mail", declared_effect=Effect.EFFECT),
    ]
    stack = Resilience(tools={"crm_*": CallPolicy(retry=RetryPolicy(2))})
    run_loop(tools, [stack], [work(1, "crm_read"), work(1, "mail")])
    assert [len(worker.runs) for worker in tools] == [2, 1]


@pytest.mark.parametrize(("deadline", "attempts"), [(Deadline(5), [0]), (None, [0, 9])])
def test_no_retry_waits_beyond_the_deadline_of_the_stack(deadline: Deadline | None, attempts: list[float]) -> None:
    """The failure is the outcome at once, and not the deadline later; without a deadline, the retry waits."""
    worker = Worker(fail_first(9))
    stack = Resilience(retry=Retry(RetryPolicy(2, initial_wait=9), jitter=lambda: 1.0), deadline=deadline)
    run = run_loop(worker, [stack], [work(1)])
    assert (run.statuses, run.seconds) == (["failed"], attempts[-1])
    assert [attempt.at for attempt in worker.runs] == attempts


def test_several_loops_share_a_circuit_through_a_store() -> None:
    """A call in one of them is refused after the failure in another; a stack without the layer runs it."""
    store = MemoryStore()
    worker = Worker(fail_first(9), declared_policy=ToolPolicy(circuit=CircuitPolicy(1, 60)))
    stacks = [Resilience(store=store), Resilience(store=store), Resilience(store=store, circuit_breaker=None)]

    async def run_all() -> list[list[str]]:
        return [(await observe(create_loop(worker, [stack], [work(1)]))).statuses for stack in stacks]

    assert run_in_virtual_time(run_all()) == [["failed"], ["blocked"], ["failed"]]


class SharedStore(CanKeepState):
    """Keeps states as a database of several processes does."""

    def __init__(self) -> None:
        self.states = MemoryStore()

    async def update(self, namespace: Namespace, key: str, now: float, transition: Transition[S, R]) -> R:
        return await self.states.update(namespace, key, now, transition)


class MachineClock(ManualClock):
    """The clock of a machine that has run for some seconds."""

    def __init__(self, uptime: float, seconds: float) -> None:
        super().__init__()
        self.advance(seconds)
        self.uptime = uptime

    def monotonic(self) -> float:
        return self.uptime


@pytest.mark.parametrize(
    ("policy", "before", "seconds", "after"),
    [
        (ToolPolicy(rate_limit=RateLimit(1, 10, max_wait=0)), "succeeded", 11, "succeeded"),
        (ToolPolicy(rate_limit=RateLimit(1, 10, max_wait=0)), "succeeded", 9, "blocked"),
        (ToolPolicy(circuit=CircuitPolicy(1, 10)), "failed", 11, "succeeded"),
        (ToolPolicy(circuit=CircuitPolicy(1, 10)), "failed", 9, "blocked"),
        (ToolPolicy(cache=CachePolicy(10)), "succeeded", 11, "failed"),
        (ToolPolicy(cache=CachePolicy(10)), "succeeded", 9, "succeeded"),
    ],
)
@pytest.mark.parametrize("uptimes", [(1e6, 1.0), (1.0, 1e6)])
def test_states_mean_the_same_on_another_machine_and_after_a_reboot(
    policy: ToolPolicy, before: str, seconds: float, after: str, uptimes: tuple[float, float]
) -> None:
    """Their times are not those of a clock that begins anew there."""
    store, statuses = SharedStore(), []
    for uptime, passed, status in [(uptimes[0], 0.0, before), (uptimes[1], seconds, after)]:
        worker = Worker(fail_first(0 if status == "succeeded" else 1), declared_policy=policy)
        stack = Resilience(store=store, retry=None)
        loop = create_loop(worker, [stack], [work(1)]).replace(clock=MachineClock(uptime, passed))
        statuses += run_in_virtual_time(observe(loop)).statuses
    assert statuses == [before, after]


def test_one_store_can_serve_all_layers_and_several_loops() -> None:
    """Two loops with different stacks share results, buckets and circuits through the store."""
    store = MemoryStore()
    worker = Worker(declared_policy=ToolPolicy(cache=CachePolicy(1000), rate_limit=RateLimit(1, 10)))

    async def run_both() -> list[list[str]]:
        runs = [await observe(create_loop(worker, [Resilience(store=store)], [work(1)], [work(n)])) for n in (2, 3)]
        return [run.statuses for run in runs]

    assert run_in_virtual_time(run_both()) == [["succeeded"] * 2] * 2
    assert [attempt.value for attempt in worker.runs] == [1, 2, 3]
    assert [attempt.at for attempt in worker.runs] == [0, 10, 20]


@pytest.mark.parametrize("cancel_at", [1.0, 12.0, 25.0, 31.0])
def test_cancelling_inside_of_any_wait_leaves_nothing_behind(cancel_at: float) -> None:
    """A cancelled execution leaves no task, while calls wait for a token, a retry or each other (law 19)."""
    worker = Worker(
        fail_first(2), seconds=3, declared_policy=evolve(FULL_POLICY, timeout=5, retry=RetryPolicy(5, initial_wait=7))
    )

    async def cancel() -> tuple[set[str], bool]:
        loop = create_loop(worker, [Resilience(retry=Retry(jitter=lambda: 1.0))], [work(1), work(1), work(2), work(3)])
        task = asyncio.create_task(observe(loop))
        await asyncio.sleep(cancel_at)
        task.cancel()
        await asyncio.wait([task])
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        return {repr(task) for task in tasks}, task.cancelled()

    tasks, cancelled = run_in_virtual_time(cancel())
    assert not tasks
    assert cancelled


def test_a_tool_declares_its_policies_with_the_decorator() -> None:
    """`@tool` takes the policies, and `Resilience` enforces them."""
    runs: list[int] = []

    @tool(effect="idempotent", retry=RetryPolicy(2, initial_wait=3), cache=CachePolicy(60), rate_limit=RateLimit(5))
    async def fetch(number: int) -> int:
        """Fetch a number."""
        runs.append(number)
        if len(runs) == 1:
            raise ConnectionError("down")
        return number

    assert fetch.policy.retry == RetryPolicy(2, initial_wait=3)
    call = evolve(work(1, "fetch"), arguments_json='{"number": 1}')
    run = run_loop(fetch, [Resilience()], [call], [call])
    assert run.statuses == ["succeeded", "succeeded"]
    assert runs == [1, 1]


def test_the_layers_work_without_listeners() -> None:
    """Without a listener there are no events, and the outcome is the same."""
    worker = Worker(fail_first(1), declared_policy=FULL_POLICY)
    loop: AgentLoop = create_loop(worker, [Resilience()], [work(1), work(1)])
    state = run_in_virtual_time(loop.execute("go"))
    statuses = [execution.status.value for step in state.steps for execution in step.executions]
    assert statuses == ["succeeded"] * 2


@pytest.mark.parametrize("kind", [*ORDER, Resilience], ids=lambda kind: kind.__name__)
def test_each_layer_keeps_the_laws_of_interceptors(kind: type[Any]) -> None:
    """Alone and together the layers change no context in place, are deterministic, and separate executions."""
    InterceptorKit(kind, examples=examples(15)).check_all()


@pytest.mark.parametrize("kind", [Cache, Deadline, Retry, AttemptTimeout], ids=lambda kind: kind.__name__)
def test_a_layer_that_reports_its_decisions_is_equal(kind: type[Any]) -> None:
    """To whom it reports is no part of what it decides."""
    layer = kind() if kind is not Cache else Cache(store=MemoryStore())
    assert layer.with_lifecycle(layer, EventBus()) == layer


def name_it(_: object) -> Any:
    """Return what has to be awaited, as an async function does."""
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (RateLimiter(RateLimit(1, 10, by=name_it)), "names the bucket of a call"),
        (Cache(CachePolicy(10), caller=name_it), "returns the caller of a call"),
        (Deduplicate(caller=name_it), "returns the caller of a call"),
    ],
)
@pytest.mark.unreplayed  # a replay runs no tools, and no layers around them
def test_a_name_that_an_async_function_returns_is_an_error(layer: CanIntercept, what: str) -> None:
    """Each coroutine is another one, so that nothing would be limited or shared; no call runs."""
    worker = Worker()
    run = run_loop(worker, [layer], [work(1), work(1)])
    assert worker.runs == []
    assert f"TypeError: the function that {what} returned <Future" in run.state.errors[0].message


def test_jitter_is_random_by_default() -> None:
    """The default is `random.random`; tests pass a function of their own."""
    assert Retry().jitter is random.random
