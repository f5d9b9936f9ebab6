"""Only tools that a request offers, and that its tool choice allows, are called: in every mode and notation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from attrs import evolve

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCallingDriver
from agentloop.interception import at
from agentloop.tools import tool
from agentloop.values import FinishReason, InferenceResponse, ToolCall, ToolChoice
from agentloop.values.points import BeforeInference

ANSWERS: dict[str, InferenceResponse | str] = {
    "call": InferenceResponse((ToolCall("1", "pay", '{"to": "Bob"}'),), FinishReason.TOOL_CALLS),
    "tag": '<tool_call>{"name": "pay", "arguments": {"to": "Bob"}}</tool_call>',
    "payload": '{"next": [{"tool": "pay", "arguments": {"to": "Bob"}}]}',
    "labels": 'Thought: so\nAction: pay\nAction Input: {"to": "Bob"}',
    "decision": '{"thought": "so", "type": "tool", "tool": "pay", "args": {"to": "Bob"}}',
}
FINAL = {
    "structured": '{"next": [{"answer": "No."}]}',
    "json": '{"thought": "so", "type": "final", "answer": "No."}',
    "text": "Thought: so\nFinal Answer: No.",
}
DRIVERS: dict[str, Callable[[ScriptedInference], ToolCallingDriver | ReActDriver]] = {
    "native": lambda model: ToolCallingDriver(model, mode="native"),
    "structured": lambda model: ToolCallingDriver(model, mode="structured"),
    "validated": lambda model: ToolCallingDriver(model, mode="validated"),
    "parsed": lambda model: ToolCallingDriver(model, mode="parsed"),
    "json": lambda model: ReActDriver(model, output="json"),
    "text": lambda model: ReActDriver(model, output="text"),
}


def _without_pay(point: BeforeInference) -> BeforeInference:
    return point.with_request(point.request.with_tools([t for t in point.request.tools if t.name != "pay"]))


@pytest.mark.parametrize("form", ANSWERS)
@pytest.mark.parametrize("name", DRIVERS)
@pytest.mark.parametrize("why", ["none", "specific", "left out", "final model"])
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_call_that_the_request_does_not_allow_does_not_run(
    form: str, name: str, why: str, *, streaming: bool
) -> None:
    """Neither a tool choice, nor an interceptor, nor a request without tools can be overruled by the model."""
    paid: list[str] = []

    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        paid.append(to)
        return "paid"

    @tool(effect="pure")
    def look() -> str:
        """Look around."""
        return "nothing"

    model = ScriptedInference(*[ANSWERS[form]] * 20)
    driver = evolve(DRIVERS[name](model), streaming=streaming)
    if why == "final model":
        driver = evolve(driver, inference=ScriptedInference(*[FINAL.get(name, "No.")] * 20), final_inference=model)
    elif why != "left out":
        choice = ToolChoice.none() if why == "none" else ToolChoice.specific("look")
        driver = evolve(driver, tool_choice=choice)
    interceptors = [at("before_inference", _without_pay)] if why == "left out" else []
    await AgentLoop(driver, [pay, look], interceptors=interceptors, max_steps=2).execute("Look around.")
    assert paid == []
