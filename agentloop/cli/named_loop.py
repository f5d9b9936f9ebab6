"""The loop of a person's program, by its name."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType

from agentloop.cli.tool_files import importable, imported_file
from agentloop.contracts.tool import Tool
from agentloop.errors import ConfigurationError
from agentloop.loop.agent_loop import AgentLoop
from agentloop.tools.ensembles.import_path import ImportPath
from agentloop.tools.ensembles.tool_override import closest


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
            raise ConfigurationError(f"there is no {name!r} in {module.__file__}{closest(name, loops)}")
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
