"""The state of an execution at any step is the one that it had then."""

from __future__ import annotations

import pytest

from agentloop import AgentLoop, AgentState, ToolCallingDriver
from agentloop.errors import JournalError, UnknownExecution
from agentloop.interception import RequireApproval
from agentloop.journal import MemoryJournal
from agentloop.values import ExecutionStatus, approve
from tests.loop.recovery_bench import Model
from tests.replay.bench import SCRIPT, Ledger, loop_of, tools


async def test_the_state_at_a_step_is_what_was_yielded_after_it() -> None:
    """For every step, as a value and with all that interceptors wrote."""
    journal, seen = MemoryJournal(), list[AgentState]()
    async for state in loop_of(journal=journal).iterate("go", execution_id="run"):
        seen.append(state)
    for number, state in enumerate(seen[:-1], 1):
        assert await journal.state("run", number) == state
    assert await journal.state("run") == seen[-1]
    begun = await journal.state("run", 0)
    assert (begun.step_count, begun.status, begun.messages) == (0, ExecutionStatus.IN_PROGRESS, seen[0].messages[:1])


async def test_of_a_step_that_waited_the_state_is_that_after_it_was_settled() -> None:
    """Before it is, the one with the open turn."""
    journal = MemoryJournal()
    model = Model([("pay", {"amount": 1})], "Done.")
    loop = AgentLoop(ToolCallingDriver(model), tools(Ledger()), journal=journal, interceptors=[RequireApproval("pay")])
    await loop.execute("go", execution_id="run")
    assert (await journal.state("run", 1)).pending
    await loop.resume("run", {"run/1/0": approve()})
    settled = await journal.state("run", 1)
    assert not settled.pending
    assert settled.steps[0].executions[0].value == "paid 1"


async def test_a_step_that_is_not_there_is_refused() -> None:
    """The error says how many there are."""
    journal = MemoryJournal()
    await loop_of(journal=journal).execute("go", execution_id="run")
    with pytest.raises(JournalError, match=f"no step 7: {len(SCRIPT)} are complete"):
        await journal.state("run", 7)
    with pytest.raises(UnknownExecution):
        await journal.state("other")
