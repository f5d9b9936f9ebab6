"""A toolkit that runs shell commands in a sandbox, on copies of the files of a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import escape
from stat import S_ISDIR
from types import MappingProxyType
from typing import Annotated, ParamSpec, TypeVar

from attrs import evolve, field, frozen

from agentloop._shielding import run_shielded
from agentloop.contracts.can_sandbox import (
    DEFAULT_LIMITS,
    CanSandbox,
    SandboxCommand,
    SandboxFile,
    SandboxLimits,
    SandboxResult,
)
from agentloop.errors import ToolFailed
from agentloop.toolkits.ensemble import Ensemble, ensemble_factory
from agentloop.toolkits.files import ConfinedFolder, MayWrite, Protected, protected_folder, read_file_in
from agentloop.toolkits.protected_paths import ADDED
from agentloop.toolkits.sandboxes.bubblewrap import BubblewrapSandbox
from agentloop.tools.constraints import Range
from agentloop.tools.decorator import tool
from agentloop.values.parts import Audio, Document, Image, Media, Text
from agentloop.values.tool_calls import ContentPart, ToolResult

P = ParamSpec("P")
T = TypeVar("T")

NO_FILES: Mapping[str, SandboxFile] = MappingProxyType({})
"""No files."""

_MAX_LISTED = 200
_WITH_NETWORK = """Run a shell command in the work folder.

