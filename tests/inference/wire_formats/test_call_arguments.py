"""Arguments of calls on their way back to a provider."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import MalformedArguments
from agentloop.values import ToolCall, thaw
from agentloop.values.tool_calls import MALFORMED, arguments_object, arguments_text
from tests.inference.generated_requests import MALFORMED_ARGUMENTS, arguments


def call(text: str) -> ToolCall:
    """Make a call with these arguments."""
    return ToolCall("c", "add", text)


@pytest.mark.parametrize("text", ['{"b": 1,  "a": [2]}', '{"a":1.0}', '{"a": 1, "a": 2}', '{"é": "\\u00e9"}'])
def test_arguments_go_back_as_they_came(text: str) -> None:
    """Spaces, order, doubled keys and spellings of the model are kept, so that the history stays the same bytes."""
    assert arguments_text(call(text)) == text


@pytest.mark.parametrize("text", ["", "  ", "null"])
def test_no_arguments_go_back_as_an_empty_object(text: str) -> None:
    """What counts as no arguments is an object for the provider."""
    assert arguments_text(call(text)) == "{}"
    assert arguments_object(call(text)) == {}


@pytest.mark.parametrize("text", MALFORMED_ARGUMENTS)
def test_malformed_arguments_are_wrapped(text: str) -> None:
    """The model sees what it wrote, in an object that no provider refuses."""
    assert json.loads(arguments_text(call(text))) == {MALFORMED: text}
    assert arguments_object(call(text)) == {MALFORMED: text}


@given(arguments | st.text())
def test_arguments_are_always_an_object(text: str) -> None:
    """Whatever a model wrote, what goes back is one JSON object, the same as text and as an object."""
    spelled = json.loads(arguments_text(call(text)))
    assert isinstance(spelled, dict)
    assert spelled == arguments_object(call(text))
    try:
        assert spelled == thaw(call(text).arguments)
    except MalformedArguments:
        assert spelled == {MALFORMED: text}
