"""Sessions with MCP servers that break one law each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agentloop.errors import ToolFailed
from agentloop.mcp.sdk.session import open_session
from agentloop.mcp.session import (
    ConnectionLost,
    ConnectionStatus,
    LimitPause,
    ProgressCallback,
    RemoteTool,
    RequestStatus,
    ServerSession,
    SessionSettings,
)
from agentloop.testing import McpSessionKit
from agentloop.values import Text, ToolResult
from tests.testing.lawful_sessions import Passes, opening
from tests.testing.zoo.zoo import Member

LEFT: list[Any] = []


class Calls(Passes):
    """Passes everything on; the classes below change one thing about a call."""

    async def call_tool(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        return await self.call(name, arguments, progress, status)

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        return await self.session.call_tool(name, arguments, progress, status)


# --- which call an answer belongs to --------------------------------------------------------------------------------------


class MixesAnswers(Calls):
    """Breaks law 9: the answer waits on the session, where that of another call takes its place."""

    last: ToolResult

    async def call(self, *request: Any) -> ToolResult:
        self.last = await super().call(*request)
        await asyncio.sleep(0.02)
        return self.last


class AnswersInOrder(Calls):
    """Breaks law 9: answers are given to the calls in the order in which they arrive."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.waiting: list[asyncio.Future[ToolResult]] = []

    async def call(self, *request: Any) -> ToolResult:
        mine: asyncio.Future[ToolResult] = asyncio.get_running_loop().create_future()
        self.waiting.append(mine)
        result = await super().call(*request)
        self.waiting.pop(0).set_result(result)
        return await mine


class SharesProgress(Calls):
    """Breaks law 9: the progress of a call is reported to the call that was made last."""

    report: ProgressCallback

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        self.report = progress
        return await super().call(name, arguments, self.report_now, status)

    def report_now(self, update: Mapping[str, Any]) -> None:
        self.report(update)


# --- how often a call is sent, and what is known of it ----------------------------------------------------------------------


class SendsAgain(Calls):
    """Breaks law 14: a call that has failed is sent again, whatever it does."""

    async def call(self, *request: Any) -> ToolResult:
        try:
            return await super().call(*request)
        except ToolFailed:
            return await super().call(*request)


class ForgetsSent(Calls):
    """Breaks law 14: nobody learns that the server may have received the call."""

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        return await super().call(name, arguments, progress, RequestStatus())


class HidesLoss(Calls):
    """Breaks law 14: a call whose connection was lost has failed, as if the server had said so."""

    async def call(self, *request: Any) -> ToolResult:
        try:
            return await super().call(*request)
        except ConnectionLost as lost:
            raise ToolFailed(f"the server is away: {lost}") from lost


class AnswersFromMemory(Calls):
    """Breaks law 44: an equal call does not reach the server."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.answers: dict[str, ToolResult] = {}

    async def call(self, *request: Any) -> ToolResult:
        key = f"{request[0]} {sorted(request[1].items())}"
        if key not in self.answers:
            self.answers[key] = await super().call(*request)
        return self.answers[key]


# --- cancellation --------------------------------------------------------------------------------------------------------------


class SwallowsCancellation(Calls):
    """Breaks law 34: a call that is cancelled has an answer."""

    async def call(self, *request: Any) -> ToolResult:
        try:
            return await super().call(*request)
        except asyncio.CancelledError:
            return ToolResult("cancelled")


class ShieldsCalls(Calls):
    """Breaks law 34: the server is not told that a call is cancelled."""

    async def call(self, *request: Any) -> ToolResult:
        task = asyncio.ensure_future(super().call(*request))
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # it fails when the connection ends
        LEFT.append(task)
        return await asyncio.shield(task)


class KeepsPermits(Calls):
    """Breaks law 34: a call that is cancelled keeps its permit."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.permits = asyncio.Semaphore(2)

    async def call(self, *request: Any) -> ToolResult:
        await self.permits.acquire()
        result = await super().call(*request)
        self.permits.release()
        return result


class ClosesWhenCancelled(Calls):
    """Breaks law 34: a call that is cancelled takes the connection of the others with it."""

    async def call(self, *request: Any) -> ToolResult:
        try:
            return await super().call(*request)
        except asyncio.CancelledError:
            self.status.close("a call was cancelled")
            raise


# --- what a server says ----------------------------------------------------------------------------------------------------------


class CutsTexts(Calls):
    """Breaks law 44: a long text is cut, and nobody says so."""

    async def call(self, *request: Any) -> ToolResult:
        result = await super().call(*request)
        return ToolResult(result.value[:500], result.content) if isinstance(result.value, str) else result


class TidiesTexts(Calls):
    """Breaks law 44: white space is not as the server wrote it."""

    async def call(self, *request: Any) -> ToolResult:
        result = await super().call(*request)
        value = " ".join(result.value.split()) if isinstance(result.value, str) else result.value
        parts = [Text(" ".join(part.text.split())) if isinstance(part, Text) else part for part in result.content or ()]
        return ToolResult(value, parts or None)


