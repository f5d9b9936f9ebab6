"""Skills in the published format: folders with a file SKILL.md, and the lock file that pins their content.

The format: https://agentskills.io/specification
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from os import PathLike
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeAlias

from attrs import define, field, frozen

from agentloop.contracts.can_sandbox import SandboxFile
from agentloop.errors import ConfigurationError, InvalidDescriptor, InvalidFile, ToolFailed
from agentloop.toolkits.files import ConfinedFolder, read_file_in
from agentloop.toolkits.front_matter import FrontMatter, read_front_matter
from agentloop.values.json import as_frozen_dict

SKILL_FILE = "SKILL.md"
MAX_SKILLS = 500
MAX_SKILL_FILES = 1_000
MAX_SKILL_BYTES = 16 * 1024 * 1024
MAX_BODY_CHARACTERS = 256 * 1024
"""The limits of what is read: skills in a folder, files and bytes of a skill, characters of SKILL.md."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)
_MAX_NAME, _MAX_DESCRIPTION, _MAX_COMPATIBILITY = 64, 1_024, 500
_KEYS = ("name", "description", "license", "compatibility", "metadata", "allowed-tools")
_OWNER_MAY_EXECUTE = 0o100
_LOCK_VERSION = 1
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")

Mistake: TypeAlias = tuple[str, str, int, str]
"""A file, a key, a 1-based line (0 for none) and what is wrong there, as in `InvalidDescriptor`."""

# --- skills ---------------------------------------------------------------------------------------------------------


@frozen
class Skill:
    """A skill, with all of its files as they were when it was read: what was approved is what is used.

    Attributes:
        name: its name, which is that of its folder.
        description: what it is for and when to use it, on one line.
        body: its instructions, in Markdown.
        files: all of its files, by their paths in its folder.
        folder: its folder.
        license: its license, or the name of the file with it; may be empty.
        compatibility: what it needs; may be empty.
        allowed_tools: the tools that its author wants to be allowed; for information only.
        metadata: further entries of its author.
        warnings: what differs from the format without harm.
    """

    name: str
    description: str
    body: str = field(repr=False)
    files: Mapping[str, SandboxFile] = field(converter=as_frozen_dict, repr=False)
    folder: Path
    license: str = ""
    compatibility: str = ""
    allowed_tools: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(factory=dict, converter=as_frozen_dict)
    warnings: tuple[Mistake, ...] = field(default=(), repr=False)

    @cached_property
    def digest(self) -> str:
        """A hash of the names, contents and rights of all of its files, such as `sha256:2c26…`."""
        entries = [
            [path, file.executable, hashlib.sha256(file.data).hexdigest()] for path, file in sorted(self.files.items())
        ]
        return f"sha256:{hashlib.sha256(json.dumps(entries).encode()).hexdigest()}"

    @property
    def scripts(self) -> tuple[str, ...]:
        """The paths of its scripts."""
        return tuple([path for path in sorted(self.files) if path.startswith("scripts/")])


def read_skills(folders: str | PathLike[str] | Iterable[str | PathLike[str]]) -> tuple[Skill, ...]:
    """Read all skills of folders: each is the folder of a skill, or has the folders of skills.

    Returns:
        The skills, by name.

    Raises:
        ConfigurationError: when there is no such folder, it has no skills, or PyYAML is not installed.
        InvalidDescriptor: when skills have mistakes; with all of them.
    """
    skills, mistakes = find_skills(folders)
    if mistakes:
        raise InvalidDescriptor(mistakes)
    return skills


def find_skills(
    folders: str | PathLike[str] | Iterable[str | PathLike[str]],
) -> tuple[tuple[Skill, ...], list[Mistake]]:
    """Read the skills of folders that can be used, and the mistakes of the others.

    Raises:
        ConfigurationError: when there is no such folder, it has no skills, or PyYAML is not installed.
    """
    skills: dict[str, Skill] = {}
    mistakes: list[Mistake] = []
    for root in [folders] if isinstance(folders, str | PathLike) else list(folders):
        for folder in _skill_folders(Path(root), mistakes):
            try:
                skill = read_skill(folder)
            except InvalidDescriptor as error:
                mistakes.extend(error.mistakes)
                continue
            if skill.name in skills:
                where = skills[skill.name].folder
                mistakes.append((str(folder), "name", 0, f"there is a skill {skill.name!r} in {where} already"))
            else:
                skills[skill.name] = skill
    return tuple([skills[name] for name in sorted(skills)]), mistakes


