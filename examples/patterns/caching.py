"""Caching: an equal call of a pure tool is answered from the cache, also in another execution of the agent."""

from __future__ import annotations

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.events.resilience import ToolCallCached
from agentloop.policies import Resilience
from agentloop.values import CachePolicy


@tool(effect="pure", cache=CachePolicy(seconds=600))
def exchange_rate(currency: str) -> float:
    """Return what one euro costs in another currency."""
    print(f"asking the bank for {currency}")
    return {"USD": 1.08, "GBP": 0.85}[currency]


def ask(number: int, currency: str) -> ToolCall:
    return ToolCall(str(number), "exchange_rate", f'{{"currency": "{currency}"}}')


model = ScriptedInference([ask(1, "USD"), ask(2, "GBP")], [ask(3, "USD")], "1.08 dollars or 0.85 pounds.")
loop = AgentLoop.for_model(model, tools=[exchange_rate], interceptors=[Resilience()])
loop.on(ToolCallCached, lambda event: print(f"from the cache: {event.key.split('/', 1)[1]}"))
state = loop.execute_sync(AgentState.start("What is a euro worth?", agent_id="clerk"))
print(state.final_text)
state = loop.execute_sync(state.with_message("And now?"))
print([execution.value for step in state.steps for execution in step.executions])
