"""The connections of the HTTP front: how many there may be, and how long each may wait."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import sys
from collections import defaultdict
from typing import Any, Protocol

from agentloop.service.server.operations import ServerLimits

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


class CanWait(Protocol):
    """A connection of a client.

    Attributes:
        address: where the client is: an address of IPv4, or the network of one of IPv6, of which one client has many.
        transport: its transport.
    """

    address: str
    transport: asyncio.Transport

    def close(self) -> None:
        """Close it."""


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
        self._waiting: dict[CanWait, None] = {}  # in the order in which they began to wait
        self._waiting_at: dict[str, dict[CanWait, None]] = defaultdict(dict)
        self._count = 0
        self._is_full = False

    def add(self, connection: CanWait) -> None:
        """Add a connection, which waits, and close one if there are too many."""
        self._count += 1
        self._open[connection.address] += 1
        self.begin_wait(connection)
        if self._open[connection.address] > self._limits.connections_per_address:
            self._close_one(self._waiting_at[connection.address], connection)
        elif self._count > self._most:
            self._close_one(self._waiting, connection)

    def remove(self, connection: CanWait) -> None:
        """Remove a connection that has ended."""
        self.end_wait(connection)
        self._count -= 1
        self._open[connection.address] -= 1
        if not self._open[connection.address]:
            del self._open[connection.address]
            self._waiting_at.pop(connection.address, None)
        self._is_full = self._is_full and self._count > self._most // 2

    def begin_wait(self, connection: CanWait) -> None:
        """Note that a connection waits for a request from now on."""
        self._waiting[connection] = self._waiting_at[connection.address][connection] = None

    def end_wait(self, connection: CanWait) -> None:
        """Note that a connection does not wait for a request."""
        self._waiting.pop(connection, None)
        self._waiting_at[connection.address].pop(connection, None)

    def _close_one(self, waiting: dict[CanWait, None], new: CanWait) -> None:
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


def network_of(peer: Any) -> str:
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


def notice_absence(connection: socket.socket | None, seconds: float) -> None:
    """Let the system end a connection whose client has vanished, which otherwise takes it a quarter of an hour and more."""
    if connection is None or connection.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))
