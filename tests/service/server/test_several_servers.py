"""Several servers with one database: messages, stops and decisions reach an execution wherever it runs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest

from agentloop import AgentLoop, AgentState, Message, ScriptedInference, ToolCall, tool
from agentloop.contracts import CanJournal, CanWatchExecutions
from agentloop.durable import MemoryJournal, request_stop, send_message
from agentloop.errors import JournalCorrupt
from agentloop.service.server import LocalExecutions
from agentloop.values import InferenceResponse, approve
from tests.service.server.front import DEADLINE, adder, all_events, bearer, opened, payer, serving, settled, start


class Waiting:
    """A tool that waits until it may go on."""

    def __init__(self) -> None:
        self.started, self.go, self.cancelled = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def loop(self, journal: CanJournal) -> AgentLoop:
        """Return a loop that calls the tool, and then says what it read."""

        @tool
        async def wait() -> str:
            """Wait."""
            self.started.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "waited"

        def answer(request: Any) -> InferenceResponse | str:
            texts = [message.text for message in request.messages if message.role == "user"]
            return f"I read {texts[-1]}"

        return AgentLoop.for_model(
            ScriptedInference(ToolCall("1", "wait", "{}"), answer, answer), tools=[wait], journal=journal
        )

    async def until_started(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.started.wait()


async def until_sent(client: httpx.AsyncClient, path: str) -> None:
    """Wait until a message is recorded."""
    async with client.stream("GET", f"{path}/events") as response, asyncio.timeout(DEADLINE):
        async for line in response.aiter_lines():
            if line == "event: messages_sent":
                return


async def test_of_two_requests_for_one_id_one_counts(db: str) -> None:
    """Of two at once, to two servers, one starts the execution: the same request gets it, too, and another one is refused."""
    async with opened(db) as here, opened(db) as there, serving(adder(here)) as one, serving(adder(there)) as two:
        for number in range(10):
            inputs = ("Go.", "Go.") if number % 2 else ("Go.", "Stop.")
            posts = [
                client.post("/executions", json={"input": text, "id": f"run-{number}"})
                for client, text in zip((one, two), inputs, strict=True)
            ]
            answers = await asyncio.gather(*posts)
            assert sorted(answer.status_code for answer in answers) == ([200, 201] if number % 2 else [201, 422])
            for answer, text in zip(answers, inputs, strict=True):
                assert answer.json().get("input", text) == text


async def test_a_start_that_another_server_never_records_is_a_conflict(
    db: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An execution that a live process has claimed, and of which nothing is recorded in time, is not waited for without end."""
    monkeypatch.setattr("agentloop.service.server.operations._START_SECONDS", 0.1)
    async with opened(db) as here, opened(db) as there, serving(adder(here)) as client:
        claim = await there.claim("ada:slow")
        answer = await client.post("/executions", json={"input": "Go.", "id": "slow"})
        assert (answer.status_code, answer.json()["code"]) == (409, "conflict")
        await claim.release()


async def test_a_message_reaches_an_execution_of_another_server(db: str) -> None:
    """A message that one server takes is read by the execution that another one runs, once."""
    waiting = Waiting()
    async with (
        opened(db) as here,
        opened(db) as there,
        serving(waiting.loop(here)) as runner,
        serving(Waiting().loop(there)) as other,
    ):
        await start(runner, id="chat")
        await waiting.until_started()
        answer = await other.post("/executions/ada:chat/messages", json={"message": "also this"})
        assert answer.status_code == 202, answer.text
        await until_sent(runner, "/executions/ada:chat")
        waiting.go.set()
        assert (await settled(other, "ada:chat"))["text"] == "I read also this"
        late = await other.post("/executions/ada:chat/messages", json={"message": "too late"})
        assert late.status_code == 409
        assert not await there.commands(["ada:chat"])


async def test_a_stop_reaches_an_execution_of_another_server(db: str) -> None:
    """A stop that one server takes cancels the tool that another one runs; the record has the principal."""
    waiting = Waiting()
    async with (
        opened(db) as here,
        opened(db) as there,
        serving(waiting.loop(here)) as runner,
        serving(Waiting().loop(there)) as other,
    ):
        await start(runner, id="long")
        await waiting.until_started()
        body = {"reason": "not needed"}
        answer = await other.post("/executions/ada:long/stop", json=body, headers=bearer("boss"))
        assert answer.status_code == 202, answer.text
        ended = await settled(runner, "ada:long")
        assert ended["status"] == "stopped"
        assert (ended["stop"]["message"], ended["stop"]["principal"]) == ("not needed", "boss")
        assert waiting.cancelled.is_set()


