"""The layers that apply what tools declare, and nothing to tools that declare nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.interception.resilience.cache import Cache
from agentloop.interception.resilience.circuit_breaker import CircuitBreaker
from agentloop.interception.resilience.deduplicate import Deduplicate
from agentloop.interception.resilience.layer import ResilienceLayer
from agentloop.interception.resilience.rate_limiter import RateLimiter
from agentloop.interception.resilience.resilience import Resilience
from agentloop.interception.resilience.retry import Retry
from agentloop.interception.resilience.timeouts import Deadline

_LAYERS: Mapping[str, tuple[str, type[ResilienceLayer], Callable[[], ResilienceLayer]]] = {
    "deduplicate": ("deduplicate", Deduplicate, partial(Deduplicate, None)),
    "cache": ("cache", Cache, Cache),
    "deadline": ("deadline", Deadline, Deadline),
    "retry": ("retry", Retry, partial(Retry, None)),
    "circuit": ("circuit_breaker", CircuitBreaker, CircuitBreaker),
    "rate_limit": ("rate_limiter", RateLimiter, RateLimiter),
}
"""By the names of policies: the field of `Resilience`, the class of the layer, and what creates one for declared policies alone."""


@frozen(kw_only=True)
class DeclaredPolicies(Resilience):
    """Applies policies that tools declare; a loop adds it where no interceptor of its own does."""


def single_layers(interceptors: Iterable[CanIntercept]) -> frozenset[str]:
    """Return the names of the policies that single layers among the interceptors apply."""
    given = list(interceptors)
    return frozenset(name for name, (_, kind, _) in _LAYERS.items() if any(isinstance(layer, kind) for layer in given))


def declared_layers(policies: Sequence[str], kept: MutableMapping[Any, Any]) -> DeclaredPolicies:
    """Return an interceptor that applies policies where tools declare them.

    Args:
        policies: the names of the policies.
        kept: the layers that exist already, by the names of their policies, with their buckets, circuits and stored results.
    """
    fields: dict[str, Any] = {field: None for field, _, _ in _LAYERS.values()}
    for name in policies:
        field, _, create = _LAYERS[name]
        fields[field] = kept.setdefault((DeclaredPolicies, name), None) or create()
        kept[DeclaredPolicies, name] = fields[field]
    outermost = max(fields[_LAYERS[name][0]].priority for name in policies)
    return DeclaredPolicies(**fields, attempt_timeout=None, priority=outermost)
