"""States kept in the memory of this process."""

from __future__ import annotations

import asyncio
import threading
import time

from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import Namespace, Update
from agentloop.interception.resilience import MemoryStore
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
def test_it_behaves_like_a_dictionary_that_forgets(
    updates: list[tuple[str, str, int | None, float, float]], most: int | None
) -> None:
    """What is given out is what was left last: not too old, and not displaced by others that were used later."""

    async def play() -> None:
        store, now = MemoryStore(), 0.0
        model: dict[str, dict[str, tuple[int, float]]] = {"left": {}, "right": {}}
        for shelf, key, number, seconds, pause in updates:
            now += pause
            until = now + seconds
            kept = model[shelf]
            found = kept.pop(key, None)
            expected = found[0] if found is not None and found[1] > now else None

            def change(
                state: Number | None, number: int | None = number, until: float = until
            ) -> Update[Number, int | None]:
                left = Number(number) if number is not None else None
                return Update(left, until, state.number if state is not None else None)

            assert await store.update(Namespace(shelf, most), key, now, change) == expected
            if number is not None:
                kept[key] = (number, until)
            while most is not None and len(kept) > most:
                kept.pop(next(iter(kept)))

    asyncio.run(play())


def test_updates_from_many_threads_are_one_at_a_time() -> None:
    """No update is lost when several event loops, each in a thread of its own, share a store."""
    store, shelf = MemoryStore(), Namespace("counts")

    def count(state: Number | None) -> Update[Number, int]:
        number = state.number + 1 if state is not None else 1
        time.sleep(0)  # lets another thread in, at the worst moment
        return Update(Number(number), 1.0, number)

    async def many() -> None:
        for _ in range(2000):
            await store.update(shelf, "one", 0.0, count)

    threads = [threading.Thread(target=lambda: asyncio.run(many())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asyncio.run(store.update(shelf, "one", 0.0, count)) == 8001
