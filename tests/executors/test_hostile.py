"""Calls, arguments, results and tools that nobody should make: each ends as an outcome, in bounded time and memory."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.contracts import CanIntercept, Tool, ToolPolicy
from agentloop.interception import before_step
from agentloop.testing import ExecutorBench, Ledger, Toy, call, run_virtual
from agentloop.values import ExecutionStatus, ToolExecution, ToolStatus
from agentloop.values.points import BeforeStep
from tests.executors.hostile_cases import CASES, Doing
from tests.limits import LONGEST

EXPECTED = {
    "10,000 calls": {"succeeded": 10_000},
    "10,000 calls in threads": {"succeeded": 10_000},
    "10,000 calls of no tool": {"rejected": 10_000},
    "a schema with cycles": {"succeeded": 1, "rejected": 2},
    "a schema of 1 MB": {"succeeded": 5, "rejected": 5},
    "1,000 tools": {"succeeded": 2, "rejected": 3},
    "threads": {"succeeded": 5},
    "a text of 50 MB": {"succeeded": 1},
    "deep arguments": {"succeeded": 2, "rejected": 4},
    "arguments of 5 MB": {"succeeded": 2, "rejected": 1},
    "500,000 wrong items": {"rejected": 3},
    "30,000 unique objects": {"succeeded": 1, "rejected": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_a_batch_that_asks_too_much_ends_in_bounds(name: str) -> None:
    """Every call has its outcome within 2 seconds of CPU and 100 MB, and no thread is left."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.executors.hostile_cases", name],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=LONGEST,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    told = json.loads(ended.stdout)
    assert told["outcomes"] == EXPECTED[name]
    assert told["threads"] == 0
    assert told["seconds"] < 2, told
    assert told["mb"] < 100, told


def outcome_of(made: Tool, text: str = "{}") -> ToolExecution:
    """Call a tool between two others, which have to succeed, and alone, which has to end in the same way."""
    beside = Doing("beside")
    calls = [ToolCall("", "beside", "{}"), ToolCall("", made.name, text), ToolCall("", "beside", "{}")]
    before, outcome, after = asyncio.run(ExecutorBench([made, beside]).run(*calls)).executions
    assert [one.status for one in (before, after)] == [ToolStatus.SUCCEEDED] * 2
    (alone,) = asyncio.run(ExecutorBench([made]).run(calls[1])).executions
    assert (alone.status, alone.value, alone.error) == (outcome.status, outcome.value, outcome.error)
    return outcome


class Untellable(Exception):
    """An error whose message cannot be told."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unshowable:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Leaving(BaseException):
    """What is not meant to be caught."""


def within_itself() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def without_end() -> object:
    return without_end()


RESULTS: dict[str, Callable[[], Any]] = {
    "a generator": lambda: (one for one in "abc"),
    "a list within itself": within_itself,
    "recursion": without_end,
    "the tool": lambda: Doing("inner"),
    "no repr": Unshowable,
    "a key without repr": lambda: {Unshowable(): 1},
    "not a number": lambda: float("nan"),
    "an integer of 5,000 digits": lambda: 10**5_000,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_that_is_no_json_is_a_failure(name: str) -> None:
    """The call fails with a message for the model; its siblings succeed."""
    outcome = outcome_of(Doing("odd", RESULTS[name]))
    assert outcome.status is ToolStatus.FAILED
    assert outcome.error_message


@pytest.mark.parametrize("timeout", [None, LONGEST])
@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), Leaving("away"), Untellable(), MemoryError(), StopAsyncIteration()])
def test_whatever_a_tool_raises_is_its_outcome(error: BaseException, threaded: bool, timeout: float | None) -> None:  # noqa: FBT001  # a parameter of the test
    """An exit or an error of any kind ends the call, not the program; in a coroutine, in a thread, and under a timeout."""

    @tool(timeout=timeout)
    async def fails() -> str:
        """Fail."""
        raise error

    @tool(name="fails", timeout=timeout)
    def fails_in_thread() -> str:
        """Fail."""
        raise error

    outcome = outcome_of(fails_in_thread if threaded else fails)
    assert outcome.status is ToolStatus.FAILED
    assert outcome.error is not None
    assert outcome.error.type == type(error).__name__


def test_an_interrupt_of_the_program_is_no_outcome_but_one_in_a_thread_is() -> None:
    """Control-C in a coroutine ends the program; a function in a thread can only have raised it itself."""

    @tool
    async def interrupted() -> str:
        """Be interrupted."""
        raise KeyboardInterrupt

    @tool
    def interrupting() -> str:
        """Raise what looks like an interrupt."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ExecutorBench([interrupted]).run(ToolCall("", "interrupted", "{}")))
    assert outcome_of(interrupting).status is ToolStatus.FAILED


