"""A stretch of an execution in which each request to the model only extends the one before."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Epoch(Value):
    """A stretch of an execution in which each request to the model only extends the one before.

    Attributes:
        reason: why it began; empty when nothing is left out.
        dropped: how many messages of the conversation were left out when it began.
        kept: how many messages the model was shown when it began.
        superseded: how many of these have results that were replaced by a notice, because later calls made them stale.
    """

    reason: str = ""
    dropped: int = 0
    kept: int = 0
    superseded: int = 0


NO_EPOCH = Epoch()
