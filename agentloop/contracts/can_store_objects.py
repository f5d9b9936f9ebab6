"""The contract of stores for large data of a journal."""

from __future__ import annotations

from abc import ABC, abstractmethod


class CanStoreObjects(ABC):
    """Stores bytes by key, such as in a folder or in a bucket, for the long parts of a journal's records.

    An implementer keeps these laws (9, 19, 34 and 47, which `ObjectStoreKit` checks):

    - When `put` has returned, `get` returns the same data, in every process that uses the store, also after a crash or a loss of
      power, until the object is deleted. When it has not returned, `get` returns all of the data, or there is no object.
    - A journal puts the same data under a key every time: a second `put` changes nothing, also a concurrent one.
    - Nothing is deleted but by `delete`: a store that lets objects expire damages the journal.
    - The number of files and connections that it keeps open does not grow with the number of calls.

    A key has up to 200 lower-case letters, digits, `-` and `/` of ASCII; it begins and ends with a letter or a digit.
    It shows neither data nor ids, and no key continues another one after a `/`, as a file is no folder. Several tasks,
    event loops and processes may call the methods concurrently, and may be cancelled. An error that a method raises
    becomes a `JournalError`; an execution repeats what raises `JournalBusy`, and ends with others.
    """

    @abstractmethod
    async def put(self, key: str, data: bytes) -> None:
        """Store an object; it is durable when this returns."""

    @abstractmethod
    async def get(self, key: str) -> bytes:
        """Return an object.

        Raises:
            KeyError: there is no object of this key.
        """

    @abstractmethod
    async def delete(self, key: str) -> None:
        """Delete an object. Idempotent: nothing happens when there is none."""
