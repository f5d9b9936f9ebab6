"""Addresses on the web: URLs in one strict reading, the network addresses that they may lead to, and those of this machine.

A check is only worth something if what was checked is what is used. So a URL is read once, into parts, and requests are made of
these parts; and the check of network addresses is one of the address that is connected to, not of a name.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, TypeAlias
from urllib.parse import quote, urljoin

from attrs import field, frozen

from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.values.value import Value

IpAddress: TypeAlias = IPv4Address | IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the network addresses of a host and port."""

MAX_URL_LENGTH: Final = 8_000
_MAX_HOST_LENGTH = 253
_MAX_PORT = 65_535
_MAX_ADDRESSES = 4
_ANY_PORT = 0
DEFAULT_PORTS: Final = {"http": 80, "https": 443}


class HostUnknown(ToolFailed):
    """A host has no network address now; it may have one later."""


# --- URLs -------------------------------------------------------------------------------------------------------

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#]*)([^#]*)(?:#.*)?", re.DOTALL)
_AUTHORITY = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}))?")
_RULE = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(?::([0-9]{1,5}|\*))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
# A name whose last part looks like a number is an address in one of the spellings of inet_aton: 2130706433, 0x7f.1, 017700000001.
_NUMERIC = re.compile(r"(?:0x[0-9a-f]*|[0-9]+)")
# Browsers drop some of these and read a backslash as a slash; nobody needs them in a URL.
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]|[^\S ]")
_SAFE = "/?&=+$,;:@!*'()~%[]|-._"


@frozen(eq=False, repr=False)
class WebAddress(Value):
    """A URL of HTTP, read into its parts.

    Attributes:
        scheme: `http` or `https`.
        host: the name in lower case and in ASCII, or the IP address in its canonical spelling.
        port: the port.
        target: path and query.
    """

    scheme: str
    host: str
    port: int
    target: str = "/"

    @classmethod
    def parse(cls, url: str) -> WebAddress:
        """Read a URL; its fragment is dropped.

        Raises:
            ToolFailed: it is no URL of HTTP, or one with a user name, a password, a zone, or an unusual spelling of an address.
        """
        if len(url) > MAX_URL_LENGTH:
            raise ToolFailed(f"the URL has {len(url)} characters; the maximum is {MAX_URL_LENGTH}")
        match = _URL.fullmatch(url.strip(" "))
        if match is None or _FORBIDDEN.search(url.strip(" ")):
            raise ToolFailed(f"{url!r:.200} is not a URL such as 'https://example.com/page'")
        scheme, authority, target = match[1].lower(), match[2], match[3]
        if scheme not in DEFAULT_PORTS:
            raise ToolFailed(f"the scheme {scheme!r:.50} is not supported; there is http and https")
        if "@" in authority:
            raise ToolFailed("a URL with a user name or a password is refused; the program sets what identifies it")
        parts = _AUTHORITY.fullmatch(authority)
        if parts is None:
            raise ToolFailed(f"{authority!r:.200} is not a host with a port")
        port = int(parts[2]) if parts[2] else DEFAULT_PORTS[scheme]
        if not 0 < port <= _MAX_PORT:
            raise ToolFailed(f"{port} is not a port")
        path = quote(target.encode("utf-8", "replace"), safe=_SAFE)
        return cls(scheme, parse_host(parts[1]), port, path if path.startswith("/") else f"/{path}")

    def join(self, location: str) -> WebAddress:
        """Return the address that a redirect from this one leads to.

        Raises:
            ToolFailed: as for `parse`.
        """
        try:
            return self.parse(urljoin(self.url, location[: MAX_URL_LENGTH + 1]))
        except ValueError:  # of urljoin, for brackets that are not closed
            raise ToolFailed(f"{location!r:.200} is not a URL") from None

    @property
    def authority(self) -> str:
        """The host, with the port unless it is that of the scheme: the header `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The URL."""
        return f"{self.origin}{self.target}"

    def url_at(self, address: IpAddress) -> str:
        """Return the URL with an IP address in place of the name, for a connection to exactly this address."""
        host = f"[{address}]" if address.version == 6 else str(address)  # noqa: PLR2004  # the version of IP
        return f"{self.scheme}://{host}:{self.port}{self.target}"


