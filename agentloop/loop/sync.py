"""Running a loop from a program that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any

from agentloop.values.agent_state import AgentState


def run_sync(start: Callable[[], Coroutine[Any, Any, AgentState]]) -> AgentState:
    """Run to the end in an event loop made for it.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside("execute_sync", "await loop.execute(…)")
    return asyncio.run(start())


def states_sync(start: Callable[[], AsyncGenerator[AgentState, None]]) -> Iterator[AgentState]:
    """Run step by step in an event loop made for it, which stands still between steps.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside("iterate_sync", "async for state in loop.iterate(…)")
    return _states(start)


def _states(start: Callable[[], AsyncGenerator[AgentState, None]]) -> Iterator[AgentState]:
    with asyncio.Runner() as runner:
        states = start()
        try:
            while (state := runner.run(_next(states))) is not None:
                yield state
        finally:
            runner.run(_close(states))


async def _next(states: AsyncGenerator[AgentState, None]) -> AgentState | None:
    return await anext(states, None)


async def _close(states: AsyncGenerator[AgentState, None]) -> None:
    await states.aclose()


def _refuse_inside(name: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{name} cannot be used inside a running event loop; use {instead}")
