"""Calls that wait for a person."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from attrs import field, frozen

from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rule import Rule, as_rules, first_match
from agentloop.values.points import BeforeToolUse
from agentloop.values.tool_spec import Effect

Reason: TypeAlias = str | Callable[[BeforeToolUse], str]
"""A text, or a function that makes one of the call's point."""

EFFECTS = (Rule(effect=Effect.EFFECT),)
"""Every call of a tool that changes something, and must not be run twice."""


@frozen
class Approval(Interceptor):
    """Lets calls wait until a person has decided: the execution is suspended, and the calls are in `state.pending`.

        loop = loop.with_interceptors(Approval(["refund", "delete_*"]))
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
