"""Where time comes from."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
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
