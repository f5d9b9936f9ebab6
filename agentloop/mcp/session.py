"""A session with a server, as the rest of this room sees it."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Any, TypeAlias

from attrs import define, field, frozen

from agentloop.mcp.servers import Server
from agentloop.values.json import JsonObject, freeze_object
from agentloop.values.tool_calls import Effect, ToolResult
from agentloop.values.value import Value


class ConnectionLost(Exception):  # named for what happened; internal to this room
    """The server cannot be reached, or its connection has ended; the message says how, as in "it …".

    Attributes:
        said: what the server said last about itself, for people: in its own words, so no model is told.
    """

    def __init__(self, reason: str, said: str = "") -> None:
        super().__init__(reason)
        self.said = said


@define(eq=False)
class Sending:
    """What became of a request on its way; noted by the transport.

    Attributes:
        sent: true from when the server may have received it.
        refused: the server did not look at it, since it does not know the session.
        lost: how its answer broke off; empty when it did not.
        over: the events that should have held its answer have come to their end.
    """

    sent: bool = False
    refused: bool = False
    lost: str = ""
    over: bool = False


SENDING: ContextVar[Sending | None] = ContextVar("agentloop_mcp_sending", default=None)
"""The request that is being sent; the SDK hands messages to its transports in the context of who sends them."""


@define(eq=False)
class Ending:
    """The end of a connection.

    Attributes:
        ended: set when it has ended, or should.
        reason: how it came to it, as in "it …".
        said: what the server said last about itself.
        status: how it answered a request that it did not want, as in "it …"; empty when it did not.
    """

    ended: asyncio.Event = field(factory=asyncio.Event)
    reason: str = ""
    said: str = ""
    status: str = ""

    def end(self, reason: str) -> None:
        """Note the end; the first reason stays."""
        if not self.ended.is_set():
            self.reason = reason
            self.ended.set()


@frozen(eq=False, repr=False)
class OfferedTool(Value):
    """A tool as its server describes it.

    Attributes:
        name: its name at the server.
        description: what it does.
        parameters: the JSON Schema of its arguments, as given.
        effect: what its annotations say that it does to the world.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect


Progress: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Takes `progress`, and `total` and `message` where they are told."""
Reply: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Answers what a server asks of us, in the JSON of the protocol; None to decline."""
Call: TypeAlias = Callable[[Mapping[str, Any], Progress], Awaitable[ToolResult]]
"""Runs a tool that we offer."""


@frozen(eq=False, repr=False)
class Offer(Value):
    """A tool that we offer to others.

    Attributes:
        name: its name.
        description: what it does.
        parameters: the JSON Schema of its arguments.
        effect: what it does to the world.
        call: runs it.
    """

    name: str
    description: str
    parameters: JsonObject = field(converter=freeze_object)
    effect: Effect
    call: Call


@frozen(eq=False)
class SessionSettings:
    """How to speak with a server.

    Attributes:
        name: what it is called in logs and messages.
        server: where it is found.
        longest: the most bytes of a message.
        on_elicitation: answers what it wants to know of the user; None to decline.
        on_sampling: answers what it wants to ask a model; None to decline.
    """

    name: str
    server: Server = field(repr=False)
    longest: int
    on_elicitation: Reply | None = None
    on_sampling: Reply | None = None


class ServerSession(ABC):
    """A session with a server that has answered.

    Each request raises `ToolFailed` when the server refuses it or answers in a way that is not of the protocol, and
    `ConnectionLost` when the connection ended before there was an answer.

    Attributes:
        ending: the end of its connection.
    """

    ending: Ending

    @property
    @abstractmethod
    def protocol(self) -> str:
        """The version of the protocol that is spoken."""

    @property
    @abstractmethod
    def tells_changes(self) -> bool:
        """Whether the server says when its tools have changed."""

    @abstractmethod
    async def tools(self, cursor: str | None) -> tuple[list[OfferedTool], str | None]:
        """Return a page of its tools, and what the next one is asked for by; None after the last."""

    @abstractmethod
    async def call(self, name: str, arguments: Mapping[str, Any], progress: Progress, sending: Sending) -> ToolResult:
        """Call a tool.

        Args:
            name: its name at the server.
            arguments: JSON data.
            progress: is told how far it is.
            sending: notes whether the call left us.
        """

    @abstractmethod
    async def resources(self, cursor: str | None, sending: Sending) -> ToolResult:
        """Return a page of its resources."""

    @abstractmethod
    async def resource(self, uri: str, sending: Sending) -> ToolResult:
        """Read one of its resources."""

    @abstractmethod
    async def prompts(self, cursor: str | None, sending: Sending) -> ToolResult:
        """Return a page of its prompts."""

    @abstractmethod
    async def prompt(self, name: str, arguments: Mapping[str, str], sending: Sending) -> ToolResult:
        """Return one of its prompts, filled in."""

    @abstractmethod
    def changes(self) -> AsyncGenerator[None, None]:
        """Yield when its tools have changed, as servers since 2026-07-28 tell it; ends when they do not."""
