"""The law suite of stores for large data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from hypothesis import strategies as st

from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.testing.blocking import YIELDING, refuse_blocking
from agentloop.testing.kit import Kit, checked_factory, require
from agentloop.testing.surroundings import open_files

_LONG = "a/" * 99 + "b"
_KEYS = [
    "a",
    "b",
    "a-b",
    "a/b",
    "a-b/c",
    "a/b-c",
    "a/b/c",
    "0",
    "00",
    "objects/0f/1",
    _LONG + "c",
    _LONG + "d",
    "k" * 199 + "1",
    "k" * 199 + "2",
]
"""Keys that are alike: one has a folder where another has a hyphen, begins with another one, or differs from it at its end."""
_DATA = [b"", b"\x00", b"text\r\n", b"\xff\xfe\x80 no text", b"line\n" * 20_000, bytes(range(256)) * 64]
"""Data of all kinds; the last ones take several writes."""
_MAX_KEY = 200
_MANY = 40
_MISSING = "missing"


class ObjectStoreKit(Kit):
    """Checks a store against the laws of `CanStoreObjects`.

    Args:
        factory: creates a new, empty store.
        reopen: opens the storage of a store again, as another process would; None for a store that has none outside of it.
        examples: the number of examples that are tried for each law.
    """

    laws: tuple[int, ...] = (9, 19, 34, YIELDING, 47)

    def __init__(
        self,
        factory: Callable[[], CanStoreObjects],
        *,
        reopen: Callable[[CanStoreObjects], CanStoreObjects] | None = None,
        examples: int = 100,
    ) -> None:
        super().__init__(examples=examples)
        self.factory: Callable[[], CanStoreObjects] = checked_factory(factory)
        self.reopen = reopen

    def law_9(self) -> None:
        """Tasks at the same time store, read and delete their own objects, whatever the others do."""

        async def work(keys: Sequence[str]) -> None:
            store = self.factory()

            async def use(number: int, key: str) -> None:
                data = b"%d %s" % (number, key.encode())
                await store.put(key, data)
                found = await _get(store, key)
                require(
                    9, found == data, f"of tasks at the same time, one stored {data!r} under {key}, and read {found!r}"
                )
                if number % 2:
                    await store.delete(key)
                    found = await _get(store, key)
                    require(9, found == _MISSING, f"a task deleted {key}, and read {found!r:.100} then")

            await asyncio.gather(*[use(number, key) for number, key in enumerate(keys)])

        # An object store need not have a folder and an object of the same name, so that no key is the folder of another one.
        keys = st.lists(
            st.sampled_from([f"{key}/x" for key in _KEYS if len(key) < _MAX_KEY - 1]),
            min_size=2,
            max_size=8,
            unique=True,
        )
        self.for_all(keys, lambda listed: asyncio.run(work(_without_folders(listed))))

    def law_19(self) -> None:
        """What a store keeps open does not grow with the number of its calls."""

        async def use() -> None:
            store, counts = self.factory(), []
            for number in range(2 * _MANY):
                await store.put(f"many/{number}", b"%d" % number)
                await _get(store, f"many/{number}")
                await _get(store, f"none/{number}")
                await store.delete(f"many/{number}")
                if number % _MANY == _MANY - 1:
                    counts.append(len(open_files()))
            more = counts[1] - counts[0]
            require(19, more < _MANY // 2, f"after {_MANY} more objects, {more} more files are open")

        asyncio.run(use())

    def law_34(self) -> None:
        """A `put` that is cancelled raises that, or has stored the object."""

        async def cancel(ticks: int) -> None:
            store = self.factory()
            task = asyncio.ensure_future(store.put("a/b", _DATA[-1]))
            await _cancel_after(task, ticks)
            if not task.cancelled():
                found = await _get(store, "a/b")
                kept = found == _DATA[-1]
                require(34, kept, f"a `put` that was cancelled returned, and the object is {found!r:.60}")

        self.for_all(st.integers(0, 6), lambda ticks: asyncio.run(cancel(ticks)))

    def law_45(self) -> None:
        """The event loop runs while the store waits."""

        @refuse_blocking
        def holds(data: bytes) -> None:
            asyncio.run(self._use(data))

        self.for_each(_DATA, holds)

    async def _use(self, data: bytes) -> None:
        store = self.factory()
        await store.put("a/b", data)
        for _ in range(2):
            await _get(store, "a/b")
            await store.delete("a/b")

    def law_47(self) -> None:
        """An object is read as it was written, whole or not at all, until it is deleted; a missing one is a `KeyError`."""
        steps = st.lists(
            st.tuples(st.sampled_from(["put", "put", "again", "delete", "get"]), st.sampled_from(_KEYS)), max_size=12
        )
        self.for_all(
            st.tuples(steps, st.integers(0, len(_DATA) - 1)), lambda example: asyncio.run(self._check_steps(*example))
        )
        self.for_all(st.integers(0, 6), lambda ticks: asyncio.run(self._check_cut(ticks)))
        asyncio.run(self._check_many())
        asyncio.run(self._check_deletions())
        asyncio.run(self._check_readers())

    async def _check_steps(self, steps: Sequence[tuple[str, str]], first: int) -> None:
        store = self.factory()
        usable = set(_without_folders([key for _, key in steps]))
        expected: dict[str, bytes] = {}
        for number, (what, key) in enumerate(steps):
            if key not in usable:
                continue
            if what == "delete":
                await store.delete(key)
                expected.pop(key, None)
            elif what in {"put", "again"}:  # the same data under a key every time
                expected.setdefault(key, _DATA[(first + number) % len(_DATA)])
                for _ in range(1 + (what == "again")):
                    await store.put(key, expected[key])
            await self._require_objects(store, usable, expected)
        if self.reopen is not None:
            await self._require_objects(self.reopen(store), usable, expected)

    async def _require_objects(self, store: CanStoreObjects, keys: set[str], expected: dict[str, bytes]) -> None:
        for key in sorted(keys):
            found, wanted = await _get(store, key), expected.get(key, _MISSING)
            require(47, found == wanted, f"under {key} is {found!r:.80}, and {wanted!r:.80} should be")

    async def _check_cut(self, ticks: int) -> None:
        """Check that a `put` that is cancelled has stored all or nothing, and takes away nothing that was there."""
        data = _DATA[-1]
        for is_second in (False, True):
            store = self.factory()
            if is_second:
                await store.put("a/b", data)
            await _cancel_after(asyncio.ensure_future(store.put("a/b", data)), ticks)
            allowed = [data] if is_second else [data, _MISSING]
            found = await _get(store, "a/b")
            require(47, found in allowed, f"after a `put` that was cancelled, the object is {found!r:.80}")

    async def _check_many(self) -> None:
        """Check that nothing is deleted but by `delete`."""
        store = self.factory()
        for number in range(_MANY):
            await store.put(f"many/{number}", b"%d" % number)
        found = [number for number in range(_MANY) if await _get(store, f"many/{number}") != b"%d" % number]
        require(47, not found, f"of {_MANY} objects that were stored, those with the numbers {found} are gone")

    async def _check_deletions(self) -> None:
        """Check that `delete` takes away one object, and none whose key is like its key."""
        store, expected = self.factory(), {}
        keys = set(_without_folders(_KEYS))
        for number, key in enumerate(sorted(keys)):
            expected[key] = b"%d" % number
            await store.put(key, expected[key])
        for key in sorted(keys, key=lambda key: (len(key), key)):
            await store.delete(key)
            del expected[key]
            await self._require_objects(store, keys, expected)

    async def _check_readers(self) -> None:
        """Check that readers see all of an object or none, while it is written twice."""
        store, data = self.factory(), _DATA[4]
        writers = [asyncio.ensure_future(store.put("a/b", data)) for _ in range(2)]
        while not all(writer.done() for writer in writers):
            found = await _get(store, "a/b")
            is_whole = found in (data, _MISSING)
            require(47, is_whole, f"while an object of {len(data)} bytes was written, it had {len(found)}")
            await asyncio.sleep(0)
        await asyncio.gather(*writers)


async def _get(store: CanStoreObjects, key: str) -> bytes | str:
    """Return an object, or that there is none."""
    try:
        return await store.get(key)
    except KeyError:
        return _MISSING


async def _cancel_after(task: asyncio.Future[None], ticks: int) -> None:
    """Cancel a task after some turns of the event loop, and wait for it."""
    for _ in range(ticks):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


def _without_folders(keys: Sequence[str]) -> list[str]:
    """Return the keys but those that are the folder of another one, which stores in folders cannot have besides it."""
    return [key for key in keys if not any(other.startswith(f"{key}/") for other in keys)]
