"""Calls under interceptors: they allow or change a call, run around its tool, and see how it ended."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from attrs import evolve, frozen

from agentloop.errors import AgentLoopError, ContractViolation
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call, execution_of, tool_of
from agentloop.executors.call_layers import AWAITED_CANCELLED, Attempt, CallLayer
from agentloop.executors.invocation import tool_error
from agentloop.executors.result_limits import fit_again, whole_result
from agentloop.interception.stack import InterceptorStack
from agentloop.values.decisions import Answer, Approve, Block, Suspend
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse
from agentloop.values.rendering import render_call
from agentloop.values.stop import AgentStop, InterceptorTimedOut
from agentloop.values.tool_calls import ErrorInfo, ToolExecution, ToolStatus

_CANCEL_SECONDS = 1.0
_NOT_SEEN = "the execution was cancelled before the interceptors had seen the outcome of the call, which was dropped"
_CHANGED_AFTER_DECISION = (
    "an interceptor changed the call after the decision about it; the changed call needs a decision of its own"
)
_CHANGED_BY_CHECK = "an interceptor that checks calls may block or suspend this call, and not change or answer it"


class Interception(CanLayerCalls):
    """Passes the calls of an execution through its interceptors.

    Args:
        stack: the interceptors.
    """

    def __init__(self, stack: InterceptorStack) -> None:
        self._stack = stack

    def open(self, call: Call, batch: Admission) -> CallLayer:
        """Return what passes a call through the interceptors."""
        return _InterceptedCall(call, batch, self._stack)


@frozen(eq=False)
class _PassedOutcome:
    """What the interceptors made of the outcome of a call.

    Attributes:
        settled: the point with the outcome as it was settled: a failure if an interceptor failed at it.
        passed: the point as the interceptors have left it.
        failure: the first error of an interceptor; None without one.
    """

    settled: AfterToolUse
    passed: AfterToolUse
    failure: Exception | None


class _InterceptedCall(CallLayer):
    """One call under interceptors.

    Slots:
        _settling: the task in which the interceptors see the outcome; None before.
        _is_seen: whether they have seen the outcome, or have failed at it.
    """

    __slots__ = ("_batch", "_call", "_is_seen", "_settling", "_stack")

    def __init__(self, call: Call, batch: Admission, stack: InterceptorStack) -> None:
        self._batch = batch
        self._call = call
        self._stack = stack
        self._settling: asyncio.Task[_PassedOutcome] | None = None
        self._is_seen = False

    @property
    def wraps_tool(self) -> bool:
        """Whether an interceptor runs around tools."""
        return AroundToolUse.point_name in self._stack.points

    # --- before the call ----------------------------------------------------------------------------------------

    async def admit(self) -> None:
        """Pass `before_tool_use`."""
        if BeforeToolUse.point_name not in self._stack.points:
            return
        call, batch = self._call, self._batch
        passage = await self._stack.pass_layers(self._before_point())
        batch.state = passage.point.state
        try:
            passed = passage.take()
        except AgentStop as stop:
            batch.state = batch.state.with_stop_signal(stop.signal)
            # A committed call is resumed nevertheless: the signal stops the execution after this step.
            if call.is_committed:
                await call.keep(str(stop))
            else:
                batch.block(call, str(stop))
            return
        except AgentLoopError as error:
            batch.fail(call, error)
            return
        if not call.is_committed:
            await self._apply_verdict(passed)
        elif refused := _refusal(passed, call):
            await call.keep(refused)

    async def _apply_verdict(self, passed: BeforeToolUse) -> None:
        call, batch = self._call, self._batch
        changed = passed.call != call.call and not call.was_started
        if changed:
            call.call = passed.call
        match passed.verdict:
            case Block(reason):
                batch.block(call, reason)
            case Answer() as answer:
                batch.answer(call, answer)
            case Suspend() as suspend:
                if not changed or batch.prepare(call):  # what cannot run is not asked about
                    self._suspend(suspend)
            case None if changed and call.decision is not None:
                if batch.prepare(call):
                    batch.suspend(call, _CHANGED_AFTER_DECISION)
            case None if changed:
                await self._readmit()
            case None if passed.is_changed and not call.was_started:
                await self._check()

    def _suspend(self, verdict: Suspend) -> None:
        call = self._call
        self._batch.suspend(call, verdict.reason)
        if verdict.grantable and call.outcome.pending is not None:
            call.outcome = evolve(call.outcome, pending=evolve(call.outcome.pending, grantable=True))

    async def _readmit(self) -> None:
        """Let the changed call be admitted as another one, as far as this layer."""
        call = self._call
        if await self._batch.readmit(call):
            await call.admit(until=self)
            if call.is_open:
                await self._check()

    def _before_point(self) -> BeforeToolUse:
        call, batch = self._call, self._batch
        # A call that started before was allowed to run, so that interceptors see it as approved.
        decision, ready = call.decision or (Approve() if call.was_started else None), tool_of(call)
        return BeforeToolUse(
            batch.state,
            call.call,
            ready.spec,
            call.key,
            call.index,
            decision=decision,
            decided_call=call.call if decision is not None else None,
            ensemble=batch.runtime.toolbox.group_name(call.call.name),
            preceding=call.preceding + batch.nested_count,
            runs_code=ready.policy.runs_code or ready.calls_tools,
            label=call.layers[0].label,
            origins=call.layers[0].origins,
            is_agent=ready.is_agent,
        )

    async def _check(self) -> None:
        """Let the interceptors that check calls see the call as it will run, with its tool; they may have seen another."""
        call, batch = self._call, self._batch
        passage = await self._stack.check(self._before_point())
        batch.state = passage.point.state
        try:
            passed = passage.take()
        except AgentStop as stop:
            batch.state = batch.state.with_stop_signal(stop.signal)
            batch.block(call, str(stop))
        except AgentLoopError as error:
            batch.fail(call, error)
        else:
            if isinstance(passed.verdict, Block):
                batch.block(call, passed.verdict.reason)
            elif isinstance(passed.verdict, Suspend):
                self._suspend(passed.verdict)
            elif passed.call != call.call or passed.verdict is not None:
                batch.block(call, _CHANGED_BY_CHECK)

    # --- around its tool ----------------------------------------------------------------------------------------

    async def around(self, started_at: datetime, proceed: Attempt) -> ToolExecution:
        """Pass `around_tool_use`; the interceptors proceed as often as they like."""
        if AroundToolUse.point_name not in self._stack.points:
            return await proceed()
        call, batch = self._call, self._batch
        tool = tool_of(call)
        point = AroundToolUse(
            batch.state if call.runner is None else call.runner.state,
            call.call,
            tool.spec,
            call.key,
            call.id,
            started_at,
            tool.policy,
            lambda: call.so_far().may_have_run,
            batch.runtime.reports,
        )
        outcome = await self._stack.around(point, proceed)
        so_far = call.so_far()
        # A layer may know more than this call does: a duplicate of a call that may have run did not begin itself.
        may_have_run = call.may_have_run(so_far, outcome.status) or (outcome.may_have_run and outcome.has_error)
        return evolve(
            outcome,
            id=call.id,
            key=call.key,
            call=call.call,
            started_at=so_far.started_at or outcome.started_at,
            ended_at=batch.runtime.scope.clock.now(),
            may_have_run=may_have_run,
            inner=so_far.inner,
        )

    # --- after it -----------------------------------------------------------------------------------------------

    async def settle(self, grace: float | None) -> None:
        """Pass `after_tool_use`."""
        call = self._call
        if self._must_not_be_seen:
            return
        if self._settling is None:
            spec = call.tool.spec if call.tool is not None else None
            # Whole: what they look for may be in the part that does not fit, which the model could read by its reference.
            whole = whole_result(execution_of(call))
            point = AfterToolUse(self._batch.state, whole, spec, call.outcome.exception)
            # In a task of its own, which a cancellation does not reach: an outcome that interceptors have seen in part, such as
            # an unredacted one, must not get into the state.
            self._settling = asyncio.create_task(self._pass_outcome(point))
        settling = self._settling
        await asyncio.wait((settling,), timeout=grace)
        if not settling.done():
            settling.cancel()
            await asyncio.wait((settling,), timeout=min(_CANCEL_SECONDS, grace or _CANCEL_SECONDS))
            self._drop_value()
            return
        self._is_seen = True
        try:
            self._apply_passed(settling.result())
        except asyncio.CancelledError:
            self._refuse_outcome(ContractViolation(AWAITED_CANCELLED))
        except Exception as error:  # noqa: BLE001  # of a listener, between two interceptors: not all have seen the outcome
            self._refuse_outcome(error)
        except BaseException as error:
            self._replace_outcome(ToolStatus.FAILED, ErrorInfo.of(error))
            raise

    def drop(self) -> asyncio.Task[Any] | None:
        """Settle the call as cancelled, because its interceptors had no time to see its outcome."""
        if not self._must_not_be_seen:
            self._drop_value()
        return self._settling

    @property
    def _must_not_be_seen(self) -> bool:
        return self._is_seen or AfterToolUse.point_name not in self._stack.points

    def _drop_value(self) -> None:
        self._replace_outcome(ToolStatus.CANCELLED, ErrorInfo("Cancelled", _NOT_SEEN))

    async def _pass_outcome(self, point: AfterToolUse) -> _PassedOutcome:
        """Pass an outcome through all interceptors; one that raises does not hide it from the others.

        The interceptors behind it see how the call ends: they may mask the value, which gets into the state, or report the call.
        """
        settled, failure = point, None
        passage = await self._stack.pass_layers(point)
        while passage.error is not None:
            passed, error = passage.point, passage.error
            if isinstance(error, AgentStop):
                passed = passed.with_state(passed.state.with_stop_signal(error.signal))
            else:
                failure = failure or error
            # An interceptor that was interrupted by a limit, or has failed, may have been about to mask the value.
            is_refused = not isinstance(error, AgentStop) or isinstance(error, InterceptorTimedOut)
            if is_refused and (settled is point or not passed.execution.has_error):
                execution = self._failed(ToolStatus.FAILED, tool_error(error))
                exception = point.exception if isinstance(error, AgentStop) else error
                settled = passed = evolve(passed, execution=execution, exception=exception, is_restored=False)
            if not passage.rest:
                return _PassedOutcome(settled, passed, failure)
            passage = await self._stack.pass_layers(passed, passage.rest)
        return _PassedOutcome(settled, passage.point, failure)

    def _apply_passed(self, outcome: _PassedOutcome) -> None:
        """Take over what the interceptors made of an outcome."""
        call, batch = self._call, self._batch
        settled, passed, before = outcome.settled, outcome.passed, execution_of(call)
        batch.state = passed.state
        seen = self._fit_again(settled.execution, before)
        call.outcome = evolve(call.outcome, execution=seen, exception=settled.exception)
        if outcome.failure is not None:
            batch.halt(outcome.failure)
        if passed.execution is settled.execution:
            return
        so_far, execution = call.outcome, passed.execution
        if passed.is_restored:
            execution = evolve(execution, id=call.id, key=call.key)
        elif violation := settled.find_violation(evolve(execution, may_have_run=settled.execution.may_have_run)):
            self._refuse_outcome(ContractViolation(violation))
            return
        else:
            execution = evolve(execution, may_have_run=self._may_have_run(execution))
        exception = so_far.exception if execution.has_error else None
        execution = self._fit_again(execution, before)
        call.outcome = evolve(so_far, execution=execution, exception=exception)

    def _fit_again(self, execution: ToolExecution, before: ToolExecution) -> ToolExecution:
        """Cut what interceptors made of a result that did not fit."""
        tool, runtime = self._call.tool, self._batch.runtime
        if tool is None:  # no result
            return execution
        return fit_again(execution, before, tool.policy, runtime.max_result_bytes, runtime.toolbox.tools)

    def _may_have_run(self, execution: ToolExecution) -> bool:
        """Return whether an effect cannot be excluded for what interceptors made of an outcome."""
        call = self._call
        known = execution_of(call).may_have_run and execution.has_error
        return known or call.may_have_run(call.outcome, execution.status)

    def _refuse_outcome(self, error: Exception) -> None:
        """Settle the call as failed because its interceptors have failed at its outcome (law 11); no further call is admitted."""
        self._replace_outcome(ToolStatus.FAILED, ErrorInfo.of(error))
        self._call.outcome = evolve(self._call.outcome, exception=error)
        self._batch.halt(error)

    def _replace_outcome(self, status: ToolStatus, error: ErrorInfo) -> None:
        self._call.outcome = evolve(self._call.outcome, execution=self._failed(status, error))

    def _failed(self, status: ToolStatus, error: ErrorInfo) -> ToolExecution:
        """Return the execution of the settled call with an error in place of its outcome."""
        at = self._batch.runtime.scope.clock.now()
        execution = self._call.execution(self._call.outcome, status, at, error=error)
        return evolve(execution, may_have_run=self._may_have_run(execution))


def _refusal(passed: BeforeToolUse, call: Call) -> str:
    """Return what interceptors would have done to a committed call; empty if nothing."""
    match passed.verdict:
        case Block(reason):
            return f"block: {reason}"
        case Suspend(reason):
            return f"suspend: {reason}"
        case Answer():
            return "answer"
        case None:
            return f"change to {render_call(passed.call)}" if passed.call != call.call else ""
