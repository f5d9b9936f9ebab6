"""`agentloop runs resume`: interrupted and suspended executions are gone on with."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentState, from_json
from agentloop.cli.sources import loop_of
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.values.steps import ExecutionStatus
from tests.cli.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.cli.conftest import CommandLine, Ended


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_an_interrupted_execution_is_gone_on_with(command_line: CommandLine, program: Program) -> None:
    """What is recorded is not done again; the call that was interrupted is told as in doubt; the answer stands on stdout."""
    program.run("loop", "go", "one", dies=True)
    ended = command_line("runs", "resume", "one", f"{program.file}:loop")
    assert (ended.code, ended.out) == (0, "done\nreally\n")
    assert program.paid == ["2"]
    assert "in doubt" in ended.err
    shown = command_line("runs", "show", "one", "--journal", program.journal).out
    assert "one/1/1  pay(x=2)  once   in doubt" in shown
    again = command_line("runs", "resume", "one", f"{program.file}:loop", "--json")
    assert from_json(again.out, AgentState).status is ExecutionStatus.COMPLETED
    assert program.paid == ["2"]


def test_a_call_in_doubt_can_wait_for_a_person(command_line: CommandLine, program: Program) -> None:
    """With --in-doubt suspend it waits; an answer then settles it without running it."""
    program.run("loop", "go", "one", dies=True)
    waits = command_line("runs", "resume", "one", f"{program.file}:loop", "--in-doubt", "suspend")
    assert (waits.code, "--approve one/1/1" in waits.err) == (3, True)
    ended = command_line("runs", "resume", "one", f"{program.file}:loop", "--answer", '1.2="seen at the bank"')
    assert ended.code == 0
    assert program.paid == ["2"]
    assert (
        'decided: answered with "seen at the bank"'
        in command_line("runs", "show", "one", "--journal", program.journal).out
    )


@pytest.mark.parametrize(
    ("decision", "paid", "told"),
    [
        (["--approve", "one/1/1"], ["2"], "approved"),
        (["--deny", "1.2=not today"], [], "denied: not today"),
        (["--edit", 'one/1/1={"x": 5}'], ["5"], 'runs with {"x":5}'),
    ],
)
def test_a_suspended_execution_is_resumed(
    command_line: CommandLine, program: Program, decision: list[str], paid: list[str], told: str
) -> None:
    """Decisions come from the command line, by key or by place; the calls run as decided, once."""
    program.run("waiting", "go", "one")
    undecided = command_line("runs", "resume", "one", f"{program.file}:waiting")
    assert (undecided.code, "1 call waits" in undecided.err) == (3, True)
    ended = command_line("runs", "resume", "one", f"{program.file}:waiting", *decision)
    assert (ended.code, ended.out) == (0, "done\nreally\n")
    assert (program.paid if paid else []) == paid
    assert told in command_line("runs", "show", "one", "--journal", program.journal).out
    late = command_line("runs", "resume", "one", f"{program.file}:waiting", *decision)
    assert (late.code, "no call waits for a decision" in late.err) == (2, True)


def test_a_person_at_a_terminal_is_asked(at_terminal: Callable[..., Ended], program: Program) -> None:
    """About each call that waits and that the command line does not decide about."""
    program.run("waiting", "go", "one")
    ended = at_terminal("runs", "resume", "one", f"{program.file}:waiting", typed="r\nnot now\n")
    assert (ended.code, ended.out) == (0, "done\nreally\n")
    assert "pay(x=2)  waits: a call of 'pay' needs approval" in ended.err
    assert "blocked: not now" in ended.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--approve", "9.9"], "9.9 waits for no decision; the calls that wait are one/1/1 (pay(x=2))"),
        (["--approve", "1.2", "--deny", "1.2"], "1.2 is decided twice"),
        (["--answer", "1.2=paid"], "the answer for 1.2 is not JSON"),
        (["--edit", "1.2=[1]"], "the arguments for 1.2 cannot be used"),
        (["--journal", "other.db"], "the loop has a journal of its own"),
    ],
)
def test_decisions_that_cannot_be_used_are_refused(
    command_line: CommandLine, program: Program, options: list[str], problem: str
) -> None:
    """The execution goes on waiting."""
    program.run("waiting", "go", "one")
    ended = command_line("runs", "resume", "one", f"{program.file}:waiting", *options)
    assert (ended.code, problem in ended.err) == (2, True), ended.err
    assert "suspended" in command_line("runs", "list", "--journal", program.journal).out


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("lop", "did you mean 'loop'?"),
        ("not_a_loop", "is of type int, not an AgentLoop"),
        ("failing_to_make", "made no loop: RuntimeError: no way"),
    ],
)
def test_what_is_no_loop_is_refused(command_line: CommandLine, program: Program, name: str, problem: str) -> None:
    """A name that is not there is told with the closest."""
    ended = command_line("runs", "resume", "one", f"{program.file}:{name}")
    assert (ended.code, problem in ended.err) == (2, True), ended.err


def test_a_loop_without_a_journal_uses_the_named_one(command_line: CommandLine, program: Program) -> None:
    """A module is named by its dotted name too; then the journal is the option's."""
    program.run("loop", "go", "one", dies=True)
    ended = command_line("runs", "resume", "one", f"{program.file}:plain", "--journal", program.journal, "--quiet")
    assert (ended.code, ended.out, ended.err) == (0, "done\nreally\n", "")


def test_an_execution_that_somebody_drives_is_left_alone(command_line: CommandLine, program: Program) -> None:
    """Who has claimed it is told, and it is in progress, not interrupted."""
    program.run("loop", "go", "one", dies=True)
    journal = SqliteJournal(program.journal)
    claim = asyncio.run(journal.claim("one"))
    listed = json.loads(command_line("runs", "list", "--journal", program.journal, "--json").out)
    refused = command_line("runs", "resume", "one", f"{program.file}:loop")
    asyncio.run(claim.release())
    asyncio.run(journal.aclose())
    assert [row["status"] for row in listed] == ["in_progress"]
    assert (refused.code, "claimed" in refused.err) == (1, True)


def test_what_a_module_prints_does_not_reach_stdout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer stands alone on stdout, whatever the program says while it is imported."""
    (tmp_path / "loud_program_of_test.py").write_text(
        "print('hello')\nfrom agentloop import AgentLoop, ScriptedInference\n"
        "def make():\n    print('made')\n    return AgentLoop.for_model(ScriptedInference())\n"
    )
    monkeypatch.chdir(tmp_path)
    loop_of("loud_program_of_test:make")
    assert capsys.readouterr() == ("", "hello\nmade\n")
