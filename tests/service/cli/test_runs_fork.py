"""`agentloop runs fork` and `agentloop runs replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.loaded import LoadedProcess
from tests.service.cli.program import Program

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine


@pytest.fixture
def program(tmp_path: Path, loaded: LoadedProcess) -> Program:
    program = Program(tmp_path, loaded)
    program.run("loop", "go", "one")
    return program


def change(program: Program, before: str, after: str) -> str:
    """Write a changed copy of the program, and return the path of its loop."""
    text = Path(program.file).read_text()
    assert before in text
    other = Path(program.file).with_name("other.py")
    other.write_text(text.replace(before, after))
    return f"{other}:loop"


def test_a_fork_starts_after_a_step(command_line: CommandLine, program: Program) -> None:
    """The id of the fork is printed to stdout; the fork is a new execution to resume, and the original is unchanged."""
    result = command_line("runs", "fork", "one", "--step", "0", "--journal", program.journal)
    assert (result.code, result.out) == (0, "one/fork-1\n")
    assert "agentloop runs resume one/fork-1" in result.err
    rows = json.loads(command_line("runs", "list", "--journal", program.journal, "--json").out)
    assert {row["execution_id"]: (row["status"], row["forked_from"]) for row in rows} == {
        "one/fork-1": ("interrupted", "one"),
        "one": ("completed", ""),
    }
    assert "fork of   one" in command_line("runs", "show", "one/fork-1", "--journal", program.journal).out


@pytest.mark.parametrize(
    ("effects", "outcome"), [("reuse", "succeeded"), ("simulate", "succeeded"), ("forbid", "blocked")]
)
def test_a_fork_does_not_repeat_effects(
    command_line: CommandLine, program: Program, effects: str, outcome: str
) -> None:
    """With a loop the fork runs at once, and under no policy is the payment made a second time."""
    result = command_line("runs", "fork", "one", f"{program.file}:loop", "--step", "0", "--effects", effects)
    assert (result.code, result.out) == (0, "done\nreally\n")
    assert "recorded as one/fork-1" in result.err
    assert program.paid == ["2"]
    calls = json.loads(command_line("runs", "show", "one/fork-1", "--journal", program.journal, "--json").out)["calls"]
    assert [call["told"] for call in calls if call["name"] == "pay"] == [outcome]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--step", "9"], "has no step 9"),
        (["--step", "1", "--json"], "it needs MODULE:LOOP"),
        ([], "Missing option '--step'"),
    ],
)
def test_a_fork_needs_an_existing_step(
    command_line: CommandLine, program: Program, options: list[str], problem: str
) -> None:
    """Without an existing step, the command is a usage error and records nothing."""
    result = command_line("runs", "fork", "one", "--journal", program.journal, *options)
    assert (result.code, problem in result.err) == (2, True), result.err
    assert "fork" not in command_line("runs", "list", "--journal", program.journal).out


def test_a_fork_can_be_exported_as_a_test(command_line: CommandLine, program: Program) -> None:
    """The exported test of a fork starts at the step of the fork."""
    assert command_line("runs", "fork", "one", f"{program.file}:loop", "--step", "1").code == 0
    source = command_line("runs", "export", "one/fork-1", "--pytest", "--journal", program.journal).out
    scope: dict[str, object] = {}
    exec(compile(source, "exported.py", "exec"), scope)  # the file that is tested
    test = scope["test_one_fork_1"]
    assert callable(test)
    test()


def test_a_replay_of_the_same_code_is_equal(command_line: CommandLine, program: Program) -> None:
    """A replay calls no tools, and exits with 0 when nothing differs."""
    result = command_line("runs", "replay", "one", f"{program.file}:loop")
    assert (result.code, "one: equal over 2 steps, 2 inferences, 2 calls" in result.out) == (0, True), result.out
    assert program.paid == ["2"]


def test_the_first_difference_is_shown(command_line: CommandLine, program: Program) -> None:
    """A changed description is a difference in the first request, and the exit code is 1."""
    other = change(program, '"""Pay."""', '"""Pay a bill."""')
    result = command_line("runs", "replay", "one", other, "--journal", program.journal)
    assert (result.code, "step 1, inference 0: request.tools[1].description differs" in result.out) == (1, True), (
        result.out
    )
    assert '"Pay." → "Pay a bill."' in result.out


def test_all_executions_are_replayed(command_line: CommandLine, program: Program) -> None:
    """--all shows the executions that differ and a summary; sub-agents are replayed with their callers."""
    program.run("parent", "ask", "two")
    program.run("loop", "again", "three")
    result = command_line("runs", "replay", "--all", f"{program.file}:loop")
    assert result.code == 1
    assert result.out.splitlines()[0] == "two"
    assert result.out.splitlines()[-1].startswith("3 executions: 2 equal, 1 differ (1 at ")


def test_a_replay_needs_ids_or_all(command_line: CommandLine, program: Program) -> None:
    """Neither ids nor --all, and both, are usage errors."""
    for options in ([], ["one", "--all"]):
        result = command_line("runs", "replay", *options, f"{program.file}:loop")
        assert (result.code, "all of them with --all" in result.err) == (2, True)
