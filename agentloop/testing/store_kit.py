"""The law suite of stores for the state of resilience layers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence

from attrs import define, field, frozen
from hypothesis import strategies as st

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.values.value import Value

_THREADS, _UPDATES = 4, 50
_EVICTION = "Updates: of the states of a namespace that is full, the least recently used is evicted first."


@frozen(eq=False, repr=False)
class KeptNumber(Value):
    """The state that the kit stores.

    Attributes:
        number: any number.
    """

    number: int


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
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 36)

    def __init__(self, factory: Callable[[], CanKeepState], *, examples: int = 100) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanKeepState] = checked_factory(factory)

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

    def law_36(self) -> None:
        """A transition gets what the last one returned, unless that has expired or its namespace was full; none is lost.

        A namespace has at most as many states as it says, those that were used last.
        """
        limits = st.none() | st.integers(1, 3)
        self.for_all(st.tuples(_STEPS, limits), lambda example: asyncio.run(self._check_steps(*example)))
        for limit in (1, 3):
            asyncio.run(self._check_room(limit))
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
