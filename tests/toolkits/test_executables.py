"""Programs that are looked up by their names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentloop.toolkits.executables import find_executable


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a program in it and in a folder below, and return that folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for path in (tmp_path / "program-of-test", folder / "program-of-test"):
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.mark.parametrize("path", ["", ".", "bin", ":/usr/bin", "/usr/bin:", "/usr/bin::bin", "./bin:.", "../"])
def test_no_name_leads_to_the_current_folder(program: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """Entries of PATH that depend on the current folder are skipped, those of a given text, too."""
    monkeypatch.setenv("PATH", path)
    assert find_executable("program-of-test") is None
    monkeypatch.setenv("PATH", os.pathsep.join([path, str(program)]))
    assert find_executable("program-of-test") == str(program / "program-of-test")
    assert find_executable("program-of-test", path or ".") is None


def test_a_system_without_path_has_its_own_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without PATH the folders of the system are searched."""
    monkeypatch.delenv("PATH")
    assert find_executable("sh") is not None


@pytest.mark.usefixtures("program")
def test_a_path_is_the_word_of_the_program() -> None:
    """A path, also a relative one, is not looked up."""
    assert find_executable("./program-of-test") == "./program-of-test"
    assert find_executable("bin/program-of-test") == "bin/program-of-test"
    assert find_executable("bin/nothing") is None


def test_what_is_found_in_the_current_folder_all_the_same_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows searches the current folder first, and then the path of the result is relative."""
    monkeypatch.setattr("shutil.which", lambda name, path: f".\\{name}")
    assert find_executable("docker") is None
