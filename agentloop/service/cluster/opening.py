"""Where the journal and the queues of a cluster are: in one database, or each where its owner says."""

from __future__ import annotations

import os

from agentloop.contracts.can_queue import CanQueue
from agentloop.durable.journal import Journal
from agentloop.service.cluster.database import ClusterDatabase


def place_of(db: str | os.PathLike[str], journal: Journal | None, queues: CanQueue | None) -> tuple[str, str]:
    """Return the location of the database of a cluster, and a text that names it; the location is empty where none is needed.

    Args:
        db: the path of a SQLite file, or a URL; may be empty with `journal` and `queues`.
        journal: the journal; None for that of the database.
        queues: the queues; None for those of the database.

    Raises:
        ConfigurationError: the database is invalid, or is missing.
    """
    if not os.fspath(db) and journal is not None and queues is not None:
        return "", repr(queues)
    database = ClusterDatabase.parse(db)
    return database.location, str(database)


def make_queues(location: str) -> CanQueue:
    """Return the queues of a database, which are not open.

    Raises:
        ConfigurationError: the extra `cluster` is not installed.
    """
    from agentloop.service.cluster.engine import Engine  # noqa: PLC0415  # loads DBOS, which other queues do not need

    return Engine(ClusterDatabase.parse(location))
