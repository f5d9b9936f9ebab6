"""`agentloop run --journal FILE`: what happens is written down, and can be gone on with."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop.journal.sqlite.sqlite_journal import SqliteJournal
from tests.limits import LONGEST

if TYPE_CHECKING:
    from tests.cli.conftest import CommandLine, ModelServer

TOOLS = '''
from pathlib import Path

from agentloop import tool

@tool
def pay(x: int) -> str:
    """Pay."""
    with open(Path(__file__).with_name("ledger"), "a") as ledger:
        ledger.write(f"{x} ")
    return "paid"
'''


class Asked:
    """A command line that asks a server, with tools and a journal in a folder."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder = folder
        self.journal = str(folder / "r.db")
        (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
        self.options = [
            *("--model", "ollama:m", "--base-url", server.base_url),
            *("--tools", str(folder / "tools.py"), "--journal", self.journal),
        ]

    @property
    def paid(self) -> str:
        ledger = self.folder / "ledger"
        return ledger.read_text() if ledger.exists() else ""


@pytest.fixture
def asked(tmp_path: Path, server: ModelServer) -> Asked:
    return Asked(tmp_path, server)


def listed(command_line: CommandLine, asked: Asked) -> list[tuple[str, str]]:
    rows = json.loads(command_line("runs", "list", "--journal", asked.journal, "--json").out)
    return [(row["execution_id"], row["status"]) for row in rows]


def test_an_execution_is_written_down_under_an_id_that_is_told(
    command_line: CommandLine, server: ModelServer, asked: Asked
) -> None:
    """The id is told before anything happens; the answer is as without a journal."""
    server.calls(("pay", {"x": 1}))
    server.says("done")
    ended = command_line("run", "go", *asked.options)
    assert (ended.code, ended.out) == (0, "done\n")
    [(execution_id, status)] = listed(command_line, asked)
    assert status == "completed"
    assert ended.err.startswith(f"recorded as {execution_id} in {asked.journal}\n")
    assert f"--resume {execution_id}" in ended.err
    assert "pay(x=1)" in command_line("runs", "show", execution_id, "--journal", asked.journal).out


def test_a_call_that_waits_is_decided_later(command_line: CommandLine, server: ModelServer, asked: Asked) -> None:
    """Another process goes on with what the journal holds, from the beginning of an id."""
    server.calls(("pay", {"x": 2}))
    server.says("done")
    waits = command_line("run", "go", *asked.options, "--approve", "ask")
    assert (waits.code, "It waits in the journal" in waits.err) == (3, True)
    [(execution_id, _)] = listed(command_line, asked)
    ended = command_line("run", *asked.options, "--resume", execution_id[:16], "--approve", "all")
    assert (ended.code, ended.out, asked.paid) == (0, "done\n", "2 ")
    assert listed(command_line, asked) == [(execution_id, "completed")]
    assert len(server.requests) == 2


def test_the_key_is_not_written_down(
    command_line: CommandLine, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the model repeats it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    server.says("your key is sk-very-secret-key")
    file = str(tmp_path / "r.db")
    assert command_line("run", "go", "--model", "openai:m", "--base-url", server.base_url, "--journal", file).code == 0
    held = b"".join([path.read_bytes() for path in tmp_path.iterdir()])
    assert b"sk-very" not in held
    assert b"***" in held


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_what_was_ended_from_outside_can_be_gone_on_with(
    command_line: CommandLine, server: ModelServer, asked: Asked, sent: signal.Signals
) -> None:
    """Ctrl-C stops the execution and says how to go on; after kill -9 it is interrupted, and --resume goes on with it."""
    server.calls(("pay", {"x": 3}))
    server.holds()
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from agentloop.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", "go", *asked.options]
    environment = {**os.environ, "PYTHONUTF8": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        for _ in range(2):
            assert server.asked.acquire(timeout=LONGEST)
        process.send_signal(sent)
        _, err = process.communicate(timeout=LONGEST)
    [(execution_id, status)] = listed(command_line, asked)
    if sent is signal.SIGINT:
        assert (process.returncode, status) == (130, "stopped")
        assert f"It is recorded as {execution_id}" in err
        return
    assert status == "interrupted"
    server.released.set()
    server.next_answer()
    server.says("done")
    server.next_answer()
    ended = command_line("run", *asked.options, "--resume", execution_id)
    assert (ended.code, ended.out, asked.paid) == (0, "done\n", "3 ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--resume", "e1"], "--resume needs the journal"),
        (["what?", "--journal", "{file}", "--resume", "e1"], "leave the question out"),
        (["--journal", "no.db", "--resume", "e1"], "there is no journal no.db"),
        (["--journal", "{file}", "--resume", "e1"], "there is no execution e1"),
    ],
)
def test_contradictions_are_refused(
    command_line: CommandLine, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    """Nothing is asked, and nothing is made."""
    file = tmp_path / "r.db"
    journal = SqliteJournal(file)
    asyncio.run(journal.list())
    asyncio.run(journal.aclose())
    ended = command_line("run", "--model", "ollama:m", *[one.format(file=file) for one in arguments])
    assert (ended.code, problem in ended.err) == (2, True), ended.err


def test_a_journal_that_cannot_be_written_is_told(
    command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """Nothing is asked when it cannot be written down that it begins."""
    server.says("hi")
    place = str(tmp_path / "no" / "r.db")
    ended = command_line("run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--journal", place)
    assert (ended.code, "Traceback" in ended.err, server.requests) == (1, False, [])
    assert "r.db" in ended.err
