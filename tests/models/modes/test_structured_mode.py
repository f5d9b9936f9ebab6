"""The mode `structured`, alone and with the driver."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any, Literal

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, Budget, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.events import DecisionExtractionFailed, InferenceDeltaReceived
from agentloop.models.modes.structured import StructuredMode, build_tool_branch
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
    ToolExchange,
    ToolExecution,
    ToolStatus,
)
from agentloop.values.messages import LAST_ANSWER


@tool(effect="pure")
def add(a: int, b: int, *, note: str = "") -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure")
def label(tags: dict[str, str]) -> str:
    """Label something."""
    return json.dumps(dict(tags))


REQUEST = InferenceRequest((Message.user("1 + 2?"),), "Be brief.", (add.spec, label.spec))


def payload(*items: dict[str, Any]) -> str:
    """Return a payload with these items."""
    return json.dumps({"next": list(items)})


CALL = {"tool": "add", "arguments": {"a": 1, "b": 2, "note": None}}


def read(text: str, request: InferenceRequest = REQUEST) -> InferenceResponse:
    """Read a response in the mode."""
    return StructuredMode().parse_response(InferenceResponse((Text(text),)), request)


def test_the_schema_has_a_branch_per_tool_and_branches_for_answer_and_thoughts() -> None:
    """The only property of the root is a list of an `anyOf`; everything is required and closed."""
    offered = StructuredMode().render_request(REQUEST)
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
    assert SchemaValidator(schema).accepts(json.loads(payload({"scratchpad": "hm"}, CALL, {"answer": "3"})))


def test_the_schema_has_the_definitions_of_the_answer() -> None:
    """A response format that refers to its definitions, such as a tree, is part of a schema that needs no other."""
    children = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    node = {"type": "object", "properties": {"children": children}, "required": ["children"]}
    response_format = ResponseFormat({"$ref": "#/$defs/node", "$defs": {"node": node}})
    offered = StructuredMode().render_request(REQUEST.with_response_format(response_format)).response_format
    assert offered is not None
    assert offered.schema is not None
    validator = SchemaValidator(offered.schema)
    assert validator.accepts(json.loads(payload({"answer": {"children": [{"children": []}]}})))
    assert not validator.accepts(json.loads(payload({"answer": {"children": [{"children": 1}]}})))


def test_inexpressible_arguments_are_json_in_a_string() -> None:
    """Free keys cannot be expressed: the branch states the reason, and the string is read as the arguments."""
    assert "an object with free keys" in build_tool_branch(label.spec).reason
    (call,) = read(payload({"tool": "label", "arguments": '{"tags": {"a": "b"}}'})).tool_calls
    assert call.arguments == {"tags": {"a": "b"}}


@pytest.mark.parametrize(
    ("choice", "branches"),
    [
        (ToolChoice.required(), ["tool", "tool", "scratchpad"]),
        (ToolChoice.specific("label"), ["tool", "scratchpad"]),
    ],
)
def test_a_tool_choice_removes_branches(choice: ToolChoice, branches: list[str]) -> None:
    """A model that must call a tool has no branch for an answer."""
    schema: Any = StructuredMode().render_request(REQUEST.with_tool_choice(choice)).response_format
    assert [
        next(iter(branch["properties"])) for branch in schema.schema["properties"]["next"]["items"]["anyOf"]
    ] == branches


def test_without_tools_the_response_format_is_passed_on() -> None:
    """A request without tools, or with tool choice `none`, is a request for plain structured output."""
    response_format = ResponseFormat({"type": "object", "properties": {}})
    for request in (REQUEST.with_tools(()), REQUEST.with_tool_choice(ToolChoice.none())):
        offered = StructuredMode().render_request(request.with_response_format(response_format))
        assert (offered.tools, offered.response_format) == ((), response_format)
    response = InferenceResponse((Text("plain"),))
    assert StructuredMode().parse_response(response, REQUEST.with_tools(())) is response


def test_the_variant_json_object_describes_the_schema() -> None:
    """`json_object` requests any JSON object and puts the schema into the prompt."""
    offered = StructuredMode(variant="json_object").render_request(REQUEST)
    assert offered.response_format == ResponseFormat()
    assert '"anyOf":' in offered.system_prompt


@pytest.mark.parametrize(("parallel", "is_said"), [(False, True), (True, False), (None, False)])
def test_one_call_at_a_time_is_an_instruction(parallel: bool | None, is_said: bool) -> None:  # noqa: FBT001  # parameters
    """The model reads that it may make one call only where the request says so."""
    prompt = StructuredMode().render_request(evolve(REQUEST, parallel_tool_calls=parallel)).system_prompt
    assert ("Call one tool at a time." in prompt) is is_said


def test_calls_answers_and_thoughts_are_read_in_order() -> None:
    """Thoughts become reasoning and answers text; nulls of optional parameters are removed."""
    response = read(payload({"scratchpad": "hm"}, CALL, CALL, {"answer": "soon"}))
    thought, first, second, answer = response.parts
    assert (thought, answer) == (Reasoning("hm"), Text("soon"))
    assert isinstance(first, ToolCall)
    assert isinstance(second, ToolCall)
    assert first.arguments == second.arguments == {"a": 1, "b": 2}
    assert not response.wants_to_continue


@pytest.mark.parametrize("text", ["```json\n%s\n```", "<think>hm</think>%s", "  %s\n"])
def test_fences_and_reasoning_around_the_object_are_ignored(text: str) -> None:
    """A payload in a fence or behind reasoning tags is read."""
    assert read(text % payload(CALL)).tool_calls


def test_reasoning_before_an_answer_of_the_users_schema_is_kept() -> None:
    """Such an answer has no object of the mode around it; what precedes it is what the model thought."""
    city = ResponseFormat({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    response = read('<think> hm </think>{"city": "Paris"}', evolve(REQUEST, response_format=city))
    assert response.parts == (Reasoning("hm"), Text('{"city": "Paris"}'))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"next": [{"tool": "add", "arguments": {"a": 1, "a": 2, "b": 3}}]}', "the key 'a' twice"),
        ("I think", "it is not one JSON object"),
        ("", "it is not one JSON object"),
        ('{"next": []}', "the list 'next' is empty"),
        ('{"next": [5]}', r"at next\[0\]: an object with 'tool', 'answer' or 'scratchpad' is expected, not a number"),
        ('{"next": [{"say": "hi"}]}', "its keys are say"),
        ('{"next": [{"tool": 5}]}', "its keys are tool"),
    ],
)
def test_an_unreadable_payload_is_a_problem(text: str, problem: str) -> None:
    """The problem states the fault and its place."""
    assert re.search(problem, read(text).problem)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)
    )
)
def test_no_json_raises(data: Any) -> None:
    """Any JSON is either read or reported as a problem."""
    for text in (
        json.dumps(data),
        json.dumps({"next": data}),
        json.dumps({"next": [{"tool": "add", "arguments": data}]}),
    ):
        response = read(text)
        assert response.problem or response.parts


async def run(*lines: str, mode: Any = "structured") -> tuple[list[AgentStep], ScriptedInference, list[Event]]:
    """Run a loop with a model that writes these texts."""
    model, events = ScriptedInference(*lines), list[Event]()
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add, label], system_prompt="Be brief.")
    loop.wiretap(events.append)
    state = await loop.execute("1 + 2?")
    return list(state.steps), model, events


async def test_steps_do_not_depend_on_the_mode() -> None:
    """Law 12: steps, calls and results are the same as with a tool API."""
    (first, last), _, _ = await run(payload(CALL, CALL), payload({"answer": "It is 3."}))
    assert [(execution.name, execution.arguments, execution.value) for execution in first.executions] == [
        ("add", {"a": 1, "b": 2}, 3)
    ] * 2
    assert last.message is not None
    assert last.message.text == "It is 3."


async def test_the_conversation_is_rendered_as_payloads() -> None:
    """Earlier turns of the model are payloads in the request, with results in the user's message after them."""
    _, model, _ = await run(payload({"scratchpad": "hm"}, CALL), payload({"answer": "It is 3."}))
    _, assistant, results = model.requests[1].messages
    assert json.loads(assistant.text) == {
        "next": [{"scratchpad": "hm"}, {"tool": "add", "arguments": {"a": 1, "b": 2}}]
    }
    assert json.loads(results.text) == {"tool": "add", "result": "3"}


