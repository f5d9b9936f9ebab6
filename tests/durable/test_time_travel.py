"""The recorded states of an execution, step by step."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, AgentState, ToolCallingDriver
from agentloop.durable import MemoryJournal
from agentloop.durable.replaying.timeline import Timeline
from agentloop.errors import JournalError, UnknownExecution
from agentloop.interception import RequireApproval
from agentloop.values import ExecutionStatus, InferenceOptions, approve
from agentloop.values.value import reading
from tests.durable.recovery_bench import Model, truncate
from tests.durable.replaying.bench import SCRIPT, Ledger, loop_of, tools


async def test_the_state_at_a_step_is_the_one_yielded_after_it() -> None:
    """For every step, the recorded state equals the state that `iterate` yielded."""
    journal, yielded = MemoryJournal(), list[AgentState]()
    async for state in loop_of(journal=journal).iterate("go", execution_id="run"):
        yielded.append(state)
    for number, state in enumerate(yielded[:-1], 1):
        assert await journal.state("run", number) == state
    assert await journal.state("run") == yielded[-1]
    initial = await journal.state("run", 0)
    assert (initial.step_count, initial.status, initial.messages) == (
        0,
        ExecutionStatus.IN_PROGRESS,
        yielded[0].messages[:1],
    )


async def test_the_state_at_a_suspended_step_is_the_one_after_its_decisions() -> None:
    """Before the decisions are made, it is the state with the pending calls."""
    journal = MemoryJournal()
    model = Model([("pay", {"amount": 1})], "Done.")
    loop = AgentLoop(ToolCallingDriver(model), tools(Ledger()), journal=journal, interceptors=[RequireApproval("pay")])
    await loop.execute("go", execution_id="run")
    assert (await journal.state("run", 1)).pending
    await loop.resume("run", {"run/1/0": approve()})
    settled = await journal.state("run", 1)
    assert not settled.pending
    assert settled.steps[0].executions[0].value == "paid 1"


async def test_a_missing_step_raises_an_error() -> None:
    """The error names the number of complete steps."""
    journal = MemoryJournal()
    await loop_of(journal=journal).execute("go", execution_id="run")
    with pytest.raises(JournalError, match=f"no step 7: {len(SCRIPT)} steps are complete"):
        await journal.state("run", 7)
    with pytest.raises(UnknownExecution):
        await journal.state("other")


@pytest.mark.parametrize("records", [3, None], ids=["interrupted", "complete"])
async def test_options_that_are_refused_today_were_recorded(records: int | None) -> None:
    """A journal of an earlier version is read, shown, and continued by a loop whose options are sound."""
    with reading():  # as a version without these checks declared them
        options = InferenceOptions(temperature=9, top_p=7, stop=["", "END"])
    journal = MemoryJournal()
    calls = [("look", {"n": 1}), ("pay", {"amount": 1})]
    earlier = AgentLoop(ToolCallingDriver(Model(calls, "Done."), options=options), tools(Ledger()), journal=journal)
    done = await earlier.execute("go", execution_id="run")
    written = await journal.read("run")
    if records is not None:
        journal = await truncate(journal, "run", records)
    timeline = Timeline(await journal.read("run"))
    step = timeline.next_step()
    assert step.requests[0].request.options == options
    later = AgentLoop(ToolCallingDriver(Model(calls, "Done.")), tools(Ledger()), journal=journal)
    assert (await later.recover("run")).final_text == done.final_text
    assert any('"temperature":9' in record.body for record in written)
