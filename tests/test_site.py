"""The documentation as a whole: its tree, its links, its reference, its tutorial; and the files by which a project is run in public."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import contents
import pytest
import reference
import screens
import walkthrough
import yaml

import agentloop
from agentloop.testing import DriverKit, ExecutorKit, JournalKit, WireFormatKit
from agentloop.testing.kit import Kit
from tests.viewer.browser import Browser, browser_path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("**/*.md"))
LINKING = [*PAGES, *ROOT.glob("*.md"), *ROOT.glob("examples/**/README.md")]
CODE = re.compile(r"^(`{3,})[^`]*?$.*?^\1$", re.MULTILINE | re.DOTALL)


@cache
def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return CODE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as code hosts and the site make them of its headings."""
    headings = re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE)
    texts = [re.sub(r"\[(.+?)\]\(.*?\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in texts}


def test_every_page_is_in_the_contents_once() -> None:
    """The lists of the index pages lead to each page of the folder, and to each once."""
    listed = list(contents.walk())
    assert sorted(listed) == sorted(str(page.relative_to(DOCS)) for page in PAGES)


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in LINKING])
def test_links_lead_to_files_and_headings(page: Path) -> None:
    """Each relative link names a file that exists, and a heading in it if it names one."""
    broken = []
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(target)
    assert broken == []


def test_every_public_name_is_described() -> None:
    """Each exported name, and each error, has a docstring and one package whose page describes it."""
    names = reference.public_names()
    assert [f"{name.package}.{name.name}" for name in names if not name.text] == []
    described = {
        match[1]
        for page in PAGES
        for match in re.finditer(r"^```\{package-reference\} (\S+)$", page.read_text(), re.MULTILINE)
    }
    assert described == {name.package for name in names}
    assert {reference.owners()[name.home, name.name].package for name in names} <= described


@pytest.mark.parametrize(
    ("page", "kit"),
    [("drivers", DriverKit), ("executors", ExecutorKit), ("journals", JournalKit), ("wire-formats", WireFormatKit)],
)
def test_the_page_of_a_contract_has_the_laws_of_its_kit(page: str, kit: type[Kit]) -> None:
    """The table of what a part promises names each law that the kit checks, and no other."""
    rows = re.findall(r"^\| ([\d, ]+) \|", (DOCS / "contracts" / f"{page}.md").read_text(), re.MULTILINE)
    assert sorted(int(number) for row in rows for number in row.split(",")) == sorted(kit.laws)


def test_each_example_has_a_page() -> None:
    """Each short program of `examples` is the answer of one page of instructions, which shows it."""
    shown = {
        match[1]
        for page in DOCS.glob("how-to/*.md")
        for match in re.finditer(r"\{literalinclude\} (\S+)", page.read_text())
    }
    programs = re.findall(r"^\| `(\w+\.\w+)` \|", (ROOT / "examples/README.md").read_text(), re.MULTILINE)
    assert shown == {f"../../examples/{program}" for program in programs}


