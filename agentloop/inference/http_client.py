"""The border to httpx: the one file that knows it, or any client of the same shape."""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from agentloop.errors import BadRequest, ConfigurationError, InferenceError, InvalidResponse, ProviderUnavailable
from agentloop.inference.config import LLMConfig
from agentloop.inference.raw_answer import RawAnswer, RawResponse, told_by

if TYPE_CHECKING:
    import httpx


_MOST_IDLE_KEPT = 100


class Connection(Protocol):
    """A connection, of the shape of an httpx transport."""

    async def handle_async_request(self, request: Any, /) -> Any:
        """Send a request and wait for the head of the answer."""

    async def aclose(self) -> None:
        """Close it."""


class Connections:
    """Connections, each on its own.

    httpx's pool looks through all of its connections for each request, so that with hundreds of requests under way most
    of the time goes there; a list of idle ones costs the same for ten and for a thousand.

    Args:
        opened: makes a connection.
    """

    def __init__(self, opened: Callable[[], Connection]) -> None:
        self._opened = opened
        self._idle: list[Connection] = []
        self._closed = False

    def take(self) -> Connection:
        """Take an idle connection, or a new one."""
        return self._idle.pop() if self._idle else self._opened()

    async def give_back(self, connection: Connection, *, usable: bool) -> None:
        """Take a connection back, and close it when it is not usable, not wanted any more, or one too many."""
        if usable and not self._closed and len(self._idle) < _MOST_IDLE_KEPT:
            self._idle.append(connection)
        else:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close the idle connections; those on loan are closed when they come back."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.aclose()


_HEADERS = {
    "content-type": "application/json",
    "accept": "application/json",
    "accept-encoding": "gzip, deflate",
    "user-agent": "agentloop",
}
_IDLE_SECONDS = 60.0
_MOST_IDLE = 100
_TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


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
        answer = await self.open(path, headers, body)
        try:
            return await answer.read()
        finally:
            await answer.aclose()

    async def open(self, path: str, headers: Mapping[str, str], body: bytes) -> RawAnswer:
        """Send a request and wait for the head of the answer; its body is there to be read, and it has to be closed.

        Args:
            path: the path of the endpoint, after the base URL.
            headers: headers to send besides those of the configuration.
            body: the body.

        Raises:
            BadRequest: when the headers are not HTTP.
            ProviderUnavailable: when there is no connection, or no answer in time.
            InvalidResponse: when the answer is not HTTP.
        """
        sent = {**self._headers, **headers} if headers else self._headers
        try:
            if isinstance(self._own, Connections):
                return await self._open_over(self._own, self._request(path, sent, body))
            client, url = self._own or self._given, self._config.url(path)
            request = client.build_request("POST", url, headers=sent, content=body, extensions=self._limits)
            response = await client.send(request, stream=True, follow_redirects=False)
        except self._package.HTTPError as error:
            error.request = None  # it holds the key
            raise self._unanswered(error) from error
        return RawAnswer(response, self._config, self._package)

    async def _open_over(self, connections: Connections, request: httpx.Request) -> RawAnswer:
        connection = connections.take()
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await connections.give_back(connection, usable=False)
            raise
        return RawAnswer(response, self._config, self._package, partial(connections.give_back, connection))

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

    def _unanswered(self, error: Exception) -> InferenceError:
        """Translate what kept an answer from beginning."""
        package, where, what = self._package, self._config.address, told_by(error)
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
    tls = _tls() if config.base_url.startswith("https:") else _no_tls()
    package = _httpx()
    limits = package.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_IDLE_SECONDS)
    return Connections(lambda: package.AsyncHTTPTransport(verify=tls, limits=limits))


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
    """Return the TLS settings of this process; to read the certificates takes 20 to 50 ms, once.

    Raises:
        ConfigurationError: when a file that the environment names cannot be used.
    """
    try:
        made: ssl.SSLContext = _httpx().create_ssl_context()
    except OSError as error:
        named = [f"{name}={os.environ[name]}" for name in _TLS_VARIABLES if os.environ.get(name)]
        raise ConfigurationError(
            f"the TLS settings of the environment cannot be used: {error}; look at {' and '.join(named) or 'the system'}"
        ) from error
    return made


@cache
def _no_tls() -> ssl.SSLContext:
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _timeouts(config: LLMConfig) -> dict[str, Any]:
    return {"connect": config.connect_timeout, "read": config.timeout, "write": config.timeout, "pool": None}
