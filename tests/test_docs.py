"""Every Python block of the documentation runs unchanged."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from attrs import asdict

from agentloop import Bounds
from agentloop.models import PRESETS
from agentloop.service.cli.commands import ENTRIES
from agentloop.testing.kit import LAWS
from agentloop.values.points import POINTS
from agentloop.values.writes import writable_paths
from tests.limits import LONGEST
from tests.loaded import LoadedProcess
from tests.testing.laws_page import kits, zoo_rows
from tests.testing.zoo import MEMBERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def python_blocks(pages: Iterable[Path]) -> dict[str, str]:
    """Return the blocks of Python of pages, by page and line; those of the tutorial are the files of one folder, which `test_site.py` runs."""
    return {
        f"{page.relative_to(ROOT)}:{text[: match.start()].count(chr(10)) + 2}": match[1]
        for page in pages
        if page.name != "tutorial.md"
        for text in [page.read_text()]
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    }


def run_block(block: str, folder: Path) -> None:
    """Run a block in a folder, and make sure that it ends without an error and without a warning."""
    command = [sys.executable, "-W", "error", "-c", block]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LONGEST, check=False)
    assert done.returncode == 0, done.stderr


EXPECTED = {
    "A first agent": "17 + 25 is 42.",
    "A first driver": "HELLO",
    "A first interceptor": "blocked ToolBlocked: payments of more than 100 need a person",
    "A first wiretap": "AgentExecutionCompleted",
}


BLOCKS = python_blocks(page for page in PAGES if page.parent in {ROOT, ROOT / "docs"})


@pytest.mark.parametrize("block", [*BLOCKS.values()], ids=[*BLOCKS])
def test_a_block_runs_as_printed(block: str, loaded: LoadedProcess, tmp_path: Path) -> None:
    """Where the package is loaded, the block ends without an error and without a warning."""
    ended = loaded.run(block, tmp_path)
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("block", ["import warnings; warnings.warn('old')", "raise ValueError('old')"])
def test_a_block_that_warns_or_raises_fails(block: str, loaded: LoadedProcess, tmp_path: Path) -> None:
    """The exit code is that of the program, and its last words are at hand."""
    ended = loaded.run(block, tmp_path)
    assert ended.code == 1
    assert ended.err.rstrip().endswith("old")


@pytest.mark.heavy
@pytest.mark.parametrize("block", [*BLOCKS.values()], ids=[*BLOCKS])
def test_a_block_runs_in_a_new_process(block: str, tmp_path: Path) -> None:
    """Copied into a file and run, the block loads what it needs, and ends without an error and without a warning."""
    run_block(block, tmp_path)


def public_names() -> set[str]:
    """Return the exported names of agentloop and its rooms, with their packages."""
    package = ROOT / "agentloop"
    rooms = [".".join(stub.parent.relative_to(ROOT).parts) for stub in package.rglob("__init__.pyi")]
    exported = {f"{room}.{name}" for room in rooms for name in importlib.import_module(room).__all__}
    return {name for name in exported if not name.endswith("__")}


def names_in(page: str) -> set[str]:
    """Return the names in the Python blocks of a page, and those that its text has as code."""
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"\w+", " ".join([*blocks, *re.findall(r"`([^`\n]+)`", prose)])))


def test_the_pages_explain_the_public_names() -> None:
    """At least 95 % of the public names occur in a sentence or in a block that runs."""
    explained = set().union(*(names_in(page.read_text()) for page in PAGES))
    public = public_names()
    missing = sorted(name for name in public if name.rpartition(".")[2] not in explained)
    assert len(missing) <= 0.05 * len(public), missing


def test_the_page_about_models_lists_every_provider() -> None:
    """The table of providers has each preset with its wire format, and no other."""
    table, _, _ = (ROOT / "docs/models.md").read_text().partition("```")
    rows = re.findall(r"^\| `(\S*?):…`.*? \| `(.*?)` \| (.*?) \|", table, re.MULTILINE)
    assert [row[:2] for row in rows] == [(name, preset.wire_format) for name, preset in PRESETS.items()]
    for name, _, keys in rows:
        assert re.findall(r"`([A-Z_]+)`", keys) == list(PRESETS[name].all_key_variables), name


def test_the_page_about_bounds_lists_every_bound() -> None:
    """The table of bounds has each bound with its default, and no other."""
    rows = re.findall(r"^\| `(\w+)` \| ([\d,.]+|∞) \|", (ROOT / "docs/bounds.md").read_text(), re.MULTILINE)
    assert {name: float(value.replace(",", "").replace("∞", "inf")) for name, value in rows} == asdict(Bounds())


def test_the_page_about_laws_lists_every_law_and_its_kits() -> None:
    """The table has each law with its text, the kits that check it, and places that exist."""
    page = (ROOT / "docs/laws.md").read_text()
    row = r'^\| <a id="law-(\d+)"></a>\1 \| \*\*(.*?)\.\*\* (.*?) \| (.*?) \|$'
    rows = re.findall(row, page, re.MULTILINE)
    texts = {int(number): f"{name}: {text}".lower() for number, name, text, _ in rows}
    assert texts == {number: text.lower() for number, text in LAWS.items()}
    for number, _, _, places in rows:
        named = re.findall("`(.*?)`", places)
        checking = [kit.__name__ for kit in kits() if int(number) in kit.laws]
        assert [name for name in named if "/" not in name] == checking
        assert named, f"nothing checks law {number}"
        assert [name for name in named if "/" in name and not (ROOT / name).exists()] == []


def test_each_promise_of_security_names_tests_that_exist() -> None:
    """The table has a test for each promise, and laws by their numbers."""
    lines = (ROOT / "SECURITY.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ") and "---" not in line][1:]
    assert len(rows) > 15
    for *_, laws, tests in rows:
        assert {int(number) for number in re.findall(r"\[(\d+)\]", laws)} <= LAWS.keys()
        named = re.findall("`(.*?)`", tests)
        assert named, tests
        assert [name for name in named if not (ROOT / "tests" / name).exists()] == []


def test_every_law_of_every_kit_has_a_broken_implementation() -> None:
    """The zoo has one for each, and the page lists them all; `python -m tests.testing.laws_page` writes it."""
    broken = {(member.kit, member.law) for member in MEMBERS}
    assert [(kit.__name__, law) for kit in kits() for law in kit.laws if (kit.__name__, law) not in broken] == []
    page = (ROOT / "docs/laws.md").read_text()
    assert [row for row in zoo_rows() if row not in page] == []


@pytest.mark.parametrize(("title", "line"), EXPECTED.items())
def test_the_first_steps_print_their_result(title: str, line: str, tmp_path: Path) -> None:
    """Each first step of the README prints the line that it promises."""
    section = (ROOT / "README.md").read_text().split(f"## {title}\n")[1]
    block = re.search(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert block is not None
    done = subprocess.run(
        [sys.executable, "-c", block.group(1)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONGEST,
        check=True,
    )
    assert line in done.stdout


def test_the_readme_is_short_and_its_commands_exist() -> None:
    """Its prose can be read aloud in three minutes; each `make` that it names is a target, and each `agentloop` a command."""
    readme = (ROOT / "README.md").read_text()
    prose = re.sub(r"^```.*?^```|!\[.*?]\(.*?\)|(?<=])\(.*?\)", "", readme, flags=re.MULTILINE | re.DOTALL)
    assert len(re.findall(r"[\w.'/-]*\w", prose)) <= 500
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(re.findall(r"(?:^|`)make ([\w-]+)", readme, re.MULTILINE)) <= set(targets)
    assert set(re.findall(r"`agentloop ([a-z]+)", readme)) <= set(ENTRIES)


@pytest.mark.parametrize("page", ["README.md", "docs/architecture.md"])
def test_the_size_of_the_kernel_is_that_of_its_rooms(page: str) -> None:
    """Where a page says how large the kernel is, the numbers of lines are right within a tenth."""
    found = re.search(r"(\d+),000 of (?:the )?(\d+),000 lines", (ROOT / page).read_text())
    assert found is not None
    rooms = {
        "compilers",
        "contracts",
        "drivers",
        "errors",
        "events",
        "executors",
        "interception",
        "loop",
        "tools",
        "values",
    }
    lines = {path: path.read_text().count("\n") for path in (ROOT / "agentloop").rglob("*.py")}
    kernel = sum(count for path, count in lines.items() if path.relative_to(ROOT / "agentloop").parts[0] in rooms)
    assert kernel / 1000 == pytest.approx(int(found[1]), rel=0.1)
    assert sum(lines.values()) / 1000 == pytest.approx(int(found[2]), rel=0.1)


def test_the_page_about_interceptors_lists_every_point() -> None:
    """The table of the page has the points of `POINTS`, in their order."""
    page = (ROOT / "docs" / "interceptors.md").read_text().split("## Permissions")[0]
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(POINTS)


def test_the_page_about_interceptors_lists_every_writable_path() -> None:
    """The table of paths has, for each point, exactly the paths that may be changed there."""
    page = (ROOT / "docs" / "interceptors.md").read_text().split("| Points | Paths |")[1].split("`*` is any key")[0]
    listed: dict[str, list[str]] = {name: [] for name in POINTS}
    for points, paths in re.findall(r"^\| ([^|]*) \| (`[^|]*) \|$", page, re.MULTILINE):
        named = re.findall("`(.*?)`", points) or [name for name in POINTS if not name.startswith("around")]
        for name in named:
            listed[name] += re.findall("`(.*?)`", paths)
    assert listed == {name: list(writable_paths(name)) for name in POINTS}


REQUIREMENTS = {
    "000": """
        01 02 03 03b 04 05 06 07str 07int 07float 07bool 07list 07dict 08 09 10 11 12 13 14 15 16 17 18 19 20 21 22
        23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45
    """,
    "001": """
        01 02 03 04 05 06 07 07b 08 09 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 40 41
        42 43 44 45 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65
    """,
    "002": """
        01 02 03 04 05 06 07 08 09 10 11 12 12b 13 14 15 16 17 18 19 20 21a 21r 21n 21s 21x 22 22b 30 30b 31 32 33
        34 35 36 37 38 39 39b 40 41 42 43 50 51 52 53 54 55 56 57 60InferenceRequestStarted
        60InferenceResponseReceived 60ToolCallStarted 60ToolCallCompleted 61 62 63 64 65 66 67 68 69 70
    """,
    "003": """
        01auto 01native 01structured 01validated 01parsed 02/gpt-4o-mini 02/gpt-4o 02/gpt-4.1 02/gpt-4.1-mini 02/o1
        02/o3 02/o3-mini 02/openai/gpt-oss-120b 02/gpt-3.5-turbo 02/gpt-4-turbo 02/gpt-4 02/claude-3-5-sonnet
        02/gemini-1.5-pro 02/mistral-large 02/mistral-7b 02/llama-3-70b 02/meta-llama/llama-3.1-70b 02/qwen2.5-72b
        02/deepseek-chat 02/deepseek-r1 02/local-model 02/anthropic/claude-3-opus 02/google/gemini-pro
        02/mistralai/mistral-large 02/openai/gpt-4o 02/o1-mini 03 04 05 06 07 10 11 12 13 14 15 16 17 18 19 20 21 22
        23 24 25 26 27 28
    """,
    "004": """
        01 02 03 04 05 06 07 08 09 10 10b 11 12 13 14 15 16 16b 17 18 19 20 21 22 23 24 25 25b 26 27 28 29 30 31 32
        33 34 35 36 37 38
    """,
}
"""The ids of all rows, by the document that asks for them."""


def test_the_page_about_requirements_has_every_row_once() -> None:
    """The ids are those of the documents, in their order, and each row is done, as asked or in a way that it names."""
    page = (ROOT / "tests/requirements.md").read_text()
    expected = [f"{document}-{number}" for document, numbers in REQUIREMENTS.items() for number in numbers.split()]
    assert re.findall(r"^\| (\d{3}-\S+) \|", page, re.MULTILINE) == expected
    assert len(expected) == 269
    assert [row[0] for row in requirement_rows()] == expected


_TESTS = r"`[\w/]+\.py`: `[\w\[\]]+`(?:, `[\w\[\]]+`)*(?:<br>`[\w/]+\.py`: `[\w\[\]]+`(?:, `[\w\[\]]+`)*)*"


def requirement_rows() -> list[tuple[str, str, str, str]]:
    """Return the rows of the page about requirements: the id, the requirement, how it is done, and the tests."""
    page = (ROOT / "tests/requirements.md").read_text()
    return re.findall(r"^\| (\d{3}-\S+) \| (.+) \| (as asked|differently: .+) \| (.+) \|$", page, re.MULTILINE)


def test_the_page_about_requirements_names_tests_that_exist() -> None:
    """Each row is shown by tests of the suite, and at least one of them runs without recorded data."""
    missing = []
    for number, _, _, tests in requirement_rows():
        skipped = []
        assert re.fullmatch(_TESTS, tests), number
        for file, names in re.findall(r"`([\w/]+\.py)`: ((?:`[\w\[\]]+`(?:, )?)+)", tests):
            code = (ROOT / "tests" / file).read_text()
            for name, parameter in re.findall(r"`(\w+)(?:\[(\w+)\])?`", names):
                found = re.search(rf"^(?:async )?def test_{name}\((.*?)\) ->", code, re.MULTILINE | re.DOTALL)
                if not found or f'"{parameter}' not in code:
                    missing.append(f"{number}: {file}::{name}[{parameter}]")
                # Recorded data is not part of the repository, and the tests that read it are skipped without it.
                skipped.append(file.endswith("_corpus.py") or (found is not None and "corpus:" in found[1]))
        assert not all(skipped), number
    assert missing == []
