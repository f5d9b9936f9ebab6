"""Rules that pick out calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TypeAlias

from attrs import field, frozen
from attrs.converters import optional

from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, freeze_object
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_spec import Effect

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