async def test_a_payload_of_thoughts_requests_another_step() -> None:
    """A payload without calls and answer ends the step with a request for continuation."""
    agent_steps, model, _ = await run(payload({"scratchpad": "hm"}), payload({"answer": "3"}))
    assert (len(agent_steps), len(model.requests)) == (2, 2)
    assert agent_steps[0].message is not None
    assert agent_steps[0].message.parts == (Reasoning("hm"),)


async def test_an_unreadable_response_is_retried() -> None:
    """The model receives the reason, and its second response counts."""
    agent_steps, model, events = await run("I will add.", payload(CALL), payload({"answer": "3"}))
    assert [step.executions[0].status for step in agent_steps[:1]] == [ToolStatus.SUCCEEDED]
    assert "it is not one JSON object" in model.requests[1].messages[-1].text
    assert [event.text for event in events if isinstance(event, DecisionExtractionFailed)] == ["I will add."]


async def test_streaming_emits_contents_instead_of_json() -> None:
    """With streaming, the answer's text is emitted and the JSON around it never is."""
    model, deltas = ScriptedInference(payload({"answer": "It is 3."})), list[InferenceDelta]()
    loop = AgentLoop(ToolCallingDriver(model, mode="structured", streaming=True), [add])
    loop.on(InferenceDeltaReceived, lambda event: deltas.append(event.delta))
    assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    assert "".join(delta.text for delta in deltas) == "It is 3."


