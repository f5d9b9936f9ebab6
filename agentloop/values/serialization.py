"""The JSON form of values: versioned, and without Python class paths.

`to_json` and `from_json` write and read documents with an envelope; `to_plain` and `from_plain` convert without one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin

import attrs
import cattrs
from cattrs.errors import IterableValidationError, IterableValidationNote
from cattrs.gen import make_dict_unstructure_fn, override
from cattrs.v import format_exception

from agentloop.errors.kinds import InvalidDocument, NotJson
from agentloop.values.decisions import Answer, Approve, Block, Deny, Edit, PendingCall, Suspend
from agentloop.values.journal_errors import SchemaTooNew
from agentloop.values.json import JsonObject, JsonValue, format_json, freeze, freeze_object, parse_json, thaw
from agentloop.values.parts import Audio, Document, Image, ProviderPart, Reasoning, Text
from agentloop.values.points import Point
from agentloop.values.records import CannotTell, DidNotHappen, Happened, JournalRecord
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Egress, ToolCall, ToolExchange, ToolExecution, as_egress
from agentloop.values.value import Declared, reading

V = TypeVar("V")

SCHEMA_VERSION = 4
"""The current version of the JSON form. Version 2 added `AgentState.extensions`; in version 3, the steps of a state refer to the
messages of its conversation by position; version 4 came with that of the records."""

_FORMER_METADATA = ("agentloop.handoff", "agentloop.budget", "agentloop.summary")


def upgrade_extensions(data: Any) -> Any:
    """Convert plain JSON data from version 1 to version 2, which moved extensions out of the metadata.

    States can be nested: the progress of a suspended call holds the state of its sub-agent.
    """
    if isinstance(data, list):
        return [upgrade_extensions(item) for item in data]
    if not isinstance(data, dict):
        return data
    upgraded = {name: upgrade_extensions(value) for name, value in data.items()}
    match upgraded:
        case {"context": {"metadata": dict() as metadata}}:
            extensions = {owner: metadata.pop(owner) for owner in _FORMER_METADATA if owner in metadata}
            if extensions:
                upgraded["extensions"] = extensions
    return upgraded


def _add_record_version(kind: str, value: Any, version: int) -> Any:
    """Add the version to a record that leaves it out because it was the current one when it was written."""
    return {"schema_version": version, **value} if kind == JournalRecord.__name__ else value


MIGRATIONS: Mapping[int, Callable[[str, Any], Any]] = {
    1: lambda kind, value: _add_record_version(kind, upgrade_extensions(value), 1),
    2: lambda kind, value: _add_record_version(kind, value, 2),
    3: lambda kind, value: _add_record_version(kind, value, 3),
}
"""For each older version, a function of the kind and the value of a document that returns the value in the next version."""

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
    Happened: "happened",
    DidNotHappen: "did_not_happen",
    CannotTell: "cannot_tell",
}
_CLASSES = {tag: kind for kind, tag in _TAGS.items()}


_NOT_STORED: Mapping[Any, Any] = {BaseException | None: override(omit=True)}
"""Fields that hold exceptions exist only in the process that raised them."""


def make_converter() -> cattrs.Converter:
    """Create a cattrs converter for all values of agentloop; each call returns a new one, to which you can add hooks.

    It is strict: data of another JSON type than the written one is refused, not converted.
    """
    converter = cattrs.Converter(omit_if_default=True, forbid_extra_keys=True, type_overrides=_NOT_STORED)
    for kind in (str, int, float, bool):
        converter.register_structure_hook(kind, _structure_scalar)
    converter.register_structure_hook(StrEnum, lambda name, cls: cls(name))
    # The last registered factory wins, so the specific ones follow the general ones.
    converter.register_structure_hook_factory(attrs.has, partial(_class_hook, converter))
    converter.register_structure_hook_factory(_is_homogenous_tuple, partial(_tuple_hook, converter))
    converter.register_unstructure_hook(datetime, datetime.isoformat)
    converter.register_structure_hook(datetime, lambda text, _: datetime.fromisoformat(text))
    converter.register_unstructure_hook_func(lambda hint: hint == frozenset[str], sorted)
    converter.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    converter.register_unstructure_hook(JsonValue, thaw)
    converter.register_structure_hook(JsonValue, lambda value, _: freeze(value))
    converter.register_unstructure_hook(JsonObject, thaw)
    converter.register_structure_hook(JsonObject, lambda value, _: freeze_object(value))
    converter.register_structure_hook(Egress, _structure_egress)
    converter.register_structure_hook_factory(_is_tagged_union, lambda _: partial(_structure_tagged, converter))
    converter.register_unstructure_hook_factory(_is_tagged_union, lambda _: partial(_unstructure_tagged, converter))
    converter.register_unstructure_hook_factory(_is_point, partial(_unstructure_point_hook, converter))
    return converter


_SCALARS: Mapping[type, tuple[type, ...]] = {str: (str,), int: (int,), float: (float, int), bool: (bool,)}


def _structure_scalar(data: Any, kind: Any) -> Any:
    # An exact check: bool is a subclass of int, and `"1"` must not become 1.
    if type(data) not in _SCALARS[kind]:
        raise TypeError(f"{type(data).__name__} in place of {kind.__name__}")
    return kind(data)


def _structure_egress(data: Any, _: Any) -> Egress:
    if type(data) not in {bool, list}:
        raise TypeError(f"{type(data).__name__} in place of a bool or an array")
    return as_egress(data)


def _class_hook(converter: cattrs.Converter, cls: Any) -> Callable[[Any, Any], Any]:
    # The parameters of generic classes say nothing about their stored fields.
    parameters = getattr(cls, "__parameters__", ())
    structure = converter.gen_structure_attrs_fromdict(cls[(Any,) * len(parameters)] if parameters else cls)

    def structure_object(data: Any, _: Any) -> Any:
        if not isinstance(data, dict):
            raise TypeError(f"{type(data).__name__} in place of an object")
        return structure(data, cls)

    def structure_declared(data: Any, hint: Any) -> Any:
        with reading():
            return structure_object(data, hint)

    return structure_declared if issubclass(get_origin(cls) or cls, Declared) else structure_object


def _is_homogenous_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple and get_args(hint)[1:] == (...,)


def _tuple_hook(converter: cattrs.Converter, hint: Any) -> Callable[[Any, Any], Any]:
    member = get_args(hint)[0]
    structure = converter.get_structure_hook(member)

    def structure_array(data: Any, _: Any) -> Any:
        if not isinstance(data, list):
            raise TypeError(f"{type(data).__name__} in place of an array")
        items: list[Any] = []
        errors: list[Exception] = []
        for index, item in enumerate(data):
            try:
                items.append(structure(item, member))
            except Exception as error:  # noqa: BLE001  # it goes on in a group
                error.add_note(IterableValidationNote(f"Structuring {hint} @ index {index}", index, member))
                errors.append(error)
                if len(errors) == _MAX_SHOWN_PROBLEMS:  # an error for each of a million elements would take long
                    break
        if errors:
            raise IterableValidationError(f"While structuring {hint}", errors, hint)
        return tuple(items)

    return structure_array


def _is_tagged_union(hint: Any) -> bool:
    """Return whether this is a union of classes that have tags, with or without None."""
    members = get_args(hint) if get_origin(hint) in {Union, UnionType} else ()
    return bool(members) and all(member in _TAGS or member is NoneType for member in members)


def _is_point(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Point)


def _unstructure_point_hook(converter: cattrs.Converter, kind: type[Point]) -> Callable[[Any], dict[str, Any]]:
    # The dependencies are live objects of the application.
    return make_dict_unstructure_fn(kind, converter, _cattrs_omit_if_default=True, dependencies=override(omit=True))


def _unstructure_tagged(converter: cattrs.Converter, value: Any) -> Any:
    return None if value is None else {"type": _TAGS[type(value)], **converter.unstructure(value)}


def _structure_tagged(converter: cattrs.Converter, data: Any, hint: Any) -> Any:
    if data is None and NoneType in get_args(hint):
        return None
    if not isinstance(data, dict):
        raise TypeError(f"{type(data).__name__} in place of an object with a type")
    tag = data.get("type")
    kind: Any = _CLASSES.get(tag) if isinstance(tag, str) else None
    if kind is None or kind not in get_args(hint):
        expected = ", ".join(_TAGS[member] for member in get_args(hint) if member is not NoneType)
        raise ValueError(f"there is no {tag!r} here; expected one of {expected}")
    return converter.structure({name: value for name, value in data.items() if name != "type"}, kind)


_converter = make_converter()


def to_plain(value: object, kind: Any = None) -> Any:
    """Convert a value to plain JSON data, without an envelope.

    Fields with their default values are left out; `from_plain` gives them the defaults of its version.

    Args:
        value: the value.
        kind: the declared type, if it is a union of classes; by default the class of the value.
    """
    return _converter.unstructure(value, unstructure_as=kind)


def to_plain_without(value: object, name: str) -> dict[str, Any]:
    """Convert a value to plain JSON data like `to_plain`, without a field that has a default; faster than to convert a copy.

    Args:
        value: the value.
        name: the field.
    """
    kind: Any = type(value)
    return _hook_without(kind, name)(value)


@cache
def _hook_without(kind: Any, name: str) -> Callable[[Any], dict[str, Any]]:
    omitted: dict[str, Any] = {name: override(omit=True)}
    return make_dict_unstructure_fn(kind, _converter, _cattrs_omit_if_default=True, **omitted)


def from_plain(data: object, kind: type[V]) -> V:
    """Convert plain JSON data from `to_plain` back to a value.

    Raises:
        InvalidDocument: if the data is not the JSON form of a `kind`; the message lists the problems with their paths.
    """
    try:
        return _converter.structure(data, kind)
    except Exception as error:
        problems = "; ".join(cattrs.transform_error(error, path="$", format_exception=_describe)[:_MAX_SHOWN_PROBLEMS])
        raise InvalidDocument(f"this is not the JSON form of a {kind.__name__}: {problems}") from error


def _describe(error: BaseException, kind: type | None) -> str:
    # The formatter of cattrs leaves out the message of a ValueError.
    return format_exception(error, kind) if isinstance(error, KeyError) else str(error) or type(error).__name__


_MAX_SHOWN_PROBLEMS = 3


def to_json(value: attrs.AttrsInstance) -> bytes:
    """Write a value as one JSON document: `{"schema_version": 4, "kind": "AgentState", "value": {…}}`.

    Returns:
        The document as compact UTF-8.

    Raises:
        NotJson: if something in the value has no JSON form, such as an exception, or is nested too deeply.
    """
    try:
        plain = _state_to_plain(value) if isinstance(value, AgentState) else to_plain(value)
        return format_json({"schema_version": SCHEMA_VERSION, "kind": type(value).__name__, "value": plain})
    except (TypeError, ValueError, RecursionError) as error:
        raise NotJson(f"this {type(value).__name__} has no JSON form: {error}") from error


def from_json(data: bytes | str, kind: type[V]) -> V:
    """Read a value from a JSON document of `to_json`; documents of older versions are migrated.

    Args:
        data: the document.
        kind: the class of the value.

    Raises:
        InvalidDocument: if the document is not JSON, holds a value of another class, or is damaged.
        SchemaTooNew: if a newer version of agentloop wrote it.
    """
    try:
        document = parse_json(data)
    except ValueError as error:
        raise InvalidDocument(f"this is not JSON: {error}") from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is not int:
        raise InvalidDocument("this JSON was not written by agentloop: it is not an object with a schema_version")
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(version, SCHEMA_VERSION)
    if document.get("kind") != kind.__name__:
        raise InvalidDocument(f"this document holds a {document.get('kind')}, not a {kind.__name__}")
    if document.keys() != _ENVELOPE:
        raise InvalidDocument(f"the document has to have exactly {sorted(_ENVELOPE)} at $; it has {sorted(document)}")
    value = _migrate(document["value"], version, kind.__name__)
    return _state_from_plain(value, kind) if issubclass(kind, AgentState) else from_plain(value, kind)


# --- states -----------------------------------------------------------------------------------------------------------


def _state_to_plain(state: AgentState) -> dict[str, Any]:
    """Convert a state to plain JSON data in which steps refer to the messages of the conversation by position."""
    plain: dict[str, Any] = to_plain(state)
    positions = {id(message): position for position, message in enumerate(state.messages)}
    for step, written in zip(state.steps, plain.get("execution", {}).get("steps", ()), strict=True):
        if step.message is not None and id(step.message) in positions:
            written["message"] = positions[id(step.message)]
    return plain


def _state_from_plain(value: Any, kind: type[V]) -> V:
    """Convert the result of `_state_to_plain` back; the messages of steps are those of the conversation."""
    execution: Any = value.get("execution") if isinstance(value, dict) else None
    written = execution.get("steps") if isinstance(execution, dict) else None
    if not isinstance(written, list):
        return from_plain(value, kind)
    positions = [step.get("message") if isinstance(step, dict) else None for step in written]
    steps = [
        {name: item for name, item in step.items() if name != "message"} if type(position) is int else step
        for step, position in zip(written, positions, strict=True)
    ]
    state: Any = from_plain({**value, "execution": {**execution, "steps": steps}}, kind)
    if all(type(position) is not int for position in positions):
        return cast("V", state)
    messages = state.context.messages
    if not all(0 <= position < len(messages) for position in positions if type(position) is int):
        raise InvalidDocument(
            "this is not the JSON form of an AgentState: a step refers to a message that does not exist"
        )
    referring = [
        attrs.evolve(step, message=messages[position]) if type(position) is int else step
        for step, position in zip(state.execution.steps, positions, strict=True)
    ]
    return cast("V", attrs.evolve(state, execution=attrs.evolve(state.execution, steps=referring)))


_ENVELOPE = frozenset({"schema_version", "kind", "value"})


def _migrate(value: Any, version: int, kind: str) -> Any:
    for older in range(version, SCHEMA_VERSION):
        migrate = MIGRATIONS.get(older)
        if migrate is None:
            oldest = min(MIGRATIONS, default=SCHEMA_VERSION)
            raise InvalidDocument(
                f"schema version {version} is no longer supported; the oldest readable one is {oldest}"
            )
        try:
            value = migrate(kind, value)
        except Exception as error:
            raise InvalidDocument(f"a damaged document of schema version {older}: {error!r}") from error
    return value
