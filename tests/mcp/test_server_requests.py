"""Requests of servers to the user and to a model, in both eras of the protocol."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentloop import ToolExecution
from agentloop.mcp import McpEnsemble
from agentloop.values import ToolStatus
from tests.mcp.running import NO_TIMEOUTS, SINCE_2026
from tests.toolkits.running import executions, run_calls

REQUESTING = str(Path(__file__).with_name("requesting_server.py"))
ERAS = pytest.mark.parametrize("era", ["2025", pytest.param("2026", marks=SINCE_2026)])


async def call(era: str, tool: str, **settings: Any) -> ToolExecution:
    """Call a tool of the requesting server."""
    server = McpEnsemble.stdio(
        sys.executable, ["-S", REQUESTING, era], name="requesting", **{**NO_TIMEOUTS, **settings}
    )
    return executions(await run_calls([server], (tool, {})))[0]


@ERAS
async def test_functions_of_the_program_answer_requests(era: str) -> None:
    """The functions receive the requests in the JSON of the protocol."""
    requests: list[Mapping[str, Any]] = []

    async def user(request: Mapping[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"name": "Ann"}

    async def model(request: Mapping[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}

    elicited = await call(era, "ask", on_elicitation=user)
    assert json.loads(str(elicited.value)) == {"action": "accept", "content": {"name": "Ann"}}
    sampled = await call(era, "sample", on_sampling=model)
    assert json.loads(str(sampled.value))["content"] == {"type": "text", "text": "hello"}
    assert requests[0]["message"] == "Name?"
    assert requests[1]["maxTokens"] == 10


@ERAS
async def test_half_characters_of_an_answer_are_replaced(era: str) -> None:
    """An answer with half of a character reaches the server, with U+FFFD in its place."""

    async def user(_: object) -> dict[str, Any]:
        return {"name": "Ann \ud83d"}

    elicited = await call(era, "ask", on_elicitation=user)
    assert json.loads(str(elicited.value)) == {"action": "accept", "content": {"name": "Ann \ufffd"}}


@ERAS
async def test_none_declines_a_request(era: str) -> None:
    """A function that returns None declines the request."""

    async def user(_: object) -> None:
        return None

    assert json.loads(str((await call(era, "ask", on_elicitation=user)).value)) == {"action": "decline"}


@ERAS
@pytest.mark.parametrize("tool", ["ask", "sample"])
async def test_requests_without_a_function_are_rejected(era: str, tool: str) -> None:
    """The server receives an error in 2025; in 2026, when it must not send such a request, the call fails."""
    execution = await call(era, tool)
    assert "not supported" in (str(execution.value) if era == "2025" else execution.error_message)


@ERAS
@pytest.mark.parametrize(("tool", "function"), [("ask", "on_elicitation"), ("sample", "on_sampling")])
async def test_a_failed_function_is_logged(
    era: str, tool: str, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is told that there is no answer; the error itself is only logged."""

    async def broken(_: object) -> dict[str, Any]:
        raise ValueError("a secret of the program")

    execution = await call(era, tool, **{function: broken})
    text = str(execution.value) if era == "2025" else execution.error_message
    assert f"{function} has failed" in text
    assert "secret" not in text
    assert "a secret of the program" in caplog.text
    assert execution.status is (ToolStatus.SUCCEEDED if era == "2025" else ToolStatus.FAILED)
