"""A toolkit for the files under one folder, which paths cannot leave: not by `..`, not by absolute paths, not through links."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from glob import escape
from pathlib import Path
from typing import Annotated, Literal, TypeAlias, TypedDict

from attrs import evolve, field, frozen

from agentloop.contracts.tool import Tool, ToolContext
from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.toolkits.protected_paths import ADDED, FOLDER_MARKS, FolderMarks, ProtectedPaths, journal_mark
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool
from agentloop.values.bounds import DEFAULT_BOUNDS
from agentloop.values.json import JsonObject

# --- the folder -----------------------------------------------------------------------------------------------------

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
    os.rmdir,
} <= os.supports_dir_fd and os.scandir in os.supports_fd
_MAX_TEMPORARY_FILES = 100
_MAX_SHOWN = 200
_MAX_GIT_CONFIG = 256 * 1024


def _resolve(root: str | os.PathLike[str]) -> Path:
    return Path(root).resolve()


@frozen
class ConfinedFolder:
    """A folder, and the files under it.

    Every part of a path is opened relative to the folder that contains it, and never through a link. So the checked file
    is also the one that is used, even when other programs change the folder at the same time.

    Attributes:
        root: the folder; links on the way to it are resolved once, at construction.
        protected: the paths in it that are not written and deleted; None for none.

    Raises:
        ConfigurationError: when it is not a folder, or the system cannot open files relative to a folder (Windows).
    """

    root: Path = field(converter=_resolve)
    protected: ProtectedPaths | None = None

    def __attrs_post_init__(self) -> None:
        if not _IS_SUPPORTED:
            raise ConfigurationError("a confined folder needs a system that opens files relative to a folder")
        if not self.root.is_dir():
            raise ConfigurationError(f"{self.root} is not a folder; create it, or name another one")

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

    def is_path(self, path: str) -> bool:
        """Return whether a text is a path in the folder."""
        with suppress(ToolFailed):
            return bool(self.split_path(path))
        return False

    @contextmanager
    def open_folder(self, path: str, *, max_new: float = 0) -> Iterator[int]:
        """Open a folder; yields its descriptor.

        Args:
            path: the folder; empty or `.` for the root.
            max_new: maximum number of missing folders that are created; when more are missing, none is.

        Raises:
            ToolFailed: when there is no such folder, too many of them are missing, or a part of the path is a link.
        """
        descriptor = os.open(self.root, _DIRECTORY)
        try:
            parts = self.split_path(path)
            is_new = False
            for index, part in enumerate(parts):
                if max_new and not is_new and _is_missing(descriptor, part):
                    is_new, missing = True, len(parts) - index
                    if missing > max_new:
                        raise ToolFailed(
                            f"{_shorten(path)!r} needs {missing} new folders; the limit is {max_new:g} "
                            "(Bounds.file_folders)"
                        )
                inner = _open_part(descriptor, part, path, create=is_new)
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

    def write(
        self,
        path: str,
        data: bytes,
        max_folders: float = DEFAULT_BOUNDS.file_folders,
        *,
        executable: bool | None = None,
        modified: int | None = None,
    ) -> bool:
        """Write a file atomically: other programs read the old or the new content. Missing folders are created.

        Args:
            path: the file.
            data: its new content.
            max_folders: maximum number of folders that are created.
            executable: whether it can be run; None to keep that as it is.
            modified: the time of the change in seconds since 1970; None for now.

        Returns:
            Whether the file is new.

        Raises:
            ToolFailed: when the path is protected, it is in use by something else than a regular file, too many folders are
                missing, or the file cannot be replaced.
        """
        folder_path, name = self._split_file(path)
        self._check_protection(path)
        with self.open_folder(folder_path, max_new=max_folders) as folder, _as_tool_failures(path):
            mode = _mode(folder, name, path)
            temporary = _unused_name(folder, name)
            try:
                descriptor = os.open(temporary, _CREATE, 0o666, dir_fd=folder)
                with os.fdopen(descriptor, "wb") as file:
                    # Replacing a file must not change who can read it.
                    if mode is not None or executable is not None:
                        os.fchmod(
                            descriptor,
                            _with_executable(os.fstat(descriptor).st_mode if mode is None else mode, executable),
                        )
                    file.write(data)
                    if modified is not None:
                        file.flush()
                        os.utime(descriptor, (modified, modified))
                # Renaming is atomic, so other programs never read a part of the content.
                os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=folder)
                raise
            return mode is None

    def delete(self, path: str, *, is_folder: bool = False) -> None:
        """Delete a file, or a link itself.

        Args:
            path: the file or folder.
            is_folder: whether it is a folder, which has to be empty.

        Raises:
            ToolFailed: when it is a protected file, there is no such file or folder, a part of its path is a link, or the folder
                is not empty.
        """
        folder_path, name = self._split_file(path)
        if not is_folder:  # one without files does nothing
            self._check_protection(path)
        with self.open_folder(folder_path) as folder, _as_tool_failures(path):
            if is_folder:
                os.rmdir(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)

    def find_protections(self, paths: Iterable[str]) -> dict[str, str]:
        """Return why files are not written and deleted, by their paths; those that may be are left out.

        Raises:
            ToolFailed: when a path is not one in the folder.
        """
        if self.protected is None:
            return {}
        known, reasons = dict[Path, FolderMarks | None](), dict[str, str]()
        for path in paths:
            parts = self.split_path(path)
            if parts and (reason := self._find_reason(self.protected, parts, known)):
                reasons[path] = reason
        return reasons

    def _find_reason(
        self, protected: ProtectedPaths, parts: Sequence[str], known: dict[Path, FolderMarks | None]
    ) -> str:
        # Whatever is found behind a link does not matter: nothing is written there.
        folder, folders = self.root, list[FolderMarks]()
        for part in parts:
            if folder not in known:
                known[folder] = _marks_of(folder)
            marks = known[folder]
            if marks is None:
                break
            folders.append(marks)
            folder /= part
        is_journal = len(folders) == len(parts) and _exists(folder.with_name(journal_mark(parts[-1])))
        return protected.find_reason(parts, folders, is_journal=is_journal)

    def _check_protection(self, path: str) -> None:
        reason = self.find_protections([path]).get(path)
        if reason:
            # Near the start, since a terminal shows the start of an error.
            hint = (
                f", unless the program that runs the agent has may_write=[{escape(path)!r}]" if reason != ADDED else ""
            )
            raise ToolFailed(f"{path!r} is protected{hint}: {reason}")

    def walk(self) -> Iterator[tuple[str, int, os.stat_result]]:
        """Yield each file and folder below: its path, the descriptor of the folder that it is in, and its status.

        Links are not followed; they and everything else that is neither a file nor a folder are left out. Names that are not
        UTF-8 are left out too.
        """
        with self.open_folder("") as root:
            for folder_path, folders, names, descriptor in os.fwalk(".", dir_fd=root, follow_symlinks=False):
                for name in sorted([*folders, *names]):
                    path = posixpath.normpath(posixpath.join(folder_path, name))
                    with suppress(FileNotFoundError):
                        status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                        if _as_text(path) == path and (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                            yield path, descriptor, status

    def _split_file(self, path: str) -> tuple[str, str]:
        parts = self.split_path(path)
        if not parts or path.endswith("/"):
            raise ToolFailed(f"{path!r} names a folder, not a file")
        return "/".join(parts[:-1]), parts[-1]


def _marks_of(folder: Path) -> FolderMarks | None:
    """Return what a folder has by which it is known; None when there is no such folder."""
    if not _exists(folder):
        return None
    config = b""
    with suppress(OSError), open(os.open(folder / ".git" / "config", _READ), "rb") as file:  # noqa: PTH123  # not through a link
        config = file.read(_MAX_GIT_CONFIG)
    names = [name for name in FOLDER_MARKS if _exists(folder / name)]
    return FolderMarks(frozenset(names), config.decode("utf-8", "replace"))


def _exists(path: Path) -> bool:
    try:
        return bool(path.lstat())
    except (OSError, ValueError):  # also for a name that is too long, or that the system cannot write
        return False


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


def _with_executable(mode: int, executable: bool | None) -> int:  # noqa: FBT001  # None keeps it
    if executable is None:
        return mode
    # Whoever may read the file may run it.
    return (mode & 0o666) | ((mode & 0o444) >> 2 if executable else 0)


def _is_missing(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False  # opening it tells why
    return False


def _shorten(path: str) -> str:
    return path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}…"


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
        # In bytes: a name of 255 of them is allowed, which may be 63 characters.
        candidate = f".{os.fsencode(name)[:200].decode(errors='ignore')}.{number}.tmp"
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


# --- the toolkit ----------------------------------------------------------------------------------------------------

_MAX_ENTRIES = 1_000
_MAX_SEARCHED_FILES = 20_000
_MAX_LINE = 500
_LARGEST = (1 << 63) - 2  # the largest number of bytes that a file can be read by


class FileEntry(TypedDict):
    """An entry of a folder."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    bytes: int


