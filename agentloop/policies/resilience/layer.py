"""The base class of the layers around a tool, their order, and the callers they distinguish."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import isawaitable
from typing import Any, Self, TypeAlias

from attrs import evolve, field, frozen

from agentloop.contracts.can_accept import CanAcceptExecutionScope, CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.can_keep_state import CanKeepState
from agentloop.contracts.can_tell_controls import CanTellControls
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ConfigurationError
from agentloop.events.bus import emit_at_step, emit_soon
from agentloop.events.resilience import ToolCallDecided
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import parse_key
from agentloop.values.owners import Asker, find_owner, is_asker
from agentloop.values.points import AroundToolUse
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import Effect, ToolSpec

# Layers that are used one by one have the same order as in `Resilience`, and are inside other interceptors.
(
    DEDUPLICATE_PRIORITY,
    CACHE_PRIORITY,
    DEADLINE_PRIORITY,
    RETRY_PRIORITY,
    CIRCUIT_PRIORITY,
    RATE_LIMIT_PRIORITY,
    ATTEMPT_PRIORITY,
) = range(-1000, -1700, -100)


@frozen
class ResilienceLayer(Interceptor, CanAcceptExecutionScope, CanAcceptLifecycle, CanTellControls):
    """The base class of the layers around a tool: it has the loop's clock, reports its decisions as events, and tells its controls."""

    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    _clock: Clock = field(factory=SystemClock, repr=False, eq=False, kw_only=True)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)

    def with_execution_scope(self, scope: ExecutionScope) -> Self:
        """Return a copy that uses the clock of the loop."""
        return evolve(self, clock=scope.clock)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that emits its decisions to this bus."""
        return evolve(self, events=events)

    def _time(self, store: CanKeepState) -> float:
        """Return the current time, in seconds, as the states in a store are dated."""
        return self._clock.now().timestamp() if store.is_shared else self._clock.monotonic()

    async def _report(self, kind: Callable[..., ToolCallDecided], point: AroundToolUse, *details: Any) -> None:
        """Report a decision after which the call goes on."""
        if self._events is not None:
            point.release_reports()
            step_number = step_of(point)
            await emit_at_step(self._events, kind, point.state, step_number, point.key, point.call.name, *details)

    def _report_end(self, kind: Callable[..., ToolCallDecided], point: AroundToolUse, *details: Any) -> None:
        """Report a decision that may end the call: with its outcome, in call order, whichever of the calls ends first."""
        if self._events is not None:
            arguments = (self._events, kind, point.state, step_of(point), point.key, point.call.name, *details)
            point.report_at_end(partial(emit_soon, *arguments))


def step_of(point: AroundToolUse) -> int | None:
    """Return the number of the step that made the call, from its key; None for a key of another form."""
    place = parse_key(point.key)
    return place[0] if place is not None else None


def require_plain(what: str, name: str) -> str:
    """Return what a function of the program has returned, such as the name of a caller.

    Args:
        what: what the function does, in words.
        name: what it returned.

    Raises:
        TypeError: it is an async function; each coroutine would be another name, and nothing would be limited or shared.
    """
    if isawaitable(name):
        raise TypeError(f"the function that {what} returned {name!r:.100}; it is a plain function that returns a text")
    return name


def is_repeatable(tool: ToolSpec) -> bool:
    """Return whether a call may be repeated or skipped without changing its effect: the tool is pure or idempotent."""
    return tool.effect is not Effect.EFFECT


# --- callers ----------------------------------------------------------------------------------------------------

CallerOf: TypeAlias = Callable[[AroundToolUse], str] | Asker
"""On whose behalf a call is made: what a function returns, or the `principal` or the `tenant` who asks for the execution.

A result for one caller is never reused for another.
"""


def name_caller(caller: CallerOf, point: AroundToolUse) -> str:
    """Return on whose behalf a call is made.

    Raises:
        ConfigurationError: it is made for a principal or a tenant, and nobody is known.
        TypeError: the function is async.
    """
    if callable(caller):
        return require_plain("returns the caller of a call", caller(point))
    return f"{caller} {find_owner(caller, point.state, f'the tool {point.call.name!r}')}"


def check_caller(_: object, __: object, caller: object) -> None:
    """Check the attribute `caller` of a layer, as attrs calls a validator.

    Raises:
        ConfigurationError: it is neither a function nor one of the two words.
    """
    if not callable(caller) and not is_asker(caller):
        raise ConfigurationError(f"caller is a function of the point, 'principal' or 'tenant', not {caller!r:.80}")


def calling_agent(point: AroundToolUse) -> str:
    """Return the id of the agent: each agent is a caller."""
    return point.state.agent_id


def any_caller(point: AroundToolUse) -> str:  # noqa: ARG001  # all points have the same caller
    """Return the same caller for all calls; for tools whose results do not depend on the caller."""
    return ""
