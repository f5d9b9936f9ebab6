"""Every route of the HTTP front, with a real server and a real client."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import pytest

from agentloop import AgentLoop, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.service.server.application import HANDLERS
from agentloop.service.server.openapi import openapi_document
from agentloop.values import AgentState, InferenceResponse, from_json
from tests.service.server.front import (
    DEADLINE,
    adder,
    all_events,
    bearer,
    calling,
    opened,
    payer,
    read_events,
    serving,
    settled,
    start,
)


async def test_an_execution_is_started_followed_and_fetched(db: str) -> None:
    """A started execution runs to its end, and its events, its summary and its state can be read."""
    async with opened(db) as journal, serving(adder(journal)) as client:
        execution = await start(client, id="sum")
        assert execution["id"] == "ada:sum"
        assert execution["started_by"] == "ada"
        events = await all_events(client, "/executions/ada:sum/events")
        names = [event.event for event in events]
        assert names[0] == "execution_started"
        assert names[-1] == "execution_ended"
        assert {"inference_completed", "call_started", "call_ended", "step_completed"} <= set(names)
        numbers = [int(event.id) for event in events]
        assert numbers == sorted(set(numbers))
        assert all(event.data["type"] == event.event for event in events)
        ended = (await client.get("/executions/ada:sum")).json()
        assert (ended["status"], ended["text"], ended["step_count"]) == ("completed", "It is 3.", 2)
        document = (await client.get("/executions/ada:sum/state")).content
        assert from_json(document, AgentState).final_text == "It is 3."
        listed = (await client.get("/executions")).json()
        assert [each["id"] for each in listed["executions"]] == ["ada:sum"]
        assert listed["next"] is None


async def test_the_same_start_again_is_the_same_execution() -> None:
    """An id or an idempotency key with the same body gives the same execution; with another body it is refused."""
    async with serving(adder(MemoryJournal())) as client:
        key = {"idempotency-key": "order 7"}
        first = await client.post("/executions", json={"input": "Go."}, headers=key)
        again = await client.post("/executions", json={"input": "Go."}, headers=key)
        other = await client.post("/executions", json={"input": "Stop."}, headers=key)
        assert [first.status_code, again.status_code, other.status_code] == [201, 200, 422]
        assert first.json()["id"] == again.json()["id"]
        assert first.headers["location"] == f"/executions/{first.json()['id']}"
        assert other.headers["content-type"] == "application/problem+json"
        assert other.json()["code"] == "other_request"
        foreign = await client.post("/executions", json={"input": "Go."}, headers={**key, **bearer("bob")})
        assert foreign.status_code == 201
        assert foreign.json()["id"] != first.json()["id"]


async def test_the_same_start_at_once_runs_once() -> None:
    """Of concurrent starts with one id, one starts the execution, and all answers have the same one."""
    async with serving(adder(MemoryJournal())) as client:
        posts = [client.post("/executions", json={"input": "Go.", "id": "x"}) for _ in range(8)]
        answers = await asyncio.gather(*posts)
        assert sorted({answer.status_code for answer in answers}) == [200, 201]
        assert {answer.json()["id"] for answer in answers} == {"ada:x"}
        await settled(client, "ada:x")
        assert len((await client.get("/executions")).json()["executions"]) == 1


async def test_a_conversation_continues() -> None:
    """An execution that continues an ended one is of the same agent and has its messages."""
    async with serving(adder(MemoryJournal())) as client:
        await start(client, id="one")
        first = await settled(client, "ada:one")
        await start(client, id="two", continues="ada:one")
        second = await settled(client, "ada:two")
        assert second["agent_id"] == first["agent_id"]
        document = (await client.get("/executions/ada:two/state")).content
        assert [m.text for m in from_json(document, AgentState).messages if m.role == "user"] == ["Go.", "Go."]


async def test_lists_have_pages() -> None:
    """The pages of a list hold each execution once, newest first."""
    async with serving(adder(MemoryJournal())) as client:
        for number in range(5):
            await start(client, id=f"n{number}")
            await settled(client, f"ada:n{number}")
        found: list[str] = []
        page: dict[str, Any] = {"next": ""}
        while page["next"] is not None:
            page = (await client.get("/executions", params={"limit": 2, "after": page["next"]})).json()
            found += [each["id"] for each in page["executions"]]
        assert found == [f"ada:n{number}" for number in (4, 3, 2, 1, 0)]
        assert (await client.get("/executions", params={"status": "failed"})).json()["executions"] == []
        assert (await client.get("/executions", params={"status": "sleeping"})).status_code == 422
        assert (await client.get("/executions", params={"after": "nonsense"})).status_code == 422


async def test_a_list_is_of_what_its_parameters_select() -> None:
    """By time, by text, by who asked, and by doubts; what cannot be read is refused."""
    async with serving(adder(MemoryJournal())) as client:
        for number in range(3):
            await start(client, id=f"n{number}", input=f"Question {number}")
            await settled(client, f"ada:n{number}")

        async def find(**parameters: Any) -> list[str]:
            answer = await client.get("/executions", params=parameters)
            return [each["id"] for each in answer.json()["executions"]]

        assert await find(text="QUESTION 1") == ["ada:n1"]
        assert await find(asked_by="ada") == ["ada:n2", "ada:n1", "ada:n0"]
        assert await find(asked_by="bob") == []
        assert await find(since="2020-01-01T00:00:00Z", limit=1) == ["ada:n2"]
        assert await find(before="2020-01-01T00:00:00Z") == []
        assert await find(doubts="true") == []
        assert await find(tag=["case=7"]) == []
        for wrong in ({"since": "yesterday"}, {"before": "2020-01-01"}, {"doubts": "yes"}):
            answer = await client.get("/executions", params=wrong)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameter")


@pytest.mark.parametrize(
    ("decision", "outcome"),
    [
        ({"kind": "approve"}, "paid 500"),
        ({"kind": "edit", "arguments": {"cents": 7}}, "paid 7"),
        ({"kind": "answer", "value": "already paid"}, "already paid"),
        ({"kind": "deny", "reason": "too much"}, None),
    ],
)
async def test_a_pending_call_is_decided(decision: dict[str, Any], outcome: str | None) -> None:
    """Each kind of decision has its effect, and the record says who decided."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        [call] = (await settled(client, "ada:bill"))["pending"]
        assert (call["name"], call["arguments"]) == ("pay", '{"cents": 500}')
        body = {"decisions": {call["key"]: {**decision, "digest": call["digest"]}}}
        answer = await client.post("/executions/ada:bill/decisions", json=body, headers=bearer("judge"))
        assert answer.status_code == 200, answer.text
        assert (await settled(client, "ada:bill"))["status"] == "completed"
        events = await all_events(client, "/executions/ada:bill/events")
        [used] = [event.data for event in events if event.event == "decision_used"]
        assert (used["key"], used["kind"], used["principal"]) == (call["key"], decision["kind"], "judge")
        if outcome is not None:
            calls = [call for event in events if event.event == "step_completed" for call in event.data["calls"]]
            assert [call["value"] for call in calls] == [outcome]


