"""Which JSON types a parameter's schema takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

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
