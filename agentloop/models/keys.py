"""API keys: given as text, or by a function that is called for each attempt, so that tokens can expire.

This is the only module that imports google-auth, for tokens of Google Cloud.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from importlib.util import find_spec
from inspect import isawaitable, iscoroutinefunction
from typing import Any
from weakref import WeakKeyDictionary

from agentloop._shielding import call_in_thread, is_task_cancelled
from agentloop.errors import AuthenticationError, ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.values.secrets import KeyFunction, Secret, as_secret
from agentloop.values.tool_calls import ErrorInfo


def mask_key(key: Secret | KeyFunction | None) -> str:
    """Return the repr of a key; that of a function could show the arguments that are bound to it."""
    return repr(key) if key is None or isinstance(key, Secret) else "<function>"


_FETCHED: WeakKeyDictionary[KeyFunction, tuple[Secret, ...]] = WeakKeyDictionary()
_MAX_FETCHED = 16


def fetched_keys(function: KeyFunction) -> tuple[Secret, ...]:
    """Return the last keys that a function has returned, which recordings mask."""
    try:
        return _FETCHED.get(function, ())
    except TypeError:  # an object that cannot be referenced weakly
        return ()


def _remember(function: KeyFunction, key: Secret) -> Secret:
    known = fetched_keys(function)
    if key not in known:
        with suppress(TypeError):
            _FETCHED[function] = (*known[1 - _MAX_FETCHED :], key)
    return key


async def fetch_key(function: KeyFunction, model: str) -> Secret:
    """Call a function that returns a key.

    Args:
        function: the function.
        model: the model string, for errors.

    Raises:
        AuthenticationError: the function raised an error or returned no key. The error has no cause: what libraries of tokens
            raise may hold requests with credentials.
    """
    is_async = iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__)
    try:
        returned = function() if is_async else await call_in_thread(function)
        return _remember(function, _require_secret(await returned if isawaitable(returned) else returned))
    except asyncio.CancelledError as error:
        if is_task_cancelled():
            raise
        problem = repr(error)
    except Exception as error:  # noqa: BLE001  # the function is the user's
        problem = f"{type(error).__name__}: {ErrorInfo.of(error).message}"
    # Raised outside of the handler, so that the error is not its context either.
    raise AuthenticationError(f"there is no key for {model}, because the function that returns it failed: {problem}")


def _require_secret(value: object) -> Secret:
    if not isinstance(value, str | Secret):
        raise TypeError(f"it returned {type(value).__name__} and not a text")
    values = [value]
    del value  # tracebacks can show local variables
    secret = as_secret(values.pop())
    if secret is None:
        raise ConfigurationError("it returned an empty text")
    return secret


# --- Google Cloud ----------------------------------------------------------------------------------------------------

_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class GoogleTokens:
    """A function that returns an access token of the Application Default Credentials, and a new one when it expires.

    The credentials are those of the file in `GOOGLE_APPLICATION_CREDENTIALS`, of `gcloud auth application-default login`, or of
    the machine in Google Cloud. They are looked up with the first call.

    Source: https://cloud.google.com/docs/authentication/application-default-credentials
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._credentials: Any = None  # google-auth has no types

    def __call__(self) -> str:
        """Return a token that is valid for some minutes; may wait for a request to Google.

        Raises:
            Exception: any error of google-auth, such as `DefaultCredentialsError`.
        """
        import google.auth
        from google.auth.transport.requests import Request

        # Inferences call this in threads of their own.
        with self._lock:
            if self._credentials is None:
                self._credentials, _ = google.auth.default(scopes=[_SCOPE])
            if not self._credentials.valid:
                self._credentials.refresh(Request())
            return str(self._credentials.token)


_TOKENS = GoogleTokens()


def google_token_function() -> KeyFunction:
    """Return the function that returns tokens of the environment's credentials, the same one for the whole process.

    Raises:
        ConfigurationError: google-auth is not installed.
    """
    if not all(map(_is_installed, ("google.auth", "requests"))):
        raise ConfigurationError(
            f"vertex needs a token of Google Cloud: install google-auth with {install_hint('vertex')}, or pass api_key, a "
            "function that returns a token"
        )
    return _TOKENS


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package around it is missing
        return False
