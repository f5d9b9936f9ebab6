"""Tables at any width: what is copied into a command stands on one line, and texts wrap at words."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.models.presets import PRESETS
from agentloop.service.cli import tables
from agentloop.service.cli.console import as_one_line
from agentloop.service.cli.journals import find_execution, short_ids
from agentloop.service.cli.tables import Column, Fit, print_table
from tests.durable.records import append_head

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine

WIDTHS = (60, 80, 100, 120, 140)
TOOLS = '''
from agentloop import tool


@tool(effect="pure")
def find_every_invoice_of_a_customer(customer_identifier: str, first_day: str, last_day: str, limit: int = 20) -> str:
    """Find the invoices of a customer between two days, newest first, with their totals and the state of their payment."""
    return ""


@tool
def pay(invoice: str, amount: float) -> str:
    """Pay an invoice."""
    return ""
'''
SKILL = """---
name: {name}
description: Checks an expense against the rules of the company, and says which rule it breaks and who may allow it.
---
Look.
"""
IDS = [f"execution_{digits}{'0' * 20}" for digits in ("3f2a1c9b4d5e", "3f2a1c9b4d5f", "80c1d2e3f4a5", "91b2c3d4e5f6")]
SHORT_IDS = ["execution_3f2a1c9b4d5e", "execution_3f2a1c9b4d5f", "execution_80c1d2", "execution_91b2c3"]


def _journal(folder: Path) -> list[str]:
    async def fill() -> None:
        journal = SqliteJournal(folder / "runs.db")
        for execution_id in IDS:
            await append_head(journal, execution_id)
        await journal.aclose()

    asyncio.run(fill())
    return SHORT_IDS


def _tools(folder: Path) -> list[str]:
    (folder / "shop.py").write_text(TOOLS)
    return ["find_every_invoice_of_a_customer", "pay"]


def _skills(folder: Path) -> list[str]:
    names = ["check-expenses", "write-the-report-of-the-quarter"]
    for name in names:
        (folder / "skills" / name).mkdir(parents=True)
        (folder / "skills" / name / "SKILL.md").write_text(SKILL.format(name=name))
    return names


def _models(_: Path) -> list[str]:
    return [*PRESETS]


COMMANDS: Mapping[str, Callable[[Path], list[str]]] = {
    "runs list --journal runs.db --all": _journal,
    "tools list shop.py": _tools,
    "skills list skills": _skills,
    "models": _models,
}
"""The commands that print a table, each with a function that prepares its folder and returns the identifiers of its rows."""


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_row_begins_with_its_identifier(
    command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str, width: int
) -> None:
    """At each width, each row begins with its identifier, whole, and no line is longer than the width."""
    monkeypatch.chdir(tmp_path)
    identifiers = COMMANDS[command](tmp_path)
    monkeypatch.setenv("COLUMNS", str(width))
    printed = command_line(*command.split())
    assert printed.code == 0, printed.err
    lines = printed.out.splitlines()
    first = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert sorted(first) == sorted(identifiers)
    assert max(map(len, lines)) <= width


def test_no_command_prints_a_table_of_its_own() -> None:
    """All tables of the commands are printed in one way, so that what holds for one holds for all."""
    folder = Path(tables.__file__).parent
    assert not [path.name for path in folder.glob("*.py") if "rich.table" in path.read_text()]


CELLS = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=40)


@given(
    st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS), min_size=1, max_size=5),
    st.integers(20, 160),
    st.lists(st.sampled_from(Fit), min_size=2, max_size=2),
)
def test_a_cell_that_is_not_to_be_broken_is_on_one_line(
    rows: Sequence[tuple[str, ...]], width: int, others: Sequence[Fit]
) -> None:
    """Whatever the cells are, the first two of a row are on one line, and no word of a text that wraps is broken."""
    columns = [Column("id"), Column("count", is_number=True), *[Column(fit.value, fit) for fit in others]]
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    print_table(console, columns, rows)
    lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
    for row in rows:
        whole = [as_one_line(cell).strip() for cell in row]
        assert any(whole[0] in line and whole[1] in line for line in lines)
        wrapped = [cell for cell, fit in zip(whole[2:], others, strict=True) if fit is Fit.WRAPPED]
        assert all(any(word in line for line in lines) for cell in wrapped for word in cell.split(" "))


@given(st.sets(st.text("ab/", min_size=1, max_size=30).map("execution_{}".format), min_size=1, max_size=8))
def test_a_short_id_finds_its_execution(ids: set[str]) -> None:
    """Whatever other ids a journal has, the short id of each execution is the start of its id and finds it."""

    async def check() -> None:
        journal = MemoryJournal()
        for execution_id in ids:
            await append_head(journal, execution_id)
        names = await short_ids(journal, [*ids][:3])
        for execution_id, name in names.items():
            assert execution_id.startswith(name)
            assert (await find_execution(journal, name)).execution_id == execution_id

    asyncio.run(check())
