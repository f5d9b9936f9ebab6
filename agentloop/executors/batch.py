"""A batch of calls on its way: admitted in call order, run side by side, settled in call order."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime

from attrs import define, evolve, field

from agentloop.errors import AgentLoopError, InterceptorFailed, JournalError
from agentloop.events.tool_calls import (
    ToolCallBlocked,
    ToolCallCompleted,
    ToolCallIntentKept,
    ToolCallRejected,
    ToolCallSuspended,
)
from agentloop.executors.call_state import CallState
from agentloop.executors.invocation import RunSettings, ToolInvocation
from agentloop.executors.journaled_call import JournaledCall
from agentloop.executors.toolbox import ReadyTool, Toolbox
from agentloop.values.batches import ToolExecutions
from agentloop.values.decisions import Answer, Approve, Block, Deny, Edit, PendingCall, Suspend
from agentloop.values.points import AfterToolUse, BeforeToolUse
from agentloop.values.state import AgentState
from agentloop.values.stop import AgentStop
from agentloop.values.tool_calls import ErrorInfo, ToolExecution, ToolResult, ToolStatus


async def keep_intent(slot: CallState, point: BeforeToolUse, settings: RunSettings) -> None:
    """Tell what interceptors wanted of a call that has begun, if that is anything else than what it began as."""
    match point.verdict:
        case Block(reason):
            refused = f"block: {reason}"
        case Suspend(reason):
            refused = f"suspend: {reason}"
        case Answer():
            refused = "answer"
        case None if point.call != slot.call:
            refused = f"change to {point.call.name}({point.call.arguments_json})"
        case None:
            return
    await tell_kept(slot, refused, point.state, settings)


async def tell_kept(slot: CallState, refused: str, state: AgentState, settings: RunSettings) -> None:
    """Tell that a call that has begun goes on as it began."""
    events = settings.events
    if events.due(ToolCallIntentKept):
        head = events.head(state, step_number=slot.step)
        await events.emit(ToolCallIntentKept(head, slot.key, slot.call.name, slot.call, refused))


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

    def block(self, slot: CallState, reason: str) -> None:
        """Keep a call from running, and those after it too if that is what a blocked call does."""
        slot.block(reason, self.now())
        if self.stop_on_block:
            self.halted = f"not run, because the call {slot.call.name!r} before it was blocked: {reason}"

    async def refuse(self, slot: CallState, reason: str) -> None:
        """Block a call that an interceptor does not want to run, unless it has begun already."""
        if slot.recorded is None:
            self.block(slot, reason)
        else:
            await tell_kept(slot, reason, self.state, self.settings)

    def settle_with(self, slot: CallState, answered: Answer) -> None:
        """Settle a call with a value, without running it."""
        slot.execution = slot.succeed(ToolResult(answered.value), self.now())

    def fail(self, slot: CallState, error: Exception) -> None:
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

    async def note(self, slot: CallState) -> None:
        """Write down how a call has ended that was written down as begun."""
        log = self.settings.scope.log
        if log is None or not slot.to_note:
            return
        slot.to_note = False
        try:
            if slot.pending is not None:
                await log.record_outcome(slot.pending)
            elif slot.execution is not None:
                await log.record_outcome(slot.execution, slot.stop)
        except JournalError as error:
            self.failure = self.failure or error
            self.halted = "not run, because the journal could not be written"


@define(eq=False)
class Batch(BatchOutcomes):
    """The calls of one `execute_tools`. It lives as long as that call and is seen by nobody else.

    Attributes:
        state: the state as the interceptors have made it so far.
        failure: the first error of an interceptor or of the journal; nothing is admitted after it.
        slots: one per call, in call order.
        toolbox: the tools.
        max_concurrency: how many calls run at once; None for all.
    """

    state: AgentState = field(kw_only=True)
    failure: Exception | None = field(default=None, init=False)
    slots: list[CallState] = field(kw_only=True)
    toolbox: Toolbox = field(kw_only=True)
    max_concurrency: int | None = field(default=None, kw_only=True)
    _group: list[CallState] = field(factory=list)
    _group_keys: set[str] = field(factory=set)
    _exclusive: bool = False
    _waiting: str = ""

    async def run(self) -> None:
        """Execute all calls; afterwards every slot has an outcome or waits."""
        for slot in self.slots:
            if self.halted and slot.recorded is None:
                slot.cancel(self.halted, self.now())
                self._group.append(slot)
            else:
                await self._admit(slot)
        await self._flush()

    def answer(self) -> ToolExecutions:
        """Return what came of the calls."""
        executions = tuple([slot.execution for slot in self.slots if slot.execution is not None])
        pending = tuple([slot.pending for slot in self.slots if slot.pending is not None])
        return ToolExecutions(executions, pending, self.state)

    async def abandon(self, reason: str) -> None:
        """Cancel what runs, wait until it has ended, and settle every call that is still open."""
        running = [slot.task for slot in self.slots if slot.task is not None and not slot.task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
        self.close(reason)
        for slot in self.slots:
            await self._settle(slot)

    def close(self, reason: str) -> None:
        """Give every call that is still open the outcome that it was cancelled."""
        for slot in self.slots:
            if slot.is_open:
                slot.cancel(reason, self.now())

    # --- admit --------------------------------------------------------------------------------------------------

    async def _admit(self, slot: CallState) -> None:
        if isinstance(slot.decision, Edit):
            slot.call = slot.call.with_arguments(slot.decision.arguments)
        if slot.recorded is not None:  # what has begun goes on as it began
            slot.call, slot.id = slot.recorded.intent.call, slot.recorded.intent.id
        if not slot.find(self.toolbox, self.now()):
            if slot.recorded is not None:
                slot.execution = None
            self._group.append(slot)
            return
        if self._has_to_wait(slot):
            await self._flush()
            if self._waiting and slot.decision is None and not slot.has_begun:
                slot.pending = PendingCall(slot.key, slot.call, f"runs after {self._waiting}", waits_for=self._waiting)
                return
        self._join_group(slot)
        await self._ask_interceptors(slot)

    def _has_to_wait(self, slot: CallState) -> bool:
        """Say whether the calls before this one have to be settled first."""
        if not self._group and not self._waiting:
            return False
        if _tool(slot).tool.policy.sequential or self._exclusive:
            return True
        key = slot.ordering_key
        return bool(key) and (key in self._group_keys or bool(self._waiting))

    def _join_group(self, slot: CallState) -> None:
        self._group.append(slot)
        self._exclusive = _tool(slot).tool.policy.sequential
        if slot.ordering_key:
            self._group_keys.add(slot.ordering_key)

    async def _ask_interceptors(self, slot: CallState) -> None:
        if isinstance(slot.decision, Deny):
            self.block(slot, slot.decision.reason or "denied")
        elif isinstance(slot.decision, Answer):
            self.settle_with(slot, slot.decision)
        elif self.settings.interceptor.handles(BeforeToolUse):
            await self._pass_before(slot)

    async def _pass_before(self, slot: CallState) -> None:
        tool = _tool(slot)
        decision = slot.decision or (Approve() if slot.has_begun else None)  # what has begun was let run
        before = BeforeToolUse(
            self.state,
            slot.call,
            tool.spec,
            slot.key,
            slot.index,
            decision=decision,
            decided=slot.call if decision is not None else None,
            ensemble=self.toolbox.ensemble(slot.call.name),
        )
        try:
            point = await self.settings.interceptor.handle(before)
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
            await self.refuse(slot, str(stop))
            return
        except AgentLoopError as error:
            self.fail(slot, error)
            return
        self.state = point.state
        if slot.recorded is not None:
            await keep_intent(slot, point, self.settings)
            return
        if changed := point.call != slot.call and not slot.has_begun:
            slot.call = point.call
        match point.verdict:
            case Block(reason):
                self.block(slot, reason)
            case Answer() as answered:
                self.settle_with(slot, answered)
            case Suspend(reason):
                self._suspend(slot, reason)
            case None if changed and decision is not None:
                self._suspend(slot, _CHANGED_SINCE)
            case None if changed:
                await self._admit_changed(slot)

    def _suspend(self, slot: CallState, reason: str) -> None:
        slot.pending = PendingCall(slot.key, slot.call, reason)
        self._waiting = self._waiting or slot.key

    async def _admit_changed(self, slot: CallState) -> None:
        """Validate a call again that an interceptor changed, and let those before it end if its order now demands it."""
        self._group.remove(slot)
        if not slot.find(self.toolbox, self.now()):
            self._group.append(slot)
            return
        if self._has_to_wait(slot):
            await self._flush()
        self._join_group(slot)

    # --- run ----------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        """Run the calls that have been admitted, side by side, and settle them in order."""
        group, self._group, self._group_keys, self._exclusive = self._group, [], set(), False
        open_slots = [slot for slot in group if slot.is_open]
        gate = asyncio.Semaphore(self.max_concurrency) if self.max_concurrency is not None else None
        for slot in open_slots:  # also a single one has its own task: what a tool does to its task stays there
            slot.task = asyncio.create_task(self._run(slot, gate), name=f"agentloop tool {slot.key}")
        for slot in group:
            if slot.task is not None and not slot.task.done():
                await asyncio.wait((slot.task,))
            await self._settle(slot)

    async def _run(self, slot: CallState, gate: asyncio.Semaphore | None) -> None:
        if gate is not None:
            async with gate:
                await self._run(slot, None)
            return
        run = ToolInvocation(slot, slot.tool, self.state, self.settings) if slot.tool is not None else None
        log = self.settings.scope.log
        recorded = JournaledCall(slot, run, self.state, self.settings, log) if log is not None else None
        try:
            await _one(recorded, run).run()
        except AgentStop as stop:
            slot.stop = stop.signal
            error = ErrorInfo("AgentStop", str(stop))
            slot.execution = slot.end(ToolStatus.CANCELLED, error, self.now())
        except Exception as error:  # noqa: BLE001  # a layer around the call failed, or a strict listener, or the journal
            self.fail(slot, error)
        if run is not None and run.suspended is not None:
            slot.suspend(run.suspended)
        if run is not None and run.stop is not None:
            slot.stop = run.stop.signal
        if slot.stop is not None:
            self.state = self.state.with_stop_signal(slot.stop)
        if recorded is not None:
            self.failure = self.failure or recorded.failure
            await self.note(slot)

    # --- settle -------------------------------------------------------------------------------------------------

    async def _settle(self, slot: CallState) -> None:
        if slot.settled:
            return
        if slot.is_open:  # its task was cancelled by somebody else
            slot.cancel("the call was cancelled", self.now())
        await self.note(slot)
        if slot.pending is not None:
            await self._settle_suspended(slot, slot.pending)
            return
        slot.settled = True
        if self.settings.interceptor.handles(AfterToolUse):
            await self._pass_after(slot)
        execution = _execution(slot)
        events = self.settings.events
        kind = ToolCallCompleted if slot.started_at is not None else _EVENTS.get(execution.status, ToolCallCompleted)
        if events.due(kind):
            await events.emit(kind(events.head(self.state, step_number=slot.step), execution))

    async def _settle_suspended(self, slot: CallState, pending: PendingCall) -> None:
        slot.settled, self._waiting, events = True, self._waiting or slot.key, self.settings.events
        if slot.started and events.due(ToolCallSuspended):
            await events.emit(ToolCallSuspended(events.head(self.state, step_number=slot.step), pending))

    async def _pass_after(self, slot: CallState) -> None:
        spec = slot.tool.spec if slot.tool is not None else None
        before = AfterToolUse(self.state, _execution(slot), spec)
        try:
            point = await self.settings.interceptor.handle(before)
        except AgentStop as stop:
            self.state = self.state.with_stop_signal(stop.signal)
        except AgentLoopError as error:
            slot.fail(error, self.now())
            self.failure = self.failure or error
        else:
            self.state = point.state
            slot.execution = evolve(point.execution, id=slot.id, key=slot.key)


def _one(recorded: JournaledCall | None, run: ToolInvocation | None) -> JournaledCall | ToolInvocation:
    one = recorded or run
    assert one is not None  # noqa: S101  # without a journal, only calls whose tool was found are run
    return one


_CHANGED_SINCE = "the call was decided about, and then changed by an interceptor; it needs a decision as it is now"

_EVENTS: Mapping[ToolStatus, type[ToolCallBlocked | ToolCallRejected]] = {
    ToolStatus.BLOCKED: ToolCallBlocked,
    ToolStatus.REJECTED: ToolCallRejected,
}


def _tool(slot: CallState) -> ReadyTool:
    assert slot.tool is not None  # noqa: S101  # only slots whose tool was found are admitted
    return slot.tool


def _execution(slot: CallState) -> ToolExecution:
    assert slot.execution is not None  # noqa: S101  # only slots with an outcome are settled
    return slot.execution
