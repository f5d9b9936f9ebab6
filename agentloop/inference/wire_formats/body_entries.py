"""Entries of a request body that come from several sides: the request, the configuration, and what is passed on as it is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentloop.errors import BadRequest


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
