"""Generators as tools: values are progress, the last one is the result, and the generator is always closed."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterable, Iterator
from typing import Any, assert_type

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.errors import ToolDefinitionError, ToolFailed
from agentloop.events import ToolCallProgressed
from agentloop.testing import ExecutorBench
from agentloop.values import ToolExecution, ToolStatus
from tests.limits import LONGEST


@tool(effect="pure")
async def count(to: int) -> AsyncIterator[int]:
    """Count."""
    for number in range(1, to + 1):
        await asyncio.sleep(0)
        yield number


@tool(effect="pure")
def count_plainly(to: int) -> Iterator[int]:
    """Count in a thread."""
    yield from range(1, to + 1)


@tool(effect="pure")
def total(to: int) -> Generator[int, None, str]:
    """Count in a thread, and return the sum."""
    numbers = list(range(1, to + 1))
    yield from numbers
    return f"in all {sum(numbers)}"


@tool(effect="pure")
async def pairs(to: int, context: ToolContext) -> AsyncGenerator[tuple[int, str], None]:
    """Yield pairs with the key of the call."""
    for number in range(to):
        yield number, context.idempotency_key


async def run(subject: Any, arguments: str) -> tuple[ToolExecution, list[Any]]:
    """Return the outcome of a call, and its progress."""
    bench = ExecutorBench([subject])
    (done,) = (await bench.run(ToolCall("1", subject.name, arguments))).executions
    return done, [event.update for event in bench.events if isinstance(event, ToolCallProgressed)]


@pytest.mark.parametrize(
    ("subject", "value", "progress"),
    [
        (count, 3, [1, 2, 3]),
        (count_plainly, 3, [1, 2, 3]),
        (total, "in all 6", [1, 2, 3]),
        (pairs, (2, "run/1/0"), [(0, "run/1/0"), (1, "run/1/0"), (2, "run/1/0")]),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
async def test_values_are_progress_and_the_last_is_the_result(subject: Any, value: Any, progress: list[Any]) -> None:
    """The model gets the last value, or what a generator returns; listeners get every value as it comes."""
    done, updates = await run(subject, '{"to": "3"}')
    assert (done.error_message, done.value, updates) == ("", value, progress)


@pytest.mark.parametrize("subject", [count, count_plainly], ids=["async", "plain"])
async def test_a_generator_without_values_has_failed(subject: Any) -> None:
    """There is no result, and the error says so."""
    done, _ = await run(subject, '{"to": 0}')
    assert (done.status, done.error_message) == (
        ToolStatus.FAILED,
        "the tool ended without yielding a value, and so has no result",
    )


async def test_the_last_value_has_the_declared_type() -> None:
    """A value of another type is a failure of the tool."""

    @tool
    async def wrong() -> AsyncIterator[int]:
        """Yield text."""
        yield "three"  # type: ignore[misc]  # what the test is about

    done, _ = await run(wrong, "{}")
    assert done.status is ToolStatus.FAILED
    assert done.error is not None
    assert done.error.type == "ToolFailed"


async def test_an_error_in_the_middle_fails_the_call() -> None:
    """Values before the error are progress; the error is the outcome."""

    @tool
    def breaks() -> Iterable[int]:
        """Break."""
        yield 1
        raise OSError("the disk is full")

    done, updates = await run(breaks, "{}")
    assert (done.status, done.error_message, updates) == (ToolStatus.FAILED, "the disk is full", [1])


async def test_a_timeout_closes_an_async_generator() -> None:
    """Its cleanup has run when the call is settled as timed out."""
    closed: list[str] = []

    @tool(timeout=0.05)
    async def waits() -> AsyncIterator[int]:
        """Wait forever."""
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append("closed")

    done, updates = await run(waits, "{}")
    assert (done.status, updates, closed) == (ToolStatus.TIMED_OUT, [1], ["closed"])


async def test_a_cancellation_closes_an_async_generator() -> None:
    """The cleanup of a generator may await, and has ended when the cancellation is passed on."""
    closed, started = list[str](), asyncio.Event()

    @tool
    async def waits() -> AsyncIterator[int]:
        """Wait forever."""
        try:
            yield 1
            started.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            closed.append("closed")

    loop = AgentLoop.for_model(ScriptedInference([ToolCall("1", "waits", "{}")]), tools=[waits])
    task = asyncio.create_task(loop.execute("Go."))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["closed"]


async def test_a_timeout_closes_a_plain_generator_at_its_next_value() -> None:
    """A thread cannot be interrupted: the generator is closed when it yields again, and its result is dropped."""
    release, closed = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def slow() -> Iterator[int]:
        """Wait, and then count without end."""
        try:
            yield 0
            release.wait(LONGEST)
            number = 1
            while True:
                yield number
                number += 1
        finally:
            closed.set()

    bench = ExecutorBench([slow])
    (done,) = (await bench.run(ToolCall("1", "slow", "{}"))).executions
    assert done.status is ToolStatus.TIMED_OUT
    release.set()
    assert await asyncio.to_thread(closed.wait, LONGEST)
    updates = [event.update for event in bench.events if isinstance(event, ToolCallProgressed)]
    assert updates == [0]


async def test_a_function_in_a_thread_sees_that_its_call_is_closed() -> None:
    """`ToolContext.is_closed` tells a long function that nobody waits for it any more."""
    seen = threading.Event()

    @tool(timeout=0.05)
    def polls(context: ToolContext) -> str:
        """Look until the call is closed."""
        while not context.is_closed:
            threading.Event().wait(0.001)
        seen.set()
        return "late"

    (done,) = (await ExecutorBench([polls]).run(ToolCall("1", "polls", "{}"))).executions
    assert done.status is ToolStatus.TIMED_OUT
    assert await asyncio.to_thread(seen.wait, LONGEST)


def test_generators_need_the_type_of_their_values() -> None:
    """An annotation that is not one of a generator is a definition error that says what to write."""

    async def unannotated() -> list[int]:  # type: ignore[misc]  # what the test is about
        """Do."""
        yield 1

    def bare() -> Iterator:  # type: ignore[type-arg]  # what the test is about
        """Do."""
        yield 1

    with pytest.raises(ToolDefinitionError, match=r"it yields: annotate what, such as -> AsyncIterator\[str\]"):
        tool(unannotated)
    with pytest.raises(ToolDefinitionError, match=r"it yields: annotate what, such as -> Iterator\[str\]"):
        tool(bare)


async def test_a_generator_stays_callable() -> None:
    """Called directly it is the generator, with its types."""
    assert_type(count(2), AsyncIterator[int])
    assert [number async for number in count(2)] == [1, 2]
    assert list(count_plainly(2)) == [1, 2]
    assert await count.use(to=2) == await count_plainly.use(to=2) == 2


def _squares() -> Iterator[int]:
    return (number * number for number in range(4))


async def _later() -> AsyncIterator[int]:
    for number in range(3):
        await asyncio.sleep(0)
        yield number


def returned() -> Iterator[int]:
    """Return a generator."""
    return _squares()


def mapped() -> Any:
    """Return another iterator."""
    return map(str, [1, 2])


def declared() -> list[int]:
    """Return a generator in place of a list."""
    return _squares()  # type: ignore[return-value]  # what the test is about


async def awaited() -> Any:
    """Return an async generator."""
    return _later()


def handed_on() -> AsyncIterator[int]:
    """Return an async generator from a plain function."""
    return _later()


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (returned, [0, 1, 4, 9]),
        (mapped, ["1", "2"]),
        (declared, [0, 1, 4, 9]),
        (awaited, [0, 1, 2]),
        (handed_on, [0, 1, 2]),
    ],
)
async def test_an_iterator_that_a_function_returns_is_read_to_its_end(function: Any, value: list[Any]) -> None:
    """The items of an iterator are the result, where the function itself yields nothing."""
    done, progress = await run(tool(function), "{}")
    assert (done.error_message, done.value, progress) == ("", tuple(value), [])


def test_an_iterator_without_end_fails_the_call() -> None:
    """An endless iterator does not take all memory."""

    @tool(effect="pure", inline=True)
    def numbers() -> Any:
        """Count."""
        return itertools.count()

    with pytest.raises(ToolFailed, match="an iterator with more than 1,000,000 items"):
        numbers.use_inline()  # type: ignore[attr-defined]  # of an inline tool
