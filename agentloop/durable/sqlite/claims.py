"""Claims on executions that end with their process, however it ends.

A claim is a lock on one byte of a file next to the database. The operating system releases it when the file is closed, also
after `kill -9`. A forked child closes its copy of the file first of all, so that it does not keep the claims of a dead parent.
The byte is one of 2^61, chosen by the hash of the execution's id: with a million executions claimed at the same
time, the probability that two share a byte is one in four million; the second would be refused as if it were claimed.

The beginning of the file names the holders of claims, for messages only: it has slots for some thousand executions, chosen by
the same hash. A counter behind the slots numbers the claims: its value is the fencing token. A new file starts it with the
time of its creation, so that claims after the removal of a file have larger tokens than those before.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import ClassVar

from agentloop.contracts.can_journal import Claim
from agentloop.durable.chain import check_id, claim_conflict
from agentloop.durable.held_claims import HeldClaim, HeldClaims
from agentloop.durable.sqlite.files import common_path, file_id, is_full
from agentloop.errors import JournalBusy, JournalError, JournalFull
from agentloop.values.secrets import open_private

if sys.platform != "win32":
    import fcntl

# --- claims -----------------------------------------------------------------------------------------------------------

_FIRST_BYTE = 1 << 62
"""The first byte that is locked, far behind the slots; locking bytes that do not exist is allowed."""
_SLOT_COUNT = 4096
_SLOT = struct.Struct("<16sq")
"""A slot: the beginning of the hash of an execution's id, and the id of the process that claimed it."""


_COUNTER = struct.Struct("<q")
_COUNTER_OFFSET = _SLOT_COUNT * _SLOT.size
_COUNTER_BYTE = _FIRST_BYTE - 1
"""The byte that is locked while the counter changes."""
_COUNTER_SECONDS = 5.0
"""How long a claim waits for this lock, which others hold for microseconds, unless they were stopped."""
_RETRY_SECONDS = 0.0005

_CLOSED = "the journal was closed while the execution was running; close it after its executions"
_FORKED = "this process was forked from the one that has claimed the execution"


