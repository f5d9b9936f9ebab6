"""Records and replays every execution of a test: `pytest --replay-runs`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState
from agentloop.contracts import CanJournal
from agentloop.durable import MemoryJournal, replay
from agentloop.durable.replaying.replays import Replay
from agentloop.loop.recording import Unrecorded

NOT_REPLAYABLE = {
    "test_a_removed_tool_leaves_its_call_in_doubt": "the tool was removed",
    "test_an_agent_whose_tool_was_away_continues_from_its_records": "the tool was removed",
    "test_a_program_whose_tool_was_away_keeps_its_outcomes": "the tool was removed",
    "test_a_decision_about_a_masked_call_of_an_agent_is_used": "the decided call is masked in the journal",
    "test_a_started_call_resumes_with_its_recorded_arguments": "interceptors were added",
    "test_the_recorded_effect_of_a_call_counts": "the effect of a tool changed",
    "test_an_event_without_listeners_is_not_built": "its bus fails when events are built",
    "test_an_unwritable_journal_is_reported": "there is no journal to read",
    "test_messages_sent_during_an_execution": "an interceptor sends messages into the execution, which has ended",
    "test_a_message_sent_during_an_inference_follows_its_response_after_a_crash": "an interceptor sends messages into the execution",
    "test_calls_of_an_unrecorded_response_are_settled_before_the_next_inference": "the response is masked in the journal",
    "test_an_execution_that_its_user_stopped_is_compared_up_to_the_stop": "the token stays cancelled",
    "test_a_change_by_a_skipped_interceptor_is_explained": "the interceptor is skipped",
}
"""Tests that resume an execution with changed code, or whose code cannot run twice, with the reason."""


@contextmanager
def recorded_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[CanJournal, str, AgentLoop, Any]]]:
    """Record every execution of a test, each in its own journal where the loop has none."""
    runs: list[tuple[CanJournal, str, AgentLoop, Any]] = []
    bind = AgentLoop._bind

    async def bind_recorded(self: AgentLoop, state: AgentState, dependencies: Any, **parts: Any) -> Any:
        loop = self if self.journal is not None else self.replace(journal=MemoryJournal())
        assert loop.journal is not None
        runs.append((loop.journal, state.execution_id, self, dependencies))
        bound = await bind(self, state, dependencies, **parts)
        # A loop without a log runs with a journal of the test; handoffs start at the loop itself, as without one.
        if isinstance(bound.recording, Unrecorded):
            recorded = await bind(loop, state, dependencies, **parts)
            recorded.in_charge = evolve(recorded.in_charge, root=self)
            return recorded
        return bound

    monkeypatch.setattr(AgentLoop, "_bind", bind_recorded)
    yield runs


async def _replay_each(runs: list[tuple[CanJournal, str, AgentLoop, Any]]) -> list[Replay]:
    replays: dict[tuple[int, str], Replay] = {}
    for journal, execution_id, loop, dependencies in runs:
        if (id(journal), execution_id) in replays or await journal.head(execution_id) is None:
            continue
        replays[id(journal), execution_id] = await replay(journal, execution_id, loop, dependencies=dependencies)
    return list(replays.values())


def check_runs(runs: list[tuple[CanJournal, str, AgentLoop, Any]]) -> None:
    """Replay the recorded executions with the loops that ran them, and check that nothing differs."""
    replays = asyncio.run(_replay_each(runs))
    differences = [each.explain() for each in replays if not each.is_equal]
    assert not differences, "\n".join(differences)
