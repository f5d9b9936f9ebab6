"""A server on the official SDK, over stdio and over HTTP, in a real loop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall
from agentloop.contracts import ToolPolicy
from agentloop.errors import ConfigurationError
from agentloop.events import ToolCallCompleted, ToolCallProgressed, ToolsUnavailable
from agentloop.mcp import McpEnsemble
from agentloop.values import Effect, ExecutionStatus, Image, Text, ToolResult, ToolStatus
from tests.limits import LONGEST, jump
from tests.mcp.running import NO_TIMEOUTS, is_running, small, wait_for_note, wait_until_gone
from tests.toolkits.running import Call, executions, run_call, run_calls, scripted_loop


# Hostile servers, lost connections and authorization have tests over HTTP in every run.
@pytest.fixture(params=["stdio", pytest.param("http", marks=pytest.mark.heavy)])
def server(request: pytest.FixtureRequest) -> McpEnsemble:
    """Return the small server, over each transport."""
    if request.param == "stdio":
        return small()
    return McpEnsemble.http(request.getfixturevalue("small_url"), name="small", **NO_TIMEOUTS)


@pytest.mark.usefixtures("descriptors")
async def test_tools_are_offered_and_called(server: McpEnsemble) -> None:
    """An execution lists the tools of the server, and a model calls them."""
    state = await run_calls([server], ("add", {"a": 2, "b": 3}), ("picture", {}), ("fail", {}))
    added, picture, failed = executions(state)
    assert added.value == {"result": 5}
    assert picture.parts == (Text("a dot"), Image(media_type="image/png", data=b"\x89PNG\r\n\x1a\n"))
    assert failed.error is not None
    assert (failed.status, failed.error.type) == (ToolStatus.FAILED, "ToolFailed")
    assert "fail" in failed.error_message
    assert state.final_text == "done"


async def test_every_tool_is_an_effect_unless_the_program_says_otherwise() -> None:
    """Annotations of the server do not count; `effects` does."""
    async with small() as server:
        assert {tool.effect for tool in server.offered} == {Effect.EFFECT}
    async with small(effects={"add": "effect", "p*": Effect.PURE}) as server:
        effects = {tool.name: tool.effect for tool in server.offered}
    assert (effects["add"], effects["put"], effects["log"]) == (Effect.EFFECT, Effect.PURE, Effect.EFFECT)


async def test_effects_follow_trusted_annotations_unless_overridden() -> None:
    """`readOnlyHint` is pure, `idempotentHint` is idempotent, all else is an effect, and `effects` overrides them."""
    async with small(trust_annotations=True) as server:
        effects = {tool.name: tool.effect for tool in server.offered}
    assert (effects["add"], effects["put"], effects["log"]) == (Effect.PURE, Effect.IDEMPOTENT, Effect.EFFECT)
    async with small(trust_annotations=True, effects={"add": "effect", "p*": Effect.PURE}) as server:
        effects = {tool.name: tool.effect for tool in server.offered}
    assert (effects["add"], effects["put"], effects["log"]) == (Effect.EFFECT, Effect.PURE, Effect.EFFECT)


@pytest.mark.parametrize("trust", [True, False])
def test_the_file_of_servers_says_whose_annotations_are_trusted(tmp_path: Path, *, trust: bool) -> None:
    """`trustAnnotations` of an entry counts in a trusted file; the argument of `from_config` wins."""
    path = tmp_path / "mcp.json"
    path.write_text(
        json.dumps({"mcpServers": {"one": {"command": "x", "trustAnnotations": trust}, "two": {"command": "x"}}})
    )
    assert [server.trust_annotations for server in McpEnsemble.from_config(path, trust=True)] == [trust, False]
    assert all(server.trust_annotations for server in McpEnsemble.from_config(path, trust_annotations=True))


def test_an_empty_command_is_refused() -> None:
    """A server without a program is a mistake of the configuration, not of the name that it would have."""
    with pytest.raises(ConfigurationError, match="the command of an MCP server is the name or the path of a program"):
        McpEnsemble.stdio(" ")
    assert McpEnsemble.stdio(Path("a/program")).name == "program"  # type: ignore[arg-type]  # a path works as well


async def test_tools_are_allowed_denied_and_prefixed() -> None:
    """`allow` and `deny` match names at the server; the model sees the names with the prefix."""
    server = small(allow=["add", "p*"], deny="put", prefix="s_")
    async with server:
        assert [tool.name for tool in server.offered] == ["s_add", "s_pid", "s_picture"]
    assert (await run_call([server], "s_add", a=1, b=1)).value == {"result": 2}


async def test_resources_and_prompts_can_be_tools() -> None:
    """With `resources` and `prompts`, tools list and read resources, and list and fill in prompts."""
    server = small(resources=True, prompts=True, allow=())
    calls: list[Call | list[Call]] = [
        ("list_resources", {}),
        ("read_resource", {"uri": "note://one"}),
        ("list_prompts", {}),
        ("get_prompt", {"name": "greet", "arguments": {"name": "Ann"}}),
    ]
    resources, note, prompts, greeting = executions(await run_calls([server], *calls))
    assert '"uri":"note://one"' in resources.text
    assert note.value == "the note"
    assert '"name":"greet"' in prompts.text
    assert greeting.value == "user:\nSay hello to Ann."


async def test_progress_is_emitted_as_events(server: McpEnsemble) -> None:
    """Each progress notification of the server becomes a `ToolCallProgressed`."""
    loop, updates = scripted_loop([server], ("steps", {})), []
    loop.on(ToolCallProgressed, lambda event: updates.append(event.update))
    state = await loop.execute("go")
    assert executions(state)[0].value == {"result": "done"}
    assert [(update["progress"], update["total"], update["message"]) for update in updates] == [
        (number, 3, f"step {number}") for number in range(3)
    ]


@pytest.mark.usefixtures("descriptors")
async def test_a_cancelled_execution_cancels_the_call_at_the_server(server: McpEnsemble, tmp_path: Path) -> None:
    """The server receives the cancellation and ends the call."""
    notes = tmp_path / "notes"
    loop = scripted_loop([server], ("wait", {"path": str(notes)}))
    async with loop:
        running = asyncio.create_task(loop.execute("go"))
        await wait_for_note(notes, "waiting")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await wait_for_note(notes, "cancelled")


async def test_a_timed_out_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    """A call that takes too long times out, is cancelled at the server, and other calls succeed."""
    notes = tmp_path / "notes"
    server, add_completed = small(policy=ToolPolicy(timeout=900)), asyncio.Event()
    loop = scripted_loop([server], [("add", {"a": 1, "b": 1}), ("wait", {"path": str(notes)})])
    loop.on(ToolCallCompleted, lambda event: add_completed.set() if event.execution.name == "add" else None)
    async with loop:
        running = asyncio.create_task(loop.execute("go"))
        await wait_for_note(notes, "waiting")
        await asyncio.wait_for(add_completed.wait(), LONGEST)
        jump(900)
        added, waited = executions(await running)
        assert (waited.status, waited.may_have_run) == (ToolStatus.TIMED_OUT, True)
        assert added.succeeded
        await wait_for_note(notes, "cancelled")


async def test_new_tools_are_offered_to_the_next_execution() -> None:
    """An execution keeps the tools that it began with; a later one has the new tools."""
    loop = scripted_loop([small()], ("more", {}), ("another", {}))
    async with loop:
        more, unknown = executions(await loop.execute("go"))
        assert more.succeeded
        assert unknown.error is not None
        assert unknown.error.type == "UnknownTool"
    server = small()
    async with server:
        await use(server, "more")
        deadline = asyncio.get_running_loop().time() + LONGEST
        while "another" not in [tool.name for tool in await server.discover()]:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)


async def test_one_process_serves_all_executions_of_an_entered_loop() -> None:
    """The process is started once, and ended when the loop is left."""
    loop = scripted_loop([small(effects={"pid": "pure"})], *[("pid", {})] * 4)
    async with loop:
        states: list[AgentState] = [await loop.execute("go")]
        pids = {execution.text for state in states for execution in executions(state)}
        assert len(pids) == 1
        pid = int(str(executions(states[0])[0].value["result"]))  # type: ignore[index,call-overload]  # an object
        assert is_running(pid)
    assert not is_running(pid)


async def test_a_disabled_server_is_not_started() -> None:
    """A disabled server is not started and offers nothing."""
    server = McpEnsemble.stdio("no-such-program").disable()
    async with server:
        assert server.offered == ()


async def test_a_server_that_does_not_start_is_an_error_before_the_first_request() -> None:
    """An execution that needs a server whose program is missing sends no request, and its error says why and what to do."""
    inference = ScriptedInference("hello")
    loop = AgentLoop.for_model(inference, tools=[McpEnsemble.stdio("no-such-program"), small()])
    state = await loop.execute("hi")
    assert (state.status, inference.requests) == (ExecutionStatus.FAILED, [])
    assert state.errors[-1].type == "ConfigurationError"
    for part in ("'no-such-program' did not start", "there is no program 'no-such-program'", "set required to false"):
        assert part in state.errors[-1].message


async def test_an_execution_goes_on_without_a_server_that_is_not_required(caplog: pytest.LogCaptureFixture) -> None:
    """The tools of the other servers work; the model, the listeners and the log are told what is away."""
    inference = ScriptedInference(ToolCall("1", "add", '{"a": 1, "b": 1}'), "done")
    absent = McpEnsemble.stdio("no-such-program", required=False)
    loop = AgentLoop.for_model(inference, tools=[absent, small(required=False)], system_prompt="Be kind.")
    told: list[ToolsUnavailable] = []
    loop.on(ToolsUnavailable, told.append)
    state = await loop.execute("hi")
    assert executions(state)[0].succeeded
    prompts = [request.system_prompt for request in inference.requests]
    assert [prompt.count("'no-such-program' are not available") for prompt in prompts] == [1, 1]
    assert not any("'small'" in prompt for prompt in prompts)
    assert [event.server for event in told] == ["no-such-program"] * 2
    assert "there is no program 'no-such-program'" in told[0].reason
    assert "there is no program 'no-such-program'" in caplog.text


@pytest.mark.parametrize("required", [True, False])
def test_a_file_says_whether_a_server_is_required(tmp_path: Path, *, required: bool) -> None:
    """`required` of an entry is that of its ensemble, and the default is that an execution needs the server."""
    file = tmp_path / "mcp.json"
    entries = {"a": {"command": "x", "required": required}, "b": {"command": "y"}}
    file.write_text(json.dumps({"mcpServers": entries}))
    assert [server.required for server in McpEnsemble.from_config(file)] == [required, True]


@pytest.mark.parametrize("variable", ["the process", "the server"])
async def test_a_program_is_not_looked_up_in_the_current_folder(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries of PATH that lead to the current folder are skipped, whoever has them."""
    program = tmp_path / "program-of-test"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    path = f":.:{os.environ['PATH']}"
    if variable == "the process":
        monkeypatch.setenv("PATH", path)
    server = McpEnsemble.stdio("program-of-test", env={} if variable == "the process" else {"PATH": path})
    await run_calls([server, small()], ("add", {"a": 1, "b": 1}))
    assert "there is no program 'program-of-test'" in caplog.text
    assert not (tmp_path / "started").exists()


