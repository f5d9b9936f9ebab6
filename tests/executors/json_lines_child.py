"""A process that runs calls which arrive as JSON lines on standard input, and answers on standard output.

Its arguments are the module with its tools, and by how much faster than real time it runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import sys
import threading
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from agentloop.executors import RemoteCall, run_remote_call
from agentloop.values import from_json, to_json

LOCK = threading.Lock()


def write(message: dict[str, Any]) -> None:
    """Send a line; tools write from threads, too."""
    with LOCK:
        os.write(1, json.dumps(message).encode() + b"\n")


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock is faster than the real one."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        super().__init__(_FastSelector(speed))

    def time(self) -> float:
        """Return the time in seconds of this loop."""
        return super().time() * self.speed


class _FastSelector(selectors.DefaultSelector):
    def __init__(self, speed: float) -> None:
        super().__init__()
        self._speed = speed

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(None if timeout is None else timeout / self._speed)


async def serve(make_tools: Callable[[Callable[[str, dict[str, Any]], None]], list[Any]]) -> None:
    """Run the calls of the lines until the input ends."""
    loop, lines, running = asyncio.get_running_loop(), asyncio.Queue[bytes](), dict[str, asyncio.Task[None]]()

    def read() -> None:
        for line in sys.stdin.buffer:
            loop.call_soon_threadsafe(lines.put_nowait, line)
        os._exit(0)  # the parent has gone

    async def run(number: str, call: RemoteCall) -> None:
        tools = make_tools(lambda name, arguments: write({"id": number, "ran": [name, arguments]}))
        try:
            result = await run_remote_call(
                tools,
                call,
                dependencies={"place": "far"},
                report=lambda update: write({"id": number, "progress": update}),
                max_result_bytes=1_000_000,
            )
        except asyncio.CancelledError:
            write({"id": number, "cancelled": True})
            raise
        write({"id": number, "result": json.loads(to_json(result))})

    def forget(number: str, _: asyncio.Task[None]) -> None:
        running.pop(number, None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        message = json.loads(await lines.get())
        if "call" in message:
            call = from_json(json.dumps(message["call"]), RemoteCall)
            task = running[message["id"]] = asyncio.create_task(run(message["id"], call))
            task.add_done_callback(partial(forget, message["id"]))
        elif message["cancel"] in running:
            running[message["cancel"]].cancel()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=lambda: FastLoop(float(sys.argv[2]))) as runner:
        runner.run(serve(import_module(sys.argv[1]).make_tools))
