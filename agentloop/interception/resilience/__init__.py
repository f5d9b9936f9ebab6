"""The layers around a tool: one file each, usable alone, and together as `Resilience`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentloop._lazy import lazy

if TYPE_CHECKING:
    from agentloop.interception.resilience.cache import Cache as Cache
    from agentloop.interception.resilience.circuit_breaker import CircuitBreaker as CircuitBreaker
    from agentloop.interception.resilience.deduplicate import Deduplicate as Deduplicate
    from agentloop.interception.resilience.deduplicate import ExactCalls as ExactCalls
    from agentloop.interception.resilience.deduplicate import InFlight as InFlight
    from agentloop.interception.resilience.deduplicate import SimilarCalls as SimilarCalls
    from agentloop.interception.resilience.deduplicate import WithinSeconds as WithinSeconds
    from agentloop.interception.resilience.deduplicate import WithinSteps as WithinSteps
    from agentloop.interception.resilience.layer import MemoryStore as MemoryStore
    from agentloop.interception.resilience.layer import any_caller as any_caller
    from agentloop.interception.resilience.layer import calling_agent as calling_agent
    from agentloop.interception.resilience.rate_limiter import RateLimiter as RateLimiter
    from agentloop.interception.resilience.resilience import Resilience as Resilience
    from agentloop.interception.resilience.retry import Retry as Retry
    from agentloop.interception.resilience.timeouts import AttemptTimeout as AttemptTimeout
    from agentloop.interception.resilience.timeouts import Deadline as Deadline
    from agentloop.values.policies import Deduplicator as Deduplicator
    from agentloop.values.policies import SeenCall as SeenCall
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        {
            "agentloop.interception.resilience.timeouts": "AttemptTimeout Deadline",
            "agentloop.interception.resilience.cache": "Cache",
            "agentloop.interception.resilience.layer": "any_caller calling_agent MemoryStore",
            "agentloop.interception.resilience.circuit_breaker": "CircuitBreaker",
            "agentloop.interception.resilience.deduplicate": "Deduplicate ExactCalls InFlight SimilarCalls WithinSeconds WithinSteps",
            "agentloop.interception.resilience.rate_limiter": "RateLimiter",
            "agentloop.interception.resilience.resilience": "Resilience",
            "agentloop.interception.resilience.retry": "Retry",
            "agentloop.values.policies": "Deduplicator SeenCall",
        },
    )
