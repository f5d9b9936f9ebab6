"""Tools from Python files, and ensembles from TOML files."""

from __future__ import annotations

import ast
import importlib.util
import py_compile
import sys
from pathlib import Path

import pytest

import agentloop
from agentloop.errors import ConfigurationError, ToolDefinitionError
from agentloop.service.cli.folder_modules import PACKAGES
from agentloop.service.cli.sources import load_loop, load_tools
from tests.service.cli.conftest import CommandLine

TWO_TOOLS = '''
from agentloop import tool

@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b

@tool
def double(a: int) -> int:
    """Double."""
    return add(a, a)

def plain(a: int) -> int:
    """No tool."""
    return a

CHOSEN = [double, add]
MIXED = (add, plain)
NUMBER = 7
also_add = add
'''


def _written(folder: Path, source: str, name: str = "tools.py") -> str:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return str(path)


def test_a_file_offers_the_tools_it_defines(tmp_path: Path) -> None:
    """Without a name, every tool of the file is loaded once, in the order of definition."""
    assert load_tools([_written(tmp_path, TWO_TOOLS)]).names == ("add", "double")


def test_a_name_picks_one_tool(tmp_path: Path) -> None:
    """The name of a tool selects this tool."""
    assert load_tools([_written(tmp_path, TWO_TOOLS) + ":double"]).names == ("double",)


def test_a_name_picks_a_list(tmp_path: Path) -> None:
    """The name of a list selects its tools, in its order."""
    assert load_tools([_written(tmp_path, TWO_TOOLS) + ":CHOSEN"]).names == ("double", "add")


def test_a_tool_named_twice_is_loaded_once(tmp_path: Path) -> None:
    """A file named twice is imported once, so its tools are the same objects."""
    place = _written(tmp_path, TWO_TOOLS)
    assert load_tools([place + ":double", place]).names == ("double", "add")


def test_imported_tools_are_not_offered(tmp_path: Path) -> None:
    """Tools that a file imports are not offered, and the file can import its neighbors."""
    _written(tmp_path, TWO_TOOLS, "blocks_of_test.py")
    source = (
        TWO_TOOLS.replace("def add", "def sum_up").replace("return add", "return sum_up").partition("\ndef plain")[0]
    )
    place = _written(tmp_path, "from blocks_of_test import add, double as twice\n" + source)
    before = list(sys.path)
    assert load_tools([place]).names == ("sum_up", "double")
    assert sys.path == before


def test_a_file_never_replaces_a_package(tmp_path: Path) -> None:
    """A file of tools with the name of a package does not replace the package."""
    import httpx  # noqa: PLC0415  # the package that must stay

    load_tools([_written(tmp_path, TWO_TOOLS, "httpx.py")])
    assert sys.modules["httpx"] is httpx


# --- modules of the folder ------------------------------------------------------------------------------------------

USING = """
from agentloop import tool
{imports}

@tool(effect="pure")
def look() -> str:
    'Look.'
    {body}
"""


def _looked(place: str) -> object:
    """Return what the tool `look` of a file returns."""
    (tool,) = load_tools([place])
    return tool.function()  # type: ignore[attr-defined]  # it is made of a function


