"""Runs one call under a journal: records its start before it runs, and resumes a call that was interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import cast

from attrs import evolve, frozen

from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import CanCallTools, CanContinueCall, CanReconcileCall, Tool
from agentloop.errors import ClaimLost, InterceptorFailed, JournalError, ToolInDoubt
from agentloop.events.bus import emit_at_step
from agentloop.events.tool_calls import Recovery, ToolCallIntentKept, ToolCallRecovered
from agentloop.executors.admission import Admission, CanLayerCalls
from agentloop.executors.call import Call
from agentloop.executors.call_layers import OPEN, Attempt, CallLayer, CallOutcome, Cut, RunCall
from agentloop.executors.fencing import is_left, left_outcome
from agentloop.executors.invocation import REFUSALS, CallRuntime, ToolInvocation
from agentloop.executors.result_limits import fit_result
from agentloop.executors.tracebacks import attach_traceback
from agentloop.values.records import (
    FAILURE,
    PROVISIONAL,
    CallIntent,
    CannotTell,
    DidNotHappen,
    Happened,
    InDoubt,
    Reconciliation,
    RecordedCall,
)
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolExchange, ToolExecution, ToolResult, ToolStatus

_INTERRUPTED = "the program was interrupted while this call ran, and it is not known whether it had its effect"
_DOUBT = "doubt"
"""The name of the attachment to an outcome that is in doubt because of an interruption."""


@frozen(eq=False)
class JournalLayer(CanLayerCalls):
    """Records the calls of an execution, and resumes those that were interrupted.

    Attributes:
        log: the log of the execution.
        is_provisional: whether interceptors see the outcomes after they are recorded, and may change them.
    """

    log: CallLog
    is_provisional: bool

    def open(self, call: Call, batch: Admission) -> CallLayer:
        """Return what records a call. One that started before an interruption resumes with its recorded arguments."""
        recorded = self.log.recorded_call(call.key)
        if recorded is not None:
            call.call, call.id, call.is_committed = recorded.intent.call, recorded.intent.id, True
        return JournaledCall(call, batch, self.log, recorded, is_provisional=self.is_provisional)


class JournaledCall(CallLayer):
    """Runs one call once, across any number of interruptions."""

    __slots__ = (
        "_batch",
        "_call",
        "_has_run",
        "_is_cut",
        "_is_provisional",
        "_log",
        "_must_record",
        "_outcome",
        "_proceed",
        "_recorded",
        "_runs",
    )

    def __init__(
        self, call: Call, batch: Admission, log: CallLog, recorded: RecordedCall | None, *, is_provisional: bool
    ) -> None:
        self._call = call
        self._is_provisional = is_provisional
        self._batch = batch
        self._log = log
        self._recorded = recorded
        self._outcome = OPEN
        self._has_run = False
        self._runs = False  # the outcome is that of the tool, and not one of the records
        self._must_record = False  # the journal holds the start of the call, and does not yet hold its end
        self._is_cut = False

    # --- the layer ----------------------------------------------------------------------------------------------

    async def keep(self, refused: str) -> None:
        """Report what interceptors would have done to a call that resumes as it started."""
        call = self._call
        await emit_at_step(
            self._runtime.events,
            ToolCallIntentKept,
            self._state,
            call.step_number,
            call.key,
            call.call.name,
            call.call,
            refused,
        )

    def so_far(self, outcome: CallOutcome) -> CallOutcome:
        """Return what the records hold of the call; while its tool runs, that is the outcome so far."""
        return self._outcome if self._has_run and not self._runs else outcome

    async def attempt(self, proceed: Attempt) -> ToolExecution:
        """Record that the tool is about to run: behind all waits of the interceptors, in which the call has not run."""
        await self._log.begin_call(self._call.key)
        execution = await proceed()
        self._attach_traceback()
        return execution

    def _attach_traceback(self) -> None:
        error = None if self._invocation is None else self._invocation.raised
        # Arguments that only the tool could check are a mistake of the model, which the error explains to it.
        if error is not None and not isinstance(error, REFUSALS):
            attach_traceback(self._log, self._call.key, error)

    def cut(self, so_far: CallOutcome, cut: Cut, settle: Callable[[], CallOutcome]) -> CallOutcome:
        """Return how the call ends; one that started before an interruption ends as its record says."""
        if cut.error is None:
            outcome = self._cancelled(so_far, cut.reason, settle)
        else:
            if self._has_run:
                self._attach_failure(cut.error)
            outcome = self._failed(so_far, cut.error, settle)
        if not cut.is_final:  # it stays interrupted, and a call that started is resumed as after a crash
            self._must_record = False
        self._is_cut = self._is_cut or outcome.execution is not None
        return outcome

    def _cancelled(self, so_far: CallOutcome, reason: str, settle: Callable[[], CallOutcome]) -> CallOutcome:
        recorded = self._recorded
        if recorded is None or so_far.started:
            return settle()
        # It is cancelled before it is resumed: its record decides.
        so_far = evolve(so_far, started_at=recorded.intent.at)
        if recorded.execution is not None:
            return evolve(so_far, execution=recorded.execution, stop=recorded.stop)
        why, effect = f"it was interrupted, and then {reason}", recorded.intent.effect
        if effect is Effect.EFFECT:
            status, error = ToolStatus.IN_DOUBT, ErrorInfo("ToolInDoubt", why)
        else:
            status, error = ToolStatus.CANCELLED, ErrorInfo("Cancelled", why)
        self._must_record = True
        return self._call.settled(so_far, status, self._now(), error=error, may_have_run=effect is not Effect.PURE)

    def _failed(self, so_far: CallOutcome, error: Exception, settle: Callable[[], CallOutcome]) -> CallOutcome:
        recorded = self._recorded
        if so_far.pending is not None:
            return so_far
        if is_left(error, self._batch):
            self._must_record = False
            known = None if recorded is None else recorded.execution
            return settle() if known is None else evolve(so_far, execution=known)
        if recorded is None or self._must_record:
            return settle()
        if recorded.execution is not None or recorded.pending is not None:
            return so_far  # it runs, and reuses its record
        # It started in the interrupted process, and what failed now says nothing about its effect.
        self._must_record, info = True, ErrorInfo.of(error)
        return self._call.settled(so_far, ToolStatus.IN_DOUBT, self._now(), error=info, may_have_run=True)

    def _attach_failure(self, error: Exception) -> None:
        """Record that a layer around the call failed, and which: the outcome alone could be that of the tool."""
        info, place = ErrorInfo.of(error), {"interceptor": "", "point": ""}
        if isinstance(error, InterceptorFailed):
            place = {"interceptor": error.interceptor, "point": error.point}
        self._log.attach(self._call.key, FAILURE, {"type": info.type, "message": info.message, **place})

    async def end(self, outcome: CallOutcome) -> CallOutcome:
        """Record the end of a call whose start is recorded."""
        if not self._must_record:
            return outcome
        # Cleared before the await: a cancellation in between must not record the end twice.
        self._must_record = False
        try:
            if outcome.pending is not None:
                await self._log.record_outcome(outcome.pending)
            elif outcome.execution is not None:
                if self._is_provisional:
                    self._log.attach(outcome.execution.key, PROVISIONAL, {})
                await self._log.record_outcome(outcome.execution, outcome.stop)
        except JournalError as error:
            self._batch.halt(error, "not run, because the journal could not be written")
            if isinstance(error, ClaimLost) and outcome.pending is None:
                return evolve(left_outcome(self._call, self._batch, outcome, error), exception=error)
        except asyncio.CancelledError:
            # Its end may not be recorded, and a process that has taken the execution over may record another one.
            if (loss := self._log.loss) is not None and outcome.pending is None:
                self._call.outcome = left_outcome(self._call, self._batch, outcome, loss)
            raise
        return outcome

    def _note_start(self) -> None:
        """From now on, the end of the call is recorded; not that of one that was cut off meanwhile."""
        self._must_record = self._must_record or not self._is_cut

    # --- the run ------------------------------------------------------------------------------------------------

    @property
    def _invocation(self) -> ToolInvocation | None:
        return self._call.runner if isinstance(self._call.runner, ToolInvocation) else None

    @property
    def _state(self) -> AgentState:
        return self._batch.state

    @property
    def _runtime(self) -> CallRuntime:
        return self._batch.runtime

    async def run(self, proceed: RunCall) -> CallOutcome:
        """Run the call, unless its outcome is recorded or it is in doubt, and return the outcome.

        Raises:
            JournalError: the start of the call cannot be recorded; the tool has not run.
            AgentStop: an interceptor stops the execution.
            InterceptorFailed: an interceptor failed.
            asyncio.CancelledError: the task was cancelled.
        """
        self._has_run, self._proceed, recorded = True, proceed, self._recorded
        if recorded is None:
            await self._start()
        elif recorded.execution is not None:
            self._outcome = self._reuse(recorded, recorded.execution)
            await self._emit(Recovery.REUSED)
        elif recorded.pending is not None:
            # Its tool suspended it before the interruption: it is still pending, and nothing runs.
            self._outcome = CallOutcome(pending=recorded.pending)
        else:
            await self._recover(recorded)
        return self._outcome

    async def _start(self) -> None:
        # The invocation records the intent when the tool is about to run: from then on, a crash leaves a call that may have run.
        answer = await self._log.start_call(self._intent(), delegates=_delegates(self._tool))
        if answer is None:
            await self._invoke()
        elif answer.execution is None:
            self._outcome = CallOutcome(pending=answer.pending, stop=answer.stop)
        else:
            self._outcome = self._adopt(answer, answer.execution)

    def _adopt(self, answer: RecordedCall, execution: ToolExecution) -> CallOutcome:
        """Return the outcome of a call that is answered without running its tool."""
        call = self._call
        may_have_run = execution.may_have_run or call.may_have_run(OPEN, execution.status)
        return CallOutcome(
            execution=evolve(execution, id=call.id, key=call.key, may_have_run=may_have_run),
            stop=answer.stop,
            started_at=answer.intent.at,
            may_have_run=may_have_run or execution.succeeded,
        )

    def _reuse(self, recorded: RecordedCall, execution: ToolExecution) -> CallOutcome:
        failure = None
        if self._log.settings.in_doubt is InDoubt.FAIL and self._log.attachment(self._call.key, _DOUBT) is not None:
            # An earlier recovery was to end with this doubt, and was interrupted itself before it ended.
            failure = self._failure(execution.error_message)
        return CallOutcome(
            execution=execution,
            stop=recorded.stop,
            started_at=recorded.intent.at,
            failure=failure,
            may_have_run=execution.may_have_run or execution.succeeded,
        )

    async def _invoke(self) -> None:
        self._note_start()
        self._runs = True
        self._outcome = await self._proceed()

    # --- interrupted calls --------------------------------------------------------------------------------------

    async def _recover(self, recorded: RecordedCall) -> None:
        """Resume a call that started before an interruption and has no recorded outcome."""
        # The order of the cases matters. An agent resumes from its own records, whatever its effect. Masked arguments cannot be
        # used again, even by a tool without effects. Only a call with an effect needs to know whether it has happened.
        tool = self._tool
        if tool is None:
            await self._leave_in_doubt(recorded, f"{_INTERRUPTED}; its tool no longer exists")
        elif _delegates(tool) and not recorded.redacted:
            await self._continue()
        elif _delegates(tool) and not isinstance(tool, CanCallTools):
            await self._continue_by_record()  # it is in doubt if the agent has no record
        elif recorded.redacted:
            await self._leave_in_doubt(recorded, f"{_INTERRUPTED}; a secret in its arguments was not recorded")
        elif self._continues_call(tool):
            await self._continue_by_record()
        elif Effect.EFFECT not in {recorded.intent.effect, self._call.effect}:
            self._resume()
            await self._repeat("")
        else:
            await self._reconcile(tool, recorded)

    def _continues_call(self, tool: Tool) -> bool:
        """Return whether the tool has recorded how to continue this very call."""
        if not isinstance(tool, CanContinueCall) or self._invocation is None:
            return False
        return _delegates(self._invocation.bind_tool())

    def _resume(self) -> None:
        assert self._invocation is not None  # noqa: S101  # a call with a tool has an invocation
        self._invocation.resume()

    async def _continue(self) -> None:
        self._resume()
        await self._emit(Recovery.CONTINUED)
        await self._invoke()

    async def _continue_by_record(self) -> None:
        """Run the call again by a tool that has recorded how to continue it."""
        await self._continue()
        execution = self._outcome.execution
        in_doubt = execution is not None and execution.status is ToolStatus.IN_DOUBT
        if in_doubt and self._log.settings.in_doubt is not InDoubt.TELL:
            assert execution is not None  # noqa: S101  # it is in doubt
            # A doubt to which the record led is treated like that about a call without such a record.
            self._outcome, self._runs = evolve(self._outcome, execution=None), False
            self._settle_doubt(execution.error_message)

    async def _reconcile(self, tool: Tool, recorded: RecordedCall) -> None:
        """Ask the tool whether a call with an effect has happened."""
        match await self._ask_tool(tool):
            case Happened(value):
                execution = self._call.execution(OPEN, ToolStatus.SUCCEEDED, self._now(), result=ToolResult(value))
                limit, tools = self._runtime.max_result_bytes, self._runtime.toolbox.tools
                self._outcome = CallOutcome(
                    execution=fit_result(execution, tool.policy, limit, tools),
                    started_at=recorded.intent.at,
                    may_have_run=True,
                )
                self._note_start()
                await self._emit(Recovery.RECONCILED)
            case DidNotHappen():
                await self._repeat("the tool reports that it did not run")
            case CannotTell(reason):
                await self._leave_in_doubt(recorded, f"{_INTERRUPTED}; {reason}" if reason else _INTERRUPTED)

    async def _ask_tool(self, tool: Tool) -> Reconciliation:
        if not isinstance(tool, CanReconcileCall):
            return CannotTell()
        ready, invocation = self._call.tool, self._invocation
        assert ready is not None  # noqa: S101  # the tool is that of the call
        assert invocation is not None  # noqa: S101  # a call with a tool has an invocation
        try:
            bound = cast("CanReconcileCall", invocation.bind_tool())
            return await bound.reconcile(**ready.prepare(self._call.call, self._runtime.scope.bounds))
        except Exception as error:  # noqa: BLE001  # a tool that fails to find out cannot tell
            return CannotTell(f"its tool failed to find out: {ErrorInfo.of(error).message}")

    async def _repeat(self, reason: str) -> None:
        await self._emit(Recovery.REPEATED, reason)
        # Announced again, to be recorded with the present time and effect: a further interruption is judged by them.
        await self._log.start_call(self._intent())
        await self._invoke()

    async def _leave_in_doubt(self, recorded: RecordedCall, why: str) -> None:
        call = self._call
        # Set before the event is emitted: if a listener fails, the call still counts as started.
        inner = tuple([made.to_closed_execution() for made in self._log.recorded_inner_calls(call.key)])
        self._outcome = CallOutcome(started=True, started_at=recorded.intent.at, may_have_run=True, inner=inner)
        self._note_start()
        await self._emit(Recovery.IN_DOUBT, why)
        self._settle_doubt(why)

    def _settle_doubt(self, why: str) -> None:
        """Settle the call, or suspend it, as the execution treats calls in doubt."""
        call, policy = self._call, self._log.settings.in_doubt
        if policy is InDoubt.SUSPEND:
            reason = f"{why}. Approve to run it again, answer with its result, or deny to skip it"
            pending = evolve(call.suspended(reason, begun=True), settled=self._settled_inner())
            self._outcome = evolve(self._outcome, pending=pending)
            return
        self._log.attach(call.key, _DOUBT, {})
        error = ErrorInfo(ToolInDoubt.__name__, f"{why}; do not repeat it before this is known")
        settled = call.settled(self._outcome, ToolStatus.IN_DOUBT, self._now(), error=error, may_have_run=True)
        self._outcome = evolve(settled, failure=self._failure(why) if policy is InDoubt.FAIL else None)

    def _settled_inner(self) -> list[ToolExchange]:
        """Return the calls of a program whose outcomes are recorded: they are not made again when it runs again."""
        return [
            ToolExchange(made.intent.requested or made.intent.call, made.execution)
            for made in self._log.recorded_inner_calls(self._call.key)
            if made.execution is not None
        ]

    def _failure(self, why: str) -> ToolInDoubt:
        """Return the error that ends the execution because of a call in doubt."""
        return ToolInDoubt(f"the call {self._call.key} of {self._call.call.name!r} is in doubt: {why}")

    # --- details ------------------------------------------------------------------------------------------------

    @property
    def _tool(self) -> Tool | None:
        return self._call.tool.tool if self._call.tool is not None else None

    def _intent(self) -> CallIntent:
        call = self._call
        requested = None if call.requested == call.call else call.requested
        return CallIntent(
            key=call.key,
            id=call.id,
            call=call.call,
            effect=call.effect,
            at=self._now(),
            requested=requested,
            label=call.layers[0].label,
            origins=call.layers[0].origins,
        )

    def _now(self) -> datetime:
        return self._runtime.scope.clock.now()

    async def _emit(self, recovery: Recovery, reason: str = "") -> None:
        call, events = self._call, self._runtime.events
        await emit_at_step(
            events, ToolCallRecovered, self._state, call.step_number, call.key, call.call.name, recovery, reason
        )


def _delegates(tool: Tool | None) -> bool:
    """Return whether a tool is an agent, which resumes from its own records."""
    return tool is not None and isinstance(tool, CanContinueCall) and tool.continues_calls
