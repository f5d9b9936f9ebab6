"""Servers that misbehave: each failure is reported in time and by its type, and affects nothing else."""

from __future__ import annotations

import asyncio
from itertools import count
from typing import Any

import pytest

from agentloop.contracts import ToolPolicy
from agentloop.mcp import connection, server_process
from agentloop.mcp.sdk.names import content_of, types
from agentloop.mcp.sdk.transports import parse_message
from agentloop.mcp.session import RemoteTool
from agentloop.tools import tool
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import hostile
from tests.toolkits.running import executions, run_calls

TIMEOUT = 1.0
"""Seconds to wait for a response that never comes."""


@tool(repeatable=True)
def local() -> str:
    """Return a text."""
    return "local"


SETTINGS: dict[str, Any] = {"policy": ToolPolicy(timeout=10 * LONGEST)}
"""Settings without a timeout: calls that have to end in time end by themselves."""

CALLS = {
    "silent": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "wrong ids": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "flood of notifications": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "flood of changes": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "requests without end": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "huge result": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "endless line": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "flood of invalid lines": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "dies of calls": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "closes its output": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "long error": (ToolStatus.FAILED, "ToolFailed"),
}
"""The status and the error of a call, by the behavior of the server."""


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("behavior", CALLS)
async def test_a_call_ends_in_time_with_a_typed_error(behavior: str) -> None:
    """A call of a hostile server fails in time, and other calls and the next step succeed."""
    status, kind = CALLS[behavior]
    policy = ToolPolicy(timeout=TIMEOUT if status is ToolStatus.TIMED_OUT else 10 * LONGEST)
    async with asyncio.timeout(LONGEST):
        state = await run_calls([local, hostile(behavior, policy=policy)], [("act", {}), ("local", {})], ("local", {}))
    bad, sibling, later = executions(state)
    assert bad.error is not None
    assert (bad.status, bad.error.type) == (status, kind), bad.error
    assert sibling.value == later.value == "local"
    assert state.final_text == "done"


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(("behavior", "said"), [("wrong shape", "acted"), ("result is a number", "7")])
async def test_an_answer_of_another_form_reaches_the_model(behavior: str, said: str) -> None:
    """The call has run: the model reads what the server said, and other calls and the next step succeed."""
    async with asyncio.timeout(LONGEST):
        state = await run_calls([local, hostile(behavior, **SETTINGS)], [("act", {}), ("local", {})], ("local", {}))
    odd, sibling, later = executions(state)
    assert odd.status is ToolStatus.SUCCEEDED
    assert said in odd.text
    assert sibling.value == later.value == "local"
    assert state.final_text == "done"


