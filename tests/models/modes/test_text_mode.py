"""The modes `validated` and `parsed`, alone and with the driver."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from attrs.exceptions import FrozenInstanceError

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanNameModel, CanUseMode
from agentloop.errors import ConfigurationError, ExecutionFailed
from agentloop.events import DecisionExtractionFailed, InferenceDeltaReceived, ValidationFailed
from agentloop.models import TextMode, get_mode
from agentloop.models.modes.native import NativeMode
from agentloop.models.modes.program import ProgramMode
from agentloop.models.modes.react import ReActJsonMode, ReActTextMode
from agentloop.models.modes.structured import StructuredMode
from agentloop.models.text_calls import (
    DEFAULT_FORMATS,
    AttemptResult,
    CallDraft,
    OfferedTools,
    ParseAttempt,
    TextBuffer,
    TextFormat,
)
from agentloop.values import (
    Bounds,
    Effect,
    Event,
    ExecutionStatus,
    FinishReason,
    Image,
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
    ToolSpec,
    ToolStatus,
)
from tests.generated import examples
from tests.models.text_calls.test_grades import MENTIONS, NOTATIONS, QUOTATIONS


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
WRONG = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
REQUEST = InferenceRequest((Message.user("1 + 2?"),), "Be brief.", (add.spec,))


def loop_in(mode: Any, *lines: str, **settings: Any) -> tuple[AgentLoop, ScriptedInference]:
    """Return a loop with a model that writes these texts."""
    model = ScriptedInference(*lines)
    return AgentLoop(ToolCallingDriver(model, mode=mode, **settings), [add], system_prompt="Be brief."), model


def test_tools_are_described_in_the_prompt() -> None:
    """The request has no tools; the system prompt describes them after its own text."""
    offered = TextMode().render_request(REQUEST)
    assert (offered.tools, offered.messages) == ((), REQUEST.messages)
    assert offered.system_prompt.startswith("Be brief.\n\n")
    assert '{"name":"add","description":"Add two numbers.","parameters":' in offered.system_prompt
    assert "Call no tool" not in offered.system_prompt


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        (ToolChoice.required(), "Call a tool now"),
        (ToolChoice.specific("add"), "Call the tool add now"),
        (ToolChoice.none(), "Call no tool now"),
    ],
)
def test_a_tool_choice_is_an_instruction(choice: ToolChoice, words: str) -> None:
    """The prompt states the tool choice that a tool API would have as a parameter."""
    offered = TextMode().render_request(REQUEST.with_tool_choice(choice))
    assert words in offered.system_prompt
    assert offered.tool_choice == ToolChoice.auto()


def test_the_response_format_is_an_instruction() -> None:
    """The prompt states the schema of the answer."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    offered = TextMode().render_request(REQUEST.with_response_format(ResponseFormat(schema)))
    assert '{"type":"object","properties":{"sum":{"type":"integer"}}}' in offered.system_prompt
    assert offered.response_format is None


def test_calls_are_parsed_from_the_text() -> None:
    """The response has the calls, the text around them and the reasoning; repairs are recorded on the call."""
    text = "<think>hm</think>Let me see.\n<tool_call>{'name': 'add', 'arguments': {'a': 1, 'b': 2,}}</tool_call>"
    read = TextMode().parse_response(InferenceResponse((Text(text),), FinishReason.STOP), REQUEST)
    thought, answer, call = read.parts
    assert (thought, answer) == (Reasoning("hm"), Text("Let me see."))
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("add", {"a": 1, "b": 2})
    assert call.repairs
    assert read.finish_reason is FinishReason.TOOL_CALLS


def test_a_text_becomes_a_number_unless_the_mode_is_told_otherwise() -> None:
    """Where the schema accepts no text, the number in it is meant, which is recorded on the call."""
    response = InferenceResponse((Text(CALL.replace("1,", '"1",')),))
    (call,) = TextMode().parse_response(response, REQUEST).tool_calls
    assert (call.arguments, len(call.repairs)) == ({"a": 1, "b": 2}, 1)
    (as_written,) = TextMode(coerce=False).parse_response(response, REQUEST).tool_calls
    assert (as_written.arguments, as_written.repairs) == ({"a": "1", "b": 2}, ())


def test_without_tools_nothing_is_parsed() -> None:
    """Text that resembles a call is text if no tool was offered."""
    response = InferenceResponse((Text(CALL),))
    assert TextMode().parse_response(response, REQUEST.with_tools(())) is response


