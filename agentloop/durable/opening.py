"""Opening a journal by its path or URL."""

from __future__ import annotations

import os
import re
from typing import Any

from agentloop.durable.journal import Journal
from agentloop.durable.postgres.connections import POSTGRES
from agentloop.durable.postgres.postgres_journal import PostgresJournal
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.errors import ConfigurationError

SQLITE = "sqlite:///"
"""How a URL starts that is the path of a SQLite file."""
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)


def open_journal(place: str | os.PathLike[str], **options: Any) -> Journal:
    """Return the journal at a path or URL; it is opened at its first use.

    Args:
        place: the path of a SQLite file, `sqlite:///` with such a path, or the URL of a PostgreSQL database,
            `postgresql://user:password@host:port/database`.
        options: parameters of `SqliteJournal` or `PostgresJournal`, such as `secrets`.

    Raises:
        ConfigurationError: the URL is of another kind or cannot be read, an option is invalid, or the extra `postgres` is not
            installed. The message does not show the URL.
    """
    text = os.fspath(place)
    if text.startswith(POSTGRES):
        return PostgresJournal(text, **options)
    if text.startswith(SQLITE):
        return SqliteJournal(text.removeprefix(SQLITE), **options)
    if kind := scheme_of(text):
        raise ConfigurationError(
            f"a journal is the path of a SQLite file, or a URL that starts with sqlite:/// or postgresql://, not with {kind}:/"
        )
    return SqliteJournal(place, **options)


def scheme_of(place: str) -> str:
    """Return the scheme of a URL, empty for a path.

    One slash is enough: `postgresql:/user:password@host/name` is a URL that was mistyped, and no name of a file. The letter of a drive
    is no scheme.
    """
    found = _SCHEME.match(place)
    return found[1].lower() if found else ""
