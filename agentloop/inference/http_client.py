"""HTTP requests through httpx, or through any client with the same interface; the only module that imports httpx."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any
from urllib.request import getproxies

import httpx
from attrs import field, frozen

from agentloop.errors import BadRequest, ConfigurationError, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.errors import request_id
from agentloop.values.value import Value

_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "agentloop",
}
_MAX_IDLE_CONNECTIONS = 100
_IDLE_SECONDS = 60.0
_TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


class HttpClient:
    """Sends requests and translates the errors of httpx to `InferenceError`. Redirects are not followed.

    Args:
        config: the base URL, headers, timeouts and limits; they override those of a supplied client.
        client: an `httpx.AsyncClient` or a client with the same interface, which the caller closes. By default, connections
            are opened as needed and closed by `aclose`.

    Raises:
        ConfigurationError: when the base URL or a proxy in the environment is invalid.
    """

    def __init__(self, config: LLMConfig, client: Any = None) -> None:
        self._config = config
        self._client = client
        self._package = _package_of(client)
        self._urls: dict[str, Any] = {}
        self._host = self._parse_url("").netloc.decode("ascii")
        self._headers = {**_HEADERS, **config.auth_headers()}
        timeouts = {"connect": config.connect_timeout, "read": config.timeout, "write": config.timeout, "pool": None}
        self._extensions = {"timeout": timeouts}
        self._connections = None if client is not None else _open_connections(config)

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> RawResponse:
        """Send a request and read the complete response.

        Args:
            path: the path of the endpoint, relative to the base URL.
            headers: headers to send in addition to those of the configuration.
            body: the body.

        Raises:
            BadRequest: when the headers are not valid HTTP.
            ProviderUnavailable: when the connection fails, or a timeout expires.
            InvalidResponse: when the response breaks off, which is retryable, is not HTTP, or exceeds the size limit.
        """
        response = await self.open(path, headers, body)
        try:
            return await response.read()
        finally:
            await response.aclose()

    async def open(self, path: str, headers: Mapping[str, str], body: bytes) -> OpenResponse:
        """Send a request and wait for the head of the response; the caller reads the body and closes the response.

        Args:
            path: the path of the endpoint, relative to the base URL.
            headers: headers to send in addition to those of the configuration.
            body: the body.

        Raises:
            BadRequest: when the headers are not valid HTTP.
            ProviderUnavailable: when the connection fails, or a timeout expires.
            InvalidResponse: when the response is not HTTP.
        """
        # The headers of the wire format override those of the configuration.
        all_headers = {**self._headers, **headers} if headers else self._headers
        try:
            if isinstance(self._connections, ConnectionPool):
                return await self._open_pooled(self._connections, self._request(path, all_headers, body))
            # With a proxy or a supplied client, the client builds the request itself.
            client, url = self._connections or self._client, self._config.url(path)
            request = client.build_request("POST", url, headers=all_headers, content=body, extensions=self._extensions)
            response = await client.send(request, stream=True, follow_redirects=False)
        except self._package.HTTPError as error:
            error.request = None  # it contains the key
            raise self._translate(error) from error
        return OpenResponse(response, self._config, self._package)

    async def aclose(self) -> None:
        """Close the connections; a supplied client remains open."""
        if self._connections is not None:
            await self._connections.aclose()

    async def _open_pooled(self, pool: ConnectionPool, request: httpx.Request) -> OpenResponse:
        connection = pool.acquire()
        try:
            response = await connection.handle_async_request(request)
        # Also on cancellation: the connection is in an unknown state and must not be reused.
        except BaseException:
            await pool.release(connection, is_usable=False)
            raise
        return OpenResponse(response, self._config, self._package, partial(pool.release, connection))

    def _parse_url(self, path: str) -> Any:
        try:
            return self._package.URL(self._config.url(path))
        except self._package.InvalidURL as error:
            raise ConfigurationError(f"{self._config.address} is not a valid URL: {error}") from error

    def _request(self, path: str, headers: Mapping[str, str], body: bytes) -> httpx.Request:
        """Return a request with all headers set, which saves the work that `AsyncClient.build_request` does per request."""
        # Parsing a URL costs more than the rest of this function, and there are few paths.
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._parse_url(path)
        return httpx.Request(
            "POST",
            url,
            headers={"host": self._host, **headers, "content-length": str(len(body))},
            stream=httpx.ByteStream(body),
            extensions=self._extensions,
        )

    def _translate(self, error: Exception) -> InferenceError:
        """Return the error for a request without a response."""
        package, address, message = self._package, self._config.address, _message_of(error)
        if isinstance(error, package.ConnectTimeout):
            return ProviderUnavailable(f"no connection to {address} within {self._config.connect_timeout:g} seconds")
        if isinstance(error, package.TimeoutException):
            return ProviderUnavailable(f"no response from {address} for {self._config.timeout:g} seconds")
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
        config: the configuration of the request.
        package: the package that defines the errors of the client.
        release: returns the connection to its pool, and says whether it is usable; None when the client does that itself.
    """

    __slots__ = ("_config", "_is_complete", "_package", "_release", "_response")

    def __init__(
        self,
        response: Any,
        config: LLMConfig,
        package: Any,
        release: Callable[[bool], Awaitable[None]] | None = None,
    ) -> None:
        self._response = response
        self._config = config
        self._package = package
        self._release = release
        self._is_complete = False

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

    async def read(self) -> RawResponse:
        """Read the complete body.

        Raises:
            ProviderUnavailable: when the read timeout expires.
            InvalidResponse: when the body breaks off, or exceeds the size limit.
        """
        chunks = [chunk async for chunk in self.chunks()]
        return RawResponse(self.status, self.headers, chunks[0] if len(chunks) == 1 else b"".join(chunks))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives.

        Raises:
            ProviderUnavailable: when the read timeout expires.
            InvalidResponse: when the body breaks off, or exceeds the size limit.
        """
        size = 0
        body = self._response.aiter_bytes()
        try:
            # The limit applies to the decompressed body.
            async for chunk in body:
                size += len(chunk)
                if size > self._config.max_response_bytes:
                    raise self._too_large()
                yield chunk
        except self._package.HTTPError as error:
            error.request = None  # it contains the key
            raise self._translate(error) from error
        else:
            # Only a connection whose response was read completely can be reused.
            self._is_complete = True
        finally:
            if not self._is_complete:
                await self._abandon(body)

    async def aclose(self) -> None:
        """Close the response. Idempotent. The connection is reused only if the body was read completely."""
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

    def _too_large(self) -> InvalidResponse:
        return InvalidResponse(
            f"the response is larger than {self._config.max_response_bytes:,} bytes; raise max_response_bytes to allow it",
            status=self.status,
            request_id=request_id(self.headers),
        )

    def _translate(self, error: Exception) -> InferenceError:
        """Return the error for an incomplete body."""
        address, status, id_ = self._config.address, self.status, request_id(self.headers)
        if isinstance(error, self._package.TimeoutException):
            reason = f"the response from {address} stalled for {self._config.timeout:g} seconds"
            return ProviderUnavailable(reason, status=status, request_id=id_)
        if isinstance(error, self._package.DecodingError):
            reason = f"the response from {address} cannot be decompressed: {_message_of(error)}"
            return InvalidResponse(reason, status=status, request_id=id_)
        reason = f"the response from {address} broke off: {_message_of(error)}"
        # Unlike other invalid responses, a broken connection is transient.
        broken = InvalidResponse(reason, status=status, request_id=id_)
        broken.retryable = True
        return broken


def _message_of(error: Exception) -> str:
    return str(error) or type(error).__name__


# --- connections ---------------------------------------------------------------------------------------------------


class ConnectionPool:
    """A pool of connections, each of which is a transport of its own.

    The pool of httpx searches all of its connections for each request, which dominates the run time with hundreds of
    concurrent requests. Here the cost does not depend on their number.

    Args:
        open_connection: opens a connection.
    """

    def __init__(self, open_connection: Callable[[], httpx.AsyncHTTPTransport]) -> None:
        self._open_connection = open_connection
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._is_closed = False

    def acquire(self) -> httpx.AsyncHTTPTransport:
        """Return an idle connection, or a new one."""
        return self._idle.pop() if self._idle else self._open_connection()

    async def release(self, connection: httpx.AsyncHTTPTransport, is_usable: bool) -> None:  # noqa: FBT001  # the only state
        """Return a connection to the pool; it is closed if it is not usable, or the pool is closed or full."""
        if is_usable and not self._is_closed and len(self._idle) < _MAX_IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close the idle connections; the others are closed when they are released."""
        self._is_closed = True
        # Detached first: connections may be released while the others are being closed.
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.aclose()


