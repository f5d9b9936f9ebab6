"""`agentloop run --journal FILE` and `--resume ID`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.durable.sqlite.sqlite_journal import SqliteJournal
from tests.limits import LONGEST
from tests.loaded import loaded_python

if TYPE_CHECKING:
    from tests.service.cli.conftest import CommandLine, ModelServer

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


class RecordedRun:
    """The options of a recorded run against a server, with tools and a journal in a folder."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self.folder = folder
        self.journal = str(folder / "r.db")
        (folder / "tools.py").write_text(TOOLS, encoding="utf-8")
        self.options = [
            *("--model", "ollama:m", "--base-url", server.base_url),
            *("--tools", str(folder / "tools.py"), "--journal", self.journal, "--approve", "all"),
        ]

    @property
    def paid(self) -> str:
        ledger = self.folder / "ledger"
        return ledger.read_text() if ledger.exists() else ""


@pytest.fixture
def recorded_run(tmp_path: Path, server: ModelServer) -> RecordedRun:
    return RecordedRun(tmp_path, server)


def list_runs(command_line: CommandLine, recorded_run: RecordedRun) -> list[tuple[str, str]]:
    rows = json.loads(command_line("runs", "list", "--journal", recorded_run.journal, "--json").out)
    return [(row["execution_id"], row["status"]) for row in rows]


def test_an_execution_is_recorded_under_a_printed_id(
    command_line: CommandLine, server: ModelServer, recorded_run: RecordedRun
) -> None:
    """The id is printed before the run, and the answer is that of a run without a journal."""
    server.calls(("pay", {"x": 1}))
    server.says("done")
    result = command_line("run", "go", *recorded_run.options)
    assert (result.code, result.out) == (0, "done\n")
    [(execution_id, status)] = list_runs(command_line, recorded_run)
    assert status == "completed"
    assert f"recorded as {execution_id} in {recorded_run.journal}\n" in result.err
    assert f"--resume {execution_id}" in result.err
    assert "pay(x=1)" in command_line("runs", "show", execution_id, "--journal", recorded_run.journal).out


def test_a_pending_call_is_decided_later(
    command_line: CommandLine, server: ModelServer, recorded_run: RecordedRun
) -> None:
    """A later command resumes the suspended execution by a prefix of its id."""
    server.calls(("pay", {"x": 2}))
    server.says("done")
    waits = command_line("run", "go", *recorded_run.options, "--approve", "ask")
    assert (waits.code, "The execution is in the journal; to resume it: " in waits.err) == (3, True)
    [(execution_id, _)] = list_runs(command_line, recorded_run)
    result = command_line("run", *recorded_run.options, "--resume", execution_id[:16], "--approve", "all")
    assert (result.code, result.out, recorded_run.paid) == (0, "done\n", "2 ")
    assert list_runs(command_line, recorded_run) == [(execution_id, "completed")]
    assert len(server.requests) == 2


def test_a_pending_call_is_shown_as_whoever_decides_sees_it(
    command_line: CommandLine, server: ModelServer, recorded_run: RecordedRun
) -> None:
    """`runs show` has the whole call, with its defaults; a step has its lines, and JSON the digest of its text, too."""
    tools = TOOLS.replace("x: int", 'x: int, note: str, to: str = "everybody"')
    (recorded_run.folder / "tools.py").write_text(tools, encoding="utf-8")
    note = "all is well " * 2_000
    server.calls(("pay", {"x": 2, "note": f"{note}\u200b"}))
    command_line("run", "go", *recorded_run.options, "--approve", "ask")
    [(execution_id, _)] = list_runs(command_line, recorded_run)
    show = ["runs", "show", execution_id, "--journal", recorded_run.journal]
    whole = f'pay(x=2, note="{note}\\u200b", to="everybody" (default))'
    assert f"{whole} waits for a decision" in command_line(*show).out
    lines = [line.strip() for line in command_line(*show, "--step", "1").out.splitlines()]
    first = lines.index('to = "everybody" (default)') - 2
    assert lines[first : first + 2] == ["x = 2", f'note = "{note}\\u200b"']
    [pending] = json.loads(command_line(*show, "--json").out)["pending"]
    assert pending["rendering"] == f'pay\n  x = 2\n  note = "{note}\\u200b"\n  to = "everybody" (default)'
    assert re.fullmatch("[0-9a-f]{64}", pending["digest"])


