"""Tests of the distribution: its name, its extras, its viewer, what an index accepts, and the locked versions of development."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.metadata import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import agentloop
import hatch_build
from agentloop.errors.hints import install_hint
from agentloop.service.trace.page import VIEWER
from tests.limits import LONGEST

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


def test_the_changelog_is_short() -> None:
    """The first entry is that of the version of the package. The first release has at most sixty lines, and each other one ten."""
    _, *parts = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    entries = {part.splitlines()[0]: [line for line in part.splitlines()[1:] if line] for part in parts}
    titles = [title for title in entries if title != "Unreleased"]
    assert titles[0] == agentloop.__version__
    assert titles[-1] == "0.1.0"
    assert {
        title: len(lines) for title, lines in entries.items() if len(lines) > (60 if title == "0.1.0" else 10)
    } == {}


def test_nothing_is_invented() -> None:
    """No file names a repository of this project, which has none, and none promises an answer in days."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    if not listed:
        pytest.skip("git lists the files of the project, and this is no clone")
    texts = {name: (ROOT / name).read_bytes() for name in listed.split("\0") if name and (ROOT / name).is_file()}
    pattern = re.compile(rb"github\.com/agentloop|agentloop[\w-]*\.readthedocs|answer within \w+ days")
    assert [name for name, text in texts.items() if pattern.search(text) and name != "tests/test_packaging.py"] == []
    assert "urls" not in PROJECT["project"], "RELEASING.md says what an owner fills in"


def test_the_documents_list_every_extra() -> None:
    """The page about the installation has a row for each extra."""
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) == set(PROJECT["project"]["optional-dependencies"])


def test_the_extra_all_has_every_other() -> None:
    """`all` names each extra once, in their order."""
    extras = PROJECT["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    assert everything == f"agentloop-kernel[{','.join(name for name in extras if name != 'all')}]"


def test_the_lock_file_has_every_dependency_with_hashes() -> None:
    """Each requirement of the project, its extras and its development is locked at a version that it allows."""
    locked = dict(re.findall(r"^([\w.-]+)(?:\[[\w,]+])?==([\w.]+)", _lock_file(), re.MULTILINE))
    versions = {_normalize(name): version for name, version in locked.items()}
    project = PROJECT["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values(), PROJECT["dependency-groups"]["dev"]]
    for text in [text for group in groups for text in group]:
        requirement = Requirement(text)
        if requirement.name == project["name"]:
            continue  # the extra `all`
        assert requirement.specifier.contains(versions[_normalize(requirement.name)], prereleases=True), text
    entries = re.split(r"^(?=[\w.-]+(?:\[[\w,]+])?==)", _lock_file(), flags=re.MULTILINE)[1:]
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []
    assert "file://" not in _lock_file()


def test_the_page_of_the_viewer_is_the_one_of_its_sources(tmp_path: Path) -> None:
    """The page in git names the sources that it was built of; a change of any of them makes it old, until it is built again."""
    assert hatch_build.is_current(ROOT), "run `make viewer`"
    for name in ("viewer/src", "viewer/build.mjs", "viewer/package.json", "viewer/package-lock.json"):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(ROOT / "viewer", copy / "viewer", ignore=shutil.ignore_patterns("node_modules", ".browser*"))
        (copy / "agentloop/service/trace").mkdir(parents=True)
        shutil.copy(VIEWER, copy / "agentloop/service/trace")
        assert hatch_build.is_current(copy)
        changed = copy / name if (copy / name).is_file() else copy / name / "new.ts"
        changed.write_text("// changed")
        assert not hatch_build.is_current(copy), name


@pytest.mark.skipif(shutil.which("node") is None, reason="the page is built by a program for node")
def test_the_page_of_the_viewer_can_be_built_again(tmp_path: Path) -> None:
    """A build makes the page that stands in git, byte for byte."""
    if not (ROOT / "viewer/node_modules").is_dir():
        pytest.skip("`make viewer` installs what the build needs")
    build = ["node", str(ROOT / "viewer/build.mjs"), str(tmp_path / "viewer.html")]
    subprocess.run(build, check=True, capture_output=True, timeout=LONGEST)
    assert (tmp_path / "viewer.html").read_bytes() == VIEWER.read_bytes()


@pytest.mark.unreplayed
def test_wheel_and_source_distribution_pass_the_checks_of_the_index(tmp_path: Path) -> None:
    """Without npm, the sources and then the wheel from them can be built, and have the package, its types, viewer and license."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=300, env={**os.environ, "PATH": "/nowhere"})
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
    for held in (names, _names_in(sources)):
        assert "agentloop/service/trace/viewer.html" in held
    assert {name.split("/")[1] for name in _names_in(sources).splitlines()} == {
        "agentloop",
        "CHANGELOG.md",
        "LICENSE",
        "PKG-INFO",
        "README.md",
        ".gitignore",
        "hatch_build.py",
        "pyproject.toml",
    }


def _names_in(sources: Path) -> str:
    with tarfile.open(sources) as archive:
        return "\n".join(archive.getnames())


def _lock_file() -> str:
    return (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")


def _normalize(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- what builds fetch ----------------------------------------------------------------------------------------------


def test_actions_and_images_are_named_by_their_content() -> None:
    """A tag can be moved to other code; a commit of an action, and a digest of an image, cannot."""
    workflows = [path.read_text(encoding="utf-8") for path in (ROOT / ".github" / "workflows").iterdir()]
    actions = re.findall(r"uses: (.+)", "\n".join(workflows))
    assert actions
    assert [action for action in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action)] == []
    images = re.findall(r"image: (.+)", (ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert images
    assert [image for image in images if not re.fullmatch(r"[\w/.-]+:[\w.-]+@sha256:[0-9a-f]{64}", image)] == []


@pytest.mark.parametrize("folder", ["tests/npm", "docs/site", "viewer"])
def test_packages_of_npm_are_locked_with_hashes(folder: str) -> None:
    """The Makefile installs what a lock file has, and each package of it has the hash of its content."""
    manifest = json.loads((ROOT / folder / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((ROOT / folder / "package-lock.json").read_text(encoding="utf-8"))
    root, *packages = lock["packages"].values()
    kinds = ("dependencies", "devDependencies")
    assert {kind: root.get(kind) for kind in kinds} == {kind: manifest.get(kind) for kind in kinds}
    assert [package for package in packages if not package["integrity"].startswith("sha512-")] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"npm (?:--prefix \S+ )?(?:install|pack|exec)\b(?! --package-lock-only)", makefile) == []
