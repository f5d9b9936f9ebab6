"""Keys that do not show themselves."""

from __future__ import annotations

from typing import Any, NoReturn


class Secret:
    """Holds a key and shows it nowhere: not in a repr, not in a format, not in a pickle or a copy on disk."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the key itself, for the one place that sends it."""
        return self._value

    def redact(self, text: str) -> str:
        """Return the text with every occurrence of the key replaced by asterisks."""
        return text.replace(self._value, "***") if self._value else text

    def __repr__(self) -> str:
        return "Secret('***')"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError("a secret is not written anywhere; give the key again where it is needed")


def as_secret(value: str | Secret | None) -> Secret | None:
    """Wrap a key; None stays None."""
    return Secret(value) if isinstance(value, str) else value