def test_the_key_is_not_recorded(
    command_line: CommandLine, server: ModelServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API key is masked in the journal, also where the model repeats it."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-very-secret-key")
    server.says("your key is sk-very-secret-key")
    file = str(tmp_path / "r.db")
    assert command_line("run", "go", "--model", "openai:m", "--base-url", server.base_url, "--journal", file).code == 0
    assert not list(tmp_path.glob("*-wal"))  # the command has closed its journal
    content = b"".join([path.read_bytes() for path in tmp_path.iterdir()])
    assert b"sk-very" not in content
    assert b"***" in content


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT to send to one process")
@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_can_be_continued(
    command_line: CommandLine, server: ModelServer, recorded_run: RecordedRun, signal_number: signal.Signals
) -> None:
    """Ctrl-C and kill -9 interrupt the execution, and --resume resumes it; Ctrl-C also prints the next commands."""
    server.calls(("pay", {"x": 3}))
    server.holds()
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from agentloop.service.cli.main import main; main()"
    command = loaded_python("-c", code, "run", "go", *recorded_run.options)
    environment = {**os.environ, "PYTHONUTF8": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        for _ in range(2):
            assert server.request_received.acquire(timeout=LONGEST)
        process.send_signal(signal_number)
        _, err = process.communicate(timeout=LONGEST)
    [(execution_id, status)] = list_runs(command_line, recorded_run)
    if signal_number is signal.SIGINT:
        assert process.returncode == 130
        assert f"The execution is recorded as {execution_id}." in err
    assert status == "interrupted"
    server.released.set()
    server.next_answer()
    server.says("done")
    server.next_answer()
    result = command_line("run", *recorded_run.options, "--resume", execution_id)
    assert (result.code, result.out, recorded_run.paid) == (0, "done\n", "3 ")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--resume", "e1"], "--resume requires the journal"),
        (["what?", "--journal", "{file}", "--resume", "e1"], "omit the question"),
        (["--journal", "no.db", "--resume", "e1"], "there is no journal no.db"),
        (["--journal", "{file}", "--resume", "e1"], "there is no execution e1"),
    ],
)
def test_contradicting_options_are_rejected(
    command_line: CommandLine, tmp_path: Path, arguments: list[str], problem: str
) -> None:
    """Options that contradict each other, or name nothing, are usage errors."""
    file = tmp_path / "r.db"
    journal = SqliteJournal(file)
    asyncio.run(journal.list())
    asyncio.run(journal.aclose())
    result = command_line("run", "--model", "ollama:m", *[argument.format(file=file) for argument in arguments])
    assert (result.code, problem in result.err) == (2, True), result.err


def test_an_unwritable_journal_is_reported(command_line: CommandLine, server: ModelServer, tmp_path: Path) -> None:
    """Without a writable journal, no request is sent."""
    server.says("hi")
    (tmp_path / "r.db").mkdir()
    for place, code in ((tmp_path / "no" / "r.db", 2), (tmp_path / "r.db", 1)):
        result = command_line(
            "run", "go", "--model", "ollama:m", "--base-url", server.base_url, "--journal", str(place)
        )
        assert (result.code, "Traceback" in result.err, server.requests) == (code, False, [])
        assert "r.db" in result.err


def test_the_traceback_of_a_failed_tool_is_shown_to_who_looks_for_it(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed call is one line; `--step` and `--debug` show its traceback below it, with every character visible."""
    monkeypatch.setenv("AGENTLOOP_DEBUG", "0")  # `--debug` sets it, and this sets it back
    journal = SqliteJournal(tmp_path / "r.db")

    @tool
    async def fail() -> None:
        """Fail."""
        raise LookupError("no price\x1b[31m")

    model = ScriptedInference(ToolCall("1", "fail"), "Sorry.")
    loop = AgentLoop.for_model(model, tools=[fail], journal=journal)

    async def record() -> None:
        await loop.execute("Go.", execution_id="run")
        await journal.aclose()

    asyncio.run(record())
    options = ("runs", "show", "run", "--journal", str(tmp_path / "r.db"))
    plain, step, debug = (
        command_line(*each).out for each in (options, (*options, "--step", "1"), ("--debug", *options))
    )
    assert "LookupError: no price" in plain
    assert "Traceback" not in plain
    for shown in (step, debug):
        lines = [line.strip() for line in shown.splitlines()]
        first = lines.index("Traceback (most recent call last):")
        assert "LookupError: no price" in lines[first - 1]
        assert 'raise LookupError("no price\\x1b[31m")' in lines
        assert any("in fail" in line for line in lines[first:])
        assert "\x1b" not in shown
    assert "answer" in debug
