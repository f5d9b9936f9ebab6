"""The tools that a model was offered: lookup by written name, and the types that their schemas accept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from agentloop.values.schema_drafts import find_schema
from agentloop.values.tool_calls import ToolSpec

MAX_NAME_LENGTH: Final = 200
"""Characters of the longest tool name that is recognized in a text."""

NAME_PATTERN: Final = r"[^\W\d](?:[\w.-]|\\_)*"
"""A regular expression for tool names as models write them; underscores may be escaped as in Markdown."""

# Some chat templates put one of these before the name of every tool.
_NAMESPACES: Final = ("functions.", "tools.", "default_api.")
# Some put this behind it: `brave_search.call(query="…")` of the Llama 3 models.
_METHOD: Final = ".call"


@frozen
class OfferedTools:
    """The offered tools by name.

    A tool is also known by its name with underscores in place of dots, since providers reject dots in names, and by its name
    between a namespace and a method that chat templates add to every tool; the namespace may be the name itself.

    Attributes:
        by_exact_name: the tools by their exact names.
        by_name: the tools by all names without namespace and method.
        known_names: all names, with and without a namespace or a method, in alphabetical order.
    """

    by_exact_name: Mapping[str, ToolSpec]
    by_name: Mapping[str, ToolSpec]
    known_names: tuple[str, ...]

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> OfferedTools:
        """Index tools by name."""
        by_exact_name = {tool.name: tool for tool in tools}
        by_name = {tool.name.replace(".", "_"): tool for tool in tools} | by_exact_name
        qualified = [
            *(namespace + name for namespace in _NAMESPACES for name in by_name),
            *(name + _METHOD for name in by_name),
            *(f"{name}.{name}" for name in by_name),
        ]
        return cls(by_exact_name, by_name, tuple(sorted([*by_name, *qualified])))

    def normalize_name(self, written: str) -> str:
        """Return a name as written, without escapes and, if the rest is a known name, without namespace or method."""
        name = written.replace("\\", "")
        if name in self.by_name:
            return name
        for namespace in _NAMESPACES:
            bare = name.removeprefix(namespace)
            if bare != name and bare in self.by_name:
                return bare
        bare = name.removesuffix(_METHOD)
        if bare in self.by_name:
            return bare
        half = name[: len(name) // 2]
        return half if name == f"{half}.{half}" and half in self.by_name else name

    def is_offered(self, name: str) -> bool:
        """Whether a normalized name is that of an offered tool."""
        return name in self.by_name

    def is_strict(self, name: str) -> bool:
        """Whether the arguments of a tool are never coerced."""
        tool = self.by_name.get(name)
        return tool is not None and tool.strict

    def is_prefix(self, text: str) -> bool:
        """Whether a known name begins with this text."""
        index = bisect_left(self.known_names, text)
        return index < len(self.known_names) and self.known_names[index].startswith(text)

    def parameters(self, name: str) -> Mapping[str, object]:
        """Return the JSON Schema of a tool's parameters; empty for an unknown tool."""
        tool = self.by_name.get(name)
        return {} if tool is None else tool.parameters

    def properties(self, name: str) -> Mapping[str, object]:
        """Return the schemas of a tool's parameters by name, in order, without local references; empty if there are none."""
        tool = self.by_name.get(name)
        return {} if tool is None else tool.encoded("properties without references", _properties_of_tool)

    @property
    def argument_names(self) -> frozenset[str]:
        """The names of the parameters of all tools."""
        return frozenset([name for tool in self.by_exact_name for name in self.properties(tool)])

    def required(self, name: str) -> tuple[str, ...]:
        """Return the names of a tool's required parameters."""
        required = self.parameters(name).get("required")
        return tuple(map(str, required)) if isinstance(required, Sequence) and not isinstance(required, str) else ()

    def sole_parameter(self, name: str) -> str | None:
        """Return the only required parameter of a tool, or its only parameter; None if there are several or none."""
        properties = self.properties(name)
        candidates = [key for key in self.required(name) if key in properties] or [*properties]
        return candidates[0] if len(candidates) == 1 else None


