"""The driver of the ReAct pattern, in both notations."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import pytest
from attrs import evolve, frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
    Budget,
    Message,
    ReActDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    from_json,
    to_json,
    tool,
)
from agentloop.contracts import CanInfer, CanNameModel
from agentloop.drivers import Rejection
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.events import (
    DecisionExtractionFailed,
    InferenceDeltaReceived,
    InferenceRequestStarted,
    InferenceResponseReceived,
    ToolCallStarted,
    ValidationFailed,
)
from agentloop.interception import RequireApproval
from agentloop.models import ReActDecision, decision_of
from agentloop.models.modes.answer_stream import LabelSearch, PlainSearch
from agentloop.models.modes.react import ReActJsonMode, ReActTextMode, select_react_mode
from agentloop.models.modes.react_reading import ReActCall
from agentloop.values import (
    Bounds,
    Capabilities,
    CapabilityRow,
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    ProviderPart,
    Reasoning,
    ResponseFormat,
    StepKind,
    Text,
    ToolChoice,
    ToolExchange,
    ToolExecution,
    ToolSpec,
    ToolStatus,
    Usage,
    approve,
)
from agentloop.values.inference import iter_deltas
from agentloop.values.json import extract_json
from agentloop.values.messages import LAST_ANSWER


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure")
def look(where: str = "here") -> str:
    """Look around."""
    return f"nothing {where}"


JSON_CALL = '{"thought": "I add.", "type": "tool", "tool": "add", "args": {"a": 1, "b": 2}}'
JSON_INVALID = '{"thought": "I add.", "type": "tool", "tool": "add", "args": {"a": 1}}'
JSON_ANSWER = '{"thought": "I know.", "type": "final", "answer": "It is 3."}'
TEXT_CALL = 'Thought: I add.\nAction: add\nAction Input: {"a": 1, "b": 2}'
TEXT_INVALID = 'Thought: I add.\nAction: add\nAction Input: {"a": 1}'
TEXT_ANSWER = "Thought: I know.\nFinal Answer: It is 3."
NOTATIONS = {"json": (JSON_CALL, JSON_INVALID, JSON_ANSWER), "text": (TEXT_CALL, TEXT_INVALID, TEXT_ANSWER)}
REQUEST = InferenceRequest((Message.user("1 + 2?"),), "Be brief.", (add.spec, look.spec))
both_notations = pytest.mark.parametrize("output", ["json", "text"])


def create_loop(output: Any, *lines: Any, **settings: Any) -> tuple[AgentLoop, ScriptedInference, list[Event]]:
    """Return a loop whose model writes these texts, the model, and the list of events."""
    model, events = ScriptedInference(*lines), list[Event]()
    loop = AgentLoop(ReActDriver(model, output=output, **settings), [add, look], system_prompt="Be brief.")
    loop.wiretap(events.append)
    return loop, model, events


def parse(mode: ReActJsonMode | ReActTextMode, text: str) -> InferenceResponse:
    """Parse a text."""
    return mode.parse_response(InferenceResponse((Text(text),)), REQUEST)


def parse_calls(mode: ReActJsonMode | ReActTextMode, text: str) -> list[tuple[str, dict[str, Any]]]:
    """Parse the calls of a text."""
    return [(call.name, dict(call.arguments)) for call in parse(mode, text).tool_calls]


@both_notations
async def test_an_execution_stores_neutral_parts(output: str) -> None:
    """A thought is stored as reasoning, a call as an exchange, the answer as text; the notation is not stored."""
    call, _, answer = NOTATIONS[output]
    loop, _, _ = create_loop(output, call, answer)
    state = await loop.execute("1 + 2?")
    acting, answering = state.messages[1:]
    assert acting.parts[0] == Reasoning("I add.")
    (exchange,) = acting.exchanges
    assert (exchange.call.name, exchange.call.arguments, exchange.execution.value) == ("add", {"a": 1, "b": 2}, 3)
    assert answering.parts == (Reasoning("I know."), Text("It is 3."))
    assert (state.final_text, state.status) == ("It is 3.", ExecutionStatus.COMPLETED)


@both_notations
async def test_the_conversation_is_rendered_in_the_notation(output: str) -> None:
    """The next request holds thought, action and observation, and nothing of a tool API."""
    call, _, answer = NOTATIONS[output]
    loop, model, _ = create_loop(output, call, answer)
    await loop.execute("1 + 2?")
    _, decision, observation = model.requests[1].messages
    expected = {
        "json": '{"thought":"I add.","type":"tool","tool":"add","args":{"a":1,"b":2}}',
        "text": 'Thought: I add.\nAction: add\nAction Input: {"a":1,"b":2}',
    }
    assert (decision.role, decision.text) == ("assistant", expected[output])
    assert (observation.role, observation.text) == ("user", "Observation: 3")
    assert not any(request.tools for request in model.requests)


@both_notations
async def test_the_prompt_describes_the_tools_and_the_notation(output: str) -> None:
    """They follow the system prompt of the agent; with them a model needs no tool API."""
    loop, model, _ = create_loop(output, NOTATIONS[output][2])
    await loop.execute("1 + 2?")
    prompt = model.requests[0].system_prompt
    assert prompt.startswith("Be brief.")
    assert all(text in prompt for text in ("add", "Add two numbers.", "look", "Look around.", '"where"'))
    assert all(text in prompt for text in {"json": ('"thought"', '"tool"'), "text": ("Action Input:",)}[output])


@both_notations
async def test_a_request_extends_the_previous_request(output: str) -> None:
    """Law 13: prompt and messages of a step begin with those of the previous step."""
    call, _, answer = NOTATIONS[output]
    loop, model, _ = create_loop(output, call, call, answer)
    state = await loop.execute("1 + 2?")
    await loop.execute(state.with_message("And now?"))
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert later.system_prompt == earlier.system_prompt
        if len(later.messages) > len(earlier.messages):
            assert later.messages[: len(earlier.messages)] == earlier.messages


@both_notations
async def test_a_decision_may_hold_several_calls(output: str) -> None:
    """The calls of a decision are one batch, and each observation names its call."""
    several = {
        "json": '{"thought": "", "type": "tool", "calls": [{"tool": "add", "args": {"a": 1, "b": 2}}, {"tool": "look"}]}',
        "text": 'Action: add\nAction Input: {"a": 1, "b": 2}\nAction: look\nAction Input: {}',
    }
    loop, model, _ = create_loop(output, several[output], NOTATIONS[output][2])
    state = await loop.execute("?")
    assert [execution.value for execution in state.steps[0].executions] == [3, "nothing here"]
    assert model.requests[1].messages[-1].text == "Observation 1 (add): 3\nObservation 2 (look): nothing here"


@both_notations
async def test_messages_of_other_drivers_are_rendered_in_the_notation(output: str) -> None:
    """A conversation that started with a tool API continues in text."""
    native = ScriptedInference(["Let me see.", ToolCall("1", "add", '{"a": 1, "b": 2}')], "It is 3.")
    state = await AgentLoop(ToolCallingDriver(native), [add]).execute("1 + 2?")
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    rendered = mode.render_request(InferenceRequest(state.messages, tools=(add.spec,))).messages
    assert "Let me see." in rendered[1].text
    assert "add" in rendered[1].text
    assert rendered[2].text == "Observation: 3"
    assert ("Final Answer: It is 3." if output == "text" else '"answer":"It is 3."') in rendered[3].text


@pytest.mark.parametrize(
    "label", ["Observation", "**Observation 1**", "Observation 1 (add)", "observation 2 (sea.tides)"]
)
def test_invented_observations_are_cut_off(label: str) -> None:
    """Everything after the action, from the first observation on, is dropped, including later decisions."""
    text = f"{TEXT_CALL}\n{label}: 7\nThought: so\nAction: look\nAction Input: {{}}\nFinal Answer: 7"
    response = parse(ReActTextMode(), text)
    (call,) = response.tool_calls
    assert (call.name, response.text, response.reasoning) == ("add", "", "I add.")
    assert "an invented observation cut off" in call.repairs


@both_notations
@pytest.mark.parametrize("rest", ["Observation: 7\nThought: so\nAc", "Final Answer: It is 3, sin"])
async def test_a_call_is_whole_if_only_what_stands_behind_it_was_cut_off(output: str, rest: str) -> None:
    """A model that writes on behind its call, until the limit of its tokens, has made the call."""
    call, _, answer = NOTATIONS[output]
    cut = InferenceResponse((Text(f"{TEXT_CALL if 'Final' in rest else call}\n{rest}"),), FinishReason.LENGTH)
    loop, _, _ = create_loop(output, cut, answer)
    state = await loop.execute("1 + 2?")
    assert [execution.value for execution in state.steps[0].executions] == [3]


@pytest.mark.parametrize("item", ['"look()"', '["look", {}]', "7"])
def test_a_call_that_is_no_object_is_not_left_out(item: str) -> None:
    """The decision is sent back whole, and none of its calls runs."""
    text = f'{{"thought": "x", "type": "tool", "calls": [{{"tool": "add", "args": {{"a": 1, "b": 2}}}}, {item}]}}'
    response = parse(ReActJsonMode(), text)
    assert response.tool_calls == ()
    assert "a call is an object" in response.problem


@pytest.mark.parametrize("mode", [ReActJsonMode(), ReActTextMode()])
@pytest.mark.parametrize("later", [JSON_CALL.replace("1", "9"), JSON_ANSWER, '{"unreadable": ', TEXT_CALL, ""])
@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```"])
@pytest.mark.parametrize("label", ["Observation", "Observation 1 (add)"])
def test_observations_that_are_invented_behind_json_are_cut_off(
    mode: ReActJsonMode | ReActTextMode, later: str, form: str, label: str
) -> None:
    """No later decision counts: its arguments come from a result that does not exist."""
    response = parse(mode, f"{form.format(JSON_CALL)}\n{label}: 7\n{later}")
    (call,) = response.tool_calls
    assert (call.name, call.arguments, call.rejection) == ("add", {"a": 1, "b": 2}, "")
    assert call.repairs == ("an invented observation cut off",)


def test_an_observation_within_a_decision_or_before_it_cuts_nothing_off() -> None:
    """A label in a JSON string belongs to the string, and an observation before all decisions is repeated, not invented."""
    look_at = '{"thought": "x\nObservation: 1", "tool": "look", "args": {"where": "a\nObservation: b"}}'
    assert parse_calls(ReActJsonMode(), f"Observation: 7\n{look_at}\n{JSON_CALL}") == [
        ("look", {"where": "a\nObservation: b"}),
        ("add", {"a": 1, "b": 2}),
    ]


def test_an_observation_label_in_an_argument_is_part_of_the_argument() -> None:
    """A label in a JSON string belongs to the string."""
    text = 'Action: look\nAction Input: {"where": "a\nObservation: b"}\nObservation: c'
    assert parse_calls(ReActTextMode(), text) == [("look", {"where": "a\nObservation: b"})]


@pytest.mark.parametrize(
    "text",
    [
        '{"thought": "x", "tool": "look", "args": {"where": "a", "where": "b"}}',
        'Yes: {"thought": "x", "tool": "look", "args": {"where": "a"}, "args": {"where": "b"}}',
        "{'thought': 'x', 'tool': 'look', 'tool': 'add', 'args': {}}",
        '{"thought": "x", "tool": "look", "args": "{\\"where\\": \\"a\\", \\"where\\": \\"b\\"}"}',
    ],
)
def test_a_decision_with_a_key_that_occurs_twice_calls_nothing(text: str) -> None:
    """Which of the two values is meant is not known: the model is told."""
    response = parse(ReActJsonMode(), text)
    problems = [ReActJsonMode().validate(call, [look.spec]).error_message for call in response.tool_calls]
    assert "twice" in " ".join([response.problem, *problems])


LABEL_LIKE = st.sampled_from(
    [
        "action: run",
        "**Action:** run",
        "# Thought 1: x",
        "observation: y",
        "action input: {}",
        "Action: add",
        "FINAL ANSWER: 3",
        "end",
        "",
    ]
)


@given(
    st.lists(LABEL_LIKE, min_size=1, max_size=4).map("\n".join),
    st.sampled_from(["**Action:**", "action:", "Action 1:"]),
)
def test_a_value_with_lines_like_labels_stays_as_it_was_written(value: str, label: str) -> None:
    """Only the labels of the notation are read in another case or with marks; nothing within a value changes."""
    raw = parse_calls(ReActTextMode(), f'{label} look\nAction Input: {{"where": "a\n{value}"}}\n{TEXT_CALL}')
    assert raw == [("look", {"where": f"a\n{value}"}), ("add", {"a": 1, "b": 2})]
    fenced = parse_calls(ReActTextMode(), f"Thought: x\n{label} look\nAction Input:\n```\na\n{value}\nb\n```")
    assert fenced == [("look", {"where": f"a\n{value}\nb"})]


@pytest.mark.parametrize(
    "text",
    [
        JSON_CALL,
        f"```json\n{JSON_CALL}\n```",
        f"I think so: {JSON_CALL} Observation: 9",
        f"<think>hm {{}}</think>{JSON_CALL}",
        "{'thought': 'x', 'type': 'tool', 'tool': 'add', 'args': {'a': 1, 'b': 2,},}",
        '{"thought": "x", "type": "tool", "tool": "add", "args": "{\\"a\\": 1, \\"b\\": 2}"}',
        '{"thought": "x", "type": "tool", "tool": "add", "args": {"a": "1", "b": 2}, "calls": null, "answer": null}',
        '{"thought": "x", "action": "add", "action_input": {"a": 1, "b": 2}}',
        '{"type": "tool", "tool": "add", "args": {"a": 1, "b": 2}, "calls": [{"tool": "add", "args": {"a": 1, "b": 2}}]}',
        TEXT_CALL,
    ],
)
def test_json_decisions_are_parsed_as_models_write_them(text: str) -> None:
    """Bare, fenced, in prose, with small errors, with other keys, or in the other notation: the call is parsed."""
    assert parse_calls(ReActJsonMode(), text) == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize(
    "text",
    [
        TEXT_CALL,
        "**Thought:** I add.\n**Action:** add\n**Action Input:** {'a': 1, 'b': 2}",
        'thought: I add.\naction: `add`\naction input:\n```json\n{"a": 1, "b": 2}\n```',
        JSON_CALL,
        f"<think>Final Answer: no</think>{TEXT_CALL}",
        f"{TEXT_CALL}\nFinal Answer: 3",
    ],
)
def test_text_decisions_are_parsed_as_models_write_them(text: str) -> None:
    """With emphasis, in another case, fenced, after thoughts, or as JSON: the call is parsed."""
    assert parse_calls(ReActTextMode(), text) == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize("kind", ["call_tool", "tool_call", "action", None])
def test_the_types_of_a_decision_have_other_names(kind: str | None) -> None:
    """Where the type has another name, the content says whether a decision calls tools or answers."""
    call = json.dumps({"thought": "I add.", "type": kind, "tool": "add", "args": {"a": 1, "b": 2}})
    assert parse_calls(ReActJsonMode(), call) == [("add", {"a": 1, "b": 2})]
    answer = parse(ReActJsonMode(), json.dumps({"thought": "I know.", "type": "final_answer", "answer": "3"}))
    assert (answer.text, answer.reasoning, answer.problem) == ("3", "I know.", "")


def test_an_answer_is_not_parsed_any_further() -> None:
    """Everything after `Final Answer:` is the answer, even if it looks like a call or has lines with colons."""
    answer = "Two ways:\nACTION: none\nAction: add\nAction Input: {}"
    assert parse(ReActTextMode(), f"Thought: x\nFinal Answer: {answer}").text == answer


def test_repairs_are_listed_in_the_call() -> None:
    """A call lists what was repaired to parse it, including an answer that was dropped."""
    text = "{'type': 'tool', 'tool': 'add', 'args': {'a': '1', 'b': 2}, 'answer': '3'}"
    (call,) = parse(ReActJsonMode(), text).tool_calls
    assert {"single quotes", "text read as number", "an answer beside the call dropped"} <= set(call.repairs)


@pytest.mark.parametrize(
    ("arguments", "repairs"),
    [
        ('{"where": "there"}', ()),
        ('"{\\"where\\": \\"there\\"}"', ("arguments written as text",)),
        ('{"where": null}', ("null left out",)),
        ('"{\\"where\\": null}"', ("arguments written as text", "null left out")),
    ],
)
def test_a_change_of_the_arguments_is_a_repair(arguments: str, repairs: tuple[str, ...]) -> None:
    """Arguments in a string and nulls that were left out are listed; arguments that were used as written are not."""
    (call,) = parse(ReActJsonMode(), f'{{"type": "tool", "tool": "look", "args": {arguments}}}').tool_calls
    assert call.repairs == repairs


@pytest.mark.parametrize("name", ['""', "null", "7", "true", '["add"]', '{"name": "add"}'])
def test_what_is_no_name_calls_no_tool(name: str) -> None:
    """Alone it is a problem; an answer or a list of calls beside it counts."""
    head = f'{{"thought": "x", "tool": {name}, "args": {{"a": 1, "b": 2}}'
    alone = parse(ReActJsonMode(), f"{head}}}")
    assert (alone.tool_calls, "either 'tool' or 'final'" in alone.problem) == ((), True)
    answered = parse(ReActJsonMode(), f'{head}, "answer": "3"}}')
    assert (answered.text, answered.tool_calls, answered.problem) == ("3", (), "")
    listed = f'{head}, "calls": [{{"tool": "look", "args": {{}}}}]}}'
    assert parse_calls(ReActJsonMode(), listed) == [("look", {})]


def test_a_call_beside_a_list_of_calls_is_the_first() -> None:
    """The calls run in the order in which a reader of the object meets them, and one that the list repeats runs once."""
    beside = '{"thought": "x", "tool": "look", "args": {"where": "up"}, "calls": [%s]}'
    listed = '{"tool": "add", "args": {"a": 1, "b": 2}}'
    expected = [("look", {"where": "up"}), ("add", {"a": 1, "b": 2})]
    assert parse_calls(ReActJsonMode(), beside % listed) == expected
    repeated = '{"tool": "look", "args": {"where": "up"}}'
    assert parse_calls(ReActJsonMode(), beside % f"{repeated}, {listed}") == expected


def test_an_answer_beside_calls_is_listed_as_dropped() -> None:
    """Several calls alone have no such repair."""
    other = JSON_CALL.replace('"b": 2', '"b": 5')
    both, answered = (parse(ReActJsonMode(), f"{JSON_CALL}\n{text}") for text in (other, JSON_ANSWER))
    assert [call.repairs for call in both.tool_calls] == [(), ()]
    assert [call.repairs for call in answered.tool_calls] == [("an answer beside the call dropped",)]
    assert answered.text == ""


def test_of_several_answers_the_first_counts() -> None:
    """A model that answers twice has meant its first answer; the others are not joined with it."""
    response = parse(ReActJsonMode(), '{"thought": "x", "answer": "3"}\n{"thought": "y", "answer": "4"}')
    assert (response.text, response.reasoning, response.problem) == ("3", "x", "")


@pytest.mark.parametrize("lead", ["{", "{ ", "I{ ", "A set {1, 2}, and {"])
def test_a_brace_before_a_decision_does_not_hide_it(lead: str) -> None:
    """The search goes on behind a brace that begins no object."""
    response = parse(ReActJsonMode(), lead + JSON_ANSWER)
    assert (response.text, response.reasoning) == ("It is 3.", "I know.")


@pytest.mark.parametrize(("count", "is_read"), [(49, True), (50, False)])
def test_a_decision_behind_too_many_unreadable_objects_is_not_searched(count: int, *, is_read: bool) -> None:
    """The search ends at the fiftieth, so that its time is bounded; the model is told why its answer cannot be used."""
    response = parse(ReActJsonMode(), "{x " * count + JSON_ANSWER)
    assert (response.text == "It is 3.", not response.problem) == (is_read, is_read)


def test_an_object_that_cannot_be_read_is_named() -> None:
    """Without a decision that is the problem; a call beside it does not run, whatever its tool, and says why."""
    alone = parse(ReActJsonMode(), '{"tool": }')
    assert alone.problem.startswith("the JSON object cannot be read: ")
    for text in (f'{JSON_CALL}\n{{"tool": }}', f'{{"tool": }}\n{JSON_CALL}'):
        (call,) = parse(ReActJsonMode(), text).tool_calls
        assert alone.problem in call.rejection


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('[{"city": "Delft", "days": 3}, {"country": "Italy"}]', "city, days"),
        ('[{"type": "final", "answer": "x"}, {"y": 1}]', "y"),
        ('{"type": "x"}', "type"),
        ("{}", "no key"),
    ],
)
def test_the_problem_of_other_data_names_its_keys(text: str, keys: str) -> None:
    """Of a list, those of the first object that is no decision."""
    problem = parse(ReActJsonMode(), text).problem
    assert problem.endswith(f"neither the key tool nor the key answer; it has {keys}")


def test_only_its_own_notations_are_read_in_the_mode_for_json() -> None:
    """A call in another notation is sent back, since the model was told to write an object; labeled lines are read."""
    assert parse(ReActJsonMode(), "add(a=1, b=2)").problem == "it contains no JSON object that is a decision"
    assert parse_calls(ReActJsonMode(), TEXT_CALL) == [("add", {"a": 1, "b": 2})]


@pytest.mark.parametrize(
    ("lines", "is_rejected"),
    [
        ("Action: stop", True),
        ("Action:", True),
        ("Action: stop\nObservation: 3", True),
        ("Observation: 3\nAction: stop", False),
        ("Observation: 3\nAction:", False),
    ],
)
def test_a_call_beside_an_incomplete_action_does_not_run(lines: str, *, is_rejected: bool) -> None:
    """Nobody knows what the other action was to be, unless it follows an observation that the model invented."""
    (call,) = parse(ReActTextMode(), f"{TEXT_CALL}\n{lines}").tool_calls
    assert bool(call.rejection) is is_rejected


@pytest.mark.parametrize(("decision", "thought"), [(TEXT_CALL, "I add."), (TEXT_ANSWER, "I know.")])
@pytest.mark.parametrize(
    ("lead", "reasoning"),
    [
        ("I think so.\n</think>", "I think so."),
        ("Hm.\n<think>b</think>", "b\n\nHm."),
        ("<think>a</think>\n<think>b</think>", "a\n\nb"),
        ("<think>a</think>\nHm. <think>b</think> So.", "a\n\nb\n\nHm.                  So."),
    ],
)
def test_reasoning_in_tags_is_kept_once_and_without_them(
    lead: str, reasoning: str, decision: str, thought: str
) -> None:
    """Wherever the tags are, and where the opening one was part of the prompt."""
    parsed = parse(ReActTextMode(), f"{lead}\n{decision}")
    assert parsed.reasoning == f"{reasoning}\n\n{thought}"


@pytest.mark.parametrize("lead", ["<think>first</think>\n<think>second</think>", "<think>first</think>\nsecond"])
def test_what_precedes_the_labels_is_reasoning_once(lead: str) -> None:
    """Reasoning in tags and words behind it are both kept, and neither is repeated."""
    reasoning = parse(ReActTextMode(), f"{lead}\n{TEXT_CALL}").reasoning
    assert [reasoning.count(word) for word in ("first", "second", "I add.")] == [1, 1, 1]


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":', "[[[[", "Action:", "Action Input: {", '"', "{}" * 200, "\ud800{", "null"]
)
@pytest.mark.parametrize("mode", [ReActJsonMode(), ReActTextMode()])
def test_no_text_makes_the_parser_raise(mode: ReActJsonMode | ReActTextMode, text: str) -> None:
    """A text without a decision is returned unchanged with a problem."""
    response = parse(mode, text)
    assert response.problem
    assert response.parts == (Text(text),)


def test_the_schema_of_a_decision_is_strict_if_the_tools_allow_it() -> None:
    """Arguments that the strict subset can express are an object; those of other tools are JSON in a string."""
    strict = ReActJsonMode().render_request(REQUEST).response_format
    assert strict is not None
    assert strict.strict
    assert strict.schema is not None
    branches = strict.schema["properties"]["decision"]["anyOf"]
    assert [branch["required"] for branch in branches] == [
        ("thought", "type", "tool", "args"),
        ("thought", "type", "tool", "args"),
        ("thought", "type", "calls"),
        ("thought", "type", "answer"),
    ]
    assert [branch["properties"]["tool"]["enum"] for branch in branches[:2]] == [("add",), ("look",)]
    free = ToolSpec("free", "Free.", {"type": "object"})
    mixed: Any = ReActJsonMode().render_request(InferenceRequest((), tools=(free, add.spec))).response_format
    assert mixed.strict
    as_text, as_object = [branch["properties"] for branch in mixed.schema["properties"]["decision"]["anyOf"][:2]]
    assert (as_text["args"]["type"], as_object["args"]["type"]) == ("string", "object")
    single = ReActJsonMode().render_request(InferenceRequest((), tools=(free, add.spec), parallel_tool_calls=False))
    assert single.response_format is not None
    assert single.response_format.schema is not None
    assert "calls" not in str(single.response_format.schema)
    assert '"calls"' not in single.system_prompt


@pytest.mark.parametrize(
    ("choice", "kinds"),
    [
        (ToolChoice.auto(), ["tool", "tool", "calls", "answer"]),
        (ToolChoice.required(), ["tool", "tool", "calls"]),
        (ToolChoice.specific("look"), ["tool", "calls"]),
    ],
)
def test_a_tool_choice_leaves_only_the_decisions_that_it_allows(choice: ToolChoice, kinds: list[str]) -> None:
    """A decision is one of several whole objects, so that an object cannot both call and answer."""
    schema: Any = ReActJsonMode().render_request(REQUEST.with_tool_choice(choice)).response_format
    branches = schema.schema["properties"]["decision"]["anyOf"]
    found = [next(key for key in ("tool", "calls", "answer") if key in branch["properties"]) for branch in branches]
    assert found == kinds


@pytest.mark.parametrize(
    "decision",
    [
        '{"thought": "x", "type": "tool", "tool": "look", "args": {"where": "up"}}',
        '{"thought": "x", "type": "tool", "calls": [{"tool": "look", "args": {"where": "up"}}]}',
        '{"thought": "x", "type": "final", "answer": "It is 3."}',
    ],
)
def test_a_decision_is_read_with_and_without_the_object_around_it(decision: str) -> None:
    """Only providers that enforce the schema have the object around it."""
    wrapped = parse(ReActJsonMode(), f'{{"decision": {decision}}}')
    assert (wrapped.problem, wrapped.parts) == ("", parse(ReActJsonMode(), decision).parts)


@pytest.mark.parametrize(
    ("response_format", "kind"),
    [
        (None, "string"),
        (ResponseFormat({"type": "integer"}), "integer"),
        (ResponseFormat({"type": "object"}), "string"),
    ],
)
def test_an_answer_that_no_strict_schema_expresses_is_json_in_a_string(
    response_format: ResponseFormat | None, kind: str
) -> None:
    """An answer without a schema is a text; the value of any other that can be expressed is in the schema."""
    free = ToolSpec("free", "Free.", {"type": "object"})
    request = InferenceRequest((), tools=(free,), response_format=response_format)
    form: Any = ReActJsonMode().render_request(request).response_format
    assert form.strict
    answer = form.schema["properties"]["decision"]["anyOf"][-1]["properties"]["answer"]
    assert answer["type"] == kind


@both_notations
@pytest.mark.parametrize(("parallel", "is_offered"), [(False, False), (True, True), (None, True)])
def test_several_calls_are_offered_unless_the_request_forbids_them(
    output: str,
    parallel: bool | None,  # noqa: FBT001  # parameters
    is_offered: bool,  # noqa: FBT001  # parameters
) -> None:
    """Prompt and schema say the same about calls at once."""
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    rendered = mode.render_request(evolve(REQUEST, parallel_tool_calls=parallel))
    assert ("To call several tools at once" in rendered.system_prompt) is is_offered
    if output == "json":
        assert rendered.response_format is not None
        assert rendered.response_format.strict
        assert rendered.response_format.schema is not None
        branches = rendered.response_format.schema["properties"]["decision"]["anyOf"]
        assert any("calls" in branch["properties"] for branch in branches) is is_offered


@both_notations
def test_parts_of_a_provider_remain_in_the_conversation(output: str) -> None:
    """The provider requires them back; the extra fields of a decision are in its text instead."""
    own = ProviderPart("anthropic-messages", {"type": "redacted_thinking", "data": "x"})
    message = Message.assistant(own, ProviderPart("react", {"confidence": 0.5}), Text("It is 3."))
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    rendered = mode.render_request(REQUEST.with_messages([Message.user("1 + 2?"), message, Message.user("So?")]))
    assert rendered.messages[1].parts[:-1] == (own,)
    assert "0.5" in rendered.messages[1].text


@both_notations
async def test_an_invalid_call_is_sent_back_with_its_error(output: str) -> None:
    """The model reads the error as an observation; the conversation holds only the valid call."""
    call, invalid, answer = NOTATIONS[output]
    loop, model, events = create_loop(output, invalid, call, answer)
    state = await loop.execute("1 + 2?")
    assert [execution.status for step in state.steps for execution in step.executions] == [ToolStatus.SUCCEEDED]
    assert "'b' is a required property" in model.requests[1].messages[-1].text
    assert model.requests[1].messages[-1].text.startswith("Observation: InvalidArguments")
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]
    assert (state.step_count, state.usage.requests) == (2, 3)


@both_notations
async def test_an_unparsable_response_is_sent_back_as_it_was_written(output: str) -> None:
    """The model reads its own text and the problem with it."""
    call, _, answer = NOTATIONS[output]
    loop, model, events = create_loop(output, "I would rather not.", call, answer)
    state = await loop.execute("1 + 2?")
    assert state.final_text == "It is 3."
    *_, response, correction = model.requests[1].messages
    assert (response.text, correction.role) == ("I would rather not.", "user")
    assert correction.text.startswith("Your answer was rejected: it contains n")
    (failed,) = [event for event in events if isinstance(event, DecisionExtractionFailed)]
    assert (failed.attempt, failed.text) == (1, "I would rather not.")


@both_notations
async def test_an_unparsable_decision_ends_the_execution(output: Any) -> None:
    """The execution fails, and its step holds the model's text in a failed execution, which can be stored."""
    loop, model, events = create_loop(output, "a", "b", "c", max_retries=2)
    state = await loop.execute("1 + 2?")
    assert (state.status, len(model.requests), state.usage.requests) == (ExecutionStatus.FAILED, 3, 3)
    (step,) = state.steps
    (execution,) = step.executions
    assert (step.kind, execution.name, execution.status) == (StepKind.ERROR, "decision_extraction", ToolStatus.FAILED)
    assert (execution.arguments, execution.may_have_run) == ({"text": "c"}, False)
    assert [error.type for error in state.errors] == ["DecisionExtractionError"]
    assert execution.error == state.errors[0]
    assert [event.attempt for event in events if isinstance(event, DecisionExtractionFailed)] == [1, 2, 3]
    assert not any(isinstance(event, ToolCallStarted) for event in events)
    assert from_json(to_json(state), AgentState) == state
    again = await AgentLoop(ReActDriver(ScriptedInference(NOTATIONS[output][2]), output=output), [add]).execute(
        state.with_message("Again.")
    )
    assert again.final_text == "It is 3."


