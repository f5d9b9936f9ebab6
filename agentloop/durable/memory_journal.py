"""A journal in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import count, islice
from threading import Lock
from typing import TypeAlias

from agentloop.contracts.can_journal import Claim
from agentloop.contracts.can_keep_accounts import AccountChange, AccountUpdate, CanKeepAccounts
from agentloop.contracts.can_keep_grants import CanKeepGrants, GrantChange
from agentloop.durable.chain import (
    EMPTY_CHAIN,
    check_follows,
    check_id,
    check_records,
    check_schema_version,
    claim_conflict,
    number_conflict,
)
from agentloop.durable.changes import ChangeSignal
from agentloop.durable.held_claims import HeldClaim, HeldClaims
from agentloop.durable.journal import Journal, as_statuses
from agentloop.durable.trees import check_deletable, group_trees
from agentloop.values.accounts import AccountKey, AccountState
from agentloop.values.commands import ExecutionCommand
from agentloop.values.grants import GrantState, GrantUse
from agentloop.values.records import ExecutionHead, JournalRecord, parse_cursor
from agentloop.values.secrets import Secret
from agentloop.values.steps import ExecutionStatus

_SAME_PROCESS = "another writer of this process"


class MemoryJournal(Journal, CanKeepAccounts, CanKeepGrants):
    """Stores records in memory: for tests, and for executions that need an audit trail or a replay but no recovery.

    Args:
        secrets: texts, or keys, that are masked wherever they occur in records. Commands, such as messages that wait for an
            execution, are stored as they are until they are finished.
        secret_fields: fields that are masked, by names or dotted paths.

    Raises:
        ConfigurationError: a secret is shorter than four characters.
    """

    def __init__(self, *, secrets: Iterable[str | Secret] = (), secret_fields: Iterable[str] = ()) -> None:
        super().__init__(secrets=secrets, secret_fields=secret_fields)
        self._heads: dict[str, ExecutionHead] = {}
        self._records: dict[str, list[JournalRecord]] = {}
        self._ids_by_number: dict[tuple[str, int], str] = {}
        self._by_start: dict[str, list[_StartOrder]] = {}  # those of each agent, oldest first
        self._claims = HeldClaims()
        self._tokens = count(1)
        self._commands: dict[str, ExecutionCommand] = {}
        self._finished: set[str] = set()
        self._change_counts: Counter[str] = Counter()
        self._changes = ChangeSignal()
        self._accounts: dict[AccountKey, AccountState] = {}
        self._grants: dict[str, GrantState] = {}
        # Event loops in different threads may share a journal.
        self._lock = Lock()

    def __repr__(self) -> str:
        return f"MemoryJournal({len(self._heads)} executions)"

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        """Append records to the chain of an execution, all or none."""
        await self.append_using(head, records, claim, ())

    async def append_using(
        self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim, uses: Sequence[GrantUse]
    ) -> None:
        """Append records, and count uses of grants: both, or neither."""
        check_records(head, records, claim)
        number = (head.agent_id, head.number)
        with self._lock:
            self._claims.check(claim)
            stored = self._heads.get(head.execution_id)
            check_follows(records[0], *((stored.record_count, stored.last_hash) if stored else EMPTY_CHAIN))
            if self._ids_by_number.get(number, head.execution_id) != head.execution_id:
                raise number_conflict(head)
            # The new head replaces the stored one, also its number.
            if stored is not None:
                self._remove_head(stored)
            self._heads[head.execution_id] = head
            self._ids_by_number[number] = head.execution_id
            insort(self._by_start.setdefault(head.agent_id, []), _start_order(head))
            self._records.setdefault(head.execution_id, []).extend(records)
            for use in uses:
                self._grants[use.grant_id] = self._grants[use.grant_id].use(use.key)
            self._note_change(head.execution_id)

    async def read(self, execution_id: str, *, after: int = 0) -> Sequence[JournalRecord]:
        """Return the records of an execution in order."""
        with self._lock:
            records = tuple(self._records.get(execution_id, ())[max(after, 0) :])
        for record in records:
            check_schema_version(record.schema_version)
        return records

    async def head(self, execution_id: str) -> ExecutionHead | None:
        """Return the summary of an execution."""
        return self._heads.get(execution_id)

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
        statuses = as_statuses(status)
        end = parse_cursor(after) if after else None
        with self._lock:
            matches = (
                head
                for head in self._newest_first(agent_id)
                if (statuses is None or head.status in statuses)
                and head.execution_id.startswith(prefix)
                and not (unclaimed and head.execution_id in self._claims)
                and (end is None or parse_cursor(head.cursor) < end)
            )
            return tuple(islice(matches, None if limit is None else min(max(limit, 0), len(self._heads))))

    def _newest_first(self, agent_id: str | None) -> Iterator[ExecutionHead]:
        if agent_id is None:
            return iter(sorted(self._heads.values(), key=_start_order, reverse=True))
        return (self._heads[execution_id] for *_, execution_id in reversed(self._by_start.get(agent_id, ())))

    async def wait_for_change(self, execution_id: str = "", *, timeout: float, caller: object | None = None) -> bool:  # noqa: ASYNC109  # a result, not an error
        """Wait until an execution has changed since the previous wait of the same caller."""
        return await self._changes.wait(execution_id, self._read_mark, timeout=timeout, caller=caller)

    async def _read_mark(self, execution_id: str) -> object:
        return self._change_counts[execution_id]

    def _note_change(self, execution_id: str) -> None:
        self._change_counts[execution_id] += 1
        self._change_counts[""] += 1
        self._changes.fire()

    async def post(self, command: ExecutionCommand) -> None:
        """Store a command, unless one of this id was posted before."""
        check_id(command.execution_id)
        with self._lock:
            if command.id not in self._commands:
                self._commands[command.id] = command
                self._note_change(command.execution_id)

    async def commands(self, execution_ids: Collection[str]) -> Sequence[ExecutionCommand]:
        """Return the commands for these executions that are not finished, in the order in which they were posted."""
        wanted = set(execution_ids)
        with self._lock:
            return tuple(
                [
                    command
                    for command in self._commands.values()
                    if command.execution_id in wanted and command.id not in self._finished
                ]
            )

    async def unfinished(self, prefix: str) -> Sequence[ExecutionCommand]:
        """Return the commands that are not finished, for all ids of executions that start with a text."""
        with self._lock:
            posted = tuple(self._commands.values())
            return tuple(
                [each for each in posted if each.execution_id.startswith(prefix) and each.id not in self._finished]
            )

    async def finish(self, command_ids: Collection[str], *, forget: bool = False) -> None:
        """Mark commands as finished."""
        with self._lock:
            found = self._commands.keys() & set(command_ids)
            self._finished.update(found)
            for each in found if forget else ():
                del self._commands[each]
                self._finished.discard(each)

    async def claim(self, execution_id: str) -> Claim:
        """Claim the right to append to an execution, which may not exist yet."""
        check_id(execution_id)
        with self._lock:
            if execution_id in self._claims:
                raise claim_conflict(execution_id, _SAME_PROCESS)
            claim = _MemoryClaim(self._claims, self._lock, execution_id, next(self._tokens))
            self._claims.add(claim)
            return claim

    async def delete(self, execution_id: str) -> bool:
        """Delete an execution and all executions below it, with all their records."""
        with self._lock:
            tree = next((tree for tree in group_trees(self._heads.values()) if execution_id in tree.ids), None)
            for claimed in filter(self._claims.__contains__, (execution_id,) if tree is None else tree.ids):
                raise claim_conflict(claimed, _SAME_PROCESS)
            if tree is None:
                return False
            check_deletable(execution_id, tree.root.execution_id, tree.needed_by)
            for each in tree.ids:
                self._delete(each)
            return True

    async def purge(self, before: datetime) -> int:
        """Delete all unclaimed trees of executions that have ended and were last updated before a time."""
        with self._lock:
            expired = [tree.ids for tree in group_trees(self._heads.values()) if tree.is_expired(before)]
            unclaimed = [ids for ids in expired if not any(each in self._claims for each in ids)]
            return sum([self._delete(execution_id) for ids in unclaimed for execution_id in ids])

    async def update_account(self, key: AccountKey, change: AccountChange) -> AccountUpdate:
        """Replace the state of an account by what the change returns."""
        with self._lock:
            before = self._accounts.get(key, AccountState())
            after = self._accounts[key] = change(before)
        return AccountUpdate(before, after)

    async def accounts(self) -> Sequence[tuple[AccountKey, AccountState]]:
        """Return all accounts, ordered by their keys."""
        with self._lock:
            return sorted(self._accounts.items(), key=lambda item: item[0].text)

    # --- grants ---

    async def add_grant(self, state: GrantState) -> None:
        """Store a grant, unless there is one of this id."""
        with self._lock:
            self._grants.setdefault(state.id, state)

    async def update_grant(self, grant_id: str, change: GrantChange) -> GrantState | None:
        """Replace the state of a grant by what the change returns, and return it."""
        with self._lock:
            state = self._grants.get(grant_id)
            if state is not None:
                state = self._grants[grant_id] = change(state)
            return state

    async def grants(self, *, owner: str | None = None, tool: str | None = None) -> Sequence[GrantState]:
        """Return the grants, ordered by the time at which they were given."""
        with self._lock:
            states = tuple(self._grants.values())
        found = [state for state in states if owner in {None, state.owner} and tool in {None, state.tool}]
        return sorted(found, key=lambda state: (state.given_at, state.id))

    async def aclose(self) -> None:
        """End the claims; the records remain as long as this object."""
        with self._lock:
            self._claims.end_all(
                "the journal was closed while the execution was running; close it after its executions"
            )

    def _delete(self, execution_id: str) -> bool:
        head = self._heads.pop(execution_id, None)
        if head is None:
            return False
        self._remove_head(head)
        del self._records[execution_id]
        for command in [each for each in self._commands.values() if each.execution_id == execution_id]:
            del self._commands[command.id]
            self._finished.discard(command.id)
        self._note_change(execution_id)
        return True

    def _remove_head(self, head: ExecutionHead) -> None:
        del self._ids_by_number[head.agent_id, head.number]
        order = self._by_start[head.agent_id]
        del order[bisect_left(order, _start_order(head))]
        if not order:
            del self._by_start[head.agent_id]


class _MemoryClaim(HeldClaim):
    """A claim on an execution in memory."""

    def __init__(self, claims: HeldClaims, lock: Lock, execution_id: str, token: int) -> None:
        super().__init__(execution_id, token)
        self._claims, self._lock = claims, lock

    async def release(self) -> None:
        """Release the claim. Idempotent."""
        with self._lock:
            self._claims.remove(self)


_StartOrder: TypeAlias = tuple[datetime, int, str]


def _start_order(head: ExecutionHead) -> _StartOrder:
    return head.started_at, head.number, head.execution_id
