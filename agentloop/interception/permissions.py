"""Who may call which tool, and when."""

from __future__ import annotations

from typing import Self

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.contracts.can_accept import CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.events.permission_events import PermissionDecided
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rule import Rule, as_rules, first_match
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_executions import key_place


@frozen
class Permissions(Interceptor, CanAcceptLifecycle):
    """Lets calls run or blocks them. A denying rule wins; where there are allowing rules, all else is denied.

    A rule whose function raises blocks the call, as everything that fails here does (law 11). Each decision is told as a
    `PermissionDecided`.

    Attributes:
        allow: what may run: tool names, patterns as in `read_*`, functions of the point, or `Rule`s. When None, all that
            is not denied; an empty list allows nothing.
        deny: what may not.
        default_deny: deny what no rule speaks of, also where there are no allowing rules.
        priority: where it stands among the interceptors.
    """

    allow: tuple[Rule, ...] | None = field(default=None, converter=optional(as_rules))
    deny: tuple[Rule, ...] = field(default=(), converter=as_rules)
    default_deny: bool = field(default=False, kw_only=True)
    priority: int = field(default=500, kw_only=True)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # it asks no other interceptor
        """Return a copy that tells its decisions to this bus."""
        return evolve(self, events=events)

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block what is denied, and what is not allowed."""
        name = point.call.name
        denying = first_match(self.deny, point)
        if denying is not None:
            return await self._denied(point, denying, denying.reason or f"the tool {name!r} is not permitted")
        allowing = first_match(self.allow or (), point)
        if allowing is not None or (self.allow is None and not self.default_deny):
            await self._tell(point, allowing, "", allowed=True)
            return point
        return await self._denied(point, None, f"the tool {name!r} is not among those permitted")

    async def _denied(self, point: BeforeToolUse, rule: Rule | None, reason: str) -> BeforeToolUse:
        await self._tell(point, rule, reason, allowed=False)
        return point.block(reason)

    async def _tell(self, point: BeforeToolUse, rule: Rule | None, reason: str, *, allowed: bool) -> None:
        events = self._events
        if events is None or not events.due(PermissionDecided):
            return
        place = key_place(point.key)
        head = events.head(point.state, step_number=place[0] if place is not None else None)
        said = "" if rule is None else str(rule)
        await events.emit(PermissionDecided(head, point.key, point.call.name, allowed, said, reason))