def test_calls_of_the_server_are_used() -> None:
    """If the inference server parsed the calls, the text is not read."""
    response = InferenceResponse((Text("One moment."), ToolCall("1", "add", '{"a": 1, "b": 2}')))
    assert StructuredMode().parse_response(response, REQUEST) is response


def test_thoughts_are_streamed_unless_the_provider_has_streamed_its_own() -> None:
    """A listener reads the reasoning of one source, and the whole answer."""
    text = payload({"scratchpad": "I add."}, {"answer": "It is 3."})
    for streamed in ([], [InferenceDelta("reasoning", "Hm.")]):
        stream = StructuredMode().stream(REQUEST)
        deltas = [delta for item in [*streamed, InferenceDelta("text", text)] for delta in stream.feed(item)]
        deltas += stream.close(read(text))
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == "It is 3."
        thoughts = "".join(delta.text for delta in deltas if delta.kind == "reasoning")
        assert thoughts == ("Hm." if streamed else "I add.")


@pytest.mark.parametrize("variant", ["json_schema", "json_object"])
def test_the_answer_follows_the_response_format(variant: Literal["json_schema", "json_object"]) -> None:
    """The response format is the schema of the answer's branch, and the answer satisfies it."""
    schema = {
        "type": "object",
        "properties": {"sum": {"type": "integer"}, "note": {"type": "string"}},
        "required": ["sum"],
    }
    request = REQUEST.with_response_format(ResponseFormat(schema))
    mode = StructuredMode(variant=variant)
    assert mode.render_request(request).tools == ()
    response = mode.parse_response(InferenceResponse((Text(payload({"answer": {"sum": 3, "note": None}})),)), request)
    assert response.text == '{"sum":3}'


