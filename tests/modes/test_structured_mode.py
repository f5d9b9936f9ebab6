"""The mode `structured`, by itself and under the driver."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, Budget, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.events import DecisionExtractionFailed, InferenceDeltaReceived
from agentloop.modes import StructuredMode
from agentloop.modes.structured import build_tool_branch
from agentloop.tools import SchemaValidator
from agentloop.values import (
    AgentStep,
    Event,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    Reasoning,
    ResponseFormat,
    Text,
    ToolChoice,
    ToolStatus,
)


@tool(effect="pure")
def add(a: int, b: int, *, note: str = "") -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure")
def label(tags: dict[str, str]) -> str:
    """Label something."""
    return json.dumps(dict(tags))


REQUEST = InferenceRequest((Message.user("1 + 2?"),), "Be brief.", (add.spec, label.spec))


def steps(*items: dict[str, Any]) -> str:
    """Spell an answer of this mode."""
    return json.dumps({"next": list(items)})


CALL = {"tool": "add", "arguments": {"a": 1, "b": 2, "note": None}}


def read(text: str, request: InferenceRequest = REQUEST) -> InferenceResponse:
    """Read an answer."""
    return StructuredMode().read(InferenceResponse((Text(text),)), request)


def test_the_schema_has_one_branch_per_tool_one_for_the_answer_and_one_for_thoughts() -> None:
    """One property of the root object is a list of an anyOf; everything is required and closed."""
    offered = StructuredMode().offer(REQUEST)
    assert offered.tools == ()
    assert offered.response_format is not None
    schema: Any = offered.response_format.schema
    assert list(schema["properties"]) == ["next"]
    branches = schema["properties"]["next"]["items"]["anyOf"]
    assert [list(branch["properties"]) for branch in branches] == [
        ["tool", "arguments"],
        ["tool", "arguments"],
        ["answer"],
        ["scratchpad"],
    ]
    assert branches[0]["properties"]["arguments"]["required"] == ("a", "b", "note")
    assert SchemaValidator(schema).accepts(json.loads(steps({"scratchpad": "hm"}, CALL, {"answer": "3"})))


def test_a_tool_that_the_subset_cannot_express_takes_its_arguments_as_text() -> None:
    """Free keys cannot be expressed: the branch says so, and the text is read as the arguments."""
    assert "an object with free keys" in build_tool_branch(label.spec).reason
    (call,) = read(steps({"tool": "label", "arguments": '{"tags": {"a": "b"}}'})).tool_calls
    assert call.arguments == {"tags": {"a": "b"}}


@pytest.mark.parametrize(
    ("choice", "branches"),
    [
        (ToolChoice.required(), ["tool", "tool", "scratchpad"]),
        (ToolChoice.specific("label"), ["tool", "scratchpad"]),
    ],
)
def test_a_tool_choice_takes_branches_away(choice: ToolChoice, branches: list[str]) -> None:
    """A model that has to call has no branch to answer."""
    schema: Any = StructuredMode().offer(REQUEST.with_tool_choice(choice)).response_format
    assert [next(iter(one["properties"])) for one in schema.schema["properties"]["next"]["items"]["anyOf"]] == branches


def test_without_tools_the_form_of_the_answer_is_left_to_the_provider() -> None:
    """A request without tools, or that forbids them, is one for plain structured output."""
    wanted = ResponseFormat({"type": "object", "properties": {}})
    for request in (REQUEST.with_tools(), REQUEST.with_tool_choice(ToolChoice.none())):
        offered = StructuredMode().offer(request.with_response_format(wanted))
        assert (offered.tools, offered.response_format) == ((), wanted)
    response = InferenceResponse((Text("plain"),))
    assert StructuredMode().read(response, REQUEST.with_tools()) is response


def test_the_variant_for_models_without_schemas_tells_the_schema() -> None:
    """`json_object` asks for an object and puts the schema into the prompt."""
    offered = StructuredMode(variant="json_object").offer(REQUEST)
    assert offered.response_format == ResponseFormat()
    assert '"anyOf":' in offered.system_prompt


def test_calls_answers_and_thoughts_are_read_in_order() -> None:
    """Thoughts become reasoning, calls calls, answers text; nulls that stand for nothing are gone."""
    response = read(steps({"scratchpad": "hm"}, CALL, CALL, {"answer": "soon"}))
    thought, first, second, said = response.parts
    assert (thought, said) == (Reasoning("hm"), Text("soon"))
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert first.arguments == second.arguments == {"a": 1, "b": 2}
    assert not response.wants_to_continue


@pytest.mark.parametrize("text", ["```json\n%s\n```", "<think>hm</think>%s", "  %s\n"])
def test_fences_and_thoughts_around_the_object_do_no_harm(text: str) -> None:
    """Models that wrap what they write are understood."""
    assert read(text % steps(CALL)).tool_calls


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("I think", "it is not one JSON object"),
        ("", "it is not one JSON object"),
        ('{"next": []}', "the list 'next' is empty"),
        ('{"next": [5]}', r"at next\[0\]: an object with 'tool', 'answer' or 'scratchpad' is expected, not a number"),
        ('{"next": [{"say": "hi"}]}', "its keys are say"),
        ('{"next": [{"tool": 5}]}', "its keys are tool"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, problem: str) -> None:
    """The problem says what is wrong, and where."""
    assert re.search(problem, read(text).problem)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_no_json_makes_it_raise(data: Any) -> None:
    """Whatever a model writes is read, or told as a problem."""
    for text in (
        json.dumps(data),
        json.dumps({"next": data}),
        json.dumps({"next": [{"tool": "add", "arguments": data}]}),
    ):
        response = read(text)
        assert response.problem or response.parts


async def run(*lines: str, mode: Any = "structured") -> tuple[list[AgentStep], ScriptedInference, list[Event]]:
    """Run a loop over a model that writes these texts."""
    model, events = ScriptedInference(*lines), list[Event]()
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add, label], system_prompt="Be brief.")
    loop.wiretap(events.append)
    state = await loop.execute("1 + 2?")
    return list(state.steps), model, events


async def test_a_run_is_the_same_as_with_a_tool_api() -> None:
    """Law 12: steps, calls and outcomes do not show that the model wrote JSON."""
    (first, last), _, _ = await run(steps(CALL, CALL), steps({"answer": "It is 3."}))
    assert [(one.name, one.arguments, one.value) for one in first.executions] == [("add", {"a": 1, "b": 2}, 3)] * 2
    assert last.message is not None
    assert last.message.text == "It is 3."


async def test_the_conversation_is_told_in_the_same_json() -> None:
    """What the model said before stands in the request as it would write it, results in the user's message after it."""
    _, model, _ = await run(steps({"scratchpad": "hm"}, CALL), steps({"answer": "It is 3."}))
    _, said, told = model.requests[1].messages
    assert json.loads(said.text) == {"next": [{"scratchpad": "hm"}, {"tool": "add", "arguments": {"a": 1, "b": 2}}]}
    assert json.loads(told.text) == {"tool": "add", "result": "3"}


