"""Files under one folder."""

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
from agentloop.tools.ensembles.confined_folder import ConfinedFolder, read_in
from agentloop.tools.ensembles.ensemble import Ensemble, makes_ensemble
from agentloop.tools.schema import Bounds
from agentloop.values.json import JsonObject

_MOST_ENTRIES = 1_000
_MOST_SEARCHED = 20_000
_LONGEST_LINE = 500


class FileEntry(TypedDict):
    """What stands in a folder."""

    name: str
    kind: Literal["file", "folder", "link", "other"]
    bytes: int


class FoundLine(TypedDict):
    """A line that holds what was searched for."""

    path: str
    line: int
    text: str


@frozen
class Files:
    """The work of the tools.

    Attributes:
        folder: what they are confined to.
        max_bytes: the most bytes of a file that is read or written.
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
        text = self._text(path)
        if first_line == 1 and lines is None:
            return text
        listed = text.splitlines(keepends=True)
        if first_line > max(1, len(listed)):
            raise ToolFailed(f"{path!r} has {len(listed)} lines")
        return "".join(listed[first_line - 1 : None if lines is None else first_line - 1 + lines])

    def write_file(
        self, path: Annotated[str, "relative to the folder"], text: Annotated[str, "the whole content"]
    ) -> str:
        """Write a text file: make it, with the folders around it, or replace all of its content."""
        data = self._encoded(path, text)
        is_new = self.folder.write(path, data)
        return f"{'made' if is_new else 'replaced'} {path} ({len(data)} bytes)"

    def edit_file(
        self,
        path: Annotated[str, "relative to the folder"],
        old: Annotated[str, "the text to replace, exactly as it stands there", Bounds(min_length=1)],
        new: Annotated[str, "what is to stand there instead"],
        all: Annotated[bool, "replace every occurrence; without, there has to be exactly one"] = False,  # noqa: A002, FBT002  # a model gives it by name
    ) -> str:
        """Replace a piece of text in a file."""
        text = self._text(path)
        count = text.count(old)
        if not count:
            raise ToolFailed(f"the text to replace is not in {path!r}; read the file and give it exactly")
        if count > 1 and not all:
            raise ToolFailed(
                f"the text to replace is in {path!r} {count} times; give more of what is around it, or all=true"
            )
        self.folder.write(path, self._encoded(path, text.replace(old, new)))
        return f"replaced {count} {'place' if count == 1 else 'places'} in {path}"

    def list_files(
        self, path: Annotated[str, "a folder, relative to the folder of all files"] = "."
    ) -> list[FileEntry]:
        """List what is in a folder, by name. Links are listed and never followed."""
        with self.folder.folder(path) as opened, os.scandir(opened) as entries:
            listed = sorted([_entry(entry) for entry in entries], key=lambda entry: entry["name"])
        if len(listed) > _MOST_ENTRIES:
            raise ToolFailed(f"{path!r} has {len(listed)} entries, which is too many to list; search instead")
        return listed

    def search_files(
        self,
        text: Annotated[str, "what to look for, as it is; empty to find files by name only"] = "",
        name: Annotated[str, "a pattern of paths, where * stands for anything: *.md, src/*"] = "*",
        path: Annotated[str, "the folder to search, with all below it"] = ".",
        ignore_case: bool = True,  # noqa: FBT001, FBT002  # a model gives it by name
        most: Annotated[int, "the most lines or files to return", Bounds(ge=1, le=500)] = 50,
    ) -> list[FoundLine]:
        """Find the lines that hold a text in the files of a folder and all below it, or files by their names."""
        found: list[FoundLine] = []
        with self.folder.folder(path) as opened:
            for place, folder, file in _walk(opened):
                if not (fnmatchcase(place, name) or fnmatchcase(file, name)):
                    continue
                found.extend(self._matches(folder, file, place, text, ignore_case=ignore_case))
                if len(found) >= most:
                    break
        before = "/".join(self.folder.parts(path))
        return [{**one, "path": f"{before}/{one['path']}" if before else one["path"]} for one in found[:most]]

    def _matches(self, folder: int, file: str, place: str, text: str, *, ignore_case: bool) -> list[FoundLine]:
        if not text:
            return [FoundLine(path=place, line=0, text="")]
        try:
            content = read_in(folder, file, place, self.max_bytes).decode()
        except (ToolFailed, UnicodeDecodeError):  # a link, a large file or no text: nothing to search in
            return []
        wanted = text.casefold() if ignore_case else text
        return [
            FoundLine(path=place, line=number, text=line.strip()[:_LONGEST_LINE])
            for number, line in enumerate(content.splitlines(), 1)
            if wanted in (line.casefold() if ignore_case else line)
        ]

    def _text(self, path: str) -> str:
        try:
            return self.folder.read(path, self.max_bytes).decode()
        except UnicodeDecodeError:
            raise ToolFailed(f"{path!r} is not a text in UTF-8") from None

    def _encoded(self, path: str, text: str) -> bytes:
        data = text.encode("utf-8", "replace")
        if len(data) > self.max_bytes:
            raise ToolFailed(f"{path!r} would have {len(data)} bytes; the most that are written are {self.max_bytes}")
        return data


@makes_ensemble
def files(
    root: Annotated[str, "the folder; what is outside of it cannot be reached"],
    *,
    writable: Annotated[bool, "whether files may be written and edited"] = True,
    max_bytes: Annotated[int, "the most bytes of a file that is read or written", Bounds(ge=1)] = 1_000_000,
) -> Ensemble:
    """Make the ensemble of files under a folder.

    Args:
        root: the folder; what is outside of it cannot be reached.
        writable: whether files may be written and edited.
        max_bytes: the most bytes of a file that is read or written.

    Raises:
        ConfigurationError: when there is no such folder.
    """
    work = Files(ConfinedFolder(root), max_bytes)
    reading: list[Tool] = [
        tool(effect="pure", key=_by_path)(work.read_file),
        tool(effect="pure", key=_by_path)(work.list_files),
        tool(effect="pure")(work.search_files),
    ]
    writing: list[Tool] = [
        tool(effect="idempotent", key=_by_path)(work.write_file),
        tool(effect="effect", key=_by_path)(work.edit_file),
    ]
    return Ensemble("files", [*reading, *(writing if writable else ())], description=f"Files under {work.folder.root}.")


def _by_path(arguments: JsonObject) -> str:
    """Name the calls that are about one file, so that they run in their order."""
    return f"files {posixpath.normpath(arguments.get('path', '.'))}"


def _entry(entry: os.DirEntry[str]) -> FileEntry:
    status = entry.stat(follow_symlinks=False)
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "folder"), (stat.S_ISLNK, "link"))
    kind = next((kind for is_kind, kind in kinds if is_kind(status.st_mode)), "other")
    return FileEntry(name=_shown(entry.name), kind=kind, bytes=status.st_size if kind == "file" else 0)  # type: ignore[typeddict-item]  # one of the kinds above


def _walk(folder: int) -> Iterator[tuple[str, int, str]]:
    """Yield path, open folder and name of each file below a folder, in order; links are not followed."""
    seen = 0
    for place, folders, names, opened in os.fwalk(".", dir_fd=folder, follow_symlinks=False):
        folders.sort()
        for name in sorted(names):
            seen += 1
            if seen > _MOST_SEARCHED:
                raise ToolFailed(f"there are more than {_MOST_SEARCHED} files; search a folder below")
            yield _shown(posixpath.normpath(posixpath.join(place, name))), opened, name


def _shown(name: str) -> str:
    """Return a name as text; bytes in it that are none become question marks."""
    return name.encode("utf-8", "replace").decode()
