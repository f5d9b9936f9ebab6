"""`agentloop tools`: what is listed, what is checked, for people and for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentloop.cli.sources import tools_from
from tests.cli.conftest import CommandLine

TOOLS = '''
from agentloop import tool, Tool
from agentloop.tools import TypedTool
from agentloop.tools.ensembles import Ensemble
from agentloop.tools.ensembles.summarization import condense

@tool(effect="pure")
def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Slowly.
    """
    return a + b

@tool
def say(text: str) -> str:
    """Say it."""
    return text

speech = Ensemble("speech", [say, condense]).without("condense")
'''
BROKEN = '''
from agentloop import tool
from agentloop.tools import TypedTool

class Half(TypedTool):
    async def use(self, a) -> int:
        return a

@tool(schema={"type": "object", "properties": {"a": {"type": "intger"}}})
def add(a: int) -> int:
    """Add."""
    return a
'''
LIST = """
[ensembles.texts]
use = "agentloop.tools.ensembles.summarization:summarization"
[ensembles.files]
use = "agentloop.tools.ensembles.files:files"
description = "Files."
enabled = false
[ensembles.mine]
use = "tools_command_of_test.tools:speech"
[ensembles.mine.tools.say]
enabled = false
[ensembles.mine.tools.extra]
use = "tools_command_of_test.nothing:x"
description = "More."
enabled = false
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with tools, in a file and as a package."""
    package = tmp_path / "tools_command_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text(TOOLS)
    (package / "raising.py").write_text("import json\n\nx = json.loads('{')\n")
    (tmp_path / "good.py").write_text(TOOLS)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "list.toml").write_text(LIST)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("tools_command_of_test")]:
        del sys.modules[name]


def rows(text: str) -> list[tuple[str, str, str, bool]]:
    return [(row["name"], row["ensemble"], row["effect"], row["enabled"]) for row in json.loads(text)]


@pytest.mark.parametrize("place", ["good.py", "./good.py", "tools_command_of_test.tools"])
def test_tools_of_a_file_or_module_are_listed(command_line: CommandLine, place: str) -> None:
    """Its own tools, and those of its ensembles, switched on or off; not what it imports."""
    ended = command_line("tools", "list", place, "--json")
    assert (ended.code, ended.err) == (0, "")
    assert rows(ended.out) == [
        ("add", "", "pure", True),
        ("say", "", "effect", True),
        ("say", "speech", "effect", True),
        ("condense", "speech", "pure", False),
    ]
    add = json.loads(ended.out)[0]
    assert add["description"] == "Add two numbers.\n\nSlowly."
    assert add["parameters"]["required"] == ["a"]


def test_a_list_of_ensembles_is_listed(command_line: CommandLine) -> None:
    """What is switched off is listed too, and not imported."""
    ended = command_line("tools", "list", "list.toml", "--json", "--allow", "tools_command_of_test")
    assert (ended.code, ended.err) == (0, "")
    assert rows(ended.out) == [
        ("condense", "texts", "pure", True),
        ("", "files", "", False),
        ("say", "mine", "effect", False),
        ("condense", "mine", "pure", False),
        ("extra", "mine", "", False),
    ]


def test_people_get_a_table(command_line: CommandLine) -> None:
    """One line per tool, with the parameters as one would write them."""
    ended = command_line("tools", "list", "good.py")
    assert ended.code == 0
    header, first, *_ = ended.out.splitlines()
    assert header.split() == ["tool", "ensemble", "effect", "offered", "parameters", "description"]
    assert first.split("  ")[0] == "add"
    assert "a: integer, b?: integer" in first
    assert first.rstrip().endswith("Add two numbers.")


@pytest.mark.parametrize(
    ("place", "count"), [("good.py", "4 tools"), ("tools_command_of_test.tools", "4 tools"), ("list.toml", "5 tools")]
)
def test_sound_definitions_have_no_problems(command_line: CommandLine, place: str, count: str) -> None:
    """Then the exit code is 0."""
    (Path.cwd() / "list.toml").write_text(LIST.replace("[ensembles.texts]", "[ensembles.sums]"))
    ended = command_line("tools", "check", place, "--allow", "tools_command_of_test")
    assert ended.code == 0
    assert ended.out.startswith(f"{count}, no problems")
    assert all("warning: " in line for line in ended.err.splitlines())


CLEAR = """
from agentloop import tool

@tool
def find_order(number: int) -> str:
    'Find an order of the shop by the number that the customer was given.'

@tool
def refund(number: int) -> str:
    'Pay the price of an order back to the customer, once.'
"""
VAGUE = (
    CLEAR
    + """
@tool
def find_more(a: int, b: int) -> str:
    'Find an order of the shop by the number that the customer was given.'

@tool
def work(number: int) -> str:
    'Does a task.'
"""
)


def test_clear_descriptions_are_not_warned_of(command_line: CommandLine, folder: Path) -> None:
    """Then nothing is said but how many there are."""
    (folder / "clear.py").write_text(CLEAR)
    ended = command_line("tools", "check", "clear.py")
    assert (ended.code, ended.out, ended.err) == (0, "2 tools, no problems\n", "")


def test_vague_descriptions_are_warned_of(command_line: CommandLine, folder: Path) -> None:
    """Those of single tools and of the whole set, with their places; the exit code is 0."""
    (folder / "vague.py").write_text(VAGUE)
    ended = command_line("tools", "check", "vague.py")
    assert (ended.code, ended.out) == (0, "4 tools, no problems, 3 warnings\n")
    parameters, twin, nothing = ended.err.splitlines()
    assert "vague.py, line 12: find_more: warning: " in parameters
    assert "of which 'a', 'b' have no description" in parameters
    assert "vague.py, line 12: find_more: warning: " in twin
    assert "the tool 'find_more' has the same description as the tool 'find_order'" in twin
    assert "vague.py, line 16: work: warning: the description of the tool 'work' says nothing" in nothing
    told = json.loads(command_line("tools", "check", "vague.py", "--json").out)
    assert (told["tools"], told["problems"]) == (4, [])
    assert [(one["key"], one["line"]) for one in told["warnings"]] == [("find_more", 12)] * 2 + [("work", 16)]


def test_tools_of_several_ensembles_are_compared(command_line: CommandLine, folder: Path) -> None:
    """The same description in two ensembles is warned of where the second is described; not when it is switched off."""
    (folder / "tools_command_of_test" / "vague.py").write_text(VAGUE)
    use = 'use = "tools_command_of_test.vague:{}"'
    text = f"[ensembles.a]\n{use.format('find_order')}\n[ensembles.b]\n{use.format('find_more')}\n"
    for switch, twins in (("", 1), ("tools.find_more.enabled = false\n", 0)):
        (folder / "x.toml").write_text(text + switch)
        ended = command_line("tools", "check", "x.toml", "--json", "--allow", "tools_command_of_test")
        found = [one for one in json.loads(ended.out)["warnings"] if "the same description" in one["message"]]
        assert (ended.code, len(found)) == (0, twins)
        assert all((one["key"], one["line"]) == ("ensembles.b.use", 4) for one in found)


def test_problems_come_before_warnings(command_line: CommandLine, folder: Path) -> None:
    """A file with both ends with 1 and tells both; of a definition that is wrong there is no warning."""
    (folder / "both.py").write_text(BROKEN + VAGUE.replace("from agentloop import tool", ""))
    ended = command_line("tools", "check", "both.py", "--json")
    told = json.loads(ended.out)
    assert (ended.code, len(told["problems"]), len(told["warnings"])) == (1, 2, 3)
    lines = command_line("tools", "check", "both.py").err.splitlines()
    assert ["warning" in line for line in lines] == [False, False, True, True, True]


def test_a_deduplicator_of_a_program_is_no_problem(command_line: CommandLine, folder: Path) -> None:
    """What a program gives is not known here."""
    use = 'use = "agentloop.tools.ensembles.summarization:summarization"'
    (folder / "x.toml").write_text(f'[ensembles.a]\n{use}\ndeduplicator = "of my program"\n')
    ended = command_line("tools", "check", "x.toml")
    assert (ended.code, ended.out) == (0, "1 tool, no problems\n")


def test_problems_of_a_file_are_told(command_line: CommandLine) -> None:
    """Each with file, name and line; the exit code is 1."""
    ended = command_line("tools", "check", "broken.py", "--json")
    assert (ended.code, ended.err) == (1, "")
    problems = json.loads(ended.out)["problems"]
    assert [(Path(one["file"]).name, one["key"], one["line"]) for one in problems] == [
        ("broken.py", "Half", 5),
        ("broken.py", "add", 9),
    ]
    assert "the parameter 'a' has no type hint" in problems[0]["message"]
    assert "not a valid JSON Schema" in problems[1]["message"]
    told = command_line("tools", "check", "broken.py")
    assert (told.code, told.out) == (1, "")
    assert "broken.py, line 9: add: " in told.err


@pytest.mark.parametrize(
    ("source", "line", "told"),
    [
        ("from agentloop import tool\n\n@tool\ndef f(a) -> int:\n    '''F.'''\n", 3, "no type hint"),
        ("x = (1", 1, "SyntaxError"),
        ("\nimport no_such_package_of_test", 2, "ModuleNotFoundError"),
        ("raise SystemExit(3)", 1, "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_has_a_problem(
    command_line: CommandLine, source: str, line: int, told: str
) -> None:
    """Where it raised is told."""
    (Path.cwd() / "bad.py").write_text(source)
    for command in ("check", "list"):
        ended = command_line("tools", command, "bad.py")
        assert ended.code == 1
        assert f"bad.py, line {line}: " in ended.err
        assert told in ended.err


def test_a_module_that_raises_has_a_problem(command_line: CommandLine) -> None:
    """With the line of its own at which it did."""
    ended = command_line("tools", "check", "tools_command_of_test.raising")
    assert ended.code == 1
    assert "raising.py, line 3: JSONDecodeError" in ended.err


@pytest.mark.parametrize(
    ("text", "line", "key", "told"),
    [
        (LIST, 9, "ensembles.mine.use", "is not among those that the program allows"),
        ('[ensembles.x]\nuse = "os:system"', 2, "ensembles.x.use", "the module 'os' is not among"),
        ('[ensembles.x]\nuse = "tools_command_of_test.raising:x"', 2, "ensembles.x.use", "could not be imported"),
        ('[ensembles.x]\nuse = "tools_command_of_test.tools:sya"', 2, "ensembles.x.use", "did you mean 'say'?"),
        ("[ensembles.x]\ntimout = 3\n", 2, "ensembles.x.timout", "did you mean 'timeout'?"),
        ("[ensembles.x\n", 1, "", "this is not TOML"),
        ('name = "x"\nuse = "tools_command_of_test.tools:add"\ntimeout = -1', 3, "timeout", "more than 0"),
    ],
)
def test_problems_of_a_descriptor_are_told(
    command_line: CommandLine, text: str, line: int, key: str, told: str
) -> None:
    """With file, key and line, whether they are in the text or in what it names; the exit code is 1."""
    Path("x.toml").write_text(text)
    allow = () if text is LIST else ("--allow", "tools_command_of_test")
    ended = command_line("tools", "check", "x.toml", "--json", *allow)
    assert ended.code == 1
    problems = [one for one in json.loads(ended.out)["problems"] if told in one["message"]]
    assert (Path(problems[0]["file"]).name, problems[0]["line"], problems[0]["key"]) == ("x.toml", line, key)


def test_two_ensembles_with_one_name_of_a_tool_are_a_problem(command_line: CommandLine, folder: Path) -> None:
    """They could not be given to one loop."""
    use = 'use = "agentloop.tools.ensembles.summarization:summarization"'
    (folder / "x.toml").write_text(f"[ensembles.a]\n{use}\n[ensembles.b]\n{use}")
    ended = command_line("tools", "check", "x.toml")
    assert ended.code == 1
    assert "two tools are named 'condense'" in ended.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("list", "none.py"), "there is no file none.py"),
        (("check", "none.toml"), "there is no file none.toml"),
        (("check", "no_such_module_of_test"), "there is no module 'no_such_module_of_test'"),
        (("check", "tools_command_of_test.none"), "there is no module 'tools_command_of_test.none'"),
        (("check", "a-b c"), "neither a file that is there nor the name of a module"),
        (("check", "tools_command_of_test"), None),
        (("list", "json"), "json has no tools"),
        (("list", "list.toml", "--allow", "a b"), "allow lists modules"),
        (("check", "."), "neither a file that is there"),
    ],
)
def test_what_is_asked_for_in_a_wrong_way_ends_with_2(
    command_line: CommandLine, arguments: tuple[str, ...], told: str | None
) -> None:
    """A missing file or module, an allow-list that is none; a module without tools has none to check."""
    ended = command_line("tools", *arguments)
    if told is None:
        assert (ended.code, ended.out) == (0, "0 tools, no problems\n")
    else:
        assert ended.code == 2
        assert told in ended.err


def test_what_modules_print_does_not_spoil_the_output(command_line: CommandLine, folder: Path) -> None:
    """It goes to stderr, so that a machine can read stdout; what would move a cursor is spelled out."""
    (folder / "loud.py").write_text("print('hello')\n" + TOOLS.replace("Say it.", "Say \\x1b[2J it."))
    ended = command_line("tools", "list", "loud.py", "--json")
    assert len(json.loads(ended.out)) == 4
    assert ended.err == "hello\n"
    assert "\x1b" not in command_line("tools", "list", "loud.py").out


def test_an_ensemble_of_a_file_can_be_run_with() -> None:
    """`--tools file.py:name` takes an ensemble as it takes a tool."""
    found = tools_from(["good.py:speech", "good.py:add"])
    assert found.names == ("say", "add")
    assert [group.name for group in found.groups] == ["speech"]
