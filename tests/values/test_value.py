"""What all values have in common, held against the methods that attrs would have written."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.values.value import Value


def shown(value: object) -> str:
    """Format a field."""
    return f"<{value}>"


@attrs.frozen(eq=False, repr=False)
class Ours(Value):
    """Compares, hashes and shows itself by the methods of `Value`."""

    first: Any
    second: Any = 0
    unseen: Any = attrs.field(default=0, repr=False)
    ignored: Any = attrs.field(default=0, eq=False)
    special: Any = attrs.field(default=0, repr=shown)


@attrs.frozen
class Twin:
    """The same fields, with the methods that attrs writes."""

    first: Any
    second: Any = 0
    unseen: Any = attrs.field(default=0, repr=False)
    ignored: Any = attrs.field(default=0, eq=False)
    special: Any = attrs.field(default=0, repr=shown)


@attrs.frozen(eq=False, repr=False)
class One(Value):
    """A value with a single field."""

    only: Any


@attrs.frozen
class OneTwin:
    """Another class with the same field."""

    only: Any


@attrs.frozen(eq=False, repr=False)
class Nothing(Value):
    """Has no fields."""


@attrs.frozen(eq=False, repr=False)
class Private(Value):
    """Has a field that its constructor calls by another name."""

    _kept: int


class Kind(Ours):
    """A subclass without additional fields."""

    __slots__ = ()


fields = st.tuples(*[st.integers(0, 1) | st.sampled_from(["a", "'", None, (1, 2)])] * 5)


@given(fields, fields)
def test_values_compare_as_attrs_classes_do(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    """Two values are equal exactly when attrs would call them equal."""
    assert (Ours(*left) == Ours(*right)) is (Twin(*left) == Twin(*right))
    assert (Ours(*left) != Ours(*right)) is (Twin(*left) != Twin(*right))
    assert (One(left[0]) == One(right[0])) is (OneTwin(left[0]) == OneTwin(right[0]))


@given(fields)
def test_values_show_themselves_as_attrs_classes_do(given_fields: tuple[Any, ...]) -> None:
    """A repr has the fields that attrs shows, in the same form."""
    assert repr(Ours(*given_fields)) == repr(Twin(*given_fields)).replace("Twin(", "Ours(")
    assert repr(One(given_fields[0])) == repr(OneTwin(given_fields[0])).replace("OneTwin(", "One(")


@given(fields, st.integers())
def test_equal_values_have_equal_hashes(given_fields: tuple[Any, ...], other: int) -> None:
    """A value finds its equal in a set, also when they differ in a field that is not compared."""
    value = Ours(*given_fields)
    equal = attrs.evolve(value, ignored=other)
    assert hash(equal) == hash(value)
    assert {equal} == {value}


def test_values_of_different_classes_are_never_equal() -> None:
    """Equal fields do not make values of two classes equal, neither of a class and its subclass."""
    assert Ours(1) != Kind(1)
    assert Kind(1) != Ours(1)
    assert Kind(1) == Kind(1)
    assert Nothing() == Nothing()
    assert Ours(1) != 1
    assert hash(Ours(1)) != hash(Kind(1))


def test_comparing_leaves_the_answer_to_an_object_of_another_kind() -> None:
    """The comparison of the other object is used."""

    class Anything:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # not needed

    assert Ours(1) == Anything()


def test_a_value_with_an_unhashable_field_is_unhashable() -> None:
    """Hashing raises a TypeError."""
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(Ours([]))


def test_the_repr_of_a_local_class_has_only_its_name() -> None:
    """The repr does not include the function in which a class is defined."""

    @attrs.frozen(eq=False, repr=False)
    class Local(Value):
        field: int

    @attrs.frozen
    class LocalTwin:
        field: int

    assert repr(Local(1)) == "Local(field=1)"
    assert repr(LocalTwin(1)) == repr(Local(1)).replace("Local", "LocalTwin")


def test_a_private_field_is_shown_by_the_name_the_constructor_takes() -> None:
    """The repr is a valid constructor call."""
    assert repr(Private(kept=3)) == "Private(kept=3)"


def test_a_value_cannot_be_changed() -> None:
    """Setting and deleting a field raises, and so does adding one."""
    value: Any = Ours(1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        value.first = 2
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        del value.first
    with pytest.raises(AttributeError):
        value.another = 2
    assert value == Ours(1)