def test_calls_of_the_server_are_used() -> None:
    """If the inference server parsed the calls, the text is not parsed again."""
    response = InferenceResponse((ToolCall("1", "add", "{}"),), FinishReason.TOOL_CALLS)
    assert TextMode().parse_response(response, REQUEST) is response


def test_calls_can_be_validated_without_a_loop() -> None:
    """Validation returns the arguments, or states why the call cannot be executed."""
    mode = TextMode()
    assert mode.validate(ToolCall("", "add", '{"a": 1, "b": 2}'), [add.spec]).arguments == {"a": 1, "b": 2}
    assert "'b' is a required property" in mode.validate(ToolCall("", "add", '{"a": 1}'), [add.spec]).error_message
    assert "did you mean 'add'" in mode.validate(ToolCall("", "addd", "{}"), [add.spec]).error_message
    assert "not valid JSON" in mode.validate(ToolCall("", "add", "a=1"), [add.spec]).error_message
    with pytest.raises(FrozenInstanceError):
        mode.validate(ToolCall("", "add", "{}"), [add.spec]).is_valid = True  # type: ignore[misc]  # it is frozen
    broken = ToolSpec("x", "X.", {"type": "nothing"}, Effect.PURE)
    assert "not a valid JSON Schema" in mode.validate(ToolCall("", "x", "{}"), [broken]).error_message


def test_a_call_that_must_not_run_is_not_valid() -> None:
    """Its rejection is the error, whatever its arguments are."""
    call = ToolCall("", "add", '{"a": 1, "b": 2}', rejection="it is only mentioned")
    validation = TextMode().validate(call, [add.spec])
    assert (validation.is_valid, validation.error_message) == (False, "it is only mentioned")


@pytest.mark.parametrize("mode", ["validated", "parsed"])
async def test_state_does_not_depend_on_the_mode(mode: str) -> None:
    """Law 12: state, calls and results are the same as with a tool API."""
    loop, model = loop_in(mode, CALL, "It is 3.")
    state = await loop.execute("1 + 2?")
    (execution,) = state.steps[0].executions
    assert (execution.name, execution.arguments, execution.value, state.final_text) == (
        "add",
        {"a": 1, "b": 2},
        3,
        "It is 3.",
    )
    assert not any(request.tools for request in model.requests)


async def test_calls_and_results_are_rendered_as_text() -> None:
    """The next request has the call in the notation of the prompt, and the result in the user's message after it."""
    loop, model = loop_in("parsed", f"So: {CALL} and {CALL}", "It is 3.")
    await loop.execute("1 + 2?")
    _, assistant, results = model.requests[1].messages
    assert assistant.role == "assistant"
    assert assistant.text.count('<tool_call>\n{"name":"add","arguments":{"a":1,"b":2}}\n</tool_call>') == 2
    assert results.role == "user"
    assert results.text.count('<tool_response>\n{"name":"add","content":"3"}\n</tool_response>') == 2


def exchange(number: int) -> ToolExchange:
    """Return a call that adds 2 to a number, with its result."""
    call, at = ToolCall(str(number), "add", f'{{"a": {number}, "b": 2}}'), datetime(2026, 1, 1, tzinfo=UTC)
    return ToolExchange(
        call,
        ToolExecution(
            id=f"e{number}",
            key=f"e/1/{number}",
            call=call,
            status=ToolStatus.SUCCEEDED,
            value=number + 2,
            started_at=at,
            ended_at=at,
        ),
    )


@pytest.mark.parametrize(
    ("mode", "order"),
    [
        (TextMode(), ["First this.", '"a":1', "Then that.", '"a":5']),
        (StructuredMode(), ["Hm.", "First this.", '"a":1', "Then that.", '"a":5']),
        (ReActJsonMode(), ["Hm.", "First this.", "Then that.", '"a":1', '"a":5']),
        (ReActTextMode(), ["Hm.", "First this.", "Then that.", '"a":1', '"a":5']),
    ],
)
def test_what_was_written_beside_calls_stays_in_the_conversation(mode: CanUseMode, order: list[str]) -> None:
    """Words, calls and results in their order, each once; reasoning as its mode has it."""
    parts = (Reasoning("Hm."), Text("First this."), exchange(1), Text("Then that."), exchange(5))
    request = InferenceRequest((*REQUEST.messages, Message.assistant(*parts)), tools=REQUEST.tools)
    _, assistant, results = mode.render_request(request).messages
    assert [assistant.text.count(piece) for piece in order] == [1] * len(order)
    assert sorted(order, key=assistant.text.index) == order
    assert "Hm." in assistant.text or Reasoning("Hm.") in assistant.parts
    assert results.role == "user"
    assert results.text.index("3") < results.text.index("7")


