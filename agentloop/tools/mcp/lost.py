"""What a connection, its transport and its session tell each other about its end."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

from attrs import define, field


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
