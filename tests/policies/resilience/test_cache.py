"""Reuse of results."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallCached
from agentloop.policies import Cache, MemoryStore, any_caller
from agentloop.testing import run_in_virtual_time
from agentloop.values import CachePolicy, Effect, Image, ToolCall, ToolResult, thaw
from tests.policies.resilience.worker import Observation, Run, Worker, create_loop, observe, run_loop, work

VALUES: list[Any] = [1, 1.5, True, "1", None, [], {}, {"a": 1, "b": 2}]
CALLS = st.tuples(
    st.sampled_from(["read", "find"]), st.sampled_from(range(len(VALUES))), st.sampled_from(["ada", "bob"])
)


@given(st.lists(st.tuples(CALLS, st.booleans(), st.floats(0, 8)), min_size=1, max_size=20), st.integers(1, 20))
def test_a_cached_result_is_always_valid(
    history: list[tuple[tuple[str, int, str], bool, float]], max_entries: int
) -> None:
    """Whatever was called before, a cached result is a success of the same tool, arguments and caller, and not too old."""
    store = MemoryStore()
    fails: list[bool] = []

    def behavior(name: str, agent: str) -> Any:
        def answer(run: Run) -> Any:
            if fails[-1]:
                raise ConnectionError(run.key)
            return [name, run.value, agent, run.at]

        return answer

    async def run_all() -> None:
        for (name, value, agent), fails_now, pause in history:
            await asyncio.sleep(pause)
            fails.append(fails_now)
            tools = [Worker(behavior(tool_name, agent), tool_name=tool_name) for tool_name in ("read", "find")]
            layer = Cache(CachePolicy(10, max_entries=max_entries), store=store)
            run = await observe(create_loop(tools, [layer], [work(VALUES[value], name)]), agent=agent)
            (outcome,) = run.outcomes
            now = asyncio.get_running_loop().time()
            if outcome.succeeded:
                cached_name, cached_value, cached_agent, ran_at = thaw(outcome.value)
                assert (cached_name, cached_agent) == (name, agent)
                assert repr(cached_value) == repr(VALUES[value])
                assert now - ran_at < 10
            else:
                assert outcome.error_message == outcome.key
            is_cached = bool(run.events_of(ToolCallCached))
            assert is_cached is not any(worker.runs for worker in tools)
            assert len(store) <= 2 * max_entries

    run_in_virtual_time(run_all())


def test_a_result_is_reused_until_it_is_too_old() -> None:
    """Equal arguments in any spelling get the cached result, and the event has its age."""
    worker = Worker(lambda run: run.at, declared_policy=ToolPolicy(cache=CachePolicy(60)))
    waiter = Worker(tool_name="wait", seconds=30)
    spelled = ToolCall("x", "work", ' { "value" : {"b": 2, "a": 1} } ')
    run = run_loop(
        [worker, waiter],
        [Cache()],
        [work({"a": 1, "b": 2})],
        [work(0, "wait")],
        [spelled],
        [work(1, "wait")],
        [spelled],
    )
    assert [outcome.value for outcome in run.outcomes if outcome.name == "work"] == [0, 0, 60]
    (event,) = run.events_of(ToolCallCached)
    assert event.age == 30
    assert run.outcomes[2].call.arguments_json == spelled.arguments_json
    assert run.outcomes[2].key.endswith("/3/0")


def test_the_reader_determines_how_old_a_result_may_be() -> None:
    """A stack with a shorter time does not use an older result that another stack stored for longer."""
    store, worker = MemoryStore(), Worker()

    async def run_all() -> None:
        for seconds in (100, 100, 5):
            await observe(create_loop(worker, [Cache(CachePolicy(seconds), store=store)], [work(1)]))
            await asyncio.sleep(6)

    run_in_virtual_time(run_all())
    assert [attempt.at for attempt in worker.runs] == [0, 12]


@pytest.mark.parametrize(
    ("effect", "declared", "layer", "runs"),
    [
        (Effect.PURE, False, Cache(), 2),
        (Effect.PURE, True, Cache(), 1),
        (Effect.PURE, False, Cache(CachePolicy()), 1),
        (Effect.IDEMPOTENT, False, Cache(CachePolicy()), 1),
        (Effect.EFFECT, False, Cache(CachePolicy()), 2),
        (Effect.EFFECT, False, Cache(CachePolicy(), effects=True), 1),
        (Effect.EFFECT, True, Cache(), 1),
    ],
)
def test_a_tool_with_an_effect_is_cached_only_on_request(
    effect: Effect,
    declared: bool,  # noqa: FBT001  # a row of the table
    layer: Cache,
    runs: int,
) -> None:
    """The tool has to declare a cache, or the layer to apply its policy to effects."""
    worker = Worker(
        declared_effect=effect, declared_policy=ToolPolicy(cache=CachePolicy() if declared else None, repeatable=True)
    )
    run_loop(worker, [layer], [work(1)], [work(1)])
    assert len(worker.runs) == runs


def test_the_least_recently_used_result_is_evicted_first() -> None:
    """With room for two results, a third one evicts the least recently used."""
    worker = Worker(declared_policy=ToolPolicy(cache=CachePolicy(max_entries=2)))
    run_loop(worker, [Cache()], *[[work(n)] for n in (1, 2, 1, 3, 1, 2)])
    assert [attempt.value for attempt in worker.runs] == [1, 2, 3, 2]


def test_callers_share_results_only_on_request() -> None:
    """The agent is part of the key; `any_caller` removes it, and another function replaces it."""

    def count_runs(layer: Cache) -> int:
        worker = Worker(declared_policy=ToolPolicy(cache=CachePolicy()))

        async def run_agents() -> list[Observation]:
            return [
                await observe(create_loop(worker, [layer], [work(1)]), agent=agent) for agent in ("ada", "bob", "ada")
            ]

        run_in_virtual_time(run_agents())
        return len(worker.runs)

    assert count_runs(Cache()) == 2
    assert count_runs(Cache(caller=any_caller)) == 1
    assert count_runs(Cache(caller=lambda point: point.state.execution_id)) == 3


def test_content_for_the_model_is_cached_too() -> None:
    """A cached result has the same content for the model as the original."""
    image = Image(media_type="image/png", data=b"png")
    worker = Worker(lambda _: ToolResult({"n": 1}, (image,)), declared_policy=ToolPolicy(cache=CachePolicy()))
    first, second = run_loop(worker, [Cache()], [work(1)], [work(1)]).outcomes
    assert len(worker.runs) == 1
    assert (first.value, first.content) == (second.value, second.content) == ({"n": 1}, (image,))
