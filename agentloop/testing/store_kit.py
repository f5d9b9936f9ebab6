"""The law suite of stores for the state of resilience layers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from attrs import define, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.kit import PLACES, Kit, LawViolation, checked_factory, require
from agentloop.testing.samples import TWINS
from agentloop.values.value import Value

R = TypeVar("R")

_THREADS, _UPDATES = 4, 50
_TICKS, _MANY = 5, PLACES
_MOMENT = 0.05
_PATIENCE = 5.0
_EVICTION = "Updates: of the states of a namespace that is full, the least recently used is evicted first."


@frozen(eq=False, repr=False)
class KeptNumber(Value):
    """The state that the kit stores.

    Attributes:
        number: any number.
        text: any text.
    """

    number: int
    text: str = ""


_STATES = (KeptNumber(2**70, "größe \U0001f600 'a' \"b\" \\ \n"), KeptNumber(-1, "x" * 70_000))


@frozen
class _Step:
    """One update: `number` is stored under `key` of the namespace for some seconds, after a pause; None deletes the state."""

    namespace: str
    key: str
    number: int | None
    seconds: float
    pause: float


_STEPS = st.lists(
    st.builds(
        _Step,
        st.sampled_from(["left", "right"]),
        st.sampled_from("abcd"),
        st.none() | st.integers(0, 99),
        st.sampled_from([0.5, 2.0, 5.0]),
        st.sampled_from([0.0, 1.0, 3.0]),
    ),
    max_size=30,
)


@define
class _Expected:
    """What a store should have under one name.

    Attributes:
        number: what was stored last; None for nothing.
        expires_at: until when.
        others: the keys of the namespace that were updated since.
    """

    number: int | None = None
    expires_at: float = 0.0
    others: set[str] = field(factory=set)


class StoreKit(Kit):
    """Checks a store against the laws of `CanKeepState`.

    Args:
        factory: creates a new, empty store, which may be used from several threads, each with an event loop of its own.
        reopen: opens what a store keeps again, as another process would, also while the store is in use; None for a store of one
            process.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 36, YIELDING)

    def __init__(
        self,
        factory: Callable[[], CanKeepState],
        *,
        reopen: Callable[[CanKeepState], CanKeepState] | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanKeepState] = checked_factory(factory)
        self.reopen: Callable[[CanKeepState], CanKeepState] = reopen or _same

    def law_9(self) -> None:
        """A state is seen under its own key and namespace alone."""

        async def store_all(names: list[tuple[str, str]]) -> None:
            store = self.factory()
            for number, (namespace, key) in enumerate(names):
                await _put(store, Namespace(namespace), key, number)
            for namespace, key in names:
                latest = max(index for index, name in enumerate(names) if name == (namespace, key))
                found = await _put(store, Namespace(namespace), key, latest)
                require(9, found == latest, f"under {key} of {namespace}, {latest} was stored, and {found} is there")

        names = st.tuples(st.sampled_from(["left", "right", "left/a"]), st.sampled_from(["a", "b", "", "a/a"]))
        self.for_all(st.lists(names, max_size=8), lambda listed: asyncio.run(store_all(listed)))
        pairs = [((one, "key"), (other, "key")) for one, other in TWINS]
        pairs += [(("names", one), ("names", other)) for one, other in TWINS]
        pairs += [((f"a{sign}b", "c"), ("a", f"b{sign}c")) for sign in "/:.|-_ "]
        self.for_each(pairs, lambda pair: asyncio.run(store_all(list(pair))))
        asyncio.run(self._check_instances())

    async def _check_instances(self) -> None:
        """Check that two new stores have nothing in common."""
        first, second = self.factory(), self.factory()
        await _put(first, Namespace("left"), "key", 1)
        found = await _put(second, Namespace("left"), "key", 2)
        require(9, found is None, f"a new store has the state {found} of another one")

    def law_36(self) -> None:
        """A transition gets what the last one returned, unless that has expired or its namespace was full; none is lost.

        A namespace has at most as many states as it says, those that were used last.
        """
        limits = st.none() | st.integers(1, 3)
        self.for_all(st.tuples(_STEPS, limits), lambda example: asyncio.run(self._check_steps(*example)))
        for limit in (1, 3):
            asyncio.run(self._check_room(limit))
        asyncio.run(self._check_use(3))
        times = [(now, seconds) for now in (0.0, 0.5, 1.7e9 + 0.75) for seconds in (0.25, 0.5, 1.75)]
        self.for_each(times, lambda case: asyncio.run(self._check_expiry(*case)))
        self.for_each(_STATES, lambda state: asyncio.run(self._check_state(state)))
        self.for_each(range(_TICKS), lambda ticks: asyncio.run(self._check_cancelled(ticks)))
        asyncio.run(self._check_failing())
        self._check_threads()

    async def _check_steps(self, steps: Sequence[_Step], limit: int | None) -> None:
        store, now = self.factory(), 0.0
        expected: dict[tuple[str, str], _Expected] = {}
        for step in steps:
            now += step.pause
            known = expected.pop((step.namespace, step.key), _Expected())
            namespace = Namespace(step.namespace, limit)
            number = await _put(store, namespace, step.key, step.number, now=now, seconds=step.seconds)
            valid = known.number if known.expires_at > now else None
            may_be_gone = limit is not None and len(known.others) >= limit
            require(
                36,
                number == valid or (number is None and may_be_gone),
                f"at {now} seconds, a transition of {step.key} got {number}, and {valid} was stored before",
            )
            for (name, _), other in expected.items():
                if name == step.namespace:
                    other.others.add(step.key)
            expected[step.namespace, step.key] = _Expected(step.number, now + step.seconds)

    async def _check_room(self, limit: int) -> None:
        """Check that a namespace keeps at most so many states."""
        store, namespace = self.factory(), Namespace("few", limit)
        for number in range(limit + 1):
            await _put(store, namespace, f"key {number}", number)
        first = await _put(store, namespace, "key 0", 0)
        said = f"a namespace of at most {limit} states has that which was used before {limit} others"
        require(36, first is None, said, sentence=_EVICTION)

    async def _check_use(self, limit: int) -> None:
        """Check that a state which was used again stays, and that one which was not makes room."""
        store, namespace = self.factory(), Namespace("used", limit)
        for number in (*range(limit), 0, limit):
            await _put(store, namespace, f"key {number}", number)
        kept = await _put(store, namespace, "key 0", 0)
        said = f"in a namespace of at most {limit} states, the state that was used last but one is gone"
        require(36, kept == 0, said, sentence=_EVICTION)

    async def _check_expiry(self, start: float, seconds: float) -> None:
        """Check that a state is there until it expires, and not later, to some hundredths of a second."""
        for later, expected in ((seconds - _MOMENT, 1), (seconds + _MOMENT, None)):
            store, namespace = self.factory(), Namespace("times")
            await _put(store, namespace, "key", 1, now=start, seconds=seconds)
            found = await _put(store, namespace, "key", 2, now=start + later)
            said = f"a state that was stored at {start} for {seconds} seconds is {found} after {later} seconds"
            require(36, found == expected, said)

    async def _check_state(self, state: KeptNumber) -> None:
        """Check that a state is stored as it is, and read as it was stored, also by another process."""
        store, namespace = self.factory(), Namespace("states")
        other, seen = self.reopen(store), list[KeptNumber | None]()

        def replace(known: KeptNumber | None) -> Update[KeptNumber, object]:
            seen.append(known)
            return Update(state, 10.0, state)

        for each, expected in ((store, None), (other, state), (store, state), (other, state)):
            seen.clear()
            result = await each.update(namespace, "key", 0.0, replace)
            require(36, seen[-1] == expected, f"{expected!r:.200} was stored, and a transition gets {seen[-1]!r:.200}")
            require(36, result == state, f"a transition returned {state!r:.200}, and its update {result!r:.200}")
        for number, each in enumerate((other, store, other, store)):
            known = await _put(each, namespace, "numbers", number)
            require(
                36, known == (number - 1 if number else None), f"{number - 1} was stored elsewhere, and {known} is read"
            )

    async def _check_failing(self) -> None:
        """Check that a transition that raises changes nothing, and that the next one is not kept waiting."""
        store, namespace = self.factory(), Namespace("failing")
        await _put(store, namespace, "key", 1)

        def fail(_: KeptNumber | None) -> Update[KeptNumber, None]:
            raise KeyError("the kit")

        for _ in range(_MANY):
            with suppress(KeyError):
                await _in_time(store.update(namespace, "key", 0.0, fail), "after a transition that raised")
                require(36, condition=False, reason="the error of a transition is not raised")
        found = await _in_time(_put(store, namespace, "key", 2), "after a transition that raised")
        require(36, found == 1, f"after a transition that raised, the state is {found}, and 1 was stored")

    async def _check_cancelled(self, ticks: int) -> None:
        """Check that an update that is cancelled takes effect, also later, or not, and that the next one is not kept waiting."""
        store, namespace = self.factory(), Namespace("cancelled")
        await _put(store, namespace, "key", 1)
        said = f"after an update that was cancelled after {ticks} iterations of the event loop"
        stored = {1}
        for number in range(2, 2 + _MANY):
            before = await _in_time(_put(store, namespace, "key", 1), said)
            require(36, before in stored, f"{said}, the state is {before}, and it was one of {sorted(stored)}")
            stored.add(number)
            task = asyncio.ensure_future(_put(store, namespace, "key", number))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

    def _check_threads(self) -> None:
        """Check that no update is lost that several threads make at the same time."""
        store, namespace = self.factory(), Namespace("counts")

        def count(state: KeptNumber | None) -> Update[KeptNumber, int]:
            number = 1 if state is None else state.number + 1
            return Update(KeptNumber(number), 10.0, number)

        async def count_many() -> None:
            for _ in range(_UPDATES):
                await store.update(namespace, "key", 0.0, count)
                await asyncio.sleep(0)

        threads = [threading.Thread(target=lambda: asyncio.run(count_many())) for _ in range(_THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        total = asyncio.run(store.update(namespace, "key", 0.0, count)) - 1
        require(36, total == _THREADS * _UPDATES, f"of {_THREADS * _UPDATES} updates, {total} took effect")

    def law_45(self) -> None:
        """The event loop runs while the store waits."""

        @refuse_blocking
        def holds(number: int | None) -> None:
            asyncio.run(self._use(number))

        self.for_each((1, 2, None), holds)

    async def _use(self, number: int | None) -> None:
        store, namespace = self.factory(), Namespace("numbers")
        for _ in range(_MANY):
            await _put(store, namespace, "key", number)


async def _in_time(work: Coroutine[Any, Any, R], after: str) -> R:
    """Await what has to end by itself.

    Raises:
        LawViolation: it does not end.
    """
    try:
        return await asyncio.wait_for(work, _PATIENCE)
    except TimeoutError:
        raise LawViolation(36, f"{after}, the next update does not end", took_time=True) from None


def _same(store: CanKeepState) -> CanKeepState:
    return store


async def _put(
    store: CanKeepState,
    namespace: Namespace,
    key: str,
    number: int | None,
    *,
    now: float = 0.0,
    seconds: float = 1.0,
) -> int | None:
    """Store a number, and return the one that was there."""

    def replace(state: KeptNumber | None) -> Update[KeptNumber, int | None]:
        after = None if number is None else KeptNumber(number)
        return Update(after, now + seconds, None if state is None else state.number)

    return await store.update(namespace, key, now, replace)
