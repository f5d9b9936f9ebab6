"""Running a loop from a program that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from agentloop.values.state import AgentState

T = TypeVar("T")


def run_sync(start: Callable[[], Coroutine[Any, Any, AgentState]]) -> AgentState:
    """Run to the end in an event loop made for it.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside("execute_sync", "await loop.execute(…)")
    ended: list[AgentState] = []
    asyncio.run(_kept(start(), ended))
    return ended[0]


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
            while True:
                taken: list[AgentState | None] = []
                runner.run(_kept(_next(states), taken))
                if taken[0] is None:
                    return
                yield taken[0]
        finally:
            runner.run(_close(states))


async def _kept(result: Awaitable[T], kept: list[T]) -> None:
    """Put a result where the task that waits for it does not hold it.

    `asyncio.Runner` asks `signal.getsignal` for its own handler, and that makes a repr of it, of its task, and so of the
    task's result: for a state that is as long as the conversation.
    """
    kept.append(await result)


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
