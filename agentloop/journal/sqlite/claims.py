"""Claims on executions that end with the process that has them, however it ends.

A claim is a lock on one byte of a file beside the database. The system takes it back when the file is closed, also by
`kill -9`. Which byte is told by the hash of the execution's id, one of 2^61: with a million executions claimed at once, two share a
byte with a probability of one to four million; the second would be refused as if it were claimed.

The beginning of the file says who has a claim, for messages only: a place for each of some thousand executions, by the same
hash.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import ClassVar

from agentloop.contracts.can_journal import Claim
from agentloop.errors import JournalError
from agentloop.journal.chain import already_claimed, check_id
from agentloop.journal.journal import HeldClaims

if sys.platform != "win32":
    import fcntl

_HELD = {errno.EACCES, errno.EAGAIN}
_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of Linux: type, whence, start, length, process."""


class _File:
    """An open file with the bytes of it that are locked through it."""

    def __init__(self, path: Path) -> None:
        self.number: int = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.locked: set[int] = set()
        self.users = 0


class ByteLocks(ABC):
    """Locks on bytes of one file; none of them is waited for.

    Args:
        path: the file; it is made when it is not there.

    Raises:
        OSError: when it cannot be opened.
    """

    _file: _File

    @abstractmethod
    def __init__(self, path: Path) -> None: ...

    @abstractmethod
    def lock(self, byte: int) -> bool:
        """Lock a byte; say whether it could be, which it cannot while anybody else has it, or this object."""

    @abstractmethod
    def unlock(self, byte: int) -> None:
        """Give a byte back that was locked."""

    def read(self, offset: int, length: int) -> bytes:
        """Return what stands somewhere in the file."""
        return os.pread(self._file.number, length, offset)

    def write(self, offset: int, data: bytes) -> None:
        """Write somewhere in the file."""
        os.pwrite(self._file.number, data, offset)

    @abstractmethod
    def close(self) -> None:
        """Give back all bytes."""


class OpenFileLocks(ByteLocks):
    """Locks that belong to the open file: other objects of this process are kept out like other processes (Linux)."""

    def __init__(self, path: Path) -> None:
        self._file = _File(path)

    def lock(self, byte: int) -> bool:
        """Lock a byte."""
        if byte in self._file.locked or not _set(self._file.number, fcntl.F_WRLCK, byte):
            return False
        self._file.locked.add(byte)
        return True

    def unlock(self, byte: int) -> None:
        """Give a byte back."""
        self._file.locked.remove(byte)
        _set(self._file.number, fcntl.F_UNLCK, byte)

    def close(self) -> None:
        """Give back all bytes; they end with the file."""
        os.close(self._file.number)


