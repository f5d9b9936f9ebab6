"""Starting and stopping what several tasks need at the same time, in every order that may happen."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from agentloop.tools.ensembles.lifecycle import Lifecycle

TURNS = st.integers(0, 4)


class Thing:
    """Something that is on or off; being switched on or off takes some turns of the event loop."""

    def __init__(self, start_turns: int, stop_turns: int, failures: int) -> None:
        self.is_on = False
        self.starts = self.stops = 0
        self._start_turns, self._stop_turns, self._failures = start_turns, stop_turns, failures

    async def start(self) -> None:
        assert not self.is_on
        await turns(self._start_turns)
        self.starts += 1
        if self.starts <= self._failures:
            raise OSError("not yet")
        self.is_on = True

    async def stop(self) -> None:
        assert self.is_on
        self.is_on = False
        self.stops += 1
        await turns(self._stop_turns)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@given(TURNS, TURNS, st.integers(0, 2), st.lists(st.tuples(TURNS, TURNS, st.one_of(st.none(), TURNS)), max_size=6))
def test_it_is_on_while_anybody_holds_it(
    start_turns: int, stop_turns: int, failures: int, users: list[tuple[int, int, int | None]]
) -> None:
    """Or says why not; in the end it is off, stopped as often as it was started, whoever was cancelled meanwhile."""
    thing, lifecycle = Thing(start_turns, stop_turns, failures), Lifecycle()

    async def use(before: int, during: int) -> None:
        await turns(before)
        await lifecycle.hold("thing", thing.start)
        try:
            for _ in range(during + 1):
                assert thing.is_on == (not lifecycle.problem())
                await asyncio.sleep(0)
        finally:
            await lifecycle.release("thing", thing.stop)

    async def everybody() -> None:
        tasks = [asyncio.create_task(use(before, during)) for before, during, _ in users]
        for (_, _, cancelled_at), task in zip(users, tasks, strict=True):
            if cancelled_at is not None:
                await turns(cancelled_at)
                task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            assert outcome is None or isinstance(outcome, asyncio.CancelledError), outcome
        assert not thing.is_on
        assert thing.stops == max(0, thing.starts - failures)
        assert lifecycle.problem().startswith("it was not started")

    asyncio.run(everybody())


async def test_releasing_what_is_not_held_does_nothing() -> None:
    """Once too often is as never."""
    thing, lifecycle = Thing(0, 0, 0), Lifecycle()
    await lifecycle.release("thing", thing.stop)
    await lifecycle.hold("thing", thing.start)
    await lifecycle.release("thing", thing.stop)
    await lifecycle.release("thing", thing.stop)
    assert (thing.starts, thing.stops) == (1, 1)
