"""Sessions over the SDK's client: its responses become our values, and its errors our errors."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.client.session import ElicitationFnT, LoggingFnT, SamplingFnT
from mcp.shared.message import SessionMessage

from agentloop import __version__
from agentloop.errors import ToolFailed
from agentloop.mcp.answers import describe_error, format_notes, take_rest, with_notes
from agentloop.mcp.content import (
    parse_effect,
    parse_error,
    parse_prompt,
    parse_resource,
    parse_result,
    without_surrogates,
)
from agentloop.mcp.sdk.answers import Answers, WatchedStream
from agentloop.mcp.sdk.names import (
    Client,
    ListenNotSupportedError,
    MCPError,
    ProgressFnT,
    ReadStream,
    TaskExtension,
    TaskFailed,
    TransportStreams,
    content_of,
    structured_content,
    types,
)
from agentloop.mcp.sdk.transports import http_streams, stdio_streams
from agentloop.mcp.servers import StdioServer
from agentloop.mcp.session import (
    CURRENT_PROGRESS,
    CURRENT_REQUEST,
    ConnectionLost,
    ConnectionStatus,
    LimitPause,
    ProgressCallback,
    RemoteTool,
    RequestHandler,
    RequestStatus,
    ServerSession,
    SessionSettings,
    TaskAnswer,
)
from agentloop.values.json import has_more_entries
from agentloop.values.tool_calls import ToolResult

_LOG = logging.getLogger("agentloop.mcp")
_SERVER_LOG = logging.getLogger("agentloop.mcp.server")
_MAX_LOGGED = 2_000
_MAX_SHOWN = 500
_MAX_ANSWER = 2_000
_CLOSED_MESSAGE = "Connection closed"
_NO_MESSAGE = "Server returned an error response"
"""The SDK's words for an HTTP error without a message of the protocol."""
_DEFINITION = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_PROCESSED = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND, types.PARSE_ERROR})
"""Errors of a server that has looked at a request, and so knows the session."""


@asynccontextmanager
async def open_session(
    settings: SessionSettings, on_tools_changed: Callable[[], None], pause: LimitPause
) -> AsyncIterator[McpSession]:
    """Start a server or connect to it, and yield an initialized session; everything is closed at the end.

    Args:
        settings: the settings of the session.
        on_tools_changed: called when the server's tools have changed, for servers before 2026-07-28.
        pause: suspends the limits of time while a person is asked for authorization.

    Raises:
        ConfigurationError: when the server cannot be started with its settings.
        Exception: any other error on the way.
    """

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_tools_changed()

    status = ConnectionStatus()
    server, max_message_bytes = settings.server, settings.max_message_bytes
    transport = (
        stdio_streams(settings.name, server, max_message_bytes, status)
        if isinstance(server, StdioServer)
        else http_streams(settings.name, server, max_message_bytes, status, pause)
    )
    tasks, answers = TaskExtension(_task_answer(settings)), Answers()
    client = Client(
        _filter_messages(settings.name, transport, answers),
        # Tools are listed when an execution begins, and a cached list could be outdated.
        cache=None,
        client_info=types.Implementation(name="agentloop", version=__version__),
        message_handler=on_message,
        logging_callback=_log_callback(settings.name),
        elicitation_callback=_elicitation_callback(settings.on_elicitation),
        sampling_callback=_sampling_callback(settings.on_sampling),
        extensions=[tasks],
    )
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(client)
        except (MCPError, ExceptionGroup) as error:
            raise _connect_error(error, status) from error
        yield McpSession(settings.name, client, status, tasks, answers)


def _connect_error(error: Exception, status: ConnectionStatus) -> Exception:
    """Return the most specific reason why a session could not be initialized."""
    cause: BaseException = error
    # The task groups of the SDK wrap each error in a group.
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    if status.closed.is_set():
        return status.lost()
    if isinstance(cause, MCPError):
        message, http_error = _shorten(cause), status.http_error
        return ConnectionLost(http_error if message in http_error else f"{http_error or 'it refused'}: {message}")
    return error


