"""Tool calls over the workers of a cluster, with real processes that are killed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, RequireApproval, ScriptedInference, ToolCall, tool
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.durable import open_journal
from agentloop.errors import ClusterError, ConfigurationError
from agentloop.executors.remote_calls import RemoteCall
from agentloop.service.cluster import Cluster as ClusterClient
from agentloop.service.cluster import ClusterDatabase, QueuedToolExecutor
from agentloop.service.cluster.engine import Engine
from agentloop.service.cluster.executions import Retention, executions_of_call, forget_calls, start_job_id
from agentloop.values import SystemClock, ToolExecution, ToolStatus
from agentloop.values.jobs import Job, JobKind
from agentloop.values.records import (
    CannotTell,
    DidNotHappen,
    callers_of,
    check_execution_id,
    inner_key,
    sub_agent_execution_id,
)
from tests.limits import LONGEST
from tests.loaded import loaded_python
from tests.postgres import PostgresServer
from tests.service.cluster.tool_worker import make_loop
from tests.service.cluster.workers import MAINLY_POSTGRES, MAINLY_SQLITE


class Cluster:
    """Workers in processes of their own.

    Args:
        db: the database.
        folder: where their tools write.
    """

    def __init__(self, db: str, folder: Path) -> None:
        self.db = db
        self.folder = folder
        self._workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> int:
        """Start a worker, and return its process."""
        command = loaded_python("-m", "tests.service.cluster.tool_worker", self.db, str(self.folder), name)
        worker = subprocess.Popen(command)
        self._workers[worker.pid] = worker
        return worker.pid

    def kill(self, process: int) -> None:
        """Kill a worker."""
        self._workers[process].send_signal(signal.SIGKILL)
        self._workers[process].wait()

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers.values():
            worker.kill()
            worker.wait()

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """What the tools wrote."""
        path = self.folder / "ledger"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def effects(self) -> list[str]:
        """Return the keys of the effects, in order."""
        return [line["key"] for line in self.ledger if line["what"] == "effect"]

    async def begun(self, count: int) -> list[dict[str, Any]]:
        """Wait until so many calls have begun, and return their lines."""
        end = time.monotonic() + LONGEST
        while len(found := [line for line in self.ledger if line["what"] == "begins"]) < count:
            assert time.monotonic() < end, f"{len(found)} of {count} calls have begun"
            await asyncio.sleep(0.02)
        return found

    async def ended(self, count: int) -> None:
        """Wait until so many effects have happened."""
        end = time.monotonic() + LONGEST
        while len(self.effects()) < count:
            assert time.monotonic() < end, f"{len(self.effects())} of {count} effects have happened"
            await asyncio.sleep(0.02)

    def open(self, gate: str) -> None:
        """Let the tools pass that wait at a gate."""
        (self.folder / gate).touch()

    def loop(self, *calls: ToolCall, **settings: Any) -> AgentLoop[str]:
        """Return an agent that makes these calls over the workers."""
        return make_loop(self.folder, QueuedToolExecutor(db=self.db, agent="default", **settings), *calls)

    @asynccontextmanager
    async def journaled(self, loop: AgentLoop[str]) -> AsyncIterator[AgentLoop[str]]:
        """Enter a loop with the journal of the database."""
        journal = open_journal(self.db)
        try:
            async with loop.replace(journal=journal) as entered:
                yield entered
        finally:
            await journal.aclose()


@pytest.fixture
def cluster(db: str, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster without workers."""
    folder = tmp_path / "work"
    folder.mkdir()
    cluster = Cluster(db, folder)
    yield cluster
    cluster.close()


def call(name: str, **arguments: Any) -> ToolCall:
    """Return a call."""
    return ToolCall("", name).with_arguments(arguments)


def outcomes(state: AgentState) -> tuple[ToolExecution, ...]:
    """Return the outcomes of the first step."""
    return state.steps[0].executions


@MAINLY_POSTGRES
async def test_a_batch_runs_on_several_workers(cluster: Cluster) -> None:
    """Calls that wait for each other's workers run at the same time on both, and the outcomes are in call order."""
    cluster.start("a")
    cluster.start("b")
    calls = [call("effect", gate="go") for _ in range(8)]
    async with asyncio.TaskGroup() as group:
        running = group.create_task(cluster.loop(*calls).execute("go"))
        begun = await cluster.begun(8)  # each worker has four slots
        cluster.open("go")
    executions = outcomes(running.result())
    assert len({line["process"] for line in begun}) == 2
    assert [execution.status for execution in executions] == [ToolStatus.SUCCEEDED] * 8
    assert sorted(cluster.effects()) == [execution.key for execution in executions]


