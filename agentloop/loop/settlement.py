"""What happens in a step or ends an execution, applied to its state: results, errors, interrupted calls, the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from attrs import evolve

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation, InvalidOutput, ToolInDoubt
from agentloop.events.bus import emit_at_step
from agentloop.events.execution import (
    AgentExecutionCompleted,
    AgentExecutionFailed,
    AgentExecutionStopped,
    AgentExecutionSuspended,
)
from agentloop.events.tool_calls import Recovery, ToolCallCompleted, ToolCallRecovered
from agentloop.values.batches import close_open_turn
from agentloop.values.interruptions import BatchInterrupted, StepInterrupted
from agentloop.values.messages import Message
from agentloop.values.records import RecordedCall
from agentloop.values.state import AgentState
from agentloop.values.steps import AgentStep, ExecutionStatus
from agentloop.values.stop import StopReason, StopSignal
from agentloop.values.time_and_ids import IdSource
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolExchange, ToolExecution, ToolStatus

# --- the result of a driver ---------------------------------------------------------------------------------------


def validate_driver_result(before: AgentState, result: object, driver: object) -> AgentState:
    """Return the result of a driver's `use_tools` if it keeps the contract.

    Args:
        before: the state that the driver received.
        result: what it returned.
        driver: the driver, named in the error.

    Raises:
        ContractViolation: the result is not a state of the same execution with one more step, or with the same number of
            steps if a suspended step was completed.
    """
    name = type(driver).__name__
    if not isinstance(result, AgentState):
        raise ContractViolation(f"the driver {name} returned {result!r:.100}; use_tools returns an AgentState")
    if result.agent_id != before.agent_id or result.execution_id != before.execution_id:
        raise ContractViolation(f"the driver {name} returned the state of another agent or execution")
    expected = before.step_count + (0 if before.open_turn is not None else 1)
    if result.step_count != expected:
        raise ContractViolation(
            f"the driver {name} returned a state with {result.step_count} steps instead of {expected}: a call of use_tools "
            "takes one step; add it with AgentState.with_step"
        )
    return result


# --- errors ---------------------------------------------------------------------------------------------------------


def state_of_error(error: BaseException, before: AgentState) -> AgentState:
    """Return the state that an error of a driver carries, or else that of its batch, or else the state before it."""
    step = StepInterrupted.find_in(error)
    if step is not None:
        return step.state
    batch = BatchInterrupted.find_in(error)
    return batch.executions.state if batch is not None else before


def executions_of_error(error: BaseException) -> Sequence[ToolExecution]:
    """Return the calls that were settled before an error of a driver, if the driver did not put them into a step."""
    batch = BatchInterrupted.find_in(error) if StepInterrupted.find_in(error) is None else None
    return batch.executions.executions if batch is not None else ()


def with_error(
    state: AgentState,
    raised: Exception,
    error: Exception,
    scope: ExecutionScope,
    *,
    has_step: bool,
    executions: Sequence[ToolExecution] = (),
) -> AgentState:
    """Return the state with an error in its last step, if that step failed, or else in a new step.

    Args:
        state: the state.
        raised: the error that was raised; the driver may have recorded it in the step already.
        error: the error to record: the same one, or the one that an interceptor replaced it with.
        scope: the source of ids and times.
        has_step: whether the last step is the one that failed.
        executions: calls that were settled before the error, for the message of the new step.
    """
    info = ErrorInfo.of(error)
    last = state.last_step
    if has_step and last is not None:
        others = last.errors[:-1] if last.errors[-1:] == (ErrorInfo.of(raised),) else last.errors
        return state.with_last_step(evolve(last, errors=(*others, info)))
    return _with_new_step(state, executions, scope.clock.now(), scope.ids, errors=(info,))


# --- calls that were interrupted ------------------------------------------------------------------------------------

_INTERRUPTED = "the program was interrupted while this call ran, and the call was not resumed"


def unsettled_calls(calls: Sequence[RecordedCall], state: AgentState) -> Sequence[RecordedCall]:
    """Return the recorded calls that no step of the state contains."""
    if not calls:
        return ()
    settled = {execution.key for step in state.steps for execution in step.executions}
    return [call for call in calls if call.intent.key not in settled]


async def emit_interrupted_calls(
    calls: Sequence[RecordedCall], events: CanHandleEvents, state: AgentState, step_number: int
) -> None:
    """Emit the outcomes of calls that were interrupted.

    Args:
        calls: the calls, in order.
        events: the bus of the execution.
        state: the state before `with_interrupted_calls`.
        step_number: the step of the events.
    """
    for call in calls:
        execution, is_recorded = _outcome_of(call), call.execution is not None
        if is_recorded or execution.status is ToolStatus.IN_DOUBT:
            recovery = Recovery.REUSED if is_recorded else Recovery.IN_DOUBT
            await emit_at_step(
                events,
                ToolCallRecovered,
                state,
                step_number,
                execution.key,
                execution.name,
                recovery,
                execution.error_message,
            )
        await emit_at_step(events, ToolCallCompleted, state, step_number, execution)


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
    outcomes = {call.intent.key: _outcome_of(call) for call in calls}
    in_turn = {key: outcome for key, outcome in outcomes.items() if key in pending}
    others = [outcome for key, outcome in outcomes.items() if key not in pending]
    now = scope.clock.now()
    state = close_open_turn(state, reason, now, scope.ids, in_turn)
    return _with_new_step(state, others, now, scope.ids) if others else state


def _outcome_of(call: RecordedCall) -> ToolExecution:
    """Return the recorded outcome of a call; without one, the call is cancelled, or in doubt if it has an effect."""
    if call.execution is not None:
        return call.execution
    may_have_run = call.intent.effect is not Effect.PURE
    if call.intent.effect is Effect.EFFECT:
        doubt = ErrorInfo(ToolInDoubt.__name__, _INTERRUPTED)
        return call.intent.to_execution(ToolStatus.IN_DOUBT, error=doubt, may_have_run=may_have_run)
    return call.intent.to_execution(
        ToolStatus.CANCELLED, error=ErrorInfo("Cancelled", _INTERRUPTED), may_have_run=may_have_run
    )


def _with_new_step(
    state: AgentState,
    executions: Iterable[ToolExecution],
    now: datetime,
    ids: IdSource,
    *,
    errors: Sequence[ErrorInfo] = (),
) -> AgentState:
    exchanges = [ToolExchange(execution.call, execution) for execution in executions]
    step = AgentStep(
        id=ids.new_id("step"),
        number=state.step_count + 1,
        message=Message.assistant(*exchanges) if exchanges else None,
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
    if not state.has_final_response or state.status not in {ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED}:
        return state
    try:
        return state.with_output(read(state.final_text))
    except InvalidOutput:
        if state.status is ExecutionStatus.COMPLETED:
            raise
        return state  # a continuation was requested after this answer, so nothing has checked its type


async def emit_end(events: CanHandleEvents, state: AgentState) -> None:
    """Emit the event of an execution that has ended or is suspended."""
    signal, steps, usage = state.stop_signal, state.step_count, state.usage
    match state.status:
        case ExecutionStatus.COMPLETED:
            await emit_at_step(events, AgentExecutionCompleted, state, steps, signal, steps, usage, state.final_text)
        case ExecutionStatus.SUSPENDED:
            await emit_at_step(events, AgentExecutionSuspended, state, steps, signal, steps, usage, state.pending)
        case ExecutionStatus.FAILED:
            error = state.errors[-1] if state.errors else None
            await emit_at_step(events, AgentExecutionFailed, state, steps, signal, steps, usage, error)
        case _:
            await emit_at_step(events, AgentExecutionStopped, state, steps, signal, steps, usage)
