"""What a file or module offers as tools, and what is wrong with it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from attrs import asdict, evolve, field, frozen

from agentloop.cli.errors import failure_place
from agentloop.cli.sources import importable, imported_file
from agentloop.contracts.tool import Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, InvalidDescriptor, ToolDefinitionError
from agentloop.mcp.ensemble import McpEnsemble
from agentloop.tools.check import check_tools, warnings_by_tool
from agentloop.tools.ensembles.descriptor import Descriptor
from agentloop.tools.ensembles.ensemble import Ensemble, EnsembleBuilder, read_descriptors
from agentloop.values.json import EMPTY_OBJECT, JsonObject, thaw


@frozen
class Row:
    """A tool.

    Attributes:
        name: its name; empty for an ensemble that is switched off and was not imported.
        ensemble: the ensemble that it belongs to; may be empty.
        description: what a model is told.
        effect: what calling it does to the world; empty where that is not known.
        parameters: the JSON Schema of its parameters.
        enabled: whether it is offered.
    """

    name: str
    ensemble: str
    description: str
    effect: str
    parameters: JsonObject
    enabled: bool

    @classmethod
    def of(cls, tool: Tool, ensemble: str = "", *, enabled: bool = True) -> Row:
        """Describe a tool."""
        return cls(tool.name, ensemble, tool.description, tool.effect.value, tool.spec.parameters, enabled)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain JSON data."""
        return {**asdict(self, recurse=False), "parameters": thaw(self.parameters)}


@frozen
class Problem:
    """Something that is wrong with a definition.

    Attributes:
        file: where.
        key: the key in a descriptor, or the name in a module; may be empty.
        line: the line, 0 where it is not known.
        message: what is wrong.
    """

    file: str
    key: str
    line: int
    message: str


@frozen
class Inventory:
    """What was found.

    Attributes:
        rows: the tools.
        problems: what is wrong.
        sound: the tools and tool classes that are offered and in which nothing is wrong, with their places.
    """

    rows: list[Row] = field(factory=list)
    problems: list[Problem] = field(factory=list)
    sound: list[tuple[object, Problem]] = field(factory=list)

    @property
    def warnings(self) -> list[Problem]:
        """What makes the tools hard to choose by their descriptions, each thing once."""
        told: dict[str, Problem] = {}
        found = warnings_by_tool(tool for tool, _ in self.sound)
        for (_, place), warnings in zip(self.sound, found, strict=True):
            for warning in warnings:
                told.setdefault(warning, evolve(place, message=warning))
        return list(told.values())


def inventory(place: str, allow: Iterable[str] = ()) -> Inventory:
    """Look at a Python file, a module or a TOML file of descriptors.

    Args:
        place: a path that ends in `.py` or `.toml`, or the dotted name of a module.
        allow: the modules that a TOML file may name.

    Raises:
        ConfigurationError: when there is no such file or module.
    """
    path = Path(place)
    if path.suffix in {".toml", ".py"} and not path.is_file():
        raise ConfigurationError(f"there is no file {place}")
    with importable(Path.cwd()):
        if path.suffix == ".toml":
            return _of_toml(path, allow)
        if path.is_file():
            return _of_file(path.resolve())
        return _of_module(place)


def _of_file(path: Path) -> Inventory:
    try:
        return _members(imported_file(path), str(path))
    except ConfigurationError as error:
        if error.__cause__ is None:
            raise
        where, line, told = failure_place(path, error.__cause__)
        return Inventory(problems=[Problem(str(where), "", line, told)])


def _of_module(name: str) -> Inventory:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"{name!r} is neither a file that is there nor the name of a module")
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"there is no module {error.name!r} and no file {name}") from None
        return Inventory(problems=[_import_problem(name, error)])
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a module raises is what is wrong with it
        return Inventory(problems=[_import_problem(name, error)])
    return _members(module, str(getattr(module, "__file__", None) or name))


