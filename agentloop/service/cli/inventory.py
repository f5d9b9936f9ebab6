"""The tools that a file, a module or an MCP server offers, and the problems of their definitions."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click
from attrs import asdict, evolve, field, frozen

from agentloop._event_loops import run_in_event_loop
from agentloop.contracts.tool import Tool
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError, InvalidDescriptor, ToolDefinitionError
from agentloop.mcp.ensemble import McpEnsemble
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.errors import InvalidUsage, locate_failure
from agentloop.service.cli.folder_modules import explain_missing, find_in, name_modules
from agentloop.service.cli.sources import import_file
from agentloop.toolkits.descriptor import Descriptor
from agentloop.toolkits.ensemble import Ensemble, EnsembleBuilder, read_descriptors
from agentloop.toolkits.statements import Trust
from agentloop.tools.check import check_tools, warnings_by_tool
from agentloop.values.authority import Authority
from agentloop.values.json import EMPTY_OBJECT, JsonObject, thaw
from agentloop.values.tool_calls import Egress

NO_TRUST = Trust(Authority.PERSON)
"""A person who trusts no file."""
EVERY_FILE = Trust(Authority.PERSON, None)
"""Trust in the statements of all files, for commands that run no tool."""


@frozen
class ToolRow:
    """One row of the list of tools.

    Attributes:
        name: the name; empty for a disabled ensemble that was not imported.
        ensemble: the name of its ensemble; may be empty.
        description: the description for the model.
        effect: the declared effect; empty when unknown.
        egress: whether data can leave by a call, or the arguments by which it can.
        parameters: the JSON Schema of the parameters.
        enabled: whether the tool is offered to models.
    """

    name: str
    ensemble: str
    description: str
    effect: str
    parameters: JsonObject
    enabled: bool
    egress: Egress = False

    @classmethod
    def of(cls, tool: Tool, ensemble: str = "", *, enabled: bool = True) -> ToolRow:
        """Return the row of a tool."""
        spec = tool.spec
        return cls(tool.name, ensemble, tool.description, tool.effect.value, spec.parameters, enabled, spec.egress)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain JSON data."""
        return {**asdict(self, recurse=False), "parameters": thaw(self.parameters)}


@frozen
class Problem:
    """A problem of a definition.

    Attributes:
        file: the file.
        key: the key in a descriptor, or the name in a module; may be empty.
        line: the line; 0 when unknown.
        message: the description of the problem.
    """

    file: str
    key: str
    line: int
    message: str


@frozen
class Inventory:
    """The tools of a source and the problems of their definitions.

    Attributes:
        rows: the tools.
        problems: the problems.
        valid: the offered tools and tool classes without problems, each with its place (a `Problem` without a message).
    """

    rows: list[ToolRow] = field(factory=list)
    problems: list[Problem] = field(factory=list)
    valid: list[tuple[object, Problem]] = field(factory=list)

    @property
    def warnings(self) -> list[Problem]:
        """Descriptions that make it hard to choose between the tools, each warning once."""
        placed: dict[str, Problem] = {}
        warnings_of_each = warnings_by_tool(tool for tool, _ in self.valid)
        for (_, place), warnings in zip(self.valid, warnings_of_each, strict=True):
            for warning in warnings:
                placed.setdefault(warning, evolve(place, message=warning))
        return list(placed.values())


def inspect_source(source: str, allow: Iterable[str] = (), trust: Trust = NO_TRUST) -> Inventory:
    """Inspect a Python file, a module or a TOML file of descriptors.

    Args:
        source: a path that ends in `.py` or `.toml`, or the dotted name of a module.
        allow: the modules that a TOML file may name.
        trust: the files that a person trusts.

    Raises:
        ConfigurationError: there is no such file or module.
    """
    path = Path(source)
    if path.suffix in {".toml", ".py"} and not path.is_file():
        raise ConfigurationError(f"there is no file {source}")
    allow = tuple(allow)
    name_modules(allow)
    if path.suffix == ".toml":
        return _inspect_toml(path, allow, trust)
    return _inspect_file(path.resolve()) if path.is_file() else _inspect_module(source)


# --- Python ---------------------------------------------------------------------------------------------------------


def _inspect_file(path: Path) -> Inventory:
    try:
        return _inspect_members(import_file(path), str(path))
    except ConfigurationError as error:
        # Without a cause the file itself is missing, which is a usage error and not a problem of a definition.
        if error.__cause__ is None:
            raise
        file, line, description = locate_failure(path, error.__cause__)
        return Inventory(problems=[Problem(str(file), "", line, description)])


