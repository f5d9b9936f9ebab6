"""The reference: every public name of agentloop, with its docstring, as one directive per package."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from attrs import frozen
from docutils import nodes
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import agentloop

ROOT = Path(agentloop.__file__).parent


@frozen
class PublicName:
    """A name that a package exports.

    Attributes:
        package: the package that exports it, such as `agentloop.values`.
        name: the name.
        home: the module that defines it.
    """

    package: str
    name: str
    home: str

    @property
    def value(self) -> Any:
        """What it names."""
        return getattr(importlib.import_module(self.package), self.name)

    @property
    def is_data(self) -> bool:
        """Whether it is a type alias or a constant, whose docstring follows its definition."""
        return not inspect.isclass(self.value) and not inspect.isroutine(inspect.unwrap(self.value))

    @property
    def text(self) -> str:
        """Its docstring."""
        if not self.is_data:
            return inspect.getdoc(self.value) or ""
        docs = ModuleAnalyzer.for_module(self.home).find_attr_docs()
        return "\n".join(docs.get(("", self.name), ()))

    @property
    def summary(self) -> str:
        """The first sentence of its docstring, on one line."""
        paragraph = " ".join(self.text.partition("\n\n")[0].split())
        return re.split(r"(?<=[.:])\s", paragraph, maxsplit=1)[0].rstrip(":")


def _exports(stub: Path) -> Iterator[PublicName]:
    package = ".".join(stub.parent.relative_to(ROOT.parent).parts)
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield PublicName(package, alias.name, str(node.module))


@cache
def public_names() -> tuple[PublicName, ...]:
    """Return the exported names of agentloop and its packages, sorted."""
    exported = (name for stub in ROOT.rglob("__init__.pyi") for name in _exports(stub))
    return tuple(sorted(exported, key=lambda name: (name.package, name.name)))


@cache
def owners() -> dict[tuple[str, str], PublicName]:
    """Return, for each definition, the name under which it is described: that of the package nearest to it, not of the facade."""
    chosen: dict[tuple[str, str], PublicName] = {}
    for name in sorted(public_names(), key=lambda name: (name.home.startswith(name.package), len(name.package))):
        chosen[name.home, name.name] = name
    return chosen


def _entry(name: PublicName) -> list[str]:
    path = f"{name.package}.{name.name}"
    if name.is_data:
        body = [f"   {line}" for line in name.text.splitlines()]
        return [f".. py:data:: {path}", "", *body, ""]
    if inspect.isclass(name.value):
        return [f".. autoclass:: {path}", "   :members:", "   :show-inheritance:", ""]
    return [f".. autofunction:: {path}", ""]


class PackageReference(SphinxDirective):
    """Describes the public names of a package: first all in a table, then each one."""

    required_arguments = 1
    has_content = False

    def run(self) -> list[nodes.Node]:
        """Return the table and the descriptions."""
        names = [name for name in public_names() if name.package == self.arguments[0]]
        table = ["| Name | |", "|---|---|"]
        described: list[str] = []
        for name in names:
            owner = owners()[name.home, name.name]
            summary = name.summary.replace("|", "\\|")
            table.append(f"| {{py:obj}}`~{owner.package}.{name.name}` | {summary} |")
            if owner == name:
                described += _entry(name)
        text = "\n".join([*table, "", "`````{eval-rst}", *described, "`````"])
        return self.parse_text_to_nodes(text)
