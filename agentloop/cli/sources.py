"""Tools from Python files, and from TOML files that describe ensembles."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from difflib import get_close_matches
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from agentloop.cli.errors import import_failure
from agentloop.contracts.tool import Tool, ToolGroup
from agentloop.contracts.tools import Tools
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.tools.ensembles.ensemble import Ensemble, EnsembleBuilder, read_descriptors
from agentloop.tools.ensembles.import_path import ImportPath, suggest_name


def tools_from(places: Iterable[str], allow: Iterable[str] = ()) -> Tools:
    """Load tools from files; a tool that is named twice is taken once.

    Args:
        places: for each, the path of a Python file; with `:name` after it, one tool, an ensemble or a list of tools of
            that name in the file; without, every tool that the file defines. Or the path of a TOML file, with its
            ensembles, or that of the name after it.
        allow: the modules that a TOML file may name.

    Raises:
        ConfigurationError: when a file cannot be read or imported, or something in it is not a tool; when `allow` does not
            list modules.
        ToolDefinitionError: when two tools have the same name.
    """
    modules: dict[Path, ModuleType] = {}
    found: dict[int, Tool | ToolGroup] = {}
    for place in places:
        path, name = _split(place)
        if path.suffix == ".toml":
            found.update({id(ensemble): ensemble for ensemble in _described(path, name, allow)})
            continue
        module = modules.get(path) or modules.setdefault(path, imported_file(path))
        tools = _named(module, name, place) if name else [*_defined(module, path)]
        found.update({id(tool): tool for tool in tools})
    return Tools.of(found.values())


def _described(path: Path, name: str, allow: Iterable[str]) -> list[Ensemble]:
    try:
        with importable(Path.cwd()):
            ensembles = EnsembleBuilder(Ensemble).build_all(read_descriptors(path, allow=allow, deduplicators={}))
    except TypeError as error:
        raise ConfigurationError(str(error)) from error
    if name:
        ensembles = [one for one in ensembles if one.name == name] or _no_ensemble(path, name, ensembles)
    for ensemble in ensembles:
        if ensemble.failure:
            raise ConfigurationError(f"the ensemble {ensemble.name!r} of {path} has failed: {ensemble.failure}")
    return ensembles


def _no_ensemble(path: Path, name: str, ensembles: list[Ensemble]) -> NoReturn:
    raise ConfigurationError(
        f"there is no ensemble {name!r} in {path}{suggest_name(name, [one.name for one in ensembles])}"
    )


def _split(place: str) -> tuple[Path, str]:
    path, _, name = place.rpartition(":")
    if path and name.isidentifier() and not Path(place).exists():
        return Path(path).resolve(), name
    return Path(place).resolve(), ""


def imported_file(path: Path) -> ModuleType:
    """Import a Python file under a name of its own.

    Raises:
        ConfigurationError: when there is no such file, or it cannot be imported; the cause is what it raised.
    """
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}; --tools takes a Python or TOML file, or file.py:name")
    spec = spec_from_file_location(_free_name(path), path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file: its name has to end in .py")
    module = module_from_spec(spec)
    sys.modules[module.__name__] = module
    try:
        with importable(path.parent):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise ConfigurationError(import_failure(path, error)) from error
    return module


def _free_name(path: Path) -> str:
    """Return a name that no module has, so that a file of tools never stands in for a package of the same name."""
    name, number = f"tools_of_{path.stem}", 1
    while name in sys.modules:
        number += 1
        name = f"tools_of_{path.stem}_{number}"
    return name


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Let modules that stand in a folder be imported meanwhile."""
    entry = str(folder)
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)


def _named(module: ModuleType, name: str, place: str) -> list[Tool | ToolGroup]:
    if not hasattr(module, name):
        closest = get_close_matches(name, [known for known in vars(module) if not known.startswith("_")], n=1)
        hint = f", did you mean {closest[0]!r}?" if closest else ""
        raise ConfigurationError(f"there is no {name!r} in {module.__file__}{hint}")
    value: object = getattr(module, name)
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Tool | type):
        return [_tool(one, f"item {number} of {place}") for number, one in enumerate(value, 1)]
    return [_tool(value, place)]


def _tool(value: object, where: str) -> Tool | ToolGroup:
    if isinstance(value, Tool | ToolGroup):
        return value
    if isinstance(value, type) and issubclass(value, Tool):
        raise ConfigurationError(f"{where} is the class {value.__name__}, not a tool; give an instance of it")
    if callable(value):
        name = getattr(value, "__name__", repr(value))
        raise ConfigurationError(f"{where} is the plain function {name}, not a tool; decorate it with @agentloop.tool")
    raise ConfigurationError(f"{where} is of type {type(value).__name__}, not a tool")


def _defined(module: ModuleType, path: Path) -> list[Tool]:
    """Return the tools that the file defines; those that it imports are its building blocks."""
    imported = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    tools = [value for name, value in vars(module).items() if isinstance(value, Tool) and name not in imported]
    if not tools:
        raise ConfigurationError(f"{path} defines no tools; decorate functions in it with @agentloop.tool")
    return tools


def loop_of(path: str) -> AgentLoop:
    """Return the loop that `module:name` or `file.py:name` names; a function without parameters is called for one.

    What the module prints while it is imported goes to stderr.

    Raises:
        ConfigurationError: when there is none, or the module cannot be imported.
    """
    with redirect_stdout(sys.stderr), importable(Path.cwd()):
        module, name = _module(path)
        loops = [known for known, held in vars(module).items() if isinstance(held, AgentLoop)]
        if not hasattr(module, name):
            raise ConfigurationError(f"there is no {name!r} in {module.__file__}{suggest_name(name, loops)}")
        value: object = getattr(module, name)
        if callable(value) and not isinstance(value, type | Tool):
            try:
                value = value()
            except Exception as error:
                raise ConfigurationError(f"{path} made no loop: {type(error).__name__}: {error}") from error
    if not isinstance(value, AgentLoop):
        raise ConfigurationError(
            f"{path} is of type {type(value).__name__}, not an AgentLoop, nor a function that makes one"
        )
    return value


def _module(path: str) -> tuple[ModuleType, str]:
    place, _, name = path.rpartition(":")
    if place.endswith(".py") and name.isidentifier():
        if not Path(place).is_file():
            raise ConfigurationError(f"there is no file {place}; a loop is named as module:loop or file.py:loop")
        return imported_file(Path(place).resolve()), name
    found = ImportPath.parse(path)
    try:
        return import_module(found.module), found.name
    except (Exception, SystemExit) as error:
        raise ConfigurationError(
            f"the module {found.module} cannot be imported: {type(error).__name__}: {error}"
        ) from error
