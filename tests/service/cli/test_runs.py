"""`agentloop runs list`, `runs show` and `runs verify`."""

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
from attrs import evolve

from agentloop import AgentLoop, ScriptedInference
from agentloop.durable import MemoryJournal, SqliteJournal
from agentloop.durable.chain import chain_record
from agentloop.values.steps import ExecutionStatus
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


@pytest.fixture
def program(tmp_path: Path, loaded: LoadedProcess) -> Program:
    return Program(tmp_path, loaded)


def test_the_list_has_the_status_of_each_execution(command_line: CommandLine, several: Program) -> None:
    """The newest is first, one whose process was killed is interrupted, and sub-agents are left out."""
    result = command_line("runs", "list", "--journal", several.journal)
    rows = [line.split()[:2] for line in result.out.splitlines()[1:]]
    assert (result.code, rows) == (
        0,
        [["fourth", "interrupted"], ["third", "failed"], ["second", "completed"], ["first", "completed"]],
    )
    assert "\x1b" not in result.out
    all_rows = json.loads(command_line("runs", "list", "--journal", several.journal, "--all", "--json").out)
    assert {row["execution_id"]: row["status"] for row in all_rows} == {
        "fourth": "interrupted",
        "third": "failed",
        "second/1/0/agent": "completed",
        "second": "completed",
        "first": "completed",
    }
    assert all_rows[-1]["input"] == "what is paid?"


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
def test_the_list_can_be_filtered(
    command_line: CommandLine, several: Program, options: list[str], ids: list[str]
) -> None:
    """--status, --agent and --limit filter the list; the output says when there are more."""
    result = command_line("runs", "list", "--journal", several.journal, "--json", *options)
    assert [row["execution_id"] for row in json.loads(result.out)] == ids
    assert ("There are more" in command_line("runs", "list", "--journal", several.journal, *options).err) == (
        "--limit" in options
    )


def test_an_account_has_calls_outcomes_and_effects(command_line: CommandLine, several: Program) -> None:
    """`runs show` prints steps, calls, outcomes, the number of starts of each effect, the answer and a summary."""
    out = command_line("runs", "show", "fir", "--journal", several.journal).out
    for text in (
        "execution first  completed",
        "input     what is paid?",
        "1.1 look(x=1)  pure",
        "1.2 pay(x=2)  effect",
        "paid",
        "first/1/1  pay(x=2)  once     succeeded",
        "done\nreally\n",
        "completed in 2 steps · 2 tool calls (2 succeeded)",
    ):
        assert text in out


def test_an_account_names_unknown_outcomes(command_line: CommandLine, several: Program) -> None:
    """A call that had started when the process died is shown as such, with the command that resumes the execution."""
    out = command_line("runs", "show", "fourth", "--journal", several.journal).out
    assert "pay(x=2) started, and its outcome is unknown" in out
    assert "fourth/1/1  pay(x=2)  once     no outcome: interrupted, may have run" in out
    assert "agentloop runs resume fourth module:loop" in out


def test_a_call_that_is_killed_after_its_approval_does_not_wait(command_line: CommandLine, program: Program) -> None:
    """The state still says that it waits, but it has started since: its outcome is unknown."""
    program.run("waiting", "what is paid?", "one")
    before = command_line("runs", "show", "one", "--journal", program.journal).out
    assert "(1 succeeded, 1 waiting)" in before
    (program.folder / "die").touch()
    command = [
        "-m",
        "agentloop.service.cli.main",
        "runs",
        "resume",
        "one",
        f"{program.file}:waiting",
        "--approve",
        "1.2",
    ]
    killed = subprocess.run([sys.executable, *command], capture_output=True, timeout=LONGEST, check=False)
    assert (killed.returncode, program.paid) == (-9, ["2"]), killed.stderr
    out = command_line("runs", "show", "one", "--journal", program.journal).out
    assert "execution one  interrupted" in out
    assert "one/1/1  pay(x=2)  once     no outcome: interrupted, may have run" in out
    assert "waits" not in out.partition("effects")[2]


