"""Running the HTTP front with uvicorn."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from attrs import evolve
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.policies.web_addresses import is_loopback, listen
from agentloop.service.server.access import Authenticate, WebOrigins
from agentloop.service.server.application import ServerApplication
from agentloop.service.server.connections import BACKLOG, MAX_HEAD_BYTES, Connections, network_of, notice_absence
from agentloop.service.server.executions import CanRunExecutions
from agentloop.service.server.operations import ServerLimits

_DRAIN_SECONDS = 10


async def serve(
    executions: AgentLoop | Mapping[str, AgentLoop] | CanRunExecutions,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    journal: CanJournal | None = None,
    authenticate: Authenticate | None = None,
    web: WebOrigins | None = None,
    limits: ServerLimits | None = None,
    dependencies: Any = None,
    kept_headers: Iterable[str] = (),
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve agents over HTTP until the task is cancelled or the process gets SIGINT or SIGTERM.

    At the end, open streams are closed with a hint to come back, and executions that run are interrupted: they stay in
    progress, and the next server with the same journal continues them.

    Args:
        executions: a loop, loops by name, or who else runs the executions.
        host: the address to listen on.
        port: the port; 0 for any free one.
        journal: the journal of the executions; by default that of the loop.
        authenticate: returns the principal of a token, such as a `TokenFile`; None for a server that only this machine reaches.
        web: the hosts and origins of requests; the host that is listened on is always one of them.
        limits: the limits on clients.
        dependencies: replaces the `dependencies` of the loops: a value, or a function that makes them for each run from a `RunRequest`.
        kept_headers: the names of the headers of a request that are recorded with the execution that it starts, and that a function
            of `dependencies` reads in `RunRequest.headers`.
        on_ready: called with the URL when the server accepts connections.

    Raises:
        ConfigurationError: the server cannot listen there, other machines could reach it without tokens, or there is no
            loop or no journal; a tool needs dependencies that nothing makes; or a header carries credentials.
    """
    _check_reach(host, authenticate)
    shown = f"[{host}]" if ":" in host else host
    web = web or WebOrigins()
    web = evolve(web, hosts=web.hosts | {shown})
    limits = limits or ServerLimits()
    make_protocol = partial(_LimitedProtocol, open_connections=Connections(limits), limits=limits)
    application = ServerApplication(
        executions,
        journal=journal,
        authenticate=authenticate,
        web=web,
        limits=limits,
        dependencies=dependencies,
        kept_headers=kept_headers,
    )
    config = uvicorn.Config(
        application,
        log_level="warning",
        http=cast("type[_LimitedProtocol]", make_protocol),
        ws="none",
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    server = _Server(config, application)
    with listen(host, port) as listener:
        on_ready(f"http://{shown}:{listener.getsockname()[1]}")
        running = asyncio.ensure_future(server.serve([listener]))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            server.begin_shutdown()
            await running
            raise


def _check_reach(host: str, authenticate: Authenticate | None) -> None:
    """Check that only this machine reaches a server without tokens."""
    if authenticate is None and not is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and everyone there could run the agents: give tokens "
            "(`agentloop serve --tokens FILE`, or authenticate=…), or listen at 127.0.0.1"
        )


class _Server(uvicorn.Server):
    """Ends the open streams first when it is asked to end, since it waits for them."""

    def __init__(self, config: uvicorn.Config, application: ServerApplication) -> None:
        super().__init__(config)
        self._application = application
        self._event_loop = asyncio.get_running_loop()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # of uvicorn
        """Begin to shut down at a signal; at a second one, do not wait for clients any more, and at a third one for nothing."""
        if self.force_exit:  # a tool that ignores its cancellation must not hold the process
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        # Not that of uvicorn, which sends the signal again at the end, so that the process would not exit with 0.
        self.force_exit = self.should_exit
        self.should_exit = True
        self._event_loop.call_soon_threadsafe(self._application.begin_shutdown)

    def begin_shutdown(self) -> None:
        """Begin to shut down."""
        self._application.begin_shutdown()
        self.should_exit = True


class _LimitedProtocol(H11Protocol):
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
        self.address = network_of(transport.get_extra_info("peername"))
        notice_absence(transport.get_extra_info("socket"), self._limits.send_seconds)
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
