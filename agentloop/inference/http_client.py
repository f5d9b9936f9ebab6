"""The border to httpx: the one file that knows it, or any client of the same shape."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from agentloop.errors import BadRequest, ConfigurationError, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.wire_formats.http_errors import request_id
from agentloop.values.value import Value

if TYPE_CHECKING:
    import httpx

_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "agentloop",
}
_IDLE_SECONDS = 60.0
_MOST_IDLE = 100


@frozen(eq=False, repr=False)
class RawResponse(Value):
    """An HTTP answer.

    Attributes:
        status: the status.
        headers: the headers, by names in lower case.
        body: the whole body.
    """

    status: int
    headers: Mapping[str, str] = field(repr=False)
    body: bytes = field(repr=lambda body: f"<{len(body)} bytes>")


class HttpClient:
    """Sends requests through httpx and tells its errors in agentloop's words. Redirects are not followed.

    Args:
        config: where requests go, with what headers, and the limits, which hold for a given client too.
        client: a client of httpx's shape, of any package, that stays the caller's to close; connections of its own are
            made when left out.

    Raises:
        ConfigurationError: when the base URL, or a proxy of the environment, is no address.
    """

    def __init__(self, config: LLMConfig, client: Any = None) -> None:
        self._config = config
        self._package = _package_of(client)
        self._urls: dict[str, Any] = {}
        self._host = self._url("").netloc.decode("ascii")
        self._headers = {**_HEADERS, **config.auth_headers()}
        self._limits = {"timeout": _timeouts(config)}
        self._given = client
        self._own = None if client is not None else _own(config)

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> RawResponse:
        """Send a request and read the whole answer.

        Args:
            path: the path of the endpoint, after the base URL.
            headers: headers to send besides those of the configuration.
            body: the body.

        Raises:
            BadRequest: when the headers are not HTTP.
            ProviderUnavailable: when there is no connection, or no answer in time.
            InvalidResponse: when the answer breaks off, which is worth another attempt, is not HTTP, or is larger than the
                limit.
        """
        response = None
        sent = {**self._headers, **headers} if headers else self._headers
        try:
            if isinstance(self._own, Connections):
                async with self._own.borrowed() as transport:
                    response = await transport.handle_async_request(self._request(path, sent, body))
                    return await self._read(response)
            client, url = self._own or self._given, self._config.url(path)
            request = client.build_request("POST", url, headers=sent, content=body, extensions=self._limits)
            response = await client.send(request, stream=True, follow_redirects=False)
            return await self._read(response)
        except self._package.HTTPError as error:
            error.request = None  # it holds the key
            raise (self._unanswered(error) if response is None else self._broken_off(error, response)) from error

    async def aclose(self) -> None:
        """Close the connections, if they were made here."""
        if self._own is not None:
            await self._own.aclose()

    def _url(self, path: str) -> Any:
        try:
            return self._package.URL(self._config.url(path))
        except self._package.InvalidURL as error:
            raise ConfigurationError(f"{self._config.address} is not an address: {error}") from error

    def _request(self, path: str, headers: Mapping[str, str], body: bytes) -> httpx.Request:
        """Make a request that is complete, so that httpx has nothing to find out."""
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._url(path)
        made: httpx.Request = self._package.Request(
            "POST",
            url,
            headers={"host": self._host, **headers, "content-length": str(len(body))},
            stream=self._package.ByteStream(body),
            extensions=self._limits,
        )
        return made

    async def _read(self, response: Any) -> RawResponse:
        most = self._config.max_response_bytes
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in response.aiter_bytes():
                size += len(piece)
                if size > most:
                    raise InvalidResponse(
                        f"the answer is larger than {most:,} bytes and was given up; raise max_response_bytes if it is right",
                        status=response.status_code,
                        request_id=request_id(response.headers),
                    )
                pieces.append(piece)
        finally:
            await response.aclose()
        return RawResponse(response.status_code, response.headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _unanswered(self, error: Exception) -> InferenceError:
        """Translate what kept an answer from beginning."""
        package, where, what = self._package, self._config.address, _told_by(error)
        if isinstance(error, package.ConnectTimeout):
            return ProviderUnavailable(f"no connection to {where} within {self._config.connect_timeout:g} seconds")
        if isinstance(error, package.TimeoutException):
            return ProviderUnavailable(f"no answer from {where} for {self._config.timeout:g} seconds")
        if isinstance(error, package.ConnectError):
            return ProviderUnavailable(
                f"no connection to {where}: {what}; is the address right and the server running?"
            )
        if isinstance(error, package.LocalProtocolError):
            return BadRequest(f"the request to {where} is not valid HTTP: {what}")
        if isinstance(error, package.RemoteProtocolError) and "disconnected" not in what:
            return InvalidResponse(f"the answer from {where} is not HTTP: {what}")
        return ProviderUnavailable(f"the connection to {where} failed: {what}")

    def _broken_off(self, error: Exception, response: Any) -> InferenceError:
        """Translate what kept an answer from ending."""
        where, status, of = self._config.address, response.status_code, request_id(response.headers)
        if isinstance(error, self._package.TimeoutException):
            why = f"the answer from {where} stopped for {self._config.timeout:g} seconds"
            return ProviderUnavailable(why, status=status, request_id=of)
        if isinstance(error, self._package.DecodingError):
            why = f"the answer from {where} cannot be decompressed: {_told_by(error)}"
            return InvalidResponse(why, status=status, request_id=of)
        broken = InvalidResponse(f"the answer from {where} broke off: {_told_by(error)}", status=status, request_id=of)
        broken.retryable = True
        return broken


class Connections:
    """Connections, each in an httpx transport of its own.

    httpx's pool looks through all of its connections for each request, so that with hundreds of requests under way most
    of the time goes there; a list of idle ones costs the same for ten and for a thousand.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._httpx = _httpx()
        self._tls = tls
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._closed = False

    def borrowed(self) -> _Borrowed:
        """Lend a connection for the length of an `async with`; one that failed does not come back."""
        return _Borrowed(self)

    def take(self) -> httpx.AsyncHTTPTransport:
        """Take an idle connection, or a new one."""
        if self._idle:
            return self._idle.pop()
        limits = self._httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_SECONDS)
        made: httpx.AsyncHTTPTransport = self._httpx.AsyncHTTPTransport(verify=self._tls, limits=limits)
        return made

    async def give_back(self, transport: httpx.AsyncHTTPTransport, *, usable: bool) -> None:
        """Take a connection back, and close it when it is not usable, not wanted any more, or one too many."""
        if usable and not self._closed and len(self._idle) < _MOST_IDLE:
            self._idle.append(transport)
        else:
            await transport.aclose()

    async def aclose(self) -> None:
        """Close the idle connections; those on loan are closed when they come back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for transport in idle:
            await transport.aclose()


class _Borrowed:
    """A connection on loan."""

    __slots__ = ("_connections", "_transport")

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._transport = connections.take()

    async def __aenter__(self) -> httpx.AsyncHTTPTransport:
        return self._transport

    async def __aexit__(self, kind: object, error: object, traceback: object) -> None:
        await self._connections.give_back(self._transport, usable=error is None)


def in_process_client(answer: Callable[[str, bytes], tuple[int, Mapping[str, str], bytes]]) -> httpx.AsyncClient:
    """Make an httpx client whose requests never leave the process.

    Args:
        answer: answers a request: from its path and body to status, headers and body.
    """
    package = _httpx()

    def handle(request: httpx.Request) -> httpx.Response:
        status, headers, body = answer(request.url.path, request.content)
        made: httpx.Response = package.Response(status, headers=headers, content=body)
        return made

    client: httpx.AsyncClient = package.AsyncClient(transport=package.MockTransport(handle))
    return client


def _httpx() -> Any:
    import httpx

    return httpx


def _package_of(client: Any) -> Any:
    """Return the package that a client came from, which has the classes of its errors; httpx for what is of no such package."""
    for kind in reversed(type(client).__mro__):
        package = sys.modules.get(kind.__module__.partition(".")[0])
        if all(hasattr(package, name) for name in ("AsyncClient", "HTTPError", "RemoteProtocolError", "InvalidURL")):
            return package
    return _httpx()


def _own(config: LLMConfig) -> Connections | httpx.AsyncClient:
    from urllib.request import getproxies

    if getproxies():
        return _proxied()
    return Connections(_tls() if config.base_url.startswith("https:") else _no_tls())


def _proxied() -> httpx.AsyncClient:
    """Make a client that goes through the proxies of the environment; to find the right one is httpx's work."""
    package = _httpx()
    limits = package.Limits(max_connections=None, max_keepalive_connections=_MOST_IDLE, keepalive_expiry=_IDLE_SECONDS)
    try:
        made: httpx.AsyncClient = package.AsyncClient(verify=_tls(), limits=limits)
    except (ImportError, ValueError, package.InvalidURL) as error:
        raise ConfigurationError(f"a proxy that the environment names cannot be used: {error}") from error
    return made


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS settings of this process; to read the certificates takes 20 to 50 ms, once."""
    made: ssl.SSLContext = _httpx().create_ssl_context()
    return made


@cache
def _no_tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _told_by(error: Exception) -> str:
    return str(error) or type(error).__name__


def _timeouts(config: LLMConfig) -> dict[str, Any]:
    return {"connect": config.connect_timeout, "read": config.timeout, "write": config.timeout, "pool": None}
