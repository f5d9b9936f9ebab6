"""Retry: a pure or idempotent tool is tried again with growing waits; a tool with an effect runs once, whatever happens."""

from __future__ import annotations

import logging

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.events.resilience import ToolCallRetried
from agentloop.policies import Resilience
from agentloop.values import RetryPolicy

logging.disable()  # failed tools are logged with their tracebacks
attempts = {"look_up": 0, "pay": 0}


def fail_twice(name: str) -> None:
    attempts[name] += 1
    if attempts[name] < 3:
        raise ConnectionError(f"attempt {attempts[name]} was lost")


@tool(effect="pure", retry=RetryPolicy(max_attempts=3, initial_wait=0.01))
def look_up(word: str) -> str:
    """Look a word up."""
    fail_twice("look_up")
    return f"{word}: a lamp of the sea"


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    fail_twice("pay")
    return f"paid {amount}"


calls = [ToolCall("1", "look_up", '{"word": "lighthouse"}'), ToolCall("2", "pay", '{"amount": 5}')]
loop = AgentLoop.for_model(ScriptedInference(calls, "Done."), tools=[look_up, pay], interceptors=[Resilience()])
loop.on(ToolCallRetried, lambda event: print("trying again:", event.name))
for execution in loop.execute_sync("Look it up, then pay.").steps[0].executions:
    print(f"{execution.name} after {attempts[execution.name]} attempts: {execution.status}, {execution.text}")
    print(f"  may have had an effect although it failed: {execution.may_have_run}")
