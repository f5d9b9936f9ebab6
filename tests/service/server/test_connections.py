"""Connections are limited in all and by address; the one that has waited the longest makes room for a new one."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from agentloop import AgentLoop
from agentloop.durable import MemoryJournal
from agentloop.service.server import ServerLimits
from agentloop.service.server.connections import network_of
from agentloop.service.server.serving import _LimitedProtocol
from tests.service.server.front import DEADLINE, GatedInference, adder, payer, serving, start

HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
STREAM = b"GET /executions/ada:bill/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ada-token\r\n\r\n"


class Sockets:
    """Connections that are opened by hand, all of which are closed at the end."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._port = client.base_url.port
        self._writers: list[asyncio.StreamWriter] = []

    async def open(self, sent: bytes = b"", *, source: str = "127.0.0.1") -> asyncio.StreamReader:
        """Open a connection from an address of this machine, and send the beginning of a request."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, local_addr=(source, 0))
        self._writers.append(writer)
        writer.write(sent)
        return reader

    async def ask(self, *, source: str = "127.0.0.1") -> bytes:
        """Return the first line of the answer to a request on a connection of its own."""
        reader = await self.open(HEAD + b"Connection: close\r\n\r\n", source=source)
        async with asyncio.timeout(DEADLINE):
            return (await reader.read()).partition(b"\r\n")[0]

    def close(self) -> None:
        """Close all of them."""
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def limited(agents: Any = None, **limits: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Sockets]]:
    """Run a server with limits, and yield a client and sockets."""
    agents = payer(MemoryJournal()) if agents is None else agents
    async with serving(agents, limits=ServerLimits(header_seconds=DEADLINE, **limits)) as client:
        sockets = Sockets(client)
        try:
            yield client, sockets
        finally:
            sockets.close()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server closes a connection in time."""
    try:
        async with asyncio.timeout(DEADLINE):
            return await reader.read() == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nhost:", HEAD + b"x: y\r\n"])
async def test_a_request_is_answered_however_many_connections_wait(sent: bytes) -> None:
    """Connections that send nothing, or the beginning of a request, take the place of no other client."""
    async with limited(connections=8) as (_, sockets):
        readers = [await sockets.open(sent) for _ in range(40)]
        assert await sockets.ask() == b"HTTP/1.1 200 OK"
        assert await is_closed(readers[0])


async def test_the_connection_that_has_waited_the_longest_is_closed_first() -> None:
    """Of two connections that wait, the older one makes room, whichever was used last."""
    async with limited(connections=3) as (_, sockets):
        first, second = await sockets.open(), await sockets.open()
        assert await sockets.ask() == b"HTTP/1.1 200 OK"
        third, _ = await sockets.open(), await sockets.open()
        assert await is_closed(first)
        assert not second.at_eof()
        assert not third.at_eof()


async def test_an_answered_connection_waits_from_its_answer_on() -> None:
    """A connection whose request was answered last is younger than one that was opened after it."""
    async with limited(connections=2) as (client, sockets):
        assert (await client.get("/health")).status_code == 200  # its connection stays open
        idle = await sockets.open()
        assert (await client.get("/health")).status_code == 200
        await sockets.open()
        assert await is_closed(idle)
        assert (await client.get("/health")).status_code == 200


async def test_a_stream_that_is_followed_is_not_closed_for_new_connections() -> None:
    """A connection with a request in progress is not one that waits."""
    async with limited(connections=4) as (client, sockets):
        await start(client, id="bill")
        stream = await sockets.open(STREAM)
        assert (await stream.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        for _ in range(20):
            await sockets.open()
        await client.post("/executions/ada:bill/stop")
        async with asyncio.timeout(DEADLINE):
            assert b"execution_ended" in await stream.read()


async def test_a_connection_is_refused_when_none_waits() -> None:
    """When every connection has a request in progress, a new one gets 503, and a place is free when one ends."""
    async with limited(connections=2) as (client, sockets):
        await start(client, id="bill")
        await client.aclose()
        streams = [await sockets.open(STREAM) for _ in range(2)]
        for stream in streams:
            assert (await stream.readuntil(b"\r\n")).startswith(b"HTTP/1.1 200")
        refused = await sockets.open(HEAD + b"\r\n")
        async with asyncio.timeout(DEADLINE):
            answer = await refused.read()
        assert answer.startswith(b"HTTP/1.1 503")
        assert b'"code":"busy"' in answer
        sockets.close()
        async with asyncio.timeout(DEADLINE):
            while await sockets.ask() != b"HTTP/1.1 200 OK":  # until the server notices that they are closed
                continue


async def test_one_address_cannot_take_the_places_of_all() -> None:
    """The limit for an address closes connections of that address only, and other addresses have their own."""
    async with limited(connections=20, connections_per_address=4) as (_, sockets):
        other = await sockets.open(source="127.0.0.2")
        readers = [await sockets.open() for _ in range(12)]
        assert await is_closed(readers[0])
        assert await sockets.ask(source="127.0.0.2") == b"HTTP/1.1 200 OK"
        assert await sockets.ask() == b"HTTP/1.1 200 OK"
        assert not other.at_eof()


async def test_the_files_that_the_process_may_open_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server has no more connections than its process can have files, less those that it needs itself."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, 16))
    async with limited() as (_, sockets):
        readers = [await sockets.open() for _ in range(20)]
        assert await sockets.ask() == b"HTTP/1.1 200 OK"
        assert await is_closed(readers[0])


async def test_a_client_that_receives_nothing_is_let_go() -> None:
    """An answer that the client does not receive, and one that it receives in part, hold their connection for a limited time."""
    ended = asyncio.Event()
    lost = _LimitedProtocol.connection_lost

    def note_end(connection: _LimitedProtocol, error: Exception | None) -> None:
        ended.set()
        lost(connection, error)

    async with limited(adder(MemoryJournal()), send_seconds=0.3) as (client, _):
        await start(client, id="sum", input="x" * 900_000)
        await client.get("/executions/ada:sum", params={"wait": 10})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_LimitedProtocol, "connection_lost", note_end)
            with socket.socket() as deaf:
                deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                deaf.setblocking(False)  # noqa: FBT003  # of sockets
                await asyncio.get_running_loop().sock_connect(deaf, ("127.0.0.1", client.base_url.port))
                request = b"GET /executions/ada:sum/state HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ada-token\r\n\r\n"
                await asyncio.get_running_loop().sock_sendall(deaf, request * 8)
                async with asyncio.timeout(DEADLINE):
                    await ended.wait()


async def test_the_requests_that_wait_for_an_end_are_limited() -> None:
    """A principal with as many waiting requests as allowed gets no other one; requests that do not wait are answered."""
    model = GatedInference()
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), streaming=True)
    async with limited(loop, waits=1) as (client, _):
        await start(client, id="lamps")
        waits = [asyncio.create_task(client.get("/executions/ada:lamps", params={"wait": 60})) for _ in range(2)]
        done, waiting = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result().status_code for task in done] == [429]
        assert (await client.get("/executions/ada:lamps")).status_code == 200
        model.gate.set()
        assert [(await task).json()["text"] for task in waiting] == ["Three lamps are left."]


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        (("192.0.2.7", 1), "192.0.2.7"),
        (("::ffff:192.0.2.7", 1, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 1, 0, 2), "fe80::/64"),
        (("", 0), ""),
        ("", ""),
        (None, ""),
    ],
)
def test_a_client_of_ipv6_is_known_by_its_network(peer: Any, network: str) -> None:
    """One client can have all addresses of a network of 64 bits."""
    assert network_of(peer) == network
