"""A limit on the rate of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from attrs import field, frozen

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.contracts.can_tell_controls import Control
from agentloop.events.resilience import ToolCallRateLimited
from agentloop.policies.resilience.layer import RATE_LIMIT_PRIORITY, ResilienceLayer, require_plain
from agentloop.policies.resilience.memory_store import MemoryStore
from agentloop.values.owners import find_owner, is_asker
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy, RateLimit
from agentloop.values.tool_calls import ToolExecution, ToolSpec, ToolStatus
from agentloop.values.value import Value

_BUCKETS = Namespace("buckets")


@frozen(eq=False, repr=False)
class TokenBucket(Value):
    """A bucket that fills at a constant rate. One number is its whole state, so nothing is counted between calls.

    Source: the virtual scheduling form of the generic cell rate algorithm, ITU-T I.371, annex A.

    Attributes:
        full_at: when the bucket will be full, in seconds of the loop's clock; tokens that are reserved count as taken.
    """

    full_at: float

    def wait(self, limit: RateLimit, now: float) -> float:
        """Return the seconds until a token is available that is not reserved."""
        burst = limit.burst if limit.burst is not None else limit.calls
        return max(0.0, self.full_at - now - (burst - 1) * limit.per / limit.calls)

    def take(self, limit: RateLimit, now: float) -> TokenBucket:
        """Return the bucket after the next token was taken or reserved."""
        return TokenBucket(max(self.full_at, now) + limit.per / limit.calls)


@frozen
class RateLimiter(ResilienceLayer):
    """Limits the rate of attempts, retries included, with a token bucket; others wait or are refused.

    Attempts are served in the order of arrival. The token that is reserved for a call is used up even if the call is
    cancelled while it waits.

    Attributes:
        limit: the limit of tools that declare none; None for no limit.
        store: where the buckets are stored.
        priority: the position among other interceptors.
    """

    limit: RateLimit | None = None
    store: CanKeepState = field(factory=MemoryStore, kw_only=True, repr=False)
    priority: int = field(default=RATE_LIMIT_PRIORITY, kw_only=True)
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def allows_eager_start(self) -> bool:  # a call of a tool with a limit never starts early
        """Whether it limits only tools that declare it."""
        return self.limit is None

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return how many attempts may start in a time."""
        found = policy.rate_limit or self.limit
        return (
            [] if found is None else [Control("limits", f"{found.calls} attempts in {found.per:g} seconds", of="rate")]
        )

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Take a token, wait for one, or refuse the attempt."""
        limit = point.policy.rate_limit or self.limit
        if limit is None:
            return await proceed()
        bucket = _bucket_name(limit, point)
        # The token is reserved before the wait, so that waiting calls keep their order and none of them has to compete.
        delay, is_refused = await self._take_token(limit, bucket)
        if delay:
            await self._report(ToolCallRateLimited, point, bucket, delay, is_refused)
        if is_refused:
            return _refuse(point, delay)
        if delay:
            await asyncio.sleep(delay)
        return await proceed()

    async def _take_token(self, limit: RateLimit, bucket: str) -> tuple[float, bool]:
        """Take or reserve a token; return the seconds until it is available, and whether that is too long."""
        now = self._time(self.store)

        def take(stored: TokenBucket | None) -> Update[TokenBucket, tuple[float, bool]]:
            before = stored or TokenBucket(now)
            delay = before.wait(limit, now)
            is_refused = limit.max_wait is not None and delay > limit.max_wait
            after = before if is_refused else before.take(limit, now)
            # A full bucket is a new bucket, so it need not be stored any longer.
            return Update(after, after.full_at, (delay, is_refused))

        return await self.store.update(_BUCKETS, bucket, now, take)


def _bucket_name(limit: RateLimit, point: AroundToolUse) -> str:
    if limit.by is None:
        return f"tool {point.call.name}"
    if is_asker(limit.by):
        return (
            f"tool {point.call.name}, {limit.by} {find_owner(limit.by, point.state, f'the tool {point.call.name!r}')}"
        )
    if isinstance(limit.by, str):
        return f"shared {limit.by}"
    key = require_plain("names the bucket of a call", limit.by(point.arguments))
    return f"tool {point.call.name}, key {key}"


def _refuse(point: AroundToolUse, delay: float) -> ToolExecution:
    return point.fail(
        f"the tool {point.call.name!r} was called too often: not run; call it again in {delay:.1f} seconds or later, "
        "or do without it",
        type="RateLimitExceeded",
        status=ToolStatus.BLOCKED,
    )
