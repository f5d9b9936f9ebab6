"""API keys: given as text, or by a function that is called for each attempt, so that tokens can expire."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from inspect import isawaitable, iscoroutinefunction
from typing import TypeAlias

from agentloop._shielding import is_task_cancelled
from agentloop.errors import AuthenticationError, ConfigurationError
from agentloop.values.secrets import Secret, as_secret

KeyFunction: TypeAlias = Callable[[], "str | Secret | Awaitable[str | Secret]"]
"""Returns the current key or token of a service. A plain function runs in a thread, since it may block; an async one does not."""


def as_key(value: str | Secret | KeyFunction | None) -> Secret | KeyFunction | None:
    """Wrap a key; a function remains as it is, None and empty keys become None.

    Raises:
        ConfigurationError: if the key contains a character that cannot be sent.
        TypeError: if it is neither text nor a function.
    """
    if value is None or isinstance(value, str | Secret):
        return as_secret(value)
    if not callable(value):
        raise TypeError(f"a key is text, a Secret, or a function that returns one, not {type(value).__name__}")
    return value


def mask_key(key: Secret | KeyFunction | None) -> str:
    """Return the repr of a key; that of a function could show the arguments that are bound to it."""
    return repr(key) if key is None or isinstance(key, Secret) else "<function>"


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
        returned = function() if is_async else await asyncio.to_thread(function)
        return _require_secret(await returned if isawaitable(returned) else returned)
    except asyncio.CancelledError as error:
        if is_task_cancelled():
            raise
        problem = repr(error)
    except Exception as error:  # noqa: BLE001  # the function is the user's
        problem = f"{type(error).__name__}: {error}"
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
