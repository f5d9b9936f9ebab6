"""Streaming drivers: what is told on the way, and that the run is the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.errors import InvalidResponse
from agentloop.events import InferenceDeltaReceived, InferenceResponseReceived, InferenceRetried
from agentloop.interception import AroundInference, ProceedInference
from agentloop.testing import CountingIds, ManualClock
from agentloop.values import AgentState, Event, InferenceDelta, InferenceRequest, InferenceResponse, Text, to_json


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALLS = (ToolCall("1", "add", '{"a": 1, "b": 2}'), ToolCall("2", "add", '{"a": 3, "b": 4}'))


async def run(*, streaming: bool) -> tuple[AgentState, list[Event]]:
    """Run the script."""
    events: list[Event] = []
    driver = ToolCallingDriver(ScriptedInference(["Let me see. ", *CALLS], "3 and 7."), streaming=streaming)
    loop = AgentLoop(driver, [add], clock=ManualClock(), ids=CountingIds())
    loop.wiretap(events.append)
    return await loop.execute("?"), events


async def test_a_streamed_run_ends_in_the_same_state() -> None:
    """Law 7 and law 8: streaming changes what is told on the way, and nothing that stays."""
    plain, plain_events = await run(streaming=False)
    streamed, streamed_events = await run(streaming=True)
    assert to_json(streamed) == to_json(plain)
    rest = [event for event in streamed_events if not isinstance(event, InferenceDeltaReceived)]
    assert [type(event) for event in rest] == [type(event) for event in plain_events]
    assert len(rest) < len(streamed_events)


async def test_deltas_tell_text_and_calls_before_the_response() -> None:
    """The pieces of an answer come between the request and the response, each of its kind."""
    _, events = await run(streaming=True)
    deltas = [event.delta for event in events if isinstance(event, InferenceDeltaReceived)]
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "Let me see. 3 and 7."
    assert [(delta.index, delta.call_id) for delta in deltas if delta.kind == "tool_call"] == [(0, "1"), (1, "2")]
    assert {delta.attempt for delta in deltas} == {1}


class Flaky(CanInfer):
    """Breaks off in the middle of its first answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text("whole"),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        self.asked += 1
        yield InferenceDelta("text", "who")
        if self.asked == 1:
            raise InvalidResponse("broke off")
        yield InferenceDelta("text", "le")
        yield await self.infer(request)


class Again(Interceptor):
    """Proceeds a second time after an error."""

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        try:
            return await proceed()
        except InvalidResponse:
            return await proceed()


async def test_deltas_carry_the_attempt_they_belong_to() -> None:
    """What an interceptor repeats is told as such: the pieces before it are void."""
    events: list[Event] = []
    loop = AgentLoop(ToolCallingDriver(Flaky(), streaming=True), interceptors=[Again()])
    loop.wiretap(events.append)
    assert (await loop.execute("?")).final_text == "whole"
    told = [
        (type(event).__name__, event.delta.attempt if isinstance(event, InferenceDeltaReceived) else 0)
        for event in events
        if isinstance(event, InferenceDeltaReceived | InferenceRetried | InferenceResponseReceived)
    ]
    assert told == [
        ("InferenceDeltaReceived", 1),
        ("InferenceRetried", 0),
        ("InferenceDeltaReceived", 2),
        ("InferenceDeltaReceived", 2),
        ("InferenceResponseReceived", 0),
    ]


async def test_the_final_word_is_that_of_the_interceptors() -> None:
    """Deltas are provisional: `InferenceResponseReceived` tells what an interceptor made of the answer."""

    class Shout(Interceptor):
        async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
            response = await proceed()
            return evolve(response, parts=(Text(response.text.upper()),))

    loop = AgentLoop(ToolCallingDriver(ScriptedInference("so"), streaming=True), interceptors=[Shout()])
    assert (await loop.execute("?")).final_text == "SO"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("given", "name"), [(None, "None"), ("hi", "str")])
async def test_what_is_no_answer_is_named(given: Any, name: str, *, streaming: bool) -> None:
    """An inference of another's making that gives something else has broken its contract, and the run says which."""

    class Odd(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            return given  # type: ignore[no-any-return]  # what the test is about

        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield given

    state = await AgentLoop(ToolCallingDriver(Odd(), streaming=streaming)).execute("?")
    assert state.errors[-1].type == "ContractViolation"
    assert state.errors[-1].message.startswith(f"Odd {'streamed' if streaming else 'returned'} {name};")


async def test_a_stream_without_a_response_is_a_failure() -> None:
    """An inference that ends its stream without a response has broken its contract, and the run says so."""

    class Silent(ScriptedInference):
        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield InferenceDelta("text", "so")

    state = await AgentLoop(ToolCallingDriver(Silent(), streaming=True)).execute("?")
    assert state.errors[-1].message == "the stream of Silent ended without a response"


async def test_a_loop_streams_the_deltas_and_can_be_left() -> None:
    """`loop.stream()` gives the pieces as typed events; leaving it early ends the run."""
    driver = ToolCallingDriver(ScriptedInference("one two three"), streaming=True)
    told = []
    async with AgentLoop(driver).stream("?") as events:
        async for event in events:
            if isinstance(event, InferenceDeltaReceived):
                told.append(event.delta.text)
                if len(told) == 2:
                    break
    assert told == ["one ", "two "]
