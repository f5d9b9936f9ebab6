"""Authorization over the SDK's OAuth client: what is sent where, how much is read, and how a person is asked."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from hmac import compare_digest
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mcp.client.auth import OAuthFlowError
from mcp.client.auth.extensions.client_credentials import (
    ClientCredentialsOAuthProvider,
    PrivateKeyJWTOAuthProvider,
    SignedJWTParameters,
)
from mcp.client.auth.utils import extract_field_from_www_auth, issuers_match
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)

from agentloop._shielding import call_in_thread
from agentloop.errors import ConfigurationError
from agentloop.mcp.authorization import Authorization, ClientCredentials, OAuth, SignedCredentials
from agentloop.mcp.sdk.authorization_requests import AuthorizationFailed, AuthorizationRequests, error_code, read_reply
from agentloop.mcp.sdk.names import AuthorizationCodeResult, OAuthClientProvider, httpx2
from agentloop.mcp.servers import HttpServer, show_address, token_key
from agentloop.mcp.session import LimitPause
from agentloop.values.secrets import Secret

_LOG = logging.getLogger("agentloop.mcp")
_MAX_SHOWN = 300
_SECONDS = 30.0
_UNAUTHORIZED = 401
_FORBIDDEN = 403


def authorization_flow(server: HttpServer, pause: LimitPause) -> httpx2.Auth | None:
    """Return the flow that authorizes requests to a server; None when none is configured.

    Args:
        server: the server, and how to be authorized there.
        pause: suspends the limits of time while a person is asked.
    """
    match server.auth:
        case None:
            return None
        case OAuth() as auth:
            return _PersonFlow(server.url, auth, pause)
        case ClientCredentials() as auth:
            return _SecretFlow(server.url, auth)
        case SignedCredentials() as auth:
            return _KeyFlow(server.url, auth)


def _requests_of(url: str, auth: Authorization) -> AuthorizationRequests:
    return AuthorizationRequests((url, auth.issuer), auth.allow_private)


# --- the SDK's flow, within limits --------------------------------------------------------------------------------------


class _Flow(OAuthClientProvider):
    """The SDK's flow, with limits on what it sends and reads.

    The SDK sends each request while it holds the lock of the flow, so that one long call would stop all others. Here, a
    request is sent without the lock, and handed to the SDK's flow only when the server asks for authorization.
    """

    scopes: tuple[str, ...] = ()
    _request_lock: asyncio.Lock
    _requests: AuthorizationRequests

    async def async_auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Drive the flow, and check what it sends and what it receives.

        Raises:
            AuthorizationFailed: when there is no authorization.
        """
        flow = super().async_auth_flow(request)
        reply: httpx2.Response | None = None
        try:
            while True:
                outgoing = await _advance(flow, reply)
                if outgoing is not request:
                    if outgoing.method != "GET":
                        self._check_metadata()
                    reply = await self._requests.send(outgoing)
                    continue
                reply = yield outgoing
                if _is_challenge(reply):
                    await read_reply(reply)  # httpx2 reads it too, but without a limit
        except StopAsyncIteration:
            return
        finally:
            await flow.aclose()

    async def _auth_flow(self, request: httpx2.Request) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        refused: str | None = None
        while True:
            async with self.context.lock:
                await self._load(refused)
                if self._token() in {"", refused} and self.context.can_refresh_token():
                    await self._handle_refresh_response((yield await self._refresh_token()))
            token = self._token()
            if refused is not None and token in {"", refused}:
                break
            if token:
                self._add_auth_header(request)
            response = yield request
            # The end of a session and its stream of notifications are not worth a question to a person.
            if request.method != "POST" or not _is_challenge(response):
                return
            if refused is not None or response.status_code == _FORBIDDEN:
                break
            refused = token  # it may only have expired, or somebody else may have got another in the meantime
        self._ask_for_scopes(response)
        async with self._request_lock, self._surroundings():
            flow = super()._auth_flow(request)
            try:
                outgoing, is_begun = await anext(flow), False
                while True:
                    # The SDK begins with the request, which was refused already, unless there is a new token by now.
                    is_known = outgoing is request and not is_begun and self._token() in {"", refused}
                    is_begun = is_begun or outgoing is request
                    outgoing = await flow.asend(response if is_known else (yield outgoing))
            except StopAsyncIteration:
                return
            finally:
                await flow.aclose()

    async def _load(self, refused: str | None) -> None:
        """Load the tokens at the start, and again before they are renewed: another program may have renewed them."""
        is_old = self.context.current_tokens is not None and self._token() in {"", refused}
        if not self._initialized or is_old:
            await self._initialize()

    def _token(self) -> str:
        """Return the current access token; empty when there is none or it has expired."""
        tokens = self.context.current_tokens
        return tokens.access_token if tokens is not None and self.context.is_token_valid() else ""

    def _surroundings(self) -> AbstractAsyncContextManager[object]:
        """Return the context in which the SDK requests authorization."""
        return nullcontext()

    def _ask_for_scopes(self, response: httpx2.Response) -> None:
        """Put the configured scopes in place of those that the server asks for; a request for more scopes is kept."""
        if self.scopes and response.status_code == _UNAUTHORIZED:
            challenge = response.headers.get("www-authenticate", "")
            response.headers["www-authenticate"] = f'Bearer scope="{" ".join(self.scopes)}", {challenge}'

    def _check_metadata(self) -> None:
        """Check that the authorization server is known: without its metadata, the SDK uses addresses of the server itself.

        Raises:
            AuthorizationFailed: when it has no metadata that can be used.
        """
        if self.context.auth_server_url and self.context.oauth_metadata is None:
            issuer = show_address(self.context.auth_server_url)
            raise AuthorizationFailed(
                f"its authorization server {issuer} has no metadata that can be used", is_final=False
            )


