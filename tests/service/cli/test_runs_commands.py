"""`agentloop runs send` and `stop`, pages of `runs list`, and databases named by `--db` and AGENTLOOP_DB."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from agentloop.durable import SqliteJournal
from agentloop.service.cli.journals import journal_argument, without_password
from agentloop.values.steps import ExecutionStatus
from tests.durable.records import append_head
from tests.service.cli.conftest import CommandLine


def _fill(path: Path, **statuses: ExecutionStatus) -> None:
    async def fill() -> None:
        journal = SqliteJournal(path)
        for execution_id, status in statuses.items():
            await append_head(journal, execution_id, status=status)
        await journal.aclose()

    asyncio.run(fill())


def _run(command_line: CommandLine, *arguments: str, code: int = 0) -> str:
    result = command_line("runs", *arguments)
    assert result.code == code, result.err
    return result.out + (result.err if code or "--json" not in arguments else "")


def test_lists_have_pages_and_several_statuses(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--after` continues where another list ended, and `--status` can be repeated; the database is named in three ways."""
    path = tmp_path / "runs.db"
    progress, done, waits = ExecutionStatus.IN_PROGRESS, ExecutionStatus.COMPLETED, ExecutionStatus.SUSPENDED
    _fill(path, a=progress, b=done, c=waits, d=done)
    url = f"sqlite:///{path}"
    first = json.loads(_run(command_line, "list", "--db", url, "--json", "--limit", "100"))
    assert [each["execution_id"] for each in first] == ["d", "c", "b", "a"]
    assert [each["status"] for each in first] == ["completed", "suspended", "completed", "interrupted"]
    monkeypatch.setenv("AGENTLOOP_DB", str(path))
    rest = json.loads(_run(command_line, "list", "--json", "--after", first[1]["cursor"]))
    assert rest == first[2:]
    chosen = json.loads(_run(command_line, "list", "--json", "--status", "interrupted", "--status", "suspended"))
    assert [each["execution_id"] for each in chosen] == ["c", "a"]
    assert len(json.loads(_run(command_line, "list", "--json", "--unclaimed"))) == 4
    assert "--after" in _run(command_line, "list", "--limit", "2")
    assert "is not a cursor" in _run(command_line, "list", "--after", "x", code=2)


def test_messages_wait_and_ended_executions_take_none(command_line: CommandLine, tmp_path: Path) -> None:
    """A sent message is a command in the journal, with who sent it."""
    path = tmp_path / "runs.db"
    _fill(path, a=ExecutionStatus.IN_PROGRESS, b=ExecutionStatus.COMPLETED)
    assert "waits until a process runs" in _run(command_line, "send", "a", "Hello.", "--as", "ada", "--db", str(path))
    assert "has ended and takes no more messages" in _run(
        command_line, "send", "b", "Hello.", "--db", str(path), code=2
    )

    async def read() -> list[tuple[str, str]]:
        journal = SqliteJournal(path)
        commands = await journal.commands(["a", "b"])
        await journal.aclose()
        return [(command.principal, command.message.text if command.message else "") for command in commands]

    assert asyncio.run(read()) == [("ada", "Hello.")]


def test_stopping_what_another_process_runs_posts_a_command(command_line: CommandLine, tmp_path: Path) -> None:
    """While a live process holds the claim, `stop` asks it to stop and says so."""
    path = tmp_path / "runs.db"
    _fill(path, a=ExecutionStatus.IN_PROGRESS)
    journal = SqliteJournal(path)
    claim = asyncio.run(journal.claim("a"))
    assert "was asked to stop it" in _run(
        command_line, "stop", "a", "--reason", "too late", "--as", "ada", "--db", str(path)
    )

    async def finish() -> list[tuple[str, str, str]]:
        commands = await journal.commands(["a"])
        await claim.release()
        await journal.aclose()
        return [(command.kind.value, command.reason, command.principal) for command in commands]

    assert asyncio.run(finish()) == [("stop", "too late", "ada")]


def test_passwords_of_databases_are_never_printed(command_line: CommandLine) -> None:
    """URLs are shown without user, password and options, and commands name the environment variable instead."""
    url = "postgresql://ada:s3cret-word@db.example:5433/runs?password=other"
    assert without_password(url) == "postgresql://db.example:5433/runs"
    for mistyped in ("postgresql://ada:s3cret@[broken/runs", "postgresql:/ada:s3cret@db.example/runs"):
        assert without_password(mistyped) == "postgresql://…"
    assert without_password("sqlite:///runs.db") == "sqlite:///runs.db"
    assert without_password("C:/runs.db") == "C:/runs.db"
    assert journal_argument(url) == '--db "$AGENTLOOP_DB"'
    for arguments in (["list", "--db", url], ["show", "x", "--db", url]):
        result = command_line("runs", *arguments)
        assert result.code != 0
        assert "s3cret-word" not in result.out + result.err