async def test_a_killed_server_is_restarted_once_for_all_callers() -> None:
    """Fifty calls during the restart are sent to one new process."""
    server = small(trust_annotations=True)
    async with server:
        pid = int(value(await use(server, "pid")))
        os.kill(pid, 9)
        assert await wait_until_gone(pid)
        answers = {value(result) for result in await asyncio.gather(*[use(server, "pid") for _ in range(50)])}
    assert len(answers) == 1
    assert answers != {str(pid)}


async def test_a_lost_pure_call_is_sent_again(tmp_path: Path) -> None:
    """The server is killed by the first request of a pure call and answers the second."""
    execution = await run_call([small(effects={"die_once": "pure"})], "die_once", path=str(tmp_path / "died"))
    assert execution.value == {"result": "alive"}


async def test_a_lost_effect_is_in_doubt_and_not_repeated(tmp_path: Path) -> None:
    """A lost call with an effect runs once and ends in doubt."""
    path = tmp_path / "log"
    lost, after = executions(
        await run_calls([small()], ("log", {"path": str(path), "die": True}), ("add", {"a": 1, "b": 1}))
    )
    assert (lost.status, lost.may_have_run) == (ToolStatus.IN_DOUBT, True)
    assert lost.error is not None
    assert lost.error.type == "ToolInDoubt"
    assert path.read_text() == "line\n"
    assert after.succeeded