async def test_a_translated_request_extends_the_previous_one() -> None:
    """Law 13: the prompt and messages of a step begin with those of the previous step."""
    loop, model = loop_in("parsed", CALL, CALL, "It is 3.")
    await loop.execute("1 + 2?")
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert later.system_prompt == earlier.system_prompt
        assert later.messages[: len(earlier.messages)] == earlier.messages


async def test_an_invalid_call_is_retried() -> None:
    """In the mode `validated` the model receives the error; only its valid response becomes part of the conversation."""
    loop, model = loop_in("validated", WRONG, CALL, "It is 3.")
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("1 + 2?")
    assert [execution.status for step in state.steps for execution in step.executions] == [ToolStatus.SUCCEEDED]
    assert "'b' is a required property" in model.requests[1].messages[-1].text
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]
    assert (state.step_count, state.usage.requests) == (2, 3)


async def test_retries_are_bounded() -> None:
    """After the last retry the call goes to the executor, which rejects it."""
    loop, model = loop_in("validated", WRONG, WRONG, "I cannot.", max_retries=1)
    state = await loop.execute("1 + 2?")
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.REJECTED]
    assert (len(model.requests), state.final_text) == (3, "I cannot.")


async def test_the_mode_parsed_does_not_retry() -> None:
    """In the mode `parsed` the executor rejects an invalid call in a separate step."""
    loop, model = loop_in("parsed", WRONG, CALL, "It is 3.")
    state = await loop.execute("1 + 2?")
    statuses = [execution.status for step in state.steps for execution in step.executions]
    assert statuses == [ToolStatus.REJECTED, ToolStatus.SUCCEEDED]
    assert len(model.requests) == 3


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "add", "arguments": {"a": </tool_call>',
        '{"name": "add", "arguments": {"a": 1, "b": "the "2""}}',
        '```json\n{"tool": "add", "arguments": {"a": 1, "b": 2}\n```',
    ],
)
async def test_an_unreadable_call_is_retried(text: str) -> None:
    """A call that is cut off or damaged is sent back to the model with the reason."""
    loop, model = loop_in("validated", text, CALL, "It is 3.")
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("1 + 2?")
    assert state.final_text == "It is 3."
    assert [type(event) for event in events if isinstance(event, DecisionExtractionFailed | ValidationFailed)]
    assert model.requests[1].messages[-1].role == "user"
    assert "it has a call that cannot be read (" in model.requests[1].messages[-1].text


async def test_a_signature_in_code_marks_is_no_unreadable_call() -> None:
    """An answer that only quotes what resembles a call is the answer."""
    answer = "I have one tool, `add(a, b)`, which adds two numbers."
    loop, model = loop_in("validated", answer, "not asked for")
    state = await loop.execute("What can you do?")
    assert (state.final_text, len(model.requests)) == (answer, 1)


