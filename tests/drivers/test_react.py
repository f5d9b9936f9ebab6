"""The driver of the ReAct pattern, in both of its notations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import (
    AgentLoop,
    AgentState,
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
from agentloop.drivers import ReActCall, ReActDecision, Rejection, decision_of
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
from agentloop.modes import ReActJsonMode, ReActTextMode
from agentloop.values import (
    Event,
    ExecutionStatus,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Reasoning,
    ResponseFormat,
    StepKind,
    Text,
    ToolChoice,
    ToolSpec,
    ToolStatus,
    Usage,
    approve,
)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure")
def look(where: str = "here") -> str:
    """Look around."""
    return f"nothing {where}"


JSON_CALL = '{"thought": "I add.", "type": "tool", "tool": "add", "args": {"a": 1, "b": 2}}'
JSON_WRONG = '{"thought": "I add.", "type": "tool", "tool": "add", "args": {"a": 1}}'
JSON_ANSWER = '{"thought": "I know.", "type": "final", "answer": "It is 3."}'
TEXT_CALL = 'Thought: I add.\nAction: add\nAction Input: {"a": 1, "b": 2}'
TEXT_WRONG = 'Thought: I add.\nAction: add\nAction Input: {"a": 1}'
TEXT_ANSWER = "Thought: I know.\nFinal Answer: It is 3."
NOTATIONS = {"json": (JSON_CALL, JSON_WRONG, JSON_ANSWER), "text": (TEXT_CALL, TEXT_WRONG, TEXT_ANSWER)}
REQUEST = InferenceRequest((Message.user("1 + 2?"),), "Be brief.", (add.spec, look.spec))
both = pytest.mark.parametrize("output", ["json", "text"])


def loop_of(output: Any, *lines: Any, **settings: Any) -> tuple[AgentLoop, ScriptedInference, list[Event]]:
    """Make a loop over a model that writes these texts."""
    model, events = ScriptedInference(*lines), list[Event]()
    loop = AgentLoop(ReActDriver(model, output=output, **settings), [add, look], system_prompt="Be brief.")
    loop.wiretap(events.append)
    return loop, model, events


def read_in(mode: ReActJsonMode | ReActTextMode, text: str) -> InferenceResponse:
    """Read a text."""
    return mode.parse_response(InferenceResponse((Text(text),)), REQUEST)


def calls_in(mode: ReActJsonMode | ReActTextMode, text: str) -> list[tuple[str, dict[str, Any]]]:
    """Read the calls of a text."""
    return [(call.name, dict(call.arguments)) for call in read_in(mode, text).tool_calls]


@both
async def test_a_run_stores_neutral_parts(output: str) -> None:
    """A thought becomes reasoning, a call an exchange, the answer text; no trace of the notation is stored."""
    call, _, answer = NOTATIONS[output]
    loop, _, _ = loop_of(output, call, answer)
    state = await loop.execute("1 + 2?")
    acting, answering = state.messages[1:]
    assert acting.parts[0] == Reasoning("I add.")
    (exchange,) = acting.exchanges
    assert (exchange.call.name, exchange.call.arguments, exchange.execution.value) == ("add", {"a": 1, "b": 2}, 3)
    assert answering.parts == (Reasoning("I know."), Text("It is 3."))
    assert (state.final_text, state.status) == ("It is 3.", ExecutionStatus.COMPLETED)


@both
async def test_the_conversation_is_told_in_the_notation(output: str) -> None:
    """The next request holds thought, action and observation; nothing of a tool API."""
    call, _, answer = NOTATIONS[output]
    loop, model, _ = loop_of(output, call, answer)
    await loop.execute("1 + 2?")
    _, said, told = model.requests[1].messages
    expected = {
        "json": '{"thought":"I add.","type":"tool","tool":"add","args":{"a":1,"b":2}}',
        "text": 'Thought: I add.\nAction: add\nAction Input: {"a":1,"b":2}',
    }
    assert (said.role, said.text) == ("assistant", expected[output])
    assert (told.role, told.text) == ("user", "Observation: 3")
    assert not any(request.tools for request in model.requests)


@both
async def test_a_request_extends_the_one_before(output: str) -> None:
    """Law 13: prompt and messages of a step begin with those of the step before."""
    call, _, answer = NOTATIONS[output]
    loop, model, _ = loop_of(output, call, call, answer)
    state = await loop.execute("1 + 2?")
    await loop.execute(state.with_message("And now?"))
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert later.system_prompt == earlier.system_prompt
        if len(later.messages) > len(earlier.messages):
            assert later.messages[: len(earlier.messages)] == earlier.messages


@both
async def test_a_decision_may_hold_several_calls(output: str) -> None:
    """Several calls of one decision are one batch, and their observations are told apart."""
    several = {
        "json": '{"thought": "", "type": "tool", "calls": [{"tool": "add", "args": {"a": 1, "b": 2}}, {"tool": "look"}]}',
        "text": 'Action: add\nAction Input: {"a": 1, "b": 2}\nAction: look\nAction Input: {}',
    }
    loop, model, _ = loop_of(output, several[output], NOTATIONS[output][2])
    state = await loop.execute("?")
    assert [one.value for one in state.steps[0].executions] == [3, "nothing here"]
    assert model.requests[1].messages[-1].text == "Observation 1 (add): 3\nObservation 2 (look): nothing here"


@both
async def test_what_other_drivers_stored_is_told_in_the_notation(output: str) -> None:
    """A conversation that was begun with a tool API goes on in text."""
    native = ScriptedInference(["Let me see.", ToolCall("1", "add", '{"a": 1, "b": 2}')], "It is 3.")
    state = await AgentLoop(ToolCallingDriver(native), [add]).execute("1 + 2?")
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    told = mode.render_request(InferenceRequest(state.messages, tools=(add.spec,))).messages
    assert "Let me see." in told[1].text
    assert "add" in told[1].text
    assert told[2].text == "Observation: 3"
    assert ("Final Answer: It is 3." if output == "text" else '"answer":"It is 3."') in told[3].text


def test_invented_observations_are_cut_off() -> None:
    """Everything from the first observation after an action on is dropped, with what was decided by it."""
    text = f"{TEXT_CALL}\nObservation: 7\nThought: so\nAction: look\nAction Input: {{}}\nFinal Answer: 7"
    response = read_in(ReActTextMode(), text)
    (call,) = response.tool_calls
    assert (call.name, response.text, response.reasoning) == ("add", "", "I add.")
    assert "an invented observation cut off" in call.repairs


def test_an_observation_inside_of_an_argument_is_no_observation() -> None:
    """A label within a JSON string belongs to the string."""
    text = 'Action: look\nAction Input: {"where": "a\nObservation: b"}\nObservation: c'
    assert calls_in(ReActTextMode(), text) == [("look", {"where": "a\nObservation: b"})]


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
def test_json_decisions_are_read_as_models_write_them(text: str) -> None:
    """Bare, fenced, within words, with small faults, under other names, or in the other notation: the call is found."""
    assert calls_in(ReActJsonMode(), text) == [("add", {"a": 1, "b": 2})]


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
def test_text_decisions_are_read_as_models_write_them(text: str) -> None:
    """With emphasis, in other case, fenced, after thoughts, or as JSON: the call is found."""
    assert calls_in(ReActTextMode(), text) == [("add", {"a": 1, "b": 2})]


def test_an_answer_is_taken_as_it_is() -> None:
    """What follows `Final Answer:` is the answer, also where it looks like a call or has lines with colons."""
    answer = "Two ways:\nACTION: none\nAction: add\nAction Input: {}"
    assert read_in(ReActTextMode(), f"Thought: x\nFinal Answer: {answer}").text == answer


def test_what_was_mended_stands_on_the_call() -> None:
    """Repairs are told, and an answer beside a call is one of them."""
    text = "{'type': 'tool', 'tool': 'add', 'args': {'a': '1', 'b': 2}, 'answer': '3'}"
    (call,) = read_in(ReActJsonMode(), text).tool_calls
    assert {"single quotes", "text read as number", "an answer beside the call dropped"} <= set(call.repairs)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a":', "[[[[", "Action:", "Action Input: {", '"', "{}" * 200, "\ud800{", "null"]
)
@pytest.mark.parametrize("mode", [ReActJsonMode(), ReActTextMode()])
def test_no_text_makes_reading_raise(mode: ReActJsonMode | ReActTextMode, text: str) -> None:
    """What is no decision is a problem, in words."""
    response = read_in(mode, text)
    assert response.problem
    assert response.parts == (Text(text),)


def test_the_schema_of_a_decision_is_strict_where_it_can_be() -> None:
    """Tools whose arguments the strict subset can express are named with them; with free ones the schema is open."""
    strict = ReActJsonMode().render_request(REQUEST).response_format
    assert strict is not None
    assert strict.strict
    assert strict.schema is not None
    assert strict.schema["properties"]["tool"]["anyOf"][0]["enum"] == ("add", "look")
    free = ToolSpec("free", "Free.", {"type": "object"})
    opened = ReActJsonMode().render_request(InferenceRequest((), tools=(free,))).response_format
    assert opened is not None
    assert not opened.strict
    single = ReActJsonMode().render_request(InferenceRequest((), tools=(free, add.spec), parallel_tool_calls=False))
    assert single.response_format is not None
    assert single.response_format.schema is not None
    assert "calls" not in single.response_format.schema["properties"]
    assert '"calls"' not in single.system_prompt


@both
async def test_an_invalid_call_is_shown_and_asked_for_again(output: str) -> None:
    """The model sees the error as an observation; the conversation holds only what counted."""
    call, wrong, answer = NOTATIONS[output]
    loop, model, events = loop_of(output, wrong, call, answer)
    state = await loop.execute("1 + 2?")
    assert [one.status for step in state.steps for one in step.executions] == [ToolStatus.SUCCEEDED]
    assert "'b' is a required property" in model.requests[1].messages[-1].text
    assert model.requests[1].messages[-1].text.startswith("Observation: InvalidArguments")
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]
    assert (state.step_count, state.usage.requests) == (2, 3)


@both
async def test_what_cannot_be_read_is_shown_as_it_was_written(output: str) -> None:
    """The model sees its own words, and what is wrong with them."""
    call, _, answer = NOTATIONS[output]
    loop, model, events = loop_of(output, "I would rather not.", call, answer)
    state = await loop.execute("1 + 2?")
    assert state.final_text == "It is 3."
    *_, said, told = model.requests[1].messages
    assert (said.text, told.role) == ("I would rather not.", "user")
    assert told.text.startswith("Your answer cannot be used: it contains n")
    (failed,) = [event for event in events if isinstance(event, DecisionExtractionFailed)]
    assert (failed.attempt, failed.text) == (1, "I would rather not.")


@both
async def test_a_decision_that_cannot_be_read_ends_the_execution(output: Any) -> None:
    """The execution fails, and its step holds what the model wrote as a failed execution, which survives being stored."""
    loop, model, events = loop_of(output, "a", "b", "c", max_retries=2)
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


@both
async def test_a_decision_that_cannot_be_used_ends_the_execution(output: str) -> None:
    """The execution fails, and its step holds the calls as a failed execution."""
    _, wrong, _ = NOTATIONS[output]
    loop, _, events = loop_of(output, wrong, wrong, max_retries=1)
    state = await loop.execute("1 + 2?")
    (execution,) = state.steps[0].executions
    assert (state.status, execution.name) == (ExecutionStatus.FAILED, "decision_validation")
    assert execution.arguments["calls"][0]["tool"] == "add"
    assert "'b' is a required property" in state.errors[0].message
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1, 2]
    assert from_json(to_json(state), AgentState) == state


@pytest.mark.parametrize("text", ['{"thought": "x", "type": "tool"}', '{"thought": "x", "type": "final"}'])
async def test_a_decision_without_what_its_type_needs_is_refused(text: str) -> None:
    """One that names neither a tool nor an answer is a validation failure."""
    loop, model, events = loop_of("json", text, JSON_ANSWER)
    assert (await loop.execute("?")).final_text == "It is 3."
    assert [event.problems for event in events if isinstance(event, ValidationFailed)] == [
        ("it names no tool to call and gives no answer",)
    ]
    assert "names no tool" in model.requests[1].messages[-1].text


async def test_an_unknown_type_cannot_be_read() -> None:
    """A type that is neither of the two, with neither a tool nor an answer, is told."""
    loop, model, _ = loop_of("json", '{"thought": "x", "type": "ponder"}', JSON_ANSWER)
    await loop.execute("?")
    assert "its type is ponder; it is either 'tool' or 'final'" in model.requests[1].messages[-1].text


@frozen(kw_only=True)
class Rated(ReActDecision):
    """A decision with two fields of its own."""

    confidence: Annotated[float, "from 0 to 1"]
    mood: Literal["calm", "hasty"] = "calm"


@both
async def test_a_decision_may_have_further_fields(output: str) -> None:
    """They are in what the model is told, are read, kept, reachable, and told again."""
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
    loop, model, _ = loop_of(output, call, answer, decision_type=Rated)
    state = await loop.execute("1 + 2?")
    first, last = [decision_of(message, Rated) for message in state.messages[1:]]
    assert (first.confidence, first.mood, first.tool, first.args) == (0.5, "hasty", "add", {"a": 1, "b": 2})
    assert (first.thought, first.type, first.all_calls) == ("I add.", "tool", (ReActCall("add", {"a": 1, "b": 2}),))
    assert (last.confidence, last.mood, last.answer, last.type) == (1.0, "calm", "It is 3.", "final")
    assert "onfidence" in model.requests[0].system_prompt
    assert "0.5" in model.requests[1].messages[1].text
    form = model.requests[0].response_format
    assert output == "text" or (form is not None and form.schema is not None and "mood" in form.schema["properties"])
    assert from_json(to_json(state), AgentState) == state


async def test_a_further_field_of_another_form_is_refused() -> None:
    """What a class of decisions asks for is checked like the rest."""
    good = JSON_ANSWER.replace("{", '{"confidence": 1, ', 1)
    loop, model, events = loop_of("json", JSON_ANSWER, good.replace("1,", '"high",'), good, decision_type=Rated)
    assert (await loop.execute("?")).final_text == "It is 3."
    assert sum(isinstance(event, ValidationFailed) for event in events) == 2
    assert "'confidence' is a required property" in model.requests[1].messages[-1].text


@both
async def test_the_answer_may_be_asked_for_by_itself(output: str) -> None:
    """Once the model has decided to answer, it is asked for the answer without tools, and that is the answer."""
    call, _, answer = NOTATIONS[output]
    loop, model, events = loop_of(output, call, answer, "In full words: 3.", final_via_inference=True, streaming=True)
    state = await loop.execute("1 + 2?")
    assert (state.final_text, state.step_count, state.usage.requests) == ("In full words: 3.", 2, 3)
    assert "No tool can be called any more" in model.requests[2].system_prompt
    assert model.requests[2].response_format is None
    asked = [event for event in events if isinstance(event, InferenceRequestStarted)]
    assert [len(event.request.tools) for event in asked] == [2, 2, 0]
    assert ReActDriver(model, final_via_inference=True).max_inferences_per_step == 4


@both
async def test_another_model_may_give_the_answer(output: str) -> None:
    """A cheap model decides, and need not word the answer; another one is asked for it."""
    bare = {"json": '{"thought": "I know.", "type": "final"}', "text": "Thought: I know.\nFinal Answer:"}
    strong = ScriptedInference("It is 3.")
    loop, cheap, _ = loop_of(output, NOTATIONS[output][0], bare[output], final_inference=strong)
    assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    assert (len(cheap.requests), len(strong.requests)) == (2, 1)


@both
async def test_a_plain_answer_in_the_notation_is_read(output: str) -> None:
    """A model that goes on in the notation when it is asked for a plain answer is understood."""
    call, _, answer = NOTATIONS[output]
    loop, _, _ = loop_of(output, call, answer, answer.replace("3", "three"), final_via_inference=True)
    assert (await loop.execute("1 + 2?")).final_text == "It is three."


@both
async def test_without_tools_the_model_just_answers(output: Any) -> None:
    """No decision is asked for when there is nothing to decide."""
    model = ScriptedInference('{"answer": 3}')
    state = await AgentLoop(ReActDriver(model, output=output), system_prompt="Be brief.").execute("1 + 2?")
    assert (state.final_text, model.requests[0].system_prompt) == ('{"answer": 3}', "Be brief.")
    once = ScriptedInference("It is 3.")
    state = await AgentLoop(ReActDriver(once, output=output, final_via_inference=True)).execute("1 + 2?")
    assert (state.final_text, len(once.requests)) == ("It is 3.", 1)


@both
async def test_a_stream_comes_to_the_same(output: str) -> None:
    """Law 7: a streamed run emits the same events apart from deltas, which add up to what was said."""
    call, _, answer = NOTATIONS[output]
    runs = []
    for streaming in (False, True):
        loop, _, events = loop_of(output, "no", call, answer, streaming=streaming)
        runs.append(((await loop.execute("1 + 2?")).final_text, events))
    (plain, events), (streamed, with_deltas) = runs
    deltas = [event.delta for event in with_deltas if isinstance(event, InferenceDeltaReceived)]
    others = [type(event) for event in with_deltas if not isinstance(event, InferenceDeltaReceived)]
    assert (plain, others) == (streamed, [type(event) for event in events])
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "noIt is 3."
    assert "".join(delta.text for delta in deltas if delta.kind == "reasoning") == "I add.I know."
    assert [delta.name for delta in deltas if delta.kind == "tool_call"] == ["add"]


async def test_the_answer_is_shown_while_it_is_written() -> None:
    """After `Final Answer:` every word is shown as it comes; what stands before is held back."""
    loop, _, events = loop_of("text", "Thought: I know.\nFinal Answer: one two three", streaming=True)
    await loop.execute("?")
    deltas = [
        event.delta.text for event in events if isinstance(event, InferenceDeltaReceived) and event.delta.kind == "text"
    ]
    assert deltas == ["one", " two", " three"]


@both
@pytest.mark.parametrize("cut", [1, 3, 1000])
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
def test_pieces_add_up_to_the_answer(output: str, text: str, cut: int) -> None:
    """However a text is cut into pieces, what is shown of it is what is read."""
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    stream = mode.stream(REQUEST)
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]
    told = [delta for piece in pieces for delta in stream.feed(InferenceDelta("text", piece))]
    response = read_in(mode, text)
    told += stream.close(response)
    assert "".join(delta.text for delta in told if delta.kind == "text") == response.text
    assert "".join(delta.text for delta in told if delta.kind == "reasoning") == response.reasoning
    assert [delta.name for delta in told if delta.kind == "tool_call"] == [call.name for call in response.tool_calls]


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


@both
@given(text=texts, cut=st.integers(1, 9), has_tools=st.booleans())
def test_any_text_is_read_and_shown_alike(output: str, text: str, cut: int, *, has_tools: bool) -> None:
    """No text makes reading raise, and what is shown of one that can be read is what is read, wherever it is cut."""
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    request = REQUEST if has_tools else InferenceRequest((Message.user("x"), Message.assistant("y")))
    response = mode.parse_response(InferenceResponse((Text(text),)), request)
    stream = mode.stream(request)
    told = [
        delta for at in range(0, len(text), cut) for delta in stream.feed(InferenceDelta("text", text[at : at + cut]))
    ]
    told += stream.close(response)
    shown = "".join(delta.text for delta in told if delta.kind == "text")
    assert shown == response.text or response.problem
    assert response.text.startswith(shown)
    assert all(mode.validate(call, request.tools).arguments is not None for call in response.tool_calls)


@both
async def test_a_call_may_wait_for_a_decision(output: str) -> None:
    """Approvals work as under every driver: the call waits, is approved, and the model sees what came of it."""
    call, _, answer = NOTATIONS[output]
    loop, model, _ = loop_of(output, call, answer)
    asking = loop.with_interceptors(RequireApproval(["add"]))
    waiting = await asking.execute("1 + 2?")
    assert (waiting.status, [one.call.name for one in waiting.pending]) == (ExecutionStatus.SUSPENDED, ["add"])
    model.lines = (answer,)
    state = await asking.resume(waiting, {one.key: approve() for one in waiting.pending})
    assert (state.final_text, model.requests[-1].messages[-1].text) == ("It is 3.", "Observation: 3")


async def test_prompt_validator_and_output_can_be_replaced() -> None:
    """Each of the three is an argument: a function, a function, and a mode."""

    def only_small(decision: ReActDecision, calls: object, tools: object) -> Rejection | None:
        del calls, tools
        return Rejection(output_error="too large") if decision.args.get("a", 0) > 5 else None

    def prompt(request: InferenceRequest) -> str:
        return f"{request.system_prompt} {len(request.tools)} tools."

    large = JSON_CALL.replace('"a": 1', '"a": 6')
    mode = ReActJsonMode(constrain=None, prompt=prompt)
    loop, model, events = loop_of(mode, large, JSON_CALL, JSON_ANSWER, validator=only_small)
    state = await loop.execute("?")
    assert (state.steps[0].executions[0].value, model.requests[0].response_format) == (3, None)
    assert model.requests[0].system_prompt == "Be brief. 2 tools."
    assert [event.problems for event in events if isinstance(event, ValidationFailed)] == [("too large",)]
    other, told, _ = loop_of("text", TEXT_ANSWER, prompt=prompt)
    await other.execute("?")
    assert told.requests[0].system_prompt == "Be brief. 2 tools."


class Named(ScriptedInference, CanNameModel):
    """A script that tells a model's name."""

    model_name = ""
    wire_format_name = ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("", "react-json json_schema"), ("openai:gpt-4.1", "react-json json_schema"), ("no-such-model", "react-text")],
)
def test_the_table_of_models_chooses_the_output(name: str, expected: str) -> None:
    """JSON where a model's answers can be kept to it, text where nothing is known of it."""
    model: CanInfer = Named()
    model.model_name = name  # type: ignore[attr-defined]  # a double
    mode = ReActDriver(model).mode_for(model)
    assert f"{mode.name} {getattr(mode, 'constrain', '')}".strip() == expected


