"""Measures what watching costs: CPU per turn with logs, spans, metrics, content, and lines on a terminal, as ratios of a run that nothing watches;
and with a trace of it, as a ratio of a run with a journal.

A turn is a request over loopback and a call of a tool. Spans go to a processor that drops them, so that the cost is that of the observer and
of the SDK; what an exporter needs comes on top, in a thread of its own.

    make bench-watching
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial

from measuring import Row, cpu_each, loopback, show
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import NoOpTracerProvider
from rich.console import Console

from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool
from agentloop.durable import MemoryJournal
from agentloop.service.cli.progress import Progress
from agentloop.service.telemetry import JsonFormatter, OpenTelemetry
from agentloop.service.trace import build_trace

TURNS = 10
ROUNDS = 40
BUDGETS = {
    "the API without an SDK": 1.3,
    "spans": 1.5,
    "spans and metrics": 1.6,
    "with content": 1.7,
    "a JSON log line per call": 1.25,
    "lines on a terminal": 1.5,  # missed by a little: the text of four lines per turn
    "a trace of its journal": 1.5,
}
"""The highest ratio of each way to watch."""
LOG = logging.getLogger("benchmark")


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    LOG.info("adding %d", a)
    return a + b


def loop_at(url: str) -> AgentLoop[str]:
    config = LLMConfig.parse("openai:loopback", base_url=url, api_key="key")
    return AgentLoop(ToolCallingDriver(HttpInference(config)), [add], system_prompt="You are a calculator.")


def observers() -> dict[str, OpenTelemetry]:
    """Return the ways to observe, by name."""

    def tracers() -> TracerProvider:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SpanProcessor())
        return provider

    def meters() -> MeterProvider:
        return MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)

    return {
        "the API without an SDK": OpenTelemetry(NoOpTracerProvider(), NoOpMeterProvider()),
        "spans": OpenTelemetry(tracers(), NoOpMeterProvider()),
        "spans and metrics": OpenTelemetry(tracers(), meters()),
        "with content": OpenTelemetry(tracers(), meters(), content=True),
    }


async def measured() -> list[Row]:
    """Return the CPU time of each way to watch, as a ratio of none."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(JsonFormatter())

    async def logging_run(run: Callable[[], Awaitable[object]]) -> None:
        LOG.setLevel(logging.INFO)
        try:
            await run()
        finally:
            LOG.setLevel(logging.WARNING)

    LOG.addHandler(handler)
    LOG.propagate = False
    LOG.setLevel(logging.WARNING)
    with loopback() as server:
        url = f"{server}/{TURNS}x1/v1"
        async with AsyncExitStack() as stack:
            plain = await stack.enter_async_context(loop_at(url))
            subjects: dict[str, Callable[[], Awaitable[object]]] = {"": partial(plain.execute, "What is 17 + 25?")}
            for name, observer in observers().items():
                loop = await stack.enter_async_context(loop_at(url))
                observer.observe(loop)
                subjects[name] = partial(loop.execute, "What is 17 + 25?")
            subjects["a JSON log line per call"] = partial(logging_run, subjects[""])
            shown = await stack.enter_async_context(loop_at(url))
            terminal = Console(file=io.StringIO(), force_terminal=True, width=120, markup=False, highlight=False)
            shown.wiretap(stack.enter_context(Progress(terminal)))
            subjects["lines on a terminal"] = partial(shown.execute, "What is 17 + 25?")
            subjects["journal"] = partial(record, plain, is_read=False)
            subjects["a trace of its journal"] = partial(record, plain, is_read=True)
            times = dict(zip(subjects, await cpu_each(list(subjects.values()), TURNS, ROUNDS), strict=True))
    unwatched, recorded = times.pop(""), times.pop("journal")
    traced = row("a trace of its journal", times.pop("a trace of its journal"), recorded)
    return [*[row(name, seconds, unwatched) for name, seconds in times.items()], traced]


async def record(loop: AgentLoop[str], *, is_read: bool) -> None:
    """Run an execution with a journal, and read its trace after it."""
    journal = MemoryJournal()
    state = await loop.replace(journal=journal).execute("What is 17 + 25?")
    if is_read:
        await build_trace(journal, state.execution_id)


def row(name: str, seconds: float, unwatched: float) -> Row:
    """Return the row of one way to watch."""
    ratio = seconds / unwatched
    text = f"{seconds * 1e6:7.0f} µs = {ratio:.2f} x unwatched ({unwatched * 1e6:.0f} µs)"
    return Row(name, text, f"<= {BUDGETS[name]:.2f} x", ratio <= BUDGETS[name])


if __name__ == "__main__":
    logging.getLogger("httpx").setLevel(logging.WARNING)
    show("CPU per turn while an execution is watched", asyncio.run(measured()))
