"""Workers for tests: in this process, and as processes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop
from agentloop.service.cluster import Worker
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.service.cluster import agents

ROOT = Path(__file__).parents[3]
AGENT = "tests.service.cluster.agents:loop"

# Tests that start several run on one database every time, and on the other one in `make test-heavy`.
MAINLY_SQLITE = pytest.mark.parametrize(
    "db", ["sqlite", pytest.param("postgres", marks=pytest.mark.heavy)], indirect=True
)
MAINLY_POSTGRES = pytest.mark.parametrize(
    "db", [pytest.param("sqlite", marks=pytest.mark.heavy), "postgres"], indirect=True
)


@asynccontextmanager
async def working(db: str, loop: AgentLoop | None = None, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker in this process, and drain it at the end."""
    worker = Worker({AGENT: agents.loop if loop is None else loop}, db, **options)
    running = asyncio.create_task(worker.run())
    started = asyncio.create_task(worker.started())
    await asyncio.wait((running, started), return_when=asyncio.FIRST_COMPLETED, timeout=LONGEST)
    started.cancel()
    try:
        yield worker
    finally:
        await worker.drain()
        await asyncio.wait_for(running, LONGEST)


class WorkerProcess:
    """`agentloop worker` as a process that is killed at the latest with this one."""

    def __init__(self, db: str, name: str, *options: str, agent: str = AGENT) -> None:
        self.name = name
        self._process = subprocess.Popen(
            loaded_agentloop("worker", agent, "--name", name, *options),
            cwd=ROOT,
            env={**os.environ, "AGENTLOOP_DB": db},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def until(self, text: str) -> None:
        """Wait until the worker prints a line with this text."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.lines.append(line)
            if text in line:
                return
        raise AssertionError(f"the worker ended without printing {text!r}:\n{''.join(self.lines)}")

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self._process.send_signal(number)

    def exit_code(self) -> int:
        """Wait for its end and return its exit code."""
        assert self._process.stderr is not None
        self.lines += self._process.stderr.readlines()
        return self._process.wait(LONGEST)

    def close(self) -> None:
        """Kill the process if it runs."""
        self._process.kill()
        self._process.wait(LONGEST)
        assert self._process.stderr is not None
        self._process.stderr.close()


class Workers:
    """Starts worker processes on one database and kills them at the end."""

    def __init__(self, db: str) -> None:
        self._db = db
        self._started: list[WorkerProcess] = []

    def start(self, name: str, *options: str, agent: str = AGENT) -> WorkerProcess:
        """Start a worker and wait until it works."""
        worker = self.launch(name, *options, agent=agent)
        worker.until("runs")
        return worker

    def launch(self, name: str, *options: str, agent: str = AGENT) -> WorkerProcess:
        """Start a worker."""
        worker = WorkerProcess(self._db, name, *options, agent=agent)
        self._started.append(worker)
        return worker

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._started:
            worker.close()


async def eventually(condition: Callable[[], bool]) -> None:
    """Let the event loop turn until a condition holds that another process or thread brings about."""
    deadline = time.monotonic() + LONGEST
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        await asyncio.sleep(0.01)