class ClaimFile:
    """The claims that were made through one journal.

    Args:
        path: the database; the lock file next to it is created when it does not exist.
        open_locks: opens the lock file.
    """

    def __init__(self, path: Path, open_locks: Callable[[Path], ByteLocks] | None = None) -> None:
        self._path = path
        self._open_locks = open_locks or open_byte_locks
        self._locks: ByteLocks | None = None
        self._guard = Lock()
        self._claims = HeldClaims()
        self._unreleased: set[int] = set()
        """The bytes that the system could not unlock, and that no claim needs."""
        _CLAIM_FILES.add(self)

    def claim(self, execution_id: str) -> FileClaim:
        """Claim an execution.

        Raises:
            JournalConflict: a live writer has claimed it.
            JournalError: the lock file cannot be used, or the id cannot be encoded.
        """
        check_id(execution_id)
        digest = hashlib.sha256(execution_id.encode()).digest()
        byte = _byte_of(digest)
        with self._guard:
            try:
                locks = self._open()
                self._free(locks)
                if byte in self._unreleased:
                    raise self._unusable("the system does not unlock what an earlier claim has locked")
                if not locks.lock(byte):
                    raise claim_conflict(execution_id, _read_holder(locks, digest))
                try:
                    locks.write(_slot_offset(digest), _SLOT.pack(digest[:16], os.getpid()))
                    token = _next_token(locks)
                except BaseException:
                    locks.unlock(byte)
                    raise
            except OSError as error:
                raise self._unusable(error) from error
            claim = FileClaim(self, locks, byte, execution_id, token)
            self._claims.add(claim)
            return claim

    def renumber(self, claim: FileClaim, stored: int) -> None:
        """Give a claim a token that is larger than a stored one: after a loss of power the counter may be an older one.

        Raises:
            JournalError: the lock file cannot be used.
        """
        with self._guard:
            try:
                claim.set_token(_next_token(claim.locks, stored))
            except OSError as error:
                raise self._unusable(error) from error

    def check(self, claim: Claim) -> None:
        """Check that a claim permits to append.

        Raises:
            ClaimLost: it does not: it was released or lost, or another journal made it.
        """
        self.check_in_place(claim)
        with self._guard:
            self._claims.check(claim)

    def check_in_place(self, claim: Claim) -> None:
        """End all claims if the lock file of this one is not at its path any more: others do not see its locks."""
        with self._guard:
            if self._claims.holds(claim) and self._locks is not None and not self._locks.is_in_place():
                self._claims.end_all(f"the lock file {self._locks.path} was removed or replaced")

    def _unusable(self, error: OSError | str) -> JournalError:
        if is_full(error):
            return JournalFull(
                f"the lock file of {self._path} cannot be written: {error}; free some space and try again"
            )
        return JournalError(
            f"the lock file of {self._path} cannot be used: {error}; check that its folder exists and can be written"
        )

    def is_claimed(self, execution_id: str) -> bool:
        """Return whether a live writer has claimed an execution, also one of this journal. Nothing is locked.

        Raises:
            JournalError: the lock file cannot be used.
        """
        byte = _byte_of(hashlib.sha256(execution_id.encode()).digest())
        with self._guard:
            try:
                return self._open().is_locked(byte)
            except OSError as error:
                raise JournalError(f"the lock file of {self._path} cannot be used: {error}") from error

    def _open(self) -> ByteLocks:
        if self._locks is not None and not self._locks.is_in_place():
            raise JournalError(
                f"the lock file {self._locks.path} was removed or replaced; close the journal to use the one that is there now"
            )
        if self._locks is None:
            database = common_path(self._path)
            self._locks = self._open_locks(database.with_name(f"{database.name}-claims"))
        return self._locks

    def forget(self) -> None:
        """End all claims in a forked process without releasing them: they stay with its parent."""
        self._guard = Lock()
        self._claims.end_all(_FORKED)
        self._unreleased.clear()
        locks, self._locks = self._locks, None
        if locks is not None:
            locks.forget()

    def release(self, claim: FileClaim) -> None:
        """Release a claim, unless all claims were ended since.

        Raises:
            JournalError: the system could not unlock it; the next claim through this journal tries it again.
        """
        with self._guard:
            self._claims.remove(claim)
            # After `close` the locks are gone, and new claims may have opened the file again.
            if claim.locks is self._locks:
                self._unreleased.add(claim.byte)
                self._free(claim.locks)
                if claim.byte in self._unreleased:
                    raise self._unusable(f"the claim on execution {claim.execution_id} could not be unlocked")

    def _free(self, locks: ByteLocks) -> None:
        """Unlock what no claim needs, as far as the system can."""
        for byte in tuple(self._unreleased):
            with suppress(OSError):
                locks.unlock(byte)
                self._unreleased.remove(byte)

    def end_all(self) -> None:
        """Refuse appends under the present claims; other writers cannot claim their executions yet."""
        with self._guard:
            self._claims.end_all(_CLOSED)

    def close(self) -> None:
        """End all claims and close the lock file."""
        with self._guard:
            self._claims.end_all(_CLOSED)
            self._unreleased.clear()
            locks, self._locks = self._locks, None
            if locks is not None:
                locks.close()


class FileClaim(HeldClaim):
    """A claim that holds a lock on a byte."""

    def __init__(self, claims: ClaimFile, locks: ByteLocks, byte: int, execution_id: str, token: int) -> None:
        super().__init__(execution_id, token)
        self._claims: ClaimFile | None = claims
        self.locks: ByteLocks = locks
        self.byte: int = byte

    @property
    def is_lost(self) -> bool:
        """Whether the claim is lost, as far as this process knows."""
        claims = self._claims
        if claims is not None and not self.loss:
            claims.check_in_place(self)
        return bool(self.loss)

    def set_token(self, token: int) -> None:
        """Replace the token, before anybody has seen it."""
        self._token = token

    async def release(self) -> None:
        """Release the claim. Idempotent."""
        self.release_nowait()

    def release_nowait(self) -> None:
        """Release the claim without an event loop. Idempotent."""
        claims, self._claims = self._claims, None
        if claims is not None:
            claims.release(self)


def _byte_of(digest: bytes) -> int:
    """Return the byte of an execution from the hash of its id."""
    # 61 bits: the sum stays within the signed 64-bit offsets of the system.
    return _FIRST_BYTE + (int.from_bytes(digest[:8]) >> 3)


