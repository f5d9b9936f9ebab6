"""Stores of objects that break one law each."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from agentloop.contracts import CanStoreObjects
from agentloop.testing import ObjectStoreKit
from tests.testing.zoo.zoo import Member


class Bucket(CanStoreObjects):
    """Keeps all laws, and takes its time; the classes below break one each."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}

    async def put(self, key: str, data: bytes) -> None:
        await asyncio.sleep(0.001)
        self.data[key] = data

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(0.001)
        return self.data[key]

    async def delete(self, key: str) -> None:
        await asyncio.sleep(0.001)
        self.data.pop(key, None)


class LeavesFilesOpen(Bucket):
    """Breaks law 19: each `put` opens a file that is closed with the store alone."""

    def __init__(self) -> None:
        super().__init__()
        self.descriptors: list[int] = []

    async def put(self, key: str, data: bytes) -> None:
        self.descriptors.append(os.open(os.devnull, os.O_RDONLY))
        await super().put(key, data)

    def __del__(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)


class WritesInPlace(Bucket):
    """Breaks law 47: an object is there before all of its data are."""

    async def put(self, key: str, data: bytes) -> None:
        self.data[key] = data[: len(data) // 2]
        await super().put(key, data)


class AppendsParts(Bucket):
    """Breaks law 47: a second `put` of the same data doubles them."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, self.data.get(key, b"") + data)


class FlattensKeys(Bucket):
    """Breaks law 47: a folder in a key becomes part of a name, which is that of another key."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key.replace("/", "-"), data)

    async def get(self, key: str) -> bytes:
        return await super().get(key.replace("/", "-"))

    async def delete(self, key: str) -> None:
        await super().delete(key.replace("/", "-"))


class ShortensKeys(Bucket):
    """Breaks law 47: long keys that begin alike are one."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key[:128], data)

    async def get(self, key: str) -> bytes:
        return await super().get(key[:128])

    async def delete(self, key: str) -> None:
        await super().delete(key[:128])


class StoresText(Bucket):
    """Breaks law 47: data are text."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data.decode("utf-8", "replace").encode())


class NormalizesLines(Bucket):
    """Breaks law 47: the ends of lines are those of the machine."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data.replace(b"\r\n", b"\n"))


class ForgetsEmptyObjects(Bucket):
    """Breaks law 47: an object without data is none."""

    async def get(self, key: str) -> bytes:
        data = await super().get(key)
        if not data:
            raise KeyError(key)
        return data


class ReturnsNothing(Bucket):
    """Breaks law 47: an object that is missing looks like an empty one."""

    async def get(self, key: str) -> bytes:
        await asyncio.sleep(0)
        return self.data.get(key, b"")


class RaisesItsOwnError(Bucket):
    """Breaks law 47: the error about a missing object is that of a file."""

    async def get(self, key: str) -> bytes:
        try:
            return await super().get(key)
        except KeyError:
            raise FileNotFoundError(key) from None


class DeletesFolders(Bucket):
    """Breaks law 47: with an object, those are deleted whose keys begin like its key."""

    async def delete(self, key: str) -> None:
        await super().delete(key)
        self.data = {name: data for name, data in self.data.items() if not name.startswith(key)}


class DeletesOnce(Bucket):
    """Breaks law 47: a second deletion is an error."""

    async def delete(self, key: str) -> None:
        await asyncio.sleep(0)
        del self.data[key]


class DeletesNothing(Bucket):
    """Breaks law 47: a deleted object is still there."""

    async def delete(self, key: str) -> None:
        """Do nothing."""


class EvictsOldObjects(Bucket):
    """Breaks law 47: only the newest objects are kept."""

    async def put(self, key: str, data: bytes) -> None:
        await super().put(key, data)
        while len(self.data) > 16:
            del self.data[next(iter(self.data))]


class PutsLater(Bucket):
    """Breaks law 47: when `put` returns, the object is still on its way."""

    async def put(self, key: str, data: bytes) -> None:
        self.last = asyncio.ensure_future(super().put(key, data))


class LeavesHalves(Bucket):
    """Breaks law 47: a `put` that is cancelled leaves what it had written."""

    async def put(self, key: str, data: bytes) -> None:
        try:
            await super().put(key, data)
        except asyncio.CancelledError:
            self.data[key] = data[: len(data) // 2]
            raise


class DropsOnCancellation(Bucket):
    """Breaks law 47: a second `put` that is cancelled takes away what the first one stored."""

    async def put(self, key: str, data: bytes) -> None:
        try:
            await super().put(key, data)
        except asyncio.CancelledError:
            self.data.pop(key, None)
            raise


class SharesItsBuffer(Bucket):
    """Breaks law 9: concurrent writers have one buffer."""

    async def put(self, key: str, data: bytes) -> None:
        self.buffer = data
        await asyncio.sleep(0)
        await super().put(key, self.buffer)


class RemembersTheKey(Bucket):
    """Breaks law 9: the key that is read waits on the store, where another reader replaces it."""

    async def get(self, key: str) -> bytes:
        self.key = key
        await asyncio.sleep(0)
        return await super().get(self.key)


class SwallowsCancellation(Bucket):
    """Breaks law 34: a `put` that is cancelled returns, and nothing is stored."""

    async def put(self, key: str, data: bytes) -> None:
        try:
            await super().put(key, data)
        except asyncio.CancelledError:
            return


class PutsWithABlockingClient(Bucket):
    """Breaks law 45: the event loop waits for the server that has the objects."""

    async def put(self, key: str, data: bytes) -> None:
        time.sleep(0.0001)  # noqa: ASYNC251  # the fault
        await super().put(key, data)


def _objects(law: int, store: Callable[[], CanStoreObjects]) -> Member:
    return Member(store, law, lambda examples: ObjectStoreKit(store, examples=examples))


OBJECTS: tuple[Member, ...] = (
    _objects(9, SharesItsBuffer),
    _objects(9, RemembersTheKey),
    _objects(19, LeavesFilesOpen),
    _objects(34, SwallowsCancellation),
    _objects(45, PutsWithABlockingClient),
    _objects(47, WritesInPlace),
    _objects(47, AppendsParts),
    _objects(47, FlattensKeys),
    _objects(47, ShortensKeys),
    _objects(47, StoresText),
    _objects(47, NormalizesLines),
    _objects(47, ForgetsEmptyObjects),
    _objects(47, ReturnsNothing),
    _objects(47, RaisesItsOwnError),
    _objects(47, DeletesFolders),
    _objects(47, DeletesOnce),
    _objects(47, DeletesNothing),
    _objects(47, EvictsOldObjects),
    _objects(47, PutsLater),
    _objects(47, LeavesHalves),
    _objects(47, DropsOnCancellation),
)
