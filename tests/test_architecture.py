"""The picture in docs/architecture.md shows the imports, and the way of a tool call, as they are."""

from __future__ import annotations

import ast
import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
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
    start = visits.index("inference")
    rest = iter(visits[start:])
    assert [number for number, _, _ in PATH] == list(range(1, len(PATH) + 1))
    for number, source, target in PATH:
        assert target in rest, f"{number}: {source} ==> {target}; the run passed {visits[start:]}"
