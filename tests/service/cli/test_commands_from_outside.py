"""Executions that the command line runs obey the commands of other processes: two real processes, one journal."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path

from agentloop import AgentLoop, ScriptedInference
from agentloop.durable import SqliteJournal, open_journal
from agentloop.durable.forking import fork
from agentloop.values import CommandKind, ExecutionCommand, Message
from agentloop.values.time_and_ids import SystemClock
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.service.cli.conftest import CommandLine

APP = '''
import asyncio
import os
import socket

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool


@tool(effect="pure")
async def work() -> str:
    """Work until somebody stops it."""
    socket.create_connection(("127.0.0.1", int(os.environ["STARTED_PORT"]))).close()
    await asyncio.Event().wait()
    return "never"


loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "work", "{}"), "Done."), tools=[work])
'''
COMMAND = ["runs", "resume", "forked", "app.py:loop", "--journal", "runs.db"]


@contextmanager
def working(arguments: Sequence[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a command in another process, and wait until its tool works."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(LONGEST)
        process = subprocess.Popen(
            loaded_agentloop(*arguments),
            cwd=folder,
            env={**os.environ, "STARTED_PORT": str(listener.getsockname()[1])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            listener.accept()[0].close()
            yield process
        finally:
            process.kill()
            process.communicate()


async def _record(path: Path) -> None:
    """Record an execution that has ended, and an interrupted one."""
    async with aclosing(SqliteJournal(path)) as journal:
        await AgentLoop.for_model(ScriptedInference("Hi."), journal=journal).execute("Work.", execution_id="original")
        await fork(journal, "original", 0, fork_id="forked")


def test_a_running_command_receives_messages_and_stops(command_line: CommandLine, tmp_path: Path) -> None:
    """`runs send` reports that the message was received, `runs stop` ends the execution, and both are in the journal."""
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    place = ["--journal", str(tmp_path / "runs.db")]
    asyncio.run(_record(tmp_path / "runs.db"))
    with working(COMMAND, tmp_path) as process:
        running = command_line("runs", "list", "--status", "in_progress", "--json", *place)
        assert running.code == 0, running.err
        (head,) = json.loads(running.out)
        sent = command_line("runs", "send", head["execution_id"], "Hurry.", "--as", "ada", *place)
        assert sent.out == f"{head['execution_id']}: received\n", sent.err
        stopped = command_line("runs", "stop", head["execution_id"], "--reason", "too slow", *place)
        assert stopped.code == 0, stopped.err
        _, err = process.communicate(timeout=LONGEST)
    assert process.returncode == 3, err
    shown = command_line("runs", "show", head["execution_id"], "--json", *place)
    report = json.loads(shown.out)
    assert report["execution"]["status"] == "stopped"
    assert "too slow" in shown.out
    assert "Hurry." in json.dumps(report["state"])
    assert report["undelivered"] == []


def test_a_message_that_came_too_late_is_reported_and_shown(command_line: CommandLine, tmp_path: Path) -> None:
    """What was posted just before the end is listed by `runs show`, with who sent it."""
    path = tmp_path / "runs.db"
    asyncio.run(_record(path))

    async def post() -> None:
        async with aclosing(open_journal(path)) as journal:
            await journal.post(
                ExecutionCommand(
                    id="late",
                    execution_id="original",
                    kind=CommandKind.MESSAGE,
                    message=Message.user("Wait!\x1b[2J"),
                    principal="ada",
                    posted_at=SystemClock().now(),
                )
            )

    asyncio.run(post())
    shown = command_line("runs", "show", "original", "--journal", str(path))
    assert "messages that came too late, after the end" in shown.out
    assert " by ada" in shown.out
    assert "Wait!" in shown.out
    assert "\x1b" not in shown.out
