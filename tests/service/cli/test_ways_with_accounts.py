"""One agent file with an account of money, unchanged, by every way of running: all use one sum, in the database of the way."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

from agentloop import AgentLoop, AgentState, HttpInference, LLMConfig
from agentloop.contracts import CanKeepAccounts
from agentloop.durable import open_journal
from agentloop.errors import ToolFailed
from agentloop.service.cli.mcp import open_agent
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.server import ClusterExecutions
from agentloop.values import AccountHold, AccountKey, AccountState, Spending
from tests.limits import LONGEST
from tests.service.cli.conftest import CommandLine, ModelServer
from tests.service.server.front import serving, settled, start

LIMIT = 1_000
FILE = f"""
model = "ollama:m"
max_steps = 5
[accounts.support]
tokens = {LIMIT}
max_output_tokens = 100
"""
REFUSAL = f"the budget account 'support' has 0 of {LIMIT:,} tokens left"


@frozen
class Agent:
    """The agent, and what asks it needs.

    Attributes:
        file: its file.
        db: the database.
        model: the server of its model.
        command_line: the command line.
    """

    file: Path
    db: str
    model: ModelServer
    command_line: CommandLine

    def loop(self) -> AgentLoop[Any]:
        """Return the agent, as a program has it."""
        inference = HttpInference(LLMConfig.parse("ollama:m", base_url=self.model.base_url))
        return AgentLoop.from_file(self.file, model=inference)

    async def ask(self, work: Callable[[Any], Awaitable[str]]) -> str:
        """Return what the agent answers with a journal in the database."""
        journal = open_journal(self.db)
        try:
            return await work(journal)
        finally:
            await journal.aclose()

    def command(self, name: str, *arguments: str, stdin: str = "") -> str:
        """Return what a command writes."""
        options = ["--agent", str(self.file), "--model", "ollama:m", "--base-url", self.model.base_url]
        result = self.command_line(name, *arguments, *options, "--journal", self.db, stdin=stdin)
        return result.out + result.err


def _say(state: AgentState) -> str:
    assert state.stop_signal is not None
    return state.final_text or state.stop_signal.message


def by_run(agent: Agent) -> str:
    """Run it by the command line."""
    return agent.command("run", "How many?")


def by_chat(agent: Agent) -> str:
    """Chat with it."""
    return agent.command("chat", stdin="How many?\n")


def by_program(agent: Agent) -> str:
    """Run it in a program."""

    async def work(journal: Any) -> str:
        state = await agent.loop().replace(journal=journal).execute("How many?")
        return _say(state)

    return asyncio.run(agent.ask(work))


def by_server(agent: Agent) -> str:
    """Serve it over HTTP."""

    async def work(journal: Any) -> str:
        async with serving(agent.loop(), journal=journal) as client:
            return str(await settled(client, (await start(client))["id"]))

    return asyncio.run(agent.ask(work))


def by_worker(agent: Agent) -> str:
    """Let a worker run it."""

    async def work() -> str:
        async with Cluster(agent.db) as cluster:
            state = await cluster.result(await cluster.submit("default", "How many?"), timeout=LONGEST)
            return _say(state)

    return asyncio.run(_with_worker(agent, work))


def by_server_of_cluster(agent: Agent) -> str:
    """Serve it over HTTP, before workers."""

    async def work() -> str:
        async with serving(ClusterExecutions(Cluster(agent.db), {"default": agent.loop()})) as client:
            return str(await settled(client, (await start(client))["id"]))

    return asyncio.run(_with_worker(agent, work))


def by_mcp(agent: Agent) -> str:
    """Serve it as a tool of MCP."""

    async def work(journal: Any) -> str:
        async with open_agent(agent.loop().replace(journal=journal), "support", "Counts.") as served:
            try:
                return str((await served.call({"task": "How many?"}, lambda _: None)).value)
            except ToolFailed as error:
                return str(error)

    return asyncio.run(agent.ask(work))


async def _with_worker(agent: Agent, work: Callable[[], Awaitable[str]]) -> str:
    worker = Worker(agent.loop(), agent.db)
    running = asyncio.create_task(worker.run())
    try:
        await worker.started()
        return await work()
    finally:
        await worker.drain()
        await asyncio.wait((running,))


WAYS = (by_run, by_chat, by_program, by_server, by_worker, by_server_of_cluster, by_mcp)


async def _update(db: str, change: Callable[[AccountState], AccountState]) -> AccountState:
    """Change the account, and return it."""
    journal = open_journal(db)
    assert isinstance(journal, CanKeepAccounts)
    try:
        return (await journal.update_account(AccountKey("support"), change)).after
    finally:
        await journal.aclose()


def _use_up(state: AccountState) -> AccountState:
    return state.note(AccountHold("others", Spending(LIMIT), 0)).settle("others", Spending(LIMIT))


@pytest.mark.parametrize("way", WAYS)
def test_each_way_charges_and_asks_the_account(
    way: Callable[[Agent], str], db: str, server: ModelServer, command_line: CommandLine, tmp_path: Path
) -> None:
    """The first answer is charged to the sum in the database; when others have used it up, no request is sent, and why is said."""
    file = tmp_path / "agent.toml"
    file.write_text(FILE)
    agent = Agent(file, db, server, command_line)
    server.says("There are 2.")
    assert "There are 2." in way(agent)
    charged = asyncio.run(_update(db, lambda state: state))
    assert (charged.requests, charged.spent.tokens, charged.holds) == (1, 25, ())
    asyncio.run(_update(db, _use_up))
    assert REFUSAL in way(agent)
    assert len(server.requests) == 1
