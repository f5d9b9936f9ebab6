"""Results used again."""

from __future__ import annotations

from attrs import field, frozen

from agentloop.contracts.can_keep_state import CanKeepState, Namespace, Update
from agentloop.events.resilience import ToolCallCached
from agentloop.interception.resilience.layer import (
    CACHE,
    CallerOf,
    MemoryStore,
    ResilienceLayer,
    calling_agent,
    may_repeat,
)
from agentloop.values.json import JsonValue, canonical_json, format_json
from agentloop.values.points import AroundToolUse, ProceedToolUse
from agentloop.values.policies import CachePolicy
from agentloop.values.tool_calls import ContentPart, ToolExecution
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class CachedResult(Value):
    """A result as it is kept.

    Attributes:
        value: what the tool returned.
        content: what the model was shown, where that differs.
        made_at: when it came, in seconds of the loop's clock.
    """

    value: JsonValue
    content: tuple[ContentPart, ...] | None
    made_at: float


@frozen
class Cache(ResilienceLayer):
    """Answers a call with the result of an earlier one: of the same tool, arguments and caller, and not too old.

    Only a success is kept. Of tools that declare no cache, results are used again when the tool is pure or idempotent.

    Attributes:
        policy: for tools that declare no cache; None for none.
        caller: names whom a call is made for; the agent when left out. `any_caller` shares results among all.
        effects: whether `policy` speaks of tools with an effect too, whose calls then do not all run.
        store: where the results are.
        priority: where it stands among the interceptors.
    """

    policy: CachePolicy | None = None
    caller: CallerOf = field(default=calling_agent, kw_only=True)
    effects: bool = field(default=False, kw_only=True)
    store: CanKeepState = field(factory=MemoryStore, kw_only=True, repr=False)
    priority: int = field(default=CACHE, kw_only=True)

    async def around_tool_use(self, point: AroundToolUse, proceed: ProceedToolUse) -> ToolExecution:
        """Return the result that is kept, or run the call and keep what it returns."""
        policy = self._policy(point)
        if policy is None:
            return await proceed()
        shelf = Namespace(f"results of {point.call.name}", policy.max_entries)
        key = format_json([self.caller(point), canonical_json(point.arguments)]).decode()
        now = self._clock.monotonic()
        kept = await self.store.update(shelf, key, now, lambda found: _as_it_was(found, policy))
        if kept is not None and now - kept.made_at < policy.seconds:
            await self._tell(ToolCallCached, point, now - kept.made_at)
            return point.succeed(kept.value, kept.content)
        execution = await proceed()
        if execution.succeeded:
            now = self._clock.monotonic()
            result = CachedResult(execution.value, execution.content, now)
            await self.store.update(shelf, key, now, lambda _: Update(result, now + policy.seconds, None))
        return execution

    def _policy(self, point: AroundToolUse) -> CachePolicy | None:
        if point.policy.cache is not None:
            return point.policy.cache
        return self.policy if self.effects or may_repeat(point) else None


def _as_it_was(found: CachedResult | None, policy: CachePolicy) -> Update[CachedResult, CachedResult | None]:
    return Update(found, 0.0 if found is None else found.made_at + policy.seconds, found)
