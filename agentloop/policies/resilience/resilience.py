"""All layers around a tool as one interceptor, in a fixed order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from copy import copy
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_keep_state import CanKeepState
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.interception.interceptor import Interceptor, allows_eager_start
from agentloop.policies.resilience.cache import Cache
from agentloop.policies.resilience.circuit_breaker import CircuitBreaker
from agentloop.policies.resilience.deduplicate import Deduplicate
from agentloop.policies.resilience.layer import DEDUPLICATE_PRIORITY, ResilienceLayer
from agentloop.policies.resilience.rate_limiter import RateLimiter
from agentloop.policies.resilience.retry import Retry
from agentloop.policies.resilience.timeouts import AttemptTimeout, Deadline
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CallPolicy
from agentloop.values.tool_calls import ToolExecution, ToolSpec
from agentloop.values.value import instance_of


@frozen(kw_only=True)
class Resilience(Interceptor, CanAcceptExecutionScope, CanAcceptLifecycle, CanNameTools, CanTellControls):
    """Enforces the policies of tools: `@tool(retry=…, cache=…, rate_limit=…, circuit=…, deadline=…, deduplicate=…)`.

    The order of the layers is fixed, from the outside in: deduplicate, cache, deadline, retry, circuit breaker, rate limit,
    attempt timeout, and then the tool with its declared `timeout`. So a call that is answered from the cache takes no token
    of the rate limit, each attempt takes one, and the deadline includes all waits.

    By default, equal calls of a pure or idempotent tool that run at the same time run once, such a call is tried up to three
    times, and everything else that tools declare is enforced. A tool with an effect that declares nothing runs once.

    Attributes:
        deduplicate: runs one of several equal calls; None to leave the layer out, as for the others.
        cache: reuses results.
        deadline: cancels a call at its deadline.
        retry: retries failed calls.
        circuit_breaker: refuses calls of tools that keep failing.
        rate_limiter: limits the rate of attempts.
        attempt_timeout: cancels an attempt that takes too long.
        tools: policies for tools by name or pattern such as `crm_*`; the first match takes precedence over what the tool
            declares.
        optional: whether the names in `tools` may match no tool. Otherwise that is an error when an execution begins.
        store: where buckets, circuits and results are stored; by default a store for each layer.
        priority: the position among other interceptors.
    """

    deduplicate: Deduplicate | None = field(factory=Deduplicate)
    cache: Cache | None = field(factory=Cache)
    deadline: Deadline | None = field(factory=Deadline)
    retry: Retry | None = field(factory=Retry)
    circuit_breaker: CircuitBreaker | None = field(factory=CircuitBreaker)
    rate_limiter: RateLimiter | None = field(factory=RateLimiter)
    attempt_timeout: AttemptTimeout | None = field(factory=AttemptTimeout)
    tools: Mapping[str, CallPolicy] = field(factory=dict)
    optional: bool = field(default=False, validator=instance_of(bool))
    store: CanKeepState | None = field(default=None, repr=False)
    priority: int = DEDUPLICATE_PRIORITY
    repeats_effects = True  # if a policy in code says so
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field
    _layers: tuple[ResilienceLayer, ...] = field(init=False, repr=False, eq=False)

    def __attrs_post_init__(self) -> None:
        """Build the layers."""
        object.__setattr__(self, "_layers", self._build_layers())

    @property
    def layers(self) -> tuple[ResilienceLayer, ...]:
        """The layers, outermost first."""
        return self._layers

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools with policies here."""
        return [] if self.optional else [ToolReference("Resilience(tools=…)", name) for name in self.tools]

    @property
    def allows_eager_start(self) -> bool:
        """Whether every layer agrees, and no tool has a policy here."""
        return not self.tools and all(map(allows_eager_start, self._layers))

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy whose layers use the clock of the loop."""
        return self._with_layers([layer.with_execution_scope(scope) for layer in self._layers])

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:
        """Return a copy whose layers emit their decisions to this bus."""
        return self._with_layers([layer.with_lifecycle(interceptor, events) for layer in self._layers])

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:
        """Return what its layers do for calls of a tool."""
        policy = self._merged(tool.name, policy)
        controls = [(layer, layer.controls_on(tool, ensemble, policy)) for layer in self._layers]
        return [evolve(control, by=layer.name) for layer, found in controls for control in found]

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Run the call inside the layers."""
        # Before the layers, which all read the policy of the point.
        if self.tools:
            point = evolve(point, policy=self._merged(point.call.name, point.policy))
        for layer in reversed(self._layers):
            proceed = partial(layer.around, point, proceed)
        return await proceed()

    def _merged(self, name: str, declared: CallPolicy) -> CallPolicy:
        """Return the policy of a tool; the first one in `tools` that matches its name comes before what it declares."""
        match = next((policy for pattern, policy in self.tools.items() if fnmatchcase(name, pattern)), None)
        return declared if match is None else match.merged_over(declared)

    def _with_layers(self, layers: Sequence[ResilienceLayer]) -> Self:
        bound = copy(self)  # not `evolve`, which builds the layers anew
        object.__setattr__(bound, "_layers", tuple(layers))
        return bound

    def _build_layers(self) -> tuple[ResilienceLayer, ...]:
        retry, deadline = self.retry, self.deadline
        # Retry is inside the deadline: without knowing it, it would wait for attempts that can never start.
        if retry is not None and retry.deadline is None and deadline is not None:
            retry = evolve(retry, deadline=deadline.seconds)
        cache, circuit_breaker, rate_limiter = self.cache, self.circuit_breaker, self.rate_limiter
        if self.store is not None:
            cache = cache and evolve(cache, store=self.store)
            circuit_breaker = circuit_breaker and evolve(circuit_breaker, store=self.store)
            rate_limiter = rate_limiter and evolve(rate_limiter, store=self.store)
        layers = (self.deduplicate, cache, deadline, retry, circuit_breaker, rate_limiter, self.attempt_timeout)
        return tuple([layer for layer in layers if layer is not None])


