"""Published servers, in both eras of the protocol."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from agentloop.events import ToolCallProgressed
from agentloop.mcp import McpEnsemble
from agentloop.values import Effect, Image, Text, ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import (
    NO_TIMEOUTS,
    everything_at,
    free_port,
    node_program,
    on_sdk,
    sdk_program,
    server_pids,
    wait_until_gone,
)
from tests.toolkits.running import Call, executions, run_calls, scripted_loop


@pytest.fixture(params=["stdio", "http"])
def everything(request: pytest.FixtureRequest) -> McpEnsemble:
    """Return the reference server of the TypeScript SDK, over each transport."""
    if request.param == "stdio":
        return McpEnsemble.stdio(node_program("mcp-server-everything"), ["stdio"], name="everything", **NO_TIMEOUTS)
    return McpEnsemble.http(request.getfixturevalue("everything_url"), name="everything", **NO_TIMEOUTS)


@pytest.mark.usefixtures("descriptors")
async def test_the_reference_server_is_called(everything: McpEnsemble) -> None:
    """Texts, images, links and structured results arrive with their types."""
    steps: list[Call | list[Call]] = [
        ("echo", {"message": "hello"}),
        ("get-sum", {"a": 2, "b": 3}),
        ("get-tiny-image", {}),
        ("get-structured-content", {"location": "Chicago"}),
        ("get-resource-links", {"count": 2}),
    ]
    echo, total, picture, weather, links = executions(await run_calls([everything], *steps))
    assert echo.value == "Echo: hello"
    assert "5" in total.text
    assert any(isinstance(part, Image) and part.media_type == "image/png" for part in picture.parts)
    assert {"temperature", "conditions", "humidity"} <= set(weather.value)  # type: ignore[arg-type]  # an object
    assert all(isinstance(part, Text) for part in links.parts)
    assert "[resource " in links.text


async def test_the_reference_server_reports_progress(everything: McpEnsemble) -> None:
    """Each step of the long-running operation of the reference server is an event."""
    loop, updates = scripted_loop([everything], ("trigger-long-running-operation", {"duration": 0.2, "steps": 4})), []
    loop.on(ToolCallProgressed, lambda event: updates.append(event.update))
    state = await loop.execute("go")
    assert executions(state)[0].succeeded
    assert [update["progress"] for update in updates] == [1, 2, 3, 4]


@pytest.mark.usefixtures("descriptors")
async def test_a_call_of_the_reference_server_is_cancelled(everything: McpEnsemble) -> None:
    """A cancelled call ends at once, and the server answers the next one."""
    async with scripted_loop([everything], ("trigger-long-running-operation", {"duration": 60, "steps": 600})) as loop:
        started = asyncio.Event()
        loop.on(ToolCallProgressed, lambda _: started.set())
        running = asyncio.create_task(loop.execute("go"))
        await asyncio.wait_for(started.wait(), LONGEST)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with everything as server:
            echo = next(tool for tool in server.offered if tool.name == "echo")
            assert (await echo.use(message="still there")).value == "Echo: still there"


async def test_the_reference_server_sends_requests() -> None:
    """Functions of the program answer elicitation and sampling requests of the reference server."""
    requests: list[str] = []

    async def model(request: object) -> dict[str, object]:
        requests.append("model")
        return {"role": "assistant", "content": {"type": "text", "text": "forty-two"}, "model": "scripted"}

    async def user(request: object) -> None:
        requests.append("user")

    command = node_program("mcp-server-everything")
    server = McpEnsemble.stdio(
        command, ["stdio"], name="everything", on_sampling=model, on_elicitation=user, **NO_TIMEOUTS
    )
    steps = [("trigger-sampling-request", {"prompt": "the answer?"}), ("trigger-elicitation-request", {})]
    sampled, elicited = executions(await run_calls([server], *steps))
    assert "forty-two" in sampled.text
    assert "declined" in elicited.text.lower()
    assert requests == ["model", "user"]


async def test_the_filesystem_server_reads_in_its_folder(tmp_path: Path) -> None:
    """The filesystem server reads a file in its folder and rejects another; its trusted annotations become effects."""
    (tmp_path / "note.txt").write_text("a note")
    settings = {**NO_TIMEOUTS, "trust_annotations": True}
    server = McpEnsemble.stdio(node_program("mcp-server-filesystem"), [str(tmp_path)], name="files", **settings)
    steps = [("read_text_file", {"path": str(tmp_path / "note.txt")}), ("read_text_file", {"path": "/etc/hostname"})]
    note, rejected = executions(await run_calls([server], *steps))
    assert "a note" in note.text
    assert rejected.status is ToolStatus.FAILED
    assert "denied" in rejected.error_message.lower()
    effects = {tool.name: tool.effect for tool in server.offered}
    assert (effects["read_text_file"], effects["edit_file"]) == (Effect.PURE, Effect.EFFECT)


async def test_the_memory_server_stores_a_graph(tmp_path: Path) -> None:
    """The memory server stores entities in the file that its environment names."""
    env = {"MEMORY_FILE_PATH": str(tmp_path / "graph.jsonl")}
    server = McpEnsemble.stdio(node_program("mcp-server-memory"), env=env, name="memory", **NO_TIMEOUTS)
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    _, graph = executions(await run_calls([server], ("create_entities", {"entities": [entity]}), ("read_graph", {})))
    assert "likes tea" in graph.text
    assert "likes tea" in (tmp_path / "graph.jsonl").read_text()


async def test_the_git_server_reads_a_repository(tmp_path: Path) -> None:
    """The git server returns the status of a repository, over the protocol of 2026."""
    await (await asyncio.create_subprocess_exec("git", "init", "-q", str(tmp_path))).wait()
    (tmp_path / "new.txt").write_text("new")
    server = on_sdk("-m", "mcp_server_git", "--repository", str(tmp_path), name="git")
    status = executions(await run_calls([server], ("git_status", {"repo_path": str(tmp_path)})))[0]
    assert "new.txt" in status.text


async def test_the_time_server_converts_a_time() -> None:
    """The time server converts a time, and rejects an unknown time zone."""
    server = on_sdk("-m", "mcp_server_time", name="time")
    arguments = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    steps = [("convert_time", arguments), ("convert_time", {**arguments, "target_timezone": "Nowhere"})]
    converted, rejected = executions(await run_calls([server], *steps))
    assert "21:00" in converted.text
    assert rejected.status is ToolStatus.FAILED


async def test_the_reference_server_is_killed_during_a_call() -> None:
    """The call ends in doubt; another call and the next step succeed in a new process."""
    command, effects = (
        node_program("mcp-server-everything"),
        {"trigger-*": "effect"},
    )  # annotated as pure, and so repeated
    server = McpEnsemble.stdio(command, ["stdio"], name="everything", effects=effects, **NO_TIMEOUTS)
    both: list[Call] = [("trigger-long-running-operation", {"duration": 60, "steps": 600}), ("echo", {"message": "a"})]
    async with scripted_loop([server], both, ("echo", {"message": "b"})) as loop:
        started, killed = asyncio.Event(), set[int]()
        loop.on(ToolCallProgressed, lambda _: started.set())
        running = asyncio.create_task(loop.execute("go"))
        await asyncio.wait_for(started.wait(), LONGEST)
        killed.update(server_pids())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        operation, sibling, later = executions(await running)
        assert not killed & set(server_pids())
    assert (operation.status, operation.may_have_run) == (ToolStatus.IN_DOUBT, True)
    assert (sibling.value, later.value) == ("Echo: a", "Echo: b")


async def test_the_reference_server_over_http_is_killed_during_a_call() -> None:
    """The call ends in doubt, and the next step waits until the server has been restarted."""
    port = free_port()
    server = McpEnsemble.http(
        f"http://127.0.0.1:{port}/mcp", name="everything", effects={"trigger-*": "effect"}, **NO_TIMEOUTS
    )
    operation: Call = ("trigger-long-running-operation", {"duration": 60, "steps": 600})
    started = asyncio.Event()
    async with everything_at(port) as process:
        loop = scripted_loop([server], operation, ("echo", {"message": "b"}))
        loop.on(ToolCallProgressed, lambda _: started.set())
        running = asyncio.create_task(loop.execute("go"))
        await asyncio.wait_for(started.wait(), LONGEST)
        process.kill()
    async with everything_at(port):
        lost, later = executions(await running)
    assert (lost.status, later.value) == (ToolStatus.IN_DOUBT, "Echo: b")


@pytest.mark.parametrize("server_name", ["filesystem", "memory", "git", "time"])
async def test_each_server_is_restarted_once(server_name: str, tmp_path: Path) -> None:
    """Ten calls after the server was killed are answered by one new process."""
    await (await asyncio.create_subprocess_exec("git", "init", "-q", str(tmp_path))).wait()
    name, arguments, command = {
        "filesystem": ("list_allowed_directories", {}, ["mcp-server-filesystem", str(tmp_path)]),
        "memory": ("read_graph", {}, ["mcp-server-memory"]),
        "git": ("git_status", {"repo_path": str(tmp_path)}, ["-m", "mcp_server_git", "--repository", str(tmp_path)]),
        "time": ("get_current_time", {"timezone": "UTC"}, ["-m", "mcp_server_time"]),
    }[server_name]
    path, *args = sdk_program(*command) if command[0] == "-m" else [node_program(command[0]), *command[1:]]
    env = {"MEMORY_FILE_PATH": str(tmp_path / "graph.jsonl")}
    async with McpEnsemble.stdio(path, args, env, name=server_name, effects={name: "pure"}, **NO_TIMEOUTS) as server:
        tool = next(tool for tool in server.offered if tool.name == name)
        first, before = await tool.use(**arguments), set(server_pids())
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        for pid in before:
            assert await wait_until_gone(pid)
        answers = await asyncio.gather(*[tool.use(**arguments) for _ in range(10)])
        after = set(server_pids())
    assert all(type(answer.value) is type(first.value) for answer in answers)
    assert len(after) == 1
    assert not after & before
