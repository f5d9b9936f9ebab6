"""The JSON form of values: free of Python class paths, with a schema version."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

import attrs
import cattrs

from agentloop.errors import AgentLoopError, InvalidDocument, SchemaTooNew
from agentloop.values.decision import Answer, Approve, Deny, Edit
from agentloop.values.json_text import format_json, parse_json
from agentloop.values.json_value import JsonObject, JsonValue, freeze, freeze_object, thaw
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.pending_call import PendingCall
from agentloop.values.tool_call import ToolCall
from agentloop.values.tool_execution import ToolExchange, ToolExecution
from agentloop.values.verdict import Block, Suspend

V = TypeVar("V")

SCHEMA_VERSION = 1
"""The version of the JSON form that is written now."""

MIGRATIONS: Mapping[int, Callable[[str, Any], Any]] = {}
"""For each version, what turns a document of it (its kind and its value) into one of the next version."""

_TAGS: Mapping[type, str] = {
    Text: "text",
    Image: "image",
    Audio: "audio",
    Document: "document",
    Reasoning: "reasoning",
    ToolCall: "tool_call",
    ToolExchange: "tool_exchange",
    ProviderPart: "provider_part",
    ToolExecution: "tool_execution",
    PendingCall: "pending_call",
    Approve: "approve",
    Deny: "deny",
    Answer: "answer",
    Edit: "edit",
    Block: "block",
    Suspend: "suspend",
}
_CLASSES = {tag: kind for kind, tag in _TAGS.items()}


def make_converter() -> cattrs.Converter:
    """Make a cattrs converter that knows every value of agentloop; add hooks of your own to the copy you get."""
    converter = cattrs.Converter(omit_if_default=True, forbid_extra_keys=True)
    converter.register_unstructure_hook(datetime, datetime.isoformat)
    converter.register_structure_hook(datetime, lambda text, _: datetime.fromisoformat(text))
    converter.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    converter.register_unstructure_hook(JsonValue, thaw)
    converter.register_structure_hook(JsonValue, lambda value, _: freeze(value))
    converter.register_unstructure_hook(JsonObject, thaw)
    converter.register_structure_hook(JsonObject, lambda value, _: freeze_object(value))
    converter.register_structure_hook_factory(_is_tagged_union, lambda _: partial(_structure_tagged, converter))
    converter.register_unstructure_hook_factory(_is_tagged_union, lambda _: partial(_unstructure_tagged, converter))
    return converter


def _is_tagged_union(hint: Any) -> bool:
    """Say whether this is a union of the classes that are told apart by a tag, with or without None."""
    members = get_args(hint) if get_origin(hint) in {Union, UnionType} else ()
    return bool(members) and all(member in _TAGS or member is NoneType for member in members)


def _unstructure_tagged(converter: cattrs.Converter, value: Any) -> Any:
    return None if value is None else {"type": _TAGS[type(value)], **converter.unstructure(value)}


def _structure_tagged(converter: cattrs.Converter, data: Any, hint: Any) -> Any:
    if data is None and NoneType in get_args(hint):
        return None
    if not isinstance(data, dict):
        raise TypeError(f"an object with a type was expected, not {type(data).__name__}")
    kind: Any = _CLASSES.get(data.get("type", ""))
    if kind not in get_args(hint):
        expected = ", ".join(_TAGS[member] for member in get_args(hint) if member is not NoneType)
        raise ValueError(f"there is no {data.get('type')!r} here; expected one of {expected}")
    return converter.structure({name: value for name, value in data.items() if name != "type"}, kind)


_converter = make_converter()


def to_plain(value: object) -> Any:
    """Turn a value into plain JSON data, without an envelope."""
    return _converter.unstructure(value)


def from_plain(data: object, kind: type[V]) -> V:
    """Turn plain JSON data, as made by `to_plain`, back into a value.

    Raises:
        InvalidDocument: when the data are not the JSON form of a `kind`; the message lists what is wrong and where.
    """
    try:
        return _converter.structure(data, kind)
    except AgentLoopError as error:
        raise InvalidDocument(f"this is not the JSON form of a {kind.__name__}: {error}") from error
    except Exception as error:
        problems = "; ".join(cattrs.transform_error(error)[:3])
        raise InvalidDocument(f"this is not the JSON form of a {kind.__name__}: {problems}") from error


def to_json(value: attrs.AttrsInstance) -> bytes:
    """Write a value as one JSON document: `{"schema_version": 1, "kind": "AgentState", "value": {…}}`."""
    document = {"schema_version": SCHEMA_VERSION, "kind": type(value).__name__, "value": to_plain(value)}
    return format_json(document)


def from_json(data: bytes | str, kind: type[V]) -> V:
    """Read a value from the JSON document that `to_json` made of it; documents of older versions are migrated.

    Raises:
        InvalidDocument: when the document is not JSON, not of this kind, or damaged.
        SchemaTooNew: when a newer agentloop wrote it.
    """
    try:
        document = parse_json(data)
    except ValueError as error:
        raise InvalidDocument(f"this is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("schema_version"), int):
        raise InvalidDocument("this JSON was not written by agentloop: it is not an object with a schema_version")
    version, found = document["schema_version"], document.get("kind")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(version, SCHEMA_VERSION)
    if found != kind.__name__:
        raise InvalidDocument(f"this document holds a {found}, not a {kind.__name__}")
    value = document.get("value")
    for older in range(version, SCHEMA_VERSION):
        value = MIGRATIONS[older](kind.__name__, value)
    return from_plain(value, kind)
