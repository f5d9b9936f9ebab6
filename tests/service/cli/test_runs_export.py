"""`agentloop runs export`: records and tests."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import from_json
from agentloop.durable import verify_records
from agentloop.values.records import JournalRecord, RecordKind
from tests.limits import LONGEST
from tests.loaded import LoadedProcess
from tests.service.cli.program import Program

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory, loaded: LoadedProcess) -> Program:
    """A finished journal: an execution that answered, one with a sub-agent, one that failed, and one that was killed."""
    program = Program(tmp_path_factory.mktemp("several"), loaded)
    program.run("loop", "what is paid?", "first")
    program.run("parent", "ask the helper", "second")
    program.run("broken", "fail", "third")
    program.run("loop", "die \x1b[31min red", "fourth", is_killed=True)
    return program


def test_records_are_exported_and_read_again(command_line: CommandLine, several: Program) -> None:
    """Each line is a JSON document, and together they are the recorded chain."""
    out = command_line("runs", "export", "first", "--journal", several.journal).out
    records = [from_json(line, JournalRecord) for line in out.splitlines()]
    assert verify_records(records, "first") == records
    assert records[-1].kind is RecordKind.EXECUTION_ENDED


@pytest.mark.parametrize(
    "name", ["first", pytest.param("second", marks=pytest.mark.heavy), pytest.param("third", marks=pytest.mark.heavy)]
)
def test_an_execution_is_exported_as_a_test(
    command_line: CommandLine, several: Program, tmp_path: Path, name: str
) -> None:
    """The test passes without the journal and the program, and an existing file is not overwritten."""
    output = tmp_path / "test_it.py"
    exported = ("runs", "export", name, "--journal", several.journal, "--pytest", "-o", str(output))
    assert command_line(*exported).code == 0
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert (result.returncode, "1 passed" in result.stdout) == (0, True), result.stdout
    again = command_line(*exported)
    assert (again.code, "already" in again.err) == (2, True)


def test_a_test_can_use_the_loop_of_the_program(command_line: CommandLine, several: Program, tmp_path: Path) -> None:
    """With --loop, the test uses the current tools and interceptors of the program, whose tools never run."""
    program = Path(several.file)
    (tmp_path / "shop_of_test.py").write_text(program.read_text())
    payments = several.paid
    output = tmp_path / "test_it.py"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        arguments = (
            "runs",
            "export",
            "first",
            "--journal",
            several.journal,
            "--pytest",
            "--loop",
            "shop_of_test:plain",
        )
        assert command_line(*arguments, "-o", str(output)).code == 0
    assert "from shop_of_test import plain as loop_or_factory" in output.read_text()
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\npythonpath = .\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert result.returncode == 0, result.stdout
    assert several.paid == payments
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--json", "--pytest"], "omit one of them"),
        (["--loop", "a:b"], "--loop requires --pytest"),
        (["--pytest", "--loop", "app.py:loop"], "the test imports the loop"),
        (["--pytest", "--loop", "no_such_module:b"], "cannot be imported"),
        (["-o", "no/such/folder/x.jsonl"], "cannot be written"),
    ],
)
def test_contradicting_options_are_rejected(
    command_line: CommandLine, several: Program, options: list[str], problem: str
) -> None:
    """Options that contradict each other, or an unusable loop or file, are usage errors."""
    result = command_line("runs", "export", "first", "--journal", several.journal, *options)
    assert (result.code, problem in result.err) == (2, True), result.err