@both_notations
@pytest.mark.parametrize("text", ['{"thought": "I kno', "Thought: I kno", ""])
@pytest.mark.parametrize(
    ("finish", "status", "error"),
    [
        (FinishReason.LENGTH, ExecutionStatus.STOPPED, []),
        (FinishReason.CONTENT_FILTER, ExecutionStatus.FAILED, ["IncompleteAnswer"]),
    ],
)
@pytest.mark.parametrize("final_via_inference", [False, True])
async def test_a_decision_that_did_not_end_normally_ends_the_execution_for_this_reason(
    output: str,
    text: str,
    finish: FinishReason,
    status: ExecutionStatus,
    error: list[str],
    *,
    final_via_inference: bool,
) -> None:
    """What lacks its end was cut off or filtered, as under every driver; nothing answers in its place."""
    cut = InferenceResponse((Text(text),) if text else (Reasoning("hm"),), finish)
    loop, model, _ = create_loop(output, *[cut] * 3, final_via_inference=final_via_inference)
    state = await loop.execute("1 + 2?")
    assert (state.status, [each.type for each in state.errors], len(model.requests)) == (status, error, 3)
    assert state.messages[-1].text == text
    assert state.stop_signal is not None
    assert "incomplete" in state.stop_signal.message


@both_notations
async def test_a_driver_reads_decisions_within_the_bounds_of_its_loop(output: Any) -> None:
    """One of exactly the allowed length is read; a longer one is a problem that names the bound."""
    call, _, answer = NOTATIONS[output]
    for length, is_read in [(len(call), True), (len(call) - 1, False)]:
        driver = ReActDriver(ScriptedInference(*[call, answer] if is_read else [call] * 3), output=output)
        state = await AgentLoop(driver, [add], bounds=Bounds(text_characters=length)).execute("1 + 2?")
        assert state.status is (ExecutionStatus.COMPLETED if is_read else ExecutionStatus.FAILED)
        assert ["Bounds.text_characters" in error.message for error in state.errors] == ([] if is_read else [True])


