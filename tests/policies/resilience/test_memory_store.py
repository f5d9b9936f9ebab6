"""The state of resilience layers, in memory."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import Namespace, Update
from agentloop.policies import MemoryStore
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Number(Value):
    """A state."""

    number: int


UPDATES = st.tuples(
    st.sampled_from(["left", "right"]),
    st.sampled_from("abcde"),
    st.none() | st.integers(),
    st.floats(0, 5),
    st.floats(0, 3),
)


@given(st.lists(UPDATES, max_size=60), st.none() | st.integers(1, 4))
def test_it_behaves_like_a_dictionary_with_expiry_and_eviction(
    updates: list[tuple[str, str, int | None, float, float]], max_entries: int | None
) -> None:
    """A transition receives the last state of its key, unless that has expired or was evicted as least recently used."""

    async def run_all() -> None:
        store, now = MemoryStore(), 0.0
        model: dict[str, dict[str, tuple[int, float]]] = {"left": {}, "right": {}}
        for name, key, number, seconds, pause in updates:
            now += pause
            expires_at = now + seconds
            entries = model[name]
            entry = entries.pop(key, None)
            expected = entry[0] if entry is not None and entry[1] > now else None

            def transition(
                state: Number | None, number: int | None = number, expires_at: float = expires_at
            ) -> Update[Number, int | None]:
                after = Number(number) if number is not None else None
                return Update(after, expires_at, state.number if state is not None else None)

            assert await store.update(Namespace(name, max_entries), key, now, transition) == expected
            if number is not None:
                entries[key] = (number, expires_at)
            while max_entries is not None and len(entries) > max_entries:
                entries.pop(next(iter(entries)))

    asyncio.run(run_all())


def test_updates_from_several_threads_are_serialized() -> None:
    """No update is lost when several event loops, each in its own thread, share a store."""
    store, namespace = MemoryStore(), Namespace("counts")

    def count(state: Number | None) -> Update[Number, int]:
        number = state.number + 1 if state is not None else 1
        time.sleep(0)  # lets another thread run between reading and writing
        return Update(Number(number), 1.0, number)

    async def count_many() -> None:
        for _ in range(2000):
            await store.update(namespace, "key", 0.0, count)

    threads = [threading.Thread(target=lambda: asyncio.run(count_many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(store.update(namespace, "key", 0.0, count)) == 8001


class CountedTime(float):
    """A time that counts how often it is compared with another one, to find out whether it is over."""

    comparisons = 0

    def __le__(self, other: float) -> bool:
        CountedTime.comparisons += 1
        return float(self) <= other


async def _fill(store: MemoryStore, namespace: Namespace, keys: range, *, now: float, expires_at: float) -> None:
    for key in keys:
        await store.update(namespace, str(key), now, lambda _: Update(Number(1), expires_at, None))


@pytest.mark.parametrize("live", [0, 10, 300])
def test_expired_states_are_deleted_before_they_outnumber_the_others(live: int) -> None:
    """However many keys are used once, no more expired states are kept than others, and some."""
    store, namespace = MemoryStore(), Namespace("counts")
    asyncio.run(_fill(store, namespace, range(live), now=0.0, expires_at=9.0))
    asyncio.run(_fill(store, namespace, range(live, live + 2_000), now=1.0, expires_at=1.0))
    assert live <= len(store) <= 2 * live + 100


def test_the_cost_of_an_update_does_not_grow_with_the_number_of_states() -> None:
    """Deleting expired states looks at each state a few times, not at all of them in every update (law 20)."""
    store, namespace = MemoryStore(), Namespace("counts")
    CountedTime.comparisons = 0
    asyncio.run(_fill(store, namespace, range(1_000), now=0.0, expires_at=CountedTime(9.0)))
    assert len(store) == 1_000
    assert 0 < CountedTime.comparisons <= 3 * 1_000


@pytest.mark.parametrize("live", [0, 40])
def test_the_cost_of_an_update_does_not_grow_with_the_states_that_expire(live: int) -> None:
    """Also if most keys are used once, each state is looked at a few times, and not those that are left in every update."""
    store, namespace = MemoryStore(), Namespace("counts")
    CountedTime.comparisons = 0
    asyncio.run(_fill(store, namespace, range(live), now=0.0, expires_at=CountedTime(9.0)))
    asyncio.run(_fill(store, namespace, range(live, 1_000), now=1.0, expires_at=CountedTime(1.0)))
    assert 0 < CountedTime.comparisons <= 3 * 1_000