class Match(TypedDict):
    """A line with the searched text, or a file with the searched name (line 0)."""

    path: str
    line: int
    text: str


@frozen
class Files:
    """The implementation of the tools.

    Attributes:
        folder: the folder.
        max_bytes: maximum size of a file that is read or written, in bytes; None for `Bounds.file_bytes`.
    """

    folder: ConfinedFolder
    max_bytes: int | None

    def read_file(
        self,
        path: Annotated[str, "relative to the folder, such as notes/today.txt"],
        first_line: Annotated[int, "where to begin, from 1", Range(ge=1)] = 1,
        lines: Annotated[int | None, "how many lines to read; all when left out", Range(ge=1)] = None,
        *,
        context: ToolContext,
    ) -> str:
        """Read a text file, or some of its lines."""
        text = self._read_text(path, context)
        if first_line == 1 and lines is None:
            return text
        all_lines = text.splitlines(keepends=True)
        if first_line > max(1, len(all_lines)):
            raise ToolFailed(f"{path!r} has {len(all_lines)} lines")
        return "".join(all_lines[first_line - 1 : None if lines is None else first_line - 1 + lines])

    def write_file(
        self,
        path: Annotated[str, "relative to the folder"],
        text: Annotated[str, "the whole content"],
        *,
        context: ToolContext,
    ) -> str:
        """Write a text file: create it, with the folders around it, or replace all of its content."""
        data = text.encode("utf-8", "replace")
        self._check_size(path, len(data), context)
        is_new = self.folder.write(path, data, context.scope.bounds.file_folders)
        return f"{'created' if is_new else 'replaced'} {path} ({len(data)} bytes)"

    def edit_file(
        self,
        path: Annotated[str, "relative to the folder"],
        old: Annotated[str, "the text to replace, exactly as in the file", Range(min_length=1)],
        new: Annotated[str, "the text to put in its place"],
        all: Annotated[bool, "replace every occurrence; otherwise there has to be exactly one"] = False,  # noqa: A002, FBT002  # a model passes it by name
        *,
        context: ToolContext,
    ) -> str:
        """Replace a piece of text in a file."""
        text = self._read_text(path, context)
        count = text.count(old)
        if not count:
            raise ToolFailed(f"the text to replace is not in {path!r}; read the file and copy it exactly")
        if count > 1 and not all:
            raise ToolFailed(
                f"the text to replace is in {path!r} {count} times; include more of the text around it, or pass all=true"
            )
        # Measured before it is built: a short text in many places can make gigabytes.
        added = len(new.encode("utf-8", "replace")) - len(old.encode("utf-8", "replace"))
        self._check_size(path, len(text.encode()) + count * added, context)
        self.folder.write(path, text.replace(old, new).encode("utf-8", "replace"))
        return f"replaced {count} {'place' if count == 1 else 'places'} in {path}"

    def list_files(
        self, path: Annotated[str, "a folder, relative to the folder of all files"] = "."
    ) -> list[FileEntry]:
        """List the entries of a folder, by name. Links are listed and never followed."""
        with self.folder.open_folder(path) as descriptor, os.scandir(descriptor) as entries:
            listing = sorted([_entry(entry) for entry in entries], key=lambda entry: entry["name"])
        if len(listing) > _MAX_ENTRIES:
            raise ToolFailed(f"{path!r} has {len(listing)} entries, which is too many to list; search instead")
        return listing

    def search_files(
        self,
        text: Annotated[str, "the text to search for, literally; empty to find files by name only"] = "",
        name: Annotated[str, "a pattern of paths, where * matches anything: *.md, src/*"] = "*",
        path: Annotated[str, "the folder to search, with all folders below it"] = ".",
        ignore_case: bool = True,  # noqa: FBT001, FBT002  # a model passes it by name
        max_results: Annotated[int, "maximum number of lines or files to return", Range(ge=1, le=500)] = 50,
        *,
        context: ToolContext,
    ) -> list[Match]:
        """Find lines with a text in the files of a folder and of all folders below it, or find files by name."""
        matches: list[Match] = []
        max_bytes = self._limit(context)
        with self.folder.open_folder(path) as descriptor:
            for file_path, folder, file in _walk(descriptor):
                if not (fnmatchcase(file_path, name) or fnmatchcase(file, name)):
                    continue
                lines = self._read_lines(folder, file, file_path, max_bytes) if text else None
                matches.extend(_search(lines, file_path, text, ignore_case=ignore_case))
                if len(matches) >= max_results:
                    break
        prefix = "".join(f"{part}/" for part in self.folder.split_path(path))
        return [{**match, "path": f"{prefix}{match['path']}"} for match in matches[:max_results]]

    def _read_lines(self, folder: int, file: str, path: str, max_bytes: int) -> list[str]:
        try:
            return read_file_in(folder, file, path, max_bytes).decode().splitlines()
        except (ToolFailed, UnicodeDecodeError):  # a link, a large file or a binary file has no lines to search
            return []

    def _read_text(self, path: str, context: ToolContext) -> str:
        try:
            return self.folder.read(path, self._limit(context)).decode()
        except UnicodeDecodeError:
            raise ToolFailed(f"{path!r} is not a text in UTF-8") from None

    def _limit(self, context: ToolContext) -> int:
        limit = context.scope.bounds.file_bytes if self.max_bytes is None else self.max_bytes
        return int(min(limit, _LARGEST))

    def _check_size(self, path: str, size: int, context: ToolContext) -> None:
        limit = self._limit(context)
        if size > limit:
            bound = " (Bounds.file_bytes)" if self.max_bytes is None else ""
            raise ToolFailed(f"{path!r} would have {size} bytes; the maximum to write is {limit}{bound}")


