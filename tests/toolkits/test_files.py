"""The files toolkit: files under a folder that paths cannot leave."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ScriptedInference, ToolCall
from agentloop.errors import ConfigurationError, InvalidDescriptor, ToolFailed
from agentloop.toolkits import load_ensembles
from agentloop.toolkits.files import ConfinedFolder, files
from agentloop.values import Effect, ToolStatus
from tests.toolkits.running import executions, run_call, run_calls

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with files and links, next to files that must not be reached."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text(SECRET)
    (tmp_path / "secret.txt").write_text(SECRET)
    root = tmp_path / "root"
    (root / "notes").mkdir(parents=True)
    (root / "notes" / "today.txt").write_text("one\ntwo\nthree\n")
    (root / "picture.bin").write_bytes(b"\xff\x00\xfe")
    (root / "link_file").symlink_to(tmp_path / "secret.txt")
    (root / "link_folder").symlink_to(tmp_path / "outside")
    (root / "link_up").symlink_to("..")
    (root / "link_inside").symlink_to("notes")
    (root / "link_nowhere").symlink_to(tmp_path / "made_through_link.txt")
    return root


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


ESCAPES = [
    "../secret.txt",
    "..",
    "../",
    "./../secret.txt",
    "notes/../../secret.txt",
    "notes/../../root/../secret.txt",
    "notes/..//..//secret.txt",
    "notes/./.././../secret.txt",
    "/etc/passwd",
    "//etc/passwd",
    "/../secret.txt",
    "..\\secret.txt",
    "notes\\..\\..\\secret.txt",
    "C:\\Windows\\win.ini",
    "link_file",
    "link_folder/secret.txt",
    "link_up/secret.txt",
    "link_up/root/../secret.txt",
    "link_inside/../link_file",
    "link_inside/today.txt",
    "link_nowhere",
    "secret.txt\x00",
    "notes/today.txt\x00/../../secret.txt",
    "\u2025/secret.txt",
    "%2e%2e/secret.txt",
    "..%2fsecret.txt",
    "~/secret.txt",
    "file:///etc/passwd",
    "",
    ".",
    "/",
]


@pytest.mark.parametrize("path", ESCAPES)
async def test_no_path_leaves_the_folder(root: Path, path: str) -> None:
    """No spelling of a path lets a tool read, write, edit, list or search outside of the folder."""
    before = {file: file.read_bytes() for file in root.parent.rglob("*") if file.is_file()}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": path}),
        ("edit_file", {"path": path, "old": "secret", "new": "x"}),
        ("list_files", {"path": path}),
        ("search_files", {"path": path, "text": "secret outside"}),
        ("write_file", {"path": path, "text": "written"}),
    ]
    outcomes = executions(await run_calls([files(str(root))], *calls))
    for outcome in outcomes:
        assert SECRET not in outcome.text
        assert outcome.name in {"list_files", "search_files", "write_file"} or outcome.status is ToolStatus.FAILED
    listing = outcomes[2]
    if listing.succeeded:
        assert path in {"", "."}
    after = {file: file.read_bytes() for file in root.parent.rglob("*") if file.is_file()}
    assert {file: data for file, data in after.items() if not file.is_relative_to(root)} == {
        file: data for file, data in before.items() if not file.is_relative_to(root)
    }
    assert names_in(root.parent) == ["outside", "root", "secret.txt"]


@given(
    st.lists(
        st.sampled_from(["..", ".", "", "notes", "link_up", "link_folder", "secret.txt", "/", "\\", "a"]), max_size=7
    )
)
def test_no_combination_of_parts_leaves_the_folder(root: Path, parts: list[str]) -> None:
    """Any path made of these parts is rejected or leads to a file under the root."""
    try:
        data = ConfinedFolder(root).read("/".join(parts), 100)
    except ToolFailed:
        return
    assert SECRET.encode() not in data


async def test_a_folder_that_becomes_a_link_is_not_followed(root: Path) -> None:
    """A checked folder is the one that is used: it stays open when its path becomes a link, and the link is rejected."""
    folder = ConfinedFolder(root)
    with folder.open_folder("notes") as descriptor:
        (root / "notes").rename(root / "moved")
        (root / "notes").symlink_to(root.parent / "outside")
        assert os.listdir(descriptor) == ["today.txt"]  # noqa: PTH208  # os.listdir takes a descriptor
    with pytest.raises(ToolFailed, match="leads through a link"):
        folder.read("notes/secret.txt", 100)


async def test_a_root_that_is_a_link_is_resolved_once(root: Path) -> None:
    """The root may be a link; changing the link later has no effect."""
    (root.parent / "alias").symlink_to(root)
    group = files(str(root.parent / "alias"))
    (root.parent / "alias").unlink()
    (root.parent / "alias").symlink_to(root.parent / "outside")
    assert (await run_call([group], "read_file", path="notes/today.txt")).succeeded
    assert not (await run_call([group], "read_file", path="secret.txt")).succeeded


@pytest.fixture
def special_files(root: Path) -> Iterator[list[str]]:
    """Return the names of entries that are not regular files."""
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        working_folder = Path.cwd()
        os.chdir(root)
        try:
            listening.bind("socket")
        finally:
            os.chdir(working_folder)
        yield ["pipe", "socket", "notes"]


async def test_only_regular_files_are_read_and_replaced(root: Path, special_files: list[str]) -> None:
    """A pipe, a socket or a folder is rejected at once; reading a pipe would hang."""
    for name in special_files:
        for call, arguments in (("read_file", {}), ("write_file", {"text": "x"})):
            execution = await run_call([files(str(root))], call, path=name, **arguments)
            assert execution.status is ToolStatus.FAILED, (name, call)
    kinds = {entry["name"]: entry["kind"] for entry in (await run_call([files(str(root))], "list_files")).value}  # type: ignore[union-attr,index,call-overload]  # a list of objects
    assert kinds == {
        "link_file": "link",
        "link_folder": "link",
        "link_inside": "link",
        "link_nowhere": "link",
        "link_up": "link",
        "notes": "folder",
        "picture.bin": "file",
        "pipe": "other",
        "socket": "other",
    }


async def test_files_are_written_read_and_edited(root: Path) -> None:
    """Folders are created, files are replaced with their permissions, and no temporary files are left."""
    (root / "notes" / "today.txt").chmod(0o600)
    state = await run_calls(
        [files(str(root))],
        ("write_file", {"path": "new/deep/a.txt", "text": "grün\nand blue\n"}),
        ("read_file", {"path": "new/deep/a.txt"}),
        ("edit_file", {"path": "new/deep/a.txt", "old": "blue", "new": "red"}),
        ("read_file", {"path": "./new//deep/a.txt", "first_line": 2, "lines": 1}),
        ("write_file", {"path": "notes/today.txt", "text": "x"}),
    )
    assert [execution.text for execution in executions(state)] == [
        "created new/deep/a.txt (15 bytes)",
        "grün\nand blue\n",
        "replaced 1 place in new/deep/a.txt",
        "and red\n",
        "replaced notes/today.txt (1 bytes)",
    ]
    assert (root / "notes" / "today.txt").stat().st_mode & 0o777 == 0o600
    assert names_in(root / "notes") == ["today.txt"]


async def test_calls_about_one_file_run_in_order(root: Path) -> None:
    """A model that writes and reads a file in one step reads what it wrote."""
    calls = [
        ("write_file", {"path": "a.txt", "text": "1"}),
        ("edit_file", {"path": "a.txt", "old": "1", "new": "2"}),
        ("read_file", {"path": "a.txt"}),
    ]
    assert executions(await run_calls([files(str(root))], calls))[-1].value == "2"


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("read_file", {"path": "none.txt"}, "there is no 'none.txt'"),
        ("read_file", {"path": "picture.bin"}, "not a text in UTF-8"),
        ("read_file", {"path": "notes"}, "'notes' is not a file"),
        ("read_file", {"path": "notes/today.txt/x"}, "a link or a file, not a folder"),
        ("read_file", {"path": "notes/today.txt", "first_line": 9}, "has 3 lines"),
        ("read_file", {"path": "large.txt"}, "has 2000 bytes; the maximum to read is 1000"),
        ("write_file", {"path": "a.txt", "text": "x" * 1001}, "would have 1001 bytes"),
        ("write_file", {"path": "notes", "text": "x"}, "is not a file"),
        ("write_file", {"path": "notes/", "text": "x"}, "names a folder"),
        ("write_file", {"path": "n" * 300, "text": "x"}, "File name too long"),
        ("edit_file", {"path": "notes/today.txt", "old": "four", "new": "x"}, "is not in"),
        ("edit_file", {"path": "notes/today.txt", "old": "o", "new": "x"}, "2 times"),
        ("edit_file", {"path": "notes/today.txt", "old": "one", "new": "x" * 2000}, "would have"),
        ("list_files", {"path": "none"}, "there is no 'none'"),
        ("list_files", {"path": "notes/today.txt"}, "not a folder"),
    ],
)
async def test_failed_calls_have_a_reason(root: Path, name: str, arguments: dict[str, Any], message: str) -> None:
    """An error says what to change, without the names of folders outside."""
    (root / "large.txt").write_text("x" * 2000)
    execution = await run_call([files(str(root), max_bytes=1000)], name, **arguments)
    assert execution.status is ToolStatus.FAILED
    assert message in execution.error_message
    assert str(root.parent) not in execution.error_message
    assert names_in(root / "notes") == ["today.txt"]


async def test_files_are_searched(root: Path) -> None:
    """Files are searched by text and by name, below a folder; links, large files and binary files are skipped."""
    (root / "large.txt").write_text("three " * 2000)
    (root / "notes" / "b.md").write_text("Three")
    group = files(str(root), max_bytes=1000)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_files", {"text": "three"}),
        ("search_files", {"text": "three", "ignore_case": False}),
        ("search_files", {"text": "t", "name": "*.md", "path": "notes"}),
        ("search_files", {"name": "*.txt"}),
        ("search_files", {"text": "secret"}),
        ("search_files", {"text": "", "max_results": 1}),
    ]
    outcomes = executions(await run_calls([group], *calls))
    matches = [[(match["path"], match["line"]) for match in outcome.value] for outcome in outcomes]  # type: ignore[union-attr,index,call-overload]  # lists of objects
    assert matches == [
        [("notes/b.md", 1), ("notes/today.txt", 3)],
        [("notes/today.txt", 3)],
        [("notes/b.md", 1)],
        [("large.txt", 0), ("notes/today.txt", 0)],
        [],
        [("large.txt", 0)],
    ]


async def test_an_edit_can_replace_every_occurrence(root: Path) -> None:
    """`all=true` replaces every occurrence."""
    await run_call([files(str(root))], "edit_file", path="notes/today.txt", old="o", new="0", all=True)
    assert (root / "notes" / "today.txt").read_text() == "0ne\ntw0\nthree\n"


def test_writing_tools_are_offered_only_where_allowed(root: Path) -> None:
    """Without `writable` all tools are pure; the others declare their effects."""
    reading = {tool.name: tool.effect for tool in files(str(root), writable=False).offered}
    assert reading == {"read_file": Effect.PURE, "list_files": Effect.PURE, "search_files": Effect.PURE}
    writing = {tool.name: tool.effect for tool in files(str(root)).offered if tool.name not in reading}
    assert writing == {"write_file": Effect.IDEMPOTENT, "edit_file": Effect.EFFECT}


def test_the_root_has_to_be_a_folder(root: Path) -> None:
    """A root that is missing or a file is an error at construction."""
    for path in (root / "none", root / "notes" / "today.txt"):
        with pytest.raises(ConfigurationError, match="is not a folder"):
            files(str(path))


def test_all_descriptors_are_closed(root: Path) -> None:
    """No descriptor stays open after a call, rejected or not."""
    folder = ConfinedFolder(root)
    before = names_in(Path("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    for path in (*ESCAPES, "notes", "notes/today.txt", "none"):
        with suppress(ToolFailed):
            folder.read(path, 5)
        with suppress(ToolFailed):
            folder.write(f"{path}/x", b"x")
    if before is not None:
        assert names_in(Path("/proc/self/fd")) == before


async def test_protected_paths_are_read_and_not_written(root: Path) -> None:
    """What other programs act on by themselves can be read; writing and editing it fail with a sentence that says how to allow it."""
    (root / ".vscode").mkdir()
    (root / ".vscode" / "settings.json").write_text("{}")
    before = contents(root)
    state = await run_calls(
        [files(str(root))],
        ("read_file", {"path": ".vscode/settings.json"}),
        ("edit_file", {"path": ".vscode/settings.json", "old": "{}", "new": "{1}"}),
        ("write_file", {"path": "notes/.ENVRC", "text": "x"}),
        ("write_file", {"path": "deep/new/.git/config", "text": "x"}),
    )
    read, *refused = executions(state)
    assert read.value == "{}"
    assert [execution.status for execution in refused] == [ToolStatus.FAILED] * 3
    assert all("may_write=[" in execution.error_message for execution in refused)
    assert contents(root) == before
    assert not (root / "deep").exists()


async def test_a_program_names_protected_paths_that_may_be_written(root: Path) -> None:
    """`may_write` excepts what it names, and `protected` adds what the program wants to keep."""
    group = files(str(root), may_write=["conftest.py"], protected=["notes"])
    state = await run_calls(
        [group],
        ("write_file", {"path": "tests/conftest.py", "text": "x"}),
        ("write_file", {"path": "tests/sitecustomize.py", "text": "x"}),
        ("write_file", {"path": "notes/today.txt", "text": "x"}),
    )
    assert [execution.succeeded for execution in executions(state)] == [True, False, False]
    assert "the program that runs the agent protects it" in executions(state)[2].error_message


async def test_another_name_of_a_protected_file_does_not_lead_to_it(root: Path) -> None:
    """A file with two names is replaced, so that its other name keeps the content; a link is not followed."""
    (root / ".git" / "hooks").mkdir(parents=True)
    hook = root / ".git" / "hooks" / "pre-commit"
    hook.write_text("old")
    (root / "same.txt").hardlink_to(hook)
    (root / "hooks").symlink_to(".git/hooks")
    state = await run_calls(
        [files(str(root))],
        ("edit_file", {"path": "same.txt", "old": "old", "new": "new"}),
        ("write_file", {"path": "hooks/pre-commit", "text": "new"}),
    )
    assert [execution.succeeded for execution in executions(state)] == [True, False]
    assert hook.read_text() == "old"


def test_a_file_can_protect_more_and_allow_nothing(root: Path, tmp_path: Path) -> None:
    """Of a descriptor, `protected` is an option, and `may_write` is refused with its line."""
    file = tmp_path / "tools.toml"
    table = f'[ensembles.files]\nuse = "files"\n[ensembles.files.options]\nroot = "{root}"\n'
    file.write_text(f'{table}protected = ["Makefile"]\n')
    assert len(load_ensembles(file)) == 1
    file.write_text(f'{table}may_write = [".envrc"]\n')
    with pytest.raises(InvalidDescriptor, match="only code or a person may set 'may_write'") as caught:
        load_ensembles(file)
    assert [(key, line) for _, key, line, _ in caught.value.mistakes] == [("ensembles.files.options.may_write", 5)]


async def test_the_files_that_describe_an_agent_are_not_written_by_its_tools(root: Path) -> None:
    """Neither the file of the agent, nor those that it names, whatever their names are."""
    (root / "agent.of.mine.toml").write_text('ensembles = ["more/tools.toml"]\n')
    (root / "more").mkdir()
    (root / "more" / "tools.toml").write_text('[ensembles.files]\nsource = "files.toml"\n')
    (root / "more" / "files.toml").write_text(f'use = "files"\noptions = {{ root = "{root}" }}\n')
    names = ["agent.of.mine.toml", "more/tools.toml", "more/files.toml", "more/other.toml"]
    calls = [
        [ToolCall(str(number), "write_file", f'{{"path": "{name}", "text": ""}}')] for number, name in enumerate(names)
    ]
    loop = AgentLoop.from_file(
        root / "agent.of.mine.toml", model=ScriptedInference(*calls, "done"), trust=True, approve=None
    )
    outcomes = executions(await loop.execute("go"))
    assert [execution.succeeded for execution in outcomes] == [False, False, False, True]
