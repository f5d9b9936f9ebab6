"""Measures the overhead of agentloop over a loop written by hand.

Turns, a long history, concurrent executions and fan-out against a loopback server; the construction of a loop, an event without
listeners and a point without interceptors.

    python benchmarks/overhead.py
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

import floor
import httpx
from measuring import Row, cpu_each, loopback, micros, ratio_row, show, wall

from agentloop import AgentLoop, HttpInference, LLMConfig, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.events import EventBus, ToolCallStarted
from agentloop.interception import AfterToolUse, InterceptorStack, StepLimit

QUESTION = "What is 17 + 25?"


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure")
async def wait_async(number: int) -> int:
    """Wait 20 ms without blocking."""
    await asyncio.sleep(0.02)
    return number


@tool(effect="pure")
def wait_plain(number: int) -> int:
    """Wait 20 ms, blocking."""
    time.sleep(0.02)
    return number


def loop_at(url: str) -> AgentLoop:
    config = LLMConfig.parse("openai:loopback", base_url=url, api_key="key")
    return AgentLoop(
        ToolCallingDriver(HttpInference(config)), [add], system_prompt="You are a calculator.", max_steps=None
    )


async def turns(server: str, count: int, executions: int, rounds: int) -> tuple[float, float]:
    """Return the CPU seconds per turn of agentloop and of the floor."""
    url = f"{server}/{count}x1/v1"
    loop = loop_at(url)
    async with loop, httpx.AsyncClient() as client:

        async def subject() -> None:
            await asyncio.gather(*[loop.execute(QUESTION) for _ in range(executions)])

        async def by_hand() -> None:
            await asyncio.gather(*[floor.run(client, url, {"add": floor.add}, QUESTION) for _ in range(executions)])

        measured = await cpu_each([subject, by_hand], count * executions, rounds)
    return measured[0], measured[1]


async def over_the_wire() -> list[Row]:
    with loopback() as server:
        ten = await turns(server, 10, 1, 40)
        two_hundred = await turns(server, 200, 1, 6)
        four_hundred = await turns(server, 400, 1, 5)
        many = await turns(server, 5, 200, 3)
    growth = four_hundred[0] / two_hundred[0]
    return [
        ratio_row("CPU per turn, 10 turns of one call", *ten, 1.15),
        ratio_row("CPU per turn, 200 turns", *two_hundred, 0.75),
        ratio_row("CPU per turn, 400 turns", *four_hundred, 0.75),
        Row("growth of CPU per turn from 200 to 400", f"{growth:7.2f} x", "<= 1.20 x", growth <= 1.2),
        ratio_row("CPU per turn, 200 executions at once", *many, 1.0),
    ]


async def fan_out() -> list[Row]:
    rows = []
    for wait, budget in ((wait_async, 35), (wait_plain, 45)):
        calls = [ToolCall(f"call_{n}", wait.name, f'{{"number": {n}}}') for n in range(50)]
        loop = AgentLoop(ToolCallingDriver(ScriptedInference(calls, "done")), [wait])
        seconds = await wall(partial(loop.execute, "go"), 5)
        kind = "async" if wait is wait_async else "plain"
        what = f"50 parallel calls of a 20 ms tool, {kind}"
        rows.append(Row(what, f"{seconds * 1000:7.1f} ms wall", f"<= {budget} ms", seconds * 1000 <= budget))
    return rows


def small_things() -> list[Row]:
    ten_tools = [tool(name=f"add_{n}")(add.function) for n in range(10)]
    for each in ten_tools:
        assert each.spec.name, "ready tools have read their signatures"
    driver = ToolCallingDriver(ScriptedInference())
    construct = micros(lambda: AgentLoop(driver, ten_tools), times=2000)
    bus = EventBus().for_execution()
    event = micros(lambda: bus.due(ToolCallStarted))
    stack = InterceptorStack.of([StepLimit(5)])
    point = micros(lambda: stack.handles(AfterToolUse))
    return [
        Row("construct a loop with 10 ready tools", f"{construct:7.1f} µs", "<= 50 µs", construct <= 50),
        Row("an event without listeners", f"{event:7.2f} µs", "<= 0.20 µs", event <= 0.2),
        Row("a point without interceptors", f"{point:7.2f} µs", "<= 0.20 µs", point <= 0.2),
    ]


async def main() -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    show("agentloop against the loop written by hand", await over_the_wire() + await fan_out() + small_things())


if __name__ == "__main__":
    asyncio.run(main())
