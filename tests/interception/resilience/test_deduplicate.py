"""The same call runs once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import tool as tool_of
from agentloop.contracts import ToolPolicy
from agentloop.events.resilience import ToolCallDeduplicated
from agentloop.interception import AroundToolUse, ProceedToolUse, Resilience, around_tool_use
from agentloop.interception.resilience import (
    Deduplicate,
    Deduplicator,
    ExactCalls,
    InFlight,
    SeenCall,
    SimilarCalls,
    WithinSeconds,
    WithinSteps,
    any_caller,
)
from agentloop.testing import run_in_virtual_time
from agentloop.values import CallPolicy, DeduplicatePolicy, Effect, ToolExecution, thaw
from tests.interception.resilience.at_work import Run, Worker, failing, looped, seen, use, watched


@given(st.integers(1, 60), st.integers(1, 5))
def test_any_number_of_identical_calls_at_once_run_once(calls: int, different: int) -> None:
    """Each different call runs once, all of its kind get its result, and each of the others is told of."""
    tool = Worker(lambda run: [run.key, run.value], seconds=3)
    run = seen(tool, [Deduplicate()], [use(n % different) for n in range(calls)])
    assert len(tool.runs) == min(calls, different)
    assert [thaw(one.value)[1] for one in run.outcomes] == [n % different for n in range(calls)]
    assert run.seconds == 3
    for told in run.told(ToolCallDeduplicated):
        (served,) = [one for one in run.outcomes if one.key == told.key]
        assert thaw(served.value)[0] == told.original
    assert len(run.told(ToolCallDeduplicated)) == calls - len(tool.runs)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0, 9), st.booleans()), min_size=1, max_size=15))
def test_never_a_wrong_key_and_never_an_error(calls: list[tuple[int, float, bool]]) -> None:
    """Whenever calls come and whichever fail: a result is of the same arguments, and an error is the call's own."""

    async def arrive(point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        await asyncio.sleep(thaw(point.arguments)["value"]["at"])
        return await proceed()

    def does(run: Run) -> Any:
        if run.value["fails"]:
            raise ConnectionError(run.key)
        return run.value["what"]

    def alike(call: SeenCall, earlier: SeenCall) -> bool:
        return bool(thaw(call.arguments)["value"]["what"] == thaw(earlier.arguments)["value"]["what"])

    tool = Worker(does, seconds=2)
    wanted = [{"what": what, "at": at, "fails": fails} for what, at, fails in calls]
    run = seen(tool, [around_tool_use(arrive), Deduplicate(alike)], [use(one) for one in wanted])
    for one, outcome in zip(wanted, run.outcomes, strict=True):
        assert outcome.value == one["what"] if outcome.succeeded else outcome.error_message == outcome.key
    successes = [one.value["what"] for one in tool.runs if not one.value["fails"]]
    assert len(successes) == len(set(successes))


def test_when_the_first_fails_the_next_runs() -> None:
    """Of three identical calls the first fails; the second runs, and the third is given its result."""
    tool = Worker(lambda run: failing(1)(Run(run.key, run.value, run.at, len(tool.runs))), seconds=1)
    run = seen(tool, [Deduplicate()], [use(1)] * 3)
    assert run.statuses == ["failed", "succeeded", "succeeded"]
    assert len(tool.runs) == 2
    assert run.seconds == 2


def test_the_effect_decides_unless_told_otherwise() -> None:
    """Two identical payments are two payments."""
    tool = Worker(kind=Effect.EFFECT)
    seen(tool, [Deduplicate()], [use(1)] * 3)
    assert len(tool.runs) == 3
    seen(tool, [Deduplicate(effects=True)], [use(1)] * 3)
    assert len(tool.runs) == 4


def test_a_deduplicated_effect_in_doubt_is_not_run_by_the_next() -> None:
    """When the one that ran was cut off and may have run, its duplicates fail with the doubt instead of running."""
    tool = Worker(kind=Effect.EFFECT, seconds=9, wants=ToolPolicy(timeout=1))
    run = seen(tool, [Deduplicate(effects=True)], [use(1)] * 2)
    assert len(tool.runs) == 1
    assert run.statuses == ["timed_out", "failed"]
    assert all(one.may_have_run for one in run.outcomes)
    assert "may have run" in run.outcomes[1].error_message


@pytest.mark.parametrize(
    ("by", "runs"),
    [
        (InFlight(), [1, 2, 1, 1]),
        (ExactCalls(), [1, 2]),
        (WithinSeconds(10), [1, 2, 1]),
        (WithinSeconds(9), [1, 2, 1, 1]),
        (WithinSteps(2), [1, 2, 1]),
        (WithinSteps(1), [1, 2, 1, 1]),
        (WithinSteps(2, inner=WithinSeconds(9)), [1, 2, 1, 1]),
        (SimilarCalls(lambda call, earlier: call.name == earlier.name), [1]),
    ],
    ids=["in flight", "exact", "10 s", "9 s", "2 steps", "1 step", "2 steps or 9 s", "similar"],
)
def test_windows_of_time_and_of_steps(by: Deduplicator, runs: list[int]) -> None:
    """Calls at 0, 0, 10 and 25 seconds, in the steps 1, 1, 3 and 5, of which the second is another call."""
    tool, wait = Worker(), Worker(tool_name="wait", kind=Effect.EFFECT, seconds=10)
    more = Worker(tool_name="more", kind=Effect.EFFECT, seconds=15)
    turns = [[use(1), use(2)], [use(0, "wait")], [use(1)], [use(0, "more")], [use(1)]]
    run = seen([tool, wait, more], [Deduplicate(by)], *turns)
    assert [one.value for one in tool.runs] == runs
    assert all(one.succeeded for one in run.outcomes)


def test_executions_are_apart_unless_told_otherwise() -> None:
    """Executions at the same time share a flight only under `across_executions`, and only of one caller."""

    def played(layer: Deduplicate, *agents: str) -> int:
        tool = Worker(seconds=5)
        loop = looped(tool, [layer], [use(1)])

        async def together() -> None:
            await asyncio.gather(
                *[watched(looped(tool, [layer], [use(1)]), agent=agent) for agent in agents], watched(loop)
            )

        run_in_virtual_time(together())
        return len(tool.runs)

    assert played(Deduplicate(), "agent", "agent") == 3
    assert played(Deduplicate(across_executions=True), "agent", "agent") == 1
    assert played(Deduplicate(across_executions=True), "ada", "bob") == 3
    assert played(Deduplicate(across_executions=True, caller=any_caller), "ada", "bob") == 1


def test_a_cancelled_leader_does_not_take_its_followers_along() -> None:
    """When the execution whose call runs is cancelled, another one runs it."""
    tool = Worker(seconds=5)
    layer = Deduplicate(across_executions=True)

    async def one_is_cancelled() -> list[Any]:
        runs = [asyncio.create_task(watched(looped(tool, [layer], [use(1)]))) for _ in range(3)]
        await asyncio.sleep(2)
        runs[0].cancel()
        return await asyncio.gather(*runs, return_exceptions=True)

    first, second, third = run_in_virtual_time(one_is_cancelled())
    assert isinstance(first, asyncio.CancelledError)
    assert second.statuses == third.statuses == ["succeeded"]
    assert [run.at for run in tool.runs] == [0, 2]


def test_nobody_repeats_an_effect_whose_execution_was_cancelled() -> None:
    """When the execution whose call ran is cancelled, the duplicates in other executions fail with the doubt."""
    tool = Worker(kind=Effect.EFFECT, seconds=5)
    layer = Deduplicate(across_executions=True, effects=True)

    async def one_is_cancelled() -> list[Any]:
        runs = [asyncio.create_task(watched(looped(tool, [layer], [use(1)]))) for _ in range(2)]
        await asyncio.sleep(2)
        runs[0].cancel()
        return await asyncio.gather(*runs, return_exceptions=True)

    _, second = run_in_virtual_time(one_is_cancelled())
    assert second.statuses == ["failed"]
    assert second.outcomes[0].may_have_run
    assert len(tool.runs) == 1


def test_a_call_inside_of_its_own_flight_does_not_wait_for_itself() -> None:
    """A tool that starts an execution which makes the same call again comes to an end."""
    layer = Deduplicate(across_executions=True)
    inner = Worker(lambda run: run.value)

    class Nested(Worker):
        async def use(self, *_: Any, value: Any = None) -> Any:
            run = await watched(looped(inner, [layer], [use(value)]))
            return run.outcomes[0].value

        def with_tool_context(self, context: Any) -> Nested:
            return self

    assert seen(Nested(), [layer], [use(1)]).outcomes[0].value == 1
    assert len(inner.runs) == 1


def test_what_is_remembered_is_bounded() -> None:
    """The oldest calls that have ended are forgotten first."""
    tool = Worker()
    seen(tool, [Deduplicate(ExactCalls(), max_remembered=2)], *[[use(n)] for n in (1, 2, 3, 3, 2, 1)])
    assert [one.value for one in tool.runs] == [1, 2, 3, 1]


def test_what_is_over_is_not_kept_where_nobody_will_ask_for_it() -> None:
    """A layer for calls in flight holds nothing when none is."""
    layer = Deduplicate(across_executions=True)

    async def kept() -> list[int]:
        await watched(looped(Worker(), [layer], [use(1), use(1)], [use(2)]))
        return [len(seen_calls) for seen_calls in layer._calls_of_loops.values()]

    assert run_in_virtual_time(kept()) == [0]


def test_what_is_no_deduplicator_is_refused() -> None:
    """The error says what will do."""
    wrong: Any = "exact"
    with pytest.raises(TypeError, match="function of two calls"):
        Deduplicate(wrong)


# --- what a tool asks for -------------------------------------------------------------------------------------------


def _windows(asked: Any) -> list[int]:
    """Return what ran of calls at 0, 0, 10 and 25 seconds, in the steps 1, 1, 3 and 5, of which the second is another."""
    tool = Worker(wants=ToolPolicy(deduplicate=asked))
    wait = Worker(tool_name="wait", kind=Effect.EFFECT, seconds=10)
    more = Worker(tool_name="more", kind=Effect.EFFECT, seconds=15)
    turns = [[use(1), use(2)], [use(0, "wait")], [use(1)], [use(0, "more")], [use(1)]]
    seen([tool, wait, more], [Resilience()], *turns)
    return [one.value for one in tool.runs]


@pytest.mark.parametrize(
    ("asked", "runs"),
    [
        (None, [1, 2, 1, 1]),
        (DeduplicatePolicy(), [1, 2, 1, 1]),
        ("exact", [1, 2]),
        (DeduplicatePolicy(10), [1, 2, 1]),
        (DeduplicatePolicy(9), [1, 2, 1, 1]),
        (DeduplicatePolicy(steps=2), [1, 2, 1]),
        (DeduplicatePolicy(9, 2), [1, 2, 1, 1]),
        (DeduplicatePolicy(by=ExactCalls()), [1, 2]),
        (DeduplicatePolicy(by=lambda call, earlier: call.name == earlier.name), [1]),
        (DeduplicatePolicy(10, by=lambda call, earlier: call.name == earlier.name), [1, 1]),
    ],
    ids=[
        "nothing",
        "in flight",
        "exact",
        "10 s",
        "9 s",
        "2 steps",
        "2 steps and 9 s",
        "by exact",
        "by name",
        "10 s by name",
    ],
)
def test_a_tool_says_which_of_its_calls_are_the_same(asked: Any, runs: list[int]) -> None:
    """Each form of the policy does what the deduplicator of the same meaning does."""
    assert _windows(asked) == runs


def test_a_tool_with_an_effect_is_deduplicated_when_it_asks() -> None:
    """It was told so; another tool with an effect beside it runs each call."""
    asks = Worker(kind=Effect.EFFECT, wants=ToolPolicy(deduplicate=DeduplicatePolicy()), seconds=1)
    silent = Worker(tool_name="pay", kind=Effect.EFFECT)
    run = seen([asks, silent], [Resilience()], [use(1), use(1), use(1, "pay"), use(1, "pay")])
    assert (len(asks.runs), len(silent.runs)) == (1, 2)
    assert [one.value for one in run.outcomes] == [1] * 4
    assert len(run.told(ToolCallDeduplicated)) == 1


def test_an_effect_that_asks_and_is_in_doubt_is_not_run_by_the_next() -> None:
    """Asking for deduplication does not make an effect one that may be repeated."""
    tool = Worker(kind=Effect.EFFECT, seconds=9, wants=ToolPolicy(timeout=1, deduplicate="exact"))
    run = seen(tool, [Resilience()], [use(1)] * 2)
    assert len(tool.runs) == 1
    assert run.statuses == ["timed_out", "failed"]


def test_what_a_tool_asks_for_comes_before_what_the_layer_does() -> None:
    """A layer that remembers everything, and everywhere, does less where a tool says less."""
    less, silent = Worker(wants=ToolPolicy(deduplicate=DeduplicatePolicy())), Worker(tool_name="silent")
    layer = Deduplicate(ExactCalls(), across_executions=True)

    async def twice() -> None:
        for _ in range(2):
            await watched(looped([less, silent], [layer], [use(1), use(1, "silent")], [use(1), use(1, "silent")]))

    run_in_virtual_time(twice())
    assert (len(less.runs), len(silent.runs)) == (4, 1)


@pytest.mark.parametrize(("across", "runs"), [(True, 1), (False, 2)])
def test_a_tool_asks_for_deduplication_across_executions(across: bool, runs: int) -> None:  # noqa: FBT001  # a row of the table
    """Two executions under one stack, one after the other: the second is given what the first has found, if asked for."""
    tool = Worker(wants=ToolPolicy(deduplicate=DeduplicatePolicy(60, across_executions=across)))
    stack = Resilience()

    async def twice() -> list[list[str]]:
        return [(await watched(looped(tool, [stack], [use(1)]))).statuses for _ in range(2)]

    assert run_in_virtual_time(twice()) == [["succeeded"]] * 2
    assert len(tool.runs) == runs


def test_it_can_be_asked_for_by_name_of_a_tool() -> None:
    """`Resilience(tools=…)` says it for tools that do not."""
    tool = Worker(kind=Effect.EFFECT)
    seen(tool, [Resilience(tools={"wo*": CallPolicy(deduplicate="exact")})], [use(1)], [use(1)], [use(2)])
    assert [one.value for one in tool.runs] == [1, 2]


def test_the_decorator_takes_it() -> None:
    """`@tool(deduplicate=…)` is in the policy of the tool."""

    @tool_of(deduplicate="exact")
    def find(what: str) -> str:
        """Find a thing by its name."""
        return what

    assert find.policy.deduplicate == DeduplicatePolicy(float("inf"))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: CallPolicy(deduplicate="exactly"), "a DeduplicatePolicy or 'exact', not 'exactly'"),  # type: ignore[arg-type]  # what a mistake would give
        (lambda: DeduplicatePolicy(by="name"), "a Deduplicator or a function of two calls, not 'name'"),  # type: ignore[arg-type]  # the same
        (lambda: DeduplicatePolicy(-1), ">= 0"),
        (lambda: DeduplicatePolicy(steps=-1), ">= 0"),
    ],
    ids=["word", "by", "seconds", "steps"],
)
def test_what_says_nothing_about_calls_is_refused(make: Any, told: str) -> None:
    """The message says what may stand there."""
    with pytest.raises((TypeError, ValueError), match=told):
        make()
