"""A server that serves our tools, resources and prompts, over stdio or streamable HTTP."""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from mimetypes import guess_type
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import uvicorn
from attrs import frozen
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings

from agentloop import __version__
from agentloop.errors import ConfigurationError, ToolError
from agentloop.errors.hints import suggest
from agentloop.mcp.content import (
    format_blocks,
    format_contents,
    format_effect,
    format_label,
    format_messages,
    without_surrogates,
)
from agentloop.mcp.offers import Offers, Prompt, Resource, ServedTool, run_served
from agentloop.mcp.sdk.names import IS_FIRST_GENERATION, MCPError, types
from agentloop.mcp.session import ProgressCallback
from agentloop.policies.web_addresses import is_loopback, listen
from agentloop.values.json import thaw

if TYPE_CHECKING or not IS_FIRST_GENERATION:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel import Server
    from mcp.shared.uri_template import UriTemplate

    from agentloop.mcp.sdk.tasks import ServedTasks
else:
    from agentloop.mcp.sdk.first_generation.server import ServedTasks, Server, ServerRequestContext, UriTemplate

_LOG = logging.getLogger("agentloop.mcp.server")
_CHUNK_BYTES = 1 << 16
_MAX_QUEUED_LINES = 100
_MAX_SESSIONS = 256
_IDLE_SECONDS = 600.0
_RUN_SECONDS = 60.0
_MODERN_VERSION = "2026-07-28"
_RESOURCE_NOT_FOUND = -32002
"""The code of older versions of the protocol for a resource that there is not."""


async def serve_stdio(offers: Offers) -> None:
    """Serve one client over standard input and output, until it closes one of them.

    Args:
        offers: what is served.

    Raises:
        ConfigurationError: when two of the same kind have the same name.
    """
    tasks = ServedTasks(offers.tasks)
    server = create_server(offers, tasks)
    with _input_lines() as lines, _open_output() as output:
        stdin = cast("anyio.AsyncFile[str]", lines)  # the SDK only iterates over it
        stdout = cast("anyio.AsyncFile[str]", output)  # it only writes and flushes
        try:
            async with aclosing(tasks), stdio_server(stdin, stdout) as (incoming, outgoing):
                await server.run(incoming, outgoing, server.create_initialization_options())
        except* BrokenPipeError:
            _LOG.info("the client has closed our output")


