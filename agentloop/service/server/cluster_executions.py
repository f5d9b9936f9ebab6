"""Executions of a server that the workers of a cluster run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Self

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.fold import state_at
from agentloop.durable.redaction import decisions_as_recorded, used_decisions
from agentloop.durable.sessions import SessionQueue, find_waiting, waiting_state
from agentloop.errors import JournalConflict
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cluster.cluster import Cluster
from agentloop.service.server.executions import CanRunExecutions, name_agents
from agentloop.service.server.feeds import wait_for_change
from agentloop.values.decisions import Decision
from agentloop.values.event import Event
from agentloop.values.json import JsonObject
from agentloop.values.messages import Message
from agentloop.values.run_requests import Identity
from agentloop.values.state import AgentState

_CHECK_SECONDS = 0.25


class ClusterExecutions(CanRunExecutions):
    """Hands executions to the workers of a cluster, whose journal and commands it uses.

    What a request asks for is answered when a worker has begun it, or after some seconds, while all workers are busy. A start or
    decisions are then queued (202).

    Args:
        cluster: the cluster; it is entered and closed with this object.
        agents: the loops, by the names under which the workers know them; they are not run here, but say with which prompt an
            agent starts.
        start_seconds: how long a request waits until a worker has begun what it asks for.

    Raises:
        ConfigurationError: there is no loop.
    """

    def __init__(self, cluster: Cluster, agents: Mapping[str, AgentLoop], *, start_seconds: float = 10.0) -> None:
        self._cluster = cluster
        self._agents = name_agents(agents)
        self._start_seconds = start_seconds

    @property
    def journal(self) -> CanJournal:
        """The journal of the cluster."""
        return self._cluster.journal

    @property
    def agents(self) -> Mapping[str, AgentLoop]:
        """The loops by name."""
        return self._agents

    async def __aenter__(self) -> Self:
        await self._cluster.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Close the cluster; the workers go on."""
        await self._cluster.aclose()

    async def start(
        self, agent: str, state: AgentState, execution_id: str, *, principal: Identity | None = None
    ) -> None:
        """Queue an execution, and wait for some seconds until a worker has begun it."""
        await self._cluster.submit(agent, state, execution_id=execution_id, principal=principal)
        await self._has_records(execution_id, 0)

    async def start_turn(  # of the contract
        self,
        agent: str,
        session: str,
        message: Message,
        execution_id: str,
        extensions: JsonObject,
        *,
        principal: Identity | None = None,
    ) -> None:
        """Accept a message of a session; if no turn is before it, wait for some seconds until a worker has begun it."""
        queue, loop = SessionQueue.of(self._cluster.journal, session), self._agents[agent]
        await queue.add(message, execution_id, loop.clock, agent=agent, principal=principal, extensions=extensions)
        await self._cluster.submit(agent, message, execution_id=execution_id, session=session)
        first = next(iter(await queue.waiting()), None)
        if first is not None and first.begins == execution_id:
            await self._has_records(execution_id, 0)

    async def unrecorded_state(self, execution_id: str) -> AgentState | None:
        """Return the state of an execution that no worker has begun."""
        waiting = await find_waiting(self.journal, execution_id)
        if waiting is not None and await self.journal.head(execution_id) is None:
            return waiting_state(waiting)
        return await self._cluster.unrecorded_state(execution_id)

    async def resume(self, agent: str, execution_id: str, decisions: Mapping[str, Decision]) -> None:  # noqa: ARG002  # of the contract
        """Queue the resumption of an execution, and wait for some seconds until a worker has used the decisions."""
        head = await self.journal.head(execution_id)
        count = 0 if head is None else head.record_count
        if not await self._cluster.resume(execution_id, decisions):
            raise JournalConflict("the same decisions about these calls were sent before, and count")
        if await self._has_records(execution_id, count):
            await _check_used(
                self.journal, execution_id, count, decisions
            )  # others may have decided about a part of the calls

    async def send(self, agent: str, execution_id: str, message: Message, principal: str) -> None:  # noqa: ARG002  # of the contract
        """Post a message to the worker that runs the execution."""
        await self._cluster.send(execution_id, message, principal=principal)

    async def stop(self, execution_id: str, reason: str, principal: str) -> None:
        """Post a stop to the worker that runs the execution."""
        await self._cluster.stop(execution_id, reason, principal=principal)

    async def run_fork(self, agent: str, execution_id: str) -> None:
        """Queue a fork, which a worker continues from its record."""
        await self._cluster.submit(agent, await state_at(self.journal, execution_id), execution_id=execution_id)

    def watch(self, listener: Callable[[Event], None]) -> None:
        """Do nothing: what a model writes is known to its worker alone, until it is recorded."""

    async def _has_records(self, execution_id: str, after: int) -> bool:
        """Wait for records after a number; return whether there are some in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_seconds):
                while (head := await self.journal.head(execution_id)) is None or head.record_count <= after:
                    await wait_for_change(self.journal, execution_id, _CHECK_SECONDS)
                return True
        return False


async def _check_used(journal: CanJournal, execution_id: str, after: int, decisions: Mapping[str, Decision]) -> None:
    """Check that an execution has continued with these decisions, and not with those of somebody else.

    Args:
        journal: the journal.
        execution_id: the execution, which has records after this number.
        after: the number of its last record before the decisions.
        decisions: the decisions, by the keys of their calls.

    Raises:
        JournalConflict: another decision about one of the calls was used.
    """
    used = await used_decisions(journal, execution_id, after)
    if any(used.get(key) != decision for key, decision in decisions_as_recorded(decisions, journal).items()):
        raise JournalConflict("other decisions about these calls were used before")
