"""Executions that a person can interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from agentloop.cli.approvals import Decider, decided
from agentloop.cli.interrupted import Interrupted
from agentloop.cli.terminal_text import printable
from agentloop.loop.agent_loop import AgentLoop
from agentloop.values.agent_state import AgentState


def concluded(
    loop: AgentLoop,
    question: str,
    decide: Decider,
    dependencies: object = None,
    *,
    execution_id: str | None = None,
    goes_on: bool = False,
) -> AgentState:
    """Run a loop to its end; where calls wait, have them decided about and go on.

    Args:
        loop: the loop.
        question: what it is asked.
        decide: what decides about calls that wait.
        dependencies: what tools get as `ToolContext.dependencies`.
        execution_id: the id of the execution; drawn when left out.
        goes_on: whether the execution is in the loop's journal, and is gone on with.

    Raises:
        Interrupted: by Ctrl-C, also while a person is being asked.
    """
    if goes_on and execution_id is not None:
        state = executed(loop.recover(execution_id, dependencies=dependencies))
    else:
        state = executed(loop.execute(question, execution_id=execution_id, dependencies=dependencies))
    try:
        while decisions := decided(state, decide):
            state = executed(loop.resume(state, decisions, dependencies=dependencies))
    except KeyboardInterrupt:
        raise Interrupted(printable(state.explain())) from None
    return state


def executed(execution: Coroutine[object, object, AgentState]) -> AgentState:
    """Run an execution of a loop to its end, in an event loop made for it.

    Raises:
        Interrupted: by Ctrl-C; with the account of what was done until then.
    """
    return asyncio.run(_interruptible(execution))


async def _interruptible(execution: Coroutine[object, object, AgentState]) -> AgentState:
    try:
        return await execution
    except asyncio.CancelledError as cancelled:  # asyncio makes Ctrl-C of the first signal a cancellation
        state = getattr(cancelled, "agent_state", None)
        account = printable(state.explain()) if isinstance(state, AgentState) else "nothing was done yet"
        raise Interrupted(account) from None