def _read_holder(locks: ByteLocks, digest: bytes) -> str:
    """Return a description of the process that holds a claim; empty when its slot names another execution."""
    slot = locks.read(_slot_offset(digest), _SLOT.size)
    if len(slot) < _SLOT.size or slot[:16] != digest[:16]:
        return ""
    (_, process) = _SLOT.unpack(slot)
    return "another writer of this process" if process == os.getpid() else f"process {process}"


def _next_token(locks: ByteLocks, stored: int = 0) -> int:
    """Return a number that is larger than all before and than a stored one.

    Raises:
        JournalBusy: a process that was stopped holds the lock of the counter.
        OSError: the file cannot be used.
    """
    deadline = time.monotonic() + _COUNTER_SECONDS
    while not locks.lock(_COUNTER_BYTE):
        if time.monotonic() >= deadline:
            raise JournalBusy(
                f"another process has locked the counter in {locks.path} for {_COUNTER_SECONDS:g} seconds"
            )
        time.sleep(_RETRY_SECONDS)
    try:
        data = locks.read(_COUNTER_OFFSET, _COUNTER.size)
        (latest,) = _COUNTER.unpack(data) if len(data) == _COUNTER.size else (locks.created_at(),)
        token: int = max(latest, stored) + 1
        locks.write(_COUNTER_OFFSET, _COUNTER.pack(token))
        return token
    finally:
        locks.unlock(_COUNTER_BYTE)


def _slot_offset(digest: bytes) -> int:
    return int.from_bytes(digest[8:16]) % _SLOT_COUNT * _SLOT.size


# --- locks ------------------------------------------------------------------------------------------------------------

