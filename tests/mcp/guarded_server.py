"""An MCP server over HTTP with an authorization server beside it, in this process; each of its answers can be replaced."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any, TypeAlias
from urllib.parse import parse_qs, unquote, urlencode, urlsplit

import httpx
from attrs import define, field, frozen

from agentloop.mcp import CanKeepTokens
from agentloop.values.secrets import Secret


@frozen
class Received:
    """A request that was received."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


Answer: TypeAlias = tuple[int, dict[str, str], bytes]


def as_json(document: Any, status: int = 200) -> Answer:
    return status, {"content-type": "application/json"}, json.dumps(document).encode()


@define
class Guarded:
    """The server. `answers` replaces what it answers at a path, and `metadata` what its metadata contain."""

    url: str = ""
    received: list[Received] = field(factory=list)
    answers: dict[str, Callable[[Received], Answer]] = field(factory=dict)
    metadata: dict[str, Any] = field(factory=dict)
    valid: set[str] = field(factory=set)
    refresh_tokens: set[str] = field(factory=set)
    challenges: dict[str, str] = field(factory=dict)
    issued: int = 0
    expires_in: int = 3600
    calls: Callable[[], Awaitable[None]] | None = None

    @property
    def mcp(self) -> str:
        return f"{self.url}/mcp"

    def paths(self) -> list[str]:
        """Return the paths of the authorization, in the order of their requests."""
        return [request.path for request in self.received if request.path != "/mcp"]

    async def answer(self, request: Received) -> Answer:
        usual: dict[str, Callable[[Received], Answer]] = {
            "/.well-known/oauth-protected-resource/mcp": lambda _: as_json(
                {"resource": self.mcp, "authorization_servers": [self.url]}
            ),
            "/.well-known/oauth-authorization-server": self._describe,
            "/register": lambda request: as_json(
                {**json.loads(request.body), "client_id": "registered", "token_endpoint_auth_method": "none"}, 201
            ),
            "/authorize": self._agree,
            "/token": self._issue,
        }
        answer = self.answers.get(request.path) or usual.get(request.path)
        if answer is None:
            return await self._call(request) if request.path == "/mcp" else (404, {}, b"")
        return answer(request)

    def _describe(self, _: Received) -> Answer:
        return as_json(
            {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "code_challenge_methods_supported": ["S256"],
                **self.metadata,
            }
        )

    def _agree(self, request: Received) -> Answer:
        self.challenges["code"] = request.query["code_challenge"]
        query = urlencode({"code": "code", "state": request.query["state"]})
        return 302, {"location": f"{request.query['redirect_uri']}?{query}"}, b""

    def _issue(self, request: Received) -> Answer:
        form = request.form
        match form["grant_type"]:
            case "authorization_code":
                digest = urlsafe_b64encode(sha256(form["code_verifier"].encode()).digest()).decode().rstrip("=")
                is_valid = form["code"] == "code" and digest == self.challenges.pop("code", None)
            case "refresh_token":
                is_valid = form["refresh_token"] in self.refresh_tokens
                self.refresh_tokens.discard(form["refresh_token"])
            case _:
                kind, _, encoded = request.headers.get("authorization", "").partition(" ")
                is_valid = kind == "Basic" and unquote(b64decode(encoded).decode()) == "program:hidden-secret"
        if not is_valid:
            return as_json({"error": "invalid_grant"}, 400)
        self.issued += 1
        name = f"{self.url.rpartition(':')[2]}-{self.issued}"
        token, refresh = f"hidden-token-{name}", f"hidden-refresh-{name}"
        self.valid.add(token)
        self.refresh_tokens.add(refresh)
        document = {"access_token": token, "token_type": "Bearer", "expires_in": self.expires_in}
        return as_json(
            document if form["grant_type"] == "client_credentials" else {**document, "refresh_token": refresh}
        )

    async def _call(self, request: Received) -> Answer:
        if request.headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            place = f"{self.url}/.well-known/oauth-protected-resource/mcp"
            return 401, {"www-authenticate": f'Bearer resource_metadata="{place}"'}, b""
        if request.method != "POST":
            return 405, {}, b""
        message = json.loads(request.body)
        if message["method"] == "tools/call" and self.calls is not None:
            await self.calls()
        results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "guarded", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
            "tools/call": {"content": [{"type": "text", "text": "done"}]},
        }
        result = results.get(message["method"])
        if result is None:
            return 404 if "id" in message else 202, {}, b""
        return as_json({"jsonrpc": "2.0", "id": message["id"], "result": result})

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the one request of a connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.splitlines()
            method, target, _ = first.split()
            headers = {
                name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)
            }
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            parts = urlsplit(target)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            request = Received(method, parts.path, query, headers, body)
            self.received.append(request)
            status, fields, content = await self.answer(request)
            fields = {"content-length": str(len(content)), "connection": "close", **fields}
            writer.write(f"HTTP/1.1 {status} X\r\n".encode())
            writer.write("".join(f"{name}: {value}\r\n" for name, value in fields.items()).encode() + b"\r\n" + content)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return  # the client has disconnected
        finally:
            writer.close()


@asynccontextmanager
async def guarded() -> AsyncIterator[Guarded]:
    """Run a server."""
    server = Guarded()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server


@define
class Browser:
    """A browser whose person agrees to everything; records the pages that it was shown."""

    pages: list[str] = field(factory=list)

    async def __call__(self, url: str) -> None:
        self.pages.append(url)
        async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as client:
            await client.get(url)


@define
class TokensInMemory(CanKeepTokens):
    """Keeps tokens in memory."""

    documents: dict[str, Secret] = field(factory=dict)

    def load(self, server: str) -> Secret | None:
        return self.documents.get(server)

    def save(self, server: str, document: Secret | None) -> None:
        if document is None:
            self.documents.pop(server, None)
        else:
            self.documents[server] = document
