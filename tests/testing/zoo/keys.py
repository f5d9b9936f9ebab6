"""Functions that return API keys, which break one law each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from agentloop.testing import KeyFunctionKit
from agentloop.values.secrets import Secret
from tests.testing.zoo.zoo import Member

LEFT: list[object] = []
Source = Callable[[], Awaitable[str]]


class AsksEachTime:
    """Keeps all laws; the classes below break one each."""

    def __init__(self, source: Source) -> None:
        self.source = source

    async def __call__(self) -> str | Secret:
        return await self.source()


class AsksAtOnce(AsksEachTime):
    """Breaks law 49: the key is asked for when the function is made, although nobody needs it yet."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        with suppress(StopIteration):
            source().__await__().send(None)


class KeepsTheFirst(AsksEachTime):
    """Breaks law 49: a key that was rotated is still the old one."""

    key: str = ""

    async def __call__(self) -> str | Secret:
        self.key = self.key or await self.source()
        return self.key


class FallsBackToTheLast(AsksEachTime):
    """Breaks law 49: where the source fails, the last key is returned, which was withdrawn."""

    key: str = ""

    async def __call__(self) -> str | Secret:
        with suppress(OSError):
            self.key = await self.source()
        return self.key


class ReturnsEmptyText(AsksEachTime):
    """Breaks law 49: a failure is an empty key."""

    async def __call__(self) -> str | Secret:
        try:
            return await self.source()
        except OSError:
            return ""


class AddsALine(AsksEachTime):
    """Breaks law 49: the key is what a file has, with the end of its line."""

    async def __call__(self) -> str | Secret:
        return f"{await self.source()}\n"


class ShowsTheKey(AsksEachTime):
    """Breaks law 18: the repr has the last key."""

    key: str = ""

    async def __call__(self) -> str | Secret:
        self.key = await self.source()
        return self.key

    def __repr__(self) -> str:
        return f"ShowsTheKey({self.key!r})"


class LogsTheKey(AsksEachTime):
    """Breaks law 18: the log has each key."""

    async def __call__(self) -> str | Secret:
        key = await self.source()
        logging.getLogger("vault").debug("fetched %s", key)
        return key


class PrintsTheKey(AsksEachTime):
    """Breaks law 18: the key was printed once, to see whether it arrives."""

    async def __call__(self) -> str | Secret:
        key = await self.source()
        print(key)  # noqa: T201  # what it is about
        return key


class RefreshesInTheBackground(AsksEachTime):
    """Breaks law 19: a task goes on that asks for the next key."""

    async def __call__(self) -> str | Secret:
        LEFT.append(asyncio.ensure_future(asyncio.sleep(3600)))
        return await self.source()


class SharesARequest(AsksEachTime):
    """Breaks law 9: callers at the same time share a request, which ends for all when one of them is cancelled."""

    running: asyncio.Future[str] | None = None

    async def __call__(self) -> str | Secret:
        if self.running is None or self.running.done():
            self.running = asyncio.ensure_future(self.source())
        return await self.running


class SwallowsCancellation(AsksEachTime):
    """Breaks law 34: a caller that is cancelled gets a key."""

    async def __call__(self) -> str | Secret:
        try:
            return await self.source()
        except asyncio.CancelledError:
            return "key"


class KeepsItsLock(AsksEachTime):
    """Breaks law 34: after a caller that was cancelled, nobody gets a key any more."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self.lock = asyncio.Lock()

    async def __call__(self) -> str | Secret:
        await self.lock.acquire()
        try:
            key = await self.source()
        except OSError:
            self.lock.release()
            raise
        self.lock.release()
        return key


class FetchesWithABlockingClient(AsksEachTime):
    """Breaks law 45: the event loop waits for the vault."""

    async def __call__(self) -> str | Secret:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        return await super().__call__()


def _key(law: int, function: Callable[[Source], AsksEachTime]) -> Member:
    return Member(function, law, lambda examples: KeyFunctionKit(function, examples=examples))


KEYS: tuple[Member, ...] = (
    _key(9, SharesARequest),
    _key(18, ShowsTheKey),
    _key(18, LogsTheKey),
    _key(18, PrintsTheKey),
    _key(19, RefreshesInTheBackground),
    _key(34, SwallowsCancellation),
    _key(34, KeepsItsLock),
    _key(45, FetchesWithABlockingClient),
    _key(49, AsksAtOnce),
    _key(49, KeepsTheFirst),
    _key(49, FallsBackToTheLast),
    _key(49, ReturnsEmptyText),
    _key(49, AddsALine),
)
