"""The form of an answer as providers accept it for strict output: an object in the strict subset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_use_mode import ModeStream
from agentloop.errors import AgentLoopError
from agentloop.values.inference import InferenceDelta, InferenceRequest, InferenceResponse, ResponseFormat
from agentloop.values.json import format_json, json_in_text
from agentloop.values.parts import Text

_SCALARS = frozenset({"string", "number", "integer", "boolean", "null"})
_KINDS = (("properties", "object"), ("items", "array"))
_CANNOT = ("not", "if", "patternProperties", "prefixItems", "dependentSchemas", "contains", "$dynamicRef")


class NotStrict(AgentLoopError):
    """A schema cannot be expressed in the subset; the message says why and where."""


@frozen
class _Where:
    """A place in a schema.

    Attributes:
        path: the place, for errors.
        prefix: what goes before the names of definitions.
        schema: the part of the schema that stands there.
    """

    path: str
    prefix: str
    schema: Mapping[str, Any]

    def inner(self, step: str, schema: Any) -> _Where:
        if not isinstance(schema, Mapping):
            raise NotStrict(f"at {self.path}.{step}: {schema!r} allows anything or nothing")
        return _Where(f"{self.path}.{step}", self.prefix, schema)

    def cannot(self, what: str) -> NotStrict:
        return NotStrict(f"at {self.path}: {what} cannot be expressed")


def strict_schema(schema: Mapping[str, Any], prefix: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a schema in the strict subset, and its definitions, under names with this prefix.

    Whatever satisfied the schema satisfies the result, once values that are left out are given as null.

    Raises:
        NotStrict: when it cannot be expressed, as an object with free keys.
    """
    definitions = {
        f"{prefix}{name}": _strict(_Where("$defs", prefix, {}).inner(name, inner))
        for name, inner in _definitions(schema)
    }
    return _strict(_Where("$", prefix, schema)), definitions


