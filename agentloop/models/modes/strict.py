"""Strict structured output: schemas in the subset that providers enforce, and answers translated back.

Providers that enforce a schema accept only a part of JSON Schema: the root is an object, every object is closed, and every
property is required. Optional properties become nullable, and the nulls are removed from the answer again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import ModeStream
from agentloop.errors import AgentLoopError
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ResponseFormat
from agentloop.values.json import extract_json, format_json
from agentloop.values.parts import Text
from agentloop.values.schema_drafts import find_schema


class NotStrict(AgentLoopError):
    """A schema cannot be expressed in the strict subset; the message states the reason and the place."""


def strict_schema(schema: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a schema in the strict subset, and its definitions.

    Data that satisfies the schema also satisfies the result, once null is added for every missing optional property.

    Args:
        schema: the JSON Schema.
        prefix: put before the names of the definitions, so that the definitions of several schemas can be united.

    Raises:
        NotStrict: the schema cannot be expressed, for instance because an object may have any keys.
    """
    definitions = {
        f"{prefix}{name}": _make_strict(_SchemaNode("$defs", prefix, {}).child(name, inner))
        for name, inner in _definitions(schema)
    }
    return _make_strict(_SchemaNode("$", prefix, schema)), definitions


def closed_object(properties: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    """Return the schema of an object that requires all of its properties and allows no others."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"description": description, **schema} if description else schema


@frozen
class _SchemaNode:
    """A part of a schema.

    Attributes:
        path: its path, for errors.
        prefix: the prefix of the names of definitions.
        schema: the part.
    """

    path: str
    prefix: str
    schema: Mapping[str, Any]

    def child(self, step: str, schema: Any) -> _SchemaNode:
        if not isinstance(schema, Mapping):
            raise NotStrict(f"at {self.path}.{step}: {schema!r} allows anything or nothing")
        return _SchemaNode(f"{self.path}.{step}", self.prefix, schema)

    def not_strict(self, what: str) -> NotStrict:
        return NotStrict(f"at {self.path}: {what} cannot be expressed")


_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_TYPE_OF_KEYWORD = (("properties", "object"), ("items", "array"))
_UNSUPPORTED = ("not", "if", "patternProperties", "prefixItems", "dependentSchemas", "contains", "$dynamicRef")


def _make_strict(node: _SchemaNode) -> dict[str, Any]:
    schema = node.schema
    for keyword in _UNSUPPORTED:
        if keyword in schema:
            raise node.not_strict(keyword)
    description = {"description": schema["description"]} if "description" in schema else {}
    if "$ref" in schema:
        return {"$ref": _make_reference(node)}
    if "const" in schema:
        return {**description, "enum": [schema["const"]]}
    if "enum" in schema:
        return {**description, "enum": list(schema["enum"])}
    for union in ("anyOf", "oneOf"):
        if union in schema:
            branches = [_make_strict(node.child(f"{union}[{n}]", branch)) for n, branch in enumerate(schema[union])]
            return {**description, "anyOf": branches}
    if "allOf" in schema:
        # Schema generators wrap a single reference in `allOf` to add a description.
        if len(schema["allOf"]) != 1 or "properties" in schema:
            raise node.not_strict("allOf of several schemas")
        branch = _make_strict(node.child("allOf[0]", schema["allOf"][0]))
        return branch if "$ref" in branch else {**branch, **description}  # a reference has no keywords beside it
    return {**description, **_make_typed(node)}


def _make_reference(node: _SchemaNode) -> str:
    parent, _, name = str(node.schema["$ref"]).rpartition("/")
    if parent not in {"#/$defs", "#/definitions"}:
        raise node.not_strict(f"the reference {node.schema['$ref']!r}")
    return f"#/$defs/{node.prefix}{name}"


def _make_typed(node: _SchemaNode) -> dict[str, Any]:
    kind = node.schema.get("type") or next((kind for key, kind in _TYPE_OF_KEYWORD if key in node.schema), None)
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        branches = [_make_typed(_SchemaNode(node.path, node.prefix, {**node.schema, "type": name})) for name in kind]
        return branches[0] if len(branches) == 1 else {"anyOf": branches}
    if kind in _SCALARS:
        return {"type": kind}
    if kind == "array":
        if "items" not in node.schema:
            raise node.not_strict("an array of anything")
        return {"type": "array", "items": _make_strict(node.child("items", node.schema["items"]))}
    if kind == "object":
        return _make_object(node)
    raise node.not_strict("a value of any type")


def _make_object(node: _SchemaNode) -> dict[str, Any]:
    schema = node.schema
    # An object without declared keys takes any, except at the root, where it is a tool without parameters.
    declares_keys = bool(schema.get("properties")) or (node.path == "$" and "properties" in schema)
    additional = schema.get("additionalProperties", not declares_keys)
    if additional is not False:
        raise node.not_strict("an object with free keys")
    required = schema.get("required", ())
    properties = {}
    for name, inner in schema.get("properties", {}).items():
        strict = _make_strict(node.child(name, inner))
        properties[name] = strict if name in required else _make_nullable(strict)
    return closed_object(properties)


def _make_nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        branches = schema["anyOf"]
        return schema if {"type": "null"} in branches else {**schema, "anyOf": [*branches, {"type": "null"}]}
    if schema.get("type") == "null" or None in schema.get("enum", ()):
        return schema
    # The description moves out of the branch, so that it describes the whole union.
    description = {"description": schema.pop("description")} if "description" in schema else {}
    return {**description, "anyOf": [schema, {"type": "null"}]}


def _definitions(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from schema.get("$defs", {}).items()
    yield from schema.get("definitions", {}).items()


def without_nulls(data: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """Return data of a strict schema as data of the original schema: nulls of optional properties are removed.

    Args:
        data: plain JSON data.
        schema: the original schema.
        root: the schema that contains the definitions; `schema` if omitted.
    """
    root = schema if root is None else root
    schema = _resolve(schema, root)
    if isinstance(data, list) and isinstance(schema.get("items"), Mapping):
        return [without_nulls(item, schema["items"], root) for item in data]
    if not isinstance(data, dict):
        return data
    # Only an object has nulls to remove, and its keys suffice to choose its branch.
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            branch = next((b for b in schema[union] if _declares_keys(_resolve(b, root), data)), None)
            return data if branch is None else without_nulls(data, branch, root)
    properties, required = schema.get("properties", {}), schema.get("required", ())
    return {
        name: without_nulls(value, properties[name], root) if name in properties else value
        for name, value in data.items()
        if value is not None or name in required or name not in properties or _accepts_null(properties[name], root)
    }


_MAX_REFERENCES = 64


def _resolve(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references; the number is bounded, since a reference may lead back to itself."""
    followed = 0
    while isinstance(schema, Mapping) and "$ref" in schema and followed < len(root) + _MAX_REFERENCES:
        schema = find_schema(root, str(schema["$ref"]))
        followed += 1
    return schema if isinstance(schema, Mapping) else {}


def _declares_keys(schema: Mapping[str, Any], data: Mapping[str, Any]) -> bool:
    return "properties" in schema and data.keys() <= schema["properties"].keys()


def _accepts_null(schema: Any, root: Mapping[str, Any]) -> bool:
    schema = _resolve(schema, root)
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, Sequence) and not isinstance(kind, str) and "null" in kind):
        return True
    if None in schema.get("enum", ()) or ("const" in schema and schema["const"] is None):
        return True
    return any(_accepts_null(branch, root) for union in ("anyOf", "oneOf") for branch in schema.get(union, ()))


