"""Ensembles made of what descriptors say."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from attrs import define, evolve, field

from agentloop.contracts.tool import Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, InvalidDescriptor, ToolDefinitionError
from agentloop.tools.ensembles.descriptor import Descriptor, Given
from agentloop.tools.ensembles.ensemble_parts import EnsembleParts
from agentloop.tools.ensembles.import_path import ImportFailed, ImportPath
from agentloop.tools.ensembles.maker import EnsembleMaker
from agentloop.tools.ensembles.tool_override import ToolOverride, closest, overridden, with_defaults
from agentloop.values.json_value import freeze_object

E = TypeVar("E", bound=EnsembleParts)
_LOG = logging.getLogger("agentloop.tools.ensembles")


@define
class Building(Generic[E]):
    """Makes ensembles of descriptors, and collects the mistakes that show only when their tools are there.

    Attributes:
        kind: the class of the ensembles.
        mistakes: what was wrong, in the form that `InvalidDescriptor` takes.
    """

    kind: type[E]
    mistakes: list[tuple[str, str, int, str]] = field(factory=list)

    def checked(self, descriptors: Sequence[Descriptor]) -> list[E]:
        """Make the ensembles.

        Raises:
            InvalidDescriptor: with every mistake that was found.
        """
        made = [self.ensemble(descriptor) for descriptor in descriptors]
        if self.mistakes:
            raise InvalidDescriptor(self.mistakes)
        return made

    def ensemble(self, descriptor: Descriptor) -> E:
        """Make one ensemble; one whose modules cannot be imported is without tools, and says why.

        What is switched off is not imported.
        """
        nothing = self.kind(descriptor.name, (), descriptor.enabled, description=descriptor.value("description", ""))
        if not descriptor.enabled:
            return nothing
        count = len(self.mistakes)
        try:
            made = self._filled(descriptor, nothing)
        except ImportFailed as error:
            _LOG.error(
                "the ensemble %s has failed: %s", descriptor.name, error, exc_info=error.__cause__
            )  # the cause is what tells where
            return evolve(nothing, failure=str(error))
        except (ConfigurationError, ToolDefinitionError, TypeError) as error:
            if len(self.mistakes) == count:
                self.mistakes.append(descriptor.place.mistake(str(error)))
            return nothing
        return nothing if len(self.mistakes) > count else made

    def _filled(self, descriptor: Descriptor, nothing: E) -> E:
        count = len(self.mistakes)
        base = self._base(descriptor, nothing)
        tools = list(base.tools)
        for name, entry in descriptor.tools.items():
            use = entry.values.get("use")
            if use is not None and entry.enabled:
                tools.extend(self._single(name, use))
            elif use is None and name not in [tool.name for tool in base.tools]:
                names = [tool.name for tool in base.tools]
                self.mistakes.append(
                    entry.place.mistake(f"the ensemble {descriptor.name!r} has no tool {name!r}{closest(name, names)}")
                )
        if len(self.mistakes) > count:
            return nothing
        overrides = {**base.overrides, **self._overrides(descriptor, Tools.of(tools))}
        defaults = {**base.defaults, **self._ensemble_defaults(descriptor, tools)}
        if len(self.mistakes) > count:
            return nothing
        return evolve(
            base,
            name=descriptor.name,
            tools=tools,
            defaults=defaults,
            overrides=overrides,
            policy={**base.policy, **descriptor.policy},
            description=descriptor.value("description", base.description),
        )

    # --- where the tools come from ------------------------------------------------------------------------------

    def _base(self, descriptor: Descriptor, nothing: E) -> E:
        use, options = descriptor.values.get("use"), descriptor.values.get("options")
        found = None if use is None else self._resolved(use)
        if use is not None and isinstance(found, EnsembleMaker):
            found = self._made(found, use, options)
        elif options is not None:
            self.mistakes.append(
                options.mistake("only a function marked with @makes_ensemble, named by use, takes options")
            )
        if use is None or found is None:
            return nothing
        if isinstance(found, self.kind):
            return found
        listed = [found] if isinstance(found, Tool) else found
        if isinstance(listed, list | tuple | Tools) and all(isinstance(one, Tool) for one in listed):
            return evolve(nothing, tools=tuple(listed))
        self.mistakes.append(
            use.mistake(f"{use.value} is {_kind_of(found)}, not an ensemble, a tool or a list of tools{_HINT}")
        )
        return nothing

    def _made(self, maker: EnsembleMaker[..., EnsembleParts], use: Given, options: Given | None) -> object:
        given = {} if options is None else options.value
        place = use if options is None else options
        problems = maker.problems(given)
        for path, message in problems:
            self.mistakes.append(place.mistake(message, *[part for part in path.removeprefix("$").split(".") if part]))
        if problems:
            return None
        try:
            return maker.made(given)
        except (ConfigurationError, ToolDefinitionError, TypeError, ValueError) as error:
            self.mistakes.append(place.mistake(str(error)))
            return None
        except Exception as error:
            raise ImportFailed(f"{use.value} failed: {type(error).__name__}: {error}") from error

    def _single(self, name: str, use: Given) -> list[Tool]:
        found = self._resolved(use)
        if isinstance(found, Tool):
            return [overridden(found, ToolOverride(name=name)) if found.name != name else found]
        if found is not None:
            self.mistakes.append(use.mistake(f"{use.value} is {_kind_of(found)}, not a tool{_HINT}"))
        return []

    def _resolved(self, use: Given) -> object | None:
        try:
            return ImportPath.parse(use.value).resolve()
        except ImportFailed:
            raise
        except ConfigurationError as error:
            self.mistakes.append(use.mistake(str(error)))
            return None

    # --- what is changed about them -----------------------------------------------------------------------------

    def _overrides(self, descriptor: Descriptor, tools: Tools) -> dict[str, ToolOverride]:
        found = {}
        for name, entry in descriptor.tools.items():
            tool = tools.get(name)
            if tool is not None:
                override = entry.override()
                found[name] = evolve(override, defaults=self._defaults(entry, tool, override))
        return found

    def _defaults(self, entry: Descriptor, tool: Tool, override: ToolOverride) -> dict[str, Any]:
        schema = entry.values.get("schema")
        if schema is not None:
            try:
                overridden(tool, override)
            except ToolDefinitionError as error:
                self.mistakes.append(schema.mistake(str(error)))
                return {}
        parameters = tool.spec.parameters if override.schema is None else override.schema
        defaults = entry.values.get("defaults")
        if defaults is None:
            return {}
        for key, value in defaults.value.items():
            try:
                with_defaults(parameters, freeze_object({key: value}), f"the tool {tool.name!r}")
            except ConfigurationError as error:
                self.mistakes.append(defaults.mistake(str(error).removeprefix(f"defaults.{key}: "), key))
        return dict(defaults.value)

    def _ensemble_defaults(self, descriptor: Descriptor, tools: Sequence[Tool]) -> dict[str, Any]:
        defaults = descriptor.values.get("defaults")
        if defaults is None:
            return {}
        for key, value in defaults.value.items():
            takers = [tool for tool in tools if key in tool.spec.parameters.get("properties", {})]
            known = [name for tool in tools for name in tool.spec.parameters.get("properties", {})]
            if not takers:
                told = f"no tool of the ensemble {descriptor.name!r} has such a parameter{closest(key, known)}"
                self.mistakes.append(defaults.mistake(told, key))
            for tool in takers:
                try:
                    with_defaults(tool.spec.parameters, freeze_object({key: value}), f"the tool {tool.name!r}")
                except ConfigurationError as error:
                    self.mistakes.append(defaults.mistake(str(error).removeprefix(f"defaults.{key}: "), key))
                    break
        return dict(defaults.value)


_HINT = "; tools are made by @tool, ensembles by Ensemble, and functions that make ensembles are marked with @makes_ensemble"


def _kind_of(value: object) -> str:
    return f"a {type(value).__name__}"
