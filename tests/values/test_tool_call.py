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
    """Return a call with these arguments."""
    return ToolCall("call_1", "find", arguments_json)


@given(tool_calls())
def test_arguments_are_parsed_from_the_text(call: ToolCall) -> None:
    """The mapping equals the JSON text, and parsing does not change the text."""
    expected = json.loads(call.arguments_json) if call.arguments_json else {}
    assert thaw(call.arguments) == expected
    assert isinstance(call.arguments, JsonObject)
    assert parse_arguments(call.arguments_json) == expected


def test_the_text_stays_as_the_model_wrote_it() -> None:
    """Spaces, order and escapes are unchanged, so that the history is byte-stable."""
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
    assert call('{"a": "b: c"}').arguments == {"a": "b: c"}


@pytest.mark.parametrize(
    ("text", "kind"),
    [("[1]", "array"), ('"a"', "string"), ("true", "boolean"), ("1", "number"), ("1.5", "number")],
)
def test_the_error_names_the_kind_of_a_json_value_that_is_not_an_object(text: str, kind: str) -> None:
    """The error names the kind of the JSON value and the expected kind."""
    with pytest.raises(MalformedArguments) as caught:
        _ = call(text).arguments
    assert str(caught.value) == (
        f"the arguments are a JSON {kind}, not an object: {text}; send one JSON object with the arguments by name"
    )


@pytest.mark.parametrize(
    "text", ['{"city": "Par', '{"a": [1, 2', "{", '{"a": {"b": "}"', '{"a": 1, ', '{"a": "x\\', '"abc', "[[1]"]
)
def test_the_error_says_that_arguments_are_cut_off(text: str) -> None:
    """A model that ran out of tokens learns that, not that it cannot write JSON."""
    with pytest.raises(
        MalformedArguments, match=r"^the arguments are cut off \(.+\): .+; send one complete JSON object$"
    ):
        parse_arguments(text)


@pytest.mark.parametrize(
    "text", ["{'a': 1}", '{"a": 1}}', "{a: 1}", '{"a": NaN}', '{"a": 1e999}', "]", '{"a": 1]', "x"]
)
def test_the_error_says_that_arguments_are_not_json(text: str) -> None:
    """Text that no continuation makes JSON is malformed, including NaN and numbers beyond floats."""
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
    """Arguments without an immutable form never reach a tool."""
    for read in (parse_arguments, lambda given_text: call(given_text).arguments):
        with pytest.raises(MalformedArguments, match="nested"):
            read(text)


def test_two_hundred_brackets_that_are_not_nested_are_fine() -> None:
    """Many values side by side are not deep."""
    text = json.dumps({"rows": [[index] for index in range(500)]})
    assert len(parse_arguments(text)["rows"]) == 500  # type: ignore[arg-type]  # a list, by its making
    assert len(call(text).arguments["rows"]) == 500


@given(st.text() | st.text('{}[]",:\\ 1a'))
def test_parsing_arguments_returns_an_object_or_raises_malformed_arguments(text: str) -> None:
    """No text makes it fail in another way."""
    try:
        arguments = parse_arguments(text)
    except MalformedArguments:
        with pytest.raises(MalformedArguments):
            _ = call(text).arguments
    else:
        assert call(text).arguments == JsonObject(arguments)


@given(tool_calls(), json_objects())
def test_a_change_of_arguments_returns_another_call(call: ToolCall, arguments: JsonObject) -> None:
    """Id, name and provider data stay, the first call stays, and the new arguments are read back."""
    before = call.arguments_json
    changed = call.with_arguments(arguments)
    assert changed.arguments == arguments
    assert (changed.id, changed.name, changed.provider_data) == (call.id, call.name, call.provider_data)
    assert call.arguments_json == before


@pytest.mark.parametrize("arguments", [{"a": float("nan")}, {"a": {1, 2}}, {1: 2}, [1]])
def test_arguments_that_are_not_json_are_refused(arguments: Any) -> None:
    """Arguments without a JSON form are refused."""
    with pytest.raises(NotJson):
        call("{}").with_arguments(arguments)


@pytest.mark.parametrize(
    ("text", "key"),
    [('{"a": 1, "a": 2}', "a"), ('{"x": {"b": 1, "b": 1}}', "b"), ('{"x": [{"c:d": 1, "c:d": 2}]}', "c:d")],
)
def test_a_key_that_occurs_twice_is_malformed(text: str, key: str) -> None:
    """Which of the two values counts is undefined, so the model is asked for one."""
    with pytest.raises(MalformedArguments, match=f"contain '{key}' twice"):
        _ = call(text).arguments
