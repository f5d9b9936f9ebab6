"""A journal in one SQLite file."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal

from agentloop.contracts.can_journal import Claim
from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate, CanKeepAccounts
from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.durable.chain import JournalFinding, check_id, check_records
from agentloop.durable.changes import ChangeSignal
from agentloop.durable.held_claims import HeldClaim
from agentloop.durable.journal import Journal, as_statuses
from agentloop.durable.spills import SpilledObjects
from agentloop.durable.sqlite import accounts, grants, statements
from agentloop.durable.sqlite.claims import ClaimFile
from agentloop.durable.sqlite.schema import Connector
from agentloop.durable.sqlite.worker import WorkerThread
from agentloop.durable.trees import ExecutionTree
from agentloop.errors import ClaimLost, ConfigurationError, JournalConflict
from agentloop.values.accounts import AccountKey, AccountState
from agentloop.values.commands import ExecutionCommand
from agentloop.values.grants import GrantState, GrantUse
from agentloop.values.records import ExecutionHead, JournalRecord, parse_cursor
from agentloop.values.secrets import Secret
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import to_microseconds

_SPILL_BYTES = 16 * 1024
_MAX_INLINE = 64 * 1024
"""The length of records, in characters, up to which an append that does not wait for the disk does not need a thread."""
_ROW_BYTES = 1
"""What the read of one row counts as."""
_PURGE_BATCH = 200
"""The number of trees that one transaction deletes; other writers get their turn in between."""


class SqliteJournal(Journal, CanKeepAccounts, CanKeepGrants):
    """Stores records in one SQLite file, for any number of processes on one machine.

    The file is opened at first use and created when it does not exist; its folder must exist. Next to it are SQLite's `-wal`
    and `-shm` files, a lock file, `-claims`, and `-ends`, by which `verify` and recoveries notice lost records. New files can be
    read by their owner only. Do not put the journal on a network drive.

    One thread writes, and puts everything that waits, of any execution, into one transaction. With `normal`, a short append that
    nobody else keeps waiting runs in the thread of the event loop instead, which takes less time than the way to another thread
    and back. Reads have a thread and a connection of their own and do not wait for writes. `aclose` ends both threads and the claims that were made through this
    object; the journal can be used again, but an execution that was running cannot append any more. One object serves any
    number of event loops, in turn or concurrently. A forked child process can use it; claims stay with the process that made
    them. A fork closes the connections of all journals, which open again when they are used.

    Args:
        path: the file.
        synchronous: what an append waits for. With `full`, until the data are on the disk: they survive a loss of power. With
            `normal`, until the operating system has them: they survive the death of the process, also by `kill -9`; a loss of
            power may lose the last appends, never a part of one.
        busy_timeout: how long an append or a read waits for another writer, in seconds, before it raises `JournalBusy`.
        spill_bytes: the maximum length of a record's body in its row, in characters; long strings of a longer body go into a
            table of their own, each once per execution.
        objects: stores the long strings that `spill_bytes` cuts out of records, in place of the table; `FolderObjects` or
            a store of your own. All programs that read these records need it.
        secrets: texts, or keys, that are masked wherever they occur in records. Commands, such as messages that wait for an
            execution, are stored as they are until they are finished.
        secret_fields: fields that are masked, by names or dotted paths.

    Raises:
        ConfigurationError: a secret is shorter than four characters, or an option is invalid.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        synchronous: Literal["full", "normal"] = "full",
        busy_timeout: float = 60.0,
        spill_bytes: int = _SPILL_BYTES,
        objects: CanStoreObjects | None = None,
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
                "a SqliteJournal needs the path of a file; use a MemoryJournal for records in memory"
            )
        self.path: Path = Path(path).absolute()
        self._synchronous = synchronous
        # With `full`, what is read at once in the thread is also written at once, in one transaction and with one wait for the disk.
        self._inline_read = _ROW_BYTES if synchronous == "normal" else 0
        self._spill_bytes = spill_bytes
        self._objects = SpilledObjects(objects, spill_bytes)
        connect = Connector(path=self.path, synchronous=synchronous).connect
        translate = partial(statements.translate_error, path=str(self.path))
        self._writer = WorkerThread("agentloop journal writer", connect, statements.run_writes, translate, busy_timeout)
        self._reader = WorkerThread("agentloop journal reader", connect, statements.run_reads, translate, busy_timeout)
        self._claims = ClaimFile(self.path)
        reader = self._reader
        self._changes = ChangeSignal(lambda: reader.run(statements.read_version))
        # A journal that is collected without being closed ends its threads; at exit, daemon threads end by themselves.
        for worker in (self._writer, self._reader):
            weakref.finalize(self, worker.end_soon).atexit = False

    def __repr__(self) -> str:
        return f"SqliteJournal({str(self.path)!r}, synchronous={self._synchronous!r})"

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution, all or none."""
        await self._append(head, records, claim, statements.Append)

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        """Append records, and count uses of grants in the same transaction."""
        await self._append(head, records, claim, partial(grants.AppendUsing, uses=uses))

    async def _append(
        self,
        head: ExecutionHead,
        records: Sequence[JournalRecord],
        claim: Claim,
        create: Callable[..., statements.Append],
    ) -> None:
        check_records(head, records, claim)
        self._claims.check(claim)
        references: Mapping[str, bytes] = {}
        if self._objects.may_get(records):
            find = partial(statements.find_new_spills, head, records, self._spill_bytes)
            references = await self._objects.put(head.execution_id, claim.token, await self._reader.run(find))
        try:
            append = create(head, records, self._spill_bytes, claim.token, references)
            # With `normal`, it waits for no disk: a short one need not wait for a thread, either.
            size = sum([len(record.body) for record in records]) if self._synchronous == "normal" else 0
            await self._writer.run(append, inline_bytes=size if size <= _MAX_INLINE else 0)
        except ClaimLost as error:
            if isinstance(claim, HeldClaim):
                claim.lose(error.reason)
            raise
        self._changes.fire()

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        return await self._objects.read(
            execution_id,
            lambda objects: self._reader.run(partial(statements.read_records, execution_id, after, objects)),
        )

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution."""
        return await self._reader.run(partial(statements.read_head, execution_id), inline_bytes=self._inline_read)

    async def list(
        self,
        *,
        agent_id: str | None = None,
        status: ExecutionStatus | Collection[ExecutionStatus] | None = None,
        prefix: str = "",
        unclaimed: bool = False,
        after: str = "",
        limit: int | None = None,
    ) -> Sequence[ExecutionHead]:
        """Return the summaries of executions, newest first."""
        selection = statements.HeadFilter(
            agent_id=agent_id,
            statuses=as_statuses(status),
            prefix=prefix,
            after=parse_cursor(after) if after else None,
            limit=limit,
            is_claimed=self._claims.is_claimed if unclaimed else None,
        )
        return await self._reader.run(partial(statements.list_heads, selection))

    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # a result, not an error
        """Wait until an execution has changed since the previous wait of the same caller.

        Changes by other processes are noticed within 20 milliseconds, or 100 by one that has no permission to write the file; it
        is polled only while somebody waits.
        """
        return await self._changes.wait(execution_id, self._read_mark, timeout=timeout, caller=caller)

    async def _read_mark(self, execution_id: str) -> object:
        return await self._reader.run(partial(statements.read_mark, execution_id))

    async def post(self, command: ExecutionCommand) -> None:
        """Store a command, unless one of this id was posted before."""
        check_id(command.execution_id)
        await self._writer.run(partial(statements.post_command, command))
        self._changes.fire()

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for these executions that are not finished, in the order in which they were posted."""
        return await self._reader.run(partial(statements.read_commands, tuple(set(execution_ids))))

    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids of executions that start with a text."""
        return await self._reader.run(partial(statements.read_unfinished, prefix))

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Mark commands as finished."""
        if command_ids:
            finish = statements.forget_commands if forget else statements.finish_commands
            await self._writer.run(partial(finish, tuple(command_ids)))

    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution, which may not exist yet."""
        claim = self._claims.claim(execution_id)
        try:
            stored = await self._reader.run(
                partial(statements.read_token, execution_id), inline_bytes=self._inline_read
            )
            if stored >= claim.token:
                self._claims.renumber(claim, stored)
        except BaseException:
            claim.release_nowait()
            raise
        return claim

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it, with all their records."""
        tree = await self._reader.run(partial(statements.read_tree, execution_id))
        with self._claim_all(tree or (execution_id,)):
            deleted = await self._writer.run(partial(statements.delete_tree, execution_id, tree))
        await self._objects.delete(deleted.keys)
        return bool(deleted.execution_ids)

    async def purge(self, before: datetime) -> int:
        """Delete all unclaimed trees of executions that have ended and were last updated before a time."""
        cutoff = to_microseconds(before)
        expired = iter(await self._reader.run(partial(statements.list_expired, cutoff)))
        count = 0
        while batch := tuple(islice(expired, _PURGE_BATCH)):
            count += await self._purge(batch, cutoff)
        return count

    async def _purge(self, trees: Iterable[Sequence[str]], cutoff: int) -> int:
        claimed: list[Sequence[str]] = []
        # Claimed before they are checked again: no writer can resume an execution while it is deleted.
        with ExitStack() as claims:
            for tree in trees:
                with suppress(JournalConflict):  # another writer resumes one of its executions
                    claims.enter_context(self._claim_all(tree))
                    claimed.append(tree)
            deleted = await self._writer.run(partial(statements.delete_expired, claimed, cutoff))
        await self._objects.delete(deleted.keys)
        return len(deleted.execution_ids)

    def _claim_all(self, execution_ids: Iterable[str]) -> ExitStack:
        """Claim all executions, or none; closing the result releases them.

        Raises:
            JournalConflict: a live writer has claimed one of them.
        """
        with ExitStack() as claims:
            for execution_id in execution_ids:
                claims.callback(self._claims.claim(execution_id).release_nowait)
            return claims.pop_all()

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        """Replace the state of an account by what the change returns."""
        return await self._writer.run(partial(accounts.update_account, key, change))

    async def accounts(self) -> Sequence[tuple[AccountKey, AccountState]]:
        """Return all accounts, ordered by their keys."""
        return await self._reader.run(accounts.read_accounts)

    # --- grants ---

    async def add_grant(self, state: GrantState) -> None:
        """Store a grant, unless there is one of this id."""
        await self._writer.run(partial(grants.add_grant, state))

    async def update_grant(self, grant_id: str, change: GrantChange) -> GrantState | None:
        """Replace the state of a grant by what the change returns, and return it."""
        return await self._writer.run(partial(grants.update_grant, grant_id, change))

    async def grants(self, *, owner: str | None = None, tool: str | None = None) -> Sequence[GrantState]:
        """Return the grants, ordered by the time at which they were given."""
        return await self._reader.run(partial(grants.read_grants, owner, tool))

    async def aclose(self) -> None:
        """End the threads, their connections and the claims. Idempotent."""
        # The claims end first: a writer that is still running must not start the thread again.
        self._claims.end_all()
        try:
            await self._writer.aclose()
        finally:  # also when the caller is cancelled, such as by the loss of a claim that has just ended
            try:
                await self._reader.aclose()
            finally:
                self._claims.close()

    async def expired_trees(self, before: datetime) -> Sequence[ExecutionTree]:
        """Return the executions that `purge` would delete, each with those of the agents that serve its calls."""
        return await self._reader.run(partial(statements.read_expired_trees, to_microseconds(before)))

    async def _execution_ids(self) -> Sequence[str]:
        return await self._reader.run(statements.list_execution_ids)

    async def _check_storage(self, execution_id: str | None) -> Iterable[JournalFinding]:
        return await self._reader.run(partial(statements.check_storage, execution_id))
