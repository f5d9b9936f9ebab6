"""From what a notation says to a call of an offered tool: names for positions, types for text, and the coercion."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, Final

from attrs import frozen

from agentloop.drivers.modes.text_formats.draft import Draft
from agentloop.drivers.modes.text_formats.offered_tools import OfferedTools
from agentloop.drivers.modes.text_formats.reading import FoundCall, Refusal
from agentloop.drivers.modes.text_formats.schema_types import fits, types_of
from agentloop.drivers.modes.text_formats.untyped_text import typed
from agentloop.values.json_text import format_json

POSITIONS: Final = "positions given names"
NUMBER_FROM_TEXT: Final = "text read as number"
BOOLEAN_FROM_TEXT: Final = "text read as boolean"

_LONGEST_NUMBER: Final = 40


class NotACall(Exception):
    """A draft cannot be a call; the message says why."""


@frozen
class Rules:
    """What is done with calls that do not fit the offered tools as they are.

    Attributes:
        coerce: whether text becomes a number or a boolean where a tool's schema takes no text.
        only_offered: whether calls of tools that were not offered are refused in every notation.
    """

    coerce: bool = True
    only_offered: bool = False


def completed(draft: Draft, tools: OfferedTools, format_name: str, rules: Rules) -> FoundCall | Refusal:
    """Return the call that a draft stands for, or why it is none.

    Args:
        draft: what the notation says.
        tools: the tools that the model was offered.
        format_name: the name of the notation.
        rules: what is done with calls that do not fit the offered tools.
    """
    name = tools.plain_name(draft.name)
    if rules.only_offered and not tools.knows(name):
        return Refusal(f"{name[:80]} is not offered", draft.start, draft.end, format_name)
    repairs = list(draft.repairs)
    try:
        arguments = _by_name(draft, name, tools, repairs)
        raw = draft.raw if not repairs and not draft.untyped and not draft.positional else ""
        properties = tools.properties(name)
        arguments.update({key: typed(arguments[key], properties.get(key)) for key in draft.untyped})
        if rules.coerce and _coerced(arguments, properties, repairs):
            raw = ""
        written = raw or format_json(arguments).decode("utf-8", "surrogatepass")
    except (NotACall, ValueError, TypeError) as refusal:
        return Refusal(str(refusal), draft.start, draft.end, format_name)
    return FoundCall(name, written, draft.start, draft.end, format_name, tuple(dict.fromkeys(repairs)))


def _by_name(draft: Draft, name: str, tools: OfferedTools, repairs: list[str]) -> dict[str, object]:
    if not draft.positional:
        return dict(draft.arguments)
    properties = tools.properties(name)
    if len(draft.positional) > len(properties):
        raise NotACall(f"{name} takes {len(properties)} arguments, {len(draft.positional)} were given by position")
    arguments: dict[str, object] = {}
    for key, value in zip(properties, draft.positional, strict=False):
        if key in draft.arguments:
            raise NotACall(f"the argument {key} of {name} is given twice")
        if not fits(value, properties[key]):
            raise NotACall(f"the argument {key} of {name} is given by position with a value of another type")
        arguments[key] = value
    repairs.append(POSITIONS)
    return arguments | dict(draft.arguments)


def _coerced(arguments: dict[str, Any], properties: Mapping[str, object], repairs: list[str]) -> bool:
    """Turn text into numbers and booleans where the schema takes no text; say whether anything changed."""
    changed = False
    for key, value in arguments.items():
        types = types_of(properties.get(key))
        if not isinstance(value, str) or not types or "string" in types:
            continue
        made: bool | float | None = _boolean(value) if "boolean" in types else None
        repair = BOOLEAN_FROM_TEXT
        if made is None and types & {"number", "integer"}:
            made, repair = _number(value, integer="number" not in types), NUMBER_FROM_TEXT
        if made is not None:
            arguments[key] = made
            repairs.append(repair)
            changed = True
    return changed


def _boolean(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.strip().lower())


def _number(text: str, *, integer: bool) -> int | float | None:
    text = text.strip()
    if len(text) > _LONGEST_NUMBER or not text.isascii() or "_" in text:
        return None
    try:
        return int(text)
    except ValueError:
        pass  # not a whole number
    try:
        number = float(text)
    except ValueError:
        return None
    return None if integer or not isfinite(number) else number
