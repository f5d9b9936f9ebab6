"""Which statements a simulated PostgreSQL server knows, found by how their SQL starts."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from attrs import define

from agentloop.durable.postgres.connections import StatementFailed
from agentloop.testing.simulation.postgres_server import StatementFunction

_SCHEMA = re.compile(r'"\w+"\.')


@define(eq=False)
class KnownStatement:
    """A statement that the server runs.

    Attributes:
        start: how it starts, with `S.` for the schema.
        place: where faults of it are counted.
        function: makes of the text what runs it.
        part: what it has besides its start.
    """

    start: str
    place: str
    function: Callable[[str], StatementFunction]
    part: str = ""


KNOWN: list[KnownStatement] = []
"""The statements, the more specific ones first."""


def statement(start: str, place: str, part: str = "") -> Callable[[StatementFunction], StatementFunction]:
    """Register the function that runs the statements which start with a text."""

    def register(function: StatementFunction) -> StatementFunction:
        KNOWN.append(KnownStatement(start, place, lambda _: function, part))
        return function

    return register


@cache
def known_statement(text: str) -> KnownStatement:
    """Return the statement of an SQL text.

    Raises:
        StatementFailed: the server does not know it.
    """
    normal = _SCHEMA.sub("S.", text)
    for known in KNOWN:
        if normal.startswith(known.start) and known.part in normal:
            return known
    raise StatementFailed(f"the simulated server does not know the statement {text!r:.200}", "0A000")


def place_of(text: str) -> str:
    """Return the place at which faults of a statement are counted."""
    return "journal.commit" if text in {"BEGIN", "COMMIT", "ROLLBACK"} else known_statement(text).place


@cache
def function_of(text: str) -> StatementFunction:
    """Return what runs the statements of an SQL text.

    Raises:
        StatementFailed: the server does not know it.
    """
    return known_statement(text).function(_SCHEMA.sub("S.", text))
