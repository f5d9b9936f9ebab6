"""Servers that others wrote, in both eras of the protocol."""

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
from tests.mcp.running import PATIENT, everything_at, free_port, gone, node_program, program, server_pids
from tests.tools.ensembles.running import Call, executions, run_calls, scripted_loop


@pytest.fixture(params=["stdio", "http"])
def everything(request: pytest.FixtureRequest) -> McpEnsemble:
    """Return the reference server of the TypeScript SDK, over each transport."""
    if request.param == "stdio":
        return McpEnsemble.stdio(node_program("mcp-server-everything"), ["stdio"], name="everything", **PATIENT)
    return McpEnsemble.http(request.getfixturevalue("everything_url"), name="everything", **PATIENT)


@pytest.mark.usefixtures("descriptors")
async def test_the_reference_server_is_called(everything: McpEnsemble) -> None:
    """Texts, pictures, links, structured results and errors arrive as what they are."""
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


async def test_the_reference_server_tells_its_progress(everything: McpEnsemble) -> None:
    """Each step of its long-running operation is an event."""
    loop, updates = scripted_loop([everything], ("trigger-long-running-operation", {"duration": 0.2, "steps": 4})), []
    loop.on(ToolCallProgressed, lambda event: updates.append(event.update))
    state = await loop.execute("go")
    assert executions(state)[0].succeeded
    assert [update["progress"] for update in updates] == [1, 2, 3, 4]


@pytest.mark.usefixtures("descriptors")
async def test_a_call_of_the_reference_server_is_cancelled(everything: McpEnsemble) -> None:
    """The execution ends at once, and the server answers the next one."""
    async with scripted_loop([everything], ("trigger-long-running-operation", {"duration": 60, "steps": 600})) as loop:
        begun = asyncio.Event()
        loop.on(ToolCallProgressed, lambda _: begun.set())
        running = asyncio.create_task(loop.execute("go"))
        await asyncio.wait_for(begun.wait(), LONGEST)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        async with everything as server:
            echo = next(tool for tool in server.offered if tool.name == "echo")
            assert (await echo.use(message="still there")).value == "Echo: still there"


async def test_the_reference_server_asks_the_user_and_the_model() -> None:
    """Elicitation and sampling are answered by functions of the program."""
    asked: list[str] = []

    async def model(request: object) -> dict[str, object]:
        asked.append("model")
        return {"role": "assistant", "content": {"type": "text", "text": "forty-two"}, "model": "scripted"}

    async def user(request: object) -> None:
        asked.append("user")

    command = node_program("mcp-server-everything")
    server = McpEnsemble.stdio(command, ["stdio"], name="everything", on_sampling=model, on_elicitation=user, **PATIENT)
    steps = [("trigger-sampling-request", {"prompt": "the answer?"}), ("trigger-elicitation-request", {})]
    sampled, elicited = executions(await run_calls([server], *steps))
    assert "forty-two" in sampled.text
    assert "declined" in elicited.text.lower()
    assert asked == ["model", "user"]


async def test_files_are_read_within_the_folder_that_was_given(tmp_path: Path) -> None:
    """The filesystem server reads one file and refuses another; its annotations are taken over."""
    (tmp_path / "note.txt").write_text("a note")
    server = McpEnsemble.stdio(node_program("mcp-server-filesystem"), [str(tmp_path)], name="files", **PATIENT)
    steps = [("read_text_file", {"path": str(tmp_path / "note.txt")}), ("read_text_file", {"path": "/etc/hostname"})]
    note, refused = executions(await run_calls([server], *steps))
    assert "a note" in note.text
    assert refused.status is ToolStatus.FAILED
    assert "denied" in refused.error_message.lower()
    effects = {tool.name: tool.effect for tool in server.offered}
    assert (effects["read_text_file"], effects["edit_file"]) == (Effect.PURE, Effect.EFFECT)


async def test_a_graph_is_remembered(tmp_path: Path) -> None:
    """The memory server gives back what it was told, in the file that its environment names."""
    env = {"MEMORY_FILE_PATH": str(tmp_path / "graph.jsonl")}
    server = McpEnsemble.stdio(node_program("mcp-server-memory"), env=env, name="memory", **PATIENT)
    entity = {"name": "Ann", "entityType": "person", "observations": ["likes tea"]}
    _, graph = executions(await run_calls([server], ("create_entities", {"entities": [entity]}), ("read_graph", {})))
    assert "likes tea" in graph.text
    assert "likes tea" in (tmp_path / "graph.jsonl").read_text()


