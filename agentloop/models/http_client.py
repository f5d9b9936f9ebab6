"""HTTP requests through kept connections, or through any client with the interface of httpx."""

from __future__ import annotations

import asyncio
import sys
import zlib
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Hashable,
    Iterable,
    Iterator,
    Mapping,
)
from contextlib import contextmanager, suppress
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from math import inf
from typing import Any, TypeAlias, TypeVar

import httpx
from attrs import field, frozen

from agentloop._shielding import call_in_thread
from agentloop.errors import BadRequest, ConfigurationError, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.models.config import LLMConfig, Transport
from agentloop.models.connections import (
    MAX_IDLE_CONNECTIONS,
    ConnectionPool,
    HttpRequest,
    LoopConnections,
    MaskedHeaders,
    ModelConnection,
    ServerAddress,
    continue_work,
    proxied_opener,
    proxies,
    tls_context,
)
from agentloop.models.wire_formats.errors import request_id, truncation_error
from agentloop.values.bounds import DEFAULT_BOUNDS, Bounds
from agentloop.values.secrets import Secret
from agentloop.values.value import Value

T = TypeVar("T")

_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip",
    "user-agent": "agentloop",
}


class HttpClient:
    """Sends requests and translates the errors of httpx to `InferenceError`. Redirects are not followed.

    Args:
        config: the base URL, headers, timeouts and limits; they override those of a supplied client.
        client: an `httpx.AsyncClient` or a client with the same interface, which the caller closes. By default, connections
            are opened as needed, and kept by the running event loop for the next client of the same address.
        limits: the limits on each response; by default, those of the configuration and of `DEFAULT_BOUNDS`.

    Raises:
        ConfigurationError: when the base URL or a proxy in the environment is invalid.
    """

    def __init__(self, config: LLMConfig, client: Any = None, limits: TransferLimits | None = None) -> None:
        self._config = config
        self._limits = limits or TransferLimits.of(config, DEFAULT_BOUNDS)
        self._client = client
        self._package = _package_of(client)
        self._urls: dict[str, Any] = {}
        url = self._parse_url("")
        self._headers = MaskedHeaders({**_HEADERS, **config.auth_headers()})
        # A gateway may have an authorization of its own.
        self._signer = None if "authorization" in config.headers else config.signer
        # The other timeouts are those of `TransferLimits`, which hold for any client.
        timeouts = {"connect": config.connect_timeout, "read": None, "write": None, "pool": None}
        self._extensions = {"timeout": timeouts}
        self._own_client: httpx.AsyncClient | None = None
        self._pool: ConnectionPool | None = None
        self._is_closed = False
        self._address_key: Hashable | None = None
        if client is None and _wrap_transport is not None:
            transport = _wrap_transport(httpx.AsyncHTTPTransport(verify=tls_context()))
            self._client = self._own_client = httpx.AsyncClient(transport=transport)
        elif client is None:
            self._address_key, self._pool = _pool_for(config, url)
            self._pool.hold()

    @property
    def address_key(self) -> Hashable | None:
        """What `close_idle_connections` knows the address by; None with a supplied client."""
        return self._address_key

    async def post(
        self, path: str, headers: Mapping[str, str], body: bytes, ends_at: float = inf, *, key: Secret | None = None
    ) -> RawResponse:
        """Send a request and read the complete response.

        Args:
            path: the path of the endpoint, relative to the base URL.
            headers: headers to send in addition to those of the configuration.
            body: the body.
            ends_at: when the response must be complete, in the time of the event loop.
            key: the key to send, if the configuration has a function that returns it.

        Raises:
            BadRequest: when the headers are not valid HTTP.
            ProviderUnavailable: when the connection fails, or a timeout expires.
            InvalidResponse: when the response breaks off, which is retryable, is not HTTP, or exceeds the size limit.
        """
        response = await self.open(path, headers, body, ends_at, key=key)
        try:
            return await response.read()
        finally:
            await response.aclose()

    async def open(
        self,
        path: str,
        headers: Mapping[str, str],
        body: bytes,
        ends_at: float = inf,
        *,
        key: Secret | None = None,
        method: str = "POST",
    ) -> OpenResponse:
        """Send a request and wait for the head of the response; the caller reads the body and closes the response.

        Args:
            path: the path of the endpoint, relative to the base URL.
            headers: headers to send in addition to those of the configuration.
            body: the body.
            ends_at: when the response must be complete, in the time of the event loop.
            key: the key to send, if the configuration has a function that returns it.
            method: the HTTP method.

        Raises:
            BadRequest: when the headers are not valid HTTP.
            ProviderUnavailable: when the connection fails, or a timeout expires.
            InvalidResponse: when the response is not HTTP.
        """
        limits, address = self._limits, self._config.address
        all_headers = self._headers if key is None else self._headers.with_others(self._config.auth_headers(key))
        waits, response = _Waits(ends_at), None
        try:
            work = self._send(method, path, all_headers.with_others(headers), body, waits)
            response = await waits.within(limits.first_byte, work)
        except _Expired as expired:
            raise limits.expired_error(expired, f"no response from {address} for") from expired
        except self._package.HTTPError as error:
            raise self._translate(without_frames(error)) from error
        finally:
            if response is None:
                waits.close()
        return response

    async def _send(self, method: str, path: str, headers: MaskedHeaders, body: bytes, waits: _Waits) -> OpenResponse:
        if self._signer is not None:
            url = self._config.url(path)
            headers = headers.with_others(await call_in_thread(self._signer.sign, method, url, headers.reveal(), body))
        if self._pool is not None:
            request = HttpRequest(self._url(path), headers, body, self._config.connect_timeout, method)
            return await self._open_pooled(self._pool, request, waits)
        client, url = self._client, self._config.url(path)
        built = client.build_request(method, url, headers=headers.reveal(), content=body, extensions=self._extensions)
        response = await client.send(built, stream=True, follow_redirects=False)
        return OpenResponse(response, self._package, self._limits, waits)

    async def aclose(self) -> None:
        """Let go of the connections, of which some are kept for later; a supplied client remains open. Idempotent."""
        if self._own_client is not None:
            await self._own_client.aclose()
        if self._pool is not None and not self._is_closed:
            self._is_closed = True
            await self._pool.let_go()

    async def _open_pooled(self, pool: ConnectionPool, request: HttpRequest, waits: _Waits) -> OpenResponse:
        connection = await pool.acquire()
        try:
            response = await connection.send(request)
        # Also on cancellation: the connection is in an unknown state and must not be reused.
        except BaseException:
            await pool.release(connection, is_usable=False)
            raise
        release = partial(pool.release, connection)
        return OpenResponse(response, self._package, self._limits, waits, release)

    def _parse_url(self, path: str) -> Any:
        try:
            return _parsed_url(self._package, self._config.url(path))
        except self._package.InvalidURL as error:
            raise ConfigurationError(f"{self._config.address} is not a valid URL: {error}") from error

    def _url(self, path: str) -> Any:
        # Parsing a URL costs more than the rest of a request, and there are few paths.
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._parse_url(path)
        return url

    def _translate(self, error: Exception) -> InferenceError:
        """Return the error for a request without a response."""
        package, address, message = self._package, self._config.address, _message_of(error)
        if isinstance(error, package.ConnectTimeout):
            return ProviderUnavailable(f"no connection to {address} within {self._config.connect_timeout:g} seconds")
        if isinstance(error, package.TimeoutException):
            return ProviderUnavailable(f"no response from {address} in time: {message}")
        if isinstance(error, package.ConnectError):
            return ProviderUnavailable(
                f"no connection to {address}: {message}; is the address correct and the server running?"
            )
        if isinstance(error, package.LocalProtocolError):
            return BadRequest(f"the request to {address} is not valid HTTP: {message}")
        # "Server disconnected without sending a response" is a RemoteProtocolError too, but worth another attempt.
        if isinstance(error, package.RemoteProtocolError) and "disconnected" not in message:
            return InvalidResponse(f"the response from {address} is not HTTP: {message}")
        return ProviderUnavailable(f"the connection to {address} failed: {message}")


