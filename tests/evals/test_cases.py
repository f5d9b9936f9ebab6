"""Cases: from values, files and journals, and back into files that people review."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentloop import AgentLoop, Message, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.errors import ConfigurationError, InvalidParameter, UnknownExecution
from agentloop.evals import Case, CaseCall, CaseOrigin, Cases


@tool(effect="pure")
def look_up(word: str) -> str:
    """Look a word up."""
    return word.upper()


def test_cases_are_read_from_the_file_that_they_were_written_to(tmp_path: Path) -> None:
    """Each case is one line, with all that it has; comments and empty lines are left out."""
    cases = Cases(
        [
            Case(name="plain", input="Hello", tags=["short", "easy"], expected={"answer": "Hi"}),
            Case(name="message", input=Message.user("Look."), dependencies={"user": "mia"}),
            Case(
                name="known",
                input="x",
                calls=[CaseCall(name="pay", arguments={"cents": 5}, value="paid"), CaseCall(name="pay")],
            ),
            Case(name="recorded", origin=CaseOrigin(execution_id="run-1", at_step=2, last_hash="abc")),
        ]
    )
    path = tmp_path / "cases.jsonl"
    path.write_text(f"# reviewed\n\n{cases.to_jsonl()}")
    assert Cases.from_jsonl(path) == cases
    assert (
        cases.to_jsonl().splitlines()[0]
        == '{"name":"plain","input":"Hello","tags":["short","easy"],"expected":{"answer":"Hi"}}'
    )


def test_a_line_that_is_no_case_is_named(tmp_path: Path) -> None:
    """The error has the file, the line, and the closest key."""
    path = tmp_path / "cases.jsonl"
    path.write_text('{"name": "a"}\n{"name": "b", "expect": {}}\n')
    with pytest.raises(
        ConfigurationError, match=r"cases\.jsonl:2: a case has .*, and no 'expect', did you mean 'expected'\?"
    ):
        Cases.from_jsonl(path)
    path.write_text('{"input": "a"}\n')
    with pytest.raises(ConfigurationError, match=r"cases\.jsonl:1: a case needs a name"):
        Cases.from_jsonl(path)
    path.write_text('{"name": "a"\n')
    with pytest.raises(ConfigurationError, match=r"cases\.jsonl:1: "):
        Cases.from_jsonl(path)


def test_a_table_is_cases(tmp_path: Path) -> None:
    """Cells of expectations are JSON or text, and empty cells are none."""
    path = tmp_path / "cases.csv"
    path.write_text(
        'name,input,tags,expected.answer,expected.calls\nfirst,"Say ""hi""",a b,hi,"[""greet""]"\n,Bye,,,\n'
    )
    assert Cases.from_csv(path) == Cases(
        [
            Case(name="first", input='Say "hi"', tags=["a", "b"], expected={"answer": "hi", "calls": ["greet"]}),
            Case(name="line 3", input="Bye"),
        ]
    )
    path.write_text("name,inptu\na,b\n")
    with pytest.raises(ConfigurationError, match=r"cases.csv:2: there is no column 'inptu'"):
        Cases.from_csv(path)


def test_names_are_unique() -> None:
    """A result tells cases apart by their names."""
    with pytest.raises(InvalidParameter, match="2 cases are named 'a'"):
        Cases([Case(name="a"), Case(name="a", input="x")])
    with pytest.raises(InvalidParameter, match="did you mean 'refund'"):
        Cases([Case(name="refund")]).named("refnud")


def test_the_version_is_that_of_the_content() -> None:
    """It changes with everything but the name, and not with the order of keys."""
    case = Case(name="a", input="x", expected={"b": 1, "c": 2})
    assert case.version == Case(name="other", input="x", expected={"c": 2, "b": 1}).version
    others = [
        Case(name="a", input="y"),
        Case(name="a", input="x", expected={"b": 1, "c": 3}),
        Case(name="a", input="x", tags=["t"]),
    ]
    assert len({case.version, *[other.version for other in others]}) == 4


async def test_recorded_executions_are_cases() -> None:
    """Whole executions, or each decision of their models; without sub-agents, forks and trials."""
    journal = MemoryJournal()
    model = ScriptedInference(ToolCall("1", "look_up", '{"word": "a"}'), "done")
    loop = AgentLoop.for_model(model, tools=[look_up], journal=journal, name="clerk")
    helper = AgentLoop.for_model(ScriptedInference("helped")).as_tool("helper", "Helps.")
    boss = AgentLoop.for_model(
        ScriptedInference(ToolCall("1", "helper", '{"task": "a"}'), "done"), tools=[helper], journal=journal
    )
    await loop.execute("Look a up", execution_id="one")
    await loop.execute("Look b up", execution_id="evals/s/c/x/0")
    await boss.execute("Ask", execution_id="two")
    assert len(await journal.list()) == 4
    whole = await Cases.from_journal(journal)
    assert {(case.name, case.text, case.tags) for case in whole} == {
        ("one", "Look a up", ("clerk",)),
        ("two", "Ask", ()),
    }
    (head,) = [head for head in await journal.list() if head.execution_id == "one"]
    decisions = await Cases.from_journal(
        journal, where=lambda head: head.agent_name == "clerk", each_decision=True, tags=["seen"]
    )
    assert [(case.name, case.origin, case.tags) for case in decisions] == [
        (f"one#{step + 1}", CaseOrigin(execution_id="one", at_step=step, last_hash=head.last_hash), ("clerk", "seen"))
        for step in (0, 1)
    ]
    assert [case.name for case in await Cases.from_journal(journal, where=["two"])] == ["two"]
    with pytest.raises(UnknownExecution, match="three"):
        await Cases.from_journal(journal, where=["three"])
