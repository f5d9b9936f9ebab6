"""All layers around a tool as one, in their fixed order."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_keep_state import CanKeepState
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.resilience.cache import Cache
from agentloop.interception.resilience.circuit_breaker import CircuitBreaker
from agentloop.interception.resilience.deduplicate import Deduplicate
from agentloop.interception.resilience.layer import DEDUPLICATE, ResilienceLayer
from agentloop.interception.resilience.rate_limiter import RateLimiter
from agentloop.interception.resilience.retry import Retry
from agentloop.interception.resilience.timeouts import AttemptTimeout, Deadline
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy
from agentloop.values.tool_calls import ToolExecution


@frozen(kw_only=True)
class Resilience(Interceptor, CanAcceptExecutionScope, CanAcceptLifecycle):
    """Does what tools ask for: `@tool(retry=…, cache=…, rate_limit=…, circuit=…, deadline=…, deduplicate=…)`.

    The layers stand in one order, from the outside in: deduplicate, cache, deadline, retry, circuit breaker, rate limit,
    attempt timeout, and then the tool with the `timeout` that it declares. So a call that is served from the cache uses up
    no token, each repetition does, and the deadline counts all waits.

    As it comes, it runs the same call of a pure or idempotent tool once while it is under way, tries such a call up to three
    times, and does whatever else the tools declare. A tool with an effect that declares nothing is run once.

    Attributes:
        deduplicate: None to leave it out; so with the others.
        cache: gives results again.
        deadline: ends a call.
        retry: tries again.
        circuit_breaker: refuses calls of what keeps failing.
        rate_limiter: slows down.
        attempt_timeout: ends an attempt.
        tools: what tools ask for that do not say so themselves, by name or pattern as in `crm_*`; the first that matches
            counts, before what the tool declares.
        store: where buckets, circuits and results are; a store of its own for each layer when left out.
        priority: where it stands among the interceptors.
    """

    deduplicate: Deduplicate | None = field(factory=Deduplicate)
    cache: Cache | None = field(factory=Cache)
    deadline: Deadline | None = field(factory=Deadline)
    retry: Retry | None = field(factory=Retry)
    circuit_breaker: CircuitBreaker | None = field(factory=CircuitBreaker)
    rate_limiter: RateLimiter | None = field(factory=RateLimiter)
    attempt_timeout: AttemptTimeout | None = field(factory=AttemptTimeout)
    tools: Mapping[str, CallPolicy] = field(factory=dict)
    store: CanKeepState | None = field(default=None, repr=False)
    priority: int = DEDUPLICATE
    _layers: tuple[ResilienceLayer, ...] = field(default=(), repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        """Put the layers in order, once."""
        if not self._layers:
            object.__setattr__(self, "_layers", self._in_order())

    @property
    def layers(self) -> tuple[ResilienceLayer, ...]:
        """The layers, outermost first."""
        return self._layers

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose layers take the time from the clock of the loop."""
        return evolve(self, layers=tuple([layer.with_execution_scope(scope) for layer in self._layers]))

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy whose layers tell what they decide to this bus."""
        return evolve(self, layers=tuple([layer.with_lifecycle(interceptor, events) for layer in self._layers]))

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Run the call inside of the layers."""
        if self.tools:
            point = self._asked(point)
        for layer in reversed(self._layers):
            proceed = partial(layer.around_tool_use, point, proceed)
        return await proceed()

    def _asked(self, point: AroundToolUse) -> AroundToolUse:
        name = point.call.name
        found = next((policy for pattern, policy in self.tools.items() if fnmatchcase(name, pattern)), None)
        return point if found is None else evolve(point, policy=found.merged_over(point.policy))

    def _in_order(self) -> tuple[ResilienceLayer, ...]:
        retry, end = self.retry, self.deadline
        if retry is not None and retry.deadline is None and end is not None:
            retry = evolve(retry, deadline=end.seconds)
        keeping = [self.cache, self.circuit_breaker, self.rate_limiter]
        if self.store is not None:
            keeping = [layer and evolve(layer, store=self.store) for layer in keeping]
        cache, breaker, limiter = keeping
        layers = (self.deduplicate, cache, end, retry, breaker, limiter, self.attempt_timeout)
        return tuple([layer for layer in layers if layer is not None])
