"""Measures when the last result of five streamed calls is there with and without eager start, and what eager start costs.

python benchmarks/eager_start.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from measuring import Row, cpu_each, ratio_row, show

from agentloop import AgentLoop, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.events import ToolCallCompleted
from agentloop.values import FinishReason, InferenceDelta, InferenceRequest, InferenceResponse, Text

CALL_SECONDS = 0.06
"""The time in which the model writes one call."""
CHUNKS = 2000


class Writer(CanInfer):
    """A model that writes calls at a constant pace, and then an answer.

    Args:
        calls: the calls.
        seconds: the time that it takes for each.
        chunks: the number of deltas in which the arguments of each arrive.
    """

    def __init__(self, calls: Sequence[ToolCall], seconds: float, chunks: int) -> None:
        self._calls = tuple(calls)
        self._seconds = seconds
        self._chunks = chunks

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        has_results = any(message.exchanges for message in request.messages)
        if has_results:
            return InferenceResponse((Text("done"),))
        return InferenceResponse(self._calls, FinishReason.TOOL_CALLS)

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        response = await self.infer(request)
        for index, call in enumerate(response.tool_calls):
            yield InferenceDelta("tool_call", index=index, call_id=call.id, name=call.name)
            size = -(-len(call.arguments_json) // self._chunks)
            for at in range(0, len(call.arguments_json), size):
                if self._seconds:
                    await asyncio.sleep(self._seconds / self._chunks)
                yield InferenceDelta("arguments", call.arguments_json[at : at + size], index)
        yield response


@tool(effect="pure")
async def search(seconds: float, text: str = "") -> float:  # noqa: ARG001  # for a long call
    """Search for some seconds."""
    await asyncio.sleep(seconds)
    return seconds


async def last_result(durations: Sequence[float], *, eager: bool) -> float:
    """Return the seconds from the question to the last result, the best of three runs."""
    calls = [ToolCall(str(n), "search", f'{{"seconds": {seconds}}}') for n, seconds in enumerate(durations)]
    loop = AgentLoop(ToolCallingDriver(Writer(calls, CALL_SECONDS, 1), streaming=True, eager=eager), [search])
    ends: list[float] = []
    loop.on(ToolCallCompleted, lambda _: ends.append(time.perf_counter()))
    best = float("inf")
    for _ in range(3):
        before = time.perf_counter()
        state = await loop.execute("Where?")
        assert [execution.value for execution in state.steps[0].executions] == list(durations)
        best = min(best, ends[-1] - before)
    return best


async def last_result_row(what: str, durations: Sequence[float], max_ratio: float) -> Row:
    """Return the row of the time with eager start as a ratio of the time without it."""
    plain, eager = await last_result(durations, eager=False), await last_result(durations, eager=True)
    ratio = eager / plain
    shown = f"{eager * 1e3:4.0f} ms = {ratio:.2f} x without ({plain * 1e3:.0f} ms)"
    return Row(f"last of five results, {what}", shown, f"<= {max_ratio:.2f} x", ratio <= max_ratio)


async def cpu_row() -> Row:
    """Return the row of the CPU per delta of a long call, with eager start and without."""
    text = "x{" * CHUNKS
    calls = [ToolCall("1", "search", f'{{"seconds": 0, "text": "{text}"}}')]

    async def run(*, eager: bool) -> None:
        driver = ToolCallingDriver(Writer(calls, 0, CHUNKS), streaming=True, eager=eager)
        state = await AgentLoop(driver, [search]).execute("Where?")
        assert state.steps[0].executions[0].succeeded

    subject, floor = await cpu_each([lambda: run(eager=True), lambda: run(eager=False)], CHUNKS, 15)
    return ratio_row("CPU per delta of a call, eager or not", subject, floor, 2.0)


async def rows() -> list[Row]:
    """Return all rows."""
    return [
        await last_result_row("the slowest first", [0.30, 0.25, 0.20, 0.15, 0.10], 0.75),
        await last_result_row("all equal", [0.20] * 4 + [0.21], 1.03),
        await cpu_row(),
    ]


if __name__ == "__main__":
    show("Eager start", asyncio.run(rows()))
