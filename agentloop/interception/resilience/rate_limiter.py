"""No more attempts than a rate allows."""

from __future__ import annotations

import asyncio

from attrs import field, frozen

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.events.resilience import ToolCallRateLimited
from agentloop.interception.resilience.layer import RATE_LIMIT, MemoryStore, ResilienceLayer
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import RateLimit
from agentloop.values.tool_calls import ToolExecution, ToolStatus
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


_BUCKETS = Namespace("buckets")


@frozen
class RateLimiter(ResilienceLayer):
    """Lets attempts through as fast as a bucket of tokens fills, repetitions included; others wait or are refused.

    Those who wait are served in the order in which they came. A token that was promised to a call is used up even when the
    call is cancelled while it waits.

    Attributes:
        limit: the limit of tools that declare none; None for no limit.
        store: where the buckets are.
        priority: where it stands among the interceptors.
    """

    limit: RateLimit | None = None
    store: CanKeepState = field(factory=MemoryStore, kw_only=True, repr=False)
    priority: int = field(default=RATE_LIMIT, kw_only=True)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Take a token, wait for one, or refuse."""
        limit = point.policy.rate_limit or self.limit
        if limit is None:
            return await proceed()
        bucket = _bucket_name(limit, point)
        delay, refused = await self._take(limit, bucket)
        if delay:
            await self._tell(ToolCallRateLimited, point, bucket, delay, refused)
        if refused:
            return _refusal(point, delay)
        if delay:
            await asyncio.sleep(delay)
        return await proceed()

    async def _take(self, limit: RateLimit, bucket: str) -> tuple[float, bool]:
        """Take or promise a token: return the seconds until it is there, and whether that is too long."""
        now = self._clock.monotonic()

        def take(kept: TokenBucket | None) -> Update[TokenBucket, tuple[float, bool]]:
            before = kept or TokenBucket(now)
            delay = before.wait(limit, now)
            refused = limit.max_wait is not None and delay > limit.max_wait
            after = before if refused else before.taken(limit, now)
            return Update(after, after.full_at, (delay, refused))

        return await self.store.update(_BUCKETS, bucket, now, take)


def _bucket_name(limit: RateLimit, point: AroundToolUse) -> str:
    if limit.by is None:
        return f"tool {point.call.name}"
    if isinstance(limit.by, str):
        return f"shared {limit.by}"
    return f"tool {point.call.name}, key {limit.by(point.arguments)}"


def _refusal(point: AroundToolUse, delay: float) -> ToolExecution:
    return point.fail(
        f"the tool {point.call.name!r} was called too often: not run; call it again in {delay:.1f} seconds or later, "
        "or do without it",
        type="RateLimitExceeded",
        status=ToolStatus.BLOCKED,
    )
