"""Nothing in a replay opens a socket, starts a program, writes a file or runs a tool; who would is named."""

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
from agentloop.interception import AfterStep, AuditLog, BeforeStep
from agentloop.journal import MemoryJournal
from agentloop.replay import SideEffectBlocked, replay
from agentloop.values import (
    AgentState,
    InferenceDelta,
    InferenceRequest,
    InferenceResponse,
    Message,
    ToolCalls,
    ToolExecutions,
)
from tests.replay.bench import Ledger, loop_of, record_run


def _connect(folder: Path) -> None:
    with socket.socket() as one:
        one.connect(("127.0.0.1", 9))


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
    (folder / "kept").unlink()


def _rename(folder: Path) -> None:
    (folder / "kept").rename(folder / "made")


def _database(folder: Path) -> None:
    sqlite3.connect(folder / "made").close()


def _thread(folder: Path) -> None:
    def write() -> None:
        with suppress(SideEffectBlocked):
            _write(folder)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()


WAYS: dict[str, Callable[[Path], None]] = {
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
class Touches(Interceptor):
    """Touches the world after the second step.

    Attributes:
        way: how.
        folder: where files are.
        threaded: in a thread of the event loop.
        swallows: and says nothing of errors.
        active: whether it does.
    """

    way: Callable[[Path], None]
    folder: Path
    threaded: bool = False
    swallows: bool = False
    active: bool = True

    async def after_step(self, point: AfterStep) -> AfterStep:
        """Touch it."""
        if not self.active or point.state.step_count != 2:
            return point
        try:
            if self.threaded:
                await asyncio.to_thread(self.way, self.folder)
            else:
                self.way(self.folder)
        except Exception:
            if not self.swallows:
                raise
        return point


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("swallows", [False, True])
@pytest.mark.parametrize("what", list(WAYS))
async def test_who_touches_the_world_is_kept_from_it_and_named(
    what: str, tmp_path: Path, *, swallows: bool, threaded: bool
) -> None:
    """Also in a thread, and also when the error is swallowed."""
    (tmp_path / "kept").write_text("kept")
    quiet = Touches(WAYS[what], tmp_path, active=False)
    journal = await record_run(interceptors=[quiet])
    assert (await replay(journal, "run", loop_of(interceptors=[quiet]))).is_equal
    touching = Touches(WAYS[what], tmp_path, threaded, swallows)
    result = await replay(journal, "run", loop_of(interceptors=[touching]))
    assert _names(tmp_path) == ["kept"]
    assert [operation.event for operation in result.blocked][:1] == [what.strip()]
    assert result.divergence is not None
    assert (result.divergence.step, result.divergence.place) == (2, "side_effect"), result.explain()
    assert (result.divergence.interceptor, result.divergence.point) == ("Touches", "after_step")
    assert "has_side_effects = True" in str(result.divergence)


async def test_outside_of_a_replay_nothing_is_guarded(tmp_path: Path) -> None:
    """The guard is that of the replay's own tasks, also while one is under way."""
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
    """What only reads changes nothing."""
    (tmp_path / "kept").write_text("kept")

    class Reads(Interceptor):
        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(read=(tmp_path / "kept").read_text()))

    journal = await record_run(interceptors=[Reads()])
    assert (await replay(journal, "run", loop_of(interceptors=[Reads()]))).is_equal


async def test_who_says_that_it_touches_the_world_is_left_out(tmp_path: Path) -> None:
    """An audit log writes no line of a replay, and the replay says that it was left out."""
    path = tmp_path / "audit.jsonl"
    journal = await record_run(interceptors=[AuditLog(path)])
    lines = path.read_text()
    result = await replay(journal, "run", loop_of(interceptors=[AuditLog(path)]))
    assert result.is_equal, result.explain()
    assert result.skipped == ("AuditLog",)
    assert "left out because of its side effects: AuditLog" in result.explain()
    assert path.read_text() == lines


async def test_what_only_one_that_was_left_out_has_written_is_told_as_such() -> None:
    """It is no riddle."""

    class Asks(Interceptor):
        has_side_effects = True

        def before_step(self, point: BeforeStep) -> BeforeStep:
            return point.with_state(point.state.with_metadata(weather="rain"))

    journal = await record_run(interceptors=[Asks()])
    result = (await replay(journal, "run", loop_of(interceptors=[Asks()]))).divergence
    assert result is not None
    assert result.place == "state.context.metadata"
    assert result.reason == "Asks, which may have written it, has side effects and was left out"


async def test_a_compiler_that_touches_the_world_is_kept_from_it() -> None:
    """It is the driver's, and told so."""

    class Asks(WholeConversation):
        def compile(self, state: AgentState) -> tuple[Message, ...]:
            _look_up(Path())
            return tuple(state.messages)

    journal = await record_run(compiler=WholeConversation())
    result = (await replay(journal, "run", loop_of(compiler=Asks()))).divergence
    assert result is not None
    assert (result.step, result.place, result.interceptor) == (1, "side_effect", "")


async def test_a_model_that_is_asked_past_the_record_is_kept_from_it() -> None:
    """A driver of one's own that asks its model itself."""

    class Wire(CanInfer):
        async def infer(self, request: InferenceRequest) -> InferenceResponse:
            _connect(Path())
            raise AssertionError(request)

        async def stream(self, request: InferenceRequest) -> AsyncGenerator[InferenceDelta | InferenceResponse, None]:
            yield await self.infer(request)

    class Hasty(ToolCallingDriver):
        async def infer(self, draft: Any, request: InferenceRequest, *, inference: Any = None) -> InferenceResponse:
            return await self.inference.infer(request)

    result = await replay(await record_run(), "run", loop_of(driver=Hasty(Wire())))
    assert result.divergence is not None
    assert result.divergence.place == "side_effect"
    assert result.blocked[0].event == "socket.__new__"


async def test_an_executor_that_does_not_ask_the_record_is_not_used() -> None:
    """It would run tools; the replay says that it cannot be done."""
    ledger = Ledger()

    class Own(CanExecuteToolCalls):
        async def execute_tools(self, tool_calls: ToolCalls, state: AgentState) -> ToolExecutions:
            raise AssertionError(tool_calls)

    result = await replay(await record_run(), "run", loop_of(executor=Own(), ledger=ledger))
    assert (result.steps, result.is_complete) == (0, False)
    assert result.end_reason.startswith("its executor, Own, does not read recorded calls")
    assert isinstance(loop_of(journal=MemoryJournal()), AgentLoop)
    assert ledger.done == []