async def test_media_in_results_are_sent() -> None:
    """The image of a result is part of the message with the results."""

    @tool(effect="pure")
    def look() -> Image:
        """Look."""
        return Image(data=b"png", media_type="image/png")

    model = ScriptedInference('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "Nice.")
    await AgentLoop(ToolCallingDriver(model, mode="parsed"), [look]).execute("?")
    assert [type(part) for part in model.requests[1].messages[-1].parts] == [Text, Image]


async def test_the_final_answer_comes_from_the_final_model() -> None:
    """One model chooses the tools; another is called for the answer, without tools."""
    cheap, strong = (
        ScriptedInference([ToolCall("1", "add", '{"a": 1, "b": 2}')], "draft"),
        ScriptedInference("It is 3."),
    )
    driver = ToolCallingDriver(cheap, final_inference=strong)
    state = await AgentLoop(driver, [add]).execute("1 + 2?")
    assert (state.final_text, state.usage.requests, driver.max_inferences_per_step) == ("It is 3.", 3, 6)
    assert strong.requests[0].tools == ()


@pytest.mark.parametrize(
    ("mode", "streaming"),
    [
        ("validated", True),
        ("auto", False),
        # The text is read by the same reader in all modes, and the same decision follows: two of six find what all would.
        *[
            pytest.param(*case, marks=pytest.mark.heavy)
            for case in [("validated", False), ("parsed", False), ("parsed", True), ("auto", True)]
        ],
    ],
)
@pytest.mark.parametrize("context", QUOTATIONS | MENTIONS)
async def test_no_call_in_prose_has_an_effect(context: str, mode: Any, *, streaming: bool) -> None:
    """Whatever the notation, a call of a tool with an effect runs only if it is the whole answer."""
    booked: list[str] = []

    @tool
    def book_table(place: str) -> str:
        """Book a table."""
        booked.append(place)
        return "booked"

    # Of every context, other notations.
    for notation in Random(context).sample([*NOTATIONS.values()], examples(len(NOTATIONS))):
        text = (QUOTATIONS | MENTIONS)[context].replace("{}", notation)
        model = NamedModel(text, *["Done."] * 4)
        loop = AgentLoop(ToolCallingDriver(model, mode=mode, streaming=streaming), [book_table])
        deltas: list[InferenceDeltaReceived] = []
        loop.on(InferenceDeltaReceived, deltas.append)
        state = await loop.execute("?")
        shown = text.removeprefix("<think>hm</think>")
        assert (booked, state.final_text in {text, shown, "Done."}) == ([], True)
        if state.final_text != "Done." and streaming:
            assert "".join(event.delta.text for event in deltas) == state.final_text


class NamedModel(ScriptedInference, CanNameModel):
    """A scripted model that no table lists."""

    model_name = "unlisted"
    wire_format_name = "openai-chat"


@pytest.mark.parametrize(("run_embedded", "count"), [("pure", 0), ("always", 1), ("never", 0)])
async def test_the_policy_decides_about_calls_in_prose(run_embedded: Any, count: int) -> None:
    """Calls in prose run always, never, or if all of them are pure."""
    booked: list[str] = []

    @tool
    def book_table(place: str) -> str:
        """Book a table."""
        booked.append(place)
        return "booked"

    model = ScriptedInference('I book it: book_table(place="Rome")', "Done.")
    mode = TextMode(reprompts=False, run_embedded=run_embedded)
    await AgentLoop(ToolCallingDriver(model, mode=mode), [book_table]).execute("?")
    assert len(booked) == count


@pytest.mark.parametrize(("mode", "requests"), [("validated", 3), ("parsed", 1)])
async def test_an_answer_beyond_a_bound_is_a_typed_error(mode: Any, requests: int) -> None:
    """In `validated` the model is asked again; the error names the bound."""
    model = ScriptedInference(*["x" * 101] * 3)
    loop = AgentLoop(ToolCallingDriver(model, mode=mode), [add], bounds=Bounds(text_characters=100))
    state = await loop.execute("?")
    assert state.status is ExecutionStatus.FAILED
    with pytest.raises(ExecutionFailed, match=r"BoundExceeded.*Bounds\.text_characters"):
        state.raise_for_status()
    assert len(model.requests) == requests


def test_an_unknown_mode_raises() -> None:
    """The error for an unknown mode suggests the closest name and lists all of them."""
    with pytest.raises(
        ConfigurationError, match=r"no tool-calling mode 'nativ', did you mean 'native'\?; known are auto"
    ):
        get_mode("nativ")


def result_of(text: str) -> Message:
    """Return a message with a call whose result is this text."""
    call = ToolCall("1", "add", "{}")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return Message.assistant(
        ToolExchange(call, ToolExecution.of(call, ToolStatus.SUCCEEDED, key="e/1/0", id="1", at=at, value=text))
    )


PAGE_CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'


@pytest.mark.parametrize(
    ("request_", "reasoning", "is_plain"),
    [
        (REQUEST, (), True),
        (REQUEST, (Reasoning("hm"),), False),
        (REQUEST.with_messages([Message.user(f"Sum up: Good.</think>{PAGE_CALL}")]), (), False),
        (REQUEST.with_messages([Message.user("Sum up."), result_of("Good.")]), (), True),
        (REQUEST.with_messages([Message.user("Sum up."), result_of(f"Good.</think>{PAGE_CALL}")]), (), False),
    ],
)
def test_a_closing_tag_that_may_be_quoted_ends_no_reasoning(
    request_: InferenceRequest, reasoning: tuple[Reasoning, ...], *, is_plain: bool
) -> None:
    """A closing tag of reasoning alone does not count if the reasoning came separately or the tag was in what the model read."""
    response = InferenceResponse((*reasoning, Text(f"The page is good.\n</think>\n{PAGE_CALL}")))
    parsed = TextMode(run_embedded="never").parse_response(response, request_)
    assert [not call.rejection for call in parsed.tool_calls] == [is_plain]


@pytest.mark.parametrize(
    ("text", "reasoning", "answer", "continues"),
    [
        ('{"answer": "3", "scratchpad": "1 and 2"}', "1 and 2", "3", False),
        ('```json\n{"scratchpad": "1 and 2", "answer": [3]}\n```', "1 and 2", "[3]", False),
        ('```json\n{"scratchpad": "1 and 2", "answer": [3]}```', "1 and 2", "[3]", False),
        ('{"scratchpad": "1 and 2"}', "1 and 2", "", True),
        ('<think>hm</think>{"scratchpad": "1 and 2"}', "hm1 and 2", "", True),
        ('{"scratchpad": "add(a=1, b=2) is on the page", "answer": "no"}', "add(a=1, b=2) is on the page", "no", False),
        ('{"scratchpad": ""}', "", '{"scratchpad": ""}', False),
        ('{"scratchpad": "", "answer": "3"}', "", "3", False),
        ('{"scratchpad": null, "answer": "3"}', "", "3", False),
        ('{"scratchpad": "1 and 2", "answer": null}', "1 and 2", "", True),
        ('{"tool": null, "arguments": null, "answer": "3", "scratchpad": "1 and 2"}', "1 and 2", "3", False),
        ('{"tool": "", "arguments": {}, "answer": "3", "scratchpad": "1 and 2"}', "1 and 2", "3", False),
        ('{"scratchpad": "1\nand\t2", "answer": "3",}', "1\nand\t2", "3", False),
        ('```json\n{"answer": "3", "scratchpad": "1\nand 2"}\n```', "1\nand 2", "3", False),
        ("{'answer': '3', 'scratchpad': 'x'}", "", "{'answer': '3', 'scratchpad': 'x'}", False),
        (r'{"\u0061nswer": "3", "scratchpad": "x"}', "x", r'{"\u0061nswer": "3", "scratchpad": "x"}', False),
        ('{"answer": "3", "scratchpad": "x"', "", '{"answer": "3", "scratchpad": "x"', False),
        ('{"answer": {"scratchpad": "x"}}', "", '{"answer": {"scratchpad": "x"}}', False),
        ('["scratchpad"]', "", '["scratchpad"]', False),
        ('{"scratchpad": ["x"], "answer": "3"}', "", '{"scratchpad": ["x"], "answer": "3"}', False),
        ('{"answer": "3"}', "", "3", False),
        ('```json\n{"answer": "3"}\n```', "", "3", False),
        ('{"tool": null, "arguments": {}, "answer": "3"}', "", "3", False),
        ('{"answer": "3", "more": 1}', "", '{"answer": "3", "more": 1}', False),
        ('{"answer": 3}', "", '{"answer": 3}', False),
        ('{"answer": null}', "", '{"answer": null}', False),
        ('{"answer": "3", "scratchpad": "x", "more": 1}', "x", '{"answer": "3", "scratchpad": "x", "more": 1}', False),
    ],
)
def test_an_object_with_a_scratchpad_is_reasoning_and_answer(
    text: str, reasoning: str, answer: str, *, continues: bool
) -> None:
    """Also in pieces, and without calls."""
    stream = TextMode().stream(REQUEST)
    deltas = [delta for letter in text for delta in stream.feed(InferenceDelta("text", letter))]
    parsed = TextMode().parse_response(InferenceResponse((Text(text),)), REQUEST)
    deltas += stream.close(parsed)
    assert "".join(part.text for part in parsed.parts if isinstance(part, Reasoning)) == reasoning
    assert (parsed.text, parsed.wants_to_continue, parsed.tool_calls) == (answer, continues, ())
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == answer


OWN_SCHEMA = ResponseFormat(
    {
        "type": "object",
        "properties": {"answer": {"type": "string"}, "scratchpad": {"type": "string"}},
        "required": ["scratchpad"],
    }
)
OTHER_SCHEMA = ResponseFormat(
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
)


@pytest.mark.parametrize(
    "mode", [TextMode(), TextMode(reprompts=False), StructuredMode(), ReActJsonMode(), ReActTextMode()]
)
@pytest.mark.parametrize(
    ("response_format", "text", "answer", "continues"),
    [
        (OWN_SCHEMA, '{"answer": "3", "scratchpad": "1 and 2"}', '{"answer": "3", "scratchpad": "1 and 2"}', False),
        (OWN_SCHEMA, '{"scratchpad": "1 and 2"}', '{"scratchpad": "1 and 2"}', False),
        (OTHER_SCHEMA, '{"answer": {"n": 3}, "scratchpad": "1 and 2"}', '{"n":3}', False),
        (OTHER_SCHEMA, '{"scratchpad": "1 and 2"}', "", True),
    ],
)
def test_an_object_of_the_users_schema_is_the_answer(
    mode: CanUseMode, response_format: ResponseFormat, text: str, answer: str, *, continues: bool
) -> None:
    """Keys like those of a mode are the user's if the object is of the requested schema; else they are the mode's."""
    request = REQUEST.with_response_format(response_format)
    stream = mode.stream(request)
    deltas = [delta for letter in text for delta in stream.feed(InferenceDelta("text", letter))]
    parsed = mode.parse_response(InferenceResponse((Text(text),)), request)
    deltas += stream.close(parsed)
    assert (parsed.text, parsed.wants_to_continue, parsed.problem) == (answer, continues, "")
    assert parsed.reasoning == ("" if answer == text else "1 and 2")
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == answer


@pytest.mark.parametrize(
    "mode", [TextMode(), TextMode(reprompts=False), StructuredMode(), ReActJsonMode(), ReActTextMode()]
)
@pytest.mark.parametrize("response_format", [None, OWN_SCHEMA, OTHER_SCHEMA])
@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "add", "arguments": {"a": 1, "b": 2}, "scratchpad": "hm"}',
        '{"scratchpad": "hm", "tool": "add", "args": {"a": 1, "b": 2}, "answer": null}',
        '{"name": "add", "arguments": {"a": 1, "b": 2}, "scratchpad": "hm"}',
    ],
)
def test_a_scratchpad_beside_a_call_is_reasoning(
    mode: CanUseMode, response_format: ResponseFormat | None, text: str
) -> None:
    """In every notation of a call as one object, whatever form the answer has."""
    request = REQUEST if response_format is None else REQUEST.with_response_format(response_format)
    parsed = mode.parse_response(InferenceResponse((Text(text),)), request)
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("add", {"a": 1, "b": 2})]
    assert (parsed.reasoning, parsed.text, parsed.wants_to_continue) == ("hm", "", False)


