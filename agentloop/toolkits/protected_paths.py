"""Paths in a folder of a person that other programs run or obey by themselves; tools leave them as they are.

What an agent writes into a project is run by its owner on purpose, who tests, builds or starts it. The paths here are others: a
person who only enters the folder, opens it in an editor, or uses git, makes a program act on them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import translate
from functools import cached_property, lru_cache
from glob import escape
from pathlib import Path
from posixpath import normpath
from typing import Any, Final, TypeAlias
from unicodedata import normalize

from attrs import evolve, field, frozen

from agentloop.errors import ConfigurationError

# --- the default set ------------------------------------------------------------------------------------------------

PROTECTED: Final[Mapping[str, str]] = {
    "git obeys it with every command": ".gitattributes .gitmodules .gitconfig .lfsconfig",
    "programs run it at a commit": ".husky .huskyrc* .githooks .git-hooks .pre-commit-config.yaml prek.toml .lintstagedrc* "
    "lint-staged.config.* .commitlintrc* commitlint.config.* .overcommit.yml lefthook* .lefthook*",
    "another version control obeys it with every command": ".hg .hgrc .svn .subversion .bzr .jj .sl .repo .gclient",
    "a shell runs or obeys it when it starts, or when somebody enters the folder": ".bash* .profile* .zsh* .zprofile .zlogin .zlogout "
    ".kshrc .mkshrc .shrc .cshrc .tcshrc .login .logout .inputrc .xonshrc .envrc .direnv .devenv .flox .env .autoenv* .mise* "
    "mise.toml mise.*.toml .tool-versions .asdfrc .prototools .python-version .pdm-python rust-toolchain rust-toolchain.toml",
    "it acts when a session or a terminal of the person starts": ".config .local LaunchAgents LaunchDaemons .xprofile .xinitrc "
    ".xsession .xsessionrc .pam_environment .tmux.conf .screenrc",
    "it has keys, or decides where keys are sent": ".ssh .gnupg .aws .azure .kube **/.docker/config.json .netrc _netrc .pgpass .my.cnf "
    ".git-credentials .pypirc .curlrc .wgetrc",
    "an editor acts on it when it opens the folder": ".vscode *.code-workspace .idea .vs .fleet .zed .theia .helix .nova "
    ".devcontainer .devcontainer.json .gitpod.yml .gitpod.Dockerfile .replit .idx .stackblitzrc .codesandbox *.sublime-project "
    ".vimrc .gvimrc .exrc .nvimrc .nvim.lua .lvimrc .vim .emacs .emacs.d .dir-locals.el .dir-locals-2.el",
    "agents obey it": "AGENTS.md AGENTS.override.md AGENT.md .agents .agent CLAUDE.md CLAUDE.local.md .claude .claude.json "
    ".claude-plugin .mcp.json "
    "mcp.json .cursor .cursorrules .codex GEMINI.md .gemini QWEN.md .qwen WARP.md .warp .rules .windsurf .windsurfrules .clinerules "
    ".cline .roo .roorules* .roomodes .kilocode .kilocodemodes .aider* .continue .continuerc.json .amazonq .kiro .augment "
    ".augment-guidelines .opencode opencode.json opencode.jsonc .crush.json crush.json .goose .goosehints .junie .trae .factory .aiassistant .airules "
    ".openhands .tabnine .zencoder "
    "**/.github/copilot-instructions.md **/.github/instructions **/.github/prompts **/.github/chatmodes **/.github/agents "
    "**/.github/hooks SKILL.md",
    "agentloop itself keeps or obeys it": "skills.lock tokens.json agentloop.db agentloop.db-*",
    "a server runs it after a push": "**/.github/workflows **/.github/actions **/.forgejo/workflows **/.gitea/workflows .gitlab-ci.yml "
    ".circleci .travis.yml azure-pipelines.yml .azure-pipelines bitbucket-pipelines.yml Jenkinsfile .buildkite .drone.yml "
    ".woodpecker* .cirrus.yml .appveyor.yml appveyor.yml",
    "Python or pytest runs it before the code that somebody starts, or in its place": "conftest.py sitecustomize* usercustomize* *.pth "
    "*._pth pyvenv.cfg .venv __pycache__ *.pyc .pdbrc* .pythonrc* .pythonstartup* .ipython .jupyter",
    "an interpreter or a debugger runs it when it starts": ".Rprofile .Renviron .irbrc .pryrc .gdbinit .lldbinit* .ghci .ocamlinit "
    ".octaverc startup.m .psqlrc .sqliterc .perldb .iex.exs .erlang",
    "a package manager obeys it with every command": ".npmrc .yarnrc .yarnrc.yml **/.yarn/releases **/.yarn/plugins **/.yarn/sdks "
    ".pnp.cjs .pnp.loader.mjs .pnpmfile.* bunfig.toml .bunfig.toml pip.conf pip.ini .pip uv.toml nuget.config .condarc .cargo .gemrc **/.bundle/config "
    ".mvn **/.gradle/gradle.properties **/.gradle/init.d **/.gradle/init.gradle* .bazelrc .bazelversion "
    "**/tools/bazel .buckconfig .sbtopts .jvmopts "
    ".terraformrc",
}
"""The patterns of protected paths, by the reason for them."""

_GIT = "git runs or obeys it"
_GIT_HEAD = "git takes a folder with a file HEAD for a repository, and obeys a configuration in it"
_GIT_NAMED = "the configuration of git names it"
_ENVIRONMENT = "it belongs to an environment of Python, whose programs the person starts by their names"
_JOURNAL = "it belongs to a journal of agentloop"
ADDED: Final = "the program that runs the agent protects it"
"""The reason for paths that nothing excepts."""

# What git keeps in its folder as data. Everything else there is configuration, or names a command or another folder.
_GIT_DATA = re.compile(
    r"head|[a-z]+_head|index|sharedindex\.[0-9a-f]+|packed-refs|shallow|description|auto_merge|merge_mode|merge_rr"
    r"|(?:commit_edit|tag_edit|merge_|squash_)msg|logs/head|(?:logs/)?refs/(?!.*(?:^|/)head$).*"
    r"|(?:lfs/)?objects/(?:(?:[0-9a-f]{2}/){1,2}[0-9a-f]{38,64}|pack/[^/]+|info/(?:packs|commit-graph|commit-graphs/[^/]+))"
)
# The names in a folder of git by which it does something else than keep data; work trees may be beside them.
_GIT_CONTROL = frozenset(
    {
        "config",
        "config.worktree",
        "hooks",
        "info",
        "modules",
        "worktrees",
        "commondir",
        "gitdir",
        "objects",
        "refs",
        "logs",
    }
    | {"branches", "remotes", "rebase-merge", "rebase-apply", "sequencer"}
)
_GIT_VALUE = re.compile(r"^[ \t]*(?:\[[^]\n]*\])?[ \t]*([a-z][a-z0-9-]*)[ \t]*=(.*)$", re.IGNORECASE | re.MULTILINE)
_GIT_WORDS = re.compile(r"[^\s\"'=;|&()<>$`!]+")
_ENVIRONMENT_PARTS = frozenset({"bin", "scripts", "condabin", "lib", "lib64", "include", "etc", "conda-meta"})
_JOURNAL_SUFFIX = re.compile(r"-(?:wal|shm|ends|claims|engine(?:-wal|-shm)?)")

# --- names ----------------------------------------------------------------------------------------------------------

# Characters that file systems leave out when they compare names (Default_Ignorable_Code_Point of Unicode).
_IGNORED = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff"
    "\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_SHORT = re.compile(r"([^~.]{1,6})~[0-9]+(?:\.([^~.]{1,3}))?")
_HASHED = re.compile(r"([^~.]{2})[0-9a-f]{4}~[0-9]+(?:\.([^~.]{1,3}))?")


def fold_name(name: str) -> str:
    """Return a name in the form in which the most forgiving file systems compare it.

    macOS ignores case, the composition of characters, and some invisible ones. Windows ignores case, trailing periods and spaces,
    and what follows a colon.
    """
    if not name.isascii():
        # Python has bytes of a name as halves of characters; together they may be a character.
        name = name.encode("utf-8", "surrogateescape" if _is_encodable(name) else "replace").decode("utf-8", "replace")
        name = normalize("NFKD", _IGNORED.sub("", normalize("NFKD", name)).casefold())
    return name.casefold().partition(":")[0].rstrip(". ")


def _is_encodable(name: str) -> bool:
    try:
        name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return False
    return True


def _short_keys(name: str) -> tuple[str, str]:
    """Return the beginning and the ending of the names of eight characters that Windows makes for a name, such as GIT~1."""
    stem, dot, ending = name.lstrip(".").rpartition(".")
    base = (stem if dot else ending).replace(".", "").replace(" ", "")
    return base[:6], ending[:3] if dot else ""


# --- patterns -------------------------------------------------------------------------------------------------------

Pattern: TypeAlias = tuple[re.Pattern[str] | str | None, ...]
"""The parts of a path, as names or patterns of them; None for any number of parts."""


@frozen
class PathPatterns:
    """Patterns of paths, each with a reason.

    A pattern without a slash matches a file or folder at any depth. One with a slash, such as `./Makefile`, is a path relative to
    the folder, where `**` stands for any number of folders. `*`, `?` and `[…]` match within a name. What is in a matching folder
    matches, too.

    Attributes:
        patterns: the patterns, with the reason of each.
    """

    patterns: Mapping[str, str]

    @cached_property
    def _names(self) -> Mapping[str, str]:
        """The patterns that are names."""
        return {fold_name(pattern): reason for pattern, reason in self.patterns.items() if _is_name(pattern)}

    @cached_property
    def _wild_names(self) -> tuple[re.Pattern[str], Sequence[tuple[re.Pattern[str], str]]]:
        """The patterns of one name with wildcards: all of them as one, and each with its reason."""
        wild = [pattern for pattern in self.patterns if "/" not in pattern and not _is_name(pattern)]
        each = [(re.compile(translate(fold_name(pattern))), self.patterns[pattern]) for pattern in wild]
        return re.compile("|".join([pattern.pattern for pattern, _ in each]) or "(?!)"), each

    @cached_property
    def _paths(self) -> Sequence[tuple[Pattern, str]]:
        """The patterns with several parts."""
        return [(_compile(pattern), reason) for pattern, reason in self.patterns.items() if "/" in pattern]

    @cached_property
    def _short_names(self) -> Mapping[tuple[str, str], str]:
        return {
            key: reason
            for name, reason in self._names.items()
            for base, ending in [_short_keys(name)]
            for key in ((base, ending), (f"{base[:2]}#", ending))
        }

    @cached_property
    def _short_stems(self) -> Sequence[tuple[str, str]]:
        """How the short names begin that Windows makes for names of a pattern such as `.bash*`."""
        stems = [(pattern[:-1], reason) for pattern, reason in self.patterns.items() if pattern.endswith("*")]
        return [(_short_keys(fold_name(stem))[0], reason) for stem, reason in stems if _is_name(stem)]

    def find(self, parts: Sequence[str]) -> str:
        """Return the reason of the first pattern that matches a path, whose parts are folded; empty when none does."""
        any_wild, each_wild = self._wild_names
        for part in parts:
            if reason := self._names.get(part) or self._find_short(part):
                return reason
            if any_wild.match(part) is not None:
                return next(reason for pattern, reason in each_wild if pattern.match(part))
        return next((reason for pattern, reason in self._paths if _matches(pattern, parts)), "")

    def _find_short(self, part: str) -> str:
        if "~" not in part:
            return ""
        short, hashed = _SHORT.fullmatch(part), _HASHED.fullmatch(part)
        keys = [
            *([(short[1], short[2] or "")] if short else ()),
            *([(f"{hashed[1]}#", hashed[2] or "")] if hashed else ()),
        ]
        found = [self._short_names[key] for key in keys if key in self._short_names]
        stems = [reason for stem, reason in self._short_stems if short is not None and part.startswith(stem)]
        return next(iter([*found, *stems]), "")


def _is_name(pattern: str) -> bool:
    return not any(character in pattern for character in "/*?[")


def _compile(pattern: str) -> Pattern:
    parts = [part for part in pattern.split("/") if part not in {"", "."}]
    return tuple([None if part == "**" else _compile_name(part) for part in parts])


def _compile_name(name: str) -> re.Pattern[str] | str:
    return fold_name(name) if _is_name(name) else re.compile(translate(fold_name(name)))


def _matches(pattern: Pattern, parts: Sequence[str]) -> bool:
    """Return whether a pattern matches a path, or a folder on its way."""
    if not pattern:
        return True
    first = pattern[0]
    if first is None:
        if len(pattern) > 1 and isinstance(pattern[1], str) and pattern[1] not in parts:
            return False
        return any(_matches(pattern[1:], parts[index:]) for index in range(len(parts)))
    if not parts:
        return False
    is_equal = parts[0] == first if isinstance(first, str) else first.match(parts[0]) is not None
    return is_equal and _matches(pattern[1:], parts[1:])


@lru_cache(maxsize=1)
def _default_patterns() -> PathPatterns:
    names = {pattern: reason for reason, patterns in PROTECTED.items() for pattern in patterns.split()}
    return PathPatterns(names)


# --- protected paths ------------------------------------------------------------------------------------------------


def _as_patterns(patterns: Iterable[str]) -> tuple[str, ...]:
    if isinstance(patterns, str):
        raise ConfigurationError(f"patterns of paths are a list: write [{patterns!r}]")
    result = tuple(patterns)
    for pattern in result:
        if not set(pattern.split("/")) - {"", ".", "**"} or "\\" in pattern or ".." in pattern.split("/"):
            raise ConfigurationError(
                f"{pattern!r:.200} does not name a path; write one such as 'conftest.py', '.git/hooks/*' or '**/.vscode'"
            )
    return result


def _check_relative(_: object, attribute: Any, patterns: tuple[str, ...]) -> None:
    for pattern in patterns:
        if pattern.startswith("/"):
            raise ConfigurationError(
                f"{attribute.name}: {pattern!r:.200} is absolute; patterns are relative to the folder"
            )


FOLDER_MARKS: Final = ("HEAD", "objects", "commondir", "pyvenv.cfg", "conda-meta")
"""The names in a folder by which it is known as a repository or an environment."""


def journal_mark(name: str) -> str:
    """Return the name of the file beside a journal, by the name of any of the journal's files."""
    return f"{_JOURNAL_SUFFIX.sub('', name)}-ends"


