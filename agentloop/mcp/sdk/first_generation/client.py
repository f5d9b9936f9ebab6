"""The client's side of generation 1: its messages, sessions, authorization and streamable HTTP, as generation 2 has them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeAlias, TypeVar

import anyio
import anyio.abc
import httpx
from attrs import frozen
from mcp import ClientSession
from mcp.client.auth import OAuthClientProvider as SdkProvider
from mcp.client.auth import OAuthFlowError
from mcp.client.auth.utils import issuers_match
from mcp.client.session import ElicitationFnT, LoggingFnT, SamplingFnT
from mcp.client.streamable_http import RequestContext, StreamableHTTPTransport
from mcp.shared._httpx_utils import redirect_location, stream_within_origin
from mcp.shared.message import SessionMessage
from mcp.shared.session import ProgressFnT, RequestResponder
from mcp.types import (
    CONNECTION_CLOSED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    CallToolResult,
    CancelledNotification,
    CancelledNotificationParams,
    ClientNotification,
    ClientRequest,
    ClientResult,
    ErrorData,
    GetPromptResult,
    Implementation,
    InitializeRequest,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    ListPromptsResult,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceResult,
    RequestId,
    ServerCapabilities,
    ServerNotification,
    ServerRequest,
)
from pydantic import AnyUrl, BaseModel

from agentloop.mcp.session import CURRENT_REQUEST, RequestStatus

if TYPE_CHECKING:  # types are checked beside generation 2, which has no such class
    McpError = Exception
else:
    from mcp import McpError

ReadStream: TypeAlias = Any
TransportStreams: TypeAlias = tuple[Any, Any]

_LOG = logging.getLogger("agentloop.mcp")
_CANCEL_SECONDS = 1.0
_NOT_FOUND = 404
_ACCEPTED = 202
_R = TypeVar("_R", bound=BaseModel)


# --- messages ---------------------------------------------------------------------------------------------------------


class MCPError(McpError):
    """An error of the protocol.

    Args:
        code: its number.
        message: what is wrong.
        data: more about it, as JSON.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(ErrorData(code=code, message=message, data=data))

    @property
    def code(self) -> int:
        """The number of the error."""
        return self.error.code

    @property
    def message(self) -> str:
        """What is wrong."""
        return self.error.message


def read_message(data: bytes) -> JSONRPCMessage:
    """Parse a message.

    Raises:
        ValueError: the data is not a message.
    """
    return JSONRPCMessage.model_validate_json(data)


def as_message(content: JSONRPCError) -> JSONRPCMessage:
    """Return a message with this content."""
    return JSONRPCMessage(content)


def content_of(message: JSONRPCMessage) -> object:
    """Return the content of a message."""
    return message.root


def structured_content(result: CallToolResult) -> object:
    """Return the structured content of a result; None when it has none."""
    return result.structuredContent


# --- sessions ---------------------------------------------------------------------------------------------------------


class ListenNotSupportedError(Exception):
    """A session of this generation has no subscriptions."""


class TaskFailed(MCPError):
    """A task has failed; no call becomes a task here."""


class TaskExtension:
    """Declares no support for tasks, which this generation does not know."""

    def __init__(self, answer: Any) -> None:
        del answer

    async def wait(self, session: object, task: str) -> CallToolResult:
        """Refuse to wait for a task, which a call became in a process with generation 2.

        Raises:
            MCPError: always.
        """
        del session
        raise MCPError(METHOD_NOT_FOUND, f"the task {task} can be asked for with mcp 2.3 or newer only")


class _MessageHandler(Protocol):
    async def __call__(self, message: object) -> None: ...


