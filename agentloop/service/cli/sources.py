"""Tools from Python files, ensembles from TOML files, and loops from modules."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeGuard, TypeVar

import click

from agentloop.contracts.tool import Tool, ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.cli.errors import describe_import_failure
from agentloop.service.cli.folder_modules import execute_file, explain_missing, find_in, name_modules
from agentloop.toolkits.ensemble import NO_GRANTS, Ensemble, EnsembleBuilder, read_descriptors
from agentloop.toolkits.import_path import ImportPath, suggest_name
from agentloop.toolkits.statements import Trust, TrustLike

T = TypeVar("T")

# --- tools ----------------------------------------------------------------------------------------------------------


def load_tools(
    places: Iterable[str],
    allow: Iterable[str] = (),
    trust: TrustLike = False,  # noqa: FBT002  # or a Trust
    grants: Mapping[str, Any] = NO_GRANTS,
) -> Tools:
    """Load tools from files; a tool that several places name is loaded once.

    Args:
        places: paths of Python files, each with all tools that it defines, or with `:name` for one tool, ensemble or list
            of tools in it; or paths of TOML files, each with all ensembles, or with `:name` for one of them.
        allow: the modules that a TOML file may name.
        trust: the TOML files whose statements count as the word of a person.
        grants: the values that the person sets for `trusted` parameters of the ensembles of TOML files.

    Raises:
        ConfigurationError: a file cannot be read or imported, something in it is not a tool, or `allow` does not list
            modules.
        ToolDefinitionError: two tools have the same name.
    """
    return load_served(places, allow, (), trust, grants)[0]


def load_served(
    places: Iterable[str],
    allow: Iterable[str],
    kinds: tuple[type[T], ...],
    trust: TrustLike = False,  # noqa: FBT002  # or a Trust
    grants: Mapping[str, Any] = NO_GRANTS,
) -> tuple[Tools, list[T]]:
    """Load tools from files, and values of other classes from the Python files among them.

    Args:
        places: as for `load_tools`; a name can also be that of such a value, or of a list with such values.
        allow: the modules that a TOML file may name.
        kinds: the other classes.
        trust: the TOML files whose statements count as the word of a person.
        grants: as for `load_tools`.

    Raises:
        ConfigurationError: as for `load_tools`.
        ToolDefinitionError: two tools have the same name.
    """
    modules: dict[Path, ModuleType] = {}
    loaded: dict[int, Tool | ToolGroup | T] = {}
    allow = tuple(allow)
    name_modules(allow)
    for place in places:
        path, name = _split_place(place)
        if path.suffix == ".toml":
            found = _load_ensembles(path, name, allow, Trust.of(trust), grants)
            loaded.update({id(ensemble): ensemble for ensemble in found})
            continue
        # A file is imported once, so that its tools are the same objects whichever place names them.
        module = modules.get(path) or modules.setdefault(path, import_file(path))
        values = _named_values(module, name, place, kinds) if name else _defined_values(module, path, kinds)
        loaded.update({id(value): value for value in values})
    tools = [value for value in loaded.values() if isinstance(value, Tool | ToolGroup)]
    return Tools.of(tools), [value for value in loaded.values() if isinstance(value, kinds)]


def _split_place(place: str) -> tuple[Path, str]:
    if not place:
        raise ConfigurationError("the name of a file of tools is empty; write --tools FILE, or FILE:NAME")
    path, _, name = place.rpartition(":")
    # A colon may be part of a file name, and separates the drive on Windows.
    has_name = bool(path) and name.isidentifier() and not Path(place).exists()
    file = path if has_name else place
    try:
        return Path(file).resolve(), name if has_name else ""
    # A link that leads to itself is a RuntimeError up to Python 3.12.
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is a link that leads to itself"
        raise ConfigurationError(f"{file} cannot be read: {reason}") from error


def file_of(place: str) -> Path:
    """Return the file that a place names.

    Raises:
        ConfigurationError: the place is empty, or its file cannot be read.
    """
    return _split_place(place)[0]


def _load_ensembles(
    path: Path, name: str, allow: Iterable[str], trust: Trust, grants: Mapping[str, Any]
) -> list[Ensemble]:
    try:
        descriptors = read_descriptors(path, allow=allow, deduplicators={})
        ensembles = EnsembleBuilder(Ensemble, trust, grants).build_all(descriptors)
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
    if name:
        ensembles = [ensemble for ensemble in ensembles if ensemble.name == name] or _raise_unknown_ensemble(
            path, name, ensembles
        )
    for ensemble in ensembles:
        if ensemble.failure:
            raise ConfigurationError(f"the ensemble {ensemble.name!r} of {path} has failed: {ensemble.failure}")
    return ensembles


def _raise_unknown_ensemble(path: Path, name: str, ensembles: list[Ensemble]) -> NoReturn:
    names = [ensemble.name for ensemble in ensembles]
    raise ConfigurationError(f"there is no ensemble {name!r} in {path}{suggest_name(name, names)}")


def _named_values(module: ModuleType, name: str, place: str, kinds: tuple[type[T], ...]) -> list[Tool | ToolGroup | T]:
    if not hasattr(module, name):
        public_names = [attribute for attribute in vars(module) if not attribute.startswith("_")]
        suggestions = get_close_matches(name, public_names, n=1)
        hint = f"; did you mean {suggestions[0]!r}?" if suggestions else ""
        raise ConfigurationError(f"there is no {name!r} in {module.__file__}{hint}")
    value: object = getattr(module, name)
    # A tool may be iterable itself.
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Tool | type):
        return [_check_value(item, f"item {number} of {place}", kinds) for number, item in enumerate(value, 1)]
    return [_check_value(value, place, kinds)]


def _check_value(value: object, place: str, kinds: tuple[type[T], ...]) -> Tool | ToolGroup | T:
    if _is_served(value, kinds):
        return value
    if isinstance(value, type):
        raise ConfigurationError(f"{place} is the class {value.__name__}, not a tool; name an instance of it")
    if callable(value):
        name = getattr(value, "__name__", repr(value))
        raise ConfigurationError(f"{place} is the plain function {name}, not a tool; decorate it with @agentloop.tool")
    raise ConfigurationError(f"{place} is of type {type(value).__name__}, not a tool")


def _is_served(value: object, kinds: tuple[type[T], ...]) -> TypeGuard[Tool | ToolGroup | T]:
    return isinstance(value, (Tool, ToolGroup, *kinds))


def _defined_values(module: ModuleType, path: Path, kinds: tuple[type[T], ...]) -> list[Tool | ToolGroup | T]:
    """Return the tools and other values that the file defines, without those that it imports."""
    # A tool object does not record the file that imported it, so the imports are read from the source.
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    values: list[Tool | ToolGroup | T] = [
        value
        for name, value in vars(module).items()
        if _is_served(value, kinds) and not isinstance(value, ToolGroup) and name not in imported
    ]
    if not values:
        raise ConfigurationError(f"{path} defines no tools; decorate functions in it with @agentloop.tool")
    return values


# --- loops ----------------------------------------------------------------------------------------------------------


def names_loop(place: str) -> bool:
    """Return whether a place is the path of a loop, `module:name` or `file.py:name`, and not that of a file."""
    module, _, name = place.rpartition(":")
    return bool(module) and name.isidentifier() and not Path(place).exists()


def load_loop(path: str) -> AgentLoop:
    """Return the loop that `module:name` or `file.py:name` names, or the one that a function of this name returns.

    What the module prints while it is imported goes to stderr.

    Raises:
        ConfigurationError: there is no such loop, or the module cannot be imported.
    """
    with redirect_stdout(sys.stderr):
        module, name = _import_module_of(path)
        loops = [attribute for attribute, value in vars(module).items() if isinstance(value, AgentLoop)]
        if not hasattr(module, name):
            hint = suggest_name(name, loops) or _hint_at_hidden_file(module, name)
            raise ConfigurationError(f"there is no {name!r} in {getattr(module, '__file__', module)}{hint}")
        value: object = getattr(module, name)
        # A class is callable too, but naming one is a mistake.
        if callable(value) and not isinstance(value, type | Tool):
            try:
                value = value()
            except Exception as error:
                raise ConfigurationError(f"{path} did not return a loop: {type(error).__name__}: {error}") from error
    if not isinstance(value, AgentLoop):
        raise ConfigurationError(
            f"{path} is of type {type(value).__name__}, not an AgentLoop or a function that returns one"
        )
    return value


def load_named(path: str, kind: type[T], *, name: str, what: str) -> T:
    """Return the value of a class that `module:name` or `file.py:name` names, or that a function of this name returns.

    What the module prints while it is imported goes to stderr.

    Args:
        path: the path; without a name, `name` is meant.
        kind: the class.
        name: the usual name of such a value.
        what: what it is, for messages, such as `a suite`.

    Raises:
        ConfigurationError: there is none, or the module cannot be imported.
    """
    place, separator, given = path.rpartition(":")
    if not separator or not given.isidentifier():
        path, place, given = f"{path}:{name}", path, name
    with redirect_stdout(sys.stderr):
        module, _ = _import_module_of(path)
        known = [attribute for attribute, value in vars(module).items() if isinstance(value, kind)]
        value: object = getattr(module, given, None)
        if value is None:
            named = f"; it has {', '.join(known)}" if known else ""
            raise ConfigurationError(f"there is no {given!r} in {place}{suggest_name(given, known) or named}")
        if callable(value) and not isinstance(value, kind | type):
            try:
                value = value()
            except Exception as error:
                raise ConfigurationError(f"{path} did not return {what}: {type(error).__name__}: {error}") from error
    if not isinstance(value, kind):
        raise ConfigurationError(f"{path} is of type {type(value).__name__}, not {what} or a function that returns one")
    return value


FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)

dependencies_option: Callable[[FC], FC] = click.option(
    "--dependencies",
    metavar="MODULE:NAME",
    help="What tools receive as ToolContext.dependencies: a value, or a function that makes it for each run.",
)
"""The option `--dependencies`, whose value `load_dependencies` takes."""


def load_dependencies(path: str | None) -> Any:
    """Return what `module:name` or `file.py:name` names: a value, or a function that makes dependencies; None for no path.

    Raises:
        ConfigurationError: there is no such name, or the module cannot be imported.
    """
    if path is None:
        return None
    with redirect_stdout(sys.stderr):
        module, name = _import_module_of(path)
    value = getattr(module, name, None)
    if value is None:
        hint = suggest_name(name, list(vars(module))) or _hint_at_hidden_file(module, name)
        raise ConfigurationError(f"--dependencies: there is no {name!r} in {getattr(module, '__file__', module)}{hint}")
    return value


def check_named_here(path: str) -> None:
    """Check the name of a loop that other machines run, as far as the modules of this machine allow.

    Raises:
        ConfigurationError: the module of the name is here, and has no such loop.
    """
    place, separator, _ = path.rpartition(":")
    if not separator:  # workers know it by another name
        return
    try:
        load_loop(path)
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and f"{place}.".startswith(f"{cause.name}."):
            return
        raise


def _import_module_of(path: str) -> tuple[ModuleType, str]:
    place, _, name = path.rpartition(":")
    if place.endswith(".py") and name.isidentifier():
        if not Path(place).is_file():
            raise ConfigurationError(f"there is no file {place}; name a loop as module:loop or file.py:loop")
        return import_file(Path(place).resolve()), name
    parsed = ImportPath.parse(path)
    name_modules([parsed.module])
    try:
        return import_module(parsed.module), parsed.name
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"the module {parsed.module} cannot be imported: {type(error).__name__}: {error}"
            f"{explain_missing(error, Path.cwd())}"
        ) from error


def _hint_at_hidden_file(module: ModuleType, name: str) -> str:
    """Return the end of a message about a module of another place, if the current folder has one of the same name."""
    file = find_in(Path.cwd(), module.__name__)
    is_other = Path(str(getattr(module, "__file__", ""))) != Path.cwd() / file
    return f"; the loop of {file} in this folder is {file}:{name}" if is_other and file.endswith(".py") else ""


# --- files ----------------------------------------------------------------------------------------------------------


def import_file(path: Path) -> ModuleType:
    """Import a Python file under a name that no other module has.

    Raises:
        ConfigurationError: there is no such file, or it cannot be imported; `__cause__` is the error that it raised.
    """
    if not path.is_file():
        missing = f"{path} is not a file" if path.exists() else f"there is no file {path}"
        raise ConfigurationError(f"{missing}; name a Python or TOML file, or file.py:name")
    if path.suffix != ".py":
        raise ConfigurationError(f"{path} is not a Python file: its name must end in .py")
    # Tools and the function that makes their dependencies can be in one file, and have to mean the same classes.
    written = path.resolve(), path.stat().st_mtime_ns
    if (known := _IMPORTED.get(written)) is not None:
        return known
    try:
        module = execute_file(_free_module_name(path), path)
    # A script that calls sys.exit() must not end the command.
    except (Exception, SystemExit) as error:
        raise ConfigurationError(describe_import_failure(path, error)) from error
    _IMPORTED[written] = module
    return module


_IMPORTED: dict[tuple[Path, int], ModuleType] = {}


def _free_module_name(path: Path) -> str:
    """Return an unused module name, so that a file `httpx.py` never replaces the package `httpx`."""
    stem = path.stem.replace(".", "_")  # a dot would make it a part of another module
    name, number = f"tools_of_{stem}", 1
    while name in sys.modules:
        number += 1
        name = f"tools_of_{stem}_{number}"
    return name
