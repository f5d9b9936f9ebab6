"""Constraints in `Annotated`: each is enforced on the values that reach the function, or the definition is refused."""

from __future__ import annotations

import collections.abc
import json
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

import annotated_types as at
import attrs
import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, PlainValidator, StringConstraints, WrapValidator

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.errors import InvalidOutput, InvalidParameter, ToolDefinitionError
from agentloop.tools import FunctionTool, Range, TypedTool, json_schema
from agentloop.tools.output_type import OutputType
from agentloop.values import ToolExecution


def refuse_even(number: int) -> int:
    if number % 2 == 0:
        raise ValueError("it is even")
    return number


def is_small(number: int) -> bool:
    return number < 5


class Left(BaseModel):
    kind: Literal["left"]
    size: pydantic.StrictInt = 0


class Right(BaseModel):
    kind: Literal["right"]
    width: int


class Entry(TypedDict):
    """An entry."""

    x: Annotated[int, at.Predicate(is_small)]


@dataclass
class Place:
    """A place."""

    x: Annotated[int, AfterValidator(refuse_even)]


@attrs.frozen
class Limited:
    """A class of attrs."""

    x: int = attrs.field(validator=attrs.validators.lt(5))


def tool_of(hint: Any) -> FunctionTool[..., Any]:
    def take(value: Any) -> str:
        """Take a value."""
        return repr(value)

    take.__annotations__ = {"value": hint, "return": str}
    return tool(effect="pure")(take)


def outcome(hint: Any, value: Any) -> ToolExecution:
    """Return the outcome of a call with this value."""
    model = ScriptedInference(ToolCall("1", "take", json.dumps({"value": value})), "done")
    return AgentLoop.for_model(model, tools=[tool_of(hint)]).execute_sync("go").steps[0].executions[0]


ENFORCED: dict[str, tuple[Any, Any, Any]] = {
    # the type, a value that is refused, a value that is accepted
    "Gt": (Annotated[int, at.Gt(0)], 0, 1),
    "Ge": (Annotated[float, at.Ge(0)], -0.5, 0),
    "Lt": (Annotated[int, at.Lt(5)], 5, 4),
    "Le of an optional": (Annotated[int | None, at.Le(5)], 6, None),
    "Interval": (Annotated[int, at.Interval(gt=0, le=9)], 10, 9),
    "MultipleOf": (Annotated[int, at.MultipleOf(3)], 4, 6),
    "two divisors": (Annotated[int, at.MultipleOf(2), at.MultipleOf(3)], 4, 6),
    "the weaker bound last": (Annotated[int, at.Gt(5), at.Gt(0)], 3, 6),
    "the weaker bound first": (Annotated[int, at.Gt(0), at.Gt(5)], 3, 6),
    "Len": (Annotated[str, at.Len(1, 2)], "abc", "ab"),
    "MinLen of a dict": (Annotated[dict[str, int], at.MinLen(1)], {}, {"a": 1}),
    "MaxLen of a set": (Annotated[set[int], at.MaxLen(1)], [1, 2], [1]),
    "MaxLen of bytes": (Annotated[bytes, at.MaxLen(2)], "YWJj", "YWI="),
    "MinLen of an iterable": (Annotated[collections.abc.Iterable[int], at.MinLen(2)], [1], [1, 2]),
    "MaxLen of a path": (Annotated[Path, at.MaxLen(3)], "a/bc", "a/b"),
    "Predicate": (Annotated[int, at.Predicate(is_small)], 9, 1),
    "Predicate in a list": (list[Annotated[int, at.Predicate(is_small)]], [1, 9], [1]),
    "Predicate in a TypedDict": (Entry, {"x": 9}, {"x": 1}),
    "LowerCase": (at.LowerCase[str], "A", "a"),
    "a date": (Annotated[date, at.Gt(date(2020, 1, 1))], "2020-01-01", "2020-01-02"),
    "a duration": (Annotated[timedelta, at.Le(timedelta(seconds=5))], 6, 5),
    "seconds of a duration": (Annotated[timedelta, at.Le(5)], 6, 5),
    "a Decimal": (Annotated[Decimal, at.Ge(0)], "-0.5", "0.5"),
    "no time zone": (Annotated[datetime, at.Timezone(None)], "2020-01-01T00:00:00Z", "2020-01-01T00:00:00"),
    "any time zone": (Annotated[datetime, at.Timezone(...)], "2020-01-01T00:00:00", "2020-01-01T00:00:00+02:00"),
    "a time zone": (Annotated[datetime, at.Timezone(UTC)], "2020-01-01T00:00:00+02:00", "2020-01-01T00:00:00Z"),
    "anything": (Annotated[Any, at.Gt(1)], "a", 2),
    "AfterValidator": (Annotated[int, AfterValidator(refuse_even)], 2, 3),
    "AfterValidator in a dict": (dict[str, Annotated[int, AfterValidator(refuse_even)]], {"a": 2}, {"a": 3}),
    "AfterValidator in a dataclass": (Place, {"x": 2}, {"x": 3}),
    "BeforeValidator": (Annotated[int, BeforeValidator(refuse_even), Field(gt=1)], 2, 3),
    "PlainValidator": (Annotated[int, PlainValidator(refuse_even)], 2, 3),
    "WrapValidator": (Annotated[int, WrapValidator(lambda value, read: refuse_even(read(value)))], 2, 3),
    "validator and Range": (Annotated[int, AfterValidator(refuse_even), Range(le=5)], 7, 5),
    "Field": (Annotated[int, Field(gt=0, description="how many")], 0, 1),
    "Field(pattern)": (Annotated[str, Field(pattern="^a+$")], "b", "aa"),
    "compiled pattern": (Annotated[str, Field(pattern=re.compile("^a+$"))], "b", "aa"),
    "two patterns": (Annotated[str, Field(pattern="a"), Field(pattern="b")], "a", "ab"),
    "Field(max_digits)": (Annotated[Decimal, Field(max_digits=2)], "123", "12"),
    "Field(decimal_places)": (Annotated[Decimal, Field(decimal_places=1)], "1.25", "1.5"),
    "Field(strict)": (Annotated[int, Field(strict=True)], "3", 3),
    "Field(discriminator)": (
        Annotated[Left | Right, Field(discriminator="kind")],
        {"kind": "middle", "width": 1},
        {"kind": "right", "width": 1},
    ),
    "StrictInt in a list": (list[pydantic.StrictInt], ["3"], [3]),
    "StrictInt of a model": (Left, {"kind": "left", "size": "3"}, {"kind": "left", "size": 3}),
    "StringConstraints": (Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)], "  ", " a "),
    "conint": (pydantic.conint(gt=3), 3, 4),
    "PositiveInt": (Optional[pydantic.PositiveInt], 0, None),  # noqa: UP045  # as programs write it
    "UUID4": (pydantic.UUID4, "12345678-1234-1234-8234-123456789012", "9b2a1c4e-5f0d-4f6a-8a3e-1c2d3e4f5a6b"),
    "a validator of attrs": (Annotated[int, attrs.validators.lt(5)], 7, 4),
    "validators of attrs": (Annotated[str, attrs.validators.in_(["a", "b"])], "c", "b"),
    "a class of attrs": (Limited, {"x": 7}, {"x": 4}),
    "Range of a number": (Annotated[int, Range(ge=1, le=9)], 10, 9),
    "Range of a text": (Annotated[str, Range(max_length=2)], "abc", "ab"),
    "Range of a list": (Annotated[list[int], Range(min_length=1)], [], [1]),
    "more of Field": (Annotated[str, Field(json_schema_extra={"maxLength": 1})], "ab", "a"),
}


