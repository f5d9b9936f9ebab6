"""The beginnings of first records, which the executions of one agent share: each turn of a conversation stores what it adds.

The first record of an execution holds the state with which it starts. In a conversation that is the state of the turn before,
and some messages more, so both bodies begin alike, as far as the conversation reaches. That beginning is stored as a chain of
parts, of which each execution adds one at most and names the last one; the rest of the body is in the row of the record. The
parts are read together, by one query: reading a turn costs as much as its own text, and no record of a turn before it is read.

A part is deleted with the last execution that needs it. Whatever changes a part changes the texts of all records that start
with it, which their hashes reveal.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from hashlib import _Hash as HASH

_MIN_LENGTH = 256
"""The length from which a part is stored, in characters; a shorter one costs more than it saves."""
MAX_TRIES = 8
"""How many parts are tried, from the last one back, when a conversation does not continue with the text of the turn before."""


@frozen
class StoredPart:
    """A part of a beginning.

    Attributes:
        id: its id in the storage.
        length: the length of the beginning up to its end, in characters.
        digest: the digest of that beginning.
    """

    id: int
    length: int
    digest: bytes


@frozen
class SharedBody:
    """The body of a first record, with the beginning that it shares.

    Attributes:
        prefix: the id of the last stored part of the beginning; None when there is none.
        part: the part to store behind that one; empty when there is none.
        rest: the rest of the body.
        length: the length of the beginning with the part, in characters.
        digest: the digest of the beginning with the part.
    """

    prefix: int | None
    part: str
    rest: str
    length: int
    digest: bytes


def share_body(body: str, parts: Iterable[StoredPart], rest: str | None) -> SharedBody:
    """Return which beginning the body of an execution's first record shares with that of the agent's execution before it.

    Args:
        body: the body.
        parts: the parts of the other body, from the last one back.
        rest: the rest of the other body; None when it is not known.
    """
    if len(body) < _MIN_LENGTH:
        return SharedBody(None, "", body, 0, b"")
    index, found, state = _find_part(body, parts)
    prefix, start = (found.id, found.length) if found is not None else (None, 0)
    # Where the parts of the turn before end, the rest of its body continues.
    if rest is not None and index == 0:
        end = start + _common_length(rest, body, start)
        if end - start >= _MIN_LENGTH:
            part = body[start:end]
            state.update(_encode(part))
            return SharedBody(prefix, part, body[end:], end, state.digest())
    return SharedBody(prefix, "", body[start:], start, b"")


def _find_part(body: str, parts: Iterable[StoredPart]) -> tuple[int, StoredPart | None, HASH]:
    """Return the newest part up to which a body is the same, how many there are behind it, and the hash up to there."""
    index = 0
    for part in islice(parts, MAX_TRIES):
        if part.length <= len(body):
            state = sha256(_encode(body[: part.length]))
            if state.digest() == part.digest:
                return index, part, state
        index += 1
    return index, None, sha256()


def _common_length(text: str, other: str, start: int) -> int:
    """Return how many characters at the beginning of a text are those of another text from a position on."""
    low, high = 0, min(len(text), len(other) - start)
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == other[start + low : start + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