def _skill_folders(root: Path, mistakes: list[Mistake]) -> list[Path]:
    if not root.is_dir():
        raise ConfigurationError(f"there is no folder {root} with skills")
    if (root / SKILL_FILE).exists():
        return [root]
    found = []
    for path in sorted(root.iterdir()):
        if path.is_symlink() and (path / SKILL_FILE).exists():
            # Its target is outside of the folder that the program has named.
            mistakes.append((str(path), "", 0, "is a link, which is not followed; name the folder itself"))
        elif (path / SKILL_FILE).exists():
            found.append(path)
    if len(found) > MAX_SKILLS:
        raise ConfigurationError(f"{root} has {len(found)} skills; the limit is {MAX_SKILLS}")
    if not found and not mistakes:
        raise ConfigurationError(f"{root} has no skills: a skill is a folder with a file {SKILL_FILE}")
    return found


def read_skill(folder: Path) -> Skill:
    """Read a skill.

    Raises:
        InvalidDescriptor: with every mistake in SKILL.md and its line, or because the folder exceeds a limit.
        ConfigurationError: when PyYAML is not installed.
    """
    place = str(folder / SKILL_FILE)
    try:
        files = _read_files(ConfinedFolder(folder))
        text = files[SKILL_FILE].data.decode() if SKILL_FILE in files else None
    except (ToolFailed, UnicodeDecodeError) as error:
        raise InvalidDescriptor([(place, "", 0, str(error))]) from error
    if text is None:
        raise InvalidDescriptor([(place, "", 0, "is not a regular file; links are not followed")])
    if len(text) > MAX_BODY_CHARACTERS:
        raise InvalidDescriptor([(place, "", 0, f"has {len(text)} characters; the limit is {MAX_BODY_CHARACTERS}")])
    try:
        matter = read_front_matter(text.replace("\r\n", "\n"))
    except InvalidFile as error:
        raise InvalidDescriptor([(place, "", error.line, str(error))]) from error
    check = _FrontMatterCheck(place, matter, folder.resolve().name)
    skill = check.skill(files, folder)
    if check.mistakes:
        raise InvalidDescriptor(check.mistakes)
    return skill


def _read_files(folder: ConfinedFolder) -> dict[str, SandboxFile]:
    files: dict[str, SandboxFile] = {}
    space = MAX_SKILL_BYTES
    for path, descriptor, status in folder.walk():
        if S_ISREG(status.st_mode):
            data = read_file_in(descriptor, path.rpartition("/")[2], path, space)
            space -= len(data)
            # No time: the hash of a skill is the same on every machine.
            files[path] = SandboxFile(data, bool(status.st_mode & _OWNER_MAY_EXECUTE))
        if len(files) > MAX_SKILL_FILES:
            raise ToolFailed(f"the skill has more than {MAX_SKILL_FILES} files")
    return files