Protected: TypeAlias = Annotated[list[str] | None, "patterns of further paths that are not written, such as Makefile"]
MayWrite: TypeAlias = Annotated[
    list[str] | None, "patterns of protected paths that may be written, such as conftest.py"
]


def protected_folder(
    root: str | os.PathLike[str], protected: Iterable[str] | None, may_write: Iterable[str] | None
) -> ConfinedFolder:
    """Return a folder in which the tools of an agent write nothing that other programs act on by themselves.

    Args:
        root: the folder.
        protected: patterns of further paths that are not written.
        may_write: patterns of protected paths that may be written.

    Raises:
        ConfigurationError: when there is no such folder, or something is not a pattern.
    """
    folder = ConfinedFolder(root)
    return evolve(folder, protected=ProtectedPaths(protected or (), may_write or ()).within(folder.root))


@ensemble_factory(in_folder=["root"], trusted=["may_write"], takes_files="protected")
def files(
    root: Annotated[str, "the folder; files outside of it cannot be reached"],
    *,
    writable: Annotated[bool, "whether files may be written and edited"] = True,
    max_bytes: Annotated[int | None, "maximum size of a file that is read or written, in bytes", Range(ge=1)] = None,
    protected: Protected = None,
    may_write: MayWrite = None,
) -> Ensemble:
    """Create an ensemble for the files under a folder.

    Args:
        root: the folder; files outside of it cannot be reached.
        writable: whether files may be written and edited.
        max_bytes: maximum size of a file that is read or written, in bytes; None for `Bounds.file_bytes` of the loop.
        protected: patterns of further paths that are not written, in addition to those that programs act on by themselves, such
            as `.git/hooks` and `.vscode`.
        may_write: patterns of protected paths that may be written, such as `["conftest.py"]`; only code and persons set it.

    Raises:
        ConfigurationError: when there is no such folder, or something is not a pattern.
    """
    toolkit = Files(protected_folder(root, protected, may_write), max_bytes)
    reading: list[Tool] = [
        # Two calls may read other lines, so a read leaves earlier ones as they are, except one of the same lines.
        tool(effect="pure", key=_by_path, supersedes="same arguments", resource=_by_path)(toolkit.read_file),
        tool(effect="pure", key=_by_path)(toolkit.list_files),
        # Searching reads many files, so it has no ordering key.
        tool(effect="pure")(toolkit.search_files),
    ]
    writing: list[Tool] = [
        tool(effect="idempotent", key=_by_path, supersedes="same resource", resource=_by_path)(toolkit.write_file),
        # A repeated edit may match inside of the new text, so it is not idempotent.
        tool(effect="effect", key=_by_path, supersedes="same resource", resource=_by_path)(toolkit.edit_file),
    ]
    return Ensemble(
        "files", [*reading, *(writing if writable else ())], description=f"Files under {toolkit.folder.root}."
    )