@pytest.mark.parametrize(
    ("imports", "body"),
    [
        ("import beside_of_test", "return beside_of_test.NAME"),
        ("", "import beside_of_test; return beside_of_test.NAME"),
        ("from beside_of_test.below import NAME", "return NAME"),
        ("import beside_of_test.below as below", "return below.NAME"),
        ("from importlib import import_module", "return import_module('beside_of_test').NAME"),
        ("", "import threading_of_test; return threading_of_test.NAME"),
    ],
    ids=["module", "when it runs", "from a package", "as", "by its name", "of a neighbor"],
)
def test_a_file_imports_its_neighbors(tmp_path: Path, imports: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules and packages beside a file are found for its code, also when a tool runs, and for the code of its neighbors."""
    for name in ("beside_of_test", "beside_of_test.below", "threading_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "beside_of_test").mkdir()
    _written(tmp_path / "beside_of_test", "from .below import NAME", "__init__.py")
    _written(tmp_path / "beside_of_test", "NAME = 'beside'", "below.py")
    _written(tmp_path, "from beside_of_test import NAME", "threading_of_test.py")
    assert _looked(_written(tmp_path, USING.format(imports=imports, body=body))) == "beside"
    assert str(tmp_path) not in sys.path


def test_a_neighbor_stands_for_no_other_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that is installed or standard is imported although a file of its name is there, and is so by everybody."""
    for name in ("colorsys", "tenacity", "lonely_of_test"):
        monkeypatch.delitem(sys.modules, name, raising=False)
        _written(tmp_path, "raise SystemExit('the neighbor')", f"{name}.py")
    imports = "import colorsys, tenacity"
    place = _written(tmp_path, USING.format(imports=imports, body="return colorsys.__file__ + tenacity.__file__"))
    assert str(tmp_path) not in str(_looked(place))
    # A library looks for a module that it can do without.
    assert importlib.util.find_spec("lonely_of_test") is None


def test_a_neighbor_is_not_taken_for_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the name of a package that agentloop can use is not that package, and the message says so."""
    for finder in sys.meta_path[:-1]:
        monkeypatch.setattr(finder, "find_spec", _without(finder.find_spec, "orjson"))
    monkeypatch.delitem(sys.modules, "orjson", raising=False)
    _written(tmp_path, "NAME = 'beside'", "orjson.py")
    with pytest.raises(ConfigurationError, match=r"No module named 'orjson'; orjson.py has the name of a package that"):
        load_tools([_written(tmp_path, "import orjson")])


def _without(find_spec: object, missing: str) -> object:
    return lambda name, *others: None if name == missing else find_spec(name, *others)  # type: ignore[operator]


def test_the_source_of_a_file_is_executed(tmp_path: Path) -> None:
    """Compiled files are not: they can hold other code than the source that a person has read."""
    _written(tmp_path, "NAME = 'read'", "compiled_of_test.py")
    place = _written(tmp_path, USING.format(imports="import compiled_of_test", body="return compiled_of_test.NAME"))
    for file in (tmp_path / "tools.py", tmp_path / "compiled_of_test.py"):
        other = _written(tmp_path, file.read_text().replace("read", "hidden").replace("Look.", "Hidden."), "other.txt")
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(other, importlib.util.cache_from_source(str(file)), invalidation_mode=mode)
    (tool,) = load_tools([place])
    assert (tool.description, tool.function()) == ("Look.", "read")  # type: ignore[attr-defined]  # as above


def test_a_module_that_a_file_names_is_imported_for_the_program_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the folder allows the modules beside it that the file of its agent names."""
    monkeypatch.chdir(tmp_path)
    _written(tmp_path, TWO_TOOLS, "allowed_of_test.py")
    _written(tmp_path, 'model = "ollama:x"\nsystem_prompt = "x"\ntools = ["allowed_of_test:CHOSEN"]', "agent.toml")
    text = "from agentloop import AgentLoop\nloop = AgentLoop.from_file('agent.toml', allow=['allowed_of_test'])"
    _written(tmp_path, text, "reading_of_test.py")
    assert load_loop("reading_of_test:loop").tools.names == ("double", "add")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "tools check named.toml",
            "neighbor_of_test.py is in this folder; if it is to be imported, name it with --allow neighbor_of_test",
        ),
        (
            "tools check below/uses.py",
            "neighbor_of_test.py is in this folder; name it with --allow neighbor_of_test, or, for a",
        ),
        (
            "worker below/uses.py:loop",
            "neighbor_of_test.py is in this folder; name it with --allow neighbor_of_test, or, for a",
        ),
        ("worker colorsys:loop", "colorsys.py; the loop of colorsys.py in this folder is colorsys.py:loop"),
        ("tools check colorsys", "which precedes colorsys.py in this folder, has no tools; name the file colorsys.py"),
    ],
)
def test_a_module_that_nobody_named_is_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine, line: str, message: str
) -> None:
    """A message says that the folder has the module, and how a person names it."""
    monkeypatch.chdir(tmp_path)
    _written(tmp_path, "loop = 1", "colorsys.py")
    _written(tmp_path, TWO_TOOLS, "neighbor_of_test.py")
    _written(tmp_path, '[ensembles.mine]\nuse = "neighbor_of_test:add"', "named.toml")
    (tmp_path / "below").mkdir()
    _written(tmp_path / "below", "import neighbor_of_test", "uses.py")
    assert message in command_line(*line.split()).err
    assert "neighbor_of_test" not in sys.modules