@pytest.mark.parametrize("name", ENFORCED)
def test_a_constraint_is_enforced_on_what_reaches_the_function(name: str) -> None:
    """A value that breaks it is rejected with the reason, and one that keeps it runs."""
    hint, wrong, right = ENFORCED[name]
    rejected = outcome(hint, wrong)
    assert rejected.status.value == "rejected"
    assert "at $.value" in rejected.text
    assert outcome(hint, right).succeeded


# pydantic reads bytes in JSON as UTF-8, a path has no length there, and it knows neither attrs nor this TypedDict.
_OTHERWISE = {"MaxLen of bytes", "MaxLen of a path", "a class of attrs", "Predicate in a TypedDict"}


@pytest.mark.parametrize("name", [name for name in ENFORCED if name not in _OTHERWISE])
def test_pydantic_agrees_where_it_knows_the_constraint(name: str) -> None:
    """What is accepted here is what pydantic accepts, where it does not ignore the annotation."""
    hint, _, right = ENFORCED[name]
    pydantic.TypeAdapter(hint).validate_json(json.dumps(right))


def test_a_validator_may_change_the_value() -> None:
    """The function gets what the validator returns."""
    assert outcome(Annotated[int, AfterValidator(lambda number: number * 2)], 3).value == "6"
    assert outcome(Annotated[str, StringConstraints(to_upper=True)], "ab").value == "'AB'"


