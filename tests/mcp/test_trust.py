"""Whose word counts about the tools of a server: its own never does, unless code or a person says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.interception import RequireApproval, Rule
from agentloop.mcp import McpEnsemble
from agentloop.policies import EgressApproval
from agentloop.toolkits.statements import Trust
from agentloop.values import Authority, Effect, approve
from agentloop.values.authority import Statement
from tests.mcp.running import NO_TIMEOUTS, small, small_entry
from tests.toolkits.running import Call, executions, run_calls, scripted_loop


async def test_what_a_server_says_is_on_record_and_not_obeyed() -> None:
    """Each tool is an effect and sends data; the annotation is noted as the word of the server."""
    async with small(resources=True) as server:
        tools = {tool.name: tool for tool in server.offered}
    for tool in tools.values():
        assert tool.spec.effect is tool.declarations.holding("effect").value
        assert tool.spec.egress is tool.declarations.holding("egress").value is True
    said = tools["add"].declarations
    assert said.holding("effect") == Statement("effect", Effect.EFFECT, Authority.CODE)
    assert said.about("annotations") == (Statement("annotations", Effect.PURE, Authority.SERVER, "small"),)
    assert tools["read_resource"].effect is Effect.PURE  # as the protocol says, and not the server


async def test_trust_makes_it_the_word_of_whoever_trusts() -> None:
    """Code trusts by an argument, and a person by the file that says so."""
    async with small(trust_annotations=True) as server:
        held = {tool.name: tool.declarations.holding("effect") for tool in server.offered}
    assert (held["add"].value, held["add"].by) == (Effect.PURE, Authority.CODE)
    word = Statement("trust_annotations", value=True, by=Authority.PERSON, place="mcp.json")
    async with small(trust_annotations=True, statements=[word], effects={"put": "effect"}) as server:
        tools = {tool.name: tool for tool in server.offered}
    assert tools["add"].declarations.holding("effect") == Statement("effect", Effect.PURE, Authority.PERSON, "mcp.json")
    assert (tools["put"].effect, tools["put"].declarations.holding("effect").by) == (Effect.EFFECT, Authority.CODE)


async def test_code_says_by_which_tools_data_can_leave() -> None:
    """The first pattern that matches counts; a tool that none matches sends data."""
    async with small(egress={"put": "path", "a*": False, "add": True}, resources=True) as server:
        egress = {tool.name: tool.spec.egress for tool in server.offered}
    assert (egress["put"], egress["add"], egress["log"], egress["read_resource"]) == (("path",), False, True, True)
    async with small(egress=False, prompts=True) as server:
        assert {tool.spec.egress for tool in server.offered} == {False}
    with pytest.raises(ToolDefinitionError, match="egress='url'"):
        McpEnsemble.stdio("x", egress={"a": 3})


async def test_code_says_whose_words_go_where() -> None:
    """A server that says nothing of itself vouches for nothing, and all arguments decide."""
    labels = {"put": {"decides": "path"}, "a*": {"own": "*"}, "read_*": {"own": "uri", "identifiers": ["name"]}}
    async with small(labels=labels, resources=True) as server:
        specs = {tool.name: tool.spec for tool in server.offered}
        said = {tool.name: tool.declarations.holding("own") for tool in server.offered}
    assert (specs["put"].decides, specs["put"].own, specs["put"].egress) == (("path",), (), True)
    assert (specs["add"].decides, specs["add"].own) == (("*",), ("*",))
    assert (specs["read_resource"].own, specs["read_resource"].identifiers) == (("uri",), ("name",))
    assert (said["add"].value, said["add"].by, said["put"].value) == (("*",), Authority.CODE, ())
    with pytest.raises(ToolDefinitionError, match="own, identifiers, decides, not 'owns', did you mean 'own'"):
        McpEnsemble.stdio("x", labels={"a": {"owns": "id"}})


async def test_a_name_in_labels_is_one_of_the_server() -> None:
    """A mistyped name would leave the tool as it is without a word."""
    async with small(labels={"putt": {"decides": "path"}}) as server:
        (problem,) = server.name_problems
    assert "no tool 'putt' for labels=…" in problem


@pytest.mark.parametrize("trust", [False, [], ["other.json"]])
def test_a_file_of_servers_does_not_trust_itself(tmp_path: Path, trust: Any) -> None:
    """The message names the entry, and says what to do."""
    path = tmp_path / "mcp.json"
    path.write_text(
        json.dumps({"mcpServers": {"a": {"command": "x"}, "b": {"command": "x", "trustAnnotations": True}}})
    )
    with pytest.raises(
        ConfigurationError, match=r"mcp.json: mcpServers.b.trustAnnotations: .*trust_annotations=True.*--trust"
    ):
        McpEnsemble.from_config(path, trust=trust)
    servers = McpEnsemble.from_config(path, trust=Trust.of([path], Authority.PERSON))
    assert [server.trust_annotations for server in servers] == [False, True]
    assert [[said.by for said in server.statements] for server in servers] == [[], [Authority.PERSON]]
    assert not any(server.trust_annotations for server in McpEnsemble.from_config(path, trust_annotations=False))


async def test_the_calls_of_a_real_server_are_asked_about_once(tmp_path: Path) -> None:
    """An approval is for all calls of the server in the execution that are asked about because data can leave by them."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"small": {**small_entry(), "trustAnnotations": True}}}))
    servers = McpEnsemble.from_config(path, trust=True, **NO_TIMEOUTS)
    calls: list[Call] = [
        ("add", {"a": 1, "b": 2}),
        ("pid", {}),
        ("log", {"path": str(tmp_path / "log")}),
        ("add", {"a": 3, "b": 4}),
    ]
    guards = [RequireApproval(), EgressApproval([Rule(ensemble="small")])]
    loop = scripted_loop(servers, *calls, interceptors=guards)
    state = await loop.execute("go")
    asked = []
    while state.pending:
        asked += [call.call.name for call in state.pending]
        state = await loop.resume(state, {call.key: approve(call.digest) for call in state.pending})
    assert asked == ["add", "log"]
    assert [execution.succeeded for execution in executions(state)] == [True] * 4


async def test_a_local_server_sends_nothing() -> None:
    """Where code says so, no call is asked about before data leaves."""
    guards = [EgressApproval([Rule(ensemble="small", egress=True)])]
    server = small(effects={"*": "pure"}, egress=False)
    state = await run_calls([server], ("add", {"a": 1, "b": 2}), ("add", {"a": 3, "b": 4}), interceptors=guards)
    assert state.final_text == "done"
