"""Keys that do not show themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, Self

from attrs import field, frozen

from agentloop.errors import ConfigurationError
from agentloop.values.json import format_json, parse_json

_HIDDEN = "***"
_TELLING = 8


class Secret:
    """Holds a key and shows it nowhere: not in a repr, not in a format, not in a pickle or a copy on disk.

    Args:
        value: the key; spaces and line ends around it, as files and clipboards add them, are no part of it.

    Raises:
        ConfigurationError: when it holds a character that no HTTP header can carry; the message does not show it.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value.strip()
        for place, character in enumerate(self._value, 1):
            if not (character.isascii() and character.isprintable()):
                raise ConfigurationError(
                    f"the key cannot be sent: its character {place} of {len(self._value)} is a control character or not "
                    "ASCII; was it copied from a formatted text?"
                )

    def reveal(self) -> str:
        """Return the key itself, for the one place that sends it."""
        return self._value

    def redact(self, text: str) -> str:
        """Return the text with asterisks for every occurrence of the key, also for one that is cut off."""
        if not self._value:
            return text
        before, *others = text.split(self._value[:_TELLING])
        rest = self._value[_TELLING:]
        return _HIDDEN.join([before, *[other[_length_in_common(other, rest) :] for other in others]])

    def redact_error(self, error: BaseException) -> None:
        """Take the key out of an error: out of its texts, and cut the chain of its causes before the first that tells it."""
        error.args = tuple([self.redact(part) if isinstance(part, str) else part for part in error.args])
        for name, value in vars(error).items():
            if isinstance(value, str):
                setattr(error, name, self.redact(value))
        link: BaseException = error
        while (cause := link.__cause__ or link.__context__) is not None:
            told = f"{cause} {cause!r} {vars(cause)}"
            if self.redact(told) != told:
                link.__cause__ = link.__context__ = None
                return
            link = cause

    def __repr__(self) -> str:
        return f"Secret('{_HIDDEN}')"

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
        raise TypeError("a secret is not written anywhere; give the key again where it is needed")


def as_secret(value: str | Secret | None) -> Secret | None:
    """Wrap a key; None stays None, and a key without a character is None.

    Raises:
        ConfigurationError: when the key holds a character that cannot be sent.
        TypeError: when it is no text.
    """
    if value is None:
        return None
    if not isinstance(value, str | Secret):
        raise TypeError(f"a key is text or a Secret, not {type(value).__name__}")
    secret = Secret(value) if isinstance(value, str) else value
    return secret if secret.reveal() else None


def _length_in_common(text: str, other: str) -> int:
    """Return how many characters both begin with."""
    length = 0
    for mine, theirs in zip(text, other, strict=False):
        if mine != theirs:
            break
        length += 1
    return length


MASK = "***"
_SHORTEST = 4
"""Shorter texts are not looked for elsewhere: they would be found everywhere."""


def _as_paths(names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    if isinstance(names, str):
        names = (names,)
    return tuple([tuple(name.split(".")) for name in names])


@frozen
class SecretFields:
    """Masks fields of JSON data.

    Attributes:
        paths: a single name, as of a parameter, is a field of that name wherever it stands; a dotted path, as
            `card.number`, is the field that it leads to from the top. Arrays on the way are looked through, and `*` stands
            for every name.
    """

    paths: tuple[tuple[str, ...], ...] = field(default=(), converter=_as_paths)

    def mask(self, value: Any, found: set[str], path: tuple[str, ...] = ()) -> Any:
        """Return JSON data with its secret fields masked, as plain data.

        Args:
            value: the data.
            found: takes the texts that were masked, so that `without` can find them elsewhere.
            path: where the data stand.
        """
        if isinstance(value, Mapping):
            return {name: self._field(one, found, (*path, name)) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.mask(one, found, path) for one in value]
        return value

    def _field(self, value: Any, found: set[str], path: tuple[str, ...]) -> Any:
        if not any(_leads_to(secret, path) for secret in self.paths):
            return self.mask(value, found, path)
        found.update(text for text in _texts(value) if len(text) >= _SHORTEST)
        return MASK

    def mask_text(self, text: str, found: set[str]) -> str:
        """Return a text with the secret fields masked, if it is JSON; any other text as it is."""
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            value = parse_json(text)
        except ValueError:
            return text
        masked = self.mask(value, found)
        return text if masked == value else format_json(masked).decode()


def mask_texts(value: Any, found: Iterable[str]) -> Any:
    """Return plain JSON data in whose texts these texts are masked."""
    if isinstance(value, str):
        for text in sorted(found, key=len, reverse=True):
            value = value.replace(text, MASK)
        return value
    if isinstance(value, dict):
        return {name: mask_texts(one, found) for name, one in value.items()}
    return [mask_texts(one, found) for one in value] if isinstance(value, list) else value


def _leads_to(secret: tuple[str, ...], path: tuple[str, ...]) -> bool:
    if len(secret) == 1:
        return secret[0] == path[-1]
    return len(secret) == len(path) and all(one in {"*", name} for one, name in zip(secret, path, strict=True))


def _texts(value: Any) -> Iterator[str]:
    """Return every text in JSON data, and every number as a text."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)
    elif value is not None and not isinstance(value, bool):
        yield format_json(value).decode()