@both_notations
async def test_an_invalid_decision_ends_the_execution(output: str) -> None:
    """The execution fails, and its step holds the invalid calls in a failed execution."""
    _, invalid, _ = NOTATIONS[output]
    loop, _, events = create_loop(output, invalid, invalid, max_retries=1)
    state = await loop.execute("1 + 2?")
    (execution,) = state.steps[0].executions
    assert (state.status, execution.name) == (ExecutionStatus.FAILED, "decision_validation")
    assert execution.arguments["calls"][0]["tool"] == "add"
    assert "'b' is a required property" in state.errors[0].message
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1, 2]
    assert from_json(to_json(state), AgentState) == state


@pytest.mark.parametrize("text", ['{"thought": "x", "type": "tool"}', '{"thought": "x", "type": "final"}'])
async def test_a_decision_without_tool_and_answer_is_rejected(text: str) -> None:
    """A decision that names no tool and gives no answer fails validation."""
    loop, model, events = create_loop("json", text, JSON_ANSWER)
    assert (await loop.execute("?")).final_text == "It is 3."
    assert [event.problems for event in events if isinstance(event, ValidationFailed)] == [
        ("it names no tool to call and gives no answer",)
    ]
    assert "names no tool" in model.requests[1].messages[-1].text


async def test_an_unknown_type_of_decision_is_rejected() -> None:
    """The model is told which types there are."""
    loop, model, _ = create_loop("json", '{"thought": "x", "type": "ponder"}', JSON_ANSWER)
    await loop.execute("?")
    assert "its type is ponder; it is either 'tool' or 'final'" in model.requests[1].messages[-1].text


