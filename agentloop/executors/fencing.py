"""Calls that another process may drive are left to it: no outcome and no event of this process may contradict its own (law 10)."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from agentloop.errors import ClaimLost, ExecutionClaimed
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import CallLayer, CallOutcome, Cut
from agentloop.values.records import callers_of
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolStatus

_LEFT_TO_OTHERS = "another process may drive the execution, or that of the call's agent; the next recovery finds out how the call ends"


class Fencing(CanLayerCalls):
    """Leaves calls to others when a claim is lost, or when another process drives the agent of the call."""

    def open(self, call: Call, batch: Admission) -> CallLayer:
        """Return what leaves a call to others."""
        return _FencedCall(call, batch)


class _FencedCall(CallLayer):
    __slots__ = ("_batch", "_call")

    def __init__(self, call: Call, batch: Admission) -> None:
        self._call = call
        self._batch = batch

    def disowns(self, error: BaseException) -> bool:
        """Return whether the error of a tool says that another process may drive the execution, or that of an agent below it."""
        return _is_driven_elsewhere(error, self._batch.state.execution_id)

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:
        """Settle a call that is left to others as cancelled, unless its outcome is known."""
        log = self._batch.runtime.scope.log
        error = cut.error or (None if log is None else log.loss)
        if error is None or so_far.pending is not None or not is_left(error, self._batch):
            return settle()
        return left_outcome(self._call, self._batch, so_far, error)


def is_left(error: Exception, batch: Admission) -> bool:
    """Return whether an error leaves a call to another process."""
    return isinstance(error, ClaimLost) or _is_driven_elsewhere(error, batch.state.execution_id)


def left_outcome(call: Call, batch: Admission, so_far: CallOutcome, error: Exception) -> CallOutcome:
    """Return the outcome, in this process, of a call that is left to others."""
    has_begun = so_far.may_have_run or call.is_committed
    left = call.settled(
        so_far,
        ToolStatus.CANCELLED,
        batch.runtime.scope.clock.now(),
        error=ErrorInfo(type(error).__name__, _LEFT_TO_OTHERS),
        may_have_run=has_begun and call.effect is not Effect.PURE,
    )
    return evolve(left, stop=None)


def _is_driven_elsewhere(error: BaseException, execution_id: str) -> bool:
    """Return whether an error says that another process may drive an execution, or that of an agent below it.

    That is no outcome of a call: the process that continues the execution continues the agent's, too.
    """
    if isinstance(error, ExecutionClaimed):
        return execution_id in callers_of(error.execution_id)
    return isinstance(error, ClaimLost) and execution_id in {error.execution_id, *callers_of(error.execution_id)}
