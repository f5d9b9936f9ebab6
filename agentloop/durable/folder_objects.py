"""An object store in a folder."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from agentloop.contracts.can_store_objects import CanStoreObjects
from agentloop.errors import ContractViolation, JournalError

_KEY = re.compile(r"[a-z0-9][a-z0-9-]*(?:/[a-z0-9][a-z0-9-]*)*")
_MAX_KEY_LENGTH = 200
_MAX_ATTEMPTS = 20
"""How often a file is created anew because a deletion has removed its empty folder."""


class FolderObjects(CanStoreObjects):
    """Stores objects as files of a folder, for the processes of one machine, or of several that share a file system.

    The folder is created with the first object, and everything in it is private to its owner. A file appears under its name
    when all of its data are on the disk. Files whose names begin with a dot are left behind by processes that died while they wrote;
    they can be removed when no process writes.

    Args:
        path: the folder; the folder above it must exist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = Path(path).absolute()

    def __repr__(self) -> str:
        return f"FolderObjects({str(self.path)!r})"

    async def put(self, key: str, data: bytes) -> None:
        """Store an object; it is durable when this returns.

        Raises:
            ContractViolation: the key is not one of a journal.
            OSError: it cannot be written.
        """
        await asyncio.to_thread(self._put, self._path_of(key), data)

    async def get(self, key: str) -> bytes:
        """Return an object.

        Raises:
            ContractViolation: the key is not one of a journal.
            KeyError: there is no object of this key.
            OSError: it cannot be read.
        """
        try:
            return await asyncio.to_thread(self._path_of(key).read_bytes)
        except FileNotFoundError:
            raise KeyError(key) from None

    async def delete(self, key: str) -> None:
        """Delete an object, and its folder with the last one. Idempotent.

        Raises:
            ContractViolation: the key is not one of a journal.
            OSError: it cannot be deleted.
        """
        await asyncio.to_thread(self._delete, self._path_of(key))

    def _path_of(self, key: str) -> Path:
        # Keys that could lead out of the folder, or that two file systems would read differently, are never paths.
        if len(key) > _MAX_KEY_LENGTH or not _KEY.fullmatch(key):
            raise ContractViolation(f"{key!r:.250} is not the key of an object")
        return self.path.joinpath(*key.split("/"))

    def _put(self, path: Path, data: bytes) -> None:
        self._create_folder(self.path)  # nothing removes this one
        for _ in range(_MAX_ATTEMPTS):
            with suppress(FileNotFoundError):  # a deletion has removed the empty folder meanwhile
                self._create_folder(path.parent)
                _write(path, data)
                return
        raise JournalError(f"the folder {path.parent} is removed again and again while a file is written to it")

    def _create_folder(self, folder: Path) -> None:
        missing = [each for each in (folder, *folder.parents) if each.is_relative_to(self.path) and not each.exists()]
        for each in reversed(missing):
            # Not `exist_ok`, which looks at it then, when a deletion may have removed it.
            with suppress(FileExistsError):
                each.mkdir(mode=0o700)
            _synchronize(each.parent)

    def _delete(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.path:
                break
            with suppress(OSError):  # it has other files, or was removed
                folder.rmdir()


def _write(path: Path, data: bytes) -> None:
    """Write a file so that it is there as a whole or not at all."""
    descriptor, unfinished = tempfile.mkstemp(prefix=".", dir=path.parent)  # for its owner only
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        Path(unfinished).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(unfinished).unlink()
        raise
    _synchronize(path.parent)


def _synchronize(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where folders can be opened."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
