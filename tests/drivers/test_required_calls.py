"""A tool choice and the limit to one call hold in every mode, whatever the model answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.values import ExecutionStatus, ToolChoice

ran: list[str] = []


@pytest.fixture(autouse=True)
def _clear() -> None:
    ran.clear()


@tool(effect="pure")
def look() -> str:
    """Look."""
    ran.append("look")
    return "seen"


@tool
def pay() -> str:
    """Pay."""
    ran.append("pay")
    return "paid"


def written(mode: str, *names: str) -> Any:
    """Return the answer that holds these calls in a mode."""
    if mode == "native":
        return [ToolCall(str(number), name) for number, name in enumerate(names)]
    if mode == "structured":
        return json.dumps({"next": [{"tool": name, "arguments": {}} for name in names]})
    if mode == "react":
        return "\n".join(f"Action: {name}\nAction Input: {{}}" for name in names)
    return "\n".join(f'<tool_call>{{"name":"{name}","arguments":{{}}}}</tool_call>' for name in names)


def answered(mode: str) -> str:
    return {"structured": json.dumps({"answer": "done"}), "react": "Final Answer: done"}.get(mode, "done")


def run(mode: str, *answers: Any, **settings: Any) -> tuple[Any, ScriptedInference]:
    model = ScriptedInference(*answers)
    if mode == "react":
        driver: Any = ReActDriver(model, output="text", **settings)
    else:
        driver = ToolCallingDriver(model, mode=mode, **settings)  # type: ignore[arg-type]
    return AgentLoop(driver, [look, pay]).execute_sync("go"), model


MODES = ("native", "structured", "validated", "parsed", "react")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("choice", [ToolChoice.required(), ToolChoice.specific("look")])
def test_an_answer_does_not_take_the_place_of_a_required_call(mode: str, choice: ToolChoice) -> None:
    """The model is asked again, and its call runs; after that it may answer."""
    state, model = run(mode, answered(mode), written(mode, "look"), answered(mode), tool_choice=choice)
    assert (state.status, state.final_text, ran) == (ExecutionStatus.COMPLETED, "done", ["look"])
    assert len(model.requests) == 3


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_makes_no_required_call_fails_the_execution(mode: str) -> None:
    """After the last retry, the answer completes nothing, and the error says what is missing."""
    state, model = run(mode, *[answered(mode)] * 5, tool_choice="required", max_retries=2)
    assert state.status is ExecutionStatus.FAILED
    assert any("a call of a tool is required" in error.message for error in state.errors)
    assert len(model.requests) == 3


@pytest.mark.parametrize("mode", MODES[:-1])  # the notation of ReAct has one call in an answer, and refuses more
def test_one_call_of_an_answer_runs(mode: str) -> None:
    """With `parallel_tool_calls=False` the first of several calls runs, and the model is told to make the others alone."""
    answers = (written(mode, "look", "pay"), written(mode, "pay"), answered(mode))
    state, _ = run(mode, *answers, parallel_tool_calls=False)
    assert ran == ["look", "pay"]
    first, second = state.steps[0].executions
    assert first.succeeded
    assert "only one call of an answer may run" in second.error_message


@pytest.mark.parametrize("mode", ["structured", "validated", "parsed", "react"])
def test_text_modes_tell_the_model(mode: str) -> None:
    """What the API of a provider cannot say is in the instructions."""

    def prompt(**settings: Any) -> str:
        _, model = run(mode, written(mode, "look"), answered(mode), answered(mode), **settings)
        return str(model.requests[0].system_prompt) + repr(model.requests[0].response_format)

    plain = prompt()
    assert "Call a tool now" not in plain
    assert "Call a tool now" in prompt(tool_choice="required")
    assert "Call the tool look now" in prompt(tool_choice=ToolChoice.specific("look"))
    assert prompt(parallel_tool_calls=False) != plain
