"""Lazy exports of a package: a name is imported when it is first used (PEP 562)."""

from __future__ import annotations

import sys
from importlib import import_module

# `re`, `pathlib`, `typing` and `collections` take longer to import than all the rest of `import agentloop`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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
    with open(f"{file.rpartition('.')[0]}.pyi", encoding="utf-8") as stub:  # noqa: PTH123  # see above
        modules = dict(_exports(stub))
    names = sorted(modules)

    def get(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # later accesses do not call this function any more
        return value

    return get, lambda: names, names


def _exports(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """Yield each exported name of a stub with its module."""
    for line in lines:
        match line.split():
            case ["from", module, "import", name, "as", alias] if name == alias:
                yield name, module
