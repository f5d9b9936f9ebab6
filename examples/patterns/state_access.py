"""A tool that reads the agent's state, which is injected and read-only; what it finds out is kept by an interceptor."""

from __future__ import annotations

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.interception import AfterToolUse, at


@tool(effect="pure")
def suggest(topic: str, state: AgentState) -> str:
    """Suggest what to look at next."""
    seen = state.context.metadata.get("seen", ())
    return f"{topic} for {state.agent_id}; already seen: {', '.join(map(str, seen)) or 'nothing'}"


def remember(point: AfterToolUse) -> AfterToolUse:
    seen = point.state.context.metadata.get("seen", ())
    topic = point.call.arguments["topic"]
    return point.with_state(point.state.with_metadata(seen=[*seen, topic]))


model = ScriptedInference(
    ToolCall("1", "suggest", '{"topic": "lamps"}'), ToolCall("2", "suggest", '{"topic": "rugs"}'), "Look at the rugs."
)
loop = AgentLoop.for_model(
    model,
    tools=[suggest],
    interceptors=[at("after_tool_use", remember, writes={"state.context.metadata.seen"})],
    provenance="values",
)
print("the model sees:", *suggest.spec.parameters["properties"])
state = loop.execute_sync(AgentState.start("What next?", agent_id="ada"))
for step in state.steps:
    print(*[execution.text for execution in step.executions])
print(state.explain(provenance=True).partition("changes by interceptors:")[2].strip())