@frozen(kw_only=True)
class Rated(ReActDecision):
    """A decision with two additional fields."""

    confidence: Annotated[float, "from 0 to 1"]
    mood: Literal["calm", "hasty"] = "calm"


@both_notations
async def test_a_decision_may_have_additional_fields(output: str) -> None:
    """They are in the prompt and the schema, are parsed and stored, and are in later requests."""
    call, answer = {
        "json": (
            JSON_CALL.replace("{", '{"confidence": 0.5, "mood": "hasty", ', 1),
            JSON_ANSWER.replace("{", '{"confidence": 1, ', 1),
        ),
        "text": (
            TEXT_CALL.replace("\n", "\nConfidence: 0.5\nMood: hasty\n", 1),
            TEXT_ANSWER.replace("\n", "\nConfidence: 1\n", 1),
        ),
    }[output]
    loop, model, _ = create_loop(output, call, answer, decision_type=Rated)
    state = await loop.execute("1 + 2?")
    first, last = [decision_of(message, Rated) for message in state.messages[1:]]
    assert (first.confidence, first.mood, first.tool, first.args) == (0.5, "hasty", "add", {"a": 1, "b": 2})
    assert (first.thought, first.type, first.all_calls) == ("I add.", "tool", (ReActCall("add", {"a": 1, "b": 2}),))
    assert (last.confidence, last.mood, last.answer, last.type) == (1.0, "calm", "It is 3.", "final")
    assert "onfidence" in model.requests[0].system_prompt
    assert "0.5" in model.requests[1].messages[1].text
    response_format = model.requests[0].response_format
    if output == "json":
        assert response_format is not None
        assert response_format.schema is not None
        branches = response_format.schema["properties"]["decision"]["anyOf"]
        assert all("mood" in branch["properties"] for branch in branches)
    assert from_json(to_json(state), AgentState) == state


