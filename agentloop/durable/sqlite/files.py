"""The files of a journal: readable by their owner only, and known by one path whatever path they are opened with."""

from __future__ import annotations

import errno
import os
import struct
import sys
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from attrs import frozen

from agentloop.errors import JournalError
from agentloop.values.secrets import open_private

# --- paths and modes --------------------------------------------------------------------------------------------------

_PATH_ATTRIBUTE = "user.agentloop.journal"
"""The extended attribute in which a journal file names the path that all its users open."""


def create_private(path: Path) -> None:
    """Create an empty file for its owner only, unless it exists.

    Raises:
        OSError: it cannot be created.
    """
    # A file that exists must not be opened here: closing it would release the locks that SQLite has on it in this process.
    with suppress(FileExistsError):
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def is_full(error: object) -> bool:
    """Return whether an error of the operating system says that no space is left, or that a quota is used up."""
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def file_id(path: str | Path) -> tuple[int, int] | None:
    """Return the device and inode numbers of a file; None when it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116  # before each append, and in half the time of `Path.stat`
    except OSError:
        return None
    return status.st_dev, status.st_ino


def common_path(path: Path) -> Path:
    """Return the path under which every user of a file opens it and finds the files next to it.

    Symbolic links are followed. Of several hard links or mounts of one file, the path with which it was opened first is
    used: it is stored in an extended attribute of the file, where the system has those.

    Raises:
        JournalError: the file has several hard links, and it cannot be known which of them others use; or it was moved without
            its `-wal` file.
    """
    real = Path(os.path.realpath(path))
    try:
        status = real.stat()
    except OSError:
        return real  # it does not exist yet
    first = _first_path(real)
    if first is not None and file_id(first) == (status.st_dev, status.st_ino):
        return first
    if first is not None:
        _check_moved(first, real)
    if not _store_path(real) and status.st_nlink > 1 and os.access(real, os.W_OK):
        raise JournalError(
            f"the file {real} has {status.st_nlink} hard links, and this file system cannot say which of them other programs "
            "use; SQLite would damage it under two names. Remove the other links, or use symbolic links"
        )
    return real


def _check_moved(first: Path, real: Path) -> None:
    """Check that a file which was moved is not opened without the log that it had before."""
    log = first.with_name(f"{first.name}-wal")
    if first.exists() or real.with_name(f"{real.name}-wal").exists():
        return
    with suppress(OSError):
        if log.stat().st_size:
            raise JournalError(
                f"the file {real} was moved from {first} without its log {log}, which has its newest records. Close the "
                f"journal, and rename the files `-wal`, `-ends` and `-claims` next to {first} like it; remove the log if the file "
                "is a copy and complete"
            )


def _first_path(real: Path) -> Path | None:
    if sys.platform != "linux":
        return None
    try:
        return Path(os.fsdecode(os.getxattr(real, _PATH_ATTRIBUTE)))
    except OSError:
        return None


def _store_path(real: Path) -> bool:
    """Store the path of a file with the file; return whether that is possible."""
    if sys.platform != "linux":
        return False
    try:
        os.setxattr(real, _PATH_ATTRIBUTE, os.fsencode(real))
    except OSError:
        return False
    return True


# --- ends of executions -----------------------------------------------------------------------------------------------

_SLOT_COUNT = 1024
_SLOT = struct.Struct("<16sq32s64sI")
"""A slot: the beginning of the hash of an execution's id, the number of its records, the beginning of the hash of the last
one, the beginning of its id, and a checksum."""


@frozen
class End:
    """The last acknowledged record of an execution.

    Attributes:
        digest: the beginning of the hash of the execution's id.
        count: the number of its records.
        last_hash: the beginning of the hash of the last record, in hexadecimal.
        name: the beginning of the execution's id.
    """

    digest: bytes
    count: int
    last_hash: str
    name: str

    def is_missing_from(self, count: int, last_hash: str) -> bool:
        """Return whether a stored execution with this end lacks acknowledged records."""
        return count < self.count or (count == self.count and not last_hash.startswith(self.last_hash))


class EndFile:
    """The ends of executions in a file next to the database, which show when the database lost records.

    SQLite ignores a missing or truncated `-wal` file and continues with an older state of the database. An end is written after
    the commit of its records and before they are acknowledged, without waiting for the disk: it survives the death of the
    process; after a loss of power it may be older than the database, never newer than what was acknowledged.

    Executions whose ids have equal hashes share a slot, in which the later writer's end remains.

    Args:
        path: the file; it is created when it does not exist and is not only read.
        read_only: whether the ends are only read.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path: Path = path
        self._descriptor = open_private(path, os.O_RDONLY if read_only else os.O_RDWR | os.O_CREAT)

    def read(self, execution_id: str) -> End | None:
        """Return the end of an execution; None when it is not known."""
        return self.read_slot(digest_of_id(execution_id))

    def has(self, execution_id: str, count: int, last_hash: str) -> bool:
        """Return whether this is the end of an execution; faster than to read the end."""
        slot, offset = _pack(execution_id, count, last_hash)
        return os.pread(self._descriptor, _SLOT.size, offset) == slot

    def read_slot(self, digest: bytes) -> End | None:
        """Return the end of the execution whose id has this digest; None when it is not known."""
        end = _unpack(os.pread(self._descriptor, _SLOT.size, _offset(digest)))
        return end if end is not None and end.digest == digest else None

    def read_all(self) -> Iterator[End]:
        """Yield all known ends."""
        data = os.pread(self._descriptor, _SLOT_COUNT * _SLOT.size, 0)
        for start in range(0, len(data), _SLOT.size):
            end = _unpack(data[start : start + _SLOT.size])
            if end is not None:
                yield end

    def write(self, execution_id: str, count: int, last_hash: str) -> None:
        """Store the end of an execution, after its records are committed."""
        slot, offset = _pack(execution_id, count, last_hash)
        # The records are stored: a full disk must not make their append fail. The end is then older than the database.
        with suppress(OSError):
            os.pwrite(self._descriptor, slot, offset)

    def remove(self, execution_id: str) -> None:
        """Remove the end of an execution, before its records are deleted."""
        if self.read(execution_id) is not None:
            os.pwrite(self._descriptor, bytes(_SLOT.size), _offset(digest_of_id(execution_id)))

    def clear(self) -> None:
        """Remove all ends: the database is new."""
        os.ftruncate(self._descriptor, 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@lru_cache(maxsize=1_000)
def digest_of_id(execution_id: str) -> bytes:
    """Return the beginning of the hash of an execution's id."""
    return sha256(execution_id.encode("utf-8", "surrogatepass")).digest()[:16]


def _offset(digest: bytes) -> int:
    return int.from_bytes(digest[8:16]) % _SLOT_COUNT * _SLOT.size


# The end that an append writes is the one that the next append of the execution looks for.
@lru_cache(maxsize=1_000)
def _pack(execution_id: str, count: int, last_hash: str) -> tuple[bytes, int]:
    """Return an end as a slot, and the offset of the slot."""
    digest = digest_of_id(execution_id)
    fields = (digest, count, last_hash.encode()[:32], execution_id.encode()[:64])
    return _SLOT.pack(*fields, zlib.crc32(_SLOT.pack(*fields, 0))), _offset(digest)


def _unpack(slot: bytes) -> End | None:
    """Return the end in a slot; None when it is empty, or when it was read while it was written."""
    if len(slot) < _SLOT.size:
        return None
    digest, count, last_hash, name, checksum = _SLOT.unpack(slot)
    if count <= 0 or checksum != zlib.crc32(_SLOT.pack(digest, count, last_hash, name, 0)):
        return None
    texts = [text.rstrip(b"\0").decode(errors="replace") for text in (last_hash, name)]
    return End(digest, count, *texts)