def parse_host(text: str) -> str:
    """Return a host in its canonical spelling.

    Raises:
        ToolFailed: it is neither a name nor an IP address in the usual spelling.
    """
    host = text.lower().removesuffix(".")
    try:
        if host.startswith("["):
            # A zone such as fe80::1%eth0 names an interface of this machine.
            return str(IPv6Address(host[1:-1].partition("%")[0] if "%" not in host else ""))
        if not host.isascii():
            host = host.encode("idna").decode("ascii").lower() if len(host) <= _MAX_HOST_LENGTH else ""
        labels = host.split(".")
        if _NUMERIC.fullmatch(labels[-1]):
            return str(IPv4Address(host))
    except ValueError:  # of the module ipaddress, and of the codec
        raise ToolFailed(f"{text!r:.200} is not a host, or an address in an unusual spelling") from None
    if len(host) > _MAX_HOST_LENGTH or not all(map(_LABEL.fullmatch, labels)):
        raise ToolFailed(f"{text!r:.200} is not the name of a host")
    return host


# --- places that texts and calls name ---------------------------------------------------------------------------

Place: TypeAlias = tuple[str, int]
"""A host in its canonical spelling, and a port."""

_BETWEEN_WORDS = re.compile(
    "[\\s<>\"'`(){}|,;\u201c\u201d\u201e\u2018\u2019\u00ab\u00bb\u2039\u203a\u3001\uff0c\uff08\uff09\u300c\u300d]+"
)
_AROUND_WORDS = ".:!?*_~\u2026\u3002\uff01\uff1f"
_WEB_URL = re.compile(r"(?:^|[:=])https?://([^/?#]*)", re.IGNORECASE)
_BARE = re.compile(r"([^/?#]*)([/?#].*)?", re.DOTALL)
# Programs disagree where the host of such a URL begins.
_AMBIGUOUS = re.compile(r"//[^/?#]*@|\\")
_FILE_ENDINGS = frozenset(
    ["cc", "do", "id", "la", "md", "mov", "name", "pl", "pm", "ps", "py", "rs", "sh", "so", "st", "zip"]
)
"""Top-level domains that end the names of files and variables, too: `readme.md` is a file, until it has a scheme or a path."""


@lru_cache(maxsize=256)
def named_places(text: str) -> frozenset[Place]:
    """Return the places that a person names in a text, by URLs and by names of hosts: `https://example.com/a`, `example.org:8080`.

    A host without a port is named with the ports of http and https. Names below a named one are not named, and neither are the
    hosts of mail addresses, of URLs with a user name, and of words that are rather names of files.
    """
    found: set[Place] = set()
    for chunk in text.split():
        for word in () if _AMBIGUOUS.search(chunk) else _BETWEEN_WORDS.split(chunk):
            if "." in word or ":" in word or "localhost" in word.lower():
                found |= _places_of_word(word.strip(_AROUND_WORDS)) or _places_of_word(word.strip(f"{_AROUND_WORDS}[]"))
    return frozenset(found)


def _places_of_word(word: str) -> frozenset[Place]:
    match = _WEB_URL.search(word)
    if match is not None:
        return _places_of_authority(match[1].rstrip(_AROUND_WORDS))
    bare = _BARE.fullmatch(word)
    authority, rest = ("", "") if bare is None else (bare[1], bare[2] or "")
    name = authority.rpartition(":")[0] if re.search(r":[0-9]{1,5}$", authority) else authority
    is_name = "." in name or name.lower() == "localhost" or name.startswith("[")
    is_file = name.lower().rpartition(".")[2] in _FILE_ENDINGS and not rest and not name.lower().startswith("www.")
    return _places_of_authority(authority) if is_name and not is_file else frozenset()


def _places_of_authority(authority: str) -> frozenset[Place]:
    parts = _AUTHORITY.fullmatch(authority)
    if parts is None or "@" in authority:
        return frozenset()
    try:
        host = parse_host(parts[1])
    except ToolFailed:
        return frozenset()
    ports = [int(parts[2])] if parts[2] else DEFAULT_PORTS.values()
    return frozenset([(host, port) for port in ports])


def places_of_address(address: str) -> frozenset[Place]:
    """Return the place that an argument of a call names: a URL, or a host with or without a port; empty if it cannot be read."""
    try:
        parsed = WebAddress.parse(address)
    except ToolFailed:
        return frozenset() if "/" in address else _places_of_authority(address.strip())
    return frozenset([(parsed.host, parsed.port)])


redirects_to: ContextVar[frozenset[Place] | None] = ContextVar("redirects_to", default=None)
"""The places to which redirects of the current call may lead; None for all that the rules of hosts allow."""


