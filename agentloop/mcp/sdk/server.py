"""A server that offers tools of ours, over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from threading import Thread
from typing import Any, cast

import anyio
import uvicorn
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import INVALID_PARAMS, CallToolRequestParams, CallToolResult, ListToolsResult, PaginatedRequestParams

from agentloop.errors import ConfigurationError, ToolError
from agentloop.mcp.content import annotations_of, blocks_of
from agentloop.mcp.session import Offer
from agentloop.values.json import thaw

_CHUNK = 1 << 16
_MOST_WAITING = 100


@contextmanager
def input_lines() -> Iterator[AsyncIterator[str]]:
    """Give the lines of the standard input; meanwhile everybody else finds it empty.

    They are read by a thread that ends with the process: one that somebody waits for would keep the process from ending by
    Ctrl-C until the next line comes.
    """
    ours = os.dup(0)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nowhere, 0)
    os.close(nowhere)
    waiting: asyncio.Queue[str] = asyncio.Queue(_MOST_WAITING)
    reading = (ours, waiting, asyncio.get_running_loop())
    Thread(target=_read, args=reading, name="standard input", daemon=True).start()
    try:
        yield _lines(waiting)
    finally:
        os.dup2(ours, 0)


async def _lines(waiting: asyncio.Queue[str]) -> AsyncIterator[str]:
    while line := await waiting.get():
        yield line


def _read(descriptor: int, waiting: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    """Put lines with their ends into a queue, and an empty one at the end."""
    begun = bytearray()
    try:
        while chunk := os.read(descriptor, _CHUNK):
            *whole, rest = chunk.split(b"\n")
            for line in whole:
                begun += line + b"\n"
                _put(begun.decode(errors="replace"), waiting, loop)
                begun.clear()
            begun += rest
        if begun:
            _put(begun.decode(errors="replace"), waiting, loop)
        _put("", waiting, loop)
    except (OSError, RuntimeError):
        return  # nobody listens any more: the event loop is closed


def _put(line: str, waiting: asyncio.Queue[str], loop: asyncio.AbstractEventLoop) -> None:
    if loop.is_closed():
        raise RuntimeError("the event loop is closed")
    asyncio.run_coroutine_threadsafe(waiting.put(line), loop).result()


async def serve_stdio(name: str, offers: Iterable[Offer]) -> None:
    """Serve one client over standard input and output, until it closes our input.

    Args:
        name: what the server calls itself.
        offers: the tools.
    """
    server = _server(name, offers)
    with input_lines() as lines:
        stdin = cast("anyio.AsyncFile[str]", lines)  # whose lines are all that is asked for
        async with stdio_server(stdin=stdin) as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(
    name: str, offers: Iterable[Offer], host: str, port: int, *, ready: Callable[[str], None] = lambda _: None
) -> None:
    """Serve any number of clients over streamable HTTP at `/mcp`, until the program is interrupted.

    Args:
        name: what the server calls itself.
        offers: the tools.
        host: the address to listen on; requests from web pages are refused at a local one.
        port: the port to listen on; 0 for any that is free.
        ready: is told the address when it can be used.

    Raises:
        ConfigurationError: when nobody can listen there.
    """
    application = _server(name, offers).streamable_http_app(host=host)
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    with _listening(host, port) as heard:
        ready(f"http://{f'[{host}]' if ':' in host else host}:{heard.getsockname()[1]}/mcp")
        await server.serve([heard])


def _listening(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise ConfigurationError(f"cannot listen at {host}, port {port}: {why}") from error


def _server(name: str, offers: Iterable[Offer]) -> Server[Any]:
    by_name = {offer.name: offer for offer in offers}
    listed = ListToolsResult.model_validate({"tools": [_told(offer) for offer in by_name.values()]})

    async def list_tools(_: ServerRequestContext[Any, Any], __: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(context: ServerRequestContext[Any, Any], params: CallToolRequestParams) -> CallToolResult:
        offer = by_name.get(params.name)
        if offer is None:
            raise MCPError(INVALID_PARAMS, f"there is no tool {params.name!r}; the tools are {', '.join(by_name)}")
        return await _called(offer, params.arguments or {}, context)

    return Server(name, version=_version(), on_list_tools=list_tools, on_call_tool=call_tool)


def _told(offer: Offer) -> dict[str, Any]:
    schema = {"type": "object", **thaw(offer.parameters)}
    return {
        "name": offer.name,
        "description": offer.description,
        "inputSchema": schema,
        "annotations": annotations_of(offer.effect),
    }


async def _called(
    offer: Offer, arguments: Mapping[str, Any], context: ServerRequestContext[Any, Any]
) -> CallToolResult:
    waiting: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
    telling = asyncio.create_task(_tell(waiting, context))
    try:
        result = await offer.call(arguments, waiting.put_nowait)
    except ToolError as error:
        return CallToolResult.model_validate({"content": [{"type": "text", "text": str(error)}], "isError": True})
    else:
        waiting.put_nowait(None)
        await telling
        answer: dict[str, Any] = {"content": blocks_of(result)}
        if isinstance(result.value, Mapping):
            answer["structuredContent"] = thaw(result.value)
        return CallToolResult.model_validate(answer)
    finally:
        telling.cancel()


async def _tell(waiting: asyncio.Queue[Mapping[str, Any] | None], context: ServerRequestContext[Any, Any]) -> None:
    while (told := await waiting.get()) is not None:
        await context.session.report_progress(told["progress"], told.get("total"), told.get("message"))


def _version() -> str:
    try:
        return version("agentloop")
    except PackageNotFoundError:  # run from its sources
        return "0"
