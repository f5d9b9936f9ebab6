"""Starting and stopping a resource that several executions share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from attrs import define, field

from agentloop._shielding import is_task_cancelled

Hook: TypeAlias = Callable[[], Awaitable[object] | object]
"""A function without parameters, plain or async."""

_LOG = logging.getLogger("agentloop.tools.ensembles")


class Lifecycle:
    """Counts the holders of a resource in each event loop: the first hold starts it, the last release stops it.

    A failed start is logged and remembered until the last holder has released it; the next hold after that tries again.
    """

    __slots__ = ("_usages",)

    def __init__(self) -> None:
        self._usages: WeakKeyDictionary[asyncio.AbstractEventLoop, _Usage] = WeakKeyDictionary()

    async def hold(self, name: str, start: Hook | None) -> None:
        """Start the resource unless it is started.

        Args:
            name: the name of the resource, for the log.
            start: starts it; None when nothing has to be done.

        Raises:
            asyncio.CancelledError: when cancelled while starting; then it is not held.
        """
        usage = self._usages.setdefault(asyncio.get_running_loop(), _Usage())
        usage.holders += 1
        try:
            async with usage.lock:
                if not usage.started:
                    usage.failure = await _run_hook(start, name, "started")
                    usage.started = True
        except BaseException:
            usage.holders -= 1
            raise

    async def release(self, name: str, stop: Hook | None) -> None:
        """Stop the resource when this was the last holder and it was started; a failure is logged."""
        usage = self._usages.get(asyncio.get_running_loop())
        if usage is None or not usage.holders:
            return
        usage.holders -= 1
        async with usage.lock:
            if usage.holders or not usage.started:  # another execution may have held it while we waited for the lock
                return
            start_failed = bool(usage.failure)
            # Reset before the stop: when that is cancelled, the resource is not to be used any more either.
            usage.started, usage.failure = False, ""
            if not start_failed:
                await _run_hook(stop, name, "stopped")

    def diagnose(self) -> str:
        """Return why the resource cannot be used in the running event loop; empty when it can."""
        usage = self._usages.get(asyncio.get_running_loop())
        if usage is None or not usage.started:
            return "it was not started: pass the ensemble, not its tools, to an AgentLoop"
        return usage.failure


@define(eq=False)
class _Usage:
    """The use of a resource in one event loop."""

    holders: int = 0
    started: bool = False
    failure: str = ""
    lock: asyncio.Lock = field(factory=asyncio.Lock)


async def _run_hook(hook: Hook | None, name: str, action: str) -> str:
    """Call a hook; return what went wrong, or an empty text."""
    if hook is None:
        return ""
    try:
        outcome = hook()
        if isinstance(outcome, Awaitable):
            await outcome
    except (Exception, asyncio.CancelledError) as error:  # logged here, and reported by every call of a tool
        if isinstance(error, asyncio.CancelledError) and is_task_cancelled():
            raise
        _LOG.exception("the ensemble %s could not be %s", name, action)
        return f"it could not be {action}: {type(error).__name__}: {error}"
    return ""