class KeepsTextsOnly(Calls):
    """Breaks law 44: pictures are left out."""

    async def call(self, *request: Any) -> ToolResult:
        result = await super().call(*request)
        parts = [part for part in result.content or () if isinstance(part, Text)]
        return ToolResult(result.value, parts) if result.content else result


class HidesErrors(Calls):
    """Breaks law 41: what the server says about an error does not reach the model."""

    async def call(self, *request: Any) -> ToolResult:
        try:
            return await super().call(*request)
        except ToolFailed:
            raise ToolFailed("the tool failed") from None


class ErrorsAreAnswers(Calls):
    """Breaks law 41: a tool that has failed has succeeded."""

    async def call(self, *request: Any) -> ToolResult:
        try:
            return await super().call(*request)
        except ToolFailed as failure:
            return ToolResult(str(failure))


class AddsToArguments(Calls):
    """Breaks law 3: the arguments of a call have one more afterwards."""

    async def call(
        self, name: str, arguments: Mapping[str, Any], progress: ProgressCallback, status: RequestStatus
    ) -> ToolResult:
        if isinstance(arguments, dict):
            arguments["trace"] = name
        return await super().call(name, arguments, progress, status)


# --- what the server is now ------------------------------------------------------------------------------------------------------


class KeepsTools(Passes):
    """Breaks law 60: the tools are those of the first listing."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.pages: dict[str | None, tuple[list[RemoteTool], str | None]] = {}

    async def list_tools(self, cursor: str | None) -> tuple[list[RemoteTool], str | None]:
        if cursor not in self.pages:
            self.pages[cursor] = await super().list_tools(cursor)
        return self.pages[cursor]


class ListsFirstPage(Passes):
    """Breaks law 60: only the first page of the tools is listed."""

    async def list_tools(self, cursor: str | None) -> tuple[list[RemoteTool], str | None]:
        tools, _ = await super().list_tools(cursor)
        return tools, None


class ForgetsTheEnd(Passes):
    """Breaks law 60: nobody learns that the connection has ended."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        self.own = ConnectionStatus()

    @property
    def status(self) -> ConnectionStatus:  # type: ignore[override]
        return self.own


class BlocksTheLoop(Calls):
    """Breaks law 45: each call is noted by a function that blocks."""

    async def call(self, *request: Any) -> ToolResult:
        _note()
        return await super().call(*request)


def _note() -> None:
    time.sleep(0.05)


class Pings(Passes):
    """Breaks law 19: a task that pings the server never ends."""

    def __init__(self, session: ServerSession) -> None:
        super().__init__(session)
        LEFT.append(asyncio.ensure_future(asyncio.sleep(3600)))


@asynccontextmanager
async def deaf_to_changes(
    settings: SessionSettings, on_tools_changed: Callable[[], None], pause: LimitPause
) -> AsyncIterator[ServerSession]:
    """Breaks law 60: changes of the tools are heard, and told to nobody."""
    async with open_session(settings, lambda: None, pause) as session:
        yield _Deaf(session)


class _Deaf(Passes):
    async def tool_changes(self) -> AsyncGenerator[None, None]:
        return
        yield


@asynccontextmanager
async def leaves_servers(
    settings: SessionSettings, on_tools_changed: Callable[[], None], pause: LimitPause
) -> AsyncIterator[ServerSession]:
    """Breaks law 19: the server runs on when its session has ended."""
    ended = asyncio.Event()
    opened: asyncio.Future[ServerSession] = asyncio.get_running_loop().create_future()

    async def hold() -> None:
        async with open_session(settings, on_tools_changed, pause) as session:
            opened.set_result(session)
            await ended.wait()

    LEFT.append(asyncio.ensure_future(hold()))
    yield await opened


def _session(law: int, subject: Any) -> Member:
    opens = opening(subject) if isinstance(subject, type) else subject
    return Member(subject, law, lambda examples: McpSessionKit(opens, examples=examples))


SESSIONS: tuple[Member, ...] = (
    _session(3, AddsToArguments),
    _session(9, MixesAnswers),
    _session(9, AnswersInOrder),
    _session(9, SharesProgress),
    _session(14, SendsAgain),
    _session(14, ForgetsSent),
    _session(14, HidesLoss),
    _session(19, Pings),
    _session(19, leaves_servers),
    _session(34, SwallowsCancellation),
    _session(34, ShieldsCalls),
    _session(34, KeepsPermits),
    _session(34, ClosesWhenCancelled),
    _session(41, HidesErrors),
    _session(41, ErrorsAreAnswers),
    _session(44, AnswersFromMemory),
    _session(44, CutsTexts),
    _session(44, TidiesTexts),
    _session(44, KeepsTextsOnly),
    _session(45, BlocksTheLoop),
    _session(60, KeepsTools),
    _session(60, ListsFirstPage),
    _session(60, ForgetsTheEnd),
    _session(60, deaf_to_changes),
)
