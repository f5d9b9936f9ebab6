"""A journal in one SQLite file."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from agentloop.contracts.can_journal import Claim
from agentloop.errors import ConfigurationError, JournalConflict
from agentloop.journal.chain import JournalFinding, check_records
from agentloop.journal.journal import Journal
from agentloop.journal.sqlite import statements as reading
from agentloop.journal.sqlite import statements as writing
from agentloop.journal.sqlite.claims import Claims, FileClaim
from agentloop.journal.sqlite.rows import microseconds
from agentloop.journal.sqlite.schema import Opening
from agentloop.journal.sqlite.statements import translated
from agentloop.journal.sqlite.worker import Worker
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.secrets import Secret
from agentloop.values.steps import ExecutionStatus

_SPILL_BYTES = 16 * 1024
_AT_ONCE = 200
"""How many executions are purged in one transaction, so that others can write in between."""


class SqliteJournal(Journal):
    """Keeps records in one SQLite file, for any number of processes of one machine.

    The file is opened at first use, and made when it is not there; its folder has to be. Beside it stand, while it is open,
    SQLite's own `-wal` and `-shm`, and `-claims`, a file of locks. It should not lie on a network drive.

    All that waits to be written, of any execution, is written in one transaction by one thread; reading has a thread and a
    connection of its own and does not wait for writing. `aclose` ends both, and the claims that were made through this object; after
    it, the journal can be used again, but a run that was going on can append no more. One object serves any event loops, one after
    the other or at once; a forked child makes its own.

    Args:
        path: the file.
        synchronous: what an append waits for. With `full`, until the disk has it: it survives a loss of power. With `normal`, until the
            system has it: it survives the death of the process, also by `kill -9`; a loss of power may take the last appends with it,
            never a part of one.
        busy_timeout: how many seconds to wait while somebody else writes.
        spill_bytes: a longer body of a record is cut: its long texts go into a table of their own, each once per execution.
        secrets: texts, or keys, that are masked wherever they stand in what is recorded.
        secret_fields: fields that are masked, by their names or dotted paths.

    Raises:
        ConfigurationError: when a secret is shorter than four characters, or an option has no meaning.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 5.0,
        spill_bytes: int = _SPILL_BYTES,
        secrets: Iterable[str | Secret] = (),
        secret_fields: Iterable[str] = (),
    ) -> None:
        super().__init__(secrets=secrets, secret_fields=secret_fields)
        if synchronous not in {"full", "normal"}:
            raise ConfigurationError(f"synchronous is 'full' or 'normal', not {synchronous!r}")
        if busy_timeout < 0 or spill_bytes < 1:
            raise ConfigurationError("busy_timeout is a number of seconds, and spill_bytes is at least 1")
        if os.fspath(path) in {"", ":memory:"}:
            raise ConfigurationError(
                "a SqliteJournal needs the path of a file; what need not last goes into a MemoryJournal"
            )
        self.path: Path = Path(path).absolute()
        self._synchronous = synchronous
        self._spill_bytes = spill_bytes
        connect = Opening(path=self.path, synchronous=synchronous, busy_timeout=busy_timeout).open
        translate = partial(translated, path=str(self.path))
        self._writer = Worker("agentloop journal writer", connect, writing.write, translate)
        self._reader = Worker("agentloop journal reader", connect, reading.read_all, translate)
        self._claims = Claims(self.path.with_name(f"{self.path.name}-claims"))
        for worker in (self._writer, self._reader):
            weakref.finalize(self, worker.forget).atexit = False

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self.path)!r}, synchronous={self._synchronous!r})"

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord]) -> None:
        """Put records at the end of an execution's chain, all or none."""
        check_records(head, records)
        self._claims.check(head.execution_id)
        await self._writer.do(writing.Append(head, records, self._spill_bytes))

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        return await self._reader.do(partial(reading.read, execution_id, after))

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return what is known of an execution."""
        return await self._reader.do(partial(reading.head, execution_id))

    async def list(
        self, *, agent_id: str | None = None, status: ExecutionStatus | None = None, limit: int | None = None
    ) -> Sequence[ExecutionHead]:
        """Return what is known of executions, the newest first."""
        return await self._reader.do(partial(reading.heads, agent_id, status, limit))

    async def claim(self, execution_id: str) -> Claim:
        """Claim an execution, which may not be there yet."""
        return self._claims.claim(execution_id)

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution with all its records."""
        claim = self._claims.claim(execution_id)
        try:
            return await self._writer.do(partial(writing.delete, execution_id))
        finally:
            claim.release_now()

    async def purge(self, before: datetime) -> int:
        """Delete all executions that have ended and were last changed before this moment, but those that are claimed."""
        moment = microseconds(before)
        over = iter(await self._reader.do(partial(writing.over, moment)))
        count = 0
        while some := tuple(islice(over, _AT_ONCE)):
            count += await self._purge(some, moment)
        return count

    async def _purge(self, execution_ids: Iterable[str], moment: int) -> int:
        claims: dict[str, FileClaim] = {}
        try:
            for execution_id in execution_ids:
                try:
                    claims[execution_id] = self._claims.claim(execution_id)
                except JournalConflict:
                    continue  # somebody goes on with it
            return await self._writer.do(partial(writing.delete_over, tuple(claims), moment))
        finally:
            for claim in claims.values():
                claim.release_now()

    async def aclose(self) -> None:
        """End the threads, their connections and the claims; more than once does nothing."""
        self._claims.end()  # who still goes on does not make a thread begin again
        await self._writer.aclose()
        await self._reader.aclose()
        self._claims.close()

    async def _execution_ids(self) -> Sequence[str]:
        return await self._reader.do(reading.execution_ids)

    async def _findings_beside(self, execution_id: str | None) -> Iterable[JournalFinding]:
        return await self._reader.do(partial(reading.findings_beside, execution_id))
