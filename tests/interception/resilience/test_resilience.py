"""All layers around a tool, in their fixed order."""

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
from agentloop.contracts import CanIntercept, ToolPolicy
from agentloop.events import ProtocolMonitor
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
from agentloop.interception import InterceptorStack, Resilience
from agentloop.interception.resilience import (
    AttemptTimeout,
    Cache,
    CircuitBreaker,
    Deadline,
    Deduplicate,
    ExactCalls,
    MemoryStore,
    RateLimiter,
    Retry,
)
from agentloop.testing import InterceptorKit, run_in_virtual_time
from agentloop.values import CachePolicy, CallPolicy, CircuitPolicy, Effect, RateLimit, RetryPolicy
from tests.interception.resilience.at_work import Run, Worker, failing, looped, seen, use, watched

ORDER = [Deduplicate, Cache, Deadline, Retry, CircuitBreaker, RateLimiter, AttemptTimeout]


def test_the_order_is_fixed_together_and_one_by_one() -> None:
    """`Resilience` has its layers in the documented order, and layers given one by one are put into the same."""
    assert [type(layer) for layer in Resilience().layers] == ORDER
    given_in_disorder = [kind() for kind in reversed(ORDER)]
    stack = InterceptorStack.of(given_in_disorder)
    assert [type(layer) for layer in stack.layers] == ORDER
    assert [type(layer) for layer in Resilience(cache=None, retry=None).layers] == [
        kind for kind in ORDER if kind not in {Cache, Retry}
    ]


WISHES = ToolPolicy(
    timeout=2,
    retry=RetryPolicy(3, initial_wait=1),
    cache=CachePolicy(1000),
    rate_limit=RateLimit(1, 10),
    circuit=CircuitPolicy(4, 60),
    deadline=100,
)


def test_each_layer_does_its_part_in_its_place() -> None:
    """Duplicates and cached calls take no token, every attempt takes one, and the wait for it is not the attempt's time."""
    tool = Worker(failing(1), wants=WISHES)
    run = seen(tool, [Resilience(retry=Retry(jitter=lambda: 1.0))], [use(1), use(1)], [use(1), use(1)])
    assert run.statuses == ["succeeded"] * 4
    assert [one.at for one in tool.runs] == [0, 10]
    told = Counter(type(event) for event in run.told(ToolCallDecided))
    assert told == {ToolCallRetried: 1, ToolCallRateLimited: 1, ToolCallDeduplicated: 1, ToolCallCached: 2}


def test_the_deadline_counts_every_wait() -> None:
    """Waiting for a token counts; a call that never began has not run."""
    tool = Worker(kind=Effect.EFFECT, wants=ToolPolicy(rate_limit=RateLimit(1, 50), deadline=30))
    run = seen(tool, [Resilience()], [use(1), use(2)])
    assert run.statuses == ["succeeded", "timed_out"]
    assert not run.outcomes[1].may_have_run
    assert run.seconds == 30
    (told,) = run.told(ToolCallDeadlineExceeded)
    assert (told.key, told.seconds) == (run.outcomes[1].key, 30)
    assert "30 seconds" in run.outcomes[1].error_message


@pytest.mark.parametrize(("effect", "doubt"), [(Effect.PURE, False), (Effect.IDEMPOTENT, True), (Effect.EFFECT, True)])
@pytest.mark.parametrize("layer", [Deadline(5), AttemptTimeout(5)], ids=repr)
def test_a_call_that_is_cut_off_may_have_run_as_its_effect_says(
    effect: Effect,
    doubt: bool,  # noqa: FBT001  # a row of the table
    layer: CanIntercept,
) -> None:
    """It ends as timed out at the very moment, and its siblings are kept."""
    slow, quick = Worker(seconds=60, kind=effect), Worker(tool_name="quick")
    run = seen([slow, quick], [layer], [use(1), use(2, "quick")])
    assert run.statuses == ["timed_out", "succeeded"]
    assert run.outcomes[0].may_have_run is doubt
    assert run.outcomes[0].error is not None
    assert run.outcomes[0].error.type == "ToolTimedOut"
    assert run.seconds == 5


