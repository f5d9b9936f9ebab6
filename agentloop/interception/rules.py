"""Rules that match calls, and the interceptors that use them: permissions and approvals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from inspect import isawaitable
from typing import Self, TypeAlias

from attrs import evolve, field, frozen
from attrs.converters import optional
from attrs.validators import is_callable
from attrs.validators import optional as or_none

from agentloop.contracts.can_accept import CanAcceptLifecycle
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import CanForetellQuestions, CanIntercept, MaybeAwaitable
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import PermissionDecided
from agentloop.interception.interceptor import Interceptor
from agentloop.values.batches import parse_key
from agentloop.values.json import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.points import BeforeToolUse
from agentloop.values.policies import CallPolicy
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolSpec
from agentloop.values.value import instance_of

Predicate: TypeAlias = Callable[[BeforeToolUse], MaybeAwaitable[bool]]
"""A plain or async function that returns True or False for a call."""
Reason: TypeAlias = str | Callable[[BeforeToolUse], str]
"""A text, or a function that returns one for a call."""

# --- rules ------------------------------------------------------------------------------------------------------


def _as_metadata(entries: Mapping[str, object]) -> JsonObject:
    return freeze_object(entries)


@frozen
class Rule:
    """A condition on calls; a field with its default value matches every call.

    Attributes:
        tool: the tool's name, or a pattern such as `read_*`.
        caller: the name of the calling agent, as in `AgentLoop(name=…)`, or its id; or a pattern for either.
        when: a plain or async predicate; its argument has the call, its arguments, the state and the dependencies.
        reason: a text for the model if the rule denies, or for a person if it requires approval.
        ensemble: the name of the group that the tool belongs to, or a pattern; a tool without a group has the empty name.
        effect: the effect of the tool; None for any.
        egress: whether data can leave by a call of the tool; None for either.
        metadata: entries that the metadata of the agent's context must have, with these values.
        optional: whether no tool may match `tool`, `ensemble` and `effect`. Otherwise that is an error when an execution begins.
    """

    tool: str = field(default="*", validator=instance_of(str))
    caller: str = field(default="*", validator=instance_of(str))
    when: Predicate | None = field(default=None, validator=or_none(is_callable()))
    reason: str = field(default="", validator=instance_of(str))
    ensemble: str = field(default="*", validator=instance_of(str), kw_only=True)
    effect: Effect | None = field(default=None, converter=optional(Effect), kw_only=True)
    egress: bool | None = field(default=None, validator=or_none(instance_of(bool)), kw_only=True)
    metadata: JsonObject = field(default=EMPTY_OBJECT, converter=_as_metadata, kw_only=True)
    optional: bool = field(default=False, validator=instance_of(bool), kw_only=True)

    async def matches(self, point: BeforeToolUse) -> bool:
        """Return whether the call fulfills every condition of the rule.

        Raises:
            TypeError: the predicate returned neither True nor False.
        """
        # Case-sensitive on every platform: tool names are, and `fnmatch` would ignore case on Windows.
        # The predicate is last, so that it is not called for arguments of another tool.
        return (
            fnmatchcase(point.call.name, self.tool)
            and (self.caller == "*" or self._is_from(point.state))
            and fnmatchcase(point.ensemble, self.ensemble)
            and self.effect in {None, point.tool.effect}
            and self.egress in {None, bool(point.tool.egress)}
            and self._has_metadata(point)
            and (self.when is None or await self._holds(self.when, point))
        )

    def covers(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return whether the rule matches the calls of a tool: all, True; none, False; or some of them, None."""
        is_about = (
            fnmatchcase(tool.name, self.tool)
            and fnmatchcase(ensemble, self.ensemble)
            and self.effect in {None, tool.effect}
            and self.egress in {None, bool(tool.egress)}
        )
        depends = self.when is not None or self.caller != "*" or bool(self.metadata)
        return False if not is_about else None if depends else True

    def _is_from(self, caller: AgentState) -> bool:
        return fnmatchcase(caller.agent_id, self.caller) or fnmatchcase(caller.agent_name, self.caller)

    async def _holds(self, predicate: Predicate, point: BeforeToolUse) -> bool:
        verdict: object = predicate(point)
        if isawaitable(verdict):
            verdict = await verdict
        # Not its truth value: a predicate that forgets to return, or returns a reason, would decide by accident.
        if not isinstance(verdict, bool):
            raise TypeError(f"the predicate of the rule ({self}) returned {verdict!r:.100}; it returns True or False")
        return verdict

    def _has_metadata(self, point: BeforeToolUse) -> bool:
        metadata = point.state.context.metadata
        return all(name in metadata and metadata[name] == value for name, value in self.metadata.items())

    def __str__(self) -> str:
        patterns = [("tool", self.tool), ("caller", self.caller), ("ensemble", self.ensemble)]
        parts = [f"{name} {pattern}" for name, pattern in patterns if pattern != "*"]
        parts += [f"effect {self.effect.value}"] if self.effect is not None else []
        parts += [] if self.egress is None else ["data can leave" if self.egress else "no data can leave"]
        parts += [f"metadata {', '.join(self.metadata)}"] if self.metadata else []
        parts += [f"when {getattr(self.when, '__name__', type(self.when).__name__)}"] if self.when is not None else []
        return "; ".join(parts) or "every call"


