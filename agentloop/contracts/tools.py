"""The tools of a loop: single tools and those of groups, by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.tool import CanDescribeResult, CanDiscoverTools, CanRequireDependencies, Tool, ToolGroup
from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.errors.hints import known_part
from agentloop.values.json import JsonObject
from agentloop.values.tool_calls import ToolSpec, reference_argument
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class Tools(Value):
    """An ordered set of tools with unique names.

    Attributes:
        by_name: the tools by name, in the order in which they are offered.
        groups: the groups among them; a group must be held while its tools are called.
        origins: the name of the group of each discovered tool, by the name of the tool.
        is_strict: whether all definitions are strict, so that no arguments are coerced.
    """

    by_name: Mapping[str, Tool]
    groups: tuple[ToolGroup, ...] = field(default=(), repr=False)
    origins: Mapping[str, str] = field(factory=dict, repr=False, eq=False)
    is_strict: bool = field(default=False, repr=False)

    @classmethod
    def of(cls, tools: Tools | Iterable[Tool | ToolGroup]) -> Tools:
        """Create the set of single tools and the tools of groups; tools that are still to be discovered are not included.

        Loops and ensembles take functions as well: `agentloop.tools.collect_tools` makes tools of them.

        Raises:
            TypeError: if an element is neither a `Tool` nor a `ToolGroup`.
            ToolDefinitionError: if two tools have the same name.
        """
        if isinstance(tools, Tools):
            return tools
        elements = list(tools)
        by_name: dict[str, Tool] = {}
        for tool in _iter_tools(elements):
            if not isinstance(tool, Tool):
                raise _not_a_tool(tool)
            name = tool.name
            if name in by_name:
                raise ToolDefinitionError(
                    f"two tools are named {name!r}: {by_name[name]!r} and {tool!r}; rename one, for example "
                    "with @tool(name=…)"
                )
            by_name[name] = tool
        return cls(by_name, tuple([element for element in elements if isinstance(element, ToolGroup)]))

    @cached_property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The definitions of the tools, in order; the same tuple on each access.

        Raises:
            ToolDefinitionError: if the parameters of a tool have no JSON form.
        """
        return tuple([_spec(tool, strict=self.is_strict) for tool in self.by_name.values()])

    @cached_property
    def as_strict(self) -> Tools:
        """The same tools, of which none has its arguments coerced; the same object on each access."""
        # Kept, because specs cache their encoded forms.
        return self if self.is_strict else evolve(self, is_strict=True)

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What others keep for as long as these tools exist, by keys of their own; copies have another one."""
        return {}

    @cached_property
    def result_schemas(self) -> Mapping[str, JsonObject]:
        """The JSON Schemas of results, by the names of the tools whose results have a known form."""
        described = {tool.name: tool.result_schema for tool in self if isinstance(tool, CanDescribeResult)}
        return {name: schema for name, schema in described.items() if schema is not None}

    @cached_property
    def group_names(self) -> Mapping[str, str]:
        """The name of the group of each tool, by the name of the tool; single tools are left out."""
        # The tools of discovering groups may have changed since; `origins` has those of this execution.
        static = [group for group in self.groups if not isinstance(group, CanDiscoverTools)]
        return {**{tool.name: group.name for group in static for tool in group.offered}, **self.origins}

    @cached_property
    def result_reader(self) -> str:
        """The name of the first tool that reads earlier results by reference; empty if there is none."""
        return next((name for name, tool in self.by_name.items() if tool.policy.reads_results), "")

    def reading_hint(self, key: str, argument: str = "") -> str:
        """Return the call with which a model reads the whole result of a call; empty if no tool reads results.

        Args:
            key: the key of the call.
            argument: a further argument, as `name=value`.
        """
        if not self.result_reader:
            return ""
        return f"{self.result_reader}({', '.join(filter(None, [reference_argument(key), argument]))})"

    def check_dependencies(self, dependencies: object) -> None:
        """Check that each tool can work with the dependencies of an execution.

        Tools that groups discover are checked when they are called.

        Raises:
            InvalidDependencies: if the dependencies have another type than a tool declares; names the tool.
        """
        for tool in self._dependent:
            tool.check_dependencies(dependencies)

    @cached_property
    def _dependent(self) -> tuple[CanRequireDependencies, ...]:
        return tuple([tool for tool in self if isinstance(tool, CanRequireDependencies)])

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
        """Return the definition of the tool of this name, or None."""
        return next((spec for spec in self.specs if spec.name == name), None)

    def closest(self, name: str, limit: int = 3) -> list[str]:
        """Return the names most similar to this one, the most similar first; a name that is a part of it comes before all others."""
        from difflib import get_close_matches  # noqa: PLC0415  # loaded with the first unknown name

        part = known_part(name, self.by_name)
        return [part] if part is not None else get_close_matches(name, self.by_name, n=limit, cutoff=0.5)

    def plus(self, *tools: Tool | ToolGroup) -> Tools:
        """Return a copy with more tools at the end.

        Raises:
            TypeError: if an element is neither a `Tool` nor a `ToolGroup`.
            ToolDefinitionError: if two tools have the same name.
        """
        more = Tools.of(tools)
        groups = (*self.groups, *more.groups)
        origins = {**self.origins, **more.origins}
        return evolve(Tools.of([*self, *more]), groups=groups, origins=origins, is_strict=self.is_strict)

    def with_discovered(self, discovered: Iterable[tuple[ToolGroup, Sequence[Tool]]]) -> Tools:
        """Return a copy with the discovered tools of groups at the end; a tool whose name is taken is left out and logged."""
        by_name, origins = dict(self.by_name), dict(self.origins)
        for group, tools in discovered:
            for tool in tools:
                if tool.name in by_name:
                    _warn_of_duplicate(tool, group)
                else:
                    by_name[tool.name], origins[tool.name] = tool, group.name
        return evolve(self, by_name=by_name, origins=origins)

    def only(self, names: Iterable[str]) -> Self:
        """Return a copy with only the tools of these names, in their present order."""
        selected = set(names)
        by_name = {name: tool for name, tool in self.by_name.items() if name in selected}
        return type(self)(by_name, self.groups, self.origins, self.is_strict)


def _iter_tools(elements: Iterable[Tool | ToolGroup]) -> Iterator[Tool]:
    for element in elements:
        if isinstance(element, CanDiscoverTools):
            continue
        if isinstance(element, ToolGroup):
            yield from element.offered
        else:
            yield element


def _warn_of_duplicate(tool: Tool, group: ToolGroup) -> None:
    from logging import getLogger  # noqa: PLC0415  # loaded with the first duplicate

    log = getLogger("agentloop.tools")
    log.warning("the tool %r of %s is left out: there is another of this name", tool.name, group.name)


def _not_a_tool(value: object) -> TypeError:
    return TypeError(f"{value!r:.100} of type {type(value).__name__} is not a Tool; {_hint(value)}")


def _hint(value: object) -> str:
    if isinstance(value, type):
        is_tool = issubclass(value, Tool | ToolGroup)
        return f"create an object of it: {value.__name__}(…)" if is_tool else "a class of tools subclasses Tool"
    if callable(value):
        return "decorate it with @agentloop.tool"
    if isinstance(value, list | tuple):
        return "write * before a list inside a list"
    if hasattr(value, "as_tool"):  # an agent
        return "its method as_tool(…) returns one"
    return "a tool is made by @tool or subclasses Tool"


def _spec(tool: Tool, *, strict: bool) -> ToolSpec:
    try:
        spec = tool.spec
        return evolve(spec, strict=True) if (strict or tool.policy.strict) and not spec.strict else spec
    except NotJson as error:
        raise ToolDefinitionError(f"the parameters of the tool {tool.name!r} are not JSON: {error}") from error


NO_TOOLS = Tools.of(())
