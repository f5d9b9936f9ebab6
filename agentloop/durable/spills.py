"""The long parts of records: how they are cut out of bodies, and how they are stored in and read from an object store.

A part that is stored as an object has its row in the table of spills like any other, with a reference to the object instead of
the text. The object is stored before the record that needs it is committed, and deleted after the row is: whatever is
interrupted in between leaves an object that nothing refers to, never a record without its object. The key of an object has the
fencing token of the claim under which it was stored, so that an execution which is deleted and recorded again under the same id
does not lose objects to the deletion.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from attrs import frozen

from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.errors import JournalCorrupt, JournalError
from agentloop.values.json import format_json, parse_json
from agentloop.values.records import JournalRecord

# --- bodies that are too long for a row -------------------------------------------------------------------------------

# The possessive quantifiers keep a body with an open string from taking quadratic time.
_STRING = re.compile(r'"[^"\\]*+(?>\\.[^"\\]*+)*+"', re.DOTALL)
_SPILL_FRACTION = 8
"""A string is spilled when it is longer than this fraction of the maximum length of a body."""
_ENTIRE_REST = -1
"""The position of the cut that holds the entire rest of a body."""


@frozen
class SplitBody:
    """The body of a record, with its long strings cut out.

    Attributes:
        rest: the part that is stored in the row.
        cuts: the positions of the cuts in the rest with the digests of their strings, as JSON; empty without cuts.
        spills: the strings that were cut out, by digest.
    """

    rest: str
    cuts: str
    spills: Mapping[str, str]


def split_body(body: str, max_length: int) -> SplitBody:
    """Cut the long strings out of a body, and the rest, too, if it is still too long.

    Args:
        body: a JSON object as text; `join_body` restores any other text as well.
        max_length: the maximum length of the rest, in characters; a body that is no longer is not split.
    """
    if len(body) <= max_length:
        return SplitBody(body, "", {})
    spills: dict[str, str] = {}
    cuts: list[tuple[int, str]] = []
    parts: list[str] = []
    length = end = 0
    for string in _STRING.finditer(body):
        if string.end() - string.start() > max_length // _SPILL_FRACTION:
            parts.append(body[end : string.start()])
            length += string.start() - end
            end = string.end()
            cuts.append((length, _spill(string[0], spills)))
    rest = "".join([*parts, body[end:]])
    if len(rest) > max_length:
        # First, because the positions of the other cuts refer to the rest.
        cuts.insert(0, (_ENTIRE_REST, _spill(rest, spills)))
        rest = ""
    return SplitBody(rest, format_json(cuts).decode(), spills)


def join_body(rest: str, cuts: str, spills: Mapping[str, str]) -> str:
    """Return the body that was split into these parts.

    Raises:
        KeyError: a spill is missing.
        ValueError: the cuts cannot be read or do not match the rest.
    """
    if not cuts:
        return rest
    parts: list[str] = []
    start = 0
    for position, digest in parse_json(cuts):
        if position == _ENTIRE_REST:
            if rest:
                raise ValueError("the row holds more than was written")
            rest = spills[digest]
        else:
            parts += (rest[start:position], spills[digest])
            start = position
    return "".join([*parts, rest[start:]])


def digest_of(data: str) -> str:
    """Return the digest that identifies a spill: SHA-256, in hexadecimal."""
    return hashlib.sha256(data.encode("utf-8", "surrogatepass")).hexdigest()


def _spill(data: str, spills: dict[str, str]) -> str:
    digest = digest_of(data)
    spills[digest] = data
    return digest


# --- rows -------------------------------------------------------------------------------------------------------------

_REFERENCE = b"\xff"
"""With what the stored form of a reference to an object begins: a byte that the UTF-8 of no text has."""


def read_reference(data: object) -> str:
    """Return the key of the object to which the data of a spill's row refers; empty when it is the text itself."""
    if not isinstance(data, bytes) or not data.startswith(_REFERENCE):
        return ""
    return data[len(_REFERENCE) :].decode(errors="replace")