def test_a_scratchpad_in_an_object_of_its_own_is_reasoning() -> None:
    """Before a call, it is no answer."""
    text = '{"scratchpad": "hm"}\n{"tool": "add", "arguments": {"a": 1, "b": 2}}'
    parsed = TextMode(run_embedded="always").parse_response(InferenceResponse((Text(text),)), REQUEST)
    assert (parsed.reasoning, parsed.text, len(parsed.tool_calls)) == ("hm", "", 1)


@pytest.mark.parametrize("mode", [ReActJsonMode(), ReActTextMode()])
def test_react_reads_scratchpads(mode: CanUseMode) -> None:
    """A scratchpad is the thought of an answer; alone, or before a decision in a list, it lets the model think on."""

    def read(text: str) -> InferenceResponse:
        return mode.parse_response(InferenceResponse((Text(text),)), REQUEST)

    answered = read('{"answer": "3", "scratchpad": "1 and 2"}')
    assert (answered.text, answered.reasoning, answered.wants_to_continue) == ("3", "1 and 2", False)
    alone = read('{"scratchpad": "1 and 2"}')
    assert (alone.text, alone.reasoning, alone.wants_to_continue, alone.problem) == ("", "1 and 2", True, "")
    after = read('{"scratchpad": "1 and 2"}\n{"answer": "3"}')
    assert (after.text, after.reasoning, after.wants_to_continue) == ("3", "1 and 2", False)