async def test_a_repository_is_looked_at(tmp_path: Path) -> None:
    """The git server speaks the protocol of 2026."""
    await (await asyncio.create_subprocess_exec("git", "init", "-q", str(tmp_path))).wait()
    (tmp_path / "new.txt").write_text("new")
    server = McpEnsemble.stdio(program("mcp-server-git"), ["--repository", str(tmp_path)], name="git", **PATIENT)
    status = executions(await run_calls([server], ("git_status", {"repo_path": str(tmp_path)})))[0]
    assert "new.txt" in status.text


async def test_the_time_is_told() -> None:
    """The time server converts a time, and refuses a zone that there is not."""
    server = McpEnsemble.stdio(program("mcp-server-time"), name="time", **PATIENT)
    asked = {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    steps = [("convert_time", asked), ("convert_time", {**asked, "target_timezone": "Nowhere"})]
    told, refused = executions(await run_calls([server], *steps))
    assert "21:00" in told.text
    assert refused.status is ToolStatus.FAILED


async def test_the_reference_server_is_killed_in_the_middle_of_a_call() -> None:
    """That call is in doubt, its sibling and the next step succeed, at a new process."""
    command, effects = (
        node_program("mcp-server-everything"),
        {"trigger-*": "effect"},
    )  # annotated as pure, and so repeated
    server = McpEnsemble.stdio(command, ["stdio"], name="everything", effects=effects, **PATIENT)
    both: list[Call] = [("trigger-long-running-operation", {"duration": 60, "steps": 600}), ("echo", {"message": "a"})]
    async with scripted_loop([server], both, ("echo", {"message": "b"})) as loop:
        begun, killed = asyncio.Event(), set[int]()
        loop.on(ToolCallProgressed, lambda _: begun.set())
        running = asyncio.create_task(loop.execute("go"))
        await asyncio.wait_for(begun.wait(), LONGEST)
        killed.update(server_pids())
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        operation, sibling, later = executions(await running)
        assert not killed & set(server_pids())
    assert (operation.status, operation.may_have_run) == (ToolStatus.IN_DOUBT, True)
    assert (sibling.value, later.value) == ("Echo: a", "Echo: b")


async def test_the_reference_server_over_http_is_killed_in_the_middle_of_a_call() -> None:
    """That call is in doubt; the next step waits until somebody has started the server again."""
    port = free_port()
    server = McpEnsemble.http(
        f"http://127.0.0.1:{port}/mcp", name="everything", effects={"trigger-*": "effect"}, **PATIENT
    )
    operation: Call = ("trigger-long-running-operation", {"duration": 60, "steps": 600})
    begun = asyncio.Event()
    async with everything_at(port) as process:
        loop = scripted_loop([server], operation, ("echo", {"message": "b"}))
        loop.on(ToolCallProgressed, lambda _: begun.set())
        running = asyncio.create_task(loop.execute("go"))
        await asyncio.wait_for(begun.wait(), LONGEST)
        process.kill()
    async with everything_at(port):
        lost, later = executions(await running)
    assert (lost.status, later.value) == (ToolStatus.IN_DOUBT, "Echo: b")


@pytest.mark.parametrize("which", ["filesystem", "memory", "git", "time"])
async def test_each_server_is_started_again_for_calls_that_have_not_been_sent(which: str, tmp_path: Path) -> None:
    """Ten that come while it is away are answered by one new process."""
    await (await asyncio.create_subprocess_exec("git", "init", "-q", str(tmp_path))).wait()
    name, arguments, command, args = {
        "filesystem": ("list_allowed_directories", {}, "mcp-server-filesystem", [str(tmp_path)]),
        "memory": ("read_graph", {}, "mcp-server-memory", []),
        "git": ("git_status", {"repo_path": str(tmp_path)}, "mcp-server-git", ["--repository", str(tmp_path)]),
        "time": ("get_current_time", {"timezone": "UTC"}, "mcp-server-time", []),
    }[which]
    found = node_program(command) if which in {"filesystem", "memory"} else program(command)
    env = {"MEMORY_FILE_PATH": str(tmp_path / "graph.jsonl")}
    async with McpEnsemble.stdio(found, args, env, name=which, **PATIENT) as server:
        tool = next(one for one in server.offered if one.name == name)
        first, before = await tool.use(**arguments), set(server_pids())
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        for pid in before:
            assert await gone(pid)
        answers = await asyncio.gather(*[tool.use(**arguments) for _ in range(10)])
        after = set(server_pids())
    assert all(type(answer.value) is type(first.value) for answer in answers)
    assert len(after) == 1
    assert not after & before
