"""How executions end: from the weightiest signal to a status and an event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import ContractViolation, InvalidOutput, ToolInDoubt
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
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolExchange, ToolExecution, ToolStatus

_STATUSES: Mapping[StopReason, ExecutionStatus] = {
    StopReason.COMPLETED: ExecutionStatus.COMPLETED,
    StopReason.SUSPENDED: ExecutionStatus.SUSPENDED,
    StopReason.ERROR: ExecutionStatus.FAILED,
}


def status_of(signal: StopSignal | None) -> ExecutionStatus:
    """Return the status of an execution that stops by this signal: what is neither an answer nor an error is `stopped`."""
    return _STATUSES.get(signal.reason, ExecutionStatus.STOPPED) if signal is not None else ExecutionStatus.COMPLETED


def with_typed_output(state: AgentState, read: Callable[[str], Any]) -> AgentState:
    """Return a final state with its answer in the type that was asked for, also when a limit made it the last one."""
    if not state.has_final_response or state.status not in {ExecutionStatus.COMPLETED, ExecutionStatus.STOPPED}:
        return state
    try:
        return state.with_output(read(state.final_text))
    except InvalidOutput:
        if state.status is ExecutionStatus.COMPLETED:
            raise
        return state  # an answer that was to be gone on from, and of which nobody asked that it have the type


async def tell_end(events: CanHandleEvents, state: AgentState) -> None:
    """Emit the event that ends a run."""
    number, signal, steps, usage = state.step_count, state.stop_signal, state.step_count, state.usage
    if state.status is ExecutionStatus.COMPLETED:
        if events.due(AgentExecutionCompleted):
            head = events.head(state, step_number=number)
            await events.emit(AgentExecutionCompleted(head, signal, steps, usage, state.final_text))
    elif state.status is ExecutionStatus.SUSPENDED:
        if events.due(AgentExecutionSuspended):
            head = events.head(state, step_number=number)
            await events.emit(AgentExecutionSuspended(head, signal, steps, usage, state.pending))
    elif state.status is ExecutionStatus.FAILED:
        if events.due(AgentExecutionFailed):
            head = events.head(state, step_number=number)
            error = state.errors[-1] if state.errors else None
            await events.emit(AgentExecutionFailed(head, signal, steps, usage, error))
    elif events.due(AgentExecutionStopped):
        head = events.head(state, step_number=number)
        await events.emit(AgentExecutionStopped(head, signal, steps, usage))


def state_of_error(error: BaseException, before: AgentState) -> AgentState:
    """Return the state that an error of a driver carries; that of its batch, or the state before, where it carries none."""
    step = StepInterrupted.find_in(error)
    if step is not None:
        return step.state
    batch = BatchInterrupted.find_in(error)
    return batch.executions.state if batch is not None else before


def settled_calls(error: BaseException) -> Sequence[ToolExecution]:
    """Return the calls that were settled before an error of a driver, where it did not put them into a step."""
    batch = BatchInterrupted.find_in(error) if StepInterrupted.find_in(error) is None else None
    return batch.executions.executions if batch is not None else ()


def with_error(
    state: AgentState,
    raised: Exception,
    error: Exception,
    scope: ExecutionScope,
    *,
    step_taken: bool,
    executions: Sequence[ToolExecution] = (),
) -> AgentState:
    """Return the state with an error in its last step, when that is the one that went wrong, or else in a step of its own.

    Args:
        state: the state.
        raised: what was raised; a driver may have noted it already.
        error: what is to be recorded: the same, or what an interceptor made of it.
        scope: where id and time come from.
        step_taken: whether the last step is the one that went wrong.
        executions: calls that were settled before the error, for a step of its own.
    """
    info = ErrorInfo.of(error)
    last = state.last_step
    if step_taken and last is not None:
        others = last.errors[:-1] if last.errors[-1:] == (ErrorInfo.of(raised),) else last.errors
        return state.with_last_step(evolve(last, errors=(*others, info)))
    now = scope.clock.now()
    step = AgentStep(
        id=scope.ids.new_id("step"),
        number=state.step_count + 1,
        message=_message_of(executions) if executions else None,
        errors=(info,),
        started_at=now,
        ended_at=now,
    )
    return state.with_step(step)


def checked(before: AgentState, after: object, driver: object) -> AgentState:
    """Return what a driver returned, if it keeps the contract.

    Raises:
        ContractViolation: when it is not a state of the same execution, one step further.
    """
    name = type(driver).__name__
    if not isinstance(after, AgentState):
        raise ContractViolation(f"the driver {name} returned {after!r:.100}; use_tools returns an AgentState")
    if after.agent_id != before.agent_id or after.execution_id != before.execution_id:
        raise ContractViolation(f"the driver {name} returned the state of another agent or execution")
    waited = before.open_turn is not None
    expected = before.step_count + (0 if waited else 1)
    if after.step_count != expected:
        raise ContractViolation(
            f"the driver {name} returned a state with {after.step_count} steps instead of {expected}: one use_tools is one "
            "step; add it with AgentState.with_step"
        )
    return after


def _message_of(executions: Iterable[ToolExecution]) -> Message:
    return Message.assistant(*[ToolExchange(execution.call, execution) for execution in executions])


_CUT_SHORT = "the program was interrupted while this call ran, and it was not gone on with"


def unsettled(calls: Sequence[RecordedCall], state: AgentState) -> Sequence[RecordedCall]:
    """Return those of the calls that no step of the state has come to."""
    if not calls:
        return ()
    known = {execution.key for step in state.steps for execution in step.executions}
    return [call for call in calls if call.intent.key not in known]


async def tell_interrupted(
    calls: Sequence[RecordedCall], events: CanHandleEvents, state: AgentState, step_number: int
) -> None:
    """Tell what has become of these calls.

    Args:
        calls: the calls, in order.
        events: where it is told.
        state: the state without them.
        step_number: the step in which it is told.
    """
    for call in calls:
        execution, known = _outcome(call), call.execution is not None
        if (known or execution.status is ToolStatus.IN_DOUBT) and events.due(ToolCallRecovered):
            head = events.head(state, step_number=step_number)
            how = Recovery.REUSED if known else Recovery.IN_DOUBT
            await events.emit(ToolCallRecovered(head, execution.key, execution.name, how, execution.error_message))
        if events.due(ToolCallCompleted):
            await events.emit(ToolCallCompleted(events.head(state, step_number=step_number), execution))


def with_interrupted(
    state: AgentState, calls: Sequence[RecordedCall], reason: str, scope: ExecutionScope
) -> AgentState:
    """Return the state with these calls in it: what is recorded of them, or that nobody knows.

    Those that waited once are settled in their turn, which is closed; a step of their own is made for the others.

    Args:
        state: the state.
        calls: the calls, in order.
        reason: why calls are cancelled that wait still.
        scope: where id and time come from.
    """
    now = scope.clock.now()
    waiting = {call.key for call in state.last_step.pending} if state.last_step is not None else set()
    outcomes = {call.intent.key: _outcome(call) for call in calls}
    in_turn = {key: one for key, one in outcomes.items() if key in waiting}
    others = [one for key, one in outcomes.items() if key not in waiting]
    state = close_open_turn(state, reason, now, scope.ids, in_turn)
    if not others:
        return state
    number = state.step_count + 1
    step = AgentStep(
        id=scope.ids.new_id("step"), number=number, message=_message_of(others), started_at=now, ended_at=now
    )
    return state.with_step(step)


def _outcome(call: RecordedCall) -> ToolExecution:
    if call.execution is not None:
        return call.execution
    may_have_run = call.intent.effect is not Effect.PURE
    if call.intent.effect is Effect.EFFECT:
        doubt = ErrorInfo(ToolInDoubt.__name__, _CUT_SHORT)
        return call.intent.to_execution(ToolStatus.IN_DOUBT, error=doubt, may_have_run=may_have_run)
    return call.intent.to_execution(
        ToolStatus.CANCELLED, error=ErrorInfo("Cancelled", _CUT_SHORT), may_have_run=may_have_run
    )