class Client:
    """A client with the methods of that of generation 2 that are used here.

    Args:
        transport: yields the streams of messages.
        client_info: the name and version of this program.
        message_handler: receives the notifications of the server.
        logging_callback: receives its log messages.
        elicitation_callback: answers its questions to the user; None declares that there is no support.
        sampling_callback: answers its requests to a model; None declares that there is no support.
        settings: those of generation 2 that mean nothing here.
    """

    server_capabilities: ServerCapabilities
    protocol_version: str
    session: _Session

    def __init__(
        self,
        transport: AbstractAsyncContextManager[TransportStreams],
        *,
        client_info: Implementation,
        message_handler: _MessageHandler,
        logging_callback: LoggingFnT,
        elicitation_callback: ElicitationFnT | None,
        sampling_callback: SamplingFnT | None,
        **settings: object,
    ) -> None:
        del settings
        self._transport = transport
        self._session_settings: Mapping[str, Any] = {
            "client_info": client_info,
            "message_handler": _unwrapping(message_handler),
            "logging_callback": logging_callback,
            "elicitation_callback": elicitation_callback,
            "sampling_callback": sampling_callback,
        }
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Open the streams, and initialize a session."""
        async with AsyncExitStack() as stack:
            incoming, outgoing = await stack.enter_async_context(self._transport)
            self.session = await stack.enter_async_context(_Session(incoming, outgoing, **self._session_settings))
            answer = await self.session.initialize()
            self.server_capabilities, self.protocol_version = answer.capabilities, str(answer.protocolVersion)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        """Close the session and the streams."""
        await self._stack.__aexit__(*error)  # type: ignore[arg-type]

    async def list_tools(self, *, cursor: str | None) -> ListToolsResult:
        """Return a page of the server's tools."""
        return await self.session.list_tools(params=_page(cursor))

    async def call_tool(
        self, name: str, arguments: dict[str, Any], *, progress_callback: ProgressFnT
    ) -> CallToolResult:
        """Call a tool."""
        return await self.session.call_tool(name, arguments, progress_callback=progress_callback)

    async def list_resources(self, *, cursor: str | None) -> ListResourcesResult:
        """Return a page of the server's resources."""
        return await self.session.list_resources(params=_page(cursor))

    async def read_resource(self, uri: str) -> ReadResourceResult:
        """Read a resource."""
        return await self.session.read_resource(AnyUrl(uri))

    async def list_prompts(self, *, cursor: str | None) -> ListPromptsResult:
        """Return a page of the server's prompts."""
        return await self.session.list_prompts(params=_page(cursor))

    async def get_prompt(self, name: str, arguments: dict[str, str]) -> GetPromptResult:
        """Return a prompt, filled in."""
        return await self.session.get_prompt(name, arguments)

    @asynccontextmanager
    async def listen(self, *, tools_list_changed: bool) -> AsyncIterator[AsyncIterator[None]]:
        """Refuse to subscribe to changes.

        Raises:
            ListenNotSupportedError: always; the message handler receives the changes.
        """
        del tools_list_changed
        raise ListenNotSupportedError
        yield  # a context manager needs one


def _page(cursor: str | None) -> PaginatedRequestParams | None:
    return None if cursor is None else PaginatedRequestParams(cursor=cursor)


def _unwrapping(handler: _MessageHandler) -> _MessageHandler:
    async def handle(message: object) -> None:
        await handler(message.root if isinstance(message, ServerNotification) else message)

    return handle


class _Session(ClientSession):
    """The SDK's session, with requests that end with it and can be cancelled, and questions that do not delay other messages."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the session, and end the requests that wait, which the SDK would leave waiting."""
        try:
            return await super().__aexit__(kind, error, traceback)
        finally:
            closed = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
            for request, stream in list(self._response_streams.items()):
                with suppress(anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):  # it has ended
                    stream.send_nowait(JSONRPCError(jsonrpc="2.0", id=request, error=closed))

    async def send_request(self, request: ClientRequest, result_type: type[_R], *args: Any, **settings: Any) -> _R:
        """Send a request and return its result; tell the server when it is cancelled.

        Raises:
            MCPError: the server has answered with an error.
        """
        request_id = self._request_id
        try:
            return await super().send_request(request, result_type, *args, **settings)
        except McpError as error:
            raise MCPError(error.error.code, error.error.message, error.error.data) from error
        except asyncio.CancelledError:
            if not isinstance(request.root, InitializeRequest):  # the protocol forbids it
                await self._cancel(request_id)
            raise

    async def _cancel(self, request_id: int) -> None:
        params = CancelledNotificationParams(requestId=request_id, reason="the caller has cancelled it")
        notification = ClientNotification(CancelledNotification(params=params))
        with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
            try:
                await self.send_notification(notification)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                _LOG.debug("the server is away and cannot be told that request %s is cancelled", request_id)

    async def _received_request(self, responder: RequestResponder[ServerRequest, ClientResult]) -> None:
        # The SDK waits for each answer before it reads the next message; a person may take long.
        self._task_group.start_soon(super()._received_request, responder)


