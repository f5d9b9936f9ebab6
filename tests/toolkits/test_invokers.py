"""Ensembles described by [ensemble], [defaults] and [[invokers]]: what they mean, and each mistake with its line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import agentloop
from agentloop import AgentLoop, ScriptedInference, ToolCall, ToolExecutor, tool
from agentloop.errors import InvalidDescriptor, ToolDefinitionError
from agentloop.policies import Resilience
from agentloop.toolkits import Ensemble, load_ensembles
from agentloop.toolkits.ensemble import EnsembleFactory, read_descriptors
from agentloop.toolkits.import_path import SHORT_NAMES, ImportPath
from agentloop.values.policies import RetryPolicy
from tests.toolkits.running import executions, run_call, run_calls

MODULE = '''
from agentloop import tool

TRIES = []


@tool(effect="pure")
def read_file(path: str, lines: int = 10) -> str:
    """Read a file."""
    return f"{path} {lines}"


@tool(effect="idempotent")
def put_file(path: str) -> str:
    """Put a file."""
    TRIES.append(path)
    if len(TRIES) < 3:
        raise OSError("busy")
    return f"{path} after {len(TRIES)}"


@tool
def send_file(path: str) -> str:
    """Send a file."""
    TRIES.append(path)
    raise OSError("busy")


def plain(path: str) -> str:
    return path
'''
ALLOW = ["invokers_of_test"]
REQUIRED = """\
[ensemble]
name = "io"
enabled = true
[defaults]
timeout = 30
max_retries = 3
[[invokers]]
name = "read_file"
use = "invokers_of_test:read_file" # an import path
enabled = true
description = "Read contents of a file"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the module invokers_of_test, which can be imported."""
    (tmp_path / "invokers_of_test.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "io.toml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(folder: Path, text: str, **options: Any) -> Ensemble:
    return Ensemble.from_toml(write(folder, text), **{"allow": ALLOW, **options})


@tool(effect="pure")
def read_file(path: str, encoding: str = "utf-8") -> str:
    """Read a file."""
    return f"{path} in {encoding}"


@tool
def write_file(path: str, text: str) -> str:
    """Write a file."""
    return f"{path}: {text}"


@tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return path


BY_NAME = """\
[ensemble]
name = "io"
enabled = true

[[invokers]]
name = "read_file"
enabled = true
description = "Read contents of a file"

[[invokers]]
name = "write_file"
enabled = true
description = "Write content to a file"
"""
BY_SOURCE = """\
[ensemble]
name = "io"
enabled = true

[defaults]
timeout = 30
max_retries = 3

[[invokers]]
source = "io/invokers/read_file.toml"

[[invokers]]
source = "io/invokers/write_file.toml"
"""
READ_FILE = """\
[invoker]
name = "read_file"
enabled = true
description = "Read contents of a file"

[arguments]
type = "object"
required = ["path"]

[arguments.properties.path]
type = "string"
description = "Absolute path to file"

