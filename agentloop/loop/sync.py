"""Running a loop from a program without an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from agentloop.values.state import AgentState

T = TypeVar("T")


def run_sync(start: Callable[[], Coroutine[Any, Any, AgentState]]) -> AgentState:
    """Run a coroutine to its end in a new event loop.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside_event_loop("execute_sync", "await loop.execute(…)")
    results: list[AgentState] = []
    asyncio.run(_store(start(), results))
    return results[0]


def iterate_sync(start: Callable[[], AsyncGenerator[AgentState, None]]) -> Iterator[AgentState]:
    """Iterate over an async generator in a new event loop, which is idle between the items.

    Raises:
        RuntimeError: inside a running event loop.
    """
    _refuse_inside_event_loop("iterate_sync", "async for state in loop.iterate(…)")
    return _iterate(start)


def _iterate(start: Callable[[], AsyncGenerator[AgentState, None]]) -> Iterator[AgentState]:
    with asyncio.Runner() as runner:
        states = start()
        try:
            while True:
                results: list[AgentState | None] = []
                runner.run(_store(_next(states), results))
                if results[0] is None:
                    return
                yield results[0]
        finally:
            runner.run(_close(states))


async def _store(awaitable: Awaitable[T], results: list[T]) -> None:
    # The task must not hold the state as its result: `asyncio.Runner` calls `signal.getsignal`, which makes a repr of the
    # runner's handler, of its task and of the task's result, in other words of the whole conversation.
    results.append(await awaitable)


async def _next(states: AsyncGenerator[AgentState, None]) -> AgentState | None:
    return await anext(states, None)


async def _close(states: AsyncGenerator[AgentState, None]) -> None:
    await states.aclose()


def _refuse_inside_event_loop(name: str, alternative: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(f"{name} cannot be used inside a running event loop; use {alternative}")
