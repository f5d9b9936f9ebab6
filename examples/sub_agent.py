"""An agent that delegates to another one, which has its own instructions and tools; both spend from one budget."""

from __future__ import annotations

from agentloop import AgentLoop, Budget, ScriptedInference, ToolCall, tool
from agentloop.events import ToolCallStarted


@tool(effect="pure")
def price_of(item: str) -> float:
    """Return the price of an item in euros."""
    return {"lamp": 20.0, "rug": 80.0}[item]


RESEARCHER = ScriptedInference(
    [ToolCall("1", "price_of", '{"item": "lamp"}'), ToolCall("2", "price_of", '{"item": "rug"}')],
    "A lamp costs 20 euros, a rug 80.",
)
WRITER = ScriptedInference(
    ToolCall("1", "research", '{"task": "What do a lamp and a rug cost?"}'),
    "A lamp and a rug: 100 euros together.",
)
researcher = AgentLoop.for_model(RESEARCHER, tools=[price_of], system_prompt="You look prices up.")
writer = AgentLoop.for_model(
    WRITER,
    tools=[researcher.as_tool("research", "Answer a question about prices.", effect="pure")],
    interceptors=[Budget(tokens=10_000, tool_calls=20)],
    system_prompt="You write offers.",
)
writer.on(ToolCallStarted, lambda event: print(f"{'  ' if event.parent_agent_id else ''}{event.call.name}"))

if __name__ == "__main__":
    state = writer.execute_sync("Make an offer for a lamp and a rug.")
    print(state.final_text)
    print(f"the writer itself used {state.usage.total_tokens} tokens")
