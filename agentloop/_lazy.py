"""Lazy exports of a package: a name is imported when it is first used (PEP 562)."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

_EXPORT = re.compile(r"^from (\S+) import (\w+) as \2$", re.MULTILINE)


def attach_stub(package: str, file: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Create `__getattr__`, `__dir__` and `__all__` of a package from its stub.

    The stub (`__init__.pyi`) is the only list of the names: type checkers read it, and each line
    `from module import name as name` makes the name available at run time.

    Args:
        package: the `__name__` of the package.
        file: the `__file__` of the package.

    Returns:
        The three attributes, in this order.

    Raises:
        FileNotFoundError: if the stub is missing, for example because a bundler left it out.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {name: module for module, name in _EXPORT.findall(stub)}
    names = sorted(modules)

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # later accesses do not call this function any more
        return value

    return get, lambda: names, names