def test_a_sub_agent_is_shown_inside_its_call(command_line: CommandLine, several: Program) -> None:
    """The lines of a sub-agent are indented below the call that it serves."""
    lines = command_line("runs", "show", "second", "--journal", several.journal).out.splitlines()
    call = next(number for number, line in enumerate(lines) if "helper(task=" in line)
    assert lines[call + 1] == "    agent second/1/0/agent: completed"
    assert "1.1 look(x=1)" in next(line for line in lines[call:] if line.startswith("      →"))


def test_steps_records_and_data_are_shown_in_full(command_line: CommandLine, several: Program) -> None:
    """--step shows one step in full, --records every record, --json everything as data; an unknown step is a usage error."""
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


def test_an_id_must_match_one_execution(command_line: CommandLine, several: Program) -> None:
    """The error for an unknown id suggests the closest one, the error for an ambiguous prefix lists the matches."""
    unknown = command_line("runs", "show", "secnod", "--journal", several.journal)
    assert (unknown.code, "did you mean second?" in unknown.err) == (2, True)
    ambiguous = command_line("runs", "show", "f", "--journal", several.journal)
    assert (ambiguous.code, "2 executions start with 'f': first, fourth" in ambiguous.err) == (2, True)


def test_the_journal_is_the_named_one_or_the_default(
    command_line: CommandLine, several: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option precedes the variable, which precedes agentloop.db in the directory; a missing journal is not created."""
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


def test_an_intact_journal_is_reported_as_intact(command_line: CommandLine, several: Program) -> None:
    """`runs verify` verifies all executions, or the named ones."""
    result = command_line("runs", "verify", "--journal", several.journal)
    assert (result.code, result.out.startswith("5 executions, ")) == (0, True)
    assert "all intact" in result.out
    single = command_line("runs", "verify", "first", "--journal", several.journal)
    assert (single.code, single.out.startswith("1 execution, ")) == (0, True)


def test_intact_records_that_say_what_they_must_not_are_reported(
    command_line: CommandLine, several: Program, tmp_path: Path
) -> None:
    """`runs verify --model` finds what a writer has stored wrongly, and nothing in what the package has stored."""
    result = command_line("runs", "verify", "--model", "--journal", several.journal)
    assert (result.code, "all intact" in result.out) == (0, True), result.out
    path = tmp_path / "wrong.db"
    store_two_starts(path)
    assert command_line("runs", "verify", "--journal", str(path)).code == 0
    wrong = command_line("runs", "verify", "--model", "--journal", str(path))
    assert (wrong.code, "x: record 2: execution_started while the execution is running" in wrong.out) == (1, True)


def store_two_starts(path: Path) -> None:
    """Store an execution that starts twice, in a chain that is intact."""

    async def store() -> None:
        journal = SqliteJournal(path)
        loop = AgentLoop.for_model(ScriptedInference("done"), journal=MemoryJournal())
        await loop.execute("go", execution_id="x")
        assert loop.journal is not None
        head, (start, *_) = await loop.journal.head("x"), await loop.journal.read("x")
        assert head is not None
        again = chain_record("x", 2, start.kind, start.body, at=start.at, previous_hash=start.hash)
        claim = await journal.claim("x")
        running = evolve(head, status=ExecutionStatus.IN_PROGRESS, record_count=2, last_hash=again.hash)
        await journal.append(running, [start, again], claim)
        await journal.aclose()

    asyncio.run(store())


def test_a_changed_record_is_reported(command_line: CommandLine, program: Program) -> None:
    """The problem names the execution and the record, and the exit code is 1."""
    program.run("loop", "go", "one")
    with closing(sqlite3.connect(program.journal)) as connection:
        connection.execute("UPDATE records SET kind = 'call_outcome' WHERE sequence = 3")
        connection.commit()
    result = command_line("runs", "verify", "--journal", program.journal)
    assert (result.code, "one: record 3" in result.out) == (1, True), result.out
    assert "record 3 was changed" in command_line("runs", "show", "one", "--journal", program.journal).err
