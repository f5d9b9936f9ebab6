"""The connections of the HTTP front: how many there may be, and how long each may wait."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agentloop.server.operations import ServerLimits

logger: logging.Logger = logging.getLogger("agentloop.server.http")

BACKLOG = 64
"""The connections that the system accepts before the server takes them; each turn of the event loop takes them all."""
MAX_HEAD_BYTES = 32 * 1024
"""The size of the head of a request: its first line and its headers."""
_RESERVED_FILES = 320
"""The files that a process can open besides connections: journals, models, tools, and connections that are being taken or closed."""
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nretry-after: 5\r\nconnection: close\r\n\r\n"
    b'{"type":"about:blank","status":503,"code":"busy","detail":"too many connections are open; try again later"}'
)


class Connections:
    """The open connections of a server. When there are too many, it closes the one that has waited for a request the longest.

    A connection waits from its beginning until the head of a request is complete, and again when the answer is sent. Another one,
    such as a stream of events that is followed, is never closed for a new one: if none waits, the new one is refused.

    Args:
        limits: the limits on clients.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._most = min(limits.connections, _spare_files())
        self._open: dict[str, int] = defaultdict(int)
        self._waiting: dict[LimitedProtocol, None] = {}  # in the order in which they began to wait
        self._waiting_at: dict[str, dict[LimitedProtocol, None]] = defaultdict(dict)
        self._count = 0
        self._is_full = False

    def protocol(self) -> Callable[..., LimitedProtocol]:
        """Return what makes the protocol of each connection, for uvicorn."""
        return partial(LimitedProtocol, open_connections=self, limits=self._limits)

    def add(self, connection: LimitedProtocol) -> None:
        """Add a connection, which waits, and close one if there are too many."""
        self._count += 1
        self._open[connection.address] += 1
        self.begin_wait(connection)
        if self._open[connection.address] > self._limits.connections_per_address:
            self._close_one(self._waiting_at[connection.address], connection)
        elif self._count > self._most:
            self._close_one(self._waiting, connection)

    def remove(self, connection: LimitedProtocol) -> None:
        """Remove a connection that has ended."""
        self.end_wait(connection)
        self._count -= 1
        self._open[connection.address] -= 1
        if not self._open[connection.address]:
            del self._open[connection.address]
            self._waiting_at.pop(connection.address, None)
        self._is_full = self._is_full and self._count > self._most // 2

    def begin_wait(self, connection: LimitedProtocol) -> None:
        """Note that a connection waits for a request from now on."""
        self._waiting[connection] = self._waiting_at[connection.address][connection] = None

    def end_wait(self, connection: LimitedProtocol) -> None:
        """Note that a connection does not wait for a request."""
        self._waiting.pop(connection, None)
        self._waiting_at[connection.address].pop(connection, None)

    def _close_one(self, waiting: dict[LimitedProtocol, None], new: LimitedProtocol) -> None:
        if not self._is_full:
            self._is_full = True
            logger.warning(
                "there are too many connections (%s in all, %s from %s): those that wait the longest are closed",
                self._count,
                self._open[new.address],
                new.address or "there",
            )
        oldest = next(iter(waiting))
        self.end_wait(oldest)
        if oldest is new:
            new.transport.write(_REFUSAL)
        oldest.close()


def _spare_files() -> float:
    """Return how many connections the process can have open."""
    if sys.platform == "win32":
        return float("inf")
    import resource  # noqa: PLC0415  # not on Windows

    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return float("inf") if most == resource.RLIM_INFINITY else most - min(_RESERVED_FILES, most // 2)


class LimitedProtocol(H11Protocol):
    """A connection that is closed when a request, or the client's acceptance of an answer, takes too long.

    uvicorn has no limit on either: it waits for the rest of a request, and for a client that receives nothing, without end.

    Args:
        open_connections: all connections of the server.
        limits: the limits on clients.

    Attributes:
        address: where the client is: an address of IPv4, or the network of one of IPv6, of which one client has many.
    """

    def __init__(self, *args: Any, open_connections: Connections, limits: ServerLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.address: str = ""
        self._all = open_connections
        self._limits = limits
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.address = _network_of(transport.get_extra_info("peername"))
        _notice_absence(transport.get_extra_info("socket"), self._limits.send_seconds)
        self._all.add(self)
        self._limit_wait()

    def data_received(self, data: bytes) -> None:
        """Handle a part of a request."""
        super().data_received(data)
        self._limit_wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._end_soon()
        elif self._waits:
            self._all.begin_wait(self)
        self._limit_wait()

    def pause_writing(self) -> None:
        """Limit the time in which the client does not receive what was sent."""
        super().pause_writing()
        self._end_soon()

    def resume_writing(self) -> None:
        """End that limit."""
        super().resume_writing()
        _cancel(self._end)
        self._end = None

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that gets no further request."""
        self.close()

    def close(self) -> None:
        """Close the connection, without what is not sent if the client does not receive it in time."""
        self.transport.close()
        self._end_soon()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the waits."""
        _cancel(self._timer)
        _cancel(self._end)
        self._timer = self._end = None
        self._all.remove(self)
        super().connection_lost(exc)

    @property
    def _waits(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, which its type leaves out
        return cycle is None or cycle.response_complete

    def _limit_wait(self) -> None:
        if not self._waits:
            _cancel(self._timer)
            self._timer = None
            self._all.end_wait(self)
        elif self._timer is None:
            self._timer = self.loop.call_later(self._limits.header_seconds, self._close_slow)

    def _close_slow(self) -> None:
        self._timer = None
        if self._waits:
            self.close()

    def _end_soon(self) -> None:
        if self._end is None:
            self._end = self.loop.call_later(self._limits.send_seconds, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _network_of(peer: Any) -> str:
    """Return the address of a client, or its network of 64 bits; empty for a client without one."""
    try:
        address = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    except (TypeError, IndexError, ValueError):
        return ""
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))


def _notice_absence(connection: socket.socket | None, seconds: float) -> None:
    """Let the system end a connection whose client has vanished, which otherwise takes it a quarter of an hour and more."""
    if connection is None or connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
