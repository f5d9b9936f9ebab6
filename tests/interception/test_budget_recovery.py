"""What was lent to an agent counts also where its call is not run again, after a crash or in a replay."""

from __future__ import annotations

from agentloop import AgentLoop, ToolCallingDriver
from agentloop.interception import Budget
from agentloop.replay import replay
from agentloop.testing import CrashableJournal
from agentloop.values import RecordKind, StopReason
from tests.loop.recovery_bench import Model
from tests.replay.bench import Ledger, tools


def _office(journal: CrashableJournal | None) -> AgentLoop:
    child = AgentLoop(ToolCallingDriver(Model([("look", {"n": 1})], [("look", {"n": 2})], "Seen.")), tools(Ledger()))
    model = Model([("clerk", {"task": "look"})], [("clerk", {"task": "look again"})], "Done.")
    loop = AgentLoop(ToolCallingDriver(model), [child.as_tool("clerk", "Looks.", budget_share=1.0)], journal=journal)
    return loop.with_interceptors(Budget(steps=6, wrap_up=0))


async def test_what_an_agent_used_before_a_crash_is_counted_after_it() -> None:
    """Cut off at any record, the execution comes to the same limit at the same step."""
    journal = CrashableJournal()
    state = await _office(journal).execute("go", execution_id="run")
    assert state.stop_signal is not None
    assert state.stop_signal.reason is StopReason.STEP_LIMIT
    kinds = [(record.execution_id, record.kind) for record in journal.appended]
    after_the_call = kinds.index(("run", RecordKind.CALL_OUTCOME)) + 1
    for count in range(after_the_call, len(kinds)):
        left = await journal.after_crash(count)
        again = await _office(left).recover("run")
        assert again.stop_signal == state.stop_signal, count
        assert again.step_count == state.step_count
        assert again.context.metadata == state.context.metadata


async def test_what_an_agent_used_is_counted_in_a_replay() -> None:
    """Its call is not run, and what it had used is known."""
    journal = CrashableJournal()
    await _office(journal).execute("go", execution_id="run")
    found = await replay(journal, "run", _office(None))
    assert found.is_equal, found.explain()
