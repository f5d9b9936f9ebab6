"""The modes `validated` and `parsed`, by themselves and under the driver."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.errors import ConfigurationError
from agentloop.events import DecisionExtractionFailed, ValidationFailed
from agentloop.modes import TextMode, get_mode
from agentloop.values import (
    Effect,
    Event,
    FinishReason,
    Image,
    InferenceRequest,
    InferenceResponse,
    Message,
    Reasoning,
    ResponseFormat,
    Text,
    ToolChoice,
    ToolSpec,
    ToolStatus,
)


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALL = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
WRONG = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
REQUEST = InferenceRequest((Message.user("1 + 2?"),), "Be brief.", (add.spec,))


def loop_in(mode: Any, *lines: str, **settings: Any) -> tuple[AgentLoop, ScriptedInference]:
    """Make a loop over a model that writes these texts."""
    model = ScriptedInference(*lines)
    return AgentLoop(ToolCallingDriver(model, mode=mode, **settings), [add], system_prompt="Be brief."), model


def test_tools_are_described_in_the_prompt() -> None:
    """The model gets no tools but words about them, after the system prompt that there was."""
    offered = TextMode().offer(REQUEST)
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
def test_a_tool_choice_is_told_in_words(choice: ToolChoice, words: str) -> None:
    """What a tool API would be told by a parameter, the prompt says."""
    offered = TextMode().offer(REQUEST.with_tool_choice(choice))
    assert words in offered.system_prompt
    assert offered.tool_choice == ToolChoice.auto()


def test_the_form_of_the_answer_is_told_in_words() -> None:
    """A response format becomes a part of the prompt."""
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}}
    offered = TextMode().offer(REQUEST.with_response_format(ResponseFormat(schema)))
    assert '{"type":"object","properties":{"sum":{"type":"integer"}}}' in offered.system_prompt
    assert offered.response_format is None


def test_calls_are_read_out_of_the_text() -> None:
    """Calls become calls, what stands around them text, thoughts reasoning; what was mended is on the call."""
    text = "<think>hm</think>Let me see.\n<tool_call>{'name': 'add', 'arguments': {'a': 1, 'b': 2,}}</tool_call>"
    read = TextMode().read(InferenceResponse((Text(text),), FinishReason.STOP), REQUEST)
    thought, said, call = read.parts
    assert (thought, said) == (Reasoning("hm"), Text("Let me see."))
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("add", {"a": 1, "b": 2})
    assert call.repairs
    assert read.finish_reason is FinishReason.TOOL_CALLS


def test_without_tools_nothing_is_read() -> None:
    """A text that looks like a call is a text when no tool was offered."""
    response = InferenceResponse((Text(CALL),))
    assert TextMode().read(response, REQUEST.with_tools()) is response


def test_calls_that_the_service_has_read_are_taken() -> None:
    """A server that knows its model's notation is believed."""
    response = InferenceResponse((ToolCall("1", "add", "{}"),), FinishReason.TOOL_CALLS)
    assert TextMode().read(response, REQUEST) is response


def test_a_call_can_be_checked_without_a_loop() -> None:
    """Validation tells whether a call can be executed, and in words why not."""
    mode = TextMode()
    assert mode.validate(ToolCall("", "add", '{"a": 1, "b": 2}'), [add.spec]).arguments == {"a": 1, "b": 2}
    assert "'b' is a required property" in mode.validate(ToolCall("", "add", '{"a": 1}'), [add.spec]).error_message
    assert "did you mean 'add'" in mode.validate(ToolCall("", "addd", "{}"), [add.spec]).error_message
    assert "not valid JSON" in mode.validate(ToolCall("", "add", "a=1"), [add.spec]).error_message
    broken = ToolSpec("x", "X.", {"type": "nothing"}, Effect.PURE)
    assert "not a valid JSON Schema" in mode.validate(ToolCall("", "x", "{}"), [broken]).error_message


@pytest.mark.parametrize("mode", ["validated", "parsed"])
async def test_a_run_is_the_same_as_with_a_tool_api(mode: str) -> None:
    """Law 12: state, calls and outcomes do not show that the model wrote its calls as text."""
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


