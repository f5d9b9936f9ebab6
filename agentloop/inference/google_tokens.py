"""Access tokens of Google Cloud from the credentials of the environment; the only module that imports google-auth."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any

from agentloop.errors import ConfigurationError, install_hint
from agentloop.inference.keys import KeyFunction

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
