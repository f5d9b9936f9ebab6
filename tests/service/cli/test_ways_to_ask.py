"""`principal=` and `--principal`: who asks reaches the tools by every way in which this package runs an agent."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, Message, ScriptedInference, ToolContext, tool
from agentloop.durable import Journal, open_journal
from agentloop.loop import Identity
from agentloop.service.cli.mcp import open_agent, open_tools
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.server import ClusterExecutions, LocalExecutions
from agentloop.service.server.executions import CanRunExecutions
from agentloop.service.trace.document import Trace
from agentloop.service.trace.reader import build_trace
from agentloop.tools.decorator import collect_tools
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.run_requests import principal_of
from tests.service.cli.conftest import CommandLine, ModelServer
from tests.service.cli.test_ways_to_run import with_worker
from tests.service.server.front import calling

ADA = Identity("ada", tenant="acme")

TOOLS = '''
import os, signal, sys
from agentloop import ToolContext, tool

@tool(effect="pure")
def whoami(context: ToolContext) -> str:
    """Say who asks."""
    if "killed" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return str(context.principal or "nobody")
'''


@tool(effect="pure")
def whoami(context: ToolContext) -> str:
    """Say who asks."""
    return str(context.principal or "nobody")


def asking(**parts: Any) -> AgentLoop:
    """Return a loop that says who asks."""
    return AgentLoop.for_model(ScriptedInference(*[calling("whoami", "{}", "Done.")] * 50), tools=[whoami], **parts)


def told(state: AgentState) -> object:
    """Return what the tool said."""
    return state.steps[0].executions[0].value


async def by_executions(executions: CanRunExecutions) -> None:
    """Start an execution, and a turn of a session, without an HTTP server."""
    journal = executions.journal
    assert isinstance(journal, Journal)
    async with executions:
        await executions.start("default", AgentState.start("Who?"), "one", principal=ADA)
        await executions.start_turn("default", "s", Message.user("Who?"), "two", EMPTY_OBJECT, principal=ADA)
        for execution_id in ("one", "two"):
            while not (head := await journal.head(execution_id)) or not head.status.is_terminal:
                await journal.wait_for_change(execution_id, timeout=1)
            assert told(await journal.state(execution_id)) == "ada@acme"


async def locally(db: str) -> None:
    """By the executions of a server."""
    journal = open_journal(db)
    await by_executions(LocalExecutions(asking(), journal))
    await journal.aclose()


async def before_workers(db: str) -> None:
    """By the executions of a server that hands them to workers."""
    executions = ClusterExecutions(Cluster(db), {"default": asking()})
    await with_worker(Worker(asking(), db), lambda: by_executions(executions))


async def by_submission(db: str) -> None:
    """By a cluster: at once, as a turn of a session, and at the times of a schedule."""
    async with Cluster(db) as cluster:
        await cluster.submit("default", "Who?", execution_id="one", principal=ADA)
        waiting = await cluster.unrecorded_state("one")
        assert waiting is not None
        assert principal_of(waiting) == ADA

    async def work() -> None:
        async with Cluster(db) as cluster:
            await cluster.submit("default", "Who?", execution_id="two", session="s", principal=ADA)
            await cluster.schedule("tick", "* * * * * *", "default", "Who?", principal=ADA)
            assert [each.principal for each in await cluster.schedules()] == [ADA]
            while not (
                fired := [head for head in await cluster.journal.list() if head.execution_id not in {"one", "two"}]
            ):
                await cluster.journal.wait_for_change(timeout=1)
            await cluster.unschedule("tick")
            for execution_id in ("one", "two", fired[0].execution_id):
                assert told(await cluster.result(execution_id, timeout=60)) == "ada@acme"

    await with_worker(Worker(asking(), db), work)


async def by_mcp(_: str) -> None:
    """As a server of MCP: the tools, and an agent."""
    async with open_tools(collect_tools([whoami]), principal=ADA) as [served]:
        assert (await served.call({}, lambda _: None)).value == "ada@acme"
    said = ScriptedInference(*[calling("whoami", "{}", "Done.")] * 2)
    seen: list[AgentState] = []
    loop = AgentLoop.for_model(said, tools=[whoami], output_check=lambda _, inspection: seen.append(inspection.state))
    async with open_agent(loop, "asks", "Asks.", ADA) as served:
        await served.call({"task": "Who?"}, lambda _: None)
    assert told(seen[0]) == "ada@acme"


@pytest.mark.parametrize("way", [locally, before_workers, by_submission, by_mcp])
async def test_who_asks_reaches_the_tools(way: Callable[[str], Awaitable[None]], db: str) -> None:
    """A principal that a program names is the one that the tools know, in whichever process they run."""
    await way(db)


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_command_line_says_who_asks(
    command: str, command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """`--principal` reaches the tools and the journal, and `runs show` and the trace tell it."""
    path, journal = tmp_path / "who.py", str(tmp_path / "runs.db")
    path.write_text(TOOLS)
    server.calls(("whoami", {}))
    server.says("Done.")
    options = ["--model", "ollama:m", "--base-url", server.base_url, "--tools", str(path), "--journal", journal]
    question = ["Who?"] if command == "run" else []
    result = command_line(command, *question, *options, "--principal", "ada@acme", stdin="Who?\n")
    assert result.code == 0, result.err
    assert server.requests[-1]["messages"][-1]["content"] == "ada@acme"
    [head] = json.loads(command_line("runs", "list", "--journal", journal, "--json").out)
    execution_id = head["execution_id"]
    shown = command_line("runs", "show", execution_id, "--journal", journal)
    assert "\nasked by  ada@acme\n" in shown.out
    data = json.loads(command_line("runs", "show", execution_id, "--journal", journal, "--json").out)
    assert data["principal"] == "ada@acme"
    trace = asyncio.run(read_trace(journal, execution_id))
    assert [each["principal"] for each in trace["executions"]] == ["ada@acme"]


async def read_trace(location: str, execution_id: str) -> Trace:
    """Return what the viewer shows of an execution."""
    journal = open_journal(location)
    try:
        return await build_trace(journal, execution_id)
    finally:
        await journal.aclose()


@pytest.mark.parametrize("text", ["", "@acme", "@", " "])
@pytest.mark.parametrize("command", [["run", "Who?", "-m", "demo"], ["submit", "a:b", "Who?"], ["mcp", "serve"]])
def test_a_principal_without_a_name_is_a_usage_error(command: list[str], text: str, command_line: CommandLine) -> None:
    """The command says how a principal is written, and runs nothing."""
    result = command_line(*command, "--principal", text)
    assert result.code == 2, result
    assert "NAME or NAME@TENANT" in result.err


def test_an_address_is_a_name_with_one_more_sign(command_line: CommandLine, tmp_path: Path) -> None:
    """The tenant follows the last @, and can be empty."""
    db = str(tmp_path / "runs.db")
    for name, text in {"a": "ada@example.com@", "b": "ada@example.com@acme", "c": "ada"}.items():
        result = command_line("cluster", "schedule", name, "0 0 1 1 *", "x:y", "Hi.", "--db", db, "--principal", text)
        assert result.code == 0, result.err
    listed = command_line("cluster", "schedules", "--db", db)
    assert [line.split()[-2] for line in listed.out.splitlines()[1:]] == [
        "ada@example.com",
        "ada@example.com@acme",
        "ada",
    ]


PROGRAM = f"""{TOOLS}
from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.durable import open_journal
from agentloop.loop import Identity

loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "whoami", "{{}}"), "Done."), tools=[whoami])
if __name__ == "__main__":
    loop = loop.replace(journal=open_journal(sys.argv[1]))
    loop.execute_sync("Who?", execution_id="one", principal=Identity("ada", tenant="acme"))
"""


def test_another_process_knows_for_whom_a_killed_one_worked(command_line: CommandLine, tmp_path: Path) -> None:
    """The command that continues an execution of a process that was killed names nobody, and its tools know who asked."""
    agent, journal = tmp_path / "killed_who.py", str(tmp_path / "runs.db")
    agent.write_text(PROGRAM)
    killed = subprocess.run([sys.executable, agent, journal, "killed"], check=False)
    assert killed.returncode == -signal.SIGKILL
    result = command_line("runs", "recover", "one", f"{agent}:loop", "--journal", journal)
    assert result.code == 0, result.err
    shown = command_line("runs", "show", "one", "--journal", journal)
    assert "asked by  ada@acme" in shown.out