class _Storage:
    """What the SDK stores tokens in: they are in memory, and saved by a function."""

    def __init__(self, save: Callable[[], Awaitable[None]] | None = None) -> None:
        self._save = save
        self._tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self._tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self._tokens = tokens
        if self._save is not None:
            await self._save()

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return None  # a registered client is loaded with the tokens, and others are configured

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:  # noqa: ARG002  # the SDK's signature
        if self._save is not None:
            await self._save()


class _SecretFlow(_Flow, ClientCredentialsOAuthProvider):
    """Client credentials with a secret."""

    def __init__(self, url: str, auth: ClientCredentials) -> None:
        secret, issuer = auth.client_secret.reveal(), auth.issuer
        super().__init__(url, _Storage(), auth.client_id, secret, issuer=issuer)
        self.scopes, self._request_lock, self._requests = auth.scopes, asyncio.Lock(), _requests_of(url, auth)

    async def _exchange_token_client_credentials(self) -> httpx2.Request:
        if self.context.client_info is not None:
            self.context.client_info.token_endpoint_auth_method = _secret_method(self.context.oauth_metadata)
        return await super()._exchange_token_client_credentials()


class _KeyFlow(_Flow, PrivateKeyJWTOAuthProvider):
    """Client credentials with a signature."""

    def __init__(self, url: str, auth: SignedCredentials) -> None:
        signer = SignedJWTParameters(
            issuer=auth.client_id, subject=auth.client_id, signing_key=auth.pem(), signing_algorithm=auth.algorithm
        )
        sign = signer.create_assertion_provider()
        super().__init__(url, _Storage(), auth.client_id, sign, issuer=auth.issuer)
        self.scopes, self._request_lock, self._requests = auth.scopes, asyncio.Lock(), _requests_of(url, auth)


def _secret_method(metadata: OAuthMetadata | None) -> str:
    """Return how a client sends its secret; the specification's default, unless the server supports only the other."""
    methods = None if metadata is None else metadata.token_endpoint_auth_methods_supported
    is_basic = not methods or "client_secret_basic" in methods or "client_secret_post" not in methods
    return "client_secret_basic" if is_basic else "client_secret_post"


# --- a person -----------------------------------------------------------------------------------------------------------


