"""Connections to the services of models: kept per event loop and address, and closed with their event loop at the latest."""

from __future__ import annotations

import asyncio
import asyncio.trsock
import os
import re
import select
import ssl
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Hashable, Iterable, Mapping
from functools import cache, partial
from ipaddress import ip_address
from types import coroutine
from typing import Any, Protocol, TypeVar, cast
from urllib.request import getproxies

import httpx
from attrs import frozen

from agentloop._event_loops import running_loop
from agentloop.errors import ConfigurationError
from agentloop.models.dialing import connect_socket

T = TypeVar("T")

MAX_IDLE_CONNECTIONS = 10
"""The maximum number of idle connections to an address that no execution uses."""
IDLE_SECONDS = 30.0
"""The time after which an idle connection is closed."""
_TLS_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")


class MaskedHeaders:
    """Headers whose repr shows no value, so that a traceback with local variables does not either."""

    __slots__ = ("_encoded", "_entries")

    def __init__(self, entries: Mapping[str, str]) -> None:
        self._entries = entries
        self._encoded: tuple[tuple[bytes, bytes], ...] | None = None

    def with_others(self, others: Mapping[str, str]) -> MaskedHeaders:
        """Return these headers, overridden by the others."""
        return MaskedHeaders({**self._entries, **others}) if others else self

    def reveal(self, **more: str) -> dict[str, str]:
        """Return the headers in plain text, with more of them; do not assign them to a local variable."""
        return {**self._entries, **more}

    def encode(self) -> tuple[tuple[bytes, bytes], ...]:
        """Return the headers as bytes, encoded once; do not assign them to a local variable that outlives the request.

        Raises:
            httpx.LocalProtocolError: one is not valid HTTP; the message does not contain it, since it may be a key.
        """
        if self._encoded is None:
            pairs = self._entries.items()
            if _ILLEGAL_IN_HEADERS.search("".join([f"{name}{value}" for name, value in pairs])):
                raise httpx.LocalProtocolError("a header has an illegal value")
            self._encoded = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs])
        return self._encoded


@frozen(eq=False, repr=False)
class HttpRequest:
    """A request.

    Attributes:
        url: the URL.
        headers: all headers but `host` and `content-length`.
        body: the body.
        connect_timeout: seconds to wait for a connection.
        method: the method.
    """

    url: httpx.URL
    headers: MaskedHeaders
    body: bytes
    connect_timeout: float
    method: str = "POST"


