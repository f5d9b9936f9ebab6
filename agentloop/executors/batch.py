"""Runs a batch of tool calls: admits them in call order, runs them concurrently, settles them in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime

from attrs import define, evolve, field

from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import AgentLoopError, InterceptorFailed, JournalError, ToolError
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import (
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallIntentKept,
    ToolCallRejected,
    ToolCallSuspended,
)
from agentloop.executors.invocation import (
    OPEN,
    AdmittedCall,
    BatchSettings,
    CallOutcome,
    ToolInvocation,
    tool_error,
)
from agentloop.executors.journaled_call import JournaledCall
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.batches import ToolCalls, ToolExecutions, parse_key
from agentloop.values.decisions import Answer, Approve, Block, Deny, Edit, PendingCall, Suspend
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.records import FAILURE
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolExecution, ToolResult, ToolStatus


@define(eq=False)
class CallState:
    """The state of one call in its batch. Only `Batch` changes it.

    Attributes:
        admitted: the call, as far as it is admitted.
        outcome: its outcome so far.
        runner: runs it; None before it runs.
        task: the task in which it runs.
        is_settled: whether the interceptors have seen the outcome and its event was emitted.
    """

    admitted: AdmittedCall
    outcome: CallOutcome = OPEN
    runner: ToolInvocation | JournaledCall | None = None
    task: asyncio.Task[None] | None = None
    is_settled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the call is neither settled nor pending."""
        return self.outcome.execution is None and self.outcome.pending is None


def call_states(tool_calls: ToolCalls, state: AgentState, scope: ExecutionScope) -> list[CallState]:
    """Return the states of the calls of a batch, before admission; the ids of their executions are drawn in call order."""
    log = scope.log
    # Keys name step and index, which differ from the position in this batch when pending calls of an earlier step are settled.
    places = [parse_key(key) or (state.step_count + 1, index) for index, key in enumerate(tool_calls.keys)]
    return [
        CallState(
            AdmittedCall(
                step_number=step_number,
                index=index,
                key=key,
                id=scope.ids.new_id("tool_execution"),
                call=call,
                decision=tool_calls.decisions.get(key),
                resumed=tool_calls.begun.get(key),
                recorded=log.recorded_call(key) if log is not None else None,
            )
        )
        for call, key, (step_number, index) in zip(tool_calls.calls, tool_calls.keys, places, strict=True)
    ]


