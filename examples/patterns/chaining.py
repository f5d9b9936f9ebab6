"""Chaining: the result of one call is the argument of the next, without a word to the user in between."""

from __future__ import annotations

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.values import InferenceRequest, InferenceResponse


@tool(effect="pure")
def find_customer(name: str) -> int:
    """Return the number of a customer."""
    return {"Ada": 17}[name]


@tool(effect="pure")
def orders(customer: int) -> list[str]:
    """Return the orders of a customer."""
    return ["lamp", "rug"] if customer == 17 else []


def ask_orders(request: InferenceRequest) -> InferenceResponse:
    number = request.messages[-1].exchanges[0].execution.value  # a real model reads it in the conversation
    return InferenceResponse([ToolCall("2", "orders").with_arguments({"customer": number})])


model = ScriptedInference(
    ToolCall("1", "find_customer", '{"name": "Ada"}'), ask_orders, "Ada ordered a lamp and a rug."
)
state = AgentLoop.for_model(model, tools=[find_customer, orders]).execute_sync("What did Ada order?")
for step in state.steps:
    for execution in step.executions:
        print(f"step {step.number}: {execution.name}{dict(execution.arguments)} -> {execution.text}")
print(state.final_text)
