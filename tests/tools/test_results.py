"""Results of tools: JSON that matches the declared type, content for the model, or a failure."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from pydantic import BaseModel

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.errors import ToolFailed
from agentloop.testing import ExecutorBench, ToolKit
from agentloop.tools import FunctionTool
from agentloop.values import Audio, Document, Image, Text
from agentloop.values.tool_calls import ToolExecution, ToolResult

PICTURE = Image(data=b"png", media_type="image/png")


class Color(enum.Enum):
    """One of two."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Place:
    """Somewhere."""

    x: int
    on: date | None = None


@dataclass
class Node:
    """Contains nodes."""

    value: int
    children: list[Node] = field(default_factory=list)


# As without `from __future__ import annotations`.
UNRESOLVED: Any = list["Node"]
Node.__annotations__["children"] = Node.__dataclass_fields__["children"].type = UNRESOLVED


class Named(TypedDict):
    """Has a name."""

    name: str


class Model(BaseModel):
    """A model."""

    number: int


class Opaque:
    """Has no JSON form."""


def returning(result: Any, hint: Any = Any) -> FunctionTool[[], Any]:
    """Return a tool with this declared type and this result."""

    async def sample() -> Any:
        """Return the result."""
        return result

    sample.__annotations__["return"] = hint
    return tool(effect="pure")(sample)


async def outcome_of(result: Any, hint: Any = Any) -> ToolExecution:
    (outcome,) = (await ExecutorBench([returning(result, hint)]).run(ToolCall("", "sample"))).executions
    return outcome


@pytest.mark.parametrize(
    ("hint", "result", "value"),
    [
        (str, "a", "a"),
        (float, 3, 3),
        (None, None, None),
        (Any, {"a": [1, (2, 3)]}, {"a": (1, (2, 3))}),
        (Any, Place(1), {"x": 1, "on": None}),
        (object, {date(2026, 1, 1)}, ("2026-01-01",)),
        (Place, Place(1, date(2026, 1, 1)), {"x": 1, "on": "2026-01-01"}),
        (Place, {"x": 1, "on": "2026-01-01"}, {"x": 1, "on": "2026-01-01"}),
        (list[Place], [Place(1)], ({"x": 1, "on": None},)),
        (dict[str, Color], {"a": Color.RED}, {"a": "red"}),
        (Named, {"name": "a"}, {"name": "a"}),
        (Model, Model(number=1), {"number": 1}),
        (set[str], {"b", "a"}, ("a", "b")),
        (Iterable[int], [1, 2], (1, 2)),
        (Literal["a", "b"], "b", "b"),
        (int | None, None, None),
        (Decimal, Decimal("1.10"), "1.10"),
        (Path, Path("a/b"), "a/b"),
        (bytes, b"hi", "aGk="),
        (ToolResult, ToolResult({"a": 1}), {"a": 1}),
        (ToolResult, ToolResult({1: math.nan}), {"1": "NaN"}),
        (float, math.inf, "Infinity"),
        (dict[str, float], {"a": math.nan}, {"a": "NaN"}),
        (Any, Place(math.nan), {"x": "NaN", "on": None}),  # type: ignore[arg-type]
        (Model, {"number": 1, "more": Opaque()}, {"number": 1, "more": "<tests.tools.test_results.Opaque object>"}),
        (Any, Opaque(), "<tests.tools.test_results.Opaque object>"),
        (Any, math.nan, "NaN"),
        (Any, {1: 2}, {"1": 2}),
        (dict[str, str], {"a": Opaque()}, {"a": "<tests.tools.test_results.Opaque object>"}),
    ],
)
async def test_a_matching_result_becomes_json(hint: Any, result: Any, value: Any) -> None:
    """A value of the type and its JSON form are both accepted; the stored value is immutable JSON."""
    outcome = await outcome_of(result, hint)
    assert outcome.error_message == ""
    assert outcome.value == value


@pytest.mark.parametrize(
    ("hint", "result", "message"),
    [
        (str, 1, "the tool declares to return str, but returned a int"),
        (int, True, "the tool declares to return int, but returned a bool"),
        (int, 1.0, "the tool declares to return int, but returned a float"),
        (bool, 1, "the tool declares to return bool, but returned a int"),
        (None, "a", "but returned a str"),
        (Place, {"x": "one"}, "declares to return Place, but at $.x: 'one' is not of type 'integer'"),
        (Place, Place("one"), "declares to return Place, but at $.x"),  # type: ignore[arg-type]
        (Place, {"x": 1, "on": "2026-13-01"}, "declares to return Place, but at $"),
        (list[int], [1, "2"], "declares to return list[int], but at $[1]: '2' is not of type 'integer'"),
        (date, "soon", "declares to return date, but at $: Invalid isoformat string: 'soon'"),
        (Literal["a"], "b", "declares to return Literal['a'], but at $: 'b' is not one of ['a']"),
        (int | None, "a", "declares to return int | None, but at $: 'a'"),
    ],
)
async def test_a_mismatched_result_fails_the_call(hint: Any, result: Any, message: str) -> None:
    """The call fails with the declared type and the path of the mismatch."""
    outcome = await outcome_of(result, hint)
    assert outcome.status.value == "failed"
    assert outcome.error is not None
    assert outcome.error.type == "ToolFailed"
    assert message in outcome.error.message
    assert ". The tool ran, and this is what it returned: " in outcome.error.message


