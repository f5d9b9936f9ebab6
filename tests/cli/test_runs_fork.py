"""`agentloop runs fork` and `agentloop runs replay`: other ways on, and today's code against what was recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine


@pytest.fixture
def program(tmp_path: Path) -> Program:
    made = Program(tmp_path)
    made.run("loop", "go", "one")
    return made


def changed(program: Program, before: str, after: str) -> str:
    """Change the program; return the loop in its new file."""
    text = Path(program.file).read_text()
    assert before in text
    other = Path(program.file).with_name("other.py")
    other.write_text(text.replace(before, after))
    return f"{other}:loop"


def test_a_fork_begins_after_a_step(command_line: CommandLine, program: Program) -> None:
    """Its id stands on stdout; it is a new execution that waits to be gone on with, and the other one stays as it is."""
    ended = command_line("runs", "fork", "one", "--step", "0", "--journal", program.journal)
    assert (ended.code, ended.out) == (0, "one/fork-1\n")
    assert "agentloop runs resume one/fork-1" in ended.err
    rows = json.loads(command_line("runs", "list", "--journal", program.journal, "--json").out)
    assert {row["execution_id"]: (row["status"], row["forked_from"]) for row in rows} == {
        "one/fork-1": ("interrupted", "one"),
        "one": ("completed", ""),
    }
    assert "fork of   one" in command_line("runs", "show", "one/fork-1", "--journal", program.journal).out


@pytest.mark.parametrize(
    ("effects", "told"), [("reuse", "succeeded"), ("simulate", "succeeded"), ("forbid", "blocked")]
)
def test_a_fork_goes_on_without_doing_again_what_was_done(
    command_line: CommandLine, program: Program, effects: str, told: str
) -> None:
    """With a loop it goes on at once; under no policy is the payment made a second time."""
    ended = command_line("runs", "fork", "one", f"{program.file}:loop", "--step", "0", "--effects", effects)
    assert (ended.code, ended.out) == (0, "done\nreally\n")
    assert "recorded as one/fork-1" in ended.err
    assert program.paid == ["2"]
    calls = json.loads(command_line("runs", "show", "one/fork-1", "--journal", program.journal, "--json").out)["calls"]
    assert [call["told"] for call in calls if call["name"] == "pay"] == [told]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--step", "9"], "has no step 9"),
        (["--step", "1", "--json"], "it needs MODULE:LOOP"),
        ([], "Missing option '--step'"),
    ],
)
def test_a_fork_needs_a_step_that_there_is(
    command_line: CommandLine, program: Program, options: list[str], problem: str
) -> None:
    """Nothing is recorded otherwise."""
    ended = command_line("runs", "fork", "one", "--journal", program.journal, *options)
    assert (ended.code, problem in ended.err) == (2, True), ended.err
    assert "fork" not in command_line("runs", "list", "--journal", program.journal).out


def test_a_fork_becomes_a_test_too(command_line: CommandLine, program: Program) -> None:
    """It begins in the middle, and so does its test."""
    assert command_line("runs", "fork", "one", f"{program.file}:loop", "--step", "1").code == 0
    source = command_line("runs", "export", "one/fork-1", "--pytest", "--journal", program.journal).out
    scope: dict[str, object] = {}
    exec(compile(source, "exported.py", "exec"), scope)  # the file that is tested
    test = scope["test_one_fork_1"]
    assert callable(test)
    test()


def test_the_same_code_comes_to_the_same(command_line: CommandLine, program: Program) -> None:
    """Nothing is run, and the exit code is 0."""
    ended = command_line("runs", "replay", "one", f"{program.file}:loop")
    assert (ended.code, "one: equal over 2 steps, 2 inferences, 2 calls" in ended.out) == (0, True), ended.out
    assert program.paid == ["2"]


def test_the_first_difference_is_told(command_line: CommandLine, program: Program) -> None:
    """A tool that is described otherwise is a difference in the first request; the exit code is 1."""
    other = changed(program, '"""Pay."""', '"""Pay a bill."""')
    ended = command_line("runs", "replay", "one", other, "--journal", program.journal)
    assert (ended.code, "step 1, inference 0: request.tools[1].description differs" in ended.out) == (1, True), (
        ended.out
    )
    assert '"Pay." → "Pay a bill."' in ended.out


def test_all_executions_are_replayed(command_line: CommandLine, program: Program) -> None:
    """Those that differ are told, those of sub-agents are compared with their callers, and the sum stands at the end."""
    program.run("parent", "ask", "two")
    program.run("loop", "again", "three")
    ended = command_line("runs", "replay", "--all", f"{program.file}:loop")
    assert ended.code == 1
    assert ended.out.splitlines()[0] == "two"
    assert ended.out.splitlines()[-1].startswith("3 executions: 2 equal, 1 differ (1 at ")


def test_executions_have_to_be_named_or_all(command_line: CommandLine, program: Program) -> None:
    """Neither and both are refused."""
    for options in ([], ["one", "--all"]):
        ended = command_line("runs", "replay", *options, f"{program.file}:loop")
        assert (ended.code, "all of them with --all" in ended.err) == (2, True)
