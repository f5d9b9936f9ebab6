"""`agentloop runs resume`: interrupted and suspended executions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, ToolCallingDriver, from_json, tool
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.interception import RequireApproval
from agentloop.service.cli.sources import load_loop
from agentloop.values import approve
from agentloop.values.steps import ExecutionStatus
from tests.loaded import LoadedProcess
from tests.service.cli.program import Program

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.service.cli.conftest import CommandLine, CommandResult


@pytest.fixture
def program(tmp_path: Path, loaded: LoadedProcess) -> Program:
    return Program(tmp_path, loaded)


def test_an_interrupted_execution_is_resumed(command_line: CommandLine, program: Program) -> None:
    """Recorded work is not repeated, the interrupted call is in doubt, and stdout has the answer alone."""
    program.run("loop", "go", "one", is_killed=True)
    result = command_line("runs", "resume", "one", f"{program.file}:loop")
    assert (result.code, result.out) == (0, "done\nreally\n")
    assert program.paid == ["2"]
    assert "in doubt" in result.err
    shown = command_line("runs", "show", "one", "--journal", program.journal).out
    assert "one/1/1  pay(x=2)  once     in doubt" in shown
    again = command_line("runs", "resume", "one", f"{program.file}:loop", "--json")
    assert from_json(again.out, AgentState).status is ExecutionStatus.COMPLETED
    assert program.paid == ["2"]


def test_a_call_in_doubt_can_wait_for_a_person(command_line: CommandLine, program: Program) -> None:
    """With --in-doubt suspend the call stays pending, and --answer settles it without running it."""
    program.run("loop", "go", "one", is_killed=True)
    waits = command_line("runs", "resume", "one", f"{program.file}:loop", "--in-doubt", "suspend")
    assert (waits.code, "--approve one/1/1" in waits.err) == (3, True)
    result = command_line("runs", "resume", "one", f"{program.file}:loop", "--answer", '1.2="seen at the bank"')
    assert result.code == 0
    assert program.paid == ["2"]
    assert (
        'decision: answered with "seen at the bank"'
        in command_line("runs", "show", "one", "--journal", program.journal).out
    )


@pytest.mark.parametrize(
    ("decision", "paid", "text"),
    [
        (["--approve", "one/1/1"], ["2"], "approved"),
        (["--deny", "1.2=not today"], [], "denied: not today"),
        (["--edit", 'one/1/1={"x": 5}'], ["5"], 'runs with {"x": 5}'),
    ],
)
def test_a_suspended_execution_is_resumed(
    command_line: CommandLine, program: Program, decision: list[str], paid: list[str], text: str
) -> None:
    """The options decide calls by key or by number, and an approved call runs once."""
    program.run("waiting", "go", "one")
    undecided = command_line("runs", "resume", "one", f"{program.file}:waiting")
    assert (undecided.code, "1 call waits" in undecided.err) == (3, True)
    result = command_line("runs", "resume", "one", f"{program.file}:waiting", *decision)
    assert (result.code, result.out) == (0, "done\nreally\n")
    assert (program.paid if paid else []) == paid
    assert text in command_line("runs", "show", "one", "--journal", program.journal).out
    late = command_line("runs", "resume", "one", f"{program.file}:waiting", *decision)
    assert (late.code, "no call waits for a decision" in late.err) == (2, True)


def test_a_person_at_a_terminal_is_asked(at_terminal: Callable[..., CommandResult], program: Program) -> None:
    """At a terminal, a person is asked about pending calls that no option decides."""
    program.run("waiting", "go", "one")
    result = at_terminal("runs", "resume", "one", f"{program.file}:waiting", typed="r\nnot now\n")
    assert (result.code, result.out) == (0, "done\nreally\n")
    assert "pay waits: a call of 'pay' needs approval" in result.err
    assert "x = 2" in result.err
    assert "blocked: not now" in result.err


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--approve", "9.9"], "9.9 is not a pending call; the pending calls are one/1/1 (pay(x=2))"),
        (["--approve", "1.2", "--deny", "1.2"], "1.2 is decided twice"),
        (["--answer", "1.2=paid"], "the answer for 1.2 is not JSON"),
        (["--edit", "1.2=[1]"], "the arguments for 1.2 are invalid"),
        (["--endorse", "1.2=x"], "of one/1/1 you can endorse nothing"),
        (["--endorse", "1.2"], "of one/1/1 you can endorse nothing"),
        (["--journal", "other.db"], "the loop has a journal of its own"),
    ],
)
def test_invalid_decisions_are_rejected(
    command_line: CommandLine, program: Program, options: list[str], problem: str
) -> None:
    """An invalid decision is a usage error, and the execution stays suspended."""
    program.run("waiting", "go", "one")
    result = command_line("runs", "resume", "one", f"{program.file}:waiting", *options)
    assert (result.code, problem in result.err) == (2, True), result.err
    assert "suspended" in command_line("runs", "list", "--journal", program.journal).out


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("lop", "did you mean 'loop'?"),
        ("not_a_loop", "is of type int, not an AgentLoop"),
        ("failing_to_make", "did not return a loop: RuntimeError: no way"),
    ],
)
def test_an_object_that_is_not_a_loop_is_rejected(
    command_line: CommandLine, program: Program, name: str, problem: str
) -> None:
    """An unknown name, another object and a failing function are usage errors."""
    result = command_line("runs", "resume", "one", f"{program.file}:{name}")
    assert (result.code, problem in result.err) == (2, True), result.err


def test_a_loop_without_a_journal_uses_the_named_one(command_line: CommandLine, program: Program) -> None:
    """A loop without a journal of its own uses the journal of the option."""
    program.run("loop", "go", "one", is_killed=True)
    result = command_line("runs", "resume", "one", f"{program.file}:plain", "--journal", program.journal, "--quiet")
    assert (result.code, result.out, result.err) == (0, "done\nreally\n", "")


def test_a_running_execution_is_not_resumed(command_line: CommandLine, program: Program) -> None:
    """An execution that another writer has claimed is in progress, and resuming it fails."""
    program.run("loop", "go", "one", is_killed=True)
    journal = SqliteJournal(program.journal)
    claim = asyncio.run(journal.claim("one"))
    listed = json.loads(command_line("runs", "list", "--journal", program.journal, "--json").out)
    refused = command_line("runs", "resume", "one", f"{program.file}:loop")
    asyncio.run(claim.release())
    asyncio.run(journal.aclose())
    assert [row["status"] for row in listed] == ["in_progress"]
    assert (refused.code, "claimed" in refused.err) == (1, True)


NEEDS_A_TILL = """
from agentloop import ToolContext

