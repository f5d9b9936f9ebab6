"""Law 12: a scenario gives the same result under every driver and mode, and drivers that differ fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from agentloop import ReActDriver, ToolCallingDriver
from agentloop.contracts import CanUseTools
from agentloop.models import TextMode, get_mode
from agentloop.testing import NOTATIONS, EquivalenceKit, LawViolation, Scenario, ScriptedTurn
from agentloop.values import InferenceResponse, Text
from tests.generated import examples
from tests.testing.zoo.equivalence import AnswersAtOnce, ChangesAnswer, ChangesArguments, ReversesCalls, SkipsAPoint

TOOL_CALLING = ("native", "structured", "validated", "parsed")
REACT = {"react-json": "json", "react-text": "text"}


def factory_for(mode: str, *, streaming: bool = False) -> Callable[[Scenario], CanUseTools]:
    """Return a factory of drivers for a mode, with a model that writes the notation of the mode."""

    def create(scenario: Scenario) -> CanUseTools:
        model = scenario.inference(NOTATIONS[mode])
        if mode in TOOL_CALLING:
            return ToolCallingDriver(model, mode=get_mode(mode), streaming=streaming)
        output: Any = REACT[mode]
        return ReActDriver(model, output=output, streaming=streaming)

    return create


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("mode", [*TOOL_CALLING, *REACT])
def test_every_driver_and_mode_is_equivalent(mode: str, streaming: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """Calls, outcomes, answer, stop reason, points and events equal those of native tool calls without streaming."""
    EquivalenceKit(factory_for(mode, streaming=streaming), examples=examples(25)).check(12)


def write_tags_in_prose(turn: ScriptedTurn, index: int) -> InferenceResponse:
    """Write a turn as text with calls in tags behind its text, which is visible."""
    tags = NOTATIONS["validated"](evolve(turn, text="") if turn.calls else turn, index)
    return tags.with_parts([Text(f"{turn.text}\n{tags.text}")]) if turn.calls and turn.text else tags


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("reprompts", [False, True])
def test_calls_behind_visible_text_are_equivalent(streaming: bool, reprompts: bool) -> None:  # noqa: FBT001  # parameters of the test
    """Where calls in prose run, text before calls in tags makes no difference."""
    mode = TextMode(run_embedded="always", reprompts=reprompts)

    def create(scenario: Scenario) -> CanUseTools:
        return ToolCallingDriver(scenario.inference(write_tags_in_prose), mode=mode, streaming=streaming)

    EquivalenceKit(create, examples=examples(25)).check(12)


def test_every_mode_has_a_notation() -> None:
    """The comparison covers every mode."""
    assert set(NOTATIONS) == {*TOOL_CALLING, *REACT}


@pytest.mark.unmonitored
@pytest.mark.parametrize(
    ("driver", "attribute"),
    [
        (SkipsAPoint, r"points\[\d+\]: "),
        (ReversesCalls, r"outcomes\[\d+\]: "),
        (ChangesArguments, r"outcomes\[\d+\]: "),
        (ChangesAnswer, "final_text: "),
        (AnswersAtOnce, r"outcomes\[\d+\]: "),
    ],
)
def test_a_driver_that_differs_violates_the_law(driver: Any, attribute: str) -> None:
    """The message names the attribute that differs, and the first place in it."""
    kit = EquivalenceKit(lambda scenario: driver(scenario.inference(NOTATIONS["react-json"]), output="json"))
    with pytest.raises(LawViolation, match=f"law 12 is violated: {attribute}"):
        kit.check(12)
