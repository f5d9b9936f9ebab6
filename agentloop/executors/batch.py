"""Runs a batch of tool calls: admits them in call order, runs them concurrently, settles them in call order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from datetime import datetime
from functools import partial

from attrs import define, evolve, field, frozen

from agentloop._shielding import CancellationWatch, is_task_cancelled, run_shielded, wait_through
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import (
    AgentLoopError,
    BoundExceeded,
    CallNotAllowed,
    ContractViolation,
    InterceptorFailed,
    ToolError,
    UnknownTool,
)
from agentloop.events.bus import emit_at_step, emit_soon
from agentloop.events.tool_calls import (
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallRejected,
    ToolCallReviewed,
    ToolCallSuspended,
)
from agentloop.executors.call_layers import CallLayer, Cut
from agentloop.executors.invocation import (
    OPEN,
    AdmittedCall,
    BatchSettings,
    CallOutcome,
    ToolInvocation,
    log_failure,
    report_abandoned,
    report_late,
    tool_error,
)
from agentloop.executors.result_limits import fit_again, whole_result
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.batches import ToolCalls, ToolExecutions, parse_key
from agentloop.values.decisions import Answer, Approve, Block, Deny, Edit, PendingCall, Suspend
from agentloop.values.json import EMPTY_OBJECT
from agentloop.values.points import AfterToolUse, AroundToolUse, BeforeToolUse
from agentloop.values.rendering import render_call
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop, InterceptorTimedOut, StopSignal
from agentloop.values.tool_calls import ErrorInfo, ToolExecution, ToolResult, ToolStatus


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


@define(eq=False)
class CallState:
    """The state of one call in its batch. Only `Batch` changes it.

    Attributes:
        admitted: the call, as far as it is admitted.
        outcome: its outcome so far.
        layers: what is laid around it, outermost first.
        runner: runs its tool; None before it runs.
        task: the task in which it runs.
        ended: done when that task ends. Unlike a task that is awaited, it does not pass a cancellation on.
        escaped: what the call raised that is no outcome, such as a failed assertion of a test; None if nothing.
        settling: the task in which the interceptors see the outcome; None before.
        is_seen: whether the interceptors have seen the outcome, or have failed at it.
        is_closed: whether the outcome is final, so that what still runs cannot change it.
        is_settled: whether the event of the final outcome was emitted.
    """

    admitted: AdmittedCall
    outcome: CallOutcome = OPEN
    layers: tuple[CallLayer, ...] = ()
    runner: ToolInvocation | None = None
    task: asyncio.Task[None] | None = None
    ended: asyncio.Future[None] | None = None
    escaped: BaseException | None = None
    settling: asyncio.Task[_PassedOutcome] | None = None
    is_seen: bool = False
    is_closed: bool = False
    is_settled: bool = False

    @property
    def is_open(self) -> bool:
        """Whether the call is neither settled nor pending."""
        return self.outcome.execution is None and self.outcome.pending is None

    @property
    def is_running(self) -> bool:
        """Whether its task has not ended."""
        return self.task is not None and not self.task.done()


def call_states(
    tool_calls: ToolCalls, state: AgentState, scope: ExecutionScope, outer: AdmittedCall | None = None
) -> list[CallState]:
    """Return the states of the calls of a batch, before admission; the ids of their executions are drawn in call order.

    Args:
        tool_calls: the calls.
        state: the agent's state.
        scope: the surroundings of the execution.
        outer: the call whose tool makes the calls; None for calls of a model. Their ids are their
            keys, which are the same whenever the tool runs again.
    """
    # Keys name step and index, which differ from the position in this batch when pending calls of an earlier step are settled.
    places = [parse_key(key) or (state.step_count + 1, index) for index, key in enumerate(tool_calls.keys)]
    return [
        CallState(
            AdmittedCall(
                step_number=step_number,
                index=index,
                key=key,
                id=scope.ids.new_id("tool_execution") if outer is None else key,
                call=call,
                requested=None if outer is None else call,
                preceding=index if outer is None else outer.preceding + 1 + int(key.rpartition("/")[2]),
                decision=tool_calls.decisions.get(key),
                resumed=tool_calls.begun.get(key),
                suspensions=tool_calls.suspensions.get(key, 0),
                definition=tool_calls.definitions.get(key),
                shown_defaults=tool_calls.defaults.get(key, EMPTY_OBJECT),
                rejection=tool_calls.rejections.get(key, ""),
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
        inner_count: the number of calls that programs of the step have made so far.
        failure: the first error of an interceptor, of the journal or of a listener; no call is admitted after it.
    """

    state: AgentState
    calls: Sequence[CallState]
    settings: BatchSettings
    toolbox: Toolbox
    max_concurrency: int | None
    stop_on_block: bool
    inner_count: int
    failure: Exception | None = field(default=None, init=False)
    _halt_reason: str = field(default="", init=False)
    _group: list[CallState] = field(factory=list, init=False)
    _group_keys: set[str] = field(factory=set, init=False)
    _is_group_exclusive: bool = field(default=False, init=False)
    _pending_key: str = field(default="", init=False)
    _grace: float | None = field(default=None, init=False)
    # Whether calls that are cut off have ended: not if the execution may be resumed, as after a crash.
    _is_final: bool = field(default=False, init=False)

    async def complete(self) -> None:
        """Execute all calls. Whatever is raised, every call is settled; an `Exception` becomes the `failure`.

        Raises:
            asyncio.CancelledError: the task was cancelled.
            BaseException: what is no `Exception`, such as an exit, or a failed assertion in an interceptor of a test.
        """
        watch = CancellationWatch()
        try:
            await self.run()
        except GeneratorExit:  # the coroutine is thrown away, and cannot await anything
            raise
        except BaseException as error:
            await self._settle_all(error, is_cancelled=watch.is_cancelled())
            if not isinstance(error, Exception):
                raise
        if watch.is_cancelled():  # the result of a tool, or the error of a listener, may have taken its place
            raise asyncio.CancelledError

    async def _settle_all(self, error: BaseException, *, is_cancelled: bool) -> None:
        """Settle every call although an error has left `run`; further errors are logged, and do not take its place."""
        reason = "the execution was cancelled"
        if not is_cancelled and not isinstance(error, asyncio.CancelledError):
            reason = f"the calls were interrupted by {type(error).__name__}"
        if isinstance(error, Exception):
            self._is_final = not is_cancelled
            if is_cancelled or self.failure is not None:
                _LOG.error("a batch of tool calls was interrupted", exc_info=error)
            else:
                self.failure = error
        for call in self.calls:
            if call.escaped is not None and call.escaped is not error:
                _LOG.error(_UNSETTLED, call.admitted.key, exc_info=call.escaped)
        # Shielded from further cancellations: every call has to be settled before the batch can be carried on.
        grace = self.settings.cancel_grace
        try:
            await run_shielded(self.abandon(reason, grace), 2 * grace + _CLOSING_SECONDS)
        finally:
            self.close(reason)  # calls that did not end in time get an outcome nevertheless
            await self._interrupt_interceptors()

    async def run(self) -> None:
        """Execute all calls; afterwards each of them is settled or pending."""
        excess = self._find_excess()
        for call in self.calls:
            for layer in self.settings.layers:
                opened = layer.open(call, self)
                if opened is not None:
                    call.layers = (*call.layers, opened)
        for call in self.calls:
            # A call that started before an interruption is resumed in any case: its effect may have happened.
            if call.admitted.is_committed:
                await self._admit(call)
            elif self._halt_reason:
                self._halt(call)
            elif excess is not None and not call.admitted.was_started:
                call.outcome = call.admitted.settle(OPEN, ToolStatus.REJECTED, self._now(), error=excess)
                self._group.append(call)
            else:
                await self._admit(call)
        await self._run_group()

    def _halt(self, call: CallState) -> None:
        """Settle a call that is not run because of a call before it."""
        self._cancel(call, self._halt_reason)
        self._group.append(call)

    def _find_excess(self) -> ErrorInfo | None:
        """Return why no call of the answer may run; None if they are not too many."""
        limit, count = self.settings.scope.bounds.calls_per_answer, len(self.calls)
        if count <= limit:
            return None
        return tool_error(
            BoundExceeded("calls_per_answer", limit, f"the answer has {count:,} tool calls, so none of them was run")
        )

    def executions(self) -> ToolExecutions:
        """Return the outcomes of the calls."""
        outcomes = [call.outcome for call in self.calls]
        return ToolExecutions(
            tuple([outcome.execution for outcome in outcomes if outcome.execution is not None]),
            tuple([outcome.pending for outcome in outcomes if outcome.pending is not None]),
            self.state,
        )

    def exception_of(self, execution: ToolExecution) -> BaseException | None:
        """Return what the tool of a call raised; None if it did not raise, or not in this process."""
        return next((call.outcome.exception for call in self.calls if call.outcome.execution is execution), None)

    async def abandon(self, reason: str, grace: float) -> None:
        """Cancel what runs, and settle every open call as cancelled.

        Args:
            reason: why, in words.
            grace: the time in seconds that the tools have to end, and then the interceptors to see the outcomes. What takes
                longer is left behind, and reported.
        """
        running = [call.task for call in self.calls if call.task is not None and not call.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=grace)
        self._grace = grace
        for call in self.calls:
            if call.is_running:
                with _logged(call):
                    await self._leave_behind(call, reason)
        self._cancel_open(reason)
        for call in self.calls:
            with _logged(call):
                await self._settle(call)

    def close(self, reason: str) -> None:
        """Settle what `abandon` has not settled in time, without waiting for any code of others."""
        self._cancel_open(reason)
        for call in self.calls:
            if call.is_settled:
                continue
            call.is_settled = call.is_closed = True
            if call.outcome.execution is None:
                continue
            self._drop_value(call)
            kind, execution = self._event_of(call), _execution(call)
            number = call.admitted.step_number
            self.settings.scope.ledger.settle(execution)
            with _logged(call):
                self._release_reports(call)
            with _logged(call):
                emit_soon(self.settings.events, kind, self.state, number, execution, call.outcome.exception)

    def _cancel_open(self, reason: str) -> None:
        """Settle every open call as cancelled."""
        for call in self.calls:
            self._close(call, reason)

    def _close(self, call: CallState, reason: str) -> None:
        """Settle a call as cancelled if it is open; what still runs of it does not count."""
        if call.is_open:
            self._cancel(call, reason, is_final=self._is_final)
        call.is_closed = True

    async def _leave_behind(self, call: CallState, reason: str) -> None:
        """Settle and report a call whose task ignores its cancellation, and report the end of the task when it comes."""
        self._close(call, reason)  # before listeners are awaited: what the tool does meanwhile does not count
        admitted, task, state, events = call.admitted, call.task, self.state, self.settings.events
        assert task is not None  # noqa: S101  # it runs

        def report_end(late: asyncio.Task[None]) -> None:
            error = None if late.cancelled() else late.exception()
            # What the tool raises is made an outcome in the task, and comes out of it only if it ends the program.
            raised = error or (None if call.runner is None else self._so_far(call).exception)
            report_late(admitted, state, events, raised)

        task.add_done_callback(report_end)
        await report_abandoned(admitted, state, events)

    async def _interrupt_interceptors(self) -> None:
        """Interrupt the interceptors whose turn to see an outcome did not end in time, and let them clean up."""
        tasks = [call.settling for call in self.calls if call.settling is not None and not call.settling.done()]
        unaware = [task for task in tasks if not task.cancelling()]
        for task in unaware:
            task.cancel()
        if unaware:
            await wait_through(asyncio.gather(*unaware, return_exceptions=True), _CANCEL_SECONDS)

    # --- admission ----------------------------------------------------------------------------------------------

    async def _admit(self, call: CallState) -> None:
        admitted = call.admitted
        if isinstance(admitted.decision, Edit) and not admitted.is_committed:
            call.admitted = evolve(admitted, call=admitted.call.with_arguments(admitted.decision.arguments))
        if not self._prepare(call):
            if admitted.is_committed:
                call.outcome = OPEN  # its layers decide, even if its tool no longer exists or rejects the arguments
            self._group.append(call)  # so that it is settled in call order
            return
        if await self._wait_for_turn(call):
            self._join_group(call)
            await self._decide(call)

    async def _wait_for_turn(self, call: CallState) -> bool:
        """Settle the calls that have to be settled before this one; return whether it may run after them."""
        if not self._must_wait(call):
            return True
        await self._run_group()
        admitted = call.admitted
        if self._halt_reason and not admitted.is_committed:
            self._halt(call)
            return False
        if self._pending_key and admitted.decision is None and not admitted.was_started:
            reason = f"runs after {self._pending_key}"
            call.outcome = CallOutcome(pending=admitted.suspend(reason, waits_for=self._pending_key))
            return False
        return True

    def _prepare(self, call: CallState) -> bool:
        """Look up the tool and prepare the arguments; return whether that succeeded, and settle the call if not."""
        tool: ReadyTool | None = call.admitted.tool
        # A call that has started runs with its recorded arguments, to the letter, and an approved one with those that were shown.
        strict = call.admitted.was_started or isinstance(call.admitted.decision, Approve)
        try:
            tool = self.toolbox.get(call.admitted.call.name)
            _check_allowed(call.admitted)
            fitted, arguments = tool.admit(call.admitted.call, self.settings.scope.bounds, strict=strict)
            ordering_key = tool.ordering_key(fitted)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the tool's own code may fail here, before it runs
            is_rejected = isinstance(error, ToolError)
            call.admitted = evolve(call.admitted, tool=tool)
            call.outcome = call.admitted.settle(
                OPEN,
                ToolStatus.REJECTED if is_rejected else ToolStatus.FAILED,
                self._now(),
                error=tool_error(error),
            )
            if not is_rejected:
                log_failure(call.admitted, self.state.execution_id, error)
                call.outcome = evolve(call.outcome, exception=error)
            return False
        call.admitted = call.admitted.with_tool(tool, fitted, arguments, ordering_key)
        return True

    def _must_wait(self, call: CallState) -> bool:
        """Return whether the calls before this one have to be settled first."""
        if not self._group and not self._pending_key:
            return False
        if self._is_group_exclusive or _ready_tool(call).runs_alone:
            return True
        # Only ordered calls wait for a pending one; the others are independent of its decision.
        key = call.admitted.ordering_key
        return bool(key) and (key in self._group_keys or bool(self._pending_key))

    def _join_group(self, call: CallState) -> None:
        self._group.append(call)
        self._is_group_exclusive = _ready_tool(call).runs_alone
        if call.admitted.ordering_key:
            self._group_keys.add(call.admitted.ordering_key)

    async def _decide(self, call: CallState) -> None:
        """Apply the decision about a call, or let the interceptors decide."""
        # A person who denied or answered a call has the last word; an approved call still passes the interceptors.
        decision, spec = call.admitted.decision, _ready_tool(call).spec
        if decision is not None:
            key, number, events = call.admitted.key, call.admitted.step_number, self.settings.events
            await emit_at_step(events, ToolCallReviewed, self.state, number, key, spec.name, decision)
        if isinstance(decision, Deny):
            self._block(call, decision.reason or "denied")
        elif isinstance(decision, Answer):
            self._answer(call, decision)
        elif await self._admit_by_layers(call) and BeforeToolUse.point_name in self.settings.points:
            await self._intercept(call)

    async def _admit_by_layers(self, call: CallState) -> bool:
        """Let the layers look at a call; return whether it is still open."""
        for layer in call.layers:
            if "admit" in layer.hooks:
                await layer.admit()
                if not call.is_open:
                    return False
        return True

    async def _keep(self, call: CallState, refused: str) -> None:
        """Resume a committed call as it began, and report what interceptors would have done to it instead."""
        for layer in call.layers:
            await layer.keep(refused)

    async def _intercept(self, call: CallState) -> None:
        """Pass `before_tool_use`."""
        admitted = call.admitted
        passage = await self.settings.interceptor.pass_layers(self._before_point(call))
        self.state = passage.point.state
        try:
            passed = passage.take()
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
            # A committed call is resumed nevertheless: the signal stops the execution after this step.
            if admitted.is_committed:
                await self._keep(call, str(stop))
            else:
                self._block(call, str(stop))
            return
        except AgentLoopError as error:
            self._fail(call, error)
            return
        if not admitted.is_committed:
            await self._apply_verdict(call, passed)
        elif refused := _refusal(passed, admitted):
            await self._keep(call, refused)

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
                if not changed or self._prepare(call):  # what cannot run is not asked about
                    self.suspend(call, reason)
            case None if changed and admitted.decision is not None:
                if self._prepare(call):
                    self.suspend(call, _CHANGED_AFTER_DECISION)
            case None if changed:
                await self._readmit(call)
            case None if passed.is_changed and not admitted.was_started:
                await self._check(call)

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
            preceding=admitted.preceding + self.inner_count,
        )

    async def _readmit(self, call: CallState) -> None:
        """Validate a call that an interceptor changed. With its new ordering key it may have to wait."""
        self._group.remove(call)
        self._group_keys.discard(call.admitted.ordering_key)  # no other call of the group has it
        if not self._prepare(call):
            self._group.append(call)
            return
        if not await self._wait_for_turn(call):
            return
        self._join_group(call)
        if await self._admit_by_layers(call):
            await self._check(call)

    async def _check(self, call: CallState) -> None:
        """Let the interceptors that check calls see the call as it will run, with its tool; they may have seen another."""
        passage = await self.settings.interceptor.check(self._before_point(call))
        self.state = passage.point.state
        try:
            passed = passage.take()
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
            self._block(call, str(stop))
        except AgentLoopError as error:
            self._fail(call, error)
        else:
            if isinstance(passed.verdict, Block):
                self._block(call, passed.verdict.reason)
            elif isinstance(passed.verdict, Suspend):
                self.suspend(call, passed.verdict.reason)
            elif passed.call != call.admitted.call or passed.verdict is not None:
                self._block(call, _CHANGED_BY_CHECK)

    # --- outcomes without a run ---------------------------------------------------------------------------------

    def _block(self, call: CallState, reason: str) -> None:
        error = ErrorInfo("ToolBlocked", reason)
        call.outcome = call.admitted.settle(
            self._unrun(call, OPEN, reason), ToolStatus.BLOCKED, self._now(), error=error
        )
        if self.stop_on_block:
            name = call.admitted.call.name
            self._halt_reason = f"not run, because the call {name!r} before it was blocked: {reason}"

    def _answer(self, call: CallState, answer: Answer) -> None:
        result = ToolResult(answer.value)
        so_far = self._unrun(call, OPEN, "the call that made it was answered")
        call.outcome = call.admitted.settle(so_far, ToolStatus.SUCCEEDED, self._now(), result=result)

    def _unrun(self, call: CallState, so_far: CallOutcome, reason: str) -> CallOutcome:
        """Return the outcome so far of a call that does not run on, with what it did before."""
        for layer in call.layers:
            if "unrun" in layer.hooks:
                so_far = layer.unrun(so_far, reason)
        return so_far

    def suspend(self, call: CallState, reason: str) -> None:
        """Let a call wait for a decision."""
        call.outcome = CallOutcome(pending=call.admitted.suspend(reason))
        self._pending_key = self._pending_key or call.admitted.key

    def _so_far(self, call: CallState) -> CallOutcome:
        """Return the outcome so far. While a call runs, its runner knows how far it has come."""
        if call.runner is not None:
            return call.runner.outcome
        outcome = call.outcome
        for layer in reversed(call.layers):
            if "so_far" in layer.hooks:
                outcome = layer.so_far(outcome)
        return outcome

    def _cancel(self, call: CallState, reason: str, *, is_final: bool = True) -> None:
        """Settle an open call as cancelled, even if it still runs."""
        so_far = self._so_far(call)
        if call.runner is not None:
            call.runner.close()
        if so_far.execution is None:
            so_far = self._cut(call, self._unrun(call, so_far, reason), Cut(reason, None, is_final))
        elif not is_final:
            self._cut(call, so_far, Cut(reason, None, is_final))
        call.outcome = so_far

    def _fail(self, call: CallState, error: Exception) -> None:
        """Settle a call whose interceptor, listener or layer failed (law 11), and admit no more calls."""
        outcome = self._cut(call, self._so_far(call), Cut("", error))
        call.outcome = evolve(outcome, exception=error)
        self._admit_no_more(error)

    def _cut(self, call: CallState, so_far: CallOutcome, cut: Cut) -> CallOutcome:
        """Return how a call ends that is cut off, as its layers and this batch see it."""

        def settle() -> CallOutcome:
            if cut.error is None:
                status, info = ToolStatus.CANCELLED, ErrorInfo("Cancelled", cut.reason)
            elif so_far.pending is not None:
                return so_far  # the tool has suspended the call, which it can resume
            else:
                status, info = ToolStatus.FAILED, ErrorInfo.of(cut.error)
            return call.admitted.settle(so_far, status, self._now(), error=info)

        for layer in reversed(call.layers):
            if "cut" in layer.hooks:
                settle = partial(layer.cut, so_far, cut, settle)
        return settle()

    def halt(self, error: Exception, reason: str) -> None:
        """Admit no more calls; the error interrupts the batch."""
        self.failure = self.failure or error
        self._halt_reason = reason

    def _admit_no_more(self, error: Exception) -> None:
        self.failure = self.failure or error
        name = error.interceptor if isinstance(error, InterceptorFailed) else type(error).__name__
        self._halt_reason = self._halt_reason or f"not run, because an interceptor failed: {name}"

    def _now(self) -> datetime:
        return self.settings.scope.clock.now()

    # --- running ------------------------------------------------------------------------------------------------

    async def _run_group(self) -> None:
        """Run the admitted calls concurrently, and settle them in call order."""
        group, self._group, self._group_keys, self._is_group_exclusive = self._group, [], set(), False
        gate = asyncio.Semaphore(self.max_concurrency) if self.max_concurrency is not None else nullcontext()
        waiting = [call for call in group if call.is_open]
        if self._needs_no_tasks(waiting):
            for call in waiting:
                await self._run_call(call, gate)
                if is_task_cancelled():  # the function had a result when the cancellation came
                    raise asyncio.CancelledError
                has_waited = not _ready_tool(call).is_inline
                self.settings.scope.ledger.has_waited |= has_waited
        else:
            for call in waiting:
                # A single call has its own task, too: what a tool does to its current task must not reach the loop.
                call.ended = ended = asyncio.get_running_loop().create_future()
                name = f"agentloop tool {call.admitted.key}"
                call.task = asyncio.create_task(self._run_in_task(call, gate, ended), name=name)
                call.task.add_done_callback(partial(_end, ended))  # for a task that is cancelled before it begins
        for call in group:
            # Not gathered: a call is settled as soon as all calls before it are, while those after it still run.
            if call.task is not None and call.ended is not None and not call.task.done():
                await call.ended
                self.settings.scope.ledger.has_waited = True
            if call.escaped is not None:
                raise call.escaped
            await self._settle(call)

    def _needs_no_tasks(self, calls: Sequence[CallState]) -> bool:
        """Return whether the calls can run in the current task: nothing else runs meanwhile, and no code of others meets the task."""
        task, settings = asyncio.current_task(), self.settings
        if AroundToolUse.point_name in settings.points or any(
            layer.wraps_tool for call in calls for layer in call.layers
        ):
            return False
        # Whether the current task is cancelled decides what a `CancelledError` of a tool means.
        if task is None or task.cancelling():
            return False
        tools = [call.admitted.tool for call in calls if call.admitted.tool is not None]
        if len(calls) == 1:
            return bool(tools) and (tools[0].uses_thread or tools[0].is_inline)
        return len(tools) == len(calls) and all(tool.is_inline for tool in tools)

    async def _run_in_task(
        self, call: CallState, gate: AbstractAsyncContextManager[None], ended: asyncio.Future[None]
    ) -> None:
        try:
            await self._run_call(call, gate)
        except (asyncio.CancelledError, *_EXITS):
            raise
        except BaseException as error:  # noqa: BLE001  # raised again when it is the turn of the call
            call.escaped = error
        finally:
            _end(ended)  # here already: a callback of the task would come a turn of the event loop later

    async def _run_call(self, call: CallState, gate: AbstractAsyncContextManager[None]) -> None:
        tool = call.admitted.tool
        async with gate:
            if tool is not None and tool.uses_thread:
                async with self.settings.thread_pool().slots:
                    await self._invoke(call)
            else:
                await self._invoke(call)

    async def _invoke(self, call: CallState) -> None:
        call.runner = self._invocation(call)
        failure: Exception | None = None
        try:
            outcome = await self._run_layers(call)
        except AgentStop as stop:
            outcome = self._stopped(call.admitted, self._so_far(call), stop)
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            failure, outcome = ContractViolation(_AWAITED_CANCELLED), OPEN
        except Exception as error:  # noqa: BLE001  # of an interceptor, of a listener or of the journal
            failure, outcome = error, OPEN
        if call.is_closed:  # it was left behind, and its call has an outcome
            return
        if failure is not None:
            self._fail(call, failure)
        else:
            call.outcome = outcome
        if call.outcome.failure is not None:  # of a call that its tool made
            self._admit_no_more(call.outcome.failure)
        await self._end(call)

    async def _run_layers(self, call: CallState) -> CallOutcome:
        run = _no_tool if call.runner is None else call.runner.run
        for layer in reversed(call.layers):
            if "run" in layer.hooks:
                run = partial(layer.run, run)
        return await run()

    def _invocation(self, call: CallState) -> ToolInvocation | None:
        admitted, tool = call.admitted, call.admitted.tool
        if tool is None:
            return None
        return ToolInvocation(admitted, tool, self.state, self.settings, call.layers)

    def _stopped(self, admitted: AdmittedCall, so_far: CallOutcome, stop: AgentStop) -> CallOutcome:
        """Return the outcome of a call around which an interceptor stopped the execution."""
        if so_far.pending is None:
            error = ErrorInfo("AgentStop", str(stop))
            so_far = admitted.settle(so_far, ToolStatus.CANCELLED, self._now(), error=error)
        # If the tool requested a stop itself, its signal is the one that counts.
        return evolve(so_far, stop=so_far.stop or stop.signal)

    async def _end(self, call: CallState) -> None:
        """Let the layers take note of the outcome."""
        for layer in call.layers:
            if "end" in layer.hooks:
                call.outcome = await layer.end(call.outcome)

    # --- settlement ---------------------------------------------------------------------------------------------

    async def _settle(self, call: CallState) -> None:
        """Pass the outcome through the interceptors and emit its event, once per call."""
        if call.is_settled:
            return
        if call.is_open:  # its task was cancelled by someone else
            self._cancel(call, "the call was cancelled")
        await self._end(call)
        if call.settling is None and call.outcome.stop is not None:
            # Here and not when the call ends, so that signals come in call order, and none is lost to an interceptor that
            # returns the state which it received before.
            self.state = self.state.with_stop_signal(call.outcome.stop)
        if call.outcome.pending is not None:
            call.is_settled = True
            try:
                self._release_reports(call)
            finally:
                await self._settle_pending(call, call.outcome.pending)
            return
        if AfterToolUse.point_name in self.settings.points and not call.is_seen:
            await self._intercept_outcome(call)
        call.is_settled = call.is_closed = True
        events, number, execution = self.settings.events, call.admitted.step_number, _execution(call)
        self.inner_count += len(execution.inner)
        self.settings.scope.ledger.settle(execution)
        try:
            self._release_reports(call)
        finally:  # also if a listener of a strict bus has raised
            await emit_at_step(events, self._event_of(call), self.state, number, execution, call.outcome.exception)

    def _release_reports(self, call: CallState) -> None:
        if self.settings.reports is not None:
            self.settings.reports.release(call.admitted.key)

    def _event_of(self, call: CallState) -> type[ToolCallBlocked | ToolCallRejected | ToolCallCompleted]:
        if call.outcome.started_at is not None:
            return ToolCallCompleted
        return _EVENTS.get(_execution(call).status, ToolCallCompleted)

    async def _settle_pending(self, call: CallState, pending: PendingCall) -> None:
        self._pending_key = self._pending_key or call.admitted.key
        if call.outcome.started:
            events, step_number = self.settings.events, call.admitted.step_number
            await emit_at_step(events, ToolCallSuspended, self.state, step_number, pending)

    async def _intercept_outcome(self, call: CallState) -> None:
        """Pass `after_tool_use`."""
        admitted, so_far = call.admitted, call.outcome
        spec = admitted.tool.spec if admitted.tool is not None else None
        # Whole: what they look for may be in the part that does not fit, which the model could read by its reference.
        point = AfterToolUse(self.state, whole_result(_execution(call)), spec, so_far.exception)
        if call.settling is None:
            # In a task of its own, which a cancellation does not reach: an outcome that interceptors have seen in part, such as
            # an unredacted one, must not get into the state.
            call.settling = asyncio.create_task(self._pass_outcome(call, point))
        settling = call.settling
        await asyncio.wait((settling,), timeout=self._grace)
        if not settling.done():
            settling.cancel()
            await asyncio.wait((settling,), timeout=min(_CANCEL_SECONDS, self._grace or _CANCEL_SECONDS))
            self._drop_value(call)
            return
        call.is_seen = True
        try:
            self._apply_passed(call, settling.result())
        except asyncio.CancelledError:
            self._refuse_outcome(call, ContractViolation(_AWAITED_CANCELLED))
        except Exception as error:  # noqa: BLE001  # of a listener, between two interceptors: not all have seen the outcome
            self._refuse_outcome(call, error)
        except BaseException as error:
            self._replace_outcome(call, ToolStatus.FAILED, ErrorInfo.of(error))
            raise

    async def _pass_outcome(self, call: CallState, point: AfterToolUse) -> _PassedOutcome:
        """Pass an outcome through all interceptors; one that raises does not hide it from the others.

        The layers behind it see how the call ends: they may mask the value, which gets into the state, or report the call.
        """
        settled, failure = point, None
        passage = await self.settings.interceptor.pass_layers(point)
        while passage.error is not None:
            passed, error = passage.point, passage.error
            if isinstance(error, AgentStop):
                passed = passed.with_state(passed.state.with_stop_signal(error.signal))
            else:
                failure = failure or error
            # An interceptor that was interrupted by a limit, or has failed, may have been about to mask the value.
            is_refused = not isinstance(error, AgentStop) or isinstance(error, InterceptorTimedOut)
            if is_refused and (settled is point or not passed.execution.has_error):
                execution = self._failed(call, ToolStatus.FAILED, tool_error(error))
                exception = point.exception if isinstance(error, AgentStop) else error
                settled = passed = evolve(passed, execution=execution, exception=exception, is_restored=False)
            if not passage.rest:
                return _PassedOutcome(settled, passed, failure)
            passage = await self.settings.interceptor.pass_layers(passed, passage.rest)
        return _PassedOutcome(settled, passage.point, failure)

    def _apply_passed(self, call: CallState, outcome: _PassedOutcome) -> None:
        """Take over what the interceptors made of an outcome."""
        settled, passed, before = outcome.settled, outcome.passed, _execution(call)
        self.state = passed.state
        seen = self._fit_again(call, settled.execution, before)
        call.outcome = evolve(call.outcome, execution=seen, exception=settled.exception)
        if outcome.failure is not None:
            self._admit_no_more(outcome.failure)
        if passed.execution is settled.execution:
            return
        admitted, so_far, execution = call.admitted, call.outcome, passed.execution
        if passed.is_restored:
            execution = evolve(execution, id=admitted.id, key=admitted.key)
        elif violation := settled.find_violation(evolve(execution, may_have_run=settled.execution.may_have_run)):
            self._refuse_outcome(call, ContractViolation(violation))
            return
        else:
            execution = evolve(execution, may_have_run=self._may_have_run(call, execution))
        exception = so_far.exception if execution.has_error else None
        execution = self._fit_again(call, execution, before)
        call.outcome = evolve(so_far, execution=execution, exception=exception)

    def _fit_again(self, call: CallState, execution: ToolExecution, before: ToolExecution) -> ToolExecution:
        """Cut what interceptors made of a result that did not fit."""
        tool, settings = call.admitted.tool, self.settings
        if tool is None:  # no result
            return execution
        return fit_again(execution, before, tool.policy, settings.max_result_bytes, settings.tools)

    def _may_have_run(self, call: CallState, execution: ToolExecution) -> bool:
        """Return whether an effect cannot be excluded for what interceptors made of an outcome."""
        known = _execution(call).may_have_run and execution.has_error
        return known or call.admitted.may_have_run(call.outcome, execution.status)

    def _refuse_outcome(self, call: CallState, error: Exception) -> None:
        """Settle a call as failed because its interceptors have failed at its outcome (law 11); no further call is admitted."""
        self._replace_outcome(call, ToolStatus.FAILED, ErrorInfo.of(error))
        call.outcome = evolve(call.outcome, exception=error)
        self._admit_no_more(error)

    def _drop_value(self, call: CallState) -> None:
        """Settle a call as cancelled because its interceptors had no time to see its outcome."""
        if AfterToolUse.point_name in self.settings.points and not call.is_seen:
            self._replace_outcome(call, ToolStatus.CANCELLED, ErrorInfo("Cancelled", _NOT_SEEN))

    def _replace_outcome(self, call: CallState, status: ToolStatus, error: ErrorInfo) -> None:
        call.outcome = evolve(call.outcome, execution=self._failed(call, status, error))

    def _failed(self, call: CallState, status: ToolStatus, error: ErrorInfo) -> ToolExecution:
        """Return the execution of a settled call with an error in place of its outcome."""
        execution = call.admitted.execution(call.outcome, status, self._now(), error=error)
        return evolve(execution, may_have_run=self._may_have_run(call, execution))