def test_programs_of_other_frameworks_are_python() -> None:
    """What is compared with them can at least be parsed."""
    blocks = [
        match[1]
        for page in DOCS.glob("coming-from/*.md")
        for match in re.finditer(r"^```py\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert len(blocks) == 6
    for block in blocks:
        ast.parse(block)


@pytest.mark.heavy
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    """Its files, run one after the other in one folder, print what the page says, also when their process is killed."""
    bin_folder = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": bin_folder, "PYTHONPATH": str(ROOT)}
    environment.pop("VIRTUAL_ENV", None)
    done = [
        action.name
        for action in walkthrough.read_actions()
        if not action.section.startswith("1.") and walkthrough.run(action, tmp_path, environment) is not None
    ]
    assert done[0] == "desk.py"
    assert "recover.py" in done


def test_a_promise_of_the_tutorial_that_is_not_kept_is_an_error(tmp_path: Path) -> None:
    """A file that prints something else than its page says fails, and so does one that raises."""
    action = walkthrough.Action("2. A step", "other.py", "python", "print('no')", ("yes …",))
    with pytest.raises(RuntimeError, match="yes"):
        walkthrough.run(action, tmp_path, os.environ)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        walkthrough.run(walkthrough.Action("2. A step", "bad.py", "python", "1 / 0", ()), tmp_path, os.environ)


def test_language_models_get_the_contents_and_the_pages() -> None:
    """`llms.txt` has a title, a summary and a link to each page; `llms-full.txt` has the pages with their programs."""
    listed = contents.llms_txt("https://docs.example.com/")
    assert listed.startswith("# agentloop\n\n> agentloop is a Python library")
    assert "- [Durable executions](https://docs.example.com/journal.html): journals, recovery" in listed
    assert "- [Approve calls on a web page](https://docs.example.com/how-to/approve-on-a-web-page.html)" in listed
    whole = contents.llms_full_txt()
    assert "# Effects and doubt" in whole
    assert "literalinclude" not in whole
    assert 'app = Starlette(routes=[Route("/", show)' in whole


def test_a_small_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """Index pages become a tree, packages a reference, Mermaid a picture, and links out of the folder text, while no repository is set."""
    docs, site = tmp_path / "docs", tmp_path / "site"
    docs.mkdir()
    (docs / "index.md").write_text("# A\n\n## Pages\n\n- [A page](page.md): it has everything\n")
    picture = "```mermaid\nflowchart LR\n    a --> b\n```"
    package = "```{package-reference} agentloop.compilers\n```"
    (docs / "page.md").write_text(f"# A page\n\n[the license](../LICENSE)\n\n{picture}\n\n{package}\n")
    build_site(docs, site)
    page = (site / "page.html").read_text()
    assert '<pre class="mermaid">flowchart LR\n    a --&gt; b</pre>' in page
    assert "the license (<code" in page
    assert ">LICENSE<" in page
    assert 'id="agentloop.compilers.SlidingWindow"' in page
    assert '<a class="reference internal" href="page.html">A page</a>' in (site / "index.html").read_text()
    assert (site / "llms.txt").exists()
    sources = re.findall(r"""<(?:script|link|img)[^>]*?(?:src|href)="(https?:[^"]*)""", page)
    assert sources == [], "the site needs no network"


def build_site(docs: Path, site: Path) -> None:
    """Build a site of these pages, without a warning."""
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "-c", str(DOCS / "site")]
    done = subprocess.run([*command, str(docs), str(site)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


SEARCHED = {
    "index.md": """# A

## Guides

- [Windows](windows.md): glass and frames
- [Doors](doors.md): wood

## Contracts

- [Panes](panes.md): what a pane promises

## Reference

- [Packages](packages.md): every name
""",
    "windows.md": "# Windows\n\nA window lets the light in.\n\n## Cleaning\n\nWash a window with vinegar.\n",
    "doors.md": "# Doors\n\nA door may have a window. Close it by SlidingWindow.\n",
    "panes.md": "# Panes\n\nThe window window window of a contract.\n",
    "packages.md": "# Packages\n\nwindow\n\n```{package-reference} agentloop.compilers\n```\n",
}
RESULTS = "[...document.querySelectorAll('#search-results ul.search > li')].map(item => item.innerText)"
FINISHED = "/finished/.test(document.querySelector('#search-results')?.innerText ?? '')"


def test_a_search_finds_guides_before_internals_also_in_a_file(tmp_path: Path) -> None:
    """Opened from the disk, the search shows the texts of the pages, and loads nothing; a name in code leads to its object."""
    executable = browser_path()
    if executable is None:
        pytest.skip("there is no browser here; `make test` unpacks one where npm is installed")
    docs = tmp_path / "docs"
    docs.mkdir()
    for name, text in SEARCHED.items():
        (docs / name).write_text(text)
    build_site(docs, tmp_path / "site")
    (tmp_path / "profile").mkdir()
    browser = Browser(executable, tmp_path / "profile")
    try:
        with browser.page() as page:
            address = (tmp_path / "site/search.html").as_uri()
            page.open(f"{address}?q=window")
            page.wait_for(FINISHED)
            found: list[str] = page.evaluate(RESULTS)
            titles = [result.splitlines()[0] for result in found]
            assert titles[:4] == ["Windows", "Doors", "Panes", "Packages"]
            assert "lets the light in" in found[0]
            assert not any("SlidingWindow" in title for title in titles[:4])
            page.open(f"{address}?q=SlidingWindow")
            page.wait_for(FINISHED)
            assert page.evaluate(RESULTS)[0].startswith("agentloop.compilers.SlidingWindow (Python class")
            assert page.problems == []
            assert {address.partition(":")[0] for address in page.requests} == {"file"}
    finally:
        browser.close()


def test_a_picture_of_a_terminal_shows_what_a_command_prints(tmp_path: Path) -> None:
    """The command runs in a terminal of its own; the picture has its text, and nothing that a browser would load."""
    shown = screens.run_in_terminal(["--version"], tmp_path)
    assert shown == f"agentloop {agentloop.__version__}\n"
    screens.draw_terminal(f"\x1b[1m{shown}\x1b[0m", "agentloop --version", tmp_path / "version.svg")
    picture = (tmp_path / "version.svg").read_text()
    assert agentloop.__version__ in picture
    assert "url(http" not in picture
    with pytest.raises(RuntimeError, match="No such command"):
        screens.run_in_terminal(["no-such-command"], tmp_path)


def test_the_pictures_of_the_pages_are_small_and_show_no_machine() -> None:
    """Each picture has at most 100 kB, is shown by some page, and has no path of the machine that it was made on."""
    texts = "".join(page.read_text(encoding="utf-8") for page in LINKING)
    for picture in (DOCS / "pictures").iterdir():
        assert f"pictures/{picture.name}" in texts
        assert picture.stat().st_size <= 100_000
        assert picture.suffix == ".webp" or not re.search(r"/(?:home|root|work|tmp|Users)/", picture.read_text())


def test_public_ci_runs_the_two_commands() -> None:
    """The workflow runs `make demo` and all tests on Linux and macOS, with three versions of Python that are supported."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/tests.yml").read_text())
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    commands = [step["run"] for step in workflow["jobs"]["test"]["steps"] if "run" in step]
    assert commands[-2:] == ["make demo", "make test-all"]
    assert {name.partition("-")[0] for name in matrix["os"]} == {"ubuntu", "macos"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    supported = {entry.rpartition(" ")[2] for entry in project["classifiers"] if re.search(r":: 3\.\d+$", entry)}
    assert len(matrix["python"]) == 3
    assert set(matrix["python"]) <= supported


def test_forms_of_the_project_are_well_formed() -> None:
    """Templates of reports ask for something, and the container of development runs the set-up."""
    forms = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("[!c]*.yml"))]
    assert len(forms) == 3
    for form in forms:
        assert {"name", "description", "body"} <= set(form)
        assert any(field.get("validations", {}).get("required") for field in form["body"])
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "make test-environment"
