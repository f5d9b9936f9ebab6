"""The border to httpx: the one file that knows it, or any client of the same shape."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from agentloop.errors import InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.values.value import Value

if TYPE_CHECKING:
    import httpx

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
    """Sends requests through httpx and tells its errors in agentloop's words.

    Args:
        config: where requests go, and the limits.
        client: a client of httpx's shape, of any package, that stays the caller's to close; connections of its own are
            made when left out.
    """

    def __init__(self, config: LLMConfig, client: Any = None) -> None:
        self._config = config
        self._given = client
        self._package = _package_of(client)
        self._own = None if client is not None else _own(config)
        self._urls: dict[str, Any] = {}

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> RawResponse:
        """Send a request and read the whole answer.

        Raises:
            ProviderUnavailable: when there is no connection, or no answer in time.
            InvalidResponse: when the answer breaks off, is not HTTP, or is larger than the limit.
        """
        try:
            if isinstance(self._own, Connections):
                async with self._own.borrowed() as transport:
                    response = await transport.handle_async_request(self._request(path, headers, body))
                    return await self._read(response)
            client = self._own or self._given
            request = client.build_request("POST", self._url(path), headers=headers, content=body)
            return await self._read(await client.send(request, stream=True))
        except self._package.HTTPError as error:
            raise self._translated(error) from error

    async def aclose(self) -> None:
        """Close the connections, if they were made here."""
        if self._own is not None:
            await self._own.aclose()

    def _url(self, path: str) -> Any:
        url = self._urls.get(path)
        if url is None:
            url = self._urls[path] = self._package.URL(self._config.base_url + path)
        return url

    def _request(self, path: str, headers: Mapping[str, str], body: bytes) -> httpx.Request:
        extensions = {"timeout": _timeouts(self._config)}
        made: httpx.Request = self._package.Request(
            "POST", self._url(path), headers=headers, content=body, extensions=extensions
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
                    )
                pieces.append(piece)
        finally:
            await response.aclose()
        headers = {name.lower(): value for name, value in response.headers.items()}
        return RawResponse(response.status_code, headers, pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _translated(self, error: Exception) -> InferenceError:
        package, where = self._package, self._config.base_url
        what = str(error) or type(error).__name__
        if isinstance(error, package.ConnectTimeout):
            return ProviderUnavailable(f"no connection to {where} within {self._config.connect_timeout:g} seconds")
        if isinstance(error, package.TimeoutException):
            return ProviderUnavailable(f"no answer from {where} for {self._config.timeout:g} seconds")
        if isinstance(error, package.ConnectError):
            return ProviderUnavailable(
                f"no connection to {where}: {what}; is the address right and the server running?"
            )
        if isinstance(error, package.RemoteProtocolError | package.DecodingError):
            return InvalidResponse(f"the answer from {where} broke off or is not HTTP: {what}")
        return ProviderUnavailable(f"the connection to {where} failed: {what}")


class Connections:
    """Connections, each in an httpx transport of its own.

    httpx's pool looks through all of its connections for each request, so that with hundreds of requests under way most
    of the time goes there; a list of idle ones costs the same for ten and for a thousand.
    """

    def __init__(self, tls: ssl.SSLContext) -> None:
        self._httpx = _httpx()
        self._tls = tls
        self._idle: list[httpx.AsyncHTTPTransport] = []

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
        """Take a connection back, and close it when it is not usable or there are enough."""
        if usable and len(self._idle) < _MOST_IDLE:
            self._idle.append(transport)
        else:
            await transport.aclose()

    async def aclose(self) -> None:
        """Close the idle connections."""
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
    """Return the package that a client came from, which has the classes of its errors."""
    package = sys.modules.get(type(client).__module__.partition(".")[0])
    return package if hasattr(package, "HTTPError") else _httpx()


def _own(config: LLMConfig) -> Connections | httpx.AsyncClient:
    from urllib.request import getproxies

    if getproxies():  # to find the right proxy of the environment is httpx's work
        client: httpx.AsyncClient = _httpx().AsyncClient(timeout=_httpx().Timeout(**_timeouts(config)))
        return client
    return Connections(_tls() if config.base_url.startswith("https:") else _no_tls())


@cache
def _tls() -> ssl.SSLContext:
    """Return the TLS settings of this process; to read the certificates takes 20 to 50 ms, once."""
    made: ssl.SSLContext = _httpx().create_ssl_context()
    return made


@cache
def _no_tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _timeouts(config: LLMConfig) -> dict[str, Any]:
    return {"connect": config.connect_timeout, "read": config.timeout, "write": config.timeout, "pool": None}