class HttpResponse(Protocol):
    """A response whose body is not read yet, as `httpx.Response` is one."""

    @property
    def status_code(self) -> int:
        """The HTTP status."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The HTTP headers, by lower-case names."""

    @property
    def is_stream_consumed(self) -> bool:
        """Whether the body was read already."""

    def aiter_raw(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives."""

    async def aclose(self) -> None:
        """Close the response. The connection can be used again only if the body was read completely."""


class ModelConnection(ABC):
    """A connection that carries one request at a time, and is opened with its first one."""

    @property
    @abstractmethod
    def is_usable(self) -> bool:
        """Whether another request can be sent."""

    @property
    def is_kept_alive(self) -> bool:
        """Whether the last response was received completely, and the connection is not known to be closed.

        It is enough to keep the connection: whether the server has closed it in the meantime is looked up when it is used again.
        """
        return self.is_usable

    @abstractmethod
    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and wait for the head of the response.

        Raises:
            httpx.HTTPError: there is no connection, or no valid response.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection. Idempotent."""


class ConnectionPool:
    """The connections of one event loop to one address.

    The pool of httpx searches all of its connections for each request, which dominates the run time with hundreds of
    concurrent requests. Here the cost does not depend on their number.

    Args:
        open_connection: makes a connection.
        max_idle: how many idle connections remain when nobody holds the pool.
    """

    def __init__(self, open_connection: Callable[[], ModelConnection], max_idle: int) -> None:
        self._open_connection = open_connection
        self._max_idle = max_idle
        self._idle: deque[tuple[float, ModelConnection]] = deque()  # the one that was used last at the right
        self._in_use: set[ModelConnection] = set()
        self._holders = 0
        self._timer: asyncio.TimerHandle | None = None
        self._process = os.getpid()

    @property
    def is_needed(self) -> bool:
        """Whether somebody holds the pool, or a connection is open."""
        return bool(self._holders or self._in_use or self._idle)

    def hold(self) -> None:
        """Keep all idle connections until a matching `let_go`: there are never more than were in use at once."""
        self._holders += 1

    async def let_go(self) -> None:
        """Undo one `hold`; the last one closes what is too much."""
        self._holders -= 1
        if not self._holders:
            await self._shrink(self._max_idle)

    def retire(self) -> None:
        """Keep nothing from now on, because nobody would close it: for requests that come although nobody holds the pool."""
        self._max_idle = 0

    async def acquire(self) -> ModelConnection:
        """Return an idle connection, or a new one, which is opened with its first request."""
        self._leave_to_other_process()
        connection = await self._take_idle() or self._open_connection()
        self._in_use.add(connection)
        return connection

    async def _take_idle(self) -> ModelConnection | None:
        # The one that was used last is the least likely to have been closed by the server.
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_usable:
                return connection
            await connection.aclose()
        return None

    async def release(self, connection: ModelConnection, is_usable: bool) -> None:  # noqa: FBT001  # the only state
        """Return a connection; it is closed if it is not usable, or the pool has enough of them."""
        self._in_use.discard(connection)
        is_needed = self._holders > 0 or len(self._idle) < self._max_idle
        if not (is_usable and is_needed and connection.is_kept_alive):
            await connection.aclose()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time() + IDLE_SECONDS, connection))
        if self._timer is None:
            self._timer = loop.call_later(IDLE_SECONDS, self._close_expired)

    async def close_idle(self) -> None:
        """Close the idle connections."""
        self._leave_to_other_process()
        await self._shrink(0)

    async def aclose(self) -> None:
        """Close all connections, also those in use."""
        await self.close_idle()
        while self._in_use:
            await self._in_use.pop().aclose()

    async def _shrink(self, count: int) -> None:
        while len(self._idle) > count:
            _, connection = self._idle.popleft()
            await connection.aclose()
        if not self._idle and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_expired(self) -> None:
        self._timer = None
        self._leave_to_other_process()
        loop = asyncio.get_running_loop()
        expired = 0
        while expired < len(self._idle) and self._idle[expired][0] <= loop.time():
            expired += 1
        if expired:
            closing = loop.create_task(self._shrink(len(self._idle) - expired))
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
        if len(self._idle) > expired:
            self._timer = loop.call_at(self._idle[expired][0], self._close_expired)

    def _leave_to_other_process(self) -> None:
        """In a process that was forked, let go of the connections of the other one, which uses them."""
        if self._process == os.getpid():
            return
        # Closing them would say goodbye to the server in the name of the other process.
        _INHERITED.extend([*(connection for _, connection in self._idle), *self._in_use])
        self._idle.clear()
        self._in_use.clear()
        self._process = os.getpid()


_CLOSING: set[asyncio.Task[None]] = set()
_INHERITED: list[ModelConnection] = []


# --- event loops ---------------------------------------------------------------------------------------------------


