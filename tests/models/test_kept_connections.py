"""Tests of what becomes of kept connections: with event loops that end, in threads, in forked processes, and at exit."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.errors import ProviderUnavailable
from agentloop.models import connections
from agentloop.models.connections import LoopConnections, close_idle_connections, tls_context
from agentloop.testing import LawViolation
from agentloop.testing.surroundings import Surroundings
from agentloop.values.policies import RetryPolicy
from tests.certificates import certificate
from tests.limits import LONGEST
from tests.models.loopback import completion
from tests.models.loopback_inference import QUESTION, inference_for


class CountingServer(ThreadingHTTPServer):
    """A server in threads, so that it outlives the event loops of a test.

    Attributes:
        connections: the number of connections opened so far.
        open_connections: the number of those that are open.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.connections = 0
        self.open_connections = 0
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        """A base URL."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def count(self, change: int) -> None:
        """Note that a connection was opened or closed."""
        with self.changed:
            self.connections += change > 0
            self.open_connections += change
            self.changed.notify_all()

    def wait_until_open(self, count: int) -> None:
        """Wait until this many connections are open."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.open_connections == count, LONGEST), self.open_connections


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: CountingServer

    def setup(self) -> None:
        self.server.count(+1)
        super().setup()

    def finish(self) -> None:
        super().finish()
        self.server.count(-1)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = completion("hello")
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[CountingServer]:
    """Run a server."""
    with CountingServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def loop_for(server: CountingServer) -> AgentLoop:
    """Return a loop that calls the server."""
    return AgentLoop(ToolCallingDriver(inference_for(server.url)))


async def twice(loop: AgentLoop) -> None:
    """Run two executions."""
    for _ in range(2):
        assert await loop.run("Hello?") == "hello"