async def test_calls_and_results_are_told_as_text() -> None:
    """The next request holds the call in the notation of the prompt, and its result in the user's message after it."""
    loop, model = loop_in("parsed", f"So: {CALL} and {CALL}", "It is 3.")
    await loop.execute("1 + 2?")
    _, said, told = model.requests[1].messages
    assert said.role == "assistant"
    assert said.text.count('<tool_call>\n{"name":"add","arguments":{"a":1,"b":2}}\n</tool_call>') == 2
    assert told.role == "user"
    assert told.text.count('<tool_response>\n{"name":"add","content":"3"}\n</tool_response>') == 2


async def test_a_translated_request_extends_the_one_before() -> None:
    """Law 13: prompt and messages of a step begin with those of the step before."""
    loop, model = loop_in("parsed", CALL, CALL, "It is 3.")
    await loop.execute("1 + 2?")
    for earlier, later in zip(model.requests, model.requests[1:], strict=False):
        assert later.system_prompt == earlier.system_prompt
        assert later.messages[: len(earlier.messages)] == earlier.messages


async def test_an_invalid_call_is_asked_for_again() -> None:
    """In the mode `validated` the model is shown the error and answers again; the conversation holds only what counted."""
    loop, model = loop_in("validated", WRONG, CALL, "It is 3.")
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("1 + 2?")
    assert [execution.status for step in state.steps for execution in step.executions] == [ToolStatus.SUCCEEDED]
    assert "'b' is a required property" in model.requests[1].messages[-1].text
    assert [event.attempt for event in events if isinstance(event, ValidationFailed)] == [1]
    assert (state.step_count, state.usage.requests) == (2, 3)


async def test_asking_again_is_bounded() -> None:
    """After the last try the call goes to the executor, which rejects it and tells the model."""
    loop, model = loop_in("validated", WRONG, WRONG, "I cannot.", max_retries=1)
    state = await loop.execute("1 + 2?")
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.REJECTED]
    assert (len(model.requests), state.final_text) == (3, "I cannot.")


async def test_the_mode_parsed_does_not_ask_again() -> None:
    """An invalid call is rejected by the executor, in a step of its own."""
    loop, model = loop_in("parsed", WRONG, CALL, "It is 3.")
    state = await loop.execute("1 + 2?")
    statuses = [execution.status for step in state.steps for execution in step.executions]
    assert statuses == [ToolStatus.REJECTED, ToolStatus.SUCCEEDED]
    assert len(model.requests) == 3


async def test_what_cannot_be_read_is_asked_for_again() -> None:
    """A call that breaks off is told as what it is."""
    loop, model = loop_in("validated", '<tool_call>{"name": "add", "arguments": {"a": </tool_call>', CALL, "It is 3.")
    events: list[Event] = []
    loop.wiretap(events.append)
    state = await loop.execute("1 + 2?")
    assert state.final_text == "It is 3."
    assert [type(event) for event in events if isinstance(event, DecisionExtractionFailed | ValidationFailed)]
    assert model.requests[1].messages[-1].role == "user"


async def test_pictures_in_results_are_shown() -> None:
    """A result that holds a picture is told with it."""

    @tool(effect="pure")
    def look() -> Image:
        """Look."""
        return Image(data=b"png", media_type="image/png")

    model = ScriptedInference('<tool_call>{"name": "look", "arguments": {}}</tool_call>', "Nice.")
    await AgentLoop(ToolCallingDriver(model, mode="parsed"), [look]).execute("?")
    assert [type(part) for part in model.requests[1].messages[-1].parts] == [Text, Image]


async def test_another_model_gives_the_final_answer() -> None:
    """A cheap model decides what to call; the strong one is asked for the answer, without tools."""
    cheap, strong = (
        ScriptedInference([ToolCall("1", "add", '{"a": 1, "b": 2}')], "draft"),
        ScriptedInference("It is 3."),
    )
    driver = ToolCallingDriver(cheap, final_inference=strong)
    state = await AgentLoop(driver, [add]).execute("1 + 2?")
    assert (state.final_text, state.usage.requests, driver.max_inferences_per_step) == ("It is 3.", 3, 2)
    assert strong.requests[0].tools == ()


def test_an_unknown_mode_is_refused() -> None:
    """A misspelled mode is told with those there are."""
    with pytest.raises(ConfigurationError, match="no tool-calling mode 'nativ'; known are auto, native"):
        get_mode("nativ")