REFUSED: dict[str, tuple[Any, str]] = {
    "le of a text": (Annotated[str, Range(le=20)], "its length has the bounds min_length and max_length"),
    "length of a number": (Annotated[int, Range(max_length=2)], "a number has the bounds ge, gt, le and lt"),
    "le of a list": (Annotated[list[int], Range(le=2)], "cannot be compared with the type list"),
    "order of a truth value": (Annotated[bool, at.Ge(1)], "cannot be compared with the type bool"),
    "divisor of a text": (Annotated[str, at.MultipleOf(2)], "multiple_of is for a number"),
    "pattern of a number": (Annotated[int, Field(pattern="a")], "pattern is for a text"),
    "a member of a union": (Annotated[int | str, at.Ge(1)], "put it at the member of the union"),
    "time zone of a number": (Annotated[int, at.Timezone(None)], "Timezone is for a datetime"),
    "number for a date": (Annotated[date, at.Gt(2020)], "gt=2020 cannot be compared with the type date"),
    "no value": (Annotated[int, at.Ge(5), at.Le(3)], "no value is at least 5 and at most 3"),
    "no value between": (Annotated[int, at.Gt(5), at.Lt(5)], "no value is inside of its bounds"),
    "no length": (Annotated[tuple[int, int], at.MaxLen(1)], "no value is at least 2 and at most 1"),
    "divisor 0": (Annotated[int, at.MultipleOf(0)], "a number above 0"),
    "NaN": (Annotated[float, at.Gt(float("nan"))], "NaN"),
    "negative length": (Annotated[str, at.MinLen(-1)], "0 or more"),
    "a function": (Annotated[int, refuse_even], "write annotated_types.Predicate(refuse_even)"),
    "a class": (Annotated[int, at.Gt], "create an object of it, as in Gt(…)"),
    "our class": (Annotated[int, Range], "create an object of it, as in Range(…)"),
    "flags of a pattern": (Annotated[str, re.compile("a", re.IGNORECASE)], "write them into it"),
    "a pattern that backtracks": (Annotated[str, Field(pattern=r"(a)\1")], "cannot be used"),
    "a default": (Annotated[int, Field(5)], "the default of a parameter is written behind it"),
    "an alias": (Annotated[int, Field(alias="y")], "has no effect on a parameter"),
    "exclude": (Annotated[int, Field(exclude=True)], "exclude of Field has no effect"),
    "no function": (Annotated[int, AfterValidator(1)], "AfterValidator takes a function"),  # type: ignore[arg-type]  # on purpose
    "what pydantic cannot read": (Annotated[Limited, AfterValidator(repr)], "cannot be applied"),
    "digits of a text": (Annotated[str, Field(max_digits=2)], "cannot be applied"),
    "inside": (dict[str, list[Annotated[str, Range(le=2)]]], "cannot be compared with the type str"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_constraint_that_cannot_be_applied_is_refused_at_the_definition(name: str) -> None:
    """The error names the parameter and says what to write instead."""
    hint, message = REFUSED[name]
    with pytest.raises(ToolDefinitionError) as caught:
        tool_of(hint)
    assert message in str(caught.value)
    assert "'value'" in str(caught.value)


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"ge": 2, "le": 1},
        {"min_length": 2, "max_length": 1},
        {"min_length": -1},
        {"max_length": 1.5},
        {"ge": "1"},
        {"le": True},
        {"le": float("nan")},
    ],
)
def test_a_range_that_limits_nothing_or_allows_nothing_is_refused(limits: Any) -> None:
    """Each Range has limits that some value keeps."""
    with pytest.raises(InvalidParameter):
        Range(**limits)


def test_other_annotations_are_for_other_libraries() -> None:
    """An object without a constraint changes nothing, and a unit goes into the description."""

    class Marker:
        pass

    assert json_schema(Annotated[int, Marker(), None, "how heavy", at.Unit("kg")]) == {
        "type": "integer",
        "description": "how heavy (kg)",
    }
    assert json_schema(Annotated[int, at.Unit("kg")]) == {"type": "integer", "description": "in kg"}
    assert outcome(Annotated[int, Marker()], 1).succeeded


def test_a_bound_of_an_alias_stays_beside_a_weaker_one() -> None:
    """The schema has the tighter bound, and both are enforced."""
    alias = Annotated[int, at.Gt(3)]
    assert json_schema(Annotated[alias, at.Gt(0)])["exclusiveMinimum"] == 3
    assert outcome(Annotated[alias, at.Gt(0)], 2).has_error


def test_the_annotations_hold_under_a_schema_of_its_own() -> None:
    """A schema that is passed replaces that of the hints, and not their constraints."""

    def take(value: Annotated[int, at.Gt(0)]) -> int:
        """Take."""
        return value

    schema = {"type": "object", "properties": {"value": {"type": "integer"}}}
    take.__annotations__ = {"value": Annotated[int, at.Gt(0)], "return": int}
    model = ScriptedInference(ToolCall("1", "take", '{"value": 0}'), "done")
    (executed,) = AgentLoop.for_model(model, tools=[tool(schema=schema)(take)]).execute_sync("go").steps[0].executions
    assert "more than 0" in executed.text


def test_a_class_of_tools_is_strict_where_its_types_are() -> None:
    """The arguments of a strict parameter are not coerced."""

    class Take(TypedTool):
        async def use(self, value: pydantic.StrictInt) -> int:
            """Take."""
            return value

    model = ScriptedInference(ToolCall("1", "take", '{"value": "3"}'), "done")
    assert AgentLoop.for_model(model, tools=[Take()]).execute_sync("go").steps[0].executions[0].has_error


def test_results_and_answers_have_constraints_too() -> None:
    """A constraint that cannot be applied to a result is refused, and an answer that breaks one is not accepted."""

    def give() -> int:
        """Give."""
        return 1

    give.__annotations__ = {"return": Annotated[int, Range(max_length=2)]}
    with pytest.raises(ToolDefinitionError, match="the result"):
        tool(give)
    with pytest.raises(InvalidOutput, match="it is even"):
        OutputType(Annotated[int, AfterValidator(refuse_even)]).read("2")