class Till: ...

@tool
def count(context: ToolContext[Till]) -> int:
    "Count."
    return 0

needy = loop.replace(tools=[*loop.tools, count])
"""


@pytest.mark.parametrize("command", [["resume", "one"], ["recover", "one"], ["recover", "--all"]])
def test_a_loop_that_needs_dependencies_is_continued_in_a_program(
    command_line: CommandLine, program: Program, command: list[str]
) -> None:
    """The message says what is missing and which call has it; nothing runs, and an execution that has ended needs none."""
    program.run("loop", "go", "one", is_killed=True)
    (program.folder / "needy.py").write_text(
        Path(program.file).read_text(encoding="utf-8") + NEEDS_A_TILL, encoding="utf-8"
    )
    needy = f"{program.folder / 'needy.py'}:needy"
    result = command_line("runs", *command, needy)
    assert result.code == (2 if command[0] == "resume" else 1)
    assert "the tool 'count' needs dependencies of type Till" in result.err
    assert "loop.recover_sync('one', dependencies=…)" in result.err
    assert command_line("runs", "resume", "one", f"{program.file}:loop").code == 0
    assert command_line("runs", "resume", "one", needy).out == "done\nreally\n"


def test_output_of_modules_goes_to_stderr(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a module prints while it is imported does not reach stdout."""
    (tmp_path / "loud_program_of_test.py").write_text(
        "print('hello')\nfrom agentloop import AgentLoop, ScriptedInference\n"
        "def make():\n    print('made')\n    return AgentLoop.for_model(ScriptedInference())\n"
    )
    monkeypatch.chdir(tmp_path)
    load_loop("loud_program_of_test:make")
    assert capsys.readouterr() == ("", "hello\nmade\n")


def test_who_decided_is_recorded_and_shown(command_line: CommandLine, tmp_path: Path) -> None:
    """The principal of a decision is in its record, and after the decision in `runs show`."""
    path = tmp_path / "j.db"

    async def decide() -> None:
        journal = SqliteJournal(path)
        model = ScriptedInference([ToolCall("1", "pay", "{}")], "done")
        loop = AgentLoop(ToolCallingDriver(model), [pay], journal=journal, interceptors=[RequireApproval("pay")])
        state = await loop.execute("go", execution_id="one")
        await loop.resume(state, {state.pending[0].key: approve(principal="ada@example.com")})
        await journal.aclose()

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    asyncio.run(decide())
    shown = command_line("runs", "show", "one", "--journal", str(path)).out
    assert "decision: approved by ada@example.com" in shown
    records = command_line("runs", "show", "one", "--records", "--journal", str(path)).out
    assert '"principal": "ada@example.com"' in records
