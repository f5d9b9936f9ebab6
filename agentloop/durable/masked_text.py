"""Masks over texts that arrive in pieces: what may be the beginning of a secret is held back until it is known to be none."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property

from attrs import define, field, frozen

from agentloop.durable.spellings import BASE64_SIGN, WORD_SIGN, Spelling
from agentloop.values.secrets import MASK

_MAX_SPELLED = 16
"""How many characters a character of a secret takes in the longest spelling that is held back: three levels of JSON, or of percents."""
_LINE_ENDS = 256
"""How many characters are held back besides, such as the ends of lines in the middle of a secret."""
_HEX = "[0-9A-Fa-f]"
_ESCAPE = rf"(?:\\+u{_HEX}{{4}})?\\+(?:u{_HEX}{{0,4}})?"
_PERCENT = rf"(?:%(?:25)*{_HEX}{{2}}){{0,3}}%(?:25)*{_HEX}{{0,2}}"
_UNFINISHED = re.compile(rf"(?:(?<!\\){_ESCAPE}|{_PERCENT})\Z")
"""An escaped character, or the beginning of one, at the end of a text."""
_REST = re.compile(rf"(?:\s|\\+[rnt])*(?:{_ESCAPE}|{_PERCENT})?")
"""What may follow the last whole piece of a spelling at the end of a text."""
_SIGN = re.compile(BASE64_SIGN)


class MaskedText(ABC):
    """Masks one text that arrives in pieces."""

    @abstractmethod
    def add(self, piece: str) -> str:
        """Take the next piece, and return what can be shown of the text, behind what was returned before."""

    @abstractmethod
    def end(self) -> str:
        """Return the rest; the text is over."""


@frozen(slots=False, eq=False)
class Prefixes:
    """Finds where a text may go on as one of several spellings."""

    spellings: tuple[Spelling, ...]

    @cached_property
    def _pieces(self) -> Sequence[tuple[Spelling, Sequence[re.Pattern[str]]]]:
        return [(each, [re.compile(piece, re.DOTALL) for piece in each.pieces]) for each in self.spellings]

    @cached_property
    def _first(self) -> re.Pattern[str]:
        return re.compile("|".join(dict.fromkeys(each.pieces[0] for each in self.spellings)))

    @cached_property
    def longest(self) -> int:
        """How many characters of a text are held back at most."""
        return _LINE_ENDS + _MAX_SPELLED * max((len(each.pieces) for each in self.spellings), default=0)

    @cached_property
    def _has_edges(self) -> bool:
        return any(each.before for each in self.spellings)

    def find(self, text: str, start: int) -> int:
        """Return the first place from a start on at which a spelling may begin that the text does not end; else its length."""
        end = len(text)
        start = max(start, end - self.longest)
        found = self._find_begun(text, start)
        unfinished = _UNFINISHED.search(text, start)
        if unfinished is not None:
            found = min(found, unfinished.start())
        # The sign before the Base64 of a secret may hold a part of it.
        if self._has_edges and found > start and _SIGN.match(text, found - 1):
            found -= 1
        return found

    def _find_begun(self, text: str, start: int) -> int:
        place = start
        while (match := self._first.search(text, place)) is not None:
            if any(self._may_go_on(spelling, pieces, text, match.start()) for spelling, pieces in self._pieces):
                return match.start()
            place = match.start() + 1
        return len(text)

    def _may_go_on(self, spelling: Spelling, pieces: Sequence[re.Pattern[str]], text: str, place: int) -> bool:
        if spelling.is_ambiguous:
            return pieces[0].match(text, place) is not None
        for piece in pieces:
            match = piece.match(text, place)
            if match is None:
                return _REST.fullmatch(text, place) is not None
            place = match.end()
        return False


@define(eq=False)
class SecretText(MaskedText):
    """Masks texts wherever they occur.

    Attributes:
        pattern: matches all spellings of them.
        prefixes: the spellings.
    """

    pattern: re.Pattern[str]
    prefixes: Prefixes
    _held: str = field(default="", init=False)
    _before: str = field(default="", init=False)

    def add(self, piece: str) -> str:
        """Take the next piece, and return what is no secret of the text, and masks."""
        text, place = self._before + self._held + piece, len(self._before)
        shown: list[str] = []
        while place < len(text):
            match = self.pattern.search(text, place)
            held = self.prefixes.find(text, place)
            # A match that ends with the text may go on, and a longer secret may begin where it begins.
            if match is None or match.start() >= held or match.end() == len(text):
                held = held if match is None else min(held, match.start())
                shown.append(text[place:held])
                place = held
                break
            shown += [text[place : match.start()], MASK]
            place = match.end()
        self._before, self._held = text[max(place - 1, 0) : place], text[place:]
        return "".join(shown)

    def end(self) -> str:
        """Return the rest, masked."""
        # With the character before it, by which a pattern knows whether a backslash is itself escaped.
        rest, size = self._before + self._held, len(self._before)
        self._held = ""
        shown, place = [], size
        for match in self.pattern.finditer(rest, size):
            shown += [rest[place : match.start()], MASK]
            place = match.end()
        return "".join([*shown, rest[place:]])


@define(eq=False)
class FieldText(MaskedText):
    """Masks the values of fields of JSON in a text.

    Attributes:
        pattern: matches the beginning of a field, up to its value.
        prefixes: the beginnings.
    """

    pattern: re.Pattern[str]
    prefixes: Prefixes
    _held: str = field(default="", init=False)
    _before: str = field(default="", init=False)
    _closing: re.Pattern[str] | None = field(default=None, init=False)

    def add(self, piece: str) -> str:
        """Take the next piece, and return it with a mask in place of each value."""
        text, place = self._before + self._held + piece, len(self._before)
        shown: list[str] = []
        while place < len(text):
            if self._closing is not None:
                place, is_over = _skip_value(self._closing, text, place)
                if not is_over:
                    break
                self._closing = None
                continue
            match, held = self.pattern.search(text, place), self.prefixes.find(text, place)
            if match is None or held < match.start():
                shown.append(text[place:held])
                place = held
                break
            shown += [text[place : match.start()], f'{match["name"]}{match["level"]}"{MASK}{match["level"]}"']
            place = match.end()
            self._closing = re.compile(
                rf'(?<!\\){re.escape(match["level"])}"' if match["quote"] else f"(?!{WORD_SIGN})"
            )
        self._before, self._held = text[max(place - 1, 0) : place], text[place:]
        return "".join(shown)

    def end(self) -> str:
        """Return the rest, without the value that the text ends in."""
        held, self._held = self._held, ""
        return "" if self._closing is not None else held


def _skip_value(closing: re.Pattern[str], text: str, place: int) -> tuple[int, bool]:
    """Return the place behind a value, or behind what there is of it, and whether it is over."""
    match = closing.search(text, place)
    if match is None or match.start() == match.end() == len(text):
        return place + len(text[place:].rstrip("\\")), False  # its quotation mark may follow
    return match.end(), True


@define(eq=False)
class TextHeldBack(MaskedText):
    """Shows nothing of a text before its end.

    Attributes:
        mask: masks the whole text.
    """

    mask: Callable[[str], str]
    _pieces: list[str] = field(factory=list, init=False)

    def add(self, piece: str) -> str:
        """Take the next piece."""
        self._pieces.append(piece)
        return ""

    def end(self) -> str:
        """Return the masked text."""
        return self.mask("".join(self._pieces))


@define(eq=False)
class TextByBeginning(MaskedText):
    """Masks a text in one way if it is JSON, by its first character, and in another way if it is not.

    Attributes:
        json: the one way.
        other: the other way.
    """

    json: MaskedText
    other: MaskedText
    _chosen: MaskedText | None = field(default=None, init=False)

    def add(self, piece: str) -> str:
        """Take the next piece, and return what its way shows."""
        if self._chosen is None and piece.strip():
            self._chosen = self.json if piece.lstrip()[0] in '{["' else self.other
        if self._chosen is None:  # white space
            return self.other.add(piece)
        return self._chosen.add(piece)

    def end(self) -> str:
        """Return the rest."""
        return self.other.end() + (self.json.end() if self._chosen is self.json else "")


@define(eq=False)
class TextMaskedTwice(MaskedText):
    """Masks a text in several ways, one after the other.

    Attributes:
        ways: the ways.
    """

    ways: Sequence[MaskedText]

    def add(self, piece: str) -> str:
        """Take the next piece, and return what all ways show."""
        for way in self.ways:
            piece = way.add(piece)
        return piece

    def end(self) -> str:
        """Return the rest."""
        rest = ""
        for way in self.ways:
            rest = way.add(rest) + way.end()
        return rest
