"""Fields that must not be written down."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from attrs import field, frozen

from agentloop.values.json_text import format_json, parse_json

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

    def masked(self, value: Any, found: set[str], path: tuple[str, ...] = ()) -> Any:
        """Return JSON data with its secret fields masked, as plain data.

        Args:
            value: the data.
            found: takes the texts that were masked, so that `without` can find them elsewhere.
            path: where the data stand.
        """
        if isinstance(value, Mapping):
            return {name: self._field(one, found, (*path, name)) for name, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.masked(one, found, path) for one in value]
        return value

    def _field(self, value: Any, found: set[str], path: tuple[str, ...]) -> Any:
        if not any(_leads_to(secret, path) for secret in self.paths):
            return self.masked(value, found, path)
        found.update(text for text in _texts(value) if len(text) >= _SHORTEST)
        return MASK

    def masked_text(self, text: str, found: set[str]) -> str:
        """Return a text with the secret fields masked, if it is JSON; any other text as it is."""
        if not text.lstrip().startswith(("{", "[")):
            return text
        try:
            value = parse_json(text)
        except ValueError:
            return text
        masked = self.masked(value, found)
        return text if masked == value else format_json(masked).decode()


def without(value: Any, found: Iterable[str]) -> Any:
    """Return plain JSON data in whose texts these texts are masked."""
    if isinstance(value, str):
        for text in sorted(found, key=len, reverse=True):
            value = value.replace(text, MASK)
        return value
    if isinstance(value, dict):
        return {name: without(one, found) for name, one in value.items()}
    return [without(one, found) for one in value] if isinstance(value, list) else value


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
