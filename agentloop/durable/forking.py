"""Forks: executions that start from a step of another execution."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from attrs import evolve, frozen

from agentloop.contracts.can_journal import CanJournal
from agentloop.durable.chain import verify_records
from agentloop.durable.deltas import state_delta
from agentloop.durable.fold import state_from_records
from agentloop.durable.fork_effects import ForkPolicy
from agentloop.durable.held_claims import release_quietly
from agentloop.durable.record_writer import RecordWriter, create_head
from agentloop.errors import ExecutionClaimed, JournalConflict
from agentloop.values.decisions import PendingCall
from agentloop.values.json import JsonValue, freeze, thaw
from agentloop.values.records import RecordKind, check_execution_id, outer_key
from agentloop.values.serialization import from_plain, to_plain
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock, SystemClock
from agentloop.values.tool_calls import ToolExchange
from agentloop.values.value import Value


@frozen(eq=False, repr=False, kw_only=True)
class ForkPoint(Value):
    """A step of a recorded execution from which forks start; read once for any number of them.

    Attributes:
        execution_id: the execution.
        at_step: the number of the step.
        state: the state after the step.
        inputs: the inputs of the execution, and of those that serve its waiting calls, by their ids, for people.
    """

    execution_id: str
    at_step: int
    state: AgentState
    inputs: Mapping[str, str]

    @classmethod
    async def read(cls, journal: CanJournal, execution_id: str, at_step: int) -> ForkPoint:
        """Read a step of an execution, which may be running.

        Raises:
            UnknownExecution: no execution of this id is recorded.
            JournalError: the execution has no such step.
            JournalCorrupt: the records of the execution are damaged.
        """
        records = verify_records(await journal.read(execution_id), execution_id)
        state = state_from_records(records, execution_id, at_step)
        heads = {each: await journal.head(each) for each in (execution_id, *_waiting_ids(state))}
        inputs = {each: head.input for each, head in heads.items() if head is not None}
        return cls(execution_id=execution_id, at_step=at_step, state=state, inputs=inputs)

    async def record(
        self,
        journal: CanJournal,
        fork_id: str,
        effects: ForkPolicy,
        *,
        clock: Clock,
        change: Callable[[AgentState], AgentState] = lambda state: state,
    ) -> None:
        """Record the start of a fork.

        Args:
            journal: gets the fork. An outcome that it reuses has to be in the same one.
            fork_id: the id of the fork.
            effects: what happens to calls with effects.
            clock: the source of the time of the record.
            change: returns the state with another context, such as the system prompt of another agent.

        Raises:
            JournalConflict: an execution with this id exists.
        """
        origin = {"fork": {"of": self.execution_id, "step": self.at_step, "effects": effects.value}}
        await _record_fork(journal, change(self.state), fork_id, inputs=self.inputs, origin=origin, clock=clock)


async def fork(
    journal: CanJournal,
    execution_id: str,
    at_step: int,
    *,
    effects: ForkPolicy | str = ForkPolicy.REUSE,
    fork_id: str | None = None,
    clock: Clock | None = None,
) -> str:
    """Start an execution from the state that another one had after a step; `await loop.recover(fork)` runs it.

    The fork belongs to an agent of its own. The source is only read, and may be running.

    Args:
        journal: the journal of both executions.
        execution_id: the execution to fork.
        at_step: the number of the step; 0 for the initial state. Where calls of the step wait for decisions, those of the fork
            wait, too.
        effects: what happens to calls with effects, in the fork and in the agents that serve its calls.
        fork_id: the id of the fork; by default `<execution_id>/fork-1`, or the next free number.
        clock: the source of the time of its first record; the system clock by default.

    Returns:
        The id of the fork.

    Raises:
        UnknownExecution: no execution of this id is recorded.
        JournalError: the execution has no such step.
        JournalConflict: an execution with the id of the fork exists.
        JournalCorrupt: the records of the execution are damaged.
        ConfigurationError: the id of the fork is reserved for executions of sub-agents.
        ValueError: there is no such policy.
    """
    policy = ForkPolicy(effects)
    if fork_id is not None:
        check_execution_id(fork_id)
    point = await ForkPoint.read(journal, execution_id, at_step)
    record = partial(point.record, journal, effects=policy, clock=clock or SystemClock())
    if fork_id:
        await record(fork_id)
        return fork_id
    return await _record_under_free_id(journal, f"{execution_id}/fork", record)


async def _record_under_free_id(journal: CanJournal, start: str, record: Callable[[str], Awaitable[None]]) -> str:
    """Record a fork under the first free id that consists of a text and a number; return the id."""
    number = 0
    while True:
        number += 1
        fork_id = f"{start}-{number}"
        if not await _is_free(journal, fork_id):
            continue
        try:
            await record(fork_id)
        except JournalConflict as error:
            # Another fork of the source may have taken the id meanwhile; then the next one is tried.
            if not isinstance(error, ExecutionClaimed) and await _is_free(journal, fork_id):
                raise
        else:
            return fork_id


async def _is_free(journal: CanJournal, fork_id: str) -> bool:
    """Return whether nothing is recorded under an id, also no agent of a fork that was interrupted before its own record."""
    return await journal.head(fork_id) is None and not await journal.list(prefix=f"{fork_id}/", limit=1)


async def _record_fork(
    journal: CanJournal,
    state: AgentState,
    fork_id: str,
    *,
    inputs: Mapping[str, str],
    origin: Mapping[str, Any],
    clock: Clock,
    parent: str | None = None,
) -> None:
    """Record the start of a fork, after those of the agents whose calls wait in it."""
    source_id = state.execution_id
    # Claimed before the check: otherwise another process could use the id in between.
    claim = await journal.claim(fork_id)
    try:
        if await journal.head(fork_id) is not None:
            raise JournalConflict(f"an execution {fork_id!r} is already recorded; choose another id for the fork")
        # The agents come first, so that a recorded fork is complete, whenever this is interrupted.
        for agent in _waiting_agents(state):
            if agent.execution_id in inputs:
                agent_fork_id = _move_id(agent.execution_id, source_id, fork_id)
                agent_origin = {"fork": {**origin["fork"], "root": origin["fork"].get("root", fork_id)}}
                agent_parent = _agent_id(state, fork_id)
                await _record_fork(
                    journal, agent, agent_fork_id, inputs=inputs, origin=agent_origin, clock=clock, parent=agent_parent
                )
        forked = _move_state(state, source_id, fork_id, parent)
        head = evolve(
            create_head(forked, clock.now(), journal),
            # A fork is listed with the input of its source, although messages may have followed.
            input=inputs.get(source_id, ""),
            forked_from=source_id,
        )
        writer = RecordWriter(journal, head, clock, claim)
        writer.put(RecordKind.EXECUTION_STARTED, {"state": state_delta(None, forked), **origin})
        await writer.flush()
    finally:
        await release_quietly(claim)


# --- the state of the fork --------------------------------------------------------------------------------------------


def _agent_id(state: AgentState, execution_id: str) -> str:
    return f"{state.agent_id}/{execution_id}"


def _move_state(state: AgentState, source_id: str, fork_id: str, parent: str | None) -> AgentState:
    """Return a state under the ids of the fork, with the calls that wait in it.

    Args:
        state: the state of the source, or of an agent below it.
        source_id: the id of the source.
        fork_id: the id of the fork.
        parent: the id of the agent that the forked agent serves; None for the one in the state.
    """
    execution, turn = state.execution, state.open_turn
    assert execution is not None  # noqa: S101  # a recorded state has an execution
    steps = execution.steps
    if turn is not None:
        agent_id = _agent_id(state, _move_id(execution.id, source_id, fork_id))
        slots = [
            _move_call(slot, source_id, fork_id, agent_id) if isinstance(slot, PendingCall) else slot
            for slot in turn.slots
        ]
        steps = (*steps[:-1], evolve(steps[-1], open_turn=turn.with_slots(slots)))
    status = ExecutionStatus.IN_PROGRESS if turn is None else ExecutionStatus.SUSPENDED
    moved = evolve(execution, id=_move_id(execution.id, source_id, fork_id), status=status, steps=steps, ended_at=None)
    return evolve(
        state,
        agent_id=_agent_id(state, moved.id),
        parent_agent_id=parent or state.parent_agent_id,
        extensions={owner: _move_extension(each, execution.id, moved.id) for owner, each in state.extensions.items()},
        execution=moved,
    )


def _move_extension(value: JsonValue, source_id: str, moved_id: str) -> JsonValue:
    """Return an extension under the id of the fork: what holds for one execution alone names it as its `execution`."""
    if not isinstance(value, Mapping) or value.get("execution") != source_id:
        return value
    return freeze({**value, "execution": moved_id})


def _move_call(call: PendingCall, source_id: str, fork_id: str, agent_id: str) -> PendingCall:
    """Return a waiting call under the ids of the fork, with the calls inside it."""
    return evolve(
        call,
        key=_move_id(call.key, source_id, fork_id),
        waits_for=_move_id(call.waits_for, source_id, fork_id),
        inner=[_move_call(inner, source_id, fork_id, agent_id) for inner in call.inner],
        progress=_move_progress(call, source_id, fork_id, agent_id),
        settled=[_move_exchange(exchange, source_id, fork_id) for exchange in call.settled],
    )


def _move_progress(call: PendingCall, source_id: str, fork_id: str, agent_id: str) -> Any:
    """Return the progress of a waiting call: the state of the agent that serves it, or the waiting calls of its program."""
    agent = _agent_state_of(call)
    if agent is not None:
        return to_plain(_move_state(agent, source_id, fork_id, agent_id))
    waiting = _calls_of_program(call)
    if not waiting:
        return call.progress
    return {
        **thaw(call.progress),
        "pending": [to_plain(_move_call(each, source_id, fork_id, agent_id)) for each in waiting],
    }


def _move_exchange(exchange: ToolExchange, source_id: str, fork_id: str) -> ToolExchange:
    """Return a settled call of a program under the ids of the fork: the program finds its calls by their keys."""
    execution = exchange.execution
    return evolve(exchange, execution=evolve(execution, key=_move_id(execution.key, source_id, fork_id)))


def _waiting_agents(state: AgentState) -> list[AgentState]:
    """Return the states of the agents whose calls wait in a state; agents below them are part of these states."""
    turn = state.open_turn
    calls = [each for call in turn.pending for each in (call, *_calls_of_program(call))] if turn is not None else []
    agents = [_agent_state_of(call) for call in calls]
    return [agent for agent in agents if agent is not None]


def _waiting_ids(state: AgentState) -> list[str]:
    """Return the ids of the executions of agents whose calls wait in a state, and of those that serve theirs."""
    return [each for agent in _waiting_agents(state) for each in (agent.execution_id, *_waiting_ids(agent))]


def _agent_state_of(call: PendingCall) -> AgentState | None:
    """Return the state of the agent that serves a suspended call; None when a tool of another kind does."""
    progress = thaw(call.progress)
    # The progress of another tool is any JSON; only an agent's state has these keys and can be read as one.
    if not (call.begun and isinstance(progress, dict) and {"agent_id", "execution", "created_at"} <= progress.keys()):
        return None
    try:
        return from_plain(progress, AgentState)
    except ValueError:
        return None


def _calls_of_program(call: PendingCall) -> list[PendingCall]:
    """Return the calls that wait inside a suspended call whose tool makes calls itself; empty for a tool of another kind."""
    progress = thaw(call.progress)
    pending = progress.get("pending") if call.begun and isinstance(progress, dict) else None
    if not isinstance(pending, list):
        return []
    try:
        waiting = [from_plain(each, PendingCall) for each in pending]
    except ValueError:
        return []
    # The progress of another tool is any JSON; only calls that are made inside this one have such keys.
    return waiting if all(outer_key(each.key) == call.key for each in waiting) else []


def _move_id(identifier: str, source_id: str, fork_id: str) -> str:
    """Return the id of the source, or an id below it, as one of the fork; any other id unchanged."""
    if identifier == source_id or identifier.startswith(f"{source_id}/"):
        return f"{fork_id}{identifier.removeprefix(source_id)}"
    return identifier
