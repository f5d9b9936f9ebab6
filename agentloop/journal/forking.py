"""Forks: executions that begin in the middle of another one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalConflict
from agentloop.journal.chain import verify_records
from agentloop.journal.deltas import state_delta
from agentloop.journal.fold import state_in
from agentloop.journal.fork_effects import ForkPolicy
from agentloop.journal.record_writer import RecordWriter, new_head
from agentloop.values.decisions import PendingCall
from agentloop.values.json import thaw
from agentloop.values.records import ExecutionHead, RecordKind
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus, SuspendedTurn
from agentloop.values.time_and_ids import Clock, SystemClock


async def fork(
    journal: CanJournal,
    execution_id: str,
    at_step: int,
    *,
    effects: ForkPolicy | str = ForkPolicy.REUSE,
    fork_id: str | None = None,
    clock: Clock | None = None,
) -> str:
    """Begin an execution with the state that another one had after a step; `await loop.recover(fork)` goes on with it.

    It is one of an agent of its own. The other one is only read, and may be in progress.

    Args:
        journal: where both are recorded.
        execution_id: the execution to fork.
        at_step: the step; 0 for its beginning. Where calls of the step wait for decisions, those of the fork do too.
        effects: what becomes of calls with effects, in the fork and in the agents that serve its calls.
        fork_id: the id of the fork; `<execution_id>/fork-1` or the next that is free when left out.
        clock: tells when its first record is made; the system's when left out.

    Returns:
        The id of the fork.

    Raises:
        UnknownExecution: when no execution of this id is recorded.
        JournalError: when it has no such step.
        JournalConflict: when an execution of the fork's id is recorded.
        JournalCorrupt: when its records are not as they were written.
        ValueError: when there is no such policy.
    """
    policy = ForkPolicy(effects)
    state = state_in(verify_records(await journal.read(execution_id), execution_id), execution_id, at_step)
    chosen = fork_id or await _free_id(journal, execution_id)
    told = {"of": execution_id, "step": at_step, "effects": policy.value}
    await _begin(journal, state, chosen, {"fork": told}, clock or SystemClock())
    return chosen


async def _begin(
    journal: CanJournal,
    state: AgentState,
    fork_id: str,
    origin: Mapping[str, Any],
    clock: Clock,
    *,
    parent: str | None = None,
) -> None:
    """Write down the first record of a fork; before it those of the agents whose calls wait in it."""
    original = state.execution_id
    claim = await journal.claim(fork_id)
    try:
        if await journal.head(fork_id) is not None:
            raise JournalConflict(f"an execution {fork_id!r} is recorded already; choose another id for the fork")
        for inner in _agents_in(state):
            known = await journal.head(inner.execution_id)
            if known is not None:
                within = {"fork": {**origin["fork"], "root": origin["fork"].get("root", fork_id)}}
                inner_id = _moved_id(inner.execution_id, original, fork_id)
                await _begin(journal, inner, inner_id, within, clock, parent=_agent_id(state, fork_id))
        made = _moved(state, original, fork_id, parent)
        head = evolve(
            new_head(made, clock.now(), journal), input=_input(await journal.head(original)), forked_from=original
        )
        writer = RecordWriter(journal, head, clock)
        writer.put(RecordKind.EXECUTION_STARTED, {"state": state_delta(None, made), **origin})
        await writer.flush()
    finally:
        await claim.release()


async def _free_id(journal: CanJournal, execution_id: str) -> str:
    number = 1
    while await journal.head(f"{execution_id}/fork-{number}") is not None:
        number += 1
    return f"{execution_id}/fork-{number}"


def _input(head: ExecutionHead | None) -> str:
    return head.input if head is not None else ""


# --- the state of the fork --------------------------------------------------------------------------------------------


def _agent_id(state: AgentState, execution_id: str) -> str:
    return f"{state.agent_id}/{execution_id}"


def _moved(state: AgentState, original: str, fork_id: str, parent: str | None) -> AgentState:
    """Return a state as that of another execution; the calls that wait in it are calls of that one."""
    execution, turn = state.execution, state.open_turn
    assert execution is not None  # noqa: S101  # what is recorded is one
    steps = execution.steps
    if turn is not None:
        agent_id = _agent_id(state, _moved_id(execution.id, original, fork_id))
        slots = [
            _waiting(slot, original, fork_id, agent_id) if isinstance(slot, PendingCall) else slot
            for slot in turn.slots
        ]
        steps = (*steps[:-1], evolve(steps[-1], open_turn=SuspendedTurn(turn.parts, slots)))
    status = ExecutionStatus.IN_PROGRESS if turn is None else ExecutionStatus.SUSPENDED
    moved = evolve(execution, id=_moved_id(execution.id, original, fork_id), status=status, steps=steps, ended_at=None)
    return evolve(
        state,
        agent_id=_agent_id(state, moved.id),
        parent_agent_id=parent or state.parent_agent_id,
        execution=moved,
    )


def _waiting(call: PendingCall, original: str, fork_id: str, agent_id: str) -> PendingCall:
    agent = _agent_of(call)
    progress = call.progress
    if agent is not None:
        progress = to_plain(_moved(agent, original, fork_id, agent_id))
    return evolve(
        call,
        key=_moved_id(call.key, original, fork_id),
        waits_for=_moved_id(call.waits_for, original, fork_id),
        inner=[_waiting(one, original, fork_id, agent_id) for one in call.inner],
        progress=progress,
    )


def _agents_in(state: AgentState) -> list[AgentState]:
    """Return the states of the agents whose calls wait in a state; not those below them, which stand in these."""
    turn = state.open_turn
    found = [_agent_of(call) for call in turn.pending] if turn is not None else []
    return [agent for agent in found if agent is not None]


def _agent_of(call: PendingCall) -> AgentState | None:
    """Return the state of the agent that serves a call which it has suspended; None where a tool did."""
    progress = thaw(call.progress)
    if not (call.begun and isinstance(progress, dict) and {"agent_id", "execution", "created_at"} <= progress.keys()):
        return None
    try:
        return from_plain(progress, AgentState)
    except ValueError:
        return None


def _moved_id(known: str, original: str, fork_id: str) -> str:
    """Return an id below the original execution, or its own, as one below the fork."""
    return (
        f"{fork_id}{known.removeprefix(original)}" if known == original or known.startswith(f"{original}/") else known
    )
