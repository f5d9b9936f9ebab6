"""A replay opens no socket, starts no program, writes no file and runs no tool; code that attempts it is reported by name."""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentloop import AgentLoop, Interceptor, ToolCallingDriver
from agentloop.compilers import WholeConversation
from agentloop.contracts import CanExecuteToolCalls, CanInfer
from agentloop.durable import MemoryJournal, SideEffectBlocked, replay
from agentloop.interception import AfterStep, BeforeStep
from agentloop.policies import AuditLog
from agentloop.values import (
    AgentState,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    ToolCalls,
    ToolExecutions,
)
from tests.durable.replaying.bench import Ledger, loop_of, record_run


def _connect(folder: Path) -> None:
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", 9))


def _look_up(folder: Path) -> None:
    socket.getaddrinfo("localhost", 80)


def _start(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", f"open({str(folder / 'made')!r}, 'w')"], check=True)


def _write(folder: Path) -> None:
    (folder / "made").write_text("x")


def _append(folder: Path) -> None:
    with (folder / "made").open("ab"):
        pass


def _remove(folder: Path) -> None:
    (folder / "existing").unlink()


def _rename(folder: Path) -> None:
    (folder / "existing").rename(folder / "made")


def _database(folder: Path) -> None:
    sqlite3.connect(folder / "made").close()


def _thread(folder: Path) -> None:
    def write() -> None:
        with suppress(SideEffectBlocked):
            _write(folder)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


SIDE_EFFECTS: dict[str, Callable[[Path], None]] = {
    "socket.__new__": _connect,
    "socket.getaddrinfo": _look_up,
    "subprocess.Popen": _start,
    "open": _write,
    "open ": _append,
    "os.remove": _remove,
    "os.rename": _rename,
    "sqlite3.connect": _database,
    "open  ": _thread,
}


@frozen
class CausesSideEffect(Interceptor):
    """Causes a side effect after the second step.

    Attributes:
        effect: the side effect.
        folder: the folder of its files.
        threaded: whether to cause it in a thread of the event loop.
        swallows: whether to ignore the error.
        active: whether to cause it at all.
    """

    effect: Callable[[Path], None]
    folder: Path
    threaded: bool = False
    swallows: bool = False
    active: bool = True

    async def after_step(self, point: AfterStep) -> AfterStep:
        """Cause the side effect."""
        if not self.active or point.state.step_count != 2:
            return point
        try:
            if self.threaded:
                await asyncio.to_thread(self.effect, self.folder)
            else:
                self.effect(self.folder)
        except Exception:
            if not self.swallows:
                raise
        return point


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("event", list(SIDE_EFFECTS))
async def test_a_side_effect_is_blocked_and_its_interceptor_named(
    event: str, tmp_path: Path, *, swallows: bool, threaded: bool
) -> None:
    """Side effects are blocked also in threads, and reported even when the interceptor ignores the error."""
    (tmp_path / "existing").write_text("existing")
    quiet = CausesSideEffect(SIDE_EFFECTS[event], tmp_path, active=False)
    journal = await record_run(interceptors=[quiet])
    assert (await replay(journal, "run", loop_of(interceptors=[quiet]))).is_equal
    active = CausesSideEffect(SIDE_EFFECTS[event], tmp_path, threaded, swallows)
    result = await replay(journal, "run", loop_of(interceptors=[active]))
    assert _names(tmp_path) == ["existing"]
    assert [operation.event for operation in result.blocked][:1] == [event.strip()]
    assert result.divergence is not None
    assert (result.divergence.step, result.divergence.place) == (2, "side_effect"), result.explain()
    assert (result.divergence.interceptor, result.divergence.point) == ("CausesSideEffect", "after_step")
    assert "has_side_effects = True" in str(result.divergence)


async def test_code_outside_the_replay_is_not_guarded(tmp_path: Path) -> None:
    """The guard applies only to the tasks and threads of the replay, also while the replay is running."""
    gate, done = asyncio.Event(), asyncio.Event()

    class Waits(Interceptor):
        async def before_step(self, point: BeforeStep) -> BeforeStep:
            gate.set()
            await done.wait()
            return point

    journal = await record_run()
    replaying = asyncio.create_task(replay(journal, "run", loop_of(interceptors=[Waits()])))
    await gate.wait()
    _write(tmp_path)
    await asyncio.to_thread(_append, tmp_path)
    done.set()
    assert (await replaying).is_equal
    await asyncio.to_thread(_append, tmp_path)
    assert "run_in_executor" not in vars(asyncio.get_running_loop())


async def test_reading_a_file_is_allowed(tmp_path: Path) -> None:
    """Opening a file for reading is not a side effect."""
    (tmp_path / "existing").write_text("existing")

    class Reads(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(read=(tmp_path / "existing").read_text()))

    journal = await record_run(interceptors=[Reads()])
    assert (await replay(journal, "run", loop_of(interceptors=[Reads()]))).is_equal


async def test_an_interceptor_that_declares_side_effects_is_skipped(tmp_path: Path) -> None:
    """An audit log writes nothing during a replay, and is listed in `skipped`."""
    path = tmp_path / "audit.jsonl"
    journal = await record_run(interceptors=[AuditLog(path)])
    lines = path.read_text()
    result = await replay(journal, "run", loop_of(interceptors=[AuditLog(path)]))
    assert result.is_equal, result.explain()
    assert result.skipped == ("AuditLog",)
    assert "left out because of its side effects: AuditLog" in result.explain()
    assert path.read_text() == lines


async def test_a_change_by_a_skipped_interceptor_is_explained() -> None:
    """The reason names the skipped interceptor that may have written the recorded value."""

    class ReadsWeather(Interceptor):
        has_side_effects = True

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(weather="rain"))

    journal = await record_run(interceptors=[ReadsWeather()])
    result = (await replay(journal, "run", loop_of(interceptors=[ReadsWeather()]))).divergence
    assert result is not None
    assert result.place == "state.context.metadata"
    assert result.reason == "ReadsWeather, which may have written it, has side effects and was left out"


