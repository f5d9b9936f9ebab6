"""`agentloop runs recover`, `stop`, `delete` and `purge`: the maintenance of a journal."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from agentloop.values.records import ExecutionHead
from tests.limits import LONGEST
from tests.loaded import LoadedProcess
from tests.service.cli.program import Program

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine


@pytest.fixture
def program(tmp_path: Path, loaded: LoadedProcess) -> Program:
    return Program(tmp_path, loaded)


def statuses(command_line: CommandLine, program: Program) -> dict[str, str]:
    """Return the effective status of every execution."""
    listed = command_line("runs", "list", "--all", "--limit", "99", "--json", "--journal", program.journal)
    return {row["execution_id"]: row["status"] for row in json.loads(listed.out)}


def heads(program: Program) -> list[ExecutionHead]:
    """Return the heads of all executions."""

    async def read() -> list[ExecutionHead]:
        journal = SqliteJournal(program.journal)
        try:
            return list(await journal.list())
        finally:
            await journal.aclose()

    return asyncio.run(read())


def test_all_interrupted_executions_are_recovered(command_line: CommandLine, program: Program) -> None:
    """Each is described and recovered; those that have ended or are claimed are left alone, also by a second command."""
    for execution_id in ("one", "two", "held"):
        program.run("loop", "go", execution_id, is_killed=True)
    program.run("loop", "go", "ended")
    journal = SqliteJournal(program.journal)
    claim = asyncio.run(journal.claim("held"))
    planned = command_line("runs", "recover", "--all", f"{program.file}:loop", "--dry-run")
    assert (planned.code, statuses(command_line, program)["one"]) == (0, "interrupted")
    assert "one: reuses 1 response and " in planned.err  # `look` may have ended before the kill
    assert "one: pay(x=2) was interrupted: is in doubt unless its tool can tell" in planned.err
    named = command_line("runs", "recover", "held", f"{program.file}:loop")
    assert (named.code, "held: skipped: execution held is claimed" in named.err) == (1, True)
    result = command_line("runs", "recover", "--all", f"{program.file}:loop")
    asyncio.run(claim.release())
    asyncio.run(journal.aclose())
    assert (result.code, result.out) == (0, "")
    assert "one: completed" in result.err
    assert "two: completed" in result.err
    assert "held" not in result.err
    expected = {"one": "completed", "two": "completed", "held": "interrupted", "ended": "completed"}
    assert statuses(command_line, program) == expected
    assert program.paid == ["2"] * 4
    assert command_line("runs", "recover", "held", f"{program.file}:loop").code == 0
    again = command_line("runs", "recover", "--all", f"{program.file}:loop")
    assert (again.code, again.err) == (0, "no interrupted executions\n")


def test_a_fork_of_a_sub_agent_is_recovered_with_all(command_line: CommandLine, program: Program) -> None:
    """It serves no call, although its source does."""
    program.run("parent", "go", "one")
    journal = SqliteJournal(program.journal)
    fork_id = asyncio.run(journal.fork("one/1/0/agent", 0))
    asyncio.run(journal.aclose())
    result = command_line("runs", "recover", "--all", f"{program.file}:child", "--journal", program.journal)
    assert (result.code, f"{fork_id}: completed" in result.err) == (0, True), result.err


def test_an_error_of_one_does_not_stop_the_others(command_line: CommandLine, program: Program) -> None:
    """Damaged records are reported with exit code 1, and the next execution is recovered."""
    for execution_id in ("bad", "good"):
        program.run("loop", "go", execution_id, is_killed=True)
    script = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
        "c.execute(\"UPDATE records SET body = '{}' WHERE execution_id = 'bad' AND sequence = 1\"); c.commit()"
    )
    subprocess.run([sys.executable, "-c", script, program.journal], check=True, timeout=LONGEST)
    result = command_line("runs", "recover", "--all", f"{program.file}:loop")
    assert result.code == 1
    assert "bad: not recovered: JournalCorrupt" in result.err
    assert "good: completed" in result.err


def test_either_ids_or_all_are_named(command_line: CommandLine, program: Program) -> None:
    """Neither both nor none."""
    program.run("loop", "go", "one")
    for arguments in ([], ["--all", "one"]):
        result = command_line("runs", "recover", *arguments, f"{program.file}:loop")
        assert (result.code, "or all of them with --all" in result.err) == (2, True)


@pytest.mark.parametrize("name", ["loop", "waiting"])
def test_an_execution_is_stopped(command_line: CommandLine, program: Program, name: str) -> None:
    """An interrupted or suspended execution ends as stopped with its calls settled, once; it is not recovered any more."""
    program.run(name, "go", "one", is_killed=name == "loop")
    paid = ["2"] if name == "loop" else []
    result = command_line("runs", "stop", "one", "--journal", program.journal, "--reason", "not needed")
    assert (result.code, result.out) == (0, "one: stopped\n")
    shown = command_line("runs", "show", "one", "--journal", program.journal).out
    assert "not needed" in shown
    assert ("in doubt" if name == "loop" else "cancelled") in shown
    command_line("runs", "recover", "--all", f"{program.file}:{name}")
    assert statuses(command_line, program) == {"one": "stopped"}
    assert (program.paid if paid else []) == paid
    again = command_line("runs", "stop", "one", "--journal", program.journal)
    assert (again.code, "has ended already: it is stopped" in again.err) == (1, True)
    assert command_line("runs", "verify", "--journal", program.journal).code == 0


def test_a_running_execution_is_asked_to_stop_and_not_deleted(command_line: CommandLine, program: Program) -> None:
    """Whoever holds the claim gets the command to stop; the error of a deletion names the holder."""
    program.run("loop", "go", "one", is_killed=True)
    journal = SqliteJournal(program.journal)
    claim = asyncio.run(journal.claim("one"))
    stopped = command_line("runs", "stop", "one", "--journal", program.journal)
    assert (stopped.code, stopped.out) == (0, "one: a process runs it and was asked to stop it\n")
    deleted = command_line("runs", "delete", "one", "--journal", program.journal)
    assert (deleted.code, "one is claimed by another writer of this process" in deleted.err) == (1, True)
    asyncio.run(claim.release())
    asyncio.run(journal.aclose())
    assert statuses(command_line, program) == {"one": "interrupted"}


@pytest.mark.parametrize("execution_id", ["", " "])
def test_an_empty_id_deletes_nothing(command_line: CommandLine, program: Program, execution_id: str) -> None:
    """Although it is the beginning of the only id: it is that of an unset variable of a script."""
    program.run("loop", "what is paid?", "one")
    refused = command_line("runs", "delete", execution_id, "--journal", program.journal)
    assert (refused.code, "the id of the execution is empty" in refused.err) == (2, True)
    assert "one" in command_line("runs", "list", "--journal", program.journal).out


def test_an_execution_is_deleted_with_its_sub_agents(command_line: CommandLine, program: Program) -> None:
    """The command prints what was deleted; a sub-agent is not deleted without its caller."""
    program.run("parent", "go", "one")
    program.run("parent", "go", "two")
    refused = command_line("runs", "delete", "one/1/0/agent", "--journal", program.journal)
    assert (refused.code, "delete one" in refused.err) == (1, True)
    result = command_line("runs", "delete", "one", "--journal", program.journal)
    assert (result.code, result.out) == (0, "deleted one: 2 executions\n")
    assert set(statuses(command_line, program)) == {"two", "two/1/0/agent"}
    assert command_line("runs", "delete", "none", "--journal", program.journal).code == 2


def test_old_executions_are_purged(command_line: CommandLine, program: Program) -> None:
    """Without --yes nothing is deleted; unfinished executions and other statuses are retained."""
    program.run("parent", "go", "one")
    program.run("broken", "go", "two")
    program.run("loop", "go", "three", is_killed=True)
    purge = ("runs", "purge", "--journal", program.journal, "--older-than")
    assert command_line(*purge, "1d").out == "nothing to delete\n"
    listed = command_line(*purge, "0s")
    assert listed.out.splitlines()[-1].endswith("; --yes deletes them")
    assert {line.split()[0] for line in listed.out.splitlines()[:-1]} == {"one", "two"}
    assert len(heads(program)) == 4
    deleted = command_line(*purge, "0s", "--status", "completed", "--yes")
    assert "one  completed" in deleted.out
    assert deleted.out.splitlines()[-1].startswith("deleted 2 executions with ")
    assert set(statuses(command_line, program)) == {"two", "three"}
    command_line(*purge, "0s", "--yes")
    assert set(statuses(command_line, program)) == {"three"}


@pytest.mark.parametrize("age", ["", "1", "1y", "-1d", "one day", "9" * 30 + "w", "99999999w"])
def test_invalid_ages_are_usage_errors(command_line: CommandLine, program: Program, age: str) -> None:
    """Nothing is deleted."""
    program.run("loop", "go", "one")
    result = command_line("runs", "purge", "--journal", program.journal, "--yes", "--older-than", age)
    assert result.code == 2
    assert len(heads(program)) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everything")
def test_a_journal_is_shown_without_write_permission(command_line: CommandLine, program: Program) -> None:
    """Listing and showing need no permission to write the file or its folder."""
    program.run("loop", "go", "one")
    Path(program.journal).chmod(0o400)
    program.folder.chmod(0o500)
    try:
        shown = command_line("runs", "show", "one", "--journal", program.journal)
        assert (shown.code, statuses(command_line, program)) == (0, {"one": "completed"})
    finally:
        program.folder.chmod(0o700)


def test_executions_are_searched(command_line: CommandLine, program: Program) -> None:
    """By their texts, by their age, and by calls of which nobody knows whether they ran."""
    program.run("loop", "what is paid?", "one")
    program.run("loop", "go", "two", is_killed=True)
    program.run("waiting", "go", "three")
    command_line("runs", "stop", "two", "--journal", program.journal)  # its call was interrupted
    listing = ("runs", "list", "--json", "--journal", program.journal)
    for options, found in (
        (["--text", "PAID?"], ["one"]),
        (["--doubts"], ["two"]),
        (["--older-than", "1h"], []),
        (["--since", "1h", "--status", "suspended"], ["three"]),
        (["--since", "2020-01-01", "--status", "completed"], ["one"]),
        (["--asked-by", "ada"], []),
        (["--tag", "case=7"], []),
    ):
        listed = command_line(*listing, *options)
        assert [row["execution_id"] for row in json.loads(listed.out)] == found, options


def test_all_that_a_search_finds_are_stopped(command_line: CommandLine, program: Program) -> None:
    """They are only listed without --yes; those that have ended are not touched."""
    program.run("loop", "go", "ended")
    for name in ("one", "two"):
        program.run("waiting", "go", name)
    stop = ("runs", "stop", "--journal", program.journal)
    listed = command_line(*stop, "--text", "go")
    assert [line.split()[0] for line in listed.out.splitlines()] == ["two", "one", "2"]
    assert listed.out.endswith("2 executions; --yes stops them\n")
    assert statuses(command_line, program)["one"] == "suspended"
    assert command_line(*stop, "--text", "go", "--yes").out == "two: stopped\none: stopped\n"
    assert statuses(command_line, program) == {"ended": "completed", "one": "stopped", "two": "stopped"}
    assert command_line(*stop, "--text", "go").out == "no execution that it stops\n"
    both = command_line(*stop, "one", "--text", "go")
    assert (both.code, "name an execution, or select executions by options" in both.err) == (2, True)


def test_all_that_a_search_finds_are_deleted(command_line: CommandLine, program: Program) -> None:
    """With those of their sub-agents; they are only listed without --yes."""
    program.run("parent", "go", "one")
    program.run("broken", "go", "two")
    delete = ("runs", "delete", "--journal", program.journal, "--status", "completed")
    listed = command_line(*delete)
    assert listed.out.splitlines()[0].startswith("one  completed  ")
    assert listed.out.endswith("; --yes deletes them\n")
    assert len(heads(program)) == 3
    assert command_line(*delete, "--yes").out.splitlines()[-1].startswith("deleted 2 executions with ")
    assert set(statuses(command_line, program)) == {"two"}