def check_redirect(address: WebAddress, target: WebAddress) -> None:
    """Check that a redirect may be followed within the current call.

    Raises:
        ToolFailed: it leads to a place that a person has to be asked about.
    """
    allowed = redirects_to.get()
    at_usual_ports = {address.port, target.port} <= set(DEFAULT_PORTS.values())
    is_same = target.host == address.host and (target.port == address.port or at_usual_ports)
    if allowed is not None and not is_same and (target.host, target.port) not in allowed:
        raise ToolFailed(
            f"{address.authority} redirects to another host, {target.url!r:.500}; make a call with that URL if it is meant"
        )


# --- hosts ------------------------------------------------------------------------------------------------------


@frozen(eq=False, repr=False)
class HostRule(Value):
    """A host that may be reached.

    Attributes:
        name: a name, an IP address, `*.example.com` for all names below one, or `*` for any.
        port: the port; None for that of the scheme, 0 for any.
    """

    name: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> HostRule:
        """Read `example.com`, `*.example.com`, `*`, `example.com:8080`, `localhost:*`, `10.0.0.1` or `[::1]:8080`.

        Raises:
            ConfigurationError: for anything else.
        """
        match = _RULE.fullmatch(text)
        # A port 0, which no host has, is a mistake, and not any port.
        is_valid = match is not None and match[2] != "0" * len(match[2] or "-")
        name, port = (match[1], _as_port(match[2])) if match is not None and is_valid else ("", None)
        if name == "*":
            return cls(name, port)
        below = "*." if name.startswith("*.") else ""
        try:
            return cls(below + parse_host(name.removeprefix(below)), port)
        except ToolFailed:
            raise ConfigurationError(
                f"{text!r:.200} is not a host to allow; write example.com, *.example.com, example.com:8080, 10.0.0.1 or [::1]:80"
            ) from None

    def matches(self, address: WebAddress) -> bool:
        """Return whether an address is one of this host and port."""
        port = DEFAULT_PORTS[address.scheme] if self.port is None else self.port
        if port not in {_ANY_PORT, address.port}:
            return False
        if self.name.startswith("*"):
            return address.host.endswith(self.name[1:])
        return address.host == self.name


def _as_port(text: str | None) -> int | None:
    return (_ANY_PORT if text == "*" else int(text)) if text else None


def _parse_rules(texts: Iterable[str]) -> tuple[HostRule, ...]:
    if isinstance(texts, str):
        raise ConfigurationError(f"hosts are a list: write [{texts!r}]")
    return tuple([HostRule.parse(text) for text in texts])


@frozen
class HostRules:
    """The hosts that may be reached, and those of them that may be in a private network.

    Attributes:
        hosts: hosts whose addresses have to be public.
        private: hosts whose addresses may be private, too.
    """

    hosts: tuple[HostRule, ...] = field(converter=_parse_rules)
    private: tuple[HostRule, ...] = field(default=(), converter=_parse_rules)

    def __attrs_post_init__(self) -> None:
        if any(rule.name.startswith("*") for rule in self.private):
            raise ConfigurationError("a private host is named in full, without '*'")

    def check(self, address: WebAddress) -> None:
        """Check that a host may be reached.

        Raises:
            ToolFailed: it may not.
        """
        if not any(rule.matches(address) for rule in (*self.hosts, *self.private)):
            raise ToolFailed(f"{address.authority} is not among the hosts that may be reached")

    def check_ip(self, address: WebAddress, ip: IpAddress) -> None:
        """Check that a host may be reached at this network address.

        Raises:
            ToolFailed: it may not.
        """
        reason = find_refusal(ip)
        if not reason:
            return
        is_private = any(rule.matches(address) for rule in self.private)
        # A name in the private network may change its address, but not to that of a metadata service.
        if is_private and (address.host == str(ip) or _is_private(ip)):
            return
        raise ToolFailed(f"{address.host} is at {ip}, which may not be reached: {reason}")

    async def resolve(self, address: WebAddress, resolve: Resolve) -> list[IpAddress]:
        """Return network addresses to connect to; if one of those of a host may not be reached, none may.

        Raises:
            HostUnknown: the host has no address.
            ToolFailed: it has one that may not be reached.
        """
        try:
            found = [address.host] if is_ip(address.host) else await resolve(address.host, address.port)
        except (OSError, UnicodeError) as error:
            raise HostUnknown(f"there is no address of {address.host}: {error}") from None
        ips = [parse_ip(text) for text in dict.fromkeys(found)]
        for ip in ips:
            self.check_ip(address, ip)
        if not ips:
            raise HostUnknown(f"there is no address of {address.host}")
        return ips[:_MAX_ADDRESSES]


async def resolve_host(host: str, port: int) -> Sequence[str]:
    """Return the network addresses of a host, by the resolver of the system.

    Raises:
        OSError: there are none.
    """
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, proto=6)  # TCP
    return [str(entry[4][0]) for entry in entries]


