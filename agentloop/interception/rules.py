"""Rules that pick out calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Self, TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional

from agentloop.contracts.can_accept import CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanIntercept
from agentloop.events.tool_calls import PermissionDecided
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import parse_key
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_calls import Effect

Predicate: TypeAlias = Callable[[BeforeToolUse], bool]


def _as_metadata(entries: Mapping[str, object]) -> JsonObject:
    return freeze_object(entries)


@frozen
class Rule:
    """Matches calls; what is left at its default matches every call.

    Attributes:
        tool: a tool's name, or a pattern of names as in `read_*`.
        caller: the id of the calling agent, or a pattern of ids.
        when: a function of the call's point that says whether the rule matches; arguments, state and metadata are there.
        reason: what is said when the rule matters: to the model when it denies, to a person when it asks for approval.
        ensemble: the name of the group that the tool came in, or a pattern; tools of their own have the empty name.
        effect: what calling the tool does to the world; None for anything.
        metadata: entries that the metadata of the agent's context have to hold, with these values.
    """

    tool: str = "*"
    caller: str = "*"
    when: Predicate | None = None
    reason: str = ""
    ensemble: str = field(default="*", kw_only=True)
    effect: Effect | None = field(default=None, converter=optional(Effect), kw_only=True)
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=_as_metadata, kw_only=True)

    def matches(self, point: BeforeToolUse) -> bool:
        """Say whether the rule speaks of this call."""
        return (
            fnmatchcase(point.call.name, self.tool)
            and fnmatchcase(point.state.agent_id, self.caller)
            and fnmatchcase(point.ensemble, self.ensemble)
            and self.effect in {None, point.tool.effect}
            and self._has_metadata(point)
            and (self.when is None or bool(self.when(point)))
        )

    def _has_metadata(self, point: BeforeToolUse) -> bool:
        there = point.state.context.metadata
        return all(name in there and there[name] == value for name, value in self.metadata.items())

    def __str__(self) -> str:
        said = [("tool", self.tool), ("caller", self.caller), ("ensemble", self.ensemble)]
        parts = [f"{name} {pattern}" for name, pattern in said if pattern != "*"]
        parts += [f"effect {self.effect.value}"] if self.effect is not None else []
        parts += [f"metadata {', '.join(self.metadata)}"] if self.metadata else []
        parts += [f"when {getattr(self.when, '__name__', type(self.when).__name__)}"] if self.when is not None else []
        return "; ".join(parts) or "every call"


def as_rules(rules: Iterable[Rule | str | Predicate] | Rule | str) -> tuple[Rule, ...]:
    """Make rules of tool names, patterns, functions of the point, and rules.

    Raises:
        TypeError: for anything else.
    """
    return tuple([_as_rule(rule) for rule in ([rules] if isinstance(rules, str | Rule) else rules)])


def first_match(rules: Iterable[Rule], point: BeforeToolUse) -> Rule | None:
    """Return the first rule that speaks of this call, or None."""
    return next((rule for rule in rules if rule.matches(point)), None)


def _as_rule(rule: Rule | str | Predicate) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str):
        return Rule(tool=rule)
    if callable(rule):
        return Rule(when=rule)
    raise TypeError(f"a permission is a Rule, a tool name or pattern, or a function of the point; not {rule!r}")


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
        place = parse_key(point.key)
        head = events.head(point.state, step_number=place[0] if place is not None else None)
        said = "" if rule is None else str(rule)
        await events.emit(PermissionDecided(head, point.key, point.call.name, allowed, said, reason))


Reason: TypeAlias = str | Callable[[BeforeToolUse], str]
"""A text, or a function that makes one of the call's point."""

EFFECTS = (Rule(effect=Effect.EFFECT),)
"""Every call of a tool that changes something, and must not be run twice."""


@frozen
class RequireApproval(Interceptor):
    """Lets calls wait until a person has decided: the execution is suspended, and the calls are in `state.pending`.

        loop = loop.with_interceptors(RequireApproval(["refund", "delete_*"]))
        state = await loop.execute("…")
        while state.pending:
            state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})

    An approved call runs, a denied one is blocked and the model is told why, an answered one is settled with the answer, an
    edited one runs with the other arguments if they fit the tool's schema. What runs is the call that was shown: what other
    interceptors did to it before it was shown is in it, and is not done to it again. An interceptor inside of this one that
    changes it afterwards makes it wait again.

    It stands inside of other interceptors, so that a person is asked about the call as it would run, and not about one that
    is blocked anyway.

    Attributes:
        calls: which calls wait: tool names, patterns as in `delete_*`, functions of the point, or `Rule`s, by ensemble,
            effect, caller or metadata. When left out, every call of a tool whose effect is `effect`.
        unless: which of them do not.
        reason: what the person is shown beside the call, where the rule has no reason of its own.
        priority: where it stands among the interceptors.
    """

    calls: tuple[Rule, ...] = field(default=EFFECTS, converter=as_rules)
    unless: tuple[Rule, ...] = field(default=(), converter=as_rules, kw_only=True)
    reason: Reason = field(default="", kw_only=True)
    priority: int = field(default=-900, kw_only=True)

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Let a call wait that needs a decision and has none."""
        if point.decision is not None:
            return point.suspend()
        rule = first_match(self.calls, point)
        if rule is None or first_match(self.unless, point) is not None:
            return point
        return point.suspend(rule.reason or self._said(point) or f"a call of {point.call.name!r} needs approval")

    def _said(self, point: BeforeToolUse) -> str:
        return self.reason if isinstance(self.reason, str) else self.reason(point)
