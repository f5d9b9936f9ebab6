"""The contract of inferences that try more than once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Self, TypeAlias

from attrs import frozen

from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class FailedAttempt(Value):
    """An attempt that failed and is going to be repeated.

    Attributes:
        attempt: its number, from 1.
        error: why it failed.
        delay: seconds until the next attempt.
        instead: what is asked next, when it is not the same again.
    """

    attempt: int
    error: Exception
    delay: float
    instead: str = ""


RetryReport: TypeAlias = Callable[[FailedAttempt], None]


class CanReportRetries(ABC):
    """An inference that repeats failed attempts and tells of each; its driver makes events of that."""

    @abstractmethod
    def with_retry_report(self, report: RetryReport) -> Self:
        """Return a copy that calls `report` before each repetition."""
