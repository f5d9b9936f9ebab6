"""The vocabulary of this room: connections and sessions with servers, and the tools that they list or that we serve."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, TypeAlias

from attrs import define, field, frozen

from agentloop.mcp.servers import Server
from agentloop.tools.validation import SchemaValidator
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.tool_calls import Effect, ToolResult
from agentloop.values.value import Value

ProgressCallback: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Receives the progress of a call: `progress`, and `total` and `message` where they are known."""
RequestHandler: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Answers a request of a server, in the JSON of the protocol; None declines it."""
TaskAnswer: TypeAlias = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""Answers a question of a task: takes the method and the parameters of the request."""
LimitPause: TypeAlias = Callable[[], AbstractContextManager[None]]
"""Suspends the limits of time, as a context manager, while a person is asked."""
ToolHandler: TypeAlias = Callable[[Mapping[str, Any], ProgressCallback], Awaitable[ToolResult]]
"""Runs a served tool with the arguments of a call."""


class ConnectionLost(Exception):  # named for what happened; internal to this room
    """The server cannot be reached, or the connection has ended.

    Args:
        reason: how it ended, as the rest of a sentence about the server: "it …".
        last_output: the last line of the server's standard error. It is for people only: it may contain anything, so it
            is never shown to a model.
        is_final: whether trying again would have the same result.
    """

    def __init__(self, reason: str, last_output: str = "", *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.last_output = last_output
        self.is_final = is_final


@define(eq=False)
class ConnectionStatus:
    """The state of a connection, updated by its transport.

    Attributes:
        closed: set when the connection has ended or should end.
        reason: how it ended, as in "it …".
        last_output: the last line of the server's standard error.
        http_error: the status of the last rejected HTTP request, as in "it …"; empty when it was accepted.
        is_final: whether connecting again would have the same result.
    """

    closed: asyncio.Event = field(factory=asyncio.Event)
    reason: str = ""
    last_output: str = ""
    http_error: str = ""
    is_final: bool = False

    def close(self, reason: str, *, is_final: bool = False) -> None:
        """Mark the connection as closed; the first reason is kept."""
        if not self.closed.is_set():
            self.reason, self.is_final = reason, is_final
            self.closed.set()

    def lost(self) -> ConnectionLost:
        """Return how the connection ended as an error."""
        return ConnectionLost(self.reason, self.last_output, is_final=self.is_final)


@define(eq=False)
class RequestStatus:
    """The state of one request, updated by the transport.

    Attributes:
        sent: whether the server may have received it.
        rejected: whether the server did not process it, since it does not know the session.
        failure: how its response broke off; empty when it did not.
        stream_ended: whether the event stream of its response has ended.
        http_error: the status of its response, as in "it …"; empty when it was accepted.
        task: the id of the task that the server has made of a call; a call that has one is not sent, but waited for.
        on_task: called with that id before the task is waited for; None when nobody needs it.
    """

    sent: bool = False
    rejected: bool = False
    failure: str = ""
    stream_ended: bool = False
    http_error: str = ""
    task: str = ""
    on_task: Callable[[str], Awaitable[None]] | None = None


CURRENT_REQUEST: ContextVar[RequestStatus | None] = ContextVar("agentloop_mcp_request", default=None)
"""The status of the request that is being sent. The SDK calls transports in the context of the sender."""
CURRENT_PROGRESS: ContextVar[ProgressCallback | None] = ContextVar("agentloop_mcp_progress", default=None)
"""Receives the progress of the call that is being made."""


@frozen(eq=False)
class SessionSettings:
    """The settings of sessions with one server.

    Attributes:
        name: the name of the server, for logs and messages.
        server: the command or the address of the server.
        max_message_bytes: maximum size of a message.
        on_elicitation: answers questions to the user; None declines them.
        on_sampling: answers requests to a model; None declines them.
    """

    name: str
    server: Server = field(repr=False)
    max_message_bytes: float
    on_elicitation: RequestHandler | None = None
    on_sampling: RequestHandler | None = None


@frozen(eq=False, repr=False)
class RemoteTool(Value):
    """A tool as its server describes it.

    Attributes:
        name: its name at the server.
        description: its description.
        parameters: the JSON Schema of its arguments: as the server sends it, then in draft 2020-12.
        effect: the effect of a call, by its annotations.
        definition: SHA-256 over its name, descriptions, schemas and annotations, in hexadecimal.
        size: the size of that, in bytes of JSON.
        validator: the validator of its arguments, once its schema was compiled.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect
    definition: str = ""
    size: int = 0
    validator: SchemaValidator | None = field(default=None, eq=False, repr=False)


# The SDK takes longer to import than everything else here, so the implementation is imported with the first connection.
class ServerSession(ABC):
    """An initialized session with a server.

    An implementation keeps these laws, and `McpSessionKit` checks them:

    - Each call has its own answer and its own progress, whichever is answered first (law 9), and is sent once (law 14).
    - The server is told of a call that is cancelled; the call raises that, and others go on (law 34).
    - `RequestStatus.sent` is true before the server can have received a request, so that a call whose connection is lost is in doubt, or
      repeated, as its effect says (law 14).
    - Texts and pictures are those that the server wrote (law 44), and an error has what the server says (law 41).
    - The tools are those that the server has now, each change is told, and so is the end of the connection (law 60).
    - When the session is closed, its process and its tasks have ended (law 19).

    Each request raises `ToolFailed` when the server rejects it or its response violates the protocol, and
    `ConnectionLost` when the connection ended before the response.

    Attributes:
        status: the state of its connection.
    """

    status: ConnectionStatus

    @property
    @abstractmethod
    def protocol_version(self) -> str:
        """The negotiated version of the protocol."""

    @property
    @abstractmethod
    def announces_tool_changes(self) -> bool:
        """Whether the server announces changes of its tools."""

    @abstractmethod
    async def list_tools(self, cursor: str | None) -> tuple[list[RemoteTool], str | None]:
        """Return a page of the server's tools, and the cursor of the next page; None after the last."""

    @abstractmethod
    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        """Call a tool.

        Args:
            name: its name at the server.
            arguments: JSON data.
            progress: receives the progress of the call.
            status: receives the state of the request.
        """

    @abstractmethod
    async def list_resources(self, cursor: str | None, status: RequestStatus) -> ToolResult:
        """Return a page of the server's resources."""

    @abstractmethod
    async def read_resource(self, uri: str, status: RequestStatus) -> ToolResult:
        """Read a resource."""

    @abstractmethod
    async def list_prompts(self, cursor: str | None, status: RequestStatus) -> ToolResult:
        """Return a page of the server's prompts."""

    @abstractmethod
    async def get_prompt(self, name: str, arguments: Mapping[str, str], status: RequestStatus) -> ToolResult:
        """Return a prompt, filled in."""

    @abstractmethod
    def tool_changes(self) -> AsyncGenerator[None, None]:
        """Yield after each change of the server's tools, for servers since 2026-07-28; ends at once for older ones."""
