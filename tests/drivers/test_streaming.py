"""Streaming drivers: the deltas they emit, and that the result does not depend on streaming."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, Interceptor, ReActDriver, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanInfer
from agentloop.errors import InvalidResponse
from agentloop.events import InferenceDeltaReceived, InferenceResponseReceived, InferenceRetried
from agentloop.interception import AfterInference, AroundInference, BeforeStep, ProceedInference
from agentloop.models import FallbackInference
from agentloop.testing import CountingIds, CrashableJournal, ManualClock
from agentloop.values import (
    AgentState,
    Event,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    RecordKind,
    Text,
    to_json,
)
from agentloop.values.inference import iter_deltas
from tests.models.chat_stream import chunk, stream_text
from tests.models.loopback import loopback, respond_chunked
from tests.models.loopback_inference import inference_for


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


CALLS = (ToolCall("1", "add", '{"a": 1, "b": 2}'), ToolCall("2", "add", '{"a": 3, "b": 4}'))


async def run(*, streaming: bool) -> tuple[AgentState, list[Event]]:
    """Run the script, and return the final state and the events."""
    events: list[Event] = []
    driver = ToolCallingDriver(ScriptedInference(["Let me see. ", *CALLS], "3 and 7."), streaming=streaming)
    loop = AgentLoop(driver, [add], clock=ManualClock(), ids=CountingIds())
    loop.wiretap(events.append)
    return await loop.execute("?"), events


async def test_a_streamed_run_ends_in_the_same_state() -> None:
    """Laws 7 and 8: streaming adds deltas to the events, and changes nothing else."""
    plain, plain_events = await run(streaming=False)
    streamed, streamed_events = await run(streaming=True)
    assert to_json(streamed) == to_json(plain)
    others = [event for event in streamed_events if not isinstance(event, InferenceDeltaReceived)]
    assert [type(event) for event in others] == [type(event) for event in plain_events]
    assert len(others) < len(streamed_events)


async def test_deltas_hold_text_and_calls_before_the_response() -> None:
    """The chunks of a response are emitted between the request and the response, each with its kind."""
    _, events = await run(streaming=True)
    deltas = [event.delta for event in events if isinstance(event, InferenceDeltaReceived)]
    assert "".join(delta.text for delta in deltas if delta.kind == "text") == "Let me see. 3 and 7."
    assert [(delta.index, delta.call_id) for delta in deltas if delta.kind == "tool_call"] == [(0, "1"), (1, "2")]
    assert {delta.attempt for delta in deltas} == {1}


class Flaky(CanInfer):
    """Fails in the middle of its first stream."""

    def __init__(self) -> None:
        self.requests = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text("whole"),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        self.requests += 1
        yield InferenceDelta("text", "who")
        if self.requests == 1:
            raise InvalidResponse("broke off")
        yield InferenceDelta("text", "le")
        yield await self.infer(request)


class RetryOnce(Interceptor):
    """Proceeds a second time after an error."""

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        try:
            return await proceed()
        except InvalidResponse:
            return await proceed()


async def test_deltas_carry_the_attempt_they_belong_to() -> None:
    """When an interceptor retries, the deltas carry the attempt, so that those of the failed attempt can be discarded."""
    events: list[Event] = []
    loop = AgentLoop(ToolCallingDriver(Flaky(), streaming=True), interceptors=[RetryOnce()])
    loop.wiretap(events.append)
    assert (await loop.execute("?")).final_text == "whole"
    emitted = [
        (type(event).__name__, event.delta.attempt if isinstance(event, InferenceDeltaReceived) else 0)
        for event in events
        if isinstance(event, InferenceDeltaReceived | InferenceRetried | InferenceResponseReceived)
    ]
    assert emitted == [
        ("InferenceDeltaReceived", 1),
        ("InferenceRetried", 0),
        ("InferenceDeltaReceived", 2),
        ("InferenceDeltaReceived", 2),
        ("InferenceResponseReceived", 0),
    ]


@pytest.mark.parametrize(
    ("create", "broken", "whole"),
    [
        (
            partial(ReActDriver, output="text"),
            ["Thought: I know.\nFinal ", "Answer: It may be"],
            ["Thought: I wonder.\nFinal", " Answer: It is 3."],
        ),
        (partial(ReActDriver, output="json"), ['{"answer": "It may'], ['{"thought": "Hm.", ', '"answer": "It is 3."}']),
        (
            partial(ToolCallingDriver, mode="validated"),
            ["It is", " possibly"],
            ['{"answer": "It is 3.",', ' "scratchpad": "x"}'],
        ),
        (partial(ToolCallingDriver, mode="structured"), ['{"next": [{"ans'], ['{"next": [{"answer": "It is 3."}]}']),
        (partial(ToolCallingDriver, mode="native"), ["It may", " be"], ["It is", " 3."]),
    ],
    ids=["react-text", "react-json", "validated", "structured", "native"],
)
async def test_a_stream_that_a_connection_broke_off_is_written_anew(
    create: Callable[..., ReActDriver | ToolCallingDriver], broken: list[str], whole: list[str]
) -> None:
    """A listener that discards the deltas of the failed attempt has the answer, in every mode."""
    deltas: list[InferenceDelta] = []
    cut = respond_chunked([chunk({"content": piece}) for piece in broken], ends=False)
    async with loopback(cut, stream_text(*whole)) as server:
        loop = AgentLoop(create(inference_for(server), streaming=True), [add])
        loop.on(InferenceDeltaReceived, lambda event: deltas.append(event.delta))
        assert (await loop.execute("1 + 2?")).final_text == "It is 3."
    assert "".join(delta.text for delta in deltas if (delta.kind, delta.attempt) == ("text", 2)) == "It is 3."


STREAMED = st.one_of(
    st.sampled_from(["", "one ", "one two", "three"]).map(lambda text: InferenceResponse((Text(text),))),
    st.sampled_from([1, 2]).map(lambda n: InferenceResponse((ToolCall(f"c{n}", "add", f'{{"a": {n}, "b": 0}}'),))),
)


class Planned(CanInfer):
    """Streams responses in their order; after those that fail, the stream breaks off."""

    def __init__(self, plan: list[tuple[InferenceResponse, bool]]) -> None:
        self.plan = plan
        self.asked = 0

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text("done"),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        if self.asked == len(self.plan):  # the step after the calls
            yield await self.infer(request)
            return
        response, fails = self.plan[self.asked]
        self.asked += 1
        for delta in iter_deltas(response):
            yield delta
        if fails:
            raise InvalidResponse("broke off")
        yield response


class ProceedsOften(Interceptor):
    """Proceeds as often as there are planned responses, and returns the one at an index of those that arrived."""

    def __init__(self, times: int, index: int) -> None:
        self.times, self.index = times, index
        self.is_over = False

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        if self.is_over:
            return await proceed()
        self.is_over = True
        received = []
        for _ in range(self.times):
            with suppress(InvalidResponse):
                received.append(await proceed())
        return received[self.index % len(received)]


class Rewrites(Interceptor):
    """Adds to texts at one of the points at which a response can be replaced, and wants deltas to be held."""

    holds_deltas = True

    def __init__(self, where: str, addition: str) -> None:
        self.where, self.addition = where, addition

    def _rewritten(self, response: InferenceResponse) -> InferenceResponse:
        return response.with_parts([Text(self.addition), *response.parts]) if self.addition else response

    async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
        response = await proceed()
        return self._rewritten(response) if self.where == "around_inference" else response

    def after_inference(self, point: AfterInference) -> AfterInference:
        return point.with_response(self._rewritten(point.response)) if self.where == "after_inference" else point


class OnlyHolds(Interceptor):
    """Wants deltas to be held, and uses no point of an inference."""

    holds_deltas = True

    def before_step(self, point: BeforeStep) -> BeforeStep:
        return point


@given(
    plan=st.lists(st.tuples(STREAMED, st.booleans()), min_size=1, max_size=4).filter(
        lambda plan: not all(fails for _, fails in plan)
    ),
    index=st.integers(0, 3),
    where=st.sampled_from(["around_inference", "after_inference", "nowhere"]),
    addition=st.sampled_from(["", "secret "]),
)
def test_held_deltas_are_those_of_the_response_that_has_passed(
    plan: list[tuple[InferenceResponse, bool]], index: int, where: str, addition: str
) -> None:
    """Those of failed attempts, of other responses and of a text that was replaced, wherever it was, are dropped."""
    holding: Interceptor = OnlyHolds() if where == "nowhere" else Rewrites(where, addition)
    deltas: list[InferenceDelta] = []
    driver = ToolCallingDriver(Planned(plan), streaming=True)
    loop = AgentLoop(driver, [add], interceptors=[holding, ProceedsOften(len(plan), index)])
    loop.on(InferenceDeltaReceived, lambda event: deltas.append(event.delta) if event.step_number == 1 else None)
    loop.execute_sync("?", execution_id="run")
    received = [response for response, fails in plan if not fails]
    returned = received[index % len(received)]
    is_replaced = where != "nowhere" and addition
    expected = () if is_replaced else iter_deltas(returned)
    assert [delta.with_attempt(1) for delta in deltas] == list(expected)


async def test_held_deltas_of_a_model_that_was_replaced_are_dropped() -> None:
    """When the stream of a model breaks off and another model answers, only the deltas of the answer are emitted."""
    broken, deltas = Planned([(InferenceResponse((Text("an early text"),)), True)]), list[str]()
    driver = ToolCallingDriver(FallbackInference([broken, ScriptedInference("whole")]), streaming=True)
    loop = AgentLoop(driver, interceptors=[OnlyHolds()])
    loop.on(InferenceDeltaReceived, lambda event: deltas.append(event.delta.text))
    assert (await loop.execute("?")).final_text == "whole"
    assert deltas == ["whole"]


async def test_a_recorded_response_has_no_deltas() -> None:
    """The response of an interrupted step is reused whole, also if an interceptor holds deltas."""
    journal, deltas = CrashableJournal(), list[str]()
    driver = ToolCallingDriver(ScriptedInference("so"), streaming=True)
    loop = AgentLoop(driver, interceptors=[OnlyHolds()], journal=journal)
    await loop.execute("?", execution_id="run")
    kinds = [record.kind for record in journal.appended]
    remaining = await journal.after_crash(kinds.index(RecordKind.INFERENCE_RECORDED) + 1)
    loop.on(InferenceDeltaReceived, lambda event: deltas.append(event.delta.text))
    assert (await loop.replace(journal=remaining).recover("run")).final_text == "so"
    assert deltas == []


async def test_the_response_after_the_interceptors_is_final() -> None:
    """Deltas are provisional: `InferenceResponseReceived` holds the response after the interceptors."""

    class Shout(Interceptor):
        async def around_inference(self, point: AroundInference, proceed: ProceedInference) -> InferenceResponse:
            response = await proceed()
            return evolve(response, parts=(Text(response.text.upper()),))

    loop = AgentLoop(ToolCallingDriver(ScriptedInference("so"), streaming=True), interceptors=[Shout()])
    assert (await loop.execute("?")).final_text == "SO"


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("result", "name"), [(None, "None"), ("hi", "str")])
async def test_an_invalid_result_of_an_inference_is_named(result: Any, name: str, *, streaming: bool) -> None:
    """An inference that returns anything but a response violates its contract; the error names its class."""

    class Odd(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            return result  # type: ignore[no-any-return]  # the violation that is tested

        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield result

    state = await AgentLoop(ToolCallingDriver(Odd(), streaming=streaming)).execute("?")
    assert state.errors[-1].type == "ContractViolation"
    assert state.errors[-1].message.startswith(f"Odd {'streamed' if streaming else 'returned'} {name};")


async def test_a_stream_without_a_response_is_a_failure() -> None:
    """An inference that ends its stream without a response violates its contract; the error says so."""

    class Silent(ScriptedInference):
        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield InferenceDelta("text", "so")

    state = await AgentLoop(ToolCallingDriver(Silent(), streaming=True)).execute("?")
    assert state.errors[-1].message == "the stream of Silent ended without a response"


async def test_a_loop_streams_deltas_and_the_stream_can_be_closed_early() -> None:
    """`loop.stream()` yields the chunks as typed events; leaving the block ends the execution."""
    driver = ToolCallingDriver(ScriptedInference("one two three"), streaming=True)
    texts = []
    async with AgentLoop(driver).stream("?") as events:
        async for event in events:
            if isinstance(event, InferenceDeltaReceived):
                texts.append(event.delta.text)
                if len(texts) == 2:
                    break
    assert texts == ["one ", "two "]