async def test_a_server_killed_during_a_call_affects_only_that_call(tmp_path: Path) -> None:
    """The call ends in doubt, and other calls and later steps succeed."""
    notes = tmp_path / "notes"
    concurrent: list[Call] = [("wait", {"path": str(notes)}), ("add", {"a": 1, "b": 2})]
    async with scripted_loop([small(effects={"add": "pure"})], concurrent, ("add", {"a": 3, "b": 4})) as loop:
        running = asyncio.create_task(loop.execute("go"))
        await wait_for_note(notes, "waiting")
        os.kill(server_pid(), 9)
        waited, sibling, later = executions(await running)
    assert waited.status is ToolStatus.IN_DOUBT
    assert sibling.succeeded
    assert later.value == {"result": 7}


async def test_the_standard_error_of_a_server_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The standard error of a server goes to the log of servers, under its name."""
    caplog.set_level(logging.INFO, "agentloop.mcp.server")
    await run_call([small()], "says", text="a remark")
    assert ("agentloop.mcp.server", logging.INFO, "small: a remark") in caplog.record_tuples


async def test_a_tool_without_its_ensemble_fails() -> None:
    """A tool whose server is not started fails, and the error says how to start it."""
    async with small() as server:
        add = next(tool for tool in server.offered if tool.name == "add")
    execution = await run_call([add], "add", a=1, b=1)
    assert execution.error is not None
    assert execution.error.type == "ToolUnavailable"
    assert "pass the ensemble" in execution.error_message


async def use(server: McpEnsemble, name: str, **arguments: object) -> ToolResult:
    """Use a tool of a held server."""
    result = await next(tool for tool in server.offered if tool.name == name).use(**arguments)
    assert isinstance(result, ToolResult)
    return result


def value(result: ToolResult) -> str:
    """Return the text of a result."""
    return str(result.value["result"])  # type: ignore[index,call-overload]  # an object


def server_pid() -> int:
    """Return the process id of the small server: the only child of the only guard."""
    # This process may have other children, such as a database that another test has started.
    (guard,) = [pid for pid in children_of("self") if b"guard.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    (server,) = children_of(guard)
    return int(server)


def children_of(pid: str) -> list[str]:
    """Return the ids of the children of a process, whichever of its threads has started them."""
    return [child for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


@pytest.mark.parametrize("trust", ["false", "no", 1, None])
def test_trust_is_true_or_false(trust: Any) -> None:
    """A text or a number, such as one of an environment variable, does not count as trust."""
    with pytest.raises(TypeError):
        McpEnsemble.http("http://127.0.0.1:1/mcp", trust_annotations=trust)


async def test_names_that_no_tool_of_the_server_has_are_refused() -> None:
    """A typing mistake in `allow`, `deny` or `effects` ends the execution before the model is asked; `optional=True` allows it."""
    for setting, value in {"allow": ["ad"], "deny": ["ad"], "effects": {"ad": "pure"}}.items():
        settings: dict[str, Any] = {setting: value}
        loop = scripted_loop([small(**settings)], ("add", {"a": 1, "b": 1}))
        state = await loop.execute("go")
        assert f"the server has no tool 'ad' for {setting}=…, did you mean 'add'?" in state.errors[-1].message
        optional = await scripted_loop([small(optional=True, **settings)]).execute("go")
        assert not optional.errors
