"""Several calls of one answer run at the same time; a slow or failing one costs the others nothing."""

from __future__ import annotations

import asyncio
import logging

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool

logging.disable()  # failed tools are logged with their tracebacks
running: list[str] = []


@tool(effect="pure")
async def price(shop: str) -> float:
    """Return the price of a lamp in a shop."""
    running.append(shop)
    print(f"asking {shop}, together with {len(running) - 1} others")
    await asyncio.sleep(0.05)
    running.remove(shop)
    return {"Ada": 20.0, "Bob": 18.5}[shop]


calls = [ToolCall(str(number), "price", f'{{"shop": "{shop}"}}') for number, shop in enumerate(["Ada", "Bob", "Cleo"])]
loop = AgentLoop.for_model(ScriptedInference(calls, "Bob is cheapest."), tools=[price])
state = loop.execute_sync("Where is a lamp cheapest?")
for execution in state.steps[0].executions:  # in the order of the calls, whatever ended first
    print(execution.arguments["shop"], execution.status, execution.text)
print(state.final_text)
