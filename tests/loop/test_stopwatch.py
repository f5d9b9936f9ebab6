"""The stopwatch: code that keeps an event loop from going on is named, while it does, and other code never is."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentloop import AgentLoop, Bounds, Interceptor, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop._event_loops import loop_factory
from agentloop.events import AgentExecutionCompleted, EventLoopBlocked
from agentloop.loop import stopwatch
from agentloop.loop.stopwatch import BlockingCode, LoopWatch, _Stopwatch, _Times, _Watched
from agentloop.values.event import Event, OperationKind
from agentloop.values.points import AfterExecution
from agentloop.values.steps import ExecutionStatus
from tests.limits import LONGEST, turns_of_the_event_loop
from tests.loaded import LoadedProcess

SECONDS = 0.05


class Warned(logging.Handler):
    """Sets an event when the stopwatch warns."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.event = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.event.set()

    def wait(self) -> None:
        """Block the thread until the warning has come, which it does only while the thread is blocked."""
        assert self.event.wait(LONGEST)
        self.event.clear()


@pytest.fixture(scope="module", autouse=True)
def _first_execution() -> None:
    """Let what an execution loads be loaded, which blocks the event loop of the first one."""

    @tool(effect="pure")
    async def search() -> str:
        """Search."""
        return "found"

    for _ in range(2):
        loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "search"), "done"), tools=[search])
        loop.with_interceptors(Interceptor()).execute_sync("go")


@pytest.fixture
def warned() -> Iterator[Warned]:
    handler = Warned()
    logger = logging.getLogger("agentloop.loop")
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


@pytest.fixture(params=["asyncio", "installed"])
def factory(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Both kinds of event loops: that of asyncio, and that of the extra `fast`."""
    return loop_factory() if request.param == "installed" else None


@contextmanager
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Yield a function that blocks until the thread has looked at each event loop more often than a limit needs."""
    count = threading.Semaphore(0)
    look = _Watched.look

    def counted(self: _Watched, passed: float, *, is_late: bool) -> None:
        look(self, passed, is_late=is_late)
        count.release()

    def wait() -> None:
        while count.acquire(blocking=False):
            pass
        for _ in range(20):
            assert count.acquire(timeout=LONGEST)

    monkeypatch.setattr(_Watched, "look", counted)
    yield wait


def run(factory: Callable[[], asyncio.AbstractEventLoop] | None, loop: AgentLoop) -> list[Event]:
    events: list[Event] = []
    loop.wiretap(events.append)
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(loop.execute("go"))
    return events


def test_a_tool_that_blocks_is_named_while_it_blocks(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, warned: Warned
) -> None:
    """The warning comes before the tool returns, the event when the event loop goes on; both name line and call."""

    @tool(effect="pure")
    async def charge() -> str:
        """Charge."""
        warned.wait()
        return "charged"

    model = ScriptedInference(ToolCall("1", "charge"), "done")
    loop = AgentLoop.for_model(model, tools=[charge], bounds=Bounds(blocked_seconds=SECONDS))
    events = run(factory, loop)
    (blocked,) = [event for event in events if isinstance(event, EventLoopBlocked)]
    assert blocked.seconds >= SECONDS
    assert any("test_stopwatch.py" in each and "charge" in each for each in blocked.stack)
    assert (blocked.file, blocked.function) == (threading.__file__, "Condition.wait")
    assert blocked.line > 0
    assert blocked.operation is not None
    assert blocked.operation.kind is OperationKind.TOOL_CALL
    assert blocked.operation.call is not None
    assert blocked.operation.call.name == "charge"
    assert blocked.operation.execution_id == blocked.execution_id
    assert "of charge" in warned.messages[0]
    assert "Condition.wait" in warned.messages[0]


def test_a_function_in_c_that_lets_no_thread_go_on_is_named(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing can look while `re` searches; the processor time tells when it has returned."""
    with looks(monkeypatch) as wait:

        @tool(effect="pure")
        async def search() -> str:
            """Search."""
            await asyncio.to_thread(wait)
            return str(re.match(r"(a+)+b", "a" * 25))

        model = ScriptedInference(ToolCall("1", "search"), "done")
        loop = AgentLoop.for_model(model, tools=[search], bounds=Bounds(blocked_seconds=SECONDS))
        events = run(factory, loop)
    blocked = [event for event in events if isinstance(event, EventLoopBlocked)]
    assert len(blocked) == 1
    assert any("in test_a_function" in each and "search" in each for each in blocked[0].stack)


def test_an_interceptor_at_the_end_of_an_execution_is_named_before_the_end(warned: Warned) -> None:
    """The event loop goes on only after the run; the event comes before that of the end all the same."""

    class Slow(Interceptor):
        async def after_execution(self, point: AfterExecution) -> AfterExecution:
            warned.wait()
            return point

    driver = ToolCallingDriver(ScriptedInference("done"))
    loop = AgentLoop(driver, interceptors=[Slow()], bounds=Bounds(blocked_seconds=SECONDS))
    events = run(None, loop)
    assert isinstance(events[-1], AgentExecutionCompleted)
    (blocked,) = [event for event in events if isinstance(event, EventLoopBlocked)]
    assert any("Slow.after_execution" in each for each in blocked.stack)
    assert blocked.operation is not None
    assert blocked.operation.kind is OperationKind.EXECUTION


def test_code_of_no_execution_is_told_to_all_executions(warned: Warned) -> None:
    """A handler of the same program blocks all executions, each of which has the event once."""
    events: list[Event] = []

    async def program() -> None:
        blocking = asyncio.Event()

        @tool(effect="pure")
        async def wait() -> str:
            """Wait."""
            await blocking.wait()
            return "waited"

        def block() -> None:
            warned.wait()
            blocking.set()

        model = ScriptedInference(ToolCall("1", "wait"), ToolCall("1", "wait"), "done", "done")
        loop = AgentLoop.for_model(model, tools=[wait], bounds=Bounds(blocked_seconds=SECONDS))
        loop.wiretap(events.append)
        running = [asyncio.ensure_future(loop.execute("go")) for _ in range(2)]
        while len(model.requests) < 2:
            await turns_of_the_event_loop()
        asyncio.get_running_loop().call_soon(block)
        await asyncio.gather(*running)

    with asyncio.Runner() as runner:
        runner.run(program())
    blocked = [event for event in events if isinstance(event, EventLoopBlocked)]
    assert len({event.execution_id for event in blocked}) == len(blocked) == 2
    assert all(event.operation is None for event in blocked)
    assert len(warned.messages) == 1


def test_a_waiting_program_is_not_accused(monkeypatch: pytest.MonkeyPatch, warned: Warned) -> None:
    """An event loop that is idle, or that does not run between the steps of `iterate_sync`, is blocked by nobody."""
    with looks(monkeypatch) as wait:

        @tool(effect="pure")
        async def search() -> str:
            """Search."""
            await asyncio.to_thread(wait)
            return "found"

        model = ScriptedInference(ToolCall("1", "search"), "done")
        loop = AgentLoop.for_model(model, tools=[search], bounds=Bounds(blocked_seconds=SECONDS))
        for state in loop.iterate_sync("go"):
            if state.status is ExecutionStatus.IN_PROGRESS:
                wait()
    assert warned.messages == []


def test_many_short_callbacks_are_not_accused(
    factory: Callable[[], asyncio.AbstractEventLoop] | None, warned: Warned
) -> None:
    """A turn of the event loop that is long because much is ready is blocked by no code in particular."""
    found: list[BlockingCode] = []
    used, seconds = time.thread_time, 10 * SECONDS  # longer than a busy machine keeps one callback waiting

    def work() -> None:
        until = used() + seconds / 10
        while used() < until:
            pass

    async def program() -> None:
        watch = LoopWatch(seconds, found.append)
        watch.begin(asyncio.get_running_loop())
        for _ in range(2):
            for _ in range(12):
                asyncio.get_running_loop().call_soon(work)
            await asyncio.sleep(0)
        watch.close()

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(program())
    assert found == []
    assert warned.messages == []


def test_time_without_a_processor_does_not_count(monkeypatch: pytest.MonkeyPatch, warned: Warned) -> None:
    """A thread that is ready and gets no processor is not blocked by its code."""
    starved = lambda _: _Times(used=0.0, waited=time.monotonic())  # noqa: E731
    monkeypatch.setattr(_Times, "of", starved)
    with looks(monkeypatch) as wait:

        @tool(effect="pure")
        async def charge() -> str:
            """Charge."""
            wait()
            return "charged"

        model = ScriptedInference(ToolCall("1", "charge"), "done")
        loop = AgentLoop.for_model(model, tools=[charge], bounds=Bounds(blocked_seconds=SECONDS))
        events = run(None, loop)
    assert not [event for event in events if isinstance(event, EventLoopBlocked)]
    assert warned.messages == []


def test_the_times_of_a_thread_come_from_the_system() -> None:
    """Where there is /proc, the processor time is that of the thread."""
    times = _Times.of(threading.get_native_id())
    if not Path("/proc/self/schedstat").exists():
        assert times == _Times()
        return
    assert times.used is not None
    assert times.used <= time.thread_time()
    assert math.isfinite(times.waited)


def test_the_thread_ends_when_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits a while for the next execution, and begins again with it."""
    monkeypatch.setattr(stopwatch, "_IDLE_SECONDS", 0.01)
    own = _Stopwatch()
    monkeypatch.setattr(stopwatch, "_STOPWATCH", own)

    async def program() -> threading.Thread:
        watch = LoopWatch(SECONDS, lambda _: None)
        watch.begin(asyncio.get_running_loop())
        thread = own._thread
        watch.close()
        watch.close()
        assert thread is not None
        return thread

    for _ in range(2):
        thread = asyncio.run(program())
        thread.join(LONGEST)
        assert not thread.is_alive()


def test_without_the_bound_nothing_is_loaded_and_no_thread_runs(loaded: LoadedProcess, tmp_path: Path) -> None:
    """By default, an execution runs no line of the stopwatch."""
    ended = loaded.run(
        "import sys, threading\n"
        "from agentloop import AgentLoop, ScriptedInference\n"
        "AgentLoop.for_model(ScriptedInference('x')).execute_sync('x')\n"
        "assert 'agentloop.loop.stopwatch' not in sys.modules\n"
        "assert threading.active_count() == 1\n",
        tmp_path,
    )
    assert ended.code == 0, ended.err


def test_a_fork_watches_anew(loaded: LoadedProcess, tmp_path: Path) -> None:
    """The thread of the parent does not run in a fork; the first execution there starts another one."""
    ended = loaded.run(
        "import asyncio, os, threading, warnings\n"
        "warnings.simplefilter('ignore', DeprecationWarning)\n"
        "from agentloop.loop import stopwatch\n"
        "async def program():\n"
        "    watch = stopwatch.LoopWatch(60, print)\n"
        "    watch.begin(asyncio.get_running_loop())\n"
        "    assert stopwatch._STOPWATCH._thread.is_alive()\n"
        "    watch.close()\n"
        "asyncio.run(program())\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert threading.active_count() == 1\n"
        "    asyncio.run(program())\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7\n",
        tmp_path,
    )
    assert ended.code == 0, ended.err
