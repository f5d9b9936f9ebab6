"""The law suite of journals: what it says of a broken one, and what it demands of a closed one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp

import pytest

from agentloop.contracts import CanJournal, Claim
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.errors import JournalError
from agentloop.testing import JournalKit, LawViolation
from agentloop.values.records import ExecutionHead, JournalRecord
from tests.testing.zoo.journals import AllowsTwoClaims, DeletesClaimedExecutions, GivesOneToken


class ClosedForGood(SqliteJournal):
    """Makes no claim any more when it is closed."""

    is_closed = False

    async def claim(self, execution_id: str) -> Claim:
        if self.is_closed:
            raise JournalError("the journal is closed")
        return await super().claim(execution_id)

    async def aclose(self) -> None:
        await super().aclose()
        self.is_closed = True


class HidesTheLoss(ClosedForGood):
    """Says of an append with a lost claim only that the journal is closed."""

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        if self.is_closed:
            raise JournalError("the journal is closed")
        await super().append(head, records, claim)


class FailsToList(MemoryJournal):
    """Cannot list anything."""

    async def list(self, **options: object) -> Sequence[ExecutionHead]:
        raise JournalError("the disk is gone")


def kit_of(journal: type[SqliteJournal], folder: Path) -> JournalKit:
    """Return a kit of a journal in files, which other objects can open."""

    def reopen(other: CanJournal) -> CanJournal:
        assert isinstance(other, SqliteJournal)
        return journal(other.path)

    return JournalKit(lambda **options: journal(f"{mkdtemp(dir=folder)}/j.db", **options), reopen=reopen, examples=4)


class ForgetsReleases(MemoryJournal):
    """Compares tokens alone, so that a claim which was released, and has no successor, still permits an append."""

    def __init__(self) -> None:
        super().__init__()
        self.newest: dict[str, int] = {}

    async def claim(self, execution_id: str) -> Claim:
        claim = await super().claim(execution_id)
        self.newest[execution_id] = claim.token
        return claim

    async def append(self, head: ExecutionHead, records: Sequence[JournalRecord], claim: Claim) -> None:
        is_released = not claim.is_lost and not self._claims.holds(claim)
        if not is_released or claim.token != self.newest.get(claim.execution_id):
            await super().append(head, records, claim)
            return
        again = await super().claim(claim.execution_id)
        await super().append(head, records, again)
        await again.release()


def test_a_released_claim_permits_no_append_before_the_next_claim_either() -> None:
    with pytest.raises(
        LawViolation, match=r"a release was cancelled after .* and an append with the claim was accepted"
    ):
        JournalKit(ForgetsReleases, examples=4).check(28)


def test_a_closed_journal_may_refuse_to_be_used_again(tmp_path: Path) -> None:
    """What is demanded of it are appends that are refused as those of a lost claim, and that it can be closed again."""
    kit_of(ClosedForGood, tmp_path).check(28)


def test_an_append_to_a_closed_journal_is_refused_as_one_of_a_lost_claim(tmp_path: Path) -> None:
    """The reason names the operation and what is demanded, and the smallest case has names."""
    with pytest.raises(LawViolation) as raised:
        kit_of(HidesTheLoss, tmp_path).check(28)
    problem = (
        "append with a claim that was lost when its journal was closed raised JournalError (the journal is closed)"
    )
    first, second, third, _ = str(raised.value).splitlines()
    assert first == f"law 28 is violated: {problem}, not ClaimLost"
    assert second.startswith("  Closing: a journal that is closed ends the claims made through it")
    assert third == (
        "  the smallest case: SuccessiveClaims(execution_id='one', closes_journal=True, appends_later=False)"
    )


@pytest.mark.parametrize(
    ("journal", "law", "said"),
    [
        (AllowsTwoClaims, 16, "of two concurrent claims, 2 were granted\n  Claims: an execution that a live writer"),
        (DeletesClaimedExecutions, 15, "was claimed\n  Deletions: an execution is deleted with those of the agents"),
        (GivesOneToken, 28, "the token 1 follows 1\n  Claims: a claim has a larger token than all before"),
        (
            FailsToList,
            15,
            "`heads = await journal.list(agent_id=agent_id, status=status)` raised JournalError: the disk is gone",
        ),
    ],
)
def test_a_violation_quotes_the_sentence_that_fits(journal: type[MemoryJournal], law: int, said: str) -> None:
    """The contract of journals has sentences of its own, for which the laws of the library stand."""
    with pytest.raises(LawViolation) as raised:
        JournalKit(journal, examples=5).check(law)
    assert said in str(raised.value)