def test_an_object_is_the_answer_where_one_is_requested() -> None:
    """With a response format, keys have no meaning for the mode."""
    text = '{"answer": "3", "scratchpad": "1 and 2"}'
    parsed = TextMode().parse_response(InferenceResponse((Text(text),)), REQUEST.with_response_format(ResponseFormat()))
    assert (parsed.text, parsed.reasoning) == (text, "")


def test_a_schema_that_is_none_leaves_the_answer_as_it_is() -> None:
    """Nobody knows whether the object has the requested form; whoever checks the answer reports the schema."""
    text = '{"answer": "3", "scratchpad": "1 and 2"}'
    request = REQUEST.with_response_format(ResponseFormat({"type": "nothing"}))
    parsed = TextMode().parse_response(InferenceResponse((Text(text),)), request)
    assert (parsed.text, parsed.reasoning) == (text, "")


@pytest.mark.parametrize("text", ["It is 3.", f"I would write `{CALL}`."])
def test_an_answer_keeps_the_data_of_its_provider(text: str) -> None:
    """The provider requires its data back with the text, also with one that quotes a call."""
    parts = (Text(text, provider_data={"openai-responses": {"id": "m1"}}), Text(" Bye."))
    assert TextMode().parse_response(InferenceResponse(parts), REQUEST).parts == parts