async def test_commands_of_programs_reach_executions_of_a_server(db: str) -> None:
    """What a program posts to the journal, without HTTP, is obeyed by the server that runs the execution."""
    waiting = Waiting()
    async with opened(db) as here, opened(db) as there, serving(waiting.loop(here)) as client:
        await start(client, id="chat")
        await waiting.until_started()
        await send_message(there, "ada:chat", Message.user("from a program"), principal="cron")
        await until_sent(client, "/executions/ada:chat")
        assert await request_stop(there, "ada:chat", "enough", principal="cron") is None
        ended = await settled(client, "ada:chat")
        assert (ended["status"], ended["stop"]["principal"]) == ("stopped", "cron")


async def test_a_message_to_a_suspended_execution_waits_until_it_continues(db: str) -> None:
    """A message before a decision is in the conversation of the step after it, also when another server resumes."""
    async with opened(db) as here, opened(db) as there, serving(payer(here)) as first, serving(payer(there)) as second:
        await start(first, id="bill")
        [call] = (await settled(first, "ada:bill"))["pending"]
        sent = await first.post("/executions/ada:bill/messages", json={"message": "Be quick."})
        assert sent.status_code == 202, sent.text
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
        assert (await second.post("/executions/ada:bill/decisions", json=body)).status_code == 200
        await settled(first, "ada:bill")
        events = await all_events(first, "/executions/ada:bill/events")
        taken = [event.data["messages"] for event in events if event.event == "messages_taken"]
        assert [[message["text"] for message in messages] for messages in taken] == [["Be quick."]]


async def test_of_two_decisions_at_two_servers_one_counts(db: str) -> None:
    """Two principals decide at the same time at two servers: the payment is made once."""
    async with opened(db) as here, opened(db) as there, serving(payer(here)) as first, serving(payer(there)) as second:
        await start(first, id="bill")
        [call] = (await settled(first, "ada:bill"))["pending"]
        path = "/executions/ada:bill/decisions"
        body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
        posts = [
            client.post(path, json=body, headers=bearer(name)) for client, name in ((first, "judge"), (second, "boss"))
        ]
        assert sorted([answer.status_code for answer in await asyncio.gather(*posts)]) == [200, 409]
        assert (await settled(first, "ada:bill"))["status"] == "completed"
        events = await all_events(first, "/executions/ada:bill/events")
        assert [event.event for event in events].count("decision_used") == 1


async def test_of_equal_decisions_at_two_servers_one_is_accepted(db: str) -> None:
    """One principal decides the same eight times at two servers at once: one answer is 200, and the decision is used once."""
    async with opened(db) as here, opened(db) as there, serving(payer(here)) as first, serving(payer(there)) as second:
        for number in range(4):
            await start(first, id=f"bill{number}")
            [call] = (await settled(first, f"ada:bill{number}"))["pending"]
            path = f"/executions/ada:bill{number}/decisions"
            body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
            answers = await asyncio.gather(*[client.post(path, json=body) for client in (first, second) * 4])
            assert sorted(answer.status_code for answer in answers) == [200, *[409] * 7]
            assert (await settled(first, f"ada:bill{number}"))["status"] == "completed"
            events = await all_events(first, f"/executions/ada:bill{number}/events")
            assert [event.event for event in events].count("decision_used") == 1


async def test_a_decision_right_after_the_suspension_is_taken() -> None:
    """A client that decides as soon as it sees the suspension is not refused because the run is about to end."""
    async with serving(payer(MemoryJournal())) as client:
        for number in range(20):
            path = f"/executions/ada:bill{number}"
            await start(client, id=f"bill{number}")
            [call] = (await settled(client, f"ada:bill{number}"))["pending"]
            body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
            answer = await client.post(f"{path}/decisions", json=body)
            assert answer.status_code == 200, answer.text


