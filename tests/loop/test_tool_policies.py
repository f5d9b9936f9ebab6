"""The policies of a tool are applied because the tool declares them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, handoff_to, tool
from agentloop.contracts import CanIntercept, Tool
from agentloop.errors import ToolUnavailable
from agentloop.policies import Cache, Deadline, RateLimiter, Resilience, Retry
from agentloop.toolkits import Ensemble
from agentloop.values import (
    CachePolicy,
    CircuitPolicy,
    DeduplicatePolicy,
    RateLimit,
    RetryPolicy,
    ToolStatus,
)
from tests.loop.test_discovery import FixedGroup

RETRY = RetryPolicy(max_attempts=3, initial_wait=0)
ran: list[int] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()


def paying(*, fails: bool = False, hangs: bool = False, **policies: Any) -> Tool:
    """Return a tool with these policies."""

    async def pay(n: int = 0) -> str:
        """Pay."""
        ran.append(n)
        if fails:
            raise ToolUnavailable("later")
        if hangs:
            await asyncio.sleep(3600)
        return "ok"

    return tool(**policies)(pay)


def loop_of(tools: Sequence[Any], *interceptors: CanIntercept, calls: int = 2, **options: Any) -> AgentLoop:
    """Return a loop whose model makes the same call in each step."""
    model = ScriptedInference(*[ToolCall(str(number), "pay", '{"n": 1}') for number in range(calls)], "done")
    return AgentLoop(ToolCallingDriver(model), tools, interceptors=interceptors, **options)


def statuses(state: AgentState) -> list[ToolStatus]:
    return [execution.status for step in state.steps for execution in step.executions]


CASES: dict[str, tuple[Callable[[], Tool], int, list[str]]] = {
    "deduplicate": (lambda: paying(deduplicate="exact"), 1, ["succeeded", "succeeded"]),
    "deduplicate in steps": (lambda: paying(deduplicate=DeduplicatePolicy(steps=1)), 1, ["succeeded", "succeeded"]),
    "cache": (lambda: paying(cache=CachePolicy(60)), 1, ["succeeded", "succeeded"]),
    "retry": (lambda: paying(retry=RETRY, fails=True), 6, ["failed", "failed"]),
    "rate_limit": (
        lambda: paying(rate_limit=RateLimit(1, 60, max_wait=0), repeatable=True),
        1,
        ["succeeded", "blocked"],
    ),
    "circuit": (lambda: paying(circuit=CircuitPolicy(failures=1, seconds=60), fails=True), 1, ["failed", "blocked"]),
    "deadline": (lambda: paying(deadline=0.01, hangs=True), 2, ["timed_out", "timed_out"]),
}


@pytest.mark.parametrize("policy", CASES)
def test_a_declared_policy_acts_without_an_interceptor(policy: str) -> None:
    """Each policy of `@tool` acts in a loop without interceptors, and so it does in an ensemble and in a search."""
    create, expected, ends = CASES[policy]
    for tools in ([create()], [Ensemble("shop", [create()])]):
        ran.clear()
        state = loop_of(tools).execute_sync("go")
        assert (len(ran), statuses(state)) == (expected, ends)


@pytest.mark.parametrize("policy", CASES)
async def test_a_discovered_policy_acts_without_an_interceptor(policy: str) -> None:
    """What a discovered tool declares acts, too."""
    create, expected, ends = CASES[policy]
    state = await loop_of([FixedGroup(create())]).execute("go")
    assert (len(ran), statuses(state)) == (expected, ends)


def test_a_loop_without_declared_policies_has_no_layer() -> None:
    """A turn with tools that declare nothing runs no line of it."""
    assert not loop_of([paying()], max_steps=None).stack.layers
    assert [layer.name for layer in loop_of([paying(retry=RETRY)], max_steps=None).stack.layers] == ["Resilience"]


def test_tools_that_declare_nothing_are_left_alone() -> None:
    """Beside a tool with policies, a pure tool that fails runs once."""
    state = loop_of([paying(fails=True, effect="pure"), tool(name="other", retry=RETRY)(_other)]).execute_sync("go")
    assert len(ran) == 2
    assert len(statuses(state)) == 2


async def _other() -> str:
    """Do something else."""
    return "ok"


@pytest.mark.parametrize(
    ("interceptor", "expected"),
    [(Resilience(), 6), (Resilience(retry=None), 2), (Retry(None), 6), (Cache(), 6), (Deadline(60), 6)],
)
def test_an_interceptor_of_the_loop_wins(interceptor: CanIntercept, expected: int) -> None:
    """A policy is applied once: by the loop's own interceptor, which may leave it out, or else by the loop."""
    loop_of([paying(retry=RETRY, fails=True)], interceptor).execute_sync("go")
    assert len(ran) == expected


def test_declared_policies_keep_their_order_beside_a_single_layer() -> None:
    """Each attempt of a `Retry` takes a token of the rate limit that the tool declares."""
    pay = paying(retry=RETRY, rate_limit=RateLimit(2, 60, max_wait=0), fails=True)
    loop_of([pay], Retry(None), calls=1).execute_sync("go")
    assert len(ran) == 2
    ran.clear()
    loop_of([pay], RateLimiter(), calls=1).execute_sync("go")
    assert len(ran) == 2


def test_strict_writes_allow_declared_policies() -> None:
    """All policies of a tool are one interceptor."""
    pay = paying(retry=RETRY, cache=CachePolicy(60), deduplicate="exact")
    assert loop_of([pay], strict_writes=True).run_sync("go") == "done"


def test_a_policy_is_applied_once_after_a_handoff() -> None:
    """The loop after a handoff applies what its tools declare, whichever of the two loops has an interceptor for it."""
    pay = paying(retry=RETRY, fails=True)
    for outer in ([], [Resilience()]):
        for inner in ([], [Resilience()]):
            for tools in ([], [pay]):
                ran.clear()
                other = loop_of([pay], *inner, calls=1)
                handoff = handoff_to(other, name="cashier", description="Pays.")
                driver = ToolCallingDriver(ScriptedInference(ToolCall("1", "cashier")))
                AgentLoop(driver, [*tools, handoff], interceptors=outer).execute_sync("go")
                assert len(ran) == (9 if outer and inner else 3)


def test_copies_of_a_loop_and_calls_of_a_sub_agent_share_what_a_policy_counts() -> None:
    """A rate limit counts the attempts of all executions of a loop and its copies, also as a sub-agent."""
    pay = paying(rate_limit=RateLimit(1, 60, max_wait=0))
    loop = loop_of([pay], calls=1)
    loop.execute_sync("go")
    loop.replace(max_steps=7, driver=loop_of([], calls=1).driver).execute_sync("go")
    loop.with_interceptors(Cache()).replace(driver=loop_of([], calls=1).driver).execute_sync("go")
    assert len(ran) == 1
    ran.clear()
    lines = [line for number in range(3) for line in (ToolCall(str(number), "pay", '{"n": 1}'), "done")]
    limited = paying(rate_limit=RateLimit(1, 60, max_wait=0))
    inner = AgentLoop(ToolCallingDriver(ScriptedInference(*lines)), [limited])
    script = ScriptedInference(*[ToolCall(str(number), "shop", '{"task": "pay"}') for number in range(3)], "done")
    AgentLoop(ToolCallingDriver(script), [inner.as_tool("shop", "Pays.")]).execute_sync("go")
    assert len(ran) == 1
