"""One agent, unchanged, by every way of running: its tool gets the dependencies that are made for the run."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field, frozen

from agentloop import AgentLoop, ScriptedInference, ToolContext, tool
from agentloop.durable import MemoryJournal, open_journal
from agentloop.errors import InvalidDependencies, ToolFailed, WorkFailed
from agentloop.loop import RunRequest
from agentloop.service.cli.mcp import open_agent, open_tools
from agentloop.service.cluster import Cluster, QueuedToolExecutor, Worker
from agentloop.service.server import ClusterExecutions, LocalExecutions
from agentloop.tools.decorator import collect_tools
from tests.service.cli.conftest import CommandLine, ModelServer
from tests.service.server.front import adder, calling, serving, settled, start

TOOLS = '''
from contextlib import contextmanager
from pathlib import Path
from agentloop import ToolContext, tool

TRACE = Path(__file__).with_suffix(".trace")

class Shop:
    def count(self, item: str) -> int:
        return {"lamp": 2}[item]

@tool(effect="pure")
def count(context: ToolContext[Shop], item: str) -> int:
    """Count."""
    return context.dependencies.count(item)

@contextmanager
def make_shop(request):
    with TRACE.open("a") as trace:
        print("opened", request.execution_id, file=trace)
    yield Shop()
    with TRACE.open("a") as trace:
        print("closed", request.execution_id, file=trace)
'''


@frozen
class Shop:
    """A shop of one user."""

    stock: int
    request: RunRequest


@tool(effect="pure")
async def count(context: ToolContext[Shop], item: str) -> int:
    """Count the items in stock."""
    asked = context.dependencies.request
    assert context.principal == asked.principal
    return context.dependencies.stock


@define
class Shops:
    """Makes shops, and notes which ones are open."""

    requests: list[RunRequest] = field(factory=list)
    closed: list[str] = field(factory=list)

    @contextmanager
    def make(self, request: RunRequest) -> Iterator[Shop]:
        """Make a shop for a run."""
        self.requests.append(request)
        yield Shop(2, request)
        self.closed.append(request.execution_id)


def counter(**parts: Any) -> AgentLoop:
    """Return the agent."""
    model = calling("count", '{"item": "lamp"}', "There are 2.")
    return AgentLoop.for_model(ScriptedInference(*[model] * 50), tools=[count], **parts)


async def by_run(shops: Shops, _: str) -> None:
    """Run it in a program."""
    assert await counter(dependencies=shops.make).run("How many?") == "There are 2."


async def by_stream(shops: Shops, _: str) -> None:
    """Stream it in a program."""
    async with counter(dependencies=shops.make).stream_text("How many?") as text:
        assert "".join([piece async for piece in text]).endswith("There are 2.")


async def by_get_or_start(shops: Shops, db: str) -> None:
    """Run it once for an id."""
    journal = open_journal(db)
    try:
        loop = counter(dependencies=shops.make, journal=journal)
        assert (await loop.get_or_start("How many?", "one")).output == "There are 2."
        assert (await loop.get_or_start("How many?", "one")).output == "There are 2."
    finally:
        await journal.aclose()


async def by_server(shops: Shops, db: str) -> None:
    """Serve it over HTTP."""
    journal = open_journal(db)
    async with serving(counter(), journal=journal, dependencies=shops.make, kept_headers=["X-Shop"]) as client:
        body = {"input": "How many?", "id": "one"}
        await client.post("/executions", json=body, headers={"x-shop": "north", "x-other": "no"})
        assert (await settled(client, "ada:one"))["text"] == "There are 2."
    await journal.aclose()
    assert shops.requests[0].headers == {"x-shop": "north"}
    principal = shops.requests[0].principal
    assert principal is not None
    assert principal.name == "ada"


async def with_worker(worker: Worker, work: Callable[[], Awaitable[None]]) -> None:
    """Do something while a worker runs."""
    running = asyncio.create_task(worker.run())
    try:
        await worker.started()
        await work()
    finally:
        await worker.drain()
        await asyncio.wait((running,))


async def by_worker(shops: Shops, db: str) -> None:
    """Let a worker run it."""

    async def work() -> None:
        async with Cluster(db) as cluster:
            state = await cluster.result(await cluster.submit("default", "How many?"), timeout=60)
            assert state.final_text == "There are 2."

    await with_worker(Worker(counter(), db, dependencies=shops.make), work)


async def by_server_of_cluster(shops: Shops, db: str) -> None:
    """Serve it over HTTP, before workers."""

    async def work() -> None:
        executions = ClusterExecutions(Cluster(db), {"default": counter()})
        async with serving(executions, kept_headers=["x-shop"]) as client:
            await client.post("/executions", json={"input": "How many?", "id": "one"}, headers={"x-shop": "north"})
            assert (await settled(client, "ada:one"))["text"] == "There are 2."

    await with_worker(Worker(counter(), db, dependencies=shops.make), work)
    assert shops.requests[0].headers == {"x-shop": "north"}
    assert shops.requests[0].principal is not None


async def by_queued_tools(shops: Shops, db: str) -> None:
    """Let workers run the calls of its tools, each with dependencies of its own."""

    async def work() -> None:
        async with serving(ClusterExecutions(Cluster(db), {"default": counter()})) as client:
            await start(client, id="one")
            assert (await settled(client, "ada:one"))["text"] == "There are 2."

    agent = counter(executor=QueuedToolExecutor())
    await with_worker(Worker(agent, db, dependencies=shops.make), work)
    assert {request.execution_id for request in shops.requests} == {"ada:one"}
    assert {request.principal and request.principal.name for request in shops.requests} == {"ada"}


async def by_mcp_agent(shops: Shops, _: str) -> None:
    """Serve it as a tool of MCP."""
    async with open_agent(counter(dependencies=shops.make), "counter", "Counts.") as served:
        assert (await served.call({"task": "How many?"}, lambda _: None)).value == "There are 2."


async def by_mcp_tools(shops: Shops, _: str) -> None:
    """Serve its tools over MCP."""
    async with open_tools(collect_tools([count]), shops.make) as [served]:
        assert (await served.call({"item": "lamp"}, lambda _: None)).value == 2


WAYS = (
    by_run,
    by_stream,
    by_get_or_start,
    by_server,
    by_worker,
    by_server_of_cluster,
    by_queued_tools,
    by_mcp_agent,
    by_mcp_tools,
)


@pytest.mark.parametrize("way", WAYS)
async def test_dependencies_are_made_for_the_run_and_closed_after_it(
    way: Callable[[Shops, str], Awaitable[None]], db: str
) -> None:
    """A tool gets what the function made for its run, which knows the execution, and all of it is closed in the end."""
    shops = Shops()
    await way(shops, db)
    assert shops.requests
    assert all(request.execution_id for request in shops.requests)
    assert sorted(shops.closed) == sorted(request.execution_id for request in shops.requests)


@pytest.mark.parametrize(
    "begin",
    [
        lambda: LocalExecutions(counter(), MemoryJournal()),
        lambda: Worker(counter(), "runs.db"),
        lambda: Worker(counter(executor=QueuedToolExecutor()), "runs.db"),
        lambda: Worker(counter(), "runs.db", dependencies=3),
    ],
)
def test_what_cannot_run_is_refused_at_the_start(begin: Callable[[], object]) -> None:
    """A server or worker whose tools need dependencies that nothing makes does not begin, and says how to pass them."""
    with pytest.raises(InvalidDependencies, match=r"'count' needs dependencies of type .*Shop.*dependencies=…"):
        begin()


def test_a_worker_without_slots_for_tools_needs_no_dependencies_of_queued_ones() -> None:
    """Tools that other workers run are theirs to provide for."""
    Worker(counter(executor=QueuedToolExecutor()), "runs.db", tools=0)


async def test_headers_with_credentials_are_not_kept() -> None:
    """The server refuses to record tokens and cookies."""
    for name in ("Authorization", "cookie"):
        with pytest.raises(Exception, match=f"{name.lower()!r} carries credentials"):
            async with serving(adder(MemoryJournal()), journal=MemoryJournal(), kept_headers=[name]):
                pass


@pytest.mark.parametrize("command", ["run", "chat"])
def test_a_command_line_names_the_function(
    command: str, command_line: CommandLine, server: ModelServer, tmp_path: Path
) -> None:
    """`--dependencies` names a function in a file, and without it the command says that it is needed, before it asks the model."""
    path = tmp_path / "shop_tools.py"
    path.write_text(TOOLS)
    options = ["--model", "ollama:m", "--base-url", server.base_url, "--tools", str(path)]
    question = ["How many?"] if command == "run" else []
    refused = command_line(command, *question, *options, stdin="How many?\n")
    assert refused.code == 2, refused
    assert "'count' needs dependencies of type" in refused.err
    assert "--dependencies" in refused.err
    assert not server.requests
    if command == "run":
        server.calls(("count", {"item": "lamp"}))
        server.says("There are 2.")
        result = command_line("run", "How many?", *options, "--dependencies", f"{path}:make_shop")
        assert (result.code, result.out) == (0, "There are 2.\n"), result.err
        assert json.loads(server.requests[-1]["messages"][-1]["content"]) == 2
        opened, closed = [line.split() for line in path.with_suffix(".trace").read_text().splitlines()]
        assert (opened[0], closed[0], opened[1]) == ("opened", "closed", closed[1])


@pytest.mark.parametrize(
    "arguments", [["mcp", "serve", "{path}"], ["serve", "{agent}:loop"], ["worker", "{agent}:loop", "--db", "{db}"]]
)
def test_servers_of_the_command_line_refuse_at_the_start(
    arguments: list[str], command_line: CommandLine, tmp_path: Path
) -> None:
    """A tool whose dependencies nothing makes is a usage error when the command begins, and not an error of each request."""
    path = tmp_path / "shop_tools.py"
    path.write_text(TOOLS)
    agent = tmp_path / "shop_agent.py"
    agent.write_text(TOOLS + "\nfrom agentloop import AgentLoop, ScriptedInference\n"
                     "loop = AgentLoop.for_model(ScriptedInference('Hi.'), tools=[count])\n")  # fmt: skip
    given = [text.format(path=path, agent=agent, db=tmp_path / "runs.db") for text in arguments]
    result = command_line(*given)
    assert result.code == 2, result
    assert "'count' needs dependencies of type" in result.err


AGENT = """
import os, signal, sys
from contextlib import contextmanager
from pathlib import Path
from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.durable import open_journal

