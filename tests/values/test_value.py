"""What all values have in common, held against the methods that attrs would have written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop
from agentloop import AgentState, HttpInference, LLMConfig
from agentloop.executors.call_layers import CallOutcome
from agentloop.values.records import ExecutionHead
from agentloop.values.steps import ExecutionState, ExecutionStatus, Totals
from agentloop.values.value import Value, copier


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


@attrs.frozen(kw_only=True)
class Odd:
    """Has the kinds of fields that classes of the package have."""

    plain: int
    converted: tuple[int, ...] = attrs.field(default=(), converter=tuple[int, ...])
    _private: int = 0
    renamed: int = attrs.field(default=0, alias="other")
    counted: list[int] = attrs.field(factory=list, init=False)
    _kind: int = 0
    value: int = 0


@given(st.sets(st.sampled_from([field.alias for field in attrs.fields(Odd) if field.init]), min_size=1))
def test_a_copy_has_every_field_that_evolve_has(changed: set[str]) -> None:
    """Whichever fields change, all others stay, under whatever name `__init__` takes them."""
    before = Odd(plain=1, converted=(2,), private=3, other=4, kind=5, value=6)
    changes: dict[str, Any] = {name: (7,) if name == "converted" else 8 for name in sorted(changed)}
    copy = copier(Odd, *changes)
    assert copy(before, *changes.values()) == attrs.evolve(before, **changes)
    wider = attrs.make_class("wider", {"added": attrs.field(default=0)}, bases=(Odd,), frozen=True, kw_only=True)
    kept: Any = copy(wider(plain=1, private=3, added=9), *changes.values())
    assert (type(kept), kept.added) == (wider, 9)


@pytest.mark.parametrize("wrong", ["_private", "renamed", "counted", "plane"])
def test_a_copier_of_a_field_that_is_not_one_is_refused(wrong: str) -> None:
    """The error comes where the copier is made, not where a copy is needed."""
    with pytest.raises(TypeError, match=f"Odd has no field '{wrong}'"):
        copier(Odd, wrong)


def _fields_kept_by_hand(call: ast.Call, name: str) -> int:
    """Return for how many fields a call passes the field of the same name of one object."""
    values = [(each.arg, each.value) for each in call.keywords]
    return sum(
        isinstance(value, ast.Attribute)
        and isinstance(value.value, ast.Name)
        and value.value.id == name
        and value.attr.lstrip("_") == argument
        for argument, value in values
    )


def _copies_by_hand(module: ast.Module) -> Iterator[str]:
    """Yield the calls of a class that name the fields to keep of an object of that class: of `self`, or of a parameter with that type."""
    for owner in ast.walk(module):
        own = {"self": owner.name} if isinstance(owner, ast.ClassDef) else dict[str, str]()
        if isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef):
            every = [*owner.args.args, *owner.args.kwonlyargs]
            own = {each.arg: ast.unparse(each.annotation) for each in every if each.annotation is not None}
        for call in ast.walk(owner):
            if not isinstance(call, ast.Call):
                continue
            for name, kind in own.items():
                called = ast.unparse(call.func)
                is_copy = called in {kind, f"type({name})"}
                if is_copy and _fields_kept_by_hand(call, name) >= 3:
                    yield f"line {call.lineno}: {called}"


def test_no_copy_names_the_fields_that_it_keeps() -> None:
    """A field that a class gets later would be lost by such a copy: `evolve` and `copier` know all of them."""
    root = Path(agentloop.__file__).parent
    found = {
        path.relative_to(root).as_posix(): calls
        for path in root.rglob("*.py")
        if (calls := [*_copies_by_hand(ast.parse(path.read_text()))])
    }
    assert found == {}
    by_hand = "class A:\n    def copy(self):\n        return A(a=self.a, b=self._b, c=self.c, d=1)"
    assert [*_copies_by_hand(ast.parse(by_hand))] == ["line 3: A"]
    by_hand = "def copy(a: A):\n    return A(a=a.a, b=a._b, c=a.c, d=1)"
    assert [*_copies_by_hand(ast.parse(by_hand))] == ["line 2: A"]


_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_HEAD = ExecutionHead(
    execution_id="e", agent_id="a", number=1, status=ExecutionStatus.PENDING, started_at=_NOW, updated_at=_NOW
)


@pytest.mark.parametrize(
    "value",
    [
        AgentState(agent_id="a", created_at=_NOW, updated_at=_NOW),
        ExecutionState(id="e", started_at=_NOW),
        Totals(),
        CallOutcome(started_at=_NOW),
        _HEAD,
        HttpInference(LLMConfig.parse("openai:any", api_key="key")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_field_that_a_class_gets_later_is_kept(value: Any) -> None:
    """Each class that is copied often keeps a field that it does not have yet, whichever fields a copy changes."""
    kind = type(value)
    later = attrs.make_class("Later", {"added": attrs.field(default=0)}, bases=(kind,), frozen=True, kw_only=True)
    names = {field.alias: field.name for field in attrs.fields(kind) if field.init}
    values = {alias: getattr(value, name) for alias, name in names.items()}
    with_added = later(**values, added=7)
    for alias in names:
        for made_for in (kind, later):
            assert copier(made_for, alias)(with_added, values[alias]).added == 7
