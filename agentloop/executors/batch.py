"""Runs a batch of tool calls: admits them in call order, runs them concurrently, settles them in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime
from functools import partial

from attrs import define, evolve, field

from agentloop._shielding import CancellationWatch, is_task_cancelled
from agentloop.contracts.execution_scope import ExecutionScope
from agentloop.errors import BoundExceeded, ContractViolation, InterceptorFailed, ToolError
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import ToolCallSuspended
from agentloop.executors.admission import CanLayerCalls
from agentloop.executors.call import Call, CallTask, execution_of
from agentloop.executors.call_layers import AWAITED_CANCELLED, OPEN, CallOutcome, Cut
from agentloop.executors.closing import Closing
from agentloop.executors.invocation import (
    UNSUCCESSFUL,
    CallRuntime,
    ToolInvocation,
    log_failure,
    report_unsuccessful,
    tool_error,
)
from agentloop.values.batches import ToolCalls, ToolExecutions, parse_key
from agentloop.values.decisions import Answer, Edit
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import ErrorInfo, ToolExecution, ToolResult, ToolStatus


def calls_of(tool_calls: ToolCalls, state: AgentState, scope: ExecutionScope, outer: Call | None = None) -> list[Call]:
    """Return the calls of a batch, before admission; the ids of their executions are drawn in call order.

    Args:
        tool_calls: the calls.
        state: the agent's state.
        scope: the surroundings of the execution.
        outer: the call whose tool makes the calls; None for calls of a model. The id of a call that a tool makes is its key, which
            is the same whenever the tool runs again.
    """
    # Keys name step and index, which differ from the position in this batch when pending calls of an earlier step are settled.
    places = [parse_key(key) or (state.step_count + 1, index) for index, key in enumerate(tool_calls.keys)]
    return [
        Call(
            step_number=step_number,
            index=index,
            key=key,
            id=scope.ids.new_id("tool_execution") if outer is None else key,
            call=call,
            requested=None if outer is None else call,
            preceding=index if outer is None else outer.preceding + 1 + int(key.rpartition("/")[2]),
            rejection=tool_calls.rejections.get(key, ""),
            decision=tool_calls.decisions.get(key),
            resumed=tool_calls.begun.get(key),
            suspensions=tool_calls.suspensions.get(key, 0),
        )
        for call, key, (step_number, index) in zip(tool_calls.calls, tool_calls.keys, places, strict=True)
    ]


@define(eq=False, kw_only=True)
class Batch:
    """Executes the calls of one `execute_tools`. It lives as long as that call.

    The batch keeps the order: which call is admitted when, which calls run next to each other, and which is settled before which.
    What else happens to a call is done by the layers around it.

    Attributes:
        state: the agent's state, with the changes that layers have made so far.
        asked: the calls as they were asked for, with the decisions about them.
        calls: the calls, in call order.
        runtime: what the calls of the execution have in common.
        features: what lays layers around the calls, outermost first.
        nested_count: the number of calls that tools have made in the step so far.
        failure: the first error of a layer or of a listener; no call is admitted after it.
        is_final: whether calls that are cut off have ended: not if the execution may be resumed, as after a crash.
        grace: the time in seconds that layers have to complete an outcome; None for any time.
    """

    state: AgentState
    asked: ToolCalls
    calls: Sequence[Call]
    runtime: CallRuntime
    features: Sequence[CanLayerCalls]
    nested_count: int
    failure: Exception | None = field(default=None, init=False)
    is_final: bool = field(default=False, init=False)
    grace: float | None = field(default=None, init=False)
    _halt_reason: str = field(default="", init=False)
    _group: list[Call] = field(factory=list, init=False)
    _group_keys: set[str] = field(factory=set, init=False)
    _is_group_exclusive: bool = field(default=False, init=False)
    _pending_key: str = field(default="", init=False)

    async def complete(self) -> None:
        """Execute all calls. Whatever is raised, every call is settled; an `Exception` becomes the `failure`.

        Raises:
            asyncio.CancelledError: the task was cancelled.
            BaseException: an error outside of `Exception`, such as an exit, or a failed assertion in an interceptor of a test.
        """
        watch = CancellationWatch()
        try:
            await self.run()
        except GeneratorExit:  # the coroutine is thrown away, and cannot await anything
            raise
        except BaseException as error:
            await Closing(self).close(error, is_cancelled=watch.is_cancelled())
            if not isinstance(error, Exception):
                raise
        if watch.is_cancelled():  # the result of a tool, or the error of a listener, may have taken its place
            raise asyncio.CancelledError

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

    # --- admission ----------------------------------------------------------------------------------------------
    #
    # Calls are admitted one after the other, in call order, although they run next to each other. What is decided about a call may
    # depend on the calls before it: a person may have been asked, an interceptor may have changed the state, a blocked call may end
    # the batch. So nothing of a call runs before everything before it is decided, and a second run with the same decisions has the
    # same order, whichever tool is faster.
    #
    # An admitted call joins the group, and waits. The group runs when the last call of the batch has joined it, or when a call comes
    # that must not run next to it: one that runs alone, or one with an ordering key that is taken. Then the whole group runs and is
    # settled, so that the call is decided with the state that these calls have left. A call with an ordering key waits for a pending
    # call, too: nobody knows yet what that will do. All other calls are independent of it.
    #
    # The layers look at a call once it has its tool and its arguments, outermost first. Each may settle it, suspend it, or change it.
    # A changed call is another call: it leaves the group, gets its tool and arguments anew, may have to wait for others now, and is
    # looked at again by all layers outside of the one that has changed it.
    #
    # A committed call is the exception to all of this. It began before its execution was interrupted, and may have had its effect. So
    # nothing refuses it: no halt, no bound, no missing tool. It runs on, and its layers find out how it ended.

    async def run(self) -> None:
        """Execute all calls; afterwards each of them is settled or pending."""
        if self.features:
            for call in self.calls:
                opened = [feature.open(call, self) for feature in self.features]
                call.layers = tuple([layer for layer in opened if layer is not None])
        excess = self._find_excess()
        for call in self.calls:
            if call.is_committed:
                await self._admit(call)
            elif self._halt_reason:
                self._halt(call)
            elif excess is not None and not call.was_started:
                call.outcome = call.settled(OPEN, ToolStatus.REJECTED, self._now(), error=excess)
                self._group.append(call)
            else:
                await self._admit(call)
        await self._run_group()

    def _halt(self, call: Call) -> None:
        """Settle a call that is not run because of a call before it."""
        self.cancel(call, self._halt_reason)
        self._group.append(call)

    def _find_excess(self) -> ErrorInfo | None:
        """Return why no call of the answer may run; None if they are not too many."""
        limit, count = self.runtime.scope.bounds.calls_per_answer, len(self.calls)
        if count <= limit:
            return None
        return tool_error(
            BoundExceeded("calls_per_answer", limit, f"the answer has {count:,} tool calls, so none of them was run")
        )

    async def _admit(self, call: Call) -> None:
        if isinstance(call.decision, Edit) and not call.is_committed:
            call.call = call.call.with_arguments(call.decision.arguments)
        if not self.prepare(call):
            if call.is_committed:
                call.outcome = OPEN  # its layers decide, even if its tool no longer exists or rejects the arguments
            self._group.append(call)  # so that it is settled in call order
        elif await self._take_turn(call) and call.layers:
            await call.admit()

    def prepare(self, call: Call) -> bool:
        """Look up the tool and prepare the arguments; return whether that succeeded, and settle the call if not."""
        try:
            call.prepare(self.runtime.toolbox, self.runtime.scope.bounds)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # the tool's own code may fail here, before it runs
            is_rejected = isinstance(error, ToolError)
            status = ToolStatus.REJECTED if is_rejected else ToolStatus.FAILED
            call.outcome = call.settled(OPEN, status, self._now(), error=tool_error(error))
            if not is_rejected:
                log_failure(call, self.state.execution_id, error)
                call.outcome = evolve(call.outcome, exception=error)
            return False
        return True

    async def _take_turn(self, call: Call) -> bool:
        """Settle the calls that have to be settled before this one, and let it join the group; return whether it has joined."""
        if self._must_wait(call):
            await self._run_group()
            if self._halt_reason and not call.is_committed:
                self._halt(call)
                return False
            if self._pending_key and call.decision is None and not call.was_started:
                reason = f"runs after {self._pending_key}"
                call.outcome = CallOutcome(pending=call.suspended(reason, waits_for=self._pending_key))
                return False
        self._group.append(call)
        self._is_group_exclusive = call.tool is not None and call.tool.runs_alone
        if call.ordering_key:
            self._group_keys.add(call.ordering_key)
        return True

    def _must_wait(self, call: Call) -> bool:
        """Return whether the calls before this one have to be settled first."""
        if not self._group and not self._pending_key:
            return False
        if self._is_group_exclusive or (call.tool is not None and call.tool.runs_alone):
            return True
        # Only ordered calls wait for a pending one; the others are independent of its decision.
        key = call.ordering_key
        return bool(key) and (key in self._group_keys or bool(self._pending_key))

    async def readmit(self, call: Call) -> bool:
        """Admit a changed call once more: it may have to wait for others. Return whether it has a tool, and may still run."""
        self._group.remove(call)
        self._group_keys.discard(call.ordering_key)  # no other call of the group has it
        if self.prepare(call):
            return await self._take_turn(call)
        self._group.append(call)
        return False

    # --- outcomes without a run ---------------------------------------------------------------------------------

    def block(self, call: Call, reason: str) -> None:
        """Settle a call that must not run."""
        error = ErrorInfo("ToolBlocked", reason)
        call.outcome = call.settled(call.unrun(OPEN, reason), ToolStatus.BLOCKED, self._now(), error=error)
        if self.runtime.stop_on_block:
            self._halt_reason = f"not run, because the call {call.call.name!r} before it was blocked: {reason}"

    def answer(self, call: Call, answer: Answer) -> None:
        """Settle a call with an answer in place of its tool's."""
        so_far = call.unrun(OPEN, "the call that made it was answered")
        call.outcome = call.settled(so_far, ToolStatus.SUCCEEDED, self._now(), result=ToolResult(answer.value))

    def suspend(self, call: Call, reason: str) -> None:
        """Let a call wait for a decision."""
        call.outcome = CallOutcome(pending=call.suspended(reason))
        self._pending_key = self._pending_key or call.key

    def cancel(self, call: Call, reason: str, *, is_final: bool = True) -> None:
        """Settle an open call as cancelled, even if it still runs.

        Args:
            call: the call.
            reason: why, in words.
            is_final: whether the execution ends with it; otherwise it may be resumed, as after a crash.
        """
        so_far, cut = call.so_far(), Cut(reason, None, is_final)
        if call.runner is not None:
            call.runner.close()
        if so_far.execution is None:
            so_far = call.cut(call.unrun(so_far, reason), cut, self._now())
        elif not is_final:
            call.cut(so_far, cut, self._now())  # it has ended, and only its layers have to know
        call.outcome = so_far

    def fail(self, call: Call, error: Exception) -> None:
        """Settle a call around which something failed (law 11), and admit no more calls."""
        call.outcome = evolve(call.cut(call.so_far(), Cut("", error), self._now()), exception=error)
        self.halt(error)

    def halt(self, error: Exception, reason: str = "") -> None:
        """Admit no more calls; the error interrupts the batch.

        Args:
            error: the error.
            reason: why the calls after it are not run; by default because an interceptor failed.
        """
        self.failure = self.failure or error
        name = error.interceptor if isinstance(error, InterceptorFailed) else type(error).__name__
        self._halt_reason = reason or self._halt_reason or f"not run, because an interceptor failed: {name}"

    def _now(self) -> datetime:
        return self.runtime.scope.clock.now()

    # --- running ------------------------------------------------------------------------------------------------

    async def _run_group(self) -> None:
        """Run the admitted calls concurrently, and settle them in call order."""
        group, self._group, self._group_keys, self._is_group_exclusive = self._group, [], set(), False
        limit, ledger = self.runtime.max_concurrency, self.runtime.scope.ledger
        gate = nullcontext() if limit is None else asyncio.Semaphore(limit)
        waiting = [call for call in group if call.is_open]
        if _needs_no_tasks(waiting):
            for call in waiting:
                await self._run_call(call, gate)
                if is_task_cancelled():  # the function had a result when the cancellation came
                    raise asyncio.CancelledError
                ledger.has_waited |= call.tool is None or not call.tool.is_inline
        else:
            for call in waiting:
                # A single call has its own task, too: what a tool does to its current task must not reach the loop.
                call.task = CallTask(partial(self._run_call, call, gate), f"agentloop tool {call.key}")
        for call in group:
            # Not gathered: a call is settled as soon as all calls before it are, while those after it still run.
            if call.task is not None:
                if call.task.is_running:
                    await call.task.ended
                    ledger.has_waited = True
                if call.task.escaped is not None:
                    raise call.task.escaped
            await self.settle(call)

    async def _run_call(self, call: Call, gate: AbstractAsyncContextManager[None]) -> None:
        async with gate:
            if call.tool is not None and call.tool.uses_thread:
                async with self.runtime.threads.slots:
                    await self._invoke(call)
            else:
                await self._invoke(call)

    async def _invoke(self, call: Call) -> None:
        if call.tool is not None:
            call.runner = ToolInvocation(call, call.tool, self.state, self.runtime)
        failure: Exception | None = None
        try:
            outcome = await (call.run() if call.layers or call.runner is None else call.runner.run())
        except AgentStop as stop:
            outcome = self._stopped(call, stop)
        except asyncio.CancelledError:
            if is_task_cancelled():
                raise
            failure, outcome = ContractViolation(AWAITED_CANCELLED), OPEN
        except Exception as error:  # noqa: BLE001  # of a layer or of a listener
            failure, outcome = error, OPEN
        if call.is_closed:  # it was left behind, and its call has an outcome
            return
        if failure is not None:
            self.fail(call, failure)
        else:
            call.outcome = outcome
        if call.outcome.failure is not None:  # of a call that its tool made
            self.halt(call.outcome.failure)
        if call.layers:
            await call.end()

    def _stopped(self, call: Call, stop: AgentStop) -> CallOutcome:
        """Return the outcome of a call around which a layer stopped the execution."""
        so_far = call.so_far()
        if so_far.pending is None:
            so_far = call.settled(so_far, ToolStatus.CANCELLED, self._now(), error=ErrorInfo("AgentStop", str(stop)))
        # If the tool requested a stop itself, its signal is the one that counts.
        return evolve(so_far, stop=so_far.stop or stop.signal)

    # --- settlement ---------------------------------------------------------------------------------------------

    async def settle(self, call: Call) -> None:
        """Let the layers complete the outcome and emit its event, once per call."""
        if call.is_settled:
            return
        if call.outcome.execution is None and call.outcome.pending is None:  # its task was cancelled by someone else
            self.cancel(call, "the call was cancelled")
        if call.layers and not call.is_noted:
            await call.end()
        if call.outcome.stop is not None:
            # Here and not when the call ends, so that signals come in call order, and none is lost to a layer that returns the
            # state which it received before. Once, although settling may begin again.
            self.state = self.state.with_stop_signal(call.outcome.stop)
            call.outcome = evolve(call.outcome, stop=None)
        if call.outcome.pending is None and call.layers:
            await call.settle(self.grace)
        call.is_settled, reports = True, self.runtime.reports
        if (execution := call.outcome.execution) is not None:
            call.is_closed = True
            self.nested_count += len(execution.inner)
            self.runtime.scope.ledger.settle(execution)
            if execution.status in UNSUCCESSFUL:
                report_unsuccessful(call, execution, self.state.execution_id)
        try:
            if reports.held:
                reports.release(call.key)
        finally:  # also if a listener of a strict bus has raised
            await self._emit_settled(call)

    async def _emit_settled(self, call: Call) -> None:
        events, number, pending = self.runtime.events, call.step_number, call.outcome.pending
        if pending is None:
            await emit_at_step(events, call.event, self.state, number, execution_of(call), call.outcome.exception)
            return
        self._pending_key = self._pending_key or call.key
        if call.outcome.started:
            await emit_at_step(events, ToolCallSuspended, self.state, number, pending)


def _needs_no_tasks(calls: Sequence[Call]) -> bool:
    """Return whether the calls can run in the current task: nothing else runs meanwhile, and no code of others meets the task."""
    task = asyncio.current_task()
    # Whether the current task is cancelled decides what a `CancelledError` of a tool means.
    if task is None or task.cancelling() or any(layer.wraps_tool for call in calls for layer in call.layers):
        return False
    tools = [call.tool for call in calls if call.tool is not None]
    if len(calls) == 1:
        return bool(tools) and (tools[0].uses_thread or tools[0].is_inline)
    return len(tools) == len(calls) and all(tool.is_inline for tool in tools)
