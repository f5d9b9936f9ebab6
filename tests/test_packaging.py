"""Tests of the distribution: its name, its extras, what an index accepts, and the locked versions of development."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import agentloop
from agentloop.errors import install_hint
from agentloop.trace.page import VIEWER

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_hints_name_the_distribution_that_is_installed() -> None:
    """The command in a hint has the name of the distribution, which differs from that of the import."""
    assert PROJECT["project"]["name"] == "agentloop-kernel"
    assert install_hint("cli") == "pip install 'agentloop-kernel[cli]'"
    assert metadata("agentloop-kernel")["Version"] == agentloop.__version__


def test_every_extra_of_a_hint_exists() -> None:
    """Code and documents name no extra that the distribution lacks."""
    sources = [*ROOT.glob("agentloop/**/*.py"), *ROOT.glob("docs/*.md"), ROOT / "README.md"]
    texts = "\n".join(path.read_text(encoding="utf-8") for path in sources)
    named = set(re.findall(r"""install_hint\(["'](\w+)["']\)""", texts)) | set(
        re.findall(r"agentloop-kernel\[(\w+)]", texts)
    )
    assert "cli" in named
    assert named <= set(PROJECT["project"]["optional-dependencies"])
    assert not re.findall(r"agentloop\[\w+]'", texts)


def test_the_changelog_has_an_entry_for_this_version() -> None:
    """Below what is not released yet, the first entry is that of the version of the package."""
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert titles[:2] == ["Unreleased", agentloop.__version__]


def test_the_documents_list_every_extra() -> None:
    """The page about the installation has a row for each extra."""
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(PROJECT["project"]["optional-dependencies"])


def test_the_lock_file_has_every_dependency_with_hashes() -> None:
    """Each requirement of the project, its extras and its development is locked at a version that it allows."""
    locked = dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+])?==([\w.]+)", _lock_file(), re.MULTILINE))
    versions = {_normalize(name): version for name, version in locked.items()}
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values(), PROJECT["dependency-groups"]["dev"]]
    for text in [text for group in groups for text in group]:
        requirement = Requirement(text)
        assert requirement.specifier.contains(versions[_normalize(requirement.name)], prereleases=True), text
    entries = re.split(r"^(?=[\w.-]+(?:\[[\w,]+])?==)", _lock_file(), flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "file://" not in _lock_file()


@pytest.mark.unreplayed
def test_wheel_and_source_distribution_pass_the_checks_of_the_index(tmp_path: Path) -> None:
    """Both distributions can be built, have valid metadata, and hold the package, its types and its license."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300)
    wheel, sources = (next(tmp_path.glob(pattern)) for pattern in ("*.whl", "*.tar.gz"))
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sources)]
    checked = subprocess.run(check, check=False, capture_output=True, text=True, timeout=300)
    assert checked.returncode == 0, checked.stdout
    assert wheel.name.startswith("agentloop_kernel-")
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "--list", str(wheel)], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    for name in ("agentloop/__init__.pyi", "agentloop/py.typed", "licenses/LICENSE", "agentloop/loop/agent_loop.py"):
        assert name in names
    # In a clone without node, there is no viewer to carry.
    for held in (names, _names_in(sources)):
        assert ("agentloop/trace/viewer.html" in held) == VIEWER.exists()


def _names_in(sources: Path) -> str:
    with tarfile.open(sources) as archive:
        return "\n".join(archive.getnames())


def _lock_file() -> str:
    return (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