async def test_of_two_decisions_at_once_one_counts(db: str) -> None:
    """Two principals decide at the same time: one is answered with success, the other with a conflict."""
    async with opened(db) as journal, serving(payer(journal)) as client:
        await start(client, id="bill")
        [call] = (await settled(client, "ada:bill"))["pending"]
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
        posts = [
            client.post("/executions/ada:bill/decisions", json=body, headers=bearer(name)) for name in ("judge", "boss")
        ]
        assert sorted([answer.status_code for answer in await asyncio.gather(*posts)]) == [200, 409]
        assert (await settled(client, "ada:bill"))["status"] == "completed"
        events = await all_events(client, "/executions/ada:bill/events")
        assert [event.event for event in events].count("decision_used") == 1


async def test_of_equal_decisions_at_once_one_is_accepted(db: str) -> None:
    """Eight equal approvals and two denials of one principal at once: one answer is 200, the others are 409, and it is paid once."""
    paid: list[int] = []

    @tool(name="pay")
    def count(cents: int) -> str:
        """Pay an amount."""
        paid.append(cents)
        return f"paid {cents}"

    async with opened(db) as journal, serving(payer(journal, [count])) as client:
        for number in range(6):
            path = f"/executions/ada:bill{number}"
            await start(client, id=f"bill{number}")
            [call] = (await settled(client, f"ada:bill{number}"))["pending"]
            kinds: list[dict[str, str]] = [{"kind": "approve"}] * 8 + [{"kind": "deny", "reason": "no"}] * 2
            posts = [
                client.post(f"{path}/decisions", json={"decisions": {call["key"]: {**kind, "digest": call["digest"]}}})
                for kind in kinds
            ]
            answers = await asyncio.gather(*posts)
            assert sorted(answer.status_code for answer in answers) == [200, *[409] * 9]
            assert {answer.json()["code"] for answer in answers if answer.status_code == 409} <= {
                "conflict",
                "not_suspended",
            }
            await settled(client, f"ada:bill{number}")
            events = await all_events(client, f"{path}/events")
            assert [event.event for event in events].count("decision_used") == 1
            late = await client.post(
                f"{path}/decisions", json={"decisions": {call["key"]: {**kinds[0], "digest": call["digest"]}}}
            )
            assert late.status_code == 409
    assert len(paid) <= 6
    assert all(cents == 500 for cents in paid)


