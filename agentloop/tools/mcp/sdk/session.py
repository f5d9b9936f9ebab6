"""A session with a server: its answers as values of ours, its errors as errors of ours."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    Implementation,
    ListPromptsResult,
    ListResourcesResult,
    ToolListChangedNotification,
)

from agentloop.errors import ToolFailed
from agentloop.tools.mcp.content import effect_of, error_text, prompt_of, resource_of, result_of
from agentloop.tools.mcp.lost import SENDING, ConnectionLost, Ending, Sending
from agentloop.tools.mcp.offers import OfferedTool, Progress
from agentloop.tools.mcp.sdk.callbacks import elicitation, logged, sampling
from agentloop.tools.mcp.sdk.http_streams import http_streams
from agentloop.tools.mcp.sdk.sifting import sifted
from agentloop.tools.mcp.sdk.stdio_streams import stdio_streams
from agentloop.tools.mcp.server_session import ServerSession, SessionSettings
from agentloop.tools.mcp.servers import StdioServer
from agentloop.values.tool_result import ToolResult
from agentloop.values.tool_spec import Effect


class McpSession(ServerSession):
    """A session over the SDK's client."""

    def __init__(self, name: str, client: Client, ending: Ending) -> None:
        self.ending = ending
        self._name = name
        self._client = client

    @property
    def protocol(self) -> str:
        """The version of the protocol that is spoken."""
        return self._client.protocol_version

    @property
    def tells_changes(self) -> bool:
        """Whether the server says when its tools have changed."""
        tools = self._client.server_capabilities.tools
        return tools is not None and bool(tools.list_changed)

    async def tools(self, cursor: str | None) -> tuple[list[OfferedTool], str | None]:
        """Return a page of its tools, and what the next one is asked for by; None after the last."""
        if self._client.server_capabilities.tools is None and not cursor:
            return [], None
        with self._translated(Sending()):
            page = await self._client.list_tools(cursor=cursor)
        return [_offered(tool.model_dump(by_alias=True, exclude_none=True)) for tool in page.tools], page.next_cursor

    async def call(self, name: str, arguments: Mapping[str, Any], progress: Progress, sending: Sending) -> ToolResult:
        """Call a tool."""
        report = progress

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            told = {"progress": progress, "total": total, "message": message}
            report({key: value for key, value in told.items() if value is not None})

        with self._translated(sending):
            answer = await self._client.call_tool(name, dict(arguments), progress_callback=on_progress)
        told = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        if answer.is_error:
            raise ToolFailed(error_text(told))
        return result_of(told)

    async def resources(self, cursor: str | None, sending: Sending) -> ToolResult:
        """Return a page of its resources."""
        with self._translated(sending):
            page = await self._client.list_resources(cursor=cursor)
        return _page(page, "resources")

    async def resource(self, uri: str, sending: Sending) -> ToolResult:
        """Read one of its resources."""
        with self._translated(sending):
            answer = await self._client.read_resource(uri)
        return resource_of(answer.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def prompts(self, cursor: str | None, sending: Sending) -> ToolResult:
        """Return a page of its prompts."""
        with self._translated(sending):
            page = await self._client.list_prompts(cursor=cursor)
        return _page(page, "prompts")

    async def prompt(self, name: str, arguments: Mapping[str, str], sending: Sending) -> ToolResult:
        """Return one of its prompts, filled in."""
        with self._translated(sending):
            answer = await self._client.get_prompt(name, dict(arguments))
        return prompt_of(answer.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yield when its tools have changed, as servers since 2026-07-28 tell it; ends when they do not."""
        try:
            async with self._client.listen(tools_list_changed=True) as events:
                yield  # whatever has changed before it began to tell
                async for _ in events:
                    yield
        except (ListenNotSupportedError, MCPError, RuntimeError):
            return

    @contextmanager
    def _translated(self, sending: Sending) -> Iterator[None]:
        token = SENDING.set(sending)
        try:
            yield
        except MCPError as error:
            raise self._of_protocol(error, sending) from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost(self._lost("the connection was closed")) from error
        except (ValueError, RuntimeError, ExceptionGroup) as error:  # an answer that the SDK cannot make sense of
            raise ToolFailed(
                f"the MCP server {self._name!r} gave an answer that cannot be used: {_short(error)}"
            ) from error
        finally:
            SENDING.reset(token)

    def _of_protocol(self, error: MCPError, sending: Sending) -> Exception:
        if sending.refused and error.code not in _LOOKED_AT:
            return ConnectionLost(self._lost(f"it does not know the session any more: {_short(error)}"))
        if sending.lost:
            return ConnectionLost(sending.lost)
        gone = sending.over or self.ending.ended.is_set() or error.message == _CLOSED
        if error.code == CONNECTION_CLOSED and gone:  # servers use this code too, for errors of any kind
            return ConnectionLost(self._lost(error.message))
        return ToolFailed(f"the MCP server {self._name!r} refused: {_short(error)} (code {error.code})")

    def _lost(self, reason: str) -> str:
        self.ending.end(reason)
        return self.ending.reason


@asynccontextmanager
async def opened(settings: SessionSettings, on_changed: Callable[[], None]) -> AsyncIterator[McpSession]:
    """Start a server or connect with it, and agree on a version of the protocol; everything is closed at the end.

    Args:
        settings: how.
        on_changed: is called when the server's tools have changed, as servers before 2026-07-28 tell it.

    Raises:
        ConfigurationError: when it cannot be started as it is set up.
        Exception: whatever else goes wrong on the way.
    """

    async def on_message(message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            on_changed()

    ending = Ending()
    server, longest = settings.server, settings.longest
    transport = (
        stdio_streams(settings.name, server, longest, ending)
        if isinstance(server, StdioServer)
        else http_streams(server, longest, ending)
    )
    client = Client(
        sifted(settings.name, transport),
        cache=None,
        client_info=Implementation(name="agentloop", version=_version()),
        message_handler=on_message,
        logging_callback=logged(settings.name),
        elicitation_callback=elicitation(settings.on_elicitation),
        sampling_callback=sampling(settings.on_sampling),
    )
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(client)
        except (MCPError, ExceptionGroup) as error:
            raise _not_opened(error, ending) from error
        yield McpSession(settings.name, client, ending)


def _not_opened(error: Exception, ending: Ending) -> Exception:
    """Return what says why a server could not be agreed with, as far as that is known."""
    cause: BaseException = error
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if ending.ended.is_set():
        return ConnectionLost(ending.reason, ending.said)
    if isinstance(cause, MCPError):
        told = _short(cause)
        return ConnectionLost(ending.status if told in ending.status else f"{ending.status or 'it refused'}: {told}")
    return error


def _offered(tool: Mapping[str, Any]) -> OfferedTool:
    annotations = tool.get("annotations")
    effect = effect_of(annotations if isinstance(annotations, Mapping) else None)
    description = tool.get("description") or tool.get("title") or ""
    return OfferedTool(tool["name"], description, tool["inputSchema"], Effect(effect))


def _version() -> str:
    try:
        return version("agentloop")
    except PackageNotFoundError:  # run from its sources
        return "0"


def _page(page: ListResourcesResult | ListPromptsResult, what: str) -> ToolResult:
    told = page.model_dump(by_alias=True, mode="json", exclude_none=True)
    return ToolResult({key: told[key] for key in (what, "nextCursor") if key in told})


def _short(error: BaseException) -> str:
    told = str(error)
    return told if len(told) <= _LONGEST_TOLD else f"{told[:_LONGEST_TOLD]}…"


_LONGEST_TOLD = 500
_CLOSED = "Connection closed"
_LOOKED_AT = frozenset({INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR})
"""Errors of a server that has looked at a request, and so knows the session."""
