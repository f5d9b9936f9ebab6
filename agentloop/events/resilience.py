"""Events of the resilience layers around a tool: deduplication, cache, retry, rate limit, circuit breaker, timeouts."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen

from agentloop.values.event import Event
from agentloop.values.tool_calls import ErrorInfo


@frozen(eq=False, repr=False)
class ToolCallDecided(Event):
    """The base of events that name a call and its tool.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
    """

    is_base: ClassVar[bool] = True

    key: str
    name: str


@frozen(eq=False, repr=False)
class ToolCallDeduplicated(ToolCallDecided):
    """A call got the outcome of an equal call and did not run.

    Attributes:
        original: the key of the call that ran.
    """

    original: str


@frozen(eq=False, repr=False)
class ToolCallCached(ToolCallDecided):
    """A call got a cached result and did not run.

    Attributes:
        age: the age of the result in seconds.
    """

    age: float


@frozen(eq=False, repr=False)
class ToolCallDeadlineExceeded(ToolCallDecided):
    """A call exceeded its deadline, which includes waits and retries, and was cancelled.

    Attributes:
        seconds: the deadline in seconds.
    """

    seconds: float


@frozen(eq=False, repr=False)
class ToolCallRetried(ToolCallDecided):
    """An attempt of a call failed and will be retried.

    Attributes:
        attempt: the 1-based number of the failed attempt.
        error: the error.
        delay: seconds until the next attempt.
    """

    attempt: int
    error: ErrorInfo
    delay: float


@frozen(eq=False, repr=False)
class ToolAttemptTimedOut(ToolCallDecided):
    """One attempt of a call exceeded its timeout and was cancelled."""


@frozen(eq=False, repr=False)
class ToolCallRateLimited(ToolCallDecided):
    """An attempt found its token bucket empty, and waits or was refused.

    Attributes:
        bucket: the name of the bucket.
        delay: seconds until a token is available.
        refused: whether the attempt was refused instead of waiting.
    """

    bucket: str
    delay: float
    refused: bool


@frozen(eq=False, repr=False)
class CircuitDecided(ToolCallDecided):
    """The base of the events of circuits.

    Attributes:
        circuit: the name of the circuit.
    """

    is_base: ClassVar[bool] = True

    circuit: str


@frozen(eq=False, repr=False)
class CircuitOpened(CircuitDecided):
    """The failure of this call opened a circuit, which refuses calls for a time.

    Attributes:
        seconds: how long the circuit stays open.
    """

    seconds: float


@frozen(eq=False, repr=False)
class CircuitHalfOpened(CircuitDecided):
    """The time of an open circuit is over, and this call tests whether the tool works again."""


@frozen(eq=False, repr=False)
class CircuitClosed(CircuitDecided):
    """The success of this call closed a circuit, so calls run again."""


@frozen(eq=False, repr=False)
class ToolCallShortCircuited(CircuitDecided):
    """A call was refused because the circuit is open.

    Attributes:
        delay: seconds until the circuit lets a call through.
    """

    delay: float
