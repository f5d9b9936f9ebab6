"""Ensembles from a TOML file: tools with defaults, switched on and off, and a tool that does not run twice for the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.events.resilience import ToolCallDeduplicated
from agentloop.policies import Resilience
from agentloop.toolkits import load_ensembles

TOOLS = """
[ensembles.texts]
use = "agentloop.toolkits.summarization:summarization"
enabled = false

[ensembles.chance]
use = "agentloop.toolkits.probability:probability"
tools.draw_items.enabled = false
tools.describe_numbers.deduplicate = { steps = 3 }
"""

with tempfile.TemporaryDirectory() as folder:
    (Path(folder) / "tools.toml").write_text(TOOLS, encoding="utf-8")
    ensembles = load_ensembles(Path(folder) / "tools.toml")
script = [ToolCall(str(n), "describe_numbers", '{"numbers": [6, 7, 8]}') for n in range(2)]
loop = AgentLoop.for_model(
    ScriptedInference(*script, "The mean is 7."), tools=[*ensembles], interceptors=[Resilience()]
)
print("offered:", ", ".join(loop.tools.names))
loop.on(ToolCallDeduplicated, lambda event: print("not run again:", event.name))
state = loop.execute_sync("What is the mean of 6, 7 and 8?")
print(
    [
        execution.value["mean"]
        for step in state.steps
        for execution in step.executions
        if isinstance(execution.value, dict)
    ]
)
print(state.final_text)