def _set(file: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


class ProcessLocks(ByteLocks):
    """Locks that belong to the process, as POSIX has them: its objects share a file and what is locked in it.

    A process loses all its locks on a file as soon as it closes it anywhere; so the last object closes it.
    """

    _files: ClassVar[dict[str, _File]] = {}
    _guard: ClassVar[Lock] = Lock()

    def __init__(self, path: Path) -> None:
        self._name = os.path.realpath(path)
        with self._guard:
            if self._name not in self._files:
                self._files[self._name] = _File(path)
            self._file = self._files[self._name]
            self._file.users += 1
        self._mine: set[int] = set()

    def lock(self, byte: int) -> bool:
        """Lock a byte."""
        with self._guard:
            if byte in self._file.locked:
                return False
            try:
                fcntl.lockf(self._file.number, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError as error:
                if error.errno in _HELD:
                    return False
                raise
            self._file.locked.add(byte)
            self._mine.add(byte)
            return True

    def unlock(self, byte: int) -> None:
        """Give a byte back."""
        with self._guard:
            self._mine.remove(byte)
            self._file.locked.remove(byte)
            fcntl.lockf(self._file.number, fcntl.LOCK_UN, 1, byte)

    def close(self) -> None:
        """Give back all bytes of this object; the last one closes the file."""
        for byte in tuple(self._mine):
            self.unlock(byte)
        with self._guard:
            self._file.users -= 1
            if not self._file.users:
                del self._files[self._name]
                os.close(self._file.number)


def byte_locks(path: Path) -> ByteLocks:
    """Open the locks that this system has.

    Raises:
        OSError: when the file cannot be opened.
        JournalError: when the system has no such locks.
    """
    if sys.platform == "win32":
        raise JournalError("executions cannot be claimed on Windows: SqliteJournal needs the locks of POSIX or Linux")
    return OpenFileLocks(path) if sys.platform == "linux" else ProcessLocks(path)


_FIRST_BYTE = 1 << 62
_PLACES = 4096
_PLACE = struct.Struct("<16sq")


class Claims:
    """The claims of one journal.

    Args:
        path: the file of the locks; it is made when it is not there.
        open_locks: opens it.
    """

    def __init__(self, path: Path, open_locks: Callable[[Path], ByteLocks] = byte_locks) -> None:
        self._path = path
        self._open = open_locks
        self._locks: ByteLocks | None = None
        self._guard = Lock()
        self._held = HeldClaims()

    def claim(self, execution_id: str) -> FileClaim:
        """Claim an execution.

        Raises:
            JournalConflict: when somebody alive has claimed it.
            JournalError: when the file of the locks cannot be used, or the id cannot be written down.
        """
        check_id(execution_id)
        digest = hashlib.sha256(execution_id.encode()).digest()
        byte = _FIRST_BYTE + (int.from_bytes(digest[:8]) >> 3)
        with self._guard:
            try:
                locks = self._locks = self._locks or self._open(self._path)
                if not locks.lock(byte):
                    raise already_claimed(execution_id, _holder(locks, digest))
                locks.write(_offset(digest), _PLACE.pack(digest[:16], os.getpid()))
            except OSError as error:
                raise JournalError(f"the file of the claims {self._path} cannot be used: {error}") from error
            claim = FileClaim(self, locks, byte, execution_id)
            self._held.add(execution_id, claim)
            return claim

    def check(self, execution_id: str) -> None:
        """Check that the claim on an execution was not ended while its writer went on.

        Raises:
            JournalError: when it was.
        """
        with self._guard:
            self._held.check(execution_id)

    def release(self, claim: FileClaim) -> None:
        """Let others claim an execution again, unless all claims were ended since."""
        with self._guard:
            self._held.leave(claim.execution_id, claim)
            if claim.locks is self._locks:
                claim.locks.unlock(claim.byte)

    def end(self) -> None:
        """Refuse what those who have claims append from now on; others cannot claim it yet."""
        with self._guard:
            self._held.end()

    def close(self) -> None:
        """End all claims."""
        with self._guard:
            self._held.end()
            locks, self._locks = self._locks, None
            if locks is not None:
                locks.close()


class FileClaim(Claim):
    """A claim by a lock on a byte."""

    def __init__(self, claims: Claims, locks: ByteLocks, byte: int, execution_id: str) -> None:
        self._claims: Claims | None = claims
        self.locks: ByteLocks = locks
        self.byte: int = byte
        self.execution_id: str = execution_id

    async def release(self) -> None:
        """Let others claim the execution; more than once does nothing."""
        self.release_now()

    def release_now(self) -> None:
        """Do so without an event loop."""
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.release(self)


def _holder(locks: ByteLocks, digest: bytes) -> str:
    """Say who has a claim, if the file tells."""
    told = locks.read(_offset(digest), _PLACE.size)
    if len(told) < _PLACE.size or told[:16] != digest[:16]:
        return ""
    (_, process) = _PLACE.unpack(told)
    return "another writer of this process" if process == os.getpid() else f"process {process}"


def _offset(digest: bytes) -> int:
    return int.from_bytes(digest[8:16]) % _PLACES * _PLACE.size
