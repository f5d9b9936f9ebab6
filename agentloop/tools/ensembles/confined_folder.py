"""A folder that paths cannot leave: not by `..`, not by absolute paths, not through links."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attrs import field, frozen

from agentloop.errors import ConfigurationError, ToolFailed

_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# O_NONBLOCK: opening a named pipe would wait for its writer.
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
# O_EXCL: a file or a link that another program creates at the same time is never written to.
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_IS_SUPPORTED = {
    os.open,
    os.mkdir,
    os.stat,
    os.rename,
    os.unlink,
} <= os.supports_dir_fd and os.scandir in os.supports_fd
_MAX_TEMPORARY_FILES = 100


def _resolve(root: str | os.PathLike[str]) -> Path:
    return Path(root).resolve()


@frozen
class ConfinedFolder:
    """A folder, and the files under it.

    Every part of a path is opened relative to the folder that contains it, and never through a link. So the checked file
    is also the one that is used, even when other programs change the folder at the same time.

    Attributes:
        root: the folder; links on the way to it are resolved once, at construction.

    Raises:
        ConfigurationError: when it is not a folder, or the system cannot open files relative to a folder (Windows).
    """

    root: Path = field(converter=_resolve)

    def __attrs_post_init__(self) -> None:
        if not _IS_SUPPORTED:
            raise ConfigurationError("a confined folder needs a system that opens files relative to a folder")
        if not self.root.is_dir():
            raise ConfigurationError(f"{self.root} is not a folder; make it, or name another root")

    def split_path(self, path: str) -> list[str]:
        """Return the parts of a path.

        Raises:
            ToolFailed: when it is absolute, has `..`, or has a character that is not allowed.
        """
        if "\x00" in path or "\\" in path:
            raise ToolFailed(f"{path!r} is not a path here: it is written with / and without null characters")
        if path.startswith("/") or Path(path).drive:
            raise ToolFailed(f"{path!r} is absolute; paths are relative to the folder, such as 'notes/today.txt'")
        parts = [part for part in path.split("/") if part not in {"", "."}]
        if ".." in parts:
            raise ToolFailed(f"{path!r} leads upwards; '..' is not allowed")
        return parts

    @contextmanager
    def open_folder(self, path: str, *, create: bool = False) -> Iterator[int]:
        """Open a folder; yields its descriptor.

        Args:
            path: the folder; empty or `.` for the root.
            create: whether to create missing folders.

        Raises:
            ToolFailed: when there is no such folder, or a part of the path is a link.
        """
        descriptor = os.open(self.root, _DIRECTORY)
        try:
            for part in self.split_path(path):
                inner = _open_part(descriptor, part, path, create=create)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)

    def read(self, path: str, max_bytes: int) -> bytes:
        """Read a file.

        Args:
            path: the file.
            max_bytes: its maximum size.

        Raises:
            ToolFailed: when there is no such file, it is a link or not a regular file, or it is larger.
        """
        folder_path, name = self._split_file(path)
        with self.open_folder(folder_path) as folder:
            return read_file_in(folder, name, path, max_bytes)

    def write(self, path: str, data: bytes) -> bool:
        """Write a file atomically: other programs read the old or the new content. Missing folders are created.

        Returns:
            Whether the file is new.

        Raises:
            ToolFailed: when the path is in use by something else than a regular file, or the file cannot be replaced.
        """
        folder_path, name = self._split_file(path)
        with self.open_folder(folder_path, create=True) as folder, _as_tool_failures(path):
            mode = _mode(folder, name, path)
            temporary = _unused_name(folder, name)
            try:
                descriptor = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
                with os.fdopen(descriptor, "wb") as file:
                    # Replacing a file must not change who can read it.
                    if mode is not None:
                        os.fchmod(descriptor, mode)
                    file.write(data)
                # Renaming is atomic, so other programs never read a part of the content.
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            return mode is None

    def _split_file(self, path: str) -> tuple[str, str]:
        parts = self.split_path(path)
        if not parts or path.endswith("/"):
            raise ToolFailed(f"{path!r} names a folder, not a file")
        return "/".join(parts[:-1]), parts[-1]


def read_file_in(folder: int, name: str, path: str, max_bytes: int) -> bytes:
    """Read a file in an open folder.

    Args:
        folder: the descriptor of the folder.
        name: the file's name in it.
        path: the file's path, for error messages.
        max_bytes: its maximum size.

    Raises:
        ToolFailed: when there is no such file, it is a link or not a regular file, or it is larger.
    """
    with _as_tool_failures(path):
        descriptor = os.open(name, _READ, dir_fd=folder)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ToolFailed(f"{path!r} is not a file")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            # One byte more shows that a file is too large, whatever size it reports.
            data = file.read(max_bytes + 1)
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise ToolFailed(f"{path!r} has {max(status.st_size, len(data))} bytes; the maximum to read is {max_bytes}")
    return data


def _open_part(descriptor: int, part: str, path: str, *, create: bool) -> int:
    with _as_tool_failures(path):
        if create:
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=descriptor)
        return os.open(part, _DIRECTORY, dir_fd=descriptor)


def _mode(folder: int, name: str, path: str) -> int | None:
    """Return the permissions of the file to be replaced; None when there is none."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(status.st_mode):
        raise ToolFailed(f"{path!r} is a link, which is not followed")
    if not stat.S_ISREG(status.st_mode):
        raise ToolFailed(f"{path!r} is not a file")
    # Special bits, such as setuid, are not passed on to new content.
    return stat.S_IMODE(status.st_mode) & 0o777


def _unused_name(folder: int, name: str) -> str:
    """Return a name for a temporary file. When another program takes it first, the exclusive creation fails."""
    for number in range(_MAX_TEMPORARY_FILES):
        candidate = f".{name[:200]}.{number}.tmp"
        try:
            os.stat(candidate, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return candidate
    raise ToolFailed(f"there are too many temporary files beside {name!r}")


@contextmanager
def _as_tool_failures(path: str) -> Iterator[None]:
    """Translate the errors of the system, without the names of folders outside."""
    try:
        yield
    except FileNotFoundError:
        raise ToolFailed(f"there is no {path!r}") from None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EMLINK}:
            raise ToolFailed(f"{path!r} leads through a link, which is not followed") from None
        if error.errno == errno.ENOTDIR:
            raise ToolFailed(f"{path!r} leads through a link or a file, not a folder") from None
        raise ToolFailed(f"{path!r}: {error.strerror or type(error).__name__}") from None
