"""A bucket of tokens as a value."""

from __future__ import annotations

from attrs import frozen

from agentloop.values.call_policy import RateLimit
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class TokenBucket(Value):
    """A bucket that fills steadily. It is known by one number, so that nothing has to be counted while nobody calls.

    Source: the virtual scheduling form of the generic cell rate algorithm, ITU-T I.371, annex A.

    Attributes:
        full_at: when it will be full again; tokens that are promised to those who wait count as taken.
    """

    full_at: float

    def wait(self, limit: RateLimit, now: float) -> float:
        """Return the seconds until there is a token that is promised to nobody."""
        burst = limit.burst if limit.burst is not None else limit.calls
        return max(0.0, self.full_at - now - (burst - 1) * limit.per / limit.calls)

    def taken(self, limit: RateLimit, now: float) -> TokenBucket:
        """Return the bucket after the next token was taken or promised."""
        return TokenBucket(max(self.full_at, now) + limit.per / limit.calls)
