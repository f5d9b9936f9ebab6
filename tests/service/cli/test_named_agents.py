"""One named agent, by every way of running: the journal, its heads and the tools know the name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, tool
from agentloop.durable import open_journal
from agentloop.events.operations import current_operation
from agentloop.service.cli.mcp import open_agent
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.server import ClusterExecutions
from agentloop.service.trace import build_trace
from agentloop.values.records import ExecutionHead
from tests.service.cli.conftest import CommandLine, ModelServer
from tests.service.server.front import calling, serving, settled, start

NAME = "support desk"


@tool(effect="pure")
async def whose() -> str:
    """Return the name of the agent that calls."""
    operation = current_operation()
    return "" if operation is None else operation.agent_name


def agent(**parts: Any) -> AgentLoop:
    """Return the agent."""
    model = calling("whose", "{}", "Done.")
    return AgentLoop.for_model(ScriptedInference(*[model] * 50), tools=[whose], name=NAME, **parts)


async def by_run(db: str) -> None:
    """Run it in a program."""
    journal = open_journal(db)
    try:
        await agent(journal=journal).run("Go.", execution_id="one")
    finally:
        await journal.aclose()


async def by_server(db: str) -> None:
    """Serve it over HTTP; a client may start the only agent by its name."""
    journal = open_journal(db)
    async with serving(agent(), journal=journal) as client:
        await start(client, id="one", agent=NAME)
        ended = await settled(client, "ada:one")
        assert (ended["agent_name"], ended["text"]) == (NAME, "Done.")
        listed = (await client.get("/executions")).json()["executions"]
        assert [each["agent_name"] for each in listed] == [NAME]
        events = (await client.get("/executions/ada:one/events")).text
        started = json.loads(events.split("data: ")[1].split("\n")[0])
        assert (started["type"], started["agent_name"]) == ("execution_started", NAME)
    await journal.aclose()


async def with_worker(db: str, work: Callable[[], Awaitable[None]]) -> None:
    """Do something while a worker runs."""
    worker = Worker(agent(), db)
    running = asyncio.create_task(worker.run())
    try:
        await worker.started()
        await work()
    finally:
        await worker.drain()
        await asyncio.wait((running,))


async def by_worker(db: str) -> None:
    """Let a worker run it."""

    async def work() -> None:
        async with Cluster(db) as cluster:
            state = await cluster.result(await cluster.submit("default", "Go."), timeout=60)
            assert (state.final_text, state.agent_name) == ("Done.", NAME)

    await with_worker(db, work)


async def by_server_of_cluster(db: str) -> None:
    """Serve it over HTTP, before workers."""

    async def work() -> None:
        async with serving(ClusterExecutions(Cluster(db), {"default": agent()})) as client:
            await start(client, id="one", agent=NAME)
            assert (await settled(client, "ada:one"))["agent_name"] == NAME

    await with_worker(db, work)


async def by_mcp_agent(db: str) -> None:
    """Serve it as a tool of MCP."""
    journal = open_journal(db)
    async with open_agent(agent(journal=journal), "support", "Helps.") as served:
        assert (await served.call({"task": "Go."}, lambda _: None)).value == "Done."
    await journal.aclose()


WAYS = (by_run, by_server, by_worker, by_server_of_cluster, by_mcp_agent)


@pytest.mark.parametrize("way", WAYS)
async def test_a_journal_knows_the_name(way: Callable[[str], Awaitable[None]], db: str) -> None:
    """The head, the state, the page of the trace and the code inside of the execution have the name; the seal of the head holds."""
    await way(db)
    journal = open_journal(db)
    try:
        (head,) = await journal.list()
        assert head.agent_name == NAME
        assert head.agent_id != NAME
        assert await journal.head(head.execution_id) == head
        state = await journal.state(head.execution_id)
        assert state.agent_name == NAME
        assert [execution.value for execution in state.steps[0].executions] == [NAME]
        assert (await build_trace(journal, head.execution_id))["executions"][0]["agent_name"] == NAME
        assert await journal.verify() == ()
    finally:
        await journal.aclose()


async def heads_of(db: str) -> tuple[ExecutionHead, ...]:
    """Return the heads of a journal."""
    journal = open_journal(db)
    try:
        return tuple(await journal.list())
    finally:
        await journal.aclose()


AGENT_FILE = """---
model: ollama:m
name: support desk
---
You help.
"""


@pytest.mark.parametrize("command", ["run", "chat"])
def test_an_agent_of_a_file_goes_by_its_name(
    command: str, command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """`run` and `chat` record the name of the file's agent, and `runs list` and `runs show` print it."""
    path, db = tmp_path / "helper.md", str(tmp_path / "runs.db")
    path.write_text(AGENT_FILE)
    server.says("Hello.")
    question = ["Hi?"] if command == "run" else []
    options = ["--agent", str(path), "--base-url", server.base_url, "--model", "ollama:m", "--journal", db]
    result = command_line(command, *question, *options, stdin="Hi?\n")
    assert result.code == 0, result
    (head,) = asyncio.run(heads_of(db))
    assert head.agent_name == NAME
    listed = command_line("runs", "list", "--journal", db)
    assert listed.out.splitlines()[0].split() == ["id", "agent", "status", "steps", "updated", "input"]
    assert NAME in listed.out
    (plain,) = json.loads(command_line("runs", "list", "--journal", db, "--json").out)
    assert (plain["agent_name"], plain["agent_id"]) == (NAME, head.agent_id)
    shown = command_line("runs", "show", head.execution_id, "--journal", db)
    assert f"agent     {NAME}, {head.agent_id}" in shown.out


def test_a_list_without_names_has_no_column_for_them(
    command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """Whoever gives no names sees the table as before."""
    db = str(tmp_path / "runs.db")
    server.says("Hello.")
    assert command_line("run", "Hi?", "--model", "ollama:m", "--base-url", server.base_url, "--journal", db).code == 0
    listed = command_line("runs", "list", "--journal", db)
    assert listed.out.splitlines()[0].split() == ["id", "status", "steps", "updated", "input"]
