"""The tools that a model was offered, as a reader of its text needs them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Final

from attrs import frozen

from agentloop.values.tool_spec import ToolSpec

_NAMESPACES: Final = ("functions.", "tools.", "default_api.")


@frozen
class OfferedTools:
    """The offered tools by name.

    A name counts as known also where its dots are written as underscores, since providers refuse dots in names, and behind a
    namespace that prompts put before every tool.

    Attributes:
        own: the tools, by their own names.
        by_name: the tools, by the names under which they are known.
        names: those names in alphabetical order.
    """

    own: Mapping[str, ToolSpec]
    by_name: Mapping[str, ToolSpec]
    names: tuple[str, ...]

    @classmethod
    def of(cls, tools: Sequence[ToolSpec]) -> OfferedTools:
        """Collect tools."""
        own = {tool.name: tool for tool in tools}
        by_name = {tool.name.replace(".", "_"): tool for tool in tools} | own
        return cls(
            own, by_name, tuple(sorted([*by_name, *[space + name for space in _NAMESPACES for name in by_name]]))
        )

    def plain_name(self, written: str) -> str:
        """Return a name without escapes, and without the namespace that some prompts put before every tool."""
        name = written.replace("\\", "")
        if name in self.by_name:
            return name
        for space in _NAMESPACES:
            bare = name.removeprefix(space)
            if bare != name and bare in self.by_name:
                return bare
        return name

    def knows(self, name: str) -> bool:
        """Say whether this is an offered tool."""
        return name in self.by_name

    def begins(self, text: str) -> bool:
        """Say whether a known name begins with this text."""
        place = bisect_left(self.names, text)
        return place < len(self.names) and self.names[place].startswith(text)

    def parameters(self, name: str) -> Mapping[str, object]:
        """Return the JSON Schema of a tool's parameters; empty for an unknown one."""
        tool = self.by_name.get(name)
        return {} if tool is None else tool.parameters

    def properties(self, name: str) -> Mapping[str, object]:
        """Return the schemas of a tool's parameters by name, in their order; empty when there are none."""
        properties = self.parameters(name).get("properties")
        return properties if isinstance(properties, Mapping) else {}

    def required(self, name: str) -> tuple[str, ...]:
        """Return the names of the parameters that a call must have."""
        required = self.parameters(name).get("required")
        return tuple(map(str, required)) if isinstance(required, Sequence) and not isinstance(required, str) else ()

    def only_parameter(self, name: str) -> str | None:
        """Return the one parameter that a tool must or can have, when there is just one."""
        properties = self.properties(name)
        candidates = [key for key in self.required(name) if key in properties] or [*properties]
        return candidates[0] if len(candidates) == 1 else None
