"""What servers ask of the user and of a model, in both eras of the protocol."""

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
from tests.mcp.running import PATIENT
from tests.tools.ensembles.running import executions, run_calls

ASKING = str(Path(__file__).with_name("asking_server.py"))
ERAS = pytest.mark.parametrize("era", ["2025", "2026"])


async def asked(era: str, tool: str, **settings: Any) -> ToolExecution:
    """Call a tool of the asking server."""
    server = McpEnsemble.stdio(sys.executable, ["-S", ASKING, era], name="asking", **{**PATIENT, **settings})
    return executions(await run_calls([server], (tool, {})))[0]


@ERAS
async def test_functions_of_the_program_answer(era: str) -> None:
    """They get the request as it is in the protocol."""
    requests: list[Mapping[str, Any]] = []

    async def user(request: Mapping[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"name": "Ann"}

    async def model(request: Mapping[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"}

    named = await asked(era, "ask", on_elicitation=user)
    assert json.loads(str(named.value)) == {"action": "accept", "content": {"name": "Ann"}}
    said = await asked(era, "sample", on_sampling=model)
    assert json.loads(str(said.value))["content"] == {"type": "text", "text": "hello"}
    assert requests[0]["message"] == "Name?"
    assert requests[1]["maxTokens"] == 10


@ERAS
async def test_a_person_may_decline(era: str) -> None:
    """None is the answer of one who does not want to say."""

    async def user(_: object) -> None:
        return None

    assert json.loads(str((await asked(era, "ask", on_elicitation=user)).value)) == {"action": "decline"}


@ERAS
@pytest.mark.parametrize("tool", ["ask", "sample"])
async def test_nobody_answers_where_there_is_no_function(era: str, tool: str) -> None:
    """The server is told so; one of 2026, which should not have asked then, does not get to answer."""
    execution = await asked(era, tool)
    assert "not supported" in (str(execution.value) if era == "2025" else execution.error_message)


@ERAS
@pytest.mark.parametrize(("tool", "function"), [("ask", "on_elicitation"), ("sample", "on_sampling")])
async def test_a_function_that_fails_is_logged(
    era: str, tool: str, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server is told that there is no answer, and not why."""

    async def broken(_: object) -> dict[str, Any]:
        raise ValueError("a secret of the program")

    execution = await asked(era, tool, **{function: broken})
    told = str(execution.value) if era == "2025" else execution.error_message
    assert f"{function} has failed" in told
    assert "secret" not in told
    assert "a secret of the program" in caplog.text
    assert execution.status is (ToolStatus.SUCCEEDED if era == "2025" else ToolStatus.FAILED)