TRACE = Path(__file__).with_suffix(".trace")

class Shop:
    pass

@tool(effect="pure")
def count(context: ToolContext[Shop], item: str) -> int:
    \"\"\"Count.\"\"\"
    if "killed" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2

@contextmanager
def make_shop(request):
    with TRACE.open("a") as trace:
        print("opened", request.execution_id, file=trace)
    yield Shop()
    with TRACE.open("a") as trace:
        print("closed", request.execution_id, file=trace)

loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "count", '{"item": "lamp"}'), "There are 2."), tools=[count])
if __name__ == "__main__":
    loop.replace(journal=open_journal(sys.argv[1]), dependencies=make_shop).execute_sync("How many?", execution_id="one")
"""


@pytest.mark.parametrize("command", ["resume", "recover"])
def test_another_process_makes_the_dependencies_of_a_killed_one_anew(
    command: str, command_line: CommandLine, tmp_path: Path
) -> None:
    """The killed process closes nothing; the command that continues the execution opens its own, by `--dependencies`, and closes them."""
    agent, journal = tmp_path / "killed_agent.py", str(tmp_path / "runs.db")
    agent.write_text(AGENT)
    killed = subprocess.run([sys.executable, agent, journal, "killed"], check=False)
    assert killed.returncode == -signal.SIGKILL
    arguments = ["runs", command, "one", f"{agent}:loop", "--journal", journal]
    refused = command_line(*arguments)
    assert refused.code == (2 if command == "resume" else 1), refused
    assert "--dependencies MODULE:NAME" in refused.err
    result = command_line(*arguments, "--dependencies", f"{agent}:make_shop")
    assert result.code == 0, result.err
    trace = agent.with_suffix(".trace").read_text().splitlines()
    assert trace == ["opened one", "opened one", "closed one"]


def fail(_: RunRequest) -> Shop:
    """Make nothing."""
    raise LookupError("the shop is shut")


async def test_a_client_hears_that_dependencies_could_not_be_made(tmp_path: Path) -> None:
    """A server over HTTP answers 503, one over MCP with an error of the tool, and neither quotes the error, which the log has."""
    journal = open_journal(str(tmp_path / "runs.db"))
    async with serving(counter(), journal=journal, dependencies=fail) as client:
        answer = await client.post("/executions", json={"input": "How many?", "id": "one"})
        assert (answer.status_code, answer.json()["code"]) == (503, "dependencies_failed")
        assert "shut" not in answer.text
        assert (await client.get("/executions/ada:one")).status_code == 404
    await journal.aclose()
    async with open_agent(counter(dependencies=fail), "counter", "Counts.") as served:
        with pytest.raises(ToolFailed, match="the dependencies of the call could not be made; the log") as failed:
            await served.call({"task": "How many?"}, lambda _: None)
    async with open_tools(collect_tools([count]), fail) as [served]:
        with pytest.raises(ToolFailed, match=str(failed.value)):
            await served.call({"item": "lamp"}, lambda _: None)


async def test_a_cluster_reports_dependencies_that_could_not_be_made(db: str) -> None:
    """Whoever waits for the result gets the error of the function, and the job is not dropped in silence."""

    async def work() -> None:
        async with Cluster(db) as cluster:
            job = await cluster.submit("default", "How many?")
            with pytest.raises(WorkFailed, match="could not be made: LookupError: the shop is shut"):
                await cluster.result(job, timeout=60)

    await with_worker(Worker(counter(), db, dependencies=fail), work)
