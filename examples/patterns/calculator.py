"""A simple tool: a typed function with a docstring. No text of a model is ever evaluated as code."""

from __future__ import annotations

import json
import logging
import operator

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool

logging.disable()  # failed tools are logged with their tracebacks
OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@tool(effect="pure")
def calculate(left: float, sign: str, right: float) -> float:
    """Compute with two numbers.

    Args:
        left: the first number.
        sign: one of + - * /
        right: the second number.
    """
    return float(OPERATIONS[sign](left, right))


print(json.dumps(calculate.spec.parameters))
calls = [
    ToolCall("1", "calculate", '{"left": 17, "sign": "+", "right": 25}'),
    ToolCall("2", "calculate", '{"left": 1, "sign": "/", "right": 0}'),
    ToolCall("3", "calculate", '{"left": "one", "sign": "+", "right": 1}'),
]
state = AgentLoop.for_model(ScriptedInference(calls, "17 + 25 is 42."), tools=[calculate]).execute_sync("17 + 25?")
for execution in state.steps[0].executions:
    print(execution.status, execution.text)
print(state.final_text)