[arguments.properties.encoding]
type = "string"
description = "File encoding"
default = "utf-8"
"""
WRITE_FILE = """\
[invoker]
name = "write_file"
enabled = true
description = "Write content to a file"
"""


async def test_a_file_without_import_paths_describes_the_tools_of_the_program(folder: Path) -> None:
    """Each invoker is the tool of its name, with the description of the file; other tools of the program are left out."""
    path = write(folder, BY_NAME, "data/ensembles/io.toml")
    io = Ensemble.from_toml(path, tools=[read_file, write_file, delete_file])
    assert [(tool.name, tool.description) for tool in io.offered] == [
        ("read_file", "Read contents of a file"),
        ("write_file", "Write content to a file"),
    ]
    assert (await run_call([io], "write_file", path="a", text="b")).value == "a: b"


async def test_invokers_in_files_of_their_own_describe_the_tools_of_the_program(folder: Path) -> None:
    """The arguments of the file are the parameters that a model sees, with their defaults; those of the ensemble hold for each."""
    write(folder, READ_FILE, "data/ensembles/io/invokers/read_file.toml")
    write(folder, WRITE_FILE, "data/ensembles/io/invokers/write_file.toml")
    io = Ensemble.from_toml(write(folder, BY_SOURCE, "data/ensembles/io.toml"), tools=[write_file, read_file])
    read, written = io.offered
    assert (read.name, read.policy.timeout, read.policy.retry) == ("read_file", 30, RetryPolicy(max_attempts=4))
    assert (written.name, written.policy.timeout, written.policy.retry) == ("write_file", 30, None)
    assert read.parameters["properties"]["encoding"] == {
        "type": "string",
        "description": "File encoding",
        "default": "utf-8",
    }
    assert (await run_call([io], "read_file", path="/a")).value == "/a in utf-8"
    assert "encodings" in str((await run_call([io], "read_file", path="/a", encodings="x")).error_message)


def test_every_form_names_tools_of_the_program(folder: Path) -> None:
    """Tables of tools and lists of ensembles do as well; an import path comes first, and a disabled tool is left out."""
    tables = "[tools.read_file]\ntimeout = 2\n[tools.write_file]\nenabled = false\n"
    (read,) = load(folder, tables, tools=[read_file, write_file]).offered
    assert (read.name, read.policy.timeout) == ("read_file", 2)
    listed = "[ensembles.a.tools.read_file]\n[ensembles.b]\nsource = 'io.toml'\n[ensembles.b.tools.write_file]\nenabled = true"
    one, other = load_ensembles(write(folder, listed, "list.toml"), tools=[read_file, write_file], trust=True)
    assert [tool.name for tool in (*one.offered, *other.offered)] == ["read_file", "read_file", "write_file"]
    (imported,) = load(folder, REQUIRED, tools=[read_file]).offered
    assert "lines" in imported.parameters["properties"]


def test_functions_and_groups_are_tools_of_the_program_as_well(folder: Path) -> None:
    """The list is the list that a loop takes."""

    def write_file(path: str) -> str:
        """Write."""
        return path

    io = load(folder, BY_NAME, tools=[Ensemble("files", [read_file]), write_file])
    assert [tool.name for tool in io.offered] == ["read_file", "write_file"]
    with pytest.raises(TypeError, match="put it in brackets"):
        load(folder, BY_NAME, tools=read_file)
    with pytest.raises(ToolDefinitionError, match="two tools are named 'read_file'"):
        load(folder, BY_NAME, tools=[read_file, read_file])


def test_a_tool_that_the_program_does_not_pass_is_a_mistake(folder: Path) -> None:
    """The message names the entry, the ways to say where the tool comes from, and the closest tool of the program."""
    with pytest.raises(InvalidDescriptor) as raised:
        load(folder, BY_NAME, tools=[read_file, tool(name="write_files")(write_file.function)])
    ((_, key, line, message),) = raised.value.mistakes
    assert (key, line) == ("invokers[1]", 10)
    assert "let the program pass a tool 'write_file' in tools=[…]; did you mean 'write_files'?" in message


def test_a_file_makes_a_tool_of_the_program_stricter_only(folder: Path) -> None:
    """A file is as much of a stranger's word where the tool is the program's own."""
    with pytest.raises(InvalidDescriptor, match=r"line 14: invokers\[1\]\.effect: .*code says 'effect'"):
        load(folder, f'{BY_NAME}effect = "pure"\n', tools=[read_file, write_file])
    trusted = load(folder, f'{BY_NAME}effect = "pure"\n', tools=[read_file, write_file], trust=True)
    assert [tool.effect.value for tool in trusted.offered] == ["pure", "pure"]


async def test_the_required_form_loads_as_it_stands(folder: Path) -> None:
    """Name, policy and description are those of the file, and the tool runs."""
    io = load(folder, REQUIRED)
    (tool,) = io.offered
    assert (io.name, tool.name, tool.description) == ("io", "read_file", "Read contents of a file")
    assert tool.policy.timeout == 30
    assert tool.policy.retry == RetryPolicy(max_attempts=4)
    assert (await run_call([io], "read_file", path="a")).value == "a 10"


async def test_an_invoker_has_a_file_of_its_own(folder: Path) -> None:
    """Its file names import path, parameters and policy; the keys of the entry win over those of the file."""
    write(
        folder,
        """
        [invoker]
        name = "read"
        use = "invokers_of_test:read_file"
        description = "From the file."
        timeout = 2
        defaults = { lines = 3 }
        [arguments.properties.path]
        type = "string"
        maxLength = 2
        [arguments.properties.lines]
        type = "integer"
        """,
        "io/invokers/read.toml",
    )
    text = """
        [ensemble]
        name = "io"
        [defaults]
        timeout = 30
        [[invokers]]
        source = "io/invokers/read.toml"
        description = "From the entry."
        [[invokers]]
        name = "again"
        source = "io/invokers/read.toml"
        timeout = 9
    """
    io = load(folder, text)
    read, again = io.offered
    assert (read.name, read.description, read.policy.timeout) == ("read", "From the entry.", 2)
    assert (again.name, again.description, again.policy.timeout) == ("again", "From the file.", 9)
    assert (await run_call([io], "read", path="a")).value == "a 3"
    assert "too long" in str((await run_call([io], "read", path="abc")).error_message)


async def test_retries_are_for_pure_and_idempotent_tools_only(folder: Path) -> None:
    """A call that failed may have taken place, so a tool with an effect is not tried again, whatever the defaults say."""
    text = """
        [ensemble]
        [defaults]
        max_retries = 2
        [[invokers]]
        name = "put_file"
        use = "invokers_of_test:put_file"
        [[invokers]]
        name = "send_file"
        use = "invokers_of_test:send_file"
        max_retries = 5
        [[invokers]]
        name = "send_again"
        use = "invokers_of_test:send_file"
        effect = "idempotent"
        max_retries = 1
    """
    io = load(folder, text, trust=True)
    policies = {tool.name: tool.policy.retry for tool in io.offered}
    assert policies == {"put_file": RetryPolicy(3), "send_file": None, "send_again": RetryPolicy(2)}
    (sent,) = executions(await run_calls([io], ("send_file", {"path": "x"}), interceptors=[Resilience()]))
    assert (sent.has_error, sys.modules["invokers_of_test"].TRIES) == (True, ["x"])


def test_what_is_disabled_is_not_imported(folder: Path) -> None:
    """A disabled ensemble imports nothing; a disabled invoker is listed in the descriptor and not offered."""
    off = load(folder, REQUIRED.replace("enabled = true\n[defaults]", "enabled = false\n[defaults]"))
    assert (off.enabled, off.tools) == (False, ())
    more = '[[invokers]]\nname = "gone"\nuse = "invokers_of_test:not_there"\nenabled = false\n'
    io = load(folder, REQUIRED + more)
    assert [tool.name for tool in io.offered] == ["read_file"]
    (descriptor,) = read_descriptors(folder / "io.toml", allow=ALLOW)
    assert list(descriptor.tools) == ["read_file", "gone"]


# --- mistakes -------------------------------------------------------------------------------------------------------

HEAD = '[ensemble]\nname = "io"\n'
ENTRY = '[[invokers]]\nname = "a"\nuse = "invokers_of_test:read_file"\n'
MISTAKES = [
    (HEAD, "invokers", 0, "the ensemble has no tools"),
    (f"{HEAD}invoker = 1\n{ENTRY}", "ensemble.invoker", 3, "there is no such key"),
    (f"top = 1\n{HEAD}{ENTRY}", "top", 1, "there is no such key"),
    (f"[ensembel]\nx = 1\n{HEAD}{ENTRY}", "ensembel", 1, "did you mean 'ensemble'?"),
    (f'ensemble = "io"\n{ENTRY}', "ensemble", 1, "it has to be a table, not a text"),
    (f"{HEAD}[invokers]\na = 1", "invokers", 3, "it has to be a list, not a table"),
    ('invokers = ["a"]', "invokers[0]", 1, "it has to be a table, not a text"),
    (f"[ensemble]\nname = 3\n{ENTRY}", "ensemble.name", 2, "it has to be a text, not a whole number"),
    (f'[ensemble]\nenabled = "yes"\n{ENTRY}', "ensemble.enabled", 2, "it has to be true or false"),
    (f"{HEAD}[defaults]\ntimeout = -1\n{ENTRY}", "defaults.timeout", 4, "more than 0"),
    (f"{HEAD}[defaults]\ntimeout = nan\n{ENTRY}", "defaults.timeout", 4, "timeout"),
    (f"{HEAD}[defaults]\nmax_retries = -1\n{ENTRY}", "defaults.max_retries", 4, "it has to be from 0 to 1,000"),
    (f"{HEAD}[defaults]\nmax_retries = 1.5\n{ENTRY}", "defaults.max_retries", 4, "a whole number, not a number"),
    (f"{HEAD}[defaults]\nmax_retry = 1\n{ENTRY}", "defaults.max_retry", 4, "did you mean 'max_retries'?"),
    (f'{HEAD}{ENTRY}[[invokers]]\nname = "b"\n', "invokers[1]", 6, "it does not say where the tool comes from"),
    (f'{HEAD}[[invokers]]\nuse = "invokers_of_test:read_file"\n', "invokers[0]", 3, "the invoker has no name"),
    (f"{HEAD}{ENTRY}\n{ENTRY}", "invokers[1].name", 8, "there is another invoker 'a' before it"),
    (f'{HEAD}[[invokers]]\nname = "a"\nuse = "os:system"\n', "invokers[0].use", 5, "not among those that the program"),
    (f'{HEAD}[[invokers]]\nname = "a"\nuse = "files"\n', "invokers[0].use", 5, "is not an import path"),
    (f'{HEAD}{ENTRY}effect = "none"\n', "invokers[0].effect", 6, "is not an effect"),
    (f"{HEAD}{ENTRY}usage = 1\n", "invokers[0].usage", 6, "did you mean 'use'?"),
    (f"{HEAD}{ENTRY}arguments = 1979-05-27\n", "invokers[0].arguments", 6, "it has to be a table, not a date"),
    (f'{HEAD}{ENTRY}[invokers.arguments.properties.b]\ntype = "string"', "invokers[0].arguments", 6, "has 'b'"),
    (f"{HEAD}{ENTRY}defaults = {{ lines = true }}\n", "invokers[0].defaults.lines", 6, "is not of type 'integer'"),
    (
        f'{HEAD}[[invokers]]\nname = "a"\nuse = "invokers_of_test:plain"',
        "invokers[0].use",
        5,
        "is a function, not a tool",
    ),
    (f'{HEAD}[[invokers]]\nname = "a"\nuse = "invokers_of_test:no"', "invokers[0].use", 5, "there is no 'no'"),
    (f'{HEAD}[[invokers]]\nname = "a"\nsource = "../a.toml"', "invokers[0].source", 5, "is outside of the folder"),
    (f'{HEAD}[[invokers]]\nname = "a"\nsource = "/etc/passwd"', "invokers[0].source", 5, "is outside of the folder"),
    (f'{HEAD}[[invokers]]\nname = "a"\nsource = "a\\u0000b"', "invokers[0].source", 5, "is not the path of a file"),
    (f'{HEAD}[[invokers]]\nname = "a"\nsource = "no.toml"', "invokers[0].source", 5, "there is no file"),
    (f'{HEAD}[[invokers]]\nname = "a"\nsource = "io.toml"', "invokers[0].source", 5, "in a circle: io.toml → io.toml"),
    (f'{HEAD}[[invokers]]\nname = "a"\nsource = "link.toml"', "invokers[0].source", 5, "is outside of the folder"),
    (f"{HEAD}{ENTRY}a = = 1", "", 6, "this is not TOML"),
]


@pytest.mark.parametrize(("text", "key", "line", "message"), MISTAKES)
def test_each_mistake_has_its_key_and_line(folder: Path, text: str, key: str, line: int, message: str) -> None:
    """There is one mistake, with the place where it was made and what is wrong."""
    (folder / "inside").mkdir()
    (folder / "secret.toml").write_text(REQUIRED)
    (folder / "inside/link.toml").symlink_to(folder / "secret.toml")
    path = write(folder, text, "inside/io.toml")
    with pytest.raises(InvalidDescriptor) as raised:
        Ensemble.from_toml(path, allow=ALLOW)
    ((file, found_key, found_line, found_message),) = raised.value.mistakes
    assert (file, found_key, found_line) == (str(path), key, line)
    assert message in found_message


SOURCES = [
    ('name = "a"', "name", 1, "there is no such key"),
    ("[invoker]\nsource = 'x'\n", "invoker.source", 2, "there is no such key"),
    ("[invoker]\nuse = 'os:system'\n", "invoker.use", 2, "not among those that the program"),
    ("[invoker]\n\n[argument]\n", "argument", 3, "did you mean 'arguments'?"),
    ("[arguments]\ntype = 'object'\n", "", 0, "has a table [invoker]"),
    ("[invoker\n", "", 1, "this is not TOML"),
    ("[invoker]\n[arguments]\nx = 1979-05-27", "arguments", 2, "dates and times are written as text"),
]


@pytest.mark.parametrize(("text", "key", "line", "message"), SOURCES)
def test_a_mistake_in_the_file_of_an_invoker_is_placed_there(
    folder: Path, text: str, key: str, line: int, message: str
) -> None:
    """The place is in the file of the invoker, not in the one that names it."""
    source = write(folder, text, "a.toml")
    with pytest.raises(InvalidDescriptor) as raised:
        load(folder, f'{HEAD}[[invokers]]\nname = "a"\nsource = "a.toml"')
    file, found_key, found_line, found_message = raised.value.mistakes[0]
    assert (file, found_key, found_line) == (str(source), key, line)
    assert message in found_message


VALUES = st.recursive(
    st.sampled_from(
        ['"a"', "1", "-1", "0.5", "true", "nan", "1979-05-27", '"invokers_of_test:read_file"', '"io.toml"', "[]", "{}"]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2).map(lambda items: f"[{', '.join(items)}]"),
        st.tuples(st.sampled_from(["type", "name", "use", "seconds", "a"]), inner).map(
            lambda pair: f"{{ {pair[0]} = {pair[1]} }}"
        ),
    ),
    max_leaves=4,
)
NAMES = [
    "name",
    "enabled",
    "use",
    "source",
    "description",
    "timeout",
    "max_retries",
    "arguments",
    "defaults",
    "retry",
    "key",
    "cache",
    "invokers",
    "x",
]
TABLES = [
    "",
    "[ensemble]",
    "[defaults]",
    "[[invokers]]",
    "[invoker]",
    "[invokers.arguments]",
    "[tools.a]",
    "[ensembles.a]",
]
LINES = st.lists(
    st.one_of(st.sampled_from(TABLES), st.tuples(st.sampled_from(NAMES), VALUES).map(" = ".join)), max_size=8
)


@given(lines=LINES)
def test_any_file_is_an_ensemble_or_a_list_of_mistakes(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    """No file makes anything but an ensemble or mistakes, each in a line of the file."""
    path = tmp_path_factory.getbasetemp() / "io.toml"
    path.write_text("\n".join(lines))
    try:
        ensemble = Ensemble.from_toml(path, allow=ALLOW)
    except InvalidDescriptor as error:
        found = error.mistakes
    else:
        found = ()
        assert ensemble.name
    assert all(0 <= line <= len(lines) and message for _, _, line, message in found)


@pytest.mark.parametrize("name", SHORT_NAMES)
def test_a_short_name_is_an_ensemble_of_the_package(name: str) -> None:
    """Each short name leads to a marked function, and the page about ensembles has it in its table."""
    assert isinstance(ImportPath.parse(name, SHORT_NAMES).resolve(), EnsembleFactory)
    page = (Path(agentloop.__file__).parents[1] / "docs/ensembles.md").read_text()
    assert f"\n| `{name}` | " in page


def test_a_file_names_the_tool_that_reads_results(folder: Path) -> None:
    """The short name works where a file names a tool, and notices refer to that tool by the name that the file gives it."""
    loaded = load(folder, '[tools.show_rest]\nuse = "read_result"')

    @tool(effect="pure")
    def work() -> str:
        """Return a long text."""
        return "x" * 5_000

    model = ScriptedInference(
        ToolCall("1", "work"), ToolCall("2", "show_rest", '{"reference": "run/1/0", "lines": 1}'), "done"
    )
    loop = AgentLoop.for_model(model, tools=[work, loaded], executor=ToolExecutor(max_result_bytes=600))
    first, second, _ = loop.execute_sync("go", execution_id="run").steps
    assert 'show_rest(reference="run/1/0", from=1) continues' in first.executions[0].text
    assert second.executions[0].text == f"[lines 1 to 1 of 13; next: from=2]\n{'x' * 400}"
    with pytest.raises(InvalidDescriptor, match="did you mean 'read_result'"):
        load(folder, '[tools.x]\nuse = "read_results"')


def test_a_short_name_is_used_in_both_places(folder: Path) -> None:
    """The file of one ensemble and a list of ensembles name it; a misspelled one gets the closest name."""
    assert load(folder, 'use = "probability"').offered
    with pytest.raises(InvalidDescriptor, match=r"line 1: use: .*nothing in the package has this name.* 'probability'"):
        load(folder, 'use = "probabilty"')
