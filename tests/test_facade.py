"""The facades of the packages: exported names, lazy loading, and what an import loads."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import agentloop

ROOT = Path(agentloop.__file__).parent
PACKAGES = sorted(".".join(("agentloop", *stub.parent.relative_to(ROOT).parts)) for stub in ROOT.rglob("__init__.pyi"))
NAMES = {
    "agentloop": 44,
    "agentloop.compilers": 5,
    "agentloop.contracts": 45,
    "agentloop.drivers": 9,
    "agentloop.durable": 33,
    "agentloop.errors": 72,
    "agentloop.evals": 56,
    "agentloop.events": 73,
    "agentloop.executors": 8,
    "agentloop.interception": 27,
    "agentloop.loop": 8,
    "agentloop.mcp": 10,
    "agentloop.models": 34,
    "agentloop.models.text_calls": 10,
    "agentloop.policies": 39,
    "agentloop.service.cluster": 4,
    "agentloop.service.server": 10,
    "agentloop.service.telemetry": 4,
    "agentloop.service.trace": 6,
    "agentloop.testing": 68,
    "agentloop.toolkits": 11,
    "agentloop.tools": 10,
    "agentloop.values": 90,
}
"""How many names each package exports. A number may only fall: a name is exported if programs write or get it."""

FOREIGN = {
    "attr",
    "attrs",
    "cattrs",
    "jsonschema",
    "jsonschema_rs",
    "httpx",
    "blinker",
    "tenacity",
    "docstring_parser",
    "orjson",
    "click",
}


def loaded_by(program: str) -> set[str]:
    """Return the top-level modules that a program has loaded at its end, and the rooms of the package."""
    code = f"{program}\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    names = [name.split(".") for name in done.stdout.split()]
    return {name[0] for name in names} | {".".join(name[:2]) for name in names if name[0] == "agentloop"}


def test_the_top_level_names_are_sorted_and_importable() -> None:
    """`__all__` is sorted and lists importable names."""
    names = [name for name in agentloop.__all__ if not name.startswith("__")]
    assert names == sorted(names)
    for name in names:
        assert getattr(agentloop, name) is not None
    assert set(agentloop.__all__) <= {*dir(agentloop), "__version__"}


def exports(package: str) -> list[tuple[str, str, str | None]]:
    """Return the exports of a package's stub: the module, the name and the alias of each."""
    stub = ROOT.joinpath(*package.split(".")[1:], "__init__.pyi")
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    return [(str(node.module), alias.name, alias.asname) for node in imports for alias in node.names]


def test_no_package_exports_more_names_than_it_did() -> None:
    """The table has the number of each package. Where a name goes, lower the number; where one comes, find another that can go."""
    assert {package: len(exports(package)) for package in PACKAGES} == NAMES


def test_a_name_has_one_package_beside_the_top() -> None:
    """Two packages never export the same name, but for `ReActDriver`; what `agentloop` exports, one of its packages does as well."""
    names = [name for package in PACKAGES if package != "agentloop" for _, name, _ in exports(package)]
    assert [name for name, count in Counter(names).items() if count > 1] == ["ReActDriver"]
    assert [name for _, name, _ in exports("agentloop") if name not in names] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_line_of_a_stub_is_an_export(package: str) -> None:
    """The names in a package's stub are its names at run time, and each occurs once."""
    module = importlib.import_module(package)
    names = [name for _, name, _ in exports(package)]
    assert len(set(names)) == len(names)
    assert set(names) == set(dir(module)) - {"__version__"} == set(module.__all__) - {"__version__"}
    for home, name, alias in exports(package):
        assert alias == name
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_exported_name_is_the_name_of_a_module(package: str) -> None:
    """A package exports no name of one of its modules: importing that module would hide the export."""
    module = importlib.import_module(package)
    files = {info.name for info in pkgutil.iter_modules(module.__path__)}
    assert not files & set(dir(module))


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelled name raises the usual error."""
    with pytest.raises(AttributeError, match="module 'agentloop' has no attribute 'AgentLop'"):
        _ = agentloop.AgentLop  # type: ignore[attr-defined]  # type checkers see it as well


def test_importing_agentloop_loads_no_third_party_module() -> None:
    """Importing the package loads no third-party module."""
    assert not loaded_by("import agentloop") & FOREIGN


def test_defining_an_agent_loads_nothing_heavy() -> None:
    """Driver, tools and loop can be put together before httpx, jsonschema, tenacity or cattrs are loaded, or a room of features."""
    program = """
from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool
@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b
AgentLoop(ToolCallingDriver(HttpInference(LLMConfig.parse("openai:any", api_key="k"))), [add])
"""
    heavy = {"httpx", "httptools", "uvloop", "jsonschema", "jsonschema_rs", "tenacity", "cattrs", "pydantic", "orjson"}
    rooms = {f"agentloop.{room}" for room in ("policies", "toolkits", "mcp", "durable", "agents", "service", "testing")}
    assert not loaded_by(program) & (heavy | rooms)


def test_the_package_is_typed() -> None:
    """The package has a `py.typed` marker."""
    assert (ROOT / "py.typed").exists()
