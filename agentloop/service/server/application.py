"""The HTTP front as an ASGI application: routes, headers, and answers."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, nullcontext
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Send
from starlette.types import Scope as AsgiScope

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.searching import ExecutionQuery
from agentloop.errors import (
    ClusterError,
    ConfigurationError,
    DecisionError,
    DependenciesFailed,
    InboxClosed,
    JournalBusy,
    JournalConflict,
    JournalError,
    UnknownExecution,
)
from agentloop.events.trace_context import continue_trace, trace_headers
from agentloop.loop.agent_loop import AgentLoop
from agentloop.service.server.access import (
    LOCAL_USER,
    Authenticate,
    Principal,
    RequestRefused,
    Scope,
    WebOrigins,
    check_kept_headers,
    unknown_execution,
)
from agentloop.service.server.ag_ui import AgUiEvents, start_run
from agentloop.service.server.executions import CanRunExecutions, LocalExecutions
from agentloop.service.server.grants import list_grants, revoke_grant
from agentloop.service.server.openapi import openapi_document
from agentloop.service.server.operations import Operations, ServerLimits, delete_own_session
from agentloop.service.server.record_events import QUEUED, ServerEvent
from agentloop.service.server.traces import TraceOperations
from agentloop.values.json import format_json, parse_json

logger: logging.Logger = logging.getLogger("agentloop.server.http")

Handler: TypeAlias = Callable[["ServerApplication", Request, Principal], Awaitable[Response]]
_RETRY_MS = 1000
_ITEMS, _MAX_NESTED = 1_000, 4
_SLICE = 50
"""The events of a stream after which other tasks have a turn."""
_DROPPED = 16
"""How many times the limit of a body is read and dropped, since many clients see the answer only after they have sent all."""
_NOT_CACHED = {"cache-control": "no-store"}
_ID_CHARACTERS = "/:@"
"""Characters of ids that a path may have as they are, besides letters, digits and those that no URL encodes."""


class ServerApplication:
    """An ASGI application with which other programs and web pages start, follow and control executions.

    `serve` runs it with uvicorn. Inside of another server, run its lifespan, and call `begin_shutdown` when that server begins
    to shut down, so that open streams and waits end.

    Args:
        executions: a loop, loops by name, or who else runs the executions.
        journal: the journal of the executions; by default that of the loop.
        authenticate: returns the principal of a token; None if every request may do everything, which suits a server that only
            this machine can reach.
        web: the hosts and origins of requests.
        limits: the limits on clients.

    Raises:
        ConfigurationError: there is no loop or no journal.
    """

    def __init__(
        self,
        executions: AgentLoop | Mapping[str, AgentLoop] | CanRunExecutions,
        *,
        journal: CanJournal | None = None,
        authenticate: Authenticate | None = None,
        web: WebOrigins | None = None,
        limits: ServerLimits | None = None,
        dependencies: Any = None,
        kept_headers: Iterable[str] = (),
    ) -> None:
        if not isinstance(executions, CanRunExecutions):
            executions = LocalExecutions(executions, journal, dependencies=dependencies)
        elif dependencies is not None:
            raise ConfigurationError(
                f"{type(executions).__name__} runs the executions: pass the dependencies to it, or to its workers"
            )
        self._kept_headers = check_kept_headers(kept_headers)
        self.limits: ServerLimits = limits or ServerLimits()
        self.operations: Operations = Operations(executions, self.limits)
        self.traces: TraceOperations = TraceOperations(self.operations, needs_token=authenticate is not None)
        self._authenticate = authenticate
        self._web = web or WebOrigins()
        self._streams: Counter[str] = Counter()
        self._waits: Counter[str] = Counter()
        routes = [
            Route(path, self._endpoint(handler), methods=[method]) for (method, path), handler in HANDLERS.items()
        ]
        problems = {HTTPException: _answer_http_error, Exception: _answer_failure}
        self._application = Starlette(routes=routes, exception_handlers=problems, lifespan=self._lifespan)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Handle a request, or the lifespan."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request = Request(scope, receive)
        cross = self._cors_headers(request)
        try:
            host, origin = request.headers.get("host", ""), request.headers.get("origin", "")
            self._web.check_host(host)
            self._web.check_origin(origin, host)
        except RequestRefused as refused:
            await _problem(refused)(scope, receive, send)
            return
        if request.method == "OPTIONS" and "access-control-request-method" in request.headers:
            await Response(status_code=204, headers=cross)(scope, receive, send)
            return
        with continue_trace(_trace_of(request)):
            await self._application(scope, receive, _with_headers(send, cross))

    def begin_shutdown(self) -> None:
        """End the open streams, whose clients are told to come back, and waits; executions go on until the lifespan ends."""
        self.operations.closing.set()

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        async with self.operations.executions as executions:
            executions.watch(self.operations.feeds.add)
            yield
            self.begin_shutdown()

    def _cors_headers(self, request: Request) -> Mapping[str, str]:
        origin = request.headers.get("origin", "")
        if origin not in self._web.origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-allow-methods": "GET, POST, DELETE",
            "access-control-allow-headers": "Authorization, Content-Type, Idempotency-Key, Last-Event-ID",
            "access-control-expose-headers": "Location",
            "access-control-max-age": "600",
            "vary": "Origin",
        }

    # --- requests -----------------------------------------------------------------------------------------------

    def _endpoint(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            return self._masked(await self._answer(handler, request))

        return endpoint

    async def _answer(self, handler: Handler, request: Request) -> Response:
        try:
            principal = LOCAL_USER if handler in _PUBLIC else await self._principal(request)
            return await handler(self, request, principal)
        except RequestRefused as refused:
            return _problem(refused)
        except UnknownExecution:
            return _problem(unknown_execution())
        except (DecisionError, JournalConflict, InboxClosed) as error:
            return _problem(RequestRefused(409, "conflict", str(error)))
        except JournalBusy:
            return _problem(RequestRefused(503, "busy", "the journal is busy; try again", {"retry-after": "1"}))
        except (JournalError, ClusterError, DependenciesFailed) as error:
            logger.exception("an answer has failed")
            return _problem(_failure_of(error))

    def _masked(self, response: Response) -> Response:
        """Return an answer without the secrets that were declared, or that the agents have; streams mask their events."""
        exit_ = self.operations.exit
        if "json" not in (response.media_type or "") or exit_.is_open:
            return response
        document = parse_json(bytes(response.body))
        masked = exit_.mask_document(document)
        if masked is not document:
            response.body = format_json(masked)
            response.headers["content-length"] = str(len(response.body))
        return response

    async def _principal(self, request: Request) -> Principal:
        if self._authenticate is None:
            return LOCAL_USER
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        principal = self._authenticate(token.strip()) if kind.lower() == "bearer" else None
        if inspect.isawaitable(principal):
            principal = await principal
        if principal is None:
            challenge = {"www-authenticate": "Bearer"}
            raise RequestRefused(401, "token_needed", "a valid token is needed: Authorization: Bearer …", challenge)
        return principal

    def kept_headers(self, request: Request) -> Mapping[str, str]:
        """Return the headers of a request that are recorded with the execution that it starts."""
        return {name: request.headers[name] for name in self._kept_headers if name in request.headers}

    async def body(self, request: Request) -> Any:
        """Return the JSON of a request's body; an empty body is an empty object.

        Raises:
            RequestRefused: it is not JSON, too large, or too slow.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in {"", "application/json"}:  # forms can be sent by any web page without a question of the browser
            raise RequestRefused(415, "not_json", "the body has the type application/json")
        chunks, size, limit = list[bytes](), 0, self.limits.body_bytes
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size <= limit:
                        chunks.append(chunk)
                    elif size > limit * _DROPPED:
                        break
        except TimeoutError:
            raise RequestRefused(408, "too_slow", "the body did not arrive in time", {"connection": "close"}) from None
        if size > limit:
            raise RequestRefused(413, "too_large", f"the body has more than {limit:,} bytes", {"connection": "close"})
        try:
            return parse_json(b"".join(chunks)) if size else {}
        except (ValueError, RecursionError):
            raise RequestRefused(400, "invalid_json", "the body is not JSON") from None

    @contextmanager
    def waiting(self, principal: Principal) -> Iterator[None]:
        """Let a principal wait in the block.

        Raises:
            RequestRefused: it has too many requests that wait; the status is 429.
        """
        if self._waits[principal.executions] >= self.limits.waits:
            many = f"{self.limits.waits} requests wait; ask again when one of them has its answer"
            raise RequestRefused(429, "too_many_waits", many, {"retry-after": "5"})
        self._waits[principal.executions] += 1
        try:
            yield
        finally:
            self._waits[principal.executions] -= 1

    # --- streams ------------------------------------------------------------------------------------------------

    def check_streams(self, principal: Principal) -> None:
        """Check that a principal may open another stream.

        Raises:
            RequestRefused: it has too many open ones; the status is 429.
        """
        if self._streams[principal.executions] >= self.limits.streams:
            many = f"{self.limits.streams} streams are open; close one of them"
            raise RequestRefused(429, "too_many_streams", many, {"retry-after": "5"})

    def stream(
        self, principal: Principal, events: AsyncGenerator[ServerEvent | None, None], run: AgUiEvents | None
    ) -> Response:
        """Return an answer that sends events as they happen, in the format of AG-UI if a run is given.

        Raises:
            RequestRefused: the principal has too many open streams.
        """
        self.check_streams(principal)
        self._streams[principal.executions] += 1

        def release() -> None:
            self._streams[principal.executions] -= 1

        return _EventStream(events, run, self.operations, self.limits.send_seconds, release)


