"""A server in a thread of its own, so that a test can drive a browser while it serves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
from attrs import frozen

from agentloop import AgentLoop
from agentloop.durable import MemoryJournal
from agentloop.service.server import serve
from agentloop.values.steps import ExecutionStatus
from tests.limits import LONGEST

T = TypeVar("T")
DEADLINE = LONGEST


@frozen
class Served:
    """A server, and the event loop that it runs on.

    Attributes:
        url: the address of the server.
        agent: the loop that it serves.
        event_loop: where coroutines of the test run, too.
    """

    url: str
    agent: AgentLoop
    event_loop: asyncio.AbstractEventLoop

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine beside the server, and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.event_loop).result(DEADLINE)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function beside the server."""
        self.event_loop.call_soon_threadsafe(function)


def settled(address: str) -> dict[str, Any]:
    """Wait until an execution has ended or waits for decisions, and return what the server tells about it."""
    while True:
        body: dict[str, Any] = httpx.get(address, params={"wait": 20}, timeout=DEADLINE).json()
        if body["status"] != ExecutionStatus.IN_PROGRESS:
            return body


@contextmanager
def served(make_loop: Callable[[MemoryJournal], AgentLoop], **options: Any) -> Iterator[Served]:
    """Serve a loop whose journal is in memory, on a free port, until the end of the block."""
    ready: Future[Served] = Future()
    stop: list[Callable[[], object]] = []

    async def main() -> None:
        agent, event_loop = make_loop(MemoryJournal()), asyncio.get_running_loop()
        on_ready = lambda url: ready.set_result(Served(url, agent, event_loop))  # noqa: E731  # a callback
        task = asyncio.create_task(serve(agent, port=0, on_ready=on_ready, **options))
        stop.append(lambda: event_loop.call_soon_threadsafe(task.cancel))
        await asyncio.wait((task,))

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        yield ready.result(DEADLINE)
    finally:
        stop[0]()
        thread.join(DEADLINE)
