"""The HTTP front before a cluster: real workers run what clients start."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentloop import AgentLoop
from agentloop.durable import MemoryJournal
from agentloop.service.cluster import Cluster, Worker
from agentloop.service.server import ClusterExecutions
from agentloop.values import AgentState, from_json
from tests.service.server.front import adder, all_events, bearer, payer, serving, settled, start


async def test_workers_run_what_clients_start(tmp_path: Path) -> None:
    """An execution is started over HTTP, run by a worker, decided over HTTP by two at once, and followed to its end."""
    agents = {"pays": payer(MemoryJournal()), "adds": adder(MemoryJournal())}
    worker = Worker(agents, str(tmp_path / "runs.db"), name="one")
    running = asyncio.create_task(worker.run())
    try:
        async with serving(ClusterExecutions(Cluster(tmp_path / "runs.db"), agents)) as client:
            await start(client, id="sum", agent="adds")
            assert (await settled(client, "ada:sum"))["text"] == "It is 3."
            assert (await client.post("/executions/ada:sum/forks", json={"at_step": 1})).status_code == 201
            assert (await settled(client, "ada:sum/fork-1"))["text"] == "It is 3."
            await start(client, id="bill", agent="pays")
            suspended = await settled(client, "ada:bill")
            assert suspended["started_by"] == "ada"
            [call] = suspended["pending"]
            body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
            path = "/executions/ada:bill/decisions"
            posts = [client.post(path, json=body, headers=bearer(name)) for name in ("judge", "boss")]
            assert sorted([answer.status_code for answer in await asyncio.gather(*posts)]) == [200, 409]
            assert (await settled(client, "ada:bill"))["text"] == "Done."
            events = await all_events(client, "/executions/ada:bill/events")
            assert [event.event for event in events].count("decision_used") == 1
    finally:
        await worker.drain()
        await asyncio.wait((running,))


async def test_a_start_without_a_free_worker_is_queued(tmp_path: Path) -> None:
    """An accepted execution is queued: it can be fetched, is the same when it is asked for again, and runs when a worker comes."""
    agents = {"adds": adder(MemoryJournal())}
    body = {"input": "Go.", "id": "sum"}
    cluster = ClusterExecutions(Cluster(tmp_path / "runs.db"), agents, start_seconds=0.1)
    async with serving(cluster) as client:
        for _ in range(2):
            answer = await client.post("/executions", json=body)
            assert (answer.status_code, answer.json()["status"]) == (202, "queued"), answer.text
            assert answer.headers["location"] == "/executions/ada:sum"
        other = await client.post("/executions", json={**body, "input": "Other."})
        assert (other.status_code, other.json()["code"]) == (422, "other_request")
        fetched = (await client.get("/executions/ada:sum")).json()
        assert (fetched["status"], fetched["started_by"], fetched["input"]) == ("queued", "ada", "Go.")
        assert (await client.get("/executions/ada:sum", headers=bearer("bob"))).status_code == 404
        following = asyncio.create_task(all_events(client, "/executions/ada:sum/events"))
        worker = Worker(agents, str(tmp_path / "runs.db"), name="one")
        running = asyncio.create_task(worker.run())
        assert (await following)[-1].data["text"] == "It is 3."
        await worker.drain()
        await asyncio.wait((running,))


async def test_of_two_requests_that_are_queued_for_one_id_one_counts(tmp_path: Path) -> None:
    """The queue takes an id once, so that of two requests at once the other one is refused, and not accepted and lost."""
    agents = {"adds": adder(MemoryJournal())}
    cluster = ClusterExecutions(Cluster(tmp_path / "runs.db"), agents, start_seconds=0.1)
    async with serving(cluster) as client:
        posts = [client.post("/executions", json={"input": text, "id": "sum"}) for text in ("Go.", "Stop.")]
        answers = await asyncio.gather(*posts)
        assert sorted(answer.status_code for answer in answers) == [202, 422]


async def test_a_queued_execution_is_stopped(tmp_path: Path) -> None:
    """An execution that is stopped while it waits for a worker has ended, and is not started."""
    agents = {"adds": adder(MemoryJournal())}
    cluster = ClusterExecutions(Cluster(tmp_path / "runs.db"), agents, start_seconds=0.1)
    async with serving(cluster) as client:
        await client.post("/executions", json={"input": "Go.", "id": "sum"})
        paths = [f"/executions/ada:sum/events{query}" for query in ("", "?format=ag-ui")]
        following = [asyncio.create_task(all_events(client, path)) for path in paths]
        await asyncio.sleep(0.2)  # both follow before it ends
        assert (await client.post("/executions/ada:sum/stop")).status_code == 202
        plain, ag_ui = await asyncio.gather(*following)
        assert [(event.id, event.event, event.data["status"]) for event in plain] == [
            ("", "execution_ended", "stopped")
        ]
        assert [event.data["type"] for event in ag_ui] == ["RUN_STARTED", "RUN_FINISHED"]
        assert (await client.get(paths[0])).status_code == 204
        body = {"input": "Again.", "id": "next", "continues": "ada:sum"}
        assert (await client.post("/executions", json=body)).status_code == 202
        worker = Worker(agents, str(tmp_path / "runs.db"), name="one")
        running = asyncio.create_task(worker.run())
        assert (await settled(client, "ada:next"))["text"] == "It is 3."
        state = from_json((await client.get("/executions/ada:next/state")).content, AgentState)
        assert [message.text for message in state.messages if message.role == "user"] == ["Go.", "Again."]
        await worker.drain()
        await asyncio.wait((running,))
        assert (await client.get("/executions/ada:sum")).json()["status"] == "stopped"
        assert (await client.post("/executions/ada:sum/stop")).status_code == 409


async def test_of_equal_decisions_for_a_cluster_one_is_accepted(db: str) -> None:
    """Of equal decisions at once the queue takes those of one request, whether a worker is free or not; the others are conflicts."""
    agents = {"pays": payer(MemoryJournal())}
    body: dict[str, Any] = {}
    async with serving(ClusterExecutions(Cluster(db), agents, start_seconds=2.0)) as client:
        for is_busy in (False, True):
            name = f"bill{is_busy}{bool(body)}"
            path = f"/executions/ada:{name}/decisions"
            async with _working(agents, db):
                await start(client, id=name)
                [call] = (await settled(client, f"ada:{name}"))["pending"]
                body = {"decisions": {call["key"]: {"kind": "approve", "digest": call["digest"]}}}
                if not is_busy:
                    answers = await asyncio.gather(*[client.post(path, json=body) for _ in range(8)])
                    assert sorted(answer.status_code for answer in answers) == [200, *[409] * 7]
            if is_busy:
                answers = await asyncio.gather(*[client.post(path, json=body) for _ in range(8)])
                assert sorted(answer.status_code for answer in answers) == [202, *[409] * 7]
                late = await client.post(path, json=body)
                assert (late.status_code, late.json()["code"]) == (409, "conflict")
            async with _working(agents, db):
                events = await all_events(client, f"/executions/ada:{name}/events")
            assert events[-1].data["text"] == "Done."
            assert [event.event for event in events].count("decision_used") == 1


@asynccontextmanager
async def _working(agents: Mapping[str, AgentLoop], db: str) -> AsyncIterator[None]:
    """Run a worker."""
    worker = Worker(agents, db)
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        await worker.drain()
        await asyncio.wait((running,))
