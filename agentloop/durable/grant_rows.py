"""Grants as the texts that databases store."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from agentloop.errors import JournalCorrupt
from agentloop.values.grants import GrantState
from agentloop.values.json import parse_json
from agentloop.values.serialization import from_json, to_json


def write_grant(state: GrantState) -> str:
    """Return a grant as a text in ASCII: a key may hold what a database cannot store."""
    return json.dumps(parse_json(to_json(state)), separators=(",", ":"))


def as_column(text: str) -> str:
    """Return a text, such as the name of an owner, as databases store and compare it."""
    return json.dumps(text)


def read_grant(text: str) -> GrantState:
    """Return a grant from its text.

    Raises:
        JournalCorrupt: the text is damaged.
        SchemaTooNew: a newer version of agentloop wrote it.
    """
    try:
        return from_json(text, GrantState)
    except ValueError as error:
        raise JournalCorrupt(f"a grant cannot be read: {error}") from error


def in_order(states: Iterable[GrantState]) -> Sequence[GrantState]:
    """Return grants in the order in which they were given."""
    return sorted(states, key=lambda state: (state.given_at, state.id))
