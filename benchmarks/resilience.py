"""Measures the complete resilience stack: 1,000 calls of an empty tool, in one execution of 20 batches of 50.

python benchmarks/resilience.py
"""

from __future__ import annotations

import asyncio

from measuring import Row, cpu_each, show

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.policies import AttemptTimeout, Deadline, Deduplicate, ExactCalls, Resilience
from agentloop.values import CachePolicy, CircuitPolicy, RateLimit, RetryPolicy

CALLS, BATCH = 1_000, 50
BUDGET_MS = 300


@tool(
    effect="pure",
    timeout=10,
    retry=RetryPolicy(3),
    cache=CachePolicy(60),
    rate_limit=RateLimit(1_000_000),
    circuit=CircuitPolicy(5),
    deadline=30,
)
async def guarded(number: int) -> int:
    """Do nothing, with all layers."""
    return number


@tool(effect="pure")
async def bare(number: int) -> int:
    """Do nothing, without layers."""
    return number


def script(name: str) -> list[list[ToolCall]]:
    return [
        [ToolCall(f"call_{n}", name, f'{{"number": {n}}}') for n in range(first, first + BATCH)]
        for first in range(0, CALLS, BATCH)
    ]


async def run(name: str, *, resilient: bool) -> None:
    stack = Resilience(deduplicate=Deduplicate(ExactCalls()), deadline=Deadline(30), attempt_timeout=AttemptTimeout(20))
    driver = ToolCallingDriver(ScriptedInference(*script(name), "done"))
    loop = AgentLoop(driver, [guarded, bare], interceptors=[stack] if resilient else [], max_steps=None)
    state = await loop.execute("go")
    state.raise_for_status()
    assert state.tool_call_count == CALLS


async def main() -> None:
    with_stack, with_calls_only = await cpu_each(
        [lambda: run("guarded", resilient=True), lambda: run("bare", resilient=False)], 1, 7
    )
    total, cost = with_stack * 1000, (with_stack - with_calls_only) * 1000
    show(
        "the resilience stack around an empty tool",
        [
            Row(f"{CALLS} calls, complete stack", f"{total:7.1f} ms CPU", f"<= {BUDGET_MS} ms", total <= BUDGET_MS),
            Row("  of which the stack", f"{cost:7.1f} ms CPU", f"<= {BUDGET_MS} ms", cost <= BUDGET_MS),
        ],
    )


if __name__ == "__main__":
    asyncio.run(main())
