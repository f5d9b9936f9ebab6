"""Connections that are kept between requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

_MOST_IDLE = 100


class Connection(Protocol):
    """A connection, of the shape of an httpx transport."""

    async def handle_async_request(self, request: Any, /) -> Any:
        """Send a request and wait for the head of the answer."""

    async def aclose(self) -> None:
        """Close it."""


class Connections:
    """Connections, each on its own.

    httpx's pool looks through all of its connections for each request, so that with hundreds of requests under way most
    of the time goes there; a list of idle ones costs the same for ten and for a thousand.

    Args:
        opened: makes a connection.
    """

    def __init__(self, opened: Callable[[], Connection]) -> None:
        self._opened = opened
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        """Take an idle connection, or a new one."""
        return self._idle.pop() if self._idle else self._opened()

    async def give_back(self, connection: Connection, *, usable: bool) -> None:
        """Take a connection back, and close it when it is not usable, not wanted any more, or one too many."""
        if usable and not self._closed and len(self._idle) < _MOST_IDLE:
            self._idle.append(connection)
        else:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close the idle connections; those on loan are closed when they come back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.aclose()