def _open_connections(config: LLMConfig) -> ConnectionPool | httpx.AsyncClient:
    # The selection of a proxy by scheme and NO_PROXY is left to httpx, whose client pools connections itself.
    if getproxies():
        return _proxied_client()
    tls = _tls_context() if config.base_url.startswith("https:") else _unused_tls_context()
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_SECONDS)
    return ConnectionPool(lambda: httpx.AsyncHTTPTransport(verify=tls, limits=limits))


def _proxied_client() -> httpx.AsyncClient:
    """Return a client that selects among the proxies of the environment as httpx does."""
    limits = httpx.Limits(
        max_connections=None, max_keepalive_connections=_MAX_IDLE_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
    )
    try:
        return httpx.AsyncClient(verify=_tls_context(), limits=limits)
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ConfigurationError(f"a proxy in the environment is invalid: {error}") from error


@cache
def _tls_context() -> ssl.SSLContext:
    """Return the TLS context of this process. Cached, since reading the certificates takes 20 to 50 ms.

    Raises:
        ConfigurationError: when a file that an environment variable names cannot be used.
    """
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        variables = [f"{name}={os.environ[name]}" for name in _TLS_VARIABLES if os.environ.get(name)]
        raise ConfigurationError(
            f"the TLS settings of the environment are invalid: {error}; check {' and '.join(variables) or 'the system'}"
        ) from error


@cache
def _unused_tls_context() -> ssl.SSLContext:
    """Return a context without certificates; a transport requires one also for plain HTTP."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


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


def _package_of(client: Any) -> Any:
    """Return the package that defines a client and its errors, such as httpx2; httpx for a client of any other kind."""
    # The base classes come first, since a subclass may be defined in a module of the user.
    for base in reversed(type(client).__mro__):
        package = sys.modules.get(base.__module__.partition(".")[0])
        if all(hasattr(package, name) for name in ("AsyncClient", "HTTPError", "RemoteProtocolError", "InvalidURL")):
            return package
    return httpx