# --- limits and secrets ----------------------------------------------------------------------------------------------


E = TypeVar("E", bound=BaseException)


def without_frames(error: E) -> E:
    """Remove from an error, and from its causes, what may hold the key: the request and the tracebacks.

    The frames of HTTP libraries have the headers in local variables, which some error trackers record.
    """
    links: list[BaseException] = [error]
    for link in links:
        link.__traceback__ = None
        if getattr(link, "_request", None) is not None:
            link.request = None  # type: ignore[attr-defined]  # an error of httpx
        links += [cause for cause in (link.__cause__, link.__context__) if cause is not None and cause not in links]
    return error


class _Expired(Exception):  # internal to this file; becomes a ProviderUnavailable
    """A time limit has expired: `seconds` of it, or the deadline of the inference."""

    def __init__(self, seconds: float, *, is_deadline: bool) -> None:
        super().__init__(seconds)
        self.seconds = seconds
        self.is_deadline = is_deadline


@frozen(eq=False, repr=False, kw_only=True)
class TransferLimits(Value):
    """The limits on one response: those of the configuration, or else of `Bounds`.

    Attributes:
        address: the address of the service, for errors.
        first_byte: seconds until the first byte of the body, or until the head.
        idle: seconds between two chunks of the body.
        total: seconds of the inference.
        size: bytes of the body, before and after decompression.
        timeout_name: the setting that limits the waits.
        total_name: the setting that limits the inference.
        size_name: the setting that limits the size.
    """

    address: str
    first_byte: float
    idle: float
    total: float
    size: float
    timeout_name: str
    total_name: str
    size_name: str

    @classmethod
    def of(cls, config: LLMConfig, bounds: Bounds) -> TransferLimits:
        """Return the limits of a configuration; what it does not set is taken from the bounds."""
        timeout, deadline, size = config.timeout, config.deadline, config.max_response_bytes
        return cls(
            address=config.address,
            first_byte=bounds.first_byte_seconds if timeout is None else timeout,
            idle=bounds.idle_seconds if timeout is None else timeout,
            total=bounds.inference_seconds if deadline is None else deadline,
            size=bounds.response_bytes if size is None else size,
            timeout_name="Bounds.first_byte_seconds and Bounds.idle_seconds" if timeout is None else "timeout",
            total_name="Bounds.inference_seconds" if deadline is None else "deadline",
            size_name="Bounds.response_bytes" if size is None else "max_response_bytes",
        )

    def expired_error(self, expired: _Expired, what: str, status: int | None = None) -> ProviderUnavailable:
        """Return the error for an expired limit.

        Args:
            expired: what expired.
            what: the start of the message for a wait.
            status: the HTTP status, once there is one.
        """
        if expired.is_deadline:
            return self.deadline_error(status)
        reason = f"{what} {expired.seconds:g} seconds; raise {self.timeout_name} to wait longer"
        return ProviderUnavailable(reason, status=status)

    def deadline_error(self, status: int | None = None) -> ProviderUnavailable:
        """Return the error for an inference that takes too long."""
        reason = f"no complete response from {self.address} within {self.total:g} seconds"
        return ProviderUnavailable(f"{reason}; raise {self.total_name} to wait longer", status=status)


