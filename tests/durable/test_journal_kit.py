"""The law suite of journals: the package's journals pass."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.testing import JournalKit
from tests.generated import examples


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a temporary folder on the disk."""
    with TemporaryDirectory() as name:
        yield Path(name)


@pytest.mark.parametrize("law", JournalKit.laws)
def test_memory_journals_keep_the_laws(law: int) -> None:
    """`MemoryJournal` keeps every law of the contract."""
    JournalKit(MemoryJournal, examples=examples(100)).check(law)


@pytest.mark.parametrize("law", JournalKit.laws)
@pytest.mark.parametrize("spill_bytes", [16 * 1024, 8])
def test_sqlite_journals_keep_the_laws(folder: Path, law: int, spill_bytes: int) -> None:
    """`SqliteJournal` keeps every law, also through a second object on the same file, whatever it spills."""
    number = iter(range(10**6))

    def make(**options: Any) -> SqliteJournal:
        return SqliteJournal(folder / f"{next(number)}.db", synchronous="normal", spill_bytes=spill_bytes, **options)

    def reopen(journal: CanJournal) -> SqliteJournal:
        assert isinstance(journal, SqliteJournal)
        return SqliteJournal(journal.path)

    JournalKit(make, reopen=reopen, examples=examples(15)).check(law)
