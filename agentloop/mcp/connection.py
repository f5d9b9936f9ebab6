"""The connection to a server, which is restored when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager, suppress
from functools import partial

from attrs import evolve, frozen

from agentloop.errors import (
    BoundExceeded,
    ConfigurationError,
    ToolDefinitionError,
    ToolFailed,
    ToolInDoubt,
    ToolUnavailable,
)
from agentloop.errors.hints import install_hint
from agentloop.mcp.session import ConnectionLost, RemoteTool, RequestStatus, ServerSession, SessionSettings
from agentloop.tools.validation import SchemaValidator, without_unreadable_patterns
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.schema_drafts import ModernSchema, modern_schema
from agentloop.values.tool_calls import Effect, ToolResult

_LOG = logging.getLogger("agentloop.mcp")
_MAX_ATTEMPTS = 3
_STABLE_SECONDS = 1.0
_INITIAL_WAIT = 0.1
_MAX_WAIT = 30.0
_CANCEL_SECONDS = 5.0


class Connection:
    """The connection to one server in one event loop, held by a task and shared by the calls of all executions.

    When it is lost, it is restored: at once the first time, then after waits that double. Calls that were not sent wait
    for that; when the server has been away for longer than `reconnect_timeout`, they fail at once.

    Args:
        settings: the settings of sessions.
        connect_timeout: seconds until the server has answered and listed its tools.
        reconnect_timeout: seconds that a call waits for a lost server.
        bounds: the bounds on the tools that the server lists.
    """

    def __init__(
        self,
        settings: SessionSettings,
        connect_timeout: float,
        reconnect_timeout: float,
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self.tools: tuple[RemoteTool, ...] = ()
        self.has_started: bool = False
        self._settings = settings
        self._connect_timeout = connect_timeout
        self._reconnect_timeout = reconnect_timeout
        self._bounds = bounds
        self._task: asyncio.Task[None] | None = None
        # The state that callers wait for. `_changed` is replaced at each change, which wakes all who wait for it.
        self._session: ServerSession | None = None
        self._failure = ""
        self._last_output = ""
        self._disconnected_at: float | None = None
        self._is_misconfigured = False
        self._is_stopping = False
        # While a person is asked for authorization, the limits of time do not run.
        self._is_asking = False
        self._seconds_asked = 0.0
        self._changed = asyncio.Event()
        # Counters by which `discover` recognizes that an attempt or a listing started after it was called.
        self._attempts_started = 0
        self._attempts_ended = 0
        self._listings = 0
        self._is_refreshing = False
        self._answered = False
        self._retry_now = asyncio.Event()
        self._tools_changed = asyncio.Event()

    def start(self) -> None:
        """Start connecting; returns at once."""
        self._disconnected_at = self._time()
        self._task = asyncio.create_task(self._run(), name=f"MCP server {self._settings.name}")

    async def stop(self) -> None:
        """Close the connection, and end the server's process if it has one."""
        self._is_stopping = True
        if self._task is None:
            return
        # The task closes an open session in order; while it connects, it can only be cancelled.
        if self._session is not None:
            self._session.status.close("it was stopped")
        else:
            self._task.cancel()
        try:
            await asyncio.wait((self._task,))
        except asyncio.CancelledError:
            # Whoever stops the connection is cancelled: end the task quickly, but do not leave it behind.
            self._task.cancel()
            await asyncio.wait((self._task,), timeout=_CANCEL_SECONDS)
            raise

    async def discover(self) -> tuple[RemoteTool, ...]:
        """Return the current tools, or the last known ones when the server cannot be reached; a lost server is retried."""
        deadline = self._time() + self._connect_timeout
        attempts = max(1, self._attempts_started)
        if self._failure:
            attempts = self._attempts_started + 1
            self._retry_now.set()
        # A listing that is under way may have been requested before the last change, so a later one is needed too.
        listings = self._listings + int(self._is_refreshing) + int(self._tools_changed.is_set())
        while not self._is_stopping and not self._is_misconfigured:
            if self._attempts_ended >= attempts if self._session is None else self._listings >= listings:
                break
            if not await self._wait_for_change(deadline):
                _LOG.warning(
                    "the MCP server %s has not answered in %g seconds", self._settings.name, self._connect_timeout
                )
                break
        return self.tools

    def offers(self, definition: str) -> bool:
        """Whether the server has a tool with this definition, as it was last listed."""
        return any(tool.definition == definition for tool in self.tools)

    def diagnose(self) -> str:
        """Return why the server cannot be reached, for people; empty when it can."""
        if self._session is not None:
            return ""
        return _with_output(self._failure or "it has not answered yet", self._last_output)

    async def send(
        self,
        request: Callable[[ServerSession, RequestStatus], Awaitable[ToolResult]],
        tool: str,
        effect: Effect,
        task: str = "",
    ) -> ToolResult:
        """Send a request and return its result; a lost request is sent again where that is safe.

        Args:
            request: sends it.
            tool: the name of the tool, for messages.
            effect: the effect of the tool.
            task: the id of the task that the call became before it was interrupted; empty when it is sent now.

        Raises:
            ToolUnavailable: when the server cannot be reached, and the call has had no effect.
            ToolInDoubt: when the connection was lost and the call, which may not be repeated, may have run.
            ToolFailed: when the tool fails or the server rejects the request.
        """
        reason, sent = "", bool(task)
        for _ in range(_MAX_ATTEMPTS):
            try:
                session, status = await self._wait_for_session(tool), RequestStatus(task=task)
            except ToolUnavailable as away:
                if not task or effect is Effect.PURE:
                    raise
                reason = str(away)
                break
            try:
                result = await request(session, status)
            except ConnectionLost as lost:
                received = status.sent and not status.rejected
                reason, sent = str(lost), sent or received
                # The call may have run, and running it twice is not safe. A task goes on, and is waited for again.
                task = status.task
                if received and effect is Effect.EFFECT and not task:
                    break
            except ToolFailed:
                # A rejection is a response too, so the connection works.
                self._answered = True
                raise
            else:
                self._answered = True
                return result
        server = f"the MCP server {self._settings.name!r}"
        if sent and effect is not Effect.PURE:
            raise ToolInDoubt(f"{server} was lost while the tool {tool!r} ran, which may or may not be done: {reason}")
        raise ToolUnavailable(f"{server} was lost each time the tool {tool!r} was called: {reason}")

    async def _wait_for_session(self, tool: str) -> ServerSession:
        while True:
            session = self._session
            if session is not None and not session.status.closed.is_set():
                return session
            disconnected_at = self._time() if self._disconnected_at is None else self._disconnected_at
            cannot_return = self._is_misconfigured or self._is_stopping
            if cannot_return or not await self._wait_for_change(disconnected_at + self._reconnect_timeout):
                reason = self._failure or "it has not answered yet"
                raise ToolUnavailable(
                    f"the tool {tool!r} cannot be used now, since the MCP server {self._settings.name!r} is not available: {reason}"
                )

    async def _wait_for_change(self, deadline: float) -> bool:
        """Wait for a change of the state; return whether there was one before the deadline of `_time`."""
        with suppress(TimeoutError):
            async with asyncio.timeout_at(None if self._is_asking else deadline + self._seconds_asked):
                await self._changed.wait()
                return True
        return False

    def _time(self) -> float:
        """Return the time of a clock that stands still while a person is asked."""
        return asyncio.get_running_loop().time() - self._seconds_asked

    @contextmanager
    def _pause_limits(self, limit: asyncio.Timeout) -> Iterator[None]:
        """Suspend the limits of time while a person is asked for authorization."""
        clock = asyncio.get_running_loop()
        asked_at, self._is_asking = clock.time(), True
        if self._session is None:
            limit.reschedule(None)
        self._notify()
        try:
            yield
        finally:
            self._seconds_asked += clock.time() - asked_at
            self._is_asking = False
            if self._session is None:
                limit.reschedule(clock.time() + self._connect_timeout)
            self._notify()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    # --- the task -----------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        clock, failures = asyncio.get_running_loop(), 0
        try:
            while not self._is_stopping:
                started_at, self._answered = clock.time(), False
                self._attempts_started += 1
                try:
                    lost = await self._connect()
                except (ConfigurationError, BoundExceeded) as error:
                    self._is_misconfigured = True  # trying again would fail in the same way
                    self._on_lost(ConnectionLost(str(error)))
                    return
                except Exception as error:  # noqa: BLE001  # whatever the error, the connection is tried again
                    lost = _as_lost(error)
                # A connection that lasted, or that answered a call, is restored at once; others have to wait.
                lasted = self._session is not None and clock.time() - started_at > _STABLE_SECONDS
                failures = 0 if self._answered or lasted else failures + 1
                self._is_misconfigured = lost.is_final
                self._on_lost(lost)
                if lost.is_final:
                    return
                if failures and not self._is_stopping:
                    await self._pause(min(_INITIAL_WAIT * 2 ** (failures - 1), _MAX_WAIT))
        finally:
            self._is_stopping = True
            self._session = None
            self._notify()

    async def _pause(self, seconds: float) -> None:
        """Wait; `discover` shortens the wait, but not below the initial wait."""
        await asyncio.sleep(_INITIAL_WAIT)
        # `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with the event.
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds - _INITIAL_WAIT):
                await self._retry_now.wait()
        self._retry_now.clear()

    async def _connect(self) -> ConnectionLost:
        """Hold one session from its start to its end; return how it ended."""
        try:
            from agentloop.mcp.sdk.session import open_session
        except ModuleNotFoundError as error:
            raise ConfigurationError(f"MCP needs the extra `mcp`: {install_hint('mcp')}") from error
        async with (
            asyncio.timeout(self._connect_timeout) as limit,
            open_session(self._settings, self._tools_changed.set, partial(self._pause_limits, limit)) as session,
        ):
            self.tools = await list_tools(session, self._settings.name, self._bounds)
            # The timeout is for the start only; the session has no limit.
            limit.reschedule(None)
            self._on_connected(session)
            tasks = (asyncio.create_task(self._watch_tools(session)), asyncio.create_task(self._refresh_tools(session)))
            try:
                await session.status.closed.wait()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
        return session.status.lost()

    def _on_connected(self, session: ServerSession) -> None:
        _LOG.debug("connected to the MCP server %s: protocol %s", self._settings.name, session.protocol_version)
        self.has_started = True
        self._session, self._failure, self._last_output, self._disconnected_at = session, "", "", None
        self._notify()

    def _on_lost(self, lost: ConnectionLost) -> None:
        reason = str(lost)
        if not self._is_stopping:
            level = logging.DEBUG if reason == self._failure else logging.WARNING  # the same reason is logged once
            message = _with_output(reason, lost.last_output)
            _LOG.log(level, "the MCP server %s is not available: %s", self._settings.name, message)
        self._session, self._failure, self._last_output = None, reason, lost.last_output
        self._attempts_ended += 1
        if self._disconnected_at is None:
            self._disconnected_at = self._time()
        self._notify()

    async def _watch_tools(self, session: ServerSession) -> None:
        if session.announces_tool_changes:
            async with aclosing(session.tool_changes()) as changes:
                async for _ in changes:
                    self._tools_changed.set()

    async def _refresh_tools(self, session: ServerSession) -> None:
        """List the tools again after each change; less and less often when they change all the time."""
        pause = _INITIAL_WAIT
        while True:
            await self._tools_changed.wait()
            self._tools_changed.clear()
            self._is_refreshing = True
            try:
                async with asyncio.timeout(self._connect_timeout):
                    self.tools = await list_tools(session, self._settings.name, self._bounds)
            except Exception as error:  # noqa: BLE001  # whatever the error, the next change is seen
                _LOG.warning(
                    "the tools of the MCP server %s cannot be listed: %s", self._settings.name, _as_lost(error)
                )
            finally:
                self._is_refreshing = False
                self._listings += 1
                self._notify()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _STABLE_SECONDS) if self._tools_changed.is_set() else _INITIAL_WAIT


