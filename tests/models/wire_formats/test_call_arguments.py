"""Tests of the arguments of calls that are sent back to a provider."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import MalformedArguments
from agentloop.values import ToolCall, thaw, tool_calls
from agentloop.values.tool_calls import MALFORMED, arguments_object, arguments_text, parse_arguments, repair_arguments
from tests.models.generated_requests import MALFORMED_ARGUMENTS, arguments


def call(text: str) -> ToolCall:
    """Return a call with these arguments."""
    return ToolCall("c", "add", text)


@pytest.mark.parametrize("text", ['{"b": 1,  "a": [2]}', '{"a":1.0}', '{"é": "\\u00e9"}'])
def test_arguments_are_sent_back_unchanged(text: str) -> None:
    """Whitespace, order, duplicate keys and escapes of the model are kept, so that the bytes of the history do not change."""
    assert arguments_text(call(text)) == text


@pytest.mark.parametrize("text", ["", "  ", "null"])
def test_missing_arguments_are_sent_back_as_an_empty_object(text: str) -> None:
    """An empty text and null count as no arguments."""
    assert arguments_text(call(text)) == "{}"
    assert arguments_object(call(text)) == {}


@pytest.mark.parametrize("text", MALFORMED_ARGUMENTS)
def test_malformed_arguments_are_wrapped(text: str) -> None:
    """The model sees what it wrote, in an object that providers accept."""
    assert json.loads(arguments_text(call(text))) == {MALFORMED: text}
    assert arguments_object(call(text)) == {MALFORMED: text}


@pytest.mark.parametrize("text", ['{"a": "1\n2"}', json.dumps('{"a": "1\\n2"}')])
def test_arguments_that_can_be_repaired_are_sent_back_so(text: str) -> None:
    """The model sees the arguments with which its call ran, not a call that it did not make."""
    assert json.loads(arguments_text(call(text))) == {"a": "1\n2"}
    assert arguments_object(call(text)) == {"a": "1\n2"}


@given(arguments | st.text())
def test_arguments_are_always_an_object(text: str) -> None:
    """The arguments are sent back as one JSON object, equal as text and as an object."""
    encoded = json.loads(arguments_text(call(text)))
    assert isinstance(encoded, dict)
    assert encoded == arguments_object(call(text))
    try:
        assert encoded == thaw(call(text).arguments)
    except MalformedArguments:
        assert encoded == {MALFORMED: text} or repair_arguments(text) is not None


@pytest.mark.parametrize("text", ['"' + '\\"' * 1000, '{"a": "' + '\\"' * 1000 + "\\", '"' + "a" * 1000])
def test_a_text_without_its_end_is_searched_once(text: str) -> None:
    """The search for texts does not begin again at each quote in one that does not end, which takes quadratic time."""
    last = [*tool_calls._JSON_STRING.finditer(text)][-1]
    assert last.end() >= len(text) - 1
    assert repair_arguments(text) is None


@pytest.mark.parametrize("entries", ["[],", "1,", '{"b":1},'])
def test_arguments_with_very_many_entries_are_not_parsed(entries: str) -> None:
    """The message says how many there may be; commas in a text are no entries."""
    with pytest.raises(
        MalformedArguments, match=r"more than 100,000 entries in its lists and objects.*send fewer at once"
    ):
        parse_arguments('{"a": [' + entries * 100_001 + "1]}")
    text = entries.replace('"', "") * 100_001
    assert parse_arguments(json.dumps({"a": text})) == {"a": text}