@pytest.mark.parametrize(
    ("pieces", "response_format", "emitted"),
    [
        (["It is ", '{"answer": "3"}'], None, [1, 1]),
        (['{"answer"', ': "3"}'], None, [0, 0]),
        (['{"answer"', ': "3"}'], ResponseFormat(), [0, 1]),
        # What it is, is seen in the first hundred characters.
        ([" " * 97 + '{"x": 1}'], None, [1]),
        ([" " * 98 + '{"x": 1}'], None, [0]),
    ],
)
def test_only_what_may_become_an_answer_object_is_held_back(
    pieces: list[str], response_format: ResponseFormat | None, emitted: list[int]
) -> None:
    """A stream holds an object back that may have a scratchpad; not behind other text, nor, once it is no call, where any object is the answer."""
    stream = TextMode().stream(REQUEST.with_response_format(response_format))
    assert [len(stream.feed(InferenceDelta("text", piece))) for piece in pieces] == emitted


def test_words_before_the_first_label_are_a_thought() -> None:
    """Models think before they write `Thought:`; nothing of it is lost."""
    text = "I look at it first.\nThought: It is a sum.\nFinal Answer: 3"
    response = ReActTextMode().parse_response(InferenceResponse((Text(text),)), REQUEST)
    assert response.parts == (Reasoning("I look at it first.\n\nIt is a sum."), Text("3"))


@pytest.mark.parametrize("name", ["native", "structured", "validated", "parsed", "program"])
def test_a_mode_has_the_name_by_which_it_is_chosen(name: str) -> None:
    """Events, records and `with_mode` name it in the same way."""
    assert get_mode(name).name == name


@pytest.mark.parametrize(
    ("mode", "reprompts"),
    [
        (TextMode(), True),
        (TextMode(reprompts=False), False),
        (StructuredMode(), True),
        (ReActJsonMode(), True),
        (ReActTextMode(), True),
        (NativeMode(), False),
        (ProgramMode(), False),
        (ProgramMode(form=TextMode()), True),
    ],
)
def test_a_mode_says_whether_an_invalid_call_is_asked_for_again(mode: CanUseMode, *, reprompts: bool) -> None:
    """Where the text of a model is read, the model corrects its call; programs take the form of another mode."""
    assert mode.reprompts is reprompts


class Exclaimed(TextFormat):
    """Calls such as `!add {"a": 17}` on a line."""

    name = "exclaimed"
    openings = ("!",)

    def read(self, buffer: TextBuffer, start: int, tools: OfferedTools) -> ParseAttempt:
        """Read the line."""
        while (end := buffer.text.find("\n", start)) < 0 and not buffer.is_complete:
            yield None
        end = end if end >= 0 else len(buffer.text)
        name, _, arguments = buffer.text[start + 1 : end].partition(" ")
        yield CallDraft(name, json.loads(arguments), start, end, raw=arguments)
        return AttemptResult(end)


@pytest.mark.parametrize("collect", [list, tuple, iter])
def test_a_driver_uses_a_mode_with_any_collection_of_formats(collect: Callable[[list[TextFormat]], Any]) -> None:
    mode = TextMode(formats=collect([Exclaimed(), *DEFAULT_FORMATS]))
    model = ScriptedInference('!add {"a": 17, "b": 25}', "It is 42.")
    state = AgentLoop(ToolCallingDriver(model, mode=mode), [add]).execute_sync("What is 17 + 25?")
    assert [call.value for call in state.steps[0].executions] == [42]
    assert state.final_text == "It is 42."
