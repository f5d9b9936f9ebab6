"""Policies of tools for calls that fail, repeat or come too often: retry, cache, rate limit, circuit, deduplication."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, Literal, Self, TypeAlias

from attrs import Attribute, evolve, field, fields, frozen
from attrs.validators import ge, gt, optional

from agentloop.values.json import JsonObject
from agentloop.values.owners import Asker, is_asker, none_or_asker
from agentloop.values.value import Value, instance_of


@frozen(eq=False, repr=False)
class SeenCall(Value):
    """A call as a deduplicator sees it.

    Attributes:
        name: the name of the tool.
        arguments: the arguments.
        caller: the user or tenant on whose behalf it is made.
        execution_id: the execution.
        step: the 1-based step of the execution.
        began: the time at which it started, in seconds of the loop's clock.
        ended: the time at which it ended; None while it is running.
    """

    name: str
    arguments: JsonObject
    caller: str
    execution_id: str
    step: int
    began: float
    ended: float | None = None


Similarity: TypeAlias = Callable[[SeenCall, SeenCall], bool]
"""Returns whether a call and an earlier one, of the same tool and caller, are the same call."""


# The policies refer to deduplicators, so the contract is defined here and implemented in `policies`.
class Deduplicator(ABC):
    """Decides which calls are the same call. It holds no state: `Deduplicate` stores the calls.

    An implementation keeps these laws:

    - Calls of different tools or callers are in different groups.
    - The result for two calls depends on these two calls alone.
    """

    @property
    def remembers(self) -> bool:
        """Whether a later call can be the same as one that has ended; if False, only those of its own step, and running ones, are."""
        return True

    @abstractmethod
    def group(self, call: SeenCall) -> Hashable:
        """Return the group of a call; calls of different groups are never compared."""

    @abstractmethod
    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Return whether a call is the same as an earlier call of its group, which is running or has succeeded."""


_MAX_DOUBLINGS = 64
"""Larger powers of two overflow a float long before anybody waits for them."""

ErrorKind: TypeAlias = str | type[BaseException]
"""An error class, which includes its subclasses, or the name of a single class."""


def _as_kinds(kinds: ErrorKind | Iterable[ErrorKind]) -> tuple[ErrorKind, ...]:
    return (kinds,) if isinstance(kinds, str | type) else tuple(kinds)


