"""Connected sockets: whatever happens while one is made, none is left open."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings
from typing import Any

import pytest

from agentloop.models.dialing import connect_socket
from agentloop.values.policies import RetryPolicy
from tests.models.loopback import loopback, stall
from tests.models.loopback_inference import QUESTION, inference_for


def address(port: int) -> tuple[Any, ...]:
    return (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))


def closed_port() -> int:
    """Return a port at which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def resolve_to(monkeypatch: pytest.MonkeyPatch, *ports: int) -> None:
    """Let every host have these ports of this machine as its addresses."""

    async def getaddrinfo(*_: object, **__: object) -> list[tuple[Any, ...]]:
        return [address(port) for port in ports]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("backend", ["httpx", "httptools"])
def test_a_request_that_is_cancelled_while_it_connects_leaves_no_socket(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In whichever turn of the event loop the cancellation comes, each socket is closed."""
    monkeypatch.setattr("agentloop.models.http_client._default_transport", lambda: backend)

    async def cancel_after(turns: int) -> None:
        async with loopback(*[stall()] * 2) as server:
            inference = inference_for(server, retry=RetryPolicy(max_attempts=1))
            task = asyncio.ensure_future(inference.infer(QUESTION))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        for turns in range(1, 30):
            asyncio.run(cancel_after(turns))
        gc.collect()


async def test_the_next_address_is_tried_when_one_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host is reached by any of its addresses, without a wait behind one that has failed."""
    async with loopback() as server:
        resolve_to(monkeypatch, closed_port(), server.port)
        made = await connect_socket("host.example", 1, delay=3600)
        assert made.getpeername()[1] == server.port
        made.close()


async def test_all_addresses_are_tried_at_the_same_time_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first socket that connects is the one; those of the others are closed."""
    async with loopback() as server:
        resolve_to(monkeypatch, *[server.port] * 3)
        made = await connect_socket("host.example", 1, delay=0)
        assert made.getpeername()[1] == server.port
        made.close()
        await server.all_closed()


async def test_an_error_names_every_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no address answers, the error is that of the system, or names them all."""
    resolve_to(monkeypatch, closed_port())
    with pytest.raises(ConnectionRefusedError):
        await connect_socket("host.example", 1, delay=0.25)
    resolve_to(monkeypatch, closed_port(), closed_port())
    with pytest.raises(OSError, match=r"none of the addresses of host\.example could be connected to: .*Connect"):
        await connect_socket("host.example", 1, delay=0.25)
