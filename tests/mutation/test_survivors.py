"""The page of mutants that no test can find is about the code as it is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agentloop

ROOT = Path(agentloop.__file__).parent
PAGE = (Path(__file__).parent / "survivors.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([0-9a-f]{8})` \| `([^`]+)`, (.+?) \| (.+?) \| .+ \|$", PAGE, re.MULTILINE)


@cache
def names_of(module: str) -> set[str]:
    """Return the definitions of a module and the fields of its classes, those inside of a class with its name before them."""

    def visit(node: ast.AST, prefix: str) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield prefix + child.name
                yield from visit(child, f"{prefix}{child.name}.")
            elif isinstance(child, ast.AnnAssign):
                yield prefix + ast.unparse(child.target)

    return set(visit(ast.parse((ROOT / module).read_text(encoding="utf-8")), ""))


def test_each_survivor_has_one_row() -> None:
    """Every row is read, and no two rows are about the same mutant."""
    assert len(ROWS) == len(re.findall(r"^\| `[0-9a-f]{8}`", PAGE, re.MULTILINE)) > 0
    assert len({row[0] for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("module", "place", "change"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_the_code_of_a_survivor_exists(module: str, place: str, change: str) -> None:
    """The module of a row exists, defines the names of its place, and has the code that the mutant changes."""
    text = (ROOT / module).read_text(encoding="utf-8")
    assert set(re.findall(r"`([\w.]+)`", place)) <= names_of(module)
    before = change.replace("\\|", "|").partition(" → ")[0]
    parts = [part.strip() for code in re.findall(r"`([^`]+)`", before) for part in code.split("…")]
    assert parts
    assert [part for part in parts if part not in text] == []
