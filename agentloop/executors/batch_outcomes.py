"""What a batch of calls has come to so far, and how calls are settled without a run."""

from __future__ import annotations

from datetime import datetime

from attrs import define, field

from agentloop.errors import InterceptorFailed, JournalError
from agentloop.executors.call_slot import CallSlot
from agentloop.executors.kept_intent import tell_kept
from agentloop.executors.tool_run import RunSettings
from agentloop.values.agent_state import AgentState
from agentloop.values.decision import Answer
from agentloop.values.tool_execution import ErrorInfo
from agentloop.values.tool_result import ToolResult


@define(eq=False)
class BatchOutcomes:
    """What a batch of calls has come to so far.

    Attributes:
        state: the state as the interceptors have made it so far.
        settings: what the calls have in common.
        stop_on_block: whether a blocked call keeps those after it from being admitted.
        failure: the first error of an interceptor or of the journal; nothing is admitted after it.
        halted: why nothing is admitted any more; empty while calls are.
    """

    state: AgentState = field(kw_only=True)
    settings: RunSettings = field(kw_only=True)
    stop_on_block: bool = field(default=False, kw_only=True)
    failure: Exception | None = field(default=None, init=False)
    halted: str = field(default="", init=False)

    def block(self, slot: CallSlot, reason: str) -> None:
        """Keep a call from running, and those after it too if that is what a blocked call does."""
        slot.block(reason, self.now())
        if self.stop_on_block:
            self.halted = f"not run, because the call {slot.call.name!r} before it was blocked: {reason}"

    async def refuse(self, slot: CallSlot, reason: str) -> None:
        """Block a call that an interceptor does not want to run, unless it has begun already."""
        if slot.recorded is None:
            self.block(slot, reason)
        else:
            await tell_kept(slot, reason, self.state, self.settings)

    def settle_with(self, slot: CallSlot, answered: Answer) -> None:
        """Settle a call with a value, without running it."""
        slot.execution = slot.succeed(ToolResult(answered.value), self.now())

    def fail(self, slot: CallSlot, error: Exception) -> None:
        """Keep a call from running, or from counting as run, because an interceptor failed (law 11)."""
        recorded = slot.recorded
        if recorded is None or slot.to_note:
            slot.fail(error, self.now())
        elif recorded.execution is None and recorded.pending is None:
            slot.doubt(ErrorInfo.of(error), self.now())
            slot.to_note = True
        self.failure = self.failure or error
        name = error.interceptor if isinstance(error, InterceptorFailed) else type(error).__name__
        self.halted = f"not run, because an interceptor failed: {name}"

    def now(self) -> datetime:
        """Return the time of the execution's clock."""
        return self.settings.scope.clock.now()

    async def note(self, slot: CallSlot) -> None:
        """Write down how a call has ended that was written down as begun."""
        log = self.settings.scope.log
        if log is None or not slot.to_note:
            return
        slot.to_note = False
        try:
            if slot.pending is not None:
                await log.note_suspended(slot.pending)
            elif slot.execution is not None:
                await log.note_outcome(slot.execution, slot.stop)
        except JournalError as error:
            self.failure = self.failure or error
            self.halted = "not run, because the journal could not be written"