async def test_decisions_with_mistakes_are_refused() -> None:
    """A decision without a digest, with an old one, of an unknown kind or about another call changes nothing."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        [call] = (await settled(client, "ada:bill"))["pending"]
        path, key = "/executions/ada:bill/decisions", call["key"]
        for decisions, status in [
            ({key: {"kind": "approve"}}, 422),
            ({key: {"kind": "approve", "digest": "0" * 64}}, 409),
            ({key: {"kind": "maybe", "digest": call["digest"]}}, 422),
            ({key: {"kind": "edit", "digest": call["digest"]}}, 422),
            ({"other": {"kind": "approve", "digest": call["digest"]}}, 409),
            ({}, 422),
        ]:
            answer = await client.post(path, json={"decisions": decisions})
            assert answer.status_code == status, answer.text
        assert (await settled(client, "ada:bill"))["status"] == "suspended"


async def test_a_client_decides_only_about_what_the_server_shows() -> None:
    """Every answer has the text of a call with its digest, and a digest that a client makes of another text is refused."""

    @tool
    def restart(name: str = "web", note: str = "") -> str:
        """Restart."""
        return name

    model = ScriptedInference(calling("restart", '{"note": "\u2060\u0430dmin"}', "Done."), "Done.")
    loop = AgentLoop.for_model(model, tools=[restart], journal=MemoryJournal(), interceptors=[RequireApproval()])
    async with serving(loop) as client:
        await start(client, id="restart")
        [call] = (await settled(client, "ada:restart"))["pending"]
        assert call["rendering"] == 'restart\n  note = "\\u2060\\u0430dmin"\n  name = "web" (default)'
        bound = f"{call['key']}\x001\x00\x00{call['arguments']}\x00"
        others = [
            f"{call['key']}\x00{call['name']}\x00{call['arguments']}",
            bound,
            bound + f"restart {call['arguments']}",
            bound + call["rendering"].replace("web", "db"),
            bound + call["rendering"].rpartition("\n")[0],
        ]
        path = "/executions/ada:restart/decisions"
        for kind in (
            {"kind": "approve"},
            {"kind": "edit", "arguments": {}},
            {"kind": "answer", "value": 1},
            {"kind": "deny"},
        ):
            for text in others:
                digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
                answer = await client.post(path, json={"decisions": {call["key"]: {**kind, "digest": digest}}})
                assert answer.status_code == 409
                assert "rendering" in answer.json()["detail"]
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
        assert (await client.post(path, json=body)).status_code == 200
        assert (await settled(client, "ada:restart"))["status"] == "completed"
        events = await all_events(client, "/executions/ada:restart/events")
        [suspended] = [event.data for event in events if event.event == "execution_suspended"]
        assert [pending["rendering"] for pending in suspended["pending"]] == [call["rendering"]]


async def test_a_running_execution_is_stopped_while_its_tool_runs() -> None:
    """A stop cancels the running tool, and the execution ends as stopped."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return ""

    model = ScriptedInference(ToolCall("1", "wait", "{}"), "never")
    loop = AgentLoop.for_model(model, tools=[wait], journal=MemoryJournal())
    async with serving(loop) as client:
        await start(client, id="long")
        async with asyncio.timeout(DEADLINE):
            await started.wait()
        answer = await client.post("/executions/ada:long/stop", json={"reason": "not needed"})
        assert answer.status_code == 202, answer.text
        ended = await settled(client, "ada:long")
        assert ended["status"] == "stopped"
        assert (ended["stop"]["message"], ended["stop"]["principal"]) == ("not needed", "ada")
        assert cancelled.is_set()
        assert (await client.post("/executions/ada:long/stop", json={})).status_code == 409


