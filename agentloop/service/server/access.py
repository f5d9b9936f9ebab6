"""Who may do what: principals and their tokens, and the hosts and origins from which a server takes requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO, TypeAlias
from urllib.parse import urlsplit

from attrs import field, frozen

from agentloop.errors import AgentLoopError, ConfigurationError
from agentloop.errors.hints import suggest
from agentloop.values.records import root_of
from agentloop.values.run_requests import Identity
from agentloop.values.secrets import open_private

# --- refusals ---------------------------------------------------------------------------------------------------------


class RequestRefused(AgentLoopError):
    """A request that the server does not carry out; the answer is a problem document (RFC 9457).

    Args:
        status: the HTTP status.
        code: what is wrong, in one stable word for programs, such as `not_found`.
        detail: what is wrong and what to do, for people.
        headers: headers of the answer.
    """

    def __init__(self, status: int, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers: Mapping[str, str] = headers or {}


def unknown_execution() -> RequestRefused:
    """Return the refusal for an execution that does not exist, or that belongs to somebody else: both look alike."""
    return RequestRefused(404, "not_found", "there is no such execution, or it belongs to another principal")


def unknown_session() -> RequestRefused:
    """Return the refusal for a session that does not exist, or that belongs to another tenant: both look alike."""
    return RequestRefused(404, "not_found", "there is no such session, or it belongs to another tenant")


# --- principals -------------------------------------------------------------------------------------------------------


class Scope(StrEnum):
    """What a principal may do.

    `START` starts executions and sends messages to them, `READ` lists, fetches and follows them, `DECIDE` decides about pending
    calls, `STOP` stops them. These hold for the executions that the principal has started; with `ALL`, for every one. `DELETE`
    deletes sessions of the principal's tenant.
    """

    START = "start"
    READ = "read"
    DECIDE = "decide"
    STOP = "stop"
    DELETE = "delete"
    ALL = "all"


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_EXECUTION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,199}")
_MAX_SESSION = 200


def _check_name(_: object, __: object, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"the name of a principal has up to 64 letters, digits and . _ @ -, and begins with a letter or digit: {name!r:.80}"
        )


def _check_tenant(_: object, __: object, tenant: str) -> None:
    if tenant and not _NAME.fullmatch(tenant):
        raise ConfigurationError(
            f"a tenant has up to 64 letters, digits and . _ @ -, and begins with a letter or digit: {tenant!r:.80}"
        )


def _as_scopes(scopes: Iterable[Scope]) -> frozenset[Scope]:
    return frozenset(scopes)


@frozen(kw_only=True)
class Principal:
    """Who sends a request.

    The ids of the executions that a principal starts begin with its tenant and its name, `@acme:ada:`, or without a tenant with its
    name, `ada:`. So principals cannot take or guess the ids of each other, also where two tenants have one of the same name.

    Attributes:
        name: the name, which is recorded with what it starts and decides.
        scopes: what it may do.
        tenant: the customer or team that it belongs to, whose sessions it shares; empty for a principal that shares none.

    Raises:
        ConfigurationError: if the name or the tenant has other characters than letters, digits and `. _ @ -`.
    """

    name: str = field(validator=_check_name)
    scopes: frozenset[Scope] = field(converter=_as_scopes)
    tenant: str = field(default="", validator=_check_tenant)

    @property
    def identity(self) -> Identity | None:
        """The principal as the agent knows it; None for the user of a server without tokens, whom nothing has authenticated."""
        return None if self is LOCAL_USER else Identity(self.name, tenant=self.tenant, scopes=self.scopes)

    def require(self, scope: Scope) -> None:
        """Check that the principal has a scope.

        Raises:
            RequestRefused: it does not; the status is 403.
        """
        if scope not in self.scopes:
            raise RequestRefused(403, "scope_missing", f"this needs the scope {scope.value!r}, which the token lacks")

    def may_see(self, execution_id: str) -> bool:
        """Whether an execution, or the one that it serves, was started by this principal, or it may see all."""
        return Scope.ALL in self.scopes or root_of(execution_id).startswith(self.executions)

    def execution_id(self, name: str) -> str:
        """Return the id of an execution of this principal.

        Args:
            name: what the client calls it; the id itself is taken as well.

        Raises:
            RequestRefused: the name has characters that an id cannot have.
        """
        plain = name.removeprefix(self.executions)
        if not _EXECUTION_NAME.fullmatch(plain):
            raise RequestRefused(
                422, "invalid_id", "an id has up to 200 letters, digits and . _ ~ -, and begins with a letter or digit"
            )
        return self.executions + plain

    @property
    def executions(self) -> str:
        """With what the ids of the executions begin that the principal starts: its tenant, if it has one, its name, and a colon."""
        return f"@{self.tenant}:{self.name}:" if self.tenant else f"{self.name}:"

    @property
    def sessions(self) -> str:
        """With what the ids of the sessions begin that the principal may use: its tenant, or its name, and a colon."""
        # The sign keeps the sessions of a tenant and those of a principal of the same name apart.
        return f"@{self.tenant}:" if self.tenant else f"{self.name}:"

    def session_id(self, name: str) -> str:
        """Return the id of a session of this principal's tenant.

        Args:
            name: what the client calls it; the id itself is taken as well.

        Raises:
            RequestRefused: the name has characters that an id cannot have, or is the id of a session of somebody else.
        """
        plain = name.removeprefix(self.sessions)
        if ":" in plain:
            raise unknown_session()
        if not _EXECUTION_NAME.fullmatch(plain) or len(self.sessions + plain) > _MAX_SESSION:
            raise RequestRefused(
                422,
                "invalid_session",
                "a session has up to 130 letters, digits and . _ ~ -, and begins with a letter or digit",
            )
        return self.sessions + plain


LOCAL_USER = Principal(name="local", scopes=Scope)
"""Who sends the requests to a server without tokens, which only this machine can reach."""

Authenticate: TypeAlias = Callable[[str], Principal | Awaitable[Principal | None] | None]
"""Returns the principal of a bearer token, or None for a token that is unknown. May be async."""


CREDENTIALS = frozenset({"authorization", "cookie", "proxy-authorization", "x-api-key"})
"""Headers that carry credentials, which are never recorded."""


def check_kept_headers(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of headers that a server records with executions, in lower case.

    Raises:
        ConfigurationError: one carries credentials, or they are no list.
    """
    if isinstance(names, str):
        raise ConfigurationError(f"the headers to keep are a list of names; write kept_headers=[{names!r:.80}]")
    kept = tuple(name.lower() for name in names)
    if refused := sorted(CREDENTIALS.intersection(kept)):
        raise ConfigurationError(
            f"the header {refused[0]!r} carries credentials, which must not be recorded; the principal says who asks"
        )
    return kept


