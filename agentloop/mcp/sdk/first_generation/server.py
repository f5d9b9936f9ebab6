"""The server's side of generation 1: handlers that take a context and parameters, and templates of addresses."""

from __future__ import annotations

import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Generic, Self, TypeAlias, TypeVar
from urllib.parse import unquote

from attrs import frozen
from mcp.server.lowlevel import Server as SdkServer
from mcp.server.session import ServerSession
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.context import RequestContext
from mcp.types import (
    CallToolRequest,
    CompleteRequest,
    GetPromptRequest,
    ListPromptsRequest,
    ListResourcesRequest,
    ListResourceTemplatesRequest,
    ListToolsRequest,
    ReadResourceRequest,
    ServerResult,
)
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

_LOG = logging.getLogger("agentloop.mcp.server")
_T = TypeVar("_T")
_U = TypeVar("_U")
_Handler: TypeAlias = Callable[[Any, Any], Awaitable[Any]]


@frozen
class _Reporter:
    """Reports the progress of one request to its client."""

    context: RequestContext[ServerSession, Any, Any]

    async def report_progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Report the progress, if the client has asked for it."""
        meta = self.context.meta
        if meta is not None and meta.progressToken is not None:
            await self.context.session.send_progress_notification(
                meta.progressToken, progress, total, message, related_request_id=str(self.context.request_id)
            )


@frozen
class ServerRequestContext(Generic[_T, _U]):
    """The context of a request.

    Attributes:
        session: reports its progress.
        protocol_version: the version of the protocol; empty for any of those before 2026-07-28, which are all that there are.
    """

    session: _Reporter
    protocol_version: str = ""


class Server(SdkServer[Any, Any], Generic[_T]):
    """A server that declares what it has handlers for.

    Args:
        name: its name.
        version: its version.
        handlers: those of generation 2, `on_list_tools` and so on; None for those that there are not.
    """

    def __init__(self, name: str, *, version: str, **handlers: _Handler | None) -> None:
        super().__init__(name, version)
        for handler_name, handler in handlers.items():
            if handler is not None:
                self._answer(_REQUESTS[handler_name], handler)

    def add_request_handler(self, method: str, params: type, handler: _Handler) -> None:
        """Answer the requests of one method."""
        del params
        self._answer(_REQUESTS[method], handler)

    def _answer(self, request: type, handler: _Handler) -> None:
        async def respond(received: Any) -> ServerResult:
            context = ServerRequestContext[Any, Any](_Reporter(self.request_context))
            return ServerResult(await handler(context, received.params))

        self.request_handlers[request] = respond

    def streamable_http_app(
        self,
        *,
        host: str,
        transport_security: TransportSecuritySettings,
        max_sessions: int,
        session_idle_timeout: float,
    ) -> Starlette:
        """Return an application that serves clients at `/mcp`.

        Args:
            host: not used: the settings of security say which hosts may be named.
            transport_security: which hosts and origins may be named.
            max_sessions: maximum number of sessions at once.
            session_idle_timeout: seconds after which a session without requests ends.
        """
        del host
        manager = StreamableHTTPSessionManager(
            self,
            security_settings=transport_security,
            session_idle_timeout=session_idle_timeout,
            max_sessions=max_sessions,
        )

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with manager.run():
                yield

        return Starlette(routes=[Route("/mcp", endpoint=_Endpoint(manager))], lifespan=lifespan)


@frozen
class _Endpoint:
    """An ASGI application for one address, which Starlette calls for all methods."""

    manager: StreamableHTTPSessionManager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        await self.manager.handle_request(scope, receive, send)


_REQUESTS: Mapping[str, type] = {
    "on_list_tools": ListToolsRequest,
    "on_list_resources": ListResourcesRequest,
    "on_list_resource_templates": ListResourceTemplatesRequest,
    "on_read_resource": ReadResourceRequest,
    "on_list_prompts": ListPromptsRequest,
    "on_get_prompt": GetPromptRequest,
    "on_completion": CompleteRequest,
    "tools/call": CallToolRequest,
}


class ServedTasks:
    """Runs no call as a task, which this generation does not know: a call is answered when it has ended.

    Args:
        patterns: the names of the tools whose calls become tasks with generation 2.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)

    def install(self, server: Server[Any]) -> None:
        """Log that there are no tasks, if calls of any tool were to become tasks."""
        del server
        if self._patterns:
            _LOG.warning("no call becomes a task, which needs mcp 2.3 or newer: calls are answered when they end")

    def accepts(self, tool: str, context: object) -> bool:
        """Return whether a call becomes a task."""
        del tool, context
        return False

    async def aclose(self) -> None:
        """Do nothing."""


# --- templates of addresses -------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"\{(\+?)([A-Za-z0-9_]+)\}")
_STOPS = {"": "/?#&,", "+": "?#"}
_MAX_LENGTH = 1 << 16


@frozen
class UriTemplate:
    """A template of addresses.

    Attributes:
        literals: the texts around the variables, one more than there are variables.
        operators: the operator of each variable, `+` or empty.
        names: the name of each variable.
    """

    literals: tuple[str, ...]
    operators: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a template.

        Raises:
            ValueError: it has an expression of another kind, or cannot be matched in one way only.
        """
        pieces = _VARIABLE.split(text)
        literals, operators, names = tuple(pieces[::3]), tuple(pieces[1::3]), tuple(pieces[2::3])
        if any(mark in literal for literal in literals for mark in "{}"):
            raise ValueError("an expression is {name} or {+name}")
        if not all(literals[1:-1]):
            raise ValueError("two variables need text between them")
        if operators.count("+") > 1 or len(set(names)) < len(names):
            raise ValueError("at most one variable begins with +, and each name occurs once")
        return cls(literals, operators, names)

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the variables with which the template is this address; None when it is another one."""
        first, last = self.literals[0], self.literals[-1]
        is_framed = uri.startswith(first) and uri.endswith(last) and len(uri) >= len(first) + len(last)
        if not self.names or not is_framed or len(uri) > _MAX_LENGTH:
            return None
        values = self._split(uri[len(first) : len(uri) - len(last)])
        if values is None:
            return None
        for value, operator in zip(values, self.operators, strict=True):
            if any(stop in value for stop in _STOPS[operator]):
                return None
        return {name: unquote(value) for name, value in zip(self.names, values, strict=True)}

    def _split(self, text: str) -> list[str] | None:
        """Split at the literals: at the first place before the variable with `+`, at the last place behind it."""
        wide = self.operators.index("+") if "+" in self.operators else 0
        before: list[str] = []
        for literal in self.literals[1 : wide + 1]:
            value, found, text = text.partition(literal)
            if not found:
                return None
            before.append(value)
        behind: list[str] = []
        for literal in reversed(self.literals[wide + 1 : -1]):
            text, found, value = text.rpartition(literal)
            if not found:
                return None
            behind.insert(0, value)
        return [*before, text, *behind]
