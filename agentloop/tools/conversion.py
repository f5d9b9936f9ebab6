"""JSON data to Python types and back, by cattrs, which is loaded with the first value that needs it."""

from __future__ import annotations

import base64
import types
import typing
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from agentloop.errors import NotJson
from agentloop.tools import pydantic_models
from agentloop.tools.json_schema import json_schema
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json_value import JsonValue, freeze, thaw

if TYPE_CHECKING:
    from cattrs import Converter

_AS_ISO: tuple[Any, ...] = (datetime, date, time)


def structure(data: Any, hint: Any) -> Any:
    """Turn JSON data that satisfies the type's schema into the type.

    Raises:
        Exception: whatever the type's constructor or cattrs raises; `problems` puts it in words.
    """
    return _converter().structure(data, hint)


def to_json_data(value: Any, hint: Any = None) -> JsonValue:
    """Turn a Python value into immutable JSON data.

    Args:
        value: the value.
        hint: its declared type; the value's own class when left out.

    Raises:
        NotJson: when the value has no JSON form.
    """
    try:
        return freeze(value)
    except NotJson:
        if hint is not None and hint is not Any and hint is not object:
            return freeze(_converter().unstructure(value, hint))
        return freeze(_converter().unstructure(value))


def problems(error: Exception) -> list[tuple[str, str]]:
    """Put what `structure` raised in words: pairs of a JSON path and a message."""
    from cattrs import transform_error

    found = []
    for text in transform_error(error, path="$"):
        message, _, path = text.rpartition(" @ ")
        found.append((path, message))
    return found


@cache
def _converter() -> Converter:
    """Make the converter; this file is the border to cattrs, and to what only converted values need."""
    from decimal import Decimal
    from pathlib import Path, PurePath
    from uuid import UUID

    from cattrs import Converter

    converter = Converter(use_alias=True, forbid_extra_keys=True)
    kind: Any
    for kind in (UUID, Decimal, PurePath):
        converter.register_unstructure_hook(kind, str)
    for kind in _AS_ISO:
        converter.register_unstructure_hook(kind, kind.isoformat)
        converter.register_structure_hook(kind, _from_iso)
    converter.register_structure_hook(UUID, lambda text, _: UUID(text))
    converter.register_structure_hook(Decimal, lambda number, _: Decimal(str(number)))
    converter.register_structure_hook(PurePath, lambda text, cls: cls(text))
    converter.register_structure_hook(Path, lambda text, cls: cls(text))
    converter.register_unstructure_hook(timedelta, timedelta.total_seconds)
    converter.register_structure_hook(timedelta, lambda seconds, _: timedelta(seconds=seconds))
    converter.register_unstructure_hook(bytes, lambda data: base64.b64encode(data).decode())
    converter.register_structure_hook(bytes, lambda text, _: base64.b64decode(text, validate=True))
    converter.register_structure_hook(JsonValue, lambda data, _: freeze(data))
    converter.register_unstructure_hook(JsonValue, thaw)
    converter.register_structure_hook_func(pydantic_models.is_model, pydantic_models.structure)
    converter.register_unstructure_hook_func(pydantic_models.is_model, pydantic_models.unstructure)
    converter.register_structure_hook_factory(_is_union, lambda hint: _union_hook(converter, hint))
    return converter


def _from_iso(text: str, cls: Any) -> Any:
    return cls.fromisoformat(text)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in {typing.Union, types.UnionType}


def _union_hook(converter: Converter, hint: Any) -> Callable[[Any, Any], Any]:
    """Structure data into the first member of a union whose schema it satisfies, as `anyOf` reads."""
    members = [(member, SchemaValidator(json_schema(member))) for member in typing.get_args(hint)]

    def structure_member(data: Any, _: Any) -> Any:
        error: Exception | None = None
        for member, validator in members:
            if validator.accepts(data):
                try:
                    return None if member is type(None) else converter.structure(data, member)
                except Exception as failed:  # noqa: BLE001  # another member may fit; the last error is raised below
                    error = failed
        raise error or ValueError(f"the value fits none of {hint}")

    return structure_member
