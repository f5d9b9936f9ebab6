"""The law suite of journals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords
from agentloop.errors import JournalConflict
from agentloop.testing.journal_bench import (
    AGENTS,
    BEGIN,
    EXECUTIONS,
    GROUPS,
    INVALID_APPENDS,
    JournalModel,
    JournalOperation,
    scripts,
)
from agentloop.testing.kit import Kit, require
from agentloop.values.json import format_json
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.secrets import MASK
from agentloop.values.steps import ExecutionStatus

SECRET = 'sk-test/"7f\\3a"-é'  # noqa: S105  # it opens nothing
"""A secret that JSON spells in many ways."""


class JournalKit(Kit):
    """Checks a journal against the laws of `CanJournal`.

    Law 14: what was appended is there, and of what was given up all is there or nothing. Law 15: everything is read as it was
    written, also after deletions. Law 16: what does not extend the chain is refused, and a claim keeps others out. Law 18: no
    declared secret comes into a record or shows in the journal.

    Args:
        make: makes a fresh, empty journal; for law 18 it is called with `secrets` and `secret_fields`.
        again: opens the place of a journal once more, as another process would; None for one that has no place.
        examples: how many examples are tried for each law.
    """

    laws: tuple[int, ...] = (14, 15, 16, 18)

    def __init__(
        self,
        make: Callable[..., CanJournal],
        *,
        again: Callable[[CanJournal], CanJournal] | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.make = make
        self.again: Callable[[CanJournal], CanJournal] = again or _itself

    def law_14(self) -> None:
        """What was appended is there, of what was given up all or nothing, also for who opens the place anew."""
        self.for_all(scripts("given up"), lambda script: _run(self._lasting(script)))

    def law_15(self) -> None:
        """Everything is read as it was written, in order and without gaps, by number, agent and status, also after deletions."""
        self.for_all(scripts("delete", "purge"), lambda script: _run(self._faithful(script)))

    def law_16(self) -> None:
        """Of two writers one wins, and the other one changes nothing; what is claimed is not claimed again, nor deleted."""
        self.for_all(scripts("race", *INVALID_APPENDS), lambda script: _run(self._exclusive(script)))
        self.for_all(st.sampled_from(EXECUTIONS), lambda execution_id: _run(self._claimed(execution_id)))

    def law_18(self) -> None:
        """No declared secret comes into a record, however it is spelled, nor shows in the journal."""
        self.for_all(st.tuples(GROUPS, st.integers(0, 3)), lambda given: _run(self._secretive(*given)))

    async def _lasting(self, script: Sequence[JournalOperation]) -> None:
        journal, model = self.make(), JournalModel()
        given_up: dict[str, list[JournalRecord]] = {}
        for operation in script:
            if operation.execution in given_up:
                continue
            head, records = model.following(operation)
            ticks = None if operation.kind == "append" else operation.ticks
            if await _was_appended(journal.append(head, records), ticks):
                model.keep(head, records)
            else:
                given_up[operation.execution] = records
        await journal.aclose()
        await journal.aclose()
        journal = self.again(journal)
        for execution_id in EXECUTIONS:
            there = list(await journal.read(execution_id))
            sure = model.records.get(execution_id, [])
            possible = (sure, [*sure, *given_up.get(execution_id, [])])
            require(
                14, there in possible, f"of {execution_id}, {_shown(sure)} were appended, and there are {_shown(there)}"
            )
            known = await journal.head(execution_id)
            count = known.record_count if known is not None else 0
            require(
                14, count == len(there), f"of {execution_id}, there are {len(there)} records and its head says {count}"
            )
        await journal.aclose()

    async def _faithful(self, script: Sequence[JournalOperation]) -> None:
        journal, model = self.make(), JournalModel()
        for operation in script:
            if operation.kind == "append":
                head, records = model.following(operation)
                await journal.append(head, records)
                model.keep(head, records)
            elif operation.kind == "delete":
                deleted = await journal.delete(operation.execution)
                require(
                    15, deleted == model.forget(operation.execution), f"deleting {operation.execution} said {deleted}"
                )
            else:
                await _purged(journal, model, operation)
        await _require_same(15, journal, model)
        await journal.aclose()
        journal = self.again(journal)
        await _require_same(15, journal, model)
        await journal.aclose()

    async def _exclusive(self, script: Sequence[JournalOperation]) -> None:
        journal, model = self.make(), JournalModel()
        other = self.again(journal)
        for operation in script:
            head, records = model.following(operation)
            spoilt = INVALID_APPENDS.get(operation.kind)
            if spoilt is not None and not (
                operation.kind in {"again", "number"} and operation.execution not in model.heads
            ):
                wrong = spoilt(head, records)
                refused = await _conflicts(journal.append(*wrong))
                require(16, refused, f"an append that does not extend the chain was taken ({operation.kind})")
            elif operation.kind == "race":
                await _race(journal, other, model, operation)
            else:
                await journal.append(head, records)
                model.keep(head, records)
        await _require_same(16, journal, model)
        await other.aclose()
        await journal.aclose()

    async def _claimed(self, execution_id: str) -> None:
        journal, model = self.make(), JournalModel()
        other = self.again(journal)
        claim = await journal.claim(execution_id)
        head, records = model.following(JournalOperation("append", execution_id, ["{}"], ExecutionStatus.COMPLETED, 0))
        await journal.append(head, records)
        model.keep(head, records)
        for one in (journal, other):
            require(16, await _conflicts(one.claim(execution_id)), "what is claimed was claimed once more")
            require(16, await _conflicts(one.delete(execution_id)), "what is claimed was deleted")
        await _require_same(16, journal, model)
        beside = await other.claim("another")
        for _ in range(2):
            await claim.release()
        taken = await other.claim(execution_id)
        await claim.release()
        require(16, await _conflicts(journal.claim(execution_id)), "an old claim released that of somebody else")
        for last in (beside, taken):
            await last.release()
        require(16, await other.delete(execution_id), "what nobody claims any more was not deleted")
        await other.aclose()
        await journal.aclose()

    async def _secretive(self, bodies: Sequence[str], depth: int) -> None:
        journal = self.make(secrets=[SECRET], secret_fields=["password", "card.number"])
        require(18, isinstance(journal, CanRedactRecords), "no secrets can be declared to it")
        assert isinstance(journal, CanRedactRecords)  # noqa: S101  # tells the type checker what was required
        nested: Any = {"password": "hidden one", "a": [f"({SECRET})", {"card": {"number": "hidden two"}}], SECRET: 1}
        for _ in range(depth):
            nested = {"arguments_json": format_json(nested).decode()}
        body = {"texts": list(bodies), "value": nested}
        redacted = format_json(journal.redact(body)).decode()
        for hidden in (*_spellings(SECRET, depth + 1), "hidden one", "hidden two"):
            require(18, hidden not in redacted, f"a secret is in what is recorded, as {hidden!r}")
        require(18, MASK in redacted, "a secret is gone without a mask")
        harmless = {"texts": list(bodies)}
        require(18, journal.redact(harmless) is harmless, "what holds no secret was not left as it is")
        require(
            18,
            not any(one in repr(journal) for one in (*_spellings(SECRET, 1), repr(SECRET)[1:-1])),
            "the journal shows a secret",
        )
        await journal.aclose()


async def _was_appended(appending: Coroutine[Any, Any, None], ticks: int | None) -> bool:
    """Give an append up after some turns of the event loop, unless that is None; say whether it had returned before."""
    if ticks is None:
        await appending
        return True
    task = asyncio.ensure_future(appending)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        return False
    return True


async def _conflicts(asking: Coroutine[Any, Any, object]) -> bool:
    try:
        await asking
    except JournalConflict:
        return True
    return False


async def _race(journal: CanJournal, other: CanJournal, model: JournalModel, operation: JournalOperation) -> None:
    """Let two writers append different records at the same place."""
    mine = model.following(operation)
    theirs = model.following(
        JournalOperation("append", operation.execution, ['{"by":"other"}', *operation.bodies], operation.status, 0)
    )
    lost = await asyncio.gather(_conflicts(journal.append(*mine)), _conflicts(other.append(*theirs)))
    require(16, sorted(lost) == [False, True], f"of two appends at the same place, {lost.count(False)} were taken")
    model.keep(*(theirs if lost[0] else mine))


async def _purged(journal: CanJournal, model: JournalModel, operation: JournalOperation) -> None:
    before = BEGIN + timedelta(seconds=operation.ticks)
    over = [one.execution_id for one in model.heads.values() if one.status.is_terminal and one.updated_at < before]
    for execution_id in over:
        model.forget(execution_id)
    purged = await journal.purge(before)
    require(15, purged == len(over), f"{len(over)} executions were over, and {purged} were purged")


async def _require_same(law: int, journal: CanJournal, model: JournalModel) -> None:
    """Require that a journal says all that a model says."""
    for execution_id in (*EXECUTIONS, "another"):
        records = model.records.get(execution_id, [])
        for after in range(len(records) + 2):
            there = list(await journal.read(execution_id, after=after))
            require(law, there == records[after:], f"after record {after} of {execution_id} come {_shown(there)}")
        head = await journal.head(execution_id)
        require(law, head == model.heads.get(execution_id), f"the head of {execution_id} is {head!r}")
    for agent_id in (None, *AGENTS, "nobody"):
        for status in (None, *ExecutionStatus):
            heads = await journal.list(agent_id=agent_id, status=status)
            require(law, _by_id(heads) == _by_id(model.chosen(agent_id, status)), f"of {agent_id}, {status}: {heads!r}")
            begun = [head.started_at for head in heads]
            require(law, begun == sorted(begun, reverse=True), "the newest does not come first")
            some = await journal.list(agent_id=agent_id, status=status, limit=2)
            require(law, list(some) == list(heads[:2]), "a limit changes which come first")


def _by_id(heads: Sequence[ExecutionHead]) -> list[ExecutionHead]:
    return sorted(heads, key=lambda head: head.execution_id)


def _shown(records: Sequence[JournalRecord]) -> str:
    return f"the records {[(record.execution_id, record.sequence) for record in records]}"


def _spellings(text: str, depth: int) -> list[str]:
    """Return a text as it stands in JSON, and in JSON within strings of JSON."""
    spelled = [text]
    for _ in range(depth):
        spelled.append(format_json(spelled[-1]).decode()[1:-1])
    return spelled


def _itself(journal: CanJournal) -> CanJournal:
    return journal


def _run(trial: Coroutine[Any, Any, None]) -> None:
    asyncio.run(trial)
