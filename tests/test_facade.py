"""The front of the house: names, laziness, and what an import costs others."""

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
ROOMS = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if "lazy(" in path.read_text())
FOREIGN = {
    "attr",
    "attrs",
    "cattrs",
    "jsonschema",
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


def test_the_names_at_the_top_are_sorted_few_and_there() -> None:
    """`__all__` lists what can be imported, in order, and no more than a reader can take in."""
    names = [name for name in agentloop.__all__ if not name.startswith("__")]
    assert names == sorted(names)
    assert len(names) <= 48
    for name in names:
        assert getattr(agentloop, name) is not None
    assert set(agentloop.__all__) <= {*dir(agentloop), "__version__"}


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_what_type_checkers_see_is_what_is_there(room: str) -> None:
    """The names under TYPE_CHECKING, those in the table of lazy names, and those that can be had are the same."""
    package = importlib.import_module(f"agentloop.{room}".rstrip("."))
    tree = ast.parse(Path(str(package.__file__)).read_text())
    guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [one for node in guarded for one in node.body if isinstance(one, ast.ImportFrom)]
    seen = {alias.asname: f"{one.module}.{alias.name}" for one in imports for alias in one.names}
    assert set(seen) == {name for name in dir(package) if name in seen or not guarded}
    if guarded:
        assert set(seen) == set(package.__dir__())
    for name, home in seen.items():
        module, _, attribute = home.rpartition(".")
        assert getattr(package, str(name)) is getattr(importlib.import_module(module), attribute)


@pytest.mark.parametrize("room", ROOMS)
def test_no_name_of_a_room_is_also_the_name_of_one_of_its_files(room: str) -> None:
    """A lazy name that a module is called by would be hidden once that module is loaded."""
    package = importlib.import_module(f"agentloop.{room}")
    files = {module.name for module in pkgutil.iter_modules(package.__path__)}
    assert not files & set(package.__dir__())


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A misspelled name is told as Python tells it."""
    with pytest.raises(AttributeError, match="module 'agentloop' has no attribute 'AgentLop'"):
        _ = agentloop.AgentLop  # type: ignore[attr-defined]  # type checkers see it as well


def test_importing_agentloop_loads_no_third_party_module() -> None:
    """The facade itself costs nothing."""
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
    assert not loaded_by(program) & {"httpx", "jsonschema", "tenacity", "cattrs", "pydantic", "orjson"} - _fast()


def _fast() -> set[str]:
    """Return what is loaded because it is installed."""
    return {"orjson"} if importlib.util.find_spec("orjson") else set()


def test_the_package_is_typed() -> None:
    """Type checkers may trust the annotations."""
    assert (ROOT / "py.typed").exists()
