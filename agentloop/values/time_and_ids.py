"""Where time comes from."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from datetime import UTC, datetime


class Clock(ABC):
    """Tells the time. Everything in agentloop that needs time asks the clock of its loop, so a test can stand still."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the present moment as an aware datetime in UTC."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; differences are durations, and it never goes back."""


class SystemClock(Clock):
    """The clock of this machine."""

    __slots__ = ()

    def now(self) -> datetime:
        """Return the system's time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return the system's monotonic time in seconds."""
        return time.monotonic()


class IdSource(ABC):
    """Draws ids. Ids are drawn in the order in which calls are admitted, so the same source gives the same run the same ids."""

    @abstractmethod
    def new_id(self, kind: str) -> str:
        """Return an id that was not returned before.

        Args:
            kind: what the id is for: `agent`, `execution`, `step` or `tool_execution`.
        """


class DerivedIds(IdSource):
    """Ids that count up after an id that was drawn before, so that what runs side by side draws the same ones in any order.

    Args:
        origin: the id that they are derived from.
    """

    __slots__ = ("_counts", "_origin")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._counts: Counter[str] = Counter()

    def new_id(self, kind: str) -> str:
        """Return the next one: `origin/step_1`, `origin/step_2`."""
        self._counts[kind] += 1
        return f"{self._origin}/{kind}_{self._counts[kind]}"


class RandomIds(IdSource):
    """Ids of 128 random bits from the operating system, after the kind: `step_6f1d…`."""

    __slots__ = ()

    def new_id(self, kind: str) -> str:
        """Return `kind`, an underscore and 32 hexadecimal digits."""
        return f"{kind}_{os.urandom(16).hex()}"
