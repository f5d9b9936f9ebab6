"""The driver for models that call tools, and the scripted driver."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from agentloop import (
    AgentLoop,
    AgentState,
    ReActDriver,
    ScriptedDriver,
    ScriptedInference,
    ToolCall,
    ToolCallingDriver,
    ToolChoice,
)
from agentloop.contracts import CanNameModel
from agentloop.drivers import Driver, ScenarioStep
from agentloop.drivers.tool_calling import without_leaked_arguments
from agentloop.errors import ExecutionStopped
from agentloop.events import InferenceFailed, InferenceRetried
from agentloop.models import HttpInference, LLMConfig
from agentloop.models.http_client import in_process_client
from agentloop.testing import Ledger, toy_call, toy_tools
from agentloop.values import (
    Capabilities,
    CapabilityRow,
    Event,
    ExecutionStatus,
    FinishReason,
    InferenceOptions,
    InferenceResponse,
    ProviderPart,
    Reasoning,
    ResponseFormat,
    Text,
    ToolExchange,
    Usage,
)
from agentloop.values.messages import ResponsePart
from agentloop.values.policies import RetryPolicy


def test_the_request_carries_tools_choice_options_and_format() -> None:
    """The request holds what the driver and the state configure."""
    inference = ScriptedInference("done", "done", "done")
    driver = ToolCallingDriver(
        inference,
        tool_choice=ToolChoice.required(),
        parallel_tool_calls=False,
        options=InferenceOptions(temperature=0.0, max_tokens=9),
    )
    loop = AgentLoop(driver, toy_tools(Ledger()), system_prompt="be brief")
    state = AgentState.start("go", system_prompt="be brief").with_response_format(ResponseFormat())
    loop.execute_sync(state)  # the model answers without the required call, and is asked again
    request = inference.requests[0]
    assert [spec.name for spec in request.tools][:2] == ["echo", "plain"]
    assert request.tool_choice == ToolChoice.required()
    assert request.parallel_tool_calls is False
    assert request.options.max_tokens == 9
    assert request.response_format == ResponseFormat()
    assert request.system_prompt == "be brief"


def test_reasoning_text_and_calls_keep_their_order() -> None:
    """The message of a step holds the parts of the response in their order, each call with its execution."""
    parts = (Reasoning("hm"), Text("first"), toy_call("echo", 1), Text("second"), toy_call("echo", 2))
    state = AgentLoop(
        ToolCallingDriver(ScriptedInference(InferenceResponse(parts), "done")), toy_tools(Ledger())
    ).execute_sync("go")
    assert [type(part).__name__ for part in state.messages[1].parts] == [
        "Reasoning",
        "Text",
        "ToolExchange",
        "Text",
        "ToolExchange",
    ]


@pytest.mark.parametrize(
    ("text", "is_kept"),
    [
        ('{"a": 1}', False),
        ('```json\n{"a": 1}\n```', False),
        ('  {"a":1}  ', False),
        ('{"a": 2}', True),
        ("I call it with 1.", True),
        ('{"a": 1} there', True),
        ("{broken", True),
    ],
)
def test_text_that_only_repeats_the_arguments_is_dropped(text: str, *, is_kept: bool) -> None:
    """A text that is equal to the arguments of a call is dropped; any other text is kept."""
    tool_call = ToolCall("c", "echo", '{"a": 1}')
    expected = (Text(text), tool_call) if is_kept else (tool_call,)
    assert without_leaked_arguments((Text(text), tool_call)) == expected


LEAKING: dict[str, Any] = {
    "native": ['{"value": 1}', ToolCall("c", "echo", '{"value": 1}')],
    "validated": ['{"value": 1}', ToolCall("c", "echo", '{"value": 1}')],
    "structured": '{"next": [{"answer": "{\\"value\\": 1}"}, {"tool": "echo", "arguments": {"value": 1}}]}',
    "react": '{"type": "tool", "tool": "echo", "args": {"value": 1}, "answer": "{\\"value\\": 1}"}',
}
ANSWERING = {"structured": '{"next": [{"answer": "Done."}]}', "react": '{"type": "final", "answer": "Done."}'}


@pytest.mark.parametrize("mode", LEAKING)
@pytest.mark.parametrize("streaming", [False, True])
async def test_repeated_arguments_are_dropped_in_each_mode_and_stream(mode: Any, *, streaming: bool) -> None:
    """The step has the call alone, whether the response was streamed or not."""
    model = ScriptedInference(LEAKING[mode], ANSWERING.get(mode, "Done."))
    driver: Driver = ToolCallingDriver(model, mode="native" if mode == "react" else mode, streaming=streaming)
    if mode == "react":
        driver = ReActDriver(model, output="json", streaming=streaming)
    loop = AgentLoop(driver, toy_tools(Ledger()))
    state = await loop.execute("Go.")
    assert [type(part) for part in state.messages[1].parts] == [ToolExchange]
    assert state.final_text == "Done."


def test_text_without_calls_is_never_dropped() -> None:
    """A JSON text without calls is the answer."""
    assert without_leaked_arguments((Text('{"a": 1}'),)) == (Text('{"a": 1}'),)


def test_retries_are_events_of_one_inference() -> None:
    """Each retry of a request emits an event; the step has one response."""
    statuses = [500, 503, 200]

    def respond(path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        del path, body
        status = statuses.pop(0)
        completion = (
            b'{"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 1}}'
        )
        return status, {}, completion if status == 200 else b"down"

    config = LLMConfig(model="m", base_url="http://model", retry=RetryPolicy(initial_wait=0))

    async def run() -> tuple[str, list[Event]]:
        client = in_process_client(respond)
        loop, retries = AgentLoop(ToolCallingDriver(HttpInference(config, client=client))), list[Event]()
        loop.on(InferenceRetried, retries.append)
        state = await loop.execute("go")
        await client.aclose()
        assert state.usage == Usage(1, None, None, None, None, 1)
        return state.final_text or "", retries

    text, retries = asyncio.run(run())
    assert text == "hi"
    assert [(event.attempt, event.error.type) for event in retries if isinstance(event, InferenceRetried)] == [
        (1, "ProviderUnavailable"),
        (2, "ProviderUnavailable"),
    ]


def test_a_failed_inference_emits_an_event() -> None:
    """The event holds the error with which the execution fails."""
    loop, failures = AgentLoop(ToolCallingDriver(ScriptedInference(ValueError("down")))), list[InferenceFailed]()
    loop.on(InferenceFailed, failures.append)
    state = loop.execute_sync("go")
    assert [event.error for event in failures] == list(state.errors)


def test_a_scripted_driver_follows_its_script_without_a_model() -> None:
    """Calls are executed, recorded results are used, errors are raised, and the end of the script is an error."""
    ledger = Ledger()
    script = (
        ScenarioStep.tool_call("echo", {"value": 1}, text="let me see"),
        ScenarioStep.tool("send_money", {"to": "Ada"}, result={"ok": True}),
        ScenarioStep.tool_calls(("echo", {"value": 2}), ("fail", {"value": 3})),
    )
    done = AgentLoop(ScriptedDriver(*script, ScenarioStep.final("done")), toy_tools(ledger)).execute_sync("go")
    assert done.final_text == "done"
    assert [[execution.value for execution in step.executions] for step in done.steps] == [
        [1],
        [{"ok": True}],
        [2, None],
        [],
    ]
    assert [arguments["value"] for _, arguments in ledger.calls] == [1, 2, 3]
    failed = AgentLoop(ScriptedDriver(ScenarioStep.error(KeyError("x")))).execute_sync("go")
    assert (failed.status, failed.errors[0].type) == (ExecutionStatus.FAILED, "KeyError")
    ended = AgentLoop(ScriptedDriver(*script), toy_tools(ledger)).execute_sync("go")
    assert "the script has 3 steps, and step 4 was requested" in ended.errors[0].message


# --- answers that did not end normally ----------------------------------------------------------------------------

MALFORMED_CALL = InferenceResponse((), FinishReason.ERROR, provider_finish_reason="MALFORMED_FUNCTION_CALL")


def test_a_malformed_call_is_asked_for_again_once() -> None:
    """The second request says what was wrong, and the call that follows runs."""
    ledger = Ledger()
    inference = ScriptedInference(MALFORMED_CALL, toy_call("echo", 1), "done")
    state = AgentLoop(ToolCallingDriver(inference), toy_tools(ledger)).execute_sync("go")
    assert (state.status, state.step_count) == (ExecutionStatus.COMPLETED, 2)
    assert [name for name, _ in ledger.calls] == ["echo"]
    first, second, _ = inference.requests
    assert second.messages[:-1] == first.messages
    assert "could not be read" in second.messages[-1].text


@pytest.mark.parametrize("max_retries", [2, 5])
def test_a_call_that_is_malformed_again_fails_the_execution(max_retries: int) -> None:
    """There is no third request, however many retries other answers have, and the error names the finish reason."""
    inference = ScriptedInference(*[MALFORMED_CALL] * 9)
    driver = ToolCallingDriver(inference, max_retries=max_retries)
    state = AgentLoop(driver, toy_tools(Ledger())).execute_sync("go")
    assert len(inference.requests) == 2
    assert state.status is ExecutionStatus.FAILED
    assert "MALFORMED_FUNCTION_CALL" in state.errors[-1].message


EMPTY: dict[str, tuple[ResponsePart, ...]] = {
    "no parts": (),
    "an empty text": (Text(""),),
    "white space": (Text(" \n\t"), Text("\u3000")),
    "reasoning alone": (Reasoning("They want something."),),
    "a signature alone": (ProviderPart("gemini", {"thoughtSignature": "c2ln"}),),
    "a text with a signature": (Text("", provider_data={"gemini": {"thoughtSignature": "c2ln"}}),),
}
"""What an answer that says nothing consists of."""
DRIVERS: dict[str, Callable[..., ToolCallingDriver | ReActDriver]] = {
    **{mode: partial(ToolCallingDriver, mode=mode) for mode in ("native", "structured", "validated", "parsed", "auto")},
    **{f"react {output}": partial(ReActDriver, output=output) for output in ("json", "text")},
    "react, answer by another inference": partial(ReActDriver, output="json", final_via_inference=True),
}
drivers = pytest.mark.parametrize("driver", DRIVERS)
both_streamed = pytest.mark.parametrize("streaming", [False, True])


@drivers
@both_streamed
@pytest.mark.parametrize("empty", EMPTY)
@pytest.mark.parametrize("has_tools", [False, True])
def test_an_empty_answer_is_asked_for_again(driver: str, empty: str, *, streaming: bool, has_tools: bool) -> None:
    """The model is told, at most `max_retries` times, and then the execution fails; it never completes without an answer."""
    answer = InferenceResponse(EMPTY[empty])
    model = ScriptedInference(answer, answer, "said", "said")
    bound = DRIVERS[driver](model, streaming=streaming)
    tools = toy_tools(Ledger()) if has_tools else ()
    state = AgentLoop(bound, tools).execute_sync("go")
    if state.status is ExecutionStatus.COMPLETED:  # a decision in JSON cannot be the plain text of this script
        assert state.final_text == "said"
    assert len(model.requests) >= 3
    assert "was rejected" in model.requests[1].messages[-1].text

    silent = ScriptedInference(*[answer] * 9)
    bound = DRIVERS[driver](silent, streaming=streaming)
    state = AgentLoop(bound, tools).execute_sync("go")
    assert (state.status, len(silent.requests)) == (ExecutionStatus.FAILED, 3)
    assert len(silent.requests) <= bound.max_inferences_per_step
    assert state.errors[-1].type in {"DecisionExtractionError", "DecisionValidationError"}


@pytest.mark.parametrize("max_retries", [0, 1, 4])
def test_empty_answers_count(max_retries: int) -> None:
    """Each of them is a request of its step, with its tokens, and the error says what was read."""
    model = ScriptedInference(*[""] * 9, usage=Usage(5, 1))
    state = AgentLoop(ToolCallingDriver(model, max_retries=max_retries), toy_tools(Ledger())).execute_sync("go")
    assert (len(model.requests), state.step_count) == (max_retries + 1, 1)
    assert (state.inference_count, state.usage.total_tokens) == (max_retries + 1, 6 * (max_retries + 1))
    assert "it is empty" in state.errors[-1].message
    later = AgentLoop(ToolCallingDriver(ScriptedInference("said"))).execute_sync(state.with_message("Well?"))
    assert later.final_text == "said"


def test_a_medium_is_no_empty_answer() -> None:
    """A picture that a model has made is an answer without text."""
    for payload in ({"inlineData": {"mimeType": "image/png", "data": "aGk="}}, {"type": "image_generation_call"}):
        model = ScriptedInference(InferenceResponse((ProviderPart("gemini", payload),)))
        assert AgentLoop(ToolCallingDriver(model)).execute_sync("Draw.").status is ExecutionStatus.COMPLETED


@pytest.mark.parametrize("driver", ["native", "validated", "parsed", "auto"])
@both_streamed
@pytest.mark.parametrize("empty", EMPTY)
def test_an_agent_may_be_silent(driver: str, empty: str, *, streaming: bool) -> None:
    """With `output_type=str | None`, an empty answer is None, and another one is the text."""
    answer = InferenceResponse(EMPTY[empty])
    model = ScriptedInference(answer)
    loop = AgentLoop(DRIVERS[driver](model, streaming=streaming), toy_tools(Ledger()), output_type=str | None)
    state = loop.execute_sync("go")
    assert (state.status, state.output, len(model.requests)) == (ExecutionStatus.COMPLETED, None, 1)
    assert model.requests[0].response_format is None
    said = ScriptedInference("It is said.")
    loop = AgentLoop(DRIVERS[driver](said, streaming=streaming), toy_tools(Ledger()), output_type=str | None)
    assert loop.run_sync("go") == "It is said."


@pytest.mark.parametrize(
    ("driver", "written"),
    [
        ("structured", '{"next": [{"answer": ""}]}'),
        ("react json", '{"thought": "", "type": "final", "answer": ""}'),
        ("react text", "Thought: Nothing to say.\nFinal Answer:"),
    ],
)
def test_an_agent_may_be_silent_in_the_form_of_its_mode(driver: str, written: str) -> None:
    """An empty answer is written where answers have a form; without the output type it is asked for again."""
    model = ScriptedInference(written)
    loop = AgentLoop(DRIVERS[driver](model), toy_tools(Ledger()), output_type=str | None)
    assert loop.execute_sync("go").output is None
    repeated = ScriptedInference(*[written] * 9)
    assert AgentLoop(DRIVERS[driver](repeated), toy_tools(Ledger())).execute_sync("go").status is ExecutionStatus.FAILED
    assert len(repeated.requests) == 3


@pytest.mark.parametrize("choice", [ToolChoice.required(), ToolChoice.specific("echo")])
@pytest.mark.parametrize("reset", [True, False])
def test_a_required_call_is_required_in_every_step_if_it_is_not_reset(choice: ToolChoice, *, reset: bool) -> None:
    """With `reset_tool_choice=False` every request has the tool choice of the driver, else only those before the call."""
    inference = ScriptedInference(*[toy_call("echo", number) for number in range(3)], "done")
    driver = ToolCallingDriver(inference, tool_choice=choice, reset_tool_choice=reset)
    AgentLoop(driver, toy_tools(Ledger()), max_steps=3).execute_sync("go")
    later = ToolChoice.auto() if reset else choice
    assert [request.tool_choice for request in inference.requests] == [choice, later, later]


@pytest.mark.parametrize(
    ("mode", "alone", "answer"),
    [
        ("structured", '{"next": [{"scratchpad": "hm"}]}', '{"next": [{"answer": "done"}]}'),
        ("validated", '{"scratchpad": "hm"}', "done"),
        ("parsed", '{"scratchpad": "hm"}', "done"),
        ("json", '{"scratchpad": "hm"}', '{"thought": "", "type": "final", "answer": "done"}'),
        ("text", '{"scratchpad": "hm"}', "Final Answer: done"),
    ],
)
def test_a_model_that_thinks_on_sees_its_thought_and_is_asked_to_go_on(mode: Any, alone: str, answer: str) -> None:
    """A request that ends with a message of the assistant is refused by some services, and continued as a text by others."""
    model = ScriptedInference(alone, alone.replace("hm", "ah"), answer)
    is_react = mode in {"json", "text"}
    driver = ReActDriver(model, output=mode) if is_react else ToolCallingDriver(model, mode=mode)
    state = AgentLoop(driver, toy_tools(Ledger())).execute_sync("go")
    assert (state.final_text, state.step_count) == ("done", 3)
    first, second, third = [request.messages for request in model.requests]
    assert [message.role for message in third] == ["user", "assistant", "user", "assistant", "user"]
    assert (first, second) == (third[:1], third[:3])
    assert "hm" in third[1].text
    assert "final" not in third[1].text.lower()


def test_raise_for_status_raises_for_a_stopped_incomplete_answer() -> None:
    """An answer that the limit of its tokens cut off stops the execution, and is not taken for a whole one."""
    cut = InferenceResponse((Text("The dose is 5"),), FinishReason.LENGTH)
    state = AgentLoop(ToolCallingDriver(ScriptedInference(cut))).execute_sync("go")
    assert state.status is ExecutionStatus.STOPPED
    assert state.stop_signal is not None
    assert (state.stop_signal.reason.value, state.final_text) == ("finish_reason", "The dose is 5")
    with pytest.raises(ExecutionStopped, match="length"):
        state.raise_for_status()


def test_raise_for_status_raises_for_a_limit_with_its_reason() -> None:
    """A limit that stops an execution is an error with the reason and the state."""
    state = AgentLoop(ToolCallingDriver(ScriptedInference(toy_call("echo", 1))), toy_tools(Ledger()), max_steps=1)
    stopped = state.execute_sync("go")
    assert stopped.status is ExecutionStatus.STOPPED
    with pytest.raises(
        ExecutionStopped, match=r"stopped after 1 step: step_limit \(by StepLimit\): the limit of 1 step is"
    ) as caught:
        stopped.raise_for_status()
    assert caught.value.state is stopped


class NamedInference(ScriptedInference, CanNameModel):
    """A scripted inference with the name of a model."""

    model_name = ""
    wire_format_name = ""


@pytest.mark.parametrize(
    ("model", "mode", "used"),
    [
        ("openai:gpt-4o", "auto", "native"),
        ("ollama:deepseek-r1", "auto", "validated"),
        ("no-such-model", "auto", "native"),
        ("mine-7b", "auto", "structured"),
        ("mine-7b", "parsed", "parsed"),
        ("openai:gpt-4o", "structured", "structured"),
        ("no-such-model", "native", "native"),
    ],
)
def test_the_table_of_models_selects_the_mode_unless_it_is_set(model: str, mode: Any, used: str) -> None:
    """Rows of the program come first, and a mode that is set explicitly overrides the table."""
    inference = NamedInference("done")
    inference.model_name = model
    rows = [CapabilityRow("mine-*", Capabilities("structured", structured_output="json_schema"))]
    assert ToolCallingDriver(inference, mode=mode, models=rows).mode_for(inference).name == used


@pytest.mark.parametrize("kind", [ToolCallingDriver, ReActDriver])
@pytest.mark.parametrize("models", [("openai:gpt-4o",), (ScriptedInference,), (ScriptedInference(), "openai:gpt-4o")])
def test_a_model_of_the_wrong_type_is_refused_at_construction(kind: Any, models: tuple[Any, ...]) -> None:
    """The error names the parameter and the type."""
    with pytest.raises(
        TypeError, match=r"inference of \w+Driver has to be a CanInfer, not (str|the class ScriptedInf)"
    ):
        kind(models[0], final_inference=models[-1] if len(models) > 1 else None)
