"""Sessions with MCP servers as people write them around others, which keep every law."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from agentloop.mcp.sdk.session import open_session
from agentloop.mcp.session import (
    ConnectionStatus,
    LimitPause,
    ProgressCallback,
    RemoteTool,
    RequestStatus,
    ServerSession,
    SessionSettings,
)
from agentloop.values import ToolResult

Opens: TypeAlias = Callable[
    [SessionSettings, Callable[[], None], LimitPause], AbstractAsyncContextManager[ServerSession]
]


class Passes(ServerSession):
    """Passes everything on to the session inside, so that a wrapper overrides what it changes."""

    def __init__(self, session: ServerSession) -> None:
        self.session = session

    @property
    def status(self) -> ConnectionStatus:  # type: ignore[override]  # read only
        return self.session.status

    @property
    def protocol_version(self) -> str:
        return self.session.protocol_version

    @property
    def announces_tool_changes(self) -> bool:
        return self.session.announces_tool_changes

    async def list_tools(self, cursor: str | None) -> tuple[list[RemoteTool], str | None]:
        return await self.session.list_tools(cursor)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        return await self.session.call_tool(name, arguments, progress, status)

    async def list_resources(self, cursor: str | None, status: RequestStatus) -> ToolResult:
        return await self.session.list_resources(cursor, status)

    async def read_resource(self, uri: str, status: RequestStatus) -> ToolResult:
        return await self.session.read_resource(uri, status)

    async def list_prompts(self, cursor: str | None, status: RequestStatus) -> ToolResult:
        return await self.session.list_prompts(cursor, status)

    async def get_prompt(self, name: str, arguments: Mapping[str, str], status: RequestStatus) -> ToolResult:
        return await self.session.get_prompt(name, arguments, status)

    def tool_changes(self) -> AsyncGenerator[None, None]:
        return self.session.tool_changes()


class Logs(Passes):
    """Notes each call, and how it ended."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.notes: list[str] = []

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        self.notes.append(f"{name} begins")
        try:
            return await super().call_tool(name, arguments, progress, status)
        except BaseException as error:
            self.notes.append(f"{name} raises {type(error).__name__}")
            raise


class Limits(Passes):
    """Makes at most eight calls at once."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.permits = asyncio.Semaphore(8)

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        async with self.permits:
            return await super().call_tool(name, arguments, progress, status)


class KeepsResources(Passes):
    """Reads each resource once."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.resources: dict[str, ToolResult] = {}

    async def read_resource(self, uri: str, status: RequestStatus) -> ToolResult:
        if uri not in self.resources:
            self.resources[uri] = await super().read_resource(uri, status)
        return self.resources[uri]


def opening(wrap: Callable[[ServerSession], ServerSession]) -> Opens:
    """Return what opens the session of the package, and wraps it."""

    @asynccontextmanager
    async def opens(
        settings: SessionSettings, on_tools_changed: Callable[[], None], pause: LimitPause
    ) -> AsyncIterator[ServerSession]:
        async with open_session(settings, on_tools_changed, pause) as session:
            yield wrap(session)

    return opens


LAWFUL_SESSIONS = (Passes, Logs, Limits, KeepsResources)
