"""JSON Schemas in the forms that providers accept.

What is sent leaves out or adds no more than a provider asks for. The arguments of a call are validated against the schema of
the tool in any case, so that a wider schema at the provider lets nothing through.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import is_
from typing import Any, TypeAlias

from attrs import field, frozen

from agentloop.values.json import JsonObject, JsonValue, format_json
from agentloop.values.schema_drafts import find_schema

Schema: TypeAlias = Mapping[str, Any]

UNIONS = frozenset({"oneOf", "anyOf", "allOf"})
"""What Anthropic refuses at the top level of a tool's parameters."""
_REFUSED = UNIONS | {"enum", "const", "not", "$ref"}
"""What OpenAI refuses at the top level of a tool's parameters."""

_TARGETS = UNIONS | {"not"}
"""The refused keywords with schemas, to which references may refer."""

_SCHEMA_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose values are objects of schemas, by arbitrary names."""
_DATA_KEYWORDS = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are data, not schemas."""
_MAX_DEPTH = 64
"""How many schemas in each other are merged; deeper ones are left out, since schemas also come from the servers of others."""


def closed_schema(schema: Schema) -> Schema:
    """Return a schema with `additionalProperties: false` as the default of objects, which some providers require."""
    closed: Schema = _each_schema(schema, _closed)
    return closed


def _closed(schema: Schema) -> Schema:
    if schema.get("type") != "object" or "additionalProperties" in schema:
        return schema
    return {**schema, "additionalProperties": False}


def complete_parameters(schema: JsonObject) -> Schema:
    """Return the parameters of a tool as OpenAI accepts them; the same object if it does so already.

    The API refuses parameters that are not of type object, have no `properties` or are a union, and arrays without `items`
    anywhere in them.
    """
    parameters = flat_parameters(schema, _REFUSED)
    if "properties" not in parameters or parameters.get("type") != "object":
        parameters = {"type": "object", "properties": {}, **parameters} | {"type": "object"}
    complete: Schema = _each_schema(parameters, _with_items)
    return complete


def _with_items(schema: Schema) -> Schema:
    kind = schema.get("type")
    is_array = "array" in kind if isinstance(kind, tuple | list) else kind == "array"
    return {**schema, "items": {}} if is_array and "items" not in schema else schema


def flat_parameters(schema: JsonObject, refused: frozenset[str] = UNIONS) -> Schema:
    """Return the parameters of a tool without the keywords that a provider refuses at their top level.

    The properties of all branches take the place of unions, with the alternatives of a property that differs between branches,
    and what every branch requires is required. Arguments that satisfy the schema, and have only properties that their branch
    declares, satisfy what is returned.

    Args:
        schema: the parameters.
        refused: the keywords.

    Returns:
        The parameters, as the same object if they have none of the keywords.
    """
    if refused.isdisjoint(schema):
        return schema
    merged = _Merger(schema).merge(schema)
    # No branch evaluates properties any more.
    dropped = {*refused, "unevaluatedProperties"}
    kept = {name: value for name, value in schema.items() if name not in dropped}
    flat = {**kept, "properties": {name: _any_of(schemas) for name, schemas in merged.properties.items()}}
    if merged.required:
        flat["required"] = list(merged.required)
    return _with_targets(flat, {name: value for name, value in schema.items() if name in refused & _TARGETS})


def _any_of(alternatives: _Alternatives) -> Any:
    schemas = list(alternatives.values())
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _with_targets(schema: Schema, dropped: Schema) -> Schema:
    """Return a schema in which references into keywords that it has no more lead to a definition with them."""
    places = tuple([f"#/{name}/" for name in dropped])
    definitions = _mapping(schema, "$defs")
    target = "dropped"
    while target in definitions:
        target += "_"

    def redirect(part: Schema) -> Schema:
        reference = part.get("$ref")
        if not isinstance(reference, str) or not reference.startswith(places):
            return part
        return {**part, "$ref": f"#/$defs/{target}{reference[1:]}"}

    redirected: Schema = _each_schema(schema, redirect)
    if redirected is schema:
        return schema
    return {**redirected, "$defs": {**_mapping(redirected, "$defs"), target: _each_schema(dropped, redirect)}}


