"""Answers of a model, whole and in pieces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentloop.values.inference import FinishReason, InferenceDelta, InferenceResponse, Usage, iter_deltas
from agentloop.values.parts import ProviderPart, Reasoning, Text
from agentloop.values.serialization import to_json
from agentloop.values.tool_calls import ToolCall
from tests.strategies import inference_deltas, inference_responses

CALL = ToolCall("1", "find")


@given(inference_responses())
def test_text_thoughts_and_calls_are_those_of_the_parts(response: InferenceResponse) -> None:
    """The accessors sift the parts and keep their order."""
    assert response.text == "".join(part.text for part in response.parts if isinstance(part, Text))
    assert response.reasoning == "".join(part.text for part in response.parts if isinstance(part, Reasoning))
    assert list(response.tool_calls) == [part for part in response.parts if isinstance(part, ToolCall)]


@given(inference_responses(), st.text(max_size=5))
def test_a_replaced_text_has_the_position_of_the_first_text_part(response: InferenceResponse, text: str) -> None:
    """The result has a single text part; all other parts keep their order."""
    before = to_json(response)
    changed = response.with_text(text)
    others = [part for part in response.parts if not isinstance(part, Text)]
    assert changed.text == text
    assert [part for part in changed.parts if not isinstance(part, Text)] == others
    assert len(changed.parts) == len(others) + 1
    first = next((place for place, part in enumerate(response.parts) if isinstance(part, Text)), 0)
    assert changed.parts[first] == Text(text)
    assert (changed.finish_reason, changed.usage, changed.id) == (response.finish_reason, response.usage, response.id)
    assert to_json(response) == before


def test_a_text_that_was_not_there_comes_first() -> None:
    """Before calls, and before reasoning."""
    response = InferenceResponse([Reasoning("hm"), CALL, ProviderPart("f", 1)])
    assert response.with_text("new").parts == (Text("new"), Reasoning("hm"), CALL, ProviderPart("f", 1))
    assert response.with_parts([CALL, CALL]).parts == (CALL, CALL)


def test_an_answer_that_tells_little_is_an_answer() -> None:
    """Token counts are None by default, and finish reasons can be passed by name."""
    assert InferenceResponse([]) == InferenceResponse((), FinishReason.STOP, Usage(), "", "", None)
    assert InferenceResponse([], "length").finish_reason is FinishReason.LENGTH


@given(inference_deltas())
def test_the_text_of_a_delta_is_no_part_of_arguments(delta: InferenceDelta) -> None:
    """A program that shows the texts of all deltas shows no JSON of a call; arguments may be passed as the text."""
    assert not (delta.kind == "arguments" and delta.text)
    assert InferenceDelta("arguments", '{"a"', 2) == InferenceDelta("arguments", index=2, arguments='{"a"')
    call = ToolCall("1", "f", '{"a": 1}')
    deltas = [*iter_deltas(InferenceResponse((Text("I add."), call)))]
    assert ("".join(each.text for each in deltas), deltas[-1].arguments) == ("I add.", '{"a": 1}')


@given(inference_deltas(), st.integers(1, 3))
def test_the_attempt_of_a_delta_can_be_changed(delta: InferenceDelta, attempt: int) -> None:
    """Only the number of the attempt changes."""
    moved = delta.with_attempt(attempt)
    assert moved.attempt == attempt
    assert moved.with_attempt(delta.attempt) == delta