class LoopConnections:
    """The connections of one event loop. They are closed before the event loop is, because nothing can close them later.

    The event loop holds them, as its method `close`, so that both live equally long.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._close = loop.close
        self._pools: dict[Hashable, ConnectionPool] = {}

    @classmethod
    def of_running_loop(cls) -> LoopConnections | None:
        """Return the connections of the running event loop; None if it is of a kind that cannot hold any.

        Raises:
            RuntimeError: no event loop is running.
        """
        loop = asyncio.get_running_loop()
        owner = getattr(loop.close, "__self__", None)
        if isinstance(owner, LoopConnections):
            return owner
        created = cls(loop)
        try:
            loop.close = created.close_with_loop  # type: ignore[method-assign]  # there is no other sign of its end
        except AttributeError:  # it takes no attributes
            return None
        return created

    def find(self, key: Hashable) -> ConnectionPool | None:
        """Return the pool of an address, if there is one."""
        return self._pools.get(key)

    def add(self, key: Hashable, pool: ConnectionPool) -> None:
        """Keep a pool, and those of other addresses that are in use."""
        for each, other in [*self._pools.items()]:
            if not other.is_needed:
                other.retire()
                del self._pools[each]
        self._pools[key] = pool

    async def close_idle(self, key: Hashable | None = None) -> None:
        """Close the idle connections to an address; None for all."""
        for pool in [pool for each, pool in self._pools.items() if key is None or each == key]:
            await pool.close_idle()

    def close_with_loop(self) -> None:
        """Close the connections, then the event loop."""
        loop, pools = self._loop, [pool for pool in self._pools.values() if pool.is_needed]
        # When the program ends, nothing can run any more; a running event loop refuses to be closed.
        if pools and not (loop.is_closed() or loop.is_running() or sys.is_finalizing()):
            close: Callable[[], None] = partial(_run_to_end, loop, pools)
            if running_loop() is not None:  # in this thread, where no second one can run
                thread = threading.Thread(target=close)
                thread.start()
                thread.join()
            else:
                close()
        self._close()


def _run_to_end(loop: asyncio.AbstractEventLoop, pools: Iterable[ConnectionPool]) -> None:
    loop.run_until_complete(_close_all(pools))


async def _close_all(pools: Iterable[ConnectionPool]) -> None:
    for pool in pools:
        await pool.aclose()


async def close_idle_connections(key: Hashable | None = None) -> None:
    """Close the idle connections of models that the running event loop keeps.

    Args:
        key: the `HttpClient.address_key` of an address; None for all addresses.
    """
    connections = LoopConnections.of_running_loop()
    if connections is not None:
        await connections.close_idle(key)


# --- opening ---------------------------------------------------------------------------------------------------------

_HAPPY_EYEBALLS_SECONDS = 0.25
_ILLEGAL_IN_HEADERS = re.compile(r"[^\t\x20-\x7e\x80-\xff]")


@frozen(eq=False)
class ServerAddress:
    """Where a server is.

    Attributes:
        host: its name or address.
        port: its port.
        tls: how connections are encrypted; None for plain HTTP.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: httpx.URL) -> ServerAddress:
        """Return the address in a URL.

        Raises:
            ConfigurationError: when a file of certificates that an environment variable names cannot be used.
        """
        is_encrypted = url.scheme == "https"
        tls = _http_1_only(tls_context()) if is_encrypted else None
        return cls(url.raw_host.decode("ascii"), url.port or (443 if is_encrypted else 80), tls)

    async def connect(self, open_connection: Callable[..., Awaitable[T]], seconds: float) -> T:
        """Await a connection for this many seconds.

        Args:
            open_connection: takes what `asyncio.open_connection` does.
            seconds: how long.

        Raises:
            httpx.ConnectTimeout: the time is over.
            httpx.ConnectError: there is no connection.
        """
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._open(open_connection)
        except TimeoutError as error:
            kind = httpx.ConnectTimeout if limit.expired() else httpx.ConnectError  # the system has a limit, too
            raise kind(str(error)) from error
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error

    async def _open(self, open_connection: Callable[..., Awaitable[T]]) -> T:
        options: dict[str, Any] = {"ssl": self.tls, "server_hostname": None if self.tls is None else self.host}
        # uvloop tries the addresses of a host one after another by itself.
        if not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):
            return await open_connection(host=self.host, port=self.port, **options)
        return await open_connection(
            sock=await connect_socket(self.host, self.port, _HAPPY_EYEBALLS_SECONDS), **options
        )


def _http_1_only(context: ssl.SSLContext) -> ssl.SSLContext:
    context.set_alpn_protocols(["http/1.1"])  # as httpx does for each connection
    return context


def is_readable(socket: asyncio.trsock.TransportSocket) -> bool:
    """Return whether there is something to read, or the end of the connection, which the event loop may not have noticed yet."""
    if sys.platform == "win32":
        return bool(select.select([socket], [], [], 0)[0])
    poll = select.poll()  # unlike `select`, it knows no largest number of files
    poll.register(socket, select.POLLIN)
    return bool(poll.poll(0))


def encode_headers(request: HttpRequest) -> list[tuple[bytes, bytes]]:
    """Return all headers of a request, `host` first.

    Raises:
        httpx.LocalProtocolError: one is not valid HTTP; the message does not contain it, since it may be a key.
    """
    return [
        (b"host", request.url.netloc),
        *request.headers.encode(),
        (b"content-length", b"%d" % len(request.body)),
    ]


def join_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers of a response by lower-case names; those of the same name are joined by commas."""
    headers: dict[str, str] = {}
    for name, value in pairs:
        key, text = name.decode("latin-1").lower(), _decode(value)
        headers[key] = f"{headers[key]}, {text}" if key in headers else text
    return headers


def _decode(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


# --- proxies ---------------------------------------------------------------------------------------------------------


class ProxiedConnection(ModelConnection):
    """A connection through one of the proxies of the environment, which a client of httpx selects.

    Args:
        client: the client, with one connection.
    """

    __slots__ = ("_client",)

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    @property
    def is_usable(self) -> bool:
        """Always: a connection that the server has closed is opened again."""
        return True

    async def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request and wait for the head of the response.

        Raises:
            httpx.HTTPError: there is no connection, or no valid response.
        """
        # The other timeouts are those of `TransferLimits`, which hold for any client.
        timeouts = {"connect": request.connect_timeout, "read": None, "write": None, "pool": None}
        response: HttpResponse = await self._client.send(
            httpx.Request(
                request.method,
                request.url,
                headers=encode_headers(request),
                stream=httpx.ByteStream(request.body),
                extensions={"timeout": timeouts},
            ),
            stream=True,
            follow_redirects=False,
        )
        return response

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        await self._client.aclose()


