"""The conformance suite of the protocol: what it asks of clients without authorisation, and of servers that offer tools."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tools.mcp.running import free_port, listening, node_program, program

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


async def judged(*arguments: str) -> str:
    """Run the suite; return what it says."""
    process = await asyncio.create_subprocess_exec(
        node_program("node"), node_program("conformance"), *arguments, cwd=ROOT, stdout=PIPE, stderr=STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    return said.decode()


@pytest.mark.parametrize(
    "scenario",
    [
        "initialize",
        "tools_call",
        "elicitation-sep1034-client-defaults",
        "sse-retry",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
        "json-schema-2020-12-preservation",
    ],
)
async def test_the_client_conforms(scenario: str) -> None:
    """Every check of the scenario passes."""
    command = f"{sys.executable} {HERE / 'conformance_client.py'}"
    said = await judged("client", "--command", command, "--scenario", scenario)
    assert ", 0 failed, 0 warnings" in said


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """Run `agentloop mcp serve` with the tools that the suite expects."""
    port = free_port()
    command = ["mcp", "serve", str(HERE / "conformance_tools.py"), "--http", "--port", str(port)]
    process = await asyncio.create_subprocess_exec(program("agentloop"), *command, stdout=PIPE, stderr=PIPE)
    try:
        await listening(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.communicate()


async def test_the_server_conforms(url: str) -> None:
    """Every check of the scenarios about tools passes; those about resources, prompts and questions are not offered."""
    scenarios = [
        "server-initialize",
        "server-session-lifecycle",
        "ping",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "tools-call-error",
        "tools-call-with-progress",
        "dns-rebinding-protection",
        "http-header-validation",
        "server-sse-multiple-streams",
    ]
    for scenario in scenarios:
        assert ", 0 failed, 0 warnings" in await judged("server", "--url", url, "--scenario", scenario)
