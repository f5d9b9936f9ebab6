"""The law suite of journals."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar

from attrs import evolve, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_journal import (
    CanCommandExecutions,
    CanJournal,
    CanRedactRecords,
    CanWatchExecutions,
    Claim,
)
from agentloop.errors import ClaimLost, ContractViolation, JournalConflict, JournalError
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.clocks import Deadlock, run_in_real_time
from agentloop.testing.journal_bench import (
    AGENTS,
    EXECUTIONS,
    GROUPS,
    INVALID_APPENDS,
    START,
    JournalModel,
    JournalOperation,
    append_claimed,
    operation_lists,
)
from agentloop.testing.journal_names import (
    MAX_TICKS,
    PATIENCE,
    check_cancelled_append,
    check_cancelled_claims,
    check_contents,
    check_names,
    check_refused_append,
    in_time,
)
from agentloop.testing.journal_network import CutOff, Outage, run_cut_off
from agentloop.testing.kit import LAWS, Kit, LawViolation, checked_factory, require
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.json import format_json
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.secrets import MASK
from agentloop.values.steps import ExecutionStatus

_CLAIMED = "Claims: an execution that a live writer has claimed can be neither claimed by another one nor deleted."
_TREES = (
    "Deletions: an execution is deleted with those of the agents that serve its calls, all or none, and not while it is claimed or an "
    "unfinished fork needs it."
)
_COMMANDS = "Commands: they are carried once and in the order in which they were posted, and changes wake those who wait for them."
_CLOSED = (
    "Closing: a journal that is closed ends the claims made through it, which are lost; an append with one raises ClaimLost, and "
    "aclose and release can be called again."
)

SECRET = 'sk-test/"7f\\3a"-é'  # noqa: S105  # not a real secret
"""A secret with characters that JSON can escape."""


_LOST_SECONDS = 5.0
"""How long a claim may take to report that it was lost with its journal."""
_CUT_OFFS = st.builds(CutOff, st.integers(0, 16), st.sampled_from(Outage), st.booleans(), st.booleans())
_CHECK_SECONDS = 60.0
"""After how long a check does not end by itself, on a busy machine."""
_TICKS = 5
"""The iterations of the event loop in which a released claim must not be reported as lost."""


@frozen
class SuccessiveClaims:
    """An execution that is claimed several times in turn.

    Attributes:
        execution_id: the execution.
        closes_journal: whether the first claim ends with its journal; otherwise it is released.
        appends_later: whether the second claim appends before the first one tries to.
    """

    execution_id: str
    closes_journal: bool
    appends_later: bool


@frozen
class SecretRecord:
    """A record with secrets.

    Attributes:
        bodies: other texts in it.
        depth: how deep the secrets are nested in texts of JSON.
    """

    bodies: Sequence[str]
    depth: int


class JournalKit(Kit):
    """Checks a journal against the laws of `CanJournal`.

    The numbers are those of the library's laws, which an error quotes; the kit checks the parts that a journal keeps:

    - Law 14: an append is durable, commands are carried once and in order, and a cancelled append is stored completely or not at all; the effects of an execution whose
      driver is cut off from the journal are neither lost nor doubled.
    - Law 15: records and heads are read as they were written, by pages and filters, also after deletions, which delete an execution together with
      those of the agents that serve its calls.
    - Law 16: an append that does not extend the chain is refused, and a claim excludes other claims.
    - Law 18: no declared secret is in a record or in the journal's repr.
    - Law 28: an append whose claim has ended is refused, a claim has a larger token than earlier ones, and it is reported when it
      is lost.

    Args:
        factory: creates a new, empty journal, each time with a storage of its own; for law 18 it is called with the keywords
            `secrets` and `secret_fields`.
        reopen: opens the storage of a journal again, as another process would, also while the journal is open; None for a
            journal without storage.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (14, 15, 16, 18, 28, YIELDING)
    sentences: ClassVar[Mapping[int, str]] = MappingProxyType(
        {
            14: "Durability: when append has returned, its records can be read; when it has not, all of them are stored or none.",
            15: "Order: records are read as they were appended, in order and without gaps, and heads as they were last written.",
            16: "One writer: an append that does not extend the last record is refused and changes nothing; of two, one succeeds.",
            28: "Claims: a claim has a larger token than all before; an append with one that ended or was replaced is refused.",
        }
    )

    def __init__(
        self,
        factory: Callable[..., CanJournal],
        *,
        reopen: Callable[[CanJournal], CanJournal] | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[..., CanJournal] = checked_factory(factory)
        self.reopen: Callable[[CanJournal], CanJournal] = reopen or _same

    def law_14(self) -> None:
        """An append is durable, and a cancelled one is stored completely or not at all, also after the storage is reopened.

        When the network between a driver and the journal is cut, no effect is lost or doubled, whoever continues.
        """
        self.for_each(
            range(MAX_TICKS), lambda ticks: self._use(lambda journal, _: check_cancelled_append(journal, ticks))
        )
        self.for_all(operation_lists("cancelled"), lambda operations: _run(self._check_durability(operations)))
        self.for_all(_CUT_OFFS, lambda case: _run(self._check_cut_off(case)))
        self.for_all(st.sampled_from(EXECUTIONS), lambda execution_id: _run(self._check_commands(execution_id)))

    def law_15(self) -> None:
        """Records and heads are read as written, in order and without gaps, by number, agent and status, also after deletions."""
        self.for_each(EXECUTIONS, lambda execution_id: _run(self._check_tree(execution_id)))
        self.for_all(operation_lists("delete", "purge"), lambda operations: _run(self._check_reads(operations)))
        self.for_all(st.integers(1, 4), lambda size: _run(self._check_pages(size)))
        self._use(check_names)
        self._use(lambda journal, _: check_contents(journal, self.reopen))

    def law_16(self) -> None:
        """Of two writers exactly one succeeds; a claimed execution can be neither claimed again nor deleted."""
        self._use(lambda journal, _: check_refused_append(journal))
        append = JournalOperation("append", EXECUTIONS[0], ["{}"], ExecutionStatus.IN_PROGRESS, 0)
        self.for_each(INVALID_APPENDS, lambda kind: _run(self._check_conflicts([append, evolve(append, kind=kind)])))
        self.for_all(
            operation_lists("race", *INVALID_APPENDS), lambda operations: _run(self._check_conflicts(operations))
        )
        self.for_all(st.sampled_from(EXECUTIONS), lambda execution_id: _run(self._check_claims(execution_id)))

    def law_18(self) -> None:
        """No declared secret is in a record, however it is escaped, or in the journal's repr."""
        cases = st.builds(SecretRecord, GROUPS, st.integers(0, 3))
        self.for_all(cases, lambda case: _run(self._check_redaction(case.bodies, case.depth)))

    def law_28(self) -> None:
        """The tokens of claims grow, an append with a claim that has ended is refused, and a lost claim is reported."""
        cases = st.builds(SuccessiveClaims, st.sampled_from(EXECUTIONS), st.booleans(), st.booleans())
        self.for_each(
            range(MAX_TICKS),
            lambda ticks: self._use(lambda journal, other: check_cancelled_claims(journal, other, ticks)),
        )
        self.for_all(cases, lambda case: _run(self._check_fencing(case)))

    def law_45(self) -> None:
        """The event loop runs while the journal waits."""

        @refuse_blocking
        def holds(operations: Sequence[JournalOperation]) -> None:
            _run(self._use_all(operations))

        self.for_all(operation_lists("append"), holds)

    async def _use_all(self, operations: Sequence[JournalOperation]) -> None:
        """Append, read, list and delete."""
        journal, model = self.factory(), JournalModel()
        for operation in operations:
            head, records = model.next_records(operation)
            await append_claimed(journal, head, records)
            model.add(head, records)
            await journal.read(operation.execution_id)
            await journal.head(operation.execution_id)
        await journal.list()
        for execution_id in EXECUTIONS:
            with suppress(JournalError):  # another one may need it
                await journal.delete(execution_id)
        await journal.purge(START)
        await journal.aclose()

    def _use(self, check: Callable[[CanJournal, CanJournal], Coroutine[Any, Any, None]]) -> None:
        """Run a check with a new journal, and with its storage opened again."""

        async def use() -> None:
            journal = self.factory()
            other = self.reopen(journal)
            await check(journal, other)
            if other is not journal:
                await other.aclose()
            await journal.aclose()

        _run(use())

    def describe_error(self, error: Exception) -> str:
        """Return the reason of a violation by an error that a check does not expect, with the operation that raised it."""
        if isinstance(error, Deadlock):
            return super().describe_error(error)
        return f"{_operation_of(error)} raised {type(error).__name__}: {error}"

    async def _check_cut_off(self, case: CutOff) -> None:
        journal = self.factory()
        other = self.reopen(journal)
        run = await run_cut_off(journal, other, case)
        problems = run.problems()
        require(14, not problems, f"{case}: {'; '.join(problems)}", sentence=LAWS[14])
        await other.aclose()
        await journal.aclose()

    async def _check_durability(self, operations: Sequence[JournalOperation]) -> None:
        journal, model = self.factory(), JournalModel()
        cancelled: dict[str, list[JournalRecord]] = {}
        for operation in operations:
            if operation.execution_id in cancelled:
                continue
            head, records = model.next_records(operation)
            ticks = None if operation.kind == "append" else operation.ticks
            claim = await journal.claim(operation.execution_id)
            if await _append_or_cancel(journal.append(head, records, claim), ticks):
                model.add(head, records)
            else:
                cancelled[operation.execution_id] = records
            await claim.release()
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
                await append_claimed(journal, head, records)
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
                refused = await _conflicts(append_claimed(journal, *invalidate(head, records)))
                require(16, refused, f"an append that does not extend the chain was accepted ({operation.kind})")
            elif operation.kind == "race":
                await _race(journal, other, model, operation)
            else:
                await append_claimed(journal, head, records)
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
        await journal.append(head, records, claim)
        model.add(head, records)
        for each in (journal, other):
            require(
                16,
                await _conflicts(each.claim(execution_id)),
                "a claimed execution was claimed again",
                sentence=_CLAIMED,
            )
            require(
                16, await _conflicts(each.delete(execution_id)), "a claimed execution was deleted", sentence=_CLAIMED
            )
        await _require_same(16, journal, model)
        unrelated = await other.claim("another")
        for _ in range(2):
            await claim.release()
        second = await other.claim(execution_id)
        await claim.release()
        kept = await _conflicts(journal.claim(execution_id))
        require(16, kept, "a released claim released the claim of another writer", sentence=_CLAIMED)
        for held in (unrelated, second):
            await held.release()
        require(16, await other.delete(execution_id), "an execution without a claim was not deleted", sentence=_TREES)
        await other.aclose()
        await journal.aclose()

    async def _check_fencing(self, case: SuccessiveClaims) -> None:
        """Check the tokens of successive claims, and the appends with one that was released, or lost as its journal closed."""
        execution_id, is_closed = case.execution_id, case.closes_journal
        journal, model = self.factory(), JournalModel()
        other = self.reopen(journal)
        first = await journal.claim(execution_id)
        require(28, first.execution_id == execution_id, f"the claim on {execution_id} is one on {first.execution_id}")
        require(28, not first.is_lost, "a new claim is lost")
        waiting = asyncio.ensure_future(first.lost())
        await _add(journal, model, execution_id, first)
        await _require_foreign_claim_refused(journal, model, execution_id)
        await (journal.aclose() if is_closed else first.release())
        await _require_ended(first, waiting, is_lost=is_closed)
        await _require_late_append_refused(journal, model, first, is_closed=is_closed)
        second = await other.claim(execution_id)
        require(28, second.token > first.token, f"the token {second.token} follows {first.token}")
        if case.appends_later:
            await _add(other, model, execution_id, second)
        await _require_late_append_refused(journal, model, first, is_closed=is_closed)
        for _ in range(2):
            await first.release()
        await _add(other, model, execution_id, second)
        await second.release()
        tokens = [second.token]
        # A closed journal may refuse to be used again.
        for each in (other, *([] if is_closed else [journal]), other):
            claim = await each.claim(execution_id)
            tokens.append(claim.token)
            await claim.release()
        require(28, tokens == sorted(set(tokens)), f"the tokens of successive claims do not grow: {tokens}")
        await _require_same(28, other, model)
        if is_closed and other is not journal:
            await _require_usable_or_closed(journal, execution_id, tokens[-1])
        await other.aclose()
        await journal.aclose()

    async def _check_tree(self, execution_id: str) -> None:
        journal, model = self.factory(), JournalModel()
        other = self.reopen(journal)
        ids = (execution_id, f"{execution_id}/1/0/agent", f"{execution_id}/1/0/agent/2/3/agent-2")
        for number, each in enumerate(ids, 1):
            head, records = model.next_records(JournalOperation("append", each, ["{}"], ExecutionStatus.COMPLETED, 0))
            head = evolve(head, number=number)
            await append_claimed(journal, head, records)
            model.add(head, records)
        for claimed in ids[1:]:
            claim = await journal.claim(claimed)
            refused = await _conflicts(other.delete(execution_id), 15)
            require(15, refused, f"{execution_id} was deleted while {claimed} was claimed", sentence=_TREES)
            purged = await other.purge(START + timedelta(days=1))
            require(15, purged == 0, f"executions were purged while {claimed} was claimed", sentence=_TREES)
            await claim.release()
            refused = await _conflicts(other.delete(claimed), 15)
            require(15, refused, f"{claimed} was deleted without its caller's execution", sentence=_TREES)
        await _require_same(15, journal, model, ids)
        require(15, await other.delete(execution_id), "an execution without a claim was not deleted", sentence=_TREES)
        model.remove(ids)
        await _require_same(15, journal, model, ids)
        await other.aclose()
        await journal.aclose()

    async def _check_pages(self, size: int) -> None:
        """Check the pages, the prefixes and the unclaimed executions of lists."""
        journal, model = self.factory(), JournalModel()
        other = self.reopen(journal)
        for index, execution_id in enumerate(EXECUTIONS):
            status = tuple(ExecutionStatus)[index % 3]
            head, records = model.next_records(JournalOperation("append", execution_id, ["{}"], status, 0))
            await append_claimed(journal, head, records)
            model.add(head, records)
        for statuses in (None, tuple(ExecutionStatus)[:2]):
            whole = list(await journal.list(status=statuses))
            expected = [head for head in model.heads.values() if head.status in (statuses or tuple(ExecutionStatus))]
            require(15, _by_id(whole) == _by_id(expected), f"listed for {statuses}: {whole!r}")
            read, page = list[ExecutionHead](), await journal.list(status=statuses, limit=size)
            while page and len(read) <= len(whole):
                read += page
                page = await journal.list(status=statuses, limit=size, after=page[-1].cursor)
            require(15, read == whole, f"pages of {size} executions are not the list")
        found = {head.execution_id for head in await journal.list(prefix="one/")}
        require(15, found == {each for each in EXECUTIONS if each.startswith("one/")}, f"listed for a prefix: {found}")
        claims = [await journal.claim("one"), await other.claim("two")]
        for each in (journal, other):
            listed = {head.execution_id for head in await each.list(unclaimed=True)}
            require(15, listed == set(EXECUTIONS) - {"one", "two"}, f"listed as unclaimed: {listed}")
        for claim in claims:
            await claim.release()
        require(15, len(await other.list(unclaimed=True)) == len(EXECUTIONS), "released executions are not listed")
        await other.aclose()
        await journal.aclose()

    async def _check_commands(self, execution_id: str) -> None:
        """Check that commands are carried once and in order, and that those who wait for changes are woken."""
        journal = self.factory()
        if not isinstance(journal, CanCommandExecutions) or not isinstance(journal, CanWatchExecutions):
            await journal.aclose()
            return
        other, posted = self.reopen(journal), [_stop(f"c{number}", execution_id) for number in (2, 1, 3)]
        assert isinstance(other, CanCommandExecutions)  # noqa: S101  # of the same class
        caller = _Caller()
        await journal.wait_for_change(execution_id, timeout=0, caller=caller)
        for command in (*posted, posted[0], _stop("other", "another")):
            await other.post(command)
        woken = await journal.wait_for_change(execution_id, timeout=_WAKE_SECONDS, caller=caller)
        require(14, woken, "a posted command wakes nobody", sentence=_COMMANDS)
        for each in (journal, other):
            found = list(await each.commands([execution_id]))
            require(14, found == posted, f"of {len(posted)} commands, these are carried: {found!r}", sentence=_COMMANDS)
        for _ in range(2):
            await journal.finish(["c1", "unknown"])
        await other.post(posted[1])
        left = [command.id for command in await other.commands([execution_id, "another"])]
        carried = f"after one was finished, these commands are carried: {left}"
        require(14, left == ["c2", "c3", "other"], carried, sentence=_COMMANDS)
        await self._check_unfinished(journal, other, execution_id)
        await other.aclose()
        await journal.aclose()

    async def _check_unfinished(self, journal: CanCommandExecutions, other: CanCommandExecutions, start: str) -> None:
        """Check that commands are found by the beginning of ids, and that one is forgotten on demand."""
        await journal.post(_stop("behind", f"{start}/behind"))
        for each in (journal, other):
            found = [command.id for command in await each.unfinished(start)]
            carried = f"for ids that start with {start!r}, these commands are carried: {found}"
            require(14, found == ["c2", "c3", "behind"], carried, sentence=_COMMANDS)
        await other.finish(["c2", "unknown"], forget=True)
        left = [command.id for command in await journal.commands([start])]
        require(14, left == ["c3"], f"after one was forgotten, these commands are carried: {left}", sentence=_COMMANDS)
        await journal.post(_stop("c2", start))
        left = [command.id for command in await other.commands([start])]
        again = f"a forgotten command that is posted again is not carried as a new one: {left}"
        require(14, left == ["c3", "c2"], again, sentence=_COMMANDS)

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


_WAKE_SECONDS = 5.0
"""How long a change may take until those who wait for it are woken."""


class _Caller:
    """Who waits for changes."""


def _stop(command_id: str, execution_id: str) -> ExecutionCommand:
    return ExecutionCommand(id=command_id, execution_id=execution_id, kind=CommandKind.STOP, posted_at=START)


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


async def _conflicts(operation: Coroutine[Any, Any, object], law: int = 16) -> bool:
    """Return whether an operation raises `JournalConflict`.

    Raises:
        LawViolation: it waits instead.
    """
    try:
        return await asyncio.wait_for(_raises(JournalConflict, operation), PATIENCE)
    except TimeoutError:
        said = f"what has to be refused waits, and has not ended after {PATIENCE:.0f} seconds"
        raise LawViolation(law, said, took_time=True) from None


async def _raises(kind: type[Exception], operation: Coroutine[Any, Any, object]) -> bool:
    """Return whether an operation raises an error of a kind."""
    try:
        await operation
    except kind:
        return True
    return False


def _next_append(execution_id: str) -> JournalOperation:
    return JournalOperation("append", execution_id, ["{}"], ExecutionStatus.COMPLETED, 0)


async def _add(journal: CanJournal, model: JournalModel, execution_id: str, claim: Claim) -> None:
    """Append a record under a claim."""
    head, records = model.next_records(_next_append(execution_id))
    await journal.append(head, records, claim)
    model.add(head, records)


async def _require_foreign_claim_refused(journal: CanJournal, model: JournalModel, execution_id: str) -> None:
    """Check that a claim does not permit to append to another execution."""
    unrelated = await journal.claim("another")
    records = model.next_records(_next_append(execution_id))
    refused = await _raises(ContractViolation, journal.append(*records, unrelated))
    require(28, refused, "an append was accepted whose claim is one on another execution")
    await unrelated.release()


async def _require_late_append_refused(
    journal: CanJournal, model: JournalModel, claim: Claim, *, is_closed: bool
) -> None:
    """Check that a claim which was released, or lost as its journal closed, permits no append, replaced or not."""
    late = model.next_records(_next_append(claim.execution_id))
    ended = "lost when its journal was closed" if is_closed else "released"
    sentence = _CLOSED if is_closed else ""
    try:
        await journal.append(*late, claim)
    except ClaimLost:
        return
    except JournalError as error:
        problem = f"raised {type(error).__name__} ({error}), not ClaimLost"
    else:
        problem = "was accepted"
    require(28, condition=False, reason=f"append with a claim that was {ended} {problem}", sentence=sentence)


async def _require_usable_or_closed(journal: CanJournal, execution_id: str, newest: int) -> None:
    """Check that a closed journal either refuses a claim with JournalError, or makes one like any other."""
    try:
        claim = await journal.claim(execution_id)
    except JournalError:
        return
    require(28, claim.token > newest, f"claim after aclose gave the token {claim.token}, after {newest}")
    await claim.release()


async def _require_ended(claim: Claim, waiting: asyncio.Task[str], *, is_lost: bool) -> None:
    """Check that a claim whose journal was closed is lost, and that one which was released is not."""
    require(
        28, claim.is_lost is is_lost, f"{'the lost' if is_lost else 'the released'} claim has is_lost {claim.is_lost}"
    )
    if is_lost:
        done, _ = await asyncio.wait([waiting], timeout=_LOST_SECONDS)
        require(28, bool(done), "the loss of a claim did not wake the one who waited for it")
        require(28, bool(waiting.result()), "a claim was lost without a reason")
        require(28, bool(await claim.lost()), "a lost claim has no reason")
        return
    for _ in range(_TICKS):
        await asyncio.sleep(0)
    require(28, not waiting.done(), "a released claim was reported as lost")
    waiting.cancel()


async def _race(journal: CanJournal, other: CanJournal, model: JournalModel, operation: JournalOperation) -> None:
    """Append different records at the same position by two concurrent writers, of which one can claim the execution."""
    claims = await asyncio.gather(_try_claim(journal, operation), _try_claim(other, operation))
    winners = [(each, claim) for each, claim in zip((journal, other), claims, strict=True) if claim is not None]
    require(16, len(winners) == 1, f"of two concurrent claims, {len(winners)} were granted", sentence=_CLAIMED)
    writer, claim = winners[0]
    mine = model.next_records(operation)
    theirs = model.next_records(
        JournalOperation("append", operation.execution_id, ['{"by":"other"}', *operation.bodies], operation.status, 0)
    )
    lost = await asyncio.gather(_conflicts(writer.append(*mine, claim)), _conflicts(writer.append(*theirs, claim)))
    await claim.release()
    require(
        16, sorted(lost) == [False, True], f"of two appends at the same position, {lost.count(False)} were accepted"
    )
    model.add(*(theirs if lost[0] else mine))


async def _try_claim(journal: CanJournal, operation: JournalOperation) -> Claim | None:
    """Claim an execution; return None when another writer has claimed it."""
    try:
        return await in_time(16, journal.claim(operation.execution_id), "while another writer claims an execution")
    except JournalConflict:
        return None


async def _delete(journal: CanJournal, model: JournalModel, execution_id: str) -> None:
    """Delete an execution with all executions below it, unless an execution above it or an unfinished fork needs it."""
    tree = model.tree(execution_id)
    if (execution_id in model.heads and not tree) or (tree and model.is_needed(execution_id)):
        refused = await _conflicts(journal.delete(execution_id), 15)
        require(15, refused, f"{execution_id} was deleted, although another execution needs it", sentence=_TREES)
        return
    deleted = await journal.delete(execution_id)
    require(15, deleted == bool(tree), f"deleting {execution_id} returned {deleted}", sentence=_TREES)
    model.remove(tree)


async def _purge(journal: CanJournal, model: JournalModel, operation: JournalOperation) -> None:
    """Purge a journal, and compare the number of purged executions with the model."""
    before = START + timedelta(seconds=operation.ticks)
    expired = model.expired(before)
    model.remove(expired)
    purged = await journal.purge(before)
    counts = f"{len(expired)} executions had expired, and {purged} were purged"
    require(15, purged == len(expired), counts, sentence=_TREES)


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
    for limit in (0, -1):
        none = await journal.list(limit=limit)
        require(law, not none, f"with limit={limit}, {len(none)} executions are listed")


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


def _operation_of(error: BaseException) -> str:
    """Return the line of this module that raised an error, such as `await journal.claim("one")`."""
    lines = [frame.line for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]
    return f"`{lines[-1]}`" if lines and lines[-1] else "the check"


def _same(journal: CanJournal) -> CanJournal:
    return journal


def _run(check: Coroutine[Any, Any, None]) -> None:
    run_in_real_time(check, seconds=_CHECK_SECONDS)
