"""Hostile calls, arguments, results and tools: each ends as an outcome, in bounded time and memory."""

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
from agentloop.interception import at
from agentloop.testing import ExecutorBench, Ledger, run_in_virtual_time, toy_call
from agentloop.testing.toys import ToyTool
from agentloop.values import ExecutionStatus, ToolExecution, ToolStatus
from agentloop.values.points import BeforeStep
from tests.executors.hostile_cases import CASES, CallbackTool
from tests.limits import LONGEST

EXPECTED = {
    "10,000 calls": {"succeeded": 10_000},
    "10,000 calls in threads": {"succeeded": 10_000},
    "10,000 calls of an unknown tool": {"rejected": 10_000},
    "a schema with cycles": {"succeeded": 1, "rejected": 2},
    "a schema of 1 MB": {"succeeded": 5, "rejected": 5},
    "1,000 tools": {"succeeded": 2, "rejected": 3},
    "threads": {"succeeded": 5},
    "a text of 50 MB": {"succeeded": 1},
    "deep arguments": {"succeeded": 2, "rejected": 4},
    "arguments of 5 MB": {"succeeded": 2, "rejected": 1},
    "90,000 invalid items": {"rejected": 3},
    "8,000 unique objects": {"succeeded": 1, "rejected": 1},
}
IN_EVERY_RUN = {"10,000 calls", "a schema with cycles", "threads", "a text of 50 MB"}
"""The calls, the schema, the threads and the bytes that are too many; the other kinds of each run in `make test-heavy`."""


@pytest.mark.parametrize(
    "name", [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.heavy) for name in CASES]
)
def test_a_batch_that_demands_too_much_stays_within_limits(name: str) -> None:
    """Every call has an outcome within 9 times the CPU time of a reference and 100 MB, and no thread is left."""
    completed = subprocess.run(
        [sys.executable, "-m", "tests.executors.hostile_cases", name],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=LONGEST,
        check=False,
    )
    assert completed.returncode == 0, completed.stderr[-2000:]
    report = json.loads(completed.stdout)
    assert report["outcomes"] == EXPECTED[name]
    assert report["threads"] == 0
    # The reference takes a sixth of a second where Python runs at its usual speed.
    assert report["seconds"] < 9 * report["reference"], report
    assert report["mb"] < 100, report


def run_tool(hostile: Tool, arguments: str = "{}") -> ToolExecution:
    """Call a tool between two siblings, which succeed, and alone, with the same outcome; return the outcome."""
    sibling = CallbackTool("sibling")
    calls = [ToolCall("", "sibling"), ToolCall("", hostile.name, arguments), ToolCall("", "sibling")]
    before, outcome, after = asyncio.run(ExecutorBench([hostile, sibling]).run(*calls)).executions
    assert [execution.status for execution in (before, after)] == [ToolStatus.SUCCEEDED] * 2
    (alone,) = asyncio.run(ExecutorBench([hostile]).run(calls[1])).executions
    assert (alone.status, alone.value, alone.error) == (outcome.status, outcome.value, outcome.error)
    return outcome


class UnprintableError(Exception):
    """An error without a message: `str` and `repr` raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Unprintable:
    """A value whose `repr` raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Exit(BaseException):
    """An error that is not an `Exception`."""


def cyclic_list() -> list[Any]:
    items: list[Any] = []
    items.append(items)
    return items


def endless_recursion() -> object:
    return endless_recursion()


