"""Checks of journals beyond operations on a few executions: names that are taken for each other, contents of any size, cancelled claims."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

from agentloop.contracts.can_journal import CanCommandExecutions, CanJournal, Claim
from agentloop.errors import ClaimLost, JournalConflict
from agentloop.testing.journal_bench import START, append_claimed, chain, head_after
from agentloop.testing.kit import LawViolation, require
from agentloop.testing.samples import TWINS
from agentloop.values.commands import CommandKind, ExecutionCommand
from agentloop.values.records import ExecutionHead, JournalRecord
from agentloop.values.steps import ExecutionStatus

T = TypeVar("T")

MAX_TICKS = 6
"""The iterations of the event loop before a cancellation are fewer."""
PATIENCE = 5.0
"""The seconds in which an operation has to end, and a claim of a call that was cancelled has to be given back."""
_PAUSE = 0.01
_MANY = 3
_GIVEN_BACK = "Claims: one whose claim or release was cancelled is given back, and the same journal can claim the execution at once."
_CONTENTS = (
    '{"text":"\ud800 half of a character"}',
    '{"text":"größe \U0001f600 \\u0000"}',
    f'{{"text":"{"é" * 70_000}"}}',
    f'{{"text":"{"x" * 1_200_000}"}}',
)
"""Bodies with half of a character, and longer than what a column or an item of some databases takes."""


async def in_time(law: int, work: Coroutine[Any, Any, T], after: str) -> T:
    """Await what has to end by itself.

    Raises:
        LawViolation: it does not end.
    """
    try:
        return await asyncio.wait_for(work, PATIENCE)
    except TimeoutError:
        raise LawViolation(law, f"{after}, the next operation does not end", took_time=True) from None


def _written(name: str, bodies: Sequence[str] = ("{}",)) -> tuple[ExecutionHead, list[JournalRecord]]:
    """Return the head and the records of a new execution of an agent of the same name."""
    records = chain(name, [*bodies, f'{{"of":"{len(name)}"}}'])
    head = ExecutionHead(
        execution_id=name,
        agent_id=name,
        parent_agent_id=f"parent of {name}",
        number=1,
        status=ExecutionStatus.COMPLETED,
        step_count=123_456,
        input=f"“größe” \U0001f600 'it' \"is\" \\ \n{'i' * 150}",
        started_at=START - timedelta(microseconds=123_456),
        updated_at=START,
        agent_name=f"ä name of {name}",
    )
    return head_after(head, records, ExecutionStatus.COMPLETED), records


async def check_names(journal: CanJournal, other: CanJournal) -> None:
    """Check that executions and agents whose names resemble each other are two (law 15)."""
    names = list(dict.fromkeys(name for pair in TWINS for name in pair))
    for pair in TWINS:
        claims: list[Claim] = []
        for name in pair:
            try:
                claims.append(await (journal, other)[len(claims)].claim(name))
            except JournalConflict as error:
                raise LawViolation(15, f"the execution {name!r:.80} is taken for {pair[0]!r:.80}: {error}") from error
        for claim in claims:
            await claim.release()
    for name in names:
        try:
            await append_claimed(journal, *_written(name))
        except JournalConflict as error:
            raise LawViolation(15, f"the execution {name!r:.80} is taken for another one: {error}") from error
    for each in (journal, other):
        for name in names:
            head, records = _written(name)
            require(15, list(await each.read(name)) == records, f"the records of {name!r:.80} are those of another one")
            stored = await each.head(name)
            require(15, stored == head, f"the head of {name!r:.80} is {stored!r}, and {head!r} was written")
            listed = [found.execution_id for found in await each.list(agent_id=name)]
            require(15, listed == [name], f"listed for the agent {name!r:.80}: {listed!r:.500}")
            found = {found.execution_id for found in await each.list(prefix=name)}
            expected = {known for known in names if known.startswith(name)}
            require(15, found == expected, f"listed for the prefix {name!r:.80}: {found!r:.500}")
    await _check_commands_by_name(journal, other)
    for one, twin in TWINS:
        await journal.delete(one)
        left = list(await other.read(twin))
        require(15, left == _written(twin)[1], f"with {one!r:.80}, {twin!r:.80} was deleted")


async def _check_commands_by_name(journal: CanJournal, other: CanJournal) -> None:
    if not isinstance(journal, CanCommandExecutions) or not isinstance(other, CanCommandExecutions):
        return
    for one, twin in TWINS:
        await journal.post(ExecutionCommand(id=f"to {one}", execution_id=one, kind=CommandKind.STOP, posted_at=START))
        found = [command.id for command in await other.commands([twin])]
        require(15, not found, f"commands to {one!r:.80} are carried to {twin!r:.80}: {found!r:.200}")
        await other.finish([f"to {one}"])


async def check_contents(journal: CanJournal, reopen: Callable[[CanJournal], CanJournal]) -> None:
    """Check that contents of any size are read as written, and that nobody's list is the journal's own (law 15)."""
    head, records = _written("contents", _CONTENTS)
    given = list(records)
    await append_claimed(journal, head, given)
    given.clear()
    for each in (journal, reopen(journal)):
        for _ in range(2):
            stored = await each.read("contents")
            wrong = [number for number, pair in enumerate(zip(stored, records, strict=False), 1) if pair[0] != pair[1]]
            same = not wrong and len(stored) == len(records)
            require(15, same, f"of {len(records)} records, {len(stored)} are read, and {wrong} are not as written")
            heads = await each.list(agent_id="contents")
            require(15, list(heads) == [head], f"listed: {heads!r:.1000}")
            for found in (stored, heads):
                if isinstance(found, list):
                    found.clear()  # a caller may do with it what it likes
        if each is not journal:
            await each.aclose()


async def check_cancelled_append(journal: CanJournal, ticks: int) -> None:
    """Check that an append that is cancelled does not keep others waiting (law 14)."""
    claim = await journal.claim("one")
    await _cancel(journal.append(*_written("one"), claim), ticks)
    after = f"after an append that was cancelled after {ticks} iterations of the event loop"
    await in_time(14, append_claimed(journal, *_written("two")), after)
    await in_time(14, claim.release(), after)
    stored = list(await in_time(14, journal.read("two"), after))
    require(14, stored == _written("two")[1], f"{after}, another append is not stored")


async def check_refused_append(journal: CanJournal) -> None:
    """Check that an append that is refused does not keep others waiting (law 16)."""
    claim = await journal.claim("one")
    head, records = _written("one")
    await journal.append(head, records, claim)
    for _ in range(_MANY):
        with suppress(JournalConflict):
            await in_time(16, journal.append(head, records, claim), "after an append that was refused")
    await in_time(16, append_claimed(journal, *_written("two")), "after an append that was refused")
    await claim.release()


async def check_cancelled_claims(journal: CanJournal, other: CanJournal, ticks: int) -> None:
    """Check that claims whose call was cancelled, and those whose release was, are given back (law 28)."""
    cancelled = f"was cancelled after {ticks} iterations of the event loop"
    claim = await _cancel(journal.claim("one"), ticks)
    if claim is not None:
        await claim.release()
    else:
        await _require_free(journal, other, f"a claim {cancelled}")
    claim = await journal.claim("one")
    await _cancel(claim.release(), ticks)
    if ticks:
        try:
            await in_time(28, journal.append(*_written("one"), claim), f"after a release {cancelled}")
        except ClaimLost:
            pass
        else:
            require(28, condition=False, reason=f"a release {cancelled}, and an append with the claim was accepted")
        await _require_free(journal, other, f"a release {cancelled}")
        await in_time(28, append_claimed(journal, *_written("two")), "after an append that was refused")


async def _require_free(journal: CanJournal, other: CanJournal, what: str) -> None:
    """Check that the journal can claim an execution at once, and another one as soon as it was given back."""
    try:
        claim = await in_time(28, journal.claim("one"), what)
    except JournalConflict as error:
        raise LawViolation(28, f"{what}, and the same journal cannot claim: {error}", sentence=_GIVEN_BACK) from error
    await in_time(28, claim.release(), what)
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while True:
        try:
            claim = await in_time(28, other.claim("one"), what)
        except JournalConflict as error:
            if asyncio.get_running_loop().time() > deadline:
                said = f"{what}, and {PATIENCE:.0f} seconds later it is not given back: {error}"
                raise LawViolation(28, said, sentence=_GIVEN_BACK, took_time=True) from error
            await asyncio.sleep(_PAUSE)
        else:
            await claim.release()
            return


async def _cancel(work: Awaitable[T], ticks: int) -> T | None:
    """Cancel an operation after some iterations of the event loop; return its result if it had ended."""
    task = asyncio.ensure_future(work)
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    return None if task.cancelled() else task.result()