@pytest.fixture(params=["asyncio", "uvloop"])
def new_event_loop(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    """Return what makes event loops of a kind."""
    if request.param == "asyncio":
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = pytest.importorskip(
        "uvloop", reason="uvloop is not available for this system"
    ).new_event_loop
    return factory


def test_connections_end_with_their_event_loop(
    server: CountingServer, new_event_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """One loop in several event loops has one connection in each, which is closed when the event loop is."""
    loop = loop_for(server)
    for number in range(1, 4):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(twice(loop))
            runner.run(twice(loop))
            assert (server.connections, server.open_connections) == (number, 1)
        server.wait_until_open(0)
    gc.collect()  # a warning about what is not closed would fail the test


def test_sync_twins_leave_no_connection(server: CountingServer) -> None:
    """Each call without an event loop has one of its own, and closes what it opened."""
    loop = loop_for(server)
    for number in range(1, 3):
        assert loop.run_sync("Hello?") == "hello"
        server.wait_until_open(0)
        assert list(loop.stream_sync("Hello?"))
        server.wait_until_open(0)
        assert server.connections == 2 * number
    gc.collect()


def test_an_event_loop_that_is_closed_at_once_closes_its_idle_connections(
    server: CountingServer, new_event_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Also without what `asyncio.run` does before it closes an event loop."""
    event_loop = new_event_loop()
    event_loop.run_until_complete(twice(loop_for(server)))
    assert (server.connections, server.open_connections) == (1, 1)
    event_loop.close()
    assert event_loop.is_closed()
    server.wait_until_open(0)
    event_loop.close()
    del event_loop
    gc.collect()


async def test_an_event_loop_can_be_closed_while_another_one_runs(
    server: CountingServer, new_event_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """In the thread of the other one, too."""
    event_loop = new_event_loop()
    await asyncio.to_thread(event_loop.run_until_complete, twice(loop_for(server)))
    event_loop.close()
    server.wait_until_open(0)
    gc.collect()


def test_event_loops_are_not_kept_alive(server: CountingServer) -> None:
    """What an event loop holds of its connections goes with it."""
    alive = [each for each in gc.get_objects() if isinstance(each, LoopConnections)]
    asyncio.run(twice(loop_for(server)))
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, LoopConnections)]
    assert all(each in alive for each in left)


def test_each_thread_has_connections_of_its_own(server: CountingServer) -> None:
    """Threads with event loops do not meet in a connection."""
    loop, failures = loop_for(server), list[BaseException]()
    barrier = threading.Barrier(4)

    async def work() -> None:
        await twice(loop)
        await asyncio.to_thread(barrier.wait, LONGEST)
        await twice(loop)

    def run() -> None:
        try:
            asyncio.run(work())
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, server.connections) == ([], 4)
    server.wait_until_open(0)


_FORKING = """
import asyncio, os, sys
from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver
loop = AgentLoop(ToolCallingDriver(HttpInference(LLMConfig.parse("openai:m", base_url=sys.argv[1], api_key="k", transport=sys.argv[3]))))
event_loop = asyncio.new_event_loop()
event_loop.run_until_complete(loop.run("Hello?"))
child = os.fork()
if child == 0:
    if sys.argv[2] == "same":
        answer = event_loop.run_until_complete(loop.run("Hello?"))
    else:
        answer = asyncio.run(loop.run("Hello?"))
    os._exit(0 if answer == "hello" else 1)
print(os.waitpid(child, 0)[1])
if sys.argv[2] == "own":  # the child has used the selector of the same event loop
    print(event_loop.run_until_complete(loop.run("Hello?")))
event_loop.close()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("which", ["own", "same"])
def test_a_forked_process_does_not_use_the_connections_of_the_other(
    server: CountingServer, transport_name: str, which: str
) -> None:
    """Both processes go on, each with a connection of its own, in a new event loop or in that of before."""
    done = _python(_FORKING, server.url, which, transport_name)
    assert done.stdout.split() == (["0", "hello"] if which == "own" else ["0"])
    assert (server.connections, done.stderr) == (2, "")
    server.wait_until_open(0)


_EXITING = """
import asyncio, sys
from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver
loop = AgentLoop(ToolCallingDriver(HttpInference(LLMConfig.parse("openai:m", base_url=sys.argv[1], api_key="k", transport=sys.argv[3]))))
if sys.argv[2] == "run":
    asyncio.run(loop.run("Hello?"))
elif sys.argv[2] == "sync":
    loop.run_sync("Hello?")
else:
    event_loop = asyncio.new_event_loop()
    event_loop.run_until_complete(loop.run("Hello?"))
"""


@pytest.mark.parametrize(
    ("how", "options"),
    [("run", ["-W", "error"]), ("sync", ["-W", "error"]), ("left open", [])],
)
def test_a_program_ends_without_a_word(
    server: CountingServer, transport_name: str, how: str, options: list[str]
) -> None:
    """Nothing is said at exit about connections that were kept, also if the program does not close its event loop."""
    done = _python(_EXITING, server.url, how, transport_name, options=options)
    assert (done.returncode, done.stderr) == (0, "")
    server.wait_until_open(0)


def _python(script: str, *arguments: str, options: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(options or []), "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=True)


def test_a_process_has_one_tls_context(server: CountingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made when something is encrypted for the first time, once for all threads."""
    made: list[ssl.SSLContext] = []
    create: Callable[..., Any] = httpx.create_ssl_context

    def create_slowly() -> ssl.SSLContext:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", create_slowly)
    connections._make_tls_context.cache_clear()
    asyncio.run(twice(loop_for(server)))
    assert made == []
    threads = [threading.Thread(target=tls_context) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [tls_context()]


async def test_certificates_of_the_environment_are_those_of_every_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server is trusted if the file in SSL_CERT_FILE says so and its name is right; one connection serves two requests."""
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                seen.append(head)
                await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split()[0]))
                body = completion("in secret")
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    tls, _ = certificate(tmp_path, "localhost")
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "localhost.pem"))
        connections._make_tls_context.cache_clear()
        impatient = RetryPolicy(max_attempts=1)
        try:
            inference = inference_for(f"https://localhost:{port}/v1", retry=impatient)
            for _ in range(2):
                assert (await inference.infer(QUESTION)).text == "in secret"
            with pytest.raises(ProviderUnavailable, match="certificate verify failed"):
                await inference_for(f"https://127.0.0.1:{port}/v1", retry=impatient).infer(QUESTION)
        finally:
            connections._make_tls_context.cache_clear()
            await close_idle_connections()
    assert len(seen) == 2


async def test_an_execution_leaves_no_socket_but_idle_connections(server: CountingServer) -> None:
    """Law 19: what is open after an execution is closed with the idle connections; any other socket is one too many."""
    before = Surroundings.now()
    await twice(loop_for(server))
    with socket.socket(), pytest.raises(LawViolation, match="1 more sockets are open"):
        await before.require_tasks_and_sockets()
    await twice(loop_for(server))
    await before.require_tasks_and_sockets()
    assert server.open_connections == 0
