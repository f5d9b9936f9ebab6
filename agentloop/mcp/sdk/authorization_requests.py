"""The requests of authorization over the SDK's client: where they may go, how they are sent, and how much is read of the answers.

A server names the addresses of its authorization, so none of them is trusted: it is public, or one that a person or a program has
named. What is checked is the network address that a connection goes to.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from ssl import SSLContext
from typing import Any
from urllib.parse import parse_qs
from urllib.request import getproxies, proxy_bypass

from attrs import field, frozen
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from agentloop.errors import ToolFailed
from agentloop.mcp.sdk.names import httpx2
from agentloop.mcp.servers import show_address
from agentloop.policies.web_addresses import (
    HostRules,
    HostUnknown,
    IpAddress,
    Resolve,
    WebAddress,
    is_ip,
    is_loopback,
    resolve_host,
)

_MAX_BYTES = 1 << 18
_SECONDS = 30.0
_REFUSED = 400
_FAILED = 500
_ERROR_CODE = re.compile("[a-z_]{1,60}")


class AuthorizationFailed(Exception):  # internal to this room
    """There is no authorization.

    Args:
        reason: why, as the rest of a sentence about the server: "it …".
        is_final: whether trying again would have the same result.
    """

    def __init__(self, reason: str, *, is_final: bool = True) -> None:
        super().__init__(reason)
        self.is_final = is_final


# --- addresses ------------------------------------------------------------------------------------------------------------


@frozen
class AuthorizationRequests:
    """Sends the requests of one server's authorization, each over a connection of its own.

    Attributes:
        named: the addresses that a person or a program has named: the server's own, and that of the authorization server, if any.
        allow_private: further hosts in private networks that may be reached.
        resolve: returns the network addresses of a host.
    """

    named: tuple[str, ...]
    allow_private: tuple[str, ...] = ()
    resolve: Resolve = field(default=resolve_host, repr=False)

    @cached_property
    def _own(self) -> list[WebAddress]:
        return list(_parse_all(self.named))

    @cached_property
    def _rules(self) -> HostRules:
        own = [f"[{each.host}]:{each.port}" if ":" in each.host else f"{each.host}:{each.port}" for each in self._own]
        return HostRules((), [*own, *self.allow_private])

    @cached_property
    def _tls(self) -> SSLContext:
        return httpx2.create_ssl_context()  # reading the authorities takes 40 ms

    async def send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request to an address that the server has named, and read its response.

        Raises:
            AuthorizationFailed: when the address may not be reached, or the response is an error, too long, or not what was asked
                for.
            httpx2.TransportError: when there is no response.
        """
        address = self._parse(str(request.url))
        proxy = _proxy_to(address)
        if proxy:
            await self._check_names(address)
            requests = [request]
        else:
            requests = [_request_to(ip, address, request) for ip in await self._resolve(address)]
        # A connection is never kept: one to the same network address with another name would have the wrong certificate.
        limits = httpx2.Limits(max_keepalive_connections=0)
        try:
            async with httpx2.AsyncClient(
                verify=self._tls, trust_env=False, proxy=proxy, timeout=_SECONDS, limits=limits
            ) as client:
                reply = await _send_first(client, requests)
                reply.request = request
                await check_reply(request, reply)
                return reply
        except httpx2.RequestError as error:
            error.request = request  # the one with the name of the host
            raise

    async def check_page(self, url: str) -> None:
        """Check the address of a page for a person, whose browser connects by itself.

        Raises:
            AuthorizationFailed: when it is not one of the web, or is at a network address that may not be reached.
        """
        await self._check_names(self._parse(url))

    def _parse(self, url: str) -> WebAddress:
        """Read an address.

        Raises:
            AuthorizationFailed: when it is not one, or others could read a request to it on its way.
        """
        try:
            address = WebAddress.parse(url)
        except ToolFailed as error:
            raise AuthorizationFailed(
                f"it names the address {show_address(url)!r:.200} for its authorization: {error}"
            ) from None
        is_own = any(address.origin == own.origin for own in self._own)
        # What others on this machine can read is not sent without encryption to more than what was named.
        is_local = is_loopback(address.host) and any(rule.matches(address) for rule in self._rules.private)
        if not (is_own or is_local or address.scheme == "https"):
            hint = _hint(address) if is_loopback(address.host) else ""
            raise AuthorizationFailed(
                f"it sends its authorization to {show_address(url)}, which is not a safe https address{hint}"
            )
        return address

    async def _resolve(self, address: WebAddress) -> list[IpAddress]:
        try:
            return await self._rules.resolve(address, self.resolve)
        except HostUnknown as error:
            raise AuthorizationFailed(
                f"its authorization server {address.origin} cannot be reached: {error}", is_final=False
            ) from None
        except ToolFailed as error:
            raise AuthorizationFailed(
                f"it names {address.origin} for its authorization: {error}{_hint(address)}"
            ) from None

    async def _check_names(self, address: WebAddress) -> None:
        """Check the network addresses that a name has here, where another program resolves it once more and connects."""
        if not is_ip(address.host):
            try:
                await self.resolve(address.host, address.port)
            except (OSError, UnicodeError):
                return  # only the other program knows the name
        await self._resolve(address)


