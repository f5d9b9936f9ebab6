"""What a run raises when its journal cannot be written."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from agentloop.errors import JournalError
from agentloop.journal import MemoryJournal
from agentloop.values.interruptions import interrupted_state
from agentloop.values.records import ExecutionHead, JournalRecord
from tests.replay.bench import loop_of


class BrokenJournal(MemoryJournal):
    """Raises an error of its own at one of its appends."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__()
        self.left, self.error = at, error

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error
        await super().append(head, records)


@pytest.mark.parametrize("at", range(1, 9))
async def test_any_error_of_a_journal_is_raised_as_a_journal_error(at: int) -> None:
    """Its cause is what was raised, and nothing is left that nobody looked at."""
    unseen: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    journal = BrokenJournal(at, OSError("the disk is gone"))
    with pytest.raises(JournalError, match="its journal raised OSError: the disk is gone") as raised:
        await loop_of(journal=journal).execute("What about my orders?", execution_id="run")
    assert raised.value.__cause__ is journal.error
    assert interrupted_state(raised.value) is not None
    claim = await journal.claim("run")
    await claim.release()
    del raised
    gc.collect()
    assert not unseen
