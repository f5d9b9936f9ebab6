"""`agentloop mcp serve --task`: calls that our server runs as tasks, for clients of ours and of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client, MCPError
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp_types import CallToolResult, EmptyResult, Request, RequestParams, Result

from agentloop.errors import ToolFailed
from agentloop.mcp.offers import Offers, ServedTool
from agentloop.mcp.sdk import tasks as served_tasks
from agentloop.mcp.sdk.server import create_server
from agentloop.mcp.sdk.tasks import ServedTasks
from agentloop.values import Effect, ToolResult
from tests.limits import jump
from tests.mcp.running import wait_for_note
from tests.mcp.test_serving import call, serve, serve_over_http

TOOLS = "tests/mcp/task_tools.py"
PATTERNS = ["--task", "*_*", "--task", "hold"]


# --- with our client ------------------------------------------------------------------------------------------------


async def check_calls(server: Any) -> None:
    """Check that calls of tasks have their results and errors."""
    assert (await call(server, "slow_compute", seconds=0, label="a")).value == "computed a"
    assert (await call(server, "greet", name="World")).value == "Hello, World!"
    with pytest.raises(ToolFailed, match="this job always fails"):
        await call(server, "failing_job")
    with pytest.raises(ToolFailed, match="InvalidArguments"):
        await call(server, "slow_compute", seconds=0)


async def test_tasks_over_stdio() -> None:
    """Our client waits for the tasks of our server."""
    async with serve(TOOLS, *PATTERNS) as server:
        await check_calls(server)


async def test_tasks_over_http() -> None:
    """Our client waits for the tasks of our server over HTTP, too."""
    async with serve_over_http(TOOLS, *PATTERNS) as server, server:
        await check_calls(server)


async def test_a_cancelled_call_cancels_the_tool(tmp_path: Path) -> None:
    """Progress is the message of the task, and a cancellation reaches the tool."""
    notes, updates = tmp_path / "notes", list[Any]()
    async with serve(TOOLS, *PATTERNS) as server:
        running = asyncio.create_task(call(server, "hold", updates, path=str(notes)))
        await wait_for_note(notes, "started")
        while not updates:  # noqa: ASYNC110  # the client asks for the task from time to time
            await asyncio.sleep(0.01)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await wait_for_note(notes, "cancelled")
    assert updates == [{"message": "holding"}]


async def test_the_end_of_the_server_cancels_its_tasks(tmp_path: Path) -> None:
    """Ctrl-C ends the server although a task runs, and cancels the tool."""
    notes = tmp_path / "notes"
    async with serve_over_http(TOOLS, *PATTERNS) as server:
        await server.hold()
        await server.discover()
        running = asyncio.create_task(call(server, "hold", path=str(notes)))
        await wait_for_note(notes, "started")
    assert "cancelled" in notes.read_text()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await server.release()


# --- with the client of the SDK -------------------------------------------------------------------------------------


class Created(Result):
    result_type: Literal["task"]
    task_id: str
    status: str
    ttl_ms: int


class State(Result):
    task_id: str
    status: str
    status_message: str | None = None
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None


class Params(RequestParams):
    task_id: str


class Get(Request[Params, Literal["tasks/get"]]):
    method: Literal["tasks/get"] = "tasks/get"
    params: Params


class Cancel(Request[Params, Literal["tasks/cancel"]]):
    method: Literal["tasks/cancel"] = "tasks/cancel"
    params: Params


class Tasks(ClientExtension):
    """Keeps what the server has created, and leaves the tasks alone."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.created: list[Created] = []

    def claims(self) -> list[ResultClaim[Any]]:
        return [ResultClaim(result_type="task", model=Created, resolve=self._resolve)]

    async def _resolve(self, created: Created, _: ClaimContext) -> CallToolResult:
        self.created.append(created)
        return CallToolResult(content=[])


class Gate:
    """A tool that waits until it is opened."""

    def __init__(self) -> None:
        self.open, self.was_cancelled = asyncio.Event(), asyncio.Event()

    async def __call__(self, _: Any, report: Any) -> ToolResult:
        report({"progress": 1, "total": 4})
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise
        return ToolResult({"opened": True})


async def break_down(_: Any, __: Any) -> ToolResult:
    raise OSError("the disk is full")


