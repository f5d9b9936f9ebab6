"""Ensembles: named groups of tools."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool, ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, InvalidDescriptor, ToolDefinitionError
from agentloop.tools.ensembles.descriptor import Descriptor, DescriptorReader, Given, TomlFile
from agentloop.tools.ensembles.import_path import AllowedModules, ImportFailed, ImportPath
from agentloop.tools.ensembles.lifecycle import Hook, Lifecycle
from agentloop.tools.ensembles.overrides import AS_IT_IS, ToolOverride, closest, overridden, with_defaults
from agentloop.tools.signature import Signature
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import EMPTY_OBJECT, JsonObject, as_frozen_dict, freeze_object
from agentloop.values.policies import Deduplicator, Similarity


def _as_tools(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(Tools.of(tools))


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
    overrides: Mapping[str, ToolOverride] = field(factory=dict, converter=as_frozen_dict, kw_only=True, repr=False)
    policy: Mapping[str, Any] = field(factory=dict, kw_only=True, repr=False)
    given_interceptors: tuple[CanIntercept, ...] = field(
        default=(), converter=tuple[CanIntercept, ...], kw_only=True, repr=False, alias="interceptors"
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


P = ParamSpec("P")
E_co = TypeVar("E_co", bound=EnsembleParts, covariant=True)


@frozen(eq=False)
class EnsembleMaker(Generic[P, E_co]):
    """A function that makes an ensemble; made by `@makes_ensemble`, and called as the function it was.

    A descriptor can name it and give it options. A function without this mark is never called by configuration.

    Attributes:
        function: the function.
    """

    function: Callable[P, E_co]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> E_co:
        """Make the ensemble."""
        return self.function(*args, **kwargs)

    @cached_property
    def _signature(self) -> Signature:
        return Signature.of(self.function)

    def problems(self, options: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return what is wrong with options, as pairs of an option's JSON path and a message.

        Raises:
            ToolDefinitionError: when the function has parameters that cannot be told in JSON.
        """
        schema = self._signature.documented[1]
        return SchemaValidator(schema, "the options").problems(dict(options))

    def made(self, options: Mapping[str, Any]) -> EnsembleParts:
        """Make the ensemble with options that have no problems.

        Raises:
            Exception: whatever the function raises.
        """
        function = cast("Callable[..., EnsembleParts]", self.function)
        return function(**self._signature.prepare(dict(options)))


def makes_ensemble(function: Callable[P, E_co]) -> EnsembleMaker[P, E_co]:
    """Mark a function that makes an ensemble, so that descriptors may name it and give it options.

        @makes_ensemble
        def warehouse(city: str) -> Ensemble:
            \"\"\"Tools of the warehouse in a city.\"\"\"
            return Ensemble("warehouse", tools_of(city))

    Args:
        function: a typed function whose parameters can be told in JSON.
    """
    return EnsembleMaker(function)


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


NO_DEDUPLICATORS: Mapping[str, Deduplicator | Similarity] = MappingProxyType({})
"""No file may name one."""


@frozen(eq=False)
class Ensemble(EnsembleParts):
    """A named group of tools that is configured, enabled and disabled together; give it to a loop among the tools.

    It is immutable: its methods return changed copies. An ensemble with `start` and `stop` is started by the first
    execution that has it and stopped by the last; a loop that is entered (`async with loop`) holds it all the while. When
    starting fails, that is logged, and calls of its tools fail with `ToolUnavailable`; everything else goes on.

        shop = Ensemble("shop", [find_order, refund], start=pool.open, stop=pool.close, defaults={"limit": 10})
        loop = AgentLoop.for_model("openai:gpt-5", tools=[shop.without("refund"), add])
    """

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str],
        *,
        allow: Iterable[str] = (),
        allow_outside: bool = False,
        deduplicators: Mapping[str, Deduplicator | Similarity] = NO_DEDUPLICATORS,
    ) -> Self:
        """Read the ensemble that a TOML file describes.

        Args:
            path: the file.
            allow: the modules that its import paths may name, each with all below it, such as `myapp.tools`; the ensembles
                of this package may always be named.
            allow_outside: whether a `source` may lie outside of the folder of the file that names it.
            deduplicators: what the key `deduplicator` may name: deduplicators, or functions of two calls.

        Raises:
            InvalidDescriptor: with every mistake in the file, each with its key and its line. Nothing is imported when an
                import path is not allowed.
            TypeError: when `allow` is not a list of modules.
        """
        reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
        return Building(cls).checked(_sound(reader, [reader.ensemble(reader.file(Path(path)))]))[0]


def load_ensembles(
    path: str | PathLike[str],
    *,
    allow: Iterable[str] = (),
    allow_outside: bool = False,
    deduplicators: Mapping[str, Deduplicator | Similarity] = NO_DEDUPLICATORS,
) -> tuple[Ensemble, ...]:
    """Read the ensembles that a TOML file lists, in tables `[ensembles.NAME]`.

    An ensemble whose modules cannot be imported is logged and offers no tools; its `failure` says why. The others work.

    Arguments and errors are those of `Ensemble.from_toml`.
    """
    reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
    return tuple(Building(Ensemble).checked(_sound(reader, reader.ensembles(reader.file(Path(path))))))


def read_descriptors(
    path: str | PathLike[str],
    *,
    allow: Iterable[str] = (),
    allow_outside: bool = False,
    deduplicators: Mapping[str, Deduplicator | Similarity] | None = None,
) -> list[Descriptor]:
    """Read what a TOML file of either kind says, importing nothing.

    Arguments and errors are those of `Ensemble.from_toml`; without `deduplicators` nothing is known of what a program gives,
    and which of them a file names is not looked at.
    """
    reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
    file = reader.file(Path(path))
    return _sound(reader, reader.ensembles(file) if _lists(file) else [reader.ensemble(file)])


def _lists(file: TomlFile) -> bool:
    return "ensembles" in file.data


def _sound(reader: DescriptorReader, descriptors: list[Descriptor]) -> list[Descriptor]:
    if reader.mistakes:
        raise InvalidDescriptor(reader.mistakes)
    return descriptors