RESULTS: dict[str, Callable[[], Any]] = {
    "a generator": lambda: (letter for letter in "abc"),
    "a list that contains itself": cyclic_list,
    "the tool": lambda: CallbackTool("inner"),
    "no repr": Unprintable,
    "a key without repr": lambda: {Unprintable(): 1},
    "not a number": lambda: float("nan"),
    "an integer of 5,000 digits": lambda: 10**5_000,
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_without_a_json_form_reaches_the_model(name: str) -> None:
    """The call has run, so the model reads a text about its result, whatever the result is; its siblings succeed."""
    outcome = run_tool(CallbackTool("odd", RESULTS[name]))
    assert outcome.status is ToolStatus.SUCCEEDED
    assert outcome.text


def test_a_tool_that_never_ends_to_call_itself_fails() -> None:
    """The call fails with an error message for the model; its siblings succeed."""
    outcome = run_tool(CallbackTool("odd", endless_recursion))
    assert outcome.status is ToolStatus.FAILED
    assert outcome.error_message


@pytest.mark.parametrize(
    ("place", "timeout"),
    [("coroutine", None), ("coroutine", LONGEST), ("thread", None), ("thread", LONGEST), ("event loop", None)],
)
@pytest.mark.parametrize(
    "error",
    [SystemExit(3), Exit("now"), UnprintableError(), MemoryError(), StopAsyncIteration(), asyncio.CancelledError()],
)
def test_any_exception_of_a_tool_becomes_its_outcome(error: BaseException, place: str, timeout: float | None) -> None:
    """An exit or an error of any kind ends the call, which may have run, and not the program, with and without a timeout."""

    async def fails() -> str:
        """Fail."""
        raise error

    def fails_as_function() -> str:
        """Fail."""
        raise error

    failing: Tool
    if place == "event loop":
        failing = tool(name="fails", effect="pure", inline=True)(fails_as_function)
    elif place == "thread":
        failing = tool(name="fails", timeout=timeout)(fails_as_function)
    else:
        failing = tool(timeout=timeout)(fails)
    outcome = run_tool(failing)
    assert (outcome.status, outcome.may_have_run) == (ToolStatus.FAILED, place != "event loop")
    assert outcome.error is not None
    assert outcome.error.type == type(error).__name__


def test_a_keyboard_interrupt_ends_the_program_unless_a_thread_raises_it() -> None:
    """Ctrl-C in a coroutine ends the program; in a thread, only the function itself can have raised the error."""

    @tool
    async def interrupted() -> str:
        """Raise what Ctrl-C raises."""
        raise KeyboardInterrupt

    @tool
    def interrupting() -> str:
        """Raise what Ctrl-C raises."""
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(ExecutorBench([interrupted]).run(ToolCall("", "interrupted", "{}")))
    assert run_tool(interrupting).status is ToolStatus.FAILED


@pytest.mark.parametrize("timeout", [None, LONGEST])
def test_a_tool_that_cancels_its_task_cancels_only_its_call(timeout: float | None) -> None:
    """The execution continues, also after a batch of one call."""

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
    assert [execution.status for step in state.steps for execution in step.executions] == [ToolStatus.CANCELLED] * 3


def test_a_tool_that_swallows_a_cancellation_does_not_keep_the_execution_running() -> None:
    """The execution ends as cancelled, although its only call returns a result."""

    async def is_cancelled() -> bool:
        running = asyncio.Event()

        @tool
        async def stubborn() -> str:
            """Swallow the cancellation."""
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

    assert run_in_virtual_time(is_cancelled())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1, "a": 2}', None),
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
def test_unusual_arguments_reach_the_tool_unchanged_or_not_at_all(text: str, expected: object) -> None:
    """The last of two equal names counts; text that is not JSON is rejected."""
    received: list[object] = []
    outcome = run_tool(CallbackTool("receive", lambda **arguments: received.append(arguments)), text)
    assert outcome.status is (ToolStatus.REJECTED if expected is None else ToolStatus.SUCCEEDED)
    assert received == ([] if expected is None else [expected, expected])


def test_an_argument_may_be_named_self() -> None:
    """Names with a meaning in Python reach a function like any other."""

    @tool(effect="pure")
    async def named(self: int) -> int:
        """Return the argument."""
        return self

    assert run_tool(named, '{"self": 7}').value == 7


def test_an_ordering_key_that_is_not_text_fails_only_its_call() -> None:
    """The result of a policy's key function is checked before it is used."""
    unordered: Any = ToolPolicy(key=lambda arguments: [])  # type: ignore[arg-type]  # the mistake
    odd = ToyTool("odd", Ledger(), lambda value, _: value, unordered)
    outcome = run_tool(odd, toy_call("odd", 1).arguments_json)
    assert outcome.status is ToolStatus.FAILED
    assert "list" in outcome.error_message


def test_an_execution_fails_with_an_error_that_cannot_be_printed() -> None:
    """The error is in the state, whether the driver or an interceptor raised it."""

    @at("before_step")
    def broken(point: BeforeStep) -> BeforeStep:
        raise UnprintableError

    interceptors: list[list[CanIntercept]] = [[], [broken]]
    for layers in interceptors:
        loop = AgentLoop(ToolCallingDriver(ScriptedInference(UnprintableError())), interceptors=layers)
        state = loop.execute_sync("go")
        assert state.status is ExecutionStatus.FAILED
        assert state.errors


def test_functions_wait_if_the_system_starts_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With three threads, twenty calls run in them one after the other."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_few(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    @tool(effect="pure")
    def worker(value: int) -> int:
        """Return the value."""
        return value

    monkeypatch.setattr(threading.Thread, "start", start_few)
    calls = [ToolCall("", "worker", f'{{"value": {value}}}') for value in range(20)]
    done = asyncio.run(ExecutorBench([worker]).run(*calls)).executions
    assert [execution.value for execution in done] == list(range(20))
    assert not any(thread.is_alive() for thread in started)