def _parse_all(urls: Iterable[str]) -> Iterator[WebAddress]:
    for url in urls:
        try:
            yield WebAddress.parse(show_address(url))
        except ToolFailed:  # what was named cannot be compared with what a server names
            continue


def _hint(address: WebAddress) -> str:
    return f"; if that is meant, allow it with allow_private=[{address.authority!r}]"


def _proxy_to(address: WebAddress) -> str | None:
    """Return the proxy that the environment names for an address; it resolves names itself."""
    proxies = getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(address.authority):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _request_to(ip: IpAddress, address: WebAddress, request: httpx2.Request) -> httpx2.Request:
    """Return a request to one network address of a host; the certificate is that of the name."""
    url = request.url.copy_with(scheme=address.scheme, host=str(ip), port=address.port)
    headers = {**request.headers, "host": address.authority}
    extensions = {} if is_ip(address.host) else {"sni_hostname": address.host}
    return httpx2.Request(request.method, url, headers=headers, content=request.content, extensions=extensions)


async def _send_first(client: httpx2.AsyncClient, requests: Sequence[httpx2.Request]) -> httpx2.Response:
    """Send the first of equal requests whose network address takes connections."""
    *others, last = requests
    for request in others:
        try:
            return await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):  # nothing was sent
            continue
    return await client.send(last, stream=True)


# --- responses ------------------------------------------------------------------------------------------------------------


async def check_reply(request: httpx2.Request, reply: httpx2.Response) -> None:
    """Read a response to a request of the flow, and check it before the SDK does, whose errors may contain tokens.

    Raises:
        AuthorizationFailed: when it is an error, too long, or not what was asked for.
    """
    data, server = await read_reply(reply), show_address(str(request.url))
    if request.method != "POST" or reply.is_redirect:
        return
    if reply.status_code >= _FAILED:
        raise AuthorizationFailed(f"its authorization server answered {reply.status_code} at {server}", is_final=False)
    is_token = request.headers.get("content-type") == "application/x-www-form-urlencoded"
    if reply.status_code >= _REFUSED:
        # A refresh token that has expired is no error: a person is asked.
        if not (is_token and parse_qs(request.content.decode()).get("grant_type") == ["refresh_token"]):
            raise AuthorizationFailed(f"its authorization server refused at {server}: {error_code(_as_object(data))}")
        return
    try:
        model = OAuthToken if is_token else OAuthClientInformationFull
        model.model_validate(_as_object(data))
    except ValueError:
        kind = "token" if is_token else "client"
        raise AuthorizationFailed(f"its authorization server sent no valid {kind} from {server}") from None


async def read_reply(reply: httpx2.Response) -> bytes:
    """Read a response up to a limit, after which the SDK reads it from memory; redirects have no content.

    Raises:
        AuthorizationFailed: when it is too long, compressed, or too slow.
    """
    data, stream, address = bytearray(), reply.stream, show_address(str(reply.request.url))
    assert isinstance(stream, httpx2.AsyncByteStream)  # noqa: S101  # of an asynchronous client
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in stream:
                data += chunk
                if len(data) > _MAX_BYTES:
                    raise AuthorizationFailed(
                        f"its authorization failed: {address} sent more than {_MAX_BYTES:,} bytes"
                    )
    except TimeoutError:
        raise AuthorizationFailed(f"its authorization failed: {address} is too slow", is_final=False) from None
    finally:
        await stream.aclose()
    # What is compressed to this length may be of any length; it was not asked for, and a refusal needs no content.
    if reply.headers.pop("content-encoding", "identity").lower() != "identity" or reply.is_redirect:
        data.clear()
    reply.stream = httpx2.ByteStream(bytes(data))
    return bytes(data)


def _as_object(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def error_code(document: dict[str, Any]) -> str:
    """Return the code of an error, and nothing else of what the server has sent, which may repeat secrets."""
    code = document.get("error")
    return code if isinstance(code, str) and _ERROR_CODE.fullmatch(code) else "no reason given"
