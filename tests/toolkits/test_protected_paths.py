"""Paths that other programs run or obey by themselves: which they are, in which spellings, and what excepts them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.toolkits.files import ConfinedFolder, protected_folder
from agentloop.toolkits.protected_paths import PROTECTED, ProtectedPaths, fold_name

DOCUMENTATION = Path(__file__).parents[2] / "docs" / "sandbox.md"
PATTERNS = [(reason, pattern) for reason, patterns in PROTECTED.items() for pattern in patterns.split()]
HEAD = b"ref: refs/heads/main\n"


def an_example(pattern: str) -> str:
    """Return a path that a pattern of the default set matches."""
    return pattern.removeprefix("**/").replace("*", "x")


def reason_of(path: str, protected: ProtectedPaths | None = None) -> str:
    """Return why a path is protected in a folder without any files."""
    return (protected or ProtectedPaths()).find_reason(path.split("/"), [])


@pytest.mark.parametrize(("reason", "pattern"), PATTERNS)
def test_each_pattern_protects_at_any_depth_with_what_is_below(reason: str, pattern: str) -> None:
    """A protected name is protected in the folder, in folders below it, and as a folder."""
    path = an_example(pattern)
    assert [reason_of(each) for each in (path, f"a/b/{path}", f"{path}/c/d")] == [reason] * 3


def test_the_documentation_lists_the_set() -> None:
    """A person can read which paths are protected, and why each is."""
    rows = dict(re.findall(r"^\| ([^|]+) \| (`[^|]+`) \|$", DOCUMENTATION.read_text(), re.MULTILINE))
    documented = {reason: tuple(re.findall(r"`([^`]+)`", patterns)) for reason, patterns in rows.items()}
    assert {reason: documented.get(reason) for reason in PROTECTED} == {
        reason: tuple(patterns.split()) for reason, patterns in PROTECTED.items()
    }


ORDINARY = (
    "README.md .gitignore .github/ISSUE_TEMPLATE/bug.yml .github/dependabot.yml src/app.py tests/test_app.py pyproject.toml setup.cfg "
    "tox.ini pytest.ini Makefile package.json tsconfig.json eslint.config.js Dockerfile compose.yaml .editorconfig .dockerignore "
    ".env.example notes/git/config hooks/pre-commit config objects/info/alternates headers/HEAD.txt HEADING docs/agent.rst agents.py "
    "environment.yml bin/run lib/x.py a.pyi cursor.ts vscode/settings.json go~1 notes~2.md main.py~ my.git.txt .gitkeep claude/notes.md data.db data.db-wal "
    "github/workflows/a.yml conftest.pyx xconftest.py ssh/config .venvs.txt profile npmrc"
)


@pytest.mark.parametrize("path", ORDINARY.split())
def test_what_a_person_runs_on_purpose_is_not_protected(path: str) -> None:
    """An agent that works on a project can write its code, its builds and its tests."""
    assert reason_of(path) == ""


SPELLINGS: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "swapped": str.swapcase,
    "invisible": lambda name: f"{name[:2]}\u200c{name[2:]}\ufeff",
    "selector": lambda name: f"{name}\ufe0f",
    "tag": lambda name: f"{name}\U000e0020",
    "bytes of a character": lambda name: f"{name[:1]}\udce2\udc80\udc8d{name[1:]}",
    "periods and spaces": lambda name: f"{name}. .",
    "stream": lambda name: f"{name}::$INDEX_ALLOCATION",
    "letters that fold": lambda name: name.replace("s", "\u017f").replace("k", "\u212a"),
    "wide letters": lambda name: name.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)}),
}
"""Spellings that some file system takes for the same name."""
NAMES = [
    ".git/hooks/pre-commit",
    ".git",
    ".vscode/settings.json",
    ".envrc",
    "conftest.py",
    ".husky/x",
    "CLAUDE.md",
    ".ssh/config",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("path", NAMES)
def test_no_spelling_that_a_file_system_takes_for_the_name_passes(path: str, spelling: str) -> None:
    """Case, invisible characters, bytes that are a character, trailing periods and spaces, and streams change nothing."""
    first, slash, rest = path.partition("/")
    spelled = f"{SPELLINGS[spelling](first)}{slash}{rest}"
    assert reason_of(spelled)
    assert reason_of(f"deep/{spelled}")


@pytest.mark.parametrize(
    "path",
    [
        "GIT~1/hooks/x",
        "git~1",
        "VSCODE~1/settings.json",
        "ENVRC~1",
        "MCP~1.JSO",
        "HUSKY~2/x",
        "SITECU~1.PY",
        "VS4F0A~1/x",
        "BASHRC~1",
    ],
)
def test_short_names_of_windows_are_the_same_names(path: str) -> None:
    """Drives of Windows have a second name of eight characters for each file."""
    assert reason_of(path)


@given(st.text(max_size=20))
def test_any_text_can_be_folded_and_folding_twice_changes_nothing(text: str) -> None:
    """No name raises an error, and a folded name stays as it is."""
    assert fold_name(fold_name(text)) == fold_name(text)


GIT_DATA = (
    "HEAD index packed-refs COMMIT_EDITMSG ORIG_HEAD FETCH_HEAD MERGE_HEAD MERGE_MSG logs/HEAD logs/refs/heads/main refs/heads/a/b "
    "refs/stash refs/tags/v1 lfs/objects/ab/cd/abcd0123456789012345678901234567890123456789012345678901234567ab "
    "objects/ab/0123456789012345678901234567890123456789 objects/pack/pack-0a.idx objects/info/commit-graph"
)
GIT_CONTROL = (
    "config config.worktree hooks/pre-commit hooks/a/b info/attributes info/exclude objects/info/alternates commondir gitdir "
    "modules/m/config modules/m/HEAD worktrees/w/commondir rebase-merge/git-rebase-todo rebase-apply/x sequencer/todo "
    "refs/remotes/x/HEAD config.lock svn/x new-thing-of-git branches/x refs"
)


@pytest.mark.parametrize("path", GIT_DATA.split())
def test_a_commit_can_be_written(path: str) -> None:
    """What a commit writes into the folder of git is data."""
    assert reason_of(f".git/{path}") == reason_of(f"sub/.git/{path}") == ""


@pytest.mark.parametrize("path", GIT_CONTROL.split())
def test_all_else_in_the_folder_of_git_is_protected(path: str) -> None:
    """Also what git gets in a later version."""
    assert reason_of(f".git/{path}")
    assert reason_of(f"sub/.Git/{path}")


@pytest.mark.parametrize("path", [".git", "sub/.git", "sub/HEAD", "HEAD", "a.git/HEAD"])
def test_no_folder_becomes_a_repository(path: str) -> None:
    """Neither a file `.git`, which names a folder, nor a file `HEAD`, by which a folder is a bare repository, is written."""
    assert reason_of(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with bare repositories, an environment and a journal."""
    for name in ("mirror.git", ".git/modules/m"):
        folder = tmp_path / name
        (folder / "objects").mkdir(parents=True)
        (folder / "HEAD").write_bytes(HEAD)
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked/HEAD").write_bytes(HEAD)
    (tmp_path / "linked/commondir").write_text("../mirror.git\n")
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").write_text("home = /usr/bin\n")
    (tmp_path / "runs.db").write_bytes(b"")
    (tmp_path / "runs.db-ends").write_bytes(b"")
    (tmp_path / ".git/config").write_text(
        '[core]\n\thooksPath = tools/hooks\n\tfsmonitor = "./tools/watch.sh --fast"\n[include]\n\tpath = ../shared.gitconfig\n'
        '[filter "x"]\n\tclean = sh tools/clean.sh %f\n[branch "main"]\n\tremote = origin\n\tmerge = refs/heads/main\n'
        '[alias]\n\ts = !tools/alias.sh\n[merge "y"] driver = "my tools/merge.sh" %A # ours\n'
    )
    return tmp_path


