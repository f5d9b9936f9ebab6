"""Law 12: one scenario comes to the same under every driver and mode, and a driver for which it does not is caught."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import evolve, frozen

from agentloop import Message, ReActDriver, ToolCall, ToolCallingDriver
from agentloop.contracts import CanInfer, CanUseTools
from agentloop.drivers import StepDraft
from agentloop.interception import around_inference, before_inference
from agentloop.interception.stack import InterceptorStack
from agentloop.modes import get_mode
from agentloop.testing import NOTATIONS, EquivalenceKit, LawViolation, Scenario
from agentloop.values import InferenceRequest, InferenceResponse, ResponsePart, Text

TOOL_CALLING = ("native", "structured", "validated", "parsed")
REACT = {"react-json": "json", "react-text": "text"}


def maker(mode: str, *, streaming: bool = False) -> Callable[[Scenario], CanUseTools]:
    """Return what makes the driver that works in a mode, over a model that writes its notation."""

    def make(scenario: Scenario) -> CanUseTools:
        model = scenario.inference(NOTATIONS[mode])
        if mode in TOOL_CALLING:
            return ToolCallingDriver(model, mode=get_mode(mode), streaming=streaming)
        output: Any = REACT[mode]
        return ReActDriver(model, output=output, streaming=streaming)

    return make


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("mode", [*TOOL_CALLING, *REACT])
def test_every_driver_and_mode_comes_to_the_same(mode: str, streaming: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """Calls, outcomes, answer, reason to stop, points and events are those of native tool calls without streaming."""
    EquivalenceKit(maker(mode, streaming=streaming), examples=60).check(12)


def test_every_mode_has_a_notation() -> None:
    """No mode is left out of the comparison."""
    assert set(NOTATIONS) == {*TOOL_CALLING, *REACT}


@frozen(kw_only=True)
class SkipsAPoint(ReActDriver):
    """Breaks the law: `after_inference` is not passed."""

    async def infer(
        self, draft: StepDraft, request: InferenceRequest, *, inference: CanInfer | None = None
    ) -> InferenceResponse:
        stack = self.interceptor
        some = InterceptorStack.of([before_inference(stack.handle), around_inference(stack.around)])
        without = evolve(self, interceptor=some)
        return await super(SkipsAPoint, without).infer(draft, request, inference=inference)


@frozen(kw_only=True)
class TurnsCallsAround(ReActDriver):
    """Breaks the law: calls are made in another order."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        return tuple(reversed(await super().decide(draft, messages)))


@frozen(kw_only=True)
class ChangesArguments(ReActDriver):
    """Breaks the law: what the model gave for an argument is changed."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple([_rounded(part) if isinstance(part, ToolCall) else part for part in parts])


@frozen(kw_only=True)
class WordsTheAnswer(ReActDriver):
    """Breaks the law: the answer gets another wording."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple([Text(f"{part.text}!") if isinstance(part, Text) else part for part in parts])


@frozen(kw_only=True)
class NeverGoesOn(ReActDriver):
    """Breaks the law: it answers beside the first calls, and makes them without having them executed."""

    async def decide(self, draft: StepDraft, messages: Sequence[Message]) -> tuple[ResponsePart, ...]:
        parts = await super().decide(draft, messages)
        return tuple([part for part in parts if not isinstance(part, ToolCall)]) or (Text("done"),)


def _rounded(call: ToolCall) -> ToolCall:
    return call.with_arguments({**call.arguments, "value": 10 * (int(str(call.arguments["value"])) // 10)})


@pytest.mark.unmonitored
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (SkipsAPoint, "points: "),
        (TurnsCallsAround, "outcomes: "),
        (ChangesArguments, "outcomes: "),
        (WordsTheAnswer, "final_text: "),
        (NeverGoesOn, "outcomes: "),
    ],
)
def test_a_driver_that_differs_is_caught(make: Any, what: str) -> None:
    """What differs is named."""
    kit = EquivalenceKit(lambda scenario: make(scenario.inference(NOTATIONS["react-json"]), output="json"))
    with pytest.raises(LawViolation, match=f"law 12 is violated: {what}"):
        kit.check(12)
