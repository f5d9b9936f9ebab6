"""Going on with executions that are recorded."""

from __future__ import annotations

from collections.abc import Mapping

from agentloop.contracts.can_answer_calls import CanAnswerCalls
from agentloop.contracts.can_journal import CanJournal
from agentloop.drivers.open_turns import decided, ready_calls
from agentloop.errors import DecisionError, UnknownExecution
from agentloop.journal.journal_log import JournalLog
from agentloop.journal.masked import same_but_for_masks
from agentloop.values.agent_state import AgentState
from agentloop.values.clock import Clock
from agentloop.values.decision import Decision
from agentloop.values.execution_state import ExecutionStatus
from agentloop.values.in_doubt import InDoubt


async def interrupted(
    journal: CanJournal, execution_id: str, in_doubt: InDoubt, clock: Clock, answers: CanAnswerCalls | None = None
) -> tuple[AgentState, JournalLog | None]:
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
    log = await JournalLog.reopened(journal, execution_id, in_doubt, clock, answers)
    state = log.state
    if state.status is ExecutionStatus.IN_PROGRESS:
        return state, log
    await log.aclose()
    return state, None


async def suspended(
    journal: CanJournal,
    given: AgentState | str,
    decisions: Mapping[str, Decision],
    in_doubt: InDoubt,
    clock: Clock,
    *,
    answers: CanAnswerCalls | None = None,
) -> tuple[AgentState, JournalLog | None]:
    """Return the state with these decisions noted, and its log if the execution goes on with them.

    Args:
        journal: where it is recorded.
        given: the suspended state, or the id of its execution.
        decisions: as for `AgentLoop.resume`.
        in_doubt: as for `AgentLoop`.
        clock: tells when records are made.
        answers: as for `interrupted`.

    Raises:
        DecisionError: when a decision cannot be used, as when it was used before.
        JournalConflict: when somebody else drives the execution.
    """
    execution_id = given if isinstance(given, str) else given.execution_id
    try:
        log = await JournalLog.reopened(journal, execution_id, in_doubt, clock, answers)
    except UnknownExecution:
        if isinstance(given, str):
            raise
        return decided(given, decisions), JournalLog(
            journal, in_doubt, clock, answers=answers
        )  # it was suspended without a journal
    try:
        state = _waiting(given, log.state, journal)
        going = decided(state, decisions)
        if going.open_turn is None or not len(ready_calls(going.open_turn)):
            await log.aclose()
            return state, None
        log.note_decisions(decisions, state.pending)
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
    if not same_but_for_masks(given.execution, recorded.execution, journal):
        raise DecisionError(
            f"this state is not the newest of execution {recorded.execution_id!r}: its decisions were used; resume the "
            "execution by its id"
        )
    return given