# --- authorization ----------------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class AuthorizationCodeResult:
    """What a browser returns with: a code, the state of the question, and the authorization server where it names itself."""

    code: str
    state: str | None = None
    iss: str | None = None


class OAuthClientProvider(SdkProvider):
    """The SDK's provider, which checks who has answered, and keeps what a renewed token leaves out."""

    async def _perform_authorization_code_grant(self) -> tuple[str, str]:
        handler = self.context.callback_handler
        assert handler is not None  # noqa: S101  # every flow with a person has one

        async def checked() -> tuple[str, str | None]:
            answer: AuthorizationCodeResult = await handler()  # type: ignore[assignment]  # as in generation 2
            metadata = self.context.oauth_metadata
            if answer.iss is not None and not (metadata and issuers_match(answer.iss, str(metadata.issuer))):
                raise OAuthFlowError("the answer is from another authorization server")
            return answer.code, answer.state

        self.context.callback_handler = checked
        try:
            return await super()._perform_authorization_code_grant()
        finally:
            self.context.callback_handler = handler

    async def _handle_refresh_response(self, response: httpx.Response) -> bool:
        before = self.context.current_tokens
        is_renewed = await super()._handle_refresh_response(response)
        tokens = self.context.current_tokens
        if is_renewed and before is not None and tokens is not None:
            # RFC 6749, section 6: an answer may leave out what stays the same.
            tokens.scope = tokens.scope or before.scope
            tokens.refresh_token = tokens.refresh_token or before.refresh_token
            await self.context.storage.set_tokens(tokens)
        return is_renewed


# --- streamable HTTP --------------------------------------------------------------------------------------------------


@asynccontextmanager
async def streamable_http_client(
    url: str, *, http_client: httpx.AsyncClient, max_sse_event_size: int | None = None
) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the streams of a server's messages; the session is closed at the end.

    Args:
        url: the address of the server.
        http_client: sends the requests.
        max_sse_event_size: not used: the client bounds what it reads.
    """
    del max_sse_event_size
    incoming_writer, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, outgoing_reader = anyio.create_memory_object_stream[SessionMessage](0)
    transport = _Transport(url)
    async with incoming_writer, incoming, outgoing, outgoing_reader, anyio.create_task_group() as tasks:

        def listen() -> None:
            tasks.start_soon(transport.handle_get_stream, http_client, incoming_writer)

        tasks.start_soon(transport.post_writer, http_client, outgoing_reader, incoming_writer, outgoing, listen, tasks)
        try:
            yield incoming, _Outgoing(outgoing)
        finally:
            if transport.session_id:
                await transport.terminate_session(http_client)
            tasks.cancel_scope.cancel()


@dataclass
class _Sent(SessionMessage):
    """A message with the status of its request, which the transport's task does not have."""

    status: RequestStatus | None = None


class _Outgoing:
    """The stream of messages to the server, which notes the request of each."""

    def __init__(self, stream: anyio.abc.ObjectSendStream[SessionMessage]) -> None:
        self._stream = stream

    async def send(self, item: SessionMessage) -> None:
        """Pass a message on."""
        await self._stream.send(_Sent(item.message, item.metadata, CURRENT_REQUEST.get()))

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