def _definitions(schema: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from schema.get("$defs", {}).items()
    yield from schema.get("definitions", {}).items()


def _strict(at: _Where) -> dict[str, Any]:
    schema = at.schema
    for keyword in _CANNOT:
        if keyword in schema:
            raise at.cannot(keyword)
    described = {"description": schema["description"]} if "description" in schema else {}
    if "$ref" in schema:
        return {"$ref": _reference(at)}
    if "const" in schema:
        return {**described, "enum": [schema["const"]]}
    if "enum" in schema:
        return {**described, "enum": list(schema["enum"])}
    for union in ("anyOf", "oneOf"):
        if union in schema:
            branches = [_strict(at.inner(f"{union}[{n}]", branch)) for n, branch in enumerate(schema[union])]
            return {**described, "anyOf": branches}
    if "allOf" in schema:
        if len(schema["allOf"]) != 1 or "properties" in schema:
            raise at.cannot("allOf of several schemas")
        return {**_strict(at.inner("allOf[0]", schema["allOf"][0])), **described}
    return {**described, **_of_kind(at)}


def _reference(at: _Where) -> str:
    place, _, name = str(at.schema["$ref"]).rpartition("/")
    if place not in {"#/$defs", "#/definitions"}:
        raise at.cannot(f"the reference {at.schema['$ref']!r}")
    return f"#/$defs/{at.prefix}{name}"


def _of_kind(at: _Where) -> dict[str, Any]:
    kind = at.schema.get("type") or next((kind for key, kind in _KINDS if key in at.schema), None)
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        each = [_of_kind(_Where(at.path, at.prefix, {**at.schema, "type": one})) for one in kind]
        return each[0] if len(each) == 1 else {"anyOf": each}
    if kind in _SCALARS:
        return {"type": kind}
    if kind == "array":
        if "items" not in at.schema:
            raise at.cannot("an array of anything")
        return {"type": "array", "items": _strict(at.inner("items", at.schema["items"]))}
    if kind == "object":
        return _object(at)
    raise at.cannot("a value of any type")


def _object(at: _Where) -> dict[str, Any]:
    schema = at.schema
    has_names = bool(schema.get("properties")) or (at.path == "$" and "properties" in schema)
    free = schema.get("additionalProperties", not has_names)
    if free is not False:
        raise at.cannot("an object with free keys")
    required = schema.get("required", ())
    properties = {}
    for name, inner in schema.get("properties", {}).items():
        made = _strict(at.inner(name, inner))
        properties[name] = made if name in required else _nullable(made)
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "anyOf" in schema:
        branches = schema["anyOf"]
        return schema if {"type": "null"} in branches else {**schema, "anyOf": [*branches, {"type": "null"}]}
    if schema.get("type") == "null" or None in schema.get("enum", ()):
        return schema
    described = {"description": schema.pop("description")} if "description" in schema else {}
    return {**described, "anyOf": [schema, {"type": "null"}]}


def without_nulls(data: Any, schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> Any:
    """Return data that satisfied the strict form of a schema as the schema itself wants it: nulls that stand for nothing go.

    Args:
        data: plain JSON data.
        schema: the schema as it was before it was made strict.
        root: where its references point into; itself when left out.
    """
    root = schema if root is None else root
    schema = _resolved(schema, root)
    if isinstance(data, list) and isinstance(schema.get("items"), Mapping):
        return [without_nulls(item, schema["items"], root) for item in data]
    if not isinstance(data, dict):
        return data
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            branch = next((b for b in schema[union] if _may_hold(data, _resolved(b, root))), None)
            return data if branch is None else without_nulls(data, branch, root)
    properties, required = schema.get("properties", {}), schema.get("required", ())
    return {
        name: without_nulls(value, properties[name], root) if name in properties else value
        for name, value in data.items()
        if value is not None or name in required or name not in properties or _takes_null(properties[name], root)
    }


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    seen = 0
    while isinstance(schema, Mapping) and "$ref" in schema and seen < len(root) + 64:
        _, _, name = str(schema["$ref"]).rpartition("/")
        schema = dict(_definitions(root)).get(name, {})
        seen += 1
    return schema if isinstance(schema, Mapping) else {}


def _may_hold(data: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    return "properties" in schema and data.keys() <= schema["properties"].keys()


def _takes_null(schema: Any, root: Mapping[str, Any]) -> bool:
    schema = _resolved(schema, root)
    kind = schema.get("type")
    if kind == "null" or (isinstance(kind, Sequence) and not isinstance(kind, str) and "null" in kind):
        return True
    if None in schema.get("enum", ()) or ("const" in schema and schema["const"] is None):
        return True
    return any(_takes_null(branch, root) for union in ("anyOf", "oneOf") for branch in schema.get(union, ()))


_VALUE = "answer"
_SHARED = ("$defs", "definitions")


@frozen
class StrictForm:
    """The form that is asked of an answer, and the strict one that is sent in its place.

    What is no object stands under one property of one, since providers refuse other roots. What may be left out may be null
    instead. A schema that the strict subset cannot express is sent as it is, without asking the provider to enforce it.

    Attributes:
        wanted: the form that is asked for.
        sent: the form that is sent.
        is_wrapped: whether the answer stands under a property of the one that comes.
    """

    wanted: ResponseFormat
    sent: ResponseFormat
    is_wrapped: bool

    def read(self, response: InferenceResponse) -> InferenceResponse:
        """Return the response with the answer in the form that was asked for; what has another form stays as it is."""
        if response.tool_calls or not response.text:
            return response
        try:
            data = json_in_text(response.text)
        except ValueError:
            return response
        found = data
        if self.is_wrapped and isinstance(found, dict) and found.keys() == {_VALUE}:
            found = found[_VALUE]
        if self.sent.strict:
            found = without_nulls(found, self.wanted.schema or {})
        if found is data or found == data:
            return response
        kept = [part for part in response.parts if not isinstance(part, Text)]
        return evolve(response, parts=(*kept, Text(format_json(found).decode())))


class FormStream(ModeStream):
    """Holds the text of a streamed answer back until it is whole, since it may come in another form than is asked for.

    Args:
        translated: what translates the pieces before.
    """

    def __init__(self, translated: ModeStream) -> None:
        self._translated = translated

    def feed(self, delta: InferenceDelta) -> list[InferenceDelta]:
        """Return what the piece means, apart from text."""
        return _without_text(self._translated.feed(delta))

    def close(self, response: InferenceResponse) -> list[InferenceDelta]:
        """Return what was held back, and the text."""
        held = _without_text(self._translated.close(response))
        return [*held, InferenceDelta("text", response.text)] if response.text else held


def _without_text(deltas: list[InferenceDelta]) -> list[InferenceDelta]:
    return [delta for delta in deltas if delta.kind != "text"]


def strict_form(offered: InferenceRequest, asked: InferenceRequest) -> StrictForm | None:
    """Return the strict form of an answer for which the provider is asked by a strict schema; None when nothing is to be done.

    Args:
        offered: the request as the model gets it.
        asked: the request before it was translated; a mode that asks for a form of its own has seen to it.
    """
    wanted = offered.response_format
    if wanted is None or wanted is not asked.response_format or wanted.schema is None or not wanted.strict:
        return None
    is_wrapped = wanted.schema.get("type") != "object"
    schema, shared, is_strict = _expressed(wanted.schema)
    if is_wrapped:
        schema = {"type": "object", "properties": {_VALUE: schema}, "required": [_VALUE], "additionalProperties": False}
    sent = ResponseFormat({**schema, **shared}, wanted.name, is_strict)
    return None if sent == wanted else StrictForm(wanted, sent, is_wrapped)


def _expressed(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool]:
    """Return a schema without its definitions, those, and whether they are in the strict subset."""
    try:
        strict, definitions = strict_schema(schema)
    except NotStrict:
        shared = {name: one for name, one in schema.items() if name in _SHARED}
        return {name: one for name, one in schema.items() if name not in _SHARED}, shared, False
    return strict, {"$defs": definitions} if definitions else {}, True