async def test_an_invalid_additional_field_is_rejected() -> None:
    """Additional fields are validated like the others."""
    valid = JSON_ANSWER.replace("{", '{"confidence": 1, ', 1)
    loop, model, events = create_loop("json", JSON_ANSWER, valid.replace("1,", '"high",'), valid, decision_type=Rated)
    assert (await loop.execute("?")).final_text == "It is 3."
    assert sum(isinstance(event, ValidationFailed) for event in events) == 2
    assert "'confidence' is a required property" in model.requests[1].messages[-1].text


class TooHigh(Exception):
    """An error of the program, which no library knows."""


@frozen
class Score:
    """A number of points that its own class checks."""

    points: int

    def __attrs_post_init__(self) -> None:
        if self.points > 10:
            raise TooHigh("at most 10")


@frozen(kw_only=True)
class Scored(ReActDecision):
    """A decision with a field of a class that may refuse a value."""

    score: Score


@frozen(kw_only=True)
class Noted(ReActDecision):
    """A decision with a field that the strict subset cannot express, and one that it can."""

    notes: dict[str, int]
    mood: Literal["calm", "hasty"] = "calm"


@pytest.mark.parametrize("notes", ['{"a": 1}', json.dumps('{"a": 1}')])
async def test_an_additional_field_may_be_written_as_json_in_a_string(notes: str) -> None:
    """A field of any keys is a string in the schema, which stays strict, and is read in both forms."""
    answer = JSON_ANSWER.replace("{", f'{{"notes": {notes}, ', 1)
    loop, model, _ = create_loop("json", answer, decision_type=Noted)
    state = await loop.execute("?")
    assert decision_of(state.messages[-1], Noted).notes == {"a": 1}
    form: Any = model.requests[0].response_format
    branch = form.schema["properties"]["decision"]["anyOf"][-1]["properties"]
    assert (form.strict, branch["notes"]["type"]) == (True, "string")
    assert "anyOf" in branch["mood"]


async def test_an_additional_field_that_its_class_refuses_is_rejected() -> None:
    """Whatever error the class raises, the model reads it with its place."""
    low, high = [JSON_ANSWER.replace("{", f'{{"score": {{"points": {points}}}, ', 1) for points in (3, 30)]
    loop, model, events = create_loop("json", high, low, decision_type=Scored)
    state = await loop.execute("?")
    assert decision_of(state.messages[-1], Scored).score == Score(3)
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]
    assert "at $.score" in model.requests[1].messages[-1].text
    assert "at most 10" in model.requests[1].messages[-1].text


def test_the_calls_of_a_decision_are_listed_if_there_are_several() -> None:
    """The only call is in the fields of its own, as in the notation."""
    first, second = ToolCall("1", "add", '{"a": 1, "b": 2}'), ToolCall("2", "look", "{}")
    single, both = decision_of((first,), ReActDecision), decision_of((first, second), ReActDecision)
    assert (single.tool, single.args, single.calls) == ("add", {"a": 1, "b": 2}, ())
    assert (both.tool, [call.tool for call in both.calls]) == ("add", ["add", "look"])
    assert [len(decision.all_calls) for decision in (single, both)] == [1, 2]


@both_notations
async def test_the_answer_may_take_an_inference_of_its_own(output: str) -> None:
    """After the model has decided to answer, one more request without tools gives the answer."""
    call, _, answer = NOTATIONS[output]
    loop, model, events = create_loop(
        output, call, answer, "In full words: 3.", final_via_inference=True, streaming=True
    )
    state = await loop.execute("1 + 2?")
    assert (state.final_text, state.step_count, state.usage.requests) == ("In full words: 3.", 2, 3)
    assert "No tool can be called any more" in model.requests[2].system_prompt
    assert model.requests[2].response_format is None
    started = [event for event in events if isinstance(event, InferenceRequestStarted)]
    assert [len(event.request.tools) for event in started] == [2, 2, 0]
    assert ReActDriver(model, final_via_inference=True).max_inferences_per_step == 5


@both_notations
@pytest.mark.parametrize(("output_type", "answer", "is_plain"), [(None, "It is 3.", True), (int, "3", False)])
async def test_an_answer_of_its_own_is_in_plain_words_unless_it_has_a_type(
    output: Any, output_type: Any, answer: str, *, is_plain: bool
) -> None:
    """The model is told to leave the notation, but not to write words where JSON is asked for."""
    model = ScriptedInference(*NOTATIONS[output][::2], answer)
    driver = ReActDriver(model, output=output, final_via_inference=True)
    await AgentLoop(driver, [add], output_type=output_type).execute("1 + 2?")
    prompt = model.requests[-1].system_prompt
    assert "Write your answer now" in prompt
    assert ("in plain words and without any labels" in prompt) is is_plain


def _last_requests() -> list[Any]:
    notice = Message.user("This is your last answer.", metadata=LAST_ANSWER)
    call = ToolCall("1", "add", '{"a": 1, "b": 2}')
    execution = ToolExecution.of(
        call, ToolStatus.SUCCEEDED, key="", id="", at=datetime(2026, 1, 1, tzinfo=UTC), value=3
    )
    called = REQUEST.with_messages([*REQUEST.messages, Message.assistant(ToolExchange(call, execution))])
    return [
        pytest.param(REQUEST.with_tool_choice(ToolChoice.none()), id="tools that must not be called"),
        pytest.param(called.with_tool_choice(ToolChoice.none()), id="none of them any more"),
        pytest.param(called.with_messages([*called.messages, notice]).with_tools(()), id="a last answer"),
        pytest.param(REQUEST.with_tools(()).with_tool_choice(ToolChoice.none()), id="a last answer at once"),
    ]


@pytest.mark.parametrize("constrain", ["json_schema", "json_object", None])
@pytest.mark.parametrize("request_", _last_requests())
def test_a_request_without_calls_has_the_schema_of_an_answer_alone(
    request_: InferenceRequest, constrain: Literal["json_schema", "json_object"] | None
) -> None:
    """No decision, no tool, no notice that a weak model would repeat, and the form of the answer in the prompt."""
    offered = ReActJsonMode(constrain=constrain).render_request(request_)
    form: Any = offered.response_format
    assert '{"answer": TEXT}' in offered.system_prompt
    assert "You work in steps" not in offered.system_prompt
    assert "This is your last answer." not in [message.text for message in offered.messages]
    assert offered.tools == ()
    assert (form is None) is (constrain is None)
    if constrain == "json_schema":
        assert list(form.schema["properties"]) == ["answer"]
    elif form is not None:
        assert form.schema is None


