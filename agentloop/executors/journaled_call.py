"""Running a call that is written down: before it begins, and when it has ended; and what becomes of one that had begun."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

from agentloop.contracts.run_log import CallLog
from agentloop.contracts.tool import CanContinueCall, CanReconcileCall, Tool
from agentloop.errors import ToolInDoubt
from agentloop.events.tool_calls import Recovery, ToolCallRecovered
from agentloop.executors.call_state import CallState
from agentloop.executors.invocation import RunSettings, ToolInvocation
from agentloop.values.decisions import PendingCall
from agentloop.values.records import (
    CallIntent,
    CannotTell,
    DidNotHappen,
    Happened,
    InDoubt,
    Reconciliation,
    RecordedCall,
)
from agentloop.values.state import AgentState
from agentloop.values.tool_calls import Effect, ErrorInfo, ToolExecution, ToolResult, ToolStatus

_INTERRUPTED = "the program was interrupted while this call ran, and it is not known whether it has had its effect"
_DOUBT = "doubt"
"""What stands beside the end of a call that an interruption left in doubt."""


class JournaledCall:
    """Runs one call once, over any number of interruptions; leaves the outcome, or how the call waits, in its slot.

    Attributes:
        failure: what ends the execution, when a call in doubt is to do that.
    """

    def __init__(
        self, slot: CallState, run: ToolInvocation | None, state: AgentState, settings: RunSettings, log: CallLog
    ) -> None:
        self.failure: Exception | None = None
        self._slot = slot
        self._run = run
        self._state = state
        self._settings = settings
        self._log = log

    async def run(self) -> None:
        """Run the call, unless what came of it is known or nobody knows whether it has run.

        Raises:
            JournalError: when it cannot be written down that it begins; then it has not run.
            AgentStop: as `ToolInvocation.run`.
            InterceptorFailed: as `ToolInvocation.run`.
            asyncio.CancelledError: when the run is cancelled.
        """
        recorded = self._slot.recorded
        if recorded is None:
            await self._begin()
        elif recorded.execution is not None:
            self._reuse(recorded)
            await self._tell(Recovery.REUSED)
        elif recorded.pending is not None:
            self._slot.pending = recorded.pending
        else:
            await self._go_on(recorded)

    async def _begin(self) -> None:
        intent = self._intent()
        answered = await self._log.start_call(intent, delegates=_delegates(self._tool))
        if answered is not None:
            self._take(answered)
            return
        await self._ran()

    def _take(self, answered: RecordedCall) -> None:
        """Take what is to come of a call that does not run."""
        slot = self._slot
        slot.stop = answered.stop
        if answered.execution is not None:
            slot.started_at = answered.intent.at
            slot.execution = slot.finished(answered.execution, answered.execution.ended_at)
            slot.started = _has_run(answered.execution)
        else:
            slot.pending = answered.pending

    async def _ran(self) -> None:
        self._slot.to_note = True
        assert self._run is not None  # noqa: S101  # only calls whose tool was found are run
        await self._run.run()

    def _reuse(self, recorded: RecordedCall) -> None:
        slot = self._slot
        slot.execution, slot.stop = recorded.execution, recorded.stop
        slot.started_at = recorded.intent.at
        slot.started = recorded.execution is not None and _has_run(recorded.execution)
        doubt = self._log.attachment(slot.key, _DOUBT) if self._log.settings.in_doubt is InDoubt.FAIL else None
        if doubt is not None and recorded.execution is not None:
            self._fail(recorded.execution.error_message)  # the recovery that was to end with it was interrupted, too

    # --- calls that were interrupted ----------------------------------------------------------------------------

    async def _go_on(self, recorded: RecordedCall) -> None:
        slot, tool = self._slot, self._tool
        effects = {recorded.intent.effect, self._effect}
        if tool is None:
            await self._doubt(f"{_INTERRUPTED}; its tool is not there any more")
        elif _delegates(tool):
            await self._tell(Recovery.CONTINUED)
            await self._ran()
        elif recorded.redacted:
            await self._doubt(f"{_INTERRUPTED}; something secret in its arguments was not written down")
        elif Effect.EFFECT not in effects:
            await self._repeat("")
        else:
            match await self._reconcile(tool):
                case Happened(value):
                    slot.execution = slot.succeed(ToolResult(value), self._now())
                    slot.started_at, slot.to_note = recorded.intent.at, True
                    await self._tell(Recovery.RECONCILED)
                case DidNotHappen():
                    await self._repeat("the tool says that it has not run")
                case CannotTell(reason):
                    await self._doubt(f"{_INTERRUPTED}; {reason}" if reason else _INTERRUPTED)

    async def _repeat(self, reason: str) -> None:
        await self._tell(Recovery.REPEATED, reason)
        await self._log.start_call(self._intent())
        await self._ran()

    async def _reconcile(self, tool: Tool) -> Reconciliation:
        if not isinstance(tool, CanReconcileCall):
            return CannotTell()
        assert self._run is not None  # noqa: S101  # a tool that was found has a run
        try:
            return await cast("CanReconcileCall", self._run.bound()).reconcile(**self._arguments())
        except Exception as error:  # noqa: BLE001  # a tool that cannot find it out does not know
            return CannotTell(f"its tool could not find out: {ErrorInfo.of(error).message}")

    async def _doubt(self, why: str) -> None:
        slot, policy = self._slot, self._log.settings.in_doubt
        slot.started, slot.to_note = True, True
        slot.started_at = slot.recorded.intent.at if slot.recorded is not None else None
        await self._tell(Recovery.IN_DOUBT, why)
        if policy is InDoubt.SUSPEND:
            reason = f"{why}. Approve to run it again, answer with what came of it, or deny to leave it"
            slot.pending = PendingCall(slot.key, slot.call, reason, begun=True)
            return
        self._log.attach(slot.key, _DOUBT, {})
        slot.doubt(
            ErrorInfo(ToolInDoubt.__name__, f"{why}; do not repeat it before that has been found out"), self._now()
        )
        if policy is InDoubt.FAIL:
            self._fail(why)

    def _fail(self, why: str) -> None:
        """Let a doubt end the execution."""
        self.failure = ToolInDoubt(f"the call {self._slot.key} of {self._slot.call.name!r} is in doubt: {why}")

    # --- what it needs ------------------------------------------------------------------------------------------

    @property
    def _tool(self) -> Tool | None:
        return self._slot.tool.tool if self._slot.tool is not None else None

    @property
    def _effect(self) -> Effect:
        return self._slot.tool.spec.effect if self._slot.tool is not None else Effect.EFFECT

    def _intent(self) -> CallIntent:
        slot = self._slot
        return CallIntent(key=slot.key, id=slot.id, call=slot.call, effect=self._effect, at=self._now())

    def _arguments(self) -> Mapping[str, Any]:
        assert self._slot.tool is not None  # noqa: S101  # a tool that was found prepares arguments
        return self._slot.tool.prepared(self._slot.call)

    def _now(self) -> datetime:
        return self._settings.scope.clock.now()

    async def _tell(self, recovery: Recovery, reason: str = "") -> None:
        events, slot = self._settings.events, self._slot
        if events.due(ToolCallRecovered):
            head = events.head(self._state, step_number=slot.step)
            await events.emit(ToolCallRecovered(head, slot.key, slot.call.name, recovery, reason))


def _has_run(execution: ToolExecution) -> bool:
    """Say whether the tool of a recorded call has, or may have, begun."""
    return execution.may_have_run or execution.status in {ToolStatus.SUCCEEDED, ToolStatus.FAILED, ToolStatus.TIMED_OUT}


def _delegates(tool: Tool | None) -> bool:
    """Say whether a tool is an agent, which goes on from its own record."""
    return tool is not None and isinstance(tool, CanContinueCall) and tool.continues_calls
