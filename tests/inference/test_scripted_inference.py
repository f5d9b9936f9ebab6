"""A model that follows a script."""

from __future__ import annotations

import asyncio

import pytest

from agentloop.contracts import ExecutionScope
from agentloop.errors import ContractViolation, RateLimited
from agentloop.inference import ScriptedInference
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
from tests.inference.loopback_inference import QUESTION

CALL = ToolCall("c1", "add", '{"a": 1}')


async def test_the_lines_are_given_in_order() -> None:
    """A text, a call, a sequence of both, a whole response and a function of the request are answers."""
    whole = InferenceResponse((Reasoning("hm"), Text("so")), "length", Usage(1, 2), "m", "id")

    def about(request: InferenceRequest) -> str:
        return f"you said {request.messages[0].text}"

    model = ScriptedInference("hello", CALL, ["both", CALL, CALL], whole, about, lambda _: whole, [])
    answers = [await model.infer(QUESTION) for _ in range(7)]
    assert [answer.parts for answer in answers] == [
        (Text("hello"),),
        (CALL,),
        (Text("both"), CALL, CALL),
        whole.parts,
        (Text("you said How are you?"),),
        whole.parts,
        (),
    ]
    assert answers[3] is whole


async def test_answers_say_why_they_end() -> None:
    """An answer with calls ends for them, one without ends by itself."""
    model = ScriptedInference("hello", CALL, ["both", CALL])
    reasons = [(await model.infer(QUESTION)).finish_reason for _ in range(3)]
    assert reasons == [FinishReason.STOP, FinishReason.TOOL_CALLS, FinishReason.TOOL_CALLS]


async def test_answers_have_ids_a_model_and_usage() -> None:
    """Answers count as one inference each, of the tokens that the script is told to use."""
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


async def test_the_end_of_the_script_is_told() -> None:
    """More questions than lines are a mistake of the test or program that wrote the script."""
    model = ScriptedInference("only")
    await model.infer(QUESTION)
    with pytest.raises(ContractViolation, match="the script has 1 lines, and response 2 was requested"):
        await model.infer(QUESTION)


async def test_each_execution_begins_at_the_first_line() -> None:
    """Bound copies follow the script each for itself, and note their requests in one place."""
    model = ScriptedInference("first", "second")
    one, other = model.with_execution_scope(ExecutionScope()), model.with_execution_scope(ExecutionScope())
    assert [(await copy.infer(QUESTION)).text for copy in (one, other, one, other)] == [
        "first",
        "first",
        "second",
        "second",
    ]
    assert model.requests == [QUESTION] * 4


async def test_requests_are_noted_in_order() -> None:
    """What was asked can be looked at afterwards, errors and the end of the script included."""
    requests = [InferenceRequest((Message.user(str(number)),)) for number in range(3)]
    model = ScriptedInference(ValueError("no"), "yes")
    await asyncio.gather(*[model.infer(request) for request in requests], return_exceptions=True)
    assert model.requests == requests


def test_a_script_shows_how_long_it_is() -> None:
    """The repr tells the number of lines, not the lines."""
    assert repr(ScriptedInference("a", "b")) == "ScriptedInference(2 lines)"