@pytest.mark.parametrize("request_", _last_requests())
def test_labeled_lines_are_not_asked_for_where_no_call_is_possible(request_: InferenceRequest) -> None:
    """The model is asked for plain words, without the notice and without the notation."""
    offered = ReActTextMode().render_request(request_)
    assert "Action" not in offered.system_prompt
    assert "This is your last answer." not in [message.text for message in offered.messages]
    assert (offered.response_format, offered.tools) == (None, ())


LAST_WORDS = {
    "json": [
        '{"thought": "more", "type": "tool", "tool": "add", "args": {"a": 1, "b": 2}}',
        '{"decision": {"thought": "more", "type": "tool", "tool": "add", "args": {"a": 1, "b": 2}}}',
        '{"scratchpad": "I call add."}',
        '{"answer": ""}',
        '```json\n{"answer": null}\n```',
        '{"thought": "x", "type": "call_tool", "tool": "add"}',
        '{"decision": {"thought": "x", "type": "lunch"}}',
        '{"thought": "x", "type": "final"}',
    ],
    "text": ['Thought: more\nAction: add\nAction Input: {"a": 1, "b": 2}', "Thought: I know.\nFinal Answer:"],
}


@pytest.mark.parametrize(("output", "written"), [(name, each) for name in LAST_WORDS for each in LAST_WORDS[name]])
@pytest.mark.parametrize("decision_type", [ReActDecision, Rated])
async def test_what_is_no_answer_in_place_of_the_last_one_is_rejected(
    output: Any, written: str, decision_type: type[ReActDecision]
) -> None:
    """A model that goes on in the notation is asked for its answer and shown why; the answer alone has no fields of a decision."""
    call = NOTATIONS[output][0]
    rated = {
        "json": call.replace("{", '{"confidence": 0.5, ', 1),
        "text": call.replace("\nA", "\nConfidence: 0.5\nA", 1),
    }
    first = rated[output] if decision_type is Rated else call
    model = ScriptedInference(first, written, '{"answer": "It is 3."}' if output == "json" else "It is 3.")
    driver = ReActDriver(model, output=output, decision_type=decision_type)
    state = await AgentLoop(driver, [add], interceptors=[Budget(steps=2)]).execute("1 + 2?")
    assert (state.final_text, len(model.requests)) == ("It is 3.", 3)
    assert "was rejected" in model.requests[-1].messages[-1].text


async def test_a_stuck_model_may_leave_out_what_the_answer_alone_has_no_place_for() -> None:
    """Behind a repeated call, the schema is that of the answer, and a decision's own fields are not missed."""
    call = JSON_CALL.replace("{", '{"confidence": 0.5, ', 1)
    loop, model, _ = create_loop("json", call, call, '{"answer": "It is 3."}', decision_type=Rated)
    assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    form: Any = model.requests[-1].response_format
    assert list(form.schema["properties"]) == ["answer"]
    loop, model, _ = create_loop(
        "json", call, JSON_ANSWER, JSON_ANSWER.replace("{", '{"confidence": 1, ', 1), decision_type=Rated
    )
    assert (await loop.execute("1 + 2?")).usage.requests == 3


@both_notations
@pytest.mark.parametrize("written", ['{"total": 3}', "[3]", "```\nadd 1 2\n```", '{"total": 3} is what I found'])
async def test_data_in_place_of_the_last_answer_are_the_answer(output: Any, written: str) -> None:
    """Without an enforced schema, a model may write the JSON or the text that the user wants as it is."""
    model = ScriptedInference(NOTATIONS[output][0], written)
    loop = AgentLoop(ReActDriver(model, output=output), [add], interceptors=[Budget(steps=2)])
    assert (await loop.execute("1 + 2?")).final_text == written


@both_notations
@pytest.mark.parametrize("streaming", [False, True])
async def test_a_choice_of_no_tool_is_answered_in_any_form(output: str, *, streaming: bool) -> None:
    """The answer may come as the object that was asked for, as a decision, or in plain words."""
    decided = NOTATIONS[output][2]
    for written in ['{"answer": "It is 3."}', '{"thought": "I know.", "answer": "It is 3."}', decided, "It is 3."]:
        loop, _, events = create_loop(output, written, tool_choice="none", streaming=streaming)
        state = await loop.execute("1 + 2?")
        assert (state.final_text, state.usage.requests) == ("It is 3.", 1)
        deltas = [event.delta for event in events if isinstance(event, InferenceDeltaReceived)]
        assert "".join(delta.text for delta in deltas if delta.kind == "text") == ("It is 3." if streaming else "")


@both_notations
async def test_another_model_may_give_the_answer(output: str) -> None:
    """The first model decides, with or without an answer; the final model answers."""
    bare = {"json": '{"thought": "I know.", "type": "final"}', "text": "Thought: I know.\nFinal Answer:"}
    strong = ScriptedInference("It is 3.")
    loop, cheap, _ = create_loop(output, NOTATIONS[output][0], bare[output], final_inference=strong)
    assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    assert (len(cheap.requests), len(strong.requests)) == (2, 1)


@both_notations
async def test_a_plain_answer_in_the_notation_is_parsed(output: str) -> None:
    """A model may use the notation of decisions although a plain answer was requested."""
    call, _, answer = NOTATIONS[output]
    loop, _, _ = create_loop(output, call, answer, answer.replace("3", "three"), final_via_inference=True)
    assert (await loop.execute("1 + 2?")).final_text == "It is three."


@both_notations
async def test_without_tools_the_model_answers_directly(output: Any) -> None:
    """Without tools, the request does not ask for a decision."""
    model = ScriptedInference('{"answer": 3}')
    state = await AgentLoop(ReActDriver(model, output=output), system_prompt="Be brief.").execute("1 + 2?")
    assert (state.final_text, model.requests[0].system_prompt) == ('{"answer": 3}', "Be brief.")
    once = ScriptedInference("It is 3.")
    state = await AgentLoop(ReActDriver(once, output=output, final_via_inference=True)).execute("1 + 2?")
    assert (state.final_text, len(once.requests)) == ("It is 3.", 1)


@both_notations
async def test_a_streamed_execution_has_the_same_result(output: str) -> None:
    """Law 7: a streamed execution emits the same events plus deltas, which add up to the responses."""
    call, _, answer = NOTATIONS[output]
    runs = []
    for streaming in (False, True):
        loop, _, events = create_loop(output, "no", call, answer, streaming=streaming)
        runs.append(((await loop.execute("1 + 2?")).final_text, events))
    (plain, events), (streamed, with_deltas) = runs
    deltas = [event.delta for event in with_deltas if isinstance(event, InferenceDeltaReceived)]
    others = [type(event) for event in with_deltas if not isinstance(event, InferenceDeltaReceived)]
    assert (plain, others) == (streamed, [type(event) for event in events])
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "noIt is 3."
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == "I add.I know."
    assert [delta.name for delta in deltas if delta.kind == "tool_call"] == ["add"]


async def test_the_answer_is_streamed_while_it_is_written() -> None:
    """After `Final Answer:`, each word is a delta; the text before it is held back."""
    loop, _, events = create_loop("text", "Thought: I know.\nFinal Answer: one two three", streaming=True)
    await loop.execute("?")
    deltas = [
        event.delta.text for event in events if isinstance(event, InferenceDeltaReceived) and event.delta.kind == "text"
    ]
    assert deltas == ["one", " two", " three"]


@both_notations
@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "text",
    [
        TEXT_CALL,
        TEXT_ANSWER,
        JSON_CALL,
        JSON_ANSWER,
        "Thought: x\nFinal Answer: * a\n* b\n\nObservation: c ",
        "Thought: [x]\nFinal Answer: <b>",
        f"{TEXT_CALL}\nObservation: 3\nFinal Answer: 3",
        "Final Answer: Action: add\nAction Input: {}",
        "**Final Answer:** 3",
    ],
)
def test_chunks_add_up_to_the_response(output: str, text: str, size: int) -> None:
    """The deltas add up to the parsed response, at whatever places the text is split."""
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    stream = mode.stream(REQUEST)
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    deltas = [delta for chunk in chunks for delta in stream.feed(InferenceDelta("text", chunk))]
    response = parse(mode, text)
    deltas += stream.close(response)
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == response.text
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == response.reasoning
    assert [delta.name for delta in deltas if delta.kind == "tool_call"] == [call.name for call in response.tool_calls]


def test_reasoning_and_calls_of_the_provider_are_streamed_once() -> None:
    """What a server separates from the text itself is emitted as it arrives, and not again at the end."""
    stream, call = ReActTextMode().stream(REQUEST), ToolCall("1", "look", "{}")
    response = InferenceResponse((Reasoning("I look."), call))
    written = [*iter_deltas(response)]
    deltas = [delta for item in written for delta in stream.feed(item)]
    assert deltas == written
    assert stream.close(ReActTextMode().parse_response(response, REQUEST)) == []


