"""Archives of files: what is packed comes back, and nothing that a hostile program writes leads out of the folder."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop.contracts import SandboxFile
from agentloop.toolkits.sandboxes.archive import pack, unpack

NAMES = st.lists(
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
        lambda part: part not in {".", ".."} and len(part.encode()) < 255
    ),
    min_size=1,
    max_size=4,
).map("/".join)
FILES = st.dictionaries(
    NAMES, st.builds(SandboxFile, st.binary(max_size=1_500), st.booleans(), st.integers(0, 1 << 33)), max_size=6
).filter(lambda files: not any(path.startswith(f"{other}/") for path in files for other in files))


@given(files=FILES)
def test_what_is_packed_is_unpacked(files: dict[str, SandboxFile]) -> None:
    """Names of any length and script, contents, rights and times come back."""
    contents = unpack(pack(files), 1_000, 100_000)
    assert contents.files == files
    assert contents.is_complete
    assert contents.omitted == []


@given(data=st.binary(max_size=3_000) | st.binary(min_size=512, max_size=512).map(lambda block: block * 3))
def test_any_data_is_read(data: bytes) -> None:
    """Data that is no archive yields what can be read of it, and no path out of the folder."""
    for path in unpack(data, 10, 10_000).files:
        assert not path.startswith("/")
        assert ".." not in path.split("/")


@given(files=FILES, position=st.integers(0, 5_000), value=st.integers(0, 255), length=st.integers(0, 20_000))
def test_a_damaged_archive_is_read(files: dict[str, SandboxFile], position: int, value: int, length: int) -> None:
    """A changed byte and a missing end do no harm, and an archive without its end is not complete."""
    data = bytearray(pack(files))
    data[position % len(data)] = value
    contents = unpack(bytes(data[:length]), 10, 10_000)
    assert sum(len(file.data) for file in contents.files.values()) <= 10_000
    assert not unpack(pack(files)[:512], 10, 10_000).is_complete or not files


@pytest.mark.parametrize("name", ["../up", "/etc/passwd", "a/../../b", "..", "a/" * 100 + "b", "./../c"])
def test_a_name_that_leads_elsewhere_is_omitted(name: str) -> None:
    """It is reported, and is no file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    contents = unpack(buffer.getvalue(), 10, 100)
    assert contents.files == {}
    assert len(contents.omitted) == 1


def test_a_name_cannot_be_a_file_and_a_folder() -> None:
    """A forged archive with a file below a file yields one of them."""
    data = pack({"a": SandboxFile(b"1")})[:1024] + pack({"a/b": SandboxFile(b"2")})
    contents = unpack(data, 10, 100)
    assert list(contents.files) == ["a"]
    assert contents.omitted == ["a/b"]


def test_a_second_name_counts_again() -> None:
    """Hard links to a large file do not multiply it beyond the limit."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as archive:
        first = tarfile.TarInfo("first")
        first.size = 600
        archive.addfile(first, io.BytesIO(bytes(600)))
        for number in range(5):
            link = tarfile.TarInfo(f"link{number}")
            link.type, link.linkname = tarfile.LNKTYPE, "first"
            archive.addfile(link)
    contents = unpack(buffer.getvalue(), 100, 2_000)
    assert sorted(contents.files) == ["first", "link0", "link1"]
    assert not contents.is_complete


@pytest.mark.skipif(shutil.which("tar") is None, reason="tar is not installed")
def test_archives_of_tar_are_read(tmp_path: Path) -> None:
    """Long names, long targets of links, hard links and times far away, as the program of sandboxes writes them."""
    (tmp_path / ("d" * 200)).mkdir()
    (tmp_path / ("d" * 200) / ("f" * 200)).write_text("long")
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "link").symlink_to("x" * 300)
    (tmp_path / "empty").mkdir()
    subprocess.run(["touch", "-d", "1901-01-01", "a"], cwd=tmp_path, check=True)
    done = subprocess.run(["tar", "-c", "-f", "-", "."], cwd=tmp_path, capture_output=True, check=True)
    contents = unpack(done.stdout, 100, 10_000)
    assert {path: file.data for path, file in contents.files.items()} == {
        f"{'d' * 200}/{'f' * 200}": b"long",
        "a": b"a",
        "b": b"a",
    }
    assert contents.files["a"].modified == 0
    assert contents.empty_folders == ("empty",)
    assert contents.omitted == ["link"]
    assert contents.is_complete
