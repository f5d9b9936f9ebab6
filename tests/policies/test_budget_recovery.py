"""The usage of leases also counts where the call that gave them does not run again: after a crash, and in a replay."""

from __future__ import annotations

from typing import Any

import pytest

from agentloop import AgentLoop, ToolCallingDriver, tool
from agentloop.durable import replay
from agentloop.models import RunProgram
from agentloop.policies import Budget, current_budget
from agentloop.testing import CrashableJournal
from agentloop.values import RecordKind, StopReason
from tests.durable.recovery_bench import Model
from tests.durable.replaying.bench import Ledger, tools


def ask(caller: str, task: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the turn in which the model calls the sub-agent, or a program that does."""
    if caller == "program":
        return [("run_program", {"code": f"await clerk(task={task!r})"})]
    return [("clerk", {"task": task})]


def create_loop(journal: CrashableJournal | None, caller: str = "model") -> AgentLoop:
    """Return a loop with a sub-agent that uses a lease of its budget."""
    child = AgentLoop(ToolCallingDriver(Model([("look", {"n": 1})], [("look", {"n": 2})], "Seen.")), tools(Ledger()))
    model = Model(ask(caller, "look"), ask(caller, "look again"), "Done.")
    clerk = child.as_tool("clerk", "Looks.", budget_share=1.0)
    loop = AgentLoop(ToolCallingDriver(model), [clerk, RunProgram()], journal=journal)
    return loop.with_interceptors(Budget(steps=6, wrap_up=0))


@pytest.mark.parametrize("caller", ["model", "program"])
async def test_the_usage_of_a_lease_before_a_crash_is_counted_after_it(caller: str) -> None:
    """An execution that crashes after any record of the sub-agent's call reaches the same limit at the same step."""
    journal = CrashableJournal()
    state = await create_loop(journal, caller).execute("go", execution_id="run")
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.STEP_LIMIT
    kinds = [(record.execution_id, record.kind) for record in journal.appended]
    after_the_call = kinds.index(("run", RecordKind.CALL_OUTCOME)) + 1
    for count in range(after_the_call, len(kinds)):
        crashed = await journal.after_crash(count)
        recovered = await create_loop(crashed, caller).recover("run")
        assert recovered.stop_signal == state.stop_signal, count
        assert recovered.step_count == state.step_count
        assert recovered.extensions == state.extensions
        assert recovered.context.metadata == state.context.metadata


@tool(effect="idempotent", sequential=True)
async def left() -> int:
    """Return the number of steps that are left."""
    budget = current_budget()
    assert budget is not None
    return budget.remaining().steps or 0


@pytest.mark.parametrize("caller", ["model", "program"])
async def test_the_usage_of_a_lease_before_a_crash_is_counted_for_the_other_calls_of_its_step(caller: str) -> None:
    """A call that runs after the recovery can lend as much as without the crash, and not what was used before."""

    def with_a_second_call(journal: CrashableJournal) -> AgentLoop:
        model = Model([*ask(caller, "look"), ("left", {})], "Done.")
        loop = create_loop(journal, caller).replace(driver=ToolCallingDriver(model))
        return loop.replace(tools=[*loop.tools, left])

    journal = CrashableJournal()
    state = await with_a_second_call(journal).execute("go", execution_id="run")
    lent, unused = state.steps[0].executions
    assert lent.succeeded
    assert unused.value == 2
    kinds = [(record.execution_id, record.kind) for record in journal.appended]
    for count in range(kinds.index(("run", RecordKind.CALL_INTENT)) + 1, len(kinds)):
        recovered = await with_a_second_call(await journal.after_crash(count)).recover("run")
        assert [execution.value for execution in recovered.steps[0].executions] == [lent.value, 2], count
        assert recovered.extensions == state.extensions


@pytest.mark.parametrize("caller", ["model", "program"])
async def test_the_usage_of_a_lease_is_counted_in_a_replay(caller: str) -> None:
    """The sub-agent's call does not run, and the usage of its lease is read from the record."""
    journal = CrashableJournal()
    await create_loop(journal, caller).execute("go", execution_id="run")
    result = await replay(journal, "run", create_loop(None, caller))
    assert result.is_equal, result.explain()