class _Waits:
    """Limits the waits for one response, which come one after the other, by one timer of the event loop.

    A wait that ends in time leaves the timer where it is; it is moved when it fires. A timer for each wait would cost a
    streamed chunk about as much as its decoding.

    Args:
        ends_at: when the response must be complete, in the time of the event loop.
    """

    __slots__ = ("_ends_at", "_fires_at", "_is_over", "_loop", "_task", "_timer", "_wait_ends_at")

    def __init__(self, ends_at: float) -> None:
        self._ends_at = ends_at
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = inf  # kept here: not every handle of uvloop knows its time
        self._task: asyncio.Task[Any] | None = None
        self._wait_ends_at = inf
        self._is_over = False

    def end_within(self, seconds: float) -> None:
        """Let the response be complete within this many seconds from now, if not earlier."""
        self._ends_at = min(self._ends_at, self._loop.time() + seconds)

    async def within(self, seconds: float, work: Awaitable[T]) -> T:
        """Await work for this many seconds, and no longer than until the response must be complete.

        Raises:
            _Expired: when the time is over.
        """
        self._wait_ends_at = end = min(self._loop.time() + seconds, self._ends_at)
        if end < self._fires_at:
            self._start(end)
        self._task = task = asyncio.current_task()
        assert task is not None  # noqa: S101  # whatever is awaited is awaited in a task
        cancellations, self._is_over = task.cancelling(), False
        try:
            return await work
        except asyncio.CancelledError as error:
            # A cancellation of the task that came meanwhile has precedence.
            if not self._is_over or task.cancelling() > cancellations + 1:
                raise
            is_deadline = end == self._ends_at or self._loop.time() >= self._ends_at
            raise _Expired(seconds, is_deadline=is_deadline) from without_frames(error)
        finally:
            self._task = None
            if self._is_over:
                task.uncancel()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._fires_at = None, inf

    def _start(self, at: float) -> None:
        self.close()
        self._timer, self._fires_at = self._loop.call_at(at, self._fire), at

    def _fire(self) -> None:
        fired_at = self._fires_at
        self.close()
        if self._task is None or self._wait_ends_at == inf:  # the next wait that has an end starts the timer again
            return
        if fired_at < self._wait_ends_at:
            self._start(self._wait_ends_at)
            return
        self._is_over = True
        self._task.cancel()


