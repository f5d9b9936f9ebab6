"""A session with a server, as the rest of this room sees it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from attrs import field, frozen

from agentloop.tools.mcp.lost import Ending, Sending
from agentloop.tools.mcp.offers import OfferedTool, Progress, Reply
from agentloop.tools.mcp.servers import Server
from agentloop.values.tool_result import ToolResult


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
