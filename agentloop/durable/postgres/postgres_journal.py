"""A journal in PostgreSQL, for any number of machines."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial

from agentloop.contracts.can_journal import Claim
from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate, CanKeepAccounts
from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.durable.chain import JournalFinding, check_id, check_records, claim_lost
from agentloop.durable.held_claims import HeldClaim
from agentloop.durable.journal import Journal, as_statuses
from agentloop.durable.postgres import accounts, grants
from agentloop.durable.postgres.connections import DatabaseConnector, PsycopgConnector, read_url
from agentloop.durable.postgres.database import JournalDatabase
from agentloop.durable.postgres.statements import HeadSelection, RecordAppend, Statements
from agentloop.durable.spills import SpilledObjects
from agentloop.durable.trees import ExecutionTree
from agentloop.errors import ClaimLost, ConfigurationError, JournalBusy, JournalConflict
from agentloop.values.accounts import AccountKey, AccountState
from agentloop.values.commands import ExecutionCommand
from agentloop.values.grants import GrantState, GrantUse
from agentloop.values.records import ExecutionHead, JournalRecord, parse_cursor
from agentloop.values.secrets import Secret
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import to_microseconds

_SPILL_BYTES = 16 * 1024


class PostgresJournal(Journal, CanKeepAccounts, CanKeepGrants):
    """Stores records in a PostgreSQL database, for any number of machines; requires the extra `postgres`.

    The tables are created with the first use, in a schema of their own. Connections live in a thread of this object, opened
    when they are needed: one object serves any number of event loops, in turn or concurrently. A forked child process can use
    it; claims stay with the process that made them.

    Claims belong to the session of this object: a connection whose lock the server releases when it ends. Another process can
    take a claim over as soon as the session that holds it has ended: at once after the death of the process, and after
    `session_timeout` when the process or the network does not answer. When the connection is lost, a new session gets back the
    claims that nobody has taken over. Appends of a process that lost its claim are refused.

    Args:
        url: the database: `postgresql://user:password@host:port/database`.
        direct_url: the same database without a pooler in between, where `url` leads to a pooler in transaction mode, such as
            PgBouncer; by default `url`.
        pool_size: the maximum number of connections, besides the one of the session.
        schema: the schema of the tables.
        statement_timeout: how long a statement may take, in seconds, before an append or a read raises `JournalBusy`.
        session_timeout: the time after which the claims of a process that does not answer can be taken over, in seconds.
        reconnect_timeout: how long a use tries to reach a server that was there before, such as one that is restarted, in
            seconds; then it raises `JournalBusy`.
        spill_bytes: the maximum length of a record's body in its row, in characters; long strings of a longer body go into a
            table of their own, each once per execution.
        objects: stores the long strings that `spill_bytes` cuts out of records, in place of the table; `FolderObjects` or
            a store of your own. All programs that read these records need it.
        secrets: texts, or keys, that are masked wherever they occur in records. Commands, such as messages that wait for an
            execution, are stored as they are until they are finished.
        secret_fields: fields that are masked, by names or dotted paths.
        connectors: open the connections in place of psycopg, such as to a simulated server: one for all but the session, and
            one for the session.

    Raises:
        ConfigurationError: psycopg is not installed, a URL or an option is invalid, or a secret is shorter than four
            characters.
    """

    def __init__(
        self,
        url: str,
        *,
        direct_url: str | None = None,
        pool_size: int = 8,
        schema: str = "agentloop",
        statement_timeout: float = 30.0,
        session_timeout: float = 15.0,
        reconnect_timeout: float = 10.0,
        spill_bytes: int = _SPILL_BYTES,
        objects: CanStoreObjects | None = None,
        secrets: Iterable[str | Secret] = (),
        secret_fields: Iterable[str] = (),
        connectors: tuple[DatabaseConnector, DatabaseConnector] | None = None,
    ) -> None:
        super().__init__(secrets=secrets, secret_fields=secret_fields)
        if pool_size < 1 or spill_bytes < 1:
            raise ConfigurationError("pool_size and spill_bytes are at least 1")
        if statement_timeout <= 0 or session_timeout <= 0:
            raise ConfigurationError("statement_timeout and session_timeout are numbers of seconds")
        if connectors is None:
            direct = url if direct_url is None else direct_url
            connectors = (
                PsycopgConnector(read_url(url), statement_timeout, is_pooled=direct_url is not None),
                PsycopgConnector(read_url(direct), session_timeout / 3),
            )
        self._database = JournalDatabase(
            *connectors,
            schema=schema,
            pool_size=pool_size,
            session_timeout=session_timeout,
            reconnect_timeout=reconnect_timeout,
        )
        self._schema = schema
        self._spill_bytes = spill_bytes
        self._objects = SpilledObjects(objects, spill_bytes)
        self._statements = Statements(self._database.schema, self._database.sql.is_free)
        # The executions whose latest append was repeated or given up without an answer of the server.
        self._uncertain: set[str] = set()
        # A journal that is collected without being closed ends its thread; at exit, daemon threads end by themselves.
        weakref.finalize(self, self._database.end_soon).atexit = False

    def __repr__(self) -> str:
        return f"PostgresJournal({self._database.name!r}, schema={self._schema!r})"

    # --- records ---

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution, all or none."""
        await self._append(head, records, claim, RecordAppend)

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        """Append records, and count uses of grants in the same transaction."""
        await self._append(head, records, claim, partial(grants.RecordAppendUsing, uses=uses))

    async def _append(
        self,
        head: ExecutionHead,
        records: Sequence[JournalRecord],
        claim: Claim,
        create: Callable[..., RecordAppend],
    ) -> None:
        check_records(head, records, claim)
        held = self._check_claim(claim)
        execution_id = head.execution_id
        references: Mapping[str, bytes] = {}
        if self._objects.may_get(records):
            references = await self._store_objects(head, records, claim.token)
        append = create(
            self._statements,
            head,
            records,
            claim.token,
            self._spill_bytes,
            references,
            is_uncertain=execution_id in self._uncertain,
        )
        # Until the answer is there: the caller may be cancelled, and append again.
        self._uncertain.add(execution_id)
        try:
            await self._database.run(append)
        except JournalBusy:
            raise
        except ClaimLost as error:
            self._database.lose(held, error.reason)
            self._uncertain.discard(execution_id)
            raise
        except Exception:
            self._uncertain.discard(execution_id)
            raise
        self._uncertain.discard(execution_id)
        self._database.announce(execution_id)

    async def _store_objects(
        self, head: ExecutionHead, records: Sequence[JournalRecord], token: int
    ) -> Mapping[str, bytes]:
        find = self._statements.find_new_spills
        length = self._spill_bytes
        spills = await self._database.run(partial(find, head=head, records=records, max_length=length))
        return await self._objects.put(head.execution_id, token, spills)

    def _check_claim(self, claim: Claim) -> HeldClaim:
        if not isinstance(claim, HeldClaim):
            raise claim_lost(claim.execution_id, claim.token, "another journal made it")
        self._database.check(claim)
        return claim

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        read = partial(self._statements.read_records, execution_id=execution_id, after=after)
        return await self._objects.read(
            execution_id, lambda objects: self._database.run(partial(read, objects=objects))
        )

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution."""
        return await self._database.run(partial(self._statements.read_head, execution_id=execution_id))

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
        selection = HeadSelection(
            agent_id=agent_id,
            statuses=as_statuses(status),
            prefix=prefix,
            unclaimed=unclaimed,
            after=parse_cursor(after) if after else None,
            limit=limit,
        )
        return await self._database.run(partial(self._statements.list_heads, selection=selection))

    # --- claims, changes and commands ---

    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution, which may not exist yet."""
        check_id(execution_id)
        claim = await self._database.claim(execution_id)
        claim.journal = self
        return claim

    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # a result, not an error
        """Wait until an execution has changed since the previous wait of the same caller.

        The server tells this process about changes by others. As what it tells can be lost, the executions for which somebody
        waits are looked at once per second, too.
        """
        await self._database.listen()
        changes = self._database.changes
        await changes.begin(execution_id)
        return await changes.signal.wait(execution_id, changes.read_mark, timeout=timeout, caller=caller)

    async def post(self, command: ExecutionCommand) -> None:
        """Store a command, unless one of this id was posted before."""
        check_id(command.execution_id)
        channel = self._database.sql.channel
        await self._database.run(partial(self._statements.post_command, command=command, channel=channel))
        self._database.announce(command.execution_id)

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for these executions that are not finished, in the order in which they were posted."""
        if not execution_ids:
            return ()
        return await self._database.run(partial(self._statements.read_commands, ids=tuple(execution_ids)))

    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids of executions that start with a text."""
        return await self._database.run(partial(self._statements.read_unfinished, prefix=prefix))

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Mark commands as finished."""
        if command_ids:
            finish = self._statements.forget_commands if forget else self._statements.finish_commands
            await self._database.run(partial(finish, ids=tuple(command_ids)))

    # --- deleting ---

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it, with all their records."""
        deleted = await self._database.run(partial(self._statements.delete_tree, execution_id=execution_id))
        await self._objects.delete(deleted.keys)
        for each in deleted.execution_ids:
            self._database.announce(each)
        return bool(deleted.execution_ids)

    async def purge(self, before: datetime) -> int:
        """Delete all unclaimed trees of executions that have ended and were last updated before a time."""
        cutoff, count = to_microseconds(before), 0
        statements, after = self._statements, None
        while page := await self._database.run(partial(statements.list_expired, before=cutoff, after=after)):
            for root, after in page:  # noqa: B007  # the last one is where the next page begins
                with suppress(JournalConflict):  # another writer resumes one of its executions
                    deleted = await self._database.run(partial(statements.delete_expired, root=root, before=cutoff))
                    await self._objects.delete(deleted.keys)
                    count += len(deleted.execution_ids)
        await self._database.run(statements.delete_unused_claims)
        return count

    async def expired_trees(self, before: datetime) -> Sequence[ExecutionTree]:
        """Return the executions that `purge` would delete, each with those of the agents that serve its calls."""
        return await self._database.run(partial(self._statements.read_expired_trees, before=before))

    # --- accounts ---

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        """Replace the state of an account by what the change returns."""
        schema = self._database.schema
        return await self._database.run(partial(accounts.update_account, schema=schema, key=key, change=change))

    async def accounts(self) -> Sequence[tuple[AccountKey, AccountState]]:
        """Return all accounts, ordered by their keys."""
        return await self._database.run(partial(accounts.read_accounts, schema=self._database.schema))

    # --- grants ---

    async def add_grant(self, state: GrantState) -> None:
        """Store a grant, unless there is one of this id."""
        await self._database.run(partial(grants.add_grant, schema=self._database.schema, state=state))

    async def update_grant(self, grant_id: str, change: GrantChange) -> GrantState | None:
        """Replace the state of a grant by what the change returns, and return it."""
        update = partial(grants.update_grant, schema=self._database.schema, grant_id=grant_id, change=change)
        return await self._database.run(update)

    async def grants(self, *, owner: str | None = None, tool: str | None = None) -> Sequence[GrantState]:
        """Return the grants, ordered by the time at which they were given."""
        read = partial(grants.read_grants, schema=self._database.schema, owner=owner, tool=tool)
        return await self._database.run(read)

    async def aclose(self) -> None:
        """End the claims, the thread and its connections. Idempotent."""
        await self._database.aclose()

    async def _execution_ids(self) -> Sequence[str]:
        return await self._database.run(self._statements.list_execution_ids)

    async def _check_storage(self, execution_id: str | None) -> Iterable[JournalFinding]:
        return await self._database.run(partial(self._statements.find_changed_heads, execution_id=execution_id))
