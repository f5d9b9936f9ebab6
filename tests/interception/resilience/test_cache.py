"""Results used again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallCached
from agentloop.interception.resilience import Cache, MemoryStore, any_caller
from agentloop.testing import run_in_virtual_time
from agentloop.values import CachePolicy, Effect, Image, ToolCall, ToolResult, thaw
from tests.interception.resilience.at_work import Run, Seen, Worker, looped, seen, use, watched

VALUES: list[Any] = [1, 1.0, True, "1", None, [], {}, {"a": 1, "b": 2}]
CALLS = st.tuples(
    st.sampled_from(["read", "find"]), st.sampled_from(range(len(VALUES))), st.sampled_from(["ada", "bob"])
)


@given(st.lists(st.tuples(CALLS, st.booleans(), st.floats(0, 8)), min_size=1, max_size=20), st.integers(1, 20))
def test_never_a_wrong_key_never_an_error_never_too_old(
    history: list[tuple[tuple[str, int, str], bool, float]], most: int
) -> None:
    """Whatever was called before: a result is of the same tool, arguments, type and caller, a success, and fresh."""
    store = MemoryStore()
    fails: list[bool] = []

    def does(name: str, agent: list[str]) -> Any:
        def answer(run: Run) -> Any:
            if fails[-1]:
                raise ConnectionError(run.key)
            return [name, run.value, agent[0], run.at]

        return answer

    async def play() -> None:
        for (name, value, agent), fail, pause in history:
            await asyncio.sleep(pause)
            fails.append(fail)
            tools = [Worker(does(one, [agent]), tool_name=one) for one in ("read", "find")]
            layer = Cache(CachePolicy(10, max_entries=most), store=store)
            run = await watched(looped(tools, [layer], [use(VALUES[value], name)]), agent=agent)
            (outcome,) = run.outcomes
            now = asyncio.get_running_loop().time()
            if outcome.succeeded:
                found_name, found_value, found_agent, made_at = thaw(outcome.value)
                assert (found_name, found_agent) == (name, agent)
                assert repr(found_value) == repr(VALUES[value])
                assert now - made_at < 10
            else:
                assert outcome.error_message == outcome.key
            cached = run.told(ToolCallCached)
            assert bool(cached) is not any(tool.runs for tool in tools)
            assert len(store) <= 2 * most

    run_in_virtual_time(play())


def test_a_result_is_used_again_until_it_is_too_old() -> None:
    """A declared cache serves the same arguments in any spelling, says how old the result is, and forgets in time."""
    tool = Worker(lambda run: run.at, wants=ToolPolicy(cache=CachePolicy(60)))
    wait = Worker(tool_name="wait", seconds=30)
    spelled = ToolCall("x", "work", ' { "value" : {"b": 2, "a": 1} } ')
    run = seen(
        [tool, wait], [Cache()], [use({"a": 1, "b": 2})], [use(0, "wait")], [spelled], [use(1, "wait")], [spelled]
    )
    assert [one.value for one in run.outcomes if one.name == "work"] == [0, 0, 60]
    (told,) = run.told(ToolCallCached)
    assert told.age == 30
    assert run.outcomes[2].call.arguments_json == spelled.arguments_json
    assert run.outcomes[2].key.endswith("/3/0")


def test_whoever_asks_says_how_old_a_result_may_be() -> None:
    """A stack with a shorter time does not take a result that another one keeps for longer in the same store."""
    store, tool = MemoryStore(), Worker()

    async def played() -> None:
        for seconds in (100, 100, 5):
            await watched(looped(tool, [Cache(CachePolicy(seconds), store=store)], [use(1)]))
            await asyncio.sleep(6)

    run_in_virtual_time(played())
    assert [one.at for one in tool.runs] == [0, 12]


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
def test_an_effect_is_cached_only_when_told(effect: Effect, declared: bool, layer: Cache, runs: int) -> None:  # noqa: FBT001  # a row of the table
    """The tool says so, or the layer says that it speaks of effects too."""
    tool = Worker(kind=effect, wants=ToolPolicy(cache=CachePolicy() if declared else None))
    seen(tool, [layer], [use(1)], [use(1)])
    assert len(tool.runs) == runs


def test_the_bound_holds_and_the_least_used_goes_first() -> None:
    """With room for two results, the one that was not used for longest is forgotten."""
    tool = Worker(wants=ToolPolicy(cache=CachePolicy(max_entries=2)))
    seen(tool, [Cache()], *[[use(n)] for n in (1, 2, 1, 3, 1, 2)])
    assert [one.value for one in tool.runs] == [1, 2, 3, 2]


def test_callers_do_not_see_each_others_results_unless_they_may() -> None:
    """The agent is part of the key; `any_caller` takes it out, and a function of your own names another identity."""

    def played(layer: Cache) -> int:
        tool = Worker(wants=ToolPolicy(cache=CachePolicy()))

        async def both() -> list[Seen]:
            return [await watched(looped(tool, [layer], [use(1)]), agent=agent) for agent in ("ada", "bob", "ada")]

        run_in_virtual_time(both())
        return len(tool.runs)

    assert played(Cache()) == 2
    assert played(Cache(caller=any_caller)) == 1
    assert played(Cache(caller=lambda point: point.state.execution_id)) == 3


def test_what_the_model_is_shown_is_kept_too() -> None:
    """A result with content of its own looks the same when it is served again."""
    image = Image(media_type="image/png", data=b"png")
    tool = Worker(lambda _: ToolResult({"n": 1}, (image,)), wants=ToolPolicy(cache=CachePolicy()))
    first, second = seen(tool, [Cache()], [use(1)], [use(1)]).outcomes
    assert len(tool.runs) == 1
    assert (first.value, first.content) == (second.value, second.content) == ({"n": 1}, (image,))
