"""The kernel stands alone; the picture in docs/architecture.md shows the imports, and the way of a tool call, as they are."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import agentloop
from agentloop import AgentLoop, Interceptor, ScriptedInference, ToolCall, ToolCallingDriver, tool
from agentloop.values.points import AfterToolUse, BeforeToolUse

ROOT = Path(agentloop.__file__).parent
PAGE = (ROOT.parent / "docs" / "architecture.md").read_text()
PICTURE = PAGE.partition("```mermaid")[2].partition("```")[0]
IMPORTS = re.findall(r"^\s*(\w+) --> (\w+)$", PICTURE, re.MULTILINE)
PATH = [
    (int(number), source, target)
    for source, number, target in re.findall(r"^\s*(\w+) ==>\|(\d+) [^|]*\| (\w+)$", PICTURE, re.MULTILINE)
]
FLOORS = {"values", "contracts", "errors", "events", "_lazy", "_shielding"}
"""Rooms that everything passes through; the way of a call leaves them out."""

LAYERS = {"programs", "early start", "pins", "fencing", "approval"}
"""The layers of a call that can be deleted one by one."""


def room_of(path: Path) -> str:
    """Return the room that a file of the package belongs to; empty for the package itself, and for the command that it is."""
    room = path.relative_to(ROOT).parts[0].removesuffix(".py").removesuffix(".pyi")
    return "" if room in {"__init__", "__main__"} else room


def imports() -> Mapping[str, set[str]]:
    """Return for every room the rooms that its modules import."""
    graph: dict[str, set[str]] = defaultdict(set)
    for path in sorted(ROOT.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("agentloop."):
                target = str(node.module).split(".")[1]
                if target != room_of(path):
                    graph[room_of(path)].add(target)
    graph.pop("", None)
    return graph


def reachable(graph: Mapping[str, set[str]], start: str) -> Iterator[str]:
    """Yield the rooms that a room reaches over one import or more."""
    seen: set[str] = set()
    todo = list(graph.get(start, ()))
    while todo:
        room = todo.pop()
        if room not in seen:
            seen.add(room)
            yield room
            todo.extend(graph.get(room, ()))


def reduced(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Return the imports that no longer way of imports implies."""
    return {
        (room, target)
        for room, targets in graph.items()
        for target in targets
        if not any(target in reachable(graph, other) for other in targets if other != target)
    }


KERNEL = (
    "errors",
    "values",
    "contracts",
    "events",
    "tools",
    "interception",
    "compilers",
    "executors",
    "drivers",
    "loop",
)
"""The rooms that import none of the others."""
LATE_DOORS = {
    ("contracts/can_provide_models.py", "agentloop.models.provided"),
    ("events/trace_context.py", "agentloop.service.telemetry.recording"),
    ("loop/doors.py", "agentloop.agents.agent_builder"),
    ("loop/doors.py", "agentloop.durable.exits"),
    ("loop/doors.py", "agentloop.durable.recovery"),
    ("loop/doors.py", "agentloop.durable.sessions"),
    ("loop/doors.py", "agentloop.policies.output_checks"),
    ("loop/doors.py", "agentloop.policies.resilience.resilience"),
}
"""The modules above itself that the kernel loads by name, when an agent first needs them."""


def is_above(module: str) -> bool:
    """Return whether a name is that of a module above the kernel."""
    if re.fullmatch(r"agentloop(\.\w+)+", module) is None:
        return False
    room, *_ = parts = module.split(".")[1:]
    path = ROOT.joinpath(*parts)
    is_module = path.with_suffix(".py").exists() or (path / "__init__.py").exists()
    return is_module and not room.startswith("_") and room not in KERNEL


def test_the_kernel_imports_nothing_above_it() -> None:
    """No module of the kernel imports one of another room, in functions and for type checkers either."""
    graph = imports()
    assert {room: graph[room] - {*KERNEL, "_event_loops", "_lazy", "_shielding"} for room in KERNEL} == {
        room: set() for room in KERNEL
    }


def test_the_kernel_loads_few_modules_by_name() -> None:
    """Each text in the kernel that names a module above it is a late door of the list."""
    found = {
        (str(path.relative_to(ROOT)), str(node.value))
        for room in KERNEL
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_above(node.value)
    }
    assert found == LATE_DOORS


