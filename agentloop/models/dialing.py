"""Connected sockets: the addresses of a host are tried one after another, each a little later than the one before (RFC 8305).

`asyncio` does the same with `happy_eyeballs_delay`, but when the caller is cancelled, it forgets a socket that was just connected.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeAlias

_Address: TypeAlias = tuple[int, int, int, str, Any]
"""The family, the type, the protocol, the canonical name and the address of a socket, as `getaddrinfo` gives them."""


async def connect_socket(host: str, port: int, delay: float) -> socket.socket:
    """Return a socket that is connected to a host. The caller owns it; when the call raises, none is left open.

    Args:
        host: the name or the address.
        port: the port.
        delay: the seconds after which the next address is tried, while the attempts before it go on.

    Raises:
        OSError: the name is not known, or no address could be connected to.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    attempts: list[asyncio.Task[socket.socket]] = []
    winner: asyncio.Task[socket.socket] | None = None
    try:
        for address in _alternate(found):
            attempts.append(asyncio.create_task(_connect(address)))
            winner = await _first_connected(attempts, delay)
            if winner is not None:
                break
        winner = winner or await _first_connected(attempts, None)
        if winner is None:
            raise _failure(host, attempts)
        return winner.result()
    finally:
        try:
            await _give_up([attempt for attempt in attempts if attempt is not winner])
        except BaseException:
            if winner is not None:
                _close(winner)
            raise


async def _connect(address: _Address) -> socket.socket:
    family, kind, protocol, _, target = address
    made = socket.socket(family, kind, protocol)
    try:
        made.settimeout(0)
        await asyncio.get_running_loop().sock_connect(made, target)
    except BaseException:
        made.close()
        raise
    return made


def _alternate(found: Sequence[_Address]) -> Iterable[_Address]:
    """Return addresses in their order, with the families in turn, so that a family that does not work costs one delay."""
    families = dict.fromkeys(address[0] for address in found)
    by_family = [[address for address in found if address[0] == family] for family in families]
    return [address for address in chain.from_iterable(zip_longest(*by_family)) if address is not None]


async def _first_connected(
    attempts: Sequence[asyncio.Task[socket.socket]], seconds: float | None
) -> asyncio.Task[socket.socket] | None:
    """Wait until an attempt has connected, all have failed, or the last one has failed within the time; return the one that has."""
    while True:
        connected = next((attempt for attempt in attempts if attempt.done() and attempt.exception() is None), None)
        pending = [attempt for attempt in attempts if not attempt.done()]
        if connected is not None or not pending or (seconds is not None and attempts[-1].done()):
            return connected
        done, _ = await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return None


async def _give_up(attempts: Sequence[asyncio.Task[socket.socket]]) -> None:
    """End attempts and close their sockets, also if this is cancelled."""
    for attempt in attempts:
        attempt.add_done_callback(_close)
        attempt.cancel()
    pending = [attempt for attempt in attempts if not attempt.done()]
    if pending:
        await asyncio.wait(pending)


def _close(attempt: asyncio.Task[socket.socket]) -> None:
    if not attempt.cancelled() and attempt.exception() is None:
        attempt.result().close()


def _failure(host: str, attempts: Sequence[asyncio.Task[socket.socket]]) -> OSError:
    errors = [error for attempt in attempts if (error := attempt.exception()) is not None]
    if len(errors) == 1 and isinstance(errors[0], OSError):
        return errors[0]
    reasons = "; ".join(dict.fromkeys(map(str, errors)))
    return OSError(f"none of the addresses of {host} could be connected to: {reasons or 'it has none'}")
