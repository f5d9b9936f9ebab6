"""Looking for executions in a journal: by what their summaries say, and by what their records say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from datetime import datetime

from attrs import field, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.fold import state_at
from agentloop.durable.trees import INTERRUPTED, effective_status
from agentloop.errors import JournalError
from agentloop.values.records import ExecutionHead
from agentloop.values.run_requests import principal_of
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.tool_calls import ToolExecution, ToolStatus
from agentloop.values.value import Value

_PAGE = 200


@frozen(eq=False, repr=False, kw_only=True)
class ExecutionQuery(Value):
    """Which executions to look for. An attribute at its default leaves all.

    Attributes:
        agent_id: those of this agent.
        agent_name: those of agents with this name.
        statuses: those with one of these effective statuses, which are the values of `ExecutionStatus` and `interrupted`.
        is_unclaimed: whether only those that no live process has claimed.
        since: those with a record at this time or later.
        before: those whose last record is older.
        text: those in which this text occurs, in whatever case: in the input, in a message, or in a call with its result.
        principal: those that this person asked for, by name.
        tenant: those that somebody of this tenant asked for.
        tags: those whose metadata have these values, by name; an empty value stands for any one.
        has_doubts: whether only those with a call in doubt.
        includes_sub_agents: whether also the executions that serve calls of others.
    """

    agent_id: str | None = None
    agent_name: str = ""
    statuses: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    is_unclaimed: bool = False
    since: datetime | None = None
    before: datetime | None = None
    text: str = ""
    principal: str = ""
    tenant: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    has_doubts: bool = False
    includes_sub_agents: bool = False

    @property
    def needs_records(self) -> bool:
        """Whether the records of an execution say whether it is one of those; otherwise its summary says that."""
        return bool(self.text or self.principal or self.tenant or self.tags or self.has_doubts)

    @property
    def is_restricted(self) -> bool:
        """Whether any attribute leaves something out, beside those about sub-agents."""
        heads = (self.agent_id, self.agent_name, self.statuses, self.is_unclaimed, self.since, self.before)
        return self.needs_records or any(heads)


async def search_executions(
    journal: CanJournal, query: ExecutionQuery, *, after: str = ""
) -> AsyncIterator[tuple[ExecutionHead, str]]:
    """Yield the summaries of the executions that a query is for, newest first, each with its effective status.

    A query for texts, principals, tags or doubts reads the records of all executions that its other attributes leave.

    Args:
        journal: the journal.
        query: which executions.
        after: the cursor of an execution; those behind it are yielded.

    Raises:
        ConfigurationError: `after` is not a cursor.
        JournalError: the journal cannot be read. An execution whose records are damaged is left out of a query that needs them.
    """
    statuses = [
        ExecutionStatus.IN_PROGRESS if each == INTERRUPTED else ExecutionStatus(each) for each in query.statuses
    ]
    while heads := await journal.list(
        agent_id=query.agent_id, status=statuses or None, unclaimed=query.is_unclaimed, after=after, limit=_PAGE
    ):
        for head in heads:
            if not _summary_matches(head, query):
                continue
            status = await effective_status(journal, head)
            if status in (query.statuses or [status]) and await _records_match(journal, head, query):
                yield head, status
        after = heads[-1].cursor


async def matches_query(journal: CanJournal, head: ExecutionHead, query: ExecutionQuery) -> bool:
    """Return whether an execution is one that a query is for, apart from its agent, its status and its claim.

    Raises:
        JournalError: the journal cannot be read.
    """
    return _summary_matches(head, query) and await _records_match(journal, head, query)


def _summary_matches(head: ExecutionHead, query: ExecutionQuery) -> bool:
    return (
        (head.parent_agent_id is None or query.includes_sub_agents)
        and query.agent_name in {"", head.agent_name}
        and (query.since is None or head.updated_at >= query.since)
        and (query.before is None or head.updated_at < query.before)
    )


async def _records_match(journal: CanJournal, head: ExecutionHead, query: ExecutionQuery) -> bool:
    if not query.needs_records:
        return True
    try:
        state = await state_at(journal, head.execution_id)
    except JournalError:
        return False
    principal = principal_of(state)
    return (
        (not query.principal or (principal is not None and principal.name == query.principal))
        and (not query.tenant or (principal is not None and principal.tenant == query.tenant))
        and all(_has_tag(state, name, value) for name, value in query.tags)
        and (not query.has_doubts or bool(doubts_of(state)))
        and (not query.text or _has_text(state, query.text.casefold()))
    )


def doubts_of(state: AgentState) -> list[ToolExecution]:
    """Return the calls of an execution of which nobody knows whether they ran."""
    executions = [execution for step in state.steps for execution in step.executions]
    return [execution for execution in executions if execution.status is ToolStatus.IN_DOUBT]


def _has_tag(state: AgentState, name: str, value: str) -> bool:
    found = state.context.metadata.get(name)
    return found is not None and (not value or str(found) == value)


def _has_text(state: AgentState, text: str) -> bool:
    return any(text in each.casefold() for each in _texts(state))


def _texts(state: AgentState) -> Iterable[str]:
    for message in state.context.messages:
        yield message.text
    for step in state.steps:
        for execution in step.executions:
            yield execution.name
            yield execution.call.arguments_json
            yield execution.text
    yield state.final_text or ""