It has a network and limited time, memory and output. Its files stay for the next command; processes do not. Images, audio
recordings and PDF documents that it writes are shown."""
_GRACE_SECONDS = 60.0  # for the files to come and go
_OWNER_MAY_EXECUTE = 0o100


def _as_names(paths: Iterable[str]) -> frozenset[str]:
    return frozenset(paths)


# --- the work folder ------------------------------------------------------------------------------------------------


@frozen
class FolderCopy:
    """The files of a folder at one time.

    Attributes:
        files: the regular files, by their paths.
        folders: all folders.
    """

    files: Mapping[str, SandboxFile]
    folders: frozenset[str] = field(converter=_as_names)


@frozen
class FolderChanges:
    """What a command has changed in its copy of a folder.

    Attributes:
        written: the new and changed files, by their paths.
        created: the paths of those that are new.
        deleted: the paths of files that are gone.
        folders_created: new folders without files.
        folders_deleted: folders that are gone.
        not_executable: the paths of files that the command made executable, and that are written without that.
    """

    written: Mapping[str, SandboxFile]
    created: frozenset[str]
    deleted: tuple[str, ...]
    folders_created: tuple[str, ...]
    folders_deleted: tuple[str, ...]
    not_executable: tuple[str, ...] = ()

    def without(self, paths: Collection[str]) -> FolderChanges:
        """Return the changes without those of some paths."""
        return evolve(
            self,
            written={path: file for path, file in self.written.items() if path not in paths},
            created=self.created - frozenset(paths),
            deleted=tuple([path for path in self.deleted if path not in paths]),
            not_executable=tuple([path for path in self.not_executable if path not in paths]),
        )

    @classmethod
    def between(cls, copy: FolderCopy, result: SandboxResult, *, executable: bool = True) -> FolderChanges:
        """Compare a copy with the files that a command has left.

        Args:
            copy: the files before the command.
            result: what the command has left.
            executable: whether files may become executable. One that was executable stays so in any case.
        """
        files, not_executable = dict(result.files), list[str]()
        for path, file in result.files.items():
            if file.executable and not (executable or (path in copy.files and copy.files[path].executable)):
                files[path] = evolve(file, executable=False)
                not_executable.append(path)
        written = {
            path: file for path, file in files.items() if path not in copy.files or not _is_same(copy.files[path], file)
        }
        folders = {parent for path in [*result.files, *result.folders] for parent in _parents(path)} | {*result.folders}
        # A file that could not be returned is not one that was deleted.
        is_known = result.has_all_files
        return cls(
            written,
            frozenset(written.keys() - copy.files.keys()),
            tuple([path for path in copy.files if path not in result.files]) if is_known else (),
            tuple([path for path in result.folders if path not in copy.folders]),
            tuple(sorted(copy.folders - folders, reverse=True)) if is_known else (),
            tuple(not_executable),
        )


@frozen
class Unwritten:
    """The paths of a folder that are as they were before a command, although it has changed its copy of them.

    Attributes:
        failures: the reasons why paths could not be written, by the paths.
        protected: the reasons why paths are protected, by the paths.
    """

    failures: Mapping[str, str] = field(factory=dict)
    protected: Mapping[str, str] = field(factory=dict)

    @property
    def paths(self) -> Collection[str]:
        """All of the paths."""
        return {*self.failures, *self.protected}

    def describe(self) -> list[str]:
        """Return a line for each path."""
        protected = [f"{path}: protected, since {reason}" for path, reason in self.protected.items()]
        return [*protected, *[f"{path}: {reason}" for path, reason in self.failures.items()]]


Contents = TypeVar("Contents", FolderCopy, SandboxResult)


def without_folders(contents: Contents, names: Collection[str]) -> Contents:
    """Return the files and folders of a copy or a result without what is in some folders."""
    return evolve(
        contents,
        files={path: file for path, file in contents.files.items() if path.partition("/")[0] not in names},
        folders=[path for path in contents.folders if path.partition("/")[0] not in names],
    )


def copy_folder(folder: ConfinedFolder, limits: SandboxLimits) -> FolderCopy:
    """Read all files of a folder.

    Raises:
        ToolFailed: when there are more files or bytes than the limits allow.
    """
    files: dict[str, SandboxFile] = {}
    folders: set[str] = set()
    total = 0
    for path, descriptor, status in folder.walk():
        if S_ISDIR(status.st_mode):
            folders.add(path)
        else:
            data = read_file_in(descriptor, path.rpartition("/")[2], path, limits.max_disk - total)
            total += len(data)
            files[path] = SandboxFile(data, bool(status.st_mode & _OWNER_MAY_EXECUTE), int(status.st_mtime))
        if len(files) + len(folders) > limits.max_files:
            raise ToolFailed(f"the folder has more than {limits.max_files} files, the limit of the shell (max_files)")
    return FolderCopy(files, frozenset(folders))


def apply_changes(folder: ConfinedFolder, copy: FolderCopy, changes: FolderChanges) -> Unwritten:
    """Write changes to a folder; links in it are not followed, and files that are written are replaced atomically.

    Args:
        folder: the folder.
        copy: its files before the command.
        changes: what the command has changed.

    Returns:
        The paths that could not be written. All others are: the command has run, and one name that the folder cannot have must
        not cost the rest of its work.
    """
    protected = folder.find_protections(filter(folder.is_path, (*changes.deleted, *changes.written)))
    moved = _moved_to(protected, copy, changes)
    failures = {path: f"it was moved to {target}, which is not written" for path, target in moved.items()}
    left = changes.without({*protected, *moved})
    folder = evolve(folder, protected=None)  # what is protected was found
    # Deleted first: a folder may have taken the place of a file, or the other way round.
    for path in left.deleted:
        try:
            folder.delete(path)
        except ToolFailed as error:
            if not isinstance(error.__context__, FileNotFoundError):  # deleted by another program meanwhile
                failures[path] = str(error)
    for path in left.folders_deleted:
        with suppress(ToolFailed):  # not empty: it has files that were not copied, such as links
            folder.delete(path, is_folder=True)
    for path in left.folders_created:
        try:
            with folder.open_folder(path, max_new=float("inf")):
                pass
        except ToolFailed as error:
            failures[path] = str(error)
    for path, file in left.written.items():
        try:
            folder.write(path, file.data, float("inf"), executable=file.executable, modified=file.modified)
        except ToolFailed as error:
            failures[path] = str(error)
    return Unwritten(failures, protected)


def _moved_to(protected: Collection[str], copy: FolderCopy, changes: FolderChanges) -> dict[str, str]:
    """Return the deleted files whose content a command has put at a protected path: without them it would be lost."""
    targets = {file.data: path for path, file in changes.written.items() if path in protected and file.data}
    return {
        path: targets[copy.files[path].data]
        for path in changes.deleted
        if copy.files[path].data in targets and path not in protected
    }


def _is_same(before: SandboxFile, after: SandboxFile) -> bool:
    return before.data == after.data and before.executable == after.executable


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


# --- files as parts -------------------------------------------------------------------------------------------------

_MEDIA_TYPES: Sequence[tuple[type[Media], str, bytes, bytes]] = (
    (Image, "image/png", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", b"IEND\xaeB`\x82"),
    (Image, "image/jpeg", b"\xff\xd8\xff", b"\xff\xd9"),
    (Image, "image/gif", b"GIF87a", b";"),
    (Image, "image/gif", b"GIF89a", b";"),
    (Document, "application/pdf", b"%PDF-", b""),
    (Audio, "audio/mpeg", b"ID3", b""),
)
_RIFF_TYPES: Mapping[bytes, tuple[type[Media], str]] = {b"WEBP": (Image, "image/webp"), b"WAVE": (Audio, "audio/wav")}


def as_part(path: str, data: bytes) -> ContentPart | None:
    """Return a file as a part that a model can see, by its content; None for others.

    A file that only has the name of an image would make a provider refuse the conversation for good.
    """
    for kind, media_type, start, end in _MEDIA_TYPES:
        if data.startswith(start) and data.rstrip(b"\r\n\0" if media_type == "image/jpeg" else b"").endswith(end):
            return kind(media_type=media_type, data=data, name=path.rpartition("/")[2])  # type: ignore[return-value]  # one of the kinds above
    if data[:4] == b"RIFF" and data[8:12] in _RIFF_TYPES and int.from_bytes(data[4:8], "little") + 8 == len(data):
        kind, media_type = _RIFF_TYPES[data[8:12]]
        return kind(media_type=media_type, data=data, name=path.rpartition("/")[2])  # type: ignore[return-value]  # the same
    return None


# --- the toolkit ----------------------------------------------------------------------------------------------------


@frozen
class Shell:
    """The implementation of the tool.

    Attributes:
        folder: the folder whose files the commands work on; None for an empty one that does not stay.
        sandbox: runs the commands.
        limits: the resources that a command may use.
        executable: whether files that a command makes executable are so in the folder.
        max_parts: maximum number of images, audio recordings and PDF documents that a result shows.
        max_part_bytes: maximum size of all of them together.
    """

    folder: ConfinedFolder | None
    sandbox: CanSandbox
    limits: SandboxLimits = DEFAULT_LIMITS
    executable: bool = field(default=False, kw_only=True)
    max_parts: int = field(default=8, kw_only=True)
    max_part_bytes: int = field(default=4 * 1024 * 1024, kw_only=True)

    async def run_command(
        self, command: Annotated[str, "a line or a script for sh", Range(min_length=1, max_length=30_000)]
    ) -> ToolResult:
        """Run a shell command in the work folder.

        It has no network and limited time, memory and output. Its files stay for the next command; processes do not. Images,
        audio recordings and PDF documents that it writes are shown.
        """
        return await self.execute(["/bin/sh", "-c", command])

    async def execute(
        self, arguments: Sequence[str], *, stdin: bytes = b"", borrowed: Mapping[str, SandboxFile] = NO_FILES
    ) -> ToolResult:
        """Run a program in the work folder.

        Args:
            arguments: the program and its arguments.
            stdin: its standard input.
            borrowed: further files in the work folder, in hidden folders of their own; what becomes of them is dropped. A
                folder of the same name is neither seen nor changed.

        Raises:
            ToolFailed: when the folder exceeds the limits.
            SandboxUnavailable: when the sandbox or a limit cannot be set up.
        """
        copy = FolderCopy({}, frozenset())
        if self.folder is not None:
            copy = await asyncio.to_thread(copy_folder, self.folder, self.limits)
        hidden = {path.partition("/")[0] for path in borrowed}
        copy = without_folders(copy, hidden)
        folders = tuple(sorted(copy.folders))
        files = {**copy.files, **borrowed}
        result = await self.sandbox.run(
            SandboxCommand(arguments, files, folders=folders, stdin=stdin, limits=self.limits)
        )
        changes = FolderChanges.between(copy, without_folders(result, hidden), executable=self.executable)
        unwritten = Unwritten()
        if self.folder is not None:
            unwritten = await _to_its_end(apply_changes, self.folder, copy, changes)
        return self._present(result, changes.without(unwritten.paths), unwritten)

    def _present(self, result: SandboxResult, changes: FolderChanges, unwritten: Unwritten) -> ToolResult:
        value = {
            "exit_code": result.exit_code,
            "stdout": _as_text(result.stdout),
            "stderr": _as_text(result.stderr),
            "exceeded": result.exceeded,
            "created": _listed(sorted(changes.created)),
            "changed": _listed(sorted(changes.written.keys() - changes.created)),
            "deleted": _listed(sorted(changes.deleted)),
            "omitted": _listed(result.omitted),
            "not_written": _listed(unwritten.describe()),
            "not_executable": _listed(changes.not_executable),
            "allowed_by": _allowed_by(unwritten, changes),
            "has_all_files": result.has_all_files,
        }
        parts, space = list[ContentPart](), self.max_part_bytes
        for path, file in sorted(changes.written.items()):
            part = as_part(path, file.data) if len(file.data) <= space and len(parts) < self.max_parts else None
            if part is not None:
                parts.append(part)
                space -= len(file.data)
        return ToolResult(value, [Text(self._describe(value)), *parts])

    def _describe(self, value: Mapping[str, object]) -> str:
        """Return the text for the model: what it would see in a terminal, then what a terminal would not show."""
        lines = [f"exit code {value['exit_code']}"]
        reasons = {
            "time": f"ended after {self.limits.max_seconds:g} seconds",
            "memory": f"used more than {self.limits.max_memory} bytes of memory",
            "output": "its output was closed: too much was written",
        }
        lines += [reasons[str(value["exceeded"])]] if value["exceeded"] else []
        if not value["has_all_files"]:
            lines.append("not all of its files could be kept")
        labels = {
            "not_written": "not written",
            "not_executable": "written without being executable",
            "allowed_by": "only the program that runs the agent can allow that, with",
            "created": "new",
            "changed": "changed",
            "deleted": "deleted",
            "omitted": "not kept, since no regular file",
        }
        lines += [f"{label}: {value[key]}" for key, label in labels.items() if value[key]]
        streams = [f"{name}:\n{value[name]}" for name in ("stdout", "stderr") if value[name]]
        return "\n".join([*lines, *streams])


def _allowed_by(unwritten: Unwritten, changes: FolderChanges) -> str:
    """Return the parameters of the ensemble that would allow what was left out; empty for nothing."""
    paths = _listed([escape(path) for path, reason in unwritten.protected.items() if reason != ADDED])
    given = {f"may_write={paths}": bool(paths), "executable=True": bool(changes.not_executable)}
    return ", ".join([text for text, is_needed in given.items() if is_needed])


async def _to_its_end(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function in a thread, and wait for its end also when this is cancelled: nothing is written later on."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await run_shielded(_wait_for(task), _GRACE_SECONDS)
        raise


async def _wait_for(task: asyncio.Future[T]) -> None:
    await asyncio.wait((task,))


def _as_text(data: bytes) -> str:
    # A null character is valid JSON, and refused by databases and some providers.
    return data.decode(errors="replace").replace("\0", "\ufffd")


def _listed(paths: Sequence[str]) -> list[str]:
    shown = [path[:_MAX_LISTED] for path in paths[:_MAX_LISTED]]
    return [*shown, f"… and {len(paths) - _MAX_LISTED} more"] if len(paths) > _MAX_LISTED else shown


def shell_in(
    sandbox: CanSandbox,
    folder: str,
    *,
    limits: SandboxLimits = DEFAULT_LIMITS,
    protected: Iterable[str] | None = None,
    may_write: Iterable[str] | None = None,
    executable: bool = False,
    max_parts: int = 8,
    max_part_bytes: int = 4 * 1024 * 1024,
    network: bool = False,
) -> Ensemble:
    """Create an ensemble with the tool `run_command`, whose commands run in a sandbox of the program.

    Args:
        sandbox: runs the commands.
        folder: the folder whose files the commands work on; they get copies, and what they change is written back.
        limits: the resources that a command may use.
        protected: patterns of further paths that are not written back, in addition to those that other programs act on by
            themselves, such as `.git/hooks` and `.vscode`.
        may_write: patterns of protected paths that may be written, such as `["conftest.py"]`.
        executable: whether files that a command makes executable are so in the folder; files that were executable stay so.
        max_parts: maximum number of images, audio recordings and PDF documents that a result shows.
        max_part_bytes: maximum size of all of them together.
        network: the sandbox has a network, though `CanSandbox` asks for none; then data can leave by each command (`egress`).

    Raises:
        ConfigurationError: when there is no such folder, or something is not a pattern.
    """
    confined = protected_folder(folder, protected, may_write)
    toolkit = Shell(
        confined, sandbox, limits, executable=executable, max_parts=max_parts, max_part_bytes=max_part_bytes
    )
    # The limits of the sandbox end a command in time; this one is for a sandbox that does not answer.
    timeout = limits.max_seconds + _GRACE_SECONDS
    run_command = tool(
        effect="effect",
        egress=network,
        sequential=True,
        timeout=timeout,
        repeatable=True,
        runs_code=True,
        description=_WITH_NETWORK if network else None,
    )(toolkit.run_command)
    return Ensemble(
        "shell", [run_command], start=sandbox.check, description=f"Shell commands on copies of {confined.root}."
    )


@ensemble_factory(in_folder=["folder", "readable"], trusted=["may_write", "executable"], takes_files="protected")
def shell(
    folder: Annotated[str, "the folder whose files the commands work on"],
    *,
    readable: Annotated[
        list[str] | None, "folders of the host that commands can read, such as that of an environment"
    ] = None,
    max_seconds: Annotated[float, Range(ge=0.1)] = DEFAULT_LIMITS.max_seconds,
    max_memory: Annotated[int, "bytes", Range(ge=1)] = DEFAULT_LIMITS.max_memory,
    max_disk: Annotated[int, "bytes", Range(ge=1)] = DEFAULT_LIMITS.max_disk,
    max_processes: Annotated[int, Range(ge=1)] = DEFAULT_LIMITS.max_processes,
    protected: Protected = None,
    may_write: MayWrite = None,
    executable: bool = False,
) -> Ensemble:
    """Create an ensemble with the tool `run_command`, whose commands run in a `BubblewrapSandbox`.

    Args:
        folder: the folder whose files the commands work on; they get copies, and what they change is written back.
        readable: folders of the host that commands can read, in addition to those of the system.
        max_seconds: seconds of a command.
        max_memory: bytes of memory of all processes of a command.
        max_disk: bytes of the files of the folder and of those that a command writes.
        max_processes: the number of processes of a command at one time.
        protected: patterns of further paths that are not written back, in addition to those that other programs act on by
            themselves, such as `.git/hooks` and `.vscode`.
        may_write: patterns of protected paths that may be written, such as `["conftest.py"]`; only code and persons set it.
        executable: whether files that a command makes executable are so in the folder, which only code and persons allow; files that were executable stay so.

    Raises:
        ConfigurationError: when there is no such folder, or something is not a pattern.
        SandboxUnavailable: when bubblewrap is not installed.
    """
    limits = SandboxLimits(
        max_seconds=max_seconds, max_memory=max_memory, max_disk=max_disk, max_processes=max_processes
    )
    sandbox = BubblewrapSandbox(readable=readable or ())
    return shell_in(sandbox, folder, limits=limits, protected=protected, may_write=may_write, executable=executable)