def test_what_cannot_work_is_refused_at_once() -> None:
    """An output that there is not, retries below none, a field without JSON form, and two tools of one name."""
    model = ScriptedInference()
    with pytest.raises(ConfigurationError, match="no output 'xml'"):
        ReActDriver(model, output="xml")  # type: ignore[arg-type]  # that is the point
    with pytest.raises(ValueError, match="max_retries"):
        ReActDriver(model, max_retries=-1)

    @frozen(kw_only=True)
    class Odd(ReActDecision):
        thing: complex = 0j

    with pytest.raises(ToolDefinitionError):
        ReActDriver(model, decision_type=Odd)
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        AgentLoop(ReActDriver(model), [add, add])


@both
def test_the_form_of_the_answer_is_told(output: str) -> None:
    """A response format becomes a part of the decision, and JSON in it becomes the text of the answer."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    mode = ReActJsonMode() if output == "json" else ReActTextMode()
    request = REQUEST.with_response_format(ResponseFormat(schema)).with_tool_choice(ToolChoice.required())
    offered = mode.render_request(request)
    assert '"sum":{"type":"integer"}' in offered.system_prompt
    assert "Call a tool now" in offered.system_prompt
    text = '{"thought": "x", "type": "final", "answer": {"sum": 3}}' if output == "json" else 'Final Answer: {"sum":3}'
    assert mode.parse_response(InferenceResponse((Text(text),)), request).text == '{"sum":3}'


@both
async def test_a_typed_answer_is_checked(output: Any) -> None:
    """A loop with an output type gets it, also through a decision, and an answer of another form is asked for again."""

    @frozen
    class Sum:
        sum: int

    good = {"json": '{"thought": "", "type": "final", "answer": {"sum": 3}}', "text": 'Final Answer: {"sum": 3}'}
    model = ScriptedInference(NOTATIONS[output][2], good[output])
    state = await AgentLoop(ReActDriver(model, output=output), [add], output_type=Sum).execute("1 + 2?")
    assert (state.final_text.replace(" ", ""), state.usage) == ('{"sum":3}', Usage(20, 10, 0, 0, 0, 2))


async def test_usage_and_responses_of_every_attempt_are_told() -> None:
    """Each time the model is asked is an inference with its events."""
    loop, _, events = loop_of("json", "no", JSON_WRONG, JSON_ANSWER)
    state = await loop.execute("?")
    assert sum(isinstance(event, InferenceResponseReceived) for event in events) == state.usage.requests == 3
    assert state.step_count == 1
