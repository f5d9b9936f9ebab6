"""What our journals have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

from attrs import define, field, frozen

from agentloop.contracts.can_journal import CanJournal, CanRedactRecords, Claim
from agentloop.errors import JournalCorrupt, JournalError, SchemaTooNew
from agentloop.journal.chain import JournalFinding, VerifiedExecution, findings_in
from agentloop.journal.fold import state_at
from agentloop.journal.fork_effects import ForkPolicy
from agentloop.journal.forking import fork as forked
from agentloop.journal.redaction import Redaction
from agentloop.values.records import ExecutionHead
from agentloop.values.secrets import Secret
from agentloop.values.state import AgentState
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Conversation(Value):
    """What an agent was asked and did, over all its executions.

    Attributes:
        agent_id: the agent.
        parent_agent_id: the agent whose tool call it serves; None for one of its own.
        executions: its executions in the order of their numbers.
    """

    agent_id: str
    parent_agent_id: str | None
    executions: tuple[ExecutionHead, ...] = field(converter=tuple[ExecutionHead, ...])


def conversations_of(heads: Iterable[ExecutionHead]) -> tuple[Conversation, ...]:
    """Group executions by their agents; a conversation stands where the first of its executions stood."""
    of_agent: dict[str, list[ExecutionHead]] = {}
    for head in heads:
        of_agent.setdefault(head.agent_id, []).append(head)
    return tuple([_conversation(sorted(group, key=_number)) for group in of_agent.values()])


def _conversation(heads: list[ExecutionHead]) -> Conversation:
    return Conversation(heads[0].agent_id, heads[0].parent_agent_id, heads)


def _number(head: ExecutionHead) -> int:
    return head.number


class Journal(CanJournal, CanRedactRecords):
    """A journal, with what follows from the contract.

    Args:
        secrets: texts, or keys, that are masked wherever they stand in what is recorded.
        secret_fields: fields that are masked: by their name wherever they stand, as `password`, or by a path, as
            `card.number`, also inside of strings that hold JSON, as the arguments of a call. What was masked is gone: a
            call with a masked argument is never run from the record.

    Raises:
        ConfigurationError: when a secret is shorter than four characters.
    """

    def __init__(self, *, secrets: Iterable[str | Secret] = (), secret_fields: Iterable[str] = ()) -> None:
        self._redaction = Redaction(secrets, secret_fields)

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record, plain JSON data, with what is secret masked; the same object when nothing is."""
        return self._redaction.redact(body)

    async def conversations(self, *, limit: int | None = None) -> Sequence[Conversation]:
        """Return what is known of all agents; the agent whose last execution began last comes first.

        Args:
            limit: no more than so many.
        """
        return conversations_of(await self.list())[:limit]

    async def conversation(self, agent_id: str) -> Conversation | None:
        """Return what is known of an agent; None when it has no execution."""
        return next(iter(conversations_of(await self.list(agent_id=agent_id))), None)

    async def state(self, execution_id: str, at_step: int | None = None) -> AgentState:
        """Return the state of an execution after a step, as it was then.

        Args:
            execution_id: the execution.
            at_step: the step; 0 for the state that it began with, None for the newest that is recorded.

        Raises:
            UnknownExecution: when no execution of this id is recorded.
            JournalError: when it has no such step.
            JournalCorrupt: when its records are not as they were written.
        """
        return await state_at(self, execution_id, at_step)

    async def fork(
        self,
        execution_id: str,
        at_step: int,
        *,
        effects: ForkPolicy | str = ForkPolicy.REUSE,
        fork_id: str | None = None,
    ) -> str:
        """Begin an execution with the state that another one had after a step; `await loop.recover(fork)` goes on with it.

        Args:
            execution_id: the execution to fork; it is only read, and may be in progress.
            at_step: the step; 0 for its beginning. Where calls of the step wait for decisions, those of the fork do too.
            effects: what becomes of calls that are not `pure`, in the fork and in the agents that serve its calls: `reuse`,
                `simulate` or `forbid`; see `ForkPolicy`.
            fork_id: the id of the fork; `<execution_id>/fork-1` or the next that is free when left out.

        Returns:
            The id of the fork.

        Raises:
            UnknownExecution: when no execution of this id is recorded.
            JournalError: when it has no such step.
            JournalConflict: when an execution of the fork's id is recorded.
            JournalCorrupt: when its records are not as they were written.
            ValueError: when there is no such policy.
        """
        return await forked(self, execution_id, at_step, effects=effects, fork_id=fork_id)

    async def verify(self, execution_id: str | None = None) -> tuple[JournalFinding, ...]:
        """Return what is not as it was written; nothing when all is well.

        A record that was changed, dropped, also at the end, put elsewhere, or taken from another execution is found. What
        somebody changed who then made all the hashes after it anew, with the head, is not: who fears that keeps the last hashes elsewhere.

        Args:
            execution_id: look at this execution only.
        """
        verified = [one async for one in self.verify_each(execution_id)]
        return tuple([finding for one in verified for finding in one.findings])

    async def verify_each(self, execution_id: str | None = None) -> AsyncIterator[VerifiedExecution]:
        """Look at one execution after the other, and give what was found in each as soon as it is known.

        Args:
            execution_id: look at this execution only.
        """
        for one in await self._execution_ids() if execution_id is None else [execution_id]:
            yield await self._verified(one)
        beside = tuple(await self._findings_beside(execution_id))
        if beside:
            yield VerifiedExecution(execution_id or "", 0, beside)

    async def _verified(self, execution_id: str) -> VerifiedExecution:
        try:
            before = await self.head(execution_id)
            records = await self.read(execution_id)
            after = await self.head(execution_id)
        except (JournalCorrupt, SchemaTooNew) as error:
            sequence = error.sequence if isinstance(error, JournalCorrupt) else 0
            return VerifiedExecution(execution_id, 0, [JournalFinding(execution_id, sequence, str(error))])
        return VerifiedExecution(execution_id, len(records), findings_in(execution_id, records, before, after))

    async def _execution_ids(self) -> Sequence[str]:
        """Return the ids of all executions; a journal that can tell them although it cannot read all heads overrides it."""
        return [head.execution_id for head in await self.list()]

    async def _findings_beside(self, execution_id: str | None) -> Iterable[JournalFinding]:  # noqa: ARG002  # a journal with more to look at overrides it
        """Find what is wrong beside records and heads."""
        return ()


