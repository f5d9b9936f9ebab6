"""Outcomes of tool calls."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given

from agentloop.errors import InvalidArguments, NotJson
from agentloop.testing.strategies import error_infos, json_values, tool_executions
from agentloop.values.json import JsonValue
from agentloop.values.parts import Image, Text
from agentloop.values.serialization import to_json
from agentloop.values.tool_calls import ErrorInfo, ToolCall, ToolExecution, ToolResult, ToolStatus

NOW = datetime(2024, 1, 1, tzinfo=UTC)
PICTURE = Image(url="https://example.com/x.png")


def outcome(**changes: Any) -> ToolExecution:
    """Return the execution of a call that took a quarter of a second."""
    plain: dict[str, Any] = {
        "id": "e",
        "key": "x/1/0",
        "call": ToolCall("c", "find", '{"a": 1}'),
        "status": ToolStatus.SUCCEEDED,
        "started_at": NOW,
        "ended_at": NOW + timedelta(milliseconds=250),
    }
    return ToolExecution(**{**plain, **changes})


def test_name_and_arguments_are_those_of_the_call() -> None:
    """Name and arguments are those of the call as it ran."""
    assert outcome().name == "find"
    assert outcome().arguments == {"a": 1}
    assert outcome().duration_ms == 250


def test_malformed_arguments_read_as_none() -> None:
    """A rejected call has an execution, too; asking it for arguments does not raise."""
    assert outcome(call=ToolCall("c", "find", '{"a":'), status=ToolStatus.REJECTED).arguments == {}


@given(tool_executions())
def test_exactly_success_is_no_error(execution: ToolExecution) -> None:
    """The accessors agree about how it ended."""
    assert execution.succeeded is (execution.status is ToolStatus.SUCCEEDED)
    assert execution.has_error is not execution.succeeded
    assert execution.was_blocked is (execution.status is ToolStatus.BLOCKED)
    assert execution.error_message == (execution.error.message if execution.error else "")
    assert execution.result == execution.value


@pytest.mark.parametrize(
    ("value", "text"),
    [("plain", "plain"), (None, "null"), (1.5, "1.5"), ({"b": [1, "é"]}, '{"b":[1,"é"]}'), ([], "[]"), (True, "true")],
)
def test_a_value_is_formatted_as_text(value: Any, text: str) -> None:
    """A string is unchanged; other values are compact JSON."""
    assert outcome(value=value).text == text
    assert outcome(value=value).parts == (Text(text),)


def test_content_is_shown_in_place_of_the_value() -> None:
    """The model sees the content, of which the text parts are the text; the program keeps the value."""
    execution = outcome(value={"a": 1}, content=[Text("see "), PICTURE, Text("this")])
    assert execution.text == "see this"
    assert execution.parts == (Text("see "), PICTURE, Text("this"))
    assert execution.value == {"a": 1}
    assert outcome(value=1, content=()).parts == ()


def test_an_error_is_formatted_with_its_type() -> None:
    """The text for the model has the class and the message of the error."""
    failed = outcome(status=ToolStatus.FAILED, error=ErrorInfo("ToolFailed", "no such file"))
    assert failed.text == "ToolFailed: no such file"
    assert failed.parts == (Text("ToolFailed: no such file"),)


@given(tool_executions(), json_values())
def test_a_success_replaces_whatever_came_before(execution: ToolExecution, value: JsonValue) -> None:
    """The copy has the value and no error; the original is unchanged."""
    before = to_json(execution)
    changed = execution.with_value(value, [PICTURE])
    assert (changed.succeeded, changed.value, changed.content) == (True, value, (PICTURE,))
    assert (changed.error, changed.may_have_run) == (None, False)
    assert (changed.id, changed.key, changed.call) == (execution.id, execution.key, execution.call)
    assert changed.with_value(value).content is None
    assert to_json(execution) == before


@given(tool_executions(), error_infos())
def test_an_error_replaces_value_and_content(execution: ToolExecution, error: ErrorInfo) -> None:
    """A failure has no result; `may_have_run` is unchanged."""
    before = to_json(execution)
    changed = execution.with_error(error, ToolStatus.TIMED_OUT)
    assert (changed.status, changed.error) == (ToolStatus.TIMED_OUT, error)
    assert (changed.value, changed.content) == (None, None)
    assert changed.may_have_run is execution.may_have_run
    assert execution.with_error(error).status is ToolStatus.FAILED
    assert to_json(execution) == before


def test_results_are_immutable_json() -> None:
    """The value of an execution is immutable JSON; other values are refused, unless a tool returned them."""
    rows = [{"a": 1}]
    execution, result = outcome(value=rows), ToolResult(rows, [PICTURE])
    rows[0]["a"] = 2
    assert execution.value == result.value == ({"a": 1},)
    assert result.content == (PICTURE,)
    assert ToolResult() == ToolResult(None, None)
    assert ToolResult({1}).value == (1,)
    with pytest.raises(NotJson):
        outcome(value={1})
    with pytest.raises(NotJson):
        outcome().with_value(float("nan"))


def test_a_status_can_be_passed_by_name() -> None:
    """Names become members; unknown names are refused."""
    assert outcome(status="in_doubt").status is ToolStatus.IN_DOUBT
    with pytest.raises(ValueError, match="'lost' is not a valid ToolStatus"):
        outcome(status="lost")


def test_an_exception_becomes_data() -> None:
    """Type, message and path of an error are stored; an empty message is replaced by the type."""
    assert ErrorInfo.of(InvalidArguments("wrong", path="$.a")) == ErrorInfo("InvalidArguments", "wrong", "$.a")
    assert ErrorInfo.of(KeyError()) == ErrorInfo("KeyError", "KeyError")
    assert ErrorInfo.of(FileNotFoundError(2, "gone", "x")) == ErrorInfo("FileNotFoundError", "[Errno 2] gone: 'x'")


def test_a_path_that_is_no_text_is_left_out() -> None:
    """Foreign exceptions may have a `path` of another meaning."""
    error = ImportError("no", path="/x.py")
    error.path = object()  # type: ignore[assignment]  # what foreign code may do
    assert ErrorInfo.of(error) == ErrorInfo("ImportError", "no")
