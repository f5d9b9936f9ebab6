"""Versions of the tables of a journal: which changes lead from one to the next, and which programs can use the result."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from agentloop.errors import JournalError, SchemaTooNew


@frozen(kw_only=True)
class Migration:
    """The change of the tables from one version to the next.

    A migration adds: columns with defaults, tables, indexes. Programs of the version before can then use the tables as well, and
    both run side by side. One that takes something away, or changes what a value means, raises `min_reader` to its own version.

    Attributes:
        version: the version of the tables after it.
        min_reader: the oldest version of the program's tables with which they can be read and written from then on.
        statements: the SQL statements, which run in one transaction.
    """

    version: int
    min_reader: int
    statements: tuple[str, ...]


def check_min_reader(version: int, min_reader: int, supported: int) -> None:
    """Check that this program can use the tables of a journal.

    Args:
        version: the version of the tables.
        min_reader: the oldest version that can use them, as it is stored with them.
        supported: the newest version that this program creates.

    Raises:
        SchemaTooNew: the tables need a newer program.
    """
    if min_reader > supported:
        raise SchemaTooNew(version, supported)


def find_migrations(migrations: Sequence[Migration], version: int) -> Sequence[Migration]:
    """Return the migrations that tables of a version need, in order; empty for current and newer tables.

    Args:
        migrations: all migrations, ordered by version.
        version: the version of the tables.

    Raises:
        JournalError: no migration leads from this version to the next one.
    """
    pending = [migration for migration in migrations if migration.version > version]
    if pending and pending[0].version != version + 1:
        raise JournalError(
            f"the tables of the journal have version {version}, from which this agentloop cannot upgrade; the oldest version is "
            f"{migrations[0].version - 1}"
        )
    return pending
