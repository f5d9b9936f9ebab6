"""A server kept within reach: started or connected with again when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress

from agentloop.errors import ConfigurationError, ToolDefinitionError, ToolFailed, ToolInDoubt, ToolUnavailable
from agentloop.mcp.session import ConnectionLost, OfferedTool, Sending, ServerSession, SessionSettings
from agentloop.tools.validation import SchemaValidator
from agentloop.values.tool_calls import Effect, ToolResult

_LOG = logging.getLogger("agentloop.mcp")
_MOST_PAGES = 1_000
_MOST_TOOLS = 10_000


async def listed(session: ServerSession, server: str) -> tuple[OfferedTool, ...]:
    """Return the tools of all pages; those that cannot be called are logged and left out.

    Args:
        session: with whom.
        server: the name of the server, for messages.

    Raises:
        ConnectionLost: when it is lost, or its pages do not end.
        ToolFailed: when it refuses, or answers in a way that is not of the protocol.
    """
    found: dict[str, OfferedTool] = {}
    cursor: str | None = None
    asked: set[str] = set()
    while True:
        page, cursor = await session.tools(cursor)
        for tool in page:
            problem = "there is another of this name" if tool.name in found else _problem(tool)
            if problem:
                _LOG.warning("the tool %r of the MCP server %s is left out: %s", tool.name, server, problem)
            else:
                found[tool.name] = tool
        if not cursor:
            return tuple(found.values())
        if cursor in asked or len(asked) >= _MOST_PAGES or len(found) > _MOST_TOOLS:
            raise ConnectionLost(f"its list of tools does not end: {len(asked) + 1} pages, {len(found)} tools")
        asked.add(cursor)


def _problem(tool: OfferedTool) -> str:
    """Say why a tool cannot be called; empty when it can."""
    if not tool.name:
        return "it has no name"
    if tool.parameters.get("type", "object") != "object":
        return "its parameters are no object"
    try:
        SchemaValidator(tool.parameters, "its schema")
    except ToolDefinitionError as error:
        return str(error)
    return ""


_LOG = logging.getLogger("agentloop.mcp")
_MOST_SENDINGS = 3
_STABLE_SECONDS = 1.0
_FIRST_WAIT = 0.1
_LONGEST_WAIT = 30.0
_SOON = 5.0


class Link:
    """The connection with one server in one event loop, held by a task; calls of any number of executions share it.

    When it is lost, it is made again: at once the first time, then after waits that double. Calls that have not been sent
    wait for that; once the server has been away for longer than `patience` they fail at once.

    Args:
        settings: how to speak with the server.
        connect_timeout: seconds until it has answered and told its tools.
        patience: seconds.
    """

    def __init__(self, settings: SessionSettings, connect_timeout: float, patience: float) -> None:
        self.tools: tuple[OfferedTool, ...] = ()
        self._settings = settings
        self._connect_timeout = connect_timeout
        self._patience = patience
        self._session: ServerSession | None = None
        self._failure = ""
        self._said = ""
        self._hopeless = False
        self._stopping = False
        self._answered = False
        self._refreshing = False
        self._away_since: float | None = None
        self._begun = 0
        self._listings = 0
        self._ended = 0
        self._moved = asyncio.Event()
        self._wanted = asyncio.Event()
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to hold the connection; returns at once."""
        self._away_since = asyncio.get_running_loop().time()
        self._task = asyncio.create_task(self._kept(), name=f"MCP server {self._settings.name}")

    async def stop(self) -> None:
        """End the connection, and the server's process if it has one."""
        self._stopping = True
        if self._task is None:
            return
        if self._session is not None:
            self._session.ending.end("it was stopped")
        else:
            self._task.cancel()
        try:
            await asyncio.wait((self._task,))
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_SOON)
            raise

    async def discovered(self) -> tuple[OfferedTool, ...]:
        """Return its tools: as they are now, or as they were last where it cannot be asked; one that is away is tried anew."""
        until = asyncio.get_running_loop().time() + self._connect_timeout
        attempts = max(1, self._begun)
        if self._failure:
            attempts = self._begun + 1
            self._wanted.set()
        listings = self._listings + int(self._refreshing) + int(self._changed.is_set())
        while not self._stopping and not self._hopeless:
            if self._ended >= attempts if self._session is None else self._listings >= listings:
                break
            if not await self._moves(until):
                _LOG.warning(
                    "the MCP server %s has not answered in %g seconds", self._settings.name, self._connect_timeout
                )
                break
        return self.tools

    def diagnose(self) -> str:
        """Say why it is away, for people; empty when it is not."""
        return "" if self._session is not None else _with(self._failure or "it has not answered yet", self._said)

    async def ask(
        self, request: Callable[[ServerSession, Sending], Awaitable[ToolResult]], tool: str, effect: Effect
    ) -> ToolResult:
        """Send a request and return its answer; one that was lost is sent again where that does no harm.

        Args:
            request: sends it.
            tool: the name of the tool, for messages.
            effect: what the tool does to the world.

        Raises:
            ToolUnavailable: when the server is away.
            ToolInDoubt: when it was lost after it had been told to do something that may not be repeated.
            ToolFailed: when the tool or the server says so.
        """
        reason, sent = "", False
        for _ in range(_MOST_SENDINGS):
            session, sending = await self._reached(tool), Sending()
            try:
                result = await request(session, sending)
            except ConnectionLost as lost:
                received = sending.sent and not sending.refused
                reason, sent = str(lost), sent or received
                if received and effect is Effect.EFFECT:
                    break
            except ToolFailed:
                self._answered = True
                raise
            else:
                self._answered = True
                return result
        server = f"the MCP server {self._settings.name!r}"
        if sent and effect is not Effect.PURE:
            raise ToolInDoubt(f"{server} was lost while the tool {tool!r} ran, which may or may not be done: {reason}")
        raise ToolUnavailable(f"{server} was lost each time the tool {tool!r} was called: {reason}")

    async def _reached(self, tool: str) -> ServerSession:
        """Return the session, waiting for it as long as there is patience."""
        clock = asyncio.get_running_loop()
        while True:
            session = self._session
            if session is not None and not session.ending.ended.is_set():
                return session
            away_since = clock.time() if self._away_since is None else self._away_since
            hopeless = self._hopeless or self._stopping
            if hopeless or not await self._moves(away_since + self._patience):
                why = self._failure or "it has not answered yet"
                raise ToolUnavailable(
                    f"the tool {tool!r} cannot be used now, since the MCP server {self._settings.name!r} is away: {why}"
                )

    async def _moves(self, until: float) -> bool:
        """Wait for a change of what is known; say whether there was one before this time."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._moved.wait()
                return True
        return False

    def _tell(self) -> None:
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    # --- the task -----------------------------------------------------------------------------------------------

    async def _kept(self) -> None:
        clock, failures = asyncio.get_running_loop(), 0
        try:
            while not self._stopping:
                began, self._answered = clock.time(), False
                self._begun += 1
                try:
                    lost = await self._held()
                except ConfigurationError as error:
                    self._hopeless = True
                    self._lose(ConnectionLost(str(error)))
                    return
                except Exception as error:  # noqa: BLE001  # whatever keeps us from the server, it is tried again
                    lost = _told(error)
                stable = self._answered or (self._session is not None and clock.time() - began > _STABLE_SECONDS)
                failures = 0 if stable else failures + 1
                self._lose(lost)
                if failures and not self._stopping:
                    await self._pause(min(_FIRST_WAIT * 2 ** (failures - 1), _LONGEST_WAIT))
        finally:
            self._stopping = True
            self._session = None
            self._tell()

    async def _pause(self, seconds: float) -> None:
        """Wait, but not much longer than until somebody asks for the server."""
        await asyncio.sleep(_FIRST_WAIT)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._wanted.wait(), seconds - _FIRST_WAIT)
        self._wanted.clear()

    async def _held(self) -> ConnectionLost:
        """Hold one connection from its beginning to its end; return how it ended."""
        try:
            from agentloop.mcp.sdk.session import opened
        except ModuleNotFoundError as error:
            raise ConfigurationError("MCP needs the extra `mcp`: pip install 'agentloop[mcp]'") from error
        async with (
            asyncio.timeout(self._connect_timeout) as limit,
            opened(self._settings, self._changed.set) as session,
        ):
            self.tools = await listed(session, self._settings.name)
            limit.reschedule(None)
            self._reach(session)
            others = (asyncio.create_task(self._listened(session)), asyncio.create_task(self._refreshed(session)))
            try:
                await session.ending.ended.wait()
            finally:
                for other in others:
                    other.cancel()
                await asyncio.wait(others)
        return ConnectionLost(session.ending.reason, session.ending.said)

    def _reach(self, session: ServerSession) -> None:
        _LOG.debug("the MCP server %s is there: protocol %s", self._settings.name, session.protocol)
        self._session, self._failure, self._said, self._away_since = session, "", "", None
        self._tell()

    def _lose(self, lost: ConnectionLost) -> None:
        reason = str(lost)
        if not self._stopping:
            level = logging.DEBUG if reason == self._failure else logging.WARNING  # the same again is no news
            _LOG.log(level, "the MCP server %s is away: %s", self._settings.name, _with(reason, lost.said))
        self._session, self._failure, self._said = None, reason, lost.said
        self._ended += 1
        if self._away_since is None:
            self._away_since = asyncio.get_running_loop().time()
        self._tell()

    async def _listened(self, session: ServerSession) -> None:
        if session.tells_changes:
            async with aclosing(session.changes()) as changes:
                async for _ in changes:
                    self._changed.set()

    async def _refreshed(self, session: ServerSession) -> None:
        """List the tools again when they have changed; ever less often where that goes on and on."""
        pause = _FIRST_WAIT
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._refreshing = True
            try:
                async with asyncio.timeout(self._connect_timeout):
                    self.tools = await listed(session, self._settings.name)
            except (ToolFailed, ConnectionLost, TimeoutError) as error:
                _LOG.warning("the tools of the MCP server %s cannot be listed: %s", self._settings.name, _told(error))
            finally:
                self._refreshing = False
                self._listings += 1
                self._tell()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _STABLE_SECONDS) if self._changed.is_set() else _FIRST_WAIT


def _told(error: BaseException) -> ConnectionLost:
    """Say what went wrong: the first cause, where several things did at once."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConnectionLost):
        return error
    if isinstance(error, TimeoutError):
        return ConnectionLost("it did not answer in time")
    return ConnectionLost(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _with(reason: str, said: str) -> str:
    return f"{reason}; it said last: {said}" if said else reason
