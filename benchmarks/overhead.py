"""Measures what is paid where nothing happens: a loop that is made, an event without listeners, a point without interceptors.

python benchmarks/overhead.py
"""

from __future__ import annotations

from measuring import Row, micros, show

from agentloop import AgentLoop, ScriptedInference, ToolCallingDriver, tool
from agentloop.events import EventBus, ToolCallStarted
from agentloop.interception import AfterToolUse, InterceptorStack, StepLimit


@tool(effect="pure")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


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


if __name__ == "__main__":
    show("where nothing happens", small_things())