@frozen
class FolderMarks:
    """What a folder on the way to a file has, by which the file is known.

    Attributes:
        names: the names of `FOLDER_MARKS` that are in the folder.
        git_config: the text of `.git/config` in the folder; empty when there is none.
    """

    names: frozenset[str]
    git_config: str = ""

    @property
    def is_of_git(self) -> bool:
        """Whether git would take the folder for a repository."""
        return "HEAD" in self.names and not self.names.isdisjoint({"objects", "commondir"})


@frozen
class ProtectedPaths:
    """The paths in a folder that tools do not write, nor delete.

    They are those of `PROTECTED`; the folders of git, by their names and by what is in them, except for the data that a commit
    writes; what the configuration of git names; environments of Python; and journals. Names are compared as file systems do that
    ignore case, invisible characters or trailing periods.

    Attributes:
        added: patterns of further paths, as in `PathPatterns`, or absolute paths. Nothing excepts them.
        may_write: patterns of protected paths that may be written.

    Raises:
        ConfigurationError: when something is not a pattern.
    """

    added: tuple[str, ...] = field(default=(), converter=_as_patterns)
    may_write: tuple[str, ...] = field(default=(), converter=_as_patterns, validator=_check_relative)

    def within(self, root: Path) -> ProtectedPaths:
        """Return the same for one folder, in which absolute paths are relative ones; those outside of it are left out."""
        absolute = [Path(os.path.realpath(path)) for path in self.added if path.startswith("/")]
        inside = [f"./{escape(str(path.relative_to(root)))}" for path in absolute if path.is_relative_to(root)]
        return evolve(self, added=[*inside, *[path for path in self.added if not path.startswith("/")]])

    @cached_property
    def _added(self) -> PathPatterns:
        return PathPatterns(dict.fromkeys(self.added, ADDED))

    @cached_property
    def _excepted(self) -> PathPatterns:
        return PathPatterns(dict.fromkeys(self.may_write, "excepted"))

    def find_reason(self, parts: Sequence[str], folders: Sequence[FolderMarks], *, is_journal: bool = False) -> str:
        """Return why a file is not written; empty when it may be.

        Args:
            parts: the parts of its path.
            folders: what the folders on its way have, from the outermost one on, as far as they exist.
            is_journal: whether the file `journal_mark` is beside it.
        """
        folded = [fold_name(part) for part in parts]
        if reason := self._added.find(folded):
            return reason
        if self._excepted.find(folded):
            return ""
        return (
            _default_patterns().find(folded)
            or _find_git_reason(folded, folders)
            or _find_named_reason(folded, folders)
            or _find_environment_reason(folded, folders)
            or (_JOURNAL if is_journal else "")
        )


