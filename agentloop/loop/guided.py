"""Executions that are guided from outside, as in a replay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from attrs import frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_log import RunLog
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.loop.handing_over import Handoffs
from agentloop.loop.inbox import Inboxes
from agentloop.loop.loop_parts import LoopParts
from agentloop.loop.run import Run
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock
from agentloop.values.id_source import IdSource


@frozen(eq=False, kw_only=True)
class Guidance:
    """What an execution runs with, in place of what its loop has.

    Attributes:
        log: what it is compared with, or written down in.
        clock: where times come from.
        ids: where ids come from.
        events: where events go.
        inboxes: where the messages are that are sent to it.
        dependencies: as for `AgentLoop.execute`.
    """

    log: RunLog
    clock: Clock
    ids: IdSource
    events: CanHandleEvents
    inboxes: Inboxes
    dependencies: Any = None


def guided(
    loop: LoopParts, state: AgentState, guidance: Guidance, *, resumed: bool, starts: bool
) -> AsyncIterator[AgentState]:
    """Run an execution of a loop with a log, a clock, ids, a bus and messages from elsewhere.

    Args:
        loop: the loop.
        state: the state with which it begins or goes on; its execution is in progress.
        guidance: what it runs with.
        resumed: whether the execution had begun before.
        starts: whether the point `before_execution` is to be passed.

    Returns:
        The state after each step, and the final one.
    """
    own = Resources()
    scope = ExecutionScope(
        clock=guidance.clock,
        ids=guidance.ids,
        dependencies=guidance.dependencies,
        own=own,
        shared=own,
        log=guidance.log,
    )
    handoffs = Handoffs(loop, guidance.events.for_execution(), scope)
    state, parts = handoffs.begun(state)
    run = Run(
        state=state,
        parts=parts,
        handoffs=handoffs,
        inboxes=guidance.inboxes,
        resumed=resumed,
        starts=starts,
        log=guidance.log,
    )
    return run.states()
