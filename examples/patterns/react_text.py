"""ReAct as text: the model writes Thought, Action and Action Input, and reads an Observation."""

from __future__ import annotations

from agentloop import AgentLoop, ReActDriver, ScriptedInference, tool

POPULATION = {"France": 68_400_000, "Portugal": 10_600_000}


@tool(effect="pure")
def population(country: str) -> int:
    """Return the number of people who live in a country."""
    return POPULATION[country]


model = ScriptedInference(
    'Thought: I need both numbers.\nAction: population\nAction Input: {"country": "France"}',
    'Thought: Now the other one.\nAction: population\nAction Input: {"country": "Portugal"}',
    "Thought: 68.4 is about six times 10.6.\nFinal Answer: France has six times as many people.",
)
loop = AgentLoop(ReActDriver(model, output="text"), [population])
state = loop.execute_sync("How much larger is France than Portugal?")
for message in model.requests[-1].messages:
    print(f"{message.role}: {message.text}")
print(f"answer: {state.final_text}")
