"""Signatures of requests: their contract, and those of AWS by botocore, which no other module imports."""

from __future__ import annotations

import re
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

from agentloop.errors import AuthenticationError, ConfigurationError
from agentloop.errors.hints import install_hint
from agentloop.values.secrets import Secret, as_secret

_SIGNED_HEADERS = frozenset({"content-type"})
_SIGNATURE_HEADERS = frozenset({"authorization", "x-amz-date", "x-amz-security-token"})
_MAX_SECRETS = 8


class CanSignRequests(ABC):
    """Signs requests to a service that authenticates them by a signature instead of a key."""

    @abstractmethod
    def sign(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Return the headers to add to a request. Runs in a thread, since it may have to fetch credentials.

        Args:
            method: the HTTP method, in upper case.
            url: the complete URL.
            headers: the headers of the request so far, by lower-case names; a proxy may change all but `content-type`.
            body: the complete body.

        Raises:
            AuthenticationError: there are no credentials.
        """

    @property
    @abstractmethod
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that the latest signatures were made from or contain; they are masked in errors."""


class AwsSigner(CanSignRequests):
    """Signs requests to AWS (Signature Version 4); requires the extra `bedrock`.

    The credentials are those of `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, or else those that botocore finds: of a
    profile, of single sign-on, of a container or of the machine. They are looked up with the first request, and fetched anew
    when they expire.

    Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html

    Args:
        region: the region of the service, such as `us-east-1`.
        service: the name of the service in signatures.
        variables: returns the value of an environment variable, or an empty text; by default, only botocore looks for
            credentials.

    Raises:
        ConfigurationError: botocore is not installed.
    """

    def __init__(
        self, region: str, *, service: str = "bedrock", variables: Callable[[str], str] = lambda _: ""
    ) -> None:
        if find_spec("botocore") is None:
            raise ConfigurationError(
                f"requests to AWS are signed by botocore: {install_hint('bedrock')}, or set the environment variable "
                "AWS_BEARER_TOKEN_BEDROCK"
            )
        self.region = region
        self.service = service
        self._variables = variables
        self._lock = threading.Lock()
        self._credentials: Any = None  # botocore has no types
        self._secrets: deque[Secret] = deque(maxlen=_MAX_SECRETS)

    def __repr__(self) -> str:
        return f"AwsSigner({self.region!r}, service={self.service!r})"

    def sign(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Mapping[str, str]:
        """Return the signature, its date, and the token of temporary credentials.

        Raises:
            AuthenticationError: there are no credentials, or they cannot be fetched.
        """
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        signed = {name: value for name, value in headers.items() if name in _SIGNED_HEADERS}
        request = AWSRequest(method, url, headers=signed, data=body)
        SigV4Auth(self._frozen_credentials(), self.service, self.region).add_auth(request)
        added = {name.lower(): value for name, value in request.headers.items()}
        return {name: value for name, value in added.items() if name in _SIGNATURE_HEADERS}

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secret keys and session tokens of the latest signatures."""
        return tuple(self._secrets)

    def _frozen_credentials(self) -> Any:
        """Return the current credentials.

        Raises:
            AuthenticationError: there are none. The error has no cause, since the frames of botocore hold credentials.
        """
        problem = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_BEARER_TOKEN_BEDROCK, or AWS_PROFILE"
        try:
            # Inferences sign in threads of their own.
            with self._lock:
                self._credentials = self._credentials or self._find_credentials()
                frozen = None if self._credentials is None else self._credentials.get_frozen_credentials()
                if frozen is not None:
                    self._remember(frozen.secret_key, frozen.token)
                    return frozen
        except Exception as error:  # noqa: BLE001  # any error of botocore, its plug-ins and its HTTP requests
            problem = f"{type(error).__name__}: {error}"
        raise AuthenticationError(f"there are no credentials of AWS: {problem}")

    def _find_credentials(self) -> Any:
        from botocore.credentials import Credentials
        from botocore.session import Session

        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
        if all(map(self._variables, names)):
            return Credentials(*map(self._variables, names), self._variables("AWS_SESSION_TOKEN") or None)
        return Session(profile=self._variables("AWS_PROFILE") or None).get_credentials()

    def _remember(self, *texts: str | None) -> None:
        for secret in filter(None, map(as_secret, texts)):
            if secret not in self._secrets:
                self._secrets.append(secret)


def aws_region(variables: Callable[[str], str]) -> str:
    """Return the region of AWS in an environment: of a variable, or else of the profile if botocore is installed.

    Args:
        variables: returns the value of an environment variable, or an empty text.

    Raises:
        ConfigurationError: no region is set.
    """
    region = variables("AWS_REGION").strip() or variables("AWS_DEFAULT_REGION").strip()
    if not region and find_spec("botocore") is not None:
        region = _profile_region(variables("AWS_PROFILE").strip())
    if not region:
        raise ConfigurationError("bedrock needs a region of AWS: set the environment variable AWS_REGION")
    # It is a part of the name of the server that gets the credentials.
    if re.fullmatch("[a-z0-9-]+", region) is None:
        raise ConfigurationError(f"{region!r} is not a region of AWS, such as eu-west-1; correct AWS_REGION")
    return region


def _profile_region(profile: str) -> str:
    from botocore.exceptions import BotoCoreError
    from botocore.session import Session

    try:
        return Session(profile=profile or None).get_config_variable("region") or ""
    except BotoCoreError as error:
        raise ConfigurationError(f"the configuration of AWS is invalid: {error}") from error
