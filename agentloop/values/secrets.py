"""Secrets: API keys that never appear in text, fields of JSON data that are masked before data is stored, and private files."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn, Self, TypeAlias

from attrs import field, frozen

from agentloop.errors.kinds import ConfigurationError
from agentloop.values.json import format_json, parse_json
from agentloop.values.value import Value

MASK = "***"
_PREFIX_LENGTH = 8  # so many characters of a key identify it, even where a longer message was cut off inside the key
_MIN_SEARCHED_LENGTH = 4  # shorter values would be masked in unrelated text


class Secret:
    """An API key that never appears in a repr, a formatted string or a pickle.

    Args:
        value: the key; surrounding white space, as files and clipboards add it, is removed.

    Raises:
        ConfigurationError: if the key contains a character that an HTTP header cannot carry; the message does not show it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value.strip()
        del value  # tracebacks can show local variables
        position = next((n for n, c in enumerate(self._value, 1) if not (c.isascii() and c.isprintable())), 0)
        if position:
            raise ConfigurationError(
                f"the key cannot be sent: its character {position} of {len(self._value)} is a control character or not "
                "ASCII; was it copied from a formatted text?"
            )

    def reveal(self) -> str:
        """Return the key, for the code that sends it."""
        return self._value

    def redact(self, text: str) -> str:
        """Return the text with asterisks in place of every occurrence of the key, including truncated ones."""
        if not self._value:
            return text
        before, *others = text.split(self._value[:_PREFIX_LENGTH])
        rest = self._value[_PREFIX_LENGTH:]
        return MASK.join([before, *[other[_common_prefix_length(other, rest) :] for other in others]])

    def redact_error(self, error: BaseException) -> None:
        """Remove the key from an error: mask it in the error's text, and cut the chain of causes before the first with it."""
        error.args = tuple([self.redact(part) if isinstance(part, str) else part for part in error.args])
        for name, value in vars(error).items():
            if isinstance(value, str):
                setattr(error, name, self.redact(value))
        link: BaseException = error
        while (cause := link.__cause__ or link.__context__) is not None:
            text = f"{cause} {cause!r} {vars(cause)}"
            if self.redact(text) != text:
                link.__cause__ = link.__context__ = None
                return
            link = cause

    def __repr__(self) -> str:
        return f"Secret('{MASK}')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret cannot be pickled; pass the key again where it is needed")


def as_secret(value: str | Secret | None) -> Secret | None:
    """Wrap a key; None and empty keys become None.

    Raises:
        ConfigurationError: if the key contains a character that cannot be sent.
        TypeError: if it is not text.
    """
    if value is None:
        return None
    if not isinstance(value, str | Secret):
        raise TypeError(f"a key is text or a Secret, not {type(value).__name__}")
    if isinstance(value, str):
        keys = [value]
        del value  # tracebacks can show local variables
        value = Secret(keys.pop())
    return value if value.reveal() else None


def _common_prefix_length(text: str, other: str) -> int:
    length = 0
    for character, expected in zip(text, other, strict=False):
        if character != expected:
            break
        length += 1
    return length


def _as_paths(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    if isinstance(names, str):
        names = (names,)
    return tuple([tuple(name.split(".")) for name in names])


@frozen(eq=False, repr=False)
class SecretFields(Value):
    """Masks fields of JSON data.

    Attributes:
        paths: the fields. A single name matches every field of that name, at any depth. A dotted path such as `card.number`
            matches from the top; it passes through arrays, and `*` matches every name.
    """

    paths: tuple[tuple[str, ...], ...] = field(default=(), converter=_as_paths)

    def mask(self, value: Any, secrets: set[str], path: tuple[str, ...] = ()) -> Any:
        """Return a plain copy of JSON data with its secret fields masked.

        Args:
            value: the data.
            secrets: collects the masked texts, so that `mask_texts` can mask them elsewhere.
            path: the path of the data below the top.
        """
        if isinstance(value, Mapping):
            return {name: self._mask_field(item, secrets, (*path, name)) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(item, secrets, path) for item in value]
        return value

    def _mask_field(self, value: Any, secrets: set[str], path: tuple[str, ...]) -> Any:
        if not any(_matches(pattern, path) for pattern in self.paths):
            return self.mask(value, secrets, path)
        secrets.update(text for text in _iter_texts(value) if len(text) >= _MIN_SEARCHED_LENGTH)
        return MASK

    def mask_text(self, text: str, secrets: set[str]) -> str:
        """Return a text with the secret fields masked if it is JSON; return any other text unchanged."""
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            value = parse_json(text)
        except ValueError:
            return text
        masked = self.mask(value, secrets)
        return text if masked == value else format_json(masked).decode()


def mask_texts(value: Any, secrets: Iterable[str]) -> Any:
    """Return plain JSON data with these texts masked wherever they occur in its strings."""
    if isinstance(value, str):
        # The longest first: a secret may contain another one.
        for text in sorted(secrets, key=len, reverse=True):
            value = value.replace(text, MASK)
        return value
    if isinstance(value, dict):
        return {name: mask_texts(item, secrets) for name, item in value.items()}
    return [mask_texts(item, secrets) for item in value] if isinstance(value, list) else value


def _matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if len(pattern) == 1:
        return pattern[0] == path[-1]
    return len(pattern) == len(path) and all(part in {"*", name} for part, name in zip(pattern, path, strict=True))


def _iter_texts(value: Any) -> Iterator[str]:
    """Yield every text in JSON data, and every number as text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _iter_texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _iter_texts(item)
    elif value is not None and not isinstance(value, bool):
        yield format_json(value).decode()


# --- files ------------------------------------------------------------------------------------------------------------

_PRIVATE = 0o600


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file that may hold secrets, as the `opener` of `open`; a new file is private to its owner under any umask.

    A file that exists keeps its mode: its owner may have given others access on purpose.

    Raises:
        OSError: the file cannot be opened.
    """
    if not flags & os.O_CREAT:
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_EXCL, _PRIVATE)
    except FileExistsError:
        return os.open(path, flags, _PRIVATE)
    if hasattr(os, "fchmod"):
        os.fchmod(descriptor, _PRIVATE)  # the umask may have removed permissions of the owner
    return descriptor


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