# --- tokens -----------------------------------------------------------------------------------------------------------


@frozen
class _StoredToken:
    digest: bytes
    principal: Principal


class TokenFile:
    """The principals of a file that holds hashes of their tokens; callable as an `Authenticate`.

    The file is JSON: `{"tokens": [{"name": "ada", "scopes": ["start", "read"], "sha256": "…"}]}`. It is read again when it has
    changed, so a removed token ends at once. The tokens are 256 random bits each; `add` creates them.

    Args:
        path: the file.

    Raises:
        ConfigurationError: the file cannot be read or has mistakes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path)
        self._version: tuple[int, int, int] | None = None
        self._tokens: tuple[_StoredToken, ...] = ()
        self._refresh()

    def __repr__(self) -> str:
        return f"TokenFile({str(self.path)!r})"

    def __call__(self, token: str) -> Principal | None:
        """Return the principal of a token; None for one that is unknown."""
        self._refresh()
        digest, found = _digest(token), None
        # All are compared, each in constant time: the duration says nothing about the stored ones.
        for stored in self._tokens:
            if hmac.compare_digest(stored.digest, digest):
                found = stored.principal
        return found

    def _refresh(self) -> None:
        try:
            status = self.path.stat()
            version = (status.st_mtime_ns, status.st_size, status.st_ino)
            if version != self._version:
                self._tokens = _parse_tokens(_read_tokens(self.path), self.path)
                self._version = version
        except OSError as error:
            raise ConfigurationError(f"the file of tokens {self.path} cannot be read: {error.strerror}") from error

    @staticmethod
    def add(path: str | os.PathLike[str], name: str, scopes: Iterable[Scope | str], *, tenant: str = "") -> str:
        """Add a new token to a file, which is created with the mode 0600 if it does not exist. Several processes may do so at once.

        Args:
            path: the file.
            name: the name of the principal; a principal can have several tokens.
            scopes: what it may do.
            tenant: the customer or team that it belongs to; empty for none.

        Returns:
            The token, which is stored nowhere.

        Raises:
            ConfigurationError: the file has mistakes or cannot be written, another process does not end changing it, or the
                name or a scope is invalid.
        """
        file, token = Path(path), secrets.token_urlsafe(32)
        principal = Principal(name=name, scopes=_parse_scopes(scopes, f"the token of {name!r}"), tenant=tenant)
        entry = {"name": name, "scopes": sorted(principal.scopes), "sha256": _digest(token).hex()}
        entry |= {"tenant": tenant} if tenant else {}
        try:
            _append_token(file, entry)
        except OSError as error:
            raise ConfigurationError(f"the file of tokens {file} cannot be written: {error.strerror}") from error
        return token


_CHANGE_SECONDS = 5.0
"""How long to wait for another process that changes the file of tokens."""


def _append_token(file: Path, entry: Mapping[str, Any]) -> None:
    # Replaced in one step, so that a running server never reads a half of it.
    draft = file.with_name(f"{file.name}.new")
    with _create_draft(draft) as out:
        try:
            text = _read_tokens(file) if file.exists() else '{"tokens": []}'
            _parse_tokens(text, file)
            document = json.loads(text)
            document["tokens"].append(entry)
            out.write(json.dumps(document, indent=2) + "\n")
            out.close()
            if file.exists():
                shutil.copymode(file, draft)
            draft.replace(file)
        except BaseException:
            out.close()
            draft.unlink()
            raise


def _create_draft(draft: Path) -> TextIO:
    """Create the draft of a file; of several processes, the one that has created it may read and replace the file."""
    deadline = time.monotonic() + _CHANGE_SECONDS
    while True:
        try:
            return open(draft, "x", encoding="utf-8", opener=open_private)
        except FileExistsError:
            if time.monotonic() > deadline:
                raise ConfigurationError(
                    f"another process changes the file of tokens; if none does, delete {draft}, which one has left"
                ) from None
            time.sleep(0.01)  # the file system tells nobody that the draft is gone


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _read_tokens(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"the file of tokens {path} is not JSON: {error}") from error


def _parse_tokens(text: str, path: Path) -> tuple[_StoredToken, ...]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"the file of tokens {path} is not JSON: {error}") from error
    match document:
        case {"tokens": list(entries)}:
            return tuple([_parse_token(entry, f"{path}: tokens[{index}]") for index, entry in enumerate(entries)])
        case _:
            raise ConfigurationError(f'the file of tokens {path} is not an object with a list "tokens"')


def _parse_token(entry: Any, place: str) -> _StoredToken:
    match entry:
        case {"name": str(name), "scopes": list(scopes), "sha256": str(digest)} if re.fullmatch("[0-9a-f]{64}", digest):
            tenant = entry.get("tenant", "")
            if not isinstance(tenant, str):
                raise ConfigurationError(f"{place}: the tenant is a text, not {tenant!r:.80}")
            principal = Principal(name=name, scopes=_parse_scopes(scopes, place), tenant=tenant)
            return _StoredToken(bytes.fromhex(digest), principal)
        case _:
            raise ConfigurationError(f"{place} needs a name, a list of scopes, and sha256 with 64 hexadecimal digits")


def _parse_scopes(scopes: Iterable[object], place: str) -> frozenset[Scope]:
    known = [scope.value for scope in Scope]
    for scope in scopes:
        if scope not in known:
            raise ConfigurationError(f"{place}: unknown scope {scope!r:.50}{suggest(str(scope), known)}")
    return frozenset([Scope(str(scope)) for scope in scopes])


# --- hosts and origins ------------------------------------------------------------------------------------------------

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")


def _as_hosts(names: Iterable[str]) -> frozenset[str]:
    return frozenset([name.lower() for name in names])


def _as_origins(origins: Iterable[str]) -> frozenset[str]:
    return frozenset(origins)


@frozen
class WebOrigins:
    """Under which names a server answers, and to web pages of which origins.

    A page of another site can make a browser send requests to a server on this machine, also under a name of that site that
    leads here (DNS rebinding). So requests need a host that the server knows, and an origin, if they have one, that is its
    own or a listed one.

    Attributes:
        hosts: the names and addresses of the server, without ports; `*` takes any.
        origins: the origins whose pages may use the server, such as `https://app.example.com`.

    Raises:
        ConfigurationError: an origin is not of the form `scheme://host`, with a port or without.
    """

    hosts: frozenset[str] = field(default=LOOPBACK_HOSTS, converter=_as_hosts)
    origins: frozenset[str] = field(default=(), converter=_as_origins)

    def __attrs_post_init__(self) -> None:
        for origin in self.origins:
            parts = urlsplit(origin)
            if not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
                raise ConfigurationError(
                    f"an origin is a scheme and a host, such as https://app.example.com: {origin!r}"
                )

    def check_host(self, host: str) -> None:
        """Check the header `Host`.

        Raises:
            RequestRefused: the server does not answer under this name; the status is 421.
        """
        name = re.sub(r":\d+$", "", host).lower()
        if "*" not in self.hosts and name not in self.hosts:
            raise RequestRefused(
                421, "unknown_host", "this server does not answer under that name; its operator can list it as a host"
            )

    def check_origin(self, origin: str, host: str) -> None:
        """Check the header `Origin`, which browsers send; empty without one.

        Raises:
            RequestRefused: the origin is neither that of the server nor a listed one; the status is 403.
        """
        if origin and origin not in self.origins and origin not in {f"http://{host}", f"https://{host}"}:
            raise RequestRefused(
                403, "foreign_origin", "web pages of that origin have no access; the operator of the server can list it"
            )