async def serve_http(
    offers: Offers,
    host: str,
    port: int,
    *,
    token: str = "",
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Serve clients over streamable HTTP at `/mcp`, until the program is interrupted.

    There are at most 256 sessions at once; a session without requests ends after 10 minutes.

    Args:
        offers: what is served.
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
    tasks = ServedTasks(offers.tasks)
    application = _Gate(
        create_server(offers, tasks).streamable_http_app(
            host=host,
            transport_security=security,
            max_sessions=_MAX_SESSIONS,
            session_idle_timeout=_IDLE_SECONDS,
        ),
        token,
    )
    server = uvicorn.Server(uvicorn.Config(application, log_level="warning"))
    async with aclosing(tasks):
        with listen(host, port) as listener:
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
        # As the environment has it: its bytes may be no UTF-8.
        self._token = token.encode("utf-8", "surrogateescape")

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        """Handle a request."""
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            is_allowed = scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
            if self._token and not is_allowed:
                await _reject(send, 401, "a token is needed: Authorization: Bearer <token>")
                return
            origin = headers.get(b"origin", b"").decode("latin-1")
            if origin and urlsplit(origin).netloc != headers.get(b"host", b"").decode("latin-1"):
                await _reject(send, 403, "web pages of other origins have no access")
                return
            # White space around a value is no part of it, and the server below leaves it there; the SDK compares such values.
            scope = {**scope, "headers": [(name, value.strip(b" \t")) for name, value in scope["headers"]]}
        await self._application(scope, receive, send)


async def _reject(send: Any, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain"), (b"www-authenticate", b"Bearer")]
    await send({"type": "http.response.start", "status": status, "headers": headers[: 2 if status == 401 else 1]})  # noqa: PLR2004  # Unauthorized
    await send({"type": "http.response.body", "body": reason.encode()})


def create_server(offers: Offers, tasks: ServedTasks | None = None) -> Server[Any]:
    """Return a server, which declares only what there is.

    Args:
        offers: what is served.
        tasks: the calls that run as tasks; None for none.
    """
    tasks = ServedTasks(()) if tasks is None else tasks
    handlers = _Handlers(offers, tasks)
    has_resources, has_prompts = bool(offers.resources or offers.folders), bool(offers.prompts)
    server = Server[Any](
        offers.name,
        version=__version__,
        on_list_tools=handlers.list_tools,
        on_list_resources=handlers.list_resources if has_resources else None,
        on_list_resource_templates=handlers.list_templates if has_resources else None,
        on_read_resource=handlers.read_resource if has_resources else None,
        on_list_prompts=handlers.list_prompts if has_prompts else None,
        on_get_prompt=handlers.get_prompt if has_prompts else None,
        on_completion=handlers.complete if has_resources or has_prompts else None,
    )
    # Here, since the type of the parameter knows no results of extensions.
    server.add_request_handler("tools/call", types.CallToolRequestParams, handlers.call_tool)
    tasks.install(server)
    return server


_Context: TypeAlias = ServerRequestContext[Any, Any]
_MAX_CHOICES = 100


class _Handlers:
    """Answers the requests of clients."""

    def __init__(self, offers: Offers, tasks: ServedTasks) -> None:
        self._tasks = tasks
        self._tools = {tool.name: tool for tool in offers.tools}
        self._resources = _by_name([(resource.uri, resource) for resource in offers.resources])
        self._prompts = _by_name([(prompt.name, prompt) for prompt in offers.prompts])
        self._templates = [(_parse_template(served), served) for served in offers.resources if served.is_template]
        self._folders = offers.folders

    # --- tools ------------------------------------------------------------------------------------------------------

    async def list_tools(self, _: _Context, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return _result(types.ListToolsResult, {"tools": [_describe(tool) for tool in self._tools.values()]})

    async def call_tool(
        self, context: _Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | dict[str, Any]:
        tool = self._tools.get(params.name)
        if tool is None:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {params.name!r}; the tools are {', '.join(self._tools)}"
            )
        arguments = params.arguments or {}
        if self._tasks.accepts(tool.name, context):
            return self._tasks.start(lambda report: _use(tool, arguments, report))
        return await _call(tool, arguments, context)

    # --- resources --------------------------------------------------------------------------------------------------

    async def list_resources(self, _: _Context, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        fixed = [_describe_resource(served) for served in self._resources.values() if not served.is_template]
        listed = [entry for folder in self._folders for entry in await asyncio.to_thread(folder.list)]
        files = [{"uri": uri, "name": path.name, "mimeType": guess_type(path.name)[0]} for uri, path in listed]
        return _result(types.ListResourcesResult, {"resources": [*fixed, *files]})

    async def list_templates(
        self, _: _Context, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        templates = [_describe_resource(served) for _, served in self._templates]
        return _result(types.ListResourceTemplatesResult, {"resourceTemplates": templates})

    async def read_resource(
        self, context: _Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        content = await _run(self._read(uri), f"the resource {uri!r}")
        if content is None:
            code = types.INVALID_PARAMS if context.protocol_version >= _MODERN_VERSION else _RESOURCE_NOT_FOUND
            raise MCPError(code, f"there is no resource {uri!r}", {"uri": uri})
        return _result(types.ReadResourceResult, {"contents": [content]})

    async def _read(self, uri: str) -> dict[str, Any] | None:
        served, variables = self._resources.get(uri), {}
        if served is None or served.is_template:
            matches = ((template.match(uri), candidate) for template, candidate in self._templates)
            variables, served = next(((found, candidate) for found, candidate in matches if found), ({}, None))
        if served is not None:
            result = await run_served(served, {name: str(value) for name, value in variables.items()})
            return format_contents(uri, result, served.media_type)
        for folder in self._folders:
            data = await asyncio.to_thread(folder.read, uri)
            if data is not None:
                return format_contents(uri, data, guess_type(urlsplit(uri).path)[0] or "")
        return None

    # --- prompts ----------------------------------------------------------------------------------------------------

    async def list_prompts(self, _: _Context, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        prompts = [_describe_prompt(prompt) for prompt in self._prompts.values()]
        return _result(types.ListPromptsResult, {"prompts": prompts})

    async def get_prompt(self, _: _Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        prompt, arguments = self._prompts.get(params.name), params.arguments or {}
        if prompt is None:
            raise MCPError(
                types.INVALID_PARAMS, f"there is no prompt {params.name!r}; the prompts are {', '.join(self._prompts)}"
            )
        problem = _argument_problem(prompt, arguments)
        if problem:
            raise MCPError(types.INVALID_PARAMS, f"the prompt {prompt.name!r} {problem}")
        messages = await _run(self._fill_in(prompt, arguments), f"the prompt {prompt.name!r}")
        return _result(types.GetPromptResult, {"description": prompt.description, "messages": messages})

    async def _fill_in(self, prompt: Prompt, arguments: Mapping[str, str]) -> list[dict[str, Any]]:
        return format_messages(await run_served(prompt, arguments))

    async def complete(self, _: _Context, params: types.CompleteRequestParams) -> types.CompleteResult:
        """Return the choices of an argument that begin like its value."""
        reference = params.ref
        served: Resource | Prompt | None = (
            self._prompts.get(reference.name)
            if isinstance(reference, types.PromptReference)
            else self._resources.get(reference.uri)
        )
        arguments = () if served is None else served.arguments
        choices = [
            choice for argument in arguments if argument.name == params.argument.name for choice in argument.choices
        ]
        values = [choice for choice in choices if choice.lower().startswith(params.argument.value.lower())]
        completion = {"values": values[:_MAX_CHOICES], "total": len(values), "hasMore": len(values) > _MAX_CHOICES}
        return _result(types.CompleteResult, {"completion": completion})


_T = TypeVar("_T")
_R = TypeVar("_R", bound=types.Result)


def _result(kind: type[_R], data: dict[str, Any]) -> _R:
    """Return a result of the protocol; whatever text of programs is in it, it can be sent."""
    return kind.model_validate(without_surrogates(data))


def _by_name(entries: Sequence[tuple[str, _T]]) -> dict[str, _T]:
    for name, count in Counter(name for name, _ in entries).items():
        if count > 1:
            raise ConfigurationError(
                f"{name!r} is served {count} times; give each resource and prompt a name of its own"
            )
    return dict(entries)


def _parse_template(served: Resource) -> UriTemplate:
    try:
        return UriTemplate.parse(served.uri)
    except ValueError as error:
        raise ConfigurationError(f"the address {served.uri!r} is no template: {error}") from error


def _describe_resource(served: Resource) -> dict[str, Any]:
    key = "uriTemplate" if served.is_template else "uri"
    description = {"name": served.name, key: served.uri, "description": served.description or None}
    return {**description, "mimeType": served.media_type or None}


def _describe_prompt(prompt: Prompt) -> dict[str, Any]:
    arguments = [
        {"name": argument.name, "description": argument.description or None, "required": argument.is_required}
        for argument in prompt.arguments
    ]
    return {"name": prompt.name, "description": prompt.description or None, "arguments": arguments}


def _argument_problem(prompt: Prompt, arguments: Mapping[str, str]) -> str:
    """Return what is wrong with the arguments of a prompt; empty when nothing is."""
    known = {argument.name: argument for argument in prompt.arguments}
    for name, value in arguments.items():
        if name not in known:
            return f"has no argument {name!r}{suggest(name, known)}"
        if known[name].choices and value not in known[name].choices:
            return f"needs one of {', '.join(known[name].choices)} as {name!r}"
    missing = [name for name, argument in known.items() if argument.is_required and name not in arguments]
    return f"needs the argument {missing[0]!r}" if missing else ""


async def _run(work: Awaitable[_T], subject: str) -> _T:
    """Wait for a function of a program; its error becomes one of the protocol, and is logged."""
    try:
        async with asyncio.timeout(_RUN_SECONDS):
            return await work
    except TimeoutError:
        raise MCPError(types.INTERNAL_ERROR, f"{subject} took longer than {_RUN_SECONDS:g} seconds") from None
    except Exception as error:
        _LOG.exception("%s has failed", subject)
        reason = without_surrogates(f"{type(error).__name__}: {error}")
        raise MCPError(types.INTERNAL_ERROR, f"{subject} has failed: {reason}") from error


def _describe(tool: ServedTool) -> dict[str, Any]:
    return {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": {"type": "object", **thaw(tool.parameters)},
        "annotations": format_effect(tool.effect),
    }


async def _call(
    tool: ServedTool, arguments: Mapping[str, Any], context: ServerRequestContext[Any, Any]
) -> types.CallToolResult:
    updates: asyncio.Queue[Mapping[str, Any] | None] = asyncio.Queue()
    reporting = asyncio.create_task(_report_progress(updates, context))
    try:
        result = await _use(tool, arguments, updates.put_nowait)
        # A client drops progress that arrives after the response, so all of it is sent before.
        updates.put_nowait(None)
        await reporting
        return result
    finally:
        reporting.cancel()


async def _use(tool: ServedTool, arguments: Mapping[str, Any], report: ProgressCallback) -> types.CallToolResult:
    try:
        result = await tool.call(arguments, lambda update: report(without_surrogates(update)))
    except ToolError as error:
        # Errors of tools are results for the model of the client; only protocol errors are JSON-RPC errors.
        return _result(types.CallToolResult, {"content": [{"type": "text", "text": str(error)}], "isError": True})
    response: dict[str, Any] = {"content": format_blocks(result)}
    # The protocol allows only objects as structured content.
    if isinstance(result.value, Mapping):
        response["structuredContent"] = thaw(result.value)
    if meta := format_label(result.label):
        response["_meta"] = meta
    return _result(types.CallToolResult, response)


async def _report_progress(
    updates: asyncio.Queue[Mapping[str, Any] | None], context: ServerRequestContext[Any, Any]
) -> None:
    # Progress is reported by callbacks, which cannot await; this task sends it.
    while (update := await updates.get()) is not None:
        await context.session.report_progress(update["progress"], update.get("total"), update.get("message"))


# --- standard input and output ----------------------------------------------------------------------------------


@contextmanager
def _input_lines() -> Iterator[AsyncIterator[str]]:
    """Yield the lines of the standard input, which is empty for all other code in the meantime.

    A daemon thread reads them: waiting for a thread of the default executor would keep the process from ending by Ctrl-C
    until the next line arrives.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    with _replaced(0, null) as descriptor:
        os.close(null)
        queue: asyncio.Queue[str] = asyncio.Queue(_MAX_QUEUED_LINES)
        arguments = (descriptor, queue, asyncio.get_running_loop())
        Thread(target=_read_lines, args=arguments, name="standard input", daemon=True).start()
        yield _iterate(queue)


@contextmanager
def _open_output() -> Iterator[_Output]:
    """Yield the standard output; what other code writes there in the meantime goes to the standard error."""
    with _replaced(1, 2) as descriptor:
        yield _Output(descriptor)


@contextmanager
def _replaced(descriptor: int, replacement: int) -> Iterator[int]:
    """Let a descriptor be another one for a time; yield a copy of it, which stays open for a thread that still uses it afterwards."""
    copy = os.dup(descriptor)
    os.dup2(replacement, descriptor)
    try:
        yield copy
    finally:
        os.dup2(copy, descriptor)


@frozen
class _Output:
    """Writes to a descriptor, without a buffer: what a client no longer reads would be written again when the process ends."""

    descriptor: int

    async def write(self, text: str) -> None:
        """Write a text as a whole.

        Raises:
            BrokenPipeError: the client has closed the output.
        """
        await anyio.to_thread.run_sync(self._write, text.encode())

    async def flush(self) -> None:
        """Do nothing."""

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self.descriptor, rest) :]


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
