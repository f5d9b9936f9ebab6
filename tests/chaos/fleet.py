"""Workers as processes: starting, replacing and stopping them, and waiting for what they run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from attrs import define, field

from tests.chaos.ledger import Ledger
from tests.chaos.work import Work

ROOT = Path(__file__).parents[2]
PLAIN = "journal alone"
ENGINE = "engine"
QUEUED = "engine, queued tools"
LIMIT = 240.0
"""Seconds after which a run is taken to hang."""
_TICK = 0.05
SLOWLY = 0.4
"""Seconds between two looks at the database, which are not to disturb what it is doing."""


class Hangs(Exception):
    """A condition did not become true within the limit."""


def wait_until(condition: Callable[[], bool], what: str, *, limit: float = LIMIT, interval: float = _TICK) -> None:
    """Wait until a condition is true.

    Args:
        condition: the condition.
        what: what is wrong if it does not become true.
        limit: the seconds after which it is taken to hang.
        interval: the seconds between two looks.

    Raises:
        Hangs: it did not become true.
    """
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise Hangs(f"after {limit:.0f} seconds: {what}")
        time.sleep(interval)


@define
class Process:
    """A worker.

    Attributes:
        name: its name.
        popen: its process.
        output: the path of what it prints.
    """

    name: str
    popen: subprocess.Popen[bytes]
    output: Path

    @property
    def is_running(self) -> bool:
        """Whether the process has not ended."""
        return self.popen.poll() is None

    @property
    def is_stopped(self) -> bool:
        """Whether the process is stopped by SIGSTOP."""
        return self.is_running and _state_of(self.popen.pid) == "T"

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, if it runs."""
        if self.is_running:
            self.popen.send_signal(number)


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@define
class Fleet:
    """The workers of a chaos run.

    Attributes:
        folder: the folder of the ledger.
        database: the path of a SQLite file, or a URL of PostgreSQL, for the workers.
        model: the URL of the model.
        kind: whether the workers have an engine, and where tools run.
        version: the version of the program.
        slots: how many executions a worker runs at once.
        replaces: whether a worker that ends is replaced by another one.
        processes: all workers that were started.
    """

    folder: Path
    database: str
    model: str
    kind: str = PLAIN
    version: str = ""
    slots: int = 8
    replaces: bool = True
    processes: list[Process] = field(factory=list)
    _replaced: set[str] = field(factory=set)

    def start(self, name: str = "", **environment: str) -> Process:
        """Start a worker."""
        name = name or f"worker-{len(self.processes) + 1}"
        output = self.folder / f"{name}-{len(self.processes) + 1}.txt"
        with output.open("wb") as file:
            popen = subprocess.Popen(
                self._command(name),
                cwd=ROOT,
                env=self.environment(name) | environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        process = Process(name, popen, output)
        self.processes.append(process)
        return process

    def environment(self, worker: str) -> dict[str, str]:
        """Return the environment of a process of the run."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "CHAOS_FOLDER": str(self.folder),
            "CHAOS_MODEL": self.model,
            "CHAOS_DB": self.database,
            "CHAOS_WORKER": worker,
            "CHAOS_SLOTS": str(self.slots),
            "CHAOS_TOOLS": "queued" if self.kind == QUEUED else "inline",
        }

    def _command(self, name: str) -> Sequence[str]:
        if self.kind == PLAIN:
            return [sys.executable, "-m", "tests.chaos.plain_worker", name]
        slots = ["--executions", str(self.slots)]
        version = ["--version", self.version] if self.version else []
        options = ["--db", self.database, "--name", name, *slots, *version]
        return [sys.executable, "-m", "agentloop.service.cli.main", "worker", "tests.chaos.agents:loop", *options]

    def submit(self, works: Sequence[Work]) -> None:
        """Submit executions, from a process of its own if the workers have an engine."""
        if self.kind == PLAIN:
            for work in works:
                Ledger(self.folder).note("submitted", json.dumps([work.execution_id, work.input]))
            return
        code = subprocess.run(self.submission(works), cwd=ROOT, env=self.environment("submitter"), check=False)
        assert code.returncode == 0, f"the submission ended with {code.returncode}"

    def submission(self, works: Sequence[Work]) -> Sequence[str]:
        """Return the command that submits executions."""
        inputs = json.dumps([[work.execution_id, work.input] for work in works])
        return [sys.executable, "-m", "tests.chaos.submitter", inputs]

    def tend(self) -> None:
        """Start a worker for each one that has ended, if it is to be replaced."""
        for process in list(self.processes):
            if not process.is_running and process.name not in self._replaced:
                self._replaced.add(process.name)
                if self.replaces:
                    self.start()

    def kill(self) -> None:
        """Kill all workers."""
        for process in self.processes:
            if process.is_running:
                process.popen.kill()
            process.popen.wait()


@contextmanager
def start_model(folder: Path) -> Iterator[str]:
    """Start the model, and return its URL."""
    command = [sys.executable, "-m", "tests.chaos.model", str(folder)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/v1"
        finally:
            process.kill()


def describe_outputs(processes: Sequence[Process]) -> Mapping[str, str]:
    """Return the last lines that each worker printed, for messages about what went wrong."""
    return {
        process.name: "\n".join(process.output.read_text(errors="replace").splitlines()[-15:]) for process in processes
    }
