"""JSON as immutable values."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import NotJson
from agentloop.testing.strategies import json_values
from agentloop.values.json import MAX_DEPTH, JsonArray, JsonObject, JsonValue, freeze, freeze_object, thaw

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
plain_json = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)


class Color(StrEnum):
    """Text that is an enumeration."""

    RED = "red"


class Size(IntEnum):
    """Numbers that are an enumeration."""

    SMALL = 1


class Opaque(Enum):
    """An enumeration of no JSON type."""

    ONE = 1


class Name(str):
    """A kind of text."""

    __slots__ = ()


class Lazy(Mapping[str, object]):
    """A mapping that is no dict."""

    def __getitem__(self, key: str) -> object:
        return [key]

    def __iter__(self) -> Iterator[str]:
        return iter("ab")

    def __len__(self) -> int:
        return 2


def nested(levels: int) -> list[Any]:
    """Return nested lists."""
    data: list[Any] = []
    for _ in range(levels - 1):
        data = [data]
    return data


def is_immutable(value: object) -> bool:
    """Return whether a value consists of immutable classes only."""
    if type(value) is JsonObject:
        return all(type(key) is str and is_immutable(item) for key, item in value.items())
    if type(value) is JsonArray:
        return all(is_immutable(item) for item in value)
    return type(value) in {type(None), bool, int, float, str}


@given(plain_json)
def test_frozen_data_is_equal_and_immutable(data: Any) -> None:
    """Frozen data is the same JSON, consists of immutable classes, and thaws to equal data."""
    frozen = freeze(data)
    assert is_immutable(frozen)
    assert thaw(frozen) == data
    assert json.dumps(thaw(frozen)) == json.dumps(data)
    hash(frozen)


@given(json_values())
def test_frozen_data_is_returned_unchanged(value: JsonValue) -> None:
    """Freezing again costs nothing and gives the same value; equal values hash alike."""
    assert freeze(value) == value
    if isinstance(value, JsonObject | JsonArray):
        assert freeze(value) is value
    again = freeze(thaw(value))
    assert again == value
    assert hash(again) == hash(value)


@given(plain_json)
def test_the_constructors_freeze_their_arguments(data: Any) -> None:
    """Neither class can hold mutable data."""
    held, listed = JsonObject({"a": data}), JsonArray([data])
    assert is_immutable(held)
    assert is_immutable(listed)
    assert held == freeze({"a": data})
    assert listed == freeze([data])


def test_changing_the_original_changes_nothing() -> None:
    """Data is copied, deeply."""
    original: dict[str, Any] = {"a": [1, {"b": 2}]}
    frozen = freeze_object(original)
    original["a"][1]["b"] = 3
    original["c"] = 4
    assert thaw(frozen) == {"a": [1, {"b": 2}]}


def test_a_thawed_copy_may_be_changed() -> None:
    """Changing the copy leaves the value alone."""
    frozen = freeze({"a": [1]})
    copy = thaw(frozen)
    copy["a"].append(2)
    assert thaw(frozen) == {"a": [1]}


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (Color.RED, "red"),
        (Size.SMALL, 1),
        (Name("x"), "x"),
        ({Name("k"): 1}, {"k": 1}),
        ((1, (2,)), (1, (2,))),
        (OrderedDict(a=1), {"a": 1}),
        (MappingProxyType({"a": [1]}), {"a": (1,)}),
        (Lazy(), {"a": ("a",), "b": ("b",)}),
        (-0.0, 0.0),
    ],
)
def test_kinds_of_json_data_become_the_exact_classes(given_value: object, expected: object) -> None:
    """Subclasses and other mappings become plain JSON."""
    frozen = freeze(given_value)
    assert frozen == expected
    assert is_immutable(frozen)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({1, 2}, "a set at $ has no JSON form"),
        ({"a": [0, object()]}, "a object at $.a[1] has no JSON form"),
        (b"abc", "a bytes at $ has no JSON form"),
        (Opaque.ONE, "a Opaque at $ has no JSON form"),
        ({"rows": [{"x": float("nan")}]}, "nan at $.rows[0].x has no JSON form; use null or text for it"),
        ([float("inf")], "inf at $[0] has no JSON form; use null or text for it"),
        ([[float("-inf")]], "-inf at $[0][0] has no JSON form; use null or text for it"),
        ({"a": {1: 2}}, "the key 1 at $.a is a int; JSON keys are text"),
        ({None: 2}, "the key None at $ is a NoneType; JSON keys are text"),
        ([10**5000], "the integer at $[0] has more than 4,000 digits; use text for it"),
    ],
)
def test_data_without_a_json_form_is_refused_with_its_path(data: object, message: str) -> None:
    """The error names the problem, its path and the remedy."""
    with pytest.raises(NotJson) as caught:
        freeze(data)
    assert str(caught.value) == message
    assert isinstance(caught.value, TypeError)


def test_the_path_starts_at_the_path_of_the_caller() -> None:
    """The error path of nested data includes the path that was passed in."""
    with pytest.raises(NotJson, match=r"^a set at \$\.update\.a has no JSON form$"):
        freeze({"a": set()}, "$.update")


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cycle ends in an error, not in a walk without end, however often it is closed."""
    cycle: dict[str, Any] = {}
    cycle["again"] = [cycle, cycle, cycle]
    with pytest.raises(NotJson, match="200 levels deep, or contains itself") as caught:
        freeze(cycle)
    assert len(str(caught.value)) < 400


def test_the_depth_has_a_limit_that_does_not_depend_on_the_caller() -> None:
    """Data of the maximum depth is accepted at any depth of the stack; a level more is refused."""

    def called_deeply(depth: int) -> JsonValue:
        return called_deeply(depth - 1) if depth else freeze(nested(MAX_DEPTH))

    assert called_deeply(300) == freeze(nested(MAX_DEPTH))
    for levels in (MAX_DEPTH + 1, 10_000):
        with pytest.raises(NotJson, match="nested more than 200 levels deep"):
            freeze(nested(levels))


def test_the_largest_integers_can_be_written_and_read() -> None:
    """Every accepted integer is within Python's own limit of digits."""
    most = 2**14_000 - 1
    assert json.loads(json.dumps(freeze(most))) == most


@pytest.mark.parametrize("data", [[1], "text", None, 1])
def test_an_object_needs_a_mapping(data: Any) -> None:
    """Data that is not a mapping is refused where an object is expected."""
    with pytest.raises(NotJson, match="a JSON object was expected, not"):
        freeze_object(data)


def test_entries_are_added_to_a_copy() -> None:
    """`plus` adds and replaces entries, freezes them, and does not change the object."""
    before = JsonObject(a=1, b=2)
    after = before.plus(b=[3], c={"d": 4})
    assert before == {"a": 1, "b": 2}
    assert after == {"a": 1, "b": (3,), "c": {"d": 4}}
    assert is_immutable(after)