async def test_a_side_effect_of_a_compiler_is_blocked() -> None:
    """The divergence names the step and no interceptor."""

    class LooksUpHost(WholeConversation):
        def compile(self, state: AgentState) -> tuple[Message, ...]:
            _look_up(Path())
            return tuple(state.messages)

    journal = await record_run(compiler=WholeConversation())
    result = (await replay(journal, "run", loop_of(compiler=LooksUpHost()))).divergence
    assert result is not None
    assert (result.step, result.place, result.interceptor) == (1, "side_effect", "")


async def test_a_model_call_that_bypasses_the_record_is_blocked() -> None:
    """A custom driver that calls its model directly is blocked at the network."""

    class NetworkModel(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            _connect(Path())
            raise AssertionError(request)

        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield await self.infer(request)

    class BypassesRecord(ToolCallingDriver):
        async def infer(self, draft: Any, request: InferenceRequest, *, inference: Any = None) -> InferenceResponse:
            return await self.inference.infer(request)

    result = await replay(await record_run(), "run", loop_of(driver=BypassesRecord(NetworkModel())))
    assert result.divergence is not None
    assert result.divergence.place == "side_effect"
    assert result.blocked[0].event == "socket.__new__"


async def test_an_executor_that_does_not_read_recorded_calls_is_not_used() -> None:
    """A custom executor would run tools: the replay ends with the reason before the first step."""
    ledger = Ledger()

    class CustomExecutor(CanExecuteToolCalls):
        async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
            raise AssertionError(tool_calls)

    result = await replay(await record_run(), "run", loop_of(executor=CustomExecutor(), ledger=ledger))
    assert (result.steps, result.is_complete) == (0, False)
    assert result.end_reason.startswith("its executor, CustomExecutor, does not read recorded calls")
    assert isinstance(loop_of(journal=MemoryJournal()), AgentLoop)
    assert ledger.done == []