def _find_git_reason(folded: Sequence[str], folders: Sequence[FolderMarks]) -> str:
    inner = max((index for index, folder in enumerate(folders) if folder.is_of_git), default=-1)
    named = next((index for index, part in enumerate(folded) if part in {".git", "git~1"}), -1)
    if named >= 0:
        # A submodule has a folder of git in that of the repository around it.
        start = max(named + 1, inner)
        return "" if _GIT_DATA.fullmatch("/".join(folded[start:])) else _GIT
    is_data = inner >= 0 and _GIT_DATA.fullmatch("/".join(folded[inner:])) is not None
    if inner >= 0 and not is_data and folded[inner] in _GIT_CONTROL:
        return _GIT
    return _GIT_HEAD if folded[-1] == "head" and not is_data else ""


def _find_named_reason(folded: Sequence[str], folders: Sequence[FolderMarks]) -> str:
    """Return a reason for a file that is in the folder of hooks, or is a command or an included file, of git's configuration."""
    for index, folder in enumerate(folders):
        if folder.git_config and _paths_of(folder.git_config).find(folded[index:]):
            return _GIT_NAMED
    return ""


@lru_cache(maxsize=64)
def _paths_of(git_config: str) -> PathPatterns:
    """Return the paths in a work tree that the configuration of git may name."""
    found: set[str] = set()
    for key, value in _GIT_VALUE.findall(git_config):
        for word in [value.strip(' \t"'), *_GIT_WORDS.findall(value)]:
            # A word without a slash is a program or a branch, except for the folder of hooks.
            if "/" in word or key.lower() == "hookspath":
                found |= {
                    normpath(word or "."),
                    normpath(f".git/{word}"),
                }  # an included file is relative to the configuration
    return PathPatterns(
        {f"./{escape(path)}": _GIT_NAMED for path in found if path != "." and not path.startswith(("/", ".."))}
    )


def _find_environment_reason(folded: Sequence[str], folders: Sequence[FolderMarks]) -> str:
    for part, folder in zip(folded, folders, strict=False):
        if part in _ENVIRONMENT_PARTS and not folder.names.isdisjoint({"pyvenv.cfg", "conda-meta"}):
            return _ENVIRONMENT
    return ""
