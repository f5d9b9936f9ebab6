"""How programs are authorized at servers over HTTP, and where the tokens of people are kept."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
import tempfile
import webbrowser
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from attrs import field, frozen
from attrs.validators import gt, in_, min_len

from agentloop.errors import ConfigurationError
from agentloop.policies.web_addresses import HostRules
from agentloop.values.secrets import Secret
from agentloop.values.value import Value

BrowserOpener: TypeAlias = Callable[[str], Awaitable[None]]
"""Shows the page of this address to the person who has to agree."""

_SCOPE = re.compile(r"[!#-\[\]-~]+")
_MAX_BYTES = 1 << 20
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700


async def open_in_browser(url: str) -> None:
    """Open a page in the browser of this machine.

    Raises:
        ConfigurationError: when there is no browser.
    """
    if not await asyncio.to_thread(webbrowser.open, url):
        raise ConfigurationError("no browser can be opened here; pass a function as `open_browser`")


# --- tokens ---------------------------------------------------------------------------------------------------------


class CanKeepTokens(ABC):
    """Keeps the tokens of a person for servers, from one run of the program to the next.

    Both methods are called in threads, and may block. What is saved is one line of ASCII text, to be returned unchanged.
    """

    @abstractmethod
    def load(self, server: str) -> Secret | None:
        """Return what was last saved for a server; None when nothing was.

        Args:
            server: identifies the server and the client.

        Raises:
            ConfigurationError: when it cannot be read.
        """

    @abstractmethod
    def save(self, server: str, document: Secret | None) -> None:
        """Replace what is kept for a server at once: a reader sees the old document or the new one.

        Args:
            server: identifies the server and the client.
            document: the new document; None to remove the old one.

        Raises:
            ConfigurationError: when it cannot be written.
        """


def _default_folder() -> Path:
    data = os.environ.get("XDG_DATA_HOME", "")
    # The specification of these folders ignores relative paths.
    return (Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share") / "agentloop" / "mcp-tokens"  # noqa: PTH117  # as text


@frozen(eq=False, repr=False)
class TokenFiles(Value, CanKeepTokens):
    """Keeps the tokens of each server in a file that only its owner can read (mode 0600).

    Attributes:
        folder: the folder of the files, which is created when it is missing; by default `agentloop/mcp-tokens` in
            `$XDG_DATA_HOME` or `~/.local/share`.
    """

    folder: Path = field(factory=_default_folder, converter=Path)

    def load(self, server: str) -> Secret | None:
        """Return what was last saved for a server.

        Raises:
            ConfigurationError: when the file belongs to another user, others can read it, or it cannot be read.
        """
        path = self._path(server)
        try:
            # No link is followed, which somebody else could have made.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
                _check_owner(path, os.fstat(file.fileno()))
                return Secret(file.read(_MAX_BYTES).decode("ascii"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
            raise ConfigurationError(f"the tokens in {path} cannot be read: {reason}") from error

    def save(self, server: str, document: Secret | None) -> None:
        """Replace the file of a server, or remove it.

        Raises:
            ConfigurationError: when it cannot be written.
        """
        path = self._path(server)
        try:
            if document is None:
                path.unlink(missing_ok=True)
            else:
                self.folder.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
                _replace(path, document)
        except OSError as error:
            raise ConfigurationError(f"the tokens cannot be written to {path}: {error.strerror}") from error

    def _path(self, server: str) -> Path:
        return self.folder / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"


def _check_owner(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        raise ConfigurationError(f"the tokens in {path} are not used: it is not a file of yours")
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigurationError(f"the tokens in {path} are not used, since others can read them: chmod 600 {path}")


def _replace(path: Path, document: Secret) -> None:
    """Write a file beside its place, and move it there: a crash leaves the old one."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".tokens-")  # mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(document.reveal())
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)  # noqa: PTH105  # a name, not a path
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108  # the same
        raise


# --- ways to be authorized --------------------------------------------------------------------------------------------


def _as_scopes(scopes: str | Iterable[str]) -> tuple[str, ...]:
    return tuple(scopes.split()) if isinstance(scopes, str) else tuple(scopes)


def _check_scopes(_: Any, __: Any, scopes: tuple[str, ...]) -> None:
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ConfigurationError(f"{scope!r} is not a scope: a scope has no spaces, quotes or control characters")


def _check_address(_: Any, attribute: Any, url: str) -> None:
    if url and (urlsplit(url).scheme not in {"https", "http"} or not urlsplit(url).hostname):
        raise ConfigurationError(f"{attribute.name}: {url!r} is not an address like https://example.com")


def _check_issuer(owner: Any, attribute: Any, url: str) -> None:
    # Otherwise a server could name an authorization server of its own, and receive what authorizes the program.
    if not url:
        raise ConfigurationError("issuer is missing: the address of the authorization server that knows the client")
    _check_address(owner, attribute, url)


def _as_hosts(hosts: Iterable[str]) -> tuple[str, ...]:
    names = hosts if isinstance(hosts, str) else tuple(hosts)
    HostRules((), names)  # raises an error for what is not a list of hosts
    return tuple(names)


def _check_metadata_url(_: Any, __: Any, url: str) -> None:
    parts = urlsplit(url)
    if url and (parts.scheme != "https" or parts.path in {"", "/"}):
        raise ConfigurationError(
            f"client_metadata_url: {url!r} is not the https address of a document, like https://example.com/client.json"
        )


def _as_secret(secret: Secret | str | None) -> Secret | None:
    return None if secret is None else _to_secret(secret)


def _to_secret(secret: Secret | str) -> Secret:
    return Secret(secret) if isinstance(secret, str) else secret