# --- network addresses ------------------------------------------------------------------------------------------

_REFUSED: Final = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "a private network",
    "100.64.0.0/10": "a network of a provider",
    "127.0.0.0/8": "this machine",
    "168.63.129.16/32": "a service of the cloud",  # of Azure: a public address that answers inside of virtual machines
    "169.254.0.0/16": "a local link, and metadata of the cloud",
    "172.16.0.0/12": "a private network",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.31.196.0/24": "answered by the network itself",
    "192.52.193.0/24": "a relay to another network",
    "192.88.99.0/24": "a relay to another network",
    "192.168.0.0/16": "a private network",
    "192.175.48.0/24": "answered by the network itself",
    "198.18.0.0/15": "a test network",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "a group of machines",
    "240.0.0.0/4": "reserved",
    "2001::/23": "reserved, or a tunnel to another network",
    "2001:db8::/32": "documentation",
    "2002::/16": "a tunnel to another network",
    "2620:4f:8000::/48": "answered by the network itself",
    "3fff::/20": "documentation",
}
"""Networks that a public host is not in, with the reason (IANA's registries of special-purpose addresses, RFC 6890)."""

_REFUSED_V4 = [(IPv4Network(text), reason) for text, reason in _REFUSED.items() if ":" not in text]
_REFUSED_V6 = [(IPv6Network(text), reason) for text, reason in _REFUSED.items() if ":" in text]
_GLOBAL_V6 = IPv6Network("2000::/3")  # all that IANA has given out; everything else is local, reserved or mapped
_MAPPED = IPv6Network("::ffff:0:0/96")
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052; networks with IPv6 alone reach all of IPv4 by it
_ISATAP = (0x00005EFE, 0x02005EFE)  # RFC 5214: the second half of an address that has an IPv4 address in it
_PRIVATE_V4 = [
    IPv4Network(text) for text in ("10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
]
_METADATA_V4 = IPv4Address("100.100.100.200")  # of Alibaba
_METADATA_V6 = IPv6Network("fd00:ec2::/32")  # of Amazon
_PRIVATE_V6 = [IPv6Network(text) for text in ("::1/128", "fc00::/7")]


def find_refusal(ip: IpAddress) -> str:
    """Return why a network address is not a public one; empty if it is. An address that contains another one is that one, too."""
    # Not `is_global`, which calls tunnels to private addresses public, and has changed between versions of Python.
    if isinstance(ip, IPv4Address):
        return next((reason for network, reason in _REFUSED_V4 if ip in network), "")
    if ip.scope_id is not None:
        return "an interface of this machine"
    if ip in _MAPPED or ip in _NAT64:
        return find_refusal(IPv4Address(int(ip) & 0xFFFFFFFF))
    if ip not in _GLOBAL_V6:
        return "this machine" if ip == IPv6Address(1) else "not a public network"
    if int(ip) >> 32 & 0xFFFFFFFF in _ISATAP:
        return "a tunnel to another network"
    return next((reason for network, reason in _REFUSED_V6 if ip in network), "")


def parse_ip(text: str) -> IpAddress:
    """Return an address as the resolver of the system gives it.

    Raises:
        ToolFailed: it is none.
    """
    try:
        ip = ip_address(text)
    except ValueError:
        raise ToolFailed(f"{text!r:.100} is not a network address") from None
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip if mapped is None else mapped


def is_ip(host: str) -> bool:
    """Return whether a host in its canonical spelling is a network address."""
    return ":" in host or host.replace(".", "").isdecimal()


def _is_private(ip: IpAddress) -> bool:
    """Return whether an address is one of this machine or of a private network, and of no service of a cloud."""
    if isinstance(ip, IPv4Address):
        return ip != _METADATA_V4 and any(ip in network for network in _PRIVATE_V4)
    return ip not in _METADATA_V6 and any(ip in network for network in _PRIVATE_V6)


# --- addresses of this machine --------------------------------------------------------------------------------------


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, under an address that other machines cannot reach."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address of this machine.

    Args:
        host: an IP address, or a name that leads to one.
        port: the port; 0 for any free one.

    Raises:
        ConfigurationError: it cannot listen there, such as because the port is in use.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"cannot listen at {host}, port {port}: {_reason(error)}") from error


def _reason(error: OSError | OverflowError) -> str:
    # The text of the error repeats the address, except for that of a name that leads nowhere.
    if isinstance(error, socket.gaierror) or not isinstance(error, OSError):
        return str(getattr(error, "strerror", None) or error)
    return os.strerror(error.errno or 0)