@define(eq=False, kw_only=True)
class Batch:
    """Executes the calls of one `execute_tools`. It lives as long as that call.

    Calls are admitted in call order, into a group that runs concurrently. A call that must not run next to the calls of the
    group is admitted after the group is settled.

    Attributes:
        state: the agent's state, with the changes that interceptors have made so far.
        calls: the calls, in call order.
        settings: what the calls have in common.
        toolbox: the tools.
        max_concurrency: the maximum number of calls that run at once; None for all.
        stop_on_block: whether the calls after a blocked one are cancelled.
        failure: the first error of an interceptor or of the journal; no call is admitted after it.
    """

    state: AgentState
    calls: Sequence[CallState]
    settings: BatchSettings
    toolbox: Toolbox
    max_concurrency: int | None = None
    stop_on_block: bool = False
    failure: Exception | None = field(default=None, init=False)
    _halt_reason: str = field(default="", init=False)
    _group: list[CallState] = field(factory=list, init=False)
    _group_keys: set[str] = field(factory=set, init=False)
    _is_group_exclusive: bool = field(default=False, init=False)
    _pending_key: str = field(default="", init=False)

    async def run(self) -> None:
        """Execute all calls; afterwards each of them is settled or pending."""
        for call in self.calls:
            # A call that started before an interruption is resumed in any case: its effect may have happened.
            if self._halt_reason and call.admitted.recorded is None:
                self._cancel(call, self._halt_reason)
                self._group.append(call)
            else:
                await self._admit(call)
        await self._run_group()

    def executions(self) -> ToolExecutions:
        """Return the outcomes of the calls."""
        outcomes = [call.outcome for call in self.calls]
        return ToolExecutions(
            tuple([outcome.execution for outcome in outcomes if outcome.execution is not None]),
            tuple([outcome.pending for outcome in outcomes if outcome.pending is not None]),
            self.state,
        )

    async def abandon(self, reason: str) -> None:
        """Cancel what runs, wait until it has ended, and settle every open call as cancelled."""
        running = [call.task for call in self.calls if call.task is not None and not call.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.close(reason)
        for call in self.calls:
            await self._settle(call)

    def close(self, reason: str) -> None:
        """Give every open call a cancelled outcome, without waiting for those that still run."""
        for call in self.calls:
            if call.is_open:
                self._cancel(call, reason)

    # --- admission ----------------------------------------------------------------------------------------------

    async def _admit(self, call: CallState) -> None:
        admitted = call.admitted
        if isinstance(admitted.decision, Edit):
            admitted = evolve(admitted, call=admitted.call.with_arguments(admitted.decision.arguments))
        if admitted.recorded is not None:
            # A call that started before an interruption resumes with its recorded arguments.
            intent = admitted.recorded.intent
            admitted = evolve(admitted, call=intent.call, id=intent.id)
        call.admitted = admitted
        if not self._prepare(call):
            if admitted.recorded is not None:
                call.outcome = OPEN  # its record decides, even if its tool no longer exists or rejects the arguments
            self._group.append(call)  # so that it is settled in call order
            return
        if self._must_wait(call):
            await self._run_group()
            if self._pending_key and admitted.decision is None and not admitted.was_started:
                reason = f"runs after {self._pending_key}"
                call.outcome = CallOutcome(
                    pending=PendingCall(admitted.key, admitted.call, reason, waits_for=self._pending_key)
                )
                return
        self._join_group(call)
        await self._decide(call)

    def _prepare(self, call: CallState) -> bool:
        """Look up the tool and prepare the arguments; return whether that succeeded, and settle the call if not."""
        tool: ReadyTool | None = call.admitted.tool
        try:
            tool = self.toolbox.get(call.admitted.call.name)
            arguments = tool.prepare(call.admitted.call)
            ordering_key = tool.ordering_key(call.admitted.call)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the tool's own code may fail here, before it runs
            is_rejected = isinstance(error, ToolError)
            call.admitted = evolve(call.admitted, tool=tool)
            call.outcome = call.admitted.settle(
                OPEN,
                ToolStatus.REJECTED if is_rejected else ToolStatus.FAILED,
                self._now(),
                error=ErrorInfo.of(error) if is_rejected else tool_error(error),
            )
            return False
        call.admitted = evolve(call.admitted, tool=tool, arguments=arguments, ordering_key=ordering_key)
        return True

    def _must_wait(self, call: CallState) -> bool:
        """Return whether the calls before this one have to be settled first."""
        if not self._group and not self._pending_key:
            return False
        if self._is_group_exclusive or _ready_tool(call).policy.sequential:
            return True
        # Only ordered calls wait for a pending one; the others are independent of its decision.
        key = call.admitted.ordering_key
        return bool(key) and (key in self._group_keys or bool(self._pending_key))

    def _join_group(self, call: CallState) -> None:
        self._group.append(call)
        self._is_group_exclusive = _ready_tool(call).policy.sequential
        if call.admitted.ordering_key:
            self._group_keys.add(call.admitted.ordering_key)

    async def _decide(self, call: CallState) -> None:
        """Apply the decision about a call, or let the interceptors decide."""
        # A person who denied or answered a call has the last word; an approved call still passes the interceptors.
        decision = call.admitted.decision
        if isinstance(decision, Deny):
            self._block(call, decision.reason or "denied")
        elif isinstance(decision, Answer):
            self._answer(call, decision)
        elif BeforeToolUse.point_name in self.settings.points:
            await self._intercept(call)

    async def _intercept(self, call: CallState) -> None:
        """Pass `before_tool_use`."""
        admitted = call.admitted
        point = self._before_point(call)
        try:
            passed = await self.settings.interceptor.handle(point)
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
            # A recorded call is resumed nevertheless: the signal stops the execution after this step.
            if admitted.recorded is None:
                self._block(call, str(stop))
            else:
                await self._emit_intent_kept(admitted, str(stop))
            return
        except AgentLoopError as error:
            self._fail(call, error)
            return
        self.state = passed.state
        if admitted.recorded is not None:
            await self._enforce_intent(admitted, passed)
        else:
            await self._apply_verdict(call, passed)

    async def _apply_verdict(self, call: CallState, passed: BeforeToolUse) -> None:
        admitted = call.admitted
        changed = passed.call != admitted.call and not admitted.was_started
        if changed:
            call.admitted = evolve(admitted, call=passed.call)
        match passed.verdict:
            case Block(reason):
                self._block(call, reason)
            case Answer() as answer:
                self._answer(call, answer)
            case Suspend(reason):
                self._suspend(call, reason)
            case None if changed and admitted.decision is not None:
                self._suspend(call, _CHANGED_AFTER_DECISION)
            case None if changed:
                await self._readmit(call)

    def _before_point(self, call: CallState) -> BeforeToolUse:
        admitted = call.admitted
        # A call that started before was allowed to run, so that interceptors see it as approved.
        decision = admitted.decision or (Approve() if admitted.was_started else None)
        return BeforeToolUse(
            self.state,
            admitted.call,
            _ready_tool(call).spec,
            admitted.key,
            admitted.index,
            decision=decision,
            decided_call=admitted.call if decision is not None else None,
            ensemble=self.toolbox.group_name(admitted.call.name),
        )

    async def _enforce_intent(self, admitted: AdmittedCall, passed: BeforeToolUse) -> None:
        """Resume a recorded call as it started, and report what interceptors would have done to it instead."""
        match passed.verdict:
            case Block(reason):
                refused = f"block: {reason}"
            case Suspend(reason):
                refused = f"suspend: {reason}"
            case Answer():
                refused = "answer"
            case None if passed.call != admitted.call:
                refused = f"change to {passed.call.name}({passed.call.arguments_json})"
            case None:
                return
        await self._emit_intent_kept(admitted, refused)

    async def _emit_intent_kept(self, admitted: AdmittedCall, refused: str) -> None:
        await emit_at_step(
            self.settings.events,
            ToolCallIntentKept,
            self.state,
            admitted.step_number,
            admitted.key,
            admitted.call.name,
            admitted.call,
            refused,
        )

    async def _readmit(self, call: CallState) -> None:
        """Validate a call that an interceptor changed. With its new ordering key it may have to wait."""
        self._group.remove(call)
        if not self._prepare(call):
            self._group.append(call)
            return
        if self._must_wait(call):
            await self._run_group()
        self._join_group(call)

    # --- outcomes without a run ---------------------------------------------------------------------------------

    def _block(self, call: CallState, reason: str) -> None:
        error = ErrorInfo("ToolBlocked", reason)
        call.outcome = call.admitted.settle(OPEN, ToolStatus.BLOCKED, self._now(), error=error)
        if self.stop_on_block:
            name = call.admitted.call.name
            self._halt_reason = f"not run, because the call {name!r} before it was blocked: {reason}"

    def _answer(self, call: CallState, answer: Answer) -> None:
        result = ToolResult(answer.value)
        call.outcome = call.admitted.settle(OPEN, ToolStatus.SUCCEEDED, self._now(), result=result)

    def _suspend(self, call: CallState, reason: str) -> None:
        call.outcome = CallOutcome(pending=PendingCall(call.admitted.key, call.admitted.call, reason))
        self._pending_key = self._pending_key or call.admitted.key

    def _cancel(self, call: CallState, reason: str) -> None:
        """Settle an open call as cancelled, even if it still runs."""
        # While a call runs, its runner knows how far it has come.
        so_far = call.outcome if call.runner is None else call.runner.outcome
        if call.runner is not None:
            call.runner.close()
        if so_far.execution is None:
            so_far = _cancelled(call.admitted, so_far, reason, self._now())
        call.outcome = so_far

    def _fail(self, call: CallState, error: Exception) -> None:
        """Settle a call whose interceptor, listener or journal failed (law 11), and admit no more calls."""
        so_far = outcome = call.outcome if call.runner is None else call.runner.outcome
        recorded, info = call.admitted.recorded, ErrorInfo.of(error)
        if so_far.pending is not None:
            pass  # the tool has suspended the call, which it can resume
        elif recorded is None or so_far.must_record:
            outcome = call.admitted.settle(
                so_far, ToolStatus.FAILED, self._now(), error=info, may_have_run=so_far.started
            )
        elif recorded.execution is None and recorded.pending is None:
            # It started in the interrupted process, and what failed now says nothing about its effect.
            in_doubt = call.admitted.settle(so_far, ToolStatus.IN_DOUBT, self._now(), error=info, may_have_run=True)
            outcome = evolve(in_doubt, must_record=True)
        call.outcome = outcome
        self.failure = self.failure or error
        name = error.interceptor if isinstance(error, InterceptorFailed) else type(error).__name__
        self._halt_reason = f"not run, because an interceptor failed: {name}"

    def _now(self) -> datetime:
        return self.settings.scope.clock.now()

    # --- running ------------------------------------------------------------------------------------------------

    async def _run_group(self) -> None:
        """Run the admitted calls concurrently, and settle them in call order."""
        group, self._group, self._group_keys, self._is_group_exclusive = self._group, [], set(), False
        gate = asyncio.Semaphore(self.max_concurrency) if self.max_concurrency is not None else nullcontext()
        for call in group:
            if call.is_open:
                # A single call has its own task, too: what a tool does to its current task must not reach the loop.
                name = f"agentloop tool {call.admitted.key}"
                call.task = asyncio.create_task(self._run_call(call, gate), name=name)
        for call in group:
            # Not gathered: a call is settled as soon as all calls before it are, while those after it still run.
            if call.task is not None and not call.task.done():
                await asyncio.wait((call.task,))
            await self._settle(call)

    async def _run_call(self, call: CallState, gate: AbstractAsyncContextManager[None]) -> None:
        async with gate:
            call.runner = runner = self._runner(call.admitted)
            try:
                call.outcome = await runner.run()
            except AgentStop as stop:
                call.outcome = self._stopped(call.admitted, runner.outcome, stop)
            except Exception as error:  # noqa: BLE001  # of an interceptor, of a listener or of the journal
                self._attach_failure(call.admitted.key, error)
                self._fail(call, error)
            if call.outcome.stop is not None:
                self.state = self.state.with_stop_signal(call.outcome.stop)
            self.failure = self.failure or call.outcome.failure
            await self._record(call)

    def _attach_failure(self, key: str, error: Exception) -> None:
        """Record that a layer around the call failed, and which: the outcome alone could be that of the tool."""
        if self.settings.scope.log is not None:
            info, place = ErrorInfo.of(error), {"interceptor": "", "point": ""}
            if isinstance(error, InterceptorFailed):
                place = {"interceptor": error.interceptor, "point": error.point}
            self.settings.scope.log.attach(key, FAILURE, {"type": info.type, "message": info.message, **place})

    def _runner(self, admitted: AdmittedCall) -> ToolInvocation | JournaledCall:
        log, tool = self.settings.scope.log, admitted.tool
        invocation = ToolInvocation(admitted, tool, self.state, self.settings) if tool is not None else None
        if log is not None:
            return JournaledCall(admitted, invocation, self.state, self.settings, log)
        assert invocation is not None  # noqa: S101  # without a journal, a call without a tool is rejected
        return invocation

    def _stopped(self, admitted: AdmittedCall, so_far: CallOutcome, stop: AgentStop) -> CallOutcome:
        """Return the outcome of a call around which an interceptor stopped the execution."""
        if so_far.pending is None:
            error = ErrorInfo("AgentStop", str(stop))
            so_far = admitted.settle(so_far, ToolStatus.CANCELLED, self._now(), error=error)
        # If the tool requested a stop itself, its signal is the one that counts.
        return evolve(so_far, stop=so_far.stop or stop.signal)

    async def _record(self, call: CallState) -> None:
        """Record the end of a call whose start is recorded."""
        log, outcome = self.settings.scope.log, call.outcome
        if log is None or not outcome.must_record:
            return
        # Cleared before the await: a cancellation in between must not record the end twice.
        call.outcome = evolve(outcome, must_record=False)
        try:
            if outcome.pending is not None:
                await log.record_outcome(outcome.pending)
            elif outcome.execution is not None:
                await log.record_outcome(outcome.execution, outcome.stop)
        except JournalError as error:
            self.failure = self.failure or error
            self._halt_reason = "not run, because the journal could not be written"

    # --- settlement ---------------------------------------------------------------------------------------------

    async def _settle(self, call: CallState) -> None:
        """Pass the outcome through the interceptors and emit its event, once per call."""
        if call.is_settled:
            return
        if call.is_open:  # its task was cancelled by someone else
            self._cancel(call, "the call was cancelled")
        await self._record(call)
        # Set before the interceptors run: if they are cancelled, the call must not pass them a second time.
        call.is_settled = True
        if call.outcome.pending is not None:
            await self._settle_pending(call, call.outcome.pending)
            return
        if AfterToolUse.point_name in self.settings.points:
            await self._intercept_outcome(call)
        execution = _execution(call)
        kind = _EVENTS.get(execution.status, ToolCallCompleted)
        if call.outcome.started_at is not None:
            kind = ToolCallCompleted
        await emit_at_step(self.settings.events, kind, self.state, call.admitted.step_number, execution)

    async def _settle_pending(self, call: CallState, pending: PendingCall) -> None:
        self._pending_key = self._pending_key or call.admitted.key
        if call.outcome.started:
            events, step_number = self.settings.events, call.admitted.step_number
            await emit_at_step(events, ToolCallSuspended, self.state, step_number, pending)

    async def _intercept_outcome(self, call: CallState) -> None:
        """Pass `after_tool_use`."""
        admitted = call.admitted
        point = AfterToolUse(self.state, _execution(call), admitted.tool.spec if admitted.tool is not None else None)
        try:
            passed = await self.settings.interceptor.handle(point)
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
        except AgentLoopError as error:
            so_far, info = call.outcome, ErrorInfo.of(error)
            call.outcome = admitted.settle(
                so_far, ToolStatus.FAILED, self._now(), error=info, may_have_run=so_far.started
            )
            self.failure = self.failure or error
        else:
            self.state = passed.state
            call.outcome = evolve(call.outcome, execution=evolve(passed.execution, id=admitted.id, key=admitted.key))


_CHANGED_AFTER_DECISION = (
    "an interceptor changed the call after the decision about it; the changed call needs a decision of its own"
)

_EVENTS: Mapping[ToolStatus, type[ToolCallBlocked | ToolCallRejected | ToolCallCompleted]] = {
    ToolStatus.BLOCKED: ToolCallBlocked,
    ToolStatus.REJECTED: ToolCallRejected,
}
"""The events of calls that did not start."""


def _cancelled(admitted: AdmittedCall, so_far: CallOutcome, reason: str, at: datetime) -> CallOutcome:
    """Return the outcome of a cancelled call."""
    recorded = admitted.recorded
    if recorded is None or so_far.started:
        return admitted.settle(so_far, ToolStatus.CANCELLED, at, error=ErrorInfo("Cancelled", reason))
    # It started before an interruption, and is cancelled before it is resumed: its record decides.
    so_far = evolve(so_far, started_at=recorded.intent.at)
    if recorded.execution is not None:
        return evolve(so_far, execution=recorded.execution, stop=recorded.stop)
    why, effect = f"it was interrupted, and then {reason}", recorded.intent.effect
    if effect is Effect.EFFECT:
        status, error = ToolStatus.IN_DOUBT, ErrorInfo("ToolInDoubt", why)
    else:
        status, error = ToolStatus.CANCELLED, ErrorInfo("Cancelled", why)
    settled = admitted.settle(so_far, status, at, error=error, may_have_run=effect is not Effect.PURE)
    return evolve(settled, must_record=True)


def _ready_tool(call: CallState) -> ReadyTool:
    assert call.admitted.tool is not None  # noqa: S101  # only calls with a tool join a group
    return call.admitted.tool


def _execution(call: CallState) -> ToolExecution:
    assert call.outcome.execution is not None  # noqa: S101  # the call is settled
    return call.outcome.execution
