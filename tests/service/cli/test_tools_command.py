"""`agentloop tools list` and `agentloop tools check`, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentloop.service.cli.sources import load_tools
from tests.service.cli.conftest import CommandLine

TOOLS = '''
from agentloop import tool, Tool
from agentloop.toolkits import Ensemble
from agentloop.toolkits.summarization import condense
from agentloop.tools import TypedTool

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
use = "agentloop.toolkits.summarization:summarization"
[ensembles.files]
use = "agentloop.toolkits.files:files"
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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with tools, in a file and in a package."""
    package = tmp_path / "tools_command_of_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "tools.py").write_text(TOOLS)
    (package / "raising.py").write_text("import json\n\nx = json.loads('{')\n")
    (tmp_path / "good.py").write_text(TOOLS)
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "list.toml").write_text(LIST)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(text: str) -> list[tuple[str, str, str, bool]]:
    return [(row["name"], row["ensemble"], row["effect"], row["enabled"]) for row in json.loads(text)]


@pytest.mark.parametrize("place", ["good.py", "./good.py", "tools_command_of_test.tools"])
def test_tools_of_a_file_or_module_are_listed(command_line: CommandLine, place: str) -> None:
    """The defined tools and those of ensembles are listed, enabled or disabled; imported tools are not."""
    result = command_line("tools", "list", place, "--json")
    assert (result.code, result.err) == (0, "")
    assert rows(result.out) == [
        ("add", "", "pure", True),
        ("say", "", "effect", True),
        ("say", "speech", "effect", True),
        ("condense", "speech", "pure", False),
    ]
    add = json.loads(result.out)[0]
    assert add["description"] == "Add two numbers.\n\nSlowly."
    assert add["parameters"]["required"] == ["a"]


def test_a_list_of_ensembles_is_listed(command_line: CommandLine) -> None:
    """Disabled tools and ensembles are listed without being imported."""
    result = command_line("tools", "list", "list.toml", "--json", "--allow", "tools_command_of_test")
    assert (result.code, result.err) == (0, "")
    assert rows(result.out) == [
        ("condense", "texts", "pure", True),
        ("", "files", "", False),
        ("say", "mine", "effect", False),
        ("condense", "mine", "pure", False),
        ("extra", "mine", "", False),
    ]


def test_the_list_is_a_table_by_default(command_line: CommandLine) -> None:
    """The table has one line per tool, with formatted parameters."""
    result = command_line("tools", "list", "good.py")
    assert result.code == 0
    header, first, *_ = result.out.splitlines()
    assert header.split() == ["tool", "ensemble", "effect", "offered", "parameters", "description"]
    assert first.split("  ")[0] == "add"
    assert "a: integer, b?: integer" in first
    assert first.rstrip().endswith("Add two numbers.")


@pytest.mark.parametrize(
    ("place", "count"), [("good.py", "4 tools"), ("tools_command_of_test.tools", "4 tools"), ("list.toml", "5 tools")]
)
def test_valid_definitions_have_no_problems(command_line: CommandLine, place: str, count: str) -> None:
    """Valid definitions exit with 0, apart from warnings."""
    (Path.cwd() / "list.toml").write_text(LIST.replace("[ensembles.texts]", "[ensembles.sums]"))
    result = command_line("tools", "check", place, "--allow", "tools_command_of_test")
    assert result.code == 0
    assert result.out.startswith(f"{count}, no problems")
    assert all("warning: " in line for line in result.err.splitlines())


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


def test_clear_descriptions_have_no_warnings(command_line: CommandLine, folder: Path) -> None:
    """Clear descriptions produce no output but the number of tools."""
    (folder / "clear.py").write_text(CLEAR)
    result = command_line("tools", "check", "clear.py")
    assert (result.code, result.out, result.err) == (0, "2 tools, no problems\n", "")


