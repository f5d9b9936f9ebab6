"""Names in configuration: import paths, the modules that a program allows, and suggestions for misspelled names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from attrs import frozen

from agentloop.errors import ConfigurationError
from agentloop.values.value import Value

# ASCII only: a letter of another script that looks the same must not pass for an allowed module.
_PATH = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_ALWAYS_ALLOWED = ("agentloop.toolkits", "agentloop.tools.results")

SHORT_NAMES: Mapping[str, str] = {
    "files": "agentloop.toolkits.files:files",
    "http": "agentloop.toolkits.http:http",
    "memory": "agentloop.toolkits.memory:memory",
    "probability": "agentloop.toolkits.probability:probability",
    "shell": "agentloop.toolkits.shell:shell",
    "skills": "agentloop.toolkits.skills:skills",
    "sqlite": "agentloop.toolkits.sqlite:sqlite",
    "summarization": "agentloop.toolkits.summarization:summarization",
}
"""The ensembles of the package by the names that files use, and their import paths."""
TOOL_SHORT_NAMES: Mapping[str, str] = {"read_result": "agentloop.tools.results:read_result"}
"""The tools of the package by the names that files use, and their import paths."""
NO_SHORT_NAMES: Mapping[str, str] = MappingProxyType({})


class ImportFailed(ConfigurationError):
    """An allowed module raised an error while it was imported; the error is the cause."""


@frozen(eq=False, repr=False)
class ImportPath(Value):
    """A name in a module, written `module:name`.

    Attributes:
        module: the dotted name of the module.
        name: the name in it.
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    @classmethod
    def parse(cls, text: str, short_names: Mapping[str, str] = NO_SHORT_NAMES) -> ImportPath:
        """Parse `module:name`, or a short name.

        Args:
            text: the text.
            short_names: the paths that short names stand for.

        Raises:
            ConfigurationError: when the text has another form.
        """
        match = _PATH.fullmatch(short_names.get(text, text))
        if match is None:
            hint = ""
            if "." in text and ":" not in text:
                hint = f"; did you mean {':'.join(text.rsplit('.', 1))!r}?"
            elif short_names and ":" not in text:
                hint = f", and nothing in the package has this name{suggest_name(text, short_names)}"
            raise ConfigurationError(f"{text!r} is not an import path, which is written 'module:name'{hint}")
        return cls(*match.groups())

    def check(self, allowed: AllowedModules) -> None:
        """Check that the program allows the module. Nothing is imported.

        Raises:
            ConfigurationError: when the module is not allowed.
        """
        if not allowed.has(self.module):
            root = self.module.partition(".")[0]
            places = [f"{place} is in this folder; " for place in (f"{root}.py", root) if Path(place).exists()]
            raise ConfigurationError(
                f"the module {self.module!r} is not among those that the program allows ({', '.join(allowed.prefixes)}); "
                f"{''.join(places[:1])}if it is to be imported, name it with --allow {self.module}, or in a program add it to allow"
            )

    def resolve(self) -> object:
        """Import the module and return the object with the name; `check` it first.

        Raises:
            ConfigurationError: when there is no such module, or no such name in it.
            ImportFailed: when the module raises an error.
        """
        try:
            module = import_module(self.module)
        except ModuleNotFoundError as error:
            # The missing module is either the one of this path or one that it imports; only the first is a wrong path.
            if error.name and f"{self.module}.".startswith(f"{error.name}."):
                raise ConfigurationError(f"there is no module {error.name!r}") from error
            raise self._import_failed(error) from error
        except (Exception, SystemExit) as error:
            # A module that calls sys.exit must not end the program.
            raise self._import_failed(error) from error
        try:
            return getattr(module, self.name)
        except AttributeError:
            known = [name for name in dir(module) if not name.startswith("_")]
            hint = suggest_name(self.name, known)
            raise ConfigurationError(f"there is no {self.name!r} in {self.module}{hint}") from None

    def _import_failed(self, error: BaseException) -> ImportFailed:
        return ImportFailed(f"the module {self.module!r} could not be imported: {type(error).__name__}: {error}")


@frozen(eq=False, repr=False)
class AllowedModules(Value):
    """The modules that configuration may name, each with all modules below it.

    Attributes:
        prefixes: the modules; those of the ensembles and tools of the package are always among them.
    """

    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, allow: Iterable[str]) -> AllowedModules:
        """Check the modules that a program allows.

        Raises:
            TypeError: when `allow` is one text instead of a list, or an item is not a dotted module name.
        """
        if isinstance(allow, str):
            raise TypeError(f"allow is a list of modules: write allow=[{allow!r}]")
        modules: tuple[object, ...] = tuple(allow)
        for module in modules:
            if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
                raise TypeError(f"allow lists modules such as 'myapp.tools', not {module!r}")
        return cls((*map(str, modules), *_ALWAYS_ALLOWED))

    def has(self, module: str) -> bool:
        """Return whether a module is one of them, or below one of them."""
        return any(module == prefix or module.startswith(f"{prefix}.") for prefix in self.prefixes)


def suggest_name(name: str, known: Collection[str]) -> str:
    """Return the end of an error message about an unknown name: the closest known name, or all of them."""
    matches = get_close_matches(name, list(known), n=1, cutoff=0.5)
    if matches:
        return f"; did you mean {matches[0]!r}?"
    return f"; there is {', '.join(map(repr, known))}" if known else ""