def _import_problem(name: str, error: BaseException) -> Problem:
    """Tell the innermost line of the module's own that raised."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    own = [frame for frame in frames if frame.frame.f_globals.get("__name__") == name]
    file, line = (own[-1].filename, own[-1].lineno) if own else (name, 0)
    return Problem(file, "", line, f"{type(error).__name__}: {error}")


def _members(module: ModuleType, file: str) -> Inventory:
    """Look at the tools, tool classes and ensembles that a module defines or holds."""
    found = Inventory()
    for name, value in vars(module).items():
        if isinstance(value, Ensemble):
            _add_ensemble(found, value, Problem(file, name, 0, ""))
        elif isinstance(value, Tool):
            if _is_from(module, value):
                found.rows.append(Row.of(value))
                _add_problems(found, value, Problem(file, name, _line(value), ""))
        elif isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module.__name__:
            _add_problems(found, value, Problem(file, name, _line(value), ""))
    return found


def _is_from(module: ModuleType, tool: Tool) -> bool:
    """Say whether a tool was made in a module and not imported into it."""
    made_in = getattr(getattr(tool, "function", None), "__module__", module.__name__)
    return made_in == module.__name__


def _line(value: object) -> int:
    try:
        return inspect.getsourcelines(getattr(value, "function", value))[1]  # type: ignore[arg-type]  # what has no source raises
    except (OSError, TypeError):
        return 0


def _of_toml(path: Path, allow: Iterable[str]) -> Inventory:
    found, builder = Inventory(), EnsembleBuilder(Ensemble)
    try:
        descriptors = read_descriptors(path, allow=allow)
    except InvalidDescriptor as error:
        return Inventory(problems=[Problem(*mistake) for mistake in error.mistakes])
    made = [(descriptor, builder.build(descriptor)) for descriptor in descriptors]
    for descriptor, ensemble in made:
        use = descriptor.values.get("use", descriptor.place)
        file, key, line, _ = use.mistake("")
        _add_ensemble(found, ensemble, Problem(file, key, line, ""))
        found.rows.extend(_not_imported(descriptor, ensemble))
    found.problems.extend(Problem(*mistake) for mistake in builder.mistakes)
    try:
        Tools.of([ensemble for _, ensemble in made])
    except ToolDefinitionError as error:
        found.problems.append(Problem(str(path), "", 0, str(error)))
    return found


def _not_imported(descriptor: Descriptor, ensemble: Ensemble) -> Iterator[Row]:
    """Yield what is switched off and was not looked at."""
    known = {tool.name for tool in ensemble.tools}
    for name, entry in descriptor.tools.items():
        if name not in known:
            told = entry.value("description", "")
            yield Row(name, descriptor.name, told, entry.value("effect", ""), EMPTY_OBJECT, enabled=False)
    if not ensemble.enabled and not descriptor.tools:
        yield Row("", descriptor.name, ensemble.description, "", EMPTY_OBJECT, enabled=False)


def _add_ensemble(found: Inventory, ensemble: Ensemble, place: Problem) -> None:
    if ensemble.failure:
        found.problems.append(Problem(place.file, place.key, place.line, ensemble.failure))
    for tool, enabled in ensemble.all_tools:
        found.rows.append(Row.of(tool, ensemble.name, enabled=enabled))
        _add_problems(found, tool, place, enabled=enabled)


def _add_problems(found: Inventory, subject: object, place: Problem, *, enabled: bool = True) -> None:
    problems = [evolve(place, message=told) for told in check_tools([subject])]
    found.problems.extend(problems)
    if enabled and not problems:
        found.sound.append((subject, place))


def parameters_text(schema: Mapping[str, Any]) -> str:
    """Return parameters as a person would list them: those that may be left out have a question mark."""
    required = schema.get("required", ())
    listed = schema.get("properties", {}).items()
    return ", ".join(f"{name}{'' if name in required else '?'}: {_type(one)}" for name, one in listed)


def _type(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list | tuple):
        return "|".join(map(str, kind))
    return "enum" if isinstance(schema, Mapping) and "enum" in schema else "any"


FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

mcp_option: Callable[[FC], FC] = click.option(
    "--mcp",
    multiple=True,
    metavar="CONFIG",
    help='A JSON file with "mcpServers", whose tools are added. May be repeated.',
)
"""`--mcp`, which `servers_from` understands."""


def servers_from(paths: Iterable[str]) -> list[McpEnsemble]:
    """Return the servers that files name.

    Raises:
        ConfigurationError: when a file has mistakes, or cannot be read.
    """
    return [server for path in paths for server in _servers_of(path)]


def mcp_inventory(paths: Iterable[str]) -> Inventory:
    """Start the servers that files name, or connect with them, and look at their tools.

    Raises:
        ConfigurationError: when a file has mistakes, or cannot be read.
    """
    return asyncio.run(_looked_at([(path, server) for path in paths for server in _servers_of(path)]))


def _servers_of(path: str) -> list[McpEnsemble]:
    try:
        return McpEnsemble.from_config(path)
    except OSError as error:
        raise ConfigurationError(f"--mcp {path} cannot be read: {error.strerror or error}") from error


async def _looked_at(servers: list[tuple[str, McpEnsemble]]) -> Inventory:
    found = Inventory()
    async with AsyncExitStack() as stack:
        for _, server in servers:
            await server.hold()
            stack.push_async_callback(server.release)
        await asyncio.gather(*[server.discover() for _, server in servers])
        for path, server in servers:
            problem = server.diagnose()
            if problem:
                found.problems.append(Problem(path, f"mcpServers.{server.name}", 0, problem))
            found.rows.extend(Row.of(tool, server.name) for tool in server.offered)
    return found
