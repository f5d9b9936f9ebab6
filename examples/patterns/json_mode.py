"""JSON mode: a model without a tool API writes its call as JSON, and corrects it when it does not fit."""

from __future__ import annotations

from agentloop import AgentLoop, ScriptedInference, ToolCallingDriver, tool
from agentloop.events import ValidationFailed


@tool(effect="pure")
def book(room: str, nights: int) -> str:
    """Book a room for a number of nights."""
    return f"{room} for {nights} nights"


model = ScriptedInference(
    '{"tool_call": {"name": "book", "arguments": {"room": "12"}}}',
    '{"tool_call": {"name": "book", "arguments": {"room": "12", "nights": 2}}}',
    "Room 12 is yours for two nights.",
)
loop = AgentLoop(ToolCallingDriver(model, mode="validated"), [book])
loop.on(ValidationFailed, lambda event: print("refused:", *event.problems))
state = loop.execute_sync("Book room 12 for two nights.")
print("ran:", state.steps[0].executions[0].text)
print(state.final_text)
