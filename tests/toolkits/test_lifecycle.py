"""Starting and stopping a resource that several tasks share, in every order of events."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agentloop.toolkits.lifecycle import Lifecycle

TURNS = st.integers(0, 4)


class Resource:
    """A resource whose start and stop take some turns of the event loop."""

    def __init__(self, start_turns: int, stop_turns: int, failures: int) -> None:
        self.is_started = False
        self.starts = self.stops = 0
        self._start_turns, self._stop_turns, self._failures = start_turns, stop_turns, failures

    async def start(self) -> None:
        assert not self.is_started
        await turns(self._start_turns)
        self.starts += 1
        if self.starts <= self._failures:
            raise OSError("not yet")
        self.is_started = True

    async def stop(self) -> None:
        assert self.is_started
        self.is_started = False
        self.stops += 1
        await turns(self._stop_turns)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@given(TURNS, TURNS, st.integers(0, 2), st.lists(st.tuples(TURNS, TURNS, st.one_of(st.none(), TURNS)), max_size=6))
def test_a_held_resource_is_started(
    start_turns: int, stop_turns: int, failures: int, users: list[tuple[int, int, int | None]]
) -> None:
    """While held, it is started or diagnosed; at the end it was stopped as often as started, whichever task was cancelled."""
    resource, lifecycle = Resource(start_turns, stop_turns, failures), Lifecycle()

    async def use(before: int, during: int) -> None:
        await turns(before)
        await lifecycle.hold("resource", resource.start)
        try:
            for _ in range(during + 1):
                assert resource.is_started == (not lifecycle.diagnose())
                await asyncio.sleep(0)
        finally:
            await lifecycle.release("resource", resource.stop)

    async def run_users() -> None:
        tasks = [asyncio.create_task(use(before, during)) for before, during, _ in users]
        for (_, _, cancelled_at), task in zip(users, tasks, strict=True):
            if cancelled_at is not None:
                await turns(cancelled_at)
                task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
        assert not resource.is_started
        assert resource.stops == max(0, resource.starts - failures)
        assert lifecycle.diagnose().startswith("it was not started")

    asyncio.run(run_users())


async def test_releasing_an_unheld_resource_does_nothing() -> None:
    """Releasing a resource that is not held has no effect."""
    resource, lifecycle = Resource(0, 0, 0), Lifecycle()
    await lifecycle.release("resource", resource.stop)
    await lifecycle.hold("resource", resource.start)
    await lifecycle.release("resource", resource.stop)
    await lifecycle.release("resource", resource.stop)
    assert (resource.starts, resource.stops) == (1, 1)
