"""Files under a folder that cannot be left."""

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

from agentloop.errors import ConfigurationError, ToolFailed
from agentloop.tools.ensembles.confined_folder import ConfinedFolder
from agentloop.tools.ensembles.files import files
from agentloop.values import Effect, ToolStatus
from tests.tools.ensembles.running import called, executions, ran

SECRET = "the secret outside"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a folder with files and links, beside which there is something that must not be reached."""
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


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


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
async def test_no_path_leads_out(root: Path, path: str) -> None:
    """Neither reading, writing, editing, listing nor searching gets at what is outside, however it is spelled."""
    before = {one: one.read_bytes() for one in root.parent.rglob("*") if one.is_file()}
    calls: list[tuple[str, dict[str, Any]]] = [
        ("read_file", {"path": path}),
        ("edit_file", {"path": path, "old": "secret", "new": "x"}),
        ("list_files", {"path": path}),
        ("search_files", {"path": path, "text": "secret outside"}),
        ("write_file", {"path": path, "text": "written"}),
    ]
    done = executions(await ran([files(str(root))], *calls))
    for one in done:
        assert SECRET not in one.text
        assert one.name in {"list_files", "search_files", "write_file"} or one.status is ToolStatus.FAILED
    listing = done[2]
    if listing.succeeded:
        assert path in {"", "."}
    after = {one: one.read_bytes() for one in root.parent.rglob("*") if one.is_file()}
    assert {one: data for one, data in after.items() if not one.is_relative_to(root)} == {
        one: data for one, data in before.items() if not one.is_relative_to(root)
    }
    assert sorted(one.name for one in root.parent.iterdir()) == ["outside", "root", "secret.txt"]


@given(
    st.lists(
        st.sampled_from(["..", ".", "", "notes", "link_up", "link_folder", "secret.txt", "/", "\\", "a"]), max_size=7
    )
)
def test_no_combination_of_parts_leads_out(root: Path, parts: list[str]) -> None:
    """Whatever is put together, what is read stands under the root and is no secret."""
    try:
        data = ConfinedFolder(root).read("/".join(parts), 100)
    except ToolFailed:
        return
    assert SECRET.encode() not in data


async def test_a_folder_that_becomes_a_link_meanwhile_is_not_followed(root: Path) -> None:
    """What was checked is what is used: an open folder stays the one it was, and a new link is refused."""
    folder = ConfinedFolder(root)
    with folder.folder("notes") as opened:
        (root / "notes").rename(root / "moved")
        (root / "notes").symlink_to(root.parent / "outside")
        assert os.listdir(opened) == ["today.txt"]  # noqa: PTH208  # of the open folder, whatever its path is now
    with pytest.raises(ToolFailed, match="leads through a link"):
        folder.read("notes/secret.txt", 100)


async def test_a_root_that_is_a_link_is_followed_once(root: Path) -> None:
    """The program may name its folder as it likes; what the link becomes later does not matter."""
    (root.parent / "alias").symlink_to(root)
    group = files(str(root.parent / "alias"))
    (root.parent / "alias").unlink()
    (root.parent / "alias").symlink_to(root.parent / "outside")
    assert (await called([group], "read_file", path="notes/today.txt")).succeeded
    assert not (await called([group], "read_file", path="secret.txt")).succeeded


@pytest.fixture
def odd_things(root: Path) -> Iterator[list[str]]:
    """Return the names of what is in the folder and is no plain file."""
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(root)
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
        yield ["pipe", "socket", "notes"]


async def test_only_plain_files_are_read_and_replaced(root: Path, odd_things: list[str]) -> None:
    """A pipe would hang, a folder has no text: both are refused at once."""
    for name in odd_things:
        for call, more in (("read_file", {}), ("write_file", {"text": "x"})):
            execution = await called([files(str(root))], call, path=name, **more)
            assert execution.status is ToolStatus.FAILED, (name, call)
    kinds = {one["name"]: one["kind"] for one in (await called([files(str(root))], "list_files")).value}  # type: ignore[union-attr,index,call-overload]  # a list of objects
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
    """Folders are made, content is replaced whole, permissions stay, and nothing else is left behind."""
    (root / "notes" / "today.txt").chmod(0o600)
    state = await ran(
        [files(str(root))],
        ("write_file", {"path": "new/deep/a.txt", "text": "grün\nand blue\n"}),
        ("read_file", {"path": "new/deep/a.txt"}),
        ("edit_file", {"path": "new/deep/a.txt", "old": "blue", "new": "red"}),
        ("read_file", {"path": "./new//deep/a.txt", "first_line": 2, "lines": 1}),
        ("write_file", {"path": "notes/today.txt", "text": "x"}),
    )
    assert [one.text for one in executions(state)] == [
        "made new/deep/a.txt (15 bytes)",
        "grün\nand blue\n",
        "replaced 1 place in new/deep/a.txt",
        "and red\n",
        "replaced notes/today.txt (1 bytes)",
    ]
    assert (root / "notes" / "today.txt").stat().st_mode & 0o777 == 0o600
    assert names_in(root / "notes") == ["today.txt"]


async def test_calls_of_one_step_about_one_file_keep_their_order(root: Path) -> None:
    """A model that writes and reads in one step reads what it wrote."""
    calls = [
        ("write_file", {"path": "a.txt", "text": "1"}),
        ("edit_file", {"path": "a.txt", "old": "1", "new": "2"}),
        ("read_file", {"path": "a.txt"}),
    ]
    assert executions(await ran([files(str(root))], calls))[-1].value == "2"


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("read_file", {"path": "none.txt"}, "there is no 'none.txt'"),
        ("read_file", {"path": "picture.bin"}, "not a text in UTF-8"),
        ("read_file", {"path": "notes"}, "'notes' is not a file"),
        ("read_file", {"path": "notes/today.txt/x"}, "a link or a file, not a folder"),
        ("read_file", {"path": "notes/today.txt", "first_line": 9}, "has 3 lines"),
        ("read_file", {"path": "large.txt"}, "has 2000 bytes; the most that are read are 1000"),
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
async def test_what_cannot_be_done_is_told(root: Path, name: str, arguments: dict[str, Any], told: str) -> None:
    """Without names of folders outside, and with what to do about it."""
    (root / "large.txt").write_text("x" * 2000)
    execution = await called([files(str(root), max_bytes=1000)], name, **arguments)
    assert execution.status is ToolStatus.FAILED
    assert told in execution.error_message
    assert str(root.parent) not in execution.error_message
    assert names_in(root / "notes") == ["today.txt"]


async def test_files_are_searched(root: Path) -> None:
    """By text and by name, below a folder; links, large files and what is no text are passed over."""
    (root / "large.txt").write_text("three " * 2000)
    (root / "notes" / "b.md").write_text("Three")
    group = files(str(root), max_bytes=1000)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_files", {"text": "three"}),
        ("search_files", {"text": "three", "ignore_case": False}),
        ("search_files", {"text": "t", "name": "*.md", "path": "notes"}),
        ("search_files", {"name": "*.txt"}),
        ("search_files", {"text": "secret"}),
        ("search_files", {"text": "", "most": 1}),
    ]
    found = [[(one["path"], one["line"]) for one in done.value] for done in executions(await ran([group], *calls))]  # type: ignore[union-attr,index,call-overload]  # lists of objects
    assert found == [
        [("notes/b.md", 1), ("notes/today.txt", 3)],
        [("notes/today.txt", 3)],
        [("notes/b.md", 1)],
        [("large.txt", 0), ("notes/today.txt", 0)],
        [],
        [("large.txt", 0)],
    ]


async def test_an_edit_replaces_every_place_when_told(root: Path) -> None:
    """With all=true."""
    await called([files(str(root))], "edit_file", path="notes/today.txt", old="o", new="0", all=True)
    assert (root / "notes" / "today.txt").read_text() == "0ne\ntw0\nthree\n"


def test_writing_is_offered_only_where_it_is_allowed(root: Path) -> None:
    """Without it there are only tools that change nothing; each says what it does to the world."""
    reading = {one.name: one.effect for one in files(str(root), writable=False).offered}
    assert reading == {"read_file": Effect.PURE, "list_files": Effect.PURE, "search_files": Effect.PURE}
    writing = {one.name: one.effect for one in files(str(root)).offered if one.name not in reading}
    assert writing == {"write_file": Effect.IDEMPOTENT, "edit_file": Effect.EFFECT}


def test_a_root_has_to_be_a_folder(root: Path) -> None:
    """Missing or a file: the ensemble is not made."""
    for path in (root / "none", root / "notes" / "today.txt"):
        with pytest.raises(ConfigurationError, match="is not a folder"):
            files(str(path))


def test_nothing_stays_open(root: Path) -> None:
    """Whatever is refused or read, every descriptor is closed."""
    folder = ConfinedFolder(root)
    before = names_in(Path("/proc/self/fd")) if Path("/proc/self/fd").exists() else None
    for path in (*ESCAPES, "notes", "notes/today.txt", "none"):
        with suppress(ToolFailed):
            folder.read(path, 5)
        with suppress(ToolFailed):
            folder.write(f"{path}/x", b"x")
    if before is not None:
        assert names_in(Path("/proc/self/fd")) == before
