"""What the layers around a tool decided about a call that has begun."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.event import Event
from agentloop.values.tool_calls import ErrorInfo


@frozen(eq=False, repr=False)
class ToolCallDecided(Event):
    """What these events have in common.

    Attributes:
        key: the idempotency key of the call.
        name: the name of the tool.
    """

    key: str
    name: str


@frozen(eq=False, repr=False)
class ToolCallDeduplicated(ToolCallDecided):
    """A call was given the outcome of another one and did not run.

    Attributes:
        original: the key of the call that ran.
    """

    original: str


@frozen(eq=False, repr=False)
class ToolCallCached(ToolCallDecided):
    """A call was given a result from the cache and did not run.

    Attributes:
        age: how many seconds old the result is.
    """

    age: float


@frozen(eq=False, repr=False)
class ToolCallDeadlineExceeded(ToolCallDecided):
    """A call had taken its time in all, and was cut off.

    Attributes:
        seconds: the time it had.
    """

    seconds: float


@frozen(eq=False, repr=False)
class ToolCallRetried(ToolCallDecided):
    """An attempt failed and is going to be repeated.

    Attributes:
        attempt: the number of the attempt that failed, from 1.
        error: why it failed.
        delay: seconds until the next attempt.
    """

    attempt: int
    error: ErrorInfo
    delay: float


@frozen(eq=False, repr=False)
class ToolAttemptTimedOut(ToolCallDecided):
    """One attempt had taken its time, and was cut off."""


@frozen(eq=False, repr=False)
class ToolCallRateLimited(ToolCallDecided):
    """An attempt came too early, and waits or was refused.

    Attributes:
        bucket: the name of the bucket that was empty.
        delay: seconds until there is a token for it.
        refused: whether it was refused instead of having to wait.
    """

    bucket: str
    delay: float
    refused: bool


@frozen(eq=False, repr=False)
class CircuitDecided(ToolCallDecided):
    """What the events of circuits have in common.

    Attributes:
        circuit: the name of the circuit.
    """

    circuit: str


@frozen(eq=False, repr=False)
class CircuitOpened(CircuitDecided):
    """The failure of this call opened a circuit: calls are refused for a while.

    Attributes:
        seconds: for how long.
    """

    seconds: float


@frozen(eq=False, repr=False)
class CircuitHalfOpened(CircuitDecided):
    """The time of an open circuit is over: this call is let through to probe whether the tool works again."""


@frozen(eq=False, repr=False)
class CircuitClosed(CircuitDecided):
    """The success of this call closed a circuit: calls run again."""


@frozen(eq=False, repr=False)
class ToolCallShortCircuited(CircuitDecided):
    """A call was refused because the circuit is open.

    Attributes:
        delay: seconds until the circuit lets a call through.
    """

    delay: float
