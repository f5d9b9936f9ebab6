"""Counts requests and bytes of ten tasks of five calls each: one call per answer, five per answer, and as a program.

python benchmarks/programs.py

The model is scripted; each request is encoded as OpenAI's Chat Completions receive it. Times are those of this machine, without
a model: a request to a real one takes a second or more.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from attrs import frozen

from agentloop import AgentLoop, LLMConfig, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.models import RunProgram
from agentloop.models.scripted import ScriptLine
from agentloop.models.wire_formats.wire_format import wire_format
from agentloop.values import InferenceDelta, InferenceRequest, InferenceResponse

TASKS = 10
CALLS = 5
ROWS = 25


@tool(effect="pure")
async def read_orders(region: str, page: int) -> list[dict[str, Any]]:
    """Return one page of the orders of a region.

    Args:
        region: the name of the region
        page: the number of the page, from 0
    """
    return [{"id": f"{region}-{page}-{row}", "item": f"item {row}", "amount": 10 * page + row} for row in range(ROWS)]


class Counter(CanInfer):
    """A scripted model that counts the bytes of its requests."""

    def __init__(self, *lines: ScriptLine) -> None:
        self._model = ScriptedInference(*lines)
        self._format = wire_format("openai-chat")
        self._config = LLMConfig.parse("openai:gpt-5", api_key="none")
        self.sizes: list[int] = []

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        encoded = self._format.encode_request(request, self._config)
        self.sizes.append(len(encoded.body))
        return await self._model.infer(request)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        yield await self.infer(request)


def _call(region: str, page: int) -> ToolCall:
    return ToolCall(f"call_{page}", "read_orders", json.dumps({"region": region, "page": page}))


def one_by_one(region: str) -> Sequence[ScriptLine]:
    """Return the answers of a model that makes one call per answer."""
    return [*[_call(region, page) for page in range(CALLS)], "The total is known."]


def at_once(region: str) -> Sequence[ScriptLine]:
    """Return the answers of a model that makes all calls in one answer."""
    return [[_call(region, page) for page in range(CALLS)], "The total is known."]


def as_program(region: str) -> Sequence[ScriptLine]:
    """Return the answers of a model that writes a program."""
    source = f"total = 0\nfor page in range({CALLS}):\n    for row in await read_orders(region={region!r}, page=page):\n        total += row['amount']\ntotal"
    return [ToolCall("call_0", "run_program", json.dumps({"code": source})), "The total is known."]


@frozen
class Result:
    """What ten tasks took.

    Attributes:
        requests: the number of requests.
        bytes: their size, in bytes.
        calls: the number of calls of `read_orders`.
        seconds: the time, in seconds.
    """

    requests: int
    bytes: int
    calls: int
    seconds: float


async def measure(script: Callable[[str], Sequence[ScriptLine]], *, programs: bool) -> Result:
    """Run the tasks in one loop after the other."""
    models, calls, start = list[Counter](), 0, time.perf_counter()
    loop = AgentLoop(ToolCallingDriver(ScriptedInference()), [read_orders, *([RunProgram()] if programs else [])])
    async with loop:
        for number in range(TASKS):
            models.append(Counter(*script(f"region {number}")))
            driver = ToolCallingDriver(models[-1], mode="program" if programs else "native")
            state = await loop.replace(driver=driver).execute(f"Add up the orders of region {number}.")
            executions = [call for step in state.steps for outer in step.executions for call in outer.flat]
            calls += sum(call.name == "read_orders" and call.succeeded for call in executions)
    sizes = [size for model in models for size in model.sizes]
    return Result(len(sizes), sum(sizes), calls, time.perf_counter() - start)


async def main() -> None:
    results = {
        "one call per answer": await measure(one_by_one, programs=False),
        "five calls per answer": await measure(at_once, programs=False),
        "a program": await measure(as_program, programs=True),
    }
    print(f"{'':24}{'requests':>10}{'bytes':>12}{'calls':>8}{'ms':>8}")
    for name, result in results.items():
        print(f"{name:24}{result.requests:>10}{result.bytes:>12,}{result.calls:>8}{result.seconds * 1000:>8.0f}")
        assert result.calls == TASKS * CALLS


if __name__ == "__main__":
    asyncio.run(main())
