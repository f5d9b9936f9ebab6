"""`agentloop runs`: recorded executions are listed, shown, gone on with and checked."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentState, from_json
from agentloop.cli.runs_loop import loop_of
from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from agentloop.values.execution_state import ExecutionStatus

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine

APP = '''
import os
import signal
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.interception import Approval
from agentloop.journal import SqliteJournal
from agentloop.values import InferenceResponse

HERE = Path(__file__).parent


@tool(effect="pure")
def look(x: int) -> int:
    """Look."""
    return x * 2


@tool
def pay(x: int) -> str:
    """Pay."""
    with (HERE / "ledger").open("a") as ledger:
        ledger.write(f"{x}\\n")
    if (HERE / "die").exists():
        (HERE / "die").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


CALLS = [ToolCall("1", "look", '{"x": 1}'), ToolCall("2", "pay", '{"x": 2}')]


def line(request):
    """Go on from the conversation, as a model does; a script would begin anew."""
    if any(message.exchanges for message in request.messages):
        return "done\\nreally"
    return InferenceResponse(tuple(CALLS))


script = ScriptedInference(line, line, line)
plain = AgentLoop.for_model(script, tools=[look, pay])
loop = AgentLoop.for_model(script, tools=[look, pay], journal=SqliteJournal(HERE / "runs.db"))
child = AgentLoop.for_model(ScriptedInference(CALLS[0], "seen"), tools=[look])
PARENT = ScriptedInference(ToolCall("1", "helper", '{"task": "look"}'), "it says so")
parent = AgentLoop.for_model(PARENT, tools=[child.as_tool("helper", "Helps.")], journal=loop.journal)
broken = AgentLoop.for_model(ScriptedInference(ValueError("boom")), journal=loop.journal)
not_a_loop = 7


def waiting():
    return loop.with_interceptors(Approval())


def failing_to_make():
    raise RuntimeError("no way")


if __name__ == "__main__":
    import sys

    module = sys.modules["__main__"]
    made = getattr(module, sys.argv[1])
    made = made() if callable(made) else made
    made.execute_sync(sys.argv[2], execution_id=sys.argv[3])
'''


class Program:
    """A program of a user, with a journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = str(folder / "app.py")
        self.journal = str(folder / "runs.db")
        Path(self.file).write_text(APP, encoding="utf-8")

    def run(self, name: str, question: str, execution_id: str, *, dies: bool = False) -> None:
        if dies:
            (self.folder / "die").touch()
        command = [sys.executable, self.file, name, question, execution_id]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == (-9 if dies else 0), ended.stderr

    @property
    def paid(self) -> list[str]:
        return (self.folder / "ledger").read_text().split()


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """A journal that nobody writes to: one that answered, one with a sub-agent, one that failed, one that died."""
    program = Program(tmp_path_factory.mktemp("several"))
    program.run("loop", "what is paid?", "first")
    program.run("parent", "ask the helper", "second")
    program.run("broken", "fail", "third")
    program.run("loop", "die \x1b[31min red", "fourth", dies=True)
    return program


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def test_the_list_tells_how_each_execution_stands(command_line: CommandLine, several: Program) -> None:
    """The newest comes first; one whose process was killed is called interrupted; those of sub-agents are left out."""
    ended = command_line("runs", "list", "--journal", several.journal)
    rows = [line.split()[:2] for line in ended.out.splitlines()[1:]]
    assert (ended.code, rows) == (
        0,
        [["fourth", "interrupted"], ["third", "failed"], ["second", "completed"], ["first", "completed"]],
    )
    assert "\x1b" not in ended.out
    every = json.loads(command_line("runs", "list", "--journal", several.journal, "--all", "--json").out)
    assert {row["execution_id"]: row["status"] for row in every} == {
        "fourth": "interrupted",
        "third": "failed",
        "second/1/0/agent": "completed",
        "second": "completed",
        "first": "completed",
    }
    assert every[-1]["input"] == "what is paid?"


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--status", "interrupted"], ["fourth"]),
        (["--status", "in_progress"], []),
        (["--status", "completed", "--limit", "1"], ["second"]),
        (["--limit", "3"], ["fourth", "third", "second"]),
        (["--agent", "nobody"], []),
    ],
)
def test_the_list_can_be_narrowed(
    command_line: CommandLine, several: Program, options: list[str], ids: list[str]
) -> None:
    """By status, with interrupted told apart, by agent and by number; that there are more is said."""
    ended = command_line("runs", "list", "--journal", several.journal, "--json", *options)
    assert [row["execution_id"] for row in json.loads(ended.out)] == ids
    assert ("There are more" in command_line("runs", "list", "--journal", several.journal, *options).err) == (
        "--limit" in options
    )


