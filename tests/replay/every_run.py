"""Recording and replaying every run of a test: `pytest --replay`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import evolve

from agentloop import AgentLoop, AgentState
from agentloop.contracts import CanJournal
from agentloop.journal import MemoryJournal
from agentloop.replay import Replay, replay

CANNOT = {
    "test_a_removed_tool_leaves_its_call_in_doubt": "the tool is gone",
    "test_a_started_call_resumes_with_its_recorded_arguments": "interceptors are new",
    "test_the_recorded_effect_of_a_call_counts": "the effect of a tool is another one",
    "test_an_event_nobody_listens_for_is_not_built": "its bus does not let events be built",
    "test_a_journal_that_cannot_be_written_is_told": "there is no journal to read",
    "test_messages_that_came_in_the_middle": "an interceptor sends messages into the execution, which has ended",
    "test_a_message_sent_during_an_inference_follows_its_response_after_a_crash": "an interceptor sends messages, too",
    "test_calls_of_an_unrecorded_response_are_settled_before_the_next_inference": "the answer was masked",
    "test_a_run_that_its_user_stopped_is_compared_up_to_there": "the token is cancelled for good",
    "test_what_only_one_that_was_left_out_has_written_is_told_as_such": "it is left out",
}
"""Tests that go on with a run under other code than it began with, or whose code cannot run again, and why."""


@contextmanager
def recorded_runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[CanJournal, str, AgentLoop, Any]]]:
    """Give every loop that runs a journal, unless it has one, and note what it ran; each run has a journal of its own."""
    runs: list[tuple[CanJournal, str, AgentLoop, Any]] = []
    begin = AgentLoop._bind

    def begin_recorded(self: AgentLoop, state: AgentState, dependencies: Any, **parts: Any) -> Any:
        loop = self if self.journal is not None else self.with_journal(MemoryJournal())
        assert loop.journal is not None
        runs.append((loop.journal, state.execution_id, self, dependencies))
        made = begin(self, state, dependencies, **parts)
        if made.log is None:
            given = begin(loop, state, dependencies, **parts)
            given.handoffs = evolve(given.handoffs, root=self)
            return given
        return made

    monkeypatch.setattr(AgentLoop, "_bind", begin_recorded)
    yield runs


async def _replayed(runs: list[tuple[CanJournal, str, AgentLoop, Any]]) -> list[Replay]:
    done: dict[tuple[int, str], Replay] = {}
    for journal, execution_id, loop, dependencies in runs:
        if (id(journal), execution_id) in done or await journal.head(execution_id) is None:
            continue
        done[id(journal), execution_id] = await replay(journal, execution_id, loop, dependencies=dependencies)
    return list(done.values())


def check_runs(runs: list[tuple[CanJournal, str, AgentLoop, Any]]) -> None:
    """Replay what was recorded with the code that ran; nothing may differ."""
    found = asyncio.run(_replayed(runs))
    differ = [one.explain() for one in found if not one.is_equal]
    assert not differ, "\n".join(differ)