@MAINLY_SQLITE
async def test_an_error_of_a_tool_comes_back(cluster: Cluster) -> None:
    """It has the name and the message that it had on the worker."""
    cluster.start("a")
    (execution,) = outcomes(await cluster.loop(call("broken")).execute("go"))
    assert execution.error is not None
    assert (execution.error.type, execution.error.message) == ("LookupError", "nothing here")


@MAINLY_SQLITE
@pytest.mark.parametrize(
    ("name", "books", "status", "effects"),
    [
        ("effect", 0, ToolStatus.IN_DOUBT, 0),
        ("keyed", 0, ToolStatus.SUCCEEDED, 1),
        ("booked", 1, ToolStatus.SUCCEEDED, 1),
        ("booked", 0, ToolStatus.IN_DOUBT, 0),
    ],
)
async def test_a_call_whose_worker_dies_is_judged_by_its_effect(
    cluster: Cluster, name: str, books: int, status: ToolStatus, effects: int
) -> None:
    """An effect is in doubt unless its tool can tell; another call runs again with the same key, on another worker."""
    first = cluster.start("a")
    running = asyncio.create_task(cluster.loop(call(name, gate="go")).execute("go"))
    await cluster.begun(1)
    cluster.start("b")
    if books:
        cluster.open("books")
    cluster.kill(first)
    cluster.open("go")
    (execution,) = outcomes(await running)
    assert execution.status is status, execution.error_message
    assert cluster.effects() == [execution.key] * effects


@MAINLY_SQLITE
async def test_a_call_that_kills_its_workers_takes_no_other_with_it(cluster: Cluster) -> None:
    """Calls are on their last attempt one at a time, and the death of its worker does not count for one that waits there."""
    running = asyncio.create_task(cluster.loop(call("keyed", gate="go"), call("keyed", gate="go")).execute("go"))
    for number, count in enumerate((2, 4)):
        worker = cluster.start(f"victim-{number}")
        await cluster.begun(count)
        cluster.kill(worker)
    worker = cluster.start("last-victim")
    await cluster.begun(5)
    async with Engine(ClusterDatabase.parse(cluster.db)) as engine:
        end = time.monotonic() + LONGEST
        while not any((job.attributes or {}).get("spared") for job in engine.client.list_workflows()):
            assert time.monotonic() < end, "no call waits for its turn"
            await asyncio.sleep(0.02)
    cluster.kill(worker)
    cluster.start("survivor")
    assert len({line["key"] for line in (await cluster.begun(6))[4:]}) == 2
    cluster.open("go")
    executions = outcomes(await running)
    assert sorted(execution.status for execution in executions) == [ToolStatus.FAILED, ToolStatus.SUCCEEDED]
    assert "3 workers have died" in "".join([execution.error_message or "" for execution in executions])