class _Transport(StreamableHTTPTransport):
    """The SDK's transport, where an HTTP error or a response that breaks off ends one request only."""

    async def _handle_post_request(self, ctx: RequestContext) -> None:
        content = ctx.session_message.message.root
        sent = ctx.session_message
        token = CURRENT_REQUEST.set(sent.status if isinstance(sent, _Sent) else None)
        answers = _Answers(ctx.read_stream_writer, content.id if isinstance(content, JSONRPCRequest) else None)
        try:
            await self._post(replace(ctx, read_stream_writer=answers), answers)  # type: ignore[arg-type]  # only `send` is used
            await answers.fail(CONNECTION_CLOSED, "the response ended without an answer")
        finally:
            CURRENT_REQUEST.reset(token)

    async def _post(self, ctx: RequestContext, answers: _Answers) -> None:
        message = ctx.session_message.message
        body = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
        async with stream_within_origin(
            ctx.client, "POST", self.url, json=body, headers=self._prepare_headers()
        ) as response:
            problem = await self._problem(response)
            if problem is not None:
                await answers.fail(problem.code, problem.message, problem.data)
            elif self._is_initialization_request(message):
                self._maybe_extract_session_id_from_response(response)
            if answers.is_expected:
                await self._read(response, ctx, answers)

    async def _read(self, response: httpx.Response, ctx: RequestContext, answers: _Answers) -> None:
        """Read the answer to a request."""
        is_initialization = self._is_initialization_request(ctx.session_message.message)
        kind = response.headers.get("content-type", "").lower()
        if kind.startswith("application/json"):
            await self._handle_json_response(response, ctx.read_stream_writer, is_initialization)
        elif kind.startswith("text/event-stream"):
            await self._handle_sse_response(response, ctx, is_initialization)
        else:
            await answers.fail(INVALID_REQUEST, f"Unexpected content type: {kind}")

    async def _problem(self, response: httpx.Response) -> ErrorData | None:
        """Return why a response has no answer; None when it may have one."""
        location = redirect_location(response)
        if response.status_code == _ACCEPTED:
            return ErrorData(code=INVALID_REQUEST, message="server answered a request with 202 Accepted")
        if location is not None:
            return ErrorData(code=INVALID_REQUEST, message=f"Redirect to {location} not followed")
        return await self._refusal(response) if response.is_error else None

    async def _refusal(self, response: httpx.Response) -> ErrorData:
        """Return the error in the body of a response, or the one that its status stands for."""
        if response.headers.get("content-type", "").lower().startswith("application/json"):
            with suppress(
                httpx.StreamError, ValueError, KeyError, TypeError
            ):  # there is no error of the protocol in it
                return ErrorData.model_validate(json.loads(await response.aread())["error"])
        if response.status_code != _NOT_FOUND:
            return ErrorData(code=INTERNAL_ERROR, message="Server returned an error response")
        if self.session_id is None:
            return ErrorData(code=METHOD_NOT_FOUND, message="Not Found")
        return ErrorData(code=INVALID_REQUEST, message="Session terminated")


class _Answers:
    """The stream of messages from the server, which knows whether a request still waits for its answer.

    Args:
        stream: the stream.
        request: the id of the request; None for a notification, which has no answer.
    """

    def __init__(
        self, stream: anyio.abc.ObjectSendStream[SessionMessage | Exception], request: RequestId | None
    ) -> None:
        self._stream = stream
        self._request = request
        self.is_expected = request is not None

    async def send(self, item: SessionMessage | Exception) -> None:
        """Pass a message on. One that cannot be parsed fails the request, which has no other answer."""
        if isinstance(item, Exception):
            await self.fail(PARSE_ERROR, f"Failed to parse the answer: {item}")
            return
        content = item.message.root
        if self._request is not None and isinstance(content, JSONRPCResponse | JSONRPCError):
            content.id = self._request  # a server may not know it, as when it cannot parse the request
            self.is_expected = False
        await self._stream.send(item)

    async def fail(self, code: int, message: str, data: Any = None) -> None:
        """Answer the request with an error, if it still waits."""
        if self.is_expected and self._request is not None:
            self.is_expected = False
            error = JSONRPCError(
                jsonrpc="2.0", id=self._request, error=ErrorData(code=code, message=message, data=data)
            )
            try:
                await self._stream.send(SessionMessage(JSONRPCMessage(error)))
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                return  # the session has ended, and with it the request
