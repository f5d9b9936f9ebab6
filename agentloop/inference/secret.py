"""Keys that do not show themselves."""

from __future__ import annotations

from typing import Any, NoReturn, Self

from agentloop.errors import ConfigurationError

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
