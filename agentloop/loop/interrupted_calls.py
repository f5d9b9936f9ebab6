"""Calls that had begun before an interruption, in an execution that ends before it has come to them again."""

from __future__ import annotations

from collections.abc import Sequence

from agentloop.contracts.can_handle_events import CanHandleEvents
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.drivers.open_turns import closed
from agentloop.errors import ToolInDoubt
from agentloop.events.recovery_events import Recovery, ToolCallRecovered
from agentloop.events.tool_events import ToolCallCompleted
from agentloop.values.agent_state import AgentState
from agentloop.values.agent_step import AgentStep
from agentloop.values.message import Message
from agentloop.values.recorded import RecordedCall
from agentloop.values.tool_execution import ErrorInfo, ToolExchange, ToolExecution, ToolStatus
from agentloop.values.tool_spec import Effect

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
    state = closed(state, reason, now, scope.ids, in_turn)
    if not others:
        return state
    message = Message.assistant(*[ToolExchange(execution.call, execution) for execution in others])
    number = state.step_count + 1
    step = AgentStep(id=scope.ids.new_id("step"), number=number, message=message, started_at=now, ended_at=now)
    return state.with_step(step)


def _outcome(call: RecordedCall) -> ToolExecution:
    if call.execution is not None:
        return call.execution
    may_have_run = call.intent.effect is not Effect.PURE
    if call.intent.effect is Effect.EFFECT:
        doubt = ErrorInfo(ToolInDoubt.__name__, _CUT_SHORT)
        return call.intent.ended(ToolStatus.IN_DOUBT, error=doubt, may_have_run=may_have_run)
    return call.intent.ended(ToolStatus.CANCELLED, error=ErrorInfo("Cancelled", _CUT_SHORT), may_have_run=may_have_run)
