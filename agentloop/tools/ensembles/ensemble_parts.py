"""The parts of an ensemble, and how it is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from attrs import evolve, field, frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool
from agentloop.contracts.tool_group import ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError
from agentloop.tools.ensembles.lifecycle import Hook, Lifecycle
from agentloop.tools.ensembles.tool_override import AS_IT_IS, ToolOverride, closest, overridden
from agentloop.values.json_value import EMPTY_OBJECT, JsonObject, freeze_object


def _as_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(Tools.of(tools))


def _as_interceptors(interceptors: Iterable[CanIntercept]) -> tuple[CanIntercept, ...]:
    return tuple(interceptors)


def _as_overrides(overrides: Mapping[str, ToolOverride]) -> Mapping[str, ToolOverride]:
    return dict(overrides)


@frozen(eq=False)
class EnsembleParts(ToolGroup):
    """The parts of an ensemble.

    Attributes:
        name: its name.
        tools: all of its tools, those that are switched off included.
        enabled: whether any are offered, and whether it is started.
        defaults: values of parameters that a model need not give, for each tool that has a parameter of this name.
        start: called, and awaited where it is async, before the first execution that has its tools.
        stop: the same after the last one.
        description: what it is for, for people.
        overrides: what changes about single tools, by their names.
        policy: values of `ToolPolicy` by name, for each tool whose override names no other.
        interceptors: what it does besides its tools' calls.
        failure: why it has no tools although it should; empty when all is well.
    """

    name: str
    tools: tuple[Tool, ...] = field(converter=_as_tools, repr=lambda tools: repr([tool.name for tool in tools]))
    enabled: bool = True
    defaults: JsonObject = field(default=EMPTY_OBJECT, converter=freeze_object)
    start: Hook | None = field(default=None, kw_only=True, repr=False)
    stop: Hook | None = field(default=None, kw_only=True, repr=False)
    description: str = field(default="", kw_only=True)
    overrides: Mapping[str, ToolOverride] = field(factory=dict, converter=_as_overrides, kw_only=True, repr=False)
    policy: Mapping[str, Any] = field(factory=dict, kw_only=True, repr=False)
    given_interceptors: tuple[CanIntercept, ...] = field(
        default=(), converter=_as_interceptors, kw_only=True, repr=False, alias="interceptors"
    )
    failure: str = field(default="", kw_only=True)
    _lifecycle: Lifecycle = field(factory=Lifecycle, kw_only=True, repr=False)
    _adjusted: tuple[tuple[Tool, bool], ...] = field(init=False, repr=False)

    @_adjusted.default
    def _adjust(self) -> tuple[tuple[Tool, bool], ...]:
        if not self.name:
            raise ConfigurationError("an ensemble needs a name")
        names = [tool.name for tool in self.tools]
        unknown = next((name for name in self.overrides if name not in names), None)
        if unknown is not None and not self.failure:
            raise ConfigurationError(f"the ensemble {self.name!r} has no tool {unknown!r}{closest(unknown, names)}")
        used = {name for tool in self.tools for name in self._defaults_of(tool)} if self.defaults else set()
        unused = next((name for name in self.defaults if name not in used), None)
        if unused is not None and not self.failure:
            known = [name for tool in self.tools for name in tool.parameters.get("properties", {})]
            raise ConfigurationError(
                f"defaults.{unused}: no tool of the ensemble {self.name!r} has such a parameter{closest(unused, known)}"
            )
        return tuple([self._one(tool) for tool in self.tools])

    def _one(self, tool: Tool) -> tuple[Tool, bool]:
        own = self.overrides.get(tool.name, AS_IT_IS)
        defaults = {**self._defaults_of(tool), **own.defaults}
        override = evolve(own, enabled=True, policy={**self.policy, **own.policy}, defaults=defaults)
        lifecycle = self._lifecycle if self.start is not None or self.stop is not None else None
        return overridden(tool, override, ensemble=self.name, lifecycle=lifecycle), own.enabled

    def _defaults_of(self, tool: Tool) -> dict[str, Any]:
        if not self.defaults:
            return {}
        own = self.overrides.get(tool.name, AS_IT_IS)
        schema = tool.parameters if own.schema is None else own.schema
        return {name: value for name, value in self.defaults.items() if name in schema.get("properties", {})}

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that a model can call: none when the ensemble is switched off."""
        return tuple([tool for tool, enabled in self._adjusted if enabled]) if self.enabled else ()

    @property
    def all_tools(self) -> tuple[tuple[Tool, bool], ...]:
        """Every tool as it would be offered, and whether it is."""
        return tuple([(tool, enabled and self.enabled) for tool, enabled in self._adjusted])

    @property
    def interceptors(self) -> tuple[CanIntercept, ...]:
        """What it does besides its tools' calls; nothing when it is switched off."""
        return self.given_interceptors if self.enabled else ()

    def switched_on(self) -> Self:
        """Return a copy that offers its tools."""
        return evolve(self, enabled=True)

    def switched_off(self) -> Self:
        """Return a copy that offers nothing and is not started."""
        return evolve(self, enabled=False)

    def without(self, *names: str) -> Self:
        """Return a copy that does not offer these tools.

        Raises:
            ConfigurationError: when it has no such tool.
        """
        return self._with_each(names, lambda override: evolve(override, enabled=False))

    def only(self, *names: str) -> Self:
        """Return a copy that offers these tools and no others.

        Raises:
            ConfigurationError: when it has no such tool.
        """
        wanted = self._with_each(names, lambda override: evolve(override, enabled=True))
        return wanted.without(*[tool.name for tool in self.tools if tool.name not in names])

    def with_override(self, name: str, override: ToolOverride) -> Self:
        """Return a copy that changes this about one tool, in place of what it changed before.

        Raises:
            ConfigurationError: when it has no such tool, or a default does not fit.
            ToolDefinitionError: when the schema is not one of this tool.
        """
        return evolve(self, overrides={**self.overrides, name: override})

    def _with_each(self, names: Iterable[str], change: Any) -> Self:
        changed = {name: change(self.overrides.get(name, AS_IT_IS)) for name in names}
        return evolve(self, overrides={**self.overrides, **changed})

    async def hold(self) -> None:
        """Have it started in the running event loop until `release`; a failure is logged, and its tools' calls tell it."""
        if self.enabled:
            await self._lifecycle.hold(self.name, self.start)

    async def release(self) -> None:
        """Need it no more; stops it when nobody else holds it."""
        if self.enabled:
            await self._lifecycle.release(self.name, self.stop)

    def problem(self) -> str:
        """Say why calls of its tools would fail in the running event loop; empty when they would not.

        Raises:
            RuntimeError: when no event loop is running and it has something to start.
        """
        if self.failure or not self.enabled:
            return self.failure or "it is switched off"
        return self._lifecycle.problem() if self.start is not None or self.stop is not None else ""
