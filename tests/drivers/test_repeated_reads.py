"""A model that repeats a pure call whose result it has is asked for its answer, without a choice to call again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from agentloop import AgentLoop, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.values import InferenceRequest, InferenceResponse, ToolChoice

_NUMBERS = count(1)


@tool(effect="pure")
def weather(city: str, unit: str = "C") -> str:
    """Get the weather."""
    return f"{city}: 21 {unit}"


@tool(effect="pure")
def tick() -> int:
    """Return another number each time."""
    return next(_NUMBERS)


@tool(effect="pure")
def fail() -> str:
    """Fail."""
    raise RuntimeError("broken")


@tool(repeatable=True)
def put(city: str) -> str:
    """Put."""
    return f"put {city}"


TOOLS: list[Any] = [weather, tick, fail, put]
PARIS = {"tool": "weather", "arguments": {"city": "Paris", "unit": "C"}}
SHORT = {"tool": "weather", "arguments": {"city": "Paris"}}
LONDON = {"tool": "weather", "arguments": {"city": "London", "unit": "C"}}
TICK = {"tool": "tick", "arguments": {}}
FAIL = {"tool": "fail", "arguments": {}}
PUT = {"tool": "put", "arguments": {"city": "Paris"}}


async def _asked(turns: Sequence[Sequence[dict[str, Any]]]) -> list[bool]:
    """Return for each request in `structured` whether it asks for an answer alone."""
    model = ScriptedInference(*[json.dumps({"next": list(turn)}) for turn in turns], '{"answer": "done"}')
    loop = AgentLoop(ToolCallingDriver(model, mode="structured"), TOOLS)
    assert (await loop.execute("go")).final_text == "done"
    return [_has_answer_alone(request) for request in model.requests]


def _has_answer_alone(request: InferenceRequest) -> bool:
    schema: Any = None if request.response_format is None else request.response_format.schema
    return list(schema["properties"]) == ["answer"]


@pytest.mark.parametrize(
    ("turns", "is_asked"),
    [
        ([[PARIS], [PARIS]], True),
        ([[PARIS], [SHORT]], True),
        ([[PARIS, LONDON], [LONDON, PARIS]], True),
        ([[PARIS, LONDON], [LONDON]], True),
        ([[PARIS], [LONDON], [PARIS]], True),
        ([[PARIS]], False),
        ([[PARIS], [LONDON]], False),
        ([[PARIS], [PARIS, LONDON]], False),
        ([[PARIS], [PUT], [PARIS]], False),
        ([[PUT], [PUT]], False),
        ([[TICK], [TICK]], False),
        ([[FAIL], [FAIL]], False),
    ],
)
async def test_a_repeated_pure_call_is_followed_by_a_request_for_the_answer(
    turns: Sequence[Sequence[dict[str, Any]]], *, is_asked: bool
) -> None:
    """Once all calls of a step were made before with the same results, and nothing may have changed in between."""
    assert await _asked(turns) == [False] * len(turns) + [is_asked]


async def test_the_request_for_the_answer_extends_the_one_before_it() -> None:
    """Only the schema changes, so that what the provider has read stays in its cache (law 13)."""
    model = ScriptedInference(*[json.dumps({"next": [PARIS]})] * 2, '{"answer": "done"}')
    await AgentLoop(ToolCallingDriver(model, mode="structured"), TOOLS).execute("go")
    *_, before, asking = model.requests
    assert asking.system_prompt == before.system_prompt
    assert asking.messages[: len(before.messages)] == before.messages


@pytest.mark.parametrize("mode", ["validated", "parsed"])
async def test_text_modes_are_told_not_to_call(mode: str) -> None:
    """The last message repeats the question, for this one request; a call that the model makes nevertheless is read."""
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    other = call.replace("Paris", "London")
    model = ScriptedInference(call, call, other, "done")
    driver = ToolCallingDriver(model, mode=mode)  # type: ignore[arg-type]  # a parameter
    state = await AgentLoop(driver, TOOLS).execute("go")
    said = ["without another call: go" in request.messages[-1].text for request in model.requests]
    assert (state.final_text, said) == ("done", [False, False, True, False])


async def test_in_place_of_a_decision_there_is_an_answer_alone() -> None:
    """The schema of a ReAct request says so, and the prompt stays as it is (law 13)."""
    call = '{"thought": "", "type": "tool", "tool": "weather", "args": {"city": "Paris"}}'
    model = ScriptedInference(call, call, '{"thought": "", "type": "final", "answer": "done"}')
    state = await AgentLoop(ReActDriver(model, output="json"), TOOLS).execute("go")
    assert state.final_text == "done"
    assert [_has_answer_alone(request) for request in model.requests] == [False, False, True]
    assert len({request.system_prompt for request in model.requests}) == 1


async def test_decisions_as_text_may_repeat_once() -> None:
    """Only words can say it, behind three equal steps in a row."""
    call = 'Thought: x\nAction: weather\nAction Input: {"city": "Paris"}'
    model = ScriptedInference(call, call, call, "Thought: x\nFinal Answer: done")
    state = await AgentLoop(ReActDriver(model, output="text"), TOOLS).execute("go")
    said = ["without another call: go" in request.messages[-1].text for request in model.requests]
    assert (state.final_text, said) == ("done", [False, False, False, True])


def _call(name: str, **arguments: Any) -> InferenceResponse:
    return InferenceResponse((ToolCall("", name, json.dumps(arguments)),))


@pytest.mark.parametrize(
    ("turns", "is_asked"),
    [
        ([_call("weather", city="Paris")] * 3, True),
        ([_call("tick"), _call("tick"), *[_call("weather", city="Paris")] * 3], True),
        ([_call("weather", city="Paris")] * 2, False),
        ([_call("tick")] * 4, False),
        ([_call("weather", city="Paris"), _call("weather", city="London")] * 2, False),
    ],
)
async def test_a_tool_api_lets_a_model_poll(turns: Sequence[InferenceResponse], *, is_asked: bool) -> None:
    """Equal calls in three steps in a row are followed by a request with the tool choice `none`."""
    model = ScriptedInference(*turns, "done")
    assert (await AgentLoop(ToolCallingDriver(model), TOOLS).execute("go")).final_text == "done"
    choices = [request.tool_choice for request in model.requests]
    assert choices == [ToolChoice.auto()] * len(turns) + [ToolChoice.none() if is_asked else ToolChoice.auto()]


async def test_a_required_call_stays_required() -> None:
    """A tool choice of the program's precedes."""
    model = ScriptedInference(*[_call("weather", city="Paris")] * 4)
    driver = ToolCallingDriver(model, tool_choice="required", reset_tool_choice=False)
    await AgentLoop(driver, TOOLS, max_steps=4).execute("go")
    assert {request.tool_choice for request in model.requests} == {ToolChoice.required()}
