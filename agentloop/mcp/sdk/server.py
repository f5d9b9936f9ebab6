"""A server that serves our tools, over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
import hmac
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Thread
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from agentloop import __version__
from agentloop.errors import ConfigurationError, ToolError
from agentloop.mcp.content import format_blocks, format_effect
from agentloop.mcp.servers import is_loopback
from agentloop.mcp.session import ServedTool
from agentloop.values.json import thaw

_CHUNK_BYTES = 1 << 16
_MAX_QUEUED_LINES = 100
_MAX_SESSIONS = 256
_IDLE_SECONDS = 600.0


async def serve_stdio(name: str, tools: Iterable[ServedTool]) -> None:
    """Serve one client over standard input and output, until it closes our input.

    Args:
        name: the name of the server.
        tools: the tools.
    """
    server = _server(name, tools)
    with _input_lines() as lines:
        stdin = cast("anyio.AsyncFile[str]", lines)  # the SDK only iterates over it
        async with stdio_server(stdin=stdin) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(
    name: str,
    tools: Iterable[ServedTool],
    host: str,
    port: int,
    *,
    token: str = "",
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve clients over streamable HTTP at `/mcp`, until the program is interrupted.

    There are at most 256 sessions at once; a session without requests ends after 10 minutes.

    Args:
        name: the name of the server.
        tools: the tools.
        host: the address to listen on. Requests of web pages of other origins are rejected, and at a loopback address also
            those for other hosts.
        port: the port to listen on; 0 for any free port.
        token: the bearer token that each request needs; empty for none, at a loopback address only.
        on_ready: called with the URL when the server accepts connections.

    Raises:
        ConfigurationError: when the server cannot listen there, or other machines could reach it without a token.
    """
    is_local = is_loopback(host)
    if not is_local and not token:
        raise ConfigurationError(
            f"{host} can be reached from other machines, and everyone there could call the tools: set a token by "
            "AGENTLOOP_MCP_TOKEN or --token, or listen at 127.0.0.1"
        )
    shown = f"[{host}]" if ":" in host else host
    hosts = [entry for name in (shown, "127.0.0.1", "localhost", "[::1]") for entry in (name, f"{name}:*")]
    security = TransportSecuritySettings(
        enable_dns_rebinding_protection=is_local,
        allowed_hosts=hosts,
        allowed_origins=[f"http://{entry}" for entry in hosts],
    )
    application = _Gate(
        _server(name, tools).streamable_http_app(
            host=host,
            transport_security=security,
            max_sessions=_MAX_SESSIONS,
            session_idle_timeout=_IDLE_SECONDS,
        ),
        token,
    )
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    with _listen(host, port) as listener:
        on_ready(f"http://{shown}:{listener.getsockname()[1]}/mcp")
        await server.serve([listener])


class _Gate:
    """An ASGI application that passes on requests with the token that do not come from a web page of another origin.

    Args:
        application: the application behind it.
        token: the bearer token; empty for none.
    """

    def __init__(self, application: Any, token: str) -> None:
        self._application = application
        self._expected = f"Bearer {token}".encode() if token else b""

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            if self._expected and not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
                await _reject(send, 401, "a token is needed: Authorization: Bearer <token>")
                return
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and urlsplit(origin).netloc != headers.get(b"host", b"").decode("latin-1"):
                await _reject(send, 403, "web pages of other origins have no access")
                return
        await self._application(scope, receive, send)


async def _reject(send: Any, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": status, "headers": headers[: 2 if status == 401 else 1]})  # noqa: PLR2004  # Unauthorized
    await send({"type": "http.response.body", "body": reason.encode()})


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigurationError(f"cannot listen at {host}, port {port}: {reason}") from error


def _server(name: str, tools: Iterable[ServedTool]) -> Server[Any]:
    by_name = {tool.name: tool for tool in tools}
    listing = ListToolsResult.model_validate({"tools": [_describe(tool) for tool in by_name.values()]})

    async def list_tools(_: ServerRequestContext[Any, Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return listing

    async def call_tool(context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        tool = by_name.get(params.name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; the tools are {', '.join(by_name)}")
        return await _call(tool, params.arguments or {}, context)

    return Server(name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


def _describe(tool: ServedTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": {"type": "object", **thaw(tool.parameters)},
        "annotations": format_effect(tool.effect),
    }


async def _call(
    tool: ServedTool, arguments: Mapping[str, Any], context: ServerRequestContext[Any, Any]
) -> CallToolResult:
    updates: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
    reporting = asyncio.create_task(_report_progress(updates, context))
    try:
        result = await tool.call(arguments, updates.put_nowait)
    except ToolError as error:
        # Errors of tools are results for the model of the client; only protocol errors are JSON-RPC errors.
        return CallToolResult.model_validate({"content": [{"type": "text", "text": str(error)}], "isError": True})
    else:
        # A client drops progress that arrives after the response, so all of it is sent before.
        updates.put_nowait(None)
        await reporting
        response: dict[str, Any] = {"content": format_blocks(result)}
        # The protocol allows only objects as structured content.
        if isinstance(result.value, Mapping):
            response["structuredContent"] = thaw(result.value)
        return CallToolResult.model_validate(response)
    finally:
        reporting.cancel()


async def _report_progress(
    updates: asyncio.Queue[Mapping[str, Any] | None], context: ServerRequestContext[Any, Any]
) -> None:
    # Progress is reported by callbacks, which cannot await; this task sends it.
    while (update := await updates.get()) is not None:
        await context.session.report_progress(update["progress"], update.get("total"), update.get("message"))


# --- standard input ---------------------------------------------------------------------------------------------


@contextmanager
def _input_lines() -> Iterator[AsyncIterator[str]]:
    """Yield the lines of the standard input, which is empty for all other code in the meantime.

    A daemon thread reads them: waiting for a thread of the default executor would keep the process from ending by Ctrl-C
    until the next line arrives.
    """
    descriptor = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    queue: asyncio.Queue[str] = asyncio.Queue(_MAX_QUEUED_LINES)
    arguments = (descriptor, queue, asyncio.get_running_loop())
    Thread(target=_read_lines, args=arguments, name="standard input", daemon=True).start()
    try:
        yield _iterate(queue)
    finally:
        os.dup2(descriptor, 0)


async def _iterate(queue: asyncio.Queue[str]) -> AsyncIterator[str]:
    while line := await queue.get():
        yield line


def _read_lines(descriptor: int, queue: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    """Put lines with their ends into a queue, and an empty text at the end of the input."""
    partial = bytearray()
    try:
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            *lines, rest = chunk.split(b"\n")
            for line in lines:
                partial += line + b"\n"
                _put(partial.decode(errors="replace"), queue, loop)
                partial.clear()
            partial += rest
        if partial:
            _put(partial.decode(errors="replace"), queue, loop)
        _put("", queue, loop)
    except (OSError, RuntimeError):
        return  # the event loop is closed, so nothing reads the lines any more


def _put(line: str, queue: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    if loop.is_closed():
        raise RuntimeError("the event loop is closed")
    asyncio.run_coroutine_threadsafe(queue.put(line), loop).result()
