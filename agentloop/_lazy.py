"""Names that a package offers and loads only when they are used (PEP 562)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

_EXPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` for a package from the stub beside it.

    The stub (`__init__.pyi`) is the one list of the names: type checkers read it as it is, and each line
    `from module import name as name` makes the name available at run time.

    Args:
        package: the package's `__name__`.
        file: the package's `__file__`.

    Raises:
        FileNotFoundError: if the stub was left out when the package was bundled.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    homes = {name: module for module, name in _EXPORT.findall(stub)}
    names = sorted(homes)

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: names, names
