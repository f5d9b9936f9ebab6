"""Processes that run programs and stop at each call of a function."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import Context
from threading import Lock
from typing import Any

from attrs import asdict, define, field

from agentloop.errors import ProgramFailed
from agentloop.models.programs.labeled_values import Marks, PlannedCall, read_marks, write_marks
from agentloop.models.programs.planned_calls import CallPlanned, PlannedResult
from agentloop.models.programs.program import CallFunctions, FunctionCall, FunctionResult, ProgramLimits, ProgramResult
from agentloop.values.json import format_json, parse_json, thaw


class Interpreter:
    """Runs programs in processes of their own, which have no access to files, network, environment, time or chance.

    The processes start with the first program; `aclose` ends them. A process that a program has damaged or blocked is replaced.
    When this process dies, they end as soon as their program waits or has used its time.

    Args:
        limits: what each program may use.
    """

    def __init__(self, limits: ProgramLimits) -> None:
        self._limits = limits
        self._threads: ThreadPoolExecutor | None = None
        self._idle: list[_Worker] = []

    async def run(self, source: str, functions: Mapping[str, Sequence[str]], call: CallFunctions) -> ProgramResult:
        """Run a program to its end.

        Args:
            source: the program; names at its top level may be awaited.
            functions: the names of the parameters of each function that it can call, by the name of the function.
            call: calls the functions for which it waits.

        Raises:
            ProgramFailed: it is invalid, raised an error or exceeded a limit.
            Exception: whatever `call` raises.
        """
        request = self._request(source, functions) | {"is_planned": False, "state": None}
        while True:
            answer = await self._answer(request)
            if "calls" not in answer:
                return ProgramResult(answer["printed"], answer["value"], tuple(answer["notes"]))
            # The process is free for other programs meanwhile: a call may take long, or run a program itself.
            results = await call([FunctionCall(name, arguments) for _, name, arguments in answer["calls"]])
            numbers = [str(number) for number, *_ in answer["calls"]]
            request["state"] = answer["state"]
            request["results"] = dict(zip(numbers, map(_as_json, results), strict=True))

    async def run_planned(
        self, source: str, functions: Mapping[str, Sequence[str]], call: CallPlanned
    ) -> tuple[ProgramResult, Marks]:
        """Run a planned program to its end; its values have marks.

        Args:
            source: the program.
            functions: the names of the parameters of each function that it can call, by the name of the function.
            call: calls the functions for which it waits.

        Returns:
            The result, and the marks of what is in it.

        Raises:
            ProgramFailed: it is invalid, raised an error or exceeded a limit, or a call did not succeed.
            Exception: whatever `call` raises.
        """
        results: list[dict[str, Any]] = []
        request = self._request(source, functions) | {"is_planned": True, "results": results}
        while True:
            answer = await self._answer(request)
            if "calls" not in answer:
                result = ProgramResult(answer["printed"], answer["value"], tuple(answer["notes"]))
                return result, read_marks(answer["marks"])
            made = await call([_planned_call(planned) for planned in answer["calls"]])
            results += map(_planned_result_as_json, made)

    def _request(self, source: str, functions: Mapping[str, Sequence[str]]) -> dict[str, Any]:
        return {
            "source": source,
            "functions": {name: list(parameters) for name, parameters in functions.items()},
            "limits": asdict(self._limits),
        }

    async def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = await self._ask(request)
        if "error" in answer:
            raise ProgramFailed(answer["error"])
        return answer

    async def aclose(self) -> None:
        """End the processes and the threads that wait for them. Idempotent."""
        threads, self._threads = self._threads, None
        if threads is None:
            return
        idle, self._idle = self._idle, []
        for worker in idle:
            await asyncio.get_running_loop().run_in_executor(threads, worker.close)
        threads.shutdown()

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Let a process advance a program until it waits for calls or ends, and wait for that in a thread."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._limits.workers, "agentloop program")
        turn = _Turn(format_json(request))
        answer = asyncio.get_running_loop().run_in_executor(self._threads, self._ask_in_thread, turn)
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            turn.cancel()
            answer.add_done_callback(_forget)
            raise

    def _ask_in_thread(self, turn: _Turn) -> dict[str, Any]:
        # Outside of the caller's context: a replay blocks the processes of what it runs, but a program runs again there.
        worker = self._idle.pop() if self._idle else Context().run(_Worker)
        line = turn.exchange(worker)
        if line.endswith(b"\n"):
            self._idle.append(worker)
            answer: dict[str, Any] = parse_json(line)
            return answer
        worker.kill()
        seconds = f"{self._limits.seconds:g}"
        raise ProgramFailed(f"the interpreter ended without a result; a program may compute for {seconds} seconds")


def _forget(answer: asyncio.Future[Any]) -> None:
    """Mark what a cancelled program still raises as seen."""
    if not answer.cancelled():
        answer.exception()


def _as_json(result: FunctionResult) -> dict[str, Any]:
    return {"value": thaw(result.value), "error": result.error, "error_type": result.error_type}


def _planned_call(planned: Mapping[str, Any]) -> PlannedCall:
    marks = {name: read_marks(written) for name, written in planned["marks"].items()}
    return PlannedCall(planned["name"], planned["arguments"], read_marks(planned["control"]), marks)


def _planned_result_as_json(planned: PlannedResult) -> dict[str, Any]:
    declared = planned.declared
    return _as_json(planned.result) | {
        "marks": write_marks(declared.marks),
        "own": sorted(declared.own),
        "identifiers": sorted(declared.identifiers),
    }


class _Worker:
    """A process that runs one program at a time."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agentloop.models.programs.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # A group of its own: Ctrl-C is for this process, and killing it ends the interpreter, too.
            start_new_session=True,
        )

    def exchange(self, request: bytes) -> bytes:
        """Send a request and return the answer; without a line end if the process has ended."""
        assert self._process.stdin is not None  # noqa: S101  # it is a pipe
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        try:
            self._process.stdin.write(request + b"\n")
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except OSError:  # it was killed
            return b""

    def close(self) -> None:
        """Let the process end, which has no program."""
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End the process and the interpreter in it, and wait for that."""
        self.signal_end()
        self._process.communicate()

    def signal_end(self) -> None:
        """End the process and the interpreter in it, without waiting; only while nothing has waited for it."""
        with suppress(ProcessLookupError, PermissionError):  # it has ended by itself
            if sys.platform == "win32":
                self._process.kill()
            else:
                os.killpg(self._process.pid, signal.SIGKILL)


_END_SECONDS = 5.0
_ENVIRONMENT = ("LD_LIBRARY_PATH", "PATH", "SYSTEMROOT")
"""What Python may need to start; secrets of the environment stay here."""


@define(eq=False)
class _Turn:
    """One request, which may be cancelled while it waits for a process or is there."""

    request: bytes
    _worker: _Worker | None = None
    _is_cancelled: bool = False
    _lock: Lock = field(factory=Lock)

    def exchange(self, worker: _Worker) -> bytes:
        """Exchange the request for its answer."""
        with self._lock:
            if self._is_cancelled:
                return b""
            self._worker = worker
        line = worker.exchange(self.request)
        with self._lock:
            self._worker = None
        return line

    def cancel(self) -> None:
        """End the process that has the request."""
        with self._lock:
            self._is_cancelled = True
            if self._worker is not None:
                self._worker.signal_end()