_CANCEL_SECONDS = 1.0
_CLOSING_SECONDS = 5.0
"""The time that the journal and async listeners have to record and handle the end of cancelled calls."""
_AWAITED_CANCELLED = "an interceptor of a tool call awaited something that was cancelled"
_NOT_SEEN = "the execution was cancelled before the interceptors had seen the outcome of the call, which was dropped"
_CHANGED_AFTER_DECISION = (
    "an interceptor changed the call after the decision about it; the changed call needs a decision of its own"
)

_CHANGED_BY_CHECK = "an interceptor that checks calls may block or suspend this call, and not change or answer it"

_EXITS = (KeyboardInterrupt, SystemExit, GeneratorExit)
"""What is raised to end the program, or because a coroutine is thrown away."""
_LOG = logging.getLogger("agentloop.tools")
_UNSETTLED = "an error in an interrupted batch of tool calls, at the call %s"

_EVENTS: Mapping[ToolStatus, type[ToolCallBlocked | ToolCallRejected | ToolCallCompleted]] = {
    ToolStatus.BLOCKED: ToolCallBlocked,
    ToolStatus.REJECTED: ToolCallRejected,
}
"""The events of calls that did not start."""


def _refusal(passed: BeforeToolUse, admitted: AdmittedCall) -> str:
    """Return what interceptors would have done to a call; empty if nothing."""
    match passed.verdict:
        case Block(reason):
            return f"block: {reason}"
        case Suspend(reason):
            return f"suspend: {reason}"
        case Answer():
            return "answer"
        case None:
            return f"change to {render_call(passed.call)}" if passed.call != admitted.call else ""


