"""An executor whose tools run in a child process that reads and writes JSON lines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from attrs import define, field, frozen

from agentloop.errors import ToolUnavailable
from agentloop.executors import ProgressReport, RemoteCall, RemoteResult, RemoteToolExecutor
from agentloop.values import from_json, to_json


class ConnectionLost(Exception):
    """The child has died before it answered."""


@define
class Waiting:
    """A call that was sent.

    Attributes:
        loop: the event loop that waits for the answer.
        future: the answer.
        hear: receives what the child says before.
        process: the process that got the call.
    """

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[RemoteResult]
    hear: Callable[[dict[str, Any]], None]
    process: subprocess.Popen[bytes] | None = None

    def fail(self) -> None:
        """End the wait without an answer."""
        if not self.future.done():
            self.future.set_exception(ConnectionLost("the child died"))

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message about the call, in its event loop."""
        if "result" not in message:
            self.hear(message)
        elif not self.future.done():
            self.future.set_result(from_json(json.dumps(message["result"]), RemoteResult))


@define(eq=False)
class Child:
    """A child process, started anew after its death with the next call.

    Attributes:
        tools: the module with its tools.
        speed: by how much faster than real time it runs.
        cancelled: the calls whose tools were cancelled there.
        on_cancelled: set with each of them.
    """

    tools: str
    speed: float = 1.0
    cancelled: list[str] = field(factory=list)
    on_cancelled: threading.Event = field(factory=threading.Event)
    _process: subprocess.Popen[bytes] | None = None
    _reader: threading.Thread | None = None
    _waiting: dict[str, Waiting] = field(factory=dict)
    _lock: threading.Lock = field(factory=threading.Lock)
    _count: int = 0

    def send(self, call: RemoteCall, waiting: Waiting) -> str:
        """Send a call, and return the number under which it is known there."""
        with self._lock:
            process = self._start()
            self._count += 1
            number = str(self._count)
            waiting.process = process
            self._waiting[number] = waiting
        self._write(process, {"id": number, "call": json.loads(to_json(call))})
        return number

    def cancel(self, number: str) -> None:
        """Cancel a call, and drop its answer."""
        with self._lock:
            self._waiting.pop(number, None)
            process = self._process
        if process is not None:
            self._write(process, {"cancel": number})

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        with self._lock:
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """End the process, and wait until nothing reads from it."""
        self.kill()
        if self._reader is not None:
            self._reader.join()

    def start(self) -> None:
        """Start the process, unless it runs."""
        with self._lock:
            self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            command = [sys.executable, "-m", "tests.executors.json_lines_child", self.tools, str(self.speed)]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
            self._reader.start()
        return self._process

    def _write(self, process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert process.stdin is not None
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                process.stdin.write(line)
                process.stdin.flush()
        except (BrokenPipeError, ValueError):  # it has died, and its pipe may be closed already
            self._lose(process)

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "cancelled" in message:
                self.cancelled.append(message["id"])
                self.on_cancelled.set()
            waiting = self._waiting.get(message["id"])
            if waiting is not None and not waiting.loop.is_closed():
                waiting.loop.call_soon_threadsafe(waiting.receive, message)
        process.stdout.close()
        process.wait()
        self._lose(process)
        with self._lock, contextlib.suppress(BrokenPipeError):
            assert process.stdin is not None
            process.stdin.close()

    def _lose(self, process: subprocess.Popen[bytes]) -> None:
        # Another process may serve calls by now, which go on.
        with self._lock:
            lost = {number: waiting for number, waiting in self._waiting.items() if waiting.process is process}
            for number in lost:
                del self._waiting[number]
        for waiting in lost.values():
            if not waiting.loop.is_closed():
                waiting.loop.call_soon_threadsafe(waiting.fail)


@frozen
class ChildExecutor(RemoteToolExecutor):
    """Runs tools in a child process.

    Attributes:
        child: the process.
        on_ran: receives the name and the arguments of each toy tool that has begun there.
        is_refusing: whether no call is sent.
    """

    child: Child = field(kw_only=True)
    on_ran: Callable[[str, dict[str, Any]], None] | None = field(default=None, kw_only=True)
    is_refusing: bool = field(default=False, kw_only=True)

    async def call_remotely(self, call: RemoteCall, report: ProgressReport) -> RemoteResult:
        """Send a call to the child, and return its answer; a cancellation is sent as well."""
        if self.is_refusing:
            raise ToolUnavailable("there is no child")
        loop = asyncio.get_running_loop()

        def hear(message: dict[str, Any]) -> None:
            if "progress" in message:
                report(message["progress"])
            elif "ran" in message:
                self.note(call, *message["ran"])

        waiting = Waiting(loop, loop.create_future(), hear)
        number = self.child.send(call, waiting)
        try:
            return await waiting.future
        except asyncio.CancelledError:
            self.child.cancel(number)
            raise

    def note(self, call: RemoteCall, name: str, arguments: dict[str, Any]) -> None:
        """Note that a toy tool has begun; the ledger of the toys of this process gets it."""
        tool = None if self._tools is None else self._tools.get(call.call.name)
        ledger = getattr(tool, "_ledger", None)
        if ledger is not None:
            ledger.record(name, arguments)
