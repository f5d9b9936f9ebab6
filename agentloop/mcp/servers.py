"""Where an MCP server is found."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from attrs import field, frozen

from agentloop.errors import ConfigurationError, InvalidDocument
from agentloop.values.json import parse_json
from agentloop.values.value import Value


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
    args: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
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


_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_HTTP = frozenset({"http", "streamable-http", "streamableHttp"})


def servers_of(path: str | os.PathLike[str]) -> dict[str, Server]:
    """Return the servers that a file names, without those that it disables.

    Args:
        path: the file.

    Raises:
        ConfigurationError: when it has mistakes; says where.
        OSError: when it cannot be read.
    """
    told = _parsed(path)
    entries = told.get("mcpServers") if isinstance(told, Mapping) else None
    if not isinstance(entries, Mapping):
        raise ConfigurationError(f'{path}: there is no object "mcpServers"')
    found: dict[str, Server] = {}
    for name, entry in entries.items():
        reading = _Reading(f"{path}: mcpServers.{name}", entry)
        if not reading.flag("disabled"):
            found[name] = reading.server()
    return found


def _parsed(path: str | os.PathLike[str]) -> Any:
    try:
        return parse_json(Path(path).read_bytes())
    except (InvalidDocument, ValueError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error


class _Reading:
    """One entry, read with care: what is wrong is told with its place."""

    def __init__(self, place: str, entry: object) -> None:
        self._place = place
        if not isinstance(entry, Mapping):
            raise ConfigurationError(f"{place} is not an object")
        self._entry: Mapping[str, Any] = entry

    def server(self) -> Server:
        if "url" in self._entry:
            kind = self._entry.get("type", "http")
            if kind not in _HTTP:
                raise ConfigurationError(
                    f"{self._place}.type: {kind!r} is not supported; the others are stdio and http"
                )
            url, headers = self._text("url"), self._texts("headers")
            try:
                return HttpServer(url, headers)
            except ConfigurationError as error:
                raise ConfigurationError(f"{self._place}.url: {error}") from error
        if "command" not in self._entry:
            raise ConfigurationError(f"{self._place} has neither a command nor a url")
        args = self._entry.get("args", [])
        if not isinstance(args, list | tuple) or not all(isinstance(one, str) for one in args):
            raise ConfigurationError(f"{self._place}.args is not a list of texts")
        expanded = [self._expanded(one, "args") for one in args]
        cwd = self._text("cwd") if "cwd" in self._entry else None
        return StdioServer(self._text("command"), expanded, self._texts("env"), cwd)

    def flag(self, key: str) -> bool:
        return self._entry.get(key, False) is True

    def _text(self, key: str) -> str:
        value = self._entry[key]
        if not isinstance(value, str) or not value:
            raise ConfigurationError(f"{self._place}.{key} is not a text")
        return self._expanded(value, key)

    def _texts(self, key: str) -> dict[str, str]:
        value = self._entry.get(key, {})
        if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
            raise ConfigurationError(f"{self._place}.{key} is not an object of texts")
        return {name: self._expanded(one, f"{key}.{name}") for name, one in value.items()}

    def _expanded(self, text: str, key: str) -> str:
        def value(found: re.Match[str]) -> str:
            name, default = found[1], found[2]
            given = os.environ.get(name, default)
            if given is None:
                raise ConfigurationError(f"{self._place}.{key}: the environment variable {name} is not set")
            return given

        return _VARIABLE.sub(value, text)
