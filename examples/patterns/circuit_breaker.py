"""Circuit breaker: after some failures in a row a tool is not called any more, and is tried again later."""

from __future__ import annotations

import logging

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.events.resilience import CircuitClosed, CircuitHalfOpened, CircuitOpened
from agentloop.policies import Resilience
from agentloop.testing import ManualClock
from agentloop.values import CircuitPolicy, RetryPolicy

logging.disable()  # failed tools are logged with their tracebacks
clock = ManualClock()
is_down = [True]


@tool(effect="pure", circuit=CircuitPolicy(failures=2, seconds=30), retry=RetryPolicy(max_attempts=1))
def weather(city: str) -> str:
    """Return the weather of a city."""
    print(f"  asking the service about {city}")
    if is_down[0]:
        raise ConnectionError("the weather service does not answer")
    return f"sunny in {city}"


model = ScriptedInference(*[ToolCall(str(n), "weather", '{"city": "Lisbon"}') for n in range(3)], "I cannot say.")
loop = AgentLoop.for_model(model, tools=[weather], interceptors=[Resilience()], clock=clock)
for kind in (CircuitOpened, CircuitHalfOpened, CircuitClosed):
    loop.on(kind, lambda event: print(f"  {type(event).__name__}"))
print("the service is down:")
state = loop.execute_sync("How is the weather?")
print(f"the third call: {state.steps[2].executions[0].error_message}")
is_down[0] = False
clock.advance(31)
print("half a minute later, it is back:")
print(loop.execute_sync("And now?").steps[0].executions[0].text)
