"""What a tool asks for in calls that fail, repeat or come too often."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from math import inf
from typing import Any, Literal, Self, TypeAlias

from attrs import Attribute, evolve, field, fields, frozen
from attrs.validators import ge, gt, optional

from agentloop.values.json import JsonObject
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class SeenCall(Value):
    """A call as a deduplicator sees it.

    Attributes:
        name: the name of the tool.
        arguments: its arguments.
        caller: whom it is made for.
        execution_id: the execution that it belongs to.
        step: the step of the execution.
        began: when it came, in seconds of the loop's clock.
        ended: when it ended; None for a call that is under way.
    """

    name: str
    arguments: JsonObject
    caller: str
    execution_id: str
    step: int
    began: float
    ended: float | None = None


Similarity: TypeAlias = Callable[[SeenCall, SeenCall], bool]
"""Says whether a call asks for the same as an earlier one; both are of the same tool and caller."""


class Deduplicator(ABC):
    """Says which calls are the same call. It keeps nothing: the calls themselves are kept by `Deduplicate`.

    An implementer keeps these laws:

    - Calls of different tools or callers are in different groups.
    - The same two calls always get the same answer.
    """

    @property
    def remembers(self) -> bool:
        """Whether a call that has ended can be the same as a later one."""
        return True

    @abstractmethod
    def group(self, call: SeenCall) -> Hashable:
        """Return the group of a call; calls of different groups are never compared."""

    @abstractmethod
    def is_same(self, call: SeenCall, earlier: SeenCall) -> bool:
        """Say whether a call is the same as an earlier one of its group, which is under way or has succeeded."""


ErrorKind: TypeAlias = str | type[BaseException]
"""A class of errors, which stands for its subclasses too, or the name of one class."""


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

    def matches(self, error: str) -> bool:
        """Return whether to retry after an error whose class has this name."""
        return (not self.on or _names(error, self.on)) and not _names(error, self.not_on)


def _names(error: str, kinds: tuple[ErrorKind, ...]) -> bool:
    return any(error == kind if isinstance(kind, str) else _is_of(error, kind) for kind in kinds)


def _is_of(error: str, kind: type[BaseException]) -> bool:
    return kind.__name__ == error or any(_is_of(error, sub) for sub in kind.__subclasses__())


@frozen(eq=False, repr=False)
class CachePolicy(Value):
    """How long a result is used again for the same call of the same caller.

    Attributes:
        seconds: how long a result is used.
        max_entries: the maximum number of cached results of the tool; the least recently used entry is evicted first.
    """

    seconds: float = field(default=300.0, validator=gt(0))
    max_entries: int = field(default=1000, validator=ge(1), kw_only=True)


@frozen(eq=False, repr=False)
class RateLimit(Value):
    """How often a tool may be run: a bucket of tokens that fills steadily, of which each attempt takes one.

    In any `n` seconds no more than `burst + n * calls / per` attempts begin.

    Attributes:
        calls: how many tokens come in `per` seconds.
        per: seconds.
        burst: how many tokens the bucket holds, so how many attempts may begin at once; `calls` when left out.
        max_wait: the maximum seconds that a call waits for its turn; a call that would wait longer is refused. None for
            no maximum, 0 to never wait.
        by: a bucket for all tools that give this name, or a function from the arguments to the name of one of the tool's
            buckets; None for one bucket of the tool's own.
    """

    calls: int = field(validator=ge(1))
    per: float = field(default=1.0, validator=gt(0))
    burst: int | None = field(default=None, validator=optional(ge(1)), kw_only=True)
    max_wait: float | None = field(default=None, validator=optional(ge(0)), kw_only=True)
    by: str | Callable[[JsonObject], str] | None = field(default=None, kw_only=True)


@frozen(eq=False, repr=False)
class CircuitPolicy(Value):
    """When a tool that keeps failing is left alone, and when it is tried again.

    Attributes:
        failures: how many failures in a row open the circuit.
        seconds: how long it stays open.
        probes: how many calls are let through after that; if all succeed the circuit is closed, if one fails it opens.
        dependency: a name that several tools share, to have one circuit; empty for one of the tool's own.
    """

    failures: int = field(default=5, validator=ge(1))
    seconds: float = field(default=30.0, validator=gt(0))
    probes: int = field(default=1, validator=ge(1), kw_only=True)
    dependency: str = field(default="", kw_only=True)


@frozen(eq=False, repr=False)
class DeduplicatePolicy(Value):
    """Which calls of a tool run once, so that the others are given the result of the one that ran.

    Calls are the same when they have the same caller, are near enough to each other, and have the same arguments. When all is
    left out, only those are that are under way at the same time.

    Attributes:
        seconds: how long after a success a call is still the same; `inf` for as long as it is remembered.
        steps: how many steps of one execution calls may be apart; 0 for those of one message.
        by: says which calls are the same, in place of their arguments: a deduplicator, or a function of two calls. Without
            seconds and steps it alone decides.
        across_executions: whether calls of different executions can be the same.
    """

    seconds: float | None = field(default=None, validator=optional(ge(0)))
    steps: int | None = field(default=None, validator=optional(ge(0)))
    by: Deduplicator | Similarity | None = field(default=None, kw_only=True)
    across_executions: bool = field(default=False, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Refuse what says nothing about calls."""
        if not (self.by is None or isinstance(self.by, Deduplicator) or callable(self.by)):
            raise TypeError(f"a deduplicator is a Deduplicator or a function of two calls, not {self.by!r}")


