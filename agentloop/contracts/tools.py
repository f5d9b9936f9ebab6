"""A set of tools."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Self

from attrs import field, frozen

from agentloop.contracts.tool import Tool
from agentloop.errors import NotJson, ToolDefinitionError
from agentloop.values.tool_spec import ToolSpec


@frozen
class Tools:
    """Tools by name, in the order in which they are offered.

    Attributes:
        by_name: the tools.
        specs: what each of them offers, in order; the same tuple every time.
    """

    by_name: Mapping[str, Tool]
    specs: tuple[ToolSpec, ...] = field(repr=False)

    @classmethod
    def of(cls, tools: "Tools | Iterable[Tool]") -> "Tools":
        """Collect tools.

        Raises:
            TypeError: when something is not a `Tool`.
            ToolDefinitionError: when two tools have the same name, or parameters are not JSON.
        """
        if isinstance(tools, Tools):
            return tools
        by_name: dict[str, Tool] = {}
        specs = []
        for tool in tools:
            spec = _spec(tool)
            if spec.name in by_name:
                raise ToolDefinitionError(
                    f"two tools are named {spec.name!r}: {by_name[spec.name]!r} and {tool!r}; rename one, for example "
                    "with @tool(name=…)"
                )
            by_name[spec.name] = tool
            specs.append(spec)
        return cls(by_name, tuple(specs))

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
        return difflib.get_close_matches(name, self.by_name, n=most, cutoff=0.5)

    def plus(self, *tools: Tool) -> "Tools":
        """Return the set with more tools at the end."""
        return Tools.of([*self, *tools])

    def only(self, names: Iterable[str]) -> Self:
        """Return the tools of these names, in the order in which they stand here."""
        wanted = set(names)
        kept = {name: tool for name, tool in self.by_name.items() if name in wanted}
        return type(self)(kept, tuple([spec for spec in self.specs if spec.name in kept]))


NO_TOOLS = Tools.of(())


def _spec(tool: object) -> ToolSpec:
    if not isinstance(tool, Tool):
        hint = "decorate it with @agentloop.tool" if callable(tool) else "a tool is made by @tool or subclasses Tool"
        raise TypeError(f"{tool!r} in the tools list is not a Tool; {hint}")
    try:
        return tool.spec
    except NotJson as error:
        raise ToolDefinitionError(f"the parameters of the tool {type(tool).__name__} are not JSON: {error}") from error
