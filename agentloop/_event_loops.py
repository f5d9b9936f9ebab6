"""The event loops that the package starts itself: those of uvloop if it is installed (extra `fast`)."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeVar

T = TypeVar("T")

_VARIABLE = "AGENTLOOP_EVENT_LOOP"
_LAST_WITH_POLICIES = (3, 13)
"""The last version of Python in which to ask for the policy gives no warning."""


def run_in_event_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in a new event loop, as `asyncio.run` does.

    Raises:
        RuntimeError: inside a running event loop.
        Exception: any error of the coroutine.
    """
    with new_runner() as runner:
        return run_with(runner, work)


def run_with(runner: asyncio.Runner, work: Awaitable[T]) -> T:
    """Await something to its end in the event loop of a runner, as its method `run` does.

    Raises:
        RuntimeError: inside a running event loop.
        Exception: any error of what is awaited.
    """
    results: list[T] = []

    # The task must not hold the result: `asyncio.Runner` calls `signal.getsignal` and `signal.signal`, each of which makes a repr of
    # the runner's handler, of its task and of the task's result, which may be a whole conversation.
    async def keep_result() -> None:
        results.append(await work)

    runner.run(keep_result())
    return results[0]


def new_runner() -> asyncio.Runner:
    """Return a runner with an event loop of its own."""
    return asyncio.Runner(loop_factory=loop_factory())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, which cannot run another one then; None without one."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes event loops; None for asyncio, as without uvloop and where a program has chosen another policy."""
    if os.environ.get(_VARIABLE) == "asyncio" or _has_own_policy():
        return None
    return _uvloop_factory()


def _has_own_policy() -> bool:
    if sys.version_info[:2] > _LAST_WITH_POLICIES:
        return False
    return type(asyncio.get_event_loop_policy()) is not asyncio.DefaultEventLoopPolicy


@cache
def _uvloop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if find_spec("uvloop") is None:
        return None
    import uvloop  # noqa: PLC0415  # loaded with the first event loop

    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory
