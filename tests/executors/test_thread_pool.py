"""The threads for plain functions: how many there are, and what becomes of functions whose wait was cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from agentloop import Interceptor, ToolCall, ToolExecutor, tool
from agentloop.executors.thread_pool import ThreadAbandoned, ThreadPool
from agentloop.interception import AroundToolUse, ProceedToolUse
from agentloop.testing import ExecutorBench
from agentloop.values import Bounds, ToolExecution, ToolStatus
from agentloop.values.interruptions import BatchInterrupted
from tests.limits import LONGEST, over_time, turns_of_the_event_loop

_POOLS = 20


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Holds functions until the test opens it; it is open at the end, so that no thread is left."""
    gate = threading.Event()
    yield gate
    gate.set()
    for thread in tool_threads():
        thread.join(LONGEST)


def tool_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "agentloop-tool"]


class Held:
    """A function that waits for a gate, and tells when it has begun."""

    def __init__(self, gate: threading.Event) -> None:
        self.began = threading.Event()
        self._gate = gate

    def __call__(self) -> str:
        self.began.set()
        self._gate.wait(LONGEST)
        return "held"


def ignore(_error: BaseException | None) -> None:
    """Take no notice of the end of an abandoned function."""


async def start(pool: ThreadPool, function: Callable[[], Any]) -> asyncio.Task[Any]:
    """Start a function in a task of its own, as far as it gets now."""
    task = asyncio.create_task(pool.run(function, ignore))
    await turns_of_the_event_loop()
    return task


@pytest.mark.parametrize(("max_threads", "expected"), [(float("inf"), 3), (2, 2), (1, 1)])
async def test_there_are_as_many_threads_as_functions_up_to_the_limit(
    max_threads: float, expected: int, gate: threading.Event
) -> None:
    """Functions above the limit wait, and run in the threads of those before them."""
    pool = ThreadPool(max_threads)
    running = [await start(pool, Held(gate)) for _ in range(3)]
    assert len(tool_threads()) == expected
    gate.set()
    assert await asyncio.gather(*running) == ["held"] * 3
    pool.close()
    assert tool_threads() == []


async def test_a_function_that_waits_for_a_thread_has_not_run_when_it_is_cancelled(gate: threading.Event) -> None:
    """Its cancellation is an ordinary one; that of a function which has begun says that it goes on."""
    pool, held, ran = ThreadPool(1), Held(gate), list[str]()
    busy = await start(pool, held)
    waiting = await start(pool, lambda: ran.append("waiting"))
    assert await asyncio.to_thread(held.began.wait, LONGEST)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    busy.cancel()
    with pytest.raises(ThreadAbandoned):
        await busy
    gate.set()
    for thread in tool_threads():
        await asyncio.to_thread(thread.join, LONGEST)
    assert ran == []


@pytest.mark.parametrize("error", [None, OSError("too late")])
@pytest.mark.parametrize("ends", ["before its task learns of the cancellation", "after that"])
async def test_the_end_of_a_cancelled_function_is_reported_once(
    ends: str, error: Exception | None, gate: threading.Event
) -> None:
    """With what it raised, after its task has said that it goes on, in whichever order the two meet."""
    pool, held, seen = ThreadPool(1), Held(gate), list[object]()

    def function() -> None:
        held()
        if error is not None:
            raise error

    async def call() -> None:
        try:
            await pool.run(function, seen.append)
        except ThreadAbandoned:
            seen.append("goes on")

    running = asyncio.create_task(call())
    await turns_of_the_event_loop()
    assert await asyncio.to_thread(held.began.wait, LONGEST)
    is_over = threading.Event()
    waiting = await start(pool, is_over.set)  # runs in the same thread, after the end of the other one is on its way
    if ends == "after that":
        running.cancel()
        await turns_of_the_event_loop()
    gate.set()
    assert is_over.wait(LONGEST)
    running.cancel()
    await running
    await waiting
    await turns_of_the_event_loop()
    assert seen == ["goes on", error]
    pool.close()


async def test_a_function_that_never_ends_does_not_keep_the_program_from_ending(gate: threading.Event) -> None:
    """Its thread is one for which the interpreter does not wait."""
    pool = ThreadPool()
    running = await start(pool, Held(gate))
    assert [thread.daemon for thread in tool_threads()] == [True]
    gate.set()
    assert await running == "held"
    pool.close()


@pytest.mark.parametrize("max_threads", [1, 2])
async def test_a_function_gets_a_thread_also_after_the_others_have_ended(
    max_threads: int, gate: threading.Event
) -> None:
    """What comes late, after the execution has closed its threads, runs in a new one, which ends with it."""
    for _ in range(_POOLS):  # in some of them the thread is idle when it ends, in others it has not come to that
        pool = ThreadPool(max_threads)
        assert await pool.run(lambda: "in time", ignore) == "in time"
        await turns_of_the_event_loop()
        pool.close()
        assert tool_threads() == []
        late = await start(pool, Held(gate))
        (thread,) = tool_threads()
        gate.set()
        assert await late == "held"
        thread.join(LONGEST)
        gate.clear()


async def test_an_attempt_without_a_thread_does_not_undo_the_one_before(gate: threading.Event) -> None:
    """The first attempt has begun and may have had its effect, although the second one never got a thread."""
    held = Held(gate)

    @tool(timeout=900)
    def pay() -> str:
        """Pay."""
        return held()

    class Twice(Interceptor):
        repeats_effects = True

        async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
            await proceed()
            return await proceed()

    bench = ExecutorBench([pay], interceptors=[Twice()], bounds=Bounds(threads=1))
    running = asyncio.create_task(bench.run(ToolCall("", "pay")))
    assert await asyncio.to_thread(held.began.wait, LONGEST)
    (execution,) = (await over_time(running, 901)).executions
    assert (execution.status, execution.may_have_run) == (ToolStatus.TIMED_OUT, True)


async def test_a_call_that_waits_because_the_system_starts_no_more_threads_has_not_run(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is cancelled meanwhile, its tool has had no effect, whereas the one that has begun may have had it."""
    held, start_thread = Held(gate), threading.Thread.start

    def start_one(thread: threading.Thread) -> None:
        if thread.name == "agentloop-tool" and tool_threads():
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    @tool
    def pay() -> str:
        """Pay."""
        return held()

    monkeypatch.setattr(threading.Thread, "start", start_one)
    bench = ExecutorBench([pay], ToolExecutor(cancel_grace=0))
    running = asyncio.create_task(bench.run(ToolCall("", "pay"), ToolCall("", "pay")))
    assert await asyncio.to_thread(held.began.wait, LONGEST)
    running.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await running
    carrier = BatchInterrupted.find_in(caught.value)
    assert carrier is not None
    assert [(execution.status, execution.may_have_run) for execution in carrier.executions] == [
        (ToolStatus.CANCELLED, True),
        (ToolStatus.CANCELLED, False),
    ]