@define
class _FrontMatterCheck:
    """Reads the front matter of a skill, and collects its mistakes."""

    place: str
    matter: FrontMatter
    folder_name: str
    mistakes: list[Mistake] = field(factory=list)
    warnings: list[Mistake] = field(factory=list)

    def skill(self, files: Mapping[str, SandboxFile], folder: Path) -> Skill:
        """Return the skill, which is usable when there are no mistakes."""
        name, description = self._text("name"), self._text("description")
        if name:
            self._check_name(name)
        self._check_length("description", description, _MAX_DESCRIPTION)
        compatibility = self._text("compatibility", is_required=False)
        self._check_length("compatibility", compatibility, _MAX_COMPATIBILITY)
        for key in self.matter.values:
            if key not in _KEYS:
                # Other programs have keys of their own; what they mean is not known here.
                self.warnings.append(self._mistake(key, "is not a key of the format, and has no effect"))
        return Skill(
            name,
            # One line each: a description cannot look like a list of other skills.
            " ".join(description.split()),
            self.matter.body.strip("\n"),
            files,
            folder,
            self._text("license", is_required=False),
            compatibility,
            self._allowed_tools(),
            self._metadata(),
            tuple(self.warnings),
        )

    def _text(self, key: str, *, is_required: bool = True) -> str:
        value = self.matter.values.get(key)
        if isinstance(value, str) and value.strip():
            return value
        if key in self.matter.values:
            self.mistakes.append(self._mistake(key, "has to be a text that is not empty; put it in quotes"))
        elif is_required:
            self.mistakes.append((self.place, key, 1, "is missing"))
        return ""

    def _check_name(self, name: str) -> None:
        self._check_length("name", name, _MAX_NAME)
        if not _NAME.fullmatch(name):
            self.mistakes.append(
                self._mistake(
                    "name", f"{name!r:.80} has to be lower-case letters and digits with single hyphens between them"
                )
            )
        elif name != self.folder_name:
            self.mistakes.append(
                self._mistake("name", f"{name!r:.80} has to be the name of its folder, {self.folder_name!r:.80}")
            )

    def _check_length(self, key: str, text: str, limit: int) -> None:
        if len(text) > limit:
            self.mistakes.append(self._mistake(key, f"has {len(text)} characters; the limit is {limit}"))

    def _allowed_tools(self) -> tuple[str, ...]:
        value = self.matter.values.get("allowed-tools")
        tools = value.split() if isinstance(value, str) else value
        if tools is None:
            return ()
        if not isinstance(tools, list) or not all(isinstance(tool, str) for tool in tools):
            self.mistakes.append(self._mistake("allowed-tools", "has to be a text or a list of texts"))
            return ()
        return tuple(tools)

    def _metadata(self) -> dict[str, str]:
        value: Any = self.matter.values.get("metadata", {})
        if not isinstance(value, dict):
            self.mistakes.append(self._mistake("metadata", "has to be a table of texts"))
            return {}
        # `version: 1.0` is meant as a text, and common.
        return {key: entry if isinstance(entry, str) else json.dumps(entry) for key, entry in value.items()}

    def _mistake(self, key: str, message: str) -> Mistake:
        return self.place, key, self.matter.lines.get((key,), 0), message


# --- the lock file --------------------------------------------------------------------------------------------------


@frozen
class SkillLock:
    """A file that pins the content of skills by their hashes; a skill that is not in it has not been approved.

    Attributes:
        path: the file.
    """

    path: Path = field(converter=Path)

    def read(self) -> dict[str, str]:
        """Return the hashes by the names of the skills; empty when there is no such file.

        Raises:
            ConfigurationError: when the file is no lock file.
        """
        with suppress(FileNotFoundError):
            try:
                document = json.loads(self.path.read_bytes())
                version, entries = document["version"], document["skills"]
                if version == _LOCK_VERSION and all(_DIGEST.fullmatch(digest) for digest in entries.values()):
                    return dict(entries)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise ConfigurationError(
                    f"{self.path} is not a lock file of skills: {error}; delete it, or lock anew"
                ) from error
            raise ConfigurationError(
                f"{self.path} is not a lock file of version {_LOCK_VERSION}; delete it, or lock anew"
            )
        return {}

    def write(self, skills: Mapping[str, str]) -> None:
        """Replace the file atomically.

        Args:
            skills: the hashes by the names of the skills.

        Raises:
            ConfigurationError: when its folder does not exist.
            ToolFailed: when it cannot be written.
        """
        document = {"version": _LOCK_VERSION, "skills": dict(sorted(skills.items()))}
        data = json.dumps(document, indent=2).encode() + b"\n"
        ConfinedFolder(self.path.absolute().parent).write(self.path.name, data)

    def approve(self, skills: Sequence[Skill]) -> None:
        """Pin skills as they are now, besides those that are pinned.

        Raises:
            ConfigurationError: when the file is no lock file, or its folder does not exist.
            ToolFailed: when it cannot be written.
        """
        self.write({**self.read(), **{skill.name: skill.digest for skill in skills}})
