"""`agentloop memory`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agentloop.toolkits.memory import MemoryFile, MemoryScope
from tests.service.cli.conftest import CommandLine

ADA = MemoryScope(user="ada", session="1")


@pytest.fixture
def file(tmp_path: Path) -> MemoryFile:
    """Return a file with two memories of one scope and one of another."""
    file = MemoryFile(tmp_path / "memories.db")
    for scope, text, hour in (
        (ADA, "likes tea\n\x1b[31m", 1),
        (ADA, "lives in Rome", 2),
        (MemoryScope(user="bob"), "no", 3),
    ):
        at = datetime(2026, 1, 1, hour, tzinfo=UTC)
        file.remember(scope, text, written_at=at, execution_id="e", call_key=f"e/{hour}/0")
    return file


def test_memories_of_a_scope_are_listed_and_exported(command_line: CommandLine, file: MemoryFile) -> None:
    """The newest is first, a query selects, and texts cannot control the terminal."""
    options = [str(file.path), "--user", "ada", "--session", "1"]
    done = command_line("memory", "list", *options)
    assert (done.code, len(done.out.splitlines())) == (0, 2)
    assert done.out.splitlines()[0].endswith("2026-01-01T02:00:00+00:00  lives in Rome")
    assert "\x1b" not in done.out
    assert "Rome" not in command_line("memory", "list", *options, "--query", "tea").out
    exported = [json.loads(line) for line in command_line("memory", "export", *options).out.splitlines()]
    assert [(entry["text"], entry["call_key"]) for entry in exported] == [
        ("lives in Rome", "e/2/0"),
        ("likes tea\n\x1b[31m", "e/1/0"),
    ]


def test_memories_are_forgotten(command_line: CommandLine, file: MemoryFile) -> None:
    """By id or all of a scope; those of another scope stay."""
    options = [str(file.path), "--user", "ada", "--session", "1"]
    newest = file.memories(ADA)[0].id
    assert command_line("memory", "forget", *options, newest).out == "forgotten: 1\n"
    assert [entry.text for entry in file.memories(ADA)] == ["likes tea\n\x1b[31m"]
    assert command_line("memory", "forget", *options, "--all").out == "forgotten: 1\n"
    assert file.memories(ADA) == []
    assert len(file.memories(MemoryScope(user="bob"))) == 1


def test_mistakes_are_usage_errors(command_line: CommandLine, file: MemoryFile, tmp_path: Path) -> None:
    """A missing scope, an unknown id, neither or both of ids and --all, and another file exit with 2."""
    (tmp_path / "x.txt").write_text("some text that is no database" * 100)
    path = str(file.path)
    assert "Missing option '--user', '--agent', '--session' or '--tenant'" in command_line("memory", "list", path).err
    for arguments in (
        ["export", path],
        ["list", str(tmp_path / "missing.db"), "--user", "ada"],
        ["list", str(tmp_path / "x.txt"), "--user", "ada"],
        ["forget", path, "--user", "ada", "nope"],
        ["forget", path, "--user", "ada"],
        ["forget", path, "--user", "ada", "--all", "nope"],
    ):
        done = command_line("memory", *arguments)
        assert done.code == 2, arguments
        assert "Traceback" not in done.err