# --- what tools declare ------------------------------------------------------------------------------------------

_DECLARED: Mapping[str, tuple[str, type[ResilienceLayer], Callable[[], ResilienceLayer]]] = {
    "deduplicate": ("deduplicate", Deduplicate, partial(Deduplicate, None)),
    "cache": ("cache", Cache, Cache),
    "deadline": ("deadline", Deadline, Deadline),
    "retry": ("retry", Retry, partial(Retry, None)),
    "circuit": ("circuit_breaker", CircuitBreaker, CircuitBreaker),
    "rate_limit": ("rate_limiter", RateLimiter, RateLimiter),
}
"""By the names of policies: the field of `Resilience`, the class of the layer, and what creates one for declared policies alone."""


def applies_all(interceptors: Iterable[CanIntercept]) -> bool:
    """Return whether one of the interceptors applies every policy, or leaves it out on purpose."""
    return any(isinstance(interceptor, Resilience) for interceptor in interceptors)


def single_layers(interceptors: Iterable[CanIntercept]) -> frozenset[str]:
    """Return the names of the policies that single layers among the interceptors apply."""
    given = list(interceptors)
    return frozenset(
        name for name, (_, kind, _) in _DECLARED.items() if any(isinstance(layer, kind) for layer in given)
    )


def declared_layers(policies: Sequence[str], kept: MutableMapping[Any, Any]) -> Resilience:
    """Return an interceptor that applies policies where tools declare them.

    Args:
        policies: the names of the policies.
        kept: the layers that exist already, by the names of their policies, with their buckets, circuits and stored results.
    """
    fields: dict[str, Any] = {attribute: None for attribute, _, _ in _DECLARED.values()}
    for name in policies:
        attribute, _, create = _DECLARED[name]
        if (Resilience, name) not in kept:
            kept[Resilience, name] = create()
        fields[attribute] = kept[Resilience, name]
    outermost = max(fields[_DECLARED[name][0]].priority for name in policies)
    return Resilience(**fields, attempt_timeout=None, priority=outermost)
