"""The facades of the packages: exported names, lazy loading, and what an import loads."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import agentloop

ROOT = Path(agentloop.__file__).parent
PACKAGES = sorted(".".join(("agentloop", *stub.parent.relative_to(ROOT).parts)) for stub in ROOT.rglob("__init__.pyi"))
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
    """Return the top-level modules that a program has loaded at its end."""
    code = f"{program}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_the_top_level_names_are_sorted_few_and_importable() -> None:
    """`__all__` is sorted, lists importable names, and has at most 48 of them."""
    names = [name for name in agentloop.__all__ if not name.startswith("__")]
    assert names == sorted(names)
    assert len(names) <= 48
    for name in names:
        assert getattr(agentloop, name) is not None
    assert set(agentloop.__all__) <= {*dir(agentloop), "__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_line_of_a_stub_is_an_export(package: str) -> None:
    """The names in a package's stub are its names at run time, and each occurs once."""
    module = importlib.import_module(package)
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    exports = [(node.module, alias.name, alias.asname) for node in imports for alias in node.names]
    names = [name for _, name, _ in exports]
    assert len(set(names)) == len(names)
    assert set(names) == set(dir(module)) - {"__version__"} == set(module.__all__) - {"__version__"}
    for home, name, alias in exports:
        assert alias == name
        assert getattr(module, name) is getattr(importlib.import_module(str(home)), name)


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
    """Driver, tools and loop can be put together before httpx, jsonschema, tenacity or cattrs are loaded."""
    program = """
from agentloop import AgentLoop, HttpInference, LLMConfig, ToolCallingDriver, tool
@tool
def add(a: int, b: int) -> int:
    "Add."
    return a + b
AgentLoop(ToolCallingDriver(HttpInference(LLMConfig.parse("openai:any", api_key="k"))), [add])
"""
    heavy = {"httpx", "httptools", "uvloop", "jsonschema", "jsonschema_rs", "tenacity", "cattrs", "pydantic", "orjson"}
    assert not loaded_by(program) & heavy


def test_the_package_is_typed() -> None:
    """The package has a `py.typed` marker."""
    assert (ROOT / "py.typed").exists()