async def test_the_result_of_a_call_that_ends_while_the_server_is_away_is_stored_later(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    """Also where the server has a unix socket, which is gone meanwhile; the worker goes on, and the call does not run again."""
    cluster = Cluster(own_postgres.url, tmp_path)
    try:
        cluster.start("a")
        running = asyncio.create_task(cluster.loop(call("effect", gate="go")).execute("go"))
        await cluster.begun(1)
        own_postgres.stop("immediate")
        cluster.open("go")
        await cluster.ended(1)
        own_postgres.start()
        (execution,) = outcomes(await running)
    finally:
        cluster.close()
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message
    assert cluster.effects() == [execution.key]


@MAINLY_POSTGRES
async def test_recovery_takes_the_result_from_the_queue(cluster: Cluster) -> None:
    """A call that ended after its execution was interrupted is not made again, and not in doubt."""
    cluster.start("a")
    async with cluster.journaled(cluster.loop(call("effect", gate="go"))) as loop:
        running = asyncio.create_task(loop.execute("go", execution_id="e"))
        await cluster.begun(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert cluster.effects() == []
        cluster.open("go")
        (execution,) = outcomes(await loop.recover("e"))
    assert execution.status is ToolStatus.SUCCEEDED
    assert cluster.effects() == [execution.key]


@MAINLY_POSTGRES
async def test_a_call_that_was_cancelled_while_it_waited_runs_after_the_recovery(cluster: Cluster) -> None:
    """It did not happen, so that there is no doubt; no worker took it meanwhile."""
    async with cluster.journaled(cluster.loop(call("effect"))) as loop:
        running = asyncio.create_task(loop.execute("go", execution_id="e"))
        await until_queued(loop, cluster)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        cluster.start("a")
        (execution,) = outcomes(await loop.recover("e"))
    assert execution.status is ToolStatus.SUCCEEDED
    assert cluster.effects() == [execution.key]


async def until_queued(loop: AgentLoop[str], cluster: Cluster) -> None:
    """Wait until a call is in the queue."""
    end = time.monotonic() + LONGEST
    async with Engine(ClusterDatabase.parse(cluster.db)) as engine:
        while not await engine.list():
            assert time.monotonic() < end
            await asyncio.sleep(0.02)


async def interrupt_call(cluster: Cluster, loop: AgentLoop[str], execution_id: str) -> None:
    """Start an execution, interrupt it at its call, and let the call end on its worker."""
    running = asyncio.create_task(loop.execute("go", execution_id=execution_id))
    await cluster.begun(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    cluster.open("go")
    async with Engine(ClusterDatabase.parse(cluster.db)) as engine, asyncio.timeout(LONGEST):
        while not await engine.list_ended(JobKind.TOOL):  # noqa: ASYNC110  # another process ends it
            await asyncio.sleep(0.02)


@MAINLY_SQLITE
@pytest.mark.parametrize(("interrupted", "ended"), [("order-7/fork-1", "order-7"), ("pay-1", "Pay-1")])
async def test_the_end_of_an_execution_deletes_no_results_of_another_one(
    cluster: Cluster, interrupted: str, ended: str
) -> None:
    """Also where one id begins with the other one, or differs from it by the case of letters only."""
    cluster.start("a")
    async with cluster.journaled(cluster.loop(call("effect", gate="go"))) as loop:
        await interrupt_call(cluster, loop, interrupted)
        async with ClusterClient(cluster.db) as client, Engine(ClusterDatabase.parse(cluster.db)) as engine:
            await client.submit("default", "hello", execution_id=ended)
            await engine.wait(start_job_id(ended), JobKind.EXECUTION)
        (execution,) = outcomes(await loop.recover(interrupted))
    assert execution.status is ToolStatus.SUCCEEDED, execution.error_message
    assert cluster.effects() == [execution.key]


@MAINLY_SQLITE
@pytest.mark.parametrize(
    ("name", "status", "effects"),
    [("effect", ToolStatus.IN_DOUBT, 1), ("keyed", ToolStatus.SUCCEEDED, 2), ("booked", ToolStatus.SUCCEEDED, 1)],
)
async def test_a_call_whose_job_was_deleted_is_judged_by_its_effect(
    cluster: Cluster, name: str, status: ToolStatus, effects: int
) -> None:
    """That its job is not in the queue is no proof that it did not run: an effect is in doubt unless its tool can tell."""
    cluster.start("a")
    cluster.open("books")
    async with cluster.journaled(cluster.loop(call(name, gate="go"))) as loop:
        await interrupt_call(cluster, loop, "e")
        async with Engine(ClusterDatabase.parse(cluster.db)) as engine:
            await engine.delete_ended(JobKind.TOOL, await engine.list_ended(JobKind.TOOL))
        (execution,) = outcomes(await loop.recover("e"))
    assert execution.status is status, execution.error_message
    assert cluster.effects() == [execution.key] * effects


@pytest.mark.parametrize(
    ("attempt", "cancelled", "found"),
    [
        (1, [], CannotTell),
        (1, [(1, "")], DidNotHappen),
        (1, [(1, ""), (1, "+1")], DidNotHappen),
        (2, [], CannotTell),
        (2, [(1, "")], DidNotHappen),
        (3, [(1, "")], CannotTell),
    ],
)
async def test_a_call_that_is_not_in_the_queue_did_not_happen_only_if_an_earlier_job_of_it_is_there(
    db: str, attempt: int, cancelled: list[tuple[int, str]], found: type[object]
) -> None:
    """The jobs of a call are deleted in their order: that of an attempt before it, or one that was cancelled while it waited."""
    sent = RemoteCall(call=call("effect"), key="e/1/0", attempt=attempt)
    resources = Resources()
    scope = ExecutionScope(local_resources=resources, shared_resources=resources)
    try:
        executor = QueuedToolExecutor(db=db, agent="default").with_execution_scope(scope)
        async with Engine(ClusterDatabase.parse(db)) as engine:
            ids = [evolve(sent, attempt=number).run_id + generation for number, generation in cancelled]
            await add_ended(engine, ids)
        assert type(await executor.find_result(sent)) is found
    finally:
        await resources.aclose()


async def test_a_damaged_queue_is_no_outcome_of_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call may be in the queue: it has no result, and is not reported as one that failed."""

    async def fail(self: Engine, job: Job) -> None:
        raise ClusterError("the file is damaged")

    monkeypatch.setattr(Engine, "enqueue", fail)
    (execution,) = outcomes(
        await make_loop(tmp_path, QueuedToolExecutor(db=str(tmp_path / "a.db")), call("effect")).execute("go")
    )
    assert execution.status is ToolStatus.IN_DOUBT
    assert "the file is damaged" in (execution.error_message or "")


async def add_ended(engine: Engine, ids: list[str]) -> None:
    """Add jobs of calls that were cancelled while they waited."""
    for job_id in ids:
        await engine.enqueue(Job(id=job_id, kind=JobKind.TOOL, agent="default"))
    await engine.cancel_waiting(ids)


_NUMBERS = st.integers(0, 10**6)


@given(
    st.text(min_size=1), _NUMBERS, _NUMBERS, st.none() | _NUMBERS, st.sampled_from(["", "+3", "?inquiry_1#2", "+1?i"])
)
def test_the_execution_of_a_queued_call_is_in_the_id_of_its_job(
    execution_id: str, step: int, index: int, inner: int | None, suffix: str
) -> None:
    """Whatever its own id is, and also for the calls of a program or of an agent that serves a call."""
    try:
        check_execution_id(execution_id)
    except ConfigurationError:
        return
    key = f"{execution_id}/{step}/{index}"
    key = key if inner is None else inner_key(key, inner)
    sent = RemoteCall(call=call("effect"), key=key)
    assert list(executions_of_call(sent.run_id + suffix)) == [execution_id]
    agent = sub_agent_execution_id(key, 2)
    assert list(callers_of(agent)) == [execution_id]
    below = RemoteCall(call=call("effect"), key=f"{agent}/1/0")
    assert list(executions_of_call(below.run_id + suffix)) == [agent, execution_id]


async def test_results_of_calls_are_kept_until_their_execution_has_ended(db: str) -> None:
    """However old they are. Those of a suspended one are not needed any more, but for the retention it has not ended."""
    begun = asyncio.Event()

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    @tool
    async def wait() -> str:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()
        return "waited"

    names = ["ended", "suspended", "interrupted", "unknown"]
    ids = {name: [f"{name}/1/0#{'0' * 16}", f"{name}/1/0/agent/2/1#{'1' * 16}"] for name in names}
    everything = {job_id for own in ids.values() for job_id in own}
    journal = open_journal(db)
    try:
        for name, script in (("ended", "done"), ("suspended", call("pay")), ("interrupted", call("wait"))):
            model = ScriptedInference(script)
            loop = AgentLoop.for_model(model, tools=[pay, wait], interceptors=[RequireApproval("pay")], journal=journal)
            running = asyncio.create_task(loop.execute("go", execution_id=name))
            if name == "interrupted":
                await begun.wait()
                running.cancel()
            with suppress(asyncio.CancelledError):
                await running
        async with Engine(ClusterDatabase.parse(db)) as engine:
            await add_ended(engine, sorted(everything))
            await forget_calls(engine, journal, "interrupted")
            assert {job.id for job in await engine.list()} == everything
            await Retention(engine, journal, SystemClock(), 0.0).apply()
            assert {job.id for job in await engine.list()} == {*ids["suspended"], *ids["interrupted"]}
            await forget_calls(engine, journal, "suspended")
            assert {job.id for job in await engine.list()} == {*ids["interrupted"]}
    finally:
        await journal.aclose()


@MAINLY_SQLITE
async def test_a_timeout_counts_the_time_in_the_queue(cluster: Cluster) -> None:
    """A call that no worker takes in time does not run later."""
    (execution,) = outcomes(await cluster.loop(call("hasty")).execute("go"))
    assert execution.status is ToolStatus.TIMED_OUT
    cluster.start("a")
    (later,) = outcomes(await cluster.loop(call("effect")).execute("go"))
    assert cluster.effects() == [later.key]


async def test_without_a_database_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a worker it has to be named."""
    monkeypatch.delenv("AGENTLOOP_DB", raising=False)
    state = await make_loop(tmp_path, QueuedToolExecutor(), call("effect")).execute("go")
    (execution,) = outcomes(state)
    assert execution.error is not None
    assert execution.error.type == ConfigurationError.__name__
    assert "AGENTLOOP_DB" in execution.error.message


def test_the_password_of_a_database_is_not_shown() -> None:
    """The repr of an executor omits the URL."""
    assert "secret" not in repr(QueuedToolExecutor(db="postgresql://me:secret@host/name"))
