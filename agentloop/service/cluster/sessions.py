"""The turns of sessions as jobs: a message gets its job when no other one of its session is before it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection

from agentloop.contracts.can_queue import CanQueue
from agentloop.durable.journal import Journal
from agentloop.durable.sessions import SessionQueue, all_waiting, session_of
from agentloop.service.cluster.executions import StartRequest
from agentloop.values.jobs import Job, JobKind

logger: logging.Logger = logging.getLogger("agentloop.cluster")

_LOOK_SECONDS = 2.0
"""How often a worker looks for sessions whose turns have no job: those that waited for a process outside of the cluster."""


async def queue_turn(queues: CanQueue, queue: SessionQueue, agents: Collection[str], version: str | None) -> None:
    """Queue the next turn of a session, unless its execution has begun, or is for an agent of others.

    Only the first message of a session has a job: one that waits for others, perhaps for a decision about a call, would keep a
    slot of a worker from them.

    Args:
        queues: the queues.
        queue: the session.
        agents: the names of the agents.
        version: the version of the program that runs it; None for the newest.
    """
    while (first := next(iter(await queue.waiting()), None)) is not None:
        message = first.message
        if message is None or first.agent not in agents or await queue.journal.head(first.begins) is not None:
            return
        request = StartRequest(first.begins, message, queue.session)
        job = await queues.find(request.job_id, JobKind.EXECUTION)
        if job is None or not job.state.is_terminal:
            payload = request.to_payload()
            await queues.enqueue(
                Job(id=request.job_id, kind=JobKind.EXECUTION, agent=first.agent, payload=payload, version=version)
            )
            return
        if await queue.journal.head(first.begins) is not None:
            return
        await queue.forget(first.begins)  # it was stopped while it waited, or a worker could not start it


async def queue_turns(queues: CanQueue, journal: Journal, agents: Collection[str], version: str | None) -> None:
    """Queue the next turn of each session; see `queue_turn`. What cannot be queued now is queued later."""
    try:
        for agent_id in {command.execution_id for command in await all_waiting(journal)}:
            await queue_turn(queues, SessionQueue.of(journal, session_of(agent_id)), agents, version)
    except Exception as error:  # noqa: BLE001  # the database may be away; the next time is soon enough
        logger.warning("the turns of sessions could not be queued: %s", type(error).__name__)


async def keep_queueing(queues: CanQueue, journal: Journal, agents: Collection[str], version: str | None) -> None:
    """Queue the next turns of all sessions again and again, until the task is cancelled."""
    while True:
        await queue_turns(queues, journal, agents, version)
        await asyncio.sleep(_LOOK_SECONDS)
