"""Ensembles: named groups of tools, in Python and from TOML files."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_intercept import CanIntercept
from agentloop.contracts.tool import Tool, ToolGroup, ToolLike
from agentloop.contracts.tools import NO_TOOLS, Tools
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.toolkits.descriptor import Descriptor, DescriptorReader
from agentloop.toolkits.import_path import AllowedModules, ImportFailed, ImportPath, suggest_name
from agentloop.toolkits.lifecycle import Hook, Lifecycle
from agentloop.toolkits.overrides import NO_OVERRIDE, ToolOverride, apply_override, with_defaults
from agentloop.toolkits.source_files import LocatedValue, Mistake, keys_of_json_path, raise_mistakes
from agentloop.toolkits.statements import FileStatements, Trust, TrustLike, place_of
from agentloop.tools.decorator import collect_tools
from agentloop.tools.signature import Signature
from agentloop.tools.validation import SchemaValidator
from agentloop.values.authority import Authority, Statement
from agentloop.values.json import EMPTY_OBJECT, JsonObject, as_frozen_dict, freeze_object
from agentloop.values.policies import Deduplicator, Similarity

NO_GRANTS: Mapping[str, Any] = MappingProxyType({})
"""Nothing that only a program allows."""
NO_DEDUPLICATORS: Mapping[str, Deduplicator | Similarity] = MappingProxyType({})
"""The default of `deduplicators`: files may not name any."""


def _as_tools(tools: Iterable[Tool | Callable[..., Any]]) -> tuple[Tool, ...]:
    return tuple(collect_tools(tools))


@frozen(eq=False)
class Ensemble(ToolGroup):
    """A named group of tools that is configured, enabled and disabled together; pass it to a loop like a tool.

    It is immutable: its methods return changed copies. An ensemble with `start` and `stop` is started by the first
    execution that uses it and stopped by the last; a loop that is entered (`async with loop`) holds it in between. When
    `start` fails, the error is logged, and calls of its tools fail with `ToolUnavailable`; the execution continues.

        shop = Ensemble("shop", [find_order, refund], start=pool.open, stop=pool.close, defaults={"limit": 10})
        loop = AgentLoop.for_model("openai:gpt-5", tools=[shop.without("refund"), add])

    Attributes:
        name: its name.
        tools: all of its tools, disabled ones included; functions become tools as by `@tool`.
        enabled: whether its tools are offered and it is started.
        defaults: values of parameters that a model may leave out, for each tool with a parameter of that name.
        start: called, and awaited where it is async, before the first execution that uses the ensemble.
        stop: called, and awaited where it is async, after the last one.
        description: its purpose, for people.
        overrides: the changes to single tools, by their names.
        policy: values of `ToolPolicy` by name, for each tool whose override does not set them.
        interceptors: interceptors that act in every loop that has the ensemble.
        statements: statements about the ensemble: its module, and the options that decide which things its tools reach.
        failure: why the ensemble of a file has no tools, such as a module that cannot be imported; empty otherwise.

    Raises:
        ConfigurationError: when the name is empty, or an override or a default is for an unknown tool or parameter.
        ToolDefinitionError: when the schema of an override is invalid, or two tools have the same name.
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
    _interceptors: tuple[CanIntercept, ...] = field(
        default=(), converter=tuple[CanIntercept, ...], kw_only=True, repr=False
    )
    statements: tuple[Statement, ...] = field(default=(), converter=tuple[Statement, ...], kw_only=True, repr=False)
    failure: str = field(default="", kw_only=True)
    # Changed copies share the lifecycle with the original: two of them in one program start the ensemble once.
    _lifecycle: Lifecycle = field(factory=Lifecycle, kw_only=True, repr=False)
    _configured: tuple[tuple[Tool, bool], ...] = field(init=False, repr=False)

    @_configured.default
    def _configure_tools(self) -> tuple[tuple[Tool, bool], ...]:
        if not self.name:
            raise ConfigurationError("an ensemble needs a name")
        # An ensemble whose import failed has no tools, so its overrides and defaults cannot be checked.
        if not self.failure:
            self._check_overrides()
            self._check_defaults()
        return tuple([self._configure(tool) for tool in self.tools])

    def _check_overrides(self) -> None:
        names = [tool.name for tool in self.tools]
        unknown = next((name for name in self.overrides if name not in names), None)
        if unknown is not None:
            raise ConfigurationError(
                f"the ensemble {self.name!r} has no tool {unknown!r}{suggest_name(unknown, names)}"
            )

    def _check_defaults(self) -> None:
        used = {name for tool in self.tools for name in self._defaults_for(tool)}
        unused = next((name for name in self.defaults if name not in used), None)
        if unused is not None:
            known = [name for tool in self.tools for name in tool.parameters.get("properties", {})]
            raise ConfigurationError(f"defaults.{unused}: {_no_such_parameter(self.name, unused, known)}")

    def _configure(self, tool: Tool) -> tuple[Tool, bool]:
        """Return the tool with all changes of the ensemble, and whether it is enabled."""
        override = self.overrides.get(tool.name, NO_OVERRIDE)
        defaults = {**self._defaults_for(tool), **override.defaults}
        # Nearer values win: those of the tool over those of the ensemble.
        changes = evolve(override, enabled=True, policy={**self.policy, **override.policy}, defaults=defaults)
        # Without hooks nothing has to be available, and an unchanged tool is offered itself, not a wrapper.
        lifecycle = self._lifecycle if self.start is not None or self.stop is not None else None
        return apply_override(tool, changes, ensemble=self.name, lifecycle=lifecycle), override.enabled

    def _defaults_for(self, tool: Tool) -> dict[str, Any]:
        if not self.defaults:
            return {}
        override = self.overrides.get(tool.name, NO_OVERRIDE)
        schema = tool.parameters if override.schema is None else override.schema
        return {name: value for name, value in self.defaults.items() if name in schema.get("properties", {})}

    @classmethod
    def from_toml(
        cls,
        path: str | PathLike[str],
        *,
        allow: Iterable[str] = (),
        allow_outside: bool = False,
        tools: Tools | Iterable[ToolLike] = NO_TOOLS,
        deduplicators: Mapping[str, Deduplicator | Similarity] = NO_DEDUPLICATORS,
        trust: TrustLike = False,
    ) -> Self:
        """Read the ensemble that a TOML file describes.

        Args:
            path: the file.
            allow: the modules that its import paths may name, each with all modules below it, such as `myapp.tools`. The
                ensembles of this package are always allowed.
            allow_outside: whether a `source` may be outside of the folder of the file that names it.
            tools: the tools of the program. A tool that the file describes without an import path is the tool of this name; tools
                that the file does not name are left out.
            deduplicators: the deduplicators that the key `deduplicator` may name: deduplicators, or functions of two calls.
            trust: whether the statements of the file, and of the files that it names, about tools count as the program's own word,
                and may make tools looser than their code does; or a list of the files to trust.

        Raises:
            InvalidDescriptor: with every mistake in the file, each with its key and its line, such as a statement that would
                make a tool looser. Nothing is imported when an import path is not allowed.
            ToolDefinitionError: when a function in `tools` cannot become a tool, or two tools have the same name.
            TypeError: when `allow` is not a list of modules, `tools` is not a list of tools, or `trust` is neither a bool nor a
                list of files.
        """
        known = collect_tools(tools)
        reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators, known.names)
        descriptor = reader.ensemble(reader.read_file(Path(path)))
        raise_mistakes(reader.mistakes)
        return EnsembleBuilder(cls, Trust.of(trust), tools=known).build_all([descriptor])[0]

    @property
    def offered(self) -> tuple[Tool, ...]:
        """The tools that a model can call; none when the ensemble is disabled."""
        return tuple([tool for tool, enabled in self._configured if enabled]) if self.enabled else ()

    @property
    def all_tools(self) -> tuple[tuple[Tool, bool], ...]:
        """Every tool with the changes of the ensemble, and whether it is offered."""
        return tuple([(tool, enabled and self.enabled) for tool, enabled in self._configured])

    @property
    def withheld(self) -> tuple[str, ...]:
        """The names of the tools that are not offered."""
        return tuple([tool.name for tool, is_offered in self.all_tools if not is_offered])

    @property
    def interceptors(self) -> tuple[CanIntercept, ...]:
        """The interceptors for every loop that has the ensemble; none when it is disabled."""
        return self._interceptors if self.enabled else ()

    def enable(self) -> Self:
        """Return a copy that is enabled."""
        return evolve(self, enabled=True)

    def disable(self) -> Self:
        """Return a copy that offers nothing and is not started."""
        return evolve(self, enabled=False)

    def without(self, *names: str) -> Self:
        """Return a copy that does not offer these tools.

        Raises:
            ConfigurationError: when it has no such tool.
        """
        return self._with_enabled(names, enabled=False)

    def only(self, *names: str) -> Self:
        """Return a copy that offers these tools and no others.

        Raises:
            ConfigurationError: when it has no such tool.
        """
        others = [tool.name for tool in self.tools if tool.name not in names]
        return self._with_enabled(names, enabled=True).without(*others)

    def with_override(self, name: str, override: ToolOverride) -> Self:
        """Return a copy with another override for one tool.

        Raises:
            ConfigurationError: when it has no such tool, or a default does not satisfy the schema.
            ToolDefinitionError: when the schema is invalid, or has parameters that the tool does not have.
        """
        return evolve(self, overrides={**self.overrides, name: override})

    def _with_enabled(self, names: Iterable[str], *, enabled: bool) -> Self:
        changes = {name: evolve(self.overrides.get(name, NO_OVERRIDE), enabled=enabled) for name in names}
        return evolve(self, overrides={**self.overrides, **changes})

    async def hold(self) -> None:
        """Start the ensemble in the running event loop unless it is started; a failure is logged, and its calls report it."""
        if self.enabled:
            await self._lifecycle.hold(self.name, self.start)

    async def release(self) -> None:
        """Stop the ensemble when nothing else holds it."""
        if self.enabled:
            await self._lifecycle.release(self.name, self.stop)

    def diagnose(self) -> str:
        """Return why calls of its tools would fail in the running event loop; empty when they would not.

        Raises:
            RuntimeError: when no event loop is running and the ensemble has `start` or `stop`.
        """
        if self.failure or not self.enabled:
            return self.failure or "it is disabled"
        return self._lifecycle.diagnose() if self.start is not None or self.stop is not None else ""


