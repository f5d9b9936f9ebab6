"""The ends of messages: how to install what is missing, and the closest name that is known."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence


def install_hint(extra: str) -> str:
    """Return the command that installs an extra of this package, under the name that its distribution has here."""
    # Needed for errors only.
    from importlib.metadata import entry_points  # noqa: PLC0415  # loaded with the first missing extra

    commands = entry_points(group="console_scripts", name="agentloop")
    distributions = [command.dist.name for command in commands if command.dist is not None]
    return f"pip install '{next(iter(distributions), _DISTRIBUTION)}[{extra}]'"


_DISTRIBUTION = "agentloop-kernel"
"""The name of the distribution where it is not installed, but imported from its sources."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return the part of a message that asks for the known name closest to an unknown one; empty if none is close.

    A name is close if at most two fifths of its letters are wrong, missing, added or exchanged with their neighbors, or if each
    of its words is close to a word of the known name. A known name with a tag or other marks next to it is closest.
    """
    known = tuple(known)
    closest = known_part(name, known)
    if closest is None and len(name) <= _MAX_COMPARED:
        closest = _find_closest(name, known)
    return f", did you mean {closest!r}?" if closest else ""


def known_part(name: str, known: Container[str]) -> str | None:
    """Return the known name that a tag or other marks have been left next to, as in `pay</arg_value>`; None if there is none."""
    return next((part for part in _MARKS.split(name[:_MAX_SEARCHED]) if part in known), None)


_MARKS = re.compile(r"[^\w.-]+")


_SLIP, _CLOSE = 0.2, 0.4
"""The shares of wrong letters in a name that was mistyped, and in one that resembles another."""
_MIN_MISSPELLED, _MIN_MISSPELLED_WORD = 3, 5
"""The lengths of the shortest name, and of the shortest word in a name, that can have a wrong letter."""
_MAX_SEARCHED = 2_000


_MAX_COMPARED = 200


def _find_closest(name: str, known: Sequence[str]) -> str | None:
    # A slip of the pen comes before a name with the same words, and that before a rough resemblance.
    words = _words(name)
    slip = _closest_by_letters(name, known, _SLIP)
    same_words = next((other for other in known if words and {*words} <= {*_words(other)}), None)
    close = slip or same_words or _closest_by_letters(name, known, _CLOSE)
    return close or next((other for other in known if words and _has_words(_words(other), words)), None)


def _closest_by_letters(name: str, known: Sequence[str], share: float) -> str | None:
    distances = [
        (distance, other) for other in known if (distance := _distance(name.lower(), other.lower(), share)) is not None
    ]
    return min(distances, key=lambda pair: pair[0])[1] if distances else None


def _words(name: str) -> list[str]:
    return "".join([letter if letter.isalnum() else " " for letter in name.lower()]).split()


def _has_words(known: Sequence[str], words: Sequence[str]) -> bool:
    return all(any(word == other or _is_slip(word, other) for other in known) for word in words)


def _is_slip(word: str, other: str) -> bool:
    # A single letter makes another word of a short one.
    return len(word) >= _MIN_MISSPELLED_WORD and _distance(word, other, _SLIP) is not None


def _distance(name: str, other: str, share: float) -> int | None:
    """Return the number of letters to change, add, remove or exchange with a neighbor; None if they are too many."""
    longest = max(len(name), len(other))
    allowed = max(1, round(longest * share)) if longest >= _MIN_MISSPELLED else 0
    if abs(len(name) - len(other)) > allowed or longest > _MAX_COMPARED:
        return None
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(name, 1):
        earlier, before, row = before, row, [i]
        for j, expected in enumerate(other, 1):
            cost = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != expected))
            if i > 1 and j > 1 and letter == other[j - 2] and name[i - 2] == expected:
                cost = min(cost, earlier[j - 2] + 1)
            row.append(cost)
    return row[-1] if row[-1] <= allowed else None
