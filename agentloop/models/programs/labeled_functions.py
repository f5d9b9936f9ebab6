"""The functions and methods of Python that planned programs have, over values with marks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from agentloop.models.programs.labeled_values import (
    CLEAN,
    Array,
    Leaf,
    Marks,
    Node,
    Record,
    all_marks,
    marked,
    node_of,
    picked,
    plain,
    words,
)

BYTES_OF_VALUE = 64
"""What a value counts for, besides its text."""
_MAX_DIGITS = 100
_SCALAR_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": abs,
    "all": all,
    "any": any,
    "bool": bool,
    "float": float,
    "int": int,
    "round": round,
    "sum": sum,
}
_LISTS = frozenset({"enumerate", "list", "range", "reversed", "set", "tuple", "zip"})
FUNCTIONS = frozenset({*_SCALAR_FUNCTIONS, *_LISTS, "dict", "len", "max", "min", "print", "sorted", "str"})
"""The names of all functions that are not tools."""
_TEXT_METHODS = frozenset(
    {
        "capitalize",
        "count",
        "endswith",
        "find",
        "isalpha",
        "isdigit",
        "join",
        "lower",
        "lstrip",
        "removeprefix",
        "removesuffix",
        "replace",
        "rstrip",
        "split",
        "splitlines",
        "startswith",
        "strip",
        "title",
        "upper",
    }
)


@frozen(eq=False)
class FoundText:
    """What `re.search` found."""

    found: re.Match[str]
    marks: Marks


@frozen(eq=False)
class Functions:
    """Functions and methods.

    Attributes:
        charge: counts bytes of values, and raises an error above the limit.
    """

    charge: Callable[[int], None]

    def call(self, name: str, arguments: Sequence[Node]) -> Node:
        """Call a function of `FUNCTIONS`, other than `print` and those with a key.

        Raises:
            Exception: as Python raises it.
        """
        marks = words(*map(all_marks, arguments))
        values = [plain(argument) for argument in arguments]
        if name in _LISTS:
            return self._list(name, arguments, marks)
        match name:
            case "dict" if not arguments:
                return Record({})
            case "len" if isinstance(arguments[0], Array | Record):
                return Leaf(len(values[0]), words(arguments[0].marks))
            case "len":
                return Leaf(len(values[0]), marks)
            case "str":
                return Leaf(str(*values), marks)
            case "round" if len(values) > 1 and abs(values[1]) > _MAX_DIGITS:
                raise ValueError(f"a number is rounded to at most {_MAX_DIGITS} digits")
        return Leaf(_SCALAR_FUNCTIONS[name](*values), marks)

    def _list(self, name: str, arguments: Sequence[Node], marks: Marks) -> Array:
        if name == "range":
            numbers = range(*map(plain, arguments))
            self.charge(BYTES_OF_VALUE * len(numbers))
            return Array([Leaf(number, marks) for number in numbers], marks)
        items = [self.items(argument) for argument in arguments]
        which = CLEAN.union(*[argument.marks for argument in arguments])
        match name:
            case "zip":
                return Array([Array(list(each)) for each in zip(*items, strict=False)], which)
            case "enumerate":
                return Array([Array([Leaf(number), item]) for number, item in enumerate(items[0])], which)
            case "set":
                return distinct(items[0] if items else [], marks)
            case "reversed":
                return Array(items[0][::-1], which)
        return Array(items[0] if items else [], which)

    def items(self, node: Node) -> list[Node]:
        """Return the items over which an iteration goes.

        Raises:
            TypeError: there are none.
        """
        match node:
            case Array():
                return list(node.items)
            case Record():
                return [Leaf(name, node.marks) for name in node.fields]
            case Leaf(str() as text):
                self.charge(BYTES_OF_VALUE * len(text))
                return [Leaf(character, node.marks) for character in text]
        raise TypeError(f"a {type(plain(node)).__name__} has no items")

    def of_module(self, module: str, name: str, arguments: Sequence[Node]) -> Node | FoundText:
        """Call a function of `re` or `json`.

        Raises:
            Exception: as Python raises it.
        """
        marks, values = words(*map(all_marks, arguments)), [plain(argument) for argument in arguments]
        match module, name:
            case "json", "dumps":
                return Leaf(json.dumps(values[0], ensure_ascii=False), marks)
            case "json", "loads":
                self.charge(BYTES_OF_VALUE * len(values[0]) // 4)
                return node_of(json.loads(values[0]), marks)
            case "re", "findall" | "split":
                return node_of(getattr(re, name)(*values), marks)
            case "re", "sub":
                self.charge(len(values[2]) * (len(values[1]) + 1))
                return Leaf(re.sub(*values), marks)
            case "re", "search" | "match" | "fullmatch":
                found = getattr(re, name)(*values)
                return Leaf(None, marks) if found is None else FoundText(found, marks)
        raise AttributeError(f"{module}.{name} is not available in a planned program")

    def method(self, holder: Node | FoundText, name: str, arguments: Sequence[Node], control: Marks) -> Node:
        """Call a method of a value.

        Args:
            holder: the value.
            name: the name of the method.
            arguments: its arguments.
            control: the marks of what decided that it is called.

        Raises:
            Exception: as Python raises it.
        """
        match holder:
            case FoundText() if name in {"group", "groups"}:
                return node_of(getattr(holder.found, name)(*map(plain, arguments)), holder.marks)
            case Leaf(str() as text) if name in _TEXT_METHODS:
                values = [plain(argument) for argument in arguments]
                if name == "replace":  # counted before it is made
                    self.charge(len(text) + text.count(values[0]) * len(values[1]))
                made = getattr(text, name)(*values)
                self.charge(BYTES_OF_VALUE * len(made) if isinstance(made, list) else 0)
                return node_of(made, words(holder.marks, *map(all_marks, arguments)))
            case Record():
                return _method_of_record(holder, name, arguments)
            case Array():
                return self._method_of_array(holder, name, arguments, words(control))
        raise AttributeError(f".{name} is not available in a planned program")

    def _method_of_array(self, holder: Array, name: str, arguments: Sequence[Node], control: Marks) -> Node:
        match name:
            case "append":
                holder.items.append(marked(arguments[0], control))
            case "extend":
                added = self.items(arguments[0])
                self.charge(BYTES_OF_VALUE * len(added))
                holder.items += [marked(item, control) for item in added]
                holder.marks |= words(arguments[0].marks)
            case "count" | "index":
                found = getattr(plain(holder), name)(plain(arguments[0]))
                return Leaf(found, words(all_marks(holder), all_marks(arguments[0])))
            case _:
                raise AttributeError(f".{name} of a list is not available in a planned program")
        holder.marks |= control
        return Leaf(None)


def _method_of_record(holder: Record, name: str, arguments: Sequence[Node]) -> Node:
    names = [Leaf(key, holder.marks) for key in holder.fields]
    match name:
        case "get":
            default = arguments[1] if len(arguments) > 1 else Leaf(None)
            found = holder.fields.get(as_key(plain(arguments[0])), default)
            return picked(found, all_marks(arguments[0]) | holder.marks)
        case "keys":
            return Array(list(names), holder.marks)
        case "values":
            return Array(list(holder.fields.values()), holder.marks)
        case "items":
            pairs = zip(names, holder.fields.values(), strict=True)
            return Array([Array([key, value]) for key, value in pairs], holder.marks)
    raise AttributeError(f".{name} of a dictionary is not available in a planned program")


def as_key(key: object) -> str:
    """Check the key of a dictionary.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(key, str):
        raise TypeError(f"the keys of a dictionary are texts here, as in JSON; not {key!r:.80}")
    return key


def distinct(items: Iterable[Node], marks: Marks = CLEAN) -> Array:
    """Return a set, which is a list of distinct items in the order in which they were found."""
    found: dict[str, Node] = {}
    for item in items:
        found.setdefault(json.dumps(plain(item), sort_keys=True), item)
    return Array(list(found.values()), marks)
