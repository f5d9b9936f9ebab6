"""Running the HTTP front with uvicorn."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from types import FrameType
from typing import cast

import uvicorn
from attrs import evolve

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.server.access import Authenticate, WebOrigins
from agentloop.server.application import ServerApplication
from agentloop.server.connections import BACKLOG, MAX_HEAD_BYTES, Connections, LimitedProtocol
from agentloop.server.executions import CanRunExecutions
from agentloop.server.operations import ServerLimits
from agentloop.tools.web_addresses import is_loopback, listen

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
        on_ready: called with the URL when the server accepts connections.

    Raises:
        ConfigurationError: the server cannot listen there, other machines could reach it without tokens, or there is no
            loop or no journal.
    """
    if authenticate is None and not is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and everyone there could run the agents: give tokens "
            "(`agentloop serve --tokens FILE`, or authenticate=…), or listen at 127.0.0.1"
        )
    shown = f"[{host}]" if ":" in host else host
    web = web or WebOrigins()
    web = evolve(web, hosts=web.hosts | {shown})
    limits = limits or ServerLimits()
    application = ServerApplication(executions, journal=journal, authenticate=authenticate, web=web, limits=limits)
    config = uvicorn.Config(
        application,
        log_level="warning",
        http=cast("type[LimitedProtocol]", Connections(limits).protocol()),
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
