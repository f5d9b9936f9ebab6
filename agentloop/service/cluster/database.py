"""The database of a cluster: a SQLite file with a file of the engine beside it, or PostgreSQL."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit

from attrs import field, frozen

from agentloop.durable.opening import SQLITE, scheme_of
from agentloop.durable.postgres.connections import POSTGRES, UNREADABLE_URL
from agentloop.errors import ConfigurationError


@frozen
class ClusterDatabase:
    """Where a cluster stores its executions and its queues.

    Attributes:
        location: the path of a SQLite file, or the URL of a PostgreSQL database. A URL can hold a password, so the repr omits it.
        path: the SQLite file; None for PostgreSQL.
    """

    location: str = field(repr=False)
    path: Path | None

    @classmethod
    def parse(cls, db: str | os.PathLike[str]) -> ClusterDatabase:
        """Return the database that a path or a URL names.

        Args:
            db: the path of a SQLite file, `sqlite:///path`, or `postgresql://user@host/name`.

        Raises:
            ConfigurationError: it is empty, its scheme is unknown, the URL cannot be read, or the path cannot be part of a URL.
        """
        text = os.fspath(db)
        if text.startswith(POSTGRES):
            try:
                urlsplit(text)
            except ValueError:
                # Without its cause, which may quote the password.
                raise ConfigurationError(UNREADABLE_URL) from None
            return cls("postgresql://" + text.split("://", 1)[1], None)
        if (scheme := scheme_of(text)) and not text.startswith(SQLITE):
            raise ConfigurationError(
                f"a database is the path of a SQLite file, or a URL that starts with postgresql://, not with {scheme}:/"
            )
        name = text.removeprefix(SQLITE)
        if not name.strip() or name == ":memory:" or "?" in name:
            raise ConfigurationError("the path of a database is empty, names no file, or contains a question mark")
        path = Path(name).absolute()
        return cls(str(path), path)

    @property
    def engine_url(self) -> str:
        """The URL of the tables of the engine; it can hold a password."""
        return self.location if self.path is None else f"{SQLITE}{self.engine_path}"

    @property
    def engine_path(self) -> Path:
        """The SQLite file of the engine, beside the journal."""
        return Path(f"{self.path}-engine")

    @property
    def workers_path(self) -> Path:
        """The folder with a lock file for each worker, beside the journal."""
        return Path(f"{self.path}-workers")

    def __str__(self) -> str:
        """Return the path, or the URL without user, password and options."""
        if self.path is not None:
            return str(self.path)
        parts = urlsplit(self.location)
        return f"postgresql://{parts.hostname or ''}{parts.path}"
