"""agentloop as a subject, used as its README shows: one loop for all executions, and nothing is opened or closed by hand."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from itertools import count, cycle
from pathlib import Path
from typing import Any

from subject import PROMPT, QUESTION, bytes_of

from agentloop import AgentLoop, AgentState, HttpInference, LLMConfig, Message, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.durable import SqliteJournal
from agentloop.errors import CallSuspended
from agentloop.events import InferenceDeltaReceived
from agentloop.values import InferenceRequest, InferenceResponse, Text

NUMBERS = count()


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add", effect="pure")
def add_plain(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add", effect="pure")
async def wait(a: int, b: int) -> int:
    """Add two numbers."""
    await asyncio.sleep(0.02)
    return a + b


@tool(name="add", effect="pure")
def wait_plain(a: int, b: int) -> int:
    """Add two numbers."""
    time.sleep(0.02)
    return a + b


TOOLS: dict[str, Callable[..., object]] = {
    "async": add,
    "plain": add_plain,
    "wait async": wait,
    "wait plain": wait_plain,
}


def driver(url: str, *, streaming: bool = False) -> ToolCallingDriver:
    config = LLMConfig.parse("openai:loopback", base_url=url, api_key="key")
    return ToolCallingDriver(HttpInference(config), streaming=streaming)


def agent(url: str, tool: str) -> Callable[[], Awaitable[object]]:
    """Return an execution.

    `async normal` and `async full` are recorded in a SQLite file that is written to disk so often, and `async labels` keeps labels.
    """
    kind, _, part = tool.rpartition(" ") if tool.endswith((" normal", " full", " labels")) else (tool, "", "")
    options: dict[str, Any] = {"approve": "untrusted"} if part == "labels" else {}
    if part in {"normal", "full"}:
        path = Path(os.environ["BENCHMARK_FOLDER"]) / f"{next(NUMBERS)}.db"
        options["journal"] = SqliteJournal(path, synchronous="full" if part == "full" else "normal")
    loop = AgentLoop(driver(url), [TOOLS[kind]], system_prompt=PROMPT, max_steps=None, **options)

    async def run() -> object:
        state = await loop.execute(QUESTION)
        assert state.final_text == "The sum is 42.", state
        return state

    return run


def stream(url: str) -> Callable[[Callable[[str], None]], Awaitable[object]]:
    """Return a streamed answer, whose texts a listener gets."""
    loop = AgentLoop(driver(url, streaming=True))
    listeners: list[Callable[[str], None]] = []
    loop.on(InferenceDeltaReceived, lambda event: listeners[-1](event.delta.text) if event.delta.text else None)

    async def run(on_text: Callable[[str], None]) -> object:
        listeners[:] = [on_text]
        return await loop.execute(QUESTION)

    return run


def conversation(texts: Iterable[str]) -> object:
    """Return a state."""
    roles = cycle((Message.user, Message.assistant))
    messages = [role(text) for role, text in zip(roles, texts, strict=False)]
    return AgentState.start("").with_messages(messages)


class EndlessModel(CanInfer):
    """Calls a tool in every answer, until it was asked so often.

    Args:
        turns: how often it calls.
        tool: the name of the tool.
    """

    def __init__(self, turns: int, tool: str) -> None:
        self.turns, self.asked, self.times = turns, 0, [time.process_time()]
        self._tool = tool

    async def infer(self, request: InferenceRequest) -> InferenceResponse:  # noqa: ARG002  # the signature of the contract
        self.asked += 1
        self.times.append(time.process_time())
        # Each call is another one: a model that repeats itself is asked for its answer.
        call = ToolCall("call_1", self._tool, f'{{"a": {self.asked}, "b": 25}}')
        return InferenceResponse((call if self.asked <= self.turns else Text("The sum is 42."),))


async def growth(case: dict[str, Any]) -> dict[str, float]:
    """Run one execution of many turns; `ratio` is the CPU of a turn at its end to that of a turn at an early place."""
    model = EndlessModel(case["turns"], "add")
    await AgentLoop(ToolCallingDriver(model), [add], max_steps=None).execute(QUESTION)
    window: int = case["window"]

    def cpu_at(turn: int) -> float:
        return (model.times[turn] - model.times[turn - window]) / window

    early, late = cpu_at(case["early"]), cpu_at(case["turns"])
    return {"ratio": late / early, "cpu": late}


async def suspended(case: dict[str, Any]) -> dict[str, float]:
    """Hold states of executions that wait for an approval; `bytes` is the memory of them."""

    @tool
    async def pay(a: int, b: int) -> int:
        """Pay."""
        raise CallSuspended(f"{a + b} need an approval")

    async def suspend() -> object:
        return await AgentLoop(ToolCallingDriver(EndlessModel(1, "pay")), [pay]).execute(QUESTION)

    return await bytes_of(suspend, case["count"])
