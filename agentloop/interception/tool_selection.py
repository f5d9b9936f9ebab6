"""The tools that a model is offered in a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import TypeAlias

from attrs import field, frozen
from attrs.converters import optional

from agentloop.contracts.can_name_tools import CanNameTools, ToolReference
from agentloop.contracts.can_tell_controls import CanTellControls, Control
from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolGroup
from agentloop.interception.interceptor import Interceptor
from agentloop.values.points import BeforeInference
from agentloop.values.policies import CallPolicy
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.value import instance_of

ToolPredicate: TypeAlias = Callable[[ToolSpec, AgentState], bool]


@frozen
class ToolCriterion:
    """Matches tools by name or by a predicate; a tool has to match one of the fields.

    Attributes:
        pattern: a tool's name, or a pattern such as `read_*`.
        names: names of tools.
        when: a function of the tool's spec and the state.
        group: a group that discovers its tools, for all of them.
        optional: whether `pattern` and `names` may match no tool. Otherwise that is an error when an execution begins.
    """

    pattern: str = ""
    names: frozenset[str] = frozenset()
    when: ToolPredicate | None = None
    group: CanDiscoverTools | None = field(default=None, kw_only=True)
    optional: bool = field(default=False, validator=instance_of(bool), kw_only=True)

    def names_tool(self, spec: ToolSpec) -> bool:
        """Return whether this tool matches, whatever the state."""
        if spec.name in self.names or fnmatchcase(spec.name, self.pattern):
            return True
        return self.group is not None and any(tool.name == spec.name for tool in self.group.offered)

    def matches(self, spec: ToolSpec, state: AgentState) -> bool:
        """Return whether this tool matches.

        Raises:
            TypeError: the predicate returned neither True nor False.
        """
        if self.names_tool(spec):
            return True
        verdict: object = self.when is not None and self.when(spec, state)
        if not isinstance(verdict, bool):
            raise TypeError(f"the predicate of a tool selection returned {verdict!r:.100}; it returns True or False")
        return verdict

    def references(self, place: str) -> Sequence[ToolReference]:
        """Return the tools that it names.

        Args:
            place: where the criterion is.
        """
        if self.optional:
            return []
        named = [self.pattern] if self.pattern else []
        of_group = [] if self.group is None else [ToolReference(place, ensemble=self.group.name)]
        return [*[ToolReference(place, name) for name in (*named, *sorted(self.names))], *of_group]


CriterionLike: TypeAlias = ToolCriterion | str | Tool | ToolSpec | ToolGroup | ToolPredicate
"""What selects tools: a name or a pattern, a tool or its spec, a group for all its tools, or a function."""


def _as_criteria(criteria: CriterionLike | Iterable[CriterionLike]) -> tuple[ToolCriterion, ...]:
    # A group may be iterable and still be one criterion.
    if isinstance(criteria, ToolCriterion | str | Tool | ToolSpec | ToolGroup) or not isinstance(criteria, Iterable):
        return (_as_criterion(criteria),)
    return tuple([_as_criterion(criterion) for criterion in criteria])


def _as_criterion(criterion: CriterionLike) -> ToolCriterion:
    if isinstance(criterion, ToolCriterion):
        return criterion
    if isinstance(criterion, str):
        return ToolCriterion(pattern=criterion)
    if isinstance(criterion, Tool | ToolSpec):
        return ToolCriterion(names=frozenset({criterion.name}))
    if isinstance(criterion, ToolGroup):
        if isinstance(criterion, CanDiscoverTools):
            return ToolCriterion(group=criterion)
        return ToolCriterion(names=frozenset(tool.name for tool in criterion.offered))
    if callable(criterion):
        return ToolCriterion(when=criterion)
    raise TypeError(
        "tools are selected by a name or pattern, a tool, a group of tools, or a function of spec and state; "
        f"not by {criterion!r}"
    )


@frozen
class ToolSelection(Interceptor, CanNameTools, CanTellControls):
    """Offers some of the tools in each step; requests do not contain the others.

    Hidden tools are not offered even if `offer` matches them. Several selections in a loop offer the tools that all of them
    offer, in the order of the loop's tools. A tool that the tool choice names is always offered, because a provider rejects a
    request that names a missing tool.

    A call of a tool that was not offered, for example because the model knows it from the conversation, is rejected.

    A prompt begins with its tools, so every change of the selection invalidates the provider's prompt cache.

    Attributes:
        offer: the tools to offer: names, patterns such as `read_*`, tools, groups, or functions of a `ToolSpec` and the
            state. None offers every tool that is not hidden; an empty list offers none.
        hide: the tools to hide, in the same forms.
        priority: the position among other interceptors.
    """

    offer: tuple[ToolCriterion, ...] | None = field(default=None, converter=optional(_as_criteria))
    hide: tuple[ToolCriterion, ...] = field(default=(), converter=_as_criteria)
    priority: int = field(default=500, kw_only=True)
    writes = ("request.tools",)  # type: tuple[str, ...]  # an annotation would be a field

    @property
    def tool_references(self) -> Sequence[ToolReference]:
        """The tools that it names."""
        places = {"ToolSelection(offer=…)": self.offer or (), "ToolSelection(hide=…)": self.hide}
        return [reference for place, found in places.items() for one in found for reference in one.references(place)]

    def controls_on(self, tool: ToolSpec, ensemble: str, policy: CallPolicy) -> Iterable[Control]:  # noqa: ARG002  # the name alone counts
        """Return whether a model is refused calls of a tool because the tool is not offered."""
        offered = True if self.offer is None else _covers(self.offer, tool)
        hidden = _covers(self.hide, tool)
        if hidden is True or offered is False:
            return [Control("stops", "it is not offered", of="calls")]
        depends = hidden is None or offered is None
        return [Control("stops", "it may not be offered", of="calls", is_sure=False)] if depends else []

    def before_inference(self, point: BeforeInference) -> BeforeInference:
        """Remove hidden tools from the request, and tools that are not offered."""
        state = point.state
        return offer_tools(point, [spec for spec in point.request.tools if self._is_offered(spec, state)])

    def _is_offered(self, spec: ToolSpec, state: AgentState) -> bool:
        if any(criterion.matches(spec, state) for criterion in self.hide):
            return False
        return self.offer is None or any(criterion.matches(spec, state) for criterion in self.offer)


def _covers(criteria: Sequence[ToolCriterion], tool: ToolSpec) -> bool | None:
    """Return whether a tool matches any of the criteria; None if that depends on the state."""
    if any(criterion.names_tool(tool) for criterion in criteria):
        return True
    return None if any(criterion.when is not None for criterion in criteria) else False


def offer_tools(point: BeforeInference, specs: Iterable[ToolSpec]) -> BeforeInference:
    """Return the point with these tools in its request, and the one that the tool choice names."""
    request = point.request
    offered = tuple(specs)
    if request.tool_choice.kind == "specific":
        required = request.tool_choice.name
        if all(spec.name != required for spec in offered):
            offered = (*offered, *[spec for spec in request.tools if spec.name == required])
    # An unchanged request keeps its encoded form, so an unchanged offer costs nothing.
    return point if offered == request.tools else point.with_request(request.with_tools(offered))