def test_an_attempt_that_the_executor_cuts_off_is_told_too() -> None:
    """The timeout that a tool declares is an attempt's: each of them is cut off, told, and repeated."""
    tool = Worker(seconds=60, wants=ToolPolicy(timeout=2, retry=RetryPolicy(3)))
    run = seen(tool, [Resilience()], [use(1)])
    assert len(tool.runs) == 3
    assert len(run.told(ToolAttemptTimedOut)) == 3
    assert run.statuses == ["timed_out"]


def test_the_circuit_is_inside_of_the_repetitions() -> None:
    """Failures of one call's attempts open the circuit, and other calls are refused at once, with a reason to act on."""
    tool = Worker(failing(99), wants=ToolPolicy(retry=RetryPolicy(3), circuit=CircuitPolicy(3, 60)))
    run = seen(tool, [Resilience()], [use(1)], [use(2)])
    assert len(tool.runs) == 3
    assert run.statuses == ["failed", "blocked"]
    assert len(run.told(CircuitOpened)) == len(run.told(ToolCallShortCircuited)) == 1
    assert "or do without it" in run.outcomes[1].error_message


STACKS = st.builds(
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


@given(STACKS, st.lists(st.tuples(st.integers(0, 1), st.floats(0, 60), st.booleans()), min_size=1, max_size=8))
def test_an_effect_runs_exactly_once_whatever_the_stack(
    stack: Resilience, calls: list[tuple[int, float, bool]]
) -> None:
    """Identical or not, failing, slow or fine: each call of a tool with an effect begins once and never again."""

    def does(run: Run) -> Any:
        if run.value["fails"]:
            raise ConnectionError("down")
        return run.value["what"]

    tool = Worker(does, lambda run: run.value["seconds"], kind=Effect.EFFECT)
    wanted = [use({"what": what, "seconds": seconds, "fails": fails}) for what, seconds, fails in calls]
    run = seen(tool, [stack], wanted, wanted)
    assert sorted(one.key for one in tool.runs) == sorted(one.key for one in run.outcomes)
    assert not run.told(ToolCallDeduplicated, ToolCallCached, ToolCallRetried)


@given(STACKS, st.lists(st.tuples(st.integers(0, 1), st.floats(0, 60), st.integers(0, 3)), min_size=1, max_size=8))
def test_every_run_is_a_sentence_of_the_grammar(stack: Resilience, calls: list[tuple[int, float, int]]) -> None:
    """Whatever the layers decide, the events are legal, and every decision belongs to a call of the run."""
    tool = Worker(lambda run: failing(run.value["fails"])(run), lambda run: run.value["seconds"])
    wanted = [use({"what": what, "seconds": seconds, "fails": fails}) for what, seconds, fails in calls]
    run = seen(tool, [stack], wanted, wanted)
    monitor = ProtocolMonitor()
    for event in run.events:
        monitor(event)
    monitor.check()
    assert {event.key for event in run.told(ToolCallDecided)} <= {one.key for one in run.outcomes}
    assert {(event.key, event.step_number) for event in run.told(ToolCallDecided)} <= {
        (one.key, int(one.key.split("/")[1])) for one in run.outcomes
    }


def test_a_decision_after_the_call_has_ended_is_against_the_grammar() -> None:
    """The monitor knows the new words: one in the wrong place is found."""
    tool = Worker(failing(1), wants=WISHES)
    run = seen(tool, [Resilience()], [use(1)])
    (told,) = run.told(ToolCallRetried)
    late = ProtocolMonitor()
    for event in [*run.events[:-3], told]:
        late(event)
    assert [one for one in late.violations if "ToolCallRetried" in one and "settled" in one]


def test_what_tools_do_not_say_themselves_can_be_said_for_them() -> None:
    """By name or pattern, and before what the tool declares."""
    tools = [
        Worker(failing(9), tool_name="crm_read", kind=Effect.EFFECT, wants=ToolPolicy(retry=RetryPolicy(5))),
        Worker(failing(9), tool_name="mail", kind=Effect.EFFECT),
    ]
    stack = Resilience(tools={"crm_*": CallPolicy(retry=RetryPolicy(2))})
    seen(tools, [stack], [use(1, "crm_read"), use(1, "mail")])
    assert [len(one.runs) for one in tools] == [2, 1]


def test_one_store_serves_all_layers_and_all_loops_that_are_given_it() -> None:
    """Two loops with stacks of their own share results, buckets and circuits through the store."""
    store, tool = MemoryStore(), Worker(wants=ToolPolicy(cache=CachePolicy(1000), rate_limit=RateLimit(1, 10)))

    async def both() -> list[list[str]]:
        runs = [await watched(looped(tool, [Resilience(store=store)], [use(1)], [use(n)])) for n in (2, 3)]
        return [run.statuses for run in runs]

    assert run_in_virtual_time(both()) == [["succeeded"] * 2] * 2
    assert [one.value for one in tool.runs] == [1, 2, 3]
    assert [one.at for one in tool.runs] == [0, 10, 20]


@pytest.mark.parametrize("cut_at", [1.0, 12.0, 25.0, 31.0])
def test_cancelling_inside_of_any_wait_leaves_nothing_behind(cut_at: float) -> None:
    """While calls wait for a token, a repetition or each other, a cancelled execution leaves no task (law 19)."""
    tool = Worker(failing(2), seconds=3, wants=evolve(WISHES, timeout=5, retry=RetryPolicy(5, initial_wait=7)))

    async def cut() -> tuple[set[str], bool]:
        loop = looped(tool, [Resilience(retry=Retry(jitter=lambda: 1.0))], [use(1), use(1), use(2), use(3)])
        task = asyncio.create_task(watched(loop))
        await asyncio.sleep(cut_at)
        task.cancel()
        await asyncio.wait([task])
        left = asyncio.all_tasks() - {asyncio.current_task()}
        return {repr(one) for one in left}, task.cancelled()

    left, cancelled = run_in_virtual_time(cut())
    assert not left
    assert cancelled


def test_a_tool_declares_what_it_wants_with_the_decorator() -> None:
    """`@tool` takes the policies, and `Resilience` does what they say."""
    runs: list[int] = []

    @tool(effect="idempotent", retry=RetryPolicy(2, initial_wait=3), cache=CachePolicy(60), rate_limit=RateLimit(5))
    async def fetch(number: int) -> int:
        """Fetch a number."""
        runs.append(number)
        if len(runs) == 1:
            raise ConnectionError("down")
        return number

    assert fetch.policy.retry == RetryPolicy(2, initial_wait=3)
    call = evolve(use(1, "fetch"), arguments_json='{"number": 1}')
    run = seen(fetch, [Resilience()], [call], [call])
    assert run.statuses == ["succeeded", "succeeded"]
    assert runs == [1, 1]


def test_nobody_is_asked_to_listen() -> None:
    """Without a listener nothing is told and the outcome is the same."""
    worker = Worker(failing(1), wants=WISHES)
    loop: AgentLoop = looped(worker, [Resilience()], [use(1), use(1)])
    state = run_in_virtual_time(loop.execute("go"))
    assert [one.status.value for step in state.steps for one in step.executions] == ["succeeded"] * 2


@pytest.mark.parametrize("kind", [*ORDER, Resilience], ids=lambda kind: kind.__name__)
def test_each_keeps_the_laws_of_interceptors(kind: type[Any]) -> None:
    """Alone and together the layers change nothing they are given, are deterministic, and keep executions apart."""
    InterceptorKit(kind, examples=15).check_all()


def test_jitter_is_a_number_by_chance_unless_given() -> None:
    """The default is the random module's, which a test replaces."""
    assert Retry().jitter is random.random