def _inspect_module(name: str) -> Inventory:
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigurationError(f"{name!r} is neither an existing file nor the name of a module")
    name_modules([name])
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        # Only a missing part of the name itself is a usage error; a missing import inside the module is its problem.
        if error.name and f"{name}.".startswith(f"{error.name}."):
            hint = explain_missing(error, Path.cwd())
            raise ConfigurationError(f"there is no module {error.name!r} and no file {name}{hint}") from None
        return Inventory(problems=[_import_problem(name, error)])
    except (Exception, SystemExit) as error:  # noqa: BLE001  # any error of the module is a problem of its definition
        return Inventory(problems=[_import_problem(name, error)])
    file = str(getattr(module, "__file__", None) or name)
    hidden = find_in(Path.cwd(), name)
    inventory = _inspect_members(module, file)
    if hidden.endswith(".py") and not inventory.rows and Path(file) != Path.cwd() / hidden:
        raise ConfigurationError(
            f"{file}, which precedes {hidden} in this folder, has no tools; name the file {hidden}"
        )
    return inventory


def _import_problem(name: str, error: BaseException) -> Problem:
    """Return a problem at the innermost line of the module that raised."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ else []
    module_frames = [frame for frame in frames if frame.frame.f_globals.get("__name__") == name]
    file, line = (module_frames[-1].filename, module_frames[-1].lineno) if module_frames else (name, 0)
    return Problem(file, "", line, f"{type(error).__name__}: {error}{explain_missing(error, Path.cwd())}")


def _inspect_members(module: ModuleType, file: str) -> Inventory:
    """Inspect the tools and tool classes that a module defines, and its ensembles."""
    inventory = Inventory()
    for name, value in vars(module).items():
        if isinstance(value, Ensemble):
            _add_ensemble(inventory, value, Problem(file, name, 0, ""))
        elif isinstance(value, Tool):
            # Tools that a module imports belong to another file, where they are checked.
            if _is_defined_in(module, value):
                inventory.rows.append(ToolRow.of(value))
                _check_definition(inventory, value, Problem(file, name, _line_of(value), ""))
        elif isinstance(value, type) and issubclass(value, Tool) and value.__module__ == module.__name__:
            _check_definition(inventory, value, Problem(file, name, _line_of(value), ""))
    return inventory


def _is_defined_in(module: ModuleType, tool: Tool) -> bool:
    """Return whether a tool was defined in a module rather than imported into it."""
    defining_module = getattr(getattr(tool, "function", None), "__module__", module.__name__)
    return defining_module == module.__name__


def _line_of(value: object) -> int:
    try:
        return inspect.getsourcelines(getattr(value, "function", value))[1]  # type: ignore[arg-type]  # raises without a source
    except (OSError, TypeError):
        return 0


# --- TOML -----------------------------------------------------------------------------------------------------------


def _inspect_toml(path: Path, allow: Iterable[str], trust: Trust) -> Inventory:
    inventory, builder = Inventory(), EnsembleBuilder(Ensemble, trust)
    try:
        descriptors = read_descriptors(path, allow=allow)
    except InvalidDescriptor as error:
        return Inventory(problems=[Problem(*mistake) for mistake in error.mistakes])
    built = [(descriptor, builder.build(descriptor)) for descriptor in descriptors]
    for descriptor, ensemble in built:
        # An ensemble is defined in Python, so its problems are placed at the key that names it.
        use = descriptor.values.get("use", descriptor.place)
        file, key, line, _ = use.mistake("")
        _add_ensemble(inventory, ensemble, Problem(file, key, line, ""))
        inventory.rows.extend(_disabled_rows(descriptor, ensemble))
    inventory.problems.extend(Problem(*mistake) for mistake in builder.mistakes)
    # One loop would use all ensembles of a file, so their tool names must differ.
    try:
        Tools.of([ensemble for _, ensemble in built])
    except ToolDefinitionError as error:
        inventory.problems.append(Problem(str(path), "", 0, str(error)))
    return inventory


def _disabled_rows(descriptor: Descriptor, ensemble: Ensemble) -> Iterator[ToolRow]:
    """Yield the disabled tools of a descriptor, which are listed but not imported."""
    imported = {tool.name for tool in ensemble.tools}
    for name, entry in descriptor.tools.items():
        if name not in imported:
            description, effect = entry.value("description", ""), entry.value("effect", "")
            yield ToolRow(name, descriptor.name, description, effect, EMPTY_OBJECT, enabled=False)
    if not ensemble.enabled and not descriptor.tools:
        yield ToolRow("", descriptor.name, ensemble.description, "", EMPTY_OBJECT, enabled=False)


def _add_ensemble(inventory: Inventory, ensemble: Ensemble, place: Problem) -> None:
    if ensemble.failure:
        inventory.problems.append(evolve(place, message=ensemble.failure))
    for tool, enabled in ensemble.all_tools:
        inventory.rows.append(ToolRow.of(tool, ensemble.name, enabled=enabled))
        _check_definition(inventory, tool, place, enabled=enabled)


def _check_definition(inventory: Inventory, subject: object, place: Problem, *, enabled: bool = True) -> None:
    problems = [evolve(place, message=problem) for problem in check_tools([subject])]
    inventory.problems.extend(problems)
    # Vague descriptions matter only where a model sees them; invalid definitions are reported already.
    if enabled and not problems:
        inventory.valid.append((subject, place))


def print_problems(problems: Sequence[Problem], kind: str = "") -> None:
    """Print each problem with its file, line and key to stderr.

    Args:
        problems: the problems.
        kind: a word before the messages, such as `warning`.
    """
    for problem in problems:
        place = f"{problem.file}, line {problem.line}" if problem.line else problem.file
        click.echo(as_one_line(": ".join(filter(None, [place, problem.key, kind, problem.message]))), err=True)


# --- formatting -----------------------------------------------------------------------------------------------------


def format_parameters(schema: Mapping[str, Any]) -> str:
    """Format parameters as `name: type`; optional ones have a question mark after their name."""
    required = schema.get("required", ())
    properties = schema.get("properties", {}).items()
    return ", ".join(f"{name}{'' if name in required else '?'}: {_format_type(entry)}" for name, entry in properties)


def _format_type(schema: Any) -> str:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if isinstance(kind, str):
        return kind
    if isinstance(kind, list | tuple):
        return "|".join(map(str, kind))
    return "enum" if isinstance(schema, Mapping) and "enum" in schema else "any"


# --- MCP servers ----------------------------------------------------------------------------------------------------

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

mcp_option: Callable[[FC], FC] = click.option(
    "--mcp",
    multiple=True,
    type=click.Path(),
    metavar="CONFIG",
    help='A JSON file with "mcpServers" whose tools to add. May be repeated.',
)
"""The option `--mcp`, whose values `load_servers` takes."""


audit_option: Callable[[FC], FC] = click.option(
    "--audit",
    is_flag=True,
    help="Also print how calls are guarded, limited, recorded and repeated, and what is missing.",
)
"""The option `--audit`."""


trust_option: Callable[[FC], FC] = click.option(
    "--trust",
    multiple=True,
    type=click.Path(),
    metavar="FILE",
    help="A file whose word about tools counts as yours: it may make them looser than their code does, and its text does not count "
    "as the text of a stranger. May be repeated.",
)
"""The option `--trust`, whose values `trust_of` takes."""


def trust_of(files: Iterable[str]) -> Trust:
    """Return the files whose statements count as the word of the person at the command line.

    Raises:
        InvalidUsage: there is no such file, or it is code, which needs no trust.
    """
    for file in files:
        if not Path(file).is_file():
            raise InvalidUsage(f"--trust {as_one_line(file)}: there is no such file")
        if file.endswith(".py"):
            raise InvalidUsage(f"--trust {as_one_line(file)}: the word of code counts anyway; omit it")
    return Trust.of(files, Authority.PERSON)


def load_servers(paths: Iterable[str], trust: Trust = NO_TRUST) -> list[McpEnsemble]:
    """Return the servers of configuration files, not started yet.

    Args:
        paths: the files.
        trust: the files that a person trusts.

    Raises:
        ConfigurationError: a file cannot be read, or has mistakes.
    """
    return [server for path in paths for server in _servers_of(path, trust)]


def inspect_servers(paths: Iterable[str], trust: Trust = NO_TRUST) -> Inventory:
    """Start the servers of configuration files, or connect to them, and list their tools.

    Args:
        paths: the files.
        trust: the files that a person trusts.

    Raises:
        ConfigurationError: a file cannot be read, or has mistakes.
    """
    # One that does not start is a problem of the inventory, beside the tools of the others.
    servers = [(path, evolve(server, required=False)) for path in paths for server in _servers_of(path, trust)]
    return run_in_event_loop(_inspect_running(servers))


def _servers_of(path: str, trust: Trust) -> list[McpEnsemble]:
    try:
        return McpEnsemble.from_config(path, trust=trust)
    except OSError as error:
        raise ConfigurationError(f"--mcp {path} cannot be read: {error.strerror or error}") from error


async def _inspect_running(servers: list[tuple[str, McpEnsemble]]) -> Inventory:
    inventory = Inventory()
    async with AsyncExitStack() as stack:
        for _, server in servers:
            # `hold` only begins to start a server; all of them start while `discover` waits.
            await server.hold()
            stack.push_async_callback(server.release)
        await asyncio.gather(*[server.discover() for _, server in servers])
        for path, server in servers:
            problem = server.diagnose()
            if problem:
                inventory.problems.append(Problem(path, f"mcpServers.{server.name}", 0, problem))
            inventory.rows.extend(ToolRow.of(tool, server.name) for tool in server.offered)
    return inventory