@frozen(eq=False, repr=False)
class RetryPolicy(Value):
    """How a failed tool call or model request is retried, with exponential backoff and jitter.

    Attributes:
        max_attempts: the number of attempts, including the first; 1 disables retries.
        initial_wait: seconds before the second attempt; doubled before each further attempt.
        max_wait: the maximum seconds to wait before an attempt. A model provider that asks for a longer wait is not
            called again.
        on: the errors to retry; empty for all errors.
        not_on: errors not to retry, even if `on` includes them. By default, the errors of a wrong argument or a bug.
    """

    max_attempts: int = field(default=3, validator=ge(1))
    initial_wait: float = field(default=0.5, validator=ge(0), kw_only=True)
    max_wait: float = field(default=60.0, validator=ge(0), kw_only=True)
    on: tuple[ErrorKind, ...] = field(default=(), converter=_as_kinds, kw_only=True)
    not_on: tuple[ErrorKind, ...] = field(
        default=(TypeError, ValueError, LookupError, AttributeError, NotImplementedError),
        converter=_as_kinds,
        kw_only=True,
    )

    def backoff(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after a failed attempt.

        Args:
            attempt: its 1-based number.
            jitter: a number from 0 to 1; the wait is between half and all of the doubled initial wait.
        """
        doublings = min(attempt - 1, _MAX_DOUBLINGS)
        return min(self.initial_wait * 2.0**doublings, self.max_wait) * (0.5 + jitter / 2)

    def matches(self, error: str) -> bool:
        """Return whether to retry after an error whose class has this name."""
        return (not self.on or _matches_any(error, self.on)) and not _matches_any(error, self.not_on)


def _matches_any(error: str, kinds: tuple[ErrorKind, ...]) -> bool:
    return any(error == kind if isinstance(kind, str) else _is_subclass_name(error, kind) for kind in kinds)


def _is_subclass_name(error: str, kind: type[BaseException]) -> bool:
    # A failed call is stored as data, so only the name of its error class is known here.
    return kind.__name__ == error or any(_is_subclass_name(error, sub) for sub in kind.__subclasses__())


@frozen(eq=False, repr=False)
class CachePolicy(Value):
    """How long a result is reused for equal calls of the same caller.

    Attributes:
        seconds: how long a result is reused.
        max_entries: the maximum number of cached results of the tool; the least recently used entry is evicted first.
        by: who the caller is: the `principal`, or its `tenant`, in all their executions; a call for which nobody is known fails the
            execution. None for what the layer says, by default the agent.
    """

    seconds: float = field(default=300.0, validator=gt(0))
    max_entries: int = field(default=1000, validator=ge(1), kw_only=True)
    by: Asker | None = field(default=None, validator=none_or_asker, kw_only=True)


@frozen(eq=False, repr=False)
class RateLimit(Value):
    """How often a tool may run: a token bucket from which each attempt takes one token.

    In any `n` seconds at most `burst + n * calls / per` attempts start.

    Attributes:
        calls: the number of tokens added in `per` seconds.
        per: the period in seconds.
        burst: the capacity of the bucket, and so the number of attempts that may start at once; by default `calls`.
        max_wait: the maximum seconds that a call waits for a token; a call that would wait longer is refused. None for
            no maximum, 0 to never wait.
        by: `principal` or `tenant` for a bucket of the tool for each who asks or for each tenant, where a call for which nobody is
            known fails the execution; another text as the name of a bucket that several tools share; or a function from the
            arguments to the name of one of the tool's buckets. None for one bucket per tool.
    """

    calls: int = field(validator=ge(1))
    per: float = field(default=1.0, validator=gt(0))
    burst: int | None = field(default=None, validator=optional(ge(1)), kw_only=True)
    max_wait: float | None = field(default=None, validator=optional(ge(0)), kw_only=True)
    by: str | Callable[[JsonObject], str] | None = field(default=None, kw_only=True)


@frozen(eq=False, repr=False)
class CircuitPolicy(Value):
    """When a circuit breaker stops the calls of a failing tool, and when it tries the tool again.

    Attributes:
        failures: the number of consecutive failures that open the circuit.
        seconds: how long it stays open.
        probes: the number of calls that are let through after that; if all succeed the circuit closes, if one fails it
            opens again.
        dependency: the name of a circuit that several tools share; empty for one circuit per tool.
    """

    failures: int = field(default=5, validator=ge(1))
    seconds: float = field(default=30.0, validator=gt(0))
    probes: int = field(default=1, validator=ge(1), kw_only=True)
    dependency: str = field(default="", kw_only=True)


@frozen(eq=False, repr=False)
class DeduplicatePolicy(Value):
    """Which calls of a tool are the same call; one of them runs, and the others get its result.

    Calls are the same if they have the same caller and the same arguments and are close enough to each other. By default only
    calls of one answer and calls that run at the same time are close enough.

    Attributes:
        seconds: the maximum seconds between the success of a call and the next one; `inf` for as long as it is stored.
        steps: the maximum distance in steps of one execution; 0 for calls of one message.
        by: compares calls in place of their arguments: a deduplicator, or a function of two calls. Without `seconds` and
            `steps` it decides alone. Or `principal` or `tenant`: calls with equal arguments are the same for each who asks or for
            each tenant, whatever the agent; a call for which nobody is known fails the execution.
        across_executions: whether calls of different executions can be the same.

    Raises:
        TypeError: if `by` is neither.
    """

    seconds: float | None = field(default=None, validator=optional(ge(0)))
    steps: int | None = field(default=None, validator=optional(ge(0)))
    by: Deduplicator | Similarity | Asker | None = field(default=None, kw_only=True)
    across_executions: bool = field(default=False, kw_only=True, validator=instance_of(bool))

    def __attrs_post_init__(self) -> None:
        """Check the type of `by`."""
        if not (self.by is None or isinstance(self.by, Deduplicator) or callable(self.by) or is_asker(self.by)):
            raise TypeError(f"by is a Deduplicator, a function of two calls, 'principal' or 'tenant', not {self.by!r}")


Deduplicated: TypeAlias = DeduplicatePolicy | Literal["exact"]
"""A policy, or `exact`: calls with equal arguments run once in an execution, whatever the distance between them."""


def _as_policy(value: Deduplicated | None) -> DeduplicatePolicy | None:
    if value is None or isinstance(value, DeduplicatePolicy):
        return value
    if value != "exact":
        raise ValueError(f"deduplicate is a DeduplicatePolicy or 'exact', not {value!r}")
    return DeduplicatePolicy(inf)


def _none_or(kind: type) -> Callable[[Any, Attribute[Any], Any], None]:
    def check(_: object, attribute: Attribute[Any], value: object) -> None:
        if value is not None and not isinstance(value, kind):
            name = attribute.name
            raise TypeError(f"{name!r} has to be a {kind.__name__}, as in {name}={kind.__name__}(…), not {value!r}")

    return check


@frozen(eq=False, repr=False, kw_only=True)
class CallPolicy(Value):
    """The policies of a tool, applied by the loop or by its `agentloop.policies.Resilience`. None leaves a policy out.

    A policy applies whatever the effect of the tool is: retries, a cache or deduplication on a tool with side effects are
    the author's explicit choice.

    Attributes:
        retry: how a failed call is retried.
        cache: how long results are reused.
        rate_limit: how often the tool may run.
        circuit: when a circuit breaker stops the calls of the failing tool.
        deadline: the maximum seconds of a call, including waits and retries.
        deduplicate: which calls run once: a `DeduplicatePolicy`, or `exact`.
    """

    retry: RetryPolicy | None = field(default=None, validator=_none_or(RetryPolicy))
    cache: CachePolicy | None = field(default=None, validator=_none_or(CachePolicy))
    rate_limit: RateLimit | None = field(default=None, validator=_none_or(RateLimit))
    circuit: CircuitPolicy | None = field(default=None, validator=_none_or(CircuitPolicy))
    deadline: float | None = field(default=None, validator=optional(gt(0)))
    deduplicate: DeduplicatePolicy | None = field(default=None, converter=_as_policy)

    def merged_over(self, other: CallPolicy) -> Self:
        """Return this policy with its unset fields taken from the other one."""
        unset = [f.name for f in fields(CallPolicy) if getattr(self, f.name) is None]
        return evolve(self, **{name: getattr(other, name) for name in unset})


DEFAULT_CALL_POLICY = CallPolicy()