class McpSession(ServerSession):
    """A session over the SDK's client.

    Args:
        name: the name of the server, for messages.
        client: the client, initialized.
        status: the state of the connection.
        tasks: waits for calls that have become tasks.
        answers: the answers to calls.
    """

    def __init__(
        self, name: str, client: Client, status: ConnectionStatus, tasks: TaskExtension, answers: Answers
    ) -> None:
        self.status = status
        self._answers = answers
        self._tasks = tasks
        self._name = name
        self._client = client

    @property
    def protocol_version(self) -> str:
        """The negotiated version of the protocol."""
        return self._client.protocol_version

    @property
    def announces_tool_changes(self) -> bool:
        """Whether the server announces changes of its tools."""
        tools = self._client.server_capabilities.tools
        return tools is not None and bool(tools.model_dump(by_alias=True).get("listChanged"))

    async def list_tools(self, cursor: str | None) -> tuple[list[RemoteTool], str | None]:
        """Return a page of the server's tools, and the cursor of the next page; None after the last."""
        # A server without tools may reject the request, which is no error here.
        if self._client.server_capabilities.tools is None and not cursor:
            return [], None
        with self._translate_errors(RequestStatus()):
            page = await self._client.list_tools(cursor=cursor)
        cursor_after = page.model_dump(by_alias=True, exclude={"tools"}).get("nextCursor")
        tools = await asyncio.to_thread(lambda: list(_remote_tools(self._name, page.tools, self._answers)))
        return tools, cursor_after

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        """Call a tool."""
        report = progress

        # The SDK passes the first argument by this name.
        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            update = {"progress": progress, "total": total, "message": message}
            report({key: value for key, value in update.items() if value is not None})

        token = CURRENT_PROGRESS.set(progress)
        try:
            with self._translate_errors(status):
                result = await self._call_or_resume(name, arguments, on_progress, status)
        finally:
            CURRENT_PROGRESS.reset(token)
        if self._answers.must_compile(name) or has_more_entries(structured_content(result), _MANY_ENTRIES):
            return await asyncio.to_thread(_read_result, name, result, self._answers)
        return _read_result(name, result, self._answers)

    async def _call_or_resume(
        self, name: str, arguments: Mapping[str, Any], on_progress: ProgressFnT, status: RequestStatus
    ) -> types.CallToolResult:
        """Call a tool, or wait for the task that a call has become before the connection was lost."""
        if not status.task:
            written = without_surrogates(dict(arguments))
            return await self._client.call_tool(name, written, progress_callback=on_progress)
        status.sent = True
        try:
            return await self._tasks.wait(self._client.session, status.task)
        except TaskFailed:
            raise
        except MCPError as error:
            if error.code not in {types.INVALID_PARAMS, types.METHOD_NOT_FOUND}:
                raise
            status.task = ""
            raise ConnectionLost("it does not know the task of the call any more") from error

    async def list_resources(self, cursor: str | None, status: RequestStatus) -> ToolResult:
        """Return a page of the server's resources."""
        with self._translate_errors(status):
            page = await self._client.list_resources(cursor=cursor)
        return _page_result(page, "resources")

    async def read_resource(self, uri: str, status: RequestStatus) -> ToolResult:
        """Read a resource."""
        with self._translate_errors(status):
            result = await self._client.read_resource(without_surrogates(uri))
        return parse_resource(result.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def list_prompts(self, cursor: str | None, status: RequestStatus) -> ToolResult:
        """Return a page of the server's prompts."""
        with self._translate_errors(status):
            page = await self._client.list_prompts(cursor=cursor)
        return _page_result(page, "prompts")

    async def get_prompt(self, name: str, arguments: Mapping[str, str], status: RequestStatus) -> ToolResult:
        """Return a prompt, filled in."""
        with self._translate_errors(status):
            result = await self._client.get_prompt(without_surrogates(name), without_surrogates(dict(arguments)))
        return parse_prompt(result.model_dump(by_alias=True, mode="json", exclude_none=True))

    async def tool_changes(self) -> AsyncGenerator[None, None]:
        """Yield after each change of the server's tools, for servers since 2026-07-28; ends at once for older ones."""
        try:
            async with self._client.listen(tools_list_changed=True) as events:
                yield  # the tools may have changed before the subscription began
                async for _ in events:
                    yield
        except (ListenNotSupportedError, MCPError, RuntimeError):
            return

    @contextmanager
    def _translate_errors(self, status: RequestStatus) -> Iterator[None]:
        token = CURRENT_REQUEST.set(status)
        try:
            yield
        except MCPError as error:
            raise self._translate(error, status) from error
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            raise ConnectionLost(self._close("the connection was closed")) from error
        except (ValueError, RuntimeError, ExceptionGroup) as error:  # a response that the SDK cannot parse
            raise self._unusable(error) from error
        finally:
            CURRENT_REQUEST.reset(token)

    def _translate(self, error: MCPError, status: RequestStatus) -> Exception:
        # A restarted server answers 400 or 404 to the old session, with different errors in each SDK.
        if status.rejected and error.code not in _PROCESSED:
            return ConnectionLost(self._close(f"it does not know the session any more: {_shorten(error)}"))
        if status.failure:
            return ConnectionLost(status.failure)
        is_gone = status.stream_ended or self.status.closed.is_set() or error.message == _CLOSED_MESSAGE
        # Servers use this code for other errors too, so the code alone does not mean a lost connection.
        if error.code == types.CONNECTION_CLOSED and is_gone:
            return ConnectionLost(self._close(error.message))
        if status.http_error and error.message == _NO_MESSAGE:
            return ToolFailed(f"the MCP server {self._name!r} refused: {status.http_error}")
        reason = describe_error(error.message, getattr(error.error, "data", None), _MAX_ANSWER)
        return ToolFailed(f"the MCP server {self._name!r} refused: {reason} (code {error.code})")

    def _unusable(self, error: Exception) -> ToolFailed:
        return ToolFailed(f"the MCP server {self._name!r} gave an answer that cannot be used: {_shorten(error)}")

    def _close(self, reason: str) -> str:
        """Mark the connection as closed; return the first reason."""
        self.status.close(reason)
        return self.status.reason


_MANY_ENTRIES = 5_000
"""The entries of a result from which on it is read in a thread."""


def _read_result(name: str, result: types.CallToolResult, answers: Answers) -> ToolResult:
    """Return the result in an answer, with what is wrong with its form beside it.

    Raises:
        ToolFailed: the tool reports an error.
    """
    response = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    # As it was sent: pydantic writes NaN as null.
    structured = structured_content(result)
    if structured is not None:
        response["structuredContent"] = structured
    answer, notes = take_rest(response)
    if answer.get("isError"):
        raise ToolFailed("\n".join(filter(None, [parse_error(answer), format_notes(notes)])))
    mismatch = answers.find_mismatch(name, answer)
    return with_notes(parse_result(answer), [*notes, mismatch] if mismatch else notes)


def _remote_tools(server: str, tools: Iterable[types.Tool], answers: Answers) -> Iterator[RemoteTool]:
    """Yield the tools of a page; those that cannot be read, such as one with an infinite number in its schema, are logged."""
    for tool in tools:
        try:
            yield _remote_tool(
                {**tool.model_dump(by_alias=True, exclude_none=True), **_output_schema(answers, tool.name)}
            )
        except Exception as error:  # noqa: BLE001  # whatever is wrong with one tool, the others are offered
            _LOG.warning(
                "the tool %.100r of the MCP server %s is left out: its definition cannot be read: %s",
                tool.name,
                server,
                _shorten(error),
            )


def _output_schema(answers: Answers, name: str) -> dict[str, Any]:
    schema = answers.output_schema(name)
    return {} if schema is None else {"outputSchema": schema}


def _remote_tool(tool: Mapping[str, Any]) -> RemoteTool:
    annotations = tool.get("annotations")
    effect = parse_effect(annotations if isinstance(annotations, Mapping) else None)
    description = tool.get("description") or tool.get("title") or ""
    # Sorted: the order of members is no change of a definition.
    definition = json.dumps([tool.get(part) for part in _DEFINITION], sort_keys=True).encode()
    digest = hashlib.sha256(definition).hexdigest()
    return RemoteTool(tool["name"], description, tool["inputSchema"], effect, digest, len(definition))


def _page_result(page: types.ListResourcesResult | types.ListPromptsResult, key: str) -> ToolResult:
    response = page.model_dump(by_alias=True, mode="json", exclude_none=True)
    return ToolResult({name: response[name] for name in (key, "nextCursor") if name in response})


def _shorten(error: BaseException) -> str:
    message = str(error)
    return message if len(message) <= _MAX_SHOWN else f"{message[:_MAX_SHOWN]}…"


# --- requests of servers ----------------------------------------------------------------------------------------


def _elicitation_callback(handler: RequestHandler | None) -> ElicitationFnT | None:
    """Return the SDK's callback for questions to the user; None to declare that there is no support."""
    if handler is None:
        return None

    async def respond(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:  # noqa: ARG001  # the SDK's signature
        try:
            content = await _ask(handler, params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if content is None:
                return types.ElicitResult(action="decline")
            return types.ElicitResult(action="accept", content=content)
        except Exception:  # noqa: BLE001  # any error of the handler becomes an error response, and the call continues
            return _handler_failed("on_elicitation")

    return respond


def _sampling_callback(handler: RequestHandler | None) -> SamplingFnT | None:
    """Return the SDK's callback for requests to a model; None to declare that there is no support."""
    if handler is None:
        return None

    async def respond(
        context: Any,  # noqa: ARG001  # the SDK's signature
        params: types.CreateMessageRequestParams,
    ) -> types.CreateMessageResult | types.ErrorData:
        try:
            message = await _ask(handler, params.model_dump(by_alias=True, mode="json", exclude_none=True))
            if message is None:
                return types.ErrorData(code=types.INVALID_REQUEST, message="the request was declined")
            return types.CreateMessageResult.model_validate(message)
        except Exception:  # noqa: BLE001  # any error of the handler becomes an error response, and the call continues
            return _handler_failed("on_sampling")

    return respond


def _task_answer(settings: SessionSettings) -> TaskAnswer:
    """Return the function that answers questions of tasks, by the same handlers as those of calls."""
    handlers = {"elicitation/create": settings.on_elicitation, "sampling/createMessage": settings.on_sampling}

    async def answer(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        handler, content = handlers.get(method), None
        if handler is not None:
            try:
                content = await _ask(handler, params)
            except Exception as error:
                problem = _handler_failed("on_elicitation" if method == "elicitation/create" else "on_sampling")
                raise MCPError(problem.code, problem.message) from error
        if method == "elicitation/create":
            return {"action": "decline"} if content is None else {"action": "accept", "content": content}
        if content is None:
            raise MCPError(types.INVALID_REQUEST, f"the task asks for {method}, which was declined")
        return content

    return answer


async def _ask(handler: RequestHandler, params: Mapping[str, Any]) -> dict[str, Any] | None:
    content = await handler(params)
    answer: dict[str, Any] | None = None if content is None else without_surrogates(dict(content))
    return answer


def _handler_failed(name: str) -> types.ErrorData:
    """Log the current error, which the server must not see, and return the error for the server."""
    _SERVER_LOG.exception("%s has failed; the server is told that there is no answer", name)
    return types.ErrorData(code=types.INTERNAL_ERROR, message=f"the request could not be answered: {name} has failed")


def _log_callback(name: str) -> LoggingFnT:
    async def log(params: types.LoggingMessageNotificationParams) -> None:
        _SERVER_LOG.info("%s: %s: %s", name, params.level, str(params.data)[:_MAX_LOGGED])

    return log


# --- messages that the SDK would refuse -----------------------------------------------------------------------------


@asynccontextmanager
async def _filter_messages(
    name: str, transport: AbstractAsyncContextManager[TransportStreams], answers: Answers
) -> AsyncIterator[TransportStreams]:
    """Remove invalid tools from the messages of a transport, and read answers: the SDK refuses a whole message for one part.

    Args:
        name: the name of the server, for the log.
        transport: the transport.
        answers: reads the answers to calls.
    """
    async with transport as (incoming, outgoing):
        yield _MessageFilter(name, incoming, answers), WatchedStream(answers, outgoing)


class _MessageFilter:
    """A stream of messages with valid tools only, and answers that the SDK reads."""

    def __init__(self, name: str, stream: ReadStream[SessionMessage | Exception], answers: Answers) -> None:
        self._name = name
        self._stream = stream
        self._answers = answers

    @property
    def last_context(self) -> Context | None:
        """The context of the last message's sender, which the SDK reads."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._filter(await self._stream.receive())

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._filter(await self._stream.__anext__())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    def _filter(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        content = content_of(item.message) if isinstance(item, SessionMessage) else None
        if isinstance(content, types.JSONRPCResponse):
            tools = content.result.get("tools")
            if isinstance(tools, list):
                found = map(self._answers.take_output_schema, map(_with_schema_type, tools))
                content.result["tools"] = [tool for tool in found if self._is_valid(tool)]
            self._answers.read(content)
        return item

    def _is_valid(self, tool: object) -> bool:
        try:
            types.Tool.model_validate(tool, by_name=False)
            reason = _schema_problem(tool)
        except ValueError as error:
            reason = "; ".join(str(error).splitlines()[1:3])
        if reason:
            name = tool.get("name") if isinstance(tool, Mapping) else tool
            _LOG.warning("the tool %.100r of the MCP server %s is left out: %s", name, self._name, reason)
        return not reason


def _schema_problem(tool: Any) -> str:
    """Return why the SDK would refuse the whole list because of the schema of this tool; empty if it accepts it."""
    schema = tool["inputSchema"]
    if not isinstance(schema.get("properties") or {}, Mapping):
        return "`properties` in its schema must be an object"
    return "" if isinstance(schema.get("required") or [], list) else "`required` in its schema must be a list"


def _with_schema_type(tool: Any) -> Any:
    """Return a tool with a schema of type object, when the schema or only its type is missing; null and `[]` count as missing."""
    if not isinstance(tool, Mapping):
        return tool
    schema = tool.get("inputSchema")
    if schema is None or schema == []:
        return {**tool, "inputSchema": {"type": "object"}}
    if isinstance(schema, Mapping) and schema.get("properties") == []:  # how PHP writes an empty object
        schema = {**schema, "properties": {}}
        tool = {**tool, "inputSchema": schema}
    if not isinstance(schema, Mapping) or schema.get("type") not in (None, ["object"]):
        return tool
    return {**tool, "inputSchema": {"type": "object", **{key: value for key, value in schema.items() if key != "type"}}}
