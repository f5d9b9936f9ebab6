"""Import paths in configuration, and what a program lets them name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import import_module

from attrs import frozen

from agentloop.errors import ConfigurationError
from agentloop.tools.ensembles.overrides import closest
from agentloop.values.value import Value

_PATH = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)
_ALWAYS_ALLOWED = "agentloop.tools.ensembles"


class ImportFailed(ConfigurationError):
    """A module that may be imported raised while it was; the cause is what it raised."""


@frozen(eq=False, repr=False)
class ImportPath(Value):
    """A name in a module.

    Attributes:
        module: the module.
        name: the name in it.
    """

    module: str
    name: str

    @classmethod
    def parse(cls, text: str) -> ImportPath:
        """Read `module:name`.

        Raises:
            ConfigurationError: when it is spelled in another way.
        """
        found = _PATH.fullmatch(text)
        if found is None:
            hint = ""
            if "." in text and ":" not in text:
                hint = f"; did you mean {':'.join(text.rsplit('.', 1))!r}?"
            raise ConfigurationError(f"{text!r} is not an import path, which is written 'module:name'{hint}")
        return cls(*found.groups())

    def check(self, allowed: AllowedModules) -> None:
        """Check that the program allows the module; nothing is imported for that.

        Raises:
            ConfigurationError: when it does not.
        """
        if not any(self.module == one or self.module.startswith(f"{one}.") for one in allowed.prefixes):
            raise ConfigurationError(
                f"the module {self.module!r} is not among those that the program allows "
                f"({', '.join(allowed.prefixes)}); if it is to be imported, add it to allow"
            )

    def resolve(self) -> object:
        """Import the module and return what has the name there; check it first.

        Raises:
            ConfigurationError: when there is no such module, or nothing of that name in it.
            ImportFailed: when the module raises.
        """
        try:
            module = import_module(self.module)
        except ModuleNotFoundError as error:
            if error.name and f"{self.module}.".startswith(f"{error.name}."):
                raise ConfigurationError(f"there is no module {error.name!r}") from error
            raise self._failed(error) from error
        except (Exception, SystemExit) as error:
            raise self._failed(error) from error
        try:
            return getattr(module, self.name)
        except AttributeError:
            known = [name for name in dir(module) if not name.startswith("_")]
            raise ConfigurationError(f"there is no {self.name!r} in {self.module}{closest(self.name, known)}") from None

    def _failed(self, error: BaseException) -> ImportFailed:
        return ImportFailed(f"the module {self.module!r} could not be imported: {type(error).__name__}: {error}")


@frozen(eq=False, repr=False)
class AllowedModules(Value):
    """Modules that configuration may name, each with all that is below it.

    Attributes:
        prefixes: the modules; those of the ensembles that come with the package are always among them.
    """

    prefixes: tuple[str, ...]

    @classmethod
    def of(cls, allow: Iterable[str]) -> AllowedModules:
        """Take what the program gives.

        Raises:
            TypeError: when it is one text instead of a list of them, or not made of dotted module names.
        """
        if isinstance(allow, str):
            raise TypeError(f"allow is a list of modules: write allow=[{allow!r}]")
        given: tuple[object, ...] = tuple(allow)
        for one in given:
            if not isinstance(one, str) or not all(part.isidentifier() for part in one.split(".")):
                raise TypeError(f"allow lists modules such as 'myapp.tools', not {one!r}")
        return cls((*map(str, given), _ALWAYS_ALLOWED))
