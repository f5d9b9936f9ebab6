"""Entries of a request body that come from several sides: the request, the configuration, and what is passed on as it is."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from agentloop.errors import BadRequest
from agentloop.values.json import format_json
from agentloop.values.tool_calls import ToolExchange


def merged(entries: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries with others put in; objects of the same name are merged, anything else is replaced."""
    made = dict(entries)
    for name, value in extra.items():
        held = made.get(name)
        is_object = isinstance(held, Mapping) and isinstance(value, Mapping)
        made[name] = merged(held, value) if is_object and held is not None else value
    return made


def refuse_twice(rest: Mapping[str, Any], spelled: Iterable[str]) -> None:
    """Refuse what would stand twice in the body; which of the two a service reads cannot be known.

    Args:
        rest: the entries besides those that the request itself spells.
        spelled: the names of those.

    Raises:
        BadRequest: names what stands twice.
    """
    twice = rest.keys() & set(spelled)
    if twice:
        raise BadRequest(
            f"options.extra holds {', '.join(sorted(twice))}, which the request itself spells; leave it out there"
        )


def turn_ids(exchanges: Sequence[ToolExchange]) -> list[str]:
    """Return one id per call of a turn, different from each other: the model's own, else one made from the position."""
    own = {exchange.call.id for exchange in exchanges}
    ids: list[str] = []
    given: set[str] = set()
    for place, exchange in enumerate(exchanges):
        wanted = exchange.call.id
        if not wanted or wanted in given:
            wanted = f"{wanted or 'call'}_{place}"
            while wanted in own or wanted in given:
                wanted = f"{wanted}_{place}"
        ids.append(wanted)
        given.add(wanted)
    return ids


_REFUSED = re.compile(r"[^a-zA-Z0-9_-]")
_LETTER = re.compile(r"[a-zA-Z_]")
_MADE = re.compile(r"__[0-9a-f]{8}\Z")
_LONGEST = 64
_DIGITS = 8


@lru_cache(maxsize=4096)
def wire_name(name: str, *, begins_with_letter: bool = False) -> str:
    """Return the name under which a tool goes over the wire.

    A name of at most 64 letters, digits, underscores and dashes stays as it is. Any other is made into one, with a digest of
    the name at its end, so that different names stay different; so is a name that ends as if it had been made, since it
    could be another's. The result depends on nothing but the arguments.

    Args:
        name: the name of the tool.
        begins_with_letter: whether the provider refuses names that begin with a digit or a dash.
    """
    needs_letter = begins_with_letter and not _LETTER.match(name)
    if name and len(name) <= _LONGEST and not needs_letter and not _REFUSED.search(name) and not _MADE.search(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    readable = _REFUSED.sub("_", f"_{name}" if needs_letter else name)[: _LONGEST - _DIGITS - 2]
    return f"{readable}__{digest}"


def renamed(names: Iterable[str], *, begins_with_letter: bool = False) -> dict[str, str]:
    """Return, for the names that go by another one on the wire, that one and the name itself."""
    wires = [(wire_name(name, begins_with_letter=begins_with_letter), name) for name in names]
    return {wire: name for wire, name in wires if wire != name}


def text_of(value: object) -> str:
    """Return a text, or an empty one for anything else."""
    return value if isinstance(value, str) else ""


def object_of(value: Any) -> dict[str, Any]:
    """Return an object, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def count_of(value: object) -> int | None:
    """Return a count of tokens; what cannot be one is unknown."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf:
        return int(value)
    return None


def arguments_json(arguments: Any) -> str:
    """Return arguments as JSON text: as it came, or encoded where a service sends the object itself."""
    if arguments is None:
        return "{}"
    return arguments if isinstance(arguments, str) else format_json(arguments).decode()
