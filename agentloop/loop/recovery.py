"""Going on with executions that are recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from attrs import frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_journal import CanJournal
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CanAnswerCalls, ExecutionLog
from agentloop.errors import DecisionError, UnknownExecution
from agentloop.journal.recorder import ExecutionRecorder
from agentloop.journal.redaction import is_equal_after_masking
from agentloop.loop.binding import composition_of
from agentloop.loop.inbox import Inboxes
from agentloop.loop.parts import LoopParts
from agentloop.loop.run import Run
from agentloop.values.batches import apply_decisions, ready_calls
from agentloop.values.decisions import Decision
from agentloop.values.records import InDoubt
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.time_and_ids import Clock, IdSource


def create_log(
    loop: LoopParts,
    state: AgentState,
    journal: CanJournal,
    in_doubt: InDoubt,
    clock: Clock,
    *,
    answers: CanAnswerCalls | None,
) -> ExecutionLog:
    """Return the log of an execution that no journal holds yet.

    Args:
        loop: the loop, whose composition is recorded.
        state: the state with which the execution begins.
        journal: where it is recorded.
        in_doubt: as for `AgentLoop`.
        clock: the source of the times of records.
        answers: as for `reopen_interrupted`.
    """
    return ExecutionRecorder(journal, in_doubt, clock, answers=answers, origin={"loop": composition_of(loop, state)})


async def reopen_interrupted(
    journal: CanJournal, execution_id: str, in_doubt: InDoubt, clock: Clock, answers: CanAnswerCalls | None = None
) -> tuple[AgentState, ExecutionRecorder | None]:
    """Return the newest recorded state of an execution, and its log if it is to be gone on with.

    Args:
        journal: where it is recorded.
        execution_id: the execution.
        in_doubt: as for `AgentLoop`.
        clock: tells when records are made.
        answers: what answers calls in place of their tools, as the execution has it whose call this one serves.

    Raises:
        UnknownExecution: when none of this id is recorded.
        JournalConflict: when somebody else drives it.
        JournalCorrupt: when its records are not as they were written.
    """
    log = await ExecutionRecorder.reopen(journal, execution_id, in_doubt, clock, answers)
    state = log.state
    if state.status is ExecutionStatus.IN_PROGRESS:
        return state, log
    await log.aclose()
    return state, None


async def reopen_suspended(
    journal: CanJournal,
    given: AgentState | str,
    decisions: Mapping[str, Decision],
    in_doubt: InDoubt,
    clock: Clock,
    *,
    answers: CanAnswerCalls | None = None,
) -> tuple[AgentState, ExecutionRecorder | None]:
    """Return the state with these decisions noted, and its log if the execution goes on with them.

    Args:
        journal: where it is recorded.
        given: the suspended state, or the id of its execution.
        decisions: as for `AgentLoop.resume`.
        in_doubt: as for `AgentLoop`.
        clock: tells when records are made.
        answers: as for `reopen_interrupted`.

    Raises:
        DecisionError: when a decision cannot be used, as when it was used before.
        JournalConflict: when somebody else drives the execution.
    """
    execution_id = given if isinstance(given, str) else given.execution_id
    try:
        log = await ExecutionRecorder.reopen(journal, execution_id, in_doubt, clock, answers)
    except UnknownExecution:
        if isinstance(given, str):
            raise
        return apply_decisions(given, decisions), ExecutionRecorder(
            journal, in_doubt, clock, answers=answers
        )  # it was suspended without a journal
    try:
        state = _waiting(given, log.state, journal)
        going = apply_decisions(state, decisions)
        if going.open_turn is None or not len(ready_calls(going.open_turn)):
            await log.aclose()
            return state, None
        log.record_decisions(decisions, state.pending)
    except BaseException:
        await log.aclose()
        raise
    return going, log


def _waiting(given: AgentState | str, recorded: AgentState, journal: CanJournal) -> AgentState:
    """Return the state to go on from, if it is the one that the journal ends with and waits for decisions."""
    if recorded.status is not ExecutionStatus.SUSPENDED:
        goes_on = "; go on with it by `recover`" if recorded.status is ExecutionStatus.IN_PROGRESS else ""
        raise DecisionError(
            f"execution {recorded.execution_id!r} does not wait for decisions: it is {recorded.status.value}{goes_on}. A "
            "decision is used once"
        )
    if isinstance(given, str):
        return recorded
    if not is_equal_after_masking(given.execution, recorded.execution, journal):
        raise DecisionError(
            f"this state is not the newest of execution {recorded.execution_id!r}: its decisions were used; resume the "
            "execution by its id"
        )
    return given


@frozen(eq=False, kw_only=True)
class ReplayContext:
    """What an execution runs with, in place of what its loop has.

    Attributes:
        log: what it is compared with, or written down in.
        clock: where times come from.
        ids: where ids come from.
        events: where events go.
        inboxes: where the messages are that are sent to it.
        dependencies: as for `AgentLoop.execute`.
    """

    log: ExecutionLog
    clock: Clock
    ids: IdSource
    events: CanHandleEvents
    inboxes: Inboxes
    dependencies: Any = None


def run_recorded(
    loop: LoopParts, state: AgentState, context: ReplayContext, *, resumed: bool, at_start: bool
) -> AsyncIterator[AgentState]:
    """Run an execution of a loop with a log, a clock, ids, a bus and messages from elsewhere.

    Args:
        loop: the loop.
        state: the state with which it begins or goes on; its execution is in progress.
        context: what it runs with.
        resumed: whether the execution had begun before.
        at_start: whether the interceptor point `before_execution` is still to come.

    Returns:
        The state after each step, and the final one.
    """
    own = Resources()
    scope = ExecutionScope(
        clock=context.clock,
        ids=context.ids,
        dependencies=context.dependencies,
        local_resources=own,
        shared_resources=own,
        log=context.log,
    )
    run = Run.of(
        loop,
        state,
        scope,
        events=context.events,
        inboxes=context.inboxes,
        resumed=resumed,
        at_start=at_start,
        log=context.log,
    )
    return run.states()