def as_rules(rules: Iterable[Rule | str | Predicate] | Rule | str) -> tuple[Rule, ...]:
    """Convert tool names, patterns and predicates to rules.

    Raises:
        TypeError: for anything else.
    """
    return tuple([_as_rule(rule) for rule in ([rules] if isinstance(rules, str | Rule) else rules)])


def _as_rule(rule: Rule | str | Predicate) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str):
        return Rule(tool=rule)
    if callable(rule):
        return Rule(when=rule)
    raise TypeError(f"a permission is a Rule, a tool name or pattern, or a function of the point; not {rule!r}")


def cover(rules: Iterable[Rule], tool: ToolSpec, ensemble: str) -> bool | None:
    """Return whether any of the rules matches the calls of a tool: True for all, False for none, None for some of them."""
    covered = {rule.covers(tool, ensemble) for rule in rules}
    return True if True in covered else None if None in covered else False


def references_in(place: str, rules: Iterable[Rule] | None) -> list[ToolReference]:
    """Return the tools that rules name.

    Args:
        place: where the rules are.
        rules: the rules; None for none.
    """
    return [
        ToolReference(place, rule.tool, ensemble=rule.ensemble, effect=rule.effect)
        for rule in rules or ()
        if not rule.optional
    ]


async def first_match(rules: Iterable[Rule], point: BeforeToolUse) -> Rule | None:
    """Return the first rule that matches the call, or None.

    Raises:
        TypeError: a predicate returned neither True nor False.
    """
    for rule in rules:
        if await rule.matches(point):
            return rule
    return None


# --- permissions ------------------------------------------------------------------------------------------------


