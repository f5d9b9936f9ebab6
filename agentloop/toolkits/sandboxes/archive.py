"""The files of a command as a tar archive: packed here, and read from a sandbox whose programs may have written it."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence

from attrs import define, evolve, field, frozen

from agentloop.contracts.can_sandbox import SandboxCommand, SandboxFile
from agentloop.errors import SandboxUnavailable

_BLOCK = 512
_MAX_PATH_BYTES = 4_096
_MAX_DEPTH = 64
_BINARY_NUMBER = 0x80  # GNU tar writes large numbers in binary, marked by the first bit
_LATEST = 1 << 33  # the year 2242, in seconds since 1970
_OWNER_MAY_EXECUTE = 0o100

MEMBER_BYTES = 3 * _BLOCK + 2 * _MAX_PATH_BYTES
"""The maximum bytes of a member of an archive in addition to its content."""


def check_files(command: SandboxCommand) -> None:
    """Check the files of a command against its limits.

    Raises:
        SandboxUnavailable: when there are too many, or they are too large; names the limit.
    """
    limits = command.limits
    size = sum([len(file.data) for file in command.files.values()])
    if size > limits.max_disk:
        raise SandboxUnavailable(
            f"the files of the command have {size} bytes; the limit is {limits.max_disk} (max_disk)"
        )
    count = len(command.files) + len(command.folders)
    if count > limits.max_files:
        raise SandboxUnavailable(f"the command has {count} files; the limit is {limits.max_files} (max_files)")


def pack(files: Mapping[str, SandboxFile], folders: Sequence[str] = ()) -> bytes:
    """Return an archive of files and folders."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in folders:
            entry = tarfile.TarInfo(path)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(entry)
        for path, file in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime, entry.mode = len(file.data), file.modified, 0o755 if file.executable else 0o644
            archive.addfile(entry, io.BytesIO(file.data))
    return buffer.getvalue()


@define
class Contents:
    """The contents of an archive.

    Attributes:
        files: the regular files, by their paths.
        folders: the folders.
        omitted: the names of everything else.
        is_complete: whether the archive ends as it should, within the limits.
    """

    files: dict[str, SandboxFile] = field(factory=dict)
    folders: set[str] = field(factory=set)
    omitted: list[str] = field(factory=list)
    is_complete: bool = False

    @property
    def empty_folders(self) -> tuple[str, ...]:
        """The folders that nothing else is in."""
        used = {path.rpartition("/")[0] for path in (*self.files, *self.folders)}
        return tuple(sorted(self.folders - used))


def unpack(data: bytes, max_files: int, max_bytes: int) -> Contents:
    """Read an archive in time linear in its size. What comes before damaged data is returned.

    Args:
        data: the archive, which a hostile program may have written.
        max_files: the maximum number of members.
        max_bytes: the maximum size of all files together; a second name of a file counts again.
    """
    contents = Contents()
    total = 0
    for count, member in enumerate(_read_members(data, contents)):
        # A second name of a file has no content of its own.
        linked = contents.files.get(_as_path(member.target)) if member.kind == b"1" else None
        total += member.size if linked is None else len(linked.data)
        if count > max_files or total > max_bytes:
            contents.is_complete = False
            break
        _add(contents, member, linked)
    return contents


@frozen
class _Member:
    """A member of an archive; `data` is the archive itself, so that content is copied once."""

    name: bytes
    kind: bytes
    target: bytes
    mode: int
    modified: int
    data: bytes
    start: int
    size: int


def _add(contents: Contents, member: _Member, linked: SandboxFile | None) -> None:
    path = _as_path(member.name)
    if path == ".":
        return
    parents = [path[:index] for index, character in enumerate(path) if character == "/"]
    # A name is both a file and a folder in a forged archive only.
    is_free = bool(path) and not any(parent in contents.files for parent in parents)
    if is_free and path not in contents.folders and (linked is not None or member.kind in {b"0", b"\0"}):
        content = member.data[member.start : member.start + member.size]
        contents.files[path] = linked or SandboxFile(content, bool(member.mode & _OWNER_MAY_EXECUTE), member.modified)
        contents.folders.update(parents)
    elif is_free and path not in contents.files and member.kind == b"5":
        contents.folders.update([*parents, path])
    else:
        contents.omitted.append(path or member.name[:_MAX_PATH_BYTES].decode(errors="replace"))


def _as_path(name: bytes) -> str:
    """Return a name as a relative path; empty when it is none, leads upwards, is no UTF-8 or has too many parts."""
    try:
        parts = [part for part in name.decode().split("/") if part not in {"", "."}]
    except UnicodeDecodeError:
        return ""
    return "" if name.startswith(b"/") or ".." in parts or len(parts) > _MAX_DEPTH else "/".join(parts) or "."


def _read_members(data: bytes, contents: Contents) -> Iterator[_Member]:
    """Yield the members of an archive; mark the contents as complete when it ends with two empty blocks."""
    long: dict[bytes, bytes] = {}
    position = 0
    while position + _BLOCK <= len(data):
        header = data[position : position + _BLOCK]
        if not header.strip(b"\0"):
            contents.is_complete = True
            return
        position += _BLOCK
        member = _parse_header(header, data, position)
        if member is None or position + member.size > len(data):
            return
        if member.kind in {b"L", b"K"}:
            # The name, or the target of the link, of the next member, which has no place in a header.
            if member.size > _MAX_PATH_BYTES + 1:
                return
            long[member.kind] = data[position : position + member.size].rstrip(b"\0")
        else:
            yield evolve(member, name=long.get(b"L", member.name), target=long.get(b"K", member.target))
            long.clear()
        position += -(-member.size // _BLOCK) * _BLOCK


def _parse_header(header: bytes, data: bytes, start: int) -> _Member | None:
    try:
        size, mode, modified = (_parse_number(header[a:b]) for a, b in ((124, 136), (100, 108), (136, 148)))
    except ValueError:
        return None
    if size < 0:
        return None
    # A time that no file of the host could have is none.
    modified = modified if 0 <= modified <= _LATEST else 0
    name, target = (header[a:b].partition(b"\0")[0] for a, b in ((0, 100), (157, 257)))
    prefix = header[345:500].partition(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    name = prefix + b"/" + name if prefix else name
    kind = header[156:157]
    # Links and devices have no content, whatever a forged header says.
    return _Member(name, kind, target, mode, modified, data, start, size if kind in {b"0", b"\0", b"L", b"K"} else 0)


def _parse_number(digits: bytes) -> int:
    if digits[0] & _BINARY_NUMBER:
        return int.from_bytes(digits[1:], "big")
    text = digits.strip(b" \0")
    return int(text, 8) if text else 0
