"""Reuse of results."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen
from attrs.validators import instance_of

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.contracts.can_tell_controls import Control
from agentloop.events.resilience import ToolCallCached
from agentloop.policies.resilience.layer import (
    CACHE_PRIORITY,
    CallerOf,
    ResilienceLayer,
    calling_agent,
    check_caller,
    is_repeatable,
    name_caller,
)
from agentloop.policies.resilience.memory_store import MemoryStore
from agentloop.tools.fitting import comparable_arguments
from agentloop.values.json import JsonValue, canonical_json, format_json, freeze_object
from agentloop.values.labels import Label
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CachePolicy, CallPolicy
from agentloop.values.tool_calls import ContentPart, ToolExecution, ToolSpec
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class CachedResult(Value):
    """A stored result.

    Attributes:
        value: what the tool returned.
        content: what the model sees instead of the value; None when it sees the value.
        stored_at: when it was stored, in seconds of the loop's clock.
        label: who had a part in it; None where that was not tracked.
    """

    value: JsonValue
    content: tuple[ContentPart, ...] | None
    stored_at: float
    label: Label | None = None


@frozen
class Cache(ResilienceLayer):
    """Answers a call with the stored result of an earlier one with the same tool, arguments and caller.

    Only successful results are stored. If a tool declares no cache, `policy` applies to it if it is pure or idempotent.

    Attributes:
        policy: the policy of tools that declare none; None for no cache.
        caller: on whose behalf a call is made: what a function of the point returns, by default the agent; or the `principal` or
            the `tenant` who asks. `any_caller` shares results among all callers. The `by` of a policy takes precedence.
        effects: whether `policy` applies to tools with an effect too; some of their calls then do not run.
        store: where the results are stored.
        priority: the position among other interceptors.
    """

    policy: CachePolicy | None = None
    caller: CallerOf = field(default=calling_agent, kw_only=True, validator=check_caller)
    effects: bool = field(default=False, kw_only=True, validator=instance_of(bool))
    store: CanKeepState = field(factory=MemoryStore, kw_only=True, repr=False)
    priority: int = field(default=CACHE_PRIORITY, kw_only=True)
    writes = ("outcome",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def allows_eager_start(self) -> bool:  # a call of a tool with a cache never starts early
        """Whether it answers only calls of tools that declare it."""
        return self.policy is None

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the tool alone counts
        """Return for how long results are reused in place of calls."""
        found = self._policy(tool, policy)
        if found is None:
            return []
        of = "" if policy.cache is not None else "undeclared"
        return [Control("reuses", f"results of equal calls for {found.seconds:g} seconds", of=of, is_sure=False)]

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Return the stored result, or run the call and store its result."""
        policy = self._policy(point.tool, point.policy)
        if policy is None:
            return await proceed()
        namespace = Namespace(f"results of {point.call.name}", policy.max_entries)
        # Canonical, so that equal arguments in any order and spelling have the same key.
        caller = name_caller(policy.by or self.caller, point)
        key = format_json(
            [caller, canonical_json(freeze_object(comparable_arguments(point.arguments, point.tool)))]
        ).decode()
        now = self._time(self.store)
        cached = await self.store.update(namespace, key, now, lambda stored: _read(stored, policy))
        # The policy may have changed since the result was stored, so its age counts, not only its expiry.
        if cached is not None and now - cached.stored_at < policy.seconds:
            self._report_end(ToolCallCached, point, now - cached.stored_at)
            return point.succeed(cached.value, cached.content, label=cached.label)
        execution = await proceed()
        if execution.succeeded:
            now = self._time(self.store)
            result = CachedResult(execution.value, execution.content, now, execution.label)
            await self.store.update(namespace, key, now, lambda _: Update(result, now + policy.seconds, None))
        return execution

    def _policy(self, tool: ToolSpec, declared: CallPolicy) -> CachePolicy | None:
        if declared.cache is not None:
            return declared.cache
        return self.policy if self.effects or is_repeatable(tool) else None


def _read(stored: CachedResult | None, policy: CachePolicy) -> Update[CachedResult, CachedResult | None]:
    """Return the stored result unchanged; the update marks it as recently used."""
    return Update(stored, 0.0 if stored is None else stored.stored_at + policy.seconds, stored)
