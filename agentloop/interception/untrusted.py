"""Asks about the calls that somebody else than the user may have decided about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from attrs import field, frozen

from agentloop.contracts.can_intercept import CanForetellQuestions, CanUseLabels
from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.interception.interceptor import Interceptor
from agentloop.interception.rules import Rule, as_rules, cover, first_match, references_in
from agentloop.values.json import JsonValue, format_json
from agentloop.values.labels import UNKNOWN, Label
from agentloop.values.points import BeforeToolUse
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ToolExecution, ToolSpec

_MAX_SHOWN = 20
"""How many arguments the reason names."""


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
        """Suspend a call that somebody else may have decided about."""
        if point.decision is not None:
            return point.suspend()  # takes back what outer interceptors changed since the decision
        label = UNKNOWN if point.label is None else point.label
        if not label.is_foreign or point.is_agent or not _has_consequences(point.tool):
            return point
        if await first_match(self.unless, point) is not None:
            return point
        return point.suspend(_reason(point, label))


def _has_consequences(tool: ToolSpec) -> bool:
    return tool.effect is not Effect.PURE or bool(tool.egress)


def _reason(point: BeforeToolUse, label: Label) -> str:
    words, outcomes, count = _words_of_user(point.state), _foreign_outcomes(point.state), len(point.arguments)
    shown = list(islice(point.arguments.items(), _MAX_SHOWN))
    written = [f"{name}: {_writer_of(value, words, outcomes)}" for name, value in shown]
    more = [f"and {count - _MAX_SHOWN} more"] if count > _MAX_SHOWN else []
    return "\n".join([f"decided after reading {label}", *written, *more])


def _writer_of(value: JsonValue, words: str, outcomes: Sequence[ToolExecution]) -> str:
    """Return who wrote an argument, in words: the first whose text has it, or else the model."""
    leaves = list(_leaves(value))
    if not leaves:
        return "the model"
    if all(_is_in(leaf, words) for leaf in leaves):
        return "yours"
    for outcome in outcomes:
        if all(_is_in(leaf, outcome.text) for leaf in leaves):
            return f"from {outcome.origin}"
    return "the model, after reading that"


def _foreign_outcomes(state: AgentState) -> list[ToolExecution]:
    """Return the outcomes whose words somebody else may have written, those of the newest messages first."""
    return [
        exchange.execution
        for message in reversed(state.messages)
        for exchange in message.exchanges
        if exchange.execution.origin.is_foreign
    ]


def _words_of_user(state: AgentState) -> str:
    asked = [
        message
        for message in state.messages
        if message.role == "user" and not (message.label and message.label.is_foreign)
    ]
    return "\n".join([message.text[message.attached :] for message in asked])


def _leaves(value: JsonValue) -> Iterator[str]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, tuple):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield value if isinstance(value, str) else format_json(value).decode()


def _is_in(leaf: str, text: str) -> bool:
    """Return whether a text has a leaf, not as a part of a longer word."""
    begin = text.find(leaf)
    while leaf and begin >= 0:
        before, after = text[begin - 1 : begin], text[begin + len(leaf) : begin + len(leaf) + 1]
        if not (before.isalnum() and leaf[0].isalnum()) and not (after.isalnum() and leaf[-1].isalnum()):
            return True
        begin = text.find(leaf, begin + 1)
    return False
