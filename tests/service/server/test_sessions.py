"""Sessions over HTTP: one conversation for the principals of a tenant, answered in order, whichever server dies."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop import AgentLoop, ScriptedInference
from agentloop.contracts import CanJournal
from agentloop.durable import Journal, MemoryJournal
from agentloop.durable.sessions import SessionQueue
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.server import ClusterExecutions, Principal, Scope
from agentloop.values import InferenceRequest, Message
from agentloop.values.json import freeze_object
from agentloop.values.time_and_ids import SystemClock
from tests.limits import LONGEST
from tests.service.server.front import bearer, opened, serving, settled
from tests.service.server.test_several_servers import Waiting

USES = frozenset({Scope.START, Scope.READ, Scope.DECIDE, Scope.STOP})
TOKENS = {
    "ada-token": Principal(name="ada", scopes=USES, tenant="north"),
    "bob-token": Principal(name="bob", scopes=USES, tenant="north"),
    "eve-token": Principal(name="eve", scopes=USES, tenant="south"),
    "north-token": Principal(name="north", scopes=USES),
    "viewer-token": Principal(name="viewer", scopes=frozenset({Scope.READ}), tenant="north"),
}


def echoing(journal: CanJournal) -> AgentLoop:
    """Return a loop that answers with the message."""

    def answer(request: InferenceRequest) -> str:
        return f"re: {request.messages[-1].text}"

    return AgentLoop.for_model(ScriptedInference(answer), journal=journal)


async def say(client: Any, text: str, who: str = "ada", session: str = "desk", **fields: Any) -> Any:
    """Send a message to a session; return the answer of the server."""
    body = {"input": text, "session": session, **fields}
    return await client.post("/executions", json=body, headers=bearer(who))


async def texts_of(client: Any, execution_id: str, who: str) -> list[str]:
    """Return the texts of the conversation after an execution."""
    await client.get(f"/executions/{execution_id}", params={"wait": 30}, headers=bearer(who))
    state = (await client.get(f"/executions/{execution_id}/state", headers=bearer(who))).json()["value"]
    return ["".join(part.get("text", "") for part in message["parts"]) for message in state["context"]["messages"]]


async def test_a_tenant_shares_a_session() -> None:
    """Principals of one tenant continue one conversation; another tenant, and a principal of its name, have one of their own."""
    async with serving(echoing(MemoryJournal()), authenticate=TOKENS.get) as client:
        first = await say(client, "one")
        assert first.status_code == 201
        assert first.json()["agent_id"] == "session/@north:desk"
        second = (await say(client, "two", "bob")).json()
        assert await texts_of(client, second["id"], "bob") == ["one", "re: one", "two", "re: two"]
        listed = (await client.get("/executions", params={"session": "desk"}, headers=bearer("bob"))).json()
        assert [each["id"] for each in listed["executions"]] == [second["id"]]
        for other in ("eve", "north"):
            own = (await say(client, "mine", other)).json()
            assert await texts_of(client, own["id"], other) == ["mine", "re: mine"]


async def test_the_session_of_another_tenant_is_not_found() -> None:
    """A request that names a session of somebody else is answered with 404, whether there is one or not."""
    async with serving(echoing(MemoryJournal()), authenticate=TOKENS.get) as client:
        await say(client, "one", session="@north:desk")
        for who in ("eve", "north"):
            for session in ("@north:desk", "@north:other", "ada:desk"):
                refused = await say(client, "two", who, session)
                assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
        assert (await say(client, "three", "viewer")).status_code == 403
        theirs = await client.get("/executions", params={"session": "@north:desk"}, headers=bearer("eve"))
        assert theirs.status_code == 404


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"session": 7}, "invalid_session"),
        ({"session": ""}, "invalid_session"),
        ({"session": "a/b"}, "invalid_session"),
        ({"session": "x" * 201}, "invalid_session"),
        ({"continues": "ada:e"}, "invalid_session"),
    ],
)
async def test_wrong_requests_are_refused(fields: dict[str, Any], code: str) -> None:
    """A session is named by a text, and stands in place of an execution to continue."""
    async with serving(echoing(MemoryJournal()), authenticate=TOKENS.get) as client:
        refused = await client.post("/executions", json={"input": "x", "session": "s", **fields}, headers=bearer("ada"))
        assert (refused.status_code, refused.json()["code"]) == (422, code)


async def test_a_message_waits_for_the_turn_before_it() -> None:
    """A message to a busy session is queued (202), can be fetched, and is answered after the turn before it, once."""
    waiting = Waiting()
    async with serving(waiting.loop(MemoryJournal()), authenticate=TOKENS.get) as client:
        first = (await say(client, "first")).json()
        await waiting.until_started()
        second = await say(client, "second", id="second")
        assert (second.status_code, second.json()["status"], second.json()["input"]) == (202, "queued", "second")
        assert (await say(client, "second", id="second")).status_code == 202
        assert (await say(client, "other", id="second")).status_code == 422
        assert (await client.get("/executions/@north:ada:second", headers=bearer("ada"))).json()["status"] == "queued"
        assert (await client.get("/executions/@north:ada:second", headers=bearer("bob"))).status_code == 404
        waiting.go.set()
        texts = await texts_of(client, "@north:ada:second", "ada")
        assert [text for text in texts if text] == ["first", "I read first", "second", "I read second"]
        assert (await say(client, "second", id="second")).status_code == 200
        assert (await settled(client, first["id"]))["status"] == "completed"


async def test_a_waiting_message_can_be_stopped_and_added_to() -> None:
    """A stop and a message for an execution that waits in its session are obeyed when its turn begins."""
    waiting = Waiting()
    async with serving(waiting.loop(MemoryJournal()), authenticate=TOKENS.get) as client:
        await say(client, "first")
        await waiting.until_started()
        await say(client, "second", id="second")
        await say(client, "third", id="third")
        assert (await client.post("/executions/@north:ada:second/stop", json={"reason": "no"})).status_code == 202
        more = await client.post("/executions/@north:ada:third/messages", json={"message": "and this"})
        assert more.status_code == 202
        waiting.go.set()
        texts = await texts_of(client, "@north:ada:third", "ada")
        assert (await settled(client, "@north:ada:second"))["status"] == "stopped"
        assert [text for text in texts if text][-3:] == ["third", "and this", "I read and this"]


async def test_another_server_answers_what_a_dead_one_has_accepted(tmp_path: Any) -> None:
    """Messages that a server had accepted when it died are answered by the next one, in order, without a further request."""
    place = str(tmp_path / "runs.db")
    async with opened(place) as journal:
        queue = SessionQueue.of(journal, "@north:desk")
        for name in ("one", "two"):
            started = {"agent": "default", "principal": "ada", "request": name}
            extensions = freeze_object({"agentloop.server": started})
            await queue.add(
                Message.user(name), f"@north:ada:{name}", SystemClock(), agent="default", extensions=extensions
            )
        async with serving(echoing(journal), authenticate=TOKENS.get) as client:
            async with asyncio.timeout(LONGEST):
                while await queue.waiting():
                    await journal.wait_for_change(timeout=LONGEST)
            assert await texts_of(client, "@north:ada:two", "ada") == ["one", "re: one", "two", "re: two"]


async def test_two_servers_answer_in_order(db: str) -> None:
    """Servers that share a database answer the messages of one session one after the other."""
    async with opened(db) as one, opened(db) as two:
        async with (
            serving(echoing(one), authenticate=TOKENS.get) as first,
            serving(echoing(two), authenticate=TOKENS.get) as second,
        ):
            sent = [say((first, second)[number % 2], str(number)) for number in range(6)]
            ids = [answer.json()["id"] for answer in await asyncio.gather(*sent)]
            found = [await texts_of(first, each, "ada") for each in ids]
        texts = max(found, key=len)
        assert sorted(texts[::2]) == [str(number) for number in range(6)]
        assert texts[1::2] == [f"re: {text}" for text in texts[::2]]
        assert all(texts[: len(each)] == each for each in found)
        assert isinstance(one, Journal)
        assert await one.unfinished("") == ()


async def test_workers_of_a_cluster_answer_sessions(tmp_path: Any) -> None:
    """Before a cluster, messages of a session are accepted without a worker, and answered in order when one comes."""
    place, agents = tmp_path / "runs.db", {"echo": echoing(MemoryJournal())}
    executions = ClusterExecutions(Cluster(place), agents, start_seconds=0.1)
    async with serving(executions, authenticate=TOKENS.get) as client:
        for text in ("one", "two", "two"):
            accepted = await say(client, text, id=text)
            assert (accepted.status_code, accepted.json()["status"]) == (202, "queued")
        assert (await say(client, "other", id="two")).status_code == 422
        worker = Worker(agents, str(place), name="one")
        running = asyncio.create_task(worker.run())
        try:
            assert (await settled(client, "@north:ada:one"))["status"] in {"queued", "completed"}
            async with asyncio.timeout(LONGEST):
                while (await client.get("/executions/@north:ada:two", params={"wait": 20})).json()[
                    "status"
                ] != "completed":
                    pass
            assert await texts_of(client, "@north:ada:two", "ada") == ["one", "re: one", "two", "re: two"]
            assert (await say(client, "two", id="two")).status_code == 200
        finally:
            await worker.drain()
            await asyncio.wait((running,))
