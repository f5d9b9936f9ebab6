"""Who may call which tool, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from attrs import field, frozen
from attrs.converters import optional

from agentloop.interception.interceptor import Interceptor
from agentloop.values.points import BeforeToolUse

Predicate: TypeAlias = Callable[[BeforeToolUse], bool]


@frozen
class Rule:
    """Matches calls; what is left at its default matches every call.

    Attributes:
        tool: a tool's name, or a pattern of names as in `read_*`.
        caller: the id of the calling agent, or a pattern of ids.
        when: a function of the call's point that says whether the rule matches; arguments, state and metadata are there.
        reason: what the model is told when the rule denies.
    """

    tool: str = "*"
    caller: str = "*"
    when: Predicate | None = None
    reason: str = ""

    def matches(self, point: BeforeToolUse) -> bool:
        """Say whether the rule speaks of this call."""
        return (
            fnmatchcase(point.call.name, self.tool)
            and fnmatchcase(point.state.agent_id, self.caller)
            and (self.when is None or self.when(point))
        )


def _as_rules(rules: Iterable[Rule | str | Predicate]) -> tuple[Rule, ...]:
    return tuple([_as_rule(rule) for rule in ([rules] if isinstance(rules, str | Rule) else rules)])


def _as_rule(rule: Rule | str | Predicate) -> Rule:
    if isinstance(rule, Rule):
        return rule
    if isinstance(rule, str):
        return Rule(tool=rule)
    if callable(rule):
        return Rule(when=rule)
    raise TypeError(f"a permission is a Rule, a tool name or pattern, or a function of the point; not {rule!r}")


@frozen
class Permissions(Interceptor):
    """Lets calls run or blocks them. A denying rule wins; where there are allowing rules, all else is denied.

    A rule whose function raises blocks the call, as everything that fails here does (law 11).

    Attributes:
        allow: what may run: tool names, patterns as in `read_*`, functions of the point, or `Rule`s. When None, all that
            is not denied; an empty list allows nothing.
        deny: what may not.
        priority: where it stands among the interceptors.
    """

    allow: tuple[Rule, ...] | None = field(default=None, converter=optional(_as_rules))
    deny: tuple[Rule, ...] = field(default=(), converter=_as_rules)
    priority: int = field(default=500, kw_only=True)

    def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Block what is denied, and what is not allowed."""
        for rule in self.deny:
            if rule.matches(point):
                return point.block(rule.reason or f"the tool {point.call.name!r} is not permitted")
        if self.allow is None or any(rule.matches(point) for rule in self.allow):
            return point
        return point.block(f"the tool {point.call.name!r} is not among those permitted")