class _PersonFlow(_Flow):
    """The code flow: a person agrees in a browser, which returns to a port of this machine."""

    def __init__(self, url: str, auth: OAuth, pause: LimitPause) -> None:
        client = OAuthClientMetadata(redirect_uris=None, client_name=auth.client_name)
        metadata_url = auth.client_metadata_url or None
        storage = _Storage(self._save)
        super().__init__(url, client, storage, self._ask, self._return_answer, client_metadata_url=metadata_url)
        self.scopes, self._request_lock, self._requests = auth.scopes, asyncio.Lock(), _requests_of(url, auth)
        self._auth, self._pause_limits = auth, pause
        self._key = token_key(url, auth)
        self._login = f"run `agentloop mcp login {show_address(url)}`"
        self._listener = _RedirectListener()
        self._was_asked = False
        if auth.client_id:
            self._configure_client()

    def _configure_client(self) -> None:
        secret, issuer = self._auth.client_secret, self._auth.issuer or None
        self.context.client_info = OAuthClientInformationFull(
            client_id=self._auth.client_id,
            client_secret=None if secret is None else secret.reveal(),
            redirect_uris=None,
            issuer=issuer,
        )

    # --- questions --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _surroundings(self) -> AsyncIterator[None]:
        """Listen for the answer of a person while the SDK asks for authorization."""
        if self._auth.open_browser is None:
            raise AuthorizationFailed(
                f"it wants the authorization of a person, and nobody is asked here; {self._login}"
            )
        if self._was_asked:
            raise AuthorizationFailed(f"it wants authorization, which was asked for and not given; {self._login}")
        registered = self._registered_addresses()
        former_port = next((port for url in registered or () if (port := urlsplit(url).port)), 0)
        async with self._listener.listen(self._auth.redirect_port, former_port):
            client = self.context.client_metadata.model_dump(mode="json", exclude_none=True)
            client["redirect_uris"] = [self._listener.url]
            self.context.client_metadata = OAuthClientMetadata.model_validate(client)
            # A registered client returns to its own addresses only. Those of other clients are known to their makers.
            if registered is not None and self._listener.url not in registered:
                self.context.client_info = None
            yield

    def _registered_addresses(self) -> list[str] | None:
        """Return the addresses to which a client returns that was registered in a flow; None without such a client."""
        client = self.context.client_info
        if client is None or client.client_id in {self._auth.client_id, self._auth.client_metadata_url}:
            return None
        return [str(url) for url in client.redirect_uris or ()]

    async def _ask(self, url: str) -> None:
        """Show a page to a person, and wait until the browser returns."""
        self._check_metadata()
        await self._requests.check_page(url)
        assert self._auth.open_browser is not None  # noqa: S101  # as `_surroundings` has checked
        self._was_asked = True
        self._listener.expect(parse_qs(urlsplit(url).query)["state"][0])
        try:
            with self._pause_limits():
                async with asyncio.timeout(self._auth.timeout):
                    await self._auth.open_browser(url)
                    self._answer = await self._listener.answer()
        except TimeoutError:
            seconds = f"{self._auth.timeout:g} seconds"
            raise AuthorizationFailed(
                f"it wants authorization, which was not given within {seconds}; {self._login}"
            ) from None
        except ConfigurationError as error:
            raise AuthorizationFailed(f"it wants authorization: {error}, or {self._login}") from None
        self._was_asked = False

    async def _return_answer(self) -> AuthorizationCodeResult:
        return self._answer

    async def _perform_authorization(self) -> httpx2.Request:
        self._choose_secret_method()
        return await super()._perform_authorization()

    def _choose_secret_method(self) -> None:
        client = self.context.client_info
        if client is not None and client.client_secret and client.token_endpoint_auth_method is None:
            client.token_endpoint_auth_method = _secret_method(self.context.oauth_metadata)

    def _expected_issuer(self) -> str:
        issuer, own = super()._expected_issuer(), self._auth.issuer
        if own and not issuers_match(issuer, own):
            raise AuthorizationFailed(f"it names the authorization server {show_address(issuer)}, not {own}")
        return issuer

    # --- what is kept -------------------------------------------------------------------------------------------------

    async def _initialize(self) -> None:
        """Load the tokens, and with them the metadata: without these, the SDK guesses where to refresh a token."""
        stored = await call_in_thread(self._auth.tokens.load, self._key)
        if stored is not None:
            try:
                self._restore(json.loads(stored.reveal()))
            except (ValueError, TypeError, KeyError, AttributeError):
                _LOG.warning(
                    "the tokens that are kept for %s cannot be read, and are not used", self.context.server_url
                )
        self._choose_secret_method()
        self._initialized = True

    def _restore(self, document: dict[str, Any]) -> None:
        metadata = document["metadata"] and OAuthMetadata.model_validate(document["metadata"])
        resource = document["resource"] and ProtectedResourceMetadata.model_validate(document["resource"])
        tokens = document["tokens"] and OAuthToken.model_validate(document["tokens"])
        expires_at = None if document["expires_at"] is None else float(document["expires_at"])
        if self._auth.issuer and not (metadata and issuers_match(str(metadata.issuer), self._auth.issuer)):
            return
        if not self._auth.client_id:
            self.context.client_info = document["client"] and OAuthClientInformationFull.model_validate(
                document["client"]
            )
        self.context.oauth_metadata, self.context.protected_resource_metadata = metadata, resource
        self.context.current_tokens, self.context.token_expiry_time = tokens, expires_at

    async def _save(self) -> None:
        context = self.context
        parts = {
            "tokens": context.current_tokens,
            "client": None if self._auth.client_id else context.client_info,
            "metadata": context.oauth_metadata,
            "resource": context.protected_resource_metadata,
        }
        document: dict[str, Any] = {
            name: None if part is None else part.model_dump(mode="json", exclude_none=True)
            for name, part in parts.items()
        }
        document["expires_at"] = context.token_expiry_time
        try:
            await asyncio.to_thread(self._auth.tokens.save, self._key, Secret(json.dumps(document)))
        except ConfigurationError as error:
            _LOG.warning("the authorization holds until the program ends: %s", error)


# --- the browser returns --------------------------------------------------------------------------------------------------

_PATH = "/callback"
_MAX_LINES = 100