_SYSTEMS_WITH_PROXIES = ("darwin", "win32")
"""Where the settings of the system name proxies, too."""


def proxied_opener() -> Callable[[], ModelConnection]:
    """Return a function that makes connections which select among the proxies of the environment as httpx does.

    Raises:
        ConfigurationError: a proxy of the environment is invalid.
    """
    tls = tls_context()
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=IDLE_SECONDS)
    make_client = partial(httpx.AsyncClient, verify=tls, limits=limits)
    try:
        make_client()  # nothing is open yet, so that nothing has to be closed
    except (ImportError, ValueError, httpx.InvalidURL) as error:
        raise ConfigurationError(f"a proxy in the environment is invalid: {error}") from error
    return lambda: ProxiedConnection(make_client())


def proxies(url: httpx.URL) -> tuple[tuple[str, str], ...]:
    """Return the settings of the proxies if one applies to a URL, to tell them from others; empty if requests need none.

    The rules are those of httpx, which sends what goes through a proxy.

    Args:
        url: the URL of a request.
    """
    # Each execution asks, and what the standard library does for it takes longer than anything else that a kept connection needs.
    if sys.platform not in _SYSTEMS_WITH_PROXIES and not any(
        name[-6:].lower() == "_proxy" and name.lower() != "no_proxy" for name in os.environ
    ):
        return ()
    settings = getproxies()
    if not (settings.get(url.scheme) or settings.get("all")):
        return ()
    exempt = [entry for each in settings.get("no", "").split(",") if (entry := each.strip())]
    return () if any(_is_exempt(url, entry) for entry in exempt) else tuple(sorted(settings.items()))


def _is_exempt(url: httpx.URL, entry: str) -> bool:
    """Return whether an entry of `NO_PROXY` exempts a URL."""
    if entry == "*":
        return True
    text = entry
    if "://" not in entry:
        version = _ip_version(entry)
        is_exact = version is not None or entry.lower() == "localhost"
        text = f"all://[{entry}]" if version == _IPV6 else f"all://{entry}" if is_exact else f"all://*{entry}"
    try:
        pattern = httpx.URL(text)
    except httpx.InvalidURL:
        return False  # opening a client reports it
    if pattern.scheme not in {"all", url.scheme} or pattern.port not in {None, url.port}:
        return False
    host = pattern.host
    if host.startswith("*."):
        return url.host.endswith(host[1:])
    if host.startswith("*"):
        return f".{url.host}".endswith(f".{host[1:]}")
    return bool(host) and url.host == host


_IPV6 = 6


def _ip_version(text: str) -> int | None:
    """Return the version of an IP address, which the length of its network may follow; None for a name."""
    try:
        return ip_address(text.partition("/")[0]).version
    except ValueError:
        return None


# --- TLS -------------------------------------------------------------------------------------------------------------

_TLS_LOCK = threading.Lock()


def tls_context() -> ssl.SSLContext:
    """Return the TLS context of this process, which is made when it is needed for the first time.

    Raises:
        ConfigurationError: when a file that an environment variable names cannot be used.
    """
    with _TLS_LOCK:  # a cache alone would let threads make one each
        return _make_tls_context()


@cache
def _make_tls_context() -> ssl.SSLContext:
    # Reading the certificates takes 20 to 50 ms.
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        variables = [f"{name}={os.environ[name]}" for name in _TLS_VARIABLES if os.environ.get(name)]
        raise ConfigurationError(
            f"the TLS settings of the environment are invalid: {error}; check {' and '.join(variables) or 'the system'}"
        ) from error


_NEVER = object()


@coroutine
def continue_work(
    steps: Generator[Any, Any, T], waits_for: object, *, until: object = _NEVER
) -> Generator[Any, Any, T]:
    """Continue work that was begun and waits for something; awaiting this is as awaiting the rest of the work.

    Args:
        steps: the work.
        waits_for: what it waits for.
        until: what ends this when the work waits for it, and is returned then.
    """
    try:
        while waits_for is not until:
            try:
                sent = yield waits_for
            except GeneratorExit:
                steps.close()
                raise
            except BaseException as error:  # noqa: BLE001  # such as a cancellation; the work handles it
                waits_for = steps.throw(error)
            else:
                waits_for = steps.send(sent)
    except StopIteration as ended:
        return cast("T", ended.value)
    return cast("T", until)
