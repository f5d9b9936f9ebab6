"""Executions that a person can interrupt."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine

from agentloop.cli.interrupted import Interrupted
from agentloop.cli.terminal_text import printable
from agentloop.values.agent_state import AgentState


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
