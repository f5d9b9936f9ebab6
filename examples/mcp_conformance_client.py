"""A client for the conformance suite of the Model Context Protocol.

It calls the tools that a scenario names, or each offered tool once with sample arguments:

    npm install @modelcontextprotocol/conformance@0.2.0-alpha.12 node@22
    npx conformance client --requirements 2026-07-28 --command "python examples/mcp_conformance_client.py"

In the scenarios of authorization, the person at the browser agrees to everything.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import httpx

from agentloop.contracts import Tool
from agentloop.errors import ToolError
from agentloop.mcp import CanKeepTokens, ClientCredentials, McpEnsemble, OAuth, SignedCredentials
from agentloop.values.json import thaw
from agentloop.values.secrets import Secret

METADATA = "https://conformance-test.local/client-metadata.json"


async def accept(request: Mapping[str, Any]) -> dict[str, Any]:
    """Answer an elicitation request with its defaults."""
    properties = request.get("requestedSchema", {}).get("properties", {})
    return {name: schema["default"] for name, schema in properties.items() if "default" in schema}


def sample_arguments(tool: Tool, first: Tool) -> dict[str, Any]:
    """Return arguments for a tool; an object is the schema of the first tool, which one scenario expects back."""
    values: dict[str, Any] = {
        "number": 5,
        "integer": 5,
        "string": "x",
        "boolean": True,
        "object": thaw(first.spec.parameters),
    }
    properties = tool.parameters.get("properties", {})
    return {name: values[schema["type"]] for name, schema in properties.items() if schema.get("type") in values}


async def browse(url: str) -> None:
    """Open a page, whose redirects end at the port of this client: the person agrees."""
    async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as browser:
        await browser.get(url)


class TokensInMemory(CanKeepTokens):
    """Keeps tokens until the scenario ends."""

    def __init__(self) -> None:
        self._documents: dict[str, Secret | None] = {}

    def load(self, server: str) -> Secret | None:
        """Return what was saved for a server."""
        return self._documents.get(server)

    def save(self, server: str, document: Secret | None) -> None:
        """Replace it."""
        self._documents[server] = document


async def issuer_of(url: str) -> str:
    """Return the authorization server that a server names; a program of yours knows the one that it trusts."""
    parts = httpx.URL(url)
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(parts.copy_with(path=f"/.well-known/oauth-protected-resource{parts.path}"))
    return str(response.json()["authorization_servers"][0])


async def authorization(url: str, context: Mapping[str, Any]) -> Any:
    """Return how the client of the scenario is authorized."""
    scenario, client_id = os.environ.get("MCP_CONFORMANCE_SCENARIO", ""), context.get("client_id", "")
    if not scenario.startswith("auth/"):
        return None
    if scenario == "auth/client-credentials-basic":
        return ClientCredentials(client_id, context["client_secret"], issuer=await issuer_of(url))
    if scenario == "auth/client-credentials-jwt":
        key, algorithm = context["private_key_pem"], context["signing_algorithm"]
        return SignedCredentials(client_id, key, issuer=await issuer_of(url), algorithm=algorithm)
    return OAuth(
        client_id=client_id,
        client_secret=context.get("client_secret"),
        issuer=context.get("issuer", ""),
        client_metadata_url=METADATA if scenario == "auth/basic-cimd" else "",
        open_browser=browse,
        tokens=TokensInMemory(),
        # The suite runs its authorization servers on this machine, each at a port of its own.
        allow_private=["localhost:*", "127.0.0.1:*"],
    )


async def main(url: str) -> None:
    """Make the calls of the scenario, or call each tool once."""
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    auth = await authorization(url, context)
    # The suite runs many clients at once, which makes all of them slow.
    settings: dict[str, Any] = {"on_elicitation": accept, "connect_timeout": 300.0}
    async with McpEnsemble.http(url, auth=auth, name="conformance", **settings) as server:
        offered = {tool.name: tool for tool in server.offered}
        scenario_calls = [(call["name"], call.get("arguments", {})) for call in context.get("toolCalls", [])]
        sample_calls = [(tool.name, sample_arguments(tool, server.offered[0])) for tool in server.offered]
        for name, arguments in scenario_calls or sample_calls:
            try:
                await offered[name].use(**arguments)
            except ToolError as error:  # some scenarios reject calls on purpose; the suite checks what it received
                sys.stderr.write(f"{name}: {error}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[-1]))