def test_a_part_that_a_module_lacks_is_not_said_to_be_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    """The module itself was found, so there is nothing to name."""
    monkeypatch.chdir(tmp_path)
    _written(tmp_path, "", "whole_of_test.py")
    result = command_line("worker", "whole_of_test.part:loop")
    assert "No module named 'whole_of_test.part'" in result.err
    assert "in this folder" not in result.err


def test_the_other_packages_are_those_that_the_package_imports() -> None:
    """Each package that some file imports or looks for is listed, and no other."""
    found = set()
    for path in Path(agentloop.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            found |= {name.partition(".")[0] for name in _imported_names(node)}
    assert found - sys.stdlib_module_names - {"agentloop"} == PACKAGES


def _imported_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names):
            return [alias.name for alias in names]
        case ast.ImportFrom(str(module), _, 0):
            return [module]
        case ast.Call(ast.Name("find_spec" | "import_module"), [ast.Constant(str(name)), *_]):
            return [name]
    return []


def test_two_tools_with_one_name_are_rejected(tmp_path: Path) -> None:
    """Two different tools cannot have the same name."""
    places = [_written(tmp_path, TWO_TOOLS), _written(tmp_path, TWO_TOOLS, "others.py")]
    with pytest.raises(ToolDefinitionError, match="two tools are named 'add'"):
        load_tools(places)


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        (
            TWO_TOOLS,
            ":plain",
            r"tools.py:plain is the plain function plain, not a tool; decorate it with @agentloop.tool",
        ),
        (TWO_TOOLS, ":MIXED", r"item 2 of .*tools.py:MIXED is the plain function plain"),
        (TWO_TOOLS, ":NUMBER", r"tools.py:NUMBER is of type int, not a tool"),
        (TWO_TOOLS, ":duoble", r"there is no 'duoble' in .*tools.py; did you mean 'double'\?"),
        ("from agentloop import Tool as T", ":T", r"tools.py:T is the class Tool, not a tool; name an instance"),
        ("x = 1", "", r"tools.py defines no tools; decorate functions in it with @agentloop.tool"),
        ("x = 1\ny = x / 0", "", r"cannot be imported: ZeroDivisionError: division by zero \(.*tools.py, line 2\)"),
        ("x = (1", "", r"cannot be imported: SyntaxError: .* \(.*tools.py, line 1\)"),
        ("import no_such_package_", "", r"cannot be imported: ModuleNotFoundError: .*no_such_package_.* line 1\)"),
        ("import sys\nsys.exit(3)", "", r"cannot be imported: SystemExit: 3 \(.*tools.py, line 2\)"),
        ("assert False", "", r"cannot be imported: AssertionError \(.*tools.py, line 1\)"),
        (
            "from agentloop import tool\n\n@tool\ndef f(a): ...",
            "",
            r"ToolDefinitionError: f\(\) cannot be a tool: .*\(.*tools.py, line 3\)",
        ),
    ],
)
def test_an_unusable_file_is_reported(tmp_path: Path, source: str, name: str, message: str) -> None:
    """The message names the file and what is wrong in it."""
    with pytest.raises(ConfigurationError, match=message):
        load_tools([_written(tmp_path, source) + name])


