"""Asks about the calls that somebody else than the user may have decided about."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from agentloop.contracts.can_intercept import CanForetellQuestions, CanUseLabels
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rules import Rule, as_rules, cover, first_match, references_in
from agentloop.values.labels import UNKNOWN, Label
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_calls import Effect, ToolSpec


@frozen
class AskUntrusted(Interceptor, CanForetellQuestions, CanNameTools, CanUseLabels):
    """Suspends a call with an effect if the model had read anything that somebody else than the user may have written.

        loop = AgentLoop(driver, tools, approve="untrusted")

    Until the model has read something foreign, nobody else can have decided about its calls, and they run. Afterwards, each call of a
    tool with an effect, and each by which data can leave, waits for a person, who sees who may have decided about it, and who wrote each
    argument. Foreign are results of tools, but for what `@tool(own=…)` names; attached files; answers of other agents that have read
    something foreign; and messages with a label, or an answer of a model without one. An agent that serves calls begins with what its
    caller has read, and gets this interceptor: its calls wait, and the call of the agent does not.

    Attributes:
        unless: calls that run in any case: tool names, patterns such as `save_*`, predicates, or `Rule`s.
        priority: the position among other interceptors.
    """

    unless: tuple[Rule, ...] = field(default=(), converter=as_rules, kw_only=True)
    priority: int = field(default=-900, kw_only=True)
    checks_calls = True
    writes = ("verdict", "call")  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools that its exceptions name."""
        return references_in("AskUntrusted(unless=…)", self.unless)

    def asks_about(self, tool: ToolSpec, ensemble: str) -> bool | None:
        """Return whether calls of a tool wait: False for none, or None for those after the model has read something foreign."""
        is_asked = _has_consequences(tool) and cover(self.unless, tool, ensemble) is not True
        return None if is_asked else False

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        """Suspend a call that somebody else may have decided about, or whose deciding arguments somebody else may have written."""
        if point.decision is not None:
            return point.suspend()  # takes back what outer interceptors changed since the decision
        label = UNKNOWN if point.label is None else point.label
        if point.is_agent or not _has_consequences(point.tool) or not (label.is_foreign or point.origins):
            return point
        if not _is_questionable(point, label):
            return point
        if await first_match(self.unless, point) is not None:
            return point
        # Who wrote which argument is in the rendering of the call, as for any call that waits where calls are labeled.
        reason = f"decided after reading {label}" if label.is_foreign else "somebody else wrote what it is about"
        return point.suspend(reason)


def _has_consequences(tool: ToolSpec) -> bool:
    return tool.effect is not Effect.PURE or bool(tool.egress)


def _is_questionable(point: BeforeToolUse, label: Label) -> bool:
    """Return whether somebody else may have decided what a call does, or may be told by it what the model has read."""
    tool = point.tool
    if tool.effect is Effect.PURE:
        matters = tool.may_carry
    elif label.is_foreign:
        return True
    else:
        matters = tool.does_decide
    return any(point.origin_of(name).is_foreign for name in point.arguments if matters(name))
