"""A session with a server: its answers as values of ours, its errors as errors of ours."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context
from importlib.metadata import PackageNotFoundError, version
from types import TracebackType
from typing import Any, Self

import anyio
from mcp import Client, MCPError
from mcp.client._transport import ReadStream, TransportStreams
from mcp.client.session import ElicitationFnT, LoggingFnT, SamplingFnT
from mcp.client.subscriptions import ListenNotSupportedError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    Implementation,
    JSONRPCResponse,
    ListPromptsResult,
    ListResourcesResult,
    LoggingMessageNotificationParams,
    Tool,
    ToolListChangedNotification,
)

from agentloop.errors import ToolFailed
from agentloop.mcp.content import effect_of, error_text, prompt_of, resource_of, result_of
from agentloop.mcp.sdk.http_streams import http_streams
from agentloop.mcp.sdk.stdio import stdio_streams
from agentloop.mcp.servers import StdioServer
from agentloop.mcp.session import (
    SENDING,
    ConnectionLost,
    Ending,
    OfferedTool,
    Progress,
    Reply,
    Sending,
    ServerSession,
    SessionSettings,
)
from agentloop.values.tool_calls import Effect, ToolResult

_LOG = logging.getLogger("agentloop.mcp.server")
_LONGEST_LOGGED = 2_000


def elicitation(reply: Reply | None) -> ElicitationFnT | None:
    """Return what answers questions to the user; None to say that nobody does."""
    if reply is None:
        return None

    async def answer(context: Any, params: ElicitRequestParams) -> ElicitResult | ErrorData:  # noqa: ARG001  # the SDK's signature
        try:
            content = await reply(params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if content is None:
                return ElicitResult(action="decline")
            return ElicitResult(action="accept", content=dict(content))
        except Exception:  # noqa: BLE001  # whatever the program's function raises, the server is told and the call goes on
            return _failed("on_elicitation")

    return answer


def sampling(reply: Reply | None) -> SamplingFnT | None:
    """Return what answers questions to a model; None to say that nobody does."""
    if reply is None:
        return None

    async def answer(context: Any, params: CreateMessageRequestParams) -> CreateMessageResult | ErrorData:  # noqa: ARG001  # the SDK's signature
        try:
            message = await reply(params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if message is None:
                return ErrorData(code=INVALID_REQUEST, message="the request was declined")
            return CreateMessageResult.model_validate(dict(message))
        except Exception:  # noqa: BLE001  # whatever the program's function raises, the server is told and the call goes on
            return _failed("on_sampling")

    return answer


def _failed(function: str) -> ErrorData:
    """Log what was raised, which is not for the server, and return what it is told."""
    _LOG.exception("%s has failed; the server is told that there is no answer", function)
    return ErrorData(code=INTERNAL_ERROR, message=f"the request could not be answered: {function} has failed")


def logged(name: str) -> LoggingFnT:
    """Return what writes a server's messages to the log."""

    async def log(params: LoggingMessageNotificationParams) -> None:
        _LOG.info("%s: %s: %s", name, params.level, str(params.data)[:_LONGEST_LOGGED])

    return log


_LOG = logging.getLogger("agentloop.mcp")


@asynccontextmanager
async def sifted(
    name: str, transport: AbstractAsyncContextManager[TransportStreams]
) -> AsyncIterator[TransportStreams]:
    """Speak over a transport, and leave out of lists of tools what is none.

    Args:
        name: what the server is called in the log.
        transport: what connects with it.
    """
    async with transport as (incoming, outgoing):
        yield _Sifted(name, incoming), outgoing


class _Sifted:
    """The messages of another stream; lists of tools are sifted."""

    def __init__(self, name: str, stream: ReadStream[SessionMessage | Exception]) -> None:
        self._name = name
        self._stream = stream

    @property
    def last_context(self) -> Context | None:
        """What the SDK wants to know of whoever sent the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._one(await self._stream.receive())

    async def aclose(self) -> None:
        """Read no more."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._one(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _one(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(item, SessionMessage) and isinstance(item.message, JSONRPCResponse):
            listed = item.message.result.get("tools")
            if isinstance(listed, list):
                item.message.result["tools"] = [tool for tool in map(_typed, listed) if self._is_tool(tool)]
        return item

    def _is_tool(self, told: object) -> bool:
        try:
            Tool.model_validate(told, by_name=False)
        except ValueError as error:
            named = told.get("name") if isinstance(told, Mapping) else told
            why = "; ".join(str(error).splitlines()[1:3])
            _LOG.warning("the tool %.100r of the MCP server %s is left out: %s", named, self._name, why)
            return False
        return True


def _typed(told: Any) -> Any:
    """Return a tool with the type of its parameters, where nothing but that is missing."""
    schema = told.get("inputSchema") if isinstance(told, Mapping) else None
    if not isinstance(schema, Mapping) or "type" in schema:
        return told
    return {**told, "inputSchema": {"type": "object", **schema}}


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
