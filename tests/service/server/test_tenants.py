"""Two tenants with the same names: a user and a session of one are nobody and nothing to the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from attrs import frozen

from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolContext, tool
from agentloop.contracts import CanKeepAccounts, CanKeepGrants
from agentloop.durable import Journal
from agentloop.durable.sessions import SessionQueue
from agentloop.interception import RequireApproval
from agentloop.policies import AskUnlessGranted, BudgetAccount, give_grant
from agentloop.service.server import Principal, Scope
from agentloop.values import Grant, InferenceRequest, InferenceResponse, Message
from agentloop.values.time_and_ids import SystemClock
from tests.service.server.front import opened, serving
from tests.service.server.test_several_servers import Waiting

USES = frozenset({Scope.START, Scope.READ, Scope.DECIDE})
TENANTS = ("north", "south")
TOKENS = {
    **{f"{tenant}-ada": Principal(name=f"ada-of-{tenant}", scopes=USES, tenant=tenant) for tenant in TENANTS},
    **{f"{tenant}-boss": Principal(name="boss", scopes={*USES, Scope.DELETE}, tenant=tenant) for tenant in TENANTS},
}


@tool
async def pay(context: ToolContext, amount: float) -> str:
    """Pay."""
    asks = context.principal
    assert asks is not None
    return f"{asks.tenant} paid {amount} for {asks.name}"


def model(request: InferenceRequest) -> InferenceResponse | str:
    """Pay, then say what was paid."""
    last = request.messages[-1]
    if not last.exchanges:
        return InferenceResponse((ToolCall("1", "pay", '{"amount": 20}'),))
    return str(last.exchanges[0].execution.value)


def payer() -> AgentLoop:
    """Return an agent whose payments wait, with grants and an account for each tenant."""
    return AgentLoop.for_model(
        ScriptedInference(*[model] * 50),
        tools=[pay],
        interceptors=[
            AskUnlessGranted(RequireApproval("pay"), by="tenant"),
            BudgetAccount("till", tokens=100_000, max_output_tokens=100, by="tenant"),
        ],
    )


@frozen
class Client:
    """A client of the server, with the token of one principal."""

    http: httpx.AsyncClient
    token: str

    async def ask(self, method: str, path: str, **body: Any) -> httpx.Response:
        """Send a request."""
        headers = {"authorization": f"Bearer {self.token}"}
        return await self.http.request(method, path, json=body or None, headers=headers)

    async def say(self, text: str, **fields: Any) -> dict[str, Any]:
        """Send a message to the session `desk`; return the execution when it has ended or waits."""
        answer = await self.ask("POST", "/executions", input=text, session="desk", **fields)
        assert answer.status_code in {201, 202}, answer.text
        execution: dict[str, Any] = {"status": "queued"}
        while execution["status"] in {"queued", "in_progress"}:
            execution = (await self.ask("GET", f"/executions/{answer.json()['id']}?wait=20")).json()
        return execution

    async def approve(self, execution: dict[str, Any], **grant: Any) -> httpx.Response:
        """Approve the call that waits, with a grant."""
        (call,) = execution["pending"]
        decision = {"kind": "approve", "digest": call["digest"], "grant": grant}
        return await self.ask("POST", f"/executions/{execution['id']}/decisions", decisions={call["key"]: decision})

    async def texts(self, execution_id: str) -> list[str]:
        """Return the texts of the conversation after an execution."""
        state = (await self.ask("GET", f"/executions/{execution_id}/state")).json()["value"]
        return ["".join(part.get("text", "") for part in message["parts"]) for message in state["context"]["messages"]]


@asynccontextmanager
async def clients(loop: AgentLoop, journal: Journal) -> AsyncIterator[dict[str, Client]]:
    """Run a server; yield the clients by their tokens."""
    async with serving(loop, journal=journal, authenticate=TOKENS.get) as http:
        yield {token: Client(http, token) for token in TOKENS}


async def test_two_tenants_share_nothing(db: str) -> None:
    """Conversations, executions, grants and accounts of two tenants with one session id are separate; tools see the tenant."""
    async with opened(db) as journal, clients(payer(), journal) as by:
        north, south = by["north-ada"], by["south-ada"]
        first = await north.say("From the north.", id="one")
        assert (first["status"], first["agent_id"]) == ("suspended", "session/@north:desk")
        for path in ("", "/state", "/events", "/trace"):
            assert (await south.ask("GET", f"/executions/{first['id']}{path}")).status_code == 404
        assert (await south.approve(first)).status_code == 404
        assert (await north.approve(first, uses=5)).status_code == 200
        await north.ask("GET", f"/executions/{first['id']}?wait=20")
        other = await south.say("From the south.", id="one")
        assert (other["status"], other["agent_id"]) == ("suspended", "session/@south:desk")
        assert (await south.texts(other["id"]))[0] == "From the south."
        again = await north.say("Again.")
        paid = "north paid 20.0 for ada-of-north"
        assert again["text"] == paid
        texts = [text for text in await north.texts(again["id"]) if text]
        assert texts == ["From the north.", paid, "Again.", paid]
        assert (await south.ask("POST", "/executions", input="Hi.", session="@north:desk")).status_code == 404
        assert (await south.ask("GET", "/executions?session=@north:desk")).status_code == 404
        (grant,) = (await north.ask("GET", "/grants")).json()["grants"]
        assert (grant["owner"], grant["used"]) == ("north/", 1)
        assert (await south.ask("GET", "/grants")).json() == {"grants": []}
        assert (await south.ask("POST", f"/grants/{grant['id']}/revoke")).status_code == 404
        assert isinstance(journal, CanKeepAccounts)
        spent = {key.owner: state.requests for key, state in await journal.accounts()}
        assert spent == {"north": 4, "south": 1}


async def test_one_name_in_two_tenants_is_two_principals(db: str) -> None:
    """Tokens with the same name in two tenants have separate sessions, grants and accounts."""
    async with opened(db) as journal, clients(payer(), journal) as by:
        north, south = by["north-boss"], by["south-boss"]
        first = await north.say("From the north.", id="one")
        await north.approve(first, uses=5)
        await north.ask("GET", f"/executions/{first['id']}?wait=20")
        other = await south.say("From the south.", id="one")
        assert (other["status"], (await south.texts(other["id"]))[0]) == ("suspended", "From the south.")
        for mine, foreign in ((north, other), (south, first)):
            for path in ("", "/state", "/events", "/trace"):
                assert (await mine.ask("GET", f"/executions/{foreign['id']}{path}")).status_code == 404
            assert (await mine.approve(foreign)).status_code == 404
            listed = (await mine.ask("GET", "/executions")).json()["executions"]
            assert [each["id"] for each in listed] == [f"@{mine.token.partition('-')[0]}:boss:one"]
        assert isinstance(journal, CanKeepAccounts)
        assert {key.owner: state.requests for key, state in await journal.accounts()} == {"north": 2, "south": 1}


async def test_a_session_is_deleted_by_its_tenant(db: str) -> None:
    """With the scope, a tenant deletes its session with the turns of all; that of the other tenant stays, and looks like none."""
    async with opened(db) as journal, clients(payer(), journal) as by:
        assert isinstance(journal, CanKeepGrants)
        for tenant in TENANTS:
            await give_grant(journal, pay, Grant(), owner=f"{tenant}/")
        for tenant in TENANTS:
            listed = (await by[f"{tenant}-ada"].ask("GET", "/grants")).json()["grants"]
            assert [each["owner"] for each in listed] == [f"{tenant}/"]
        turns = [await by[token].say("Pay.") for token in ("north-ada", "north-boss", "south-ada")]
        assert [turn["status"] for turn in turns] == ["completed"] * 3
        assert (await by["north-ada"].ask("DELETE", "/sessions/desk")).status_code == 403
        for session in ("@north:desk", "nothing", "a%2Fb"):
            assert (await by["south-boss"].ask("DELETE", f"/sessions/{session}")).status_code in {404, 422}
        assert (await by["north-boss"].ask("GET", f"/executions/{turns[1]['id']}")).status_code == 200
        deleted = await by["north-boss"].ask("DELETE", "/sessions/desk")
        assert (deleted.status_code, deleted.json()) == (200, {"session": "@north:desk", "turns": 2})
        assert (await by["north-boss"].ask("DELETE", "/sessions/desk")).status_code == 404
        assert (await by["north-ada"].ask("GET", f"/executions/{turns[0]['id']}")).status_code == 404
        assert [head.execution_id for head in await journal.list()] == [turns[2]["id"]]
        anew = await by["north-ada"].say("Pay once more.")
        assert len([text for text in await by["north-ada"].texts(anew["id"]) if text]) == 2


@pytest.mark.parametrize("kind", ["runs", "waits"])
async def test_a_session_in_use_is_not_deleted(kind: str, db: str) -> None:
    """While a turn runs, here or elsewhere, or a message waits, the answer is 409, and nothing is deleted."""
    waiting = Waiting()
    async with opened(db) as journal, clients(waiting.loop(journal), journal) as by:
        if kind == "runs":
            saying = asyncio.create_task(by["north-boss"].say("first"))
            await waiting.until_started()
        else:
            queue = SessionQueue.of(journal, "@north:desk")
            await queue.add(Message.user("one"), "boss:one", SystemClock(), agent="another")
        refused = await by["north-boss"].ask("DELETE", "/sessions/desk")
        assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
        if kind == "runs":
            waiting.go.set()
            assert (await saying)["status"] == "completed"
            assert (await by["north-boss"].ask("DELETE", "/sessions/desk")).json()["turns"] == 1
