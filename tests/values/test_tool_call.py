"""Tool calls and the reading of their arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import MalformedArguments, NotJson, ToolError
from agentloop.testing.strategies import json_objects, tool_calls
from agentloop.values.json import JsonObject, thaw
from agentloop.values.tool_calls import ToolCall, parse_arguments


def call(arguments_json: str) -> ToolCall:
    """Make a call with these arguments."""
    return ToolCall("call_1", "find", arguments_json)


@given(tool_calls())
def test_arguments_are_those_that_the_text_says(made: ToolCall) -> None:
    """The mapping is what the JSON text holds, and reading it does not touch the text."""
    expected = json.loads(made.arguments_json) if made.arguments_json else {}
    assert thaw(made.arguments) == expected
    assert isinstance(made.arguments, JsonObject)
    assert parse_arguments(made.arguments_json) == expected


def test_the_text_stays_as_the_model_wrote_it() -> None:
    """Spaces, order and escapes are kept, so that history is byte-stable."""
    text = '{ "b":\t"\\u00e9", "a": 1.0 }'
    assert call(text).arguments_json == text
    assert call(text).arguments == {"b": "é", "a": 1.0}


@pytest.mark.parametrize("nothing", ["", " ", "\n\t", "null", " null ", "{}", "{ }"])
def test_no_arguments_are_no_arguments(nothing: str) -> None:
    """Providers spell a call without arguments in several ways; all mean the same."""
    assert call(nothing).arguments == {}
    assert parse_arguments(nothing) == {}


def test_the_last_of_repeated_arguments_counts() -> None:
    """A repeated name is read as JSON parsers read it."""
    assert call('{"a": 1, "a": 2}').arguments == {"a": 2}


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[1]", "array"), ('"a"', "string"), ("true", "boolean"), ("1", "number"), ("1.5", "number")],
)
def test_json_that_is_no_object_is_told_apart(text: str, kind: str) -> None:
    """The error says which JSON value came and what is wanted."""
    with pytest.raises(MalformedArguments) as caught:
        _ = call(text).arguments
    assert str(caught.value) == (
        f"the arguments are a JSON {kind}, not an object: {text}; send one JSON object with the arguments by name"
    )


@pytest.mark.parametrize(
    "text", ['{"city": "Par', '{"a": [1, 2', "{", '{"a": {"b": "}"', '{"a": 1, ', '{"a": "x\\', '"abc', "[[1]"]
)
def test_arguments_that_were_cut_off_are_told_so(text: str) -> None:
    """A model that ran out of tokens learns that, not that it cannot write JSON."""
    with pytest.raises(
        MalformedArguments, match=r"^the arguments are cut off \(.+\): .+; send one complete JSON object$"
    ):
        parse_arguments(text)


@pytest.mark.parametrize(
    "text", ["{'a': 1}", '{"a": 1}}', "{a: 1}", '{"a": NaN}', '{"a": 1e999}', "]", '{"a": 1]', "x"]
)
def test_arguments_that_are_no_json_are_told_so(text: str) -> None:
    """What could not be completed to JSON is malformed; NaN and numbers beyond floats are among it."""
    with pytest.raises(MalformedArguments, match=r"^the arguments are not valid JSON \(.+\)"):
        parse_arguments(text)


def test_an_error_shows_the_beginning_of_long_arguments() -> None:
    """A megabyte of broken arguments does not become a megabyte of error."""
    with pytest.raises(MalformedArguments, match=r"… \(1000001 characters\)") as caught:
        parse_arguments("[" + "x" * 1_000_000)
    assert len(str(caught.value)) < 600
    assert isinstance(caught.value, ToolError)


@pytest.mark.parametrize("text", ['{"a":' + "[" * 300 + "]" * 300 + "}", '{"a":' + "[" * 20_000 + "]" * 20_000 + "}"])
def test_arguments_nested_too_deeply_are_malformed(text: str) -> None:
    """What could not be kept as a value never reaches a tool."""
    for read in (parse_arguments, lambda given_text: call(given_text).arguments):
        with pytest.raises(MalformedArguments, match="nested"):
            read(text)


def test_two_hundred_brackets_that_are_not_nested_are_fine() -> None:
    """Many values side by side are not deep."""
    text = json.dumps({"rows": [[index] for index in range(500)]})
    assert len(parse_arguments(text)["rows"]) == 500  # type: ignore[arg-type]  # a list, by its making
    assert len(call(text).arguments["rows"]) == 500


@given(st.text() | st.text('{}[]",:\\ 1a'))
def test_reading_arguments_gives_an_object_or_says_that_they_are_malformed(text: str) -> None:
    """No text makes it fail in another way."""
    try:
        arguments = parse_arguments(text)
    except MalformedArguments:
        with pytest.raises(MalformedArguments):
            _ = call(text).arguments
    else:
        assert call(text).arguments == JsonObject(arguments)


@given(tool_calls(), json_objects())
def test_other_arguments_make_another_call(made: ToolCall, arguments: JsonObject) -> None:
    """Id, name and provider data stay, the first call stays, and the new arguments are read back."""
    before = made.arguments_json
    changed = made.with_arguments(arguments)
    assert changed.arguments == arguments
    assert (changed.id, changed.name, changed.provider_data) == (made.id, made.name, made.provider_data)
    assert made.arguments_json == before


@pytest.mark.parametrize("arguments", [{"a": float("nan")}, {"a": {1, 2}}, {1: 2}, [1]])
def test_arguments_that_are_not_json_are_refused(arguments: Any) -> None:
    """A changed call holds JSON or is not made."""
    with pytest.raises(NotJson):
        call("{}").with_arguments(arguments)