def newest_first(heads: Iterable[ExecutionHead]) -> Sequence[ExecutionHead]:
    """Order executions as `CanJournal.list` gives them: the one that began last first."""
    return sorted(heads, key=_age, reverse=True)


def _age(head: ExecutionHead) -> tuple[object, ...]:
    return head.started_at, head.number, head.execution_id


@define(eq=False)
class HeldClaims:
    """Knows who may append: not a writer whose claim was ended while it went on.

    A new claim on the same execution makes appending possible again; then the chain tells an old writer from the new one.
    """

    _held: dict[str, Claim] = field(factory=dict)
    _ended: dict[str, Claim] = field(factory=dict)

    def __contains__(self, execution_id: str) -> bool:
        return execution_id in self._held

    def add(self, execution_id: str, claim: Claim) -> None:
        """Note a claim that was made.

        Args:
            execution_id: what is claimed.
            claim: the claim.
        """
        self._held[execution_id] = claim
        self._ended.pop(execution_id, None)

    def leave(self, execution_id: str, claim: Claim) -> bool:
        """Note that a claim was given back; say whether it was still held.

        Args:
            execution_id: what was claimed.
            claim: the claim.
        """
        for claims in (self._ended, self._held):
            if claims.get(execution_id) is claim:
                del claims[execution_id]
                return claims is self._held
        return False

    def end(self) -> None:
        """End all that are held."""
        self._ended |= self._held
        self._held.clear()

    def check(self, execution_id: str) -> None:
        """Check that the claim on an execution was not ended while its writer went on.

        Raises:
            JournalError: when it was.
        """
        if execution_id in self._ended:
            raise JournalError(
                f"the journal was closed while execution {execution_id} was driven on, which ended its claim; close a journal "
                "after its runs, and go on with this one by `loop.recover`"
            )
