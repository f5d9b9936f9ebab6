"""Claims that nobody got or wants any more: whoever was cancelled, or got no answer, keeps nobody from the execution."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from agentloop.contracts.can_journal import Claim
from agentloop.durable import Journal, MemoryJournal, PostgresJournal, SqliteJournal, open_journal
from agentloop.durable.sqlite.claims import ByteLocks, ClaimFile, OpenFileLocks, ProcessLocks
from agentloop.errors import ClaimLost, JournalBusy, JournalConflict, JournalError
from tests.durable.records import append_records
from tests.durable.test_postgres_journal import claim_when_free, until
from tests.postgres import TcpProxy

_MOMENTS = [0.0, 0.0, *[0.0005 * number for number in range(1, 13)]]
"""The times after which a caller is cancelled, in seconds: before the journal has begun, in the middle, and at its end."""


def open_twice(place: str | None) -> tuple[Journal, Journal]:
    """Return two journals on one storage; in memory, a journal is the storage."""
    if place is None:
        journal = MemoryJournal()
        return journal, journal
    return open_journal(place), open_journal(place)


async def cancel_after(seconds: float, work: asyncio.Task[object]) -> object:
    """Cancel a task in the middle; return its result where it had ended before."""
    await asyncio.sleep(seconds)
    work.cancel()
    try:
        return await work
    except asyncio.CancelledError:
        return None


async def test_a_cancelled_claim_is_given_back(journal_place: str | None) -> None:
    """Whenever the caller is cancelled: the same journal claims at once, and others as soon as they can be told."""
    journal, other = open_twice(journal_place)
    await append_records(journal, "e", "{}")
    cancelled = 0
    for moment in _MOMENTS:
        got = await cancel_after(moment, asyncio.ensure_future(journal.claim("e")))
        if isinstance(got, Claim):
            await got.release()
        else:
            cancelled += 1
        claim = await journal.claim("e")
        with pytest.raises(JournalConflict):
            await other.claim("e")
        await claim.release()
        await cancel_after(moment, asyncio.ensure_future(_claim_and_release(journal)))
        theirs = await claim_when_free(other, "e")
        assert isinstance(theirs, Claim)
        assert theirs.token > claim.token
        await theirs.release()
    assert cancelled or journal_place is None  # in memory, a claim is made at once
    await journal.aclose()
    await other.aclose()


async def _claim_and_release(journal: Journal) -> None:
    await (await journal.claim("e")).release()


async def test_a_cancelled_release_gives_the_claim_back(journal_place: str | None) -> None:
    """Its claim permits no append from the moment of the call, and both journals can claim."""
    journal, other = open_twice(journal_place)
    await append_records(journal, "e", "{}")
    for moment in _MOMENTS:
        claim = await journal.claim("e")
        await cancel_after(moment, asyncio.ensure_future(claim.release()))
        with pytest.raises(ClaimLost) if moment else _either(ClaimLost):
            await append_records(journal, "e", "{}", claim=claim)
        if not moment:
            await claim.release()  # it was cancelled before it began
        again = await journal.claim("e")
        await cancel_after(moment, asyncio.ensure_future(again.release()))
        await again.release()
        theirs = await claim_when_free(other, "e")
        assert isinstance(theirs, Claim)
        await theirs.release()
    await journal.aclose()
    await other.aclose()


class _either:  # noqa: N801  # reads as `pytest.raises`
    """Accept an error of a class, and none."""

    def __init__(self, kind: type[Exception]) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, (self._kind, JournalConflict))


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


async def test_a_claim_whose_answer_was_lost_is_given_back(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """The server has stored the claim, and its answer never came: others can claim when the network is back."""
    journal = PostgresJournal(
        postgres_proxy.url(postgres_url), direct_url=postgres_url, statement_timeout=0.3, reconnect_timeout=0.0
    )
    other = PostgresJournal(postgres_url)
    kept = await journal.claim("kept")
    postgres_proxy.hang_answers()
    with pytest.raises(JournalBusy):
        await journal.claim("e")
    postgres_proxy.heal()
    theirs = await claim_when_free(other, "e")
    assert isinstance(theirs, Claim)
    await theirs.release()
    assert not kept.is_lost
    with pytest.raises(JournalConflict):
        await other.claim("kept")
    await append_records(journal, "kept", "{}", claim=kept)
    await journal.aclose()
    await other.aclose()


async def test_a_claim_whose_answer_was_lost_does_not_block_its_own_journal(
    postgres_url: str, postgres_proxy: TcpProxy
) -> None:
    """The journal claims again although the server still holds the lock of the session that it had before."""
    journal = PostgresJournal(
        postgres_proxy.url(postgres_url), direct_url=postgres_url, statement_timeout=0.3, reconnect_timeout=0.0
    )
    await journal.claim("kept")
    for _ in range(3):
        postgres_proxy.hang_answers()
        with pytest.raises(JournalBusy):
            await journal.claim("e")
        postgres_proxy.heal()
        claims: list[Claim] = []

        async def is_claimed(claims: list[Claim] = claims) -> bool:
            try:
                claims.append(await journal.claim("e"))
            except JournalBusy:  # and never `JournalConflict`
                return False
            return True

        await until(is_claimed)
        await claims[0].release()
    claim = await journal.claim("e")
    await append_records(journal, "e", "{}", claim=claim)
    await journal.aclose()


async def test_a_failed_release_does_not_block_its_own_journal(postgres_url: str, postgres_proxy: TcpProxy) -> None:
    """The release fails with the network; when it is back, the journal claims again, before the server ends the old session."""
    url = postgres_proxy.url(postgres_url)
    journal = PostgresJournal(url, statement_timeout=0.3, reconnect_timeout=0.0, session_timeout=60)
    other = PostgresJournal(postgres_url)
    claim = await journal.claim("e")
    postgres_proxy.refuse()
    with pytest.raises(JournalBusy):
        await claim.release()
    with pytest.raises(ClaimLost, match="it was released"):
        await append_records(journal, "e", "{}", claim=claim)
    postgres_proxy.heal()
    again: list[Claim] = []

    async def is_claimed() -> bool:
        try:
            again.append(await journal.claim("e"))
        except JournalBusy:
            return False
        return True

    await until(is_claimed)
    await append_records(journal, "e", "{}", claim=again[0])  # the late release of the first one has not freed it
    with pytest.raises(JournalConflict):
        await other.claim("e")
    await again[0].release()
    await claim_when_free(other, "e")
    await journal.aclose()
    await other.aclose()


# --- SQLite -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [OpenFileLocks, ProcessLocks])
async def test_a_lock_that_could_not_be_unlocked_is_unlocked_later(tmp_path: Path, kind: type[ByteLocks]) -> None:
    """The release raises, the journal claims again itself, and others can claim afterwards."""
    failures = [errno.ENOLCK]

    class Failing(kind):  # type: ignore[misc, valid-type]  # both kinds
        def unlock(self, byte: int) -> None:
            if byte >= 1 << 62 and failures:
                raise OSError(failures.pop(), "no locks are available")
            super().unlock(byte)

    mine, theirs = ClaimFile(tmp_path / "a.db", Failing), ClaimFile(tmp_path / "a.db", kind)
    claim = mine.claim("e")
    with pytest.raises(JournalError, match="could not be unlocked"):
        await claim.release()
    with pytest.raises(JournalConflict):
        theirs.claim("e")
    again = mine.claim("e")
    await claim.release()
    with pytest.raises(JournalConflict):
        theirs.claim("e")
    failures.append(errno.ENOLCK)
    with pytest.raises(JournalError, match="could not be unlocked"):
        await again.release()
    await mine.claim("another").release()
    await theirs.claim("e").release()
    mine.close()
    theirs.close()


async def test_a_failed_claim_leaves_no_lock(tmp_path: Path) -> None:
    """A journal that cannot be read after the lock was taken raises, and the next claim is made."""
    journal, other = SqliteJournal(tmp_path / "a.db"), SqliteJournal(tmp_path / "a.db")
    (tmp_path / "a.db").mkdir()
    with pytest.raises(JournalError):
        await journal.claim("e")
    (tmp_path / "a.db").rmdir()
    claim = await other.claim("e")
    with pytest.raises(JournalConflict):
        await journal.claim("e")
    await claim.release()
    await (await journal.claim("e")).release()
    await journal.aclose()
    await other.aclose()