async def _no_tool() -> CallOutcome:
    raise UnknownTool("the call has no tool")  # a layer lets it run, which is in doubt without its tool


@contextmanager
def _logged(call: CallState) -> Iterator[None]:
    """Log an error that must not keep the calls of an interrupted batch from being settled."""
    try:
        yield
    except (asyncio.CancelledError, *_EXITS):
        raise
    except BaseException:  # noqa: BLE001  # also a failed assertion of a test; the error that interrupted the batch is raised
        _LOG.exception(_UNSETTLED, call.admitted.key)


def _end(ended: asyncio.Future[None], _task: object = None) -> None:
    if not ended.done():
        ended.set_result(None)


def stop_signals(state: AgentState) -> tuple[StopSignal, ...]:
    """Return the stop signals in effect."""
    return state.execution.continuation.signals if state.execution is not None else ()


def _check_allowed(admitted: AdmittedCall) -> None:
    if admitted.rejection:
        raise CallNotAllowed(admitted.rejection)


def _ready_tool(call: CallState) -> ReadyTool:
    assert call.admitted.tool is not None  # noqa: S101  # only calls with a tool join a group
    return call.admitted.tool


def _execution(call: CallState) -> ToolExecution:
    assert call.outcome.execution is not None  # noqa: S101  # the call is settled
    return call.outcome.execution