def test_one_export_of_the_kernel_is_defined_above_it() -> None:
    """The stubs of the kernel export its own names, and `ReActDriver`, which users look for among the drivers."""
    lines = [line for room in KERNEL for line in (ROOT / room / "__init__.pyi").read_text().splitlines()]
    assert [line.split()[3] for line in lines if is_above(line.split()[1])] == ["ReActDriver"]


def feature_rows() -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield the features of the page, each with its files in the kernel, and with the other files that import them."""
    section = PAGE.partition("## How a feature is added and deleted")[2].partition("\n## ")[0]
    for name, own, others in re.findall(r"^\| (\w[\w ]*) \| (`.*?) \| (`.*?) \|$", section, re.MULTILINE):
        yield name, set(re.findall(r"`(.*?)`", own)), set(re.findall(r"`(.*?)`", others))


@cache
def imports_by_file() -> Mapping[str, set[str]]:
    """Return the modules that each file of the kernel imports, doors included."""
    paths = [path for room in KERNEL for path in sorted((ROOT / room).rglob("*.py*")) if path.suffix in {".py", ".pyi"}]
    return {
        path.relative_to(ROOT).as_posix(): set(
            re.findall(r"^ *from (agentloop[\w.]*) import", path.read_text(), re.MULTILINE)
        )
        for path in paths
    }


def importers_of(files: AbstractSet[str]) -> set[str]:
    """Return the other files of the kernel that import one of these."""
    modules = {"agentloop." + file.removesuffix(".py").replace("/", ".") for file in files}
    return {file for file, imported in imports_by_file().items() if not modules.isdisjoint(imported)} - files


def test_the_page_has_the_files_that_import_a_feature() -> None:
    """The table of features names every file of the kernel that has to be touched when the files of a feature are deleted."""
    rows = list(feature_rows())
    assert {name for name, _, _ in rows} >= LAYERS
    assert {name: others for name, _, others in rows} == {name: importers_of(own) for name, own, _ in rows}


def test_few_files_import_the_layers_of_a_call() -> None:
    """A layer that comes with the package can be deleted with its files, and with the lines of at most two others."""
    assert {name for name, _, others in feature_rows() if name in LAYERS and len(others) > 2} == set()


def test_files_import_each_other_in_no_circle() -> None:
    """Imports in functions and those for type checkers count as well."""
    names = {
        path: ".".join(("agentloop", *path.relative_to(ROOT).with_suffix("").parts)) for path in ROOT.rglob("*.py")
    }
    modules = set(names.values())
    graph: dict[str, set[str]] = defaultdict(set)
    for path, name in names.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                targets = {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
                graph[name] |= targets & modules
    assert [name for name in graph if name in reachable(graph, name)] == []


def test_the_thin_arrows_are_the_imports() -> None:
    """Every arrow is an import, and every import is an arrow or follows from several."""
    assert set(IMPORTS) == reduced(imports())
    assert len(set(IMPORTS)) == len(IMPORTS)


def test_the_table_names_every_room() -> None:
    """The table below the picture describes each package of agentloop once."""
    described = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted(described) == sorted(path.parent.name for path in ROOT.glob("*/__init__.py"))


class Watching(Interceptor):
    """Takes part in the points of a tool call, so that they are passed."""

    async def before_tool_use(self, point: BeforeToolUse) -> BeforeToolUse:
        return point

    async def after_tool_use(self, point: AfterToolUse) -> AfterToolUse:
        return point


@tool(effect="pure")
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def profiled(visits: list[str]) -> Callable[[FrameType, str, Any], None]:
    """Return a profile function that notes the rooms in the order in which a run enters them."""

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT):
            room = room_of(path)
            if room not in FLOORS and (not visits or visits[-1] != room):
                visits.append(room)

    return note


async def test_the_thick_arrows_are_the_way_of_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real run with one tool call passes the rooms in the order of the numbers."""
    loop = AgentLoop(
        ToolCallingDriver(ScriptedInference(ToolCall("c1", "double", '{"number": 2}'), "four")),
        [double],
        interceptors=[Watching()],
    )
    await loop.execute("warm")  # everything is loaded: imports are no part of the way
    visits: list[str] = []
    note = profiled(visits)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        await loop.execute("again")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    start = visits.index("models")
    rest = iter(visits[start:])
    assert [number for number, _, _ in PATH] == list(range(1, len(PATH) + 1))
    for number, source, target in PATH:
        assert target in rest, f"{number}: {source} ==> {target}; the run passed {visits[start:]}"