def test_the_thought_of_a_decision_follows_the_reasoning_of_the_provider() -> None:
    """The deltas of the reasoning add up to the reasoning of the response."""
    stream = ReActTextMode().stream(REQUEST)
    deltas = [*stream.feed(InferenceDelta("reasoning", "Hm. ")), *stream.feed(InferenceDelta("text", TEXT_ANSWER))]
    response = ReActTextMode().parse_response(InferenceResponse((Reasoning("Hm. "), Text(TEXT_ANSWER))), REQUEST)
    deltas += stream.close(response)
    thoughts = [delta.text for delta in deltas if delta.kind == "reasoning"]
    assert (thoughts, response.reasoning) == (["Hm. ", "I know."], "Hm. I know.")


@pytest.mark.parametrize(("length", "position"), [(31, -1), (32, 0)])
def test_a_plain_answer_is_streamed_once_it_cannot_be_a_label(length: int, position: int) -> None:
    """Where no tool is offered, text is held back until it is longer than any label, and then emitted piece by piece."""
    text = "x" * length
    stream = ReActTextMode().stream(InferenceRequest((Message.user("?"),)))
    assert PlainSearch().find(text) == position
    first = [delta.text for delta in stream.feed(InferenceDelta("text", text))]
    assert first == ([text] if position == 0 else [])
    rest = [delta.text for piece in (" and", " so on") for delta in stream.feed(InferenceDelta("text", piece))]
    assert "".join([*first, *rest]) == f"{text} and so on"


@pytest.mark.parametrize(("length", "pieces"), [(1001, ["x", " y"]), (1002, [])])
def test_a_label_is_searched_at_the_beginning_of_a_line(length: int, pieces: list[str]) -> None:
    """The rest of a line of more than a thousand characters is not searched while it grows, so that the time is linear."""
    text, stream = f"{'Final Answer:':>{length}} x y", ReActTextMode().stream(REQUEST)
    deltas = [delta for start in range(len(text)) for delta in stream.feed(InferenceDelta("text", text[start]))]
    assert "".join(delta.text for delta in deltas) == "".join(pieces)
    deltas += stream.close(parse(ReActTextMode(), text))
    assert "".join(delta.text for delta in deltas) == "x y"


def test_a_label_that_is_split_behind_a_long_first_piece_is_found() -> None:
    """However long the lines before it are, the last line is searched again when it has grown."""
    stream = ReActTextMode().stream(REQUEST)
    pieces = [f"Thought: {'x' * 1000}\nFinal Ans", "wer: It is", " 3."]
    deltas = [delta.text for piece in pieces for delta in stream.feed(InferenceDelta("text", piece))]
    assert deltas == ["It is", " 3."]


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("Final Ans", [-1, -1, 14]),
        ("Thought: x\nFinal Answer: ", [-1, 25, 25]),
        ("Thought: [x]\nFinal Answer: ", [-1, -1, -1]),
        ("Action: add\nFinal Answer: ", [-1, -1, -1]),
        ("Action Input: {}\nFinal Answer: ", [-1, -1, -1]),
    ],
)
def test_an_answer_begins_behind_its_label(text: str, positions: list[int]) -> None:
    """Its position is -1 as long as it is unknown, and for good if what precedes it may be a call."""
    search = LabelSearch()
    found = [search.find(f"{text}{rest}") for rest in ("", "wer: ", "wer: 3")]
    assert found == positions


FRAGMENTS = (
    "Thought:",
    "Action:",
    "Action Input:",
    "Observation:",
    "Final Answer:",
    " add",
    ' {"a": 1, "b": 2}',
    JSON_CALL,
    JSON_ANSWER,
    "\n",
    "```",
    "<think>",
    "</think>",
    "<tool_call>",
    "**",
    "{",
    "}",
    "[",
    ",",
    '"',
    '"type":',
    "x ",
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)


@both_notations
@given(text=texts, size=st.integers(1, 9), has_tools=st.booleans())
def test_any_text_is_parsed_and_streamed_alike(output: str, text: str, size: int, *, has_tools: bool) -> None:
    """No text makes the parser raise, and the deltas of a text add up to its response, wherever it is split."""
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    request = REQUEST if has_tools else InferenceRequest((Message.user("x"), Message.assistant("y")))
    response = mode.parse_response(InferenceResponse((Text(text),)), request)
    stream = mode.stream(request)
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    deltas = [delta for chunk in chunks for delta in stream.feed(InferenceDelta("text", chunk))]
    deltas += stream.close(response)
    streamed = "".join(delta.text for delta in deltas if delta.kind == "text")
    assert streamed == response.text or response.problem
    assert response.text.startswith(streamed)
    assert all(mode.validate(call, request.tools).arguments is not None for call in response.tool_calls)


@both_notations
async def test_a_call_may_be_suspended_for_approval(output: str) -> None:
    """Approvals work as with every driver: the call is pending, is approved, and the model reads its result."""
    call, _, answer = NOTATIONS[output]
    loop, model, _ = create_loop(output, call, answer)
    guarded = loop.with_interceptors(RequireApproval(["add"]))
    suspended = await guarded.execute("1 + 2?")
    assert (suspended.status, [pending.call.name for pending in suspended.pending]) == (
        ExecutionStatus.SUSPENDED,
        ["add"],
    )
    state = await guarded.resume(suspended, {pending.key: approve() for pending in suspended.pending})
    assert (state.final_text, model.requests[-1].messages[-1].text) == ("It is 3.", "Observation: 3")


async def test_prompt_validator_and_output_can_be_replaced() -> None:
    """Prompt and validator take functions, output also takes a mode."""

    def reject_large(decision: ReActDecision, calls: object, tools: object) -> Rejection | None:
        del calls, tools
        return Rejection(output_error="too large") if decision.args.get("a", 0) > 5 else None

    def prompt(request: InferenceRequest) -> str:
        return f"{request.system_prompt} {len(request.tools)} tools."

    large = JSON_CALL.replace('"a": 1', '"a": 6')
    mode = ReActJsonMode(constrain=None, prompt=prompt)
    loop, model, events = create_loop(mode, large, JSON_CALL, JSON_ANSWER, validator=reject_large)
    state = await loop.execute("?")
    assert (state.steps[0].executions[0].value, model.requests[0].response_format) == (3, None)
    assert model.requests[0].system_prompt == "Be brief. 2 tools."
    assert [event.problems for event in events if isinstance(event, ValidationFailed)] == [("too large",)]
    other, other_model, _ = create_loop("text", TEXT_ANSWER, prompt=prompt)
    await other.execute("?")
    assert other_model.requests[0].system_prompt == "Be brief. 2 tools."


class NamedInference(ScriptedInference, CanNameModel):
    """A scripted inference with the name of a model."""

    model_name = ""
    wire_format_name = ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("", "react-json json_schema"), ("openai:gpt-4.1", "react-json json_schema"), ("no-such-model", "react-text")],
)
def test_the_table_of_models_selects_the_output(name: str, expected: str) -> None:
    """JSON for a model whose responses can be constrained to it, text for an unknown model."""
    model: CanInfer = NamedInference()
    model.model_name = name  # type: ignore[attr-defined]  # a double
    mode = ReActDriver(model).mode_for(model)
    assert f"{mode.name} {getattr(mode, 'constrain', '')}".strip() == expected


def test_a_row_of_the_program_selects_the_output() -> None:
    """Its capabilities take precedence over those of the published models."""
    model = NamedInference()
    model.model_name = "openai:gpt-4.1"
    row = CapabilityRow("openai:gpt-4.1", Capabilities("validated"))
    assert select_react_mode(output="auto", inference=model, rows=[row]).name == "react-text"
    assert select_react_mode(output="auto", inference=model, rows=[]).name == "react-json"


def test_an_invalid_configuration_is_rejected_at_construction() -> None:
    """An unknown output, negative retries, a field without a JSON form, and two tools with the same name."""
    model = ScriptedInference()
    with pytest.raises(ConfigurationError, match="no output 'xml'"):
        ReActDriver(model, output="xml")  # type: ignore[arg-type]  # the invalid value that is tested
    with pytest.raises(ValueError, match="max_retries"):
        ReActDriver(model, max_retries=-1)

    @frozen(kw_only=True)
    class Unsupported(ReActDecision):
        number: complex = 0j

    with pytest.raises(ToolDefinitionError):
        ReActDriver(model, decision_type=Unsupported)
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        AgentLoop(ReActDriver(model), [add, add])