class _EventStream(Response):
    """Events as they happen (`text/event-stream`), until they end, the client leaves, or the server shuts down."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[ServerEvent | None, None],
        run: AgUiEvents | None,
        operations: Operations,
        send_seconds: float,
        release: Callable[[], None],
    ) -> None:
        super().__init__(headers={**_NOT_CACHED, "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events, self._run, self._closing = events, run, operations.closing
        self._mask = operations.exit.mask_document
        self._send_seconds, self._release = send_seconds, release

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:  # noqa: ARG002  # of ASGI
        """Send the events."""
        sending = asyncio.ensure_future(self._send_events(send))
        gone = asyncio.ensure_future(_wait_for_disconnect(receive))
        closing = asyncio.ensure_future(self._closing.wait())
        tasks = (sending, gone, closing)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if closing.done() and not sending.done() and not gone.done():
                sending.cancel()
                await asyncio.wait((sending,))
                await self._send(send, f"retry: {_RETRY_MS}\n: the server shuts down\n\n".encode(), is_last=True)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._release()
        if not sending.cancelled() and (error := sending.exception()) is not None:
            if not isinstance(error, TimeoutError):
                logger.error("a stream of events has failed", exc_info=error)
            # Without an end of the body, the client sees that the answer is incomplete and follows again.
            raise ClientDisconnect

    async def _send_events(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send(send, f"retry: {_RETRY_MS}\n\n".encode())
        async with aclosing(self._events) as events:
            count = 0
            async for event in events:
                if chunk := self._encode(event):
                    await self._send(send, chunk)
                count += 1
                if not count % _SLICE:  # what is sent to a fast client, and what is not sent, never waits
                    await asyncio.sleep(0)
                if self._run is not None and self._run.is_over:
                    break
        await self._send(send, b"", is_last=True)

    async def _send(self, send: Send, chunk: bytes, *, is_last: bool = False) -> None:
        async with asyncio.timeout(self._send_seconds):
            await send({"type": "http.response.body", "body": chunk, "more_body": not is_last})

    def _encode(self, event: ServerEvent | None) -> bytes:
        if event is None:
            return b": waiting\n\n"
        if self._run is None:
            return _sse(self._mask(event.data), event.type, event.cursor or event.sequence)
        translated = [self._mask(data) for data in self._run.translate(event)]
        # Only the last event of a record has its number: a client that has missed one of them gets all of them again.
        numbers = [0] * (len(translated) - 1) + [event.sequence]
        return b"".join([_sse(data, "", number) for data, number in zip(translated, numbers, strict=False)])


def _sse(data: Mapping[str, Any], name: str, position: int | str) -> bytes:
    lines = [f"id: {position}\n".encode() if position else b"", f"event: {name}\n".encode() if name else b""]
    return b"".join([*lines, b"data: ", format_json(data), b"\n\n"])


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# --- handlers ---------------------------------------------------------------------------------------------------------


async def _start(application: ServerApplication, request: Request, principal: Principal) -> Response:
    body, key = await application.body(request), request.headers.get("idempotency-key", "")
    headers = application.kept_headers(request)
    execution, is_new = await application.operations.start(principal, body, key, headers=headers)
    status = 202 if execution["status"] == QUEUED else 201 if is_new else 200
    return _json(execution, status, _location(execution))


def _query(request: Request) -> ExecutionQuery:
    """Return what a list is to be of, by the parameters of a request."""
    given = request.query_params
    doubts = given.get("doubts", "false")
    if doubts not in {"true", "false"}:
        raise RequestRefused(422, "invalid_parameter", f"`doubts` is true or false, not {doubts!r:.50}")
    return ExecutionQuery(
        agent_name=given.get("agent_name", ""),
        since=_time(given.get("since", ""), "since"),
        before=_time(given.get("before", ""), "before"),
        text=given.get("text", ""),
        principal=given.get("asked_by", ""),
        tags=tuple((name, value) for name, _, value in (tag.partition("=") for tag in given.getlist("tag"))),
        has_doubts=doubts == "true",
    )


def _time(text: str, name: str) -> datetime | None:
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        time = None
    if time is None or time.tzinfo is None:
        said = "a time with an offset, such as 2026-05-31T12:00:00Z"
        raise RequestRefused(422, "invalid_parameter", f"`{name}` is {said}, not {text!r:.50}")
    return time


async def _list(application: ServerApplication, request: Request, principal: Principal) -> Response:
    query = request.query_params
    limit = _number(query.get("limit", "50"), "limit")
    status, after, session = [query.get(name, "") for name in ("status", "after", "session")]
    try:
        found = await application.operations.list(
            principal, status, limit, after, session=session, query=_query(request)
        )
        return _json(found)
    except ConfigurationError as error:
        raise RequestRefused(422, "invalid_parameter", f"`after` is the `next` of a list: {error}") from error


async def _fetch(application: ServerApplication, request: Request, principal: Principal) -> Response:
    wait = _number(request.query_params.get("wait", "0"), "wait")
    with application.waiting(principal) if wait else nullcontext():
        return _json(await application.operations.fetch(principal, _id(request), wait))


async def _state(application: ServerApplication, request: Request, principal: Principal) -> Response:
    document = await application.operations.state(principal, _id(request))
    return Response(document, media_type="application/json", headers=_NOT_CACHED)


async def _events(application: ServerApplication, request: Request, principal: Principal) -> Response:
    _refuse_head(request)
    query = request.query_params
    after = _number(request.headers.get("last-event-id") or query.get("after", "0"), "Last-Event-ID")
    form = query.get("format", "")
    if form not in {"", "ag-ui"}:
        raise RequestRefused(422, "invalid_parameter", "`format` is ag-ui, or left out")
    # What AG-UI says about an event depends on those before it.
    start, catches_up = (0, True) if form else (after, False)
    head, events = await application.operations.follow(principal, _id(request), start, catches_up=catches_up)
    if head.status.is_terminal and after >= head.record_count:
        return Response(status_code=204)  # ends the attempts of an EventSource to connect again
    run = AgUiEvents(head.agent_id, head.execution_id, after, is_new=after == 0) if form else None
    return application.stream(principal, events, run)


async def _decide(application: ServerApplication, request: Request, principal: Principal) -> Response:
    body = await application.body(request)
    execution, has_continued = await application.operations.decide(principal, _id(request), body)
    return _json(execution, 200 if has_continued else 202)


async def _list_grants(application: ServerApplication, _: Request, principal: Principal) -> Response:
    return _json(await list_grants(application.operations, principal))


async def _revoke_grant(application: ServerApplication, request: Request, principal: Principal) -> Response:
    return _json(await revoke_grant(application.operations, principal, _id(request)))


async def _delete_session(application: ServerApplication, request: Request, principal: Principal) -> Response:
    return _json(await delete_own_session(application.operations, principal, _id(request)))


async def _send_message(application: ServerApplication, request: Request, principal: Principal) -> Response:
    await application.operations.send(principal, _id(request), await application.body(request))
    return Response(status_code=202)


async def _stop(application: ServerApplication, request: Request, principal: Principal) -> Response:
    await application.operations.stop(principal, _id(request), await application.body(request))
    return Response(status_code=202)


async def _fork(application: ServerApplication, request: Request, principal: Principal) -> Response:
    execution = await application.operations.fork(principal, _id(request), await application.body(request))
    return _json(execution, 201, _location(execution))


async def _trace(application: ServerApplication, request: Request, principal: Principal) -> Response:
    document = await application.traces.document(principal, _id(request))
    return _answer(await format_in_slices(document))


async def _trace_events(application: ServerApplication, request: Request, principal: Principal) -> Response:
    _refuse_head(request)
    cursor = request.headers.get("last-event-id") or request.query_params.get("after", "")
    events = await application.traces.follow(principal, _id(request), cursor)
    return Response(status_code=204) if events is None else application.stream(principal, events, None)


async def _trace_comparison(application: ServerApplication, request: Request, principal: Principal) -> Response:
    other = request.query_params.get("with", "")
    return _answer(await format_in_slices(await application.traces.comparison(principal, _id(request), other)))


async def _trace_page(application: ServerApplication, request: Request, principal: Principal) -> Response:  # noqa: ARG001  # a handler
    document, headers = application.traces.page(str(request.path_params.get("id", "")))
    return Response(document, headers={**_NOT_CACHED, **headers}, media_type="text/html")


async def _run_ag_ui(application: ServerApplication, request: Request, principal: Principal) -> Response:
    # A request that cannot follow the run must not have started it.
    principal.require(Scope.READ)
    application.check_streams(principal)
    body, headers = await application.body(request), application.kept_headers(request)
    run = await start_run(application.operations, principal, body, headers)
    _, events = await application.operations.follow(principal, run.execution_id, 0, catches_up=True)
    return application.stream(principal, events, AgUiEvents(run.thread_id, run.run_id, run.after))


async def _openapi(application: ServerApplication, request: Request, principal: Principal) -> Response:  # noqa: ARG001  # a handler
    return _json(openapi_document())


async def _health(application: ServerApplication, request: Request, principal: Principal) -> Response:  # noqa: ARG001  # a handler
    return _json({"status": "ok"})


HANDLERS: Mapping[tuple[str, str], Handler] = {
    ("POST", "/executions"): _start,
    ("GET", "/executions"): _list,
    ("GET", "/executions/{id:path}/trace/events"): _trace_events,
    ("GET", "/executions/{id:path}/trace/comparison"): _trace_comparison,
    ("GET", "/executions/{id:path}/trace"): _trace,
    ("GET", "/executions/{id:path}/events"): _events,
    ("GET", "/executions/{id:path}/state"): _state,
    ("POST", "/executions/{id:path}/decisions"): _decide,
    ("POST", "/executions/{id:path}/forks"): _fork,
    ("POST", "/executions/{id:path}/messages"): _send_message,
    ("POST", "/executions/{id:path}/stop"): _stop,
    ("GET", "/executions/{id:path}"): _fetch,
    ("GET", "/grants"): _list_grants,
    ("POST", "/grants/{id}/revoke"): _revoke_grant,
    ("DELETE", "/sessions/{id}"): _delete_session,
    ("POST", "/ag-ui"): _run_ag_ui,
    ("GET", "/trace"): _trace_page,
    ("GET", "/trace/{id:path}"): _trace_page,
    ("GET", "/openapi.json"): _openapi,
    ("GET", "/health"): _health,
}
"""The routes, in the order in which they are tried. Ids may hold slashes: those of sub-agents do."""

_PUBLIC = frozenset({_openapi, _health, _trace_page})


def _refuse_head(request: Request) -> None:
    if request.method == "HEAD":  # it would hold a stream whose events nobody sees
        raise RequestRefused(405, "method_not_allowed", "a stream of events is asked for with GET", {"allow": "GET"})


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _number(text: str, name: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 12):  # noqa: PLR2004  # far beyond any sequence number
        raise RequestRefused(422, "invalid_parameter", f"`{name}` is a whole number")
    return int(text)


# --- answers ----------------------------------------------------------------------------------------------------------


def _json(data: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return _answer(format_json(data), status, headers)


def _answer(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, {**_NOT_CACHED, **(headers or {})}, media_type="application/json")


async def format_in_slices(data: Any) -> bytes:
    """Format JSON with long lists, such as a trace, while other tasks have a turn after each thousand of their items."""
    if isinstance(data, Mapping):
        entries = [format_json(name) + b":" + await format_in_slices(value) for name, value in data.items()]
        return b"{" + b",".join(entries) + b"}"
    if not isinstance(data, list):
        return format_json(data)
    if len(data) <= _MAX_NESTED:  # such as the executions of a trace
        return b"[" + b",".join([await format_in_slices(item) for item in data]) + b"]"
    slices = []
    for start in range(0, len(data), _ITEMS):
        slices.append(format_json(data[start : start + _ITEMS])[1:-1])
        await asyncio.sleep(0)
    return b"[" + b",".join(slices) + b"]"


def _location(execution: Mapping[str, Any]) -> dict[str, str]:
    # The id may be one that a program has chosen, with any characters.
    return {"location": f"/executions/{quote(execution['id'], safe=_ID_CHARACTERS)}"}


def _failure_of(error: JournalError | ClusterError | DependenciesFailed) -> RequestRefused:
    """Return what a client is told of an error; its text may hold what clients must not see."""
    if isinstance(error, DependenciesFailed):
        code, detail = "dependencies_failed", "the dependencies of the execution could not be made"
        return RequestRefused(503, code, f"{detail}; the log of the server has the reason")
    return RequestRefused(500, "damaged", "what is recorded cannot be read; the log of the server has the reason")


def _problem(refused: RequestRefused) -> Response:
    # It may quote a text of the request that has lone surrogates, which not every reader of JSON accepts.
    detail = refused.detail.encode("utf-8", "replace").decode()
    content = format_json({"type": "about:blank", "status": refused.status, "code": refused.code, "detail": detail})
    return Response(content, refused.status, {**_NOT_CACHED, **refused.headers}, media_type="application/problem+json")


async def _answer_http_error(_: Request, error: Exception) -> Response:  # of Starlette
    """Answer for a path or method that is no route."""
    assert isinstance(error, HTTPException)  # noqa: S101  # as registered
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(error.status_code, "invalid_request")
    return _problem(RequestRefused(error.status_code, code, "there is nothing here", error.headers))


async def _answer_failure(_: Request, __: Exception) -> Response:  # of Starlette
    """Answer for an error of the server, which its log has; the text of the error may hold what clients must not see."""
    return _problem(RequestRefused(500, "server_error", "the server has failed; its log has the reason"))


def _trace_of(request: Request) -> dict[str, str]:
    """Return the headers of a caller's trace; none where instrumentation of the server has taken them already."""
    if "traceparent" not in request.headers or trace_headers():
        return {}
    # Without `baggage`, which could be anything.
    return {name: request.headers[name] for name in ("traceparent", "tracestate") if name in request.headers}


def _with_headers(send: Send, headers: Mapping[str, str]) -> Send:
    """Return a `send` that adds headers to the answer."""
    if not headers:
        return send
    added = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def send_with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return send_with_headers