class _RedirectListener:
    """Receives the browser at a port of this machine, with the answer of the authorization server."""

    def __init__(self) -> None:
        self.url = ""
        self._state = ""
        self._answered: asyncio.Future[AuthorizationCodeResult] | None = None

    @asynccontextmanager
    async def listen(self, port: int, preferred: int) -> AsyncIterator[None]:
        """Accept connections at a port.

        Args:
            port: the port; 0 for any.
            preferred: the port to use if it is free and any will do; 0 for none.

        Raises:
            AuthorizationFailed: when the port is in use.
        """
        server = await _listen_at(self._receive, port, preferred)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{_PATH}"
        self._answered = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            self._answered.cancel()
            server.close()

    def expect(self, state: str) -> None:
        """Set the state that an answer must have; others are not from the page that was shown."""
        self._state = state

    async def answer(self) -> AuthorizationCodeResult:
        """Wait for the answer.

        Raises:
            AuthorizationFailed: when the answer is no.
        """
        assert self._answered is not None  # noqa: S101  # since it listens
        return await self._answered

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                status, text = self._take((await reader.readline()).decode("latin-1").split())
                for _ in range(_MAX_LINES):
                    if (await reader.readline()).strip() == b"":
                        break
                head = (
                    f"HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {len(text)}\r\n"
                )
                # The address contains the code, which must not reach the next page or the cache.
                head += "referrer-policy: no-referrer\r\ncache-control: no-store\r\nconnection: close\r\n\r\n"
                writer.write(f"{head}{text}".encode())
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            _LOG.debug("a connection to %s was dropped", self.url)
        finally:
            writer.close()

    def _take(self, request: list[str]) -> tuple[str, str]:
        """Take the answer out of a request line; return the status and the text of the response."""
        method, target = (request[0], request[1]) if len(request) > 1 else ("", "")
        parts = urlsplit(target)
        if method != "GET" or parts.path != _PATH:
            return "404 Not Found", "There is nothing here."
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if not self._state or not compare_digest(query.get("state", "").encode(), self._state.encode()):
            return "400 Bad Request", "This answer does not belong to the question that was asked."
        assert self._answered is not None  # noqa: S101  # since it listens
        if self._answered.done():
            return "400 Bad Request", "The question was answered already."
        if "code" in query:
            result = AuthorizationCodeResult(code=query["code"], state=query["state"], iss=query.get("iss"))
            self._answered.set_result(result)
            return "200 OK", "Thank you. You can close this window."
        self._answered.set_exception(AuthorizationFailed(f"it was not authorized: {error_code(query)}"))
        return "200 OK", "The authorization was not given. You can close this window."


async def _listen_at(
    receive: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], port: int, preferred: int
) -> asyncio.Server:
    try:
        return await asyncio.start_server(receive, "127.0.0.1", port or preferred)
    except OSError as error:
        if port:
            raise AuthorizationFailed(
                f"it wants authorization, and the port {port} for its answer is in use"
            ) from error
        return await asyncio.start_server(receive, "127.0.0.1", 0)


# --- requests and responses -----------------------------------------------------------------------------------------------

_IS_OURS: ContextVar[bool] = ContextVar("agentloop_mcp_authorization", default=False)


def _is_loggable(record: logging.LogRecord) -> bool:
    """Leave out the tracebacks of our flows: their errors are raised too, and may contain what a server has sent."""
    return not (record.exc_info and _IS_OURS.get())


logging.getLogger("mcp.client.auth.oauth2").addFilter(_is_loggable)


async def _advance(
    flow: AsyncGenerator[httpx2.Request, httpx2.Response], reply: httpx2.Response | None
) -> httpx2.Request:
    """Return the next request of a flow.

    Raises:
        AuthorizationFailed: when there is none, since the authorization has failed.
        StopAsyncIteration: when there is none, since the flow has ended.
    """
    token = _IS_OURS.set(True)
    try:
        return await (anext(flow) if reply is None else flow.asend(reply))
    except (AuthorizationFailed, StopAsyncIteration):
        raise
    except (OAuthFlowError, ConfigurationError) as error:
        raise AuthorizationFailed(f"its authorization has failed: {_shorten(str(error))}") from None
    except Exception as error:  # noqa: BLE001  # the SDK raises errors of many kinds for data of servers
        # Neither the text nor the cause: both may contain a token.
        raise AuthorizationFailed(
            f"its authorization server sent data that cannot be used: {type(error).__name__}"
        ) from None
    finally:
        _IS_OURS.reset(token)


def _is_challenge(response: httpx2.Response) -> bool:
    """Whether a server asks for authorization, or for more scopes."""
    is_step_up = response.status_code == _FORBIDDEN
    return response.status_code == _UNAUTHORIZED or (
        is_step_up and extract_field_from_www_auth(response, "error") == "insufficient_scope"
    )


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
