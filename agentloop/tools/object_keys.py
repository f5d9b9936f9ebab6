"""The keys of JSON objects, which are texts, for the types that the keys of a dict can have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentloop.tools.fields import key_text
from agentloop.values.json import parse_json

_INTEGER = r"^-?(0|[1-9][0-9]*)$"
_NUMBER = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$"
_BY_TYPE: Mapping[object, Mapping[str, Any]] = {
    "integer": {"pattern": _INTEGER},
    "number": {"pattern": _NUMBER},
    "boolean": {"enum": ["true", "false"]},
    "null": {"enum": ["null"]},
}
_ANNOTATIONS = ("title", "description")


def key_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the schema of the texts that stand for keys; None if the keys have no text.

    Args:
        schema: the schema of the keys as JSON data of their own.
    """
    if schema.get("type") == "string" or not schema:
        return dict(schema)
    if "enum" in schema:
        # The values of a type of several kinds may have equal texts, such as 1 and "1".
        texts = [key_text(value) for value in schema["enum"]]
        return {"enum": texts} if len({*texts}) == len(texts) else None
    if "anyOf" in schema:
        members = [key_schema(member) for member in schema["anyOf"]]
        return None if None in members else {"anyOf": members}
    known = _BY_TYPE.get(schema.get("type"))
    return None if known is None else {**known, **{name: schema[name] for name in _ANNOTATIONS if name in schema}}


def key_values(text: str) -> list[Any]:
    """Return the JSON data that the text of a key may stand for: the text, and the number, boolean or null that it is in JSON."""
    try:
        parsed = parse_json(text)
    except ValueError:
        return [text]
    return [text] if isinstance(parsed, str | dict | list) else [text, parsed]