def load_ensembles(
    path: str | PathLike[str],
    *,
    allow: Iterable[str] = (),
    allow_outside: bool = False,
    tools: Tools | Iterable[ToolLike] = NO_TOOLS,
    deduplicators: Mapping[str, Deduplicator | Similarity] = NO_DEDUPLICATORS,
    trust: TrustLike = False,
) -> tuple[Ensemble, ...]:
    """Read the ensembles that a TOML file lists in tables `[ensembles.NAME]`.

    An ensemble whose modules cannot be imported is logged and offers no tools; its `failure` says why. The others work.

    Arguments and errors are those of `Ensemble.from_toml`.
    """
    known = collect_tools(tools)
    reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators, known.names)
    descriptors = reader.ensembles(reader.read_file(Path(path)))
    raise_mistakes(reader.mistakes)
    return tuple(EnsembleBuilder(Ensemble, Trust.of(trust), tools=known).build_all(descriptors))


def read_descriptors(
    path: str | PathLike[str],
    *,
    allow: Iterable[str] = (),
    allow_outside: bool = False,
    deduplicators: Mapping[str, Deduplicator | Similarity] | None = None,
) -> list[Descriptor]:
    """Read the descriptors of a TOML file of either kind, without importing anything.

    Arguments and errors are those of `Ensemble.from_toml`. Without `deduplicators`, the names of deduplicators in the file
    are not checked.
    """
    reader = DescriptorReader(AllowedModules.of(allow), allow_outside, deduplicators)
    file = reader.read_file(Path(path))
    descriptors = reader.ensembles(file) if "ensembles" in file.data else [reader.ensemble(file)]
    raise_mistakes(reader.mistakes)
    return descriptors