_Alternatives: TypeAlias = Mapping[bytes, Any]
"""Different schemas of one property, by their JSON, in which 1 and true differ."""


@frozen
class _Merged:
    """What a schema says of the properties of objects.

    Attributes:
        properties: the schemas of each property; one of them applies.
        required: the required properties, in order.
    """

    properties: Mapping[str, _Alternatives] = field(factory=dict)
    required: Mapping[str, None] = field(factory=dict)


class _Merger:
    """Merges a schema with the unions and references in it.

    Args:
        root: the schema to which references refer.
    """

    __slots__ = ("_known", "_root")

    def __init__(self, root: Schema) -> None:
        self._root = root
        # By reference, so that the work is limited however often a schema is referred to, also by itself.
        self._known: dict[str, _Merged] = {}

    def merge(self, schema: Any, depth: int = 0) -> _Merged:
        """Return what a schema says of the properties of objects; nothing for one that is true."""
        if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
            return _Merged()
        parts = [_own(schema)]
        if isinstance(reference := schema.get("$ref"), str):
            parts.append(self._merge_reference(reference, depth))
        parts += [self.merge(part, depth + 1) for part in _list(schema, "allOf")]
        for name in ("oneOf", "anyOf"):
            branches = [branch for branch in _list(schema, name) if _has_objects(branch)]
            parts.append(_either([self.merge(branch, depth + 1) for branch in branches]))
        return _all(parts)

    def _merge_reference(self, reference: str, depth: int) -> _Merged:
        if reference not in self._known:
            self._known[reference] = _Merged()
            self._known[reference] = self.merge(find_schema(self._root, reference), depth + 1)
        return self._known[reference]


def _own(schema: Schema) -> _Merged:
    own = _mapping(schema, "properties")
    required = [name for name in _list(schema, "required") if isinstance(name, str)]
    return _Merged({name: {format_json(value): value} for name, value in own.items()}, dict.fromkeys(required))


def _has_objects(schema: Any) -> bool:
    """Return whether the arguments of a call, which are always an object, may satisfy a branch."""
    if not isinstance(schema, Mapping):
        return schema is not False
    kind = schema.get("type", "object")
    return "object" in kind if isinstance(kind, tuple | list) else kind == "object"


def _all(parts: Iterable[_Merged]) -> _Merged:
    """Return what holds if all parts do; of a property in several of them, the first one says enough."""
    properties: dict[str, _Alternatives] = {}
    required: dict[str, None] = {}
    for part in parts:
        for name, schemas in part.properties.items():
            properties.setdefault(name, schemas)
        required |= part.required
    return _Merged(properties, required)


def _either(branches: list[_Merged]) -> _Merged:
    """Return what holds if one of the branches does."""
    if not branches:
        return _Merged()
    properties: dict[str, dict[bytes, Any]] = {}
    for branch in branches:
        for name, schemas in branch.properties.items():
            properties.setdefault(name, {}).update(schemas)
    first, *others = branches
    required = [name for name in first.required if all(name in other.required for other in others)]
    return _Merged(properties, dict.fromkeys(required))


def _mapping(schema: Schema, name: str) -> Mapping[str, Any]:
    value = schema.get(name)
    return value if isinstance(value, Mapping) else {}


def _list(schema: Schema, name: str) -> Iterable[Any]:
    value = schema.get(name)
    return value if isinstance(value, tuple | list) else ()


def _each_schema(schema: Any, change: Callable[[Schema], Schema]) -> Any:
    """Return a schema with a change to each schema in it and then to itself; the same object if nothing is changed."""
    if isinstance(schema, tuple | list):
        items = [_each_schema(item, change) for item in schema]
        return schema if all(map(is_, items, schema)) else items
    if not isinstance(schema, Mapping):
        return schema
    changed = {name: _changed_keyword(name, value, change) for name, value in schema.items()}
    return change(schema if all(map(is_, changed.values(), schema.values())) else changed)


def _changed_keyword(name: str, value: JsonValue, change: Callable[[Schema], Schema]) -> Any:
    if name in _DATA_KEYWORDS:
        return value
    if name not in _SCHEMA_MAPS or not isinstance(value, Mapping):
        return _each_schema(value, change)
    changed = {key: _each_schema(item, change) for key, item in value.items()}
    return value if all(map(is_, changed.values(), value.values())) else changed
