"""A tool that calls other tools: to the model it is one call, to Python each tool is an ordinary function."""

from __future__ import annotations

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool


@tool(effect="pure")
def stock(item: str) -> int:
    """Return how many of an item are in stock."""
    return {"lamp": 3, "rug": 0}[item]


@tool(effect="pure")
def price(item: str) -> float:
    """Return the price of an item."""
    return {"lamp": 20.0, "rug": 90.0}[item]


@tool(effect="pure")
def quote(items: list[str], context: ToolContext) -> dict[str, float]:
    """Return the prices of the items that are in stock, and their sum."""
    found: dict[str, float] = {}
    for item in items:
        context.progress(f"looking at {item}")
        if stock(item=item):
            found[item] = price(item=item)
    return {**found, "sum": sum(found.values())}


print("called by Python:", stock("lamp"), price("rug"))
model = ScriptedInference(ToolCall("1", "quote", '{"items": ["lamp", "rug"]}'), "The lamp is 20; there are no rugs.")
state = AgentLoop.for_model(model, tools=[quote]).execute_sync("A lamp and a rug?")
print("called by the model:", state.steps[0].executions[0].text)
print(state.final_text)