def test_vague_descriptions_have_warnings(command_line: CommandLine, folder: Path) -> None:
    """Vague and duplicate descriptions are warnings with their places, and the exit code is 0."""
    (folder / "vague.py").write_text(VAGUE)
    result = command_line("tools", "check", "vague.py")
    assert (result.code, result.out) == (0, "4 tools, no problems, 3 warnings\n")
    parameters, duplicate, vague = result.err.splitlines()
    assert "vague.py, line 12: find_more: warning: " in parameters
    assert "of which 'a', 'b' have no description" in parameters
    assert "vague.py, line 12: find_more: warning: " in duplicate
    assert "the tool 'find_more' has the same description as the tool 'find_order'" in duplicate
    assert "vague.py, line 16: work: warning: the description of the tool 'work' says nothing" in vague
    data = json.loads(command_line("tools", "check", "vague.py", "--json").out)
    assert (data["tools"], data["problems"]) == (4, [])
    assert [(warning["key"], warning["line"]) for warning in data["warnings"]] == [("find_more", 12)] * 2 + [
        ("work", 16)
    ]


def test_tools_of_several_ensembles_are_compared(command_line: CommandLine, folder: Path) -> None:
    """A description that two ensembles share is a warning at the second one, unless the tool is disabled."""
    (folder / "tools_command_of_test" / "vague.py").write_text(VAGUE)
    use = 'use = "tools_command_of_test.vague:{}"'
    text = f"[ensembles.a]\n{use.format('find_order')}\n[ensembles.b]\n{use.format('find_more')}\n"
    for suffix, count in (("", 1), ("tools.find_more.enabled = false\n", 0)):
        (folder / "x.toml").write_text(text + suffix)
        result = command_line("tools", "check", "x.toml", "--json", "--allow", "tools_command_of_test")
        warnings = json.loads(result.out)["warnings"]
        duplicates = [warning for warning in warnings if "the same description" in warning["message"]]
        assert (result.code, len(duplicates)) == (0, count)
        assert all((warning["key"], warning["line"]) == ("ensembles.b.use", 4) for warning in duplicates)


def test_problems_come_before_warnings(command_line: CommandLine, folder: Path) -> None:
    """A file with both exits with 1 and prints both; an invalid definition has no warning."""
    (folder / "both.py").write_text(BROKEN + VAGUE.replace("from agentloop import tool", ""))
    result = command_line("tools", "check", "both.py", "--json")
    data = json.loads(result.out)
    assert (result.code, len(data["problems"]), len(data["warnings"])) == (1, 2, 3)
    lines = command_line("tools", "check", "both.py").err.splitlines()
    assert ["warning" in line for line in lines] == [False, False, True, True, True]


def test_a_deduplicator_of_a_program_is_no_problem(command_line: CommandLine, folder: Path) -> None:
    """A deduplicator that only the program knows is accepted."""
    use = 'use = "agentloop.toolkits.summarization:summarization"'
    (folder / "x.toml").write_text(f'[ensembles.a]\n{use}\ndeduplicator = "of my program"\n')
    result = command_line("tools", "check", "x.toml")
    assert (result.code, result.out) == (0, "1 tool, no problems\n")


def test_problems_of_a_file_are_reported(command_line: CommandLine) -> None:
    """Each problem has its file, name and line, and the exit code is 1."""
    result = command_line("tools", "check", "broken.py", "--json")
    assert (result.code, result.err) == (1, "")
    problems = json.loads(result.out)["problems"]
    assert [(Path(problem["file"]).name, problem["key"], problem["line"]) for problem in problems] == [
        ("broken.py", "Half", 5),
        ("broken.py", "add", 9),
    ]
    assert "the parameter 'a' has no type hint" in problems[0]["message"]
    assert "not a valid JSON Schema" in problems[1]["message"]
    text = command_line("tools", "check", "broken.py")
    assert (text.code, text.out) == (1, "")
    assert "broken.py, line 9: add: " in text.err


@pytest.mark.parametrize(
    ("source", "line", "message"),
    [
        ("from agentloop import tool\n\n@tool\ndef f(a) -> int:\n    '''F.'''\n", 3, "no type hint"),
        ("x = (1", 1, "SyntaxError"),
        ("\nimport no_such_package_of_test", 2, "ModuleNotFoundError"),
        ("raise SystemExit(3)", 1, "SystemExit: 3"),
    ],
)
def test_a_file_that_cannot_be_imported_has_a_problem(
    command_line: CommandLine, source: str, line: int, message: str
) -> None:
    """The problem has the line that raised."""
    (Path.cwd() / "bad.py").write_text(source)
    for command in ("check", "list"):
        result = command_line("tools", command, "bad.py")
        assert result.code == 1
        assert f"bad.py, line {line}: " in result.err
        assert message in result.err


