"""Where an MCP server is found."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from attrs import field, frozen

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
    """

    url: str = field(repr=_address_only)
    headers: Mapping[str, str] = field(factory=dict, repr=_names_only)


Server: TypeAlias = StdioServer | HttpServer
"""Where an MCP server is found."""
