"""The mode `native` with a tool for the answer, and a model that is called in a mode."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Self

import pytest
from attrs import evolve, frozen

from agentloop import ScriptedInference, ToolCall, tool
from agentloop.contracts import CanInfer, CanUseMode
from agentloop.contracts.can_infer import CanReportRetries, FailedAttempt, RetryReport
from agentloop.errors import InvalidResponse
from agentloop.models import TextMode
from agentloop.models.modes.native import AssumedMode, NativeMode
from agentloop.models.modes.program import ProgramMode
from agentloop.models.modes.react import ReActJsonMode, ReActTextMode
from agentloop.models.modes.selection import ModeInference
from agentloop.models.modes.structured import StructuredMode
from agentloop.values import (
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    Reasoning,
    ResponseFormat,
    Text,
)
from agentloop.values.inference import iter_deltas
from agentloop.values.tool_calls import ANSWER_TOOL


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


REQUEST = InferenceRequest((Message.user("1 + 2?"),), tools=(add.spec,))
NUMBER = ResponseFormat({"type": "integer"})
SUM = ResponseFormat({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]})
BY_TOOL = NativeMode(output="tool")


@pytest.mark.parametrize(
    ("response_format", "parameters"),
    [
        (SUM, SUM.schema),
        (ResponseFormat(), {"type": "object"}),
        (NUMBER, {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ("answer",)}),
    ],
)
def test_the_tool_for_the_answer_takes_what_is_requested(response_format: ResponseFormat, parameters: Any) -> None:
    """An object is the arguments themselves; any other answer is one of them."""
    offered = BY_TOOL.render_request(REQUEST.with_response_format(response_format))
    assert [spec.name for spec in offered.tools] == ["add", ANSWER_TOOL]
    assert offered.tools[1].parameters == parameters


@pytest.mark.parametrize(
    ("response_format", "arguments", "text"),
    [
        (SUM, '{"sum": 3}', '{"sum": 3}'),
        (ResponseFormat(), '{"answer": 3}', '{"answer": 3}'),
        (NUMBER, '{"answer": 3}', "3"),
        (NUMBER, '{"sum": 3}', '{"sum": 3}'),
        (NUMBER, "3", "3"),
        (NUMBER, '["answer"]', '["answer"]'),
        (NUMBER, "three", "three"),
    ],
)
def test_the_arguments_of_the_tool_are_the_answer(response_format: ResponseFormat, arguments: str, text: str) -> None:
    """What has another form than the model was told stays as it is, for the check of answers."""
    response = InferenceResponse((ToolCall("9", ANSWER_TOOL, arguments),))
    read = BY_TOOL.parse_response(response, REQUEST.with_response_format(response_format))
    assert read.parts == (Text(text),)


def test_only_the_call_that_gives_the_answer_is_held_back() -> None:
    """The deltas of other calls are emitted as they arrive."""
    stream = BY_TOOL.stream(REQUEST.with_response_format(NUMBER))
    written = InferenceResponse((ToolCall("1", "add", '{"a": 1, "b": 2}'), ToolCall("9", ANSWER_TOOL, '{"answer": 3}')))
    deltas = [delta for item in iter_deltas(written) for delta in stream.feed(item)]
    assert [(delta.kind, delta.index) for delta in deltas] == [("tool_call", 0), ("arguments", 0)]


class Watched(CanInfer):
    """A model that knows whether its stream was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse((Text("one two"),))

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        try:
            yield InferenceDelta("text", "one ")
            yield InferenceDelta("text", "two")
            yield await self.infer(request)
        finally:
            self.is_closed = True


class Items:
    """An iterator that cannot be closed."""

    def __init__(self, *items: InferenceDelta | InferenceResponse) -> None:
        self._items = [*items]

    def __aiter__(self) -> AsyncIterator[InferenceDelta | InferenceResponse]:
        return self

    async def __anext__(self) -> InferenceDelta | InferenceResponse:
        if not self._items:
            raise StopAsyncIteration
        return self._items.pop(0)


class Plain(Watched):
    """A model whose stream is an iterator and no generator."""

    def stream(self, request: InferenceRequest) -> AsyncIterator[InferenceDelta | InferenceResponse]:  # type: ignore[override]  # any iterator
        return Items(InferenceDelta("text", "one two"), InferenceResponse((Text("one two"),)))