_HELD_BY_OTHERS = {errno.EACCES, errno.EAGAIN}
_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` on Linux: type, whence, start, length, process."""
_IS_LINUX: bool = sys.platform == "linux"
_BSD_FLOCK = struct.Struct("qqihh")
"""`struct flock` on macOS and BSD: start, length, process, type, whence."""


def open_byte_locks(path: Path) -> ByteLocks:
    """Open the lock file with the kind of locks that this system has.

    Raises:
        OSError: the file cannot be opened.
        JournalError: the system has no such locks.
    """
    if sys.platform == "win32":
        raise JournalError(
            "SqliteJournal does not support Windows: claims on executions need the locks of POSIX or Linux"
        )
    return OpenFileLocks(path) if sys.platform == "linux" else ProcessLocks(path)


class _LockFile:
    """An open lock file, and the bytes that are locked through it."""

    def __init__(self, path: Path) -> None:
        self.descriptor: int = open_private(path, os.O_RDWR | os.O_CREAT)
        self.path = path
        status = os.fstat(self.descriptor)
        self.name, self.id = os.fspath(path), (status.st_dev, status.st_ino)
        self.locked: set[int] = set()
        self.user_count = 0


class ByteLocks(ABC):
    """Locks on single bytes of a file, without waiting.

    Args:
        path: the file; it is created when it does not exist.

    Raises:
        OSError: the file cannot be opened.
    """

    _file: _LockFile

    @abstractmethod
    def __init__(self, path: Path) -> None: ...

    @abstractmethod
    def lock(self, byte: int) -> bool:
        """Lock a byte; return False when another object or this one holds its lock."""

    @abstractmethod
    def unlock(self, byte: int) -> None:
        """Unlock a byte that this object locked."""

    @abstractmethod
    def is_locked(self, byte: int) -> bool:
        """Return whether this object, another one or another process holds the lock of a byte."""

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes of the file; fewer than `length` at its end."""
        return os.pread(self._file.descriptor, length, offset)

    def write(self, offset: int, data: bytes) -> None:
        """Write bytes into the file."""
        os.pwrite(self._file.descriptor, data, offset)

    def created_at(self) -> int:
        """Return the time of the last change of the file, by the clock of the file system, in milliseconds since 1970."""
        return os.fstat(self._file.descriptor).st_mtime_ns // 1_000_000

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    def is_in_place(self) -> bool:
        """Return whether the open file is still at its path; others cannot see the locks of a removed one."""
        return file_id(self._file.name) == self._file.id

    @abstractmethod
    def close(self) -> None:
        """Unlock all bytes that this object locked."""

    @abstractmethod
    def forget(self) -> None:
        """Close the file in a forked process, without unlocking what its parent locked."""


class OpenFileLocks(ByteLocks):
    """Locks that belong to the open file, so that they exclude other objects of the same process, too (Linux)."""

    def __init__(self, path: Path) -> None:
        self._file = _LockFile(path)

    def lock(self, byte: int) -> bool:
        """Lock a byte."""
        # The lock of an open file can be acquired again through the same file.
        if byte in self._file.locked or not _set_open_file_lock(self._file.descriptor, fcntl.F_WRLCK, byte):
            return False
        self._file.locked.add(byte)
        return True

    def unlock(self, byte: int) -> None:
        """Unlock a byte."""
        _set_open_file_lock(self._file.descriptor, fcntl.F_UNLCK, byte)
        self._file.locked.remove(byte)

    def is_locked(self, byte: int) -> bool:
        """Return whether a byte is locked."""
        return byte in self._file.locked or _find_lock(self._file.descriptor, fcntl.F_OFD_GETLK, byte)

    def close(self) -> None:
        """Close the file, which unlocks all bytes."""
        os.close(self._file.descriptor)

    def forget(self) -> None:
        """Close this process's copy of the open file; the locks remain as long as the parent has its own."""
        os.close(self._file.descriptor)


def _set_open_file_lock(descriptor: int, kind: int, byte: int) -> bool:
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in _HELD_BY_OTHERS:
            return False
        raise
    return True


def _find_lock(descriptor: int, command: int, byte: int) -> bool:
    """Return whether another holder has locked a byte, on Linux."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
    return bool(_FLOCK.unpack(fcntl.fcntl(descriptor, command, query))[0] != fcntl.F_UNLCK)


class ProcessLocks(ByteLocks):
    """Locks that belong to the process, as in POSIX: all objects of a process share one open file and its locks.

    Closing the file anywhere in the process releases all its locks on the file, so the last object closes it.
    """

    _files: ClassVar[dict[str, _LockFile]] = {}
    _guard: ClassVar[Lock] = Lock()

    @classmethod
    def forget_guard(cls) -> None:
        """Replace the lock of this class in a forked process, where it may be held by a thread that does not exist."""
        cls._guard = Lock()

    def __init__(self, path: Path) -> None:
        self._name = os.path.realpath(path)
        with self._guard:
            if self._name not in self._files:
                self._files[self._name] = _LockFile(path)
            self._file = self._files[self._name]
            self._file.user_count += 1
        self._own_bytes: set[int] = set()

    def lock(self, byte: int) -> bool:
        """Lock a byte."""
        with self._guard:
            # The system grants a process a lock that it already holds.
            if byte in self._file.locked:
                return False
            try:
                fcntl.lockf(self._file.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except OSError as error:
                if error.errno in _HELD_BY_OTHERS:
                    return False
                raise
            self._file.locked.add(byte)
            self._own_bytes.add(byte)
            return True

    def unlock(self, byte: int) -> None:
        """Unlock a byte."""
        with self._guard:
            fcntl.lockf(self._file.descriptor, fcntl.LOCK_UN, 1, byte)
            self._own_bytes.remove(byte)
            self._file.locked.remove(byte)

    def is_locked(self, byte: int) -> bool:
        """Return whether a byte is locked."""
        with self._guard:
            # The system tells a process about the locks of others only.
            if byte in self._file.locked:
                return True
            if _IS_LINUX:
                return _find_lock(self._file.descriptor, fcntl.F_GETLK, byte)
            found = fcntl.fcntl(
                self._file.descriptor, fcntl.F_GETLK, _BSD_FLOCK.pack(byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
            )
            return bool(_BSD_FLOCK.unpack(found)[3] != fcntl.F_UNLCK)

    def close(self) -> None:
        """Unlock all bytes of this object; the last object closes the file."""
        for byte in tuple(self._own_bytes):
            self.unlock(byte)
        with self._guard:
            self._file.user_count -= 1
            if not self._file.user_count:
                del self._files[self._name]
                os.close(self._file.descriptor)

    def forget(self) -> None:
        """Close the file, unless another object of this process did; the child has none of its parent's locks."""
        if self._files.pop(self._name, None) is self._file:
            os.close(self._file.descriptor)


# --- forks ------------------------------------------------------------------------------------------------------------

_CLAIM_FILES: weakref.WeakSet[ClaimFile] = weakref.WeakSet()


def _forget_claims() -> None:
    """End all claims in a forked process. It runs before any other code of the child."""
    ProcessLocks.forget_guard()
    for claims in tuple(_CLAIM_FILES):
        claims.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_claims)