Deduplicated: TypeAlias = DeduplicatePolicy | Literal["exact"]
"""A policy, or `exact`: the same call runs once in an execution, however far apart its repetitions are."""


def _as_policy(given: Deduplicated | None) -> DeduplicatePolicy | None:
    if given is None or isinstance(given, DeduplicatePolicy):
        return given
    if given != "exact":
        raise ValueError(f"deduplicate is a DeduplicatePolicy or 'exact', not {given!r}")
    return DeduplicatePolicy(inf)


def _none_or(kind: type) -> Callable[[Any, Attribute[Any], Any], None]:
    def check(_: object, asked: Attribute[Any], value: object) -> None:
        if value is not None and not isinstance(value, kind):
            raise TypeError(
                f"{asked.name!r} has to be a {kind.__name__}, as in {asked.name}={kind.__name__}(…), not {value!r}"
            )

    return check


@frozen(eq=False, repr=False, kw_only=True)
class CallPolicy(Value):
    """What a tool asks for; `agentloop.interception.Resilience` does it. None asks for nothing.

    A tool that asks for retries, a cache or deduplication gets them whatever its effect is: it was told so.

    Attributes:
        retry: how a failed call is tried again.
        cache: how long results are used again.
        rate_limit: how often it may be run.
        circuit: when it is left alone because it keeps failing.
        deadline: seconds for a call in all, waits and repetitions included.
        deduplicate: which of its calls run once: a `DeduplicatePolicy`, or `exact`.
    """

    retry: RetryPolicy | None = field(default=None, validator=_none_or(RetryPolicy))
    cache: CachePolicy | None = field(default=None, validator=_none_or(CachePolicy))
    rate_limit: RateLimit | None = field(default=None, validator=_none_or(RateLimit))
    circuit: CircuitPolicy | None = field(default=None, validator=_none_or(CircuitPolicy))
    deadline: float | None = field(default=None, validator=optional(gt(0)))
    deduplicate: DeduplicatePolicy | None = field(default=None, converter=_as_policy)

    def merged_over(self, other: CallPolicy) -> Self:
        """Return what this asks for, and where it asks for nothing, what the other does."""
        open_fields = [f.name for f in fields(CallPolicy) if getattr(self, f.name) is None]
        return evolve(self, **{name: getattr(other, name) for name in open_fields})


DEFAULT_CALL_POLICY = CallPolicy()
