"""Names that a package offers and loads only when they are asked for (PEP 562)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Make `__getattr__`, `__dir__` and `__all__` for a package.

    Args:
        package: the package's `__name__`.
        homes: for each module, the names that stand in it, separated by spaces.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}
    names = sorted(home_of)

    def get(name: str) -> object:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: names, names
