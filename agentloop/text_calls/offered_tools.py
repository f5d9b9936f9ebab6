"""The tools that a model was offered, as a reader of its text needs them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from agentloop.values.tool_calls import ToolSpec

_NAMESPACES: Final = ("functions.", "tools.", "default_api.")


@frozen
class OfferedTools:
    """The offered tools by name.

    A name counts as known also where its dots are written as underscores, since providers refuse dots in names, and behind a
    namespace that prompts put before every tool.

    Attributes:
        own: the tools, by their own names.
        by_name: the tools, by the names under which they are known.
        names: those names in alphabetical order.
    """

    own: Mapping[str, ToolSpec]
    by_name: Mapping[str, ToolSpec]
    names: tuple[str, ...]

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> OfferedTools:
        """Collect tools."""
        own = {tool.name: tool for tool in tools}
        by_name = {tool.name.replace(".", "_"): tool for tool in tools} | own
        return cls(
            own, by_name, tuple(sorted([*by_name, *[space + name for space in _NAMESPACES for name in by_name]]))
        )

    def plain_name(self, written: str) -> str:
        """Return a name without escapes, and without the namespace that some prompts put before every tool."""
        name = written.replace("\\", "")
        if name in self.by_name:
            return name
        for space in _NAMESPACES:
            bare = name.removeprefix(space)
            if bare != name and bare in self.by_name:
                return bare
        return name

    def knows(self, name: str) -> bool:
        """Say whether this is an offered tool."""
        return name in self.by_name

    def begins(self, text: str) -> bool:
        """Say whether a known name begins with this text."""
        place = bisect_left(self.names, text)
        return place < len(self.names) and self.names[place].startswith(text)

    def parameters(self, name: str) -> Mapping[str, object]:
        """Return the JSON Schema of a tool's parameters; empty for an unknown one."""
        tool = self.by_name.get(name)
        return {} if tool is None else tool.parameters

    def properties(self, name: str) -> Mapping[str, object]:
        """Return the schemas of a tool's parameters by name, in their order; empty when there are none."""
        properties = self.parameters(name).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def required(self, name: str) -> tuple[str, ...]:
        """Return the names of the parameters that a call must have."""
        required = self.parameters(name).get("required")
        return tuple(map(str, required)) if isinstance(required, Sequence) and not isinstance(required, str) else ()

    def only_parameter(self, name: str) -> str | None:
        """Return the one parameter that a tool must or can have, when there is just one."""
        properties = self.properties(name)
        candidates = [key for key in self.required(name) if key in properties] or [*properties]
        return candidates[0] if len(candidates) == 1 else None


_ALTERNATIVES: Final = ("anyOf", "oneOf")
_SPELLINGS: Final = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "list": "array",
    "int": "integer",
    "str": "string",
    "bool": "boolean",
}
_DEEPEST: Final = 8


def types_of(schema: object, deepest: int = _DEEPEST) -> frozenset[str]:
    """Return the names of the types that a schema takes; empty when it does not say."""
    if not isinstance(schema, Mapping) or not deepest:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({_SPELLINGS.get(named, named)})
    if isinstance(named, Sequence):
        return frozenset(_SPELLINGS.get(str(name), str(name)) for name in named)
    for key in _ALTERNATIVES:
        choices = schema.get(key)
        if isinstance(choices, Sequence):
            types = [types_of(choice, deepest - 1) for choice in choices]
            return frozenset().union(*types) if all(types) else frozenset()
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return frozenset(map(type_of, values)) if isinstance(values, Sequence) else frozenset()


def type_of(value: object) -> str:
    """Return the name of a value's JSON type."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) else "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def fits(value: object, schema: object) -> bool:
    """Say whether a value is of a type that a schema takes; what a schema does not say, it takes."""
    types = types_of(schema)
    kind = type_of(value)
    return not types or "any" in types or kind in types or (kind == "integer" and "number" in types)


def properties_of(schema: object) -> Mapping[str, object]:
    """Return the schemas of an object's properties; empty when there are none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def items_of(schema: object) -> object:
    """Return the schema of an array's items, or None."""
    return schema.get("items") if isinstance(schema, Mapping) else None
