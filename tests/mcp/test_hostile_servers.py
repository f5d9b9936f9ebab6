"""Servers that misbehave: each is told as what it is and in time, and nothing else suffers from it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentloop.contracts import ToolPolicy
from agentloop.mcp import server_process
from agentloop.tools import tool
from agentloop.values import ToolStatus
from tests.limits import LONGEST
from tests.mcp.running import hostile
from tests.tools.ensembles.running import executions, run_calls

TIMEOUT = 1.0
"""Seconds for what never comes."""


@tool
def own() -> str:
    """Do something of our own."""
    return "mine"


SETTINGS: dict[str, Any] = {"policy": ToolPolicy(timeout=10 * LONGEST)}
"""No limit of time ends anything here, unless a test says so: what has to end in time then ends by itself."""

CALLS = {
    "silent": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "wrong ids": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "flood of notifications": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "flood of changes": (ToolStatus.TIMED_OUT, "ToolTimedOut"),
    "asks for ever": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "huge result": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "endless line": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "flood of noise": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "dies of calls": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "closes its output": (ToolStatus.IN_DOUBT, "ToolInDoubt"),
    "wrong shape": (ToolStatus.FAILED, "ToolFailed"),
    "result is a number": (ToolStatus.FAILED, "ToolFailed"),
    "error of any kind": (ToolStatus.FAILED, "ToolFailed"),
}
"""How a call of a server that behaves like this ends."""


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("manner", CALLS)
async def test_a_call_ends_in_time_and_typed(manner: str) -> None:
    """Its siblings and the next step go on as if nothing had been."""
    status, kind = CALLS[manner]
    policy = ToolPolicy(timeout=TIMEOUT if status is ToolStatus.TIMED_OUT else 10 * LONGEST)
    async with asyncio.timeout(LONGEST):
        state = await run_calls([own, hostile(manner, policy=policy)], [("act", {}), ("own", {})], ("own", {}))
    bad, sibling, later = executions(state)
    assert bad.error is not None
    assert (bad.status, bad.error.type) == (status, kind), bad.error
    assert sibling.value == later.value == "mine"
    assert state.final_text == "done"


BORNE = ["noisy", "answers twice", "invalid schema", "hardly any tools", "changes when listed", "polite"]


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize("manner", BORNE)
async def test_what_can_be_borne_is_borne(manner: str) -> None:
    """Noise before messages, a second answer, and tools that cannot be called do not keep others from being called."""
    async with asyncio.timeout(LONGEST):
        state = await run_calls([own, hostile(manner, **SETTINGS)], [("act", {}), ("own", {})], ("bad", {}))
    acted, sibling, bad = executions(state)
    assert (acted.value, sibling.value) == ("acted", "mine")
    assert bad.error is not None
    assert bad.error.type == "UnknownTool"


async def test_what_is_no_text_is_replaced() -> None:
    """Half a character, as JavaScript writes where it cuts a text, and bytes that are no text do not lose an answer."""
    halved, latin = executions(
        await run_calls(
            [hostile("half a character", **SETTINGS), hostile("latin", prefix="l_", **SETTINGS)],
            ("act", {}),
            ("l_act", {}),
        )
    )
    assert (halved.value, latin.value) == ("cut \ufffd", "caf\ufffd")


async def test_a_server_that_dies_is_told_with_its_last_words(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exit code is told to all, what the server wrote to people only; the same again is logged once."""
    monkeypatch.setattr(server_process, "_LAST_WORDS_SECONDS", LONGEST)
    async with hostile("dies at once", **SETTINGS) as server:
        for _ in range(3):
            await server.discover()
        assert server.diagnose() == "its process has ended with exit code 7; its last output: no key"
    assert caplog.text.count("the MCP server hostile is away: its process has ended with exit code 7") == 1


async def test_a_picture_that_is_none_is_told_as_text() -> None:
    """What is no base64 is not given to a model as a picture."""
    execution = executions(await run_calls([hostile("bad base64", **SETTINGS)], ("act", {})))[0]
    assert execution.value == "[image that cannot be read: it is not base64]"


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(
    "manner",
    [
        "never answers",
        "endless pages",
        "same page",
        "tools are numbers",
        "no list",
        "dies at once",
        "dies at each message",
        "dies when asked for tools",
    ],
)
async def test_a_server_that_cannot_be_asked_offers_nothing(manner: str, caplog: pytest.LogCaptureFixture) -> None:
    """The execution begins in time without its tools, and the log says why."""
    settings = {**SETTINGS, **({"connect_timeout": TIMEOUT} if manner == "never answers" else {})}
    async with asyncio.timeout(LONGEST):
        state = await run_calls([own, hostile(manner, **settings)], [("act", {}), ("own", {})])
    unknown, mine = executions(state)
    assert unknown.error is not None
    assert unknown.error.type == "UnknownTool"
    assert mine.value == "mine"
    if manner == "tools are numbers":
        assert "the tool 1 of the MCP server hostile is left out" in caplog.text
    else:
        assert "the MCP server hostile is away" in caplog.text or "hostile has not answered" in caplog.text