class PlainJournal(CanJournal):
    """A journal of a user: neither does it wake those who wait, nor does it carry commands."""

    def __init__(self) -> None:
        self._journal = MemoryJournal()

    async def append(self, *args: Any) -> None:
        await self._journal.append(*args)

    async def read(self, *args: Any, **options: Any) -> Any:
        return await self._journal.read(*args, **options)

    async def head(self, execution_id: str) -> Any:
        return await self._journal.head(execution_id)

    async def list(self, **options: Any) -> Any:
        return await self._journal.list(**options)

    async def claim(self, execution_id: str) -> Any:
        return await self._journal.claim(execution_id)

    async def delete(self, *args: Any, **options: Any) -> Any:
        return await self._journal.delete(*args, **options)

    async def purge(self, *args: Any, **options: Any) -> Any:
        return await self._journal.purge(*args, **options)

    async def aclose(self) -> None:
        await self._journal.aclose()


@pytest.mark.parametrize("action", ["messages", "stop"])
async def test_a_journal_without_commands_is_enough_for_one_server(action: str) -> None:
    """With a journal that only records, messages and stops reach what this server runs."""
    journal, waiting = PlainJournal(), Waiting()
    assert not isinstance(journal, CanWatchExecutions)
    async with serving(LocalExecutions(waiting.loop(journal))) as client:
        await start(client, id="chat")
        await waiting.until_started()
        body = {"message": "also this"} if action == "messages" else {"reason": "not needed"}
        assert (await client.post(f"/executions/ada:chat/{action}", json=body)).status_code == 202
        waiting.go.set()
        ended = await settled(client, "ada:chat")
        assert ended["text"] == "I read also this" if action == "messages" else ended["status"] == "stopped"


async def test_a_damaged_execution_holds_no_other_one() -> None:
    """A server continues what it can, also if one of the interrupted executions cannot be read."""

    class Damaged(MemoryJournal):
        async def read(self, execution_id: str, **options: Any) -> Any:
            if execution_id == "ada:broken":
                raise JournalCorrupt("the records of ada:broken are damaged")
            return await super().read(execution_id, **options)

    journal = MemoryJournal()
    for name in ("fine", "broken"):  # interrupted: the server ends while the tool runs
        waiting = Waiting()
        async with serving(waiting.loop(journal)) as client:
            await start(client, id=name)
            await waiting.until_started()
    damaged = Damaged()
    damaged.__dict__.update(journal.__dict__)
    async with serving(adder(damaged)) as client:
        assert (await settled(client, "ada:fine"))["status"] == "completed"


async def test_interrupted_executions_of_other_programs_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server looks for what it can continue again and again, but those of others cost it nothing and hold nothing back."""
    reads: Counter[str] = Counter()

    class Counted(MemoryJournal):
        async def read(self, execution_id: str, **options: Any) -> Any:
            reads[execution_id] += 1
            return await super().read(execution_id, **options)

    journal = Counted()
    names = [f"other-{number}" for number in range(3)]
    for name in names:
        async for _ in adder(journal).iterate("Add.", execution_id=name):
            break
    waiting = Waiting()
    async with serving(waiting.loop(journal)) as client:
        await start(client, id="ours")
        await waiting.until_started()
    reads.clear()
    monkeypatch.setattr("agentloop.service.server.executions._RECOVERY_SECONDS", 0.001)
    looks, look = 0, LocalExecutions._recover_all

    async def count(executions: LocalExecutions) -> None:
        nonlocal looks
        await look(executions)
        looks += 1

    monkeypatch.setattr(LocalExecutions, "_recover_all", count)
    executions = LocalExecutions(adder(journal))
    async with executions, asyncio.timeout(DEADLINE):
        while looks < 5:  # noqa: ASYNC110  # of a task of the server
            await asyncio.sleep(0.001)
        assert {name: reads[name] for name in names} == dict.fromkeys(names, 1)
        assert len(executions._foreign) == len(names)
        while (await journal.state("ada:ours")).status != "completed":  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        for name in names:
            await journal.delete(name)
        seen = looks
        while looks < seen + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert executions._foreign == set()


async def test_a_decision_is_taken_while_the_run_before_it_is_still_listed() -> None:
    """The run that has suspended an execution is listed until its callback is called; a decision in between continues it."""
    journal = MemoryJournal()
    executions = LocalExecutions(payer(journal))
    async with executions:
        await executions.start("default", AgentState.start("Pay."), "bill")
        await asyncio.wait([*executions._runs.values()])
        ended = asyncio.create_task(asyncio.sleep(0))
        await ended
        executions._runs["bill"] = ended
        (pending,) = (await journal.state("bill")).pending
        await executions.resume("default", "bill", {pending.key: approve(pending.digest)})
        await asyncio.wait([*executions._runs.values()])
    assert (await journal.state("bill")).status == "completed"
