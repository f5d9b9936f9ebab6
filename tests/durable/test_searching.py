"""Looking for executions by what their summaries and their records say."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState, ScriptedInference, ToolCall, tool
from agentloop.durable import MemoryJournal
from agentloop.durable.searching import ExecutionQuery, search_executions
from agentloop.errors import ConfigurationError, ToolInDoubt
from agentloop.loop import Identity
from agentloop.testing.clocks import ManualClock


@tool
def pay(cents: int) -> str:
    """Pay."""
    if cents < 0:
        raise ToolInDoubt("the bank gave no answer")
    return f"receipt {cents}"


async def find(journal: MemoryJournal, **query: Any) -> list[str]:
    return [head.execution_id async for head, _ in search_executions(journal, ExecutionQuery(**query))]


@pytest.fixture
async def journal() -> MemoryJournal:
    journal, clock = MemoryJournal(), ManualClock()
    for number, (cents, who, name) in enumerate([(5, "ada", "shop"), (-1, "bob", "bank"), (7, "ada", "bank")]):
        model = ScriptedInference(ToolCall("1", "pay", f'{{"cents": {cents}}}'), f"Answer {number}")
        loop = AgentLoop.for_model(model, tools=[pay], journal=journal, name=name, clock=clock)
        await loop.execute(
            f"Question {number}", execution_id=f"run-{number}", principal=Identity(who, tenant=who.upper())
        )
        clock.advance(3600)
    return journal


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({}, [2, 1, 0]),
        ({"agent_name": "bank"}, [2, 1]),
        ({"statuses": ("failed",)}, []),
        ({"statuses": ("completed", "interrupted")}, [2, 1, 0]),
        ({"principal": "ada"}, [2, 0]),
        ({"tenant": "BOB"}, [1]),
        ({"tenant": "bob"}, []),
        ({"has_doubts": True}, [1]),
        ({"text": "question 2"}, [2]),
        ({"text": "ANSWER 1"}, [1]),
        ({"text": "receipt 5"}, [0]),
        ({"text": '"cents": 7'}, [2]),
        ({"text": "nowhere"}, []),
        ({"principal": "ada", "agent_name": "bank"}, [2]),
    ],
)
async def test_a_query_finds(journal: MemoryJournal, query: dict[str, Any], found: list[int]) -> None:
    assert await find(journal, **query) == [f"run-{number}" for number in found]


async def test_a_query_for_times(journal: MemoryJournal) -> None:
    heads = {head.execution_id: head for head in await journal.list()}
    middle = heads["run-1"].updated_at
    assert await find(journal, since=middle) == ["run-2", "run-1"]
    assert await find(journal, before=middle) == ["run-0"]
    assert await find(journal, since=middle, before=middle + timedelta(seconds=1)) == ["run-1"]


async def test_a_query_for_tags() -> None:
    journal = MemoryJournal()
    metadata: Mapping[str, object]
    for name, metadata in (("one", {"case": "a"}), ("two", {"case": "b", "lane": 3}), ("three", {})):
        loop = AgentLoop.for_model(ScriptedInference("Done"), journal=journal)
        await loop.execute(AgentState.start("go").with_metadata(**metadata), execution_id=name)
    assert await find(journal, tags=(("case", ""),)) == ["two", "one"]
    assert await find(journal, tags=(("case", "b"), ("lane", "3"))) == ["two"]


async def test_an_execution_with_damaged_records_is_left_out_of_a_search_that_needs_them(
    journal: MemoryJournal,
) -> None:
    assert await find(journal, text="question") == ["run-2", "run-1", "run-0"]
    records = journal._records["run-1"]
    records[1] = evolve(records[1], body="{")
    assert await find(journal, text="question") == ["run-2", "run-0"]
    assert len(await find(journal)) == 3


async def test_a_search_goes_on_behind_a_cursor(journal: MemoryJournal) -> None:
    heads = await journal.list()
    rest = [head.execution_id async for head, _ in search_executions(journal, ExecutionQuery(), after=heads[0].cursor)]
    assert rest == ["run-1", "run-0"]
    with pytest.raises(ConfigurationError, match="is not a cursor"):
        await anext(search_executions(journal, ExecutionQuery(), after="x"))
