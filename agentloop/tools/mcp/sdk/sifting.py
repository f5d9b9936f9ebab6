"""Lists of tools without what no client can read: one bad tool does not hide the others of its server."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from types import TracebackType
from typing import Any, Self

from mcp.client._transport import ReadStream, TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCResponse, Tool

_LOG = logging.getLogger("agentloop.tools.mcp")


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