TOLERATED = [
    "noisy",
    "answers twice",
    "invalid schema",
    "infinite schema",
    "schema of 195 levels",
    "schema of 250 levels",
    "mostly invalid tools",
    "changes when listed",
    "polite",
]


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("behavior", TOLERATED)
async def test_small_mistakes_are_tolerated(behavior: str) -> None:
    """Invalid lines, second responses and invalid tools do not keep other tools from being called."""
    async with asyncio.timeout(LONGEST):
        state = await run_calls([local, hostile(behavior, **SETTINGS)], [("act", {}), ("local", {})], ("bad", {}))
    acted, sibling, bad = executions(state)
    assert (acted.value, sibling.value) == ("acted", "local")
    assert bad.error is not None
    assert bad.error.type == "UnknownTool"


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("fails", [False, True])
async def test_changes_are_seen_after_one_that_cannot_be_read(
    *, fails: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An odd tool among new ones, or any error while they are listed, is logged; the next change is seen, and nothing waits."""
    list_tools, listings = connection.list_tools, count(1)

    async def fail_once(*arguments: Any) -> tuple[RemoteTool, ...]:
        tools = await list_tools(*arguments)
        if next(listings) == 2:
            raise KeyError("odd")
        return tools

    if fails:
        monkeypatch.setattr(connection, "list_tools", fail_once)
    offered = []
    async with asyncio.timeout(LONGEST), hostile("odd tool for a while", **SETTINGS) as server:
        for _ in range(3):
            offered.append([tool.name for tool in await server.discover()])
            await server.offered[0].use()
    assert offered == [["act"], ["act"], ["act", "new"]]
    assert "the tool 'bad' of the MCP server hostile is left out" in caplog.text
    assert ("the tools of the MCP server hostile cannot be listed: KeyError: 'odd'" in caplog.text) is fails


async def test_invalid_text_is_replaced() -> None:
    """Half a character, as JavaScript writes where it cuts a text, and bytes that are not UTF-8 become U+FFFD."""
    half, latin = executions(
        await run_calls(
            [hostile("half a character", **SETTINGS), hostile("latin", prefix="l_", **SETTINGS)],
            ("act", {}),
            ("l_act", {}),
        )
    )
    assert (half.value, latin.value) == ("cut \ufffd", "caf\ufffd")


async def test_a_dead_server_is_logged_with_its_last_output(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has the exit code, `diagnose` also the last output; the same reason is logged once."""
    monkeypatch.setattr(server_process, "_LAST_WORDS_SECONDS", LONGEST)
    async with hostile("dies at once", **SETTINGS) as server:
        for _ in range(3):
            await server.discover()
        assert server.diagnose() == "its process has ended with exit code 7; its last output: no key"
    assert caplog.text.count("the MCP server hostile is not available: its process has ended with exit code 7") == 1


async def test_an_invalid_image_becomes_text() -> None:
    """An image whose data is not base64 is not sent to a model as an image."""
    execution = executions(await run_calls([hostile("bad base64", **SETTINGS)], ("act", {})))[0]
    assert execution.value == "[image that cannot be read: it is not base64]"


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(
    "behavior",
    [
        "never answers",
        "endless pages",
        "same page",
        "tools are numbers",
        "no list",
        "dies at once",
        "dies at each message",
        "dies at tools/list",
    ],
)
async def test_a_server_that_does_not_list_its_tools_offers_nothing(
    behavior: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The execution begins in time without the server's tools, and the log says why."""
    settings = {**SETTINGS, **({"connect_timeout": TIMEOUT} if behavior == "never answers" else {})}
    async with asyncio.timeout(LONGEST):
        state = await run_calls([local, hostile(behavior, **settings)], [("act", {}), ("local", {})])
    unknown, sibling = executions(state)
    assert unknown.error is not None
    assert unknown.error.type == "UnknownTool"
    assert sibling.value == "local"
    if behavior == "tools are numbers":
        assert "the tool 1 of the MCP server hostile is left out" in caplog.text
    else:
        assert "the MCP server hostile is not available" in caplog.text or "hostile has not answered" in caplog.text


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        ('{"structuredContent": {"a": [' + "0," * 100_000 + '0]}, "content": []}', "more than 100,000 entries"),
        ('{"content": [' + ", ".join(['{"type": "text", "text": "a"}'] * 1_001) + "]}", "1,001 entries in `content`"),
    ],
)
def test_a_message_with_too_many_entries_is_an_error_of_its_request(result: str, problem: str) -> None:
    """A message that would take long to read in Python ends its request, and says what there is too much of."""
    parsed = parse_message("server", f'{{"jsonrpc": "2.0", "id": 7, "result": {result}}}'.encode())
    assert parsed is not None
    message = content_of(parsed)
    assert isinstance(message, types.JSONRPCError)
    assert message.id == 7
    assert problem in message.error.message


def test_commas_in_texts_are_no_entries() -> None:
    """A long text with commas is read, as are commas after escaped quotes."""
    text = '\\"' + "," * 200_000
    line = f'{{"jsonrpc": "2.0", "id": 7, "result": {{"content": [{{"type": "text", "text": "{text}"}}]}}}}'
    parsed = parse_message("server", line.encode())
    assert parsed is not None
    message = content_of(parsed)
    assert isinstance(message, types.JSONRPCResponse)
    assert len(message.result["content"][0]["text"]) == 200_001
