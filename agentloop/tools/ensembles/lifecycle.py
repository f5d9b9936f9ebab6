"""Starting and stopping what several executions need at the same time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeAlias
from weakref import WeakKeyDictionary

from attrs import define, field

Hook: TypeAlias = Callable[[], Awaitable[object] | object]
"""A function without parameters, plain or async."""

_LOG = logging.getLogger("agentloop.tools.ensembles")


@define(eq=False)
class _Held:
    """What is known about one event loop."""

    count: int = 0
    started: bool = False
    failure: str = ""
    lock: asyncio.Lock = field(factory=asyncio.Lock)


class Lifecycle:
    """Counts who needs a thing in each event loop: the first one starts it, the last one stops it.

    A failure is logged and remembered until the last one has let go; after that, the next one tries again.
    """

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: WeakKeyDictionary[asyncio.AbstractEventLoop, _Held] = WeakKeyDictionary()

    async def hold(self, name: str, start: Hook | None) -> None:
        """Start it unless it is.

        Args:
            name: what it is, for the log.
            start: starts it; None when nothing has to be done.

        Raises:
            asyncio.CancelledError: when cancelled meanwhile; then it is not held.
        """
        held = self._held.setdefault(asyncio.get_running_loop(), _Held())
        held.count += 1
        try:
            async with held.lock:
                if not held.started:
                    held.failure = await _tried(start, name, "started")
                    held.started = True
        except BaseException:
            held.count -= 1
            raise

    async def release(self, name: str, stop: Hook | None) -> None:
        """Stop it when nobody else holds it and it was started; a failure is logged."""
        held = self._held.get(asyncio.get_running_loop())
        if held is None or not held.count:
            return
        held.count -= 1
        async with held.lock:
            if held.count or not held.started:
                return
            failed = held.failure
            held.started, held.failure = False, ""  # first: a stop that is cancelled has ended what was started, too
            if not failed:
                await _tried(stop, name, "stopped")

    def problem(self) -> str:
        """Say why it cannot be used in the running event loop; empty when it can."""
        held = self._held.get(asyncio.get_running_loop())
        if held is None or not held.started:
            return "it was not started: give the ensemble, not its tools, to an AgentLoop"
        return held.failure


async def _tried(hook: Hook | None, name: str, what: str) -> str:
    """Call a hook; return what went wrong."""
    if hook is None:
        return ""
    try:
        outcome = hook()
        if isinstance(outcome, Awaitable):
            await outcome
    except Exception as error:  # noqa: BLE001  # logged, and told by every call of a tool
        _LOG.exception("the ensemble %s could not be %s", name, what)
        return f"it could not be {what}: {type(error).__name__}: {error}"
    return ""
