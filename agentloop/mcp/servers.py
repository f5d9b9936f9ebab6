"""The commands and addresses of MCP servers, in Python and from the usual JSON file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from attrs import field, fields, frozen

from agentloop.errors import ConfigurationError, InvalidDocument
from agentloop.errors.hints import suggest
from agentloop.mcp.authorization import Authorization, ClientCredentials, OAuth, SignedCredentials
from agentloop.values.json import parse_json
from agentloop.values.value import Value


def _show_names(secrets: Mapping[str, str]) -> str:
    return f"<{', '.join(secrets)}>"


def show_address(url: str) -> str:
    """Return an address without the parts that may be secret: the user with its password, and the query."""
    scheme, mark, rest = url.partition("?")[0].partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}{mark}{host.rpartition('@')[2]}{slash}{path}"


def _quote_address(url: str) -> str:
    return repr(show_address(url))


def _check_url(_: Any, __: Any, url: str) -> None:
    try:
        parts = urlsplit(url)
        # Reading the port raises ValueError when it is not a number.
        is_valid = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ConfigurationError(
            f"the address of an MCP server is like https://example.com/mcp, not {_quote_address(url)}"
        )


def _check_command(_: Any, __: Any, command: str) -> None:
    if not str(command).strip():  # also a path
        raise ConfigurationError(
            "the command of an MCP server is the name or the path of a program, and cannot be empty"
        )


@frozen(eq=False, repr=False)
class StdioServer(Value):
    """A server that runs as a subprocess.

    Attributes:
        command: the program.
        args: its arguments.
        env: its environment variables, in addition to PATH, HOME and the like; their values are never shown.
        cwd: its working folder; ours when left out.

    Raises:
        ConfigurationError: when the command is empty.
    """

    command: str = field(validator=_check_command)
    args: tuple[str, ...] = field(default=(), converter=tuple[str, ...])
    # Environment and headers usually contain keys, and reprs end up in logs.
    env: Mapping[str, str] = field(factory=dict, repr=_show_names)
    cwd: str | os.PathLike[str] | None = None


@frozen(eq=False, repr=False)
class HttpServer(Value):
    """A server over streamable HTTP.

    Attributes:
        url: its address.
        headers: headers of each request, such as `Authorization`; their values are never shown.
        auth: how the program is authorized at the server; None when the headers do that, or nothing has to.

    Raises:
        ConfigurationError: when the address is not a valid URL, or there are two authorizations.
    """

    url: str = field(repr=_quote_address, validator=_check_url)
    headers: Mapping[str, str] = field(factory=dict, repr=_show_names)
    auth: Authorization | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if self.auth is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ConfigurationError("`auth` and a header Authorization exclude each other: both authorize requests")


def token_key(url: str, auth: OAuth) -> str:
    """Return the name under which tokens are kept: those of one client at one server."""
    return f"{url} {auth.client_id or auth.client_metadata_url}"


def forget_tokens(server: HttpServer) -> None:
    """Remove the tokens that are kept for a server.

    Raises:
        ConfigurationError: when they cannot be removed.
    """
    if isinstance(server.auth, OAuth):
        server.auth.tokens.save(token_key(server.url, server.auth), None)


Server: TypeAlias = StdioServer | HttpServer

_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_AUTH_TYPES: Mapping[str, type[Authorization]] = {
    "oauth": OAuth,
    "client_credentials": ClientCredentials,
    "signed_credentials": SignedCredentials,
}
_AUTH_KEYS = frozenset(
    {
        "scopes",
        "client_id",
        "client_secret",
        "issuer",
        "client_metadata_url",
        "redirect_port",
        "timeout",
        "private_key",
        "algorithm",
        "allow_private",
    }
)
_HTTP_TYPES = frozenset({"http", "streamable-http", "streamableHttp"})


@frozen(eq=False, repr=False)
class ServerEntry(Value):
    """An entry of a JSON file with `mcpServers`.

    Attributes:
        name: the name of the server.
        server: its command or address.
        trust_annotations: whether its annotations determine the effects of its tools.
        required: whether an execution needs it.
    """

    name: str
    server: Server
    trust_annotations: bool = False
    required: bool = True


def load_servers(path: str | os.PathLike[str]) -> list[ServerEntry]:
    """Return the servers in a JSON file with `mcpServers`, without the disabled ones.

    Args:
        path: the file.

    Raises:
        ConfigurationError: when it has mistakes; names the place.
        OSError: when it cannot be read.
    """
    document = _parse(path)
    entries = document.get("mcpServers") if isinstance(document, Mapping) else None
    if not isinstance(entries, Mapping):
        raise ConfigurationError(f'{path}: there is no object "mcpServers"')
    servers: list[ServerEntry] = []
    for name, entry in entries.items():
        reader = _EntryReader(f"{path}: mcpServers.{name}", entry)
        if not reader.is_disabled():
            server, trusts = reader.server(), reader.flag("trustAnnotations", default=False)
            servers.append(ServerEntry(name, server, trusts, reader.flag("required", default=True)))
    return servers


def read_server(name: str, entry: Mapping[str, Any]) -> Server:
    """Return the server of one entry, with the keys of an entry of `mcpServers`.

    Args:
        name: the name of the server.
        entry: the entry.

    Raises:
        ConfigurationError: when it has mistakes.
    """
    return _EntryReader(f"the server {name!r}", entry).server()


def _parse(path: str | os.PathLike[str]) -> Any:
    try:
        return parse_json(Path(path).read_bytes())
    except (InvalidDocument, ValueError) as error:
        raise ConfigurationError(f"{path} is not JSON: {error}") from error


class _EntryReader:
    """Reads one entry; a mistake is reported with its place."""

    def __init__(self, place: str, entry: object) -> None:
        self._place = place
        if not isinstance(entry, Mapping):
            raise ConfigurationError(f"{place} is not an object")
        self._entry: Mapping[str, Any] = entry

    def is_disabled(self) -> bool:
        return self._entry.get("disabled", False) is True

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._entry.get(key, default)
        if not isinstance(value, bool):
            raise ConfigurationError(f"{self._place}.{key} is neither true nor false")
        return value

    def server(self) -> Server:
        if "url" in self._entry:
            return self._http_server()
        if "command" not in self._entry:
            raise ConfigurationError(f"{self._place} has neither a command nor a url")
        args = self._entry.get("args", [])
        if not isinstance(args, list | tuple) or not all(isinstance(arg, str) for arg in args):
            raise ConfigurationError(f"{self._place}.args is not a list of texts")
        expanded = [self._expand(arg, "args") for arg in args]
        cwd = self._text("cwd") if "cwd" in self._entry else None
        command, env = self._text("command"), self._texts("env")
        try:
            return StdioServer(command, expanded, env, cwd)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._place}.command: {error}") from error

    def _http_server(self) -> HttpServer:
        kind = self._entry.get("type", "http")
        if kind not in _HTTP_TYPES:
            raise ConfigurationError(f"{self._place}.type: {kind!r} is not supported; use stdio or http")
        url, headers, auth = self._text("url"), self._texts("headers"), self._auth()
        try:
            return HttpServer(url, headers, auth=auth)
        except ConfigurationError as error:
            raise ConfigurationError(f"{self._place}.url: {error}") from error

    def _auth(self) -> Authorization | None:
        auth = self._entry.get("auth")
        if auth is None:
            return None
        settings = {"type": auth} if isinstance(auth, str) else auth
        if not isinstance(settings, Mapping) or settings.get("type", "oauth") not in _AUTH_TYPES:
            raise ConfigurationError(
                f'{self._place}.auth is none of {", ".join(_AUTH_TYPES)}, nor a table with such a "type"'
            )
        make = _AUTH_TYPES[settings.get("type", "oauth")]
        values: dict[str, Any] = {key: self._auth_value(key, value) for key, value in settings.items() if key != "type"}
        known = [attribute.name for attribute in fields(make) if attribute.name in _AUTH_KEYS]
        for key in values:
            if key not in known:
                raise ConfigurationError(f"{self._place}.auth has no key {key!r}{suggest(key, known)}")
        try:
            return make(**values)
        except (ConfigurationError, TypeError, ValueError) as error:
            raise ConfigurationError(f"{self._place}.auth: {error.args[0] if error.args else error}") from error

    def _auth_value(self, key: str, value: object) -> Any:
        if isinstance(value, str):
            return self._expand(value, f"auth.{key}")
        is_texts = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        if (
            is_texts
            if key in {"scopes", "allow_private"}
            else isinstance(value, int) and key in {"redirect_port", "timeout"}
        ):
            return value
        raise ConfigurationError(f"{self._place}.auth.{key} is not a value for this key")

    def _text(self, key: str) -> str:
        value = self._entry[key]
        if not isinstance(value, str) or not value:
            raise ConfigurationError(f"{self._place}.{key} is {'empty' if value == '' else 'not a text'}")
        return self._expand(value, key)

    def _texts(self, key: str) -> dict[str, str]:
        entries = self._entry.get(key, {})
        if not isinstance(entries, Mapping) or not all(isinstance(value, str) for value in entries.values()):
            raise ConfigurationError(f"{self._place}.{key} is not an object of texts")
        return {name: self._expand(value, f"{key}.{name}") for name, value in entries.items()}

    def _expand(self, text: str, key: str) -> str:
        """Replace the references to environment variables."""

        def replace(match: re.Match[str]) -> str:
            name, default = match[1], match[2]
            # An unset variable without a default is a mistake: an empty key would fail much later.
            value = os.environ.get(name, default)
            if value is None:
                raise ConfigurationError(f"{self._place}.{key}: the environment variable {name} is not set")
            return value

        return _VARIABLE.sub(replace, text)