async def test_a_cycle_is_described() -> None:
    """Where a value contains itself, its form says so."""
    ring: list[Any] = []
    ring.append(ring)
    assert (await outcome_of(ring)).value == ("(the list that this is a part of)",)


@pytest.mark.parametrize(
    ("result", "content", "value"),
    [
        (PICTURE, (PICTURE,), ({"type": "image", "media_type": "image/png", "bytes": 3},)),
        (
            [Text("see"), PICTURE],
            (Text("see"), PICTURE),
            ({"type": "text", "text": "see"}, {"type": "image", "media_type": "image/png", "bytes": 3}),
        ),
        (
            ["see", PICTURE],
            (Text("see"), PICTURE),
            ({"type": "text", "text": "see"}, {"type": "image", "media_type": "image/png", "bytes": 3}),
        ),
        (
            (Audio(data=b"wav", media_type="audio/wav"), Document(data=b"pdf", media_type="application/pdf")),
            (Audio(data=b"wav", media_type="audio/wav"), Document(data=b"pdf", media_type="application/pdf")),
            (
                {"type": "audio", "media_type": "audio/wav", "bytes": 3},
                {"type": "document", "media_type": "application/pdf", "bytes": 3},
            ),
        ),
        (ToolResult({"rows": 2}, [Text("two rows")]), (Text("two rows"),), {"rows": 2}),
    ],
    ids=["a part", "a list of parts", "a picture with a plain text", "other media", "a result of both"],
)
@pytest.mark.parametrize("hint", [Any, list[int], str], ids=["any", "declared", "scalar"])
async def test_parts_go_to_the_model_and_a_description_to_the_program(
    hint: Any, result: Any, content: Any, value: Any
) -> None:
    """Content is accepted under any declared type; the value describes it without its bytes."""
    outcome = await outcome_of(result, hint)
    assert outcome.content == content
    assert outcome.value == value


@pytest.mark.parametrize("value", [[], ["see"], ["see", "this"]])
async def test_a_list_of_plain_texts_is_a_value_and_not_content(value: list[str]) -> None:
    """Nor is an empty list, which has no parts to show."""
    outcome = await outcome_of(value, list[str])
    assert (outcome.value, outcome.content) == (tuple(value), None)


def test_results_are_checked_without_an_executor() -> None:
    """`present` raises the error that an executor would report."""
    with pytest.raises(ToolFailed, match="declares to return int") as caught:
        returning("a", int).present("a")
    assert caught.value.path in {"", "$"}


def test_a_name_inside_of_a_type_is_resolved() -> None:
    """`list["Node"]` is a list of nodes in results, in arguments and in answers."""
    result = returning(Node(1, [Node(2)]), Node).present(Node(1, [Node(2)]))
    assert result.value == {"value": 1, "children": ({"value": 2, "children": ()},)}
    loop = AgentLoop.for_model(ScriptedInference('{"value": 1, "children": [{"value": 2}]}'), output_type=Node)
    assert loop.run_sync("Make a node.") == Node(1, [Node(2)])


def test_a_part_of_any_type_stays_json() -> None:
    """`object` accepts every JSON."""
    assert AgentLoop.for_model(ScriptedInference('{"answer": [1]}'), output_type=list[object]).run_sync("Answer.") == [
        1
    ]


# --- the schema of results --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hint", "result"),
    [
        (ToolResult, ToolResult({"a": 1}, [Text("one")])),
        (Text, Text("one")),
        (Image, PICTURE),
        (Image | None, PICTURE),
        (list[Image], [PICTURE]),
        (list[str | Image], ["a cat:", PICTURE]),
        (tuple[str, Image], ("a cat:", PICTURE)),
        (dict[str, list[date]], {"holidays": [date(2026, 1, 1)]}),
        (set[Decimal], {Decimal("1.5")}),
        (Place, Place(1)),
        (list[Model], [Model(number=1)]),
        (Color | None, Color.RED),
    ],
)
def test_results_satisfy_the_schema_that_programs_are_told(hint: Any, result: Any) -> None:
    """The value of content, and of a `ToolResult`, is not of the declared type, so that its form is unknown."""
    described = returning(result, hint)
    ToolKit(lambda: described, [{}], examples=1).check(17)