# --- responses -----------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class RawResponse(Value):
    """A complete HTTP response.

    Attributes:
        status: the status.
        headers: the headers, by lower-case names.
        body: the complete body.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=lambda body: f"<{len(body)} bytes>")


class OpenResponse:
    """An HTTP response whose body is not yet read. It can be read once, completely or in chunks, and must be closed.

    Args:
        response: the response of the client.
        package: the package that defines the errors of the client.
        limits: the limits on time and size.
        waits: limits the waits for the response.
        release: returns the connection to its pool, and says whether it is usable; None when the client does that itself.
    """

    __slots__ = ("_is_complete", "_is_end_expected", "_limits", "_package", "_release", "_response", "_waits")

    def __init__(
        self,
        response: Any,
        package: Any,
        limits: TransferLimits,
        waits: _Waits,
        release: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self._response = response
        self._package = package
        self._limits = limits
        self._waits = waits
        self._release = release
        self._is_complete = False
        self._is_end_expected = False

    @property
    def status(self) -> int:
        """The HTTP status."""
        # The response is of an unknown package, so its attributes have no types.
        status: int = self._response.status_code
        return status

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers, by lower-case names."""
        headers: Mapping[str, str] = self._response.headers
        return headers

    def expect_end(self) -> None:
        """Wait for the end of the body only as long as it takes to arrive, and do without it: nothing more matters.

        Some servers never send it, or close the connection in its place.
        """
        if not self._is_end_expected:
            self._is_end_expected = True
            self._waits.end_within(_END_SECONDS)

    async def read(self) -> RawResponse:
        """Read the complete body.

        Raises:
            ProviderUnavailable: when a time limit expires.
            InvalidResponse: when the body breaks off, exceeds the size limit, or is compressed in an unsupported way.
        """
        chunks = [chunk async for chunk in self.chunks()]
        return RawResponse(self.status, self.headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body, decompressed, as it arrives.

        Raises:
            ProviderUnavailable: when a time limit expires.
            InvalidResponse: when the body breaks off, exceeds the size limit, or is compressed in an unsupported way.
        """
        received, body = self._open_body()
        seconds = self._limits.first_byte
        size = 0
        try:
            while (chunk := await self._next(received, seconds)) is not None:
                seconds = self._limits.idle
                for piece in body.feed(chunk):
                    # Chunks that have arrived, and the pieces of a compressed one, come without a wait: other tasks go on between them.
                    size += len(piece)
                    if size > _PIECE:
                        size = len(piece)
                        await asyncio.sleep(0)
                    yield piece
            if not body.is_complete:
                raise self._broken("the compressed body is incomplete")
        except (_Expired, _TooLarge, zlib.error, self._package.HTTPError) as error:
            if not self._is_end_expected:
                raise self._translate(without_frames(error)) from error
        else:
            # Only a connection whose response was read completely can be reused.
            self._is_complete = True
        finally:
            if not self._is_complete:
                await self._abandon(received)

    def _open_body(self) -> tuple[AsyncIterator[bytes], _Body]:
        """Return the bytes of the body, and what decompresses them.

        Raises:
            InvalidResponse: for several codings, each of which multiplies the size, and for one that was not asked for.
        """
        coding = self.headers.get("content-encoding", "").strip().lower() or _IDENTITY
        if coding not in _WINDOW_BITS:
            raise self._invalid(
                f"the response from {self._limits.address} is compressed as {coding[:_MAX_CODING]!r}; only gzip is supported"
            )
        # A body that was complete from the start, as those of mock transports are, is decompressed already. Others are read as
        # they were sent, because HTTP clients decompress without a limit.
        if self._response.is_stream_consumed:
            return self._response.aiter_bytes(), _Body(None, self._limits.size)
        return self._response.aiter_raw(), _Body(_WINDOW_BITS[coding], self._limits.size)

    async def _next(self, received: AsyncIterator[bytes], seconds: float) -> bytes | None:
        """Return the next chunk, or None at the end of the body."""
        # Several chunks usually arrive at once. Those after the first take no time, and need no timer.
        try:
            steps = anext(received).__await__()
            try:
                waits_for = next(steps)
            except StopIteration as ended:
                chunk: bytes = ended.value
                return chunk
            return await self._waits.within(seconds, continue_work(steps, waits_for))
        except StopAsyncIteration:
            return None

    async def aclose(self) -> None:
        """Close the response. Idempotent. The connection is reused only if the body was read completely."""
        self._waits.close()
        if self._release is None:
            await self._response.aclose()
            return
        # Cleared first, so that a second call does not release the connection twice.
        release, self._release = self._release, None
        try:
            await self._response.aclose()
        finally:
            await release(self._is_complete)

    async def _abandon(self, body: AsyncIterator[bytes]) -> None:
        """Close the response before the end of its body."""
        # The body is read through nested generators. If they were just dropped, the event loop would have to finalize each in
        # a task of its own. Reading on after the connection is closed finalizes them here.
        await self._response.aclose()
        with suppress(Exception):  # any error of reading from a closed connection
            async for _ in body:
                continue

    def _translate(self, error: Exception) -> InferenceError:
        """Return the error for a body that cannot be read to its end."""
        limits = self._limits
        if isinstance(error, _Expired):
            expired = limits.expired_error(error, f"the response from {limits.address} stalled for", self.status)
            expired.request_id = request_id(self.headers)
            return expired
        if isinstance(error, _TooLarge):
            return self._invalid(
                f"the response is larger than {limits.size:,} bytes; raise {limits.size_name} to allow it"
            )
        if isinstance(error, zlib.error | self._package.DecodingError):
            return self._invalid(f"the response from {limits.address} cannot be decompressed: {_message_of(error)}")
        if isinstance(error, self._package.TimeoutException):
            reason = f"the response from {limits.address} stalled: {_message_of(error)}"
            return ProviderUnavailable(reason, status=self.status, request_id=request_id(self.headers))
        return self._broken(_message_of(error))

    def _invalid(self, reason: str) -> InvalidResponse:
        return InvalidResponse(reason, status=self.status, request_id=request_id(self.headers))

    def _broken(self, problem: str) -> InvalidResponse:
        # Unlike other invalid responses, a broken connection is transient.
        return truncation_error(
            f"the response from {self._limits.address} broke off: {problem}", self.status, self.headers
        )


_IDENTITY = "identity"
_WINDOW_BITS: Mapping[str, int | None] = {_IDENTITY: None, "gzip": 31, "x-gzip": 31, "deflate": 15}
"""The format of each supported coding, in the numbers of zlib."""
_PIECE = 64 * 1024
_END_SECONDS = 0.5
"""How long to wait for the end of a complete body; without it, the connection cannot be used again."""
_MAX_CODING = 50


class _TooLarge(Exception):  # internal to this file; becomes an InvalidResponse
    """A body exceeds the size limit."""


class _Body:
    """Decompresses a body in pieces of bounded size, so that its size is checked before it is in memory.

    Args:
        window_bits: the format of the compressed data, in the numbers of zlib; None if it is not compressed.
        limit: the maximum size, in bytes; it applies before and after decompression.
    """

    __slots__ = ("_decompressor", "_limit", "_received", "_size")

    def __init__(self, window_bits: int | None, limit: float) -> None:
        self._decompressor = None if window_bits is None else zlib.decompressobj(window_bits)
        self._limit = limit
        self._received = 0
        self._size = 0

    @property
    def is_complete(self) -> bool:
        """Whether the end of the compressed data was reached; an empty body has none."""
        return self._decompressor is None or self._decompressor.eof or not self._received

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Add bytes and return what they decompress to, piece by piece; bytes after the end are ignored.

        Raises:
            _TooLarge: when the body exceeds the limit.
            zlib.error: for bytes that are not compressed data.
        """
        self._received += len(data)
        if self._received > self._limit:
            raise _TooLarge
        return (data,) if self._decompressor is None else self._decompress(data, self._decompressor)

    def _decompress(self, data: bytes, decompressor: zlib._Decompress) -> Iterator[bytes]:
        while data and not decompressor.eof:
            piece = decompressor.decompress(data, _PIECE)
            data = decompressor.unconsumed_tail
            self._size += len(piece)
            if self._size > self._limit:
                raise _TooLarge
            if piece:
                yield piece


def _message_of(error: Exception) -> str:
    return str(error) or type(error).__name__


# --- connections ---------------------------------------------------------------------------------------------------


WrapTransport: TypeAlias = Callable[[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport]
"""Returns a transport for all requests, which may use the one that it receives."""

_wrap_transport: WrapTransport | None = None


@contextmanager
def wrapped_transports(wrap: WrapTransport) -> Iterator[None]:
    """Let connections that are opened within a block, in any thread, be wrapped; those of supplied clients are not.

    Args:
        wrap: returns the transport that requests are sent with.
    """
    global _wrap_transport  # noqa: PLW0603  # a run may open its connections in any thread
    before, _wrap_transport = _wrap_transport, wrap
    try:
        yield
    finally:
        _wrap_transport = before


def is_recorded() -> bool:
    """Return whether the requests of this process pass a transport that records or replays them."""
    return _wrap_transport is not None


@cache
def _default_transport() -> Transport:
    return "httpx" if find_spec("httptools") is None else "httptools"


def _pool_for(config: LLMConfig, url: httpx.URL) -> tuple[Hashable, ConnectionPool]:
    """Return the pool of the address in the running event loop, and what it is known by there."""
    # Which proxy it is, by scheme, is left to httpx.
    env = proxies(url)
    transport = "httpx" if env else config.transport or _default_transport()
    key = (transport, url.scheme, url.netloc, env)
    connections = LoopConnections.of_running_loop()
    if connections is None:
        return key, ConnectionPool(_opener(transport, url, is_proxied=bool(env)), 0)
    pool = connections.find(key)
    if pool is None:
        pool = ConnectionPool(_opener(transport, url, is_proxied=bool(env)), MAX_IDLE_CONNECTIONS)
        connections.add(key, pool)
    return key, pool


def _opener(transport: Transport, url: httpx.URL, *, is_proxied: bool) -> Callable[[], ModelConnection]:
    if is_proxied:
        return proxied_opener()
    address = ServerAddress.of(url)
    if transport == "httptools":
        from agentloop.models.httptools_connection import HttptoolsConnection

        return partial(HttptoolsConnection, address)
    from agentloop.models.httpcore_connection import HttpcoreConnection

    return partial(HttpcoreConnection, address)


# --- supplied clients ----------------------------------------------------------------------------------------------


def in_process_client(respond: Callable[[str, bytes], tuple[int, Mapping[str, str], bytes]]) -> httpx.AsyncClient:
    """Return an httpx client whose requests never leave the process.

    Args:
        respond: returns status, headers and body for the path and the body of a request.
    """

    def handle(request: httpx.Request) -> httpx.Response:
        status, headers, body = respond(request.url.path, request.content)
        return httpx.Response(status, headers=headers, content=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(handle))


@lru_cache(maxsize=256)
def _parsed_url(package: Any, url: str) -> Any:
    return package.URL(url)


def _package_of(client: Any) -> Any:
    """Return the package that defines a client and its errors, such as httpx2; httpx for a client of any other kind."""
    # The base classes come first, since a subclass may be defined in a module of the user.
    for base in reversed(type(client).__mro__):
        package = sys.modules.get(base.__module__.partition(".")[0])
        if all(hasattr(package, name) for name in ("AsyncClient", "HTTPError", "RemoteProtocolError", "InvalidURL")):
            return package
    return httpx
