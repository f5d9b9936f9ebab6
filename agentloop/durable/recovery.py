"""Executions with a journal or a replay: new logs, and executions that are reopened from their records."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.can_intercept import labels_of
from agentloop.contracts.can_journal import CanJournal, Claim, is_equal_after_masking
from agentloop.contracts.execution_scope import ExecutionScope, Resources
from agentloop.contracts.run_log import CanAnswerCalls, ExecutionLog
from agentloop.durable.fold import state_at
from agentloop.durable.recorder import ExecutionRecorder, named_cancellation
from agentloop.durable.trees import list_below
from agentloop.errors import DecisionError, JournalConflict, UnknownExecution
from agentloop.events.bus import emit_at_step
from agentloop.events.execution import (
    AgentExecutionStarted,
    AgentStepCompleted,
    AgentStepStarted,
    ContinuationEvaluated,
)
from agentloop.loop.binding import composition_of
from agentloop.loop.inbox import Inboxes
from agentloop.loop.parts import LoopParts
from agentloop.loop.recording import recording_of
from agentloop.loop.run import Run
from agentloop.loop.settlement import (
    emit_closed_calls,
    emit_end,
    unsettled_calls,
    with_error,
    with_interrupted_calls,
)
from agentloop.values.batches import apply_decisions, ready_calls
from agentloop.values.decisions import Decision
from agentloop.values.records import InDoubt, RecordedCall
from agentloop.values.state import AgentState
from agentloop.values.steps import ExecutionStatus
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.time_and_ids import Clock, IdSource, RandomIds, SystemClock


def create_log(
    loop: LoopParts,
    state: AgentState,
    journal: CanJournal,
    in_doubt: InDoubt,
    clock: Clock,
    *,
    answers: CanAnswerCalls | None = None,
    outer_claims: tuple[Claim, ...] = (),
) -> ExecutionLog:
    """Return the log of an execution that is not reopened from a journal.

    Args:
        loop: the loop, whose composition is recorded.
        state: the state with which the execution starts.
        journal: receives the records.
        in_doubt: as for `AgentLoop`.
        clock: the source of the records' times.
        answers: answers calls in place of their tools, when the calling execution is a replay or a fork.
        outer_claims: the claims of the executions whose calls this one serves.
    """
    origin = {"loop": composition_of(loop, state)}
    return ExecutionRecorder(journal, in_doubt, clock, answers=answers, origin=origin, outer_claims=outer_claims)


async def reopen_interrupted(
    journal: CanJournal,
    execution_id: str,
    in_doubt: InDoubt,
    clock: Clock,
    *,
    check: Callable[[], None],
    answers: CanAnswerCalls | None = None,
    outer_claims: tuple[Claim, ...] = (),
) -> tuple[AgentState, ExecutionLog | None]:
    """Return the newest recorded state of an execution, and its log if it is in progress.

    Args:
        journal: holds the records.
        execution_id: the execution.
        in_doubt: as for `AgentLoop`.
        clock: the source of the times of new records.
        check: raises an error if the loop cannot run the execution; called before anything is recorded, and only if
            something is going to run.
        answers: as for `create_log`.
        outer_claims: as for `create_log`.

    Raises:
        UnknownExecution: the journal has no execution of this id.
        JournalConflict: another writer drives it.
        JournalCorrupt: its records are damaged.
    """
    # Reopening claims the execution even if nothing has to run: its newest state is final only without another writer.
    log = await ExecutionRecorder.reopen(
        journal, execution_id, in_doubt, clock, answers=answers, outer_claims=outer_claims
    )
    return log.state, await _keep_if_needed(log, check)


async def open_or_reopen(
    journal: CanJournal,
    execution_id: str,
    in_doubt: InDoubt,
    clock: Clock,
    *,
    check: Callable[[], None],
    answers: CanAnswerCalls | None = None,
    outer_claims: tuple[Claim, ...] = (),
) -> tuple[AgentState | None, ExecutionLog | None]:
    """Return the newest recorded state of an execution, None if it has not started; and its log if something can run.

    Args:
        journal: holds the records.
        execution_id: the execution.
        in_doubt: as for `AgentLoop`.
        clock: the source of the times of new records.
        check: raises an error if the loop cannot run the execution; called only if something is going to run.
        answers: as for `create_log`.
        outer_claims: as for `create_log`.

    Raises:
        JournalConflict: another writer drives the execution.
        JournalCorrupt: its records are damaged.
    """
    with named_cancellation(journal):
        head = await journal.head(execution_id)
        if head is not None and head.status is not ExecutionStatus.IN_PROGRESS:
            # Read without a claim, so that any number of callers can ask for the result at the same time.
            return await state_at(journal, execution_id), None
    log = await ExecutionRecorder.open(
        journal, execution_id, in_doubt, clock, answers=answers, outer_claims=outer_claims
    )
    return log.state if log.has_started else None, await _keep_if_needed(log, check)


async def _keep_if_needed(log: ExecutionRecorder, check: Callable[[], None]) -> ExecutionRecorder | None:
    """Return the log of an execution if something can run; else close it.

    Args:
        log: the log.
        check: raises an error if the loop cannot run the execution; then the log is closed, too.
    """
    try:
        if not log.has_started or log.state.status is ExecutionStatus.IN_PROGRESS:
            check()
            return log
    except BaseException:
        await log.aclose()
        raise
    await log.aclose()
    return None


def describe_origin(log: ExecutionLog, loop: LoopParts, state: AgentState) -> None:
    """Record the composition of the loop with the start of an execution that `open_or_reopen` has claimed."""
    if isinstance(log, ExecutionRecorder):
        log.origin = {"loop": composition_of(loop, state)}


async def reopen_suspended(
    journal: CanJournal,
    suspended: AgentState | str,
    decisions: Mapping[str, Decision],
    in_doubt: InDoubt,
    clock: Clock,
    *,
    check: Callable[[], None],
    answers: CanAnswerCalls | None = None,
    outer_claims: tuple[Claim, ...] = (),
) -> tuple[AgentState, ExecutionLog | None]:
    """Return a suspended state with decisions applied, and its log if a call can run now.

    Args:
        journal: holds the records.
        suspended: the suspended state, or the id of its execution.
        decisions: as for `AgentLoop.resume`.
        in_doubt: as for `AgentLoop`.
        clock: the source of the times of new records.
        check: raises an error if the loop cannot run the execution; called before anything is recorded, and only if
            something is going to run.
        answers: as for `create_log`.
        outer_claims: as for `create_log`.

    Raises:
        DecisionError: a decision cannot be used, for example because it was used before.
        JournalConflict: another writer drives the execution.
        UnknownExecution: the journal has no execution of this id.
    """
    execution_id = suspended if isinstance(suspended, str) else suspended.execution_id
    try:
        log = await ExecutionRecorder.reopen(
            journal, execution_id, in_doubt, clock, answers=answers, outer_claims=outer_claims
        )
    except UnknownExecution:
        if isinstance(suspended, str):
            raise
        # The execution was suspended by a loop without a journal. It is recorded from now on.
        resumed = apply_decisions(suspended, decisions)
        check()
        return resumed, ExecutionRecorder(journal, in_doubt, clock, answers=answers, outer_claims=outer_claims)
    try:
        state = _check_suspended(suspended, log.state, journal)
        resumed = apply_decisions(state, decisions)
        if resumed.open_turn is None or not len(ready_calls(resumed.open_turn)):
            await log.aclose()
            return state, None
        check()
        log.record_decisions(decisions, state.pending)
    except BaseException:
        await log.aclose()
        raise
    return resumed, log


async def stop_execution(
    journal: CanJournal,
    execution_id: str,
    reason: str,
    *,
    principal: str = "",
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> AgentState:
    """End an interrupted or suspended execution as stopped, with the unfinished ones below it; nothing runs.

    Open calls are settled: one that waits is cancelled; one that was interrupted has its recorded outcome, which is dropped if
    interceptors were to see it first, or is in doubt if it has an effect. Messages that no step has taken are added to the
    conversation.

    Args:
        journal: holds the records.
        execution_id: the execution.
        reason: why it is stopped, for the record.
        principal: who stops it, for the record; empty when that is unknown.
        clock: the source of times; the system clock by default.
        ids: the source of ids; random ones by default.

    Returns:
        The final state.

    Raises:
        UnknownExecution: the journal has no execution of this id.
        JournalConflict: another writer drives it or one below it, or it has ended already; nothing is stopped.
        JournalCorrupt: its records are damaged.
    """
    context = {"principal": principal} if principal else {}
    scope = ExecutionScope(clock=clock or SystemClock(), ids=ids or RandomIds())
    logs: list[ExecutionRecorder] = []
    try:
        root = await _reopen_tree(journal, execution_id, scope.clock, logs)
        if root.state.status.is_terminal:
            raise JournalConflict(f"execution {execution_id} has ended already: it is {root.state.status.value}")
        # The callers last: an execution with an ended caller could not be stopped in another attempt.
        for log in reversed(logs):
            if not log.state.status.is_terminal:
                await _stop(log, StopSignal(StopReason.USER_REQUESTED, reason, "stop_execution", context), scope)
        return root.state
    finally:
        for log in logs:
            await log.aclose()


async def _reopen_tree(
    journal: CanJournal, execution_id: str, clock: Clock, logs: list[ExecutionRecorder]
) -> ExecutionRecorder:
    """Claim an execution and the unfinished ones below it, and return its own log.

    Args:
        journal: holds the records.
        execution_id: the execution.
        clock: the source of times.
        logs: gets a log for each of them, its own first; the caller closes them, also after an error.

    Raises:
        UnknownExecution: the journal has no execution of this id.
        JournalConflict: another writer drives one of them.
        JournalCorrupt: their records are damaged.
    """
    # The root is claimed before those below it are listed, as its process could start more.
    root = await ExecutionRecorder.reopen(journal, execution_id, InDoubt.TELL, clock)
    logs.append(root)
    below = [head.execution_id for head in await list_below(journal, execution_id) if not head.status.is_terminal]
    for each in sorted(below):
        logs.append(await ExecutionRecorder.reopen(journal, each, InDoubt.TELL, clock))  # noqa: PERF401  # closed by the caller
    return root


async def fail_execution(
    journal: CanJournal,
    execution_id: str,
    error: Exception,
    *,
    events: CanHandleEvents,
    clock: Clock | None = None,
    ids: IdSource | None = None,
) -> AgentState:
    """End an interrupted execution as failed, and report it; nothing runs.

    Open calls are settled as by `stop_execution`. The unfinished executions below it, of sub-agents, end as stopped.

    Args:
        journal: holds the records.
        execution_id: the execution.
        error: why it fails, for its last step.
        events: receives `AgentExecutionStarted` and `AgentExecutionFailed`, and between them the outcomes of calls that were
            interrupted, such as those in doubt.
        clock: the source of times; the system clock by default.
        ids: the source of ids; random ones by default.

    Returns:
        The final state; that of an execution which has ended already is unchanged.

    Raises:
        UnknownExecution: the journal has no execution of this id.
        JournalConflict: another writer drives it or one below it; nothing ends.
        JournalCorrupt: its records are damaged.
    """
    scope = ExecutionScope(clock=clock or SystemClock(), ids=ids or RandomIds())
    logs: list[ExecutionRecorder] = []
    try:
        log = await _reopen_tree(journal, execution_id, scope.clock, logs)
        before, signal = log.state, StopSignal(StopReason.ERROR, str(error), "fail_execution")
        # The callers last, as for `stop_execution`.
        for each in reversed(logs[1:]):
            await _stop(each, signal, scope)
        if not before.status.is_terminal:
            calls = unsettled_calls(log.unsettled_calls(), before)
            await _stop(log, signal, scope, error)
            await _report_failure(events.for_execution(), before, calls, log.state)
        return log.state
    finally:
        for each in logs:
            await each.aclose()


async def _report_failure(
    events: CanHandleEvents, before: AgentState, calls: Sequence[RecordedCall], after: AgentState
) -> None:
    """Emit the events of an execution that has failed without running, with the calls that this has settled."""
    steps, newest = before.step_count, before.messages[-1] if before.messages else None
    await emit_at_step(events, AgentExecutionStarted, before, steps, newest, resumed=True)
    if calls or before.open_turn is not None:
        number = steps if before.open_turn is not None else steps + 1
        await emit_at_step(events, AgentStepStarted, before, number)
        await emit_closed_calls(calls, events, before, after, number)
        await emit_at_step(events, ContinuationEvaluated, after, number, continues=False)
        # The last step is that of the error, the one before it that of the calls.
        await emit_at_step(events, AgentStepCompleted, after, number, after.steps[-2])
    await emit_end(events, after)
    await events.drain()


async def _stop(
    log: ExecutionRecorder, signal: StopSignal, scope: ExecutionScope, error: Exception | None = None
) -> None:
    """Record that an execution is stopped, or has failed because of an error, with its open calls settled."""
    state, now, reason = log.state, scope.clock.now(), signal.message
    if state.status is ExecutionStatus.SUSPENDED:
        state = state.with_execution_resumed(now)
    messages = (*log.taken_messages(), *log.waiting_messages())
    calls = unsettled_calls(log.unsettled_calls(), state)
    await log.start(state)
    state = with_interrupted_calls(state, calls, reason, scope)
    for message in messages:
        state = state.with_message(message)
    if error is not None:
        state = with_error(state, error, error, scope, has_step=False)
    status = ExecutionStatus.STOPPED if error is None else ExecutionStatus.FAILED
    state = state.with_stop_signal(signal)
    if log.waiting_messages():
        log.record_taken(log.waiting_messages(), state.step_count)
    await log.end(state.with_status(status, now))


def _check_suspended(suspended: AgentState | str, recorded: AgentState, journal: CanJournal) -> AgentState:
    """Return the suspended state if the newest recorded state is suspended and equal to it.

    The state of the caller is preferred to the recorded one, in which secrets may be masked.
    """
    if recorded.status is not ExecutionStatus.SUSPENDED:
        hint = "; continue it with `recover`" if recorded.status is ExecutionStatus.IN_PROGRESS else ""
        raise DecisionError(
            f"execution {recorded.execution_id!r} does not wait for decisions: it is {recorded.status.value}{hint}. A "
            "decision is used once"
        )
    if isinstance(suspended, str):
        return recorded
    if not is_equal_after_masking(suspended.execution, recorded.execution, journal):
        raise DecisionError(
            f"this state is not the newest of execution {recorded.execution_id!r}: its decisions were used; resume the "
            "execution by its id"
        )
    return suspended


@frozen(eq=False, kw_only=True)
class ReplayContext:
    """What a recorded execution runs with, in place of what its loop has.

    Attributes:
        log: records the execution, or compares it with its records.
        clock: the source of times.
        ids: the source of ids.
        events: the event bus.
        inboxes: the messages that are sent to the execution.
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
    """Run an execution of a loop within a replay context.

    Args:
        loop: the loop.
        state: the state with which the execution starts or resumes; its status is `in_progress`.
        context: what the execution runs with.
        resumed: whether the execution started before.
        at_start: whether the interceptors of `before_execution` still have to run.

    Returns:
        The state after each step, then the final state.
    """
    resources = Resources()
    scope = ExecutionScope(
        clock=context.clock,
        ids=context.ids,
        dependencies=context.dependencies,
        local_resources=resources,
        shared_resources=resources,
        log=context.log,
        bounds=loop.bounds,
        labels=labels_of(loop.stack.layers),
    )
    run = Run.of(
        loop,
        state,
        scope,
        events=context.events,
        inboxes=context.inboxes,
        resumed=resumed,
        at_start=at_start,
        recording=recording_of(context.log),
    )
    return run.states()
