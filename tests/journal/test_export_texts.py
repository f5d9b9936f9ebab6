"""What is recorded stands in an exported test as data, and never as code."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, ScriptedInference, ToolCall, tool
from agentloop.errors import UnknownExecution
from agentloop.journal import MemoryJournal, pytest_source
from agentloop.journal.export import SourceWriter
from agentloop.values.json import freeze, parse_json
from tests.journal.exported import record_execution, run_test
from tests.limits import LONGEST

HOSTILE = [
    "quotes \" and ' and \"\"\" and '''",
    "a backslash \\ and \\n and \\",
    "lines\nand\r\nothers\n\n",
    "```\n\x00\x1b[31m\u2028\u202e\ud800",
    "{braces} %s {0} {{",
    "äöü 漢字 🎉",
    "x" * 50_000,
    '"""\nimport os\nos._exit(7)\n"""',
    "",
    "# coding: rot13",
    "\n".join(["line"] * 400),
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_no_text_becomes_code(text: str) -> None:
    """Whatever stands in questions, answers, arguments, results, errors, names and ids, the file is read as it is meant."""

    @tool(name="t", description=text or "-")
    def echo(said: str) -> str:
        """Echo."""
        if len(said) % 2:
            raise ValueError(said)
        return said

    made = ToolCall(text[:50], "t").with_arguments({"said": text.replace("\ud800", "")})
    script = ScriptedInference([text, made, ToolCall("2", text[:60] or "n", text)], text)
    journal = MemoryJournal()
    loop = AgentLoop.for_model(script, tools=[echo], journal=journal, system_prompt=text)
    name = f"id {text[:100]}".replace("\ud800", "")  # a journal refuses such ids
    state = await loop.execute(text, execution_id=name)
    source = pytest_source(await journal.read(name), name)
    source.encode("utf-8")
    await asyncio.to_thread(run_test, source)
    assert state.final_text == text


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_every_json_is_written_as_what_it_is(data: object) -> None:
    """Evaluated again, the source of JSON gives equal JSON."""
    value = freeze(data)
    source = SourceWriter().source(value)
    assert freeze(eval(source, {"parse_json": parse_json})) == value  # the source that is tested


def test_what_is_nested_deeply_is_written_as_text() -> None:
    """Python's parser would refuse it."""
    data: object = 1
    for _ in range(150):
        data = [{"a": data}] if _ % 2 else {"b": [data]}
        if _ > 60:
            break
    writer = SourceWriter()
    source = writer.source(freeze(data))
    assert writer.uses_json
    assert freeze(eval(source, {"parse_json": parse_json})) == freeze(data)  # the source that is tested


async def test_a_file_is_run_by_pytest_where_there_is_nothing_else(tmp_path: Path) -> None:
    """In an empty folder, with no journal and none of the program, pytest finds one test, and it passes."""

    @tool(effect="pure")
    def look(x: int) -> int:
        """Look."""
        return x * 2

    loop = AgentLoop.for_model(ScriptedInference(ToolCall("1", "look", '{"x": 1}'), ValueError("boom")), tools=[look])
    _, source, _ = await record_execution(loop)
    (tmp_path / "test_exported.py").write_text(source, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE)
    told, _ = await asyncio.wait_for(process.communicate(), LONGEST)
    assert (process.returncode, b"1 passed" in told) == (0, True), told.decode()


def test_there_is_no_test_of_what_is_not_recorded() -> None:
    """Without records there is an error."""
    with pytest.raises(UnknownExecution):
        pytest_source([], "e1")