async def test_thinking_alone_goes_on() -> None:
    """A payload of thoughts only requests continuation."""
    taken, model, _ = await run(steps({"scratchpad": "hm"}), steps({"answer": "3"}))
    assert (len(taken), len(model.requests)) == (2, 2)
    assert taken[0].message is not None
    assert taken[0].message.parts == (Reasoning("hm"),)


async def test_an_unreadable_answer_is_asked_for_again() -> None:
    """The model is shown what is wrong, and its second answer counts."""
    taken, model, events = await run("I will add.", steps(CALL), steps({"answer": "3"}))
    assert [step.executions[0].status for step in taken[:1]] == [ToolStatus.SUCCEEDED]
    assert "it is not one JSON object" in model.requests[1].messages[-1].text
    assert [event.text for event in events if isinstance(event, DecisionExtractionFailed)] == ["I will add."]


async def test_pieces_are_shown_when_they_are_whole() -> None:
    """While streaming, the JSON itself is never shown."""
    model, told = ScriptedInference(steps({"answer": "It is 3."})), list[InferenceDelta]()
    loop = AgentLoop(ToolCallingDriver(model, mode="structured", streaming=True), [add])
    loop.on(InferenceDeltaReceived, lambda event: told.append(event.delta))
    assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    assert "".join(delta.text for delta in told) == "It is 3."


@pytest.mark.parametrize("variant", ["json_schema", "json_object"])
def test_the_answer_has_the_form_that_is_asked_for(variant: Literal["json_schema", "json_object"]) -> None:
    """A response format becomes the schema of the answer's branch; what comes back satisfies it."""
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["sum"],
    }
    request = REQUEST.with_response_format(ResponseFormat(schema))
    mode = StructuredMode(variant=variant)
    assert mode.offer(request).tools == ()
    response = mode.read(InferenceResponse((Text(steps({"answer": {"sum": 3, "note": None}})),)), request)
    assert response.text == '{"sum":3}'


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Plain words.", "Plain words."),
        ('{"next": [{"scratchpad": "enough"}, {"answer": "It is 3."}]}', "It is 3."),
        ('```json\n{"next": [{"answer": "It is 3."}]}\n```', "It is 3."),
        ('{"next": 3}', '{"next": 3}'),
        ('{"next": [{"answer": "It is 3."}], "more": 1}', '{"next": [{"answer": "It is 3."}], "more": 1}'),
        ('{"answer": "It is 3."}', '{"answer": "It is 3."}'),
    ],
)
async def test_an_answer_without_tools_may_go_on_in_the_same_json(written: str, shown: str, *, streaming: bool) -> None:
    """A model whose own turns are shown as JSON may keep to it in the last answer of a budget; other JSON is an answer."""
    call = '{"next": [{"tool": "add", "arguments": {"a": 1, "b": 2, "note": null}}]}'
    driver = ToolCallingDriver(ScriptedInference(call, written), mode="structured", streaming=streaming)
    loop = AgentLoop(driver, [add], interceptors=[Budget(steps=2)])
    pieces: list[str] = []
    loop.on(InferenceDeltaReceived, lambda event: pieces.append(event.delta.text if event.delta.kind == "text" else ""))
    state = await loop.execute("1 + 2?")
    assert (state.final_text, "".join(pieces)) == (shown, shown if streaming else "")


async def test_a_first_answer_without_tools_is_plain() -> None:
    """A model that has never seen such JSON means what it writes."""
    written = '{"next": [{"answer": "x"}]}'
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(written), mode="structured"))
    assert (await loop.execute("Write JSON.")).final_text == written
