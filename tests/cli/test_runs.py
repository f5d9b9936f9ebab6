"""`agentloop runs`: recorded executions are listed, shown, gone on with and checked."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.program import Program

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
    assert "record 3 was changed" in command_line("runs", "show", "one", "--journal", program.journal).err