async def test_a_suspended_execution_is_stopped() -> None:
    """A stop ends an execution that waits for a decision, and its pending call is settled."""
    async with serving(payer(MemoryJournal())) as client:
        await start(client, id="bill")
        await settled(client, "ada:bill")
        assert (await client.post("/executions/ada:bill/stop")).status_code == 202
        ended = await settled(client, "ada:bill")
        assert (ended["status"], ended["pending"]) == ("stopped", [])


async def test_a_message_reaches_a_running_execution() -> None:
    """A message that is sent while a tool runs is in the conversation of the next step."""
    started, go = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await go.wait()
        return "waited"

    def answer(request: Any) -> InferenceResponse | str:
        texts = [message.text for message in request.messages if message.role == "user"]
        return f"I read {texts[-1]}"

    loop = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "wait", "{}"), answer), tools=[wait], journal=MemoryJournal()
    )
    async with serving(loop) as client:
        await start(client, id="chat")
        async with asyncio.timeout(DEADLINE):
            await started.wait()
        sent = await client.post("/executions/ada:chat/messages", json={"message": "also this"})
        assert sent.status_code == 202, sent.text
        async with client.stream("GET", "/executions/ada:chat/events") as response:
            async for event in read_events(response):
                if event.event == "messages_sent":
                    assert event.data["messages"] == [{"role": "user", "text": "also this"}]
                    break
        go.set()
        assert (await settled(client, "ada:chat"))["text"] == "I read also this"
        late = await client.post("/executions/ada:chat/messages", json={"message": "too late"})
        assert late.status_code == 409


async def test_several_agents_have_names() -> None:
    """With several loops, a start names one of them."""
    journal = MemoryJournal()
    async with serving({"adds": adder(journal), "pays": payer(journal)}) as client:
        await start(client, id="a", agent="adds")
        await start(client, id="b", agent="pays")
        assert (await settled(client, "ada:a"))["status"] == "completed"
        assert (await settled(client, "ada:b"))["status"] == "suspended"
        wrong = await client.post("/executions", json={"input": "Go.", "agent": "add"})
        assert wrong.status_code == 422
        assert "adds" in wrong.json()["detail"]
        assert (await client.post("/executions", json={"input": "Go."})).status_code == 422


async def test_the_document_describes_the_routes_and_the_answers() -> None:
    """The OpenAPI document has exactly the routes of the server, and the answers have the fields that it names."""
    described = {(method.upper(), path) for path, item in openapi_document()["paths"].items() for method in item}
    assert described == {(method, path.replace(":path", "")) for method, path in HANDLERS}
    schemas = openapi_document()["components"]["schemas"]
    async with serving(payer(MemoryJournal())) as client:
        assert (await client.get("/openapi.json")).json() == openapi_document()
        await start(client, id="bill")
        execution = await settled(client, "ada:bill")
        assert execution.keys() == schemas["Execution"]["properties"].keys()
        assert execution["pending"][0].keys() == schemas["PendingCall"]["properties"].keys()
        listed = (await client.get("/executions")).json()
        assert listed.keys() == schemas["Page"]["properties"].keys()
        assert listed["executions"][0].keys() == schemas["Summary"]["properties"].keys()
        problem = (await client.get("/executions/ada:none")).json()
        assert problem.keys() == schemas["Problem"]["properties"].keys()


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({}, "`input` is missing"),
        ({"input": "x", "inputs": 1}, "unknown field 'inputs'"),
        ({"input": 7}, "a message is a text"),
        ({"input": {"role": "system", "parts": []}}, "role `user`"),
        ({"input": "x", "id": "a/1/0/agent"}, "an id has up to 200"),
        ({"input": "x", "id": 7}, "`id` is a text"),
        ([], "a JSON object"),
    ],
)
async def test_a_start_with_mistakes_says_what_is_wrong(body: Any, detail: str) -> None:
    """A body with a mistake is answered with 422, and the detail names the mistake."""
    async with serving(adder(MemoryJournal())) as client:
        answer = await client.post("/executions", json=body)
        assert answer.status_code == 422
        assert detail in answer.json()["detail"]
