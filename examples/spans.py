"""Two wiretaps on one agent: spans with their durations, and a progress bar.

Needs rich: `pip install 'agentloop-kernel[cli]'`.
"""

from __future__ import annotations

from datetime import datetime

from rich.progress import Progress

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.events import (
    AgentStepCompleted,
    InferenceRequestStarted,
    InferenceResponseReceived,
    ToolCallCompleted,
    ToolCallStarted,
)
from agentloop.values import Event


class Spans:
    """Prints each request and each tool call with its milliseconds."""

    def __init__(self) -> None:
        self._started: dict[str, datetime] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case InferenceRequestStarted():
                self._started[event.execution_id] = event.time
            case InferenceResponseReceived():
                self._end("model", event.execution_id, event)
            case ToolCallStarted():
                self._started[event.key] = event.time
            case ToolCallCompleted():
                self._end(event.execution.name, event.execution.key, event)

    def _end(self, name: str, key: str, event: Event) -> None:
        duration = event.time - self._started.pop(key)
        print(f"step {event.step_number}: {name} took {duration.total_seconds() * 1000:.1f} ms")


@tool(effect="pure")
def square(n: int) -> int:
    """Square a number."""
    return n * n


if __name__ == "__main__":
    model = ScriptedInference(*[ToolCall("1", "square", f'{{"n": {n}}}') for n in (10, 20, 30)], "100, 400 and 900.")
    loop = AgentLoop.for_model(model, tools=[square])
    loop.wiretap(Spans())
    with Progress() as bar:
        steps = bar.add_task("working", total=4)
        loop.on(AgentStepCompleted, lambda _: bar.advance(steps))
        print(loop.run_sync("Square 10, 20 and 30."))