# A reference can lead to itself, or to one schema in many ways.
_MAX_SCHEMAS: Final = 2_000


def _properties_of_tool(tool: ToolSpec) -> Mapping[str, object]:
    properties = tool.parameters.get("properties")
    if not isinstance(properties, Mapping):
        return {}
    resolver = _Resolver(tool.parameters)
    return {name: resolver.resolve(schema, _MAX_DEPTH) for name, schema in properties.items()}


class _Resolver:
    """Replaces references within a schema by what they refer to, where this decides how a value is read.

    References that are nested too deeply, or come after too many others, are left: they say nothing about a value.
    """

    def __init__(self, root: Mapping[str, object]) -> None:
        self._root = root
        self._left = _MAX_SCHEMAS

    def resolve(self, schema: object, depth: int) -> object:
        """Return a schema without references in as many levels as `depth` says."""
        if not (isinstance(schema, Mapping) and depth and self._left > 0):
            return schema
        self._left -= 1
        reference, branches = schema.get("$ref"), schema.get("allOf")
        if isinstance(reference, str):
            return self.resolve(find_schema(self._root, reference), depth - 1)
        # Some libraries write a reference with a description or a default in this way.
        if (
            isinstance(branches, Sequence)
            and len(branches) == 1
            and not schema.keys() & {"type", "properties", "items"}
        ):
            return self.resolve(branches[0], depth - 1)
        resolved = dict(schema)
        for keyword, value in schema.items():
            if keyword == "properties" and isinstance(value, Mapping):
                resolved[keyword] = {name: self.resolve(inner, depth - 1) for name, inner in value.items()}
            elif keyword == "items":
                resolved[keyword] = self.resolve(value, depth - 1)
            elif keyword in _COMBINATIONS and isinstance(value, Sequence):
                resolved[keyword] = [self.resolve(branch, depth - 1) for branch in value]
        return resolved


_UNIONS: Final = ("anyOf", "oneOf")
_COMBINATIONS: Final = frozenset({*_UNIONS, "allOf"})
# Some schemas name their types as Python does.
_PYTHON_TYPES: Final = {
    "dict": "object",
    "float": "number",
    "tuple": "array",
    "list": "array",
    "int": "integer",
    "str": "string",
    "bool": "boolean",
}
_MAX_DEPTH: Final = 8


def types_of(schema: object, max_depth: int = _MAX_DEPTH) -> frozenset[str]:
    """Return the JSON types that a schema accepts; empty if it does not restrict them."""
    if not isinstance(schema, Mapping) or not max_depth:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({_PYTHON_TYPES.get(named, named)})
    if isinstance(named, Sequence):
        return frozenset(_PYTHON_TYPES.get(str(name), str(name)) for name in named)
    for keyword in _UNIONS:
        branches = schema.get(keyword)
        if isinstance(branches, Sequence):
            types = [types_of(branch, max_depth - 1) for branch in branches]
            return frozenset().union(*types) if all(types) else frozenset()
    branches = schema.get("allOf")
    if isinstance(branches, Sequence):
        known = [kinds for branch in branches if (kinds := types_of(branch, max_depth - 1))]
        return frozenset.intersection(*known) if known else frozenset()
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


def has_accepted_type(value: object, schema: object) -> bool:
    """Whether a value is of a type that a schema accepts."""
    types = types_of(schema)
    kind = type_of(value)
    return not types or "any" in types or kind in types or (kind == "integer" and "number" in types)


def properties_of(schema: object) -> Mapping[str, object]:
    """Return the schemas of an object's properties; empty if there are none."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}


def items_of(schema: object) -> object:
    """Return the schema of an array's items, or None."""
    return schema.get("items") if isinstance(schema, Mapping) else None