@pytest.mark.parametrize(
    ("response_format", "kind", "words"),
    [
        (None, "string", ""),
        (ResponseFormat(), "string", "The text of a JSON object."),
        (ResponseFormat({"type": "object"}), "string", '{"type":"object"}'),
        (ResponseFormat({"type": "integer", "description": "A sum."}), "integer", "A sum."),
    ],
)
def test_an_answer_whose_form_cannot_be_enforced_is_a_text(
    response_format: ResponseFormat | None, kind: str, words: str
) -> None:
    """Its description says what the text has to be."""
    offered = StructuredMode().render_request(REQUEST.with_response_format(response_format)).response_format
    assert offered is not None
    schema: Any = offered.schema
    answer = schema["properties"]["next"]["items"]["anyOf"][2]["properties"]["answer"]
    assert answer["type"] == kind
    assert answer.get("description", "").endswith(words)
    assert ("description" in answer) is bool(words)


def test_an_answer_that_is_cut_off_is_a_problem() -> None:
    """Also one that begins as an object of the requested schema does."""
    response = read('{"city": "Delft"', REQUEST.with_response_format(CITY))
    assert response.problem.startswith("it is not one JSON object")


CITY = ResponseFormat(
    {"type": "object", "properties": {"city": {"type": "string"}, "note": {"type": "string"}}, "required": ["city"]}
)
ANY_CITY = ResponseFormat({"type": "object", "properties": {"city": {"type": "string"}}})


@pytest.mark.parametrize(
    ("response_format", "written", "text", "reasoning"),
    [
        (CITY, '{"city": "Delft"}', '{"city": "Delft"}', ""),
        (CITY, '{"city": "Delft", "scratchpad": "hm"}', '{"city": "Delft", "scratchpad": "hm"}', ""),
        (CITY, '{"answer": "{\\"city\\": \\"Delft\\"}", "scratchpad": "hm"}', '{"city": "Delft"}', "hm"),
        (
            CITY,
            '{"tool": "", "arguments": {}, "answer": {"city": "Delft"}, "scratchpad": "hm"}',
            '{"city":"Delft"}',
            "hm",
        ),
        (ANY_CITY, '{"city": "Delft"}', '{"city": "Delft"}', ""),
        (ANY_CITY, '{"answer": {"city": "Delft"}, "scratchpad": "hm"}', '{"city":"Delft"}', "hm"),
        (ANY_CITY, '{"next": [{"answer": {"city": "Delft"}}]}', '{"city":"Delft"}', ""),
    ],
)
def test_an_answer_of_the_requested_schema_is_understood(
    response_format: ResponseFormat, written: str, text: str, reasoning: str
) -> None:
    """Without the object around it, and as a text in it."""
    response = StructuredMode().parse_response(
        InferenceResponse((Text(written),)), REQUEST.with_response_format(response_format)
    )
    assert (response.problem, response.text, response.tool_calls) == ("", text, ())
    assert "".join(part.text for part in response.parts if isinstance(part, Reasoning)) == reasoning
    assert not response.wants_to_continue


@pytest.mark.parametrize("own_format", [None, CITY, ANY_CITY])
def test_a_call_is_a_call_whatever_schema_the_answer_has(own_format: ResponseFormat | None) -> None:
    """A schema without required keys accepts the object of a call, too."""
    call = '{"tool": "add", "arguments": {"a": 1, "b": 2}, "scratchpad": "hm"}'
    request = REQUEST if own_format is None else REQUEST.with_response_format(own_format)
    response = StructuredMode().parse_response(InferenceResponse((Text(call),)), request)
    assert [(made.name, made.arguments) for made in response.tool_calls] == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Plain words.", "Plain words."),
        ('{"next": [{"scratchpad": "enough"}, {"answer": "It is 3."}]}', "It is 3."),
        ('```json\n{"next": [{"answer": "It is 3."}]}\n```', "It is 3."),
        ('{"next": 3}', '{"next": 3}'),
        ('{"next": [{"answer": "It is 3."}], "more": 1}', '{"next": [{"answer": "It is 3."}], "more": 1}'),
        ('{"answer": "It is 3."}', "It is 3."),
        ('{"answer": "It is 3.", "more": 1}', '{"answer": "It is 3.", "more": 1}'),
    ],
)
async def test_an_answer_without_tools_may_be_a_payload(written: str, shown: str, *, streaming: bool) -> None:
    """A model whose earlier turns are payloads may write one as its last answer; other JSON is an answer as it is."""
    call = '{"next": [{"tool": "add", "arguments": {"a": 1, "b": 2, "note": null}}]}'
    driver = ToolCallingDriver(ScriptedInference(call, written), mode="structured", streaming=streaming)
    loop = AgentLoop(driver, [add], interceptors=[Budget(steps=2)])
    pieces: list[str] = []
    loop.on(InferenceDeltaReceived, lambda event: pieces.append(event.delta.text if event.delta.kind == "text" else ""))
    state = await loop.execute("1 + 2?")
    assert (state.final_text, "".join(pieces)) == (shown, shown if streaming else "")


