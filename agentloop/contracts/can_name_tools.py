"""The contract of parts that speak of tools by name, so that a name which no tool has is an error and not without effect."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fnmatch import fnmatchcase

from attrs import field, frozen

from agentloop.values.tool_calls import Effect
from agentloop.values.value import Value


@frozen(eq=False, repr=False)
class ToolReference(Value):
    """What a part of a loop says about the tools that it is for.

    Attributes:
        place: where it is said, such as `Permissions(deny=…)`.
        tool: the name of a tool, or a pattern such as `read_*`.
        ensemble: the name of a group of tools, or a pattern; a tool without a group has the empty name.
        effect: the effect of the tools; None for any.
        remedy: what to write if there may be no such tool; empty if there has to be one.
    """

    place: str
    tool: str = "*"
    ensemble: str = field(default="*", kw_only=True)
    effect: Effect | None = field(default=None, kw_only=True)
    remedy: str = field(default="if it may be missing, say optional=True", kw_only=True, eq=False)

    @property
    def is_named(self) -> bool:
        """Whether it names anything: what is for every tool may be for none."""
        return self.tool != "*" or self.ensemble != "*"

    def matches(self, tool: str, ensemble: str, effect: Effect) -> bool:
        """Return whether a tool is meant."""
        return fnmatchcase(tool, self.tool) and fnmatchcase(ensemble, self.ensemble) and self.effect in {None, effect}


class CanNameTools(ABC):
    """Speaks of tools by name; implemented by interceptors, drivers, compilers and groups of tools.

    A loop checks the names before an execution begins, and those of tools that a group discovers when they are known. An
    interceptor that several loops have, or that stays after a handoff, has to match a tool of one of the loops that it guards.
    """

    @property
    @abstractmethod
    def tool_references(self) -> Sequence[ToolReference]:
        """Each name and pattern that has to match a tool; those that may match none are left out."""
