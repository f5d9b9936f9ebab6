"""Doubles that ship: scripts that were used up, a model of random calls, fake tools, recorded events, snapshots."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any, Literal, get_origin
from uuid import UUID

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.drivers import ScenarioStep, ScriptedDriver
from agentloop.errors import ConfigurationError
from agentloop.events import (
    AgentExecutionCompleted,
    AgentStepStarted,
    ToolCallCompleted,
    ToolCallSettled,
    ToolCallStarted,
)
from agentloop.testing import EventMatch, EventRecorder, FakeTool, RandomInference, check_snapshot, snapshot_of
from agentloop.testing.fake_tool import FakeCall
from agentloop.testing.random_inference import sample
from agentloop.tools import json_schema
from agentloop.tools.conversion import structure
from agentloop.tools.validation import SchemaValidator
from agentloop.values import ToolStatus
from agentloop.values.json import freeze_object


@frozen
class Address:
    """A place."""

    street: str
    zip_code: str
    floors: list[int] | None = None


@tool(effect="pure")
def ship(to: Address, weight: float, how: Literal["air", "sea"] = "sea") -> str:
    """Ship something."""
    return f"{how} to {to.street}"


@tool(effect="pure")
def note(text: str, tags: list[str] | None = None) -> int:
    """Note a text."""
    return len(text)


# --- scripts --------------------------------------------------------------------------------------------------------


def test_a_scripted_driver_knows_the_steps_that_were_not_taken() -> None:
    """Like a scripted inference, the driver of a test says what the script has left, of all executions."""
    driver = ScriptedDriver(ScenarioStep.tool_call("note", {"text": "hi"}), ScenarioStep.final("done"))
    AgentLoop(driver, [note], max_steps=1).execute_sync("go")
    with pytest.raises(AssertionError, match="1 of 2 steps of the script were not taken:\n2: "):
        driver.assert_complete()
    AgentLoop(driver, [note]).execute_sync("go")
    driver.assert_complete()


# --- random calls ---------------------------------------------------------------------------------------------------


def test_every_tool_is_called_with_valid_arguments() -> None:
    """Each tool runs as often as asked, whatever its schema, and the run ends with an answer."""
    for seed in range(8):
        state = AgentLoop.for_model(RandomInference(seed, calls_per_tool=2), tools=[ship, note]).execute_sync("go")
        executions = [execution for step in state.steps for execution in step.executions]
        assert sorted(execution.name for execution in executions) == ["note", "note", "ship", "ship"]
        assert {execution.status for execution in executions} == {ToolStatus.SUCCEEDED}
        assert state.final_text == "done"


def test_equal_seeds_make_equal_calls() -> None:
    """A run can be repeated, and another seed makes other calls."""

    def calls(seed: int) -> list[str]:
        state = AgentLoop.for_model(RandomInference(seed), tools=[ship, note]).execute_sync("go")
        return [execution.call.arguments_json for step in state.steps for execution in step.executions]

    assert calls(1) == calls(1) != calls(2)


def test_each_question_gets_calls() -> None:
    """The second question of a conversation is answered by calls of its own."""
    loop = AgentLoop.for_model(RandomInference(), tools=[note])
    state = loop.execute_sync(loop.execute_sync("go").with_message("again"))
    assert [len(step.executions) for step in state.steps] == [1, 0]


def test_invalid_calls_come_in_addition() -> None:
    """They are rejected, and each tool is called with valid arguments nevertheless."""
    model = RandomInference(3, invalid=1.0)
    state = AgentLoop.for_model(model, tools=[ship, note]).execute_sync("go")
    statuses = [execution.status for step in state.steps for execution in step.executions]
    assert sorted(statuses) == [ToolStatus.REJECTED, ToolStatus.REJECTED, ToolStatus.SUCCEEDED, ToolStatus.SUCCEEDED]


def test_answers_have_the_required_form() -> None:
    """With an output type, the answer satisfies its schema."""
    loop = AgentLoop.for_model(RandomInference(4), tools=[note], output_type=Address)
    assert isinstance(loop.run_sync("go"), Address)


SCHEMAS: list[dict[str, Any]] = [
    {"type": "string", "pattern": "^[A-Z]{2}-\\d+(foo|bar)?$"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "minLength": 3, "maxLength": 4},
    {"type": "integer", "minimum": 7, "maximum": 9, "multipleOf": 3},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": ["integer", "null"]},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True},
    {"type": "array", "prefixItems": [{"const": 1}], "items": False},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "minProperties": 1},
    {
        "allOf": [{"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}, {"$ref": "#/$defs/b"}],
        "$defs": {
            "b": {"properties": {"b": {"$ref": "#/$defs/c"}}, "required": ["b"]},
            "c": {"anyOf": [{"$ref": "#/$defs/d"}, {"type": "null"}]},
            "d": {"type": "object", "properties": {"next": {"$ref": "#/$defs/c"}}, "required": ["next"]},
        },
    },
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=str)
@given(seed=st.integers(0, 200))
def test_samples_satisfy_their_schema(schema: dict[str, Any], seed: int) -> None:
    """Whatever the schema says, so is the data."""
    data = sample(freeze_object(schema), Random(seed))
    assert SchemaValidator(schema).accepts(data)


@pytest.mark.parametrize(
    "kind", [bytes, date, datetime, time, timedelta, Decimal, UUID, Path, set[int], tuple[int, str]]
)
@given(seed=st.integers(0, 200))
def test_samples_for_a_type_can_be_converted_to_it(kind: Any, seed: int) -> None:
    """A function that takes this type is called, and not only offered."""
    converted = structure(sample(freeze_object(json_schema(kind)), Random(seed)), kind)
    assert isinstance(converted, get_origin(kind) or kind)


def test_a_schema_without_samples_is_an_error_that_says_what_to_do() -> None:
    """A tool whose arguments cannot be guessed gets them from the test."""
    secret = FakeTool(
        "secret",
        parameters={"type": "object", "properties": {"code": {"const": 1, "not": {"const": 1}}}, "required": ["code"]},
    )
    with pytest.raises(Exception, match=r"no arguments were found for the tool 'secret'.*pass arguments=") as raised:
        AgentLoop.for_model(RandomInference(), tools=[secret]).run_sync("go")
    assert raised.value is not None
    loop = AgentLoop.for_model(RandomInference(arguments={"note": lambda _: {"text": "mine"}}), tools=[note])
    assert loop.execute_sync("go").steps[0].executions[0].value == 4
    with pytest.raises(ConfigurationError, match="1 or more"):
        RandomInference(max_batch=0)


# --- fake tools -----------------------------------------------------------------------------------------------------


def run_with(*tools: Any, calls: list[ToolCall]) -> Any:
    return AgentLoop.for_model(ScriptedInference(calls, "done"), tools=tools).execute_sync("go", execution_id="run")


def test_a_fake_has_the_form_of_the_tool_that_it_replaces() -> None:
    """The model sees the same tool, and the executor validates the same arguments."""
    fake = FakeTool(ship, returns="shipped")
    assert fake.spec == ship.spec
    good = ToolCall("1", "ship", '{"to": {"street": "A", "zip_code": "1"}, "weight": 2}')
    state = run_with(fake, calls=[good, ToolCall("2", "ship", "{}")])
    assert [execution.status for execution in state.steps[0].executions] == [ToolStatus.SUCCEEDED, ToolStatus.REJECTED]
    fake.assert_called_once_with(to={"street": "A", "zip_code": "1"}, weight=2, how="sea")
    assert fake.calls == [FakeCall({"to": {"street": "A", "zip_code": "1"}, "weight": 2, "how": "sea"}, "run/1/0")]


def test_a_fake_returns_and_raises_what_it_is_told_to() -> None:
    """A list is one reply per call, of which the last one stays; a function gets the arguments."""
    fake = FakeTool("search", returns=["a", TimeoutError("slow"), lambda query: query.upper()])
    state = run_with(fake, calls=[ToolCall(str(n), "search", f'{{"query": "q{n}"}}') for n in range(4)])
    assert [execution.value for execution in state.steps[0].executions] == ["a", None, "Q2", "Q3"]
    fake.assert_called(times=4)
    fake.assert_called_with(query="q1")


def test_wrong_assertions_about_calls_fail_and_show_the_calls() -> None:
    """Each assertion can fail."""
    fake = FakeTool("search")
    fake.assert_not_called()
    with pytest.raises(AssertionError, match="search was not called"):
        fake.assert_called()
    run_with(fake, calls=[ToolCall("1", "search", '{"query": "lamp"}')])
    for check in (
        fake.assert_not_called,
        lambda: fake.assert_called(times=2),
        lambda: fake.assert_called_with(query="table"),
        fake.assert_called_once_with,
    ):
        with pytest.raises(AssertionError, match=r"the calls:\n  \{'query': 'lamp'\}"):
            check()


# --- events ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def recorder() -> EventRecorder:
    """Return the events of a run with two calls."""
    recorder = EventRecorder()
    calls = [ToolCall("1", "note", '{"text": "hi"}'), ToolCall("2", "note", '{"text": "hello"}')]
    loop = AgentLoop.for_model(ScriptedInference(calls, "done"), tools=[note])
    loop.wiretap(recorder)
    loop.run_sync("go")
    return recorder


def test_events_are_found_by_class_and_conditions(recorder: EventRecorder) -> None:
    """A condition is a value or a function, of an attribute at any depth; a base class finds its subclasses."""
    assert len(recorder.all(ToolCallSettled)) == 2
    assert recorder.only(ToolCallCompleted, execution__value=5).execution.call.id == "2"
    assert recorder.only(ToolCallCompleted, execution__value=lambda value: value < 3).execution.call.id == "1"
    recorder.assert_none(ToolCallCompleted, execution__call__name="ship")
    recorder.assert_none(ToolCallCompleted, no_such_attribute=None)
    assert recorder.names[0] == "AgentExecutionStarted"
    assert len(list(recorder)) == len(recorder) > 5
    recorder.clear()
    assert len(recorder) == 0


def test_a_call_with_broken_arguments_matches_no_condition_about_them() -> None:
    """The events beside it are found nevertheless."""
    recorder = EventRecorder()
    calls = [ToolCall("1", "note", '{"text": '), ToolCall("2", "note", '{"text": "hello"}')]
    loop = AgentLoop.for_model(ScriptedInference(calls, "done"), tools=[note])
    loop.wiretap(recorder)
    loop.run_sync("go")
    assert recorder.only(ToolCallSettled, execution__call__arguments__text="hello").execution.call.id == "2"
    recorder.assert_none(ToolCallSettled, execution__call__arguments__text=lambda _: False)


def test_the_order_of_events_is_checked(recorder: EventRecorder) -> None:
    """Others may occur in between; what comes too early or not at all is named with the events that there were."""
    second = EventMatch(ToolCallCompleted, execution__call__id="2")
    recorder.assert_order(AgentStepStarted, ToolCallStarted, second, AgentStepStarted, AgentExecutionCompleted)
    with pytest.raises(
        AssertionError, match=r"event 2 of the order did not follow: ToolCallStarted\(\)\nthe events:\n  Agent"
    ):
        recorder.assert_order(second, ToolCallStarted)
    with pytest.raises(
        AssertionError, match=r"2 events, not one, match ToolCallCompleted\(execution__call__name='note'\)"
    ):
        recorder.only(ToolCallCompleted, execution__call__name="note")
    with pytest.raises(AssertionError, match="2 events match ToolCallCompleted"):
        recorder.assert_none(ToolCallCompleted)


# --- snapshots ------------------------------------------------------------------------------------------------------


def answer(text: str = "done", value: str = "hi") -> Any:
    calls = [ToolCall("1", "note", f'{{"text": "{value}"}}'), ToolCall("2", "note", "{broken")]
    return AgentLoop.for_model(ScriptedInference(calls, text), tools=[note]).execute_sync("go")


def test_equal_runs_have_equal_snapshots(tmp_path: Path) -> None:
    """Ids and times differ between them; what happened does not."""
    assert snapshot_of(answer()) == snapshot_of(answer())
    check_snapshot(answer(), tmp_path / "new" / "run.json", update=True)
    check_snapshot(answer(), tmp_path / "new" / "run.json")
    assert '"arguments": "{broken"' in (tmp_path / "new" / "run.json").read_text()


def test_half_of_a_character_has_a_snapshot(tmp_path: Path) -> None:
    """It is written as its escape, which every file can have."""
    path = tmp_path / "run.json"
    check_snapshot(answer("half \ud83d"), path, update=True)
    check_snapshot(answer("half \ud83d"), path)
    with pytest.raises(AssertionError, match="differs"):
        check_snapshot(answer("half \ud83e"), path)


def test_a_run_that_differs_is_shown_with_its_lines(tmp_path: Path) -> None:
    """A missing file and a difference are failures that say what to do."""
    path = tmp_path / "run.json"
    with pytest.raises(AssertionError, match=r"there is no snapshot .* --record"):
        check_snapshot(answer(), path)
    check_snapshot(answer(), path, update=True)
    with pytest.raises(AssertionError, match='\n-          "value": 2\n\\+          "value": 5'):
        check_snapshot(answer(value="hello"), path)
    with pytest.raises(AssertionError, match='"answer": "other"'):
        check_snapshot(answer("other"), path)
