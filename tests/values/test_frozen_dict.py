"""Dictionaries that cannot be changed."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from agentloop.values.json import FrozenDict, JsonObject

WRITES: dict[str, Callable[[Any], object]] = {
    "set an item": lambda entries: operator.setitem(entries, "a", 2),
    "delete an item": lambda entries: operator.delitem(entries, "a"),
    "merge in place": lambda entries: entries.__ior__({"b": 2}),
    "clear": lambda entries: entries.clear(),
    "pop": lambda entries: entries.pop("a"),
    "pop with a default": lambda entries: entries.pop("b", None),
    "pop an item": lambda entries: entries.popitem(),
    "set a default": lambda entries: entries.setdefault("b", 2),
    "update": lambda entries: entries.update({"a": 2}),
    "update by name": lambda entries: entries.update(b=2),
}


@pytest.mark.parametrize("kind", [FrozenDict, JsonObject])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_writing_raises(kind: type[FrozenDict[str, int]], write: Callable[[Any], object]) -> None:
    """Every method of `dict` that writes raises and changes nothing."""
    entries = kind({"a": 1})
    with pytest.raises(TypeError, match="immutable"):
        write(entries)
    assert entries == {"a": 1}


@pytest.mark.parametrize("kind", [FrozenDict, JsonObject])
def test_no_method_that_writes_was_forgotten(kind: type[FrozenDict[str, int]]) -> None:
    """Every method of dict that does not raise leaves the entries unchanged."""
    reads = {"copy", "fromkeys", "get", "items", "keys", "values"}
    public = {name for name in dir(dict) if not name.startswith("_")}
    refused = {name for name in public if getattr(kind, name) is not getattr(dict, name)} - {"fromkeys"}
    assert public - refused == reads


@pytest.mark.parametrize("kind", [FrozenDict, JsonObject])
def test_calling_the_constructor_again_changes_nothing(kind: type[FrozenDict[str, int]]) -> None:
    """A second call of `__init__` does not change the mapping."""
    entries = kind({"a": 1})
    entries.__init__({"a": 2, "b": 3})  # type: ignore[misc]  # what is not to be done
    assert entries == {"a": 1}


@pytest.mark.parametrize("kind", [FrozenDict, JsonObject])
def test_it_accepts_the_arguments_of_dict(kind: type[FrozenDict[str, int]]) -> None:
    """Mappings, pairs and names all do."""
    assert kind({"a": 1}) == kind([("a", 1)]) == kind(a=1) == kind({"a": 0}, a=1) == {"a": 1}
    assert kind() == {}


@pytest.mark.parametrize("kind", [FrozenDict, JsonObject])
def test_equal_mappings_have_equal_hashes_in_any_order(kind: type[FrozenDict[str, int]]) -> None:
    """A mapping can be an element of a set."""
    left, right = kind({"a": 1, "b": 2}), kind({"b": 2, "a": 1})
    assert hash(left) == hash(right)
    assert {left} == {right}
    assert {left} != {kind({"a": 1})}


@pytest.mark.parametrize("kind", [FrozenDict, JsonObject])
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_and_pickles_are_equal_and_frozen(
    kind: type[FrozenDict[str, int]], copied: Callable[[Any], Any]
) -> None:
    """A copy is of the same class and as immutable."""
    entries = kind({"a": 1})
    again = copied(entries)
    assert type(again) is kind
    assert again == entries
    with pytest.raises(TypeError, match="immutable"):
        again["a"] = 2


def test_a_union_with_another_dict_is_a_plain_copy() -> None:
    """The result of `|` is a mutable dict, and the operands are unchanged."""
    entries: FrozenDict[str, int] = FrozenDict({"a": 1})
    merged = entries | {"b": 2}
    merged["c"] = 3
    assert merged == {"a": 1, "b": 2, "c": 3}
    assert entries == {"a": 1}


def test_it_shows_itself_as_a_dict() -> None:
    """A repr reads as JSON data does in Python."""
    assert repr(FrozenDict({"a": 1})) == repr({"a": 1}) == repr(JsonObject({"a": 1}))