@pytest.mark.parametrize(
    "path",
    [
        "mirror.git/config",
        "mirror.git/hooks/update",
        "mirror.git/commondir",
        "linked/hooks/x",
        "linked/gitdir",
        ".git/modules/m/config",
        "env/bin/python",
        "env/lib/python3.13/site-packages/x.py",
        "env/pyvenv.cfg",
        "runs.db",
        "runs.db-wal",
        "runs.db-ends",
        "tools/hooks/pre-commit",
        "tools/Hooks/pre-commit",
        "tools/watch.sh",
        "shared.gitconfig",
        "tools/clean.sh",
        "tools/alias.sh",
        "tools/merge.sh",
    ],
)
def test_what_a_folder_is_decides_too(root: Path, path: str) -> None:
    """Repositories, environments and journals are known by what is in them, and git's commands by its configuration."""
    folder = protected_folder(root, None, None)
    with pytest.raises(ToolFailed, match=r"is protected, unless .*may_write="):
        folder.write(path, b"x")
    with pytest.raises(ToolFailed, match="is protected"):
        folder.delete(path)


@pytest.mark.parametrize(
    "path",
    [
        "mirror.git/refs/heads/main",
        "mirror.git/main/src/app.py",
        ".git/modules/m/refs/heads/x",
        "env/notes.txt",
        "other.db",
        "tools/build.sh",
        "origin",
        "hooks/x",
    ],
)
def test_what_is_beside_them_is_written(root: Path, path: str) -> None:
    """Data of git, a work tree in a bare repository, and other files of the same folders are not protected."""
    assert protected_folder(root, None, None).write(path, b"x")


