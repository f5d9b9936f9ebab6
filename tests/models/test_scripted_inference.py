"""Tests of `ScriptedInference`."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.contracts import ExecutionScope
from agentloop.errors import ContractViolation, RateLimited
from agentloop.models import ScriptedInference
from agentloop.values import (
    FinishReason,
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
