"""The state of an execution at any of its steps."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.contracts.can_journal import CanJournal
from agentloop.errors import JournalError, UnknownExecution
from agentloop.journal.chain import verified
from agentloop.journal.fold import RecordedExecution
from agentloop.values.agent_state import AgentState
from agentloop.values.journal_record import JournalRecord, RecordKind


async def state_at(journal: CanJournal, execution_id: str, at_step: int | None = None) -> AgentState:
    """Return the state of an execution after a step, as it was then.

    Args:
        journal: where it is recorded.
        execution_id: the execution.
        at_step: the step; 0 for the state that it began with, None for the newest that is recorded. Of a step whose calls
            waited for a decision, the state after they were settled, if they are.

    Raises:
        UnknownExecution: when no execution of this id is recorded.
        JournalError: when it has no such step.
        JournalCorrupt: when its records are not as they were written.
    """
    records = verified(await journal.read(execution_id), execution_id)
    return state_in(records, execution_id, at_step)


def state_in(records: Sequence[JournalRecord], execution_id: str, at_step: int | None = None) -> AgentState:
    """Return the state after a step, of the records of an execution.

    Raises:
        UnknownExecution: when there are none.
        JournalError: when there is no such step.
        JournalCorrupt: when one cannot be read.
    """
    execution, found, steps = RecordedExecution(), None, 0
    for record in records:
        execution.feed(record)
        state = execution.state
        assert state is not None  # noqa: S101  # the first record tells one
        steps = max(steps, state.step_count)
        begins = record.kind is RecordKind.EXECUTION_STARTED and at_step == 0
        ends = record.kind is RecordKind.STEP_COMPLETED and state.step_count == at_step
        inherited = record.kind is RecordKind.EXECUTION_STARTED and state.step_count == at_step
        if begins or ends or inherited or at_step is None or _ended_in(record, state, at_step, found):
            found = state
    if not records:
        raise UnknownExecution(f"no execution {execution_id!r} is recorded here")
    if found is None:
        raise JournalError(f"execution {execution_id!r} has no step {at_step}: {steps} are complete")
    return found


def _ended_in(record: JournalRecord, state: AgentState, at_step: int | None, found: AgentState | None) -> bool:
    """Say whether an execution ended in the middle of this step, so that no other record tells the state after it."""
    return found is None and record.kind is RecordKind.EXECUTION_ENDED and state.step_count == at_step