class ObjectsNeeded(Exception):  # a request, not an error
    """Raised by an action that reads records, when it needs the texts of objects.

    Attributes:
        keys: their keys by digest.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__(f"{len(keys)} objects are needed")
        self.keys = keys


def collect_spills(
    rows: Iterable[tuple[str, object]], cuts: Iterable[str], objects: Mapping[str, str]
) -> Mapping[str, str]:
    """Return the spilled parts of an execution's records by digest, without those that were changed.

    Args:
        rows: the digests and the data of the spills.
        cuts: the cuts of the records that are read.
        objects: the texts of objects that were fetched, by digest.

    Raises:
        ObjectsNeeded: texts of other objects are needed.
    """
    spills: dict[str, str] = {}
    references: dict[str, str] = {}
    for digest, data in rows:
        key = read_reference(data)
        text = objects.get(digest) if key else _decode(data)
        # A changed spill counts as missing, so that its records are reported as damaged.
        if text is not None and digest_of(text) == digest:
            spills[digest] = text
        elif key:
            references[digest] = key
    needed = {digest: references[digest] for digest in _digests_in(cuts) if digest in references}
    if needed:
        raise ObjectsNeeded(needed)
    return spills


def _decode(data: object) -> str | None:
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8", "surrogatepass") if isinstance(data, bytes) else str(data)
    return None


def _digests_in(cuts: Iterable[str]) -> set[str]:
    digests: set[str] = set()
    for each in cuts:
        # Cuts that cannot be read are reported with their record.
        with suppress(ValueError, TypeError):
            digests.update([str(digest) for _, digest in parse_json(each)] if each else [])
    return digests


@frozen
class Deletion:
    """What a deletion has removed.

    Attributes:
        execution_ids: the executions.
        keys: the keys of the objects to which their records referred, which are to be deleted after the commit.
    """

    execution_ids: Sequence[str] = ()
    keys: Sequence[str] = ()


# --- objects ----------------------------------------------------------------------------------------------------------

T = TypeVar("T")

_LOG = logging.getLogger("agentloop.journal")


class SpilledObjects:
    """The object store of a journal, if it has one.

    Args:
        objects: the store; None to store all parts in the journal itself.
        max_length: the maximum length of a body in its row, in characters.
    """

    def __init__(self, objects: CanStoreObjects | None, max_length: int) -> None:
        self._objects = objects
        self._max_length = max_length

    def may_get(self, records: Iterable[JournalRecord]) -> bool:
        """Return whether parts of these records may have to be stored as objects."""
        return self._objects is not None and any(len(record.body) > self._max_length for record in records)

    async def put(self, execution_id: str, token: int, spills: Mapping[str, str]) -> Mapping[str, bytes]:
        """Store parts of records as objects; return the data of their rows by digest.

        Raises:
            JournalError: the store failed.
        """
        references: dict[str, bytes] = {}
        if self._objects is None:
            return references
        for digest, text in spills.items():
            key = f"{digest_of(execution_id)}/{token}-{digest}"
            await _call(f"store the object {key}", self._objects.put(key, text.encode("utf-8", "surrogatepass")))
            references[digest] = _REFERENCE + key.encode()
        return references

    async def read(
        self, execution_id: str, read: Callable[[Mapping[str, str]], Awaitable[Sequence[JournalRecord]]]
    ) -> Sequence[JournalRecord]:
        """Read records, and the objects that they need.

        Args:
            execution_id: the execution.
            read: reads the records with the texts of objects by digest; raises `ObjectsNeeded` for others.

        Raises:
            JournalCorrupt: an object is missing or was changed.
            JournalError: the store failed.
        """
        texts: dict[str, str] = {}
        missing: set[str] = set()
        while True:
            try:
                return await read(texts)
            except ObjectsNeeded as needed:
                for digest, key in needed.keys.items():
                    # Read once more before it counts as missing: the execution may just have been deleted.
                    if digest in missing:
                        raise _damaged(execution_id, key, "is missing or was changed") from None
                    texts |= await self._fetch(execution_id, digest, key)
                missing |= needed.keys.keys() - texts.keys()

    async def _fetch(self, execution_id: str, digest: str, key: str) -> Mapping[str, str]:
        """Return the text of an object by its digest; nothing when it is missing or was changed."""
        if self._objects is None:
            raise _damaged(execution_id, key, "cannot be read without its store; open the journal with `objects`")
        data = await _call(f"read the object {key}", _get(self._objects, key))
        text = _decode(data) if data is not None else None
        return {digest: text} if text is not None and digest_of(text) == digest else {}

    async def delete(self, keys: Iterable[str]) -> None:
        """Delete objects to which no record refers any more. What cannot be deleted is logged and stays in the store."""
        left, reason = list[str](), "the journal was opened without `objects`"
        for key in keys:
            try:
                if self._objects is not None:
                    await _call(f"delete the object {key}", self._objects.delete(key))
                else:
                    left.append(key)
            except JournalError as error:
                left.append(key)
                reason = str(error)
        if left:
            _LOG.warning(
                "%s objects of deleted executions stay in their store, such as %s: %s", len(left), left[0], reason
            )


def _damaged(execution_id: str, key: str, problem: str) -> JournalCorrupt:
    message = f"records of execution {execution_id} cannot be read: the object {key} {problem}"
    return JournalCorrupt(message, execution_id=execution_id)


async def _get(objects: CanStoreObjects, key: str) -> bytes | None:
    try:
        return await objects.get(key)
    except KeyError:
        return None


async def _call(purpose: str, call: Awaitable[T]) -> T:
    try:
        return await call
    except JournalError:
        raise
    except Exception as error:
        raise JournalError(
            f"the object store of the journal cannot {purpose}: {type(error).__name__}: {error}"
        ) from error
