"""Clocks and sources of ids. Both are injected, so that tests and replays can control them."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from datetime import UTC, datetime, timedelta

from agentloop.errors.kinds import ContractViolation

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_microseconds(moment: datetime) -> int:
    """Return a time as microseconds since 1970, which databases can compare.

    Raises:
        ContractViolation: the time has no time zone.
    """
    if moment.tzinfo is None:
        raise ContractViolation(f"the time {moment} of an execution has no time zone")
    return (moment - _EPOCH) // _MICROSECOND


def from_microseconds(count: int) -> datetime:
    """Return the time in UTC that is a number of microseconds after the beginning of 1970.

    Raises:
        OverflowError: there is no such time.
    """
    return _EPOCH + count * _MICROSECOND


class Clock(ABC):
    """Returns the current time. Every part of a loop reads the loop's clock, so a test can replace it."""

    @abstractmethod
    def now(self) -> datetime:
        """Return the current time as an aware datetime in UTC."""

    @abstractmethod
    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never decreases."""


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
    """Creates ids. A loop requests them in a fixed order, so a deterministic source gives equal runs equal ids (law 8)."""

    @abstractmethod
    def new_id(self, kind: str) -> str:
        """Return an id that was not returned before.

        Args:
            kind: the kind of thing to identify: `agent`, `execution`, `step` or `tool_execution`.
        """


class DerivedIds(IdSource):
    """Numbered ids below another id. Concurrent work that uses one source each gets the same ids in any order of events.

    Args:
        origin: the id from which they are derived.
    """

    __slots__ = ("_counts", "_origin")

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._counts: Counter[str] = Counter()

    def new_id(self, kind: str) -> str:
        """Return the next id of this kind: `origin/step_1`, `origin/step_2`."""
        self._counts[kind] += 1
        return f"{self._origin}/{kind}_{self._counts[kind]}"


class RandomIds(IdSource):
    """Ids of 128 random bits from the operating system, prefixed by the kind: `step_6f1d…`."""

    __slots__ = ()

    def new_id(self, kind: str) -> str:
        """Return `kind`, an underscore and 32 hexadecimal digits."""
        return f"{kind}_{os.urandom(16).hex()}"
