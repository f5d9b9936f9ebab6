"""A program in virtual time that cannot go on ends with an error that lists what its tasks wait for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pytest

from agentloop.testing import clocks, run_in_virtual_time, walk_interleavings
from agentloop.testing.clocks import Deadlock, RealTime, RunBounds, bounded_runs, run_in_real_time


async def _lock_twice() -> None:
    lock = asyncio.Lock()
    await lock.acquire()
    await asyncio.gather(_wait_for(lock), _wait_for(lock))


async def _wait_for(lock: asyncio.Lock) -> None:
    await lock.acquire()


async def _numbers(event: asyncio.Event) -> AsyncIterator[int]:
    await event.wait()
    yield 1


def test_a_deadlock_names_each_task_and_where_it_waits() -> None:
    """Each of two tasks that wait for a lock is listed with the function that waits and its line."""
    with pytest.raises(Deadlock) as caught:
        run_in_virtual_time(_lock_twice())
    waiting = [line for line in str(caught.value).splitlines() if "_wait_for (test_deadlocks.py:" in line]
    assert len(waiting) == 2
    assert all("Lock.acquire (locks.py:" in line for line in waiting)


def test_a_deadlock_shows_the_way_through_an_async_generator() -> None:
    """The frames of an async generator that waits are among the places of its task."""

    async def read() -> list[object]:
        return [number async for number in _numbers(asyncio.Event())]

    with pytest.raises(Deadlock, match=r"Event\.wait .* < _numbers \(test_deadlocks\.py:\d+\) < .*read"):
        run_in_virtual_time(read())


def test_a_task_that_does_not_let_itself_be_cancelled_does_not_hide_the_deadlock() -> None:
    """The first deadlock is the one that is raised, although the tasks that it leaves do not end either."""

    async def wait_on() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="nothing can wake the tasks"):
        run_in_virtual_time(wait_on())


def test_a_thread_wakes_a_program_without_timers() -> None:
    """A program that waits for a thread is not in a deadlock, even where nothing else happens."""
    go_on = threading.Event()

    async def wait_for_thread() -> str:
        threading.Timer(0.05, go_on.set).start()
        return await asyncio.to_thread(lambda: "done" if go_on.wait(5) else "late")

    assert run_in_virtual_time(wait_for_thread()) == "done"


def test_a_walk_of_interleavings_finds_the_orders_that_deadlock() -> None:
    """Two tasks that take two locks in opposite orders come to a deadlock in some orders and to their end in others."""

    async def take(first: asyncio.Lock, second: asyncio.Lock) -> None:
        async with first:
            await asyncio.sleep(0)
            async with second:
                pass

    async def cross() -> None:
        one, other = asyncio.Lock(), asyncio.Lock()
        await asyncio.gather(take(one, other), take(other, one))

    errors = {type(interleaving.error) for interleaving in walk_interleavings(cross, limit=50)}
    assert errors == {Deadlock, type(None)}


def test_a_program_that_looks_again_for_ever_ends_at_a_limit_of_turns() -> None:
    """A loop around a short sleep takes no real time in virtual time, and ends with the place where it waits."""

    async def look() -> None:
        while True:  # noqa: ASYNC110  # this is what ends at the limit
            await asyncio.sleep(1)

    with bounded_runs(RunBounds(turns=500)), pytest.raises(Deadlock, match=r"500 turns[^$]*look \(test_deadlocks\.py:"):
        run_in_virtual_time(look())


def test_waits_for_threads_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in virtual time that wait for threads again and again are ended, since their time is real; short waits do not count."""
    monkeypatch.setattr(clocks, "_COUNTED", 0.05)
    held = threading.Event()

    async def wait_for_thread(seconds: float) -> None:
        await asyncio.to_thread(held.wait, seconds)

    bounds = RunBounds(real_seconds=0.15)
    with bounded_runs(bounds):
        for _ in range(5):
            run_in_virtual_time(wait_for_thread(0))
        run_in_virtual_time(wait_for_thread(0.1))
        with pytest.raises(RealTime, match="threads or sockets take longer"):
            run_in_virtual_time(wait_for_thread(0.2))


def test_real_time_has_an_end() -> None:
    """What waits in real time is ended after the seconds that it has, not awaited."""
    began = time.monotonic()
    with pytest.raises(Deadlock, match=r"after 0\.05 seconds"):
        run_in_real_time(asyncio.Event().wait(), seconds=0.05)
    assert time.monotonic() - began < 5
