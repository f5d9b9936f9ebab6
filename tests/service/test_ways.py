"""One agent of a module, unchanged, by every way of running it: what each way does with each of its features."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import httpx
import pytest
from attrs import define, frozen

from agentloop.contracts import CanKeepAccounts, CanKeepGrants, ToolContext
from agentloop.durable import open_journal
from agentloop.durable.sessions import session_of
from agentloop.errors import ToolFailed
from agentloop.mcp import McpEnsemble
from agentloop.service.cluster import Cluster
from agentloop.service.server import Scope, TokenFile
from agentloop.values import AgentState, Grant, GrantState, ToolExecution, approve
from agentloop.values.accounts import AccountKey, AccountState
from agentloop.values.records import ExecutionHead
from agentloop.values.run_requests import principal_of
from tests.limits import LONGEST
from tests.loaded import loaded_agentloop
from tests.mcp.running import NO_TIMEOUTS
from tests.postgres import new_database
from tests.service import desk
from tests.service.cluster.workers import ROOT, WorkerProcess
from tests.service.server.front import DEADLINE, settled

AGENT = "tests.service.desk:loop"
LIMITS, GRANT = "amount <= 20; 5 uses", Grant(arguments=["amount <= 20"], uses=5)
MESSAGES = ("Pay.", "Pay again.")
PAGE = ROOT / "docs/server.md"


@frozen
class Seen:
    """What one way has done with two messages of one session; between them, a person has given a grant.

    Attributes:
        waited: how the first message was answered, whose call needs a decision.
        answered: how the second one was, whose call the grant covers.
    """

    waited: str
    answered: str
    heads: Sequence[ExecutionHead]
    turns: Sequence[AgentState]
    accounts: Mapping[AccountKey, AccountState]
    grants: Sequence[GrantState]

    @property
    def outcomes(self) -> Sequence[Mapping[str, ToolExecution]]:
        """The outcomes of each turn, by tool."""
        return [
            {execution.call.name: execution for step in state.steps for execution in step.executions}
            for state in self.turns
        ]


@define
class Place:
    """A database, and a folder for files of the commands."""

    db: str
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        """The variables of commands."""
        homes = {f"XDG_{name}_HOME": str(self.folder / name) for name in ("CONFIG", "STATE")}
        return {**os.environ, **homes, "AGENTLOOP_DB": self.db}

    def command(self, *arguments: str, code: int = 0) -> str:
        """Run a command to its end; return what it has written."""
        ended = subprocess.run(
            loaded_agentloop(*arguments),
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONGEST,
            check=False,
        )
        assert ended.returncode == code, ended
        return ended.stdout + ended.stderr

    def give_by_resuming(self) -> None:
        """Approve the call that waits, with a grant."""
        (head,) = asyncio.run(self.heads())
        resume = ["runs", "resume", head.execution_id, AGENT, "--journal", self.db, "--quiet"]
        assert desk.ANSWER in self.command(*resume, "--grant", f"1.2={LIMITS}")

    async def heads(self) -> Sequence[ExecutionHead]:
        """Return the summaries of the executions, the first one first."""
        journal = open_journal(self.db)
        try:
            return sorted(await journal.list(), key=lambda head: head.number)
        finally:
            await journal.aclose()

    async def see(self, waited: str, answered: str) -> Seen:
        """Return what is recorded."""
        heads, journal = await self.heads(), open_journal(self.db)
        assert isinstance(journal, CanKeepAccounts)
        assert isinstance(journal, CanKeepGrants)
        try:
            turns = [await journal.state(head.execution_id) for head in heads]
            return Seen(waited, answered, heads, turns, dict(await journal.accounts()), await journal.grants())
        finally:
            await journal.aclose()


Way: TypeAlias = Callable[[Place], tuple[str, str]]
"""Sends both messages, and gives the grant; returns both answers."""


def by_run(place: Place) -> tuple[str, str]:
    """`agentloop run`: a call that waits ends the command; `runs resume` decides."""
    options = ["--agent", AGENT, "--journal", place.db, "--session", "user-7"]
    waited = place.command("run", MESSAGES[0], *options, code=3)
    place.give_by_resuming()
    return waited, place.command("run", MESSAGES[1], *options)


def by_chat(place: Place) -> tuple[str, str]:
    """`agentloop chat` without a terminal: a call that waits is denied; `grants add` gives the grant meanwhile."""
    arguments = ["chat", "--agent", AGENT, "--journal", place.db, "--session", "user-7", "--no-live"]
    with (
        (place.folder / "shown").open("w") as shown,
        subprocess.Popen(
            loaded_agentloop(*arguments),
            cwd=ROOT,
            env=place.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=shown,
            text=True,
            bufsize=1,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        answers = list[str]()
        for message in MESSAGES:
            process.stdin.write(f"{message}\n")
            answers.append(_line_with(process.stdout, desk.ANSWER))
            if message == MESSAGES[0]:
                place.command("grants", "add", AGENT, "pay", LIMITS, "--owner", desk.NOBODY)
        process.stdin.close()
        assert process.wait(LONGEST) == 0
    return (place.folder / "shown").read_text().partition("calls that need approval are not approved here")[1], answers[
        1
    ]


def _line_with(lines: Iterable[str], text: str) -> str:
    return next(line for line in lines if text in line)


def by_server(place: Place) -> tuple[str, str]:
    """`agentloop serve` with tokens."""
    return asyncio.run(_ask_over_http(place))


def by_server_of_cluster(place: Place) -> tuple[str, str]:
    """`agentloop serve --cluster`, with tokens, before a worker."""
    with closing(WorkerProcess(place.db, "one", agent=AGENT)) as worker:
        worker.until("runs")
        return asyncio.run(_ask_over_http(place, "--cluster"))


async def _ask_over_http(place: Place, *options: str) -> tuple[str, str]:
    async with _serving(place, *options) as client:
        first = await _say(client, MESSAGES[0])
        (call,) = first["pending"]
        decision = {"kind": "approve", "digest": call["digest"], "grant": {"arguments": ["amount <= 20"], "uses": 5}}
        path = f"/executions/{first['id']}/decisions"
        decided = await client.post(path, json={"decisions": {call["key"]: decision}})
        assert decided.status_code in {200, 202}, decided.text
        while (await settled(client, first["id"]))["status"] == "suspended":
            pass  # the decision is queued until a worker has it
        return f"{call['name']} waits: {call['reason']}", (await _say(client, MESSAGES[1]))["text"]


@asynccontextmanager
async def _serving(place: Place, *options: str) -> AsyncIterator[httpx.AsyncClient]:
    tokens = place.folder / "tokens.json"
    scopes = [Scope.START, Scope.READ, Scope.DECIDE]
    token = TokenFile.add(tokens, "ada", scopes, tenant="north")
    command = loaded_agentloop("serve", AGENT, "--port", "0", "--db", place.db, "--tokens", str(tokens), *options)
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=place.environment, stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(LONGEST):
            lines = [await process.stderr.readline()]
            while b"serving at" not in lines[-1]:
                assert lines[-1], lines
                lines.append(await process.stderr.readline())
        found = re.search(r"http://[^\s;]+", lines[-1].decode())
        assert found is not None
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=found[0], timeout=DEADLINE, headers=headers) as client:
            yield client
    finally:
        process.terminate()
        await process.communicate()


async def _say(client: httpx.AsyncClient, text: str) -> dict[str, Any]:
    """Send a message to the session; return the execution when it has ended or waits."""
    answer = await client.post("/executions", json={"input": text, "session": "user-7"})
    assert answer.status_code in {201, 202}, answer.text
    execution: dict[str, Any] = {"status": "queued"}
    while execution["status"] in {"queued", "in_progress"}:
        execution = (await client.get(f"/executions/{answer.json()['id']}", params={"wait": 20})).json()
    return execution


def by_worker(place: Place) -> tuple[str, str]:
    """`agentloop worker`: a program submits, and decides."""
    with closing(WorkerProcess(place.db, "one", agent=AGENT)) as worker:
        worker.until("runs")
        return asyncio.run(_submit(place))


async def _submit(place: Place) -> tuple[str, str]:
    async with Cluster(place.db) as cluster:
        first = await cluster.submit(AGENT, MESSAGES[0], session="user-7")
        (call,) = (await cluster.result(first, timeout=LONGEST)).pending
        await cluster.resume(first, {call.key: approve(call.digest, grant=GRANT)})
        await cluster.result(first, timeout=LONGEST)
        second = await cluster.submit(AGENT, MESSAGES[1], session="user-7")
        state = await cluster.result(second, timeout=LONGEST)
        return f"{call.call.name} waits: {call.reason}", state.final_text or ""


def by_mcp(place: Place) -> tuple[str, str]:
    """`agentloop mcp serve --agent`, over stdio: a call that waits is an error for the client; `runs resume` decides."""
    return asyncio.run(_call_over_mcp(place))


async def _call_over_mcp(place: Place) -> tuple[str, str]:
    launcher, *rest = loaded_agentloop("mcp", "serve", "--agent", "tests.service.desk:recorded")
    server = McpEnsemble.stdio(launcher, rest, place.environment, cwd=ROOT, name="desk", **NO_TIMEOUTS)
    async with server:
        tool: Any = next(iter(server.offered))
        context = ToolContext(execution_id="e", agent_id="a", idempotency_key="e/1/0")
        use = tool.with_tool_context(context).use
        with pytest.raises(ToolFailed) as waited:
            await use(task=MESSAGES[0], session="user-7")
        await asyncio.to_thread(place.give_by_resuming)
        answered: Any = await use(task=MESSAGES[1], session="user-7")
    return str(waited.value), str(answered.value)


@frozen
class Column:
    """A way, and in what it differs from the others.

    Attributes:
        way: sends the messages.
        waited: what the first answer tells of the call that needs a decision.
        asks: who asks, as tools see it: a name and a tenant; None where nobody is known.
        session: the session as it is recorded.
        is_postgres: whether the database is PostgreSQL.
    """

    way: Way
    waited: str = "waits: a call of 'pay' needs approval"
    asks: tuple[str, str] | None = None
    session: str = "user-7"
    is_postgres: bool = False

    @property
    def owner(self) -> str:
        """Whose the account and the grants are."""
        return desk.NOBODY if self.asks is None else self.asks[1]


SERVED: dict[str, Any] = {"asks": ("ada", "north"), "session": "@north:user-7"}
WAYS = {
    "run": Column(by_run, "waits for a decision: a call of 'pay' needs approval"),
    "chat": Column(by_chat, "calls that need approval are not approved here"),
    "serve": Column(by_server, **SERVED),
    "worker-sqlite": Column(by_worker),
    "worker-postgres": Column(by_worker, is_postgres=True),
    "mcp": Column(by_mcp, "waits for a decision: a call of 'pay' needs approval"),
    "serve-cluster": Column(by_server_of_cluster, **SERVED),
}


def look(turn: Mapping[str, ToolExecution]) -> Any:
    """Return what a tool has seen in a turn."""
    return turn["look"].value


def name(seen: Seen, _: Column) -> None:
    """The record and the code inside of a run know the name of the agent."""
    assert [head.agent_name for head in seen.heads] == [desk.NAME] * 2
    assert [look(turn)["agent"] for turn in seen.outcomes] == [desk.NAME] * 2


def dependencies(seen: Seen, _: Column) -> None:
    """The dependencies are made for each run."""
    ids = [head.execution_id for head in seen.heads]
    assert [look(turn)["desk"] for turn in seen.outcomes] == ids
    assert len(set(ids)) == 2


def principal(seen: Seen, column: Column) -> None:
    """Tools know who asks where a token says so; elsewhere nobody is known, and nobody is made up."""
    expected = None if column.asks is None else dict(zip(("name", "tenant"), column.asks, strict=True))
    assert [look(turn)["asks"] for turn in seen.outcomes] == [expected] * 2
    found = [principal_of(state) for state in seen.turns]
    assert [each and (each.name, each.tenant) for each in found] == [column.asks] * 2


def session(seen: Seen, column: Column) -> None:
    """The second message continues the conversation of the first one."""
    assert {session_of(head.agent_id) for head in seen.heads} == {column.session}
    asked = [[message.text for message in state.messages if message.text in MESSAGES] for state in seen.turns]
    assert asked == [[MESSAGES[0]], list(MESSAGES)]


def account(seen: Seen, column: Column) -> None:
    """All requests of both turns, also the one after a refused answer, are charged to the account of the database."""
    ((key, state),) = seen.accounts.items()
    assert key == AccountKey("desk", column.owner)
    assert (state.requests, state.spent.tokens, state.holds) == (6, 6 * 25, ())


def grant(seen: Seen, column: Column) -> None:
    """The first call needs a decision, and says so; the second one uses the grant of a person."""
    assert column.waited in seen.waited
    assert desk.ANSWER in seen.answered
    assert seen.outcomes[1]["pay"].value == "paid 20.0"
    (given,) = seen.grants
    assert (given.owner, given.grant, given.used, given.holds) == (column.owner, GRANT, 1, ())
    assert given.last_key.startswith(f"{seen.heads[1].execution_id}/")


def output_check(seen: Seen, _: Column) -> None:
    """An answer that the check refuses is no answer: the model is sent back, once in each turn."""
    assert [state.final_text for state in seen.turns] == [desk.ANSWER] * 2
    refusals = [sum("say what you have paid" in message.text for message in state.messages) for state in seen.turns]
    assert refusals == [1, 2]


FEATURES = (name, dependencies, principal, session, account, grant, output_check)


@pytest.fixture(scope="module")
def seen_by(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[[str], Seen]]:
    """Return what a way has done; it runs once for all its tests."""
    known: dict[str, Seen | Exception] = {}
    with ExitStack() as stack:

        def see(way: str) -> Seen:
            if way not in known:
                folder, column = tmp_path_factory.mktemp(way), WAYS[way]
                url = request.getfixturevalue("postgres_server") if column.is_postgres else ""
                place = Place(stack.enter_context(new_database(url)) if url else str(folder / "runs.db"), folder)
                try:
                    known[way] = asyncio.run(place.see(*column.way(place)))
                except Exception as error:  # noqa: BLE001  # each test of the way reports it
                    known[way] = error
            found = known[way]
            if isinstance(found, Exception):
                raise found
            return found

        yield see


def test_the_page_has_each_way() -> None:
    """The table of `docs/server.md` has a row for each way."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `agentloop ")]
    assert [re.findall(r"`agentloop ([a-z -]+?) (?:--agent )?support:loop`", row)[0] for row in rows] == [
        "run",
        "chat",
        "serve",
        "worker",
        "serve --cluster",
        "mcp serve",
    ]


CELLS = [pytest.param(way, feature, id=f"{way}-{feature.__name__}") for way in WAYS for feature in FEATURES]


@pytest.mark.parametrize(("way", "feature"), CELLS)
def test_a_way_does_what_the_table_says(
    way: str, feature: Callable[[Seen, Column], None], seen_by: Callable[[str], Seen]
) -> None:
    """Each way of running the agent of `desk.py` has each of its features."""
    feature(seen_by(way), WAYS[way])
