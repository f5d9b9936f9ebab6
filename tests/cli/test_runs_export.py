"""`agentloop runs export`: executions leave the journal as records, or as tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import from_json
from agentloop.journal import verify_records
from agentloop.values.records import JournalRecord, RecordKind
from tests.cli.program import Program
from tests.limits import LONGEST

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A journal that nobody writes to: one that answered, one with a sub-agent, one that failed, one that died."""
    program = Program(tmp_path_factory.mktemp("several"))
    program.run("loop", "what is paid?", "first")
    program.run("parent", "ask the helper", "second")
    program.run("broken", "fail", "third")
    program.run("loop", "die \x1b[31min red", "fourth", dies=True)
    return program


def test_records_are_exported_and_read_again(command_line: CommandLine, several: Program) -> None:
    """Each line is a document; together they are the chain that was written."""
    out = command_line("runs", "export", "first", "--journal", several.journal).out
    records = [from_json(line, JournalRecord) for line in out.splitlines()]
    assert verify_records(records, "first") == records
    assert records[-1].kind is RecordKind.EXECUTION_ENDED


@pytest.mark.parametrize("name", ["first", "second", "third"])
def test_an_execution_is_exported_as_a_test(
    command_line: CommandLine, several: Program, tmp_path: Path, name: str
) -> None:
    """The file passes where there is neither the journal nor the program; it is not written over another."""
    output = tmp_path / "test_it.py"
    exported = ("runs", "export", name, "--journal", several.journal, "--pytest", "-o", str(output))
    assert command_line(*exported).code == 0
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert (ended.returncode, "1 passed" in ended.stdout) == (0, True), ended.stdout
    again = command_line(*exported)
    assert (again.code, "already" in again.err) == (2, True)


def test_a_test_can_use_the_loop_of_the_program(command_line: CommandLine, several: Program, tmp_path: Path) -> None:
    """With --loop, its tools and rules are those of today: the test passes beside the program, with its tools never run."""
    program = Path(several.file)
    (tmp_path / "shop_of_test.py").write_text(program.read_text())
    paid = several.paid
    output = tmp_path / "test_it.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        asked = ("runs", "export", "first", "--journal", several.journal, "--pytest", "--loop", "shop_of_test:plain")
        assert command_line(*asked, "-o", str(output)).code == 0
    assert "from shop_of_test import plain as loop_or_factory" in output.read_text()
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert ended.returncode == 0, ended.stdout
    assert several.paid == paid
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--json", "--pytest"], "leave one of them out"),
        (["--loop", "a:b"], "--loop belongs to --pytest"),
        (["--pytest", "--loop", "app.py:loop"], "the test imports the loop"),
        (["--pytest", "--loop", "no_such_module:b"], "cannot be imported"),
        (["-o", "no/such/folder/x.jsonl"], "cannot be written"),
    ],
)
def test_what_cannot_be_exported_is_told(
    command_line: CommandLine, several: Program, options: list[str], problem: str
) -> None:
    """The options are checked before anything is written."""
    ended = command_line("runs", "export", "first", "--journal", several.journal, *options)
    assert (ended.code, problem in ended.err) == (2, True), ended.err