def _last_requests() -> list[tuple[str, InferenceRequest]]:
    call = ToolCall("1", "add", '{"a": 1, "b": 2}')
    execution = ToolExecution.of(
        call, ToolStatus.SUCCEEDED, key="", id="", at=datetime(2026, 1, 1, tzinfo=UTC), value=3
    )
    called = REQUEST.with_messages([*REQUEST.messages, Message.assistant(ToolExchange(call, execution))])
    notice = Message.user("This is your last answer.", metadata=LAST_ANSWER)
    return [
        ("tools that must not be called", REQUEST.with_tool_choice(ToolChoice.none())),
        ("no tools behind calls", called.with_tools(())),
        ("a last answer", called.with_messages([*called.messages, notice]).with_tools(())),
        ("a last answer at once", REQUEST.with_tools(()).with_tool_choice(ToolChoice.none())),
    ]


@pytest.mark.parametrize("variant", ["json_schema", "json_object"])
@pytest.mark.parametrize("request_", [pytest.param(each, id=name) for name, each in _last_requests()])
def test_a_request_without_calls_has_the_schema_of_an_answer_alone(
    request_: InferenceRequest, variant: Literal["json_schema", "json_object"]
) -> None:
    """No branch of a tool, no notice that a weak model would repeat, and the form of the answer in the prompt."""
    offered = StructuredMode(variant=variant).render_request(request_)
    answer_format: Any = offered.response_format
    assert '{"answer": TEXT}' in offered.system_prompt
    assert "This is your last answer." not in [message.text for message in offered.messages]
    assert (answer_format.schema is None) is (variant == "json_object")
    if answer_format.schema is not None:
        assert (list(answer_format.schema["properties"]), "anyOf" in answer_format.schema) == (["answer"], False)


@pytest.mark.parametrize(
    "written",
    [
        '{"next": [{"tool": "add", "arguments": {"a": 1, "b": 2}}]}',
        '{"tool": "add", "arguments": {"a": 1, "b": 2}}',
        '{"next": [{"scratchpad": "I call add."}]}',
        '{"next": []}',
    ],
)
async def test_a_call_in_place_of_the_last_answer_is_never_the_answer(written: str) -> None:
    """A model that goes on in the notation is asked for its answer, and shown why."""
    call = '{"next": [{"tool": "add", "arguments": {"a": 1, "b": 2, "note": null}}]}'
    model = ScriptedInference(call, written, '{"answer": "It is 3."}')
    loop = AgentLoop(ToolCallingDriver(model, mode="structured"), [add], interceptors=[Budget(steps=2)])
    assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    assert "Your answer was rejected" in model.requests[-1].messages[-1].text


async def test_a_first_answer_without_tools_is_plain() -> None:
    """Without earlier payloads in the conversation, JSON is an answer as it is."""
    written = '{"next": [{"answer": "x"}]}'
    loop = AgentLoop(ToolCallingDriver(ScriptedInference(written), mode="structured"))
    assert (await loop.execute("Write JSON.")).final_text == written