@both_notations
def test_the_response_format_is_part_of_the_prompt(output: str) -> None:
    """A response format applies to the answer of a decision, whose JSON becomes the text of the answer."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    request = REQUEST.with_response_format(ResponseFormat(schema)).with_tool_choice(ToolChoice.required())
    rendered = mode.render_request(request)
    assert '"sum":{"type":"integer"}' in rendered.system_prompt
    assert "Call a tool now" in rendered.system_prompt
    text = '{"thought": "x", "type": "final", "answer": {"sum": 3}}' if output == "json" else 'Final Answer: {"sum":3}'
    assert mode.parse_response(InferenceResponse((Text(text),)), request).text == '{"sum":3}'


def test_the_nulls_of_an_answer_are_those_that_its_schema_knows() -> None:
    """A model that follows a strict schema writes null for a property that is missing."""
    properties = {"sum": {"type": "integer"}, "unit": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["sum"]}
    written = InferenceResponse((Text('{"thought": "x", "type": "final", "answer": {"sum": 3, "unit": null}}'),))
    for response_format, text in (
        (ResponseFormat(schema), '{"sum":3}'),
        (ResponseFormat(), '{"sum":3,"unit":null}'),
        (None, '{"sum":3,"unit":null}'),
    ):
        request = REQUEST.with_response_format(response_format)
        assert ReActJsonMode().parse_response(written, request).text == text


@both_notations
async def test_a_typed_answer_is_validated(output: Any) -> None:
    """With an output type, an answer that does not match it is sent back to the model."""

    @frozen
    class Sum:
        sum: int

    valid = {"json": '{"thought": "", "type": "final", "answer": {"sum": 3}}', "text": 'Final Answer: {"sum": 3}'}
    model = ScriptedInference(NOTATIONS[output][2], valid[output])
    state = await AgentLoop(ReActDriver(model, output=output), [add], output_type=Sum).execute("1 + 2?")
    assert ((state.final_text or "").replace(" ", ""), state.usage) == ('{"sum":3}', Usage(20, 10, 0, 0, 0, 2))


@both_notations
@pytest.mark.parametrize(
    ("output_type", "answer", "expected"),
    [
        (Literal["red", "blue"], "red", "red"),
        (date, "2026-11-26", date(2026, 11, 26)),
        (Decimal, "1.10", Decimal("1.10")),
        (str, "It is 3.", "It is 3."),
        (str, "3", "3"),
        (int | str, "3", "3"),
        (int | str, 3, 3),
        (list[str], ["3"], ["3"]),
        (int | None, None, None),
    ],
)
async def test_a_typed_answer_is_the_value_in_the_decision(
    output: str, output_type: Any, answer: Any, expected: Any
) -> None:
    """An answer has the type that the schema of the decision asks for, also a text or null."""
    decision = json.dumps({"thought": "", "type": "final", "answer": answer})
    line = decision if output == "json" else f"Final Answer: {json.dumps(answer)}"
    driver = ReActDriver(ScriptedInference(line), output=output)  # type: ignore[arg-type]  # a parametrized name
    state = await AgentLoop(driver, [add], output_type=output_type).execute("1 + 2?")
    assert (state.status, state.output) == (ExecutionStatus.COMPLETED, expected)


@pytest.mark.parametrize("answer", ['{"sum": 3}', '```json\n{"sum": 3}\n```', {"sum": 3}])
def test_json_in_a_text_is_the_text_of_an_answer_that_is_no_text(answer: Any) -> None:
    """Models write so where no schema is enforced."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    request = REQUEST.with_response_format(ResponseFormat(schema))
    decision = json.dumps({"thought": "x", "type": "final", "answer": answer})
    response = ReActJsonMode().parse_response(InferenceResponse((Text(decision),)), request)
    assert extract_json(response.text) == {"sum": 3}


@pytest.mark.parametrize("answer", ["three", "3 of 4", '["3"', ""])
def test_a_text_that_is_no_json_is_a_text_where_another_answer_is_asked_for(answer: str) -> None:
    """It is JSON, so that whoever checks the answer says what is wrong with it instead of that it cannot be read."""
    request = REQUEST.with_response_format(ResponseFormat({"type": "integer"}))
    decision = json.dumps({"thought": "x", "type": "final", "answer": answer})
    response = ReActJsonMode().parse_response(InferenceResponse((Text(decision),)), request)
    assert json.loads(response.text) == answer


@pytest.mark.parametrize("schema", [{"type": "integer"}, None])
def test_a_null_is_no_answer_where_the_schema_has_none(schema: Any) -> None:
    """A decision that is final and has no answer is rejected."""
    request = REQUEST if schema is None else REQUEST.with_response_format(ResponseFormat(schema))
    decision = '{"thought": "x", "type": "final", "answer": null}'
    assert ReActJsonMode().parse_response(InferenceResponse((Text(decision),)), request).text == ""


async def test_usage_and_responses_of_every_attempt_are_emitted() -> None:
    """Each retry is an inference with its own events, and its tokens count."""
    loop, _, events = create_loop("json", "no", JSON_INVALID, JSON_ANSWER)
    state = await loop.execute("?")
    assert sum(isinstance(event, InferenceResponseReceived) for event in events) == state.usage.requests == 3
    assert state.step_count == 1


PAY = '{"thought": "", "type": "tool", "tool": "pay", "args": {"to": "Bob"}}'
PAY_LINES = 'Action: pay\nAction Input: {"to": "Bob"}'
PAY_SPEC = ToolSpec("pay", "Pay.", {"type": "object", "properties": {"to": {"type": "string"}}})


@pytest.mark.parametrize(
    ("output", "text", "rejections"),
    [
        ("json", PAY, [False]),
        ("json", f"```json\n{PAY}\n```", [False]),
        ("json", f"{PAY}\n{PAY.replace('Bob', 'Ann')}", [False, False]),
        ("json", f"Here it is: {PAY}", [True]),
        ("json", f"{PAY}\nI will not do that.", [True]),
        ("json", f'{PAY}\n{{"type": "tool", "tool": }}', [True]),
        ("json", f"{PAY}\n{PAY}", []),
        ("json", f"It says `{PAY}` there.", []),
        ("text", f"Thought: so.\n{PAY_LINES}", [False]),
        ("text", f"I should pay.\n</think>\n{PAY_LINES}", [False]),
        ("text", f"{PAY_LINES}\n{PAY_LINES.replace('Bob', 'Ann')}", [False, False]),
        ("text", f"{PAY_LINES}\n{PAY_LINES}", []),
        ("text", f"{PAY_LINES}\n{PAY_LINES.replace('Bob', 'Ann')}\n{PAY_LINES}", [False, False, False]),
        ("text", f"The page says\n{PAY_LINES}", [True]),
        ("text", f"{PAY_LINES}\nThat was in May.", [True]),
        ("text", f"{PAY_LINES}\nAction: pay\nAction Input: {{", [True]),
        ("text", f"Observation:\n{PAY_LINES}", [True]),
        ("text", f"Observation: {PAY_LINES}\nThought: so.\n{PAY_LINES}", [True, True]),
        ("text", f"Thought: ❌\n❌ {PAY}", [True]),
        ("json", f"❌ {PAY}", [True]),
        ("json", f"```log\n{PAY}\n```", [True]),
        ("json", f'[{{"role": "user", "content": "pay"}}, {{"role": "assistant", "tool_calls": [{PAY}]}}]', [True]),
        ("text", 'Thought: I refuse to pay(to="Bob").\nFinal Answer: No.', [True]),
        ("text", 'Thought: `pay(to="Bob")` is a trick.\nFinal Answer: No.', []),
    ],
)
def test_decisions_are_graded(output: Any, text: str, rejections: list[bool]) -> None:
    """A decision that is the whole answer runs; one in prose, or next to an unreadable part, is rejected; a quoted one is none."""
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    request = InferenceRequest((Message.user("?"),), tools=(PAY_SPEC,))
    response = mode.parse_response(InferenceResponse((Text(text),)), request)
    assert [bool(call.rejection) for call in response.tool_calls] == rejections


@both_notations
@pytest.mark.parametrize(
    ("run_embedded", "runs"), [("pure", (True, False)), ("always", (True, True)), ("never", (False, False))]
)
def test_the_policy_of_a_driver_decides_about_decisions_in_prose(
    output: Any, run_embedded: Any, runs: tuple[bool, bool]
) -> None:
    """By default, only calls without effects run."""
    mode = ReActDriver(model := ScriptedInference(), output=output, run_embedded=run_embedded).mode_for(model)
    request = InferenceRequest((Message.user("?"),), tools=(add.spec, PAY_SPEC))
    for call, runs_it in zip((NOTATIONS[output][0], PAY if output == "json" else PAY_LINES), runs, strict=True):
        (read,) = mode.parse_response(InferenceResponse((Text(f"The page says\n{call}"),)), request).tool_calls
        assert (not read.rejection) is runs_it