@asynccontextmanager
async def connected(gate: Gate, *extensions: ClientExtension, **settings: Any) -> AsyncIterator[Client]:
    """Yield the SDK's client of our server."""
    tools = [ServedTool("gate", "", {}, Effect.EFFECT, gate), ServedTool("broken", "", {}, Effect.EFFECT, break_down)]
    tasks = ServedTasks(["*"])
    server = create_server(Offers("tasks", tools), tasks)
    try:
        async with Client(server, extensions=list(extensions), **settings) as client:
            yield client
    finally:
        await tasks.aclose()


async def get(client: Client, task: str) -> State:
    return await client.session.send_request(Get(params=Params(task_id=task)), State)


async def get_when(client: Client, task: str, is_due: Callable[[State], bool]) -> State:
    """Ask for a task until it is in a certain state."""
    while not is_due(state := await get(client, task)):  # noqa: ASYNC110  # clients poll
        await asyncio.sleep(0)
    return state


async def get_started(client: Client, task: str) -> State:
    return await get_when(client, task, lambda state: state.status_message is not None)


async def get_settled(client: Client, task: str) -> State:
    return await get_when(client, task, lambda state: state.status != "working")


async def test_a_task_has_its_progress_and_its_result() -> None:
    """A task is there at once, reports its progress, and holds the result of its call."""
    gate, tasks = Gate(), Tasks()
    async with connected(gate, tasks) as client:
        await client.call_tool("gate", {})
        (created,) = tasks.created
        assert (created.status, created.ttl_ms) == ("working", 3_600_000)
        state = await get_started(client, created.task_id)
        assert (state.status, state.status_message, state.result) == ("working", "1/4", None)
        gate.open.set()
        state = await get_settled(client, created.task_id)
        assert state.status == "completed"
        assert state.result is not None
        assert state.result["structuredContent"] == {"opened": True}


async def test_a_task_can_be_cancelled() -> None:
    """The tool is cancelled, and a second cancellation changes nothing."""
    gate, tasks = Gate(), Tasks()
    async with connected(gate, tasks) as client:
        await client.call_tool("gate", {})
        task = tasks.created[0].task_id
        await get_started(client, task)
        for _ in range(2):
            await client.session.send_request(Cancel(params=Params(task_id=task)), EmptyResult)
        assert (await get_settled(client, task)).status == "cancelled"
        assert gate.was_cancelled.is_set()


async def test_an_error_of_the_server_fails_the_task() -> None:
    """What is no error of a tool is an error of the protocol, and tells the client nothing of the inside."""
    tasks = Tasks()
    async with connected(Gate(), tasks) as client:
        await client.call_tool("broken", {})
        state = await get_settled(client, tasks.created[0].task_id)
        assert state.status == "failed"
        assert state.error == {"code": -32603, "message": "the call has failed: OSError"}


async def test_a_task_ends_after_its_lifetime() -> None:
    """A task that runs for longer than an hour is cancelled and forgotten."""
    gate, tasks = Gate(), Tasks()
    async with connected(gate, tasks) as client:
        await client.call_tool("gate", {})
        task = tasks.created[0].task_id
        await get_started(client, task)
        jump(3601)
        await gate.was_cancelled.wait()
        with pytest.raises(MCPError, match="there is no task of this id"):
            await get(client, task)


async def test_without_room_a_call_is_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """When there are as many tasks as may be, further calls are answered in the ordinary way."""
    monkeypatch.setattr(served_tasks, "_MAX_TASKS", 1)
    gate, tasks = Gate(), Tasks()
    async with connected(gate, tasks) as client:
        await client.call_tool("gate", {})
        gate.open.set()
        assert (await client.call_tool("gate", {})).structured_content == {"opened": True}
        assert len(tasks.created) == 1


@pytest.mark.parametrize(("mode", "code"), [("auto", -32021), ("legacy", -32601)])
async def test_a_client_without_the_extension_has_no_tasks(mode: str, code: int) -> None:
    """Its calls are calls, and it cannot ask for tasks."""
    gate = Gate()
    gate.open.set()
    async with connected(gate, mode=mode) as client:
        assert (await client.call_tool("gate", {})).structured_content == {"opened": True}
        with pytest.raises(MCPError) as raised:
            await get(client, "some")
        assert raised.value.code == code


async def test_a_server_without_tasks_does_not_declare_them() -> None:
    """Without patterns, the extension is not there."""
    server = create_server(Offers("none"), ServedTasks(()))
    assert not server.extensions
    assert server.get_request_handler("tasks/get") is None