def test_a_module_that_raises_has_a_problem(command_line: CommandLine) -> None:
    """The problem has the innermost line of the module itself."""
    result = command_line("tools", "check", "tools_command_of_test.raising")
    assert result.code == 1
    assert "raising.py, line 3: JSONDecodeError" in result.err


@pytest.mark.parametrize(
    ("text", "line", "key", "message"),
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
def test_problems_of_a_descriptor_are_reported(
    command_line: CommandLine, text: str, line: int, key: str, message: str
) -> None:
    """Each problem has its file, key and line, whether it is in the text or in the code that the text names."""
    Path("x.toml").write_text(text)
    allow = () if text is LIST else ("--allow", "tools_command_of_test")
    result = command_line("tools", "check", "x.toml", "--json", *allow)
    assert result.code == 1
    problems = [problem for problem in json.loads(result.out)["problems"] if message in problem["message"]]
    assert (Path(problems[0]["file"]).name, problems[0]["line"], problems[0]["key"]) == ("x.toml", line, key)


def test_a_tool_name_in_two_ensembles_is_a_problem(command_line: CommandLine, folder: Path) -> None:
    """Two ensembles with a tool of one name are a problem, because one loop cannot use both."""
    use = 'use = "agentloop.toolkits.summarization:summarization"'
    (folder / "x.toml").write_text(f"[ensembles.a]\n{use}\n[ensembles.b]\n{use}")
    result = command_line("tools", "check", "x.toml")
    assert result.code == 1
    assert "two tools are named 'condense'" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("list", "none.py"), "there is no file none.py"),
        (("check", "none.toml"), "there is no file none.toml"),
        (("check", "no_such_module_of_test"), "there is no module 'no_such_module_of_test'"),
        (("check", "tools_command_of_test.none"), "there is no module 'tools_command_of_test.none'"),
        (("check", "a-b c"), "neither an existing file nor the name of a module"),
        (("check", "tools_command_of_test"), None),
        (("list", "json"), "json has no tools"),
        (("list", "list.toml", "--allow", "a b"), "allow lists modules"),
        (("check", "."), "neither an existing file"),
    ],
)
def test_usage_errors_exit_with_2(command_line: CommandLine, arguments: tuple[str, ...], message: str | None) -> None:
    """A missing file or module and an invalid allow-list are usage errors; a module without tools has no problems."""
    result = command_line("tools", *arguments)
    if message is None:
        assert (result.code, result.out) == (0, "0 tools, no problems\n")
    else:
        assert result.code == 2
        assert message in result.err


def test_output_of_modules_goes_to_stderr(command_line: CommandLine, folder: Path) -> None:
    """What a module prints goes to stderr, and control characters in descriptions are escaped."""
    (folder / "loud.py").write_text("print('hello')\n" + TOOLS.replace("Say it.", "Say \\x1b[2J it."))
    result = command_line("tools", "list", "loud.py", "--json")
    assert len(json.loads(result.out)) == 4
    assert result.err == "hello\n"
    assert "\x1b" not in command_line("tools", "list", "loud.py").out


def test_a_run_can_use_an_ensemble_of_a_file() -> None:
    """`--tools file.py:name` accepts an ensemble as well as a tool."""
    tools = load_tools(["good.py:speech", "good.py:add"])
    assert tools.names == ("say", "add")
    assert [group.name for group in tools.groups] == ["speech"]


def test_a_check_audits_what_tools_declare(
    command_line: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guards of a loop are not known, so that only limits and repetitions are holes; two tools may have one name."""
    monkeypatch.chdir(tmp_path)
    Path("declared.py").write_text(
        "from agentloop import tool\nfrom agentloop.values import RetryPolicy\n\n"
        '@tool(retry=RetryPolicy(3), timeout=2.0)\ndef pay() -> str:\n    """Pay."""\n    return \'\'\n'
    )
    result = command_line("tools", "check", "declared.py", "--audit", "--json")
    (row,) = json.loads(result.out)["audit"]["tools"]
    assert (result.code, [hole["kind"] for hole in row["holes"]]) == (0, ["uncounted", "repeated"])
    text = command_line("tools", "check", "declared.py", "--audit")
    assert "repeated: pay: a failed call runs again" in text.out