def _as_key(key: Secret | str) -> Secret:
    # PEM has lines, which a secret cannot have: kept as one line, and split again for the signature.
    return Secret(key.replace("\r", "").replace("\n", "|")) if isinstance(key, str) else key


@frozen(eq=False, repr=False)
class OAuth(Value):
    """Authorization by a person in a browser: the code flow of OAuth 2.1 with PKCE, and refreshed tokens.

    A browser is opened when there is no token and a refresh is not possible. Without a `client_id`, the client identifies
    itself by `client_metadata_url` where the authorization server supports that, and is registered there otherwise.

    Attributes:
        scopes: the scopes to ask for; by default those that the server names.
        client_id: the id of a client that was registered before.
        client_secret: its secret, if it has one. It is sent to `issuer` only.
        issuer: the authorization server of the client, as its metadata name it; tokens of others are not requested.
        client_metadata_url: the https address of a client metadata document, which is the id of the client.
        client_name: the name of the client that people see when they agree.
        redirect_port: the port of this machine to which the browser returns, at `http://127.0.0.1:PORT/callback`; 0 for
            any free port.
        open_browser: shows the page to agree on; None to never ask: then tokens must be there, from `agentloop mcp login`.
        timeout: seconds that the person has to agree.
        tokens: keeps the tokens.
        allow_private: hosts in a private network or on this machine at which the authorization may be requested, such as
            `login.internal`, `localhost:9000`, or `localhost:*` for any port. The server's own host and `issuer` are among them;
            no others that the server names are.

    Raises:
        ConfigurationError: when a scope or an address is invalid, or a secret has no client or no issuer.
    """

    scopes: tuple[str, ...] = field(default=(), converter=_as_scopes, validator=_check_scopes)
    client_id: str = field(default="", kw_only=True)
    client_secret: Secret | None = field(default=None, converter=_as_secret, kw_only=True)
    issuer: str = field(default="", validator=_check_address, kw_only=True)
    client_metadata_url: str = field(default="", validator=_check_metadata_url, kw_only=True)
    client_name: str = field(default="agentloop", kw_only=True)
    redirect_port: int = field(default=0, validator=in_(range(1 << 16)), kw_only=True)
    open_browser: BrowserOpener | None = field(default=open_in_browser, repr=False, kw_only=True)
    timeout: float = field(default=300.0, validator=gt(0), kw_only=True)
    tokens: CanKeepTokens = field(factory=TokenFiles, repr=False, kw_only=True)
    allow_private: tuple[str, ...] = field(default=(), converter=_as_hosts, kw_only=True)

    def __attrs_post_init__(self) -> None:
        # The server names its authorization server: without an issuer, it could have the secret sent to itself.
        if self.client_secret is not None and not (self.client_id and self.issuer):
            raise ConfigurationError("client_secret needs client_id and issuer: it is sent to that issuer only")
        if self.client_id and self.client_metadata_url:
            raise ConfigurationError("client_id and client_metadata_url exclude each other: both identify the client")


@frozen(eq=False, repr=False)
class ClientCredentials(Value):
    """Authorization of the program itself, without a person: the client credentials of OAuth 2.1.

    Attributes:
        client_id: the id of the client.
        client_secret: its secret.
        issuer: the authorization server of the client, as its metadata name it. The secret is sent there only.
        scopes: the scopes to ask for; by default those that the server names.
        allow_private: hosts in a private network or on this machine at which the authorization may be requested, such as
            `login.internal`, `localhost:9000`, or `localhost:*` for any port. The server's own host and `issuer` are among them;
            no others that the server names are.

    Raises:
        ConfigurationError: when a scope or an address is invalid, or the issuer is missing.
    """

    client_id: str = field(validator=min_len(1))
    client_secret: Secret = field(converter=_to_secret)
    issuer: str = field(validator=_check_issuer, kw_only=True)
    scopes: tuple[str, ...] = field(default=(), converter=_as_scopes, validator=_check_scopes, kw_only=True)
    allow_private: tuple[str, ...] = field(default=(), converter=_as_hosts, kw_only=True)


@frozen(eq=False, repr=False)
class SignedCredentials(Value):
    """Authorization of the program itself by a signature, without a secret that is sent (`private_key_jwt`).

    Attributes:
        client_id: the id of the client.
        private_key: its private key, as PEM; it never leaves this machine.
        issuer: the authorization server of the client, as its metadata name it; only it gets signatures.
        algorithm: the algorithm of the signature, such as RS256 or ES256.
        scopes: the scopes to ask for; by default those that the server names.
        allow_private: hosts in a private network or on this machine at which the authorization may be requested, such as
            `login.internal`, `localhost:9000`, or `localhost:*` for any port. The server's own host and `issuer` are among them;
            no others that the server names are.

    Raises:
        ConfigurationError: when a scope or an address is invalid, or the issuer is missing.
    """

    client_id: str = field(validator=min_len(1))
    private_key: Secret = field(converter=_as_key)
    issuer: str = field(validator=_check_issuer, kw_only=True)
    algorithm: str = field(default="RS256", kw_only=True)
    scopes: tuple[str, ...] = field(default=(), converter=_as_scopes, validator=_check_scopes, kw_only=True)
    allow_private: tuple[str, ...] = field(default=(), converter=_as_hosts, kw_only=True)

    def pem(self) -> str:
        """Return the private key in lines, for the code that signs."""
        return self.private_key.reveal().replace("|", "\n")


Authorization: TypeAlias = OAuth | ClientCredentials | SignedCredentials
"""A way to be authorized at a server."""