_VALUE = "answer"
_DEFINITIONS = ("$defs", "definitions")


@frozen
class StrictFormat:
    """A requested response format, and the strict one that is sent in its place.

    A schema whose root is not an object is wrapped in one. A schema that the strict subset cannot express is sent as it is,
    without the request that the provider enforce it.

    Attributes:
        requested: the requested format.
        sent: the format that is sent.
        is_wrapped: whether the answer arrives as the property `answer` of an object.
    """

    requested: ResponseFormat
    sent: ResponseFormat
    is_wrapped: bool

    def read(self, response: InferenceResponse) -> InferenceResponse:
        """Return the response with its answer in the requested format; an answer in any other form is not changed."""
        if response.tool_calls or not response.text:
            return response
        try:
            data = extract_json(response.text)
        except ValueError:
            return response
        answer = data
        if self.is_wrapped and isinstance(answer, dict) and answer.keys() == {_VALUE}:
            answer = answer[_VALUE]
        if self.sent.strict:
            answer = without_nulls(answer, self.requested.schema or {})
        if answer is data or answer == data:  # keep the model's spelling
            return response
        other_parts = [part for part in response.parts if not isinstance(part, Text)]
        return evolve(response, parts=(*other_parts, Text(format_json(answer).decode())))


def strict_format(offered: InferenceRequest, original: InferenceRequest) -> StrictFormat | None:
    """Return the strict form of the response format that a request asks the provider to enforce.

    Args:
        offered: the request as the model receives it.
        original: the request before its mode translated it.

    Returns:
        The formats; None if the request needs no change.
    """
    requested = offered.response_format
    # A mode that sends a format of its own has made it strict already.
    if requested is None or requested is not original.response_format:
        return None
    if requested.schema is None or not requested.strict:
        return None
    is_wrapped = requested.schema.get("type") != "object"
    schema, definitions, is_strict = _split_strict(requested.schema)
    if is_wrapped:
        schema = closed_object({_VALUE: schema})
    sent = ResponseFormat({**schema, **definitions}, requested.name, is_strict)
    return None if sent == requested else StrictFormat(requested, sent, is_wrapped)


def _split_strict(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return a schema without its definitions, the definitions, and whether they are in the strict subset."""
    try:
        strict, definitions = strict_schema(schema)
    except NotStrict:
        shared = {name: value for name, value in schema.items() if name in _DEFINITIONS}
        return {name: value for name, value in schema.items() if name not in _DEFINITIONS}, shared, False
    return strict, {"$defs": definitions} if definitions else {}, True


class StrictFormatStream(ModeStream):
    """Holds back the text of a streamed answer until it is complete, since it may need to be unwrapped."""

    def __init__(self, translation: ModeStream) -> None:
        """Create a stream.

        Args:
            translation: the stream of the mode, which processes the deltas first.
        """
        self._translation = translation

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return the translated deltas except text."""
        return _without_text(self._translation.feed(delta))

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return the deltas that the mode held back, and the text."""
        deltas = _without_text(self._translation.close(response))
        return [*deltas, InferenceDelta("text", response.text)] if response.text else deltas


def _without_text(deltas: list[InferenceDelta]) -> list[InferenceDelta]:
    return [delta for delta in deltas if delta.kind != "text"]
