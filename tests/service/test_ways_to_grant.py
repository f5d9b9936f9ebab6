"""One agent, unchanged, by every way of running: a grant that was given in one of them serves the others, once for each use."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference, ToolCall, approve, tool
from agentloop.contracts import CanKeepGrants
from agentloop.durable import open_journal
from agentloop.errors import ToolFailed
from agentloop.interception import RequireApproval
from agentloop.policies import AskUnlessGranted
from agentloop.service.cli.mcp import open_agent
from agentloop.service.cluster import Cluster, QueuedToolExecutor, Worker
from agentloop.service.server import ClusterExecutions
from agentloop.values import Grant, GrantState
from tests.service.cli.test_ways_to_run import with_worker
from tests.service.server.front import bearer, serving, settled, start

NOW = datetime(2026, 11, 29, tzinfo=UTC)


@tool
async def pay(amount: float) -> str:
    """Pay."""
    return f"paid {amount}"


def payer(journal: Any = None, **parts: Any) -> AgentLoop:
    """Return the agent. Its grants are for everybody, whoever asks in the ways below."""
    guard = AskUnlessGranted(RequireApproval("pay"), by=lambda _: "")
    return AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "pay", '{"amount": 20}'), "Done."),
        tools=[pay],
        interceptors=[guard],
        journal=journal,
        **parts,
    )


async def by_run(db: str) -> bool:
    """Run it in a program."""
    journal = open_journal(db)
    try:
        return not (await payer(journal).execute("Pay.")).pending
    finally:
        await journal.aclose()


async def by_stream(db: str) -> bool:
    """Stream it in a program."""
    journal = open_journal(db)
    try:
        async with payer(journal).stream("Pay.") as events:
            async for _ in events:
                pass
        assert events.state is not None
        return not events.state.pending
    finally:
        await journal.aclose()


async def by_server(db: str) -> bool:
    """Serve it over HTTP."""
    journal = open_journal(db)
    try:
        async with serving(payer(), journal=journal) as client:
            answer = await client.post("/executions", json={"input": "Pay."})
            return not (await settled(client, answer.json()["id"]))["pending"]
    finally:
        await journal.aclose()


async def by_worker(db: str, **parts: Any) -> bool:
    """Let a worker run it."""
    ran: list[bool] = []

    async def work() -> None:
        async with Cluster(db) as cluster:
            ran.append(not (await cluster.result(await cluster.submit("default", "Pay."), timeout=60)).pending)

    await with_worker(Worker(payer(**parts), db), work)
    return ran[0]


async def by_queued_tools(db: str) -> bool:
    """Let a worker run it, and any worker its calls."""
    return await by_worker(db, executor=QueuedToolExecutor())


async def by_server_of_cluster(db: str) -> bool:
    """Serve it over HTTP, before workers."""
    ran: list[bool] = []

    async def work() -> None:
        async with serving(ClusterExecutions(Cluster(db), {"default": payer()})) as client:
            answer = await client.post("/executions", json={"input": "Pay."})
            ran.append(not (await settled(client, answer.json()["id"]))["pending"])

    await with_worker(Worker(payer(), db), work)
    return ran[0]


async def by_mcp_agent(db: str) -> bool:
    """Serve it as a tool of MCP: a call that waits is an error, since nobody is there who decides."""
    journal = open_journal(db)
    try:
        async with open_agent(payer(journal), "payer", "Pays.") as served:
            result = await served.call({"task": "Pay."}, lambda _: None)
    except ToolFailed:
        return False
    finally:
        await journal.aclose()
    return result.value == "Done."


WAYS = (by_run, by_stream, by_server, by_worker, by_queued_tools, by_server_of_cluster, by_mcp_agent)


async def give(db: str, grant: Grant) -> None:
    """Give a grant with the approval of a call."""
    journal = open_journal(db)
    try:
        loop = payer(journal)
        state = await loop.execute("Pay.")
        await loop.resume(state, {call.key: approve(call.digest, grant=grant) for call in state.pending})
    finally:
        await journal.aclose()


async def read(db: str) -> GrantState:
    """Return the grant."""
    journal = open_journal(db)
    try:
        assert isinstance(journal, CanKeepGrants)
        (state,) = await journal.grants()
        return state
    finally:
        await journal.aclose()


@pytest.mark.parametrize("way", WAYS)
async def test_a_grant_is_used_by_every_way_of_running(way: Callable[[str], Awaitable[bool]], db: str) -> None:
    """Without a grant the call waits; with one of a single use, it runs once, and waits again."""
    assert not await way(db)
    await give(db, Grant(arguments=["amount <= 20"], uses=1))
    assert [await way(db), await way(db)] == [True, False]
    state = await read(db)
    assert (state.used, state.holds, state.status(NOW)) == (1, (), "used up")


async def test_a_grant_is_given_listed_and_revoked_over_http(db: str) -> None:
    """A decision takes a grant; who may see the execution lists and ends it, and nobody else."""
    journal = open_journal(db)
    guard = AskUnlessGranted(RequireApproval("pay"))
    try:
        async with serving(payer().replace(interceptors=[guard]), journal=journal) as client:
            await start(client, id="one")
            (call,) = (await settled(client, "ada:one"))["pending"]
            assert call["grantable"]
            decision = {"kind": "approve", "digest": call["digest"], "grant": {"arguments": ["amount !! 3"]}}
            refused = await client.post("/executions/ada:one/decisions", json={"decisions": {call["key"]: decision}})
            assert (refused.status_code, refused.json()["code"]) == (422, "invalid_decision")
            assert "amount !! 3" in refused.json()["detail"]
            decision["grant"] = {"arguments": ["amount <= 20"], "uses": 5, "until": "2126-11-29T00:00:00+00:00"}
            answer = await client.post("/executions/ada:one/decisions", json={"decisions": {call["key"]: decision}})
            assert answer.status_code == 200, answer.text
            await settled(client, "ada:one")
            await start(client, id="two")
            assert not (await settled(client, "ada:two"))["pending"]
            (listed,) = (await client.get("/grants")).json()["grants"]
            assert (listed["by"], listed["used"], listed["last_key"]) == ("ada", 1, "ada:two/1/0")
            assert (await client.get("/grants", headers=bearer("bob"))).json() == {"grants": []}
            path = f"/grants/{listed['id']}/revoke"
            assert (await client.post(path, headers=bearer("bob"))).status_code == 404
            assert (await client.post(path, headers=bearer("viewer"))).status_code == 403
            assert (await client.post(path)).json()["status"] == "revoked"
            await start(client, id="three")
            assert (await settled(client, "ada:three"))["pending"]
            body = {"input": "Pay.", "id": "one"}
            await client.post("/executions", json=body, headers=bearer("bob"))
    finally:
        await journal.aclose()
