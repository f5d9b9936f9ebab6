"""Values of planned programs: JSON data in which each text and number has the marks of the sources that it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Any, TypeAlias

from attrs import define, frozen

Scalar: TypeAlias = str | int | float | bool | None


class Part(IntEnum):
    """The part that a source has in a value.

    `WORDS`: the value is made of the words of the source. `NAME`: the value is such a word, and names a thing of a service; as soon as it
    becomes part of a text, it is words. `PICKED`: the program picked the value by looking at the source. `ANSWER`: a model wrote or picked
    the value after reading the source.
    """

    WORDS = 0
    NAME = 1
    PICKED = 2
    ANSWER = 3


Mark: TypeAlias = tuple[int, Part]
"""The number of a source, and its part."""
Marks: TypeAlias = frozenset[Mark]
CLEAN: Marks = frozenset()


@define(eq=False)
class Leaf:
    """A text, a number, true, false or null."""

    value: Scalar
    marks: Marks = CLEAN


@define(eq=False)
class Array:
    """A list; its own marks are about which items it has."""

    items: list[Node]
    marks: Marks = CLEAN


@define(eq=False)
class Record:
    """A dictionary; its own marks are about which names it has."""

    fields: dict[str, Node]
    marks: Marks = CLEAN


Node: TypeAlias = Leaf | Array | Record


@frozen
class ResultMarks:
    """What a result is made of.

    Attributes:
        marks: the marks of words in it.
        own: the names of the fields that have none; `*` for all.
        identifiers: the names of the fields that are names; `*` for all.
    """

    marks: Marks
    own: frozenset[str] = frozenset()
    identifiers: frozenset[str] = frozenset()

    def node_of(self, value: Any, name: str = "") -> Node:
        """Return JSON data with marks. Where a service vouches for a field, it vouches for which entries there are."""
        which = CLEAN if self.own else self.marks
        if isinstance(value, Mapping):
            return Record({key: self.node_of(item, key) for key, item in value.items()}, which)
        if isinstance(value, list | tuple):
            return Array([self.node_of(item, name) for item in value], which)
        is_of_model = any(part is Part.ANSWER for _, part in self.marks)
        if (value is None or isinstance(value, bool)) and not is_of_model:
            return Leaf(value)
        if _has(self.own, name):
            return Leaf(value)
        if _has(self.identifiers, name):
            return Leaf(value, frozenset([(number, Part.NAME) for number, _ in self.marks]))
        return Leaf(value, self.marks)


def read_marks(written: Iterable[tuple[int, int]]) -> Marks:
    """Read marks from JSON."""
    return frozenset([(number, Part(part)) for number, part in written])


def write_marks(marks: Marks) -> list[tuple[int, int]]:
    """Return marks as JSON."""
    return sorted((number, int(part)) for number, part in marks)


def _has(names: frozenset[str], name: str) -> bool:
    return name in names or "*" in names


def node_of(value: Any, marks: Marks = CLEAN) -> Node:
    """Return JSON data, all of it with the same marks."""
    return ResultMarks(marks).node_of(value)


def plain(node: Node) -> Any:
    """Return a node as JSON data."""
    match node:
        case Leaf():
            return node.value
        case Array():
            return [plain(item) for item in node.items]
        case Record():
            return {name: plain(item) for name, item in node.fields.items()}


def marks_in(node: Node) -> Marks:
    """Return the marks of a whole argument. Which items a list has is picked, and trusted unless a model has picked them."""
    return CLEAN.union(*[answers(each.marks) if isinstance(each, Array) else each.marks for each in _nodes(node)])


def answers(marks: Marks) -> Marks:
    """Return the marks of what a model wrote or picked."""
    return frozenset([mark for mark in marks if mark[1] is Part.ANSWER])


def all_marks(node: Node) -> Marks:
    """Return all marks in a node."""
    return CLEAN.union(*[each.marks for each in _nodes(node)])


def words(*marks: Marks) -> Marks:
    """Return the marks of a text that is computed: a name is words like any other."""
    return frozenset([(number, Part.WORDS if part is Part.NAME else part) for each in marks for number, part in each])


def picked(node: Node, by: Marks) -> Node:
    """Return a node as one that the program picked by looking at sources. What a model has picked, it has not."""
    marks = frozenset([(number, Part.ANSWER if part is Part.ANSWER else Part.PICKED) for number, part in by])
    return marked(node, marks)


def marked(node: Node, marks: Marks) -> Node:
    """Return a node whose parts have further marks."""
    if not marks:
        return node
    match node:
        case Leaf():
            return Leaf(node.value, node.marks | marks)
        case Array():
            return Array([marked(item, marks) for item in node.items], node.marks | marks)
        case Record():
            return Record({name: marked(item, marks) for name, item in node.fields.items()}, node.marks | marks)


def mark_in_place(node: Node, marks: Marks) -> None:
    """Add marks about which items there are to all lists and dictionaries in a node, which a program may have changed, or not."""
    for each in _nodes(node):
        if not isinstance(each, Leaf):
            each.marks |= marks


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    match node:
        case Array():
            for item in node.items:
                yield from _nodes(item)
        case Record():
            for item in node.fields.values():
                yield from _nodes(item)


@frozen
class PlannedCall:
    """A call that a program makes.

    Attributes:
        name: the function.
        arguments: the arguments, as JSON data.
        control: the marks of what decided that it is made.
        marks: the marks of each argument.
    """

    name: str
    arguments: Mapping[str, Any]
    control: Marks
    marks: Mapping[str, Marks]