def _search(lines: list[str] | None, path: str, text: str, *, ignore_case: bool) -> list[Match]:
    if lines is None:
        return [Match(path=path, line=0, text="")]
    target = text.casefold() if ignore_case else text
    return [
        Match(path=path, line=number, text=line.strip()[:_MAX_LINE])
        for number, line in enumerate(lines, 1)
        if target in (line.casefold() if ignore_case else line)
    ]


def _by_path(arguments: JsonObject) -> str:
    """Return one key for all calls about one file: they run in order, and a write makes earlier reads stale."""
    return f"files {posixpath.normpath(arguments.get('path', '.'))}"


def _entry(entry: os.DirEntry[str]) -> FileEntry:
    status = entry.stat(follow_symlinks=False)
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
    kind = next((kind for is_kind, kind in kinds if is_kind(status.st_mode)), "other")
    return FileEntry(name=_as_text(entry.name), kind=kind, bytes=status.st_size if kind == "file" else 0)  # type: ignore[typeddict-item]  # one of the kinds above


def _walk(folder: int) -> Iterator[tuple[str, int, str]]:
    """Yield path, folder descriptor and name of each file below a folder, in order; links are not followed."""
    count = 0
    for folder_path, folders, names, descriptor in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        folders.sort()  # fwalk descends in this order
        for name in sorted(names):
            count += 1
            if count > _MAX_SEARCHED_FILES:
                raise ToolFailed(f"there are more than {_MAX_SEARCHED_FILES} files; search a folder below")
            yield _as_text(posixpath.normpath(posixpath.join(folder_path, name))), descriptor, name


def _as_text(name: str) -> str:
    """Return a name as text; bytes that are not UTF-8 become question marks."""
    return name.encode("utf-8", "replace").decode()
