"""Contracts of what tells which workers live."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from agentloop.values.jobs import WorkerNote

WORK_CHANNEL: Final = "agentloop_work"
"""The channel on which PostgreSQL announces a change of the queues."""


class WorkerLocks(ABC):
    """The locks of the workers of one database. A worker uses one object from one thread.

    Methods raise `OSError` or an error of the database while the database cannot be reached; `connect` then connects again.
    """

    @abstractmethod
    def connect(self) -> bool:
        """Connect to the database if needed; return whether the connection, and with it every lock, is new."""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Take the lock of a worker; return whether it was free, so that no live worker of this name exists."""

    @abstractmethod
    def drop(self, name: str) -> None:
        """Release the lock of a worker that this object has taken."""

    @abstractmethod
    def write_note(self, note: WorkerNote) -> None:
        """Store what a worker tells about itself."""

    @abstractmethod
    def erase_note(self, name: str) -> None:
        """Remove the note of a worker."""

    @abstractmethod
    def has_missed_restart(self, name: str) -> bool:
        """Return whether the server of the database has restarted since a worker wrote its note: it may have left because of that."""

    @abstractmethod
    def live_notes(self) -> Sequence[WorkerNote]:
        """Return the notes of the workers whose locks are held, by name."""

    @abstractmethod
    def close(self) -> None:
        """Release all locks and connections. Idempotent."""


class WorkSignal(ABC):
    """Wakes a worker when the queues have changed. One thread waits; `wake` may be called from any."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Wait until the queues may have changed or `wake` was called since the last wait, up to a number of seconds."""

    @abstractmethod
    def wake(self) -> None:
        """End the wait, now or when it begins."""

    @abstractmethod
    def close(self) -> None:
        """Close connections; only while no thread waits."""
