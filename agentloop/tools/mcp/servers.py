"""Where an MCP server is found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.values.value import Value


def _as_texts(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(texts)


def _names_only(secrets: Mapping[str, str]) -> str:
    return f"<{', '.join(secrets)}>"


def _address_only(url: str) -> str:
    """Show an address without what may be a key: a user with a password, and a query."""
    scheme, mark, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return repr(f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}")


def _check_url(_: Any, __: Any, url: str) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise ConfigurationError(
            f"the address of an MCP server is like https://example.com/mcp, not {_address_only(url)}"
        )


@frozen(eq=False, repr=False)
class StdioServer(Value):
    """A server that runs as a process of ours.

    Attributes:
        command: the program.
        args: its arguments.
        env: environment variables that it gets besides PATH, HOME and the like; what they hold is never shown.
        cwd: the folder that it runs in; ours when left out.
    """

    command: str
    args: tuple[str, ...] = field(default=(), converter=_as_texts)
    env: Mapping[str, str] = field(factory=dict, repr=_names_only)
    cwd: str | os.PathLike[str] | None = None


@frozen(eq=False, repr=False)
class HttpServer(Value):
    """A server that is reached over streamable HTTP.

    Attributes:
        url: its address.
        headers: what is sent with each request, such as `Authorization`; what they hold is never shown.

    Raises:
        ConfigurationError: when the address is none.
    """

    url: str = field(repr=_address_only, validator=_check_url)
    headers: Mapping[str, str] = field(factory=dict, repr=_names_only)


Server: TypeAlias = StdioServer | HttpServer
"""Where an MCP server is found."""
