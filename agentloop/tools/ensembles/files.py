"""A toolkit for the files under one folder."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Literal, TypedDict

from attrs import frozen

from agentloop.contracts.tool import Tool
from agentloop.errors import ToolFailed
from agentloop.tools.decorator import tool
from agentloop.tools.ensembles.confined_folder import ConfinedFolder, read_file_in
from agentloop.tools.ensembles.ensemble import Ensemble, ensemble_factory
from agentloop.tools.schema import Bounds
from agentloop.values.json import JsonObject

_MAX_ENTRIES = 1_000
_MAX_SEARCHED_FILES = 20_000
_MAX_LINE = 500


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
        max_bytes: maximum size of a file that is read or written, in bytes.
    """

    folder: ConfinedFolder
    max_bytes: int

    def read_file(
        self,
        path: Annotated[str, "relative to the folder, such as notes/today.txt"],
        first_line: Annotated[int, "where to begin, from 1", Bounds(ge=1)] = 1,
        lines: Annotated[int | None, "how many lines to read; all when left out", Bounds(ge=1)] = None,
    ) -> str:
        """Read a text file, or some of its lines."""
        text = self._read_text(path)
        if first_line == 1 and lines is None:
            return text
        all_lines = text.splitlines(keepends=True)
        if first_line > max(1, len(all_lines)):
            raise ToolFailed(f"{path!r} has {len(all_lines)} lines")
        return "".join(all_lines[first_line - 1 : None if lines is None else first_line - 1 + lines])

    def write_file(
        self, path: Annotated[str, "relative to the folder"], text: Annotated[str, "the whole content"]
    ) -> str:
        """Write a text file: create it, with the folders around it, or replace all of its content."""
        data = self._encode(path, text)
        is_new = self.folder.write(path, data)
        return f"{'created' if is_new else 'replaced'} {path} ({len(data)} bytes)"

    def edit_file(
        self,
        path: Annotated[str, "relative to the folder"],
        old: Annotated[str, "the text to replace, exactly as in the file", Bounds(min_length=1)],
        new: Annotated[str, "the text to put in its place"],
        all: Annotated[bool, "replace every occurrence; otherwise there has to be exactly one"] = False,  # noqa: A002, FBT002  # a model passes it by name
    ) -> str:
        """Replace a piece of text in a file."""
        text = self._read_text(path)
        count = text.count(old)
        if not count:
            raise ToolFailed(f"the text to replace is not in {path!r}; read the file and copy it exactly")
        if count > 1 and not all:
            raise ToolFailed(
                f"the text to replace is in {path!r} {count} times; include more of the text around it, or pass all=true"
            )
        self.folder.write(path, self._encode(path, text.replace(old, new)))
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
        max_results: Annotated[int, "maximum number of lines or files to return", Bounds(ge=1, le=500)] = 50,
    ) -> list[Match]:
        """Find lines with a text in the files of a folder and of all folders below it, or find files by name."""
        matches: list[Match] = []
        with self.folder.open_folder(path) as descriptor:
            for file_path, folder, file in _walk(descriptor):
                if not (fnmatchcase(file_path, name) or fnmatchcase(file, name)):
                    continue
                matches.extend(self._search_file(folder, file, file_path, text, ignore_case=ignore_case))
                if len(matches) >= max_results:
                    break
        prefix = "".join(f"{part}/" for part in self.folder.split_path(path))
        return [{**match, "path": f"{prefix}{match['path']}"} for match in matches[:max_results]]

    def _search_file(self, folder: int, file: str, path: str, text: str, *, ignore_case: bool) -> list[Match]:
        if not text:
            return [Match(path=path, line=0, text="")]
        try:
            content = read_file_in(folder, file, path, self.max_bytes).decode()
        except (ToolFailed, UnicodeDecodeError):  # a link, a large file or a binary file has no lines to search
            return []
        target = text.casefold() if ignore_case else text
        return [
            Match(path=path, line=number, text=line.strip()[:_MAX_LINE])
            for number, line in enumerate(content.splitlines(), 1)
            if target in (line.casefold() if ignore_case else line)
        ]

    def _read_text(self, path: str) -> str:
        try:
            return self.folder.read(path, self.max_bytes).decode()
        except UnicodeDecodeError:
            raise ToolFailed(f"{path!r} is not a text in UTF-8") from None

    def _encode(self, path: str, text: str) -> bytes:
        data = text.encode("utf-8", "replace")
        if len(data) > self.max_bytes:
            raise ToolFailed(f"{path!r} would have {len(data)} bytes; the maximum to write is {self.max_bytes}")
        return data


@ensemble_factory
def files(
    root: Annotated[str, "the folder; files outside of it cannot be reached"],
    *,
    writable: Annotated[bool, "whether files may be written and edited"] = True,
    max_bytes: Annotated[int, "maximum size of a file that is read or written, in bytes", Bounds(ge=1)] = 1_000_000,
) -> Ensemble:
    """Create an ensemble for the files under a folder.

    Args:
        root: the folder; files outside of it cannot be reached.
        writable: whether files may be written and edited.
        max_bytes: maximum size of a file that is read or written, in bytes.

    Raises:
        ConfigurationError: when there is no such folder.
    """
    toolkit = Files(ConfinedFolder(root), max_bytes)
    reading: list[Tool] = [
        tool(effect="pure", key=_by_path)(toolkit.read_file),
        tool(effect="pure", key=_by_path)(toolkit.list_files),
        # Searching reads many files, so it has no ordering key.
        tool(effect="pure")(toolkit.search_files),
    ]
    writing: list[Tool] = [
        tool(effect="idempotent", key=_by_path)(toolkit.write_file),
        # A repeated edit may match inside of the new text, so it is not idempotent.
        tool(effect="effect", key=_by_path)(toolkit.edit_file),
    ]
    return Ensemble(
        "files", [*reading, *(writing if writable else ())], description=f"Files under {toolkit.folder.root}."
    )


def _by_path(arguments: JsonObject) -> str:
    """Return one ordering key for all calls about one file, so that they run in order."""
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