# --- functions that configuration may call ----------------------------------------------------------------------

P = ParamSpec("P")
E_co = TypeVar("E_co", bound=Ensemble, covariant=True)
E = TypeVar("E", bound=Ensemble)


@frozen(eq=False)
class EnsembleFactory(Generic[P, E_co]):
    """A function that returns an ensemble, marked with `@ensemble_factory`; it can still be called like the function.

    A descriptor can name it and pass options to it. Configuration never calls a function without this mark.

    Attributes:
        function: the function.
        in_folder: the parameters that are paths, or lists of paths; a descriptor can only name paths in the folder of its file.
        trusted: the parameters that only code and persons may set.
        takes_files: the parameter for a list of paths, to which the files that describe the ensemble are added; empty for none.
    """

    function: Callable[P, E_co]
    in_folder: tuple[str, ...] = field(default=(), converter=tuple[str, ...], kw_only=True)
    trusted: tuple[str, ...] = field(default=(), converter=tuple[str, ...], kw_only=True)
    takes_files: str = field(default="", kw_only=True)

    def __attrs_post_init__(self) -> None:
        known, special = inspect.signature(self.function).parameters, [*self.in_folder, *self.trusted]
        special += [self.takes_files] if self.takes_files else []
        unknown = next((name for name in special if name not in known), None)
        if unknown is not None:
            raise ToolDefinitionError(f"{self._name} has no parameter {unknown!r}{suggest_name(unknown, list(known))}")

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> E_co:
        """Call the function."""
        ensemble = self.function(*args, **kwargs)
        given = inspect.signature(self.function).bind(*args, **kwargs).arguments
        said = [
            Statement(name, given[name], Authority.CODE) for name in (*self.in_folder, *self.trusted) if name in given
        ]
        return evolve(ensemble, statements=(*ensemble.statements, *said)) if said else ensemble

    @cached_property
    def _signature(self) -> Signature:
        return Signature.of(self.function)

    def problems(self, options: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the problems of options, as pairs of an option's JSON path and a message.

        Raises:
            ToolDefinitionError: when a parameter of the function has no JSON form.
        """
        _, schema = self._signature.definition
        return SchemaValidator(schema, "the options").problems(options)

    def create(
        self, options: Mapping[str, Any], files: Iterable[Path] = (), grants: Mapping[str, Any] = NO_GRANTS
    ) -> Ensemble:
        """Call the function with options that have no problems.

        Args:
            options: the options.
            files: the files that describe the ensemble.
            grants: values of `trusted` parameters, of which the function gets those that it has and that no option sets.

        Raises:
            Exception: any error of the function.
        """
        # The options have been validated against the schema of the function.
        function = cast("Callable[..., Ensemble]", self.function)
        granted = {name: grants[name] for name in self.trusted if name in grants and name not in options}
        arguments = {**self._signature.prepare(dict(options)), **granted}
        if self.takes_files:
            arguments[self.takes_files] = [*(arguments.get(self.takes_files) or ()), *map(str, files)]
        return function(**arguments)


@overload
def ensemble_factory(function: Callable[P, E_co], /) -> EnsembleFactory[P, E_co]: ...


@overload
def ensemble_factory(
    *, in_folder: Iterable[str] = (), trusted: Iterable[str] = (), takes_files: str = ""
) -> Callable[[Callable[P, E_co]], EnsembleFactory[P, E_co]]: ...


def ensemble_factory(
    function: Callable[..., Any] | None = None,
    /,
    *,
    in_folder: Iterable[str] = (),
    trusted: Iterable[str] = (),
    takes_files: str = "",
) -> Any:
    """Mark a function that returns an ensemble, so that descriptors may name it and pass options to it.

        @ensemble_factory
        def warehouse(city: str) -> Ensemble:
            \"\"\"Tools of the warehouse in a city.\"\"\"
            return Ensemble("warehouse", tools_of(city))

    A descriptor may come from a stranger, so the function says which options such a file may not choose freely:

        @ensemble_factory(in_folder=["root"], trusted=["allow_private"])

    Args:
        function: a typed function whose parameters have a JSON form.
        in_folder: the parameters that are paths, or lists of paths. A descriptor can only name paths in the folder of its file or
            below, unless a program or a person trusts the file.
        trusted: the parameters that a descriptor may set only if a program or a person trusts its file.
        takes_files: the parameter for a list of paths, to which the files that describe the ensemble are added.

    Raises:
        ToolDefinitionError: the function has no such parameter.
    """
    make: Callable[[Callable[..., Any]], object] = partial(
        EnsembleFactory, in_folder=tuple(in_folder), trusted=tuple(trusted), takes_files=takes_files
    )
    return make if function is None else make(function)


# --- building ensembles from descriptors ------------------------------------------------------------------------

_LOG = logging.getLogger("agentloop.tools.ensembles")
_HINT = (
    "; tools are made by @tool, ensembles by Ensemble, and functions that return ensembles are marked with "
    "@ensemble_factory"
)


@define
class EnsembleBuilder(Generic[E]):
    """Builds ensembles from descriptors, and collects the mistakes that show only when the tools are imported.

    Attributes:
        kind: the class of the ensembles.
        trust: the files whose statements count as the word of a program or a person.
        grants: values of `trusted` parameters that a program, or a person at the command line, sets for all ensembles.
        tools: the tools of the program, which descriptors name without an import path.
        mistakes: the mistakes found so far.
    """

    kind: type[E]
    trust: Trust = field(factory=Trust)
    grants: Mapping[str, Any] = NO_GRANTS
    tools: Tools = NO_TOOLS
    mistakes: list[Mistake] = field(factory=list)
    _files: FileStatements = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._files = FileStatements(self.trust, self.mistakes)

    def build_all(self, descriptors: Sequence[Descriptor]) -> list[E]:
        """Build the ensembles.

        Raises:
            InvalidDescriptor: with all mistakes.
        """
        ensembles = [self.build(descriptor) for descriptor in descriptors]
        raise_mistakes(self.mistakes)
        return ensembles

    def build(self, descriptor: Descriptor) -> E:
        """Build one ensemble. A disabled one is not imported.

        Returns:
            The ensemble; without tools when it is disabled or has mistakes, and with a `failure` when its modules cannot be
            imported.
        """
        empty = self.kind(descriptor.name, (), descriptor.enabled, description=descriptor.value("description", ""))
        if not descriptor.enabled:
            return empty
        count = len(self.mistakes)
        try:
            ensemble = self._assemble(descriptor, empty)
        except ImportFailed as error:
            # The traceback of the cause leads to the line of the module that failed.
            _LOG.error("the ensemble %s has failed: %s", descriptor.name, error, exc_info=error.__cause__)
            return evolve(empty, failure=str(error))
        except (ConfigurationError, ToolDefinitionError, TypeError) as error:
            if len(self.mistakes) == count:
                self.mistakes.append(descriptor.place.mistake(str(error)))
            return empty
        return empty if len(self.mistakes) > count else ensemble

    def _assemble(self, descriptor: Descriptor, empty: E) -> E:
        count = len(self.mistakes)
        base = self._base(descriptor, empty)
        if len(self.mistakes) > count:
            return empty
        tools = list(base.tools)
        names = [tool.name for tool in base.tools]
        for name, entry in descriptor.tools.items():
            use, known = entry.values.get("use"), self.tools.get(name)
            if use is not None and entry.enabled:
                tools.extend(self._import_tool(name, use))
            elif use is None and name not in names and known is not None:
                tools.extend([known] if entry.enabled else [])
            elif use is None and name not in names:
                # Without `use`, the table changes a tool of the ensemble, which has to exist.
                message = f"the ensemble {descriptor.name!r} has no tool {name!r}{suggest_name(name, names)}"
                self.mistakes.append(entry.place.mistake(message))
        # Each stage needs the result of the one before it; its mistakes would only follow from earlier ones.
        if len(self.mistakes) > count:
            return empty
        overrides = {**base.overrides, **self._overrides(descriptor, base, Tools.of(tools))}
        what = f"the ensemble {descriptor.name!r}"
        enabled = self._files.is_enabled(descriptor.values.get("enabled"), by_code=base.enabled, what=what)
        defaults = {**base.defaults, **self._ensemble_defaults(descriptor, tools)}
        if len(self.mistakes) > count:
            return empty
        return evolve(
            base,
            name=descriptor.name,
            tools=tools,
            enabled=enabled,
            defaults=defaults,
            overrides=overrides,
            policy={**base.policy, **descriptor.policy},
            description=descriptor.value("description", base.description),
            statements=(*base.statements, *self._modules(descriptor)),
        )

    def _modules(self, descriptor: Descriptor) -> Iterator[Statement]:
        """Yield a statement about each module that a descriptor names, by the speaker that has allowed the module."""
        uses = [entry.values["use"] for entry in (descriptor, *descriptor.tools.values()) if "use" in entry.values]
        for module, use in {ImportPath.parse(use.value).module: use for use in uses}.items():
            by = Authority.CODE if AllowedModules.of(()).has(module) else self.trust.by
            yield Statement("module", module, by, place_of(use))

    def _base(self, descriptor: Descriptor, empty: E) -> E:
        """Return the ensemble that `use` names, or one with the tools that it names."""
        use, options = descriptor.values.get("use"), descriptor.values.get("options")
        target = None if use is None else self._import(use)
        if use is not None and isinstance(target, EnsembleFactory):
            target = self._create(target, use, options, descriptor.files)
        elif options is not None:
            self.mistakes.append(
                options.mistake("only a function marked with @ensemble_factory, named by use, takes options")
            )
        if use is None or target is None:
            return empty
        if isinstance(target, self.kind):
            return target
        tools = [target] if isinstance(target, Tool) else target
        if isinstance(tools, list | tuple | Tools) and all(isinstance(tool, Tool) for tool in tools):
            return evolve(empty, tools=tuple(tools))
        kind = type(target).__name__
        self.mistakes.append(use.mistake(f"{use.value} is a {kind}, not an ensemble, a tool or a list of tools{_HINT}"))
        return empty

    def _create(
        self,
        factory: EnsembleFactory[..., Ensemble],
        use: LocatedValue,
        options: LocatedValue | None,
        files: Collection[Path],
    ) -> object | None:
        values = {} if options is None else options.value
        place = evolve(use, value={}) if options is None else options
        count = len(self.mistakes)
        problems = factory.problems(values)
        for path, message in problems:
            self.mistakes.append(place.mistake(message, *keys_of_json_path(path)))
        said = [] if problems else list(self._files.check_options(place, factory.in_folder, factory.trusted))
        granted = [name for name in factory.trusted if self.grants.get(name) and name not in values]
        said += [Statement(name, self.grants[name], self.trust.by) for name in granted]
        if len(self.mistakes) > count:
            return None
        try:
            created = factory.create(values, files, self.grants)
        except (ConfigurationError, ToolDefinitionError, TypeError, ValueError) as error:
            self.mistakes.append(place.mistake(str(error)))
            return None
        except Exception as error:
            # A factory may do anything, such as connect to a server; its failure is one of the ensemble, not of the
            # file.
            raise ImportFailed(f"{use.value} failed: {type(error).__name__}: {error}") from error
        return evolve(created, statements=(*created.statements, *said)) if said else created

    def _import_tool(self, name: str, use: LocatedValue) -> list[Tool]:
        target = self._import(use)
        if isinstance(target, Tool):
            return [apply_override(target, ToolOverride(name=name)) if target.name != name else target]
        if target is not None:
            self.mistakes.append(use.mistake(f"{use.value} is a {type(target).__name__}, not a tool{_HINT}"))
        return []

    def _import(self, use: LocatedValue) -> object | None:
        try:
            return ImportPath.parse(use.value).resolve()
        except ImportFailed:
            raise
        except ConfigurationError as error:
            self.mistakes.append(use.mistake(str(error)))
            return None

    def _overrides(self, descriptor: Descriptor, base: E, tools: Tools) -> dict[str, ToolOverride]:
        """Return the changes to the tools: the changes of code, with the changes of the files on top."""
        coded = {tool.name: done for tool, (done, _) in zip(base.tools, base.all_tools, strict=True)}
        overrides = {}
        for tool in tools:
            entry = descriptor.tools.get(tool.name)
            by_code = base.overrides.get(tool.name, NO_OVERRIDE)
            override = self._files.override(descriptor, entry, by_code, coded.get(tool.name, tool))
            if entry is not None:
                override = self._described(entry, override, tool, coded.get(tool.name, tool))
            if override is not by_code:
                overrides[tool.name] = override
        return overrides

    def _described(self, entry: Descriptor, override: ToolOverride, tool: Tool, coded: Tool) -> ToolOverride:
        """Return an override with the description, schema and defaults in the table of a tool, and whether it is enabled."""
        enabled = self._files.is_enabled(
            entry.values.get("enabled"), by_code=override.enabled, what=f"the tool {tool.name!r}"
        )
        schema = entry.values.get("schema")
        if schema is not None:
            within = None if self._files.replaces_schema(schema) else coded.spec
            override = evolve(override, schema=schema.value, within=within)
        defaults = {**override.defaults, **self._tool_defaults(entry, tool, override)}
        description = entry.value("description", override.description)
        return evolve(override, enabled=enabled, description=description, defaults=defaults)

    def _tool_defaults(self, entry: Descriptor, tool: Tool, override: ToolOverride) -> dict[str, Any]:
        schema = entry.values.get("schema")
        if schema is not None:
            try:
                apply_override(tool, override)
            except ToolDefinitionError as error:
                self.mistakes.append(schema.mistake(str(error)))
                return {}
        parameters = tool.spec.parameters if override.schema is None else override.schema
        defaults = entry.values.get("defaults")
        if defaults is None:
            return {}
        for key, value in defaults.value.items():
            self._check_default(defaults, key, value, parameters, tool.name)
        return dict(defaults.value)

    def _ensemble_defaults(self, descriptor: Descriptor, tools: Sequence[Tool]) -> dict[str, Any]:
        defaults = descriptor.values.get("defaults")
        if defaults is None:
            return {}
        for key, value in defaults.value.items():
            matching = [tool for tool in tools if key in tool.spec.parameters.get("properties", {})]
            if not matching:
                known = [name for tool in tools for name in tool.spec.parameters.get("properties", {})]
                self.mistakes.append(defaults.mistake(_no_such_parameter(descriptor.name, key, known), key))
            for tool in matching:
                if not self._check_default(defaults, key, value, tool.spec.parameters, tool.name):
                    break  # one message per default is enough
        return dict(defaults.value)

    def _check_default(
        self, defaults: LocatedValue, key: str, value: object, parameters: JsonObject, tool: str
    ) -> bool:
        """Return whether a default satisfies the schema of its parameter; note the mistake when it does not."""
        try:
            with_defaults(parameters, freeze_object({key: value}), f"the tool {tool!r}")
        except ConfigurationError as error:
            self.mistakes.append(defaults.mistake(str(error).removeprefix(f"defaults.{key}: "), key))
            return False
        return True


def _no_such_parameter(ensemble: str, name: str, known: Sequence[str]) -> str:
    return f"no tool of the ensemble {ensemble!r} has such a parameter{suggest_name(name, known)}"
