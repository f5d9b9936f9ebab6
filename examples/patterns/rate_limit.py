"""Rate limit: a tool declares how often it may run; calls that would wait too long are refused with the time to wait."""

from __future__ import annotations

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.policies import Resilience
from agentloop.values import RateLimit


@tool(rate_limit=RateLimit(2, per=60, max_wait=0))
def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


calls = [
    ToolCall(str(number), "send_mail", f'{{"to": "{name}"}}') for number, name in enumerate(["Ada", "Bob", "Cleo"])
]
loop = AgentLoop.for_model(
    ScriptedInference(calls, "Cleo has to wait a minute."), tools=[send_mail], interceptors=[Resilience()]
)
state = loop.execute_sync("Write to everybody.")
for execution in state.steps[0].executions:
    print(execution.arguments["to"], execution.status, execution.text)
print(state.final_text)