async def test_a_stream_that_is_left_early_is_closed() -> None:
    """The connection to the model does not stay open."""
    model = Watched()
    stream = ModeInference(model, TextMode()).stream(REQUEST.with_tools(()))
    await anext(stream)
    assert not model.is_closed
    await stream.aclose()
    assert model.is_closed


async def test_a_model_may_stream_with_any_iterator() -> None:
    """One that cannot be closed needs not be."""
    items = [item async for item in ModeInference(Plain(), TextMode()).stream(REQUEST.with_tools(()))]
    assert items == [InferenceDelta("text", "one two"), InferenceResponse((Text("one two"),))]


@frozen
class Attempts(CanInfer, CanReportRetries):
    """A model that fails in its stream, and answers in another attempt; it reports that, or numbers the deltas."""

    attempts: tuple[InferenceResponse, ...]
    numbers_deltas: bool
    report: RetryReport | None = None

    def with_retry_report(self, report: RetryReport) -> Self:
        return evolve(self, report=report)

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        return self.attempts[-1]

    async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
        for number, response in enumerate(self.attempts, 1):
            if number > 1 and self.report is not None:
                self.report(FailedAttempt(number - 1, InvalidResponse("broke off"), 0.0))
            for delta in iter_deltas(response):
                yield delta.with_attempt(number if self.numbers_deltas else 1)
        yield await self.infer(request)


WRITTEN = [
    InferenceResponse((Text("It is 3."),)),
    InferenceResponse((ToolCall("1", "add", '{"a": 1, "b": 2}'),)),
    InferenceResponse((ToolCall("1", ANSWER_TOOL, '{"answer": 3}'),)),
    InferenceResponse((Reasoning("hm"), Text('{"next": [{"scratchpad": "I add."}, {"answer": "3"}]}'))),
    InferenceResponse((Text('{"next": [{"scratchpad": "I add."}, {"answer": "3"}]}'),)),
    InferenceResponse((Text('{"thought": "I know.", "type": "final", "answer": "3"}'),)),
    InferenceResponse((Text("Thought: I know.\nFinal Answer: It is 3."),)),
    InferenceResponse((Text('So: <tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'),)),
]


@pytest.mark.parametrize(
    "mode",
    [
        BY_TOOL,
        NativeMode(output="format"),
        AssumedMode(model="m"),
        TextMode(),
        StructuredMode(),
        ReActJsonMode(),
        ReActTextMode(),
        ProgramMode(),
    ],
    ids=lambda mode: type(mode).__name__,
)
@pytest.mark.parametrize("response_format", [None, NUMBER])
@pytest.mark.parametrize("numbers_deltas", [False, True])
async def test_an_attempt_is_streamed_as_if_none_had_failed_before_it(
    mode: CanUseMode, response_format: ResponseFormat | None, *, numbers_deltas: bool
) -> None:
    """Whatever the failed one has written; the deltas of each have its number if the model has numbered them."""
    request = REQUEST.with_response_format(response_format)

    async def read(
        *attempts: InferenceResponse,
    ) -> tuple[list[InferenceDelta | InferenceResponse], list[FailedAttempt]]:
        """Return what follows the last report of a failed attempt, and the reports."""
        items: list[InferenceDelta | InferenceResponse] = []
        reports: list[FailedAttempt] = []

        def report(failed: FailedAttempt) -> None:
            items.clear()
            reports.append(failed)

        model = ModeInference(Attempts(attempts, numbers_deltas), mode).with_retry_report(report)
        async for item in model.stream(request):
            items.append(item)  # noqa: PERF401  # a report clears it meanwhile
        return items, reports

    for answered in WRITTEN:
        alone, none = await read(answered)
        number = 2 if numbers_deltas else 1
        expected = [item.with_attempt(number) if isinstance(item, InferenceDelta) else item for item in alone]
        assert none == []
        for failed in WRITTEN:
            items, reports = await read(failed, answered)
            assert items == expected
            assert [report.attempt for report in reports] == [1]


def test_a_model_in_a_mode_is_equal_to_itself_alone() -> None:
    """As with any model, its requests may have other answers."""
    model = ScriptedInference("x")
    first, second = ModeInference(model, TextMode()), ModeInference(model, TextMode())
    assert len({first, second, first}) == 2
