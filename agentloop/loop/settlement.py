"""What happens in a step or ends an execution, applied to its state: results, errors, interrupted calls, the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve

from agentloop import events as event_classes
from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope, StepLedger
from agentloop.drivers.driver import StepDraft
from agentloop.errors import ContractViolation, InvalidOutput
from agentloop.events.bus import emit_at_step
from agentloop.values.batches import ToolCalls, ToolExecutions, apply_outcomes, close_open_turn
from agentloop.values.inference import Usage
from agentloop.values.interruptions import StepInterrupted, cause_of
from agentloop.values.messages import Message
from agentloop.values.records import RecordedCall
from agentloop.values.state import AgentState, find_dropped_messages
from agentloop.values.steps import NO_USAGE, AgentStep, ExecutionStatus
from agentloop.values.stop import AgentStop, StopReason, StopSignal
from agentloop.values.time_and_ids import IdSource
from agentloop.values.tool_calls import ErrorInfo, ToolExchange, ToolExecution, ToolStatus

# --- the result of a driver ---------------------------------------------------------------------------------------


def validate_driver_result(before: AgentState, result: object, driver: object, ledger: StepLedger) -> AgentState:
    """Return the result of a driver's `use_tools` if it keeps the contract.

    Args:
        before: the state that the driver received.
        result: what it returned.
        driver: the driver, named in the error.
        ledger: what happened in the step.

    Raises:
        ContractViolation: the result is not a state of the same execution with one more step, or with the same number of
            steps if a suspended step was completed; or it has lost something that was there before or happened in the step.
    """
    name = type(driver).__name__
    if not isinstance(result, AgentState):
        raise ContractViolation(f"the driver {name} returned {result!r:.100}; use_tools returns an AgentState")
    if not _is_same_execution(before, result):
        raise ContractViolation(f"the driver {name} returned the state of another agent or execution")
    complete, steps = _complete_steps(before), _steps_of(result)
    if len(steps) != len(complete) + 1:
        raise ContractViolation(
            f"the driver {name} returned a state with {len(steps)} steps instead of {len(complete) + 1}: a call of use_tools "
            "takes one step; add it with AgentState.with_step"
        )
    if problem := _find_loss(before, complete, result, ledger):
        raise ContractViolation(f"the driver {name} returned a state of which a part was lost: {problem}")
    return result


def _is_same_execution(before: AgentState, after: AgentState) -> bool:
    ids = [None if state.execution is None else state.execution.id for state in (before, after)]
    return after.agent_id == before.agent_id and ids[0] == ids[1]


def _steps_of(state: AgentState) -> tuple[AgentStep, ...]:
    return () if state.execution is None else state.execution.steps


def _complete_steps(state: AgentState) -> tuple[AgentStep, ...]:
    """Return the steps without a suspended one, which the next call of the driver completes."""
    steps = _steps_of(state)
    return steps[:-1] if steps and steps[-1].open_turn is not None else steps


def _find_loss(before: AgentState, complete: tuple[AgentStep, ...], after: AgentState, ledger: StepLedger) -> str:
    """Return what a state lacks of the state before a step or of what happened in the step; an empty text if nothing.

    Args:
        before: the state before the step.
        complete: its steps without a suspended one.
        after: the state after the step.
        ledger: what happened in the step.
    """
    steps = _steps_of(after)
    if complete and (after.execution is None or not after.execution.continues(complete)):
        return "steps of the execution are missing or changed"
    if problem := find_dropped_messages(before, after):
        return problem
    last = steps[-1] if steps else None
    if problem := _find_lost_calls(last, ledger):
        return problem
    usage = last.usage if last is not None and len(steps) > len(complete) else NO_USAGE
    return "the step lacks tokens of its inferences" if _is_less(usage, ledger.usage) else ""


def _is_less(usage: Usage, spent: Usage) -> bool:
    """Return whether a usage does not contain the tokens that were spent; a driver may add others, also unknown ones."""
    if usage is spent:
        return False
    pairs = [(getattr(usage, name), getattr(spent, name)) for name in _COUNTS]
    return any(counted is not None and known is not None and counted < known for counted, known in pairs)


# The counts of a usage that cost something; the others are parts of them.
_COUNTS = ("input_tokens", "output_tokens", "requests")


def _find_lost_calls(step: AgentStep | None, ledger: StepLedger) -> str:
    if not ledger.executions and not ledger.pending:
        return ""
    settled = () if step is None else step.executions
    # Drivers usually put the outcomes into the step as they got them.
    if not ledger.pending and len(settled) == len(ledger.executions):
        pairs = zip(settled, ledger.executions.values(), strict=True)
        if not any(execution is not noted for execution, noted in pairs):
            return ""
    executions = {execution.key: execution for execution in settled}
    pending = set() if step is None else {call.key for call in step.pending}
    lost = [key for key, execution in ledger.executions.items() if executions.get(key) != execution]
    lost += [key for key in ledger.pending if key not in pending and key not in executions]
    return f"the step lacks the outcomes of these calls, or has other ones: {', '.join(lost)}" if lost else ""


# --- errors ---------------------------------------------------------------------------------------------------------


def rescue_state(error: BaseException, before: AgentState, ledger: StepLedger, scope: ExecutionScope) -> AgentState:
    """Return the state with which an execution continues after a driver failed or broke its contract.

    It is the state that the error carries, if nothing of the step was lost in it. Otherwise the step is built from its ledger.

    Args:
        error: what the driver raised, or the violation of its contract.
        before: the state that the driver received.
        ledger: what happened in the step.
        scope: the source of ids and times.
    """
    carrier = StepInterrupted.find_in(error)
    if carrier is not None and not _is_unusable(before, carrier.state, ledger):
        return carrier.state
    base = before if ledger.state is None else ledger.state
    executions, pending, now = tuple(ledger.executions.values()), tuple(ledger.pending.values()), scope.clock.now()
    if base.open_turn is not None:
        return apply_outcomes(ToolExecutions(executions, pending, base), now)
    is_failure = isinstance(cause_of(error), Exception) and not isinstance(cause_of(error), AgentStop)
    if not executions and not pending and ledger.usage == NO_USAGE and not (is_failure and ledger.inferences):
        return base
    # The step is completed as a driver would have done it, with the calls that have an outcome, in call order.
    settled = {key: call for key, call in ledger.calls.items() if key in ledger.executions or key in ledger.pending}
    executions = tuple([ledger.executions[key] for key in settled if key in ledger.executions])
    ledger.inferences = max(ledger.inferences, ledger.usage.requests)
    draft = StepDraft(base, scope.ids.new_id("step"), base.step_count + 1, now, ledger=ledger)
    if settled:
        draft.parts, draft.calls = tuple(settled.values()), ToolCalls(settled.values(), settled)
    return draft.complete(ToolExecutions(executions, pending, base), now)


def _is_unusable(before: AgentState, carried: AgentState, ledger: StepLedger) -> bool:
    if not _is_same_execution(before, carried):
        return True
    added = carried.step_count - before.step_count
    return added not in {0, 1} or bool(_find_loss(before, _complete_steps(before), carried, ledger))


def _message_of(executions: Iterable[ToolExecution]) -> Message | None:
    exchanges = [ToolExchange(execution.call, execution) for execution in executions]
    return Message.assistant(*exchanges) if exchanges else None


def with_error(
    state: AgentState,
    raised: Exception,
    error: Exception,
    scope: ExecutionScope,
    *,
    has_step: bool,
) -> AgentState:
    """Return the state with an error in its last step, if that step failed, or else in a new step.

    Args:
        state: the state.
        raised: the error that was raised; the driver may have recorded it in the step already.
        error: the error to record: the same one, or the one that an interceptor replaced it with.
        scope: the source of ids and times.
        has_step: whether the last step is the one that failed.
    """
    info = ErrorInfo.of(error)
    last = state.last_step
    if has_step and last is not None:
        others = last.errors[:-1] if last.errors[-1:] == (ErrorInfo.of(raised),) else last.errors
        return state.with_last_step(evolve(last, errors=(*others, info)))
    return _with_new_step(state, (), scope.clock.now(), scope.ids, errors=(info,))


# --- calls that were interrupted ------------------------------------------------------------------------------------


def unsettled_calls(calls: Sequence[RecordedCall], state: AgentState) -> Sequence[RecordedCall]:
    """Return the recorded calls that no step of the state contains."""
    if not calls:
        return ()
    settled = {execution.key for step in state.steps for execution in step.executions}
    return [call for call in calls if call.intent.key not in settled]


async def emit_closed_calls(
    calls: Sequence[RecordedCall], events: CanHandleEvents, before: AgentState, after: AgentState, step_number: int
) -> None:
    """Emit the outcomes of calls that were interrupted, and of the pending calls that were cancelled.

    Args:
        calls: the interrupted calls, in order.
        events: the bus of the execution.
        before: the state in which they are open.
        after: the state in which they are settled.
        step_number: the step of the events.
    """
    for call in calls:
        execution = call.to_closed_execution()
        is_recorded = execution is call.execution
        if is_recorded or execution.status is ToolStatus.IN_DOUBT:
            recovery = event_classes.Recovery.REUSED if is_recorded else event_classes.Recovery.IN_DOUBT
            await emit_at_step(
                events,
                event_classes.ToolCallRecovered,
                before,
                step_number,
                execution.key,
                execution.name,
                recovery,
                execution.error_message,
            )
        await emit_at_step(events, event_classes.ToolCallCompleted, before, step_number, execution)
    interrupted = {call.intent.key for call in calls}
    cancelled = {call.key for call in before.pending if call.key not in interrupted}
    # The calls of a suspended turn stay in its step.
    settled = after.steps[before.step_count - 1].executions if cancelled else ()
    for execution in settled:
        if execution.key in cancelled:
            await emit_at_step(events, event_classes.ToolCallCompleted, before, step_number, execution)


def with_interrupted_calls(
    state: AgentState, calls: Sequence[RecordedCall], reason: str, scope: ExecutionScope
) -> AgentState:
    """Return the state with the outcomes of calls that were interrupted.

    Calls of the suspended turn are settled in it, and the turn is closed. The others go into a new step.

    Args:
        state: the state.
        calls: the calls, in order.
        reason: why the other calls of the suspended turn are cancelled.
        scope: the source of ids and times.
    """
    pending = {call.key for call in state.last_step.pending} if state.last_step is not None else set()
    outcomes = {call.intent.key: call.to_closed_execution() for call in calls}
    in_turn = {key: outcome for key, outcome in outcomes.items() if key in pending}
    others = [outcome for key, outcome in outcomes.items() if key not in pending]
    now = scope.clock.now()
    state = close_open_turn(state, reason, now, scope.ids, in_turn)
    return _with_new_step(state, others, now, scope.ids) if others else state


def _with_new_step(
    state: AgentState,
    executions: Iterable[ToolExecution],
    now: datetime,
    ids: IdSource,
    *,
    errors: Sequence[ErrorInfo] = (),
) -> AgentState:
    step = AgentStep(
        id=ids.new_id("step"),
        number=state.step_count + 1,
        message=_message_of(executions),
        errors=errors,
        started_at=now,
        ended_at=now,
    )
    return state.with_step(step)


# --- the end --------------------------------------------------------------------------------------------------------

_STATUSES: Mapping[StopReason, ExecutionStatus] = {
    StopReason.COMPLETED: ExecutionStatus.COMPLETED,
    StopReason.SUSPENDED: ExecutionStatus.SUSPENDED,
    StopReason.ERROR: ExecutionStatus.FAILED,
}


def status_of(signal: StopSignal | None) -> ExecutionStatus:
    """Return the status of an execution that ends by a stop signal; `stopped` for all reasons without a status."""
    return _STATUSES.get(signal.reason, ExecutionStatus.STOPPED) if signal is not None else ExecutionStatus.COMPLETED


def with_typed_output(state: AgentState, read: Callable[[str], Any]) -> AgentState:
    """Return a final state with its answer parsed into the output type, also if a limit stopped the execution.

    Raises:
        InvalidOutput: the answer of a completed execution does not match the type.
    """
    text = state.final_text
    if text is None or state.status not in {ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED}:
        return state
    try:
        return state.with_output(read(text))
    except InvalidOutput:
        if state.status is ExecutionStatus.COMPLETED:
            raise
        return state  # a continuation was requested after this answer, so nothing has checked its type


async def emit_end(events: CanHandleEvents, state: AgentState) -> None:
    """Emit the event of an execution that has ended, or is suspended or interrupted."""
    signal, steps, usage = state.stop_signal, state.step_count, state.usage
    match state.status:
        case ExecutionStatus.COMPLETED:
            text = state.final_text or ""
            await emit_at_step(events, event_classes.AgentExecutionCompleted, state, steps, signal, steps, usage, text)
        case ExecutionStatus.SUSPENDED:
            await emit_at_step(
                events, event_classes.AgentExecutionSuspended, state, steps, signal, steps, usage, state.pending
            )
        case ExecutionStatus.IN_PROGRESS:
            await emit_at_step(events, event_classes.AgentExecutionInterrupted, state, steps, signal, steps, usage)
        case ExecutionStatus.FAILED:
            error = state.errors[-1] if state.errors else None
            await emit_at_step(events, event_classes.AgentExecutionFailed, state, steps, signal, steps, usage, error)
        case _:
            await emit_at_step(events, event_classes.AgentExecutionStopped, state, steps, signal, steps, usage)
