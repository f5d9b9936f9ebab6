"""The base of the journals in this package."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any

from attrs import field, frozen

from agentloop.contracts.can_journal import (
    CanCommandExecutions,
    CanJournal,
    CanRedactRecords,
    CanWatchExecutions,
)
from agentloop.durable import forking
from agentloop.durable.chain import JournalFinding, VerifiedExecution, find_damage
from agentloop.durable.fold import state_at
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.durable.masked_text import MaskedText
from agentloop.durable.redaction import Redaction
from agentloop.durable.trees import ExecutionTree, group_trees
from agentloop.errors import JournalCorrupt, SchemaTooNew
from agentloop.values.records import ExecutionHead
from agentloop.values.secrets import Secret
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.value import Value

_PAGE_SIZE = 100
"""How many heads are read at once where it is not known how many are needed."""


@frozen(eq=False, repr=False)
class Conversation(Value):
    """All executions of one agent.

    Attributes:
        agent_id: the agent.
        parent_agent_id: the agent whose tool call it serves; None for a top-level agent.
        executions: its executions, ordered by number.
    """

    agent_id: str
    parent_agent_id: str | None
    executions: tuple[ExecutionHead, ...] = field(converter=tuple[ExecutionHead, ...])


class Journal(CanJournal, CanWatchExecutions, CanCommandExecutions, CanRedactRecords):
    """A journal with the operations that build on the contract: conversations, states, forks and verification.

    Args:
        secrets: texts, or keys, that are masked wherever they occur in records. Commands, such as messages that wait for an
            execution, are stored as they are until they are finished.
        secret_fields: fields that are masked: by name wherever they occur, such as `password`, or by path, such as
            `card.number`, also inside of strings that hold JSON, such as the arguments of a call. Masking is permanent: a call
            with a masked argument is never run from the record.

    Raises:
        ConfigurationError: a secret is shorter than four characters.
    """

    def __init__(self, *, secrets: Iterable[str | Secret] = (), secret_fields: Iterable[str] = ()) -> None:
        self._redaction = Redaction(secrets, secret_fields)

    @property
    def masks_secrets(self) -> bool:
        """Whether secrets were declared, which this journal masks."""
        return not self._redaction.is_empty

    def redact(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body of a record, plain JSON data, with secrets masked; the same object when it holds none."""
        return self._redaction.redact(body)

    def mask_document(self, document: Any) -> Any:
        """Return plain JSON data of another form than that of records, with secret texts masked, and no fields."""
        return self._redaction.mask_document(document)

    def mask_pieces(self) -> MaskedText | None:
        """Return a mask for one text that arrives in pieces, as `Redaction.mask_pieces`; None if nothing is masked."""
        return self._redaction.mask_pieces()

    async def conversations(self, *, limit: int | None = None) -> Sequence[Conversation]:
        """Return the conversations of all agents, ordered by their newest executions, newest first.

        Args:
            limit: the maximum number of results.
        """
        if limit is None:
            return _group_by_agent(await self.list())
        agents = dict[str, None]()
        async for head in self._newest_heads():
            agents[head.agent_id] = None
            if len(agents) >= limit:
                break
        found = [await self.conversation(agent_id) for agent_id in tuple(agents)[:limit]]
        return [conversation for conversation in found if conversation is not None]

    async def _newest_heads(self) -> AsyncIterator[ExecutionHead]:
        """Yield the heads of all executions, newest first, in pages."""
        page = await self.list(limit=_PAGE_SIZE)
        while page:
            for head in page:
                yield head
            page = await self.list(limit=_PAGE_SIZE, after=page[-1].cursor)

    async def conversation(self, agent_id: str) -> Conversation | None:
        """Return the conversation of an agent; None when it has no execution."""
        return next(iter(_group_by_agent(await self.list(agent_id=agent_id))), None)

    async def trees(self) -> Sequence[ExecutionTree]:
        """Return all executions, each with those of the agents that serve its calls, newest first."""
        return group_trees(await self.list())

    async def expired_trees(self, before: datetime) -> Sequence[ExecutionTree]:
        """Return the executions that `purge` would delete, each with those of the agents that serve its calls.

        Override it where they can be found without reading all heads.

        Args:
            before: only those that were last updated before this time.
        """
        return [tree for tree in await self.trees() if tree.is_expired(before)]

    async def state(self, execution_id: str, at_step: int | None = None) -> AgentState:
        """Return the state of an execution as it was after a step.

        Args:
            execution_id: the execution.
            at_step: the number of the step; 0 for the initial state, None for the newest one.

        Raises:
            UnknownExecution: no execution of this id is recorded.
            JournalError: the execution has no such step.
            JournalCorrupt: its records are damaged.
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
        """Start an execution from the state that another one had after a step; `await loop.recover(fork)` runs it.

        Args:
            execution_id: the execution to fork; it is only read, and may be running.
            at_step: the number of the step; 0 for the initial state. Where calls of the step wait for decisions, those of the
                fork wait, too.
            effects: what happens to calls that are not `pure`, in the fork and in the agents that serve its calls: `reuse`,
                `simulate` or `forbid`; see `ForkPolicy`.
            fork_id: the id of the fork; by default `<execution_id>/fork-1`, or the next free number.

        Returns:
            The id of the fork.

        Raises:
            UnknownExecution: no execution of this id is recorded.
            JournalError: the execution has no such step.
            JournalConflict: an execution with the id of the fork exists.
            JournalCorrupt: the records of the execution are damaged.
            ConfigurationError: the id of the fork is reserved for executions of sub-agents.
            ValueError: there is no such policy.
        """
        return await forking.fork(self, execution_id, at_step, effects=effects, fork_id=fork_id)

    async def verify(self, execution_id: str | None = None) -> tuple[JournalFinding, ...]:
        """Return every part of the journal that is not as it was written; empty when the journal is intact.

        Finds records that were changed, dropped (at the end, too), moved, or taken from another execution. It cannot find a
        change by someone who also recomputed all later hashes and the head; to detect that, store the last hashes elsewhere.

        Args:
            execution_id: check only this execution.
        """
        verified = [execution async for execution in self.verify_each(execution_id)]
        return tuple([finding for execution in verified for finding in execution.findings])

    async def verify_each(self, execution_id: str | None = None) -> AsyncIterator[VerifiedExecution]:
        """Verify one execution after the other, and yield each result as soon as it is known.

        Args:
            execution_id: check only this execution.
        """
        for checked_id in await self._execution_ids() if execution_id is None else [execution_id]:
            yield await self._verify_execution(checked_id)
        findings = tuple(await self._check_storage(execution_id))
        if findings:
            yield VerifiedExecution(execution_id or "", 0, findings)

    async def _verify_execution(self, execution_id: str) -> VerifiedExecution:
        try:
            # A running execution grows between these reads; `find_damage` compares both heads.
            before = await self.head(execution_id)
            records = await self.read(execution_id)
            after = await self.head(execution_id)
        except (JournalCorrupt, SchemaTooNew) as error:
            sequence = error.sequence if isinstance(error, JournalCorrupt) else 0
            return VerifiedExecution(execution_id, 0, [JournalFinding(execution_id, sequence, str(error))])
        return VerifiedExecution(execution_id, len(records), find_damage(execution_id, records, before, after))

    async def _execution_ids(self) -> Sequence[str]:
        """Return the ids of all executions; override it where they can be read without reading all heads."""
        return [head.execution_id for head in await self.list()]

    async def _check_storage(self, execution_id: str | None) -> Iterable[JournalFinding]:  # noqa: ARG002  # for overrides
        """Return damage outside of the records; override it where the storage can be checked."""
        return ()


def as_statuses(status: ExecutionStatus | Collection[ExecutionStatus] | None) -> frozenset[ExecutionStatus] | None:
    """Return the statuses that the argument `status` of `CanJournal.list` selects; None for all."""
    if status is None:
        return None
    return frozenset([ExecutionStatus(status)] if isinstance(status, str) else map(ExecutionStatus, status))


def _group_by_agent(heads: Iterable[ExecutionHead]) -> tuple[Conversation, ...]:
    """Return the conversations that executions belong to, each at the position of its first execution."""
    by_agent: dict[str, list[ExecutionHead]] = {}
    for head in heads:
        by_agent.setdefault(head.agent_id, []).append(head)
    return tuple(
        [
            Conversation(group[0].agent_id, group[0].parent_agent_id, sorted(group, key=lambda head: head.number))
            for group in by_agent.values()
        ]
    )