def _as_lost(error: BaseException) -> ConnectionLost:
    """Return an error as a lost connection; of a group, the first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, ConnectionLost):
        return error
    if isinstance(error, TimeoutError):
        return ConnectionLost("it did not answer in time")
    return ConnectionLost(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _with_output(reason: str, last_output: str) -> str:
    return f"{reason}; its last output: {last_output}" if last_output else reason


# --- listing tools ----------------------------------------------------------------------------------------------

_MAX_PAGES = 1_000
_MAX_CURSOR_CHARACTERS = 10_000
_MAX_NAME_CHARACTERS = 200
_MAX_REPAIRS = 5


async def list_tools(session: ServerSession, server: str, bounds: Bounds = DEFAULT_BOUNDS) -> tuple[RemoteTool, ...]:
    """Return the tools of all pages; tools that cannot be called are logged and left out.

    Args:
        session: the session.
        server: the name of the server, for messages.
        bounds: the bounds on the tools and their definitions.

    Raises:
        BoundExceeded: when the server lists more tools, or longer definitions, than the bounds allow.
        ConnectionLost: when the connection is lost, or the pages do not end.
        ToolFailed: when the server rejects the request, or its response violates the protocol.
    """
    tools: dict[str, RemoteTool] = {}
    cursor: str | None = None
    cursors: set[str] = set()
    count = size = 0
    while True:
        page, cursor = await session.list_tools(cursor)
        count, size = count + len(page), size + sum(tool.size for tool in page)
        _check_size(server, count, size, bounds)
        # A short schema can take long to compile, and all of them are compiled only here.
        for tool, compiled in zip(page, await asyncio.to_thread(_compile, page, bounds), strict=True):
            read = "there is another of this name" if tool.name in tools else compiled
            if isinstance(read, str):
                _LOG.warning("the tool %.200r of the MCP server %s is left out: %s", tool.name, server, read)
                continue
            tools[tool.name] = read.tool
            if read.repairs:
                listed = "; ".join(read.repairs[:_MAX_REPAIRS])
                _LOG.warning("the schema of the tool %.200r of the MCP server %s: %.2000s", tool.name, server, listed)
        if not cursor:
            return tuple(tools.values())
        # Nothing else bounds the number of pages of a faulty server.
        if cursor in cursors or len(cursors) >= _MAX_PAGES or len(cursor) > _MAX_CURSOR_CHARACTERS:
            raise ConnectionLost(f"its list of tools does not end: {len(cursors) + 1} pages, {len(tools)} tools")
        cursors.add(cursor)


def _check_size(server: str, count: int, size: int, bounds: Bounds) -> None:
    if count > bounds.tools_per_server:
        problem = f"the MCP server {server!r} lists more than {bounds.tools_per_server:,g} tools"
        raise BoundExceeded("tools_per_server", bounds.tools_per_server, problem)
    if size > bounds.definition_bytes:
        problem = f"the definitions of the tools of the MCP server {server!r} have more than {bounds.definition_bytes:,g} bytes"
        raise BoundExceeded("definition_bytes", bounds.definition_bytes, problem)


@frozen
class _ReadTool:
    """A tool whose schema was compiled.

    Attributes:
        tool: the tool, with its schema in draft 2020-12.
        repairs: what was wrong with the schema that the server sent, and how it was read.
    """

    tool: RemoteTool
    repairs: tuple[str, ...]


def _compile(tools: list[RemoteTool], bounds: Bounds) -> list[_ReadTool | str]:
    return [_read_tool(tool, bounds) for tool in tools]


def _read_tool(tool: RemoteTool, bounds: Bounds) -> _ReadTool | str:
    """Return a tool with the validator of its arguments, or why it cannot be called."""
    if not tool.name:
        return "it has no name"
    if len(tool.name) > _MAX_NAME_CHARACTERS:
        return f"its name has more than {_MAX_NAME_CHARACTERS} characters"
    modern = modern_schema(tool.parameters)
    if modern.schema.get("type", "object") != "object":
        return "its parameters are no object"
    try:
        validator, read = _compile_schema(modern, bounds)
    except ToolDefinitionError as error:
        return str(error)
    return _ReadTool(evolve(tool, parameters=read.schema, validator=validator), read.repairs)


def _compile_schema(modern: ModernSchema, bounds: Bounds) -> tuple[SchemaValidator, ModernSchema]:
    """Return a validator, and the schema that it checks: without patterns that cannot be read, if there are any."""
    try:
        return SchemaValidator(modern.schema, "its schema", bounds), modern
    except ToolDefinitionError:
        readable = without_unreadable_patterns(modern.schema)
        if readable is None:
            raise
    read = ModernSchema(readable.schema, (*modern.repairs, *readable.repairs))
    return SchemaValidator(read.schema, "its schema", bounds), read
