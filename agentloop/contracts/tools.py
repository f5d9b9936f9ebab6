"""A set of tools."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Self

from attrs import evolve, field, frozen

from agentloop.contracts.tool import CanDiscoverTools, Tool, ToolGroup
from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.values.tool_calls import ToolSpec
from agentloop.values.value import Value


def _single(given: Iterable[Tool | ToolGroup]) -> Iterator[Tool]:
    for one in given:
        if isinstance(one, CanDiscoverTools):
            continue
        if isinstance(one, ToolGroup):
            yield from one.offered
        else:
            yield one


@frozen(eq=False, repr=False)
class Tools(Value):
    """Tools by name, in the order in which they are offered.

    Attributes:
        by_name: the tools.
        groups: the groups that some of them came in; they have to be held while their tools are called.
        origins: the name of the group that each discovered tool came in, by the tool's name.
    """

    by_name: Mapping[str, Tool]
    groups: tuple[ToolGroup, ...] = field(default=(), repr=False)
    origins: Mapping[str, str] = field(factory=dict, repr=False, eq=False)

    @classmethod
    def of(cls, tools: Tools | Iterable[Tool | ToolGroup]) -> Tools:
        """Collect tools, single ones and those of groups; groups that have to discover theirs only take their place.

        Raises:
            TypeError: when something is not a `Tool`.
            ToolDefinitionError: when two tools have the same name.
        """
        if isinstance(tools, Tools):
            return tools
        given = list(tools)
        by_name: dict[str, Tool] = {}
        for tool in _single(given):
            if not isinstance(tool, Tool):
                raise TypeError(f"{tool!r} in the tools list is not a Tool; {_hint(tool)}")
            name = tool.name
            if name in by_name:
                raise ToolDefinitionError(
                    f"two tools are named {name!r}: {by_name[name]!r} and {tool!r}; rename one, for example "
                    "with @tool(name=…)"
                )
            by_name[name] = tool
        return cls(by_name, tuple([group for group in given if isinstance(group, ToolGroup)]))

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What each of the tools offers, in order; the same tuple every time.

        Raises:
            ToolDefinitionError: when the parameters of a tool have no JSON form.
        """
        return tuple([_spec(tool) for tool in self.by_name.values()])

    @cached_property
    def group_names(self) -> Mapping[str, str]:
        """The name of the group that each tool came in, by the tool's name; tools of their own are left out."""
        told = [group for group in self.groups if not isinstance(group, CanDiscoverTools)]
        return {**{tool.name: group.name for group in told for tool in group.offered}, **self.origins}

    def __len__(self) -> int:
        return len(self.by_name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.by_name.values())

    def __contains__(self, name: object) -> bool:
        return name in self.by_name

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in order."""
        return tuple(self.by_name)

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name, or None."""
        return self.by_name.get(name)

    def spec(self, name: str) -> ToolSpec | None:
        """Return what the tool of this name offers, or None."""
        return next((spec for spec in self.specs if spec.name == name), None)

    def closest(self, name: str, most: int = 3) -> list[str]:
        """Return the names most like this one, the likest first."""
        from difflib import get_close_matches  # noqa: PLC0415  # loaded with the first unknown name

        return get_close_matches(name, self.by_name, n=most, cutoff=0.5)

    def plus(self, *tools: Tool | ToolGroup) -> Tools:
        """Return the set with more tools at the end."""
        more = Tools.of(tools)
        groups = (*self.groups, *more.groups)
        return evolve(Tools.of([*self, *more]), groups=groups, origins={**self.origins, **more.origins})

    def with_discovered(self, found: Iterable[tuple[ToolGroup, Sequence[Tool]]]) -> Tools:
        """Return the set with what groups have discovered at the end; of two tools of one name the first stays."""
        by_name, origins = dict(self.by_name), dict(self.origins)
        for group, tools in found:
            for tool in tools:
                if tool.name in by_name:
                    _tell_left_out(tool, group)
                else:
                    by_name[tool.name], origins[tool.name] = tool, group.name
        return evolve(self, by_name=by_name, origins=origins)

    def only(self, names: Iterable[str]) -> Self:
        """Return the tools of these names, in the order in which they stand here."""
        wanted = set(names)
        kept = {name: tool for name, tool in self.by_name.items() if name in wanted}
        return type(self)(kept, self.groups, self.origins)


NO_TOOLS = Tools.of(())


def _tell_left_out(tool: Tool, group: ToolGroup) -> None:
    from logging import getLogger  # noqa: PLC0415  # loaded with the first tool that is left out

    log = getLogger("agentloop.tools")
    log.warning("the tool %r of %s is left out: there is another of this name", tool.name, group.name)


def _hint(tool: object) -> str:
    return "decorate it with @agentloop.tool" if callable(tool) else "a tool is made by @tool or subclasses Tool"


def _spec(tool: Tool) -> ToolSpec:
    try:
        return tool.spec
    except NotJson as error:
        raise ToolDefinitionError(f"the parameters of the tool {tool.name!r} are not JSON: {error}") from error
