"""Streams of events: resumed elsewhere, with live deltas, with slow readers, and at the end of a server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.policies import BudgetAccount
from agentloop.service.server import LocalExecutions, ServerApplication, ServerLimits
from agentloop.service.server.feeds import Feeds
from agentloop.service.server.record_events import RecordReader
from agentloop.testing.journal_network import UnreliableJournal
from agentloop.values import InferenceRequest, RecordKind
from tests.loaded import loaded_python
from tests.service.server.front import (
    DEADLINE,
    GatedInference,
    add,
    adder,
    all_events,
    opened,
    payer,
    read_events,
    serving,
    settled,
    start,
)


@asynccontextmanager
async def server_process(folder: Path, db: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """Run the server of `worker.py`; yield its process and a client."""
    options = {} if db.endswith(".db") else {"session_timeout": 2}
    command = loaded_python("-m", "tests.service.server.worker", str(folder), db, json.dumps(options))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE):
            url = (await process.stdout.readline()).decode().strip()
        async with httpx.AsyncClient(base_url=url, timeout=DEADLINE) as client:
            yield process, client
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def until_started(folder: Path, count: int) -> None:
    """Wait until the tool has started a number of times."""
    file = folder / "started"
    async with asyncio.timeout(DEADLINE):
        while not file.exists() or len(file.read_text().splitlines()) < count:  # noqa: ASYNC110  # of another process
            await asyncio.sleep(0.01)


async def test_a_stream_is_resumed_in_the_middle_at_another_server(db: str) -> None:
    """After every event of a stream, another server process continues it where it was, without a gap or a repetition."""
    async with (
        opened(db) as here,
        opened(db) as there,
        serving(adder(here)) as first,
        serving(adder(there)) as second,
    ):
        await start(first, id="sum")
        path = "/executions/ada:sum/events"
        events = await all_events(first, path)
        for number, event in enumerate(events[:-1], 1):
            rest = await all_events(second, path, headers={"last-event-id": event.id})
            assert [each.data for each in rest] == [each.data for each in events[number:]]
        ended = await second.get(path, headers={"last-event-id": events[-1].id})
        assert ended.status_code == 204


async def test_a_server_continues_what_a_killed_one_ran(tmp_path: Path, db: str) -> None:
    """After SIGKILL in the middle of a tool, the next server finishes the execution, and a stream goes on there."""
    async with server_process(tmp_path, db) as (process, client):
        await start(client, id="job")
        async with client.stream("GET", "/executions/local:job/events") as response:
            async for event in read_events(response):
                if event.event == "call_started":
                    last = event.id
                    break
        await until_started(tmp_path, 1)
        process.kill()
        await process.wait()
    async with server_process(tmp_path, db) as (_, client):
        await until_started(tmp_path, 2)
        (tmp_path / "go").touch()
        events = await all_events(client, "/executions/local:job/events", headers={"last-event-id": last})
        assert events[0].event == "execution_recovered"
        assert (events[-1].event, events[-1].data["text"]) == ("execution_ended", "It is there.")


async def test_at_sigterm_streams_end_with_a_hint_and_executions_stay_in_progress(tmp_path: Path, db: str) -> None:
    """A server that is told to end closes its streams, interrupts what runs, and exits with 0; the next one continues."""
    async with server_process(tmp_path, db) as (process, client):
        await start(client, id="job")
        await until_started(tmp_path, 1)
        async with client.stream("GET", "/executions/local:job/events") as response:
            lines = response.aiter_lines()
            async for line in lines:
                if line == "event: call_started":
                    break
            process.send_signal(signal.SIGTERM)
            rest = [line async for line in lines]
        assert "retry: 1000" in rest
        assert "event: execution_ended" not in rest
        async with asyncio.timeout(DEADLINE):
            assert await process.wait() == 0
    (tmp_path / "go").touch()
    async with server_process(tmp_path, db) as (_, client):
        assert (await settled(client, "local:job"))["text"] == "It is there."


async def test_at_the_end_of_a_server_who_waits_has_the_answer_at_once() -> None:
    """A request that waits for the end of an execution does not hold a server that shuts down, and gets how the execution stands."""

    @tool(effect="pure")
    async def sleep() -> str:
        """Sleep."""
        await asyncio.Event().wait()
        return "never"

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "sleep", "{}")), journal=MemoryJournal(), tools=[sleep])
    async with LocalExecutions(loop) as executions:
        application = ServerApplication(executions, limits=ServerLimits(wait_seconds=2 * DEADLINE))
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            await start(client, id="long")
            waiting = asyncio.create_task(client.get("/executions/local:long", params={"wait": 10_000}))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            application.begin_shutdown()
            async with asyncio.timeout(DEADLINE):
                answer = await waiting
        assert (answer.status_code, answer.json()["status"]) == (200, "in_progress")


async def test_text_is_streamed_while_it_is_written() -> None:
    """Deltas have no id, come before the record of their inference, and add up to its text."""
    go = asyncio.Event()

    @tool(effect="pure")
    async def wait() -> str:
        """Wait."""
        await go.wait()
        return "go"

    model = ScriptedInference(ToolCall("1", "wait", "{}"), ["Three ", "lamps ", "are left."])
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), streaming=True, tools=[wait])
    async with serving(loop) as client:
        await start(client, id="lamps")
        events = []
        async with client.stream("GET", "/executions/ada:lamps/events") as response:
            async for event in read_events(response):
                events.append(event)
                if event.event == "call_started":
                    go.set()
        deltas = [event for event in events if event.event == "text_delta"]
        assert "".join([event.data["text"] for event in deltas]) == "Three lamps are left."
        assert {event.id for event in deltas} == {""}
        names = [event.event for event in events]
        assert names.index("text_delta") > names.index("step_completed")
        last_inference = max(index for index, name in enumerate(names) if name == "inference_completed")
        assert max(index for index, name in enumerate(names) if name == "text_delta") < last_inference


async def test_text_is_streamed_again_where_an_interrupted_execution_goes_on() -> None:
    """The inference whose claim was lost counts no longer, so that what the next one writes is not held back."""
    journal, model = UnreliableJournal(MemoryJournal()), GatedInference()
    loop = AgentLoop.for_model(model, journal=journal, streaming=True)
    executions = LocalExecutions(loop)
    feeds = Feeds(journal, executions.unrecorded_state)
    written: asyncio.Queue[str] = asyncio.Queue()

    async def follow() -> None:
        async for event in feeds.follow("run", catches_up=True):
            if event is not None and event.type in {"text_delta", "inference_completed"}:
                written.put_nowait(event.data["text"])

    async with asyncio.timeout(DEADLINE), executions, asyncio.TaskGroup() as tasks:
        executions.watch(feeds.add)
        await executions.start("default", AgentState.start("Go.", agent_id="default"), "run")
        tasks.create_task(follow())
        assert await written.get() == "Three lamps "
        await journal.expire(tells=True)
        while model.requests < 2:
            await executions.run_fork("default", "run")  # nothing as long as the lost run ends
            await asyncio.sleep(0.01)
        assert await written.get() == "Three lamps "
        model.gate.set()
        assert [await written.get(), await written.get()] == ["are left.", "Three lamps are left."]


async def test_the_text_of_a_fork_is_streamed_from_its_first_step_on() -> None:
    """A fork begins after a step of its original; the deltas of its first inference come as those of any other."""
    model = GatedInference()
    loop = AgentLoop.for_model(model, journal=MemoryJournal(), streaming=True, tools=[add])
    async with serving(loop) as client:
        model.gate.set()
        await start(client, id="lamps")
        await settled(client, "ada:lamps")
        model.gate.clear()
        forked = await client.post("/executions/ada:lamps/forks", json={"at_step": 1})
        events = []
        path = f"{forked.headers['location']}/events"
        async with asyncio.timeout(DEADLINE), client.stream("GET", path) as response:
            async for event in read_events(response):
                events.append(event)
                model.gate.set()
        assert (events[0].event, events[0].data["step"]) == ("execution_started", 2)
        texts = [(event.data["step"], event.data["text"]) for event in events if event.event == "text_delta"]
        assert texts[-1] == (2, "are left.")


async def test_a_reader_that_does_not_read_holds_nobody() -> None:
    """While one client reads nothing, another one gets all events of the same execution, and the execution ends."""
    text = "x" * 100_000
    model = ScriptedInference(*[text] * 3)
    loop = AgentLoop.for_model(model, journal=MemoryJournal())
    async with serving(loop) as client:
        await start(client, id="long")
        port = client.base_url.port
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        head = "GET /executions/ada:long/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer ada-token\r\n\r\n"
        writer.write(head.encode())
        events = await all_events(client, "/executions/ada:long/events")
        assert events[-1].data["text"] == text
        assert (await client.get("/health")).status_code == 200
        writer.close()
        reader.feed_eof()


@pytest.mark.unmonitored  # its id is used again
@pytest.mark.parametrize("path", ["events", "trace/events"])
async def test_a_stream_ends_when_its_execution_is_deleted(path: str) -> None:
    """Who followed a deleted execution gets nothing of another one that has its id; who comes then gets that one alone."""
    journal = MemoryJournal()
    async with serving(payer(journal)) as client:
        await start(client, id="bill", input="Pay the first.")
        await settled(client, "ada:bill")
        async with asyncio.timeout(DEADLINE), client.stream("GET", f"/executions/ada:bill/{path}") as response:
            events = read_events(response)
            seen = [await anext(events)]
            await journal.delete("ada:bill")
            await start(client, id="bill", input="Pay the second.")
            seen += [event async for event in events]
        await settled(client, "ada:bill")
        assert "Pay the second." not in json.dumps([event.data for event in seen])
        async with client.stream("GET", f"/executions/ada:bill/{path}") as response:
            newest = await anext(read_events(response))
        assert "Pay the second." in json.dumps(newest.data)
        assert "Pay the first." not in json.dumps(newest.data)


async def test_a_hundred_readers_get_every_event() -> None:
    """Many clients follow one execution over its suspension, and each gets the same events."""
    async with serving(payer(MemoryJournal()), limits=ServerLimits(streams=200)) as client:
        await start(client, id="bill")
        [call] = (await settled(client, "ada:bill"))["pending"]
        limits = httpx.Limits(max_connections=200)
        async with httpx.AsyncClient(
            base_url=client.base_url, headers=client.headers, timeout=60, limits=limits
        ) as many:
            readers = [asyncio.create_task(all_events(many, "/executions/ada:bill/events")) for _ in range(100)]
            body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
            assert (await client.post("/executions/ada:bill/decisions", json=body)).status_code == 200
            streams = [[event.data for event in await reader] for reader in readers]
        assert streams[0][-1]["type"] == "execution_ended"
        assert all(stream == streams[0] for stream in streams)


async def test_each_message_that_a_step_takes_is_in_one_event() -> None:
    """A step may take messages more than once: it does where a recovery goes on with it."""
    journal = MemoryJournal()

    def interrupted(_: InferenceRequest) -> str:
        loop.inbox("run").send("first")
        return "Go on."

    loop = AgentLoop.for_model(ScriptedInference(interrupted, "done"), journal=journal)
    await loop.execute("go", execution_id="run")
    records = [*await journal.read("run")]
    place = next(number for number, record in enumerate(records) if record.kind is RecordKind.MESSAGES_TAKEN)
    again = evolve(records[place], body=records[place].body.replace("first", "second"))
    reader = RecordReader()
    events = [reader.read(record) for record in (*records[: place + 1], again)]
    taken = [event.data["messages"] for event in events if event is not None and event.type == "messages_taken"]
    assert [[message["text"] for message in messages] for messages in taken] == [["first"], ["second"]]


async def test_a_limit_before_the_first_answer_ends_the_events_without_a_step() -> None:
    """The record of the step that the limit has stopped adds none; the end of the execution says why."""
    journal = MemoryJournal()
    loop = AgentLoop.for_model(ScriptedInference("never"), interceptors=[BudgetAccount("a", tokens=0)], journal=journal)
    await loop.execute("Go.", execution_id="run")
    reader = RecordReader()
    records = await journal.read("run")
    assert RecordKind.STEP_COMPLETED in [record.kind for record in records]
    types = [event.type for event in map(reader.read, records) if event is not None]
    assert types == ["execution_started", "inference_failed", "execution_ended"]