def test_an_account_tells_calls_outcomes_and_effects(command_line: CommandLine, several: Program) -> None:
    """Steps, calls with arguments, outcomes, the effects with how often each began, the answer and the sum."""
    out = command_line("runs", "show", "fir", "--journal", several.journal).out
    for told in (
        "execution first  completed",
        "asked     what is paid?",
        "1.1 look(x=1)  pure",
        "1.2 pay(x=2)  effect",
        "paid",
        "first/1/1  pay(x=2)  once   succeeded",
        "done\nreally\n",
        "completed in 2 steps · 2 tool calls (2 succeeded)",
    ):
        assert told in out


def test_an_account_tells_what_is_not_known(command_line: CommandLine, several: Program) -> None:
    """A call that had begun when the process died is told as such, and how to go on."""
    out = command_line("runs", "show", "fourth", "--journal", several.journal).out
    assert "pay(x=2) has begun, and nothing is known of its end" in out
    assert "fourth/1/1  pay(x=2)  once   no outcome" in out
    assert "agentloop runs resume fourth module:loop" in out


def test_what_a_sub_agent_did_stands_within_its_call(command_line: CommandLine, several: Program) -> None:
    """Its lines are indented below the call that it serves."""
    lines = command_line("runs", "show", "second", "--journal", several.journal).out.splitlines()
    call = next(number for number, line in enumerate(lines) if "helper(task=" in line)
    assert lines[call + 1] == "    agent second/1/0/agent: completed"
    assert "1.1 look(x=1)" in next(line for line in lines[call:] if line.startswith("      →"))


def test_a_step_is_shown_uncut_and_records_as_they_are(command_line: CommandLine, several: Program) -> None:
    """--step tells all of one step, --records every record, --json everything as data; a step that is not there is refused."""
    step = command_line("runs", "show", "first", "--step", "2", "--journal", several.journal)
    assert "pay" not in step.out
    assert [line.strip() for line in step.out.splitlines()[-2:]] == ["done", "really"]
    records = command_line("runs", "show", "first", "--records", "--journal", several.journal).out
    assert "call_intent" in records
    assert '"name": "pay"' in records
    data = json.loads(command_line("runs", "show", "first", "--json", "--journal", several.journal).out)
    assert [(call["name"], call["begun"], call["told"]) for call in data["calls"]] == [
        ("look", 1, "succeeded"),
        ("pay", 1, "succeeded"),
    ]
    refused = command_line("runs", "show", "first", "--step", "3", "--journal", several.journal)
    assert (refused.code, "there is no step 3; the execution has 2 steps" in refused.err) == (2, True)


def test_an_id_has_to_mean_one_execution(command_line: CommandLine, several: Program) -> None:
    """An unknown one is told with the closest, one that fits several with those."""
    unknown = command_line("runs", "show", "secnod", "--journal", several.journal)
    assert (unknown.code, "did you mean second?" in unknown.err) == (2, True)
    several_fit = command_line("runs", "show", "f", "--journal", several.journal)
    assert (several_fit.code, "2 executions begin with 'f': first, fourth" in several_fit.err) == (2, True)


def test_the_journal_is_the_one_named_or_the_usual_one(
    command_line: CommandLine, several: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option comes before the variable, that before agentloop.db in the directory; a missing one is not made."""
    monkeypatch.chdir(tmp_path)
    none = command_line("runs", "list")
    assert (none.code, "there is no agentloop.db in this directory" in none.err) == (2, True)
    missing = command_line("runs", "list", "--journal", "other.db")
    assert (missing.code, "there is no journal other.db" in missing.err) == (2, True)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setenv("AGENTLOOP_JOURNAL", several.journal)
    assert "first" in command_line("runs", "list").out
    monkeypatch.delenv("AGENTLOOP_JOURNAL")
    (tmp_path / "agentloop.db").write_text("this is no database, but long enough to be one" * 20)
    broken = command_line("runs", "list")
    assert (broken.code, "agentloop.db" in broken.err) == (1, True)
    assert "Traceback" not in broken.err


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
def test_what_is_no_loop_is_refused(command_line: CommandLine, several: Program, name: str, problem: str) -> None:
    """A name that is not there is told with the closest."""
    ended = command_line("runs", "resume", "first", f"{several.file}:{name}", "--journal", several.journal)
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


def test_a_journal_that_is_well_is_said_to_be(command_line: CommandLine, several: Program) -> None:
    """All executions, or those that are named, are looked at."""
    ended = command_line("runs", "verify", "--journal", several.journal)
    assert (ended.code, ended.out.startswith("5 executions, ")) == (0, True)
    assert "all as they were written" in ended.out
    one = command_line("runs", "verify", "first", "--journal", several.journal)
    assert (one.code, one.out.startswith("1 execution, ")) == (0, True)


def test_a_record_that_was_changed_is_found(command_line: CommandLine, program: Program) -> None:
    """The execution and the record are told, and the exit code is 1."""
    program.run("loop", "go", "one")
    with closing(sqlite3.connect(program.journal)) as connection:
        connection.execute("UPDATE records SET kind = 'call_outcome' WHERE sequence = 3")
        connection.commit()
    ended = command_line("runs", "verify", "--journal", program.journal)
    assert (ended.code, "one: record 3" in ended.out) == (1, True), ended.out


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
