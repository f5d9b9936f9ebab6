"""Locks on single bytes of a file, which the system takes back when a process ends."""

from __future__ import annotations

import errno
import os
import struct
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from threading import Lock
from typing import ClassVar

from agentloop.errors import JournalError

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