@pytest.mark.parametrize("timeout", [None, LONGEST])
def test_a_tool_that_cancels_its_task_cancels_its_call_only(timeout: float | None) -> None:
    """The execution goes on, also where the call is the only one."""

    @tool(timeout=timeout)
    async def cancels() -> str:
        """Cancel the current task."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)
        return "not reached"

    calls = [ToolCall("", "cancels", "{}")]
    state = AgentLoop(ToolCallingDriver(ScriptedInference(calls, calls * 2, "done")), [cancels]).execute_sync("go")
    assert state.final_text == "done"
    assert [one.status for step in state.steps for one in step.executions] == [ToolStatus.CANCELLED] * 3


def test_a_tool_that_swallows_cancellation_does_not_keep_the_execution() -> None:
    """The execution ends as cancelled, although its only call returns a result."""

    async def cancelled() -> bool:
        running = asyncio.Event()

        @tool
        async def stubborn() -> str:
            """Go on when cancelled."""
            running.set()
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                return "still here"
            return "slept"

        loop = AgentLoop(ToolCallingDriver(ScriptedInference([ToolCall("", "stubborn", "{}")], "done")), [stubborn])
        task = asyncio.create_task(loop.execute("go"))
        await running.wait()
        task.cancel()
        await asyncio.wait((task,))
        return task.cancelled()

    assert run_virtual(cancelled())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "a": 2}', {"a": 2}),
        (f'{{"a": {"9" * 4_000}}}', {"a": int("9" * 4_000)}),
        (
            '{"self": 1, "name": 2, "_": 3, "__class__": 4, "": 5}',
            {"self": 1, "name": 2, "_": 3, "__class__": 4, "": 5},
        ),
        ('{"a": NaN}', None),
        ('{"a": -Infinity}', None),
        ('{"a": 1e999}', None),
        (f'{{"a": {"9" * 500_000}}}', None),
        ('{"a": 1}{"b": 2}', None),
    ],
)
def test_odd_arguments_run_as_they_are_or_not_at_all(text: str, expected: object) -> None:
    """Of a name that comes twice the last counts; what is not JSON is rejected."""
    used: list[object] = []
    outcome = outcome_of(Doing("taking", lambda **arguments: used.append(arguments)), text)
    assert outcome.status is (ToolStatus.REJECTED if expected is None else ToolStatus.SUCCEEDED)
    assert used == ([] if expected is None else [expected, expected])


def test_an_argument_may_be_named_self() -> None:
    """Names that mean something to Python reach a function as any other."""

    @tool(effect="pure")
    async def named(self: int) -> int:
        """Return it."""
        return self

    assert outcome_of(named, '{"self": 7}').value == 7


def test_a_key_of_order_that_is_no_text_fails_its_call_only() -> None:
    """What the policy of a tool gives is checked before it is used."""
    unordered: Any = ToolPolicy(key=lambda arguments: [])  # type: ignore[arg-type]  # the mistake
    odd = Toy("odd", Ledger(), lambda value, _: value, unordered)
    outcome = outcome_of(odd, call("odd", 1).arguments_json)
    assert outcome.status is ToolStatus.FAILED
    assert "list" in outcome.error_message


def test_an_execution_fails_with_an_error_that_cannot_be_told() -> None:
    """The state names the class of the error, where a driver or an interceptor raised it."""

    @before_step
    def broken(point: BeforeStep) -> BeforeStep:
        raise Untellable

    interceptors: list[list[CanIntercept]] = [[], [broken]]
    for chosen in interceptors:
        loop = AgentLoop(ToolCallingDriver(ScriptedInference(Untellable())), interceptors=chosen)
        state = loop.execute_sync("go")
        assert state.status is ExecutionStatus.FAILED
        assert state.errors


def test_functions_wait_where_the_system_gives_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three threads to be had, twenty calls run on them one after the other."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_few(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    @tool(effect="pure")
    def worker(value: int) -> int:
        """Return it."""
        return value

    monkeypatch.setattr(threading.Thread, "start", start_few)
    calls = [ToolCall("", "worker", f'{{"value": {value}}}') for value in range(20)]
    done = asyncio.run(ExecutorBench([worker]).run(*calls)).executions
    assert [one.value for one in done] == list(range(20))
    assert not any(thread.is_alive() for thread in started)
