"""Interleavings: every order of the tasks of a program is run once, and any of them can be repeated."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.errors import ConfigurationError
from agentloop.events import EventBus
from agentloop.testing import CountingIds, LoopClock, run_interleaved, walk_interleavings

CALLS = [ToolCall(f"c{number}", "add", f'{{"amount": {number}}}') for number in (1, 2, 3)]


async def letters() -> str:
    """Three tasks of one step each."""
    written: list[str] = []

    async def write(letter: str) -> None:
        written.append(letter)

    await asyncio.gather(*map(write, "abc"))
    return "".join(written)


def test_a_small_program_is_run_in_every_order_once() -> None:
    """Three tasks have six orders, and the walk ends with the last one."""
    walked = list(walk_interleavings(letters))
    assert sorted({each.value for each in walked}) == sorted(map("".join, permutations("abc")))
    assert len({each.choices for each in walked}) == len(walked)


def test_a_limit_selects_by_the_seed() -> None:
    """Of many orders, equal seeds select equal ones, without a repetition."""
    runs = [[each.choices for each in walk_interleavings(letters, limit=3, seed=seed)] for seed in (5, 5)]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 3


def test_an_order_is_repeated_by_its_choices_and_by_its_seed() -> None:
    """What a walk has found can be run alone."""
    for each in walk_interleavings(letters):
        assert run_interleaved(letters(), choices=each.choices) == each.value
    assert run_interleaved(letters(), seed=3) == run_interleaved(letters(), seed=3)
    assert len({run_interleaved(letters(), seed=seed) for seed in range(30)}) > 1


class Account:
    """A balance with the usual mistake: it is read before a wait and written after it."""

    def __init__(self, *, is_safe: bool) -> None:
        self.balance = 0
        self._lock = asyncio.Lock() if is_safe else None

    async def add(self, amount: int) -> int:
        """Add an amount."""
        if self._lock is None:
            return await self._add(amount)
        async with self._lock:
            return await self._add(amount)

    async def _add(self, amount: int) -> int:
        before = self.balance
        await asyncio.sleep(0)
        self.balance = before + amount
        return self.balance


async def run_batch(account: Account) -> tuple[list[str], AgentState]:
    """Run three calls at once; return the events and the state."""
    bus, events = EventBus(clock=LoopClock()), list[str]()
    bus.wiretap(lambda event: events.append(type(event).__name__))
    model, add = ScriptedInference(CALLS, "done"), tool(effect="pure")(account.add)
    loop = AgentLoop.for_model(model, tools=[add], clock=LoopClock(), ids=CountingIds(), events=bus)
    return events, await loop.execute("go")


async def careless() -> int:
    account = Account(is_safe=False)
    await run_batch(account)
    return account.balance


async def careful() -> int:
    account = Account(is_safe=True)
    await run_batch(account)
    return account.balance


def test_a_race_between_the_calls_of_a_batch_is_found() -> None:
    """Some order of the calls loses an update of the careless tool, and no order one of the careful tool."""
    assert {each.value for each in walk_interleavings(careless, limit=12)} > {6}
    assert {each.value for each in walk_interleavings(careful, limit=12)} == {6}


def test_the_state_does_not_depend_on_the_order_of_tasks() -> None:
    """Whatever runs first, a batch gives the same outcomes, settled in the order of the calls (law 8)."""

    async def program() -> tuple[tuple[str, ...], tuple[str, ...]]:
        events, state = await run_batch(Account(is_safe=True))
        return tuple(events), tuple([execution.call.id for execution in state.steps[0].executions])

    walked = list(walk_interleavings(program, limit=40))
    assert len(walked) == 40
    assert {each.value[1] for each in walked} == {("c1", "c2", "c3")}
    assert {events.count("ToolCallCompleted") for events, _ in (each.value for each in walked)} == {3}
    assert (
        len({events for events, _ in (each.value for each in walked)}) > 1
    )  # when a call starts depends on the others


def test_what_a_program_raises_is_a_result() -> None:
    """A walk goes on after an error, which `value` raises."""

    async def fail() -> None:
        raise ValueError("broken")

    (only,) = walk_interleavings(fail)
    assert isinstance(only.error, ValueError)
    with pytest.raises(ValueError, match="broken"):
        _ = only.value
    with pytest.raises(ConfigurationError, match="one run at least"):
        next(walk_interleavings(fail, limit=0))
