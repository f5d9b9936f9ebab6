"""Modules of folders that are not on the import path: those that a person named, and those that their code imports.

A folder on the import path answers every import, also one that this package or a library tries by itself, such as that of an extra
that is not installed. Then a file in the folder of a stranger runs when a command only reads another one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    SourceFileLoader,
)
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

PACKAGES = frozenset(
    (
        "anyio",
        "attrs",
        "blinker",
        "botocore",
        "cattrs",
        "click",
        "dbos",
        "docstring_parser",
        "genai_prices",
        "google",
        "httpcore",
        "httptools",
        "httpx",
        "httpx2",
        "hypothesis",
        "jsonschema",
        "jsonschema_rs",
        "jsonschema_specifications",
        "lxml",
        "markdown_it",
        "mcp",
        "mcp_types",
        "numpy",
        "opentelemetry",
        "orjson",
        "psycopg",
        "pydantic",
        "pydantic_monty",
        "pytest",
        "referencing",
        "rich",
        "scipy",
        "sqlalchemy",
        "starlette",
        "statsmodels",
        "tenacity",
        "typing_extensions",
        "uvicorn",
        "uvloop",
        "yaml",
    )
)
"""The other packages that this one imports, whether or not they are installed."""
_IMPORT_SYSTEM = frozenset({"importlib", "_frozen_importlib", "_frozen_importlib_external"})
_IMPORTS_FOR_FILES = "agentloop.toolkits.import_path"
"""The module that imports what a file names and the program allows."""


class _SourceLoader(SourceFileLoader):
    """Runs the source that a person can read; a compiled file in `__pycache__` can hold other code."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _SourceFinder(FileFinder):
    """Finds the modules of one folder, and has the folders of its packages searched in the same way."""

    def __init__(self, folder: str) -> None:
        super().__init__(folder, (_SourceLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES))

    def find_spec(self, fullname: str, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = super().find_spec(fullname, target)
        for folder in (spec and spec.submodule_search_locations) or ():
            sys.path_importer_cache[folder] = _SourceFinder(folder)
        return spec


class _FolderModules:
    """Finds modules that nothing before it on `sys.meta_path` has found, so that installed and standard ones always win.

    It answers for the modules that a person named, and for the modules beside their code. For the latter it depends on which code imports:
    a library that looks for the same name does not find them.
    """

    def __init__(self) -> None:
        self._named: dict[str, Path] = {}
        self._homes: dict[str, Path] = {}

    def name(self, modules: Iterable[str]) -> None:
        roots = {module.partition(".")[0] for module in modules} - PACKAGES
        self._named |= dict.fromkeys(roots, Path.cwd())
        self._install()

    def add_home(self, module: str, folder: Path) -> None:
        self._homes[module] = folder
        self._install()

    def _install(self) -> None:
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        # A module below a package is found in the folder of the package. A missing package would be this module for everybody.
        if path is not None or fullname in PACKAGES:
            return None
        folder = self._named.get(fullname) or self._home_of_importer()
        spec = None if folder is None else _SourceFinder(str(folder)).find_spec(fullname)
        if folder is not None and spec is not None:
            self._homes[fullname] = folder
        return spec

    def _home_of_importer(self) -> Path | None:
        """Return the folder of the code that imports, if it is that of a module of a folder."""
        importers = _running_modules()
        importer = next(importers, "")
        # A program that reads a file allows the modules that the file names, as if it imported them.
        if importer == _IMPORTS_FOR_FILES:
            importer = next((name for name in importers if not name.startswith("agentloop.")), "")
        return self._homes.get(importer.partition(".")[0])


def _running_modules() -> Iterator[str]:
    """Return the names of the modules whose functions run, innermost first, without those that import others."""
    names, frame = [], inspect.currentframe()
    while frame is not None:
        names.append(str(frame.f_globals.get("__name__", "")))
        frame = frame.f_back
    return (name for name in names if name != __name__ and name.partition(".")[0] not in _IMPORT_SYSTEM)


_MODULES = _FolderModules()


def name_modules(modules: Iterable[str]) -> None:
    """Let modules be imported from the current folder, because a person named them.

    Args:
        modules: their names, such as `shop.tools`; the modules above and below them can be imported, too.
    """
    _MODULES.name(modules)


def execute_file(name: str, path: Path) -> ModuleType:
    """Execute a Python file as a module, and return that; its code can import the modules beside it.

    Any error of the code is raised, and then there is no such module.

    Args:
        name: the name that the module gets.
        path: the file.
    """
    loader = _SourceLoader(name, str(path))
    spec = spec_from_file_location(name, path, loader=loader)
    assert spec is not None  # noqa: S101  # it has a loader
    _MODULES.add_home(name, path.parent)
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def explain_missing(error: BaseException, folder: Path) -> str:
    """Return the end of a message about a module that was not found, if it is in a folder where it is not looked for.

    Args:
        error: the error of the import.
        folder: the folder of the code that was imported; the other folder is the current one.
    """
    name = str(error.name or "") if isinstance(error, ModuleNotFoundError) else ""
    if name in PACKAGES and (place := find_in(folder, name) or find_in(Path.cwd(), name)):
        return f"; {place} has the name of a package that agentloop uses, and does not stand for it: rename it"
    # Of a name with a dot, the module above was found.
    place = "" if "." in name else find_in(Path.cwd(), name)
    how = f"name it with --allow {name}, or, for a command without this option, put the folder into PYTHONPATH"
    return f"; {place} is in this folder; {how}" if place else ""


def find_in(folder: Path, module: str) -> str:
    """Return the name of the file or folder of a module in a folder, whether or not it can be imported; empty without one."""
    loaders = (SourceFileLoader, SOURCE_SUFFIXES), (ExtensionFileLoader, EXTENSION_SUFFIXES)
    spec = FileFinder(str(folder), *loaders).find_spec(module.partition(".")[0]) if module else None
    if spec is None:
        return ""
    folders = [*(spec.submodule_search_locations or ())]
    return Path(folders[0] if folders else str(spec.origin)).name