def test_only_what_is_named_is_excepted() -> None:
    """An exception is a name at any depth, or a path; it excepts nothing beside it."""
    protected = ProtectedPaths(may_write=["conftest.py", ".git/hooks/*", "**/.vscode/settings.json"])
    allowed = [
        "conftest.py",
        "a/conftest.py",
        ".git/hooks/pre-commit",
        "a/.vscode/settings.json",
        ".vscode/settings.json",
    ]
    refused = [".git/config", "a/.git/hooks/pre-commit", ".vscode/tasks.json", "sitecustomize.py", ".git/hooks"]
    assert [path for path in allowed if reason_of(path, protected)] == []
    assert [path for path in refused if not reason_of(path, protected)] == []


def test_nothing_excepts_what_a_program_adds(tmp_path: Path) -> None:
    """A pattern of `protected` wins over one of `may_write`; an absolute path is one in the folder."""
    protected = ProtectedPaths(["Makefile", "./only-here", str(tmp_path / "a [x].toml"), "/elsewhere/b"], ["*"])
    inside = protected.within(tmp_path.resolve())
    assert all(reason_of(path, inside) for path in ("Makefile", "x/makefile", "only-here", "a [x].toml"))
    assert not any(reason_of(path, inside) for path in ("x/only-here", "x/a [x].toml", "b", "elsewhere/b", ".envrc"))


@pytest.mark.parametrize("pattern", ["", "/", "**", "./", "a/../b", "..", "a\\b"])
def test_a_text_that_names_no_path_is_refused(pattern: str) -> None:
    """A mistake in a pattern must not protect, or except, something else."""
    with pytest.raises(ConfigurationError, match="does not name a path"):
        ProtectedPaths([pattern])
    with pytest.raises(ConfigurationError, match="does not name a path"):
        ProtectedPaths(may_write=[pattern])


def test_one_text_is_no_list_of_patterns() -> None:
    """`may_write=".envrc"` would otherwise be a list of six letters; an absolute exception is a mistake, too."""
    with pytest.raises(ConfigurationError, match=r"write \['.envrc'\]"):
        ProtectedPaths(may_write=".envrc")
    with pytest.raises(ConfigurationError, match="is absolute"):
        ProtectedPaths(may_write=["/home/me/.envrc"])


def test_a_folder_without_protection_writes_everything(tmp_path: Path) -> None:
    """A program that writes for itself, such as a lock file, is not hindered."""
    assert ConfinedFolder(tmp_path).write("skills.lock", b"x")


def test_a_path_of_many_parts_is_checked_in_little_time(tmp_path: Path) -> None:
    """A hostile command can leave thousands of long paths; each costs a bounded number of comparisons."""
    protected, parts = ProtectedPaths(["**/a/**/b"]).within(tmp_path), ["~" * 60 + str(number) for number in range(64)]
    start = process_time()
    for _ in range(100):
        protected.find_reason(parts, [])
    assert process_time() - start < 2
