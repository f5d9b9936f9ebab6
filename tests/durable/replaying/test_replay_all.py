"""Replays of many executions, with progress and a summary."""

from __future__ import annotations

from agentloop import AgentLoop
from agentloop.durable import MemoryJournal, replay_all
from agentloop.durable.replaying.replays import Replay
from agentloop.values import ExecutionHead
from tests.durable.replaying.bench import Ledger, loop_of, tools


async def _four_executions() -> MemoryJournal:
    journal = MemoryJournal()
    for number in range(3):
        await loop_of(journal=journal).execute("go", execution_id=f"run-{number}")
    await loop_of("Nothing is due.", journal=journal).execute("go", execution_id="short")
    return journal


async def test_all_executions_are_replayed_with_progress() -> None:
    """The oldest execution is replayed first, and `on_progress` is awaited after each."""
    reports: list[tuple[int, int, str]] = []

    async def progress(done: int, count: int, each: Replay | None) -> None:
        reports.append((done, count, each.execution_id if each is not None else ""))

    summary = await replay_all(await _four_executions(), loop_of(), on_progress=progress)
    assert reports == [(1, 4, "run-0"), (2, 4, "run-1"), (3, 4, "run-2"), (4, 4, "short")]
    assert (len(summary.equal), len(summary.diverged), summary.not_replayed) == (4, 0, {})
    assert str(summary) == "4 equal, 0 differ, 0 could not be replayed"


async def test_the_summary_counts_differences_by_place() -> None:
    """A change that affects only some executions is counted for those, by the place of the difference."""
    changed = loop_of(tool_list=tools(Ledger()), max_steps=2)
    summary = await replay_all(await _four_executions(), changed)
    assert [each.execution_id for each in summary.equal] == ["short"]
    assert summary.places == {"stop": 3}
    assert "3 at stop" in str(summary)


async def test_executions_can_be_selected_and_each_can_have_its_own_loop() -> None:
    """Executions without a loop or without a record are listed with the reason."""
    journal = await _four_executions()

    def loop_for(head: ExecutionHead) -> AgentLoop | None:
        return loop_of() if head.execution_id == "run-1" else None

    summary = await replay_all(journal, loop_for, executions=["run-1", "run-2", "gone"])
    assert [each.execution_id for each in summary.replays] == ["run-1"]
    assert summary.not_replayed == {"run-2": "there is no loop for it", "gone": "it is not recorded"}


async def test_sub_agents_need_their_own_loops() -> None:
    """A single loop replays only the executions that no other execution started."""
    journal = MemoryJournal()
    child = loop_of("Paid.")
    office = loop_of(
        [("clerk", {"task": "pay"})], "Done.", tool_list=[child.as_tool("clerk", "Pays.")], journal=journal
    )
    await office.execute("go", execution_id="run")
    summary = await replay_all(journal, office)
    assert len(summary.equal) == 1
    assert list(summary.not_replayed) == ["run/1/0/agent"]
    both = await replay_all(journal, lambda head: office if head.parent_agent_id is None else child)
    assert len(both.equal) == 2
