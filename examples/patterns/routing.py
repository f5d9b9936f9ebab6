"""Routing: each request offers only the tools that suit the context, so that the model chooses among few."""

from __future__ import annotations

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.interception import ToolSelection
from agentloop.values import ToolSpec


@tool(effect="pure")
def search_orders(text: str) -> list[str]:
    """Search the orders of the shop."""
    return [f"order about {text}"]


@tool(effect="pure")
def search_manuals(text: str) -> list[str]:
    """Search the manuals of the products."""
    return [f"manual about {text}"]


@tool
def refund(order: str) -> str:
    """Pay an order back."""
    return f"{order} is paid back"


def suits(spec: ToolSpec, state: AgentState) -> bool:
    topic = state.context.metadata.get("topic")
    return spec.name in {"orders": ("search_orders", "refund"), "technics": ("search_manuals",)}[str(topic)]


for topic in ("orders", "technics"):
    model = ScriptedInference(ToolCall("1", "search_manuals", '{"text": "lamp"}'), "Here you are.")
    loop = AgentLoop.for_model(
        model, tools=[search_orders, search_manuals, refund], interceptors=[ToolSelection(suits)]
    )
    state = loop.execute_sync(AgentState.start("Help me with my lamp.").with_metadata(topic=topic))
    offered = [spec.name for spec in model.requests[0].tools]
    print(f"{topic}: offered {', '.join(offered)}; search_manuals was {state.steps[0].executions[0].status}")