def test_an_error_in_an_imported_neighbor_is_reported_with_its_place(tmp_path: Path) -> None:
    """The message names the line of the neighbor that raised."""
    _written(tmp_path, "x = 1\n\nx = undefined_name", "broken_of_test.py")
    with pytest.raises(ConfigurationError, match=r"NameError: .*broken_of_test.py, line 3"):
        load_tools([_written(tmp_path, "import broken_of_test")])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.py", r"there is no file .*absent.py; name a Python or TOML file"),
        ("", r"is not a file"),
        ("notes.txt", r"notes.txt is not a Python file: its name must end in .py"),
    ],
)
def test_a_path_without_a_python_file_is_reported(tmp_path: Path, name: str, message: str) -> None:
    """A missing file, a folder and another kind of file are rejected."""
    _written(tmp_path, "no code", "notes.txt")
    with pytest.raises(ConfigurationError, match=message):
        load_tools([str(tmp_path / name)])


# --- TOML files -----------------------------------------------------------------------------------------------------

LISTED = """
[ensembles.texts]
use = "agentloop.toolkits.summarization:summarization"
[ensembles.chance]
use = "agentloop.toolkits.probability:probability"
tools.draw_items.enabled = false
[ensembles.mine]
use = "tool_files_of_test:CHOSEN"
"""
ALLOW = ["tool_files_of_test"]


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a module of tools and a list of ensembles."""
    _written(tmp_path, TWO_TOOLS, "tool_files_of_test.py")
    _written(tmp_path, LISTED, "list.toml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("working_folder")
def test_the_ensembles_of_a_list_are_loaded() -> None:
    """All ensembles are loaded, or the named one; disabled tools are not offered."""
    everything = load_tools(["list.toml"], ALLOW)
    assert [group.name for group in everything.groups] == ["texts", "chance", "mine"]
    chance = ("describe_numbers", "draw_numbers", "count_selections", "binomial_probability", "normal_probability")
    assert everything.names == ("condense", *chance, "double", "add")
    assert load_tools(["list.toml:texts"], ALLOW).names == ("condense",)


def test_a_file_of_one_ensemble_is_loaded(working_folder: Path) -> None:
    """A TOML file of one ensemble is combined with tools of a Python file."""
    _written(working_folder, 'use = "agentloop.toolkits.summarization:summarization"', "short.toml")
    assert load_tools(["short.toml", "tool_files_of_test.py:double"]).names == ("condense", "double")


@pytest.mark.parametrize(
    ("text", "place", "allow", "message"),
    [
        (LISTED, "x.toml", [], "x.toml, line 8: ensembles.mine.use: the module 'tool_files_of_test' is not among"),
        (LISTED, "x.toml", ["a b"], "allow lists modules such as 'myapp.tools', not 'a b'"),
        (LISTED, "x.toml:text", ALLOW, "there is no ensemble 'text' in .*x.toml; did you mean 'texts'"),
        (LISTED, "none.toml", ALLOW, "there is no file .*none.toml"),
        ("timout = 3", "x.toml", [], "line 1: timout: there is no such key; did you mean 'timeout'"),
        (LISTED + "deduplicator = 'mine'", "x.toml", ALLOW, "the program has no deduplicator 'mine'"),
        ('use = "broken_of_test:x"', "x.toml", ["broken_of_test"], "'x' of .*x.toml has failed: .*OSError: no driver"),
    ],
    ids=["not allowed", "no modules", "no ensemble", "no file", "key", "deduplicator", "import"],
)
def test_unusable_descriptors_are_reported(
    working_folder: Path, text: str, place: str, allow: list[str], message: str
) -> None:
    """The message is that of `agentloop tools check`."""
    _written(working_folder, text, "x.toml")
    _written(working_folder, "raise OSError('no driver')", "broken_of_test.py")
    with pytest.raises(ConfigurationError, match=message):
        load_tools([place], allow)
