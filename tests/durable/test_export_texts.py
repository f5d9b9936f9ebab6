"""Recorded texts are literals in an exported test, never code."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal, pytest_source
from agentloop.durable.export import SourceWriter
from agentloop.errors import UnknownExecution
from agentloop.values.json import freeze, parse_json
from tests.durable.exported import record_execution, run_test
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
    """Hostile texts in questions, answers, arguments, results, errors, names and ids are reproduced as they are."""

    @tool(name="t", description=text or "-")
    def echo(text: str) -> str:
        """Echo."""
        if len(text) % 2:
            raise ValueError(text)
        return text

    call = ToolCall(text[:50], "t").with_arguments({"text": text.replace("\ud800", "")})
    answer = text or "done"  # an empty answer is asked for again
    script = ScriptedInference([text, call, ToolCall("2", text[:60] or "n", text)], answer)
    journal = MemoryJournal()
    loop = AgentLoop.for_model(script, tools=[echo], journal=journal, system_prompt=text)
    execution_id = f"id {text[:100]}".replace("\ud800", "")  # a journal refuses lone surrogates in ids
    state = await loop.execute(text, execution_id=execution_id)
    source = pytest_source(await journal.read(execution_id), execution_id)
    source.encode("utf-8")
    await asyncio.to_thread(run_test, source)
    assert state.final_text == answer


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_json_values_have_an_equivalent_source(data: object) -> None:
    """Evaluating the source of a JSON value returns an equal value."""
    value = freeze(data)
    source = SourceWriter().source(value)
    assert freeze(eval(source, {"parse_json": parse_json})) == value  # the source under test


def test_deeply_nested_json_is_written_as_text() -> None:
    """JSON that is too deep for Python's parser is written as a call of `parse_json`."""
    data: object = 1
    for level in range(62):
        data = [{"a": data}] if level % 2 else {"b": [data]}
    writer = SourceWriter()
    source = writer.source(freeze(data))
    assert writer.uses_json
    assert freeze(eval(source, {"parse_json": parse_json})) == freeze(data)  # the source under test


async def test_pytest_runs_an_exported_file_alone(tmp_path: Path) -> None:
    """In an empty folder, without the journal and the program, pytest collects one test, and it passes."""

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
    output, _ = await asyncio.wait_for(process.communicate(), LONGEST)
    assert (process.returncode, b"1 passed" in output) == (0, True), output.decode()


def test_an_export_needs_records() -> None:
    """An export without records raises UnknownExecution."""
    with pytest.raises(UnknownExecution):
        pytest_source([], "e1")


@pytest.mark.parametrize("depth", [30, 31, 32, 150])
def test_only_json_of_few_levels_is_written_as_literals(depth: int) -> None:
    """From 31 levels on, all of it is one text, so that no source is nested deeper than Python's parser permits."""
    data: object = 1
    for _ in range(depth):
        data = [data]
    source = SourceWriter().source(freeze(data))
    assert source.startswith("parse_json(") is (depth > 30)
    assert freeze(eval(source, {"parse_json": parse_json})) == freeze(data)  # the source under test


@pytest.mark.parametrize("innermost", [[], {}], ids=["list", "object"])
def test_an_empty_list_or_object_is_a_level(innermost: object) -> None:
    """The parser of Python nests it as deep as one with items."""
    data = innermost
    for _ in range(29):
        data = [data]
    assert not SourceWriter().source(freeze(data)).startswith("parse_json(")
    assert SourceWriter().source(freeze([data])).startswith("parse_json(")


@pytest.mark.parametrize("question", ["What is it?", ""])
@pytest.mark.parametrize("system_prompt", ["Be brief.", ""])
def test_a_new_state_is_written_as_its_start(question: str, system_prompt: str) -> None:
    """The call has the question, the system prompt and the agent, so that it starts the same state at another time."""
    state = AgentState.start(question, system_prompt=system_prompt, agent_id="ada")
    source = SourceWriter().source(state)
    assert source.startswith("AgentState.start(")
    started = eval(source, {"AgentState": AgentState})  # the source under test
    assert evolve(started, created_at=state.created_at, updated_at=state.updated_at) == state


def test_a_long_text_is_written_in_lines() -> None:
    """A text that does not fit into a line is several literals; a short one is one."""
    text = "a few words " * 30
    source = SourceWriter().source([text], "    ")
    assert max(map(len, source.splitlines())) <= 120
    assert eval(source) == [text]  # the source under test
    assert SourceWriter().source("short") == "'short'"


async def test_a_row_that_does_not_fit_into_a_line_is_written_in_lines() -> None:
    """Texts that are short alone and long together are one per line; others share a line."""

    @tool(effect="pure")
    def look(x: str) -> str:
        """Look."""
        return x

    short, long = ToolCall("1", "look", '{"x": "lamp"}'), ToolCall("2", "look", f'{{"x": "{"l" * 60}"}}')
    loop = AgentLoop.for_model(ScriptedInference(short, long, "done"), tools=[look])
    _, source, _ = await record_execution(loop)
    lines = source.partition("assert calls == ")[2].splitlines()
    assert """        ('look', '{"x": "lamp"}', 'succeeded', 'lamp'),""" in lines
    assert f"            '{'l' * 60}'," in lines
    await asyncio.to_thread(run_test, source)
