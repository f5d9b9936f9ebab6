"""Tests of `ScriptedInference` and `FunctionInference`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop import AgentLoop, tool
from agentloop.contracts import ExecutionScope
from agentloop.errors import ContractViolation, InvalidParameter, RateLimited
from agentloop.models import FunctionInference, ScriptedInference
from agentloop.values import (
    FinishReason,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    Reasoning,
    Text,
    ToolCall,
    Usage,
)
from tests.models.loopback_inference import QUESTION

CALL = ToolCall("c1", "add", '{"a": 1}')


async def test_the_lines_are_returned_in_order() -> None:
    """A line is a text, a call, a sequence of both, a complete response, or a function of the request."""
    complete = InferenceResponse((Reasoning("hm"), Text("so")), "length", Usage(1, 2), "m", "id")

    def about(request: InferenceRequest) -> str:
        return f"you said {request.messages[0].text}"

    model = ScriptedInference("hello", CALL, ["both", CALL, CALL], complete, about, lambda _: complete, [])
    responses = [await model.infer(QUESTION) for _ in range(7)]
    assert [response.parts for response in responses] == [
        (Text("hello"),),
        (CALL,),
        (Text("both"), CALL, CALL),
        complete.parts,
        (Text("you said How are you?"),),
        complete.parts,
        (),
    ]
    assert responses[3] is complete


async def test_responses_have_a_finish_reason() -> None:
    """The finish reason is TOOL_CALLS for a response with calls, and otherwise STOP."""
    model = ScriptedInference("hello", CALL, ["both", CALL])
    reasons = [(await model.infer(QUESTION)).finish_reason for _ in range(3)]
    assert reasons == [FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.TOOL_CALLS]


async def test_responses_have_ids_a_model_and_usage() -> None:
    """Each response counts as one request, with the token usage of the script."""
    model = ScriptedInference("a", "b", usage=Usage(3, 4))
    first, second = await model.infer(QUESTION), await model.infer(QUESTION)
    assert (first.usage, first.usage.requests, first.model) == (Usage(3, 4), 1, "scripted")
    assert (first.id, second.id) == ("scripted-1", "scripted-2")
    assert (await ScriptedInference("a").infer(QUESTION)).usage.total_tokens == 15


async def test_an_error_is_raised() -> None:
    """A line that is an error is raised, and the next line follows it."""
    slow = RateLimited("slow down")
    model = ScriptedInference(slow, "now")
    with pytest.raises(RateLimited) as caught:
        await model.infer(QUESTION)
    assert caught.value is slow
    assert (await model.infer(QUESTION)).text == "now"


async def test_the_end_of_the_script_is_an_error() -> None:
    """A request after the last line raises."""
    model = ScriptedInference("only")
    await model.infer(QUESTION)
    with pytest.raises(ContractViolation, match="the script has 1 line, and response 2 was requested"):
        await model.infer(QUESTION)


async def test_each_execution_starts_at_the_first_line() -> None:
    """Bound copies have positions of their own and share the list of requests."""
    model = ScriptedInference("first", "second")
    first_copy, second_copy = model.with_execution_scope(ExecutionScope()), model.with_execution_scope(ExecutionScope())
    assert [(await copy.infer(QUESTION)).text for copy in (first_copy, second_copy, first_copy, second_copy)] == [
        "first",
        "first",
        "second",
        "second",
    ]
    assert model.requests == [QUESTION] * 4


async def test_requests_are_recorded_in_order() -> None:
    """`requests` includes those that ended with an error or after the end of the script."""
    requests = [InferenceRequest((Message.user(str(number)),)) for number in range(3)]
    model = ScriptedInference(ValueError("no"), "yes")
    await asyncio.gather(*[model.infer(request) for request in requests], return_exceptions=True)
    assert model.requests == requests


def test_the_repr_shows_the_number_of_lines() -> None:
    """The repr does not contain the lines."""
    assert repr(ScriptedInference("a", "b")) == "ScriptedInference(2 lines)"


# --- FunctionInference ----------------------------------------------------------------------------------------------


def _of(answer: Any, *, is_async: bool) -> FunctionInference:
    async def answer_async(_: InferenceRequest) -> Any:
        await asyncio.sleep(0)
        return answer

    return FunctionInference(answer_async if is_async else lambda _: answer)


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_function_returns_whatever_a_response_is_made_of(*, is_async: bool) -> None:
    """A plain or async function returns a text, a call, both, nothing, or a complete response; streamed, it is the same."""
    complete = InferenceResponse((Reasoning("hm"), Text("so")), "length", Usage(1, 2), "m", "id")
    expected = [("hello", (Text("hello"),)), (CALL, (CALL,)), (["a", CALL], (Text("a"), CALL)), ((), ())]
    for answer, parts in [*expected, (complete, complete.parts)]:
        model = _of(answer, is_async=is_async)
        response = await model.infer(QUESTION)
        assert response.parts == parts
        *deltas, last = [item async for item in model.stream(QUESTION)]
        assert last == response
        assert all(isinstance(delta, InferenceDelta) for delta in deltas)
    assert await _of(complete, is_async=is_async).infer(QUESTION) is complete
    assert (await _of(CALL, is_async=is_async).infer(QUESTION)).finish_reason is FinishReason.TOOL_CALLS


async def test_a_function_sees_the_request_and_its_error_is_that_of_the_model() -> None:
    """It is called once for each request."""

    def answer(request: InferenceRequest) -> str:
        if "error" in request.messages[-1].text:
            raise RateLimited("slow down")
        return f"you said {request.messages[-1].text}"

    model = FunctionInference(answer, usage=Usage(1, 2))
    response = await model.infer(QUESTION)
    assert (response.text, response.usage) == ("you said How are you?", Usage(1, 2))
    with pytest.raises(RateLimited, match="slow down"):
        await model.infer(InferenceRequest((Message.user("an error"),)))
    assert repr(model) == "FunctionInference(answer)"


@pytest.mark.parametrize("wrong", [None, 7, [1], {"text": "a"}, b"bytes"])
async def test_a_function_that_returns_anything_else_is_named(wrong: Any) -> None:
    """The error says what it returned, and what it may return."""
    with pytest.raises(
        ContractViolation, match=r"returned .*; its function returns an InferenceResponse, a text, a ToolCall"
    ):
        await _of(wrong, is_async=False).infer(QUESTION)


def test_what_cannot_be_called_is_refused() -> None:
    """The error names the class for fixed answers."""
    with pytest.raises(InvalidParameter, match="takes a function of the request, not str; for fixed answers"):
        FunctionInference("hello")  # type: ignore[arg-type]


@pytest.mark.parametrize("streaming", [False, True])
def test_a_function_drives_an_agent_streamed_or_not(*, streaming: bool) -> None:
    """It answers by the conversation alone, and each execution gets the same answers."""

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    def answer(request: InferenceRequest) -> str | ToolCall:
        done = request.messages[-1].exchanges
        return f"It is {done[0].execution.value}." if done else ToolCall("1", "add", '{"a": 1, "b": 2}')

    loop = AgentLoop.for_model(FunctionInference(answer), tools=[add], streaming=streaming)
    assert loop.run_sync("1 + 2?") == "It is 3."
    assert "".join(loop.stream_text_sync("1 + 2?")) == "It is 3."