@frozen
class Permissions(Interceptor, CanAcceptLifecycle, CanForetellQuestions, CanNameTools, CanTellControls):
    """Lets calls run or blocks them. A denying rule takes precedence; if there are allowing rules, all other calls are denied.

    The call that is checked is the call that runs: it is checked when it arrives, and again if an interceptor further inside
    or a person's decision changed it. A predicate that raises, or that returns anything but True or False, blocks the call and
    fails the execution (law 11). Each decision is emitted as `PermissionDecided`.

    Attributes:
        allow: the calls that may run: tool names, patterns such as `read_*`, predicates, or `Rule`s. None allows every call
            that is not denied; an empty list allows none.
        deny: the calls that may not run.
        default_deny: whether to deny calls that no rule matches even if there are no allowing rules.
        priority: the position among other interceptors.
    """

    allow: tuple[Rule, ...] | None = field(default=None, converter=optional(as_rules))
    deny: tuple[Rule, ...] = field(default=(), converter=as_rules)
    default_deny: bool = field(default=False, validator=instance_of(bool), kw_only=True)
    priority: int = field(default=500, kw_only=True)
    _events: CanHandleEvents | None = field(default=None, repr=False, eq=False, kw_only=True)
    checks_calls = True
    writes = ("verdict",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools that its rules name."""
        return [*references_in("Permissions(allow=…)", self.allow), *references_in("Permissions(deny=…)", self.deny)]

    def with_lifecycle(self, interceptor: CanIntercept, events: CanHandleEvents) -> Self:  # noqa: ARG002  # calls no interceptor
        """Return a copy that emits its decisions to this bus."""
        return evolve(self, events=events)

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return True for a tool without calls that run, None if some of its calls do not run, and else False."""
        denied = cover(self.deny, tool, ensemble)
        allowed = None if self.allow is None else cover(self.allow, tool, ensemble)
        if denied is True or allowed is False or (self.allow is None and self.default_deny):
            return True
        return None if denied is None or (self.allow is not None and allowed is None) else False

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # rules alone count
        """Return whether its rules deny calls of a tool."""
        denies = self.asks_about(tool, ensemble)
        return [] if denies is False else [Control("stops", "its rules", of="calls", is_sure=denies is True)]

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block a call that is denied or not allowed."""
        name = point.call.name
        # Denying rules are checked first, so no order of the rules can allow a call that one of them denies.
        denying = await first_match(self.deny, point)
        if denying is not None:
            return await self._block(point, denying, denying.reason or f"the tool {name!r} is not permitted")
        allowing = await first_match(self.allow or (), point)
        if allowing is not None or (self.allow is None and not self.default_deny):
            await self._report(point, allowing, "", is_allowed=True)
            return point
        return await self._block(point, None, f"the tool {name!r} is not among those permitted")

    async def _block(self, point: BeforeToolUse, rule: Rule | None, reason: str) -> BeforeToolUse:
        await self._report(point, rule, reason, is_allowed=False)
        return point.block(reason)

    async def _report(self, point: BeforeToolUse, rule: Rule | None, reason: str, *, is_allowed: bool) -> None:
        if self._events is None:
            return
        # The step of the call, which is not the current step when a suspended call is resumed.
        place = parse_key(point.key)
        step_number = place[0] if place is not None else None
        details = (point.key, point.call.name, is_allowed, "" if rule is None else str(rule), reason)
        await emit_at_step(self._events, PermissionDecided, point.state, step_number, *details)


# --- approvals --------------------------------------------------------------------------------------------------

_TOOLS_WITH_EFFECT = (Rule(effect=Effect.EFFECT),)


@frozen
class RequireApproval(Interceptor, CanForetellQuestions, CanNameTools):
    """Suspends calls until a person has decided on them; the suspended calls are in `state.pending`.

        loop = loop.with_interceptors(RequireApproval(["refund", "delete_*"]))
        state = await loop.execute("…")
        while state.pending:
            state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})

    An approved call runs. A denied call is blocked, and the model gets the reason. An answered call is settled with the
    answer. An edited call runs with the new arguments if they satisfy the tool's schema. What runs is the call that was
    shown: changes that other interceptors made before it was shown are part of it and are not repeated. If an interceptor
    inside this one changes it afterwards, it is suspended again.

    By default it is inside other interceptors, so a person sees the call as it would run, and no call that is blocked. It is
    called again with a call that an interceptor further inside changed.

    Attributes:
        calls: the calls to suspend: tool names, patterns such as `delete_*`, predicates, or `Rule`s. By default, every call
            of a tool whose effect is `effect`.
        unless: exceptions, in the same forms.
        reason: a text for the person, if the rule has no reason of its own.
        priority: the position among other interceptors.
    """

    calls: tuple[Rule, ...] = field(default=_TOOLS_WITH_EFFECT, converter=as_rules)
    unless: tuple[Rule, ...] = field(default=(), converter=as_rules, kw_only=True)
    reason: Reason = field(default="", kw_only=True)
    priority: int = field(default=-900, kw_only=True)
    checks_calls = True
    writes = ("verdict", "call")  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools that its rules name."""
        calls = references_in("RequireApproval(calls=…)", self.calls)
        return [*calls, *references_in("RequireApproval(unless=…)", self.unless)]

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return whether calls of a tool wait: True for all, False for none, None for some of them."""
        asked, excepted = cover(self.calls, tool, ensemble), cover(self.unless, tool, ensemble)
        return False if asked is False or excepted is True else None if None in {asked, excepted} else True

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Suspend a call that requires a decision and has none."""
        if point.decision is not None:
            # This does not suspend the call again; it takes back what outer interceptors changed since the decision.
            return point.suspend()
        rule = await first_match(self.calls, point)
        if rule is None or await first_match(self.unless, point) is not None:
            return point
        return point.suspend(rule.reason or self._reason(point) or f"a call of {point.call.name!r} needs approval")

    def _reason(self, point: BeforeToolUse) -> str:
        return self.reason if isinstance(self.reason, str) else self.reason(point)
