"""Which of the tools a model is offered in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TypeAlias

from attrs import field, frozen
from attrs.converters import optional

from agentloop.contracts.tool import Tool, ToolGroup
from agentloop.interception.interceptor import Interceptor
from agentloop.values.points import BeforeInference
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolSpec

ToolPredicate: TypeAlias = Callable[[ToolSpec, AgentState], bool]


@frozen
class ToolCriterion:
    """Tells the tools that are meant; what is left out means none.

    Attributes:
        pattern: a tool's name, or a pattern of names as in `read_*`.
        names: names.
        when: a function of the tool's spec and the state.
    """

    pattern: str = ""
    names: frozenset[str] = frozenset()
    when: ToolPredicate | None = None

    def matches(self, spec: ToolSpec, state: AgentState) -> bool:
        """Say whether this tool is meant."""
        return (
            spec.name in self.names
            or fnmatchcase(spec.name, self.pattern)
            or (self.when is not None and self.when(spec, state))
        )


CriterionLike: TypeAlias = ToolCriterion | str | Tool | ToolSpec | ToolGroup | ToolPredicate
"""What tells tools: a name or a pattern of names, a tool or its spec, a group and so its tools, a function."""


def _as_criteria(given: CriterionLike | Iterable[CriterionLike]) -> tuple[ToolCriterion, ...]:
    if isinstance(given, ToolCriterion | str | Tool | ToolSpec | ToolGroup) or not isinstance(given, Iterable):
        return (_as_criterion(given),)
    return tuple([_as_criterion(one) for one in given])


def _as_criterion(given: CriterionLike) -> ToolCriterion:
    if isinstance(given, ToolCriterion):
        return given
    if isinstance(given, str):
        return ToolCriterion(pattern=given)
    if isinstance(given, Tool | ToolSpec):
        return ToolCriterion(names=frozenset({given.name}))
    if isinstance(given, ToolGroup):
        return ToolCriterion(names=frozenset(tool.name for tool in given.offered))
    if callable(given):
        return ToolCriterion(when=given)
    raise TypeError(
        "tools are selected by a name or pattern, a tool, a group of tools, or a function of spec and state; "
        f"not by {given!r}"
    )


@frozen
class ToolSelection(Interceptor):
    """Offers some of the tools in each step, and says nothing of the others to the model.

    What is hidden wins. Several of these in a loop leave what all of them offer, in the order of the loop's tools. A tool
    that the tool choice names is always offered, since a provider refuses a request that names a tool it lacks.

    To offer is advice to the model and no permission: a call of a tool that the loop has is run also where the tool was not
    offered, as when the conversation tells of it. `Permissions` keeps calls from running.

    Each other selection makes the provider read the whole prompt again, which has the tools at its beginning: a function
    that changes its mind in every step costs the prompt cache.

    Attributes:
        offer: what is offered: tool names, patterns as in `read_*`, tools, groups, or functions of a `ToolSpec` and the
            state. When None, all that is not hidden; an empty list offers nothing.
        hide: what is not.
        priority: where it stands among the interceptors.
    """

    offer: tuple[ToolCriterion, ...] | None = field(default=None, converter=optional(_as_criteria))
    hide: tuple[ToolCriterion, ...] = field(default=(), converter=_as_criteria)
    priority: int = field(default=500, kw_only=True)

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Take from the request what is hidden, and what is not offered."""
        state = point.state
        return with_tools_offered(point, [spec for spec in point.request.tools if self._offers(spec, state)])

    def _offers(self, spec: ToolSpec, state: AgentState) -> bool:
        if any(criterion.matches(spec, state) for criterion in self.hide):
            return False
        return self.offer is None or any(criterion.matches(spec, state) for criterion in self.offer)


def with_tools_offered(point: BeforeInference, offered: Iterable[ToolSpec]) -> BeforeInference:
    """Return the point with these tools on offer, and the one that the tool choice names."""
    request = point.request
    kept = tuple(offered)
    if request.tool_choice.kind == "specific":
        named = request.tool_choice.name
        if all(spec.name != named for spec in kept):
            kept = (*kept, *[spec for spec in request.tools if spec.name == named])
    return point if kept == request.tools else point.with_request(request.with_tools(*kept))
