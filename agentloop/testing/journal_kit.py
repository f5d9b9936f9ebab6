"""The law suite of journals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.errors import JournalConflict
from agentloop.testing.journal_bench import (
    AGENTS,
    EXECUTIONS,
    GROUPS,
    INVALID_APPENDS,
    START,
    JournalModel,
    JournalOperation,
    operation_lists,
)
from agentloop.testing.kit import Kit, require
from agentloop.values.json import format_json
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.secrets import MASK
from agentloop.values.steps import ExecutionStatus

SECRET = 'sk-test/"7f\\3a"-é'  # noqa: S105  # not a real secret
"""A secret with characters that JSON can escape."""


class JournalKit(Kit):
    """Checks a journal against the laws of `CanJournal`.

    The numbers are those of the library's laws, which an error quotes; the kit checks the parts that a journal keeps:

    - Law 14: an append is durable, and a cancelled append is stored completely or not at all.
    - Law 15: records and heads are read as they were written, also after deletions, which delete an execution together with
      those of the agents that serve its calls.
    - Law 16: an append that does not extend the chain is refused, and a claim excludes other claims.
    - Law 18: no declared secret is in a record or in the journal's repr.

    Args:
        factory: creates a new, empty journal, each time with a storage of its own; for law 18 it is called with the keywords
            `secrets` and `secret_fields`.
        reopen: opens the storage of a journal again, as another process would, also while the journal is open; None for a
            journal without storage.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (14, 15, 16, 18)

    def __init__(
        self,
        factory: Callable[..., CanJournal],
        *,
        reopen: Callable[[CanJournal], CanJournal] | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory = factory
        self.reopen: Callable[[CanJournal], CanJournal] = reopen or _same

    def law_14(self) -> None:
        """An append is durable, and a cancelled one is stored completely or not at all, also after the storage is reopened."""
        self.for_all(operation_lists("cancelled"), lambda operations: _run(self._check_durability(operations)))

    def law_15(self) -> None:
        """Records and heads are read as written, in order and without gaps, by number, agent and status, also after deletions."""
        self.for_all(operation_lists("delete", "purge"), lambda operations: _run(self._check_reads(operations)))
        self.for_all(st.sampled_from(EXECUTIONS), lambda execution_id: _run(self._check_tree(execution_id)))

    def law_16(self) -> None:
        """Of two writers exactly one succeeds; a claimed execution can be neither claimed again nor deleted."""
        self.for_all(
            operation_lists("race", *INVALID_APPENDS), lambda operations: _run(self._check_conflicts(operations))
        )
        self.for_all(st.sampled_from(EXECUTIONS), lambda execution_id: _run(self._check_claims(execution_id)))

    def law_18(self) -> None:
        """No declared secret is in a record, however it is escaped, or in the journal's repr."""
        self.for_all(st.tuples(GROUPS, st.integers(0, 3)), lambda example: _run(self._check_redaction(*example)))

    async def _check_durability(self, operations: Sequence[JournalOperation]) -> None:
        journal, model = self.factory(), JournalModel()
        cancelled: dict[str, list[JournalRecord]] = {}
        for operation in operations:
            if operation.execution_id in cancelled:
                continue
            head, records = model.next_records(operation)
            ticks = None if operation.kind == "append" else operation.ticks
            if await _append_or_cancel(journal.append(head, records), ticks):
                model.add(head, records)
            else:
                cancelled[operation.execution_id] = records
        await journal.aclose()
        await journal.aclose()
        journal = self.reopen(journal)
        for execution_id in EXECUTIONS:
            stored = list(await journal.read(execution_id))
            expected = model.records.get(execution_id, [])
            possible = (expected, [*expected, *cancelled.get(execution_id, [])])
            require(
                14,
                stored in possible,
                f"{_describe(expected)} of {execution_id} were appended, and {_describe(stored)} are stored",
            )
            stored_head = await journal.head(execution_id)
            count = stored_head.record_count if stored_head is not None else 0
            require(
                14,
                count == len(stored),
                f"{execution_id} has {len(stored)} records, and its head counts {count}",
            )
        await journal.aclose()

    async def _check_reads(self, operations: Sequence[JournalOperation]) -> None:
        journal, model = self.factory(), JournalModel()
        for operation in operations:
            if operation.kind == "append":
                head, records = model.next_records(operation)
                await journal.append(head, records)
                model.add(head, records)
            elif operation.kind == "delete":
                await _delete(journal, model, operation.execution_id)
            else:
                await _purge(journal, model, operation)
        await _require_same(15, journal, model)
        await journal.aclose()
        journal = self.reopen(journal)
        await _require_same(15, journal, model)
        await journal.aclose()

    async def _check_conflicts(self, operations: Sequence[JournalOperation]) -> None:
        journal, model = self.factory(), JournalModel()
        other = self.reopen(journal)
        for operation in operations:
            head, records = model.next_records(operation)
            invalidate = INVALID_APPENDS.get(operation.kind)
            # Without an earlier record there is no sequence number and no execution number to reuse.
            is_valid = operation.kind in {"again", "number"} and operation.execution_id not in model.heads
            if invalidate is not None and not is_valid:
                refused = await _conflicts(journal.append(*invalidate(head, records)))
                require(16, refused, f"an append that does not extend the chain was accepted ({operation.kind})")
            elif operation.kind == "race":
                await _race(journal, other, model, operation)
            else:
                await journal.append(head, records)
                model.add(head, records)
        await _require_same(16, journal, model)
        await other.aclose()
        await journal.aclose()

    async def _check_claims(self, execution_id: str) -> None:
        journal, model = self.factory(), JournalModel()
        other = self.reopen(journal)
        claim = await journal.claim(execution_id)
        head, records = model.next_records(
            JournalOperation("append", execution_id, ["{}"], ExecutionStatus.COMPLETED, 0)
        )
        await journal.append(head, records)
        model.add(head, records)
        for each in (journal, other):
            require(16, await _conflicts(each.claim(execution_id)), "a claimed execution was claimed again")
            require(16, await _conflicts(each.delete(execution_id)), "a claimed execution was deleted")
        await _require_same(16, journal, model)
        unrelated = await other.claim("another")
        for _ in range(2):
            await claim.release()
        second = await other.claim(execution_id)
        await claim.release()
        require(
            16, await _conflicts(journal.claim(execution_id)), "a released claim released the claim of another writer"
        )
        for held in (unrelated, second):
            await held.release()
        require(16, await other.delete(execution_id), "an execution without a claim was not deleted")
        await other.aclose()
        await journal.aclose()

    async def _check_tree(self, execution_id: str) -> None:
        journal, model = self.factory(), JournalModel()
        other = self.reopen(journal)
        ids = (execution_id, f"{execution_id}/1/0/agent", f"{execution_id}/1/0/agent/2/3/agent-2")
        for number, each in enumerate(ids, 1):
            head, records = model.next_records(JournalOperation("append", each, ["{}"], ExecutionStatus.COMPLETED, 0))
            head = evolve(head, number=number)
            await journal.append(head, records)
            model.add(head, records)
        for claimed in ids[1:]:
            claim = await journal.claim(claimed)
            require(
                15,
                await _conflicts(other.delete(execution_id)),
                f"{execution_id} was deleted while {claimed} was claimed",
            )
            purged = await other.purge(START + timedelta(days=1))
            require(15, purged == 0, f"executions were purged while {claimed} was claimed")
            await claim.release()
            require(
                15, await _conflicts(other.delete(claimed)), f"{claimed} was deleted without its caller's execution"
            )
        await _require_same(15, journal, model, ids)
        require(15, await other.delete(execution_id), "an execution without a claim was not deleted")
        model.remove(ids)
        await _require_same(15, journal, model, ids)
        await other.aclose()
        await journal.aclose()

    async def _check_redaction(self, bodies: Sequence[str], depth: int) -> None:
        journal = self.factory(secrets=[SECRET], secret_fields=["password", "card.number"])
        require(18, isinstance(journal, CanRedactRecords), "the journal does not implement CanRedactRecords")
        assert isinstance(journal, CanRedactRecords)  # noqa: S101  # narrows the type
        nested: Any = {"password": "hidden one", "a": [f"({SECRET})", {"card": {"number": "hidden two"}}], SECRET: 1}
        for _ in range(depth):
            nested = {"arguments_json": format_json(nested).decode()}
        body = {"texts": list(bodies), "value": nested}
        redacted = format_json(journal.redact(body)).decode()
        for hidden in (*_spellings(SECRET, depth + 1), "hidden one", "hidden two"):
            require(18, hidden not in redacted, f"a secret is in the redacted record, as {hidden!r}")
        require(18, MASK in redacted, "a secret was removed without a mask")
        harmless = {"texts": list(bodies)}
        require(18, journal.redact(harmless) is harmless, "a record without secrets was changed")
        require(
            18,
            not any(secret in repr(journal) for secret in (*_spellings(SECRET, 1), repr(SECRET)[1:-1])),
            "a secret is in the repr of the journal",
        )
        await journal.aclose()


async def _append_or_cancel(append: Coroutine[Any, Any, None], ticks: int | None) -> bool:
    """Cancel an append after some iterations of the event loop, or never for None. Return whether it completed."""
    if ticks is None:
        await append
        return True
    task = asyncio.ensure_future(append)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def _conflicts(operation: Coroutine[Any, Any, object]) -> bool:
    """Return whether an operation raises `JournalConflict`."""
    try:
        await operation
    except JournalConflict:
        return True
    return False


async def _race(journal: CanJournal, other: CanJournal, model: JournalModel, operation: JournalOperation) -> None:
    """Append different records at the same position by two concurrent writers."""
    mine = model.next_records(operation)
    theirs = model.next_records(
        JournalOperation("append", operation.execution_id, ['{"by":"other"}', *operation.bodies], operation.status, 0)
    )
    lost = await asyncio.gather(_conflicts(journal.append(*mine)), _conflicts(other.append(*theirs)))
    require(
        16, sorted(lost) == [False, True], f"of two appends at the same position, {lost.count(False)} were accepted"
    )
    model.add(*(theirs if lost[0] else mine))


async def _delete(journal: CanJournal, model: JournalModel, execution_id: str) -> None:
    """Delete an execution with all executions below it, unless an execution above it or an unfinished fork needs it."""
    tree = model.tree(execution_id)
    if (execution_id in model.heads and not tree) or (tree and model.is_needed(execution_id)):
        refused = await _conflicts(journal.delete(execution_id))
        require(15, refused, f"{execution_id} was deleted, although another execution needs it")
        return
    deleted = await journal.delete(execution_id)
    require(15, deleted == bool(tree), f"deleting {execution_id} returned {deleted}")
    model.remove(tree)


async def _purge(journal: CanJournal, model: JournalModel, operation: JournalOperation) -> None:
    """Purge a journal, and compare the number of purged executions with the model."""
    before = START + timedelta(seconds=operation.ticks)
    expired = model.expired(before)
    model.remove(expired)
    purged = await journal.purge(before)
    require(15, purged == len(expired), f"{len(expired)} executions had expired, and {purged} were purged")


async def _require_same(law: int, journal: CanJournal, model: JournalModel, ids: Sequence[str] = EXECUTIONS) -> None:
    """Check that all reads of a journal return what the model contains."""
    for execution_id in (*ids, "another"):
        records = model.records.get(execution_id, [])
        for after in range(len(records) + 2):
            stored = list(await journal.read(execution_id, after=after))
            require(
                law, stored == records[after:], f"record {after} of {execution_id} is followed by {_describe(stored)}"
            )
        head = await journal.head(execution_id)
        require(law, head == model.heads.get(execution_id), f"the head of {execution_id} is {head!r}")
    for agent_id in (None, *AGENTS, "nobody"):
        for status in (None, *ExecutionStatus):
            heads = await journal.list(agent_id=agent_id, status=status)
            require(
                law,
                _by_id(heads) == _by_id(model.filter(agent_id, status)),
                f"listed for {agent_id}, {status}: {heads!r}",
            )
            started = [head.started_at for head in heads]
            require(law, started == sorted(started, reverse=True), "the newest execution is not listed first")
            limited = await journal.list(agent_id=agent_id, status=status, limit=2)
            require(law, list(limited) == list(heads[:2]), "a limit changes the order of the list")


def _by_id(heads: Sequence[ExecutionHead]) -> list[ExecutionHead]:
    return sorted(heads, key=lambda head: head.execution_id)


def _describe(records: Sequence[JournalRecord]) -> str:
    return f"the records {[(record.execution_id, record.sequence) for record in records]}"


def _spellings(text: str, depth: int) -> list[str]:
    """Return a text as it is, as escaped in JSON, and as escaped in JSON nested `depth` levels deep in JSON strings."""
    escaped = [text]
    for _ in range(depth):
        escaped.append(format_json(escaped[-1]).decode()[1:-1])
    return escaped


def _same(journal: CanJournal) -> CanJournal:
    return journal


def _run(check: Coroutine[Any, Any, None]) -> None:
    asyncio.run(check)
